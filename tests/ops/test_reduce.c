/* reduce and arg_reduce: odd shapes in every way of the harness, and numbers by hand. */
#include "runtime/backend.h"
#include "runtime/ops/reduce.h"
#include "runtime/ref/ref.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

#define REDUCE(kind_, axes_, keep_)                                                                \
    &(struct mgpu_reduce_attrs)                                                                    \
    {                                                                                              \
        .kind = kind_, .axes = axes_, .keep = keep_                                                \
    }

#define ROW(text, kind, axes, keep, ...)                                                           \
    {                                                                                              \
        .name = text, .op = &mgpu_op_reduce, .attrs = REDUCE(kind, axes, keep), .inputs = 1,       \
        .input = {                                                                                 \
            {__VA_ARGS__}                                                                          \
        }                                                                                          \
    }

/* Elements far enough apart that no difference quotient passes from one extreme to another. */
static const double spread[] = {3, -1, 4,   1.5, -5,  9,  2,  6, -5.5, 3.5, 5,  8,
                                7, -9, 0.5, -3,  8.5, 10, -2, 1, 0,    -7,  11, 12};
static const double one_zero[] = {2, 0, 3, -1, 0.5, 2, 4, 1, -2};
static const double two_zeros[] = {2, 0, 3, 0, 0.5, 2, 4, 1, -2};

static const struct mgpu_check rows[] = {
    ROW("sum of rows", MGPU_REDUCE_SUM, 2, false, .rank = 2, .dims = {3, 5}, .batch_axis = 0),
    ROW("sum over the batch", MGPU_REDUCE_SUM, 1, false, .rank = 2, .dims = {4, 5},
        .batch_axis = 0),
    ROW("sum over the batch, kept", MGPU_REDUCE_SUM, 1, true, .rank = 2, .dims = {4, 1},
        .batch_axis = 0),
    ROW("sum of all", MGPU_REDUCE_SUM, 7, false, .rank = 3, .dims = {3, 2, 4}, .batch_axis = 1),
    ROW("sum over the ends", MGPU_REDUCE_SUM, 5, false, .rank = 3, .dims = {3, 2, 4},
        .batch_axis = 1),
    ROW("sum of channels", MGPU_REDUCE_SUM, 13, true, .rank = 4, .dims = {2, 3, 2, 2},
        .batch_axis = 0),
    ROW("sum over stacked batches", MGPU_REDUCE_SUM, 1, false, .rank = 2, .dims = {8, 3},
        .batch_axis = 0, .outer = 2),
    ROW("sum beside stacked batches", MGPU_REDUCE_SUM, 1, false, .rank = 2, .dims = {3, 12},
        .batch_axis = 1, .outer = 2, .inner = 2),
    ROW("sum of wide rows", MGPU_REDUCE_SUM, 2, false, .rank = 2, .dims = {3, 300},
        .batch_axis = 0),
    ROW("sum of wide columns", MGPU_REDUCE_SUM, 1, false, .rank = 2, .dims = {3, 300},
        .batch_axis = 0),
    ROW("mean of rows", MGPU_REDUCE_MEAN, 2, true, .rank = 2, .dims = {3, 5}, .batch_axis = 0),
    ROW("mean over the batch", MGPU_REDUCE_MEAN, 1, false, .rank = 2, .dims = {5, 2},
        .batch_axis = 0),
    ROW("mean of all", MGPU_REDUCE_MEAN, 7, false, .rank = 3, .dims = {4, 2, 3}, .batch_axis = 0),
    ROW("mean over stacked batches", MGPU_REDUCE_MEAN, 1, true, .rank = 2, .dims = {8, 3},
        .batch_axis = 0, .outer = 2),
    ROW("max of rows", MGPU_REDUCE_MAX, 2, false, .rank = 2, .dims = {4, 6}, .batch_axis = 0,
        .values = spread),
    ROW("min of columns", MGPU_REDUCE_MIN, 2, true, .rank = 3, .dims = {2, 4, 3}, .batch_axis = 0,
        .values = spread),
    ROW("max over the ends", MGPU_REDUCE_MAX, 5, false, .rank = 3, .dims = {4, 2, 3},
        .batch_axis = 1, .values = spread),
    ROW("min of planes", MGPU_REDUCE_MIN, 12, true, .rank = 4, .dims = {3, 2, 2, 2},
        .batch_axis = 0, .values = spread),
    {.name = "max over the batch",
     .op = &mgpu_op_reduce,
     .attrs = REDUCE(MGPU_REDUCE_MAX, 1, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 6}, .batch_axis = 0, .values = spread}},
     .mixes = true},
    ROW("product of rows", MGPU_REDUCE_PROD, 2, false, .rank = 2, .dims = {3, 4}, .batch_axis = 0),
    ROW("product with one zero in a row", MGPU_REDUCE_PROD, 2, true, .rank = 2, .dims = {3, 3},
        .batch_axis = 0, .values = one_zero),
    ROW("product with two zeros in a column", MGPU_REDUCE_PROD, 1, false, .rank = 2, .dims = {3, 3},
        .batch_axis = 1, .values = two_zeros),
    {.name = "product over the batch",
     .op = &mgpu_op_reduce,
     .attrs = REDUCE(MGPU_REDUCE_PROD, 1, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 2}, .batch_axis = 0}},
     .mixes = true},
    {.name = "arg_reduce of rows",
     .op = &mgpu_op_arg_reduce,
     .attrs = &(struct mgpu_arg_reduce_attrs){.axis = 1, .keep = true},
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 6}, .batch_axis = 0}}},
    {.name = "arg_reduce of long rows",
     .op = &mgpu_op_arg_reduce,
     .attrs = &(struct mgpu_arg_reduce_attrs){.axis = 1, .last = true},
     .inputs = 1,
     .input = {{.rank = 2, .dims = {5, 150}, .batch_axis = 0}}},
    {.name = "arg_reduce of rows longer than a block",
     .op = &mgpu_op_arg_reduce,
     .attrs = &(struct mgpu_arg_reduce_attrs){.axis = 1, .min = true},
     .inputs = 1,
     .input = {{.rank = 2, .dims = {2, 1100}, .batch_axis = 0}}},
    {.name = "arg_reduce of columns",
     .op = &mgpu_op_arg_reduce,
     .attrs = &(struct mgpu_arg_reduce_attrs){.axis = 1, .min = true},
     .inputs = 1,
     .input = {{.rank = 3, .dims = {2, 5, 3}, .batch_axis = 2}}},
    {.name = "arg_reduce over the batch",
     .op = &mgpu_op_arg_reduce,
     .attrs = &(struct mgpu_arg_reduce_attrs){.axis = 0},
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 6}, .batch_axis = 0}},
     .mixes = true},
    {.name = NULL},
};

