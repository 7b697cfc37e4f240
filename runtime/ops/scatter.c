/* Records of scatter_elements and scatter_nd. Where update j lands on data element i:
 *
 *     none: y_i = u_j     add: y_i = x_i + sum u_j     mul, max, min: likewise
 *
 * The gradients use the gather that reads the same places. */
#include "runtime/ops/gather.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

static const struct mgpu_scatter_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

static int misfit(const struct mgpu_node *node)
{
    char text[3][MGPU_SHAPE_TEXT];
    for (int i = 0; i < 3; i++)
        mgpu_dims_text(text[i], node->input[i]->rank, node->input[i]->dims);
    return mgpu_fail(MGPU_EINVALID,
                     "%s: data %s %s, indices %s %s and updates %s %s do not fit together",
                     node->op->name, mgpu_dtype_name(node->input[0]->type), text[0],
                     mgpu_dtype_name(node->input[1]->type), text[1],
                     mgpu_dtype_name(node->input[2]->type), text[2]);
}

static bool types_fit(const struct mgpu_node *node)
{
    const struct mgpu_value *data = node->input[0], *indices = node->input[1];
    return node->input[2]->type == data->type &&
           (indices->type == MGPU_INT32 || indices->type == MGPU_INT64);
}

/* Updates and indices have one shape, which fits into data's but along the axis. */
static int elements_shape(const struct mgpu_node *node)
{
    const struct mgpu_value *data = node->input[0], *indices = node->input[1];
    const struct mgpu_value *updates = node->input[2];
    int64_t axis = attrs_of(node)->axis;
    bool fits = types_fit(node) && indices->rank == data->rank && updates->rank == data->rank &&
                axis >= 0 && axis < data->rank;
    for (int i = 0; fits && i < data->rank; i++)
        fits = updates->dims[i].value == indices->dims[i].value &&
               (i == axis || indices->dims[i].value <= data->dims[i].value);
    if (!fits)
        return misfit(node);
    mgpu_shape_like(node, 0, data);
    return 0;
}

/* Axes of data that a tuple of indices stands for; -1 when the indices have none. */
static int64_t tuple_size(const struct mgpu_value *indices)
{
    return indices->rank ? indices->dims[indices->rank - 1].value : -1;
}

/* Updates: indices without their last axis, then data without the indexed ones. */
static int nd_shape(const struct mgpu_node *node)
{
    const struct mgpu_value *data = node->input[0], *indices = node->input[1];
    const struct mgpu_value *updates = node->input[2];
    int64_t k = tuple_size(indices);
    int q = indices->rank;
    bool fits = types_fit(node) && k >= 1 && k <= data->rank &&
                updates->rank == q - 1 + data->rank - (int)k &&
                mgpu_dims_equal(q - 1, updates->dims, indices->dims) &&
                mgpu_dims_equal(data->rank - (int)k, updates->dims + q - 1, data->dims + k);
    if (!fits)
        return misfit(node);
    mgpu_shape_like(node, 0, data);
    return 0;
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* The same places, for elements or tuples. */
static struct mgpu_value *read_at(struct mgpu_graph *g, const struct mgpu_node *node,
                                  struct mgpu_value *x)
{
    if (node->op == &mgpu_op_scatter_nd)
        return mgpu_gather_nd(g, x, node->input[1], 0);
    return mgpu_gather_elements(g, x, node->input[1], (int)attrs_of(node)->axis);
}

static struct mgpu_value *write_at(struct mgpu_graph *g, const struct mgpu_node *node,
                                   struct mgpu_value *data, struct mgpu_value *updates,
                                   enum mgpu_scatter_reduction reduction)
{
    if (node->op == &mgpu_op_scatter_nd)
        return mgpu_scatter_nd(g, data, node->input[1], updates, reduction);
    return mgpu_scatter_elements(g, data, node->input[1], updates, (int)attrs_of(node)->axis,
                                 reduction);
}

static struct mgpu_value *sum_at(struct mgpu_graph *g, const struct mgpu_node *node,
                                 struct mgpu_value *updates)
{
    bool nd = node->op == &mgpu_op_scatter_nd;
    const struct mgpu_op *back = nd ? &mgpu_op_gather_nd_grad : &mgpu_op_gather_elements_grad;
    return mgpu_gather_back(g, back, updates, node->input[1], nd ? 0 : (int)attrs_of(node)->axis,
                            node->input[0]);
}

/* What an update is multiplied with: data and the other updates at its place, the product of all
 * but itself even where it is zero (as in reduce.c). */
static struct mgpu_value *other_factors(struct mgpu_graph *g, const struct mgpu_node *node)
{
    struct mgpu_value *u = node->input[2], *data = node->input[0];
    struct mgpu_value *zero = mgpu_const_double(g, u->type, 0);
    struct mgpu_value *one = mgpu_const_double(g, u->type, 1);
    struct mgpu_value *is_zero = mgpu_binary(g, MGPU_X_EQ, u, zero);
    struct mgpu_value *zeros = sum_at(g, node, mgpu_cast(g, is_zero, u->type));
    struct mgpu_value *nonzero = mgpu_where(g, is_zero, one, u);
    struct mgpu_value *product = write_at(g, node, data, nonzero, MGPU_SCATTER_MUL);
    struct mgpu_value *count = read_at(g, node, zeros), *rest = read_at(g, node, product);
    struct mgpu_value *mine = mgpu_cast(g, is_zero, u->type); /* 1 where this one is the zero */
    struct mgpu_value *alone = mgpu_binary(g, MGPU_X_EQ, count, mine);
    return mgpu_where(g, alone, mgpu_div(g, rest, nonzero), zero);
}

static int linear_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                           struct mgpu_value *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_value *u = node->input[2];
    bool adds = attrs_of(node)->reduction == MGPU_SCATTER_ADD;
    struct mgpu_value *zero = mgpu_const_double(g, dy->type, 0);
    if (wanted[0] && adds)
        dx[0] = dy;
    else if (wanted[0])
        dx[0] = write_at(g, node, dy, mgpu_broadcast(g, zero, u->rank, u->dims), MGPU_SCATTER_NONE);
    if (wanted[2])
        dx[2] = read_at(g, node, dy);
    return 0;
}

