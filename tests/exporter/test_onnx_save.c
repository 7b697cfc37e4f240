/* Saving ONNX files: external data in new files, and the old file or the new one, whatever happens
 * (row 33 of the users' reports). */
#include "exporter/atomic_file.h"
#include "exporter/onnx_write.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { FLOAT = 1 };

static bool same_bytes(const char *path, const char *other)
{
    size_t n, m;
    uint8_t *a = build_load(path, &n), *b = build_load(other, &m);
    bool same = a && b && n == m && !memcmp(a, b, n);
    free(a);
    free(b);
    return same;
}

static struct mgpu_onnx_file *reread(const char *path)
{
    struct mgpu_onnx_file *file = NULL;
    CHECK_OK(mgpu_onnx_read(&file, path));
    if (!file)
        exit(test_end());
    return file;
}

static struct mgpu_array array_of(enum mgpu_dtype type, int rank, const int64_t *dims,
                                  const double *values)
{
    struct mgpu_array a;
    if (mgpu_array_init(&a, type, rank, dims, "test") < 0)
        abort();
    for (int64_t i = 0; i < mgpu_array_count(&a); i++)
        mgpu_set_double(a.data, type, i, values[i]);
    return a;
}

/* ---- External data ---- */

static void check_floats(const char *path, size_t initializer, float a, float b)
{
    struct mgpu_onnx_file *file = reread(path);
    struct mgpu_array got = {0};
    CHECK_OK(mgpu_onnx_tensor_read(file, file->proto->graph->initializer[initializer], &got));
    const float *v = got.data;
    CHECK_(v && v[0] == a && v[1] == b, "%s: %g, %g", path, v ? v[0] : NAN, v ? v[1] : NAN);
    mgpu_array_free(&got);
    mgpu_onnx_free(file);
}

static const char *location(const struct mgpu_onnx_file *file, size_t initializer)
{
    return file->proto->graph->initializer[initializer]->external_data[0]->value;
}

static void check_location(const char *path, const char *expected)
{
    struct mgpu_onnx_file *file = reread(path);
    CHECK_(!strcmp(location(file, 0), expected), "%s: location %s", path, location(file, 0));
    mgpu_onnx_free(file);
}

static Onnx__TensorProto *outside(const char *name, const char *file, const char *offset)
{
    Onnx__TensorProto *t = build_tensor(name, FLOAT, 1, (int64_t[]){2});
    build_external(t, "location", file);
    build_external(t, "offset", offset);
    build_external(t, "length", "8");
    return t;
}

static int save(const char *from, const char *to, float a, float b)
{
    struct mgpu_onnx_file *file = reread(from);
    struct mgpu_array values = array_of(MGPU_FLOAT, 1, (int64_t[]){2}, (const double[]){a, b});
    struct mgpu_onnx_patch patch = {"w", &values};
    int rc = mgpu_onnx_write(file, to, &patch, 1, NULL);
    mgpu_onnx_free(file);
    mgpu_array_free(&values);
    return rc;
}

/* w at 8, v at 16 of one file; what is between and after is kept. */
static void external_model(const char *path, const char *file)
{
    static const float data[] = {9, 9, 1, 2, 3, 4, 9};
    Onnx__ModelProto *m = build_scale(outside("w", file, "8"));
    build_initializer(m->graph, outside("v", file, "16"));
    build_save(m, path);
    char where[600];
    snprintf(where, sizeof where, "%.*s%s", (int)(strrchr(path, '/') + 1 - path), path, file);
    build_bytes(where, data, sizeof data);
}

