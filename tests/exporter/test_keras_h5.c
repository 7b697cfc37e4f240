/* Weights in Keras's legacy HDF5 layout: the layout itself, and names and values that come back. */
#include "exporter/checkpoint.h"
#include "exporter/keras_h5.h"
#include "runtime/base/memory.h"
#include "runtime/data/h5.h"
#include "tests/test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/mgpu-keras-XXXXXX", path[64];

static void fill(struct mgpu_named_array *a, const char *name, enum mgpu_dtype type, int rank,
                 const int64_t *dims, double first)
{
    a->name = mgpu_xstrdup(name);
    CHECK_OK(mgpu_array_init(&a->array, type, rank, dims, name));
    for (int64_t i = 0; i < mgpu_array_count(&a->array); i++)
        mgpu_set_double(a->array.data, type, i, first + (double)i);
}

static void free_arrays(struct mgpu_named_array *arrays, int count)
{
    for (int i = 0; i < count; i++) {
        free(arrays[i].name);
        mgpu_array_free(&arrays[i].array);
    }
    free(arrays);
}

/* Writes, reads back, compares names, types, shapes and bytes. Layers are kept together, so the
 * order may differ. */
static void check_round_trip(const struct mgpu_named_array *arrays, int count)
{
    struct mgpu_checkpoint *back;
    int found = 0;
    CHECK_OK(mgpu_keras_h5_write(path, arrays, count));
    CHECK_OK(mgpu_checkpoint_open(&back, path, false));
    CHECK(back->kind == MGPU_CHECKPOINT_KERAS_WEIGHTS && back->count == count);
    for (int k = 0; k < back->count; k++) {
        struct mgpu_array b;
        CHECK_OK(mgpu_checkpoint_load(back, k, &b));
        for (int i = 0; i < count; i++) {
            const struct mgpu_array *a = &arrays[i].array;
            if (strcmp(arrays[i].name, back->tensor[k].name) != 0)
                continue;
            found++;
            CHECK(a->type == b.type && a->rank == b.rank);
            CHECK(memcmp(a->dims, b.dims, (size_t)a->rank * sizeof *a->dims) == 0);
            CHECK_(memcmp(a->data, b.data,
                          (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type)) == 0,
                   "values of %s", arrays[i].name);
        }
        mgpu_array_free(&b);
    }
    CHECK_(found == count, "%d of %d names came back", found, count);
    mgpu_checkpoint_close(back);
}

static struct mgpu_named_array *many(const char *const *names, int count)
{
    struct mgpu_named_array *arrays = mgpu_xcalloc((size_t)count, sizeof *arrays);
    for (int i = 0; i < count; i++)
        fill(&arrays[i], names[i], MGPU_FLOAT, 1, (int64_t[]){2}, 10 * i);
    return arrays;
}

static char **strings_at(hid_t file, const char *object, const char *attribute, int *count)
{
    char **out = NULL;
    hid_t o = H5Oopen(file, object, H5P_DEFAULT);
    CHECK_(o >= 0, "no %s", object);
    CHECK_OK(mgpu_h5_read_strings(&out, count, o, attribute));
    H5Oclose(o);
    return out;
}

static void free_strings(char **strings, int count)
{
    for (int i = 0; i < count; i++)
        free(strings[i]);
    free(strings);
}

static void check_strings(hid_t file, const char *object, const char *attribute, int wanted_count,
                          const char *const *wanted)
{
    int count;
    char **strings = strings_at(file, object, attribute, &count);
    CHECK_(count == wanted_count, "%s of %s: %d", attribute, object, count);
    for (int i = 0; i < count && i < wanted_count; i++)
        CHECK_(strcmp(strings[i], wanted[i]) == 0, "%s of %s: %s", attribute, object, strings[i]);
    free_strings(strings, count);
}

