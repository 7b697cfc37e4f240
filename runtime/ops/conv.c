#include "runtime/ops/conv.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

#include <stddef.h>
#include <string.h>

/* Strides, dilations, pads and kernels beyond this are refused, so that their sums cannot
 * overflow. */
#define MOST (INT64_C(1) << 31)

static const struct mgpu_conv_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static int check_attrs(const struct mgpu_conv_attrs *attrs)
{
    if (attrs->spatial < 1 || attrs->spatial > MGPU_MAX_SPATIAL)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a convolution over %lld spatial axes",
                         (long long)attrs->spatial);
    for (int i = 0; i < attrs->spatial; i++) {
        if (attrs->stride[i] < 1 || attrs->stride[i] > MOST || attrs->dilation[i] < 1 ||
            attrs->dilation[i] > MOST)
            return mgpu_fail(MGPU_EINVALID, "stride %lld, dilation %lld on spatial axis %d",
                             (long long)attrs->stride[i], (long long)attrs->dilation[i], i);
        if (attrs->before[i] < 0 || attrs->before[i] > MOST || attrs->after[i] < 0 ||
            attrs->after[i] > MOST)
            return mgpu_fail(MGPU_EINVALID, "padding %lld, %lld on spatial axis %d",
                             (long long)attrs->before[i], (long long)attrs->after[i], i);
    }
    if (attrs->group < 1)
        return mgpu_fail(MGPU_EINVALID, "%lld groups", (long long)attrs->group);
    return 0;
}

/* Both tensors: a floating type, one rank, the attributes' spatial axes. */
static int check_pair(const struct mgpu_node *node)
{
    const struct mgpu_value *a = node->input[0], *b = node->input[1];
    char ta[MGPU_VALUE_TEXT], tb[MGPU_VALUE_TEXT];
    MGPU_TRY(check_attrs(attrs_of(node)));
    if (!mgpu_is_float(a->type) || a->type != b->type || a->rank != b->rank ||
        a->rank != attrs_of(node)->spatial + 2)
        return mgpu_fail(MGPU_EINVALID, "%s of %s and %s over %lld spatial axes", node->op->name,
                         mgpu_value_text(ta, NULL, a), mgpu_value_text(tb, NULL, b),
                         (long long)attrs_of(node)->spatial);
    return 0;
}

/* Size of y on spatial axis i for sizes s of x and k of the kernel. */
static int output_size(const struct mgpu_conv_attrs *attrs, int i, int64_t s, int64_t k,
                       int64_t *out)
{
    if (k < 1 || k > MOST || s < 0 || s > INT64_C(1) << 60)
        return mgpu_fail(MGPU_EINVALID, "kernel of size %lld over size %lld on spatial axis %d",
                         (long long)k, (long long)s, i);
    int64_t room = s + attrs->before[i] + attrs->after[i] - attrs->dilation[i] * (k - 1) - 1;
    if (room < 0)
        return mgpu_fail(MGPU_EINVALID,
                         "the kernel (%lld, dilation %lld) does not fit into the padded size "
                         "%lld of spatial axis %d",
                         (long long)k, (long long)attrs->dilation[i],
                         (long long)(s + attrs->before[i] + attrs->after[i]), i);
    *out = room / attrs->stride[i] + 1;
    return 0;
}

static int check_channels(const struct mgpu_node *node, int64_t x_channels, int64_t y_channels,
                          const struct mgpu_value *w)
{
    int64_t group = attrs_of(node)->group;
    char text[MGPU_VALUE_TEXT];
    if (y_channels % group || x_channels % group ||
        (w && (w->dims[0].value != y_channels || w->dims[1].value != x_channels / group)))
        return mgpu_fail(MGPU_EINVALID, "%lld to %lld channels in %lld groups do not go with %s",
                         (long long)x_channels, (long long)y_channels, (long long)group,
                         w ? mgpu_value_text(text, NULL, w) : "each other");
    return 0;
}

