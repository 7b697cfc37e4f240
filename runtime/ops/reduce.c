/* Records of reduce and arg_reduce, and their builders. */
#include "runtime/ops/reduce.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/graph/step_scalar.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"

static const char *const kinds[] = {"sum", "mean", "max", "min", "prod", NULL};

static bool reduced(int64_t axes, int axis)
{
    return axes >> axis & 1;
}

/* The dims of x without the axes of the mask (or with them as 1). Returns their number. */
static int kept_dims(const struct mgpu_value *x, int64_t axes, bool keep,
                     struct mgpu_dim out[MGPU_MAX_RANK])
{
    int rank = 0;
    for (int i = 0; i < x->rank; i++)
        if (!reduced(axes, i))
            out[rank++] = x->dims[i];
        else if (keep)
            out[rank++] = mgpu_dim_const(1);
    return rank;
}

/* Product of the reduced sizes. */
static struct mgpu_dim reduced_count(const struct mgpu_value *x, int64_t axes)
{
    struct mgpu_dim count = mgpu_dim_const(1);
    for (int i = 0; i < x->rank; i++)
        if (reduced(axes, i))
            count = mgpu_dim_mul(count, x->dims[i]);
    return count;
}

/* Where axis `axis`, which is not reduced, is in the output. */
static int kept_axis(int64_t axes, bool keep, int axis)
{
    int to = axis;
    for (int i = 0; i < axis && !keep; i++)
        to -= reduced(axes, i);
    return to;
}

/* ---- reduce -------------------------------------------------------------------------------- */

static enum mgpu_dtype type_of(const struct mgpu_node *node)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    return a->type ? a->type : node->input[0]->type;
}

static int reduce_shape(const struct mgpu_node *node)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (a->axes >> x->rank)
        return mgpu_fail(MGPU_EINVALID, "reduce: an axis is out of range of rank %d", x->rank);
    mgpu_shape_set(node, 0, type_of(node), kept_dims(x, a->axes, a->keep, dims), dims);
    return 0;
}

/* 1 / (elements of a mean), whatever part of the batch a rank holds: a mean over the batch counts
 * the samples of all ranks. NULL: as a number, in *number. */
static struct mgpu_value *mean_share(struct mgpu_graph *g, enum mgpu_dtype type,
                                     struct mgpu_dim count, double *number)
{
    *number = 1 / (double)count.value;
    if (count.opaque || count.power[MGPU_BATCH] != 1 || g->batch <= 0)
        return NULL;
    double each = (double)count.value / (double)g->batch;
    struct mgpu_value *samples = mgpu_graph_scalar(g, MGPU_SCALAR_PIECE, "samples of the piece");
    struct mgpu_value *share = mgpu_unary(g, MGPU_X_RECIPROCAL, mgpu_affine(g, samples, each, 0));
    return mgpu_cast(g, share, type);
}

/* dy with the reduced axes put back as size 1. */
static struct mgpu_value *kept_again(struct mgpu_graph *g, const struct mgpu_node *node,
                                     struct mgpu_value *dy)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int rank = kept_dims(node->input[0], a->axes, true, dims);
    return mgpu_reshape(g, dy, rank, dims);
}

/* dy times the share that each element has in a mean. */
static struct mgpu_value *shared(struct mgpu_graph *g, struct mgpu_value *dy, struct mgpu_dim count)
{
    double number;
    struct mgpu_value *share = mean_share(g, dy->type, count, &number);
    return share ? mgpu_mul(g, dy, share) : mgpu_affine(g, dy, number, 0);
}

/* The product of all others: product / x where nothing is zero; where one element is zero only that
 * one has a gradient, the product of the rest; with two zeros none has. */
static struct mgpu_value *others(struct mgpu_graph *g, struct mgpu_value *x, unsigned axes)
{
    struct mgpu_value *zero = mgpu_const_double(g, x->type, 0);
    struct mgpu_value *one = mgpu_const_double(g, x->type, 1);
    struct mgpu_value *is_zero = mgpu_binary(g, MGPU_X_EQ, x, zero);
    struct mgpu_value *zeros =
        mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_cast(g, is_zero, x->type), axes, true);
    struct mgpu_value *rest =
        mgpu_reduce(g, MGPU_REDUCE_PROD, mgpu_where(g, is_zero, one, x), axes, true);
    struct mgpu_value *at_zero = mgpu_where(g, mgpu_binary(g, MGPU_X_EQ, zeros, one), rest, zero);
    struct mgpu_value *else_ = mgpu_where(g, mgpu_binary(g, MGPU_X_EQ, zeros, zero),
                                          mgpu_div(g, rest, mgpu_where(g, is_zero, one, x)), zero);
    return mgpu_where(g, is_zero, at_zero, else_);
}

