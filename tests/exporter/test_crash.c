/* A file is the old one or the new one, row 33 of the collected reports for checkpoints and
 * weights: a kill at hundreds of random moments, a full disk, a file that another process has
 * locked. */
#include "exporter/run_state.h"
#include "exporter/checkpoint.h"
#include "exporter/keras_h5.h"
#include "exporter/onnx_write.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { ELEMENTS = 4096, KILLS = 300 };

static const char *checkpoint_path, *h5_path, *onnx_path;
static struct mgpu_onnx_file *onnx;

static struct mgpu_named_array filled(const char *name, float value)
{
    struct mgpu_named_array a = {.name = mgpu_xstrdup(name)};
    int64_t n = ELEMENTS;
    CHECK_OK(mgpu_array_init(&a.array, MGPU_FLOAT, 1, &n, name));
    for (int64_t i = 0; i < n; i++)
        ((float *)a.array.data)[i] = value;
    return a;
}

static void add_filled(struct mgpu_array_list *list, const char *name, float value)
{
    list->item = mgpu_grow(list->item, (size_t)list->count, sizeof *list->item);
    list->item[list->count++] = filled(name, value);
}

/* Everything in the files of generation `n` is n. */
static int save_checkpoint(int n)
{
    struct mgpu_run_state c;
    int64_t step = n;
    mgpu_run_state_init(&c);
    add_filled(&c.list[MGPU_RUN_WEIGHT], "w", (float)n);
    add_filled(&c.list[MGPU_RUN_STATE], "w:exp_avg", (float)n);
    int rc = mgpu_record_int(&c.record, "step", &step);
    if (rc == 0)
        rc = mgpu_run_state_write(&c, checkpoint_path);
    mgpu_run_state_free(&c);
    return rc;
}

static int save_h5(int n)
{
    struct mgpu_named_array *a = mgpu_xcalloc(1, sizeof *a);
    *a = filled("w", (float)n);
    int rc = mgpu_keras_h5_write(h5_path, a, 1);
    mgpu_named_arrays_free(a, 1);
    return rc;
}

static int save_onnx(int n)
{
    struct mgpu_named_array a = filled("w", (float)n);
    struct mgpu_onnx_patch patch = {"w", &a.array};
    int rc = mgpu_onnx_write(onnx, onnx_path, &patch, 1, NULL);
    mgpu_array_free(&a.array);
    free(a.name);
    return rc;
}

/* The generation that all elements are of; 0: they are not of one. */
static int generation(const float *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (data[i] != data[0] || count != ELEMENTS)
            return 0;
    return (int)data[0];
}

static int checkpoint_generation(void)
{
    struct mgpu_run_state c;
    int64_t step = 0;
    int n = 0;
    mgpu_run_state_init(&c);
    const struct mgpu_array_list *weight = &c.list[MGPU_RUN_WEIGHT],
                                 *state = &c.list[MGPU_RUN_STATE];
    if (mgpu_run_state_read(&c, checkpoint_path) == 0 && weight->count == 1 && state->count == 1 &&
        mgpu_record_int(&c.record, "step", &step) == 0) {
        n = generation(weight->item->array.data, mgpu_array_count(&weight->item->array));
        if (n != step ||
            n != generation(state->item->array.data, mgpu_array_count(&state->item->array)))
            n = 0;
    }
    mgpu_run_state_free(&c);
    return n;
}

static int h5_generation(void)
{
    struct mgpu_checkpoint *c;
    struct mgpu_array a = {0};
    int n = 0;
    if (mgpu_checkpoint_open(&c, h5_path, false) == 0 && c->count == 1 &&
        mgpu_checkpoint_load(c, 0, &a) == 0)
        n = generation(a.data, mgpu_array_count(&a));
    mgpu_array_free(&a);
    mgpu_checkpoint_close(c);
    return n;
}

static int onnx_generation(void)
{
    struct mgpu_onnx_file *file;
    int n = 0;
    if (mgpu_onnx_read(&file, onnx_path) == 0) {
        const ProtobufCBinaryData *raw = &file->proto->graph->initializer[0]->raw_data;
        n = generation((const float *)(const void *)raw->data, (int64_t)(raw->len / sizeof(float)));
        mgpu_onnx_free(file);
    }
    return n;
}

static int left_overs(void)
{
    int n = 0;
    DIR *dir = opendir(build_folder);
    for (struct dirent *e; (e = readdir(dir));)
        n += strstr(e->d_name, ".mgpu-") != NULL;
    closedir(dir);
    return n;
}

/* ---- Killed ---------------------------------------------------------------------------------- */

