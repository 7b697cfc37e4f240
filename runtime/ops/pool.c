#include "runtime/ops/pool.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

#include <stddef.h>

/* Sizes, strides and pads beyond this are refused, so that their sums cannot overflow. */
#define MOST (INT64_C(1) << 30)

static const struct mgpu_pool_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

/* Every window must start inside the padded input: what lies behind it would never be reached. */
static int check_axis(const struct mgpu_pool_attrs *a, int i)
{
    const int64_t positive[] = {a->kernel[i], a->stride[i], a->dilation[i], a->out[i]};
    const int64_t natural[] = {a->before[i], a->after[i], a->in[i]};
    for (int k = 0; k < 4; k++)
        if (positive[k] < 1 || positive[k] > MOST)
            return mgpu_fail(MGPU_EINVALID,
                             "pool: kernel %lld, stride %lld, dilation %lld, output size %lld on "
                             "spatial axis %d",
                             (long long)positive[0], (long long)positive[1], (long long)positive[2],
                             (long long)positive[3], i);
    for (int k = 0; k < 3; k++)
        if (natural[k] < 0 || natural[k] > MOST)
            return mgpu_fail(MGPU_EINVALID, "pool: padding %lld, %lld of size %lld on axis %d",
                             (long long)natural[0], (long long)natural[1], (long long)natural[2],
                             i);
    int64_t padded = a->in[i] + a->before[i] + a->after[i];
    if ((a->out[i] - 1) * a->stride[i] >= padded && padded > 0)
        return mgpu_fail(MGPU_EINVALID,
                         "pool: %lld windows with stride %lld leave the padded size %lld of "
                         "spatial axis %d",
                         (long long)a->out[i], (long long)a->stride[i], (long long)padded, i);
    return 0;
}

static int check_attrs(const struct mgpu_pool_attrs *a)
{
    int64_t window = 1;
    if (a->spatial < 1 || a->spatial > MGPU_MAX_SPATIAL)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a pool over %lld spatial axes", (long long)a->spatial);
    for (int i = 0; i < a->spatial; i++) {
        MGPU_TRY(check_axis(a, i));
        window *= a->kernel[i];
        if (window > MOST)
            return mgpu_fail(MGPU_EUNSUPPORTED, "a pool over windows of more than 2^30 elements");
    }
    return 0;
}

/* [N, C, sizes...]. */
static int check_value(const struct mgpu_node *node, const struct mgpu_value *v,
                       const int64_t *sizes)
{
    const struct mgpu_pool_attrs *a = attrs_of(node);
    char text[MGPU_VALUE_TEXT];
    bool fits = v->rank == a->spatial + 2;
    for (int i = 0; i < a->spatial && fits; i++)
        fits = v->dims[i + 2].value == sizes[i];
    if (!fits)
        return mgpu_fail(MGPU_EINVALID, "%s over %lld spatial axes (first size %lld) of %s",
                         node->op->name, (long long)a->spatial, (long long)sizes[0],
                         mgpu_value_text(text, NULL, v));
    return 0;
}

static int check_float(const struct mgpu_node *node)
{
    char text[MGPU_VALUE_TEXT];
    if (!mgpu_is_float(node->input[0]->type))
        return mgpu_fail(MGPU_EINVALID, "%s of %s", node->op->name,
                         mgpu_value_text(text, NULL, node->input[0]));
    return 0;
}

/* Output `output`: like the input, with the other spatial sizes. */
static void set_output(const struct mgpu_node *node, int output, enum mgpu_dtype type,
                       const int64_t *sizes)
{
    const struct mgpu_value *v = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK] = {v->dims[0], v->dims[1]};
    for (int i = 0; i < v->rank - 2; i++)
        dims[i + 2] = mgpu_dim_const(sizes[i]);
    mgpu_shape_set(node, output, type, v->rank, dims);
}

static int max_shape(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = attrs_of(node);
    MGPU_TRY(check_attrs(a));
    MGPU_TRY(check_value(node, node->input[0], a->in));
    set_output(node, 0, node->input[0]->type, a->out);
    set_output(node, 1, MGPU_INT32, a->out);
    return 0;
}

static int average_shape(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = attrs_of(node);
    MGPU_TRY(check_attrs(a));
    MGPU_TRY(check_float(node));
    MGPU_TRY(check_value(node, node->input[0], a->in));
    set_output(node, 0, node->input[0]->type, a->out);
    return 0;
}

static int average_grad_shape(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = attrs_of(node);
    MGPU_TRY(check_attrs(a));
    MGPU_TRY(check_float(node));
    MGPU_TRY(check_value(node, node->input[0], a->out));
    set_output(node, 0, node->input[0]->type, a->in);
    return 0;
}

