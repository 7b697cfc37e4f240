/* Reports of users about data, with their values (rows 37, 39 and 40), through the trainer. */
#include "runtime/base/memory.h"
#include "runtime/data/dataset.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <hdf5.h>

#define WEIGHTS(list) list, (int)(sizeof(list) / sizeof *(list))

static const char *const line = "input x float N 1\n"
                                "init w float 1 1 = 1\n"
                                "y = MatMul(x, w)\n"
                                "output y float N 1\n";

/* ---- Row 37: shuffling HDF5 --------------------------------------------------------------------
 */

enum { ROWS = 10007, CHUNK = 1000, BATCH = 64, STEPS = 157 };

static const char *write_h5(const char *name, const float *x)
{
    const char *path = tiny_path(name);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(2, (hsize_t[]){ROWS, 1}, NULL);
    hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(made, 2, (hsize_t[]){CHUNK, 1});
    H5Pset_deflate(made, 6);
    hid_t set = H5Dcreate(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, made, H5P_DEFAULT);
    CHECK(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0);
    H5Dclose(set);
    H5Pclose(made);
    H5Sclose(space);
    H5Fclose(file);
    return path;
}

struct epochs {
    double loss[2]; /* of the epoch */
    double step[2][STEPS];
};

static void train_epochs(struct epochs *out, const char *const *data, const char *devices,
                         int64_t seed)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const struct mgpu_number *numbers;
    o.data = data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0";
    o.batch = BATCH;
    o.epochs = 2;
    o.seed = seed;
    o.devices = devices;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(line), &o));
    for (int i = 0; t && mgpu_step(t, &s) > 0; i++) {
        CHECK(i < 2 * STEPS && s.epoch_ends == (i % STEPS == STEPS - 1));
        out->step[i / STEPS][i % STEPS] = s.loss;
        if (s.epoch_ends) {
            CHECK(mgpu_epoch_numbers(t, &numbers) > 0);
            out->loss[i / STEPS] = numbers[0].value;
        }
    }
    CHECK(t && s.step == 2 * STEPS);
    mgpu_trainer_free(t);
}

static void test_shuffled(void)
{
    static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0"};
    static struct epochs first, other, seeded;
    static float x[ROWS], zero[ROWS];
    int64_t dims[] = {ROWS, 1};
    for (int i = 0; i < ROWS; i++)
        x[i] = (float)i;
    char *spec = NULL;
    if (asprintf(&spec, "x=%s:x", write_h5("rows.h5", x)) < 0)
        abort();
    const char *const *data = tiny_list(spec, tiny_data("label", MGPU_FLOAT, 2, dims, zero), NULL);
    for (int d = 0; d < 3; d++) {
        struct epochs *e = d ? &other : &first;
        train_epochs(e, data, devices[d], 1);
        CHECK_NEAR(e->loss[0], 33375013, 1e-6);
        CHECK_NEAR(e->loss[1], 33375013, 1e-6);
        for (int i = 0; i < STEPS; i++)
            CHECK_NEAR(e->step[0][i], first.step[0][i], 1e-5);
    }
    CHECK(memcmp(first.step[0], first.step[1], sizeof first.step[0]) != 0);
    train_epochs(&seeded, data, "cpu:0", 1);
    CHECK(memcmp(&seeded, &first, sizeof first) == 0);
    train_epochs(&seeded, data, "cpu:0", 2);
    CHECK(memcmp(seeded.step[0], first.step[0], sizeof first.step[0]) != 0);
    free(spec);
}

/* Sorted by class, 0 to 9: batches of one class would have losses of 0, 1, 4 ... 81. */
static void test_sorted_classes(void)
{
    static struct epochs e;
    static float x[ROWS], zero[ROWS];
    int64_t dims[] = {ROWS, 1};
    for (int i = 0; i < ROWS; i++)
        x[i] = (float)(i * 10 / ROWS);
    char *spec = NULL;
    if (asprintf(&spec, "x=%s:x", write_h5("sorted.h5", x)) < 0)
        abort();
    train_epochs(&e, tiny_list(spec, tiny_data("label", MGPU_FLOAT, 2, dims, zero), NULL), "cpu:0",
                 3);
    for (int i = 0; i < STEPS - 1; i++) /* the mean square of all is 28.5 */
        CHECK_(e.step[0][i] > 12 && e.step[0][i] < 48, "batch %d has loss %g", i, e.step[0][i]);
    free(spec);
}