/* One writer of each kind, its generations going up without an end. */
static pid_t start_writer(int (*save)(int), int n)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    for (;;)
        if (save(n++) < 0)
            _exit(1);
}

static void kill_writers(unsigned *random, int *was)
{
    static int (*const saves[])(int) = {save_checkpoint, save_h5, save_onnx};
    static int (*const generations[])(void) = {checkpoint_generation, h5_generation,
                                               onnx_generation};
    pid_t pid[3];
    for (int i = 0; i < 3; i++)
        pid[i] = start_writer(saves[i], was[i] + 1);
    for (int i = 0; i < 3; i++) {
        int status;
        *random = *random * 1664525u + 1013904223u;
        usleep(*random >> 8 & 0xfff); /* up to 4 ms */
        kill(pid[i], SIGKILL);
        waitpid(pid[i], &status, 0);
        CHECK(WIFSIGNALED(status));
    }
    for (int i = 0; i < 3; i++) {
        int now = generations[i]();
        CHECK_(now >= was[i], "kind %d: generation %d after %d", i, now, was[i]);
        was[i] = now;
    }
}

static void test_kill(void)
{
    int was[3] = {1, 1, 1}, left = 0;
    unsigned random = 1;
    for (int i = 0; i < KILLS / 3; i++) {
        kill_writers(&random, was);
        left += left_overs() > 0;
    }
    printf("%d kills, generations %d, %d and %d, temporary files after %d of %d rounds\n", KILLS,
           was[0], was[1], was[2], left, KILLS / 3);
    CHECK(left > 0);
    CHECK_OK(save_h5(was[1]));
    CHECK(left_overs() == 0);
}

/* ---- Full, locked ---------------------------------------------------------------------------- */

static void test_full_disk(void)
{
    struct rlimit old, small;
    int n = checkpoint_generation();
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    for (rlim_t most = 0; most < 40000; most += 1111) {
        small = (struct rlimit){most, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        CHECK_FAILS(save_checkpoint(n + 1), "run.h5: cannot write: File too large");
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK(checkpoint_generation() == n && left_overs() == 0);
    }
}

/* A process that writes the file keeps it; those that read it keep what they read. */
static void test_locked(void)
{
    hid_t file;
    int n = checkpoint_generation(), fd = open(checkpoint_path, O_RDONLY);
    flock(fd, LOCK_EX);
    CHECK_FAILS(save_checkpoint(n + 1), "run.h5: cannot write: it is locked by another process");
    CHECK(checkpoint_generation() == n && left_overs() == 0);
    flock(fd, LOCK_SH);
    CHECK_OK(save_checkpoint(n + 1));
    CHECK(checkpoint_generation() == n + 1);
    close(fd);
    mgpu_h5_lock();
    file = H5Fopen(checkpoint_path, H5F_ACC_RDWR, H5P_DEFAULT); /* as h5py opens it */
    mgpu_h5_unlock();
    CHECK_FAILS(save_checkpoint(n + 2), "it is locked by another process");
    H5Fclose(file);
    CHECK_OK(save_checkpoint(n + 2));
    CHECK(checkpoint_generation() == n + 2);
}

/* As somebody who is not root, who may write everywhere. */
static void test_read_only_folder(void)
{
    enum { NOBODY = 65534 };
    int n = checkpoint_generation(), status;
    CHECK_OK(chmod(build_folder, 0555));
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && (setgid(NOBODY) < 0 || setuid(NOBODY) < 0))
            _exit(2);
        _exit(save_checkpoint(n + 1) < 0 && strstr(mgpu_error(), "run.h5: cannot write: ") != NULL
                  ? 0
                  : 1);
    }
    waitpid(pid, &status, 0);
    CHECK_OK(chmod(build_folder, 0777));
    CHECK_(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d: %s", status, mgpu_error());
    CHECK(checkpoint_generation() == n && left_overs() == 0);
}

int main(void)
{
    build_begin();
    checkpoint_path = build_text(build_path("run.h5"));
    h5_path = build_text(build_path("w.h5"));
    onnx_path = build_text(build_path("out.onnx"));
    static float ones[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        ones[i] = 1;
    build_save(build_scale(build_floats("w", ELEMENTS, ones)), build_path("in.onnx"));
    CHECK_OK(mgpu_onnx_read(&onnx, build_path("in.onnx")));
    CHECK_OK(save_checkpoint(1));
    CHECK_OK(save_h5(1));
    CHECK_OK(save_onnx(1));
    test_kill();
    test_full_disk();
    test_locked();
    test_read_only_folder();
    mgpu_onnx_free(onnx);
    build_end();
    return test_end();
}
