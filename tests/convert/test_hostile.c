/* Files of weights from strangers (reports.md rows 33 to 35): each is refused with a reason,
 * without much memory, and no file appears or changes. */
#include "runtime/base/memory.h"
#include "runtime/data/h5.h"
#include "tests/convert/weights_check.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define FILES "tests/convert/files/"

enum { MEMORY_MOST = 64 << 20 };

static char line[256];
static const char *out;
static struct mgpu_convert_options into_plain = {.model = FILES "plain/blank.onnx"};

/* In a process of its own, that which reads HDF5 for it counted too. */
static void check_use(const char *path)
{
    struct rusage usage;
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(weights_convert(line, path, out, &into_plain) < 0 ? 0 : 1);
    wait4(pid, &status, 0, &usage);
    CHECK_(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %d", path, status);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which take memory */
    CHECK_(usage.ru_maxrss <= 64 * 1024, "%s: took %ld KiB", path, usage.ru_maxrss);
#endif
    CHECK_(usage.ru_utime.tv_sec < 1, "%s: took %ld s", path, usage.ru_utime.tv_sec);
}

static void check_refused(const char *path, const char *part)
{
    check_use(path);
    int rc = weights_convert(line, path, out, &into_plain);
    CHECK_(rc < 0, "%s was taken: %s", path, line);
    CHECK_(strstr(mgpu_error(), part), "%s: %s", path, mgpu_error());
    CHECK_(!strchr(mgpu_error(), '\n'), "%s: several lines", path);
    CHECK_(!weights_exist(out), "%s: a file was left", path);
    CHECK_(mgpu_alloc_peak() < MEMORY_MOST, "%s: memory", path);
}

static const struct {
    const char *file, *part;
} refused[] = {
    {"wrong_shape.h5", "'dense_1/kernel:0' is [24,10], the model wants [24,8]"},
    {"transposed.h5", "'dense_1/kernel:0' is [8,24], the model wants [24,8]"},
    {"missing_bias.h5", "7 of 8 tensors: 'model/dense_1/bias' [8] of the model is not in it"},
    {"no_matching_names.h5",
     "(all would fit if 'conv2d_191' is the model's 'conv2d_1', and so on: --by-order takes"},
    {"nan.h5", "'dense_1/kernel:0' holds an infinity at [0,1]"},
    {"no_layers.h5", "holds no weights"},
    {"external_link.h5", "is a link to another file, which is not followed"},
    {"huge_dims.h5", "claims 4398046511104 bytes"},
    {"overflow_dims.h5", "dense_1/kernel:0"},
    {"external_storage.h5", "is stored outside the file, which is not followed"},
    {"dotdot.h5", "the name 'dense_1/../dense_2' is not inside its group"},
    {"group_as_weight.h5", "is not a data set"},
    {"text_as_weight.h5", "it holds text, not numbers"},
    {"not_there.h5", "there is no '/dense_1/dense_1/offset:0' in the file"},
    {"truncated_98.h5", "not a readable HDF5 file"},
    {"empty.h5", "an empty file"},
    {"text.h5", "not a kind of weights file that is known"},
    {"other.h5", "HDF5, but no file of Keras"},
    {"truncated.safetensors", "are not in the file"},
    {"trailing.safetensors", "bytes after the last tensor"},
    {"overlap.safetensors", "two tensors share bytes"},
    {"beyond.safetensors", "are not in the file"},
    {"shape.safetensors", "are not"},
    {"dtype.safetensors", "data type F31 is not supported"},
    {"duplicate.safetensors", "two tensors are called"},
    {"not_json.safetensors", "the header is not JSON"},
    {"nan.safetensors", "'dense_2/kernel' holds a NaN at"},
    {"no_weights.keras", "no model.weights.h5 is in the archive"},
    {"traversal.keras", "a member called '../escape.h5' would leave the archive"},
    {"not_h5.keras", "model.weights.h5: not a readable HDF5 file"},
    {"truncated.keras", "truncated.keras: "},
    {"keras3_missing.weights.h5", "7 of 8 tensors: 'model/dense_1/bias' [8]"},
    {"keras2.1.0.interrupted.model.h5", "HDF5, but no file of Keras"},
};

static void test_refused(void)
{
    char path[256];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(path, sizeof path, FILES "refuse/%s", refused[i].file);
        check_refused(path, refused[i].part);
    }
}

/* ---- Other kinds of trouble in HDF5 ---------------------------------------------------------- */

