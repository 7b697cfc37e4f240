/* Reports of users about the batch and about one failing device, with their values (rows 20b, 26a,
 * 26c, 36b and 36c). */
#include "runtime/base/memory.h"
#include "runtime/data/dataset.h"
#include "runtime/facade/facade.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <unistd.h>

#define WEIGHTS(list) list, (int)(sizeof(list) / sizeof *(list))

static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0"};

/* ---- Row 20b: a batch size of 2 in a Reshape ----------------------------------------------------
 */

static int predict(const char *model, const char *data, int64_t batch, const char *where,
                   const char *out)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    o.data = tiny_list(data, NULL);
    o.inference = o.predict = true;
    o.batch = batch;
    o.devices = where;
    MGPU_TRY(mgpu_trainer_new(&t, model, &o));
    int rc = mgpu_predict(t, out);
    mgpu_trainer_free(t);
    return rc;
}

/* Never as many outputs as samples by chance, or another number in silence. */
static void test_baked_batch(void)
{
    const char *model = tiny_model("input x float N 4\n"
                                   "init shape int64 2 = 2 -1\n"
                                   "init w float 1 = 3\n"
                                   "r = Reshape(x, shape) name=\"baked\"\n"
                                   "m = ReduceMean(r) axes=[1] keepdims=0\n"
                                   "y = Mul(m, w)\n"
                                   "output y float N\n");
    for (int64_t n = 1; n <= 4; n++)
        for (int d = 0; d < 2; d++) {
            const char *out = tiny_path("baked.npz"), *data;
            struct mgpu_array y = {0};
            char spec[256];
            data = tiny_noise("x", 3, 2, (int64_t[]){n, 4});
            if (predict(model, data, n, devices[d], out) < 0) {
                CHECK_(strstr(mgpu_error(), "baked"), "%s", mgpu_error());
                continue;
            }
            snprintf(spec, sizeof spec, "%s:y", out);
            CHECK_OK(mgpu_dataset_load(&y, spec, 1000));
            CHECK_(mgpu_array_count(&y) == n, "%d samples gave %d outputs", (int)n,
                   (int)mgpu_array_count(&y));
            mgpu_array_free(&y);
        }
}

static void test_baked_training(void)
{
    struct tiny_result r;
    struct mgpu_options o = MGPU_OPTIONS;
    const char *model = tiny_model("input x float N 4\n"
                                   "init shape int64 2 = 2 -1\n"
                                   "init w float 1 = 3\n"
                                   "r = Reshape(x, shape) name=\"baked\"\n"
                                   "m = ReduceMean(r) axes=[1] keepdims=0\n"
                                   "y = Mul(m, w)\n"
                                   "output y float N\n");
    o.data = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){4, 4}),
                       tiny_floats("label", "4", 1.0, 2.0, 3.0, 4.0), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 4;
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0, "4 samples became 2 outputs");
}

/* The batch of the export where its place cannot be told: the node and the way out are said, also
 * where the numbers are right as they stand. */
static void test_baked_inside(void)
{
    const char *model = tiny_model("input x float 2 3 4\n"
                                   "init flat int64 2 = 6 4\n"
                                   "init back int64 3 = 3 2 4\n"
                                   "init w float 4 4 = .25\n"
                                   "t = Transpose(x) perm=[1,0,2]\n"
                                   "r = Reshape(t, flat) name=\"baked\"\n"
                                   "m = MatMul(r, w)\n"
                                   "u = Reshape(m, back)\n"
                                   "v = Transpose(u) perm=[1,0,2]\n"
                                   "y = ReduceMean(v) axes=[1] keepdims=0\n"
                                   "output y float 2 4\n");
    static const char want[] = "node 'baked' (Reshape) makes float[6,4] of float[3,N,4]";
    const char *x = tiny_noise("x", 3, 3, (int64_t[]){2, 3, 4});
    struct tiny_result r;
    struct mgpu_options o = MGPU_OPTIONS;
    CHECK(predict(model, x, 2, devices[0], tiny_path("baked.npz")) < 0);
    CHECK_(strstr(mgpu_error(), want), "%s", mgpu_error());
    o.data = tiny_list(x, tiny_noise("label", 4, 2, (int64_t[]){2, 4}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 2;
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, want) && strstr(r.error, "dynamic_shapes"), "%s", r.error);
    o.batch = 1;
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, "'baked'") && strstr(r.error, "dynamic_shapes"), "%s",
           r.error);
}