/* ---- Row 39: labels ----------------------------------------------------------------------------
 */

static const char *const five = "input x float N 2\n"
                                "init w float 2 5 = .1 .2 .3 .4 .5 -.1 .3 .2 -.4 .1\n"
                                "y = MatMul(x, w)\n"
                                "output y float N 5\n";
static const struct tiny_weight five_weight[] = {{"w", 10}};

static void train_labels(struct tiny_result *out, const char *labels, const char *devices)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data =
        tiny_list(tiny_floats("x", "4 2", 1.0, 2.0, -1.0, 0.5, 0.3, -0.7, 2.0, 1.0), labels, NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.batch = 4;
    o.shuffle = false;
    o.devices = devices;
    tiny_train(out, tiny_model(five), &o, WEIGHTS(five_weight));
}

static const char *integers(enum mgpu_dtype type, int rank, const double *value)
{
    char data[4 * 8];
    int64_t dims[] = {4, 1};
    for (int i = 0; i < 4; i++)
        mgpu_set_double(data, type, i, value[i]);
    return tiny_data("label", type, rank, dims, data);
}

/* The message names the sample and its value, and nothing was updated. */
static void test_bad_labels(void)
{
    static const struct {
        enum mgpu_dtype type;
        double label[4];
        const char *sample, *value;
    } bad[] = {{MGPU_INT64, {0, 3, 5, 1}, "sample 2", "5"},
               {MGPU_INT64, {0, 3, 1, -1}, "sample 3", "-1"},
               {MGPU_UINT8, {255, 3, 2, 1}, "sample 0", "255"},
               {MGPU_FLOAT, {0, 2.5, 2, 1}, "sample 1", "2.5"}};
    static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1,cpu:0"};
    struct tiny_result r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int d = 0; d < 2; d++) {
            train_labels(&r, integers(bad[i].type, 1, bad[i].label), devices[d]);
            CHECK_(r.rc < 0 && r.steps == 0, "label %s was taken", bad[i].value);
            CHECK_(strstr(r.error, bad[i].sample) && strstr(r.error, bad[i].value), "%s", r.error);
        }
}

/* A wrong label in the second batch: the weights are those after the first. */
static void test_bad_label_later(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    double before[10], after[10];
    o.data = tiny_list(tiny_floats("x", "4 2", 1.0, 2.0, -1.0, 0.5, 0.3, -0.7, 2.0, 1.0),
                       integers(MGPU_INT64, 1, (double[]){0, 3, 1, 7}), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.batch = 2;
    o.shuffle = false;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(five), &o));
    CHECK(mgpu_step(t, &s) == 1);
    CHECK_OK(mgpu_weight_read(t, "w", before, 10));
    CHECK_FAILS(mgpu_step(t, &s), "sample 3");
    CHECK(strstr(mgpu_error(), "7"));
    CHECK_OK(mgpu_weight_read(t, "w", after, 10));
    CHECK(memcmp(before, after, sizeof before) == 0);
    mgpu_trainer_free(t);
}

static void test_good_labels(void)
{
    static const enum mgpu_dtype types[] = {MGPU_INT64, MGPU_UINT8, MGPU_INT32, MGPU_FLOAT};
    static const double label[] = {0, 3, 4, 1};
    struct tiny_result first, other;
    train_labels(&first, integers(MGPU_INT64, 1, label), "cpu:0");
    CHECK_(first.rc >= 0, "%s", first.error);
    for (int i = 0; i < 4; i++)
        for (int rank = 1; rank <= 2; rank++) {
            train_labels(&other, integers(types[i], rank, label), "cpu:0");
            CHECK_(tiny_same(&other, &first), "labels of type %s and rank %d: %s",
                   mgpu_dtype_name(types[i]), rank, other.error);
        }
}

static void test_one_hot(void)
{
    struct tiny_result r;
    train_labels(&r,
                 tiny_floats("label", "4 4", 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0,
                             0.0, 0.0, 0.0, 0.0, 1.0),
                 "cpu:0");
    CHECK_(r.rc < 0 && strstr(r.error, "4 columns") && strstr(r.error, "5 classes"), "%s", r.error);
}

/* ---- Row 40: .npy headers ----------------------------------------------------------------------
 */

struct npy {
    const char *header;
    const void *data;
    size_t size;
    int version;
    size_t length; /* of the header as the file says; 0: the true one */
};

