/* From files to the buffers of ranks: names, shapes, conversions, refusals, and reading a shuffled
 * HDF5 file that is larger than its cache. Golden files are from tests/data/make_golden.py. */
#include "runtime/base/memory.h"
#include "runtime/data/feed.h"
#include "runtime/data/h5.h"
#include "tests/test.h"

#include <pthread.h>
#include <unistd.h>

#define GOLDEN "tests/data/golden/"
#define TEXTS(...)                                                                                 \
    {                                                                                              \
        .items = (const char *const[]){__VA_ARGS__},                                               \
        .count = (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))                \
    }

static char notes[4096];

static void keep_note(void *context, const char *text)
{
    (void)context;
    size_t used = strlen(notes);
    snprintf(notes + used, sizeof notes - used, "%s\n", text);
}

static struct mgpu_feed_want want(const char *name, enum mgpu_dtype type, int rank, int64_t a,
                                  int64_t b)
{
    return (struct mgpu_feed_want){.name = name, .type = type, .rank = rank, .dims = {a, b}};
}

/* Opens and binds; the error of either is what remains. NULL on failure. */
static struct mgpu_feed *bind(const struct mgpu_feed_options *o, const struct mgpu_feed_want *wants,
                              int count)
{
    struct mgpu_feed *feed;
    notes[0] = 0;
    if (mgpu_feed_open(&feed, o) < 0)
        return NULL;
    if (mgpu_feed_bind(feed, wants, count, 4) == 0)
        return feed;
    mgpu_feed_close(feed);
    return NULL;
}

static void check_refused(const struct mgpu_feed_options *o, const struct mgpu_feed_want *wants,
                          int count, const char *part)
{
    struct mgpu_feed *feed = bind(o, wants, count);
    CHECK_(!feed && strstr(mgpu_error(), part), "wanted '%s', got: %s", part, mgpu_error());
    mgpu_feed_close(feed);
}

static void test_values(void)
{
    struct mgpu_feed_options o = {
        .data = TEXTS("x=" GOLDEN "pair.h5:x", "label=" GOLDEN "pair.h5:label"),
        .scale = TEXTS("x=1/2"),
        .normalize = TEXTS("x=1,2/0.5,4")};
    struct mgpu_feed_want w[] = {want("x", MGPU_FLOAT, 1, 2, 0),
                                 want("label", MGPU_INT64, 0, 0, 0)};
    struct mgpu_feed *feed = bind(&o, w, 2);
    CHECK(feed != NULL);
    if (!feed)
        return;
    CHECK(mgpu_feed_samples(feed) == 10);
    CHECK(notes[0] == 0);
    static const int64_t rows[] = {9, 0, 4};
    float x[6];
    int64_t label[3];
    CHECK_OK(mgpu_feed_rows(feed, 0, rows, 3, x));
    CHECK_OK(mgpu_feed_rows(feed, 1, rows, 3, label));
    for (int i = 0; i < 3; i++) { /* x is [2 i, 2 i + 1] */
        CHECK_NEAR(x[2 * i], ((double)rows[i] - 1) / 0.5, 1e-7);
        CHECK_NEAR(x[2 * i + 1], ((double)rows[i] + 0.5 - 2) / 4, 1e-7);
        CHECK(label[i] == rows[i] % 3);
    }
    mgpu_feed_close(feed);
}

