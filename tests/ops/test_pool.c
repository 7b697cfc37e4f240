#include "runtime/ops/build.h"
#include "runtime/ops/pool.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

/* Attributes of a pool; strides and dilations that are not named are 1. */
#define ATTRS(axes, ...)                                                                           \
    &(const struct mgpu_pool_attrs)                                                                \
    {                                                                                              \
        .spatial = axes, .stride = {1, 1, 1}, .dilation = {1, 1, 1}, __VA_ARGS__                   \
    }

#pragma GCC diagnostic ignored "-Woverride-init" /* ATTRS names its defaults first */

/* Every kind of window over [samples, channels, attrs.in...]. */
struct row {
    const char *name;
    int64_t samples, channels;
    const struct mgpu_pool_attrs *attrs;
};

static const struct row rows[] = {
    {"2x2", 3, 2, ATTRS(2, .kernel = {2, 2}, .stride = {2, 2}, .in = {4, 6}, .out = {2, 3})},
    {"size 1", 1, 1, ATTRS(1, .kernel = {1}, .in = {1}, .out = {1})},
    {"overlapping, padded", 2, 3,
     ATTRS(2, .kernel = {3, 3}, .stride = {2, 2}, .before = {1, 1}, .after = {1, 1}, .in = {5, 4},
           .out = {3, 2})},
    {"padding before only, counted", 3, 1,
     ATTRS(2, .kernel = {2, 3}, .before = {1, 2}, .in = {3, 3}, .out = {3, 3},
           .count_include_pad = true)},
    {"padding after only", 2, 2, ATTRS(1, .kernel = {3}, .after = {2}, .in = {4}, .out = {4})},
    {"windows reach past the padding", 3, 2,
     ATTRS(1, .kernel = {3}, .stride = {2}, .before = {1}, .after = {1}, .in = {6}, .out = {4},
           .count_include_pad = true)},
    {"windows reach past the input", 2, 1,
     ATTRS(2, .kernel = {2, 2}, .stride = {2, 2}, .in = {3, 5}, .out = {2, 3})},
    {"dilation", 2, 1,
     ATTRS(2, .kernel = {2, 3}, .dilation = {3, 2}, .before = {1, 0}, .in = {5, 6}, .out = {3, 2})},
    {"dilation past the padding, counted", 2, 1,
     ATTRS(1, .kernel = {3}, .stride = {2}, .dilation = {2}, .before = {2}, .after = {1}, .in = {5},
           .out = {4}, .count_include_pad = true)},
    {"stride larger than the kernel", 3, 1,
     ATTRS(1, .kernel = {2}, .stride = {3}, .in = {8}, .out = {3})},
    {"3 axes", 2, 2,
     ATTRS(3, .kernel = {2, 1, 2}, .stride = {1, 2, 2}, .before = {0, 0, 1}, .in = {3, 3, 3},
           .out = {2, 2, 2})},
    {"the whole plane", 3, 2, ATTRS(2, .kernel = {3, 4}, .in = {3, 4}, .out = {1, 1})},
};

static void check_row(const struct row *row, const struct mgpu_op *op, const int64_t *sizes)
{
    char name[128];
    struct mgpu_check checks[2] = {{.name = name, .op = op, .attrs = row->attrs, .inputs = 1}};
    struct mgpu_check_input *in = &checks[0].input[0];
    snprintf(name, sizeof name, "%s: %s", op->name, row->name);
    in->rank = (int)row->attrs->spatial + 2;
    in->dims[0] = row->samples;
    in->dims[1] = row->channels;
    for (int i = 0; i < row->attrs->spatial; i++)
        in->dims[i + 2] = sizes[i];
    CHECK(mgpu_op_check(checks) == 0);
    in->batch_axis = 1; /* channels are pooled apart too */
    CHECK(mgpu_op_check(checks) == 0);
}

static void check_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], &mgpu_op_max_pool, rows[i].attrs->in);
        check_row(&rows[i], &mgpu_op_average_pool, rows[i].attrs->in);
        check_row(&rows[i], &mgpu_op_average_pool_grad, rows[i].attrs->out);
    }
}

