/* Reading arrays: each kind of file, each element type, and files that must be refused. Golden
 * files are from tests/data/make_golden.py. */
#include "runtime/base/memory.h"
#include "runtime/data/dataset.h"
#include "tests/test.h"

#include <unistd.h>

#define GOLDEN "tests/data/golden/"

static const float matrix[] = {1, 2, 3, 4, 5, 6};

/* The file must be the matrix [[1,2,3],[4,5,6]], read by rows and by columns. */
static void check_matrix(const char *spec)
{
    static const int64_t rows[] = {1, 0}, columns[] = {2, 0};
    static const float by_row[] = {4, 5, 6, 1, 2, 3}, by_column[] = {3, 1, 6, 4};
    struct mgpu_dataset *d;
    float out[6] = {0};
    CHECK_OK(mgpu_dataset_open(&d, spec));
    if (!d)
        return;
    CHECK_(d->rank == 2 && d->dims[0] == 2 && d->dims[1] == 3, "%s: shape", spec);
    CHECK_OK(mgpu_dataset_read(d, 0, rows, 2, out, MGPU_FLOAT));
    CHECK_(memcmp(out, by_row, sizeof by_row) == 0, "%s: rows", spec);
    CHECK_OK(mgpu_dataset_read(d, 1, columns, 2, out, MGPU_FLOAT));
    CHECK_(memcmp(out, by_column, sizeof by_column) == 0, "%s: columns", spec);
    mgpu_dataset_close(d);
}

static void check_refused(const char *spec, const char *part)
{
    struct mgpu_dataset *d;
    uint64_t before = mgpu_alloc_peak();
    CHECK_FAILS(mgpu_dataset_open(&d, spec), part);
    CHECK_(strstr(mgpu_error(), "tests/data/"), "%s: file not named: %s", spec, mgpu_error());
    CHECK(d == NULL);
    CHECK_(mgpu_alloc_peak() < before + (1 << 20), "%s: took memory first", spec);
}

/* reports.md row 40, and its relatives. */
static void test_npy(void)
{
    check_matrix(GOLDEN "columns.npy");
    check_matrix(GOLDEN "big_endian.npy");
    check_matrix(GOLDEN "double.npy");
    check_matrix(GOLDEN "uint8.npy");
    check_matrix(GOLDEN "version2.npy");
    check_matrix(GOLDEN "version3.npy");
    check_matrix(GOLDEN "big_columns.npy");
    check_refused(GOLDEN "no_comma.npy", "no_comma.npy: the shape (6) is not a tuple");
    check_refused(GOLDEN "pickle.npy", "pickle.npy: it holds Python objects (a pickle), which are");
    check_refused(GOLDEN "short.npy", "needs 24 bytes, but the file holds 20");
    check_refused(GOLDEN "long_header.npy", "a header of 70 bytes passes the end of the file (50");
    check_refused(GOLDEN "text.npy", "text");
    check_refused(GOLDEN "records.npy", "records of several fields");
    check_refused(GOLDEN "huge.npy", "too large");
    check_refused(GOLDEN "version9.npy", "version 9");
    check_refused(GOLDEN "double.npy:x", "'x' was asked for");

    struct mgpu_array scalar;
    CHECK_OK(mgpu_dataset_load(&scalar, GOLDEN "scalar.npy", 100));
    CHECK(scalar.rank == 0 && *(float *)scalar.data == 7);
    mgpu_array_free(&scalar);
    CHECK_FAILS(mgpu_dataset_load(&scalar, GOLDEN "double.npy", 40), "48 bytes, more than the 40");
    struct mgpu_dataset *d;
    float one;
    int64_t row = 0;
    CHECK_OK(mgpu_dataset_open(&d, GOLDEN "scalar.npy"));
    CHECK_FAILS(mgpu_dataset_read(d, 0, &row, 1, &one, MGPU_FLOAT), "[] has no axis 0");
    mgpu_dataset_close(d);
}