/* In double, converted from integers, with one line for each conversion. */
static void test_conversions(void)
{
    struct mgpu_feed_options o = {
        .data = TEXTS("x=" GOLDEN "columns.npy", "label=" GOLDEN "matrix.idx"),
        .scale = TEXTS("label=0.1")};
    struct mgpu_feed_want w[] = {want("x", MGPU_DOUBLE, 2, 3, 1),
                                 want("label", MGPU_FLOAT16, 1, -1, 0)};
    struct mgpu_feed *feed = bind(&o, w, 2);
    CHECK(feed != NULL);
    CHECK_(strstr(notes, "x: float of " GOLDEN "columns.npy is converted to double\n") &&
               strstr(notes, "x: [N,3] of " GOLDEN "columns.npy is read as [N,3,1]\n"),
           "%s", notes);
    static const int64_t rows[] = {1};
    double x[3];
    uint16_t half[3];
    CHECK_OK(mgpu_feed_rows(feed, 0, rows, 1, x));
    CHECK(x[0] == 4 && x[1] == 5 && x[2] == 6);
    CHECK_OK(mgpu_feed_rows(feed, 1, rows, 1, half));
    CHECK_NEAR(mgpu_half_to_float(half[2]), 0.6, 1e-3);
    mgpu_feed_close(feed);
    o.quiet = true;
    mgpu_feed_close(bind(&o, w, 2));
    CHECK(notes[0] == 0);
}

/* --data FILE.h5 alone: by name; what is not used is said. */
static void test_file_alone(void)
{
    struct mgpu_feed_options o = {.data = TEXTS(GOLDEN "pair.h5")};
    struct mgpu_feed_want w[] = {want("x", MGPU_FLOAT, 1, 2, 0),
                                 want("label", MGPU_INT64, 0, 0, 0)};
    struct mgpu_feed *feed = bind(&o, w, 2);
    CHECK(feed != NULL && strcmp(notes, "extra of " GOLDEN "pair.h5 is not used\n") == 0);
    mgpu_feed_close(feed);
    o = (struct mgpu_feed_options){.data = TEXTS(GOLDEN "uint8.npy")};
    check_refused(&o, w, 2, "has no names inside; write NAME=");
    o = (struct mgpu_feed_options){.data = TEXTS(GOLDEN "external_link.h5")};
    check_refused(&o, w, 2, "'x' is a link to another file");
}

static void test_batch_axis(void)
{
    struct mgpu_feed_options o = {.data = TEXTS("x=" GOLDEN "steps.h5:x"),
                                  .batch_axis = TEXTS("x=1"),
                                  .normalize = TEXTS("x=0,10/1,2")};
    struct mgpu_feed_want w = want("x", MGPU_FLOAT, 2, 3, 2);
    struct mgpu_feed *feed = bind(&o, &w, 1);
    CHECK(feed != NULL);
    if (!feed)
        return;
    CHECK(mgpu_feed_samples(feed) == 7 && mgpu_feed_axis(feed, "x") == 1);
    static const int64_t rows[] = {6, 2};
    float x[12]; /* [3, 2 samples, 2 channels] */
    CHECK_OK(mgpu_feed_rows(feed, 0, rows, 2, x));
    for (int t = 0; t < 3; t++)
        for (int n = 0; n < 2; n++) {
            float plain = (float)(t * 14 + rows[n] * 2);
            CHECK(x[t * 4 + n * 2] == plain && x[t * 4 + n * 2 + 1] == (plain + 1 - 10) / 2);
        }
    mgpu_feed_close(feed);
    o.batch_axis = (struct mgpu_texts)TEXTS("x=2"); /* channels on axis 1 */
    o.normalize = (struct mgpu_texts)TEXTS("x=0,0,0,0,0,0,70/1,1,1,1,1,1,2");
    w = want("x", MGPU_FLOAT, 2, 3, 7);
    feed = bind(&o, &w, 1);
    CHECK(feed != NULL);
    float y[42];
    static const int64_t both[] = {1, 0};
    CHECK_OK(mgpu_feed_rows(feed, 0, both, 2, y));
    CHECK(y[0] == 1 && y[1] == 0 && y[12] == (13 - 70) / 2.0f && y[13] == (12 - 70) / 2.0f);
    CHECK(y[14] == 15 && y[41] == (40 - 70) / 2.0f);
    mgpu_feed_close(feed);
}

