/* random_mask and random_uniform: the generator against published numbers, the rule of its header,
 * and samples that keep their mask on whatever rank and in whatever piece they are. */
#include "runtime/backend.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/random.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

#define K mgpu_dim_const

static struct mgpu_dim many(int64_t factor, int64_t batch)
{
    return mgpu_dim_mul(K(factor), mgpu_dim_symbol(MGPU_BATCH, batch));
}

/* Runs a mask of float [dims] into `y`. */
static void run_mask(double probability, int64_t salt, double key, double step, double base,
                     int rank, const struct mgpu_dim *dims, float *y)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_value *v = mgpu_random_mask(g, probability, salt, MGPU_FLOAT, rank, dims);
    CHECK(v != NULL);
    if (v)
        CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, v->producer,
                                  (const void *[]){&key, &step, &base}, (void *[]){y}));
    mgpu_graph_free(g);
}

/* Random123's known answer for philox4x32-10 of a zero counter and key, found by thresholds: word w
 * is below p * 2^32 for p = (w + 1) / 2^32 and not for p = w / 2^32. */
static void test_known_answers(void)
{
    static const uint32_t words[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    struct mgpu_dim dims[] = {K(4)};
    for (int i = 0; i < 4; i++) {
        float at[4], above[4];
        run_mask(words[i] / 4294967296.0, 0, 0, 0, 0, 1, dims, at);
        run_mask((words[i] + 1.0) / 4294967296.0, 0, 0, 0, 0, 1, dims, above);
        CHECK(at[i] != 0);
        CHECK(above[i] == 0);
    }
}

static void test_uniform(void)
{
    static const uint32_t words[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {K(4)};
    struct mgpu_value *v = mgpu_random_uniform(g, 0, MGPU_FLOAT, 1, dims);
    double zero = 0;
    float y[4];
    CHECK_OK(mgpu_backend_run(&mgpu_backend_ref, v->producer, (const void *[]){&zero, &zero, &zero},
                              (void *[]){y}));
    for (int i = 0; i < 4; i++)
        CHECK((double)y[i] == (words[i] >> 8) / 16777216.0);
    mgpu_graph_free(g);
}

static void test_rates(void)
{
    enum { N = 20000 };
    static float y[N];
    struct mgpu_dim dims[] = {K(N)};
    run_mask(0.25, 3, 12345, 7, 0, 1, dims, y);
    double sum = 0, kept = 0;
    for (int i = 0; i < N; i++) {
        sum += (double)y[i];
        kept += y[i] != 0;
        CHECK(y[i] == 0 || y[i] == 1 / 0.75f);
    }
    CHECK_NEAR(kept / N, 0.75, 0.01); /* three standard deviations */
    CHECK_NEAR(sum / N, 1, 0.013);
    run_mask(0, 3, 12345, 7, 0, 1, dims, y);
    for (int i = 0; i < N; i++)
        CHECK(y[i] == 1);
    run_mask(1, 3, 12345, 7, 0, 1, dims, y);
    for (int i = 0; i < N; i++)
        CHECK(y[i] == 0);
}

static int differences(const float *a, const float *b, int count)
{
    int n = 0;
    for (int i = 0; i < count; i++)
        n += a[i] != b[i];
    return n;
}

/* Key, step, salt and sample each give another mask. */
static void test_independence(void)
{
    enum { N = 64 };
    float a[N], b[N], c[N], d[N], e[2 * N];
    struct mgpu_dim dims[] = {many(1, 1), K(N)}, two[] = {many(1, 2), K(N)};
    run_mask(0.5, 1, 11, 5, 0, 2, dims, a);
    run_mask(0.5, 2, 11, 5, 0, 2, dims, b);
    run_mask(0.5, 1, 11, 6, 0, 2, dims, c);
    run_mask(0.5, 1, 9007199254740991.0, 5, 0, 2, dims, d);
    run_mask(0.5, 1, 11, 5, 0, 2, two, e);
    CHECK(differences(a, b, N) > N / 4);
    CHECK(differences(a, c, N) > N / 4);
    CHECK(differences(a, d, N) > N / 4);
    CHECK(!differences(a, e, N));
    CHECK(differences(a, e + N, N) > N / 4);
}

/* Samples 2 and 3 of a batch of 5, wherever the samples stand. */
static void test_slices(void)
{
    float whole[5 * 3 * 6], part[2 * 3 * 6];
    struct mgpu_dim all[] = {K(3), many(2, 5), K(3)}, some[] = {K(3), many(2, 2), K(3)};
    run_mask(0.5, 1, 11, 5, 100, 3, all, whole);
    run_mask(0.5, 1, 11, 5, 102, 3, some, part);
    for (int block = 0; block < 3; block++)
        CHECK(!differences(whole + block * 30 + 12, part + block * 12, 12));
}

/* The same elements in the same sample have the same mask wherever the sample's axis stands. */
static void test_order(void)
{
    float first[3 * 8], second[8 * 3];
    run_mask(0.5, 1, 11, 5, 4, 2, (struct mgpu_dim[]){many(1, 3), K(8)}, first);
    run_mask(0.5, 1, 11, 5, 4, 2, (struct mgpu_dim[]){K(8), many(1, 3)}, second);
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 8; i++)
            CHECK(first[n * 8 + i] == second[i * 3 + n]);
}

static const void *mask_attrs(struct mgpu_arena *arena, int64_t n)
{
    struct mgpu_dim dims[] = {K(2), many(1, n), K(5)};
    struct mgpu_random_attrs a = {.probability = 0.4,
                                  .salt = 9,
                                  .type = MGPU_FLOAT,
                                  .rank = 3,
                                  .dims = mgpu_arena_copy(arena, dims, sizeof dims)};
    return mgpu_arena_copy(arena, &a, sizeof a);
}

static const struct mgpu_check rows[] = {
    {.name = "random_mask",
     .op = &mgpu_op_random_mask,
     .attrs_at = mask_attrs,
     .inputs = 3,
     .batch = 5,
     .input = {{.scalar = 1 + MGPU_SCALAR_KEY},
               {.scalar = 1 + MGPU_SCALAR_STEP},
               {.scalar = 1 + MGPU_SCALAR_SAMPLE_BASE}}},
    {.name = "random_uniform",
     .op = &mgpu_op_random_uniform,
     .attrs_at = mask_attrs,
     .inputs = 3,
     .batch = 5,
     .input = {{.scalar = 1 + MGPU_SCALAR_KEY},
               {.scalar = 1 + MGPU_SCALAR_STEP},
               {.scalar = 1 + MGPU_SCALAR_SAMPLE_BASE}}},
    {.name = NULL},
};

int main(void)
{
    test_failures += mgpu_op_check(rows);
    test_known_answers();
    test_uniform();
    test_rates();
    test_independence();
    test_slices();
    test_order();
    return test_end();
}
