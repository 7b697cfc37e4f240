/* Records of cumsum and topk. */
#include "runtime/ops/sort.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"

static int check_axis(const struct mgpu_node *node, int64_t axis)
{
    if (axis < 0 || axis >= node->input[0]->rank)
        return mgpu_fail(MGPU_EINVALID, "%s: axis %" PRId64 " of a tensor of rank %d",
                         node->op->name, axis, node->input[0]->rank);
    return 0;
}

/* Lines along the axis are apart; a cut along it mixes. */
static enum mgpu_split_answer lines_split(const struct mgpu_node *node, int64_t axis,
                                          const struct mgpu_split *in, struct mgpu_split *out,
                                          int *which)
{
    if (in[0].kind == MGPU_SPLIT_AXIS && in[0].axis == axis)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    for (int i = 0; i < node->outputs; i++)
        out[i] = in[0];
    return MGPU_SPLIT_OK;
}

/* ---- cumsum -------------------------------------------------------------------------------- */

static int cumsum_shape(const struct mgpu_node *node)
{
    const struct mgpu_cumsum_attrs *a = node->attrs;
    MGPU_TRY(check_axis(node, a->axis));
    mgpu_shape_like(node, 0, node->input[0]);
    return 0;
}

/* x_j is in y_i for all i from j on: dx_j sums dy from j on, the same sum from the other end. */
static int cumsum_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                           struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_cumsum_attrs *a = node->attrs;
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_cumsum(g, dy[0], (int)a->axis, a->exclusive, !a->reverse);
    return dx[0] ? 0 : mgpu_build_error();
}

static struct mgpu_cost cumsum_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = (double)mgpu_value_count(node->input[0]),
                              .bytes = mgpu_operand_bytes(node)};
}

static enum mgpu_split_answer cumsum_split(const struct mgpu_node *node,
                                           const struct mgpu_split *in, struct mgpu_split *out,
                                           int *which)
{
    const struct mgpu_cumsum_attrs *a = node->attrs;
    return lines_split(node, a->axis, in, out, which);
}

static const struct mgpu_attr cumsum_attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_cumsum_attrs, axis)},
    {.name = "exclusive",
     .kind = MGPU_ATTR_BOOL,
     .offset = offsetof(struct mgpu_cumsum_attrs, exclusive)},
    {.name = "reverse",
     .kind = MGPU_ATTR_BOOL,
     .offset = offsetof(struct mgpu_cumsum_attrs, reverse)},
    {0}};

const struct mgpu_op mgpu_op_cumsum = {
    .name = "cumsum",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_cumsum_attrs),
    .attrs = cumsum_attrs,
    .shape = cumsum_shape,
    .gradient = cumsum_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cumsum_cost,
    .split = cumsum_split,
};

struct mgpu_value *mgpu_cumsum(struct mgpu_graph *g, struct mgpu_value *x, int axis, bool exclusive,
                               bool reverse)
{
    struct mgpu_cumsum_attrs attrs = {.axis = axis, .exclusive = exclusive, .reverse = reverse};
    return mgpu_build1(g, &mgpu_op_cumsum, &attrs, 1, &x);
}

/* ---- topk ---------------------------------------------------------------------------------- */

static int topk_shape(const struct mgpu_node *node)
{
    const struct mgpu_topk_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(check_axis(node, a->axis));
    for (int i = 0; i < x->rank; i++)
        dims[i] = x->dims[i];
    if (a->k < 0 || a->k > dims[a->axis].value)
        return mgpu_fail(MGPU_EINVALID,
                         "topk: %" PRId64 " of the %" PRId64 " elements of axis %" PRId64, a->k,
                         dims[a->axis].value, a->axis);
    if (a->k != dims[a->axis].value)
        dims[a->axis] = mgpu_dim_const(a->k);
    mgpu_shape_set(node, 0, x->type, x->rank, dims);
    mgpu_shape_set(node, 1, MGPU_INT64, x->rank, dims);
    return 0;
}

static int topk_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                         struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_topk_attrs *a = node->attrs;
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_gather_back(g, &mgpu_op_gather_elements_grad, dy[0], node->output[1], (int)a->axis,
                             node->input[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

static void topk_saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 0;
    *outputs = 2;
}

/* A heap of the best k: each element may climb it. */
static struct mgpu_cost topk_cost(const struct mgpu_node *node)
{
    const struct mgpu_topk_attrs *a = node->attrs;
    double n = (double)mgpu_value_count(node->input[0]), climbs = 1;
    for (int64_t k = a->k; k > 1; k /= 2)
        climbs++;
    return (struct mgpu_cost){.flops = n * climbs, .bytes = mgpu_operand_bytes(node)};
}

static enum mgpu_split_answer topk_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                         struct mgpu_split *out, int *which)
{
    const struct mgpu_topk_attrs *a = node->attrs;
    if (mgpu_split_is_term(in[0]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    return lines_split(node, a->axis, in, out, which);
}

static const struct mgpu_attr topk_attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_topk_attrs, axis)},
    {.name = "k", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_topk_attrs, k)},
    {.name = "smallest",
     .kind = MGPU_ATTR_BOOL,
     .offset = offsetof(struct mgpu_topk_attrs, smallest)},
    {0}};

const struct mgpu_op mgpu_op_topk = {
    .name = "topk",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 2,
    .attrs_size = sizeof(struct mgpu_topk_attrs),
    .attrs = topk_attrs,
    .shape = topk_shape,
    .gradient = topk_gradient,
    .saved = topk_saved,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = topk_cost,
    .split = topk_split,
};