static hid_t new_store(const char *path)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t link = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(link, 1);
    H5Gclose(H5Gcreate2(file, "layers/dense/vars", link, H5P_DEFAULT, H5P_DEFAULT));
    H5Pclose(link);
    return file;
}

/* A data set [rows,columns] of floats, chunked and gzipped, that is never written. */
static void declare(hid_t file, const char *name, hsize_t rows, hsize_t columns)
{
    hsize_t dims[2] = {rows, columns}, chunk[2] = {1, 1024};
    hid_t space = H5Screate_simple(2, dims, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, 2, chunk);
    H5Pset_deflate(create, 9);
    H5Dclose(H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT));
    H5Pclose(create);
    H5Sclose(space);
}

static void test_links(void)
{
    const char *path = build_text(build_path("loop.weights.h5"));
    mgpu_h5_lock();
    hid_t file = new_store(path);
    H5Lcreate_soft("/layers/dense/vars/1", file, "layers/dense/vars/0", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/layers/dense/vars/0", file, "layers/dense/vars/1", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    mgpu_h5_unlock();
    check_refused(path, "a soft link, which is not followed");
}

static void test_virtual(void)
{
    const char *path = build_text(build_path("virtual.weights.h5"));
    hsize_t dims[2] = {24, 8};
    mgpu_h5_lock();
    hid_t file = new_store(path), space = H5Screate_simple(2, dims, NULL);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_virtual(create, space, FILES "plain/keras3.weights.h5", "/layers/dense/vars/0", space);
    H5Dclose(H5Dcreate2(file, "layers/dense/vars/0", H5T_IEEE_F32LE, space, H5P_DEFAULT, create,
                        H5P_DEFAULT));
    H5Pclose(create);
    H5Sclose(space);
    H5Fclose(file);
    mgpu_h5_unlock();
    check_refused(path, "a virtual data set, which is not followed");
}

static void test_many_giants(void)
{
    const char *path = build_text(build_path("giants.weights.h5"));
    char name[64];
    mgpu_h5_lock();
    hid_t file = new_store(path);
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "layers/dense/vars/%d", i);
        declare(file, name, (1 << 20) - 1, 1024);
    }
    H5Fclose(file);
    mgpu_h5_unlock();
    check_refused(path, "claims 4294963200 bytes");
}

static void test_gap(void)
{
    const char *path = build_text(build_path("gap.weights.h5"));
    mgpu_h5_lock();
    hid_t file = new_store(path);
    declare(file, "layers/dense/vars/0", 24, 1024);
    declare(file, "layers/dense/vars/7", 8, 1024);
    H5Fclose(file);
    mgpu_h5_unlock();
    check_refused(path, "'/layers/dense/vars/7' is in it, and what comes before it is not");
}

/* Packed, but really there: it loads. */
static void test_packed(void)
{
    const char *path = build_text(build_path("packed.weights.h5")),
               *to = build_text(build_path("packed.npz"));
    struct mgpu_convert_options none = {0};
    float zeros[64][1024] = {{1}};
    mgpu_h5_lock();
    hid_t file = new_store(path);
    declare(file, "layers/dense/vars/0", 64, 1024);
    hid_t set = H5Dopen2(file, "layers/dense/vars/0", H5P_DEFAULT);
    CHECK(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros) >= 0);
    H5Dclose(set);
    H5Fclose(file);
    mgpu_h5_unlock();
    CHECK_OK(weights_convert(line, path, to, &none));
    CHECK(!strcmp(line, "1 of 1 tensors\n"));
}

/* ---- Archives, JSON, pickles ----------------------------------------------------------------- */

static void put(const char *name, const void *bytes, size_t size, const char *part)
{
    const char *path = build_text(build_path(name));
    build_bytes(path, bytes, size);
    check_refused(path, part);
}

static void put_safetensors(const char *header, const char *part)
{
    uint8_t bytes[4096] = {0};
    size_t n = strlen(header);
    bytes[0] = (uint8_t)n;
    bytes[1] = (uint8_t)(n >> 8);
    memcpy(bytes + 8, header, n);
    put("x.safetensors", bytes, 8 + n + 16, part);
}