/* dy (axes kept) shared evenly among the elements that are equal to the result. */
static struct mgpu_value *extreme_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                                           struct mgpu_value *dy)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    struct mgpu_value *x = node->input[0], *zero = mgpu_const_double(g, x->type, 0);
    struct mgpu_value *equal = mgpu_binary(g, MGPU_X_EQ, x, kept_again(g, node, node->output[0]));
    struct mgpu_value *count =
        mgpu_reduce(g, MGPU_REDUCE_SUM, mgpu_cast(g, equal, x->type), (unsigned)a->axes, true);
    return mgpu_where(g, equal, mgpu_div(g, dy, count), zero);
}

static int reduce_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                           struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    struct mgpu_value *x = node->input[0];
    struct mgpu_dim count = reduced_count(x, a->axes);
    if (!wanted[0] || !dy[0] || !count.value)
        return 0;
    struct mgpu_value *d = kept_again(g, node, dy[0]);
    if (!d)
        return mgpu_build_error();
    switch (a->kind) {
    case MGPU_REDUCE_SUM:
        dx[0] = mgpu_broadcast(g, d, x->rank, x->dims);
        break;
    case MGPU_REDUCE_MEAN:
        dx[0] = mgpu_broadcast(g, shared(g, d, count), x->rank, x->dims);
        break;
    case MGPU_REDUCE_PROD:
        dx[0] = mgpu_mul(g, d, others(g, x, (unsigned)a->axes));
        break;
    default:
        dx[0] = extreme_gradient(g, node, d);
        break;
    }
    return dx[0] ? 0 : mgpu_build_error();
}

static void reduce_saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    bool linear = a->kind == MGPU_REDUCE_SUM || a->kind == MGPU_REDUCE_MEAN;
    bool extreme = a->kind == MGPU_REDUCE_MAX || a->kind == MGPU_REDUCE_MIN;
    *inputs = linear ? 0 : 1;
    *outputs = extreme ? 1 : 0;
}

static struct mgpu_cost reduce_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = (double)mgpu_value_count(node->input[0]),
                              .bytes = mgpu_operand_bytes(node)};
}

static enum mgpu_split_answer reduce_split(const struct mgpu_node *node,
                                           const struct mgpu_split *in, struct mgpu_split *out,
                                           int *which)
{
    const struct mgpu_reduce_attrs *a = node->attrs;
    bool linear = a->kind == MGPU_REDUCE_SUM || a->kind == MGPU_REDUCE_MEAN;
    out[0] = in[0];
    if (mgpu_split_is_term(in[0]) && !linear)
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    if (in[0].kind != MGPU_SPLIT_AXIS)
        return MGPU_SPLIT_OK;
    if (!reduced(a->axes, in[0].axis)) {
        out[0].axis = kept_axis(a->axes, a->keep, in[0].axis);
        return MGPU_SPLIT_OK;
    }
    if (a->kind != MGPU_REDUCE_SUM)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return mgpu_split_ok(out, MGPU_SPLIT_SUM, 0, 1);
}

/* mean = sum * 1/(samples of all ranks * elements of a sample), for a mean over the batch. */
static int reduce_expand(struct mgpu_graph *g, const struct mgpu_node *node,
                         struct mgpu_value **out)
{
    struct mgpu_reduce_attrs a = *(const struct mgpu_reduce_attrs *)node->attrs;
    struct mgpu_value *x = node->input[0], *share = NULL;
    double number;
    if (a.kind == MGPU_REDUCE_MEAN && mgpu_is_float(x->type))
        share = mean_share(g, type_of(node), reduced_count(x, a.axes), &number);
    if (!share)
        return mgpu_fail(MGPU_EUNSUPPORTED, "a %s over the batch mixes its samples", kinds[a.kind]);
    a.kind = MGPU_REDUCE_SUM;
    out[0] = mgpu_mul(g, mgpu_build1(g, &mgpu_op_reduce, &a, 1, &x), share);
    return out[0] ? 0 : mgpu_build_error();
}

static const struct mgpu_attr reduce_attrs[] = {
    {.name = "kind",
     .kind = MGPU_ATTR_ENUM,
     .offset = offsetof(struct mgpu_reduce_attrs, kind),
     .names = kinds},
    {.name = "axes", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_reduce_attrs, axes)},
    {.name = "keep", .kind = MGPU_ATTR_BOOL, .offset = offsetof(struct mgpu_reduce_attrs, keep)},
    {.name = "type", .kind = MGPU_ATTR_TYPE, .offset = offsetof(struct mgpu_reduce_attrs, type)},
    {0}};