/* ---- Row 26: shape arithmetic -------------------------------------------------------------------
 */

static const char *const direct = "input x float N 2 3 4\n"
                                  "init w float 24 1 = .25\n"
                                  "init b float 1 = .5\n"
                                  "f = Flatten(x)\n"
                                  "y = Gemm(f, w, b)\n"
                                  "output y float N 1\n";
static const char *const by_shape = "input x float N 2 3 4\n"
                                    "init w float 24 1 = .25\n"
                                    "init b float 1 = .5\n"
                                    "init zero int64 = 0\n"
                                    "init axes int64 1 = 0\n"
                                    "init rest int64 1 = -1\n"
                                    "s = Shape(x)\n"
                                    "n = Gather(s, zero)\n"
                                    "u = Unsqueeze(n, axes)\n"
                                    "shape = Concat(u, rest) axis=0\n"
                                    "f = Reshape(x, shape)\n"
                                    "y = Gemm(f, w, b)\n"
                                    "output y float N 1\n";
static const char *const by_part = "ir 10\n"
                                   "opset 21\n"
                                   "input x float N 2 3 4\n"
                                   "init w float 24 1 = .25\n"
                                   "init b float 1 = .5\n"
                                   "init rest int64 1 = -1\n"
                                   "u = Shape(x) start=0 end=1\n"
                                   "shape = Concat(u, rest) axis=0\n"
                                   "f = Reshape(x, shape)\n"
                                   "y = Gemm(f, w, b)\n"
                                   "output y float N 1\n";
static const struct tiny_weight dense[] = {{"w", 24}, {"b", 1}};

/* Five samples in batches of two: the tail has one. */
static struct mgpu_options tail(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_noise("x", 4, 4, (int64_t[]){5, 2, 3, 4}),
                       tiny_floats("label", "5 1", 1.0, -1.0, 0.5, 2.0, -0.5), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.05";
    o.batch = 2;
    o.epochs = 2;
    return o;
}

/* Nothing but the batch's way through the weights is left in a step. */
static void check_instructions(const char *model, const struct mgpu_options *o)
{
    static const char *const none[] = {"gather", "concat", "slice", "reshape", "copy", NULL};
    struct mgpu_trainer *t;
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    for (int i = 0; t && i < t->compiled_count; i++) {
        const struct mgpu_program *p = t->compiled[i].program[0];
        for (int k = 0; p && k < p->instructions; k++) {
            const struct mgpu_node *node = p->instruction[k].node;
            for (int n = 0; none[n]; n++)
                CHECK_(node->origin.role != MGPU_FORWARD || strcmp(node->op->name, none[n]),
                       "%s is still in the step", none[n]);
        }
    }
    mgpu_trainer_free(t);
}

static void test_shape_arithmetic(void)
{
    struct tiny_result want, got;
    struct mgpu_options o = tail();
    for (int d = 0; d < 3; d++) {
        o.devices = devices[d];
        tiny_train(&want, tiny_model(direct), &o, WEIGHTS(dense));
        CHECK_(want.rc >= 0 && want.steps == 6, "%s", want.error);
        tiny_train(&got, tiny_model(by_shape), &o, WEIGHTS(dense));
        CHECK_(tiny_same(&got, &want), "Shape, Gather, Concat: %s", got.error);
        tiny_train(&got, tiny_model(by_part), &o, WEIGHTS(dense));
        CHECK_(tiny_same(&got, &want), "Shape with start and end: %s", got.error);
    }
    check_instructions(tiny_model(by_shape), &o);
    check_instructions(tiny_model(by_part), &o);
}

