#include "runtime/ops/softmax.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

static const struct mgpu_softmax_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

static int shape(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0];
    int64_t axis = attrs_of(node)->axis;
    if (!mgpu_is_float(x->type))
        return mgpu_fail(MGPU_EINVALID, "softmax of %s", mgpu_dtype_name(x->type));
    if (axis < 0 || axis >= x->rank)
        return mgpu_fail(MGPU_EINVALID, "softmax along axis %lld of a tensor of rank %d",
                         (long long)axis, x->rank);
    mgpu_shape_like(node, 0, x);
    return 0;
}

/* Both inputs of one type and shape. */
static int shape_grad(const struct mgpu_node *node)
{
    char ty[MGPU_VALUE_TEXT], tdy[MGPU_VALUE_TEXT];
    const struct mgpu_value *y = node->input[0], *dy = node->input[1];
    bool same = y->type == dy->type && y->rank == dy->rank;
    for (int k = 0; same && k < y->rank; k++)
        same = y->dims[k].value == dy->dims[k].value;
    if (!same)
        return mgpu_fail(MGPU_EINVALID, "softmax_grad of %s and %s", mgpu_value_text(ty, NULL, y),
                         mgpu_value_text(tdy, NULL, dy));
    return shape(node);
}

static struct mgpu_value *grad_node(struct mgpu_graph *g, const struct mgpu_node *node,
                                    struct mgpu_value *y, struct mgpu_value *dy)
{
    struct mgpu_value *input[] = {y, dy};
    return mgpu_build1(g, &mgpu_op_softmax_grad, node->attrs, 2, input);
}

static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (!wanted[0])
        return 0;
    dx[0] = grad_node(g, node, node->output[0], dy[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

/* With p = softmax, which is y or exp(y):
 *     softmax:  dx = y * (dy - sum(y*dy))   u arriving: d/dy: u*(dy - sum(y*dy)) - dy*sum(u*y)
 *     log:      dx = dy - p * sum(dy)                   d/dy: -u * p * sum(dy)
 * and by dy it is its own transpose, or u - sum(u*p) for the logarithm. */
static struct mgpu_value *second_by_y(struct mgpu_graph *g, const struct mgpu_node *node,
                                      struct mgpu_value *u)
{
    struct mgpu_value *y = node->input[0], *dy = node->input[1];
    unsigned axis = 1u << attrs_of(node)->axis;
    if (attrs_of(node)->log) {
        struct mgpu_value *sum = mgpu_reduce(g, MGPU_REDUCE_SUM, dy, axis, true);
        struct mgpu_value *up = mgpu_mul(g, u, mgpu_unary(g, MGPU_X_EXP, y));
        return mgpu_unary(g, MGPU_X_NEG, mgpu_mul(g, up, sum));
    }
    struct mgpu_value *ydy = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, y, dy), axis, true);
    struct mgpu_value *uy = mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_mul(g, u, y), axis, true);
    return mgpu_sub(g, mgpu_mul(g, u, mgpu_sub(g, dy, ydy)), mgpu_mul(g, dy, uy));
}

static struct mgpu_value *second_by_dy(struct mgpu_graph *g, const struct mgpu_node *node,
                                       struct mgpu_value *u)
{
    struct mgpu_value *y = node->input[0];
    if (!attrs_of(node)->log)
        return grad_node(g, node, y, u);
    struct mgpu_value *up = mgpu_mul(g, u, mgpu_unary(g, MGPU_X_EXP, y));
    return mgpu_sub(g, u, mgpu_reduce(g, MGPU_REDUCE_SUM, up, 1u << attrs_of(node)->axis, true));
}

static int gradient_grad(struct mgpu_graph *g, const struct mgpu_node *node,
                         struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (wanted[0] && !(dx[0] = second_by_y(g, node, dy[0])))
        return mgpu_build_error();
    if (wanted[1] && !(dx[1] = second_by_dy(g, node, dy[0])))
        return mgpu_build_error();
    return 0;
}

static void saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 0;
    *outputs = 1;
}

/* The gradient is finished with a lane of dy when it writes that of dx. */
static int alias_grad(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    (void)node;
    pairs[0] = (struct mgpu_alias){.input = 1, .output = 0, .view = false};
    return 1;
}

/* Largest, difference, exponential, sum and quotient; or product, sum, difference, product. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    double n = (double)mgpu_value_count(node->output[0]);
    return (struct mgpu_cost){.flops = (node->inputs == 1 ? 5 : 4) * n,
                              .bytes = mgpu_operand_bytes(node)};
}

/* Lanes are independent: any axis but their own may be split. The gradient is linear in dy. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    bool cut = in[0].kind == MGPU_SPLIT_AXIS;
    *which = 0;
    if (mgpu_split_is_term(in[0]))
        return MGPU_SPLIT_FULL;
    if (cut && in[0].axis == attrs_of(node)->axis)
        return MGPU_SPLIT_MIXES;
    *which = node->inputs - 1;
    out[0] = in[*which];
    if (mgpu_split_is_term(out[0]))
        return cut ? MGPU_SPLIT_FULL : MGPU_SPLIT_OK;
    return mgpu_split_same(in[0], out[0]) ? MGPU_SPLIT_OK : MGPU_SPLIT_MIXES;
}

static const struct mgpu_attr attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_softmax_attrs, axis)},
    {.name = "log", .kind = MGPU_ATTR_BOOL, .offset = offsetof(struct mgpu_softmax_attrs, log)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_softmax = {
    .name = "softmax",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_softmax_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = shape,
    .gradient = gradient,
    .saved = saved,
    .alias = mgpu_alias_in_place,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

const struct mgpu_op mgpu_op_softmax_grad = {
    .name = "softmax_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_softmax_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = shape_grad,
    .gradient = gradient_grad,
    .saved = mgpu_saved_inputs,
    .alias = alias_grad,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

struct mgpu_value *mgpu_softmax(struct mgpu_graph *g, struct mgpu_value *a, int axis, bool log)
{
    struct mgpu_softmax_attrs at = {.axis = axis, .log = log};
    return mgpu_build1(g, &mgpu_op_softmax, &at, 1, &a);
}