static void test_external_same_folder(void)
{
    external_model(build_path("ext.onnx"), "w.bin");
    CHECK_OK(save(build_path("ext.onnx"), build_path("new.onnx"), 5, 6));
    check_location(build_path("new.onnx"), "new.onnx.data");
    check_floats(build_path("new.onnx"), 0, 5, 6);
    check_floats(build_path("new.onnx"), 1, 3, 4);
    check_floats(build_path("ext.onnx"), 0, 1, 2);
    build_bytes(build_path("expected.bin"), (float[]){9, 9, 5, 6, 3, 4, 9}, 28);
    CHECK(same_bytes(build_path("new.onnx.data"), build_path("expected.bin")));
    /* Again over itself: the data that the old file refers to is not touched before it is gone. */
    CHECK_OK(save(build_path("ext.onnx"), build_path("new.onnx"), 7, 8));
    check_location(build_path("new.onnx"), "new.onnx.data.1");
    check_floats(build_path("new.onnx"), 0, 7, 8);
    CHECK(access(build_path("new.onnx.data"), F_OK) < 0);
    CHECK_OK(save(build_path("ext.onnx"), build_path("new.onnx"), 0, 1));
    check_location(build_path("new.onnx"), "new.onnx.data");
    /* Onto the source itself, twice: the second time its old data is still needed. */
    struct mgpu_onnx_file *file = reread(build_path("new.onnx"));
    struct mgpu_array values = array_of(MGPU_FLOAT, 1, (int64_t[]){2}, (const double[]){2, 2});
    struct mgpu_onnx_patch patch = {"w", &values};
    CHECK_OK(mgpu_onnx_write(file, build_path("new.onnx"), &patch, 1, NULL));
    CHECK_OK(mgpu_onnx_write(file, build_path("new.onnx"), &patch, 1, NULL));
    check_floats(build_path("new.onnx"), 0, 2, 2);
    check_floats(build_path("new.onnx"), 1, 3, 4);
    mgpu_array_free(&values);
    mgpu_onnx_free(file);
    /* Nothing patched: the new model refers to the old data. */
    file = reread(build_path("ext.onnx"));
    CHECK_OK(mgpu_onnx_write(file, build_path("plain.onnx"), NULL, 0, NULL));
    CHECK(same_bytes(build_path("plain.onnx"), build_path("ext.onnx")));
    mgpu_onnx_free(file);
}

static void test_external_other_folder(void)
{
    mkdir(build_path("data"), 0777);
    mkdir(build_path("other"), 0777);
    external_model(build_path("ext.onnx"), "data/w.bin");
    CHECK_OK(save(build_path("ext.onnx"), build_path("other/new.onnx"), 5, 6));
    check_location(build_path("other/new.onnx"), "data/w.bin");
    CHECK(same_bytes(build_path("other/data/w.bin"), build_path("expected.bin")));
    /* Another model's data in the way is not overwritten. */
    CHECK_OK(save(build_path("ext.onnx"), build_path("other/second.onnx"), 0, 1));
    check_location(build_path("other/second.onnx"), "second.onnx.data");
    check_floats(build_path("other/new.onnx"), 0, 5, 6);
    check_floats(build_path("other/second.onnx"), 0, 0, 1);
    struct mgpu_onnx_file *file = reread(build_path("ext.onnx"));
    mkdir(build_path("third"), 0777);
    CHECK_OK(mgpu_onnx_write(file, build_path("third/ext.onnx"), NULL, 0, NULL));
    CHECK(same_bytes(build_path("third/data/w.bin"), build_path("data/w.bin")));
    CHECK(same_bytes(build_path("third/ext.onnx"), build_path("ext.onnx")));
    mgpu_onnx_free(file);
}