static int check_bias(const struct mgpu_value *bias, const struct mgpu_value *w)
{
    char text[MGPU_VALUE_TEXT];
    if (bias->rank != 1 || bias->type != w->type || bias->dims[0].value != w->dims[0].value)
        return mgpu_fail(MGPU_EINVALID, "bias %s for %lld channels",
                         mgpu_value_text(text, NULL, bias), (long long)w->dims[0].value);
    return 0;
}

static int conv_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_pair(node));
    const struct mgpu_value *x = node->input[0], *w = node->input[1];
    struct mgpu_dim dims[MGPU_MAX_RANK] = {x->dims[0], w->dims[0]};
    MGPU_TRY(check_channels(node, x->dims[1].value, w->dims[0].value, w));
    if (node->inputs > 2 && node->input[2])
        MGPU_TRY(check_bias(node->input[2], w));
    for (int i = 0; i < attrs_of(node)->spatial; i++) {
        int64_t size;
        MGPU_TRY(output_size(attrs_of(node), i, x->dims[i + 2].value, w->dims[i + 2].value, &size));
        dims[i + 2] = mgpu_dim_const(size);
    }
    mgpu_shape_set(node, 0, x->type, x->rank, dims);
    return 0;
}

/* y must have the sizes that x [sizes s] and a kernel [sizes k] give. */
static int check_sizes(const struct mgpu_node *node, const struct mgpu_value *y, const int64_t *s,
                       const int64_t *k)
{
    char text[MGPU_VALUE_TEXT];
    for (int i = 0; i < attrs_of(node)->spatial; i++) {
        int64_t size;
        MGPU_TRY(output_size(attrs_of(node), i, s[i], k[i], &size));
        if (size != y->dims[i + 2].value)
            return mgpu_fail(MGPU_EINVALID,
                             "%s: size %lld and kernel %lld on spatial axis %d go with size %lld, "
                             "not with %s",
                             node->op->name, (long long)s[i], (long long)k[i], i, (long long)size,
                             mgpu_value_text(text, NULL, y));
    }
    return 0;
}

static void spatial_sizes(const struct mgpu_value *v, int64_t sizes[MGPU_MAX_SPATIAL])
{
    for (int i = 0; i < v->rank - 2; i++)
        sizes[i] = v->dims[i + 2].value;
}

static void set_spatial(struct mgpu_dim *dims, const struct mgpu_conv_attrs *attrs)
{
    for (int i = 0; i < attrs->spatial; i++)
        dims[i + 2] = mgpu_dim_const(attrs->size[i]);
}

static int grad_input_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_pair(node));
    const struct mgpu_conv_attrs *attrs = attrs_of(node);
    const struct mgpu_value *dy = node->input[0], *w = node->input[1];
    if (attrs->group > MOST || w->dims[1].value > MOST)
        return mgpu_fail(MGPU_EINVALID, "%lld groups of %lld channels", (long long)attrs->group,
                         (long long)w->dims[1].value);
    struct mgpu_dim channels = mgpu_dim_mul(w->dims[1], mgpu_dim_const(attrs->group));
    struct mgpu_dim dims[MGPU_MAX_RANK] = {dy->dims[0], channels};
    int64_t kernel[MGPU_MAX_SPATIAL];
    spatial_sizes(w, kernel);
    MGPU_TRY(check_channels(node, channels.value, dy->dims[1].value, w));
    MGPU_TRY(check_sizes(node, dy, attrs->size, kernel));
    set_spatial(dims, attrs);
    mgpu_shape_set(node, 0, dy->type, dy->rank, dims);
    return 0;
}