/* ---- numbers by hand ------------------------------------------------------------------------ */

/* A folded reduction of `count` elements, read as double. */
static double folded(int kind, enum mgpu_dtype type, int64_t count, const double *x)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_const(count);
    char data[64];
    for (int64_t i = 0; i < count; i++)
        mgpu_set_double(data, type, i, x[i]);
    struct mgpu_value *v = mgpu_graph_constant(g, "x", type, 1, &n, data, NULL);
    struct mgpu_value *y = mgpu_reduce(g, (enum mgpu_reduce_kind)kind, v, 1, false);
    double result = y ? mgpu_get_double(y->data, y->type, 0) : -12345;
    CHECK(y && y->rank == 0 && y->type == type);
    mgpu_graph_free(g);
    return result;
}

static void test_types(void)
{
    const double small[] = {3, 5, 2}, signs[] = {-3, 5, -2}, wide[] = {100, 100, 100};
    for (int type = MGPU_FLOAT; type <= MGPU_BFLOAT16; type++) {
        if (!mgpu_dtype_size((enum mgpu_dtype)type) || type == MGPU_BOOL)
            continue;
        CHECK_NEAR(folded(MGPU_REDUCE_SUM, (enum mgpu_dtype)type, 3, small), 10, 0);
        CHECK_NEAR(folded(MGPU_REDUCE_MAX, (enum mgpu_dtype)type, 3, small), 5, 0);
        CHECK_NEAR(folded(MGPU_REDUCE_MIN, (enum mgpu_dtype)type, 3, small), 2, 0);
        CHECK_NEAR(folded(MGPU_REDUCE_PROD, (enum mgpu_dtype)type, 3, small), 30, 0);
    }
    CHECK_NEAR(folded(MGPU_REDUCE_MAX, MGPU_INT8, 3, signs), 5, 0);
    CHECK_NEAR(folded(MGPU_REDUCE_MIN, MGPU_INT8, 3, signs), -3, 0);
    CHECK_NEAR(folded(MGPU_REDUCE_SUM, MGPU_INT8, 3, wide), 44, 0); /* 300 wraps */
    CHECK_NEAR(folded(MGPU_REDUCE_MEAN, MGPU_INT32, 3, small), 3, 0);
    CHECK_NEAR(folded(MGPU_REDUCE_MAX, MGPU_BOOL, 2, (double[]){0, 1}), 1, 0);
}