static int product_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                            struct mgpu_value *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (wanted[0])
        dx[0] = write_at(g, node, dy, node->input[2], MGPU_SCATTER_MUL);
    if (wanted[2])
        dx[2] = mgpu_mul(g, read_at(g, node, dy), other_factors(g, node));
    return 0;
}

/* All that equal the result share dy. */
static int extreme_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                            struct mgpu_value *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_value *data = node->input[0], *u = node->input[2], *y = node->output[0];
    struct mgpu_value *zero = mgpu_const_double(g, dy->type, 0);
    struct mgpu_value *data_wins = mgpu_binary(g, MGPU_X_EQ, data, y);
    struct mgpu_value *update_wins = mgpu_binary(g, MGPU_X_EQ, u, read_at(g, node, y));
    struct mgpu_value *winners = mgpu_add(g, mgpu_cast(g, data_wins, dy->type),
                                          sum_at(g, node, mgpu_cast(g, update_wins, dy->type)));
    struct mgpu_value *share = mgpu_div(g, dy, winners);
    if (wanted[0])
        dx[0] = mgpu_where(g, data_wins, share, zero);
    if (wanted[2])
        dx[2] = mgpu_where(g, update_wins, read_at(g, node, share), zero);
    return 0;
}

static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    int reduction = attrs_of(node)->reduction;
    if (!dy[0])
        return 0;
    if (reduction == MGPU_SCATTER_MUL)
        product_gradient(g, node, dy[0], wanted, dx);
    else if (reduction == MGPU_SCATTER_MAX || reduction == MGPU_SCATTER_MIN)
        extreme_gradient(g, node, dy[0], wanted, dx);
    else
        linear_gradient(g, node, dy[0], wanted, dx);
    return (wanted[0] && !dx[0]) || (wanted[2] && !dx[2]) ? mgpu_build_error() : 0;
}

static void saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    int reduction = attrs_of(node)->reduction;
    bool linear = reduction == MGPU_SCATTER_NONE || reduction == MGPU_SCATTER_ADD;
    *inputs = linear ? 2 : 7;
    *outputs = reduction == MGPU_SCATTER_MAX || reduction == MGPU_SCATTER_MIN;
}

/* ---- splits --------------------------------------------------------------------------------- */

/* Indices and updates that are cut alike along an axis of updates, over a sum: every rank adds its
 * own updates to its term. */
static bool adds_to_sum(const struct mgpu_node *node, const struct mgpu_split *in)
{
    return attrs_of(node)->reduction == MGPU_SCATTER_ADD && in[0].kind == MGPU_SPLIT_SUM &&
           in[1].kind == MGPU_SPLIT_AXIS && mgpu_split_same(in[1], in[2]);
}

/* No sample axis anywhere: sums pass where the scatter is linear in data and updates together. */
static enum mgpu_split_answer whole_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                          struct mgpu_split *out, int *which)
{
    int reduction = attrs_of(node)->reduction;
    bool linear = reduction == MGPU_SCATTER_NONE || reduction == MGPU_SCATTER_ADD;
    if (mgpu_split_is_term(in[1]))
        return mgpu_split_no(which, 1, MGPU_SPLIT_FULL);
    bool same = in[0].kind == in[2].kind;
    if (!same || (!linear && mgpu_split_is_term(in[0])))
        return mgpu_split_no(which, mgpu_split_is_term(in[0]) ? 0 : 2, MGPU_SPLIT_FULL);
    return mgpu_split_ok(out, in[0].kind, 0, 1);
}