/* Two tensors on the same bytes: the patched one moves away from the other; a checksum goes. */
static void test_external_shared(void)
{
    Onnx__TensorProto *w = outside("w", "w.bin", "8");
    build_external(w, "checksum", "abc");
    Onnx__ModelProto *m = build_scale(w);
    build_initializer(m->graph, outside("v", "w.bin", "8"));
    build_bytes(build_path("w.bin"), (float[]){9, 9, 1, 2}, 16);
    build_save(m, build_path("ext.onnx"));
    CHECK_OK(save(build_path("ext.onnx"), build_path("new.onnx"), 5, 6));
    check_floats(build_path("new.onnx"), 0, 5, 6);
    check_floats(build_path("new.onnx"), 1, 1, 2);
    struct mgpu_onnx_file *file = reread(build_path("new.onnx"));
    CHECK(file->proto->graph->initializer[0]->n_external_data == 3);
    CHECK(!strcmp(file->proto->graph->initializer[0]->external_data[1]->value, "4096"));
    mgpu_onnx_free(file);
}

/* ---- All or nothing (row 33 of the users' reports) ---- */

enum { MIB = 1 << 20 };

/* A model of 1 MiB whose weight is `value` everywhere. */
static void big_model(const char *path, float value)
{
    float *values = malloc(MIB);
    for (int i = 0; i < MIB / 4; i++)
        values[i] = value;
    build_save(build_scale(build_floats("w", MIB / 4, values)), path);
    free(values);
}

static bool has_left_over(void)
{
    DIR *dir = opendir(build_folder);
    bool found = false;
    for (struct dirent *e; (e = readdir(dir));)
        found |= strstr(e->d_name, ".mgpu-") != NULL;
    closedir(dir);
    return found;
}

/* a: the disk is full after 64 KiB. */
static void test_full_disk(void)
{
    big_model(build_path("big.onnx"), 1);
    big_model(build_path("best.onnx"), 2);
    struct mgpu_onnx_file *file = reread(build_path("big.onnx"));
    big_model(build_path("keep.onnx"), 2);
    struct rlimit old, small = {64 * 1024, 64 * 1024};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = mgpu_onnx_write(file, build_path("best.onnx"), NULL, 0, NULL);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(rc == MGPU_EIO && strstr(mgpu_error(), "best.onnx: cannot write: File too large"));
    CHECK(same_bytes(build_path("best.onnx"), build_path("keep.onnx")) && !has_left_over());
    external_model(build_path("ext.onnx"), "w.bin");
    build_bytes(build_path("w.bin"), file->proto->graph->initializer[0]->raw_data.data, MIB);
    CHECK_OK(save(build_path("ext.onnx"), build_path("new.onnx"), 1, 1));
    setrlimit(RLIMIT_FSIZE, &small);
    rc = save(build_path("ext.onnx"), build_path("new.onnx"), 2, 2);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(rc == MGPU_EIO && strstr(mgpu_error(), ".data") && strstr(mgpu_error(), "too large"));
    check_floats(build_path("new.onnx"), 0, 1, 1);
    CHECK(!has_left_over());
    mgpu_onnx_free(file);
}

/* b: kill -9 at 20 different moments. The writer alternates between two models. */
static void save_for_ever(const struct mgpu_onnx_file *one, const struct mgpu_onnx_file *two)
{
    for (;;) {
        mgpu_onnx_write(one, build_path("best.onnx"), NULL, 0, NULL);
        mgpu_onnx_write(two, build_path("best.onnx"), NULL, 0, NULL);
    }
}

static void test_kill(void)
{
    big_model(build_path("one.onnx"), 1);
    big_model(build_path("two.onnx"), 2);
    big_model(build_path("best.onnx"), 1);
    struct mgpu_onnx_file *one = reread(build_path("one.onnx"));
    struct mgpu_onnx_file *two = reread(build_path("two.onnx"));
    int left = 0;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (!pid)
            save_for_ever(one, two);
        usleep((useconds_t)(2000 + 1370 * i));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        CHECK(same_bytes(build_path("best.onnx"), build_path("one.onnx")) ||
              same_bytes(build_path("best.onnx"), build_path("two.onnx")));
        left += has_left_over();
    }
    printf("%d of 20 kills left a temporary file\n", left);
    CHECK_OK(mgpu_onnx_write(one, build_path("best.onnx"), NULL, 0, NULL));
    CHECK(!has_left_over());
    mgpu_onnx_free(one);
    mgpu_onnx_free(two);
}

