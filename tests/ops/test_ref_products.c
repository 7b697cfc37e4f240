/* The plain kernels of products and windows: the same bits with any number of threads, and half
 * types. */
#include "runtime/ops/conv.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/pool.h"
#include "runtime/ops/rnn.h"
#include "tests/ops/op_case.h"
#include "tests/test.h"

#include <omp.h>

/* An operand: rank, dims. */
#define IN(r, ...)                                                                                 \
    {                                                                                              \
        .rank = r, .batch_axis = -1, .dims = { __VA_ARGS__ }                                       \
    }

static const struct mgpu_matmul_attrs product = {.transpose_b = true};
static const struct mgpu_conv_attrs convolution = {.spatial = 2,
                                                   .group = 2,
                                                   .stride = {2, 1},
                                                   .dilation = {1, 2},
                                                   .before = {1, 0},
                                                   .after = {1, 1}};
static const struct mgpu_pool_attrs pool = {.spatial = 1,
                                            .kernel = {3},
                                            .stride = {2},
                                            .dilation = {1},
                                            .before = {1},
                                            .in = {9},
                                            .out = {4}};
static const struct mgpu_rnn_attrs gru = {.kind = MGPU_GRU,
                                          .direction = MGPU_RNN_BIDIRECTIONAL,
                                          .hidden = 33,
                                          .activation = {0, 1, 1, 0, 1, 1}};

static const struct mgpu_check rows[] = {
    {.name = "matmul",
     .op = &mgpu_op_matmul,
     .attrs = &product,
     .inputs = 2,
     .input = {IN(3, 3, 70, 90), IN(2, 130, 90)}},
    {.name = "conv",
     .op = &mgpu_op_conv,
     .attrs = &convolution,
     .inputs = 3,
     .input = {IN(4, 3, 16, 9, 11), IN(4, 70, 8, 3, 3), IN(1, 70)}},
    {.name = "max_pool",
     .op = &mgpu_op_max_pool,
     .attrs = &pool,
     .inputs = 1,
     .input = {IN(3, 4, 5, 9)}},
    {.name = "average_pool",
     .op = &mgpu_op_average_pool,
     .attrs = &pool,
     .inputs = 1,
     .input = {IN(3, 4, 5, 9)}},
    {.name = "rnn",
     .op = &mgpu_op_rnn,
     .attrs = &gru,
     .inputs = 4,
     .input = {IN(3, 4, 35, 5), IN(3, 2, 99, 5), IN(3, 2, 99, 33), IN(2, 2, 198)}},
};

static void run(const struct op_case *c, const struct op_numbers *n, struct mgpu_run *run,
                int threads)
{
    omp_set_num_threads(threads);
    mgpu_run_init(run, c->graph, &mgpu_backend_ref);
    CHECK_OK(op_numbers_feed(n, run, c));
    CHECK_OK(mgpu_run_all(run));
}

static void check_threads(const struct mgpu_check *row)
{
    struct op_case c;
    struct op_numbers n;
    struct mgpu_run one, many;
    CHECK_OK(op_case_build(&c, row, MGPU_FLOAT, 1));
    op_numbers_init(&n, row, &c);
    run(&c, &n, &one, 1);
    run(&c, &n, &many, 3);
    for (int i = 0; i < c.graph->value_count; i++) {
        const struct mgpu_value *v = c.graph->values[i];
        CHECK_(
            !memcmp(mgpu_run_data(&one, v), mgpu_run_data(&many, v), (size_t)mgpu_value_bytes(v)),
            "%s: value %d differs with 3 threads", row->name, i);
    }
    mgpu_run_free(&one);
    mgpu_run_free(&many);
    op_numbers_free(&n);
    op_case_free(&c);
}

/* Output 0 in `type`, from the row's numbers; free it. */
static double *output_in(const struct mgpu_check *row, enum mgpu_dtype type, int64_t *count)
{
    struct op_case c;
    struct op_numbers n;
    struct mgpu_run r;
    CHECK_OK(op_case_build(&c, row, type, 1));
    op_numbers_init(&n, row, &c);
    run(&c, &n, &r, 2);
    *count = mgpu_value_count(c.node->output[0]);
    double *copy = mgpu_xcalloc((size_t)*count, sizeof *copy);
    memcpy(copy, mgpu_run_doubles(&r, c.node->output[0]), (size_t)*count * sizeof *copy);
    mgpu_run_free(&r);
    op_numbers_free(&n);
    op_case_free(&c);
    return copy;
}

/* Inputs are rounded to the type, so that outputs agree to about its precision. */
static void check_half(const struct mgpu_check *row, enum mgpu_dtype type, double limit)
{
    int64_t count;
    double *want = output_in(row, MGPU_DOUBLE, &count), *got = output_in(row, type, &count);
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    CHECK_(diff > 0 && sqrt(diff / norm) < limit, "%s: %s is off by %.3g", row->name,
           mgpu_dtype_name(type), sqrt(diff / norm));
    free(want);
    free(got);
}

int main(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_threads(&rows[i]);
        check_half(&rows[i], MGPU_FLOAT16, 1e-3);
        check_half(&rows[i], MGPU_BFLOAT16, 8e-3);
    }
    return test_end();
}