/* One pool over one plane: y, the element that was chosen, and dx for dy = ones. */
struct answer {
    double y[8], argument[8], dx[8];
};

static void run_plane(const struct mgpu_op *op, const struct mgpu_pool_attrs *attrs,
                      const double *x, struct answer *answer)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[5] = {mgpu_dim_const(1), mgpu_dim_const(1)};
    struct mgpu_value *out[2] = {NULL, NULL}, *dx[1] = {NULL}, *in;
    for (int i = 0; i < attrs->spatial; i++)
        dims[i + 2] = mgpu_dim_const(attrs->in[i]);
    in = mgpu_graph_input(g, "x", MGPU_DOUBLE, (int)attrs->spatial + 2, dims);
    CHECK_OK(mgpu_graph_node(g, op, attrs, 1, &in, op->outputs, out));
    struct mgpu_value *dy[2] = {mgpu_graph_input(g, "dy", MGPU_DOUBLE, out[0]->rank, out[0]->dims)};
    CHECK_OK(op->gradient(g, out[0]->producer, dy, (bool[]){true}, dx));
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, in, x));
    CHECK_OK(mgpu_run_feed(&run, dy[0], (double[]){1, 1, 1, 1, 1, 1, 1, 1}));
    CHECK_OK(mgpu_run_all(&run));
    int64_t count = mgpu_value_count(out[0]);
    memcpy(answer->y, mgpu_run_doubles(&run, out[0]), (size_t)count * sizeof(double));
    memcpy(answer->dx, mgpu_run_doubles(&run, dx[0]),
           (size_t)mgpu_value_count(in) * sizeof(double));
    if (out[1])
        memcpy(answer->argument, mgpu_run_doubles(&run, out[1]), (size_t)count * sizeof(double));
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

static void check_plane(const char *name, const double *got, const double *want, int count)
{
    for (int i = 0; i < count; i++)
        CHECK_(got[i] == want[i] || fabs(got[i] - want[i]) < 1e-15 ||
                   (isnan(got[i]) && isnan(want[i])),
               "%s: element %d is %.17g, not %.17g", name, i, got[i], want[i]);
}

/* Reports of wrong divisors at borders (onnxruntime 16203 and others). */
static void check_borders(void)
{
    static const double ones[] = {1, 1, 1, 1}, ramp[] = {1, 2, 3, 4};
    struct mgpu_pool_attrs a =
        *ATTRS(2, .kernel = {2, 2}, .after = {1, 1}, .in = {2, 2}, .out = {2, 2});
    struct answer got;
    a.count_include_pad = true;
    run_plane(&mgpu_op_average_pool, &a, ones, &got);
    check_plane("counted y", got.y, (double[]){1, .5, .5, .25}, 4);
    check_plane("counted dx", got.dx, (double[]){.25, .5, .5, 1}, 4);
    a.count_include_pad = false;
    run_plane(&mgpu_op_average_pool, &a, ones, &got);
    check_plane("not counted y", got.y, (double[]){1, 1, 1, 1}, 4);
    check_plane("not counted dx", got.dx, (double[]){.25, .75, .75, 2.25}, 4);
    const struct mgpu_pool_attrs *b =
        ATTRS(1, .kernel = {3}, .stride = {2}, .before = {1}, .after = {1}, .in = {4}, .out = {3},
              .count_include_pad = true);
    run_plane(&mgpu_op_average_pool, b, ramp, &got);
    check_plane("ceil y", got.y, (double[]){1, 3, 2}, 3);
    check_plane("ceil dx", got.dx, (double[]){1.0 / 3, 2.0 / 3, 1.0 / 3, 5.0 / 6}, 4);
}

/* The first of equal elements gets the gradient; a NaN is the largest. */
static void check_max(void)
{
    static const double ties[] = {2, 2, 1, 2}, nan[] = {1, NAN, 3, 0};
    const struct mgpu_pool_attrs *a = ATTRS(1, .kernel = {2}, .before = {1}, .in = {4}, .out = {4});
    struct answer got;
    run_plane(&mgpu_op_max_pool, a, ties, &got);
    check_plane("max y", got.y, (double[]){2, 2, 2, 2}, 4);
    check_plane("argument", got.argument, (double[]){1, 0, 0, 1}, 4);
    check_plane("max dx", got.dx, (double[]){2, 1, 0, 1}, 4);
    run_plane(&mgpu_op_max_pool, a, nan, &got);
    check_plane("max of NaN", got.y, (double[]){1, NAN, NAN, 3}, 4);
    check_plane("gradient of NaN", got.dx, (double[]){1, 2, 1, 0}, 4);
}

