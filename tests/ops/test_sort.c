/* cumsum and topk: odd shapes in every way of the harness, and numbers by hand. */
#include "runtime/backend.h"
#include "runtime/graph/fold.h"
#include "runtime/ops/build.h"
#include "runtime/ops/sort.h"
#include "runtime/ref/ref.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

#define CUMSUM(axis_, exclusive_, reverse_)                                                        \
    &(struct mgpu_cumsum_attrs)                                                                    \
    {                                                                                              \
        .axis = axis_, .exclusive = exclusive_, .reverse = reverse_                                \
    }
#define TOPK(axis_, k_, smallest_)                                                                 \
    &(struct mgpu_topk_attrs)                                                                      \
    {                                                                                              \
        .axis = axis_, .k = k_, .smallest = smallest_                                              \
    }

static const double spread[] = {3, -1, 4, 1.5, -5, 9, 2, 6, -5.5, 3.5, 5, 8};

static const struct mgpu_check rows[] = {
    {.name = "cumsum of rows",
     .op = &mgpu_op_cumsum,
     .attrs = CUMSUM(1, false, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 5}, .batch_axis = 0}}},
    {.name = "cumsum, exclusive, from the end",
     .op = &mgpu_op_cumsum,
     .attrs = CUMSUM(1, true, true),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 4, 2}, .batch_axis = 0}}},
    {.name = "cumsum from the end, stacked batches beside",
     .op = &mgpu_op_cumsum,
     .attrs = CUMSUM(0, false, true),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 6}, .batch_axis = 1, .outer = 2}}},
    {.name = "cumsum over the batch",
     .op = &mgpu_op_cumsum,
     .attrs = CUMSUM(0, false, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 2}, .batch_axis = 0}},
     .mixes = true},
    {.name = "topk of rows",
     .op = &mgpu_op_topk,
     .attrs = TOPK(1, 2, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 4}, .batch_axis = 0, .values = spread}}},
    {.name = "sort of columns",
     .op = &mgpu_op_topk,
     .attrs = TOPK(1, 3, true),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {2, 3, 2}, .batch_axis = 0, .values = spread}}},
    {.name = "topk over the batch",
     .op = &mgpu_op_topk,
     .attrs = TOPK(0, 2, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {3, 4}, .batch_axis = 0, .values = spread}},
     .mixes = true},
    {.name = NULL},
};

/* ---- numbers by hand ------------------------------------------------------------------------ */

static void check_cumsum(bool exclusive, bool reverse, const double *want)
{
    static const double x[] = {1, 2, 3};
    struct mgpu_check row = {.name = "cumsum values",
                             .op = &mgpu_op_cumsum,
                             .attrs = CUMSUM(0, exclusive, reverse),
                             .inputs = 1,
                             .input = {{.rank = 1, .dims = {3}, .batch_axis = -1, .values = x}}};
    CHECK(mgpu_op_value(&row, want, 3) == 0);
}

/* The k first of `count` elements of a type: values and indices. */
static void check_topk(enum mgpu_dtype type, int64_t count, const double *x, int64_t k,
                       bool smallest, const double *want, const int64_t *index)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_const(count);
    struct mgpu_value *out[2];
    char data[64];
    for (int64_t i = 0; i < count; i++)
        mgpu_set_double(data, type, i, x[i]);
    struct mgpu_value *v = mgpu_graph_constant(g, "x", type, 1, &n, data, NULL);
    int rc = mgpu_graph_node(g, &mgpu_op_topk, TOPK(0, k, smallest), 1, &v, 2, out);
    CHECK_OK(rc);
    for (int64_t i = 0; rc == 0 && i < k; i++) {
        double got = mgpu_get_double(out[0]->data, type, i);
        CHECK_(got == want[i] || (isnan(got) && isnan(want[i])), "%s: value %d is %g, not %g",
               mgpu_dtype_name(type), (int)i, got, want[i]);
        CHECK_(((const int64_t *)out[1]->data)[i] == index[i], "%s: index %d",
               mgpu_dtype_name(type), (int)i);
    }
    mgpu_graph_free(g);
}

static void test_topk(void)
{
    const double x[] = {3, 9, 1, 9, 3};
    for (int type = MGPU_FLOAT; type <= MGPU_BFLOAT16; type++)
        if (mgpu_dtype_size((enum mgpu_dtype)type) && type != MGPU_BOOL) {
            check_topk((enum mgpu_dtype)type, 5, x, 3, false, (double[]){9, 9, 3},
                       (int64_t[]){1, 3, 0});
            check_topk((enum mgpu_dtype)type, 5, x, 5, true, (double[]){1, 3, 3, 9, 9},
                       (int64_t[]){2, 0, 4, 1, 3});
        }
    check_topk(MGPU_INT8, 3, (double[]){-3, 2, -1}, 2, false, (double[]){2, -1}, (int64_t[]){1, 2});
    check_topk(MGPU_FLOAT, 4, (double[]){1, NAN, INFINITY, -INFINITY}, 4, false,
               (double[]){NAN, INFINITY, 1, -INFINITY}, (int64_t[]){1, 2, 0, 3});
    check_topk(MGPU_FLOAT, 4, (double[]){1, NAN, -0.0, 0}, 4, true, (double[]){0, 0, 1, NAN},
               (int64_t[]){2, 3, 0, 1});
    check_topk(MGPU_FLOAT, 2, x, 0, true, NULL, NULL);
}

static int build_topk(int64_t axis, int64_t k)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim n = mgpu_dim_const(3);
    struct mgpu_value *v = mgpu_graph_input(g, "x", MGPU_FLOAT, 1, &n), *out[2];
    int rc = mgpu_graph_node(g, &mgpu_op_topk, TOPK(axis, k, false), 1, &v, 2, out);
    mgpu_graph_free(g);
    return rc;
}

int main(void)
{
    test_failures += mgpu_op_check(rows);
    check_cumsum(false, false, (double[]){1, 3, 6});
    check_cumsum(true, false, (double[]){0, 1, 3});
    check_cumsum(false, true, (double[]){6, 5, 3});
    check_cumsum(true, true, (double[]){5, 3, 0});
    test_topk();
    CHECK_FAILS(build_topk(0, 4), "4 of the 3 elements");
    CHECK_FAILS(build_topk(1, 1), "axis 1");
    return test_end();
}