/* The answers that both scatters share; -1: it depends on the axes. */
static int common_split(const struct mgpu_node *node, const struct mgpu_split *in,
                        struct mgpu_split *out, int *which)
{
    bool any = false;
    for (int i = 0; i < 3; i++)
        any = any || in[i].kind == MGPU_SPLIT_AXIS;
    if (!any)
        return (int)whole_split(node, in, out, which);
    if (adds_to_sum(node, in))
        return (int)mgpu_split_ok(out, MGPU_SPLIT_SUM, 0, 1);
    for (int i = 0; i < 3; i++)
        if (mgpu_split_is_term(in[i]))
            return (int)mgpu_split_no(which, i, MGPU_SPLIT_FULL);
    return -1;
}

static enum mgpu_split_answer elements_split(const struct mgpu_node *node,
                                             const struct mgpu_split *in, struct mgpu_split *out,
                                             int *which)
{
    int known = common_split(node, in, out, which), k = in[0].axis;
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    bool alike = mgpu_split_same(in[0], in[1]) && mgpu_split_same(in[0], in[2]);
    if (!alike || k == attrs_of(node)->axis ||
        !mgpu_dim_same(node->input[0]->dims[k], node->input[1]->dims[k]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    out[0] = in[0];
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer nd_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                       struct mgpu_split *out, int *which)
{
    int known = common_split(node, in, out, which), tuple = node->input[1]->rank - 1;
    int end = (int)tuple_size(node->input[1]);
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    bool beside = in[0].kind == MGPU_SPLIT_AXIS && in[2].kind == MGPU_SPLIT_AXIS &&
                  in[1].kind == MGPU_SPLIT_REPLICATED && in[0].axis >= end &&
                  in[2].axis == tuple + in[0].axis - end && in[0].outer == in[2].outer;
    if (!beside)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    out[0] = in[0];
    return MGPU_SPLIT_OK;
}

/* ---- records -------------------------------------------------------------------------------- */

static struct mgpu_cost cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = (double)mgpu_value_count(node->input[2]),
                              .bytes = mgpu_operand_bytes(node)};
}

static const char *const reductions[] = {"none", "add", "mul", "max", "min", NULL};

static const struct mgpu_attr scatter_attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_scatter_attrs, axis)},
    {.name = "reduction",
     .kind = MGPU_ATTR_ENUM,
     .offset = offsetof(struct mgpu_scatter_attrs, reduction),
     .names = reductions},
    {0}};

#define SCATTER(text, form)                                                                        \
    {                                                                                              \
        .name = text, .min_inputs = 3, .max_inputs = 3, .outputs = 1,                              \
        .attrs_size = sizeof(struct mgpu_scatter_attrs), .attrs = scatter_attrs,                   \
        .shape = form##_shape, .gradient = gradient, .saved = saved, .alias = mgpu_alias_in_place, \
        .workspace = mgpu_workspace_none, .layouts = mgpu_layouts_plain, .cost = cost,             \
        .split = form##_split                                                                      \
    }

const struct mgpu_op mgpu_op_scatter_elements = SCATTER("scatter_elements", elements);
const struct mgpu_op mgpu_op_scatter_nd = SCATTER("scatter_nd", nd);

/* ---- builders ------------------------------------------------------------------------------- */

static struct mgpu_value *build(struct mgpu_graph *g, const struct mgpu_op *op,
                                const struct mgpu_scatter_attrs *attrs, struct mgpu_value *data,
                                struct mgpu_value *indices, struct mgpu_value *updates)
{
    struct mgpu_value *input[] = {data, indices, updates};
    return mgpu_build1(g, op, attrs, 3, input);
}

struct mgpu_value *mgpu_scatter_elements(struct mgpu_graph *g, struct mgpu_value *data,
                                         struct mgpu_value *indices, struct mgpu_value *updates,
                                         int axis, enum mgpu_scatter_reduction reduction)
{
    struct mgpu_scatter_attrs attrs = {.axis = axis, .reduction = (int)reduction};
    return build(g, &mgpu_op_scatter_elements, &attrs, data, indices, updates);
}

struct mgpu_value *mgpu_scatter_nd(struct mgpu_graph *g, struct mgpu_value *data,
                                   struct mgpu_value *indices, struct mgpu_value *updates,
                                   enum mgpu_scatter_reduction reduction)
{
    struct mgpu_scatter_attrs attrs = {.reduction = (int)reduction};
    return build(g, &mgpu_op_scatter_nd, &attrs, data, indices, updates);
}
