/* softmax and its gradient: odd shapes in every way of the harness, numbers by hand. */
#include "runtime/ops/build.h"
#include "runtime/ops/softmax.h"
#include "tests/ops/op_check.h"
#include "tests/test.h"

#define SOFTMAX(axis_, log_)                                                                       \
    &(struct mgpu_softmax_attrs)                                                                   \
    {                                                                                              \
        .axis = axis_, .log = log_                                                                 \
    }

static const struct mgpu_check rows[] = {
    {.name = "softmax last axis",
     .op = &mgpu_op_softmax,
     .attrs = SOFTMAX(1, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {5, 7}, .batch_axis = 0, .low = -4, .high = 4}}},
    {.name = "log softmax last axis",
     .op = &mgpu_op_softmax,
     .attrs = SOFTMAX(1, true),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {5, 7}, .batch_axis = 0, .low = -4, .high = 4}}},
    {.name = "softmax middle axis",
     .op = &mgpu_op_softmax,
     .attrs = SOFTMAX(1, false),
     .inputs = 1,
     .input = {{.rank = 4, .dims = {2, 3, 1, 5}, .batch_axis = 3}}},
    {.name = "softmax of one class",
     .op = &mgpu_op_softmax,
     .attrs = SOFTMAX(2, true),
     .inputs = 1,
     .input = {{.rank = 3, .dims = {3, 2, 1}, .batch_axis = 0}}},
    {.name = "softmax over the batch",
     .op = &mgpu_op_softmax,
     .attrs = SOFTMAX(0, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {4, 3}, .batch_axis = 0}},
     .mixes = true},
    {.name = "softmax where samples stand inside",
     .op = &mgpu_op_softmax,
     .attrs = SOFTMAX(1, false),
     .inputs = 1,
     .input = {{.rank = 2, .dims = {12, 3}, .batch_axis = 0, .outer = 2, .inner = 2}}},
    {.name = "gradient of softmax",
     .op = &mgpu_op_softmax_grad,
     .attrs = SOFTMAX(1, false),
     .inputs = 2,
     .input = {{.rank = 3, .dims = {3, 4, 2}, .batch_axis = 0},
               {.rank = 3, .dims = {3, 4, 2}, .batch_axis = 0}}},
    {.name = "gradient of log softmax",
     .op = &mgpu_op_softmax_grad,
     .attrs = SOFTMAX(1, true),
     .inputs = 2,
     .input = {{.rank = 2, .dims = {3, 4}, .batch_axis = 0},
               {.rank = 2, .dims = {3, 4}, .batch_axis = 0}}},
    {.name = NULL},
};

/* exp(0, 1, 2) = 1, e, e^2, moved far from zero: no overflow. */
static void test_values(void)
{
    static const double x[] = {800, 801, 802};
    double e = exp(1), all = 1 + e + e * e, want[] = {1 / all, e / all, e * e / all};
    struct mgpu_check row = {.name = "softmax values",
                             .op = &mgpu_op_softmax,
                             .attrs = SOFTMAX(0, false),
                             .inputs = 1,
                             .input = {{.rank = 1, .dims = {3}, .batch_axis = -1, .values = x}}};
    CHECK(mgpu_op_value(&row, want, 3) == 0);
    row.attrs = SOFTMAX(0, true);
    double logs[] = {-log(all), 1 - log(all), 2 - log(all)};
    CHECK(mgpu_op_value(&row, logs, 3) == 0);
}

/* A class whose logit is -inf (a mask) has probability 0 and does not spoil the others. */
static void test_masked(void)
{
    static const double x[] = {1, -INFINITY, 1}, want[] = {0.5, 0, 0.5};
    struct mgpu_check row = {.name = "softmax of -inf",
                             .op = &mgpu_op_softmax,
                             .attrs = SOFTMAX(0, false),
                             .inputs = 1,
                             .input = {{.rank = 1, .dims = {3}, .batch_axis = -1, .values = x}}};
    CHECK(mgpu_op_value(&row, want, 3) == 0);
}

static void test_refusals(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 2, dims);
    struct mgpu_value *i = mgpu_graph_input(g, "i", MGPU_INT64, 2, dims);
    CHECK(!mgpu_softmax(g, x, 2, false) && strstr(mgpu_error(), "axis 2"));
    CHECK(!mgpu_softmax(g, i, 1, false) && strstr(mgpu_error(), "int64"));
    mgpu_graph_free(g);
}

int main(void)
{
    CHECK(mgpu_op_check(rows) == 0);
    test_values();
    test_masked();
    test_refusals();
    return test_end();
}