static void test_refusals(void)
{
    struct mgpu_feed_want w[] = {want("input", MGPU_FLOAT, 1, 2, 0),
                                 want("label", MGPU_INT64, 0, 0, 0)};
    struct mgpu_feed_options o = {
        .data = TEXTS("imput=" GOLDEN "pair.h5:x", "label=" GOLDEN "pair.h5:label")};
    check_refused(&o, w, 2, "'imput'; known: input, label; did you mean 'input'?");
    o.data = (struct mgpu_texts)TEXTS("label=" GOLDEN "pair.h5:label");
    check_refused(&o, w, 2, "'input': there are no data for it");
    o.data = (struct mgpu_texts)TEXTS("input=" GOLDEN "pair.h5:x", "label=" GOLDEN "labels_5.npy");
    check_refused(&o, w, 2, "has 10 samples, but 'label' (" GOLDEN "labels_5.npy) has 4");
    o.data = (struct mgpu_texts)TEXTS("input=" GOLDEN "uint8.npy", "label=" GOLDEN "pair.h5:label");
    check_refused(&o, w, 2, "uint8.npy has the shape [N,3], but [N,2] is wanted");
    o.data = (struct mgpu_texts)TEXTS("input=" GOLDEN "pair.h5:x", "input=" GOLDEN "uint8.npy");
    check_refused(&o, w, 2, "two files for 'input'");
    o.data =
        (struct mgpu_texts)TEXTS("input=" GOLDEN "scalar.npy", "label=" GOLDEN "pair.h5:label");
    check_refused(&o, w, 2, "the shape [] has no axis 0");
    o.data = (struct mgpu_texts)TEXTS("input=" GOLDEN "pair.h5:x", "label=" GOLDEN "pair.h5:label");
    o.scale = (struct mgpu_texts)TEXTS("inptu=2");
    check_refused(&o, w, 2,
                  "--scale: no --data for 'inptu'; known: input, label; did you mean 'input'?");
    o.scale = (struct mgpu_texts)TEXTS("input=1/0");
    check_refused(&o, w, 2, "'1/0' is not a factor");
    o.scale = (struct mgpu_texts)TEXTS("label=2");
    check_refused(&o, w, 2, "need a floating-point input, and this one is int64");
    o.scale = (struct mgpu_texts){0};
    o.normalize = (struct mgpu_texts)TEXTS("input=1,2,3/1,2,3");
    check_refused(&o, w, 2, "3 channels, but neither axis 1 nor the last of [N,2] has");
    o.normalize = (struct mgpu_texts)TEXTS("input=1,2/1");
    check_refused(&o, w, 2, "is not MEAN/STD");
    o.normalize = (struct mgpu_texts)TEXTS("input=1/0");
    check_refused(&o, w, 2, "a standard deviation of 0");
    o.normalize = (struct mgpu_texts){0};
    o.batch_axis = (struct mgpu_texts)TEXTS("input=x");
    check_refused(&o, w, 2, "'x' is not a whole number");
    o.batch_axis = (struct mgpu_texts)TEXTS("input=5");
    check_refused(&o, w, 2, "the shape [10,2] has no axis 5");
}

/* Rows that are not samples: 4 samples a step here, 10 samples make 3 steps of 2 or 3 rows. */
static void test_step_rows(void)
{
    struct mgpu_feed_want w[] = {want("x", MGPU_FLOAT, 1, 2, 0), want("edges", MGPU_FLOAT, 0, 0, 0),
                                 want("h", MGPU_FLOAT, 1, 3, 0)};
    w[2].first_only = true;
    struct mgpu_feed_options o = {.data = TEXTS("x=" GOLDEN "pair.h5:x",
                                                "edges=" GOLDEN "pair.h5:extra",
                                                "h=" GOLDEN "uint8.npy"),
                                  .rows = TEXTS("edges=1")};
    struct mgpu_feed *feed = bind(&o, w, 3);
    CHECK(feed != NULL && mgpu_feed_samples(feed) == 10 && mgpu_feed_step_rows(feed, "edges") == 1);
    mgpu_feed_close(feed);
    o.rows = (struct mgpu_texts)TEXTS("edges=2");
    check_refused(&o, w, 3, "has 3 rows, but 3 steps of 2 rows take 6");
}