/* ---- Row 36b: a sample that cannot be read
 * ------------------------------------------------------- */

enum { SAMPLES = 300, WIDTH = 512, BAD = 29 };

/* Every sample is a compressed chunk of its own; one of them is overwritten. */
static const char *damaged_file(void)
{
    static float x[SAMPLES][WIDTH];
    const char *path = tiny_path("damaged.h5");
    unsigned filter;
    haddr_t address;
    hsize_t size, at[] = {BAD, 0};
    for (int i = 0; i < SAMPLES * WIDTH; i++)
        x[i / WIDTH][i % WIDTH] = (float)(i * 2654435761u >> 12);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(2, (hsize_t[]){SAMPLES, WIDTH}, NULL);
    hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(made, 2, (hsize_t[]){1, WIDTH});
    H5Pset_deflate(made, 1);
    hid_t set = H5Dcreate(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, made, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x);
    H5Dflush(set);
    CHECK(H5Dget_chunk_info_by_coord(set, at, &filter, &address, &size) >= 0);
    H5Dclose(set);
    H5Pclose(made);
    H5Sclose(space);
    H5Fclose(file);
    int fd = open(path, O_WRONLY);
    CHECK(pwrite(fd, "damaged, damaged, damaged", 25, (off_t)address + 40) == 25);
    close(fd);
    return path;
}

static void test_unreadable_sample(void)
{
    static float zero[SAMPLES];
    char spec[256];
    struct tiny_result r;
    struct mgpu_options o = MGPU_OPTIONS;
    snprintf(spec, sizeof spec, "x=%s:x", damaged_file());
    o.data =
        tiny_list(spec, tiny_data("label", MGPU_FLOAT, 2, (int64_t[]){SAMPLES, 1}, zero), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0";
    o.batch = 3;
    o.shuffle = false;
    o.devices = devices[2];
    o.strategy = "data";
    tiny_train(&r,
               tiny_model("input x float N 512\n"
                          "init w float 512 1 = .001\n"
                          "y = MatMul(x, w)\n"
                          "output y float N 1\n"),
               &o, NULL, 0);
    CHECK_(r.rc < 0 && strstr(r.error, "damaged.h5") && strstr(r.error, "sample 29"),
           "%d steps: %s", r.steps, r.error);
    CHECK_(strstr(r.error, "rank 2"), "%s", r.error);
    CHECK_(r.steps == BAD / 3, "%d steps before the unreadable sample", r.steps);
}

/* ---- Row 36c: no memory
 * -------------------------------------------------------------------------- */

/* Memory ends while the ranks' is being taken: an error that says for what. (Later nothing is
 * taken any more: test_allocations.) */
static void test_no_memory(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("no memory: skipped, sanitizers need the address space\n");
#else
    static float zero[64];
    struct rlimit before, low;
    struct tiny_result r;
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_noise("x", 5, 2, (int64_t[]){64, 16}),
                       tiny_data("label", MGPU_FLOAT, 2, (int64_t[]){64, 1}, zero), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 64;
    o.devices = devices[2];
    o.strategy = "data";
    const char *model = tiny_model("input x float N 16\n"
                                   "init w float 16 1 = 1\n"
                                   "init many int64 2 = 1 4000000\n"
                                   "a = MatMul(x, w)\n"
                                   "t = Expand(a, many)\n"
                                   "h = Tanh(t)\n"
                                   "y = ReduceMean(h) axes=[1]\n"
                                   "output y float N 1\n");
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    low = before;
    low.rlim_cur = (rlim_t)1 << 30;
    CHECK(setrlimit(RLIMIT_AS, &low) == 0);
    tiny_train(&r, model, &o, NULL, 0);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK_(r.rc < 0 && r.steps == 0 && strstr(r.error, "cpu:"), "%d: %s", r.rc, r.error);
#endif
}

int main(void)
{
    tiny_begin();
    test_baked_batch();
    test_baked_training();
    test_baked_inside();
    test_shape_arithmetic();
    test_unreadable_sample();
    test_no_memory();
    tiny_end();
    return test_end();
}