static void test_npz(void)
{
    check_matrix(GOLDEN "stored.npz:x");
    check_matrix(GOLDEN "deflated.npz:x");
    check_matrix(GOLDEN "one.npz");
    check_matrix(GOLDEN "zip64.npz");
    check_refused(GOLDEN "stored.npz", "holds 2 arrays, choose one as FILE:NAME: x, y");
    check_refused(GOLDEN "stored.npz:z", "stored.npz:z: no such array");
    check_refused(GOLDEN "cut.npz:x", "cut off");
    check_refused(GOLDEN "bomb.npz:zeros", "claims 2147483648 bytes");
    check_refused(GOLDEN "damaged.npz:x", "check sum");
    check_refused(GOLDEN "twins.npz", "two members are the array 'x'");
    check_refused(GOLDEN "long.npz", "3 bytes follow the array");
    struct mgpu_name_list names;
    CHECK_OK(mgpu_dataset_list(&names, GOLDEN "stored.npz"));
    CHECK(names.count == 2 && strcmp(names.items[1], "y") == 0);
    mgpu_name_list_free(&names);
}

static void test_idx(void)
{
    check_matrix(GOLDEN "matrix.idx");
    check_matrix(GOLDEN "matrix.idx.gz");
    check_refused(GOLDEN "short.idx", "needs 24 bytes, but the file holds 20");
    check_refused(GOLDEN "short.idx.gz", "needs 24 bytes, but the file holds 20");
    check_refused(GOLDEN "cut.idx.gz", "end too early");
    check_refused(GOLDEN "crc.idx.gz", "damaged");
    check_refused(GOLDEN "bomb.idx.gz", "cannot hold");
    check_refused(GOLDEN "text.gz", "not IDX");
}

static void test_fashion_mnist(void)
{
    const char *folder = "/usr/share/datasets/fashion-mnist/";
    char path[256];
    struct mgpu_dataset *d;
    snprintf(path, sizeof path, "%st10k-images-idx3-ubyte.gz", folder);
    if (access(path, R_OK) < 0) {
        printf("no Fashion-MNIST here\n");
        return;
    }
    CHECK_OK(mgpu_dataset_open(&d, path));
    CHECK(d->type == MGPU_UINT8 && d->rank == 3 && d->dims[0] == 10000 && d->dims[2] == 28);
    mgpu_dataset_close(d);
    snprintf(path, sizeof path, "%strain-labels-idx1-ubyte.gz", folder);
    CHECK_OK(mgpu_dataset_open(&d, path));
    CHECK(d->rank == 1 && d->dims[0] == 60000);
    int64_t counts[10] = {0}, label, first[5] = {0, 1, 2, 3, 4}, five[5];
    for (int64_t i = 0; i < 60000; i++) {
        CHECK_OK(mgpu_dataset_read(d, 0, &i, 1, &label, MGPU_INT64));
        counts[label]++;
    }
    for (int c = 0; c < 10; c++)
        CHECK(counts[c] == 6000);
    CHECK_OK(mgpu_dataset_read(d, 0, first, 5, five, MGPU_INT64));
    CHECK(five[0] == 9 && five[1] == 0 && five[2] == 0 && five[3] == 3 && five[4] == 0);
    mgpu_dataset_close(d);
}

static void test_h5_types(void)
{
    static const char *const types[] = {"u1",  "i1",  "lu2", "bu2", "li2", "bi2",
                                        "li4", "bi4", "lu4", "li8", "bi8", "lu8",
                                        "lf2", "bf2", "lf4", "bf4", "lf8", "bf8"};
    char spec[256];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        snprintf(spec, sizeof spec, GOLDEN "types.h5:type_%s", types[i]);
        check_matrix(spec);
    }
    check_matrix(GOLDEN "types.h5:group/inside/deep");
    check_matrix(GOLDEN "types.h5:/group/inside/deep");
    check_matrix(GOLDEN "types.h5:a:b");
    check_matrix(GOLDEN "types.h5:packed");
    check_matrix(GOLDEN "one.h5");
    check_refused(GOLDEN "types.h5:text", "text, not numbers");
    check_refused(GOLDEN "types.h5:vtext", "text, not numbers");
    check_refused(GOLDEN "types.h5:record", "records of several fields");
    check_refused(GOLDEN "types.h5:lzf", "'lzf' is packed with filter 32000");
    check_refused(GOLDEN "types.h5:nothing", "there is no 'nothing'");
    check_refused(GOLDEN "types.h5:group", "not a data set");
    check_refused(GOLDEN "pair.h5", "holds 3 arrays, choose one as FILE:NAME: extra, label, x");
}