static int grad_weight_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_pair(node));
    const struct mgpu_conv_attrs *attrs = attrs_of(node);
    const struct mgpu_value *x = node->input[0], *dy = node->input[1];
    int64_t sizes[MGPU_MAX_SPATIAL];
    spatial_sizes(x, sizes);
    if (x->dims[0].value != dy->dims[0].value)
        return mgpu_fail(MGPU_EINVALID, "%s: %lld samples of x, %lld of dy", node->op->name,
                         (long long)x->dims[0].value, (long long)dy->dims[0].value);
    MGPU_TRY(check_channels(node, x->dims[1].value, dy->dims[1].value, NULL));
    MGPU_TRY(check_sizes(node, dy, sizes, attrs->size));
    struct mgpu_dim in = mgpu_dim_div(x->dims[1], mgpu_dim_const(attrs->group));
    struct mgpu_dim dims[MGPU_MAX_RANK] = {dy->dims[1], in};
    set_spatial(dims, attrs);
    mgpu_shape_set(node, 0, x->type, x->rank, dims);
    mgpu_shape_set(node, 1, x->type, 1, &dy->dims[1]);
    return 0;
}

/* ---- gradients -------------------------------------------------------------------------------
 * All three are linear in each of their two factors, and each one's gradients are the other two.
 * `attrs` are any node's of the three; `size` is set to what the new node needs. */

static struct mgpu_value *build(struct mgpu_graph *g, const struct mgpu_op *op,
                                const struct mgpu_conv_attrs *from, const struct mgpu_value *sizes,
                                struct mgpu_value *a, struct mgpu_value *b, struct mgpu_value *bias)
{
    struct mgpu_conv_attrs attrs = *from;
    struct mgpu_value *input[] = {a, b, bias}, *out[2];
    memset(attrs.size, 0, sizeof attrs.size);
    if (sizes)
        spatial_sizes(sizes, attrs.size);
    int rc = mgpu_graph_node(g, op, &attrs, bias ? 3 : 2, input, 1, out);
    return rc < 0 ? mgpu_build_fail(rc, "%s", mgpu_error()) : out[0];
}

static struct mgpu_value *grad_input(struct mgpu_graph *g, const struct mgpu_node *node,
                                     struct mgpu_value *dy, struct mgpu_value *w,
                                     const struct mgpu_value *x)
{
    return build(g, &mgpu_op_conv_grad_input, attrs_of(node), x, dy, w, NULL);
}

static struct mgpu_value *grad_weight(struct mgpu_graph *g, const struct mgpu_node *node,
                                      struct mgpu_value *x, struct mgpu_value *dy,
                                      const struct mgpu_value *w)
{
    return build(g, &mgpu_op_conv_grad_weight, attrs_of(node), w, x, dy, NULL);
}

static struct mgpu_value *sum_channels(struct mgpu_graph *g, struct mgpu_value *dy)
{
    unsigned all = (1u << dy->rank) - 1;
    return mgpu_reduce(g, MGPU_REDUCE_SUM, dy, all & ~2u, false);
}

/* dw and dbias are one node where both are wanted. */
static int conv_gradient_weights(struct mgpu_graph *g, const struct mgpu_node *node,
                                 struct mgpu_value *dy, struct mgpu_value **dx)
{
    struct mgpu_conv_attrs attrs = *attrs_of(node);
    struct mgpu_value *input[] = {node->input[0], dy};
    spatial_sizes(node->input[1], attrs.size);
    return mgpu_graph_node(g, &mgpu_op_conv_grad_weight, &attrs, 2, input, 2, dx + 1);
}

/* By the weights first: x is perhaps not needed when dx is there. */
static int conv_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                         struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_value *x = node->input[0], *w = node->input[1];
    bool bias = node->inputs > 2 && wanted[2];
    if (attrs_of(node)->relu)
        return mgpu_gradient_none(g, node, dy, wanted, dx);
    if (wanted[1] && bias)
        MGPU_TRY(conv_gradient_weights(g, node, dy[0], dx));
    else if (wanted[1] && !(dx[1] = grad_weight(g, node, x, dy[0], w)))
        return mgpu_build_error();
    if (bias && !wanted[1] && !(dx[2] = sum_channels(g, dy[0])))
        return mgpu_build_error();
    if (wanted[0] && !(dx[0] = grad_input(g, node, dy[0], w, x)))
        return mgpu_build_error();
    return 0;
}

