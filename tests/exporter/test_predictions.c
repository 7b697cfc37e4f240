/* Predictions written batch by batch, read back with our own reader. */
#include "exporter/predictions.h"
#include "runtime/base/memory.h"
#include "runtime/data/dataset.h"
#include "tests/test.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static char folder[] = "/tmp/mgpu-predict-XXXXXX";

static const struct mgpu_prediction_output outputs[] = {
    {.name = "y", .type = MGPU_FLOAT, .rank = 2, .dims = {7, 3}},
    {.name = "head/class", .type = MGPU_INT64, .rank = 1, .dims = {7}},
    {.name = "steps", .type = MGPU_FLOAT16, .rank = 3, .dims = {2, 7, 2}, .axis = 1},
};
enum { OUTPUTS = 3, SAMPLES = 7 };

/* Element k of sample n is 10 n + k, whatever the axis. */
static void make_batch(const struct mgpu_prediction_output *o, int64_t first, int64_t count,
                       void *to)
{
    int64_t inner = 1, outer = 1;
    for (int i = 0; i < o->rank; i++)
        if (i != o->axis)
            *(i < o->axis ? &outer : &inner) *= o->dims[i];
    for (int64_t i = 0; i < outer * count * inner; i++) {
        int64_t sample = first + i / inner % count;
        int64_t k = i / inner / count * inner + i % inner;
        mgpu_set_double(to, o->type, i, (double)(10 * sample + k));
    }
}

static int write_all(struct mgpu_predictions *p, int64_t samples)
{
    char batch[256];
    for (int64_t first = 0; first < samples; first += 3)
        for (int i = 0; i < OUTPUTS; i++) {
            int64_t count = samples - first < 3 ? samples - first : 3;
            make_batch(&outputs[i], first, count, batch);
            MGPU_TRY(mgpu_predictions_write(p, i, first, count, batch));
        }
    return 0;
}

static void check_back(const char *path)
{
    for (int i = 0; i < OUTPUTS; i++) {
        char spec[160], wanted[256];
        struct mgpu_array a;
        snprintf(spec, sizeof spec, "%s:%s", path, outputs[i].name);
        CHECK_OK(mgpu_dataset_load(&a, spec, 1000));
        CHECK(a.type == outputs[i].type && a.rank == outputs[i].rank);
        CHECK(memcmp(a.dims, outputs[i].dims, (size_t)a.rank * sizeof *a.dims) == 0);
        make_batch(&outputs[i], 0, SAMPLES, wanted);
        CHECK_(memcmp(a.data, wanted, (size_t)mgpu_array_count(&a) * mgpu_dtype_size(a.type)) == 0,
               "%s", spec);
        mgpu_array_free(&a);
    }
}

static void test_kind(const char *extension)
{
    char path[64];
    struct mgpu_predictions *p;
    snprintf(path, sizeof path, "%s/out%s", folder, extension);
    CHECK_OK(mgpu_predictions_open(&p, path, outputs, OUTPUTS));
    CHECK(access(path, F_OK) < 0);
    CHECK_OK(write_all(p, SAMPLES));
    CHECK_FAILS(mgpu_predictions_write(p, 0, 6, 2, ""), "samples 6 to 8 of 7");
    CHECK_OK(mgpu_predictions_close(p, 0));
    check_back(path);

    CHECK_OK(mgpu_predictions_open(&p, path, outputs, OUTPUTS));
    CHECK_OK(write_all(p, SAMPLES - 1));
    CHECK_FAILS(mgpu_predictions_close(p, 0), "'y' has 6 of 7 samples");
    CHECK_OK(mgpu_predictions_open(&p, path, outputs, OUTPUTS));
    CHECK(mgpu_predictions_close(p, MGPU_EDEVICE) == MGPU_EDEVICE);
    check_back(path);
    CHECK(unlink(path) == 0);
}

/* No room: the error comes at the start. */
static void test_full_disk(const char *extension)
{
    char path[64];
    struct mgpu_predictions *p;
    struct rlimit old, small;
    struct mgpu_prediction_output big = {
        .name = "y", .type = MGPU_FLOAT, .rank = 2, .dims = {1 << 10, 1 << 10}};
    snprintf(path, sizeof path, "%s/out%s", folder, extension);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_FAILS(mgpu_predictions_open(&p, path, &big, 1), "cannot write: File too large");
    setrlimit(RLIMIT_FSIZE, &old);
}

static void test_refusals(void)
{
    struct mgpu_predictions *p;
    struct mgpu_prediction_output o = outputs[0];
    CHECK_FAILS(mgpu_predictions_open(&p, "out.csv", &o, 1), "ending in .npz or .h5");
    CHECK_FAILS(mgpu_predictions_open(&p, "/nowhere/out.npz", &o, 1), "/nowhere/out.npz: cannot");
    CHECK_FAILS(mgpu_predictions_open(&p, "/nowhere/out.h5", &o, 1), "/nowhere/out.h5: cannot");
    o.type = MGPU_BFLOAT16;
    CHECK_FAILS(mgpu_predictions_open(&p, "out.npz", &o, 1), "'y': bfloat16");
    o = outputs[0];
    o.axis = 2;
    CHECK_FAILS(mgpu_predictions_open(&p, "out.npz", &o, 1), "'y' has no axis of samples");
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    test_kind(".npz");
    test_kind(".h5");
    test_kind(".hdf5");
    test_full_disk(".npz");
    test_full_disk(".h5");
    test_refusals();
    CHECK(rmdir(folder) == 0); /* nothing else was left there */
    return test_end();
}