static void test_limits(void)
{
    const double nan_inside[] = {1, NAN, 3};
    CHECK(isnan(folded(MGPU_REDUCE_MAX, MGPU_FLOAT, 3, nan_inside)));
    CHECK(isnan(folded(MGPU_REDUCE_MIN, MGPU_FLOAT, 3, nan_inside)));
    CHECK_NEAR(folded(MGPU_REDUCE_SUM, MGPU_FLOAT, 0, NULL), 0, 0);
    CHECK_NEAR(folded(MGPU_REDUCE_PROD, MGPU_FLOAT, 0, NULL), 1, 0);
    CHECK(isnan(folded(MGPU_REDUCE_MEAN, MGPU_FLOAT, 0, NULL)));
    CHECK(folded(MGPU_REDUCE_MAX, MGPU_FLOAT, 0, NULL) == -INFINITY);
    CHECK(folded(MGPU_REDUCE_MIN, MGPU_DOUBLE, 0, NULL) == INFINITY);
    CHECK_NEAR(folded(MGPU_REDUCE_MIN, MGPU_UINT8, 0, NULL), 255, 0);
    CHECK_NEAR(folded(MGPU_REDUCE_MAX, MGPU_INT16, 0, NULL), -32768, 0);
}

static int64_t arg(bool min, bool last, int64_t count, const float *x)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_const(count);
    struct mgpu_value *v = mgpu_graph_constant(g, "x", MGPU_FLOAT, 1, &n, x, NULL);
    struct mgpu_value *y = mgpu_arg_reduce(g, v, 0, false, min, last);
    int64_t result = y ? *(const int64_t *)y->data : -1;
    mgpu_graph_free(g);
    return result;
}

/* Which of equal elements; NaN is the extreme, as in NumPy. */
static void test_arg(void)
{
    const float x[] = {2, 7, 1, 7, 1}, with_nan[] = {2, NAN, 7, NAN};
    CHECK(arg(false, false, 5, x) == 1);
    CHECK(arg(false, true, 5, x) == 3);
    CHECK(arg(true, false, 5, x) == 2);
    CHECK(arg(true, true, 5, x) == 4);
    CHECK(arg(false, false, 4, with_nan) == 1);
    CHECK(arg(true, false, 4, with_nan) == 1);
    CHECK(arg(false, true, 4, with_nan) == 3);
    CHECK(arg(false, false, 0, x) == -1);
    CHECK(strstr(mgpu_error(), "no elements") != NULL);
}

/* Equal elements share the gradient of a maximum. */
static void test_ties(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(3)}, one = mgpu_dim_const(2);
    struct mgpu_run run;
    struct mgpu_value *v = mgpu_graph_input(g, "x", MGPU_DOUBLE, 2, dims), *back = NULL;
    CHECK(mgpu_reduce(g, MGPU_REDUCE_MAX, v, 2, false) != NULL);
    struct mgpu_value *d = mgpu_graph_input(g, "dy", MGPU_DOUBLE, 1, &one);
    CHECK_OK(mgpu_op_reduce.gradient(g, g->nodes[0], &d, (bool[]){true}, &back));
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, v, (double[]){1, 5, 5, 4, 4, 2}));
    CHECK_OK(mgpu_run_feed(&run, d, (double[]){10, 20}));
    CHECK_OK(mgpu_run_all(&run));
    CHECK(!memcmp(mgpu_run_doubles(&run, back), (double[]){0, 5, 5, 10, 10, 0}, 6 * 8));
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

int main(void)
{
    test_failures += mgpu_op_check(rows);
    test_types();
    test_limits();
    test_arg();
    test_ties();
    return test_end();
}