static void test_h5_values(void)
{
    struct mgpu_array a;
    CHECK_OK(mgpu_dataset_load(&a, GOLDEN "types.h5:bool", 100));
    CHECK(a.type == MGPU_BOOL && memcmp(a.data, "\1\0\1", 3) == 0);
    mgpu_array_free(&a);
    CHECK_OK(mgpu_dataset_load(&a, GOLDEN "types.h5:enum", 100));
    CHECK(a.type == MGPU_INT16 && ((int16_t *)a.data)[2] == 6);
    mgpu_array_free(&a);
    CHECK_OK(mgpu_dataset_load(&a, GOLDEN "types.h5:scalar", 100));
    CHECK(a.rank == 0 && *(float *)a.data == 7);
    mgpu_array_free(&a);
    CHECK_OK(mgpu_dataset_load(&a, GOLDEN "types.h5:type_bf4", 100));
    CHECK(a.type == MGPU_FLOAT && memcmp(a.data, matrix, sizeof matrix) == 0);
    mgpu_array_free(&a);
    CHECK_OK(mgpu_dataset_load(&a, GOLDEN "types.h5:type_lf2", 100));
    CHECK(a.type == MGPU_FLOAT16 && ((uint16_t *)a.data)[0] == 0x3c00);
    mgpu_array_free(&a);
}

/* reports.md row 35: nothing outside is opened, no claimed size is believed. */
static void test_h5_hostile(void)
{
    struct mgpu_name_list names;
    check_refused(GOLDEN "external_link.h5:x", "'x' is a link to another file");
    check_refused(GOLDEN "external_link.h5", "'x' is a link to another file");
    CHECK_FAILS(mgpu_dataset_list(&names, GOLDEN "external_link.h5"), "a link to another file");
    check_refused(GOLDEN "soft_loop.h5:x", "'x' is a soft link");
    check_refused(GOLDEN "soft_group.h5:alias/x", "'alias' is a soft link");
    check_refused(GOLDEN "external_storage.h5:x", "'x' is stored outside the file");
    check_refused(GOLDEN "virtual.h5:x", "'x' is a virtual data set");
    check_refused(GOLDEN "never_written.h5:x", "'x' claims 4398046511104 bytes, but only 0");
    check_refused(GOLDEN "many_large.h5:x63", "'x63' claims 4294967292 bytes, but only 0");
    struct mgpu_array a;
    CHECK_OK(mgpu_dataset_load(&a, GOLDEN "genuine.h5:x", 8 << 20));
    CHECK(mgpu_array_count(&a) == 1 << 20);
    mgpu_array_free(&a);
    CHECK_OK(mgpu_dataset_list(&names, GOLDEN "hard_loop.h5"));
    CHECK(names.count == 1 && strcmp(names.items[0], "group/x") == 0);
    mgpu_name_list_free(&names);
}

/* A sample that cannot be read is named, and the others still can. */
static void test_damaged_chunk(void)
{
    struct mgpu_dataset *d;
    float out[4];
    CHECK_OK(mgpu_dataset_open(&d, GOLDEN "damaged_chunk.h5:x"));
    CHECK_OK(mgpu_dataset_prepare(d, 0, 64)); /* two blocks of one chunk */
    CHECK_FAILS(mgpu_dataset_read(d, 0, (int64_t[]){7}, 1, out, MGPU_FLOAT),
                "damaged_chunk.h5:x: sample 7: cannot be read");
    CHECK_OK(mgpu_dataset_read(d, 0, (int64_t[]){8}, 1, out, MGPU_FLOAT));
    CHECK(out[0] == 32 && out[3] == 35);
    CHECK_FAILS(mgpu_dataset_read(d, 0, (int64_t[]){10}, 1, out, MGPU_FLOAT),
                "there is no sample 10 (there are 10)");
    mgpu_dataset_close(d);
}

