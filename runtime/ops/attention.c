#include "runtime/ops/attention.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

#include <stddef.h>

enum { Q, K, V, MASK, Y, STATISTICS, DY };

static const struct mgpu_attention_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

static const struct mgpu_value *mask_of(const struct mgpu_node *node)
{
    return node->inputs > MASK ? node->input[MASK] : NULL;
}

/* The axes of heads and of rows. */
static int head_axis(const struct mgpu_node *node)
{
    return attrs_of(node)->heads_inside ? 2 : 1;
}

static int row_axis(const struct mgpu_node *node)
{
    return attrs_of(node)->heads_inside ? 1 : 2;
}

struct mgpu_attention mgpu_attention_of(const struct mgpu_node *node)
{
    const struct mgpu_dim *q = node->input[Q]->dims, *v = node->input[V]->dims;
    const struct mgpu_value *mask = mask_of(node);
    struct mgpu_attention a = {.samples = q[0].value,
                               .heads = q[head_axis(node)].value,
                               .queries = q[row_axis(node)].value,
                               .keys = v[row_axis(node)].value,
                               .width = q[3].value,
                               .out = v[3].value};
    int64_t step = 1;
    for (int i = mask ? mask->rank - 1 : -1; i >= 0; step *= mask->dims[i--].value)
        a.mask[i + 4 - mask->rank] = mask->dims[i].value == 1 ? 0 : step;
    return a;
}

int64_t mgpu_attention_at(const struct mgpu_node *node, int64_t sample, int64_t head, int64_t count,
                          int64_t width)
{
    int64_t heads = node->input[Q]->dims[head_axis(node)].value;
    return attrs_of(node)->heads_inside ? (sample * count * heads + head) * width
                                        : (sample * heads + head) * count * width;
}

int64_t mgpu_attention_step(const struct mgpu_node *node, int64_t width)
{
    return attrs_of(node)->heads_inside ? node->input[Q]->dims[2].value * width : width;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static int wrong(const struct mgpu_node *node, int input, const char *what)
{
    char text[MGPU_VALUE_TEXT], tq[MGPU_VALUE_TEXT];
    return mgpu_fail(MGPU_EINVALID, "%s of %s: %s %s", node->op->name,
                     mgpu_value_text(tq, NULL, node->input[Q]),
                     mgpu_value_text(text, NULL, node->input[input]), what);
}

/* q, k, v: of rank 4 and one type, of the same samples and heads; as many keys as values, and as
 * wide as the queries. */
static int check(const struct mgpu_node *node)
{
    const struct mgpu_value *q = node->input[Q], *k = node->input[K], *v = node->input[V];
    for (int i = Q; i <= V; i++) {
        const struct mgpu_value *x = node->input[i];
        if (x->rank != 4 || !mgpu_is_float(x->type) || x->type != q->type)
            return wrong(node, i, "is not of rank 4 and that type");
        if (x->dims[0].value != q->dims[0].value ||
            x->dims[head_axis(node)].value != q->dims[head_axis(node)].value)
            return wrong(node, i, "has other samples or heads");
    }
    if (k->dims[3].value != q->dims[3].value)
        return wrong(node, K, "is of another width");
    if (k->dims[row_axis(node)].value != v->dims[row_axis(node)].value)
        return wrong(node, V, "are not as many values as keys");
    return 0;
}

static int check_mask(const struct mgpu_node *node)
{
    const struct mgpu_value *mask = mask_of(node);
    if (!mask)
        return 0;
    if (mask->rank > 4 || (mask->type != MGPU_BOOL && mask->type != node->input[Q]->type))
        return wrong(node, MASK, "is no mask");
    struct mgpu_attention a = mgpu_attention_of(node);
    const int64_t full[] = {a.samples, a.heads, a.queries, a.keys};
    for (int i = 0; i < mask->rank; i++) {
        int64_t size = mask->dims[i].value;
        if (size != 1 && size != full[i + 4 - mask->rank])
            return wrong(node, MASK, "does not broadcast to samples, heads, queries and keys");
    }
    return 0;
}

static void statistics_dims(const struct mgpu_node *node, struct mgpu_dim dims[4])
{
    const struct mgpu_value *q = node->input[Q];
    dims[0] = q->dims[0];
    dims[1] = q->dims[head_axis(node)];
    dims[2] = q->dims[row_axis(node)];
    dims[3] = mgpu_dim_const(attrs_of(node)->log_sums ? 1 : 2);
}

static enum mgpu_dtype statistics_type(const struct mgpu_node *node)
{
    enum mgpu_dtype type = node->input[Q]->type;
    return type == MGPU_DOUBLE ? type : MGPU_FLOAT;
}

static void output_dims(const struct mgpu_node *node, struct mgpu_dim dims[4])
{
    for (int i = 0; i < 3; i++)
        dims[i] = node->input[Q]->dims[i];
    dims[3] = node->input[V]->dims[3];
}

static int shape(const struct mgpu_node *node)
{
    struct mgpu_dim dims[4];
    enum mgpu_dtype type = node->input[Q]->type;
    MGPU_TRY(check(node));
    MGPU_TRY(check_mask(node));
    output_dims(node, dims);
    mgpu_shape_set(node, 0, type, 4, dims);
    statistics_dims(node, dims);
    mgpu_shape_set(node, 1, statistics_type(node), 4, dims);
    return 0;
}

static bool has_dims(const struct mgpu_value *v, enum mgpu_dtype type, const struct mgpu_dim *dims)
{
    bool same = v->type == type && v->rank == 4;
    for (int i = 0; same && i < 4; i++)
        same = v->dims[i].value == dims[i].value;
    return same;
}

static int shape_grad(const struct mgpu_node *node)
{
    struct mgpu_dim dims[4];
    enum mgpu_dtype type = node->input[Q]->type;
    for (int i = Y; i <= DY; i++)
        if (i >= node->inputs || !node->input[i])
            return mgpu_fail(MGPU_EINVALID, "attention_grad: input %d is missing", i);
    MGPU_TRY(check(node));
    MGPU_TRY(check_mask(node));
    output_dims(node, dims);
    for (int i = Y; i <= DY; i += DY - Y)
        if (!has_dims(node->input[i], type, dims))
            return wrong(node, i, "is not of the output's shape");
    statistics_dims(node, dims);
    if (!has_dims(node->input[STATISTICS], statistics_type(node), dims))
        return wrong(node, STATISTICS, "are no statistics");
    for (int i = Q; i <= V; i++)
        mgpu_shape_like(node, i, node->input[i]);
    return 0;
}

/* ---- Gradient -------------------------------------------------------------------------------- */

static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_value *out[3];
    struct mgpu_value *in[] = {node->input[Q],
                               node->input[K],
                               node->input[V],
                               node->inputs > MASK ? node->input[MASK] : NULL,
                               node->output[0],
                               node->output[1],
                               dy[0]};
    if (dy[1] || (in[MASK] && wanted[MASK]))
        return mgpu_fail(MGPU_EUNSUPPORTED, "no gradient passes the %s of attention",
                         dy[1] ? "statistics" : "mask");
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_attention_grad, node->attrs, 7, in, 3, out));
    for (int i = Q; i <= V; i++)
        dx[i] = wanted[i] ? out[i] : NULL;
    return 0;
}

