#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

/* Attributes of a convolution; what is not named is 1 or 0. */
#define ATTRS(axes, ...)                                                                           \
    &(const struct mgpu_conv_attrs)                                                                \
    {                                                                                              \
        .spatial = axes, .group = 1, .stride = {1, 1, 1}, .dilation = {1, 1, 1}, __VA_ARGS__       \
    }

/* An operand: rank, dims, batch axis. */
#define IN(r, axis, ...)                                                                           \
    {                                                                                              \
        .rank = r, .batch_axis = axis, .dims = { __VA_ARGS__ }                                     \
    }

#define ROW(label, which, attributes, count, ...)                                                  \
    {                                                                                              \
        .name = label, .op = &mgpu_op_##which, .attrs = attributes, .inputs = count, .input = {    \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#pragma GCC diagnostic ignored "-Woverride-init" /* ATTRS names its defaults first */

static const struct mgpu_check conv_rows[] = {
    ROW("3x3, same padding, bias", conv, ATTRS(2, .before = {1, 1}, .after = {1, 1}), 3,
        IN(4, 0, 3, 2, 4, 5), IN(4, -1, 3, 2, 3, 3), IN(1, -1, 3)),
    ROW("1x1, size 1", conv, ATTRS(2, .group = 1), 2, IN(4, 0, 1, 1, 1, 1), IN(4, -1, 1, 1, 1, 1)),
    ROW("1 axis, stride 2, a rest that no window reaches", conv, ATTRS(1, .stride = {2}), 2,
        IN(3, 0, 3, 2, 8), IN(3, -1, 2, 2, 3)),
    ROW("1 axis, stride larger than the kernel", conv, ATTRS(1, .stride = {3}), 2,
        IN(3, 0, 2, 1, 8), IN(3, -1, 2, 1, 2)),
    ROW("dilation", conv, ATTRS(2, .dilation = {2, 3}), 2, IN(4, 0, 2, 1, 6, 8),
        IN(4, -1, 2, 1, 2, 3)),
    ROW("padding before only", conv, ATTRS(2, .before = {2, 0}), 2, IN(4, 0, 2, 1, 3, 4),
        IN(4, -1, 1, 1, 2, 2)),
    ROW("padding after only, stride, dilation", conv,
        ATTRS(2, .after = {0, 3}, .stride = {2, 2}, .dilation = {1, 2}), 3, IN(4, 0, 2, 2, 5, 4),
        IN(4, -1, 2, 2, 2, 3), IN(1, -1, 2)),
    ROW("padding larger than the kernel", conv, ATTRS(1, .before = {3}, .after = {2}), 2,
        IN(3, 0, 2, 1, 2), IN(3, -1, 1, 1, 2)),
    ROW("two groups", conv, ATTRS(2, .group = 2), 3, IN(4, 0, 2, 4, 3, 3), IN(4, -1, 6, 2, 2, 2),
        IN(1, -1, 6)),
    ROW("depthwise with multiplier", conv, ATTRS(2, .group = 3, .before = {1, 1}, .stride = {2, 1}),
        2, IN(4, 0, 3, 3, 4, 3), IN(4, -1, 6, 1, 3, 2)),
    ROW("3 axes", conv,
        ATTRS(3, .before = {1, 0, 1}, .after = {0, 1, 1}, .stride = {1, 2, 1},
              .dilation = {1, 1, 2}),
        3, IN(5, 0, 2, 2, 3, 4, 3), IN(5, -1, 2, 2, 2, 2, 2), IN(1, -1, 2)),
    ROW("more than one tile", conv, ATTRS(2, .before = {1, 1}, .after = {1, 1}), 2,
        IN(4, 0, 2, 8, 6, 7), IN(4, -1, 35, 8, 3, 3)),
    {.name = NULL},
};

static const struct mgpu_check grad_rows[] = {
    ROW("input gradient", conv_grad_input, ATTRS(2, .before = {1, 0}, .size = {3, 4}), 2,
        IN(4, 0, 3, 2, 3, 3), IN(4, -1, 2, 3, 2, 2)),
    ROW("input gradient, stride with a rest", conv_grad_input, ATTRS(1, .stride = {3}, .size = {8}),
        2, IN(3, 0, 3, 2, 3), IN(3, -1, 2, 2, 2)),
    ROW("input gradient, groups, dilation", conv_grad_input,
        ATTRS(2, .group = 2, .stride = {2, 1}, .dilation = {1, 2}, .after = {1, 1}, .size = {4, 5}),
        2, IN(4, 0, 2, 4, 2, 2), IN(4, -1, 4, 1, 3, 3)),
    ROW("input gradient, 3 axes", conv_grad_input, ATTRS(3, .size = {2, 3, 2}), 2,
        IN(5, 0, 2, 1, 1, 2, 2), IN(5, -1, 1, 2, 2, 2, 1)),
    ROW("weight gradient", conv_grad_weight, ATTRS(2, .before = {1, 0}, .size = {2, 2}), 2,
        IN(4, 0, 3, 2, 3, 4), IN(4, 0, 3, 3, 3, 3)),
    ROW("weight gradient, groups, stride, dilation", conv_grad_weight,
        ATTRS(1, .group = 2, .stride = {2}, .dilation = {2}, .after = {1}, .size = {2}), 2,
        IN(3, 0, 3, 4, 6), IN(3, 0, 3, 2, 3)),
    ROW("weight gradient, 3 axes", conv_grad_weight,
        ATTRS(3, .stride = {1, 1, 2}, .size = {1, 2, 2}), 2, IN(5, 0, 2, 1, 2, 2, 5),
        IN(5, 0, 2, 2, 2, 1, 2)),
    {.name = NULL},
};

/* Channels belong together: a batch there cannot be cut. */
static const struct mgpu_check mixing = {
    .name = "batch in the channels",
    .op = &mgpu_op_conv,
    .attrs = ATTRS(1, .group = 1),
    .inputs = 2,
    .input = {IN(3, 1, 1, 2, 3), IN(3, 1, 1, 2, 2)},
    .mixes = true,
};

static void check_values(void)
{
    static const double x[] = {1, 2, 3, 4}, w[] = {1, 10, 100};
    /* padded 0 1 2 3 4 0: windows 0 1 2, 1 2 3, 2 3 4, 3 4 0 */
    static const double y[] = {210.5, 321.5, 432.5, 43.5};
    static const double bias[] = {0.5};
    const struct mgpu_check check = {
        .name = "1-D by hand",
        .op = &mgpu_op_conv,
        .attrs = ATTRS(1, .before = {1}, .after = {1}),
        .inputs = 3,
        .input = {{.rank = 3, .dims = {1, 1, 4}, .batch_axis = -1, .values = x},
                  {.rank = 3, .dims = {1, 1, 3}, .batch_axis = -1, .values = w},
                  {.rank = 1, .dims = {1}, .batch_axis = -1, .values = bias}},
    };
    CHECK(mgpu_op_value(&check, y, 4) == 0);
}

/* ONNX's ConvTranspose with SAME_UPPER: [3,3] by 2 gives [6,6], all padding at the end. */
static void check_transposed(void)
{
    static const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double row[] = {1, 1, 2, 1, 2, 1};
    double want[36], total = 0;
    for (int i = 0; i < 36; i++) {
        want[i] = row[i / 6] * row[i % 6];
        total += want[i];
    }
    CHECK(total == 64);
    const struct mgpu_check check = {
        .name = "transposed, same upper",
        .op = &mgpu_op_conv_grad_input,
        .attrs = ATTRS(2, .stride = {2, 2}, .after = {1, 1}, .size = {6, 6}),
        .inputs = 2,
        .input = {{.rank = 4, .dims = {1, 1, 3, 3}, .batch_axis = -1, .values = ones},
                  {.rank = 4, .dims = {1, 1, 3, 3}, .batch_axis = -1, .values = ones}},
    };
    CHECK(mgpu_op_value(&check, want, 36) == 0);
}

static int build(const struct mgpu_op *op, const struct mgpu_conv_attrs *attrs, const int64_t *a,
                 const int64_t *b)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim da[4], db[4];
    struct mgpu_value *in[2], *out[1];
    for (int i = 0; i < 4; i++) {
        da[i] = mgpu_dim_const(a[i]);
        db[i] = mgpu_dim_const(b[i]);
    }
    in[0] = mgpu_graph_input(g, "a", MGPU_FLOAT, 4, da);
    in[1] = mgpu_graph_input(g, "b", MGPU_FLOAT, 4, db);
    int rc = mgpu_graph_node(g, op, attrs, 2, in, 1, out);
    mgpu_graph_free(g);
    return rc;
}