static void check_refused(const struct mgpu_onnx_file *file, const char *path, const char *reason)
{
    CHECK_FAILS(mgpu_onnx_write(file, path, NULL, 0, NULL), reason);
    CHECK_(!strncmp(mgpu_error(), path, strlen(path)), "no path: %s", mgpu_error());
}

/* c: folders that cannot be written to; root may write to a read-only one. */
static void test_bad_folder(void)
{
    struct mgpu_onnx_file *file = reread(build_path("one.onnx"));
    check_refused(file, build_path("nowhere/out.onnx"), "No such file or directory");
    check_refused(file, build_path("one.onnx/out.onnx"), "Not a directory");
    check_refused(file, build_folder, "not a regular file");
    mkdir(build_path("locked"), 0777);
    big_model(build_path("locked/best.onnx"), 2);
    chmod(build_path("locked"), 0555);
    if (access(build_path("locked"), W_OK) < 0) {
        check_refused(file, build_path("locked/best.onnx"), "Permission denied");
        CHECK(same_bytes(build_path("locked/best.onnx"), build_path("two.onnx")));
    }
    chmod(build_path("locked"), 0777);
    mgpu_onnx_free(file);
}

static void touch(const char *name)
{
    build_bytes(build_path(name), "x", 1);
}

/* Which names count as left over: those of processes that are dead, or of this process before it
 * gave the name out, whatever their target. Others' files are safe. */
static void test_left_overs(void)
{
    char own[64], later[64], other[64];
    pid_t dead = fork();
    if (!dead)
        _exit(0);
    waitpid(dead, NULL, 0);
    snprintf(own, sizeof own, ".t.h5.mgpu-%d-0", (int)dead);
    snprintf(other, sizeof other, ".w-03-0.5.h5.mgpu-%d-1", (int)dead);
    snprintf(later, sizeof later, ".t.h5.mgpu-%d-999999", (int)getpid());
    const char *const kept[] = {"t.h5.mgpu-1-1", ".t.h5.mgpu-1-0", ".t.h5.mgpu-x-1", ".u.h5",
                                ".t.h5.mgpu-7-7x"};
    touch(other);
    touch(own);
    touch(later);
    for (int i = 0; i < 5; i++)
        touch(kept[i]);
    touch("t.h5");
    chmod(build_path("t.h5"), 0640);
    struct mgpu_atomic_file f;
    CHECK_OK(mgpu_atomic_open(&f, build_path("t.h5")));
    CHECK(access(build_path(own), F_OK) < 0 && access(build_path(later), F_OK) < 0);
    CHECK(access(build_path(other), F_OK) < 0);
    for (int i = 0; i < 5; i++)
        CHECK_(access(build_path(kept[i]), F_OK) == 0, "%s was removed", kept[i]);
    CHECK_OK(mgpu_atomic_write(&f, "new", 3));
    CHECK(!same_bytes(build_path("t.h5"), f.temp));
    CHECK_OK(mgpu_atomic_commit(&f));
    struct stat st;
    CHECK(stat(build_path("t.h5"), &st) == 0 && (st.st_mode & 0777) == 0640 && st.st_size == 3);
    CHECK_OK(mgpu_atomic_open(&f, build_path("t.h5")));
    CHECK(mgpu_atomic_abort(&f, MGPU_EINVALID) == MGPU_EINVALID);
    CHECK(stat(build_path("t.h5"), &st) == 0 && st.st_size == 3);
}

int main(void)
{
    build_begin();
    test_external_same_folder();
    test_external_other_folder();
    test_external_shared();
    test_full_disk();
    test_kill();
    test_bad_folder();
    test_left_overs();
    build_end();
    CHECK(mgpu_alloc_bytes() == 0);
    return test_end();
}