/* reports.md row 39: the part that reads and checks labels. */
static void test_labels(void)
{
    static const struct {
        const char *spec, *error;
        int rank;
    } files[] = {
        {"label=" GOLDEN "labels_uint8.npy", NULL, 0},
        {"label=" GOLDEN "labels_int32.npy", NULL, 0},
        {"label=" GOLDEN "labels_int64.npy", NULL, 0},
        {"label=" GOLDEN "labels_float.npy", NULL, 0},
        {"label=" GOLDEN "labels_column.npy", NULL, 0},
        {"label=" GOLDEN "labels_column.npy", NULL, 1},
        {"label=" GOLDEN "labels_5.npy",
         "'label': sample 2 of " GOLDEN
         "labels_5.npy has the class 5, but there are 5 classes (0 to 4)",
         0},
        {"label=" GOLDEN "labels_minus.npy",
         "sample 2 of " GOLDEN "labels_minus.npy has the class -1", 0},
        {"label=" GOLDEN "labels_255.npy", "sample 2 of " GOLDEN "labels_255.npy has the class 255",
         0},
        {"label=" GOLDEN "labels_half.npy",
         "'label': " GOLDEN "labels_half.npy: sample 2: the value 2.5 is not a whole number", 0},
    };
    static const int64_t rows[] = {3, 2, 1}, minus = -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct mgpu_feed_options o = {.data = {&files[i].spec, 1}};
        struct mgpu_feed_want w = want("label", MGPU_INT64, files[i].rank, 1, 0);
        struct mgpu_feed *feed = bind(&o, &w, 1);
        int64_t out[3];
        CHECK(feed != NULL);
        int rc = mgpu_feed_rows(feed, 0, rows, 3, out);
        if (rc == 0)
            rc = mgpu_feed_check_labels(feed, 0, rows, 3, out, 5, NULL);
        if (files[i].error)
            CHECK_FAILS(rc, files[i].error);
        else
            CHECK(rc == 0 && out[0] == 1 && out[1] == 2 && out[2] == 3);
        if (strstr(files[i].spec, "minus"))
            CHECK_OK(mgpu_feed_check_labels(feed, 0, rows, 3, out, 5, &minus));
        mgpu_feed_close(feed);
    }
}

/* The loss of an epoch, mean of x^2, gathered rank by rank. */
static double epoch_loss(struct mgpu_feed *feed, struct mgpu_batches *b, int ranks)
{
    int64_t rows[64], first, count;
    float x[64];
    double sum = 0;
    for (int64_t i = 0; i < mgpu_batches_count(b); i++) {
        int64_t n = mgpu_batches_rows(b, i, rows);
        for (int r = 0; r < ranks; r++) {
            mgpu_batches_slice(n, ranks, r, &first, &count);
            CHECK_OK(mgpu_feed_rows(feed, 0, rows + first, count, x));
            for (int64_t k = 0; k < count; k++)
                sum += (double)x[k] * x[k];
        }
    }
    return sum / (double)mgpu_feed_samples(feed);
}