const struct mgpu_op mgpu_op_reduce = {
    .name = "reduce",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_reduce_attrs),
    .attrs = reduce_attrs,
    .half = MGPU_HALF_TAKES,
    .shape = reduce_shape,
    .gradient = reduce_gradient,
    .saved = reduce_saved,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = reduce_cost,
    .split = reduce_split,
    .expand = reduce_expand,
};

/* ---- arg_reduce ---------------------------------------------------------------------------- */

static int arg_reduce_shape(const struct mgpu_node *node)
{
    const struct mgpu_arg_reduce_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (a->axis < 0 || a->axis >= x->rank)
        return mgpu_fail(MGPU_EINVALID, "arg_reduce: axis %" PRId64 " of a tensor of rank %d",
                         a->axis, x->rank);
    int rank = kept_dims(x, 1 << a->axis, a->keep, dims);
    if (x->dims[a->axis].value == 0 && mgpu_dims_product(rank, dims).value)
        return mgpu_fail(MGPU_EINVALID, "arg_reduce: axis %" PRId64 " has no elements", a->axis);
    mgpu_shape_set(node, 0, MGPU_INT64, rank, dims);
    return 0;
}

static enum mgpu_split_answer arg_reduce_split(const struct mgpu_node *node,
                                               const struct mgpu_split *in, struct mgpu_split *out,
                                               int *which)
{
    const struct mgpu_arg_reduce_attrs *a = node->attrs;
    out[0] = in[0];
    if (mgpu_split_is_term(in[0]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    if (in[0].kind == MGPU_SPLIT_AXIS && in[0].axis == a->axis)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    if (in[0].kind == MGPU_SPLIT_AXIS)
        out[0].axis = kept_axis(1 << a->axis, a->keep, in[0].axis);
    return MGPU_SPLIT_OK;
}

#define ARG_REDUCE(field, which)                                                                   \
    {                                                                                              \
        .name = #field, .kind = which, .offset = offsetof(struct mgpu_arg_reduce_attrs, field)     \
    }

static const struct mgpu_attr arg_reduce_attrs[] = {ARG_REDUCE(axis, MGPU_ATTR_INT),
                                                    ARG_REDUCE(keep, MGPU_ATTR_BOOL),
                                                    ARG_REDUCE(min, MGPU_ATTR_BOOL),
                                                    ARG_REDUCE(last, MGPU_ATTR_BOOL),
                                                    {0}};

const struct mgpu_op mgpu_op_arg_reduce = {
    .name = "arg_reduce",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_NO_GRADIENT,
    .attrs_size = sizeof(struct mgpu_arg_reduce_attrs),
    .attrs = arg_reduce_attrs,
    .half = MGPU_HALF_TAKES,
    .shape = arg_reduce_shape,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = reduce_cost,
    .split = arg_reduce_split,
};

/* ---- builders ------------------------------------------------------------------------------ */

struct mgpu_value *mgpu_reduce(struct mgpu_graph *g, enum mgpu_reduce_kind kind,
                               struct mgpu_value *a, unsigned axes, bool keep)
{
    struct mgpu_reduce_attrs attrs = {.kind = (int)kind, .axes = axes, .keep = keep};
    return !a || !axes ? a : mgpu_build1(g, &mgpu_op_reduce, &attrs, 1, &a);
}

struct mgpu_value *mgpu_arg_reduce(struct mgpu_graph *g, struct mgpu_value *a, int axis, bool keep,
                                   bool min, bool last)
{
    struct mgpu_arg_reduce_attrs attrs = {.axis = axis, .keep = keep, .min = min, .last = last};
    return !a ? NULL : mgpu_build1(g, &mgpu_op_arg_reduce, &attrs, 1, &a);
}

struct mgpu_value *mgpu_reduce_to(struct mgpu_graph *g, struct mgpu_value *a,
                                  const struct mgpu_value *like)
{
    unsigned axes = 0;
    if (!a || !like)
        return NULL;
    int added = a->rank - like->rank;
    if (added < 0)
        return mgpu_build_fail(MGPU_EINVALID, "cannot sum rank %d to rank %d", a->rank, like->rank);
    for (int i = 0; i < a->rank; i++) {
        struct mgpu_dim to = i < added ? mgpu_dim_const(1) : like->dims[i - added];
        if (i < added || (to.value == 1 && mgpu_dim_is_const(to) && !mgpu_dim_same(a->dims[i], to)))
            axes |= 1u << i;
    }
    struct mgpu_value *sum = mgpu_reduce(g, MGPU_REDUCE_SUM, a, axes, true);
    return mgpu_reshape(g, sum, like->rank, like->dims);
}