/* To integers nothing is lost silently (reports.md row 39). */
static void test_exact(void)
{
    static const int64_t rows[] = {0, 1, 2, 3};
    static const struct {
        const char *file;
        enum mgpu_dtype to;
        const char *error;
    } bad[] = {
        {"labels_half.npy", MGPU_INT64, "labels_half.npy: sample 2: the value 2.5 is not a whole"},
        {"labels_half.npy", MGPU_UINT8, "the value 2.5 is not a whole number"},
        {"labels_minus.npy", MGPU_UINT64, "sample 2: the value -1 does not fit uint64"},
        {"labels_minus.npy", MGPU_UINT8, "sample 2: the value -1 does not fit uint8"},
        {"labels_2049.npy", MGPU_UINT8, "sample 1: the value 2049 does not fit uint8"},
        {"labels_255.npy", MGPU_INT8, "sample 2: the value 255 does not fit int8"},
    };
    static const char *const good[] = {"uint8", "int32", "int64", "float", "column"};
    struct mgpu_dataset *d;
    int64_t out[4];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        snprintf(path, sizeof path, GOLDEN "%s", bad[i].file);
        CHECK_OK(mgpu_dataset_open(&d, path));
        CHECK_FAILS(mgpu_dataset_read(d, 0, rows, 4, out, bad[i].to), bad[i].error);
        mgpu_dataset_close(d);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char path[256];
        snprintf(path, sizeof path, GOLDEN "labels_%s.npy", good[i]);
        CHECK_OK(mgpu_dataset_open(&d, path));
        CHECK_OK(mgpu_dataset_read(d, 0, rows, 4, out, MGPU_INT64));
        CHECK(out[0] == 0 && out[1] == 3 && out[2] == 2 && out[3] == 1);
        mgpu_dataset_close(d);
    }
    CHECK_OK(mgpu_dataset_open(&d, GOLDEN "labels_2049.npy"));
    CHECK_OK(mgpu_dataset_read(d, 0, rows, 4, out, MGPU_INT32));
    CHECK(((int32_t *)out)[1] == 2049 && ((int32_t *)out)[2] == 4095);
    mgpu_dataset_close(d);
}

static char *slurp(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    CHECK_(f != NULL, "%s", path);
    char *content = mgpu_xcalloc(1 << 16, 1);
    *size = fread(content, 1, 1 << 16, f);
    fclose(f);
    return content;
}

static void spill(const char *path, const char *content, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK_(f && fwrite(content, 1, size, f) == size, "%s", path);
    fclose(f);
}

/* A file cut anywhere is an error; one with a wrong byte must at least not crash anything. */
static void test_broken(void)
{
    static const char *const files[] = {"big_columns.npy", "stored.npz", "deflated.npz",
                                        "zip64.npz",       "matrix.idx", "matrix.idx.gz",
                                        "one.h5"};
    char path[] = "/tmp/mgpu-broken-XXXXXX", golden[128], spec[64];
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t size;
        struct mgpu_array a;
        snprintf(golden, sizeof golden, GOLDEN "%s", files[i]);
        snprintf(spec, sizeof spec, "%s%s", path, strstr(files[i], ".npz") ? ":x" : "");
        char *content = slurp(golden, &size);
        bool h5 = strstr(files[i], ".h5");
        for (size_t n = 0; n < size; n += h5 ? 64 : 1) {
            spill(path, content, n);
            CHECK_(mgpu_dataset_load(&a, spec, 1000) < 0, "%s cut at %zu", files[i], n);
        }
        for (size_t n = 0; n < size && !h5; n++)
            for (int bit = 1; bit < 256; bit <<= 1) {
                content[n] ^= (char)bit;
                spill(path, content, size);
                if (mgpu_dataset_load(&a, spec, 1 << 20) == 0)
                    mgpu_array_free(&a);
                content[n] ^= (char)bit;
            }
        free(content);
    }
    unlink(path);
}

static void test_names(void)
{
    char folder[] = "/tmp/mgpu-data-XXXXXX", path[64], spec[160];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/a:b.npy", folder);
    snprintf(spec, sizeof spec, "cp " GOLDEN "uint8.npy '%s'", path);
    CHECK(system(spec) == 0);
    check_matrix(path);
    check_refused(GOLDEN "nothing.npy", "no such file");
    check_refused("tests/data/make_golden.py", "line 12 has 2 fields, the first line has 1");
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    test_npy();
    test_npz();
    test_idx();
    test_fashion_mnist();
    test_h5_types();
    test_h5_values();
    test_h5_hostile();
    test_damaged_chunk();
    test_exact();
    test_broken();
    test_names();
    return test_end();
}