static int max_grad_shape(const struct mgpu_node *node)
{
    const struct mgpu_value *dy = node->input[0], *argument = node->input[1];
    char text[MGPU_VALUE_TEXT];
    MGPU_TRY(average_grad_shape(node));
    MGPU_TRY(check_value(node, argument, attrs_of(node)->out));
    if (argument->type != MGPU_INT32 || argument->dims[0].value != dy->dims[0].value ||
        argument->dims[1].value != dy->dims[1].value)
        return mgpu_fail(MGPU_EINVALID, "%s: argument %s", node->op->name,
                         mgpu_value_text(text, NULL, argument));
    return 0;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static int max_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                        struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (node->outputs < 2 || !node->output[1])
        return mgpu_fail(MGPU_EINTERNAL, "max_pool was built without its argument");
    struct mgpu_value *input[] = {dy[0], node->output[1]};
    if (wanted[0] && !(dx[0] = mgpu_build1(g, &mgpu_op_max_pool_grad, node->attrs, 2, input)))
        return mgpu_build_error();
    return 0;
}

static int average_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                            struct mgpu_value *const *dy, const bool *wanted,
                            struct mgpu_value **dx)
{
    if (wanted[0] && !(dx[0] = mgpu_build1(g, &mgpu_op_average_pool_grad, node->attrs, 1, dy)))
        return mgpu_build_error();
    return 0;
}

/* The map from dy to dx is the transpose of the average's. */
static int average_grad_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                                 struct mgpu_value *const *dy, const bool *wanted,
                                 struct mgpu_value **dx)
{
    if (wanted[0] && !(dx[0] = mgpu_build1(g, &mgpu_op_average_pool, node->attrs, 1, dy)))
        return mgpu_build_error();
    return 0;
}

static void saved_argument(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 0;
    *outputs = 2;
}

/* ---- the other rules ------------------------------------------------------------------------- */

static unsigned layouts(const struct mgpu_node *node, int operand)
{
    (void)node;
    (void)operand;
    return MGPU_LAYOUT_PLAIN | MGPU_LAYOUT_BLOCKED | MGPU_LAYOUT_CHANNELS_LAST;
}

static double windows(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = attrs_of(node);
    const struct mgpu_value *x = node->input[0];
    double n = (double)x->dims[0].value * (double)x->dims[1].value;
    for (int i = 0; i < a->spatial; i++)
        n *= (double)a->out[i];
    return n;
}

static struct mgpu_cost cost_window(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = attrs_of(node);
    double flops = windows(node);
    for (int i = 0; i < a->spatial; i++)
        flops *= (double)a->kernel[i];
    return (struct mgpu_cost){.flops = flops, .bytes = mgpu_operand_bytes(node)};
}

static struct mgpu_cost cost_one(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = windows(node), .bytes = mgpu_operand_bytes(node)};
}

/* Samples and channels are pooled apart, so that either axis may be split. `linear`: a sum or mean
 * in input 0 passes when input 1 is whole. */
static enum mgpu_split_answer split_planes(const struct mgpu_node *node,
                                           const struct mgpu_split *in, struct mgpu_split *out,
                                           int *which, bool linear)
{
    const struct mgpu_split *x = &in[0], *argument = node->inputs > 1 ? &in[1] : NULL;
    bool whole_argument = !argument || argument->kind == MGPU_SPLIT_REPLICATED;
    *which = 0;
    if (mgpu_split_is_term(*x) && !(linear && whole_argument))
        return MGPU_SPLIT_FULL;
    if (x->kind == MGPU_SPLIT_AXIS && x->axis > 1)
        return MGPU_SPLIT_MIXES;
    *which = 1;
    if (!mgpu_split_is_term(*x) && argument &&
        (argument->kind != x->kind || argument->axis != x->axis || argument->outer != x->outer))
        return MGPU_SPLIT_MIXES;
    for (int i = 0; i < node->outputs; i++)
        out[i] = *x;
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer split_max(const struct mgpu_node *node, const struct mgpu_split *in,
                                        struct mgpu_split *out, int *which)
{
    return split_planes(node, in, out, which, false);
}

static enum mgpu_split_answer split_linear(const struct mgpu_node *node,
                                           const struct mgpu_split *in, struct mgpu_split *out,
                                           int *which)
{
    return split_planes(node, in, out, which, true);
}

#define FIELD(what, field)                                                                         \
    .name = #field, .kind = MGPU_ATTR_##what, .offset = offsetof(struct mgpu_pool_attrs, field)

static const struct mgpu_attr attrs[] = {
    {FIELD(INT, spatial)},
    {FIELD(INTS, kernel), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, stride), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, dilation), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, before), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, after), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, in), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, out), .length = MGPU_MAX_SPATIAL},
    {FIELD(BOOL, count_include_pad)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_max_pool = {
    .name = "max_pool",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 2,
    .attrs_size = sizeof(struct mgpu_pool_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = max_shape,
    .gradient = max_gradient,
    .saved = saved_argument,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = cost_window,
    .split = split_max,
};

const struct mgpu_op mgpu_op_average_pool = {
    .name = "average_pool",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_pool_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = average_shape,
    .gradient = average_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = cost_window,
    .split = split_linear,
};

const struct mgpu_op mgpu_op_max_pool_grad = {
    .name = "max_pool_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .outputs = 1,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_pool_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = max_grad_shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = cost_one,
    .split = split_linear,
};

const struct mgpu_op mgpu_op_average_pool_grad = {
    .name = "average_pool_grad",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_pool_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = average_grad_shape,
    .gradient = average_grad_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = cost_window,
    .split = split_linear,
};