static void test_text(void)
{
    static const uint8_t pickle[] = {0x80, 2, '}', 'q', 0, '.'};
    put("weights.pt", pickle, sizeof pickle, "holds pickled Python objects");
    put("x.json", "{\"weight_map\": 1}", 17, "no list of shards");
    put("x.weights.json", "{\"weight_map\":{\"/a/vars\":\"../plain.h5\"}}", 41,
        "is not a file beside it");
    put("y.weights.json", "{\"weight_map\":{\"/a/vars\":\"/etc/passwd\"}}", 41,
        "is not a file beside it");
    put_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}", "not JSON");
    put_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}",
                    "its shape is not a list of numbers");
    put_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                    "\"data_offsets\":[0,16]}}",
                    "'a': ");
    put_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}",
                    "are not in the file");
    put_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],"
                    "\"data_offsets\":[0,99999999999999999999]}}",
                    "are not in the file");
    put_safetensors("{\"a\":[1]}", "not JSON");
    put_safetensors("{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
                    "a name with a zero byte");
    put_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}} x",
                    "not JSON");
    put_safetensors(
        "{\"a\\u001b[31m\\nb\":{\"dtype\":\"Q1\",\"shape\":[4],\"data_offsets\":[0,16]}}",
        "'a\\x1b[31m\\nb': data type Q1");
    put("y.safetensors", "\xff\xff\xff\xff\xff\xff\0\0{}", 10, "is not in the file");
}

/* Every file of a good kind, cut at many places: refused, or the same number of weights. */
static void test_cut(void)
{
    static const char *const files[] = {"plain/keras3.keras", "plain/weights.safetensors",
                                        "plain/keras3_sharded_00001.weights.h5",
                                        "plain/keras2.1.0.weights.h5"};
    const char *path = build_text(build_path("cut"));
    struct mgpu_convert_options partial = into_plain;
    partial.partial = true;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char from[256];
        size_t size;
        snprintf(from, sizeof from, FILES "%s", files[i]);
        uint8_t *bytes = build_load(from, &size);
        for (size_t n = 1; n < size; n += size / 61) {
            build_bytes(path, bytes, n);
            CHECK_(weights_convert(line, path, out, &partial) < 0, "%s cut at %zu", from, n);
        }
        free(bytes);
    }
    CHECK(mgpu_alloc_peak() < MEMORY_MOST);
}

/* ---- reports.md row 33: the old file stays --------------------------------------------------- */

static void check_kept(const char *path, const char *part)
{
    struct mgpu_convert_options none = {0};
    struct stat before, after;
    stat(path, &before);
    CHECK_FAILS(weights_convert(line, build_path("big.onnx"), path, &none), part);
    stat(path, &after);
    CHECK_(before.st_ino == after.st_ino && before.st_size == after.st_size, "%s", path);
}

static void test_full_disk(void)
{
    static const char *const ends[] = {"old.h5", "old.weights.h5", "old.safetensors", "old.npz"};
    struct mgpu_convert_options none = {0};
    struct rlimit old, small;
    size_t size;
    uint8_t *bytes = build_load(FILES "plain/model.onnx", &size);
    build_bytes(build_path("big.onnx"), bytes, size);
    free(bytes);
    for (int i = 0; i < 4; i++)
        CHECK_OK(weights_convert(line, FILES "plain/model.onnx", build_path(ends[i]), &none));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){1024, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 4; i++)
        check_kept(build_text(build_path(ends[i])), "File too large");
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_FAILS(weights_convert(line, FILES "plain/model.onnx", "/nowhere/w.h5", &none),
                "/nowhere/w.h5: cannot write");
}

/* A pipe does not make us wait; IN is not overwritten; NaN is no difference to itself. */
static void test_files(void)
{
    static const float values[] = {1, NAN, INFINITY};
    char said[256];
    int differ = 1;
    const char *pipe = build_path("pipe.h5"), *a = build_path("nan.safetensors");
    struct mgpu_convert_options o = {.allow_nonfinite = true};
    CHECK(mkfifo(pipe, 0600) == 0);
    CHECK_FAILS(mgpu_weights_list(pipe, false, stdout), "regular file");
    FILE *f = fopen(a, "wb");
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}   ";
    uint64_t size = sizeof header - 1;
    fwrite(&size, 8, 1, f);
    fwrite(header, 1, size, f);
    fwrite(values, sizeof values, 1, f);
    fclose(f);
    FILE *to = fmemopen(said, sizeof said, "w");
    CHECK_OK(mgpu_weights_compare(a, a, &o, false, to, &differ));
    CHECK(differ == 0);
    CHECK_FAILS(mgpu_weights_convert(a, a, &o, false, to),
                "is IN: give what is written another name");
    fclose(to);
}

int main(void)
{
    build_begin();
    out = build_text(build_path("out.onnx"));
    test_refused();
    test_links();
    test_virtual();
    test_many_giants();
    test_gap();
    test_packed();
    test_text();
    test_cut();
    test_full_disk();
    test_files();
    build_end();
    return test_end();
}