/* Windows over nothing but padding: the lowest value, an average of 0, no gradient. */
static void check_empty(void)
{
    static const double x[] = {-5, -7};
    struct mgpu_pool_attrs a =
        *ATTRS(1, .kernel = {2}, .before = {2}, .after = {2}, .in = {2}, .out = {5});
    struct answer got;
    run_plane(&mgpu_op_max_pool, &a, x, &got);
    CHECK(got.y[0] < -1e300 && got.y[4] < -1e300);
    check_plane("empty y", got.y + 1, (double[]){-5, -5, -7}, 3);
    check_plane("empty dx", got.dx, (double[]){2, 1}, 2);
    run_plane(&mgpu_op_average_pool, &a, x, &got);
    check_plane("empty average", got.y, (double[]){0, -5, -6, -7, 0}, 5);
    check_plane("empty average dx", got.dx, (double[]){1.5, 1.5}, 2);
    a.count_include_pad = true;
    run_plane(&mgpu_op_average_pool, &a, x, &got);
    check_plane("padding average", got.y, (double[]){0, -2.5, -6, -3.5, 0}, 5);
}

/* ONNX's MaxPool also takes 8-bit integers. */
static void check_integers(void)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(1), mgpu_dim_const(1), mgpu_dim_const(3)};
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_INT8, 3, dims);
    const struct mgpu_pool_attrs *a = ATTRS(1, .kernel = {2}, .before = {2}, .in = {3}, .out = {4});
    struct mgpu_value *y = mgpu_build1(g, &mgpu_op_max_pool, a, 1, &x);
    struct mgpu_run run;
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, x, (double[]){-100, -128, 127}));
    CHECK_OK(mgpu_run_all(&run));
    check_plane("int8", mgpu_run_doubles(&run, y), (double[]){-128, -100, -100, 127}, 4);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

static int build(const struct mgpu_op *op, const struct mgpu_pool_attrs *attrs,
                 enum mgpu_dtype type)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[] = {mgpu_dim_const(2), mgpu_dim_const(1), mgpu_dim_const(4)};
    struct mgpu_value *out[2], *x = mgpu_graph_input(g, "x", type, 3, dims);
    int rc = mgpu_graph_node(g, op, attrs, 1, &x, op->outputs, out);
    mgpu_graph_free(g);
    return rc;
}

static void check_refusals(void)
{
    const struct mgpu_op *max = &mgpu_op_max_pool, *average = &mgpu_op_average_pool;
    CHECK_FAILS(build(max, ATTRS(1, .kernel = {2}, .in = {5}, .out = {3}), MGPU_FLOAT), "of float");
    CHECK_FAILS(build(max, ATTRS(2, .kernel = {2, 1}, .in = {4, 1}, .out = {3, 1}), MGPU_FLOAT),
                "of float");
    CHECK_FAILS(build(max, ATTRS(1, .kernel = {0}, .in = {4}, .out = {3}), MGPU_FLOAT), "kernel 0");
    CHECK_FAILS(build(max, ATTRS(1, .kernel = {2}, .in = {4}, .out = {5}), MGPU_FLOAT), "leave");
    CHECK_FAILS(
        build(max, ATTRS(1, .kernel = {2}, .before = {-1}, .in = {4}, .out = {2}), MGPU_FLOAT),
        "padding");
    CHECK_FAILS(build(average, ATTRS(1, .kernel = {2}, .in = {4}, .out = {3}), MGPU_INT8), "int8");
    CHECK_OK(build(max, ATTRS(1, .kernel = {2}, .in = {4}, .out = {3}), MGPU_UINT8));
}

int main(void)
{
    check_rows();
    check_borders();
    check_max();
    check_empty();
    check_integers();
    check_refusals();
    return test_end();
}