/* reports.md row 37: 10007 numbers in chunks of 1000, also with a cache for fewer than all. */
static void test_counted(void)
{
    static const uint64_t caches[] = {0, 24 << 10};
    for (int c = 0; c < 2; c++) {
        struct mgpu_feed_options o = {.data = TEXTS("x=" GOLDEN "counted.h5:x"),
                                      .cache_bytes = caches[c]};
        struct mgpu_feed_want w = want("x", MGPU_FLOAT, 1, 1, 0);
        struct mgpu_feed *feed = bind(&o, &w, 1);
        struct mgpu_order order = {.samples = 10007, .shuffle = true, .seed = 5};
        struct mgpu_batches b;
        CHECK(feed != NULL);
        mgpu_feed_order(feed, &order);
        CHECK(c ? order.block == 1000 && order.window == 4 : order.block == 0);
        CHECK_OK(mgpu_batches_init(&b, &order, 64));
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int64_t e = 0; e < 3; e++) {
                mgpu_batches_epoch(&b, e);
                CHECK(epoch_loss(feed, &b, ranks) == 33375013);
            }
        mgpu_batches_free(&b);
        mgpu_feed_close(feed);
    }
}

enum { LARGE_ROWS = 200000, LARGE_WIDTH = 16, LARGE_CHUNK = 100, CLASSES = 10 };