static const char *write_npy_file(const char *name, const struct npy *n)
{
    const char *path = tiny_path(name);
    FILE *file = fopen(path, "wb");
    size_t length = n->length ? n->length : strlen(n->header);
    fprintf(file, "\x93NUMPY%c%c%c%c", n->version, 0, (int)(length & 255), (int)(length >> 8));
    if (n->version > 1)
        fwrite("\0\0", 1, 2, file);
    fputs(n->header, file);
    fwrite(n->data, 1, n->size, file);
    fclose(file);
    return path;
}

#define HEADER(descr, order, shape)                                                                \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }\n"

static void train_npy(struct tiny_result *out, const char *path)
{
    static const struct tiny_weight w[] = {{"w", 3}};
    char spec[256];
    struct mgpu_options o = MGPU_OPTIONS;
    snprintf(spec, sizeof spec, "x=%s", path);
    o.data = tiny_list(spec, tiny_floats("label", "2 1", 0.0, 0.0), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0";
    o.batch = 2;
    tiny_train(out,
               tiny_model("input x float N 3\n"
                          "init w float 3 1 = 1 10 100\n"
                          "y = MatMul(x, w)\n"
                          "output y float N 1\n"),
               &o, WEIGHTS(w));
}

static uint32_t swapped(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return __builtin_bswap32(bits);
}

/* [[1,2,3],[4,5,6]] however it is stored: y = 321 and 654. */
static void test_headers(void)
{
    static const float columns[] = {1, 4, 2, 5, 3, 6}, rows[] = {1, 2, 3, 4, 5, 6};
    static const double doubles[] = {1, 2, 3, 4, 5, 6};
    static const uint8_t bytes[] = {1, 2, 3, 4, 5, 6};
    uint32_t big[6];
    for (int i = 0; i < 6; i++)
        big[i] = swapped(rows[i]);
    const struct npy good[] = {
        {HEADER("<f4", "True", "(2, 3)"), columns, sizeof columns, 1, 0},
        {HEADER(">f4", "False", "(2, 3)"), big, sizeof big, 1, 0},
        {HEADER("<f8", "False", "(2, 3)"), doubles, sizeof doubles, 1, 0},
        {HEADER("|u1", "False", "(2, 3)"), bytes, sizeof bytes, 1, 0},
        {HEADER("<f4", "False", "(2, 3)"), rows, sizeof rows, 2, 0},
    };
    struct tiny_result r;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        train_npy(&r, write_npy_file("good.npy", &good[i]));
        CHECK_(r.rc >= 0, "file %zu: %s", i, r.error);
        CHECK_NEAR(r.loss[0], (321.0 * 321 + 654.0 * 654) / 2, 1e-6);
    }
}

static void test_bad_headers(void)
{
    static const float rows[] = {1, 2, 3, 4, 5, 6};
    static const struct {
        struct npy file;
        const char *says, *too;
    } bad[] = {
        {{HEADER("<f4", "False", "(6)"), rows, sizeof rows, 1, 0}, "comma", "(6)"},
        {{HEADER("|O", "False", "(2, 3)"), rows, sizeof rows, 1, 0}, "pickle", ""},
        {{HEADER("<f4", "False", "(2, 3)"), rows, sizeof rows - 4, 1, 0}, "20", "24"},
        {{HEADER("<f4", "False", "(2, 3)"), rows, sizeof rows, 1, 60000}, "60000", "header"},
    };
    struct tiny_result r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        train_npy(&r, write_npy_file("bad.npy", &bad[i].file));
        CHECK_(r.rc < 0 && strstr(r.error, "bad.npy") && strstr(r.error, bad[i].says) &&
                   strstr(r.error, bad[i].too),
               "file %zu: %s", i, r.error);
    }
}

/* A shape of () is one value. */
static void test_scalar_file(void)
{
    static const float one = 2.5f;
    struct npy file = {HEADER("<f4", "False", "()"), &one, sizeof one, 1, 0};
    struct mgpu_array a = {0};
    CHECK_OK(mgpu_dataset_load(&a, write_npy_file("scalar.npy", &file), 100));
    CHECK(a.rank == 0 && a.data && *(float *)a.data == 2.5f);
    mgpu_array_free(&a);
}

int main(void)
{
    tiny_begin();
    test_shuffled();
    test_sorted_classes();
    test_bad_labels();
    test_bad_label_later();
    test_good_labels();
    test_one_hot();
    test_headers();
    test_bad_headers();
    test_scalar_file();
    tiny_end();
    return test_end();
}