static int grad_input_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                               struct mgpu_value *const *dy, const bool *wanted,
                               struct mgpu_value **dx)
{
    struct mgpu_value *y = node->input[0], *w = node->input[1];
    if (wanted[1] && !(dx[1] = grad_weight(g, node, dy[0], y, w)))
        return mgpu_build_error();
    if (wanted[0] && !(dx[0] = build(g, &mgpu_op_conv, attrs_of(node), NULL, dy[0], w, NULL)))
        return mgpu_build_error();
    return 0;
}

/* [O] added to every position of channel O: as [O, 1, ...]. */
static struct mgpu_value *spread_channels(struct mgpu_graph *g, struct mgpu_value *bias,
                                          const struct mgpu_value *like)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < like->rank - 1; i++)
        dims[i] = i ? mgpu_dim_const(1) : like->dims[1];
    return mgpu_broadcast(g, mgpu_reshape(g, bias, like->rank - 1, dims), like->rank, like->dims);
}

static int grad_weight_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                                struct mgpu_value *const *dy, const bool *wanted,
                                struct mgpu_value **dx)
{
    struct mgpu_value *x = node->input[0], *y = node->input[1];
    struct mgpu_value *dw = dy[0], *dbias = node->outputs > 1 ? dy[1] : NULL;
    if (wanted[0] && dw && !(dx[0] = grad_input(g, node, y, dw, x)))
        return mgpu_build_error();
    if (!wanted[1])
        return 0;
    dx[1] = dw ? build(g, &mgpu_op_conv, attrs_of(node), NULL, x, dw, dbias)
               : spread_channels(g, dbias, y);
    return dx[1] ? 0 : mgpu_build_error();
}

/* ---- the other rules ------------------------------------------------------------------------- */

/* The two factors; a bias is not read. */
static void saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 3;
    *outputs = 0;
}

/* Activations and weights follow the kernels; a bias is a vector. */
static unsigned layouts(const struct mgpu_node *node, int operand)
{
    const struct mgpu_value *v =
        operand < node->inputs ? node->input[operand] : node->output[operand - node->inputs];
    bool vector = v && v->rank == 1;
    return vector ? MGPU_LAYOUT_PLAIN
                  : MGPU_LAYOUT_PLAIN | MGPU_LAYOUT_BLOCKED | MGPU_LAYOUT_CHANNELS_LAST;
}

/* Elements of y times elements of one output channel's weights. */
static struct mgpu_cost cost_of(const struct mgpu_node *node, const struct mgpu_value *y,
                                const struct mgpu_value *w)
{
    double each = w->dims[0].value ? (double)mgpu_value_count(w) / (double)w->dims[0].value : 0;
    return (struct mgpu_cost){.flops = 2 * each * (double)mgpu_value_count(y),
                              .bytes = mgpu_operand_bytes(node)};
}

static struct mgpu_cost conv_cost(const struct mgpu_node *node)
{
    return cost_of(node, node->output[0], node->input[1]);
}

static struct mgpu_cost grad_input_cost(const struct mgpu_node *node)
{
    return cost_of(node, node->input[0], node->input[1]);
}

static struct mgpu_cost grad_weight_cost(const struct mgpu_node *node)
{
    double each = (double)attrs_of(node)->group;
    each = (double)node->input[0]->dims[1].value / each;
    for (int i = 0; i < attrs_of(node)->spatial; i++)
        each *= (double)attrs_of(node)->size[i];
    return (struct mgpu_cost){.flops = 2 * each * (double)mgpu_value_count(node->input[1]),
                              .bytes = mgpu_operand_bytes(node)};
}

/* conv and conv_grad_input: samples in, samples out, whole weights. A sum or mean passes through
 * either factor when all else is whole; a bias would be added once a rank, which is right for a
 * mean only. */