static void write_chunked(hid_t file, const char *name, hid_t type, int rank, const void *data)
{
    hsize_t dims[] = {LARGE_ROWS, LARGE_WIDTH}, chunk[] = {LARGE_CHUNK, LARGE_WIDTH};
    hid_t create = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(rank, dims, NULL);
    H5Pset_chunk(create, rank, chunk);
    H5Pset_deflate(create, 1);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    CHECK(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(create);
}

/* 12.8 MB of x[i][k] = i, labels sorted by class. */
static void make_large(const char *path)
{
    float *x = mgpu_xcalloc(LARGE_ROWS * LARGE_WIDTH, sizeof *x);
    int8_t *label = mgpu_xcalloc(LARGE_ROWS, 1);
    for (int i = 0; i < LARGE_ROWS * LARGE_WIDTH; i++)
        x[i] = (float)(i / LARGE_WIDTH);
    for (int i = 0; i < LARGE_ROWS; i++)
        label[i] = (int8_t)((int64_t)i * CLASSES / LARGE_ROWS);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    write_chunked(file, "x", H5T_NATIVE_FLOAT, 2, x);
    write_chunked(file, "label", H5T_NATIVE_INT8, 1, label);
    H5Fclose(file);
    free(x);
    free(label);
}

static int classes_in(const int8_t *label, int64_t count)
{
    int seen = 0;
    for (int64_t i = 0; i < count; i++)
        seen |= 1 << label[i];
    return __builtin_popcount((unsigned)seen);
}

/* One epoch in a cache of 1 MiB: every chunk is unpacked about once, classes are mixed inside the
 * batches, and nothing is allocated. */
static void read_epoch(struct mgpu_feed *feed, const struct mgpu_dataset *x, struct mgpu_batches *b)
{
    static float buffer[64 * LARGE_WIDTH];
    int64_t rows[64], classes = 0, block, held;
    int8_t label[64];
    mgpu_dataset_blocks(x, &block, &held);
    uint64_t fetches = mgpu_dataset_fetches(x), calls = mgpu_alloc_calls();
    for (int64_t i = 0; i < mgpu_batches_count(b); i++) {
        int64_t n = mgpu_batches_rows(b, i, rows);
        CHECK_OK(mgpu_feed_rows(feed, 0, rows, n, buffer));
        CHECK_OK(mgpu_feed_rows(feed, 1, rows, n, label));
        for (int64_t k = 0; k < n; k++)
            CHECK(buffer[k * LARGE_WIDTH + 7] == (float)rows[k] &&
                  label[k] == rows[k] * CLASSES / LARGE_ROWS);
        classes += classes_in(label, n);
    }
    double blocks = LARGE_ROWS / (double)block;
    double fetched = (double)(mgpu_dataset_fetches(x) - fetches);
    CHECK_(block % LARGE_CHUNK == 0 && fetched > 0.9 * blocks && fetched < 1.02 * blocks,
           "%g of %g", fetched, blocks);
    CHECK_((double)classes / (double)mgpu_batches_count(b) > 8.5, "%g classes in a batch",
           (double)classes / (double)mgpu_batches_count(b));
    CHECK(mgpu_alloc_calls() == calls);
}

struct reader {
    pthread_t thread;
    struct mgpu_feed *feed;
    int rank, wrong;
};

/* Each thread reads its own slices of the same batches. */
static void *read_slices(void *argument)
{
    struct reader *me = argument;
    int64_t rows[40], first, count;
    float x[40 * LARGE_WIDTH];
    mgpu_batches_slice(100, 3, me->rank, &first, &count);
    for (int64_t step = 0; step < 300; step++) {
        for (int64_t k = 0; k < count; k++)
            rows[k] = (step * 7919 + (first + k) * 1013) % LARGE_ROWS;
        me->wrong += mgpu_feed_rows(me->feed, 0, rows, count, x) != 0;
        for (int64_t k = 0; k < count; k++)
            me->wrong += x[k * LARGE_WIDTH] != (float)rows[k];
    }
    return NULL;
}

static void test_threads(struct mgpu_feed *feed)
{
    struct reader readers[3];
    for (int r = 0; r < 3; r++) {
        readers[r] = (struct reader){.feed = feed, .rank = r};
        CHECK(pthread_create(&readers[r].thread, NULL, read_slices, &readers[r]) == 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(readers[r].thread, NULL);
        CHECK(readers[r].wrong == 0);
    }
}

static void test_large(void)
{
    char path[] = "/tmp/mgpu-feed-XXXXXX", x_spec[64], label_spec[64];
    close(mkstemp(path));
    make_large(path);
    snprintf(x_spec, sizeof x_spec, "x=%s:x", path);
    snprintf(label_spec, sizeof label_spec, "label=%s:label", path);
    uint64_t before = mgpu_alloc_bytes();
    struct mgpu_feed_options o = {.data = TEXTS(x_spec, label_spec), .cache_bytes = 1 << 20};
    struct mgpu_feed_want w[] = {want("x", MGPU_FLOAT, 1, LARGE_WIDTH, 0),
                                 want("label", MGPU_INT8, 0, 0, 0)};
    struct mgpu_feed *feed = bind(&o, w, 2);
    struct mgpu_order order = {.samples = LARGE_ROWS, .shuffle = true, .seed = 2};
    struct mgpu_batches b;
    const struct mgpu_dataset *x;
    CHECK(feed != NULL);
    CHECK(mgpu_alloc_bytes() - before <= (1 << 20) + (16 << 10));
    mgpu_feed_order(feed, &order);
    CHECK_OK(mgpu_batches_init(&b, &order, 64));
    CHECK_OK(mgpu_feed_dataset(&x, feed, "x"));
    for (int64_t e = 0; e < 2; e++) {
        mgpu_batches_epoch(&b, e);
        read_epoch(feed, x, &b);
    }
    test_threads(feed);
    mgpu_batches_free(&b);
    mgpu_feed_close(feed);
    unlink(path);
}

/* Names may hold '='; so may files. */
static void test_names(void)
{
    static const char *const names[] = {"a", "a=b", "c"};
    const struct mgpu_texts inputs = {.items = names, .count = 3};
    CHECK(!strcmp(mgpu_feed_file_of("a=b=x.npy", &inputs), "x.npy"));
    CHECK(!strcmp(mgpu_feed_file_of("a=x=y.npy", &inputs), "x=y.npy"));
    CHECK(!strcmp(mgpu_feed_file_of("c=a=b.npy", &inputs), "a=b.npy"));
    CHECK(!strcmp(mgpu_feed_file_of("label=l.npy", &inputs), "l.npy"));
    CHECK(!mgpu_feed_file_of("all.npz", &inputs));
}

int main(void)
{
    mgpu_set_note(keep_note, NULL);
    test_values();
    test_conversions();
    test_file_alone();
    test_batch_axis();
    test_refusals();
    test_step_rows();
    test_labels();
    test_counted();
    test_large();
    test_names();
    return test_end();
}