/* What h5py and Keras look for. */
static void test_layout(void)
{
    static const char *const names[] = {"conv1.weight", "conv1.bias",
                                        "net/dense/MatMul/ReadVariableOp:0", "dense_1/kernel:0",
                                        "scale"};
    static const char *const layers[] = {"conv1", "net/dense/MatMul", "dense_1", "scale"};
    struct mgpu_named_array *arrays = many(names, 5);
    check_round_trip(arrays, 5);
    mgpu_h5_lock();
    hid_t file;
    CHECK_OK(mgpu_h5_open_file(&file, path));
    check_strings(file, "/", "layer_names", 4, layers);
    check_strings(file, "/", "backend", 1, (const char *const[]){"tensorflow"});
    check_strings(file, "/", "keras_version", 1, (const char *const[]){"2.15.0"});
    check_strings(file, "/conv1", "weight_names", 2, names);
    check_strings(file, "/net/dense/MatMul", "weight_names", 1, names + 2);
    hid_t set;
    CHECK_OK(
        mgpu_h5_open_dataset(&set, file, "/net/dense/MatMul/net/dense/MatMul/ReadVariableOp:0"));
    CHECK(H5Aexists(set, "name") == 0);
    H5Dclose(set);
    H5Fclose(file);
    mgpu_h5_unlock();
    free_arrays(arrays, 5);
}

/* reports.md row 30: names that HDF5 would merge or cannot keep. */
static void test_names(void)
{
    char longest[301];
    memset(longest, 'n', 300);
    longest[300] = 0;
    const char *const names[] = {
        "conv1",   "conv1/bn",    "/conv1/w",       "a//b",  ".",  longest,  "x:0",  "größe",
        "conv1#0", "..",          "../up",          "a/_/b", "_",  "conv1/", ".w",   "w.",
        "a/./b",   "conv1/conv1", "conv1/conv1/bn", "/",     "//", "l.x/y",  "l/x.y"};
    int count = (int)(sizeof names / sizeof *names);
    struct mgpu_named_array *arrays = many(names, count);
    check_round_trip(arrays, count);
    free(arrays[1].name);
    arrays[1].name = mgpu_xstrdup("conv1");
    struct stat before, after;
    stat(path, &before);
    CHECK_FAILS(mgpu_keras_h5_write(path, arrays, count), "two arrays are called 'conv1'");
    arrays[1].name[0] = 0;
    CHECK_FAILS(mgpu_keras_h5_write(path, arrays, count), "an array without a name");
    stat(path, &after);
    CHECK(before.st_ino == after.st_ino && before.st_size == after.st_size);
    free_arrays(arrays, count);
}

/* reports.md row 30, second part: 80,000 bytes of layer names do not fit one attribute. */
static void test_deep(void)
{
    enum { LAYERS = 2000 };
    struct mgpu_named_array *arrays = mgpu_xcalloc(LAYERS, sizeof *arrays);
    char name[64];
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "a_layer_with_a_name_of_forty_bytes__%04d.w", i);
        fill(&arrays[i], name, MGPU_FLOAT, 1, (int64_t[]){2}, i);
    }
    check_round_trip(arrays, LAYERS);
    mgpu_h5_lock();
    hid_t file;
    int count;
    CHECK_OK(mgpu_h5_open_file(&file, path));
    CHECK(H5Aexists(file, "layer_names") == 0 && H5Aexists(file, "layer_names2") == 0);
    char **strings = strings_at(file, "/", "layer_names1", &count);
    CHECK(count == LAYERS / 2 &&
          strcmp(strings[0], "a_layer_with_a_name_of_forty_bytes__1000") == 0);
    free_strings(strings, count);
    H5Fclose(file);
    mgpu_h5_unlock();
    free_arrays(arrays, LAYERS);
}