static enum mgpu_split_answer split_samples(const struct mgpu_node *node,
                                            const struct mgpu_split *in, struct mgpu_split *out,
                                            int *which)
{
    int terms = 0, split = 0, term = 0;
    for (int i = 0; i < node->inputs; i++) {
        split += in[i].kind == MGPU_SPLIT_AXIS;
        if (!mgpu_split_is_term(in[i]))
            continue;
        terms++;
        *which = term = i;
    }
    bool bias = node->inputs > 2 && node->input[2];
    if (terms > 1 || (terms && (split || (bias && in[term].kind == MGPU_SPLIT_SUM))))
        return MGPU_SPLIT_FULL;
    for (int i = 0; i < node->inputs; i++)
        if (in[i].kind == MGPU_SPLIT_AXIS && (i > 0 || in[i].axis != 0)) {
            *which = i;
            return MGPU_SPLIT_MIXES;
        }
    out[0] = terms ? mgpu_split_make(in[term].kind, 0, 1) : in[0];
    return MGPU_SPLIT_OK;
}

/* A sum over samples of products: parts of the samples give terms of dw, and a sum or mean in one
 * factor is one in dw. dbias follows dy alone. */
static enum mgpu_split_answer split_grad_weight(const struct mgpu_node *node,
                                                const struct mgpu_split *in, struct mgpu_split *out,
                                                int *which)
{
    const struct mgpu_split *x = &in[0], *dy = &in[1];
    struct mgpu_split sum = mgpu_split_make(MGPU_SPLIT_SUM, 0, 1), dbias;
    bool term_x = mgpu_split_is_term(*x), term_dy = mgpu_split_is_term(*dy);
    *which = term_x ? 0 : 1;
    if ((term_x && dy->kind != MGPU_SPLIT_REPLICATED) ||
        (term_dy && x->kind != MGPU_SPLIT_REPLICATED))
        return MGPU_SPLIT_FULL;
    if (x->kind == MGPU_SPLIT_AXIS || dy->kind == MGPU_SPLIT_AXIS) {
        *which = x->kind == MGPU_SPLIT_AXIS && x->axis == 0 ? 1 : 0;
        if (x->kind != dy->kind || x->axis || dy->axis || x->outer != dy->outer)
            return MGPU_SPLIT_MIXES;
        out[0] = dbias = sum;
    } else {
        out[0] = mgpu_split_make(term_x ? x->kind : dy->kind, 0, 1);
        dbias = mgpu_split_make(dy->kind, 0, 1);
    }
    if (node->outputs > 1)
        out[1] = dbias;
    return MGPU_SPLIT_OK;
}

#define FIELD(what, field)                                                                         \
    .name = #field, .kind = MGPU_ATTR_##what, .offset = offsetof(struct mgpu_conv_attrs, field)

static const struct mgpu_attr attrs[] = {
    {FIELD(INT, spatial)},
    {FIELD(INTS, stride), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, dilation), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, before), .length = MGPU_MAX_SPATIAL},
    {FIELD(INTS, after), .length = MGPU_MAX_SPATIAL},
    {FIELD(INT, group)},
    {FIELD(INTS, size), .length = MGPU_MAX_SPATIAL},
    {FIELD(BOOL, relu)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_conv = {
    .name = "conv",
    .min_inputs = 2,
    .max_inputs = 3,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_conv_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .shape = conv_shape,
    .gradient = conv_gradient,
    .saved = saved,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = conv_cost,
    .split = split_samples,
};

const struct mgpu_op mgpu_op_conv_grad_input = {
    .name = "conv_grad_input",
    .min_inputs = 2,
    .max_inputs = 2,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_conv_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .shape = grad_input_shape,
    .gradient = grad_input_gradient,
    .saved = saved,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = grad_input_cost,
    .split = split_samples,
};

const struct mgpu_op mgpu_op_conv_grad_weight = {
    .name = "conv_grad_weight",
    .min_inputs = 2,
    .max_inputs = 2,
    .outputs = 2,
    .attrs_size = sizeof(struct mgpu_conv_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .shape = grad_weight_shape,
    .gradient = grad_weight_gradient,
    .saved = saved,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = layouts,
    .cost = grad_weight_cost,
    .split = split_grad_weight,
};