static void saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 1 << Q | 1 << K | 1 << V | 1 << MASK;
    *outputs = 3;
}

/* ---- Cost and splitting ---------------------------------------------------------------------- */

/* The products, and what softmax does to the scores. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    struct mgpu_attention a = mgpu_attention_of(node);
    double scores = (double)(a.samples * a.heads * a.queries * a.keys);
    double each = node->inputs > DY ? (double)(6 * a.width + 4 * a.out) + 8
                                    : (double)(2 * a.width + 2 * a.out) + 6;
    return (struct mgpu_cost){.flops = scores * each, .bytes = mgpu_operand_bytes(node)};
}

/* Samples are apart. A mask for all of them stays whole. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        bool shared = i == MASK && v && (v->rank < 4 || v->dims[0].value == 1);
        *which = i;
        if (!v)
            continue;
        if (mgpu_split_is_term(in[i]))
            return MGPU_SPLIT_FULL;
        if (in[i].kind == MGPU_SPLIT_AXIS && in[i].axis != 0)
            return MGPU_SPLIT_MIXES;
        if (!(shared && in[i].kind == MGPU_SPLIT_REPLICATED) && !mgpu_split_same(in[i], in[Q]))
            return MGPU_SPLIT_MIXES;
    }
    for (int i = 0; i < node->outputs; i++)
        out[i] = in[Q];
    return MGPU_SPLIT_OK;
}

#define FIELD(kind_, field)                                                                        \
    .name = #field, .kind = MGPU_ATTR_##kind_,                                                     \
    .offset = offsetof(struct mgpu_attention_attrs, field)

static const struct mgpu_attr attrs[] = {
    {FIELD(BOOL, heads_inside)}, {FIELD(BOOL, log_sums)}, {FIELD(FLOAT, scale)},
    {FIELD(FLOAT, fill)},        {.name = NULL},
};

const struct mgpu_op mgpu_op_attention = {
    .name = "attention",
    .min_inputs = 3,
    .max_inputs = 4,
    .outputs = 2,
    .attrs_size = sizeof(struct mgpu_attention_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .float_outputs = 1u << 1,
    .shape = shape,
    .gradient = gradient,
    .saved = saved,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

const struct mgpu_op mgpu_op_attention_grad = {
    .name = "attention_grad",
    .min_inputs = 3,
    .max_inputs = 7,
    .outputs = 3,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_attention_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .float_inputs = 1u << STATISTICS,
    .shape = shape_grad,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};