static void test_types(void)
{
    static const enum mgpu_dtype types[] = {
        MGPU_FLOAT, MGPU_DOUBLE, MGPU_FLOAT16, MGPU_BFLOAT16, MGPU_UINT8, MGPU_INT8, MGPU_UINT16,
        MGPU_INT16, MGPU_UINT32, MGPU_INT32,   MGPU_UINT64,   MGPU_INT64, MGPU_BOOL};
    enum { TYPES = sizeof types / sizeof *types };
    struct mgpu_named_array *arrays = mgpu_xcalloc(TYPES + 2, sizeof *arrays);
    for (int i = 0; i < TYPES; i++)
        fill(&arrays[i], mgpu_dtype_name(types[i]), types[i], 2, (int64_t[]){2, 3}, -1);
    fill(&arrays[TYPES], "scalar", MGPU_INT64, 0, NULL, 41);
    fill(&arrays[TYPES + 1], "empty", MGPU_FLOAT, 2, (int64_t[]){0, 4}, 0);
    check_round_trip(arrays, TYPES + 2);
    free_arrays(arrays, TYPES + 2);
    mgpu_h5_lock(); /* of variable length: Keras 3 takes no other text for "bfloat16" */
    hid_t file, set;
    CHECK_OK(mgpu_h5_open_file(&file, path));
    CHECK_OK(mgpu_h5_open_dataset(&set, file, "/bfloat16/bfloat16"));
    hid_t attribute = H5Aopen(set, "dtype", H5P_DEFAULT), type = H5Aget_type(attribute);
    CHECK(H5Tis_variable_str(type) > 0 && H5Tget_cset(type) == H5T_CSET_UTF8);
    H5Tclose(type);
    H5Aclose(attribute);
    H5Dclose(set);
    H5Fclose(file);
    mgpu_h5_unlock();
}

/* A disk without room, here a limit on file sizes: an error that names the file, the old file as it
 * was, nothing left beside it. */
static void test_full_disk(void)
{
    struct mgpu_named_array big;
    struct stat before, after;
    struct rlimit old, small = {1 << 20, RLIM_INFINITY};
    fill(&big, "big", MGPU_FLOAT, 1, (int64_t[]){1 << 20}, 0);
    stat(path, &before);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_FAILS(mgpu_keras_h5_write(path, &big, 1), "w.h5: cannot write: File too large");
    setrlimit(RLIMIT_FSIZE, &old);
    stat(path, &after);
    CHECK(before.st_ino == after.st_ino && before.st_size == after.st_size);
    CHECK_FAILS(mgpu_keras_h5_write("/nowhere/w.h5", &big, 1), "/nowhere/w.h5: cannot write");
    free(big.name);
    mgpu_array_free(&big.array);
}

static void make_odd(const char *layer, const char *weight)
{
    unlink(path);
    mgpu_h5_lock();
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate(H5S_SCALAR),
          group = H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const char *names[] = {layer, weight};
    hid_t objects[] = {file, group};
    for (int i = 0; i < 2; i++) { /* of variable length, as h5py 3 writes them */
        hsize_t one = 1;
        hid_t type = H5Tcopy(H5T_C_S1), list = H5Screate_simple(1, &one, NULL);
        H5Tset_size(type, H5T_VARIABLE);
        hid_t a = H5Acreate2(objects[i], i ? "weight_names" : "layer_names", type, list,
                             H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(a, type, &names[i]);
        H5Aclose(a);
        H5Sclose(list);
        H5Tclose(type);
    }
    H5Dclose(
        H5Dcreate2(file, "secret", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(
        H5Dcreate2(group, "w", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Gclose(group);
    H5Sclose(space);
    H5Fclose(file);
    mgpu_h5_unlock();
}

/* reports.md row 35: names in the file cannot lead out of their group. */
static void test_escapes(void)
{
    struct mgpu_checkpoint *c;
    make_odd("g", "w");
    CHECK_OK(mgpu_checkpoint_open(&c, path, false));
    CHECK(c->count == 1 && strcmp(c->tensor[0].name, "w") == 0);
    mgpu_checkpoint_close(c);
    make_odd("g", "/secret");
    CHECK_FAILS(mgpu_checkpoint_open(&c, path, false), "'/secret' is not inside its group");
    make_odd("g", "../secret");
    CHECK_FAILS(mgpu_checkpoint_open(&c, path, false), "'../secret' is not inside its group");
    make_odd("/g", "w");
    CHECK_FAILS(mgpu_checkpoint_open(&c, path, false), "'/g' is not inside its group");
    CHECK_FAILS(mgpu_checkpoint_open(&c, "tests/data/golden/one.h5", false),
                "HDF5, but no file of Keras");
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/w.h5", folder);
    test_layout();
    test_names();
    test_deep();
    test_types();
    test_full_disk();
    test_escapes();
    unlink(path);
    CHECK(rmdir(folder) == 0); /* nothing else was left there */
    return test_end();
}