#define SIZES(...) ((const int64_t[]){__VA_ARGS__})

static void check_refusals(void)
{
    const struct mgpu_op *conv = &mgpu_op_conv, *back = &mgpu_op_conv_grad_input;
    CHECK_FAILS(build(conv, ATTRS(2, .group = 1), SIZES(1, 2, 3, 3), SIZES(1, 3, 2, 2)),
                "channels");
    CHECK_FAILS(build(conv, ATTRS(2, .group = 2), SIZES(1, 3, 3, 3), SIZES(2, 1, 2, 2)), "groups");
    CHECK_FAILS(build(conv, ATTRS(2, .group = 0), SIZES(1, 2, 3, 3), SIZES(1, 2, 2, 2)), "groups");
    CHECK_FAILS(build(conv, ATTRS(2, .dilation = {1, 3}), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)),
                "does not fit");
    CHECK_FAILS(build(conv, ATTRS(2, .before = {-1}), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)),
                "padding");
    CHECK_FAILS(build(conv, ATTRS(2, .stride = {0, 1}), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)),
                "stride");
    CHECK_FAILS(build(conv, ATTRS(3, .group = 1), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)),
                "spatial axes");
    CHECK_FAILS(build(back, ATTRS(2, .size = {4, 5}), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)),
                "go with size 4");
    CHECK_FAILS(build(back, ATTRS(2, .size = {-4, 4}), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)),
                "over size -4");
    CHECK_OK(build(back, ATTRS(2, .size = {4, 4}), SIZES(1, 1, 3, 3), SIZES(1, 1, 2, 2)));
}

int main(void)
{
    CHECK(mgpu_op_check(conv_rows) == 0);
    CHECK(mgpu_op_check(grad_rows) == 0);
    CHECK(mgpu_op_check((const struct mgpu_check[]){mixing, {.name = NULL}}) == 0);
    check_values();
    check_transposed();
    check_refusals();
    return test_end();
}
