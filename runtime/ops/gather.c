/* Records of gather, gather_elements and gather_nd and of their transposes; scatter.c has the
 * scatters. All gathers are linear in x, so a sum or mean over ranks passes while the indices are
 * whole. */
#include "runtime/ops/gather.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

static const struct mgpu_attr gather_attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_gather_attrs, axis)},
    {0}};

static const struct mgpu_attr gather_grad_attrs[] = {
    {.name = "axis",
     .kind = MGPU_ATTR_INT,
     .offset = offsetof(struct mgpu_gather_grad_attrs, axis)},
    {.name = "rank",
     .kind = MGPU_ATTR_INT,
     .offset = offsetof(struct mgpu_gather_grad_attrs, rank)},
    {.name = "dims",
     .kind = MGPU_ATTR_DIMS,
     .offset = offsetof(struct mgpu_gather_grad_attrs, dims)},
    {0}};

static int check_indices(const struct mgpu_node *node)
{
    const struct mgpu_value *indices = node->input[1];
    if (indices->type != MGPU_INT32 && indices->type != MGPU_INT64)
        return mgpu_fail(MGPU_EINVALID, "%s: indices are %s, not int32 or int64", node->op->name,
                         mgpu_dtype_name(indices->type));
    return 0;
}

static int64_t axis_of(const struct mgpu_node *node)
{
    return ((const struct mgpu_gather_attrs *)node->attrs)->axis;
}

static int misfit(const struct mgpu_node *node, int rank, const struct mgpu_dim *dims)
{
    const struct mgpu_value *indices = node->input[1];
    char text[2][MGPU_SHAPE_TEXT];
    return mgpu_fail(MGPU_EINVALID,
                     "%s (axis or batch_dims %" PRId64 "): %s does not fit indices %s",
                     node->op->name, axis_of(node), mgpu_dims_text(text[0], rank, dims),
                     mgpu_dims_text(text[1], indices->rank, indices->dims));
}

/* The three shapes, from x's dims: used forward and to check the transposes. Gives y's rank, or -1
 * when x and the indices do not fit. */
typedef int gathered(const struct mgpu_value *indices, int64_t axis, int rank,
                     const struct mgpu_dim *x, struct mgpu_dim y[MGPU_MAX_RANK]);

static int gathered_rows(const struct mgpu_value *indices, int64_t axis, int rank,
                         const struct mgpu_dim *x, struct mgpu_dim y[MGPU_MAX_RANK])
{
    int n = 0;
    if (axis < 0 || axis >= rank || rank - 1 + indices->rank > MGPU_MAX_RANK)
        return -1;
    for (int i = 0; i < axis; i++)
        y[n++] = x[i];
    for (int i = 0; i < indices->rank; i++)
        y[n++] = indices->dims[i];
    for (int i = (int)axis + 1; i < rank; i++)
        y[n++] = x[i];
    return n;
}

static int gathered_elements(const struct mgpu_value *indices, int64_t axis, int rank,
                             const struct mgpu_dim *x, struct mgpu_dim y[MGPU_MAX_RANK])
{
    if (axis < 0 || axis >= rank || indices->rank != rank)
        return -1;
    for (int i = 0; i < rank; i++) {
        if (i != axis && indices->dims[i].value > x[i].value)
            return -1;
        y[i] = indices->dims[i];
    }
    return rank;
}

static int gathered_nd(const struct mgpu_value *indices, int64_t batch_dims, int rank,
                       const struct mgpu_dim *x, struct mgpu_dim y[MGPU_MAX_RANK])
{
    int q = indices->rank, n = 0;
    if (batch_dims < 0 || batch_dims >= q || batch_dims >= rank)
        return -1;
    int64_t indexed = batch_dims + indices->dims[q - 1].value;
    if (indexed > rank || indexed <= batch_dims || q - 1 + rank - indexed > MGPU_MAX_RANK)
        return -1;
    for (int i = 0; i < q - 1; i++) {
        if (i < batch_dims && indices->dims[i].value != x[i].value)
            return -1;
        y[n++] = indices->dims[i];
    }
    for (int i = (int)indexed; i < rank; i++)
        y[n++] = x[i];
    return n;
}

static int shape_of(const struct mgpu_node *node, gathered *rule)
{
    const struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(check_indices(node));
    int rank = rule(node->input[1], axis_of(node), x->rank, x->dims, dims);
    if (rank < 0)
        return misfit(node, x->rank, x->dims);
    mgpu_shape_set(node, 0, x->type, rank, dims);
    return 0;
}

static int back_shape_of(const struct mgpu_node *node, gathered *rule)
{
    const struct mgpu_gather_grad_attrs *a = node->attrs;
    const struct mgpu_value *dy = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(check_indices(node));
    int rank = rule(node->input[1], a->axis, (int)a->rank, a->dims, dims);
    if (rank < 0)
        return misfit(node, (int)a->rank, a->dims);
    if (rank != dy->rank || !mgpu_dims_equal(rank, dims, dy->dims) || !mgpu_is_float(dy->type))
        return misfit(node, dy->rank, dy->dims);
    mgpu_shape_set(node, 0, dy->type, (int)a->rank, a->dims);
    return 0;
}

/* Forward: what it moved goes back where it came from. */
static int gradient_of(struct mgpu_graph *g, const struct mgpu_node *node,
                       const struct mgpu_op *back, struct mgpu_value *const *dy, const bool *wanted,
                       struct mgpu_value **dx)
{
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_gather_back(g, back, dy[0], node->input[1], (int)axis_of(node), node->input[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

/* Back: the gradient of a transposed gather is the gather. */
static int back_gradient_of(struct mgpu_graph *g, const struct mgpu_node *node,
                            const struct mgpu_op *forward, struct mgpu_value *const *dy,
                            const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_gather_attrs attrs = {.axis = axis_of(node)};
    struct mgpu_value *input[] = {dy[0], node->input[1]};
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_build1(g, forward, &attrs, 2, input);
    return dx[0] ? 0 : mgpu_build_error();
}

static void saved_indices(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 2;
    *outputs = 0;
}

/* Reads of x what it writes. */
static struct mgpu_cost gather_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.bytes = 2.0 * (double)mgpu_value_bytes(node->output[0]) +
                                       (double)mgpu_value_bytes(node->input[1])};
}

static struct mgpu_cost back_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = (double)mgpu_value_count(node->input[0]),
                              .bytes = mgpu_operand_bytes(node)};
}

/* ---- splits --------------------------------------------------------------------------------- */

/* The answers that all gathers share; -1: it depends on the axes. `value` is x or dy. */
static int common_split(const struct mgpu_split *in, struct mgpu_split *out, int *which)
{
    if (mgpu_split_is_term(in[1]))
        return (int)mgpu_split_no(which, 1, MGPU_SPLIT_FULL);
    if (mgpu_split_is_term(in[0]) && in[1].kind == MGPU_SPLIT_AXIS)
        return (int)mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    if (in[0].kind != MGPU_SPLIT_AXIS && in[1].kind != MGPU_SPLIT_AXIS)
        return (int)mgpu_split_ok(out, in[0].kind, 0, 1);
    return -1;
}

static enum mgpu_split_answer rows_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                         struct mgpu_split *out, int *which)
{
    int axis = (int)axis_of(node), k = in[0].axis, known = common_split(in, out, which);
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    if (in[0].kind == MGPU_SPLIT_REPLICATED)
        return mgpu_split_ok(out, MGPU_SPLIT_AXIS, axis + in[1].axis, in[1].outer);
    if (in[1].kind == MGPU_SPLIT_AXIS || k == axis)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    int to = k < axis ? k : k - 1 + node->input[1]->rank;
    return mgpu_split_ok(out, MGPU_SPLIT_AXIS, to, in[0].outer);
}

static enum mgpu_split_answer rows_back_split(const struct mgpu_node *node,
                                              const struct mgpu_split *in, struct mgpu_split *out,
                                              int *which)
{
    int axis = (int)axis_of(node), q = node->input[1]->rank, k = in[0].axis;
    int known = common_split(in, out, which);
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    bool both = in[0].kind == in[1].kind;
    if (both && k - axis == in[1].axis && in[0].outer == in[1].outer)
        return mgpu_split_ok(out, MGPU_SPLIT_SUM, 0, 1);
    if (in[1].kind == MGPU_SPLIT_AXIS || (k >= axis && k < axis + q))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return mgpu_split_ok(out, MGPU_SPLIT_AXIS, k < axis ? k : k - q + 1, in[0].outer);
}

/* Samples stay with their samples when x and the indices are cut alike, off the indexed axis. A
 * whole x may be indexed by each rank where no other axis aligns with the cut one. */
static enum mgpu_split_answer elements_split(const struct mgpu_node *node,
                                             const struct mgpu_split *in, struct mgpu_split *out,
                                             int *which)
{
    int axis = (int)axis_of(node), k = in[1].axis, known = common_split(in, out, which);
    const struct mgpu_dim *x = node->input[0]->dims, *indices = node->input[1]->dims;
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    bool along = in[0].kind == MGPU_SPLIT_REPLICATED && k == axis;
    bool alike = mgpu_split_same(in[0], in[1]) && k != axis && mgpu_dim_same(x[k], indices[k]);
    if (!along && !alike)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return mgpu_split_ok(out, MGPU_SPLIT_AXIS, k, in[1].outer);
}

static enum mgpu_split_answer elements_back_split(const struct mgpu_node *node,
                                                  const struct mgpu_split *in,
                                                  struct mgpu_split *out, int *which)
{
    const struct mgpu_gather_grad_attrs *a = node->attrs;
    int k = in[1].axis, known = common_split(in, out, which);
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    if (!mgpu_split_same(in[0], in[1]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    if (k == a->axis)
        return mgpu_split_ok(out, MGPU_SPLIT_SUM, 0, 1);
    if (!mgpu_dim_same(a->dims[k], node->input[1]->dims[k]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return mgpu_split_ok(out, MGPU_SPLIT_AXIS, k, in[1].outer);
}

/* How many axes of x a tuple of indices stands for, the batch axes included. */
static int indexed_axes(const struct mgpu_node *node)
{
    const struct mgpu_value *indices = node->input[1];
    return (int)(axis_of(node) + indices->dims[indices->rank - 1].value);
}

static enum mgpu_split_answer nd_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                       struct mgpu_split *out, int *which)
{
    int batch = (int)axis_of(node), tuple = node->input[1]->rank - 1, end = indexed_axes(node);
    int known = common_split(in, out, which);
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    if (in[0].kind == MGPU_SPLIT_REPLICATED && in[1].axis >= batch && in[1].axis != tuple)
        return mgpu_split_ok(out, MGPU_SPLIT_AXIS, in[1].axis, in[1].outer);
    if (mgpu_split_same(in[0], in[1]) && in[0].axis < batch)
        return mgpu_split_ok(out, MGPU_SPLIT_AXIS, in[0].axis, in[0].outer);
    if (in[1].kind == MGPU_SPLIT_REPLICATED && in[0].axis >= end)
        return mgpu_split_ok(out, MGPU_SPLIT_AXIS, tuple + in[0].axis - end, in[0].outer);
    return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
}

static enum mgpu_split_answer nd_back_split(const struct mgpu_node *node,
                                            const struct mgpu_split *in, struct mgpu_split *out,
                                            int *which)
{
    int batch = (int)axis_of(node), tuple = node->input[1]->rank - 1, end = indexed_axes(node);
    int known = common_split(in, out, which), k = in[0].axis;
    if (known >= 0)
        return (enum mgpu_split_answer)known;
    if (mgpu_split_same(in[0], in[1]) && k < tuple)
        return k < batch ? mgpu_split_ok(out, MGPU_SPLIT_AXIS, k, in[0].outer)
                         : mgpu_split_ok(out, MGPU_SPLIT_SUM, 0, 1);
    if (in[1].kind == MGPU_SPLIT_REPLICATED && k >= tuple)
        return mgpu_split_ok(out, MGPU_SPLIT_AXIS, k - tuple + end, in[0].outer);
    return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
}

/* ---- records -------------------------------------------------------------------------------- */

/* The rules of a gather and of its transpose that only pick the right functions. */
#define RULES(form)                                                                                \
    static int form##_shape(const struct mgpu_node *node)                                          \
    {                                                                                              \
        return shape_of(node, gathered_##form);                                                    \
    }                                                                                              \
    static int form##_back_shape(const struct mgpu_node *node)                                     \
    {                                                                                              \
        return back_shape_of(node, gathered_##form);                                               \
    }                                                                                              \
    static int form##_gradient(struct mgpu_graph *g, const struct mgpu_node *node,                 \
                               struct mgpu_value *const *dy, const bool *wanted,                   \
                               struct mgpu_value **dx)                                             \
    {                                                                                              \
        return gradient_of(g, node, form##_back, dy, wanted, dx);                                  \
    }                                                                                              \
    static int form##_back_gradient(struct mgpu_graph *g, const struct mgpu_node *node,            \
                                    struct mgpu_value *const *dy, const bool *wanted,              \
                                    struct mgpu_value **dx)                                        \
    {                                                                                              \
        return back_gradient_of(g, node, form##_forward, dy, wanted, dx);                          \
    }

static const struct mgpu_op *const rows_forward = &mgpu_op_gather;
static const struct mgpu_op *const rows_back = &mgpu_op_gather_grad;
static const struct mgpu_op *const elements_forward = &mgpu_op_gather_elements;
static const struct mgpu_op *const elements_back = &mgpu_op_gather_elements_grad;
static const struct mgpu_op *const nd_forward = &mgpu_op_gather_nd;
static const struct mgpu_op *const nd_back = &mgpu_op_gather_nd_grad;
RULES(rows)
RULES(elements)
RULES(nd)

#define FORWARD(text, form)                                                                        \
    {                                                                                              \
        .name = text, .min_inputs = 2, .max_inputs = 2, .outputs = 1,                              \
        .attrs_size = sizeof(struct mgpu_gather_attrs), .attrs = gather_attrs,                     \
        .half = MGPU_HALF_ROWS, .shape = form##_shape, .gradient = form##_gradient,                \
        .saved = saved_indices, .alias = mgpu_alias_none, .workspace = mgpu_workspace_none,        \
        .layouts = mgpu_layouts_plain, .cost = gather_cost, .split = form##_split                  \
    }

#define BACK(text, form)                                                                           \
    {                                                                                              \
        .name = text, .min_inputs = 2, .max_inputs = 2, .outputs = 1,                              \
        .attrs_size = sizeof(struct mgpu_gather_grad_attrs), .attrs = gather_grad_attrs,           \
        .shape = form##_back_shape, .gradient = form##_back_gradient, .saved = saved_indices,      \
        .alias = mgpu_alias_none, .workspace = mgpu_workspace_none, .layouts = mgpu_layouts_plain, \
        .cost = back_cost, .split = form##_back_split                                              \
    }

const struct mgpu_op mgpu_op_gather = FORWARD("gather", rows);
const struct mgpu_op mgpu_op_gather_grad = BACK("gather_grad", rows);
const struct mgpu_op mgpu_op_gather_elements = FORWARD("gather_elements", elements);
const struct mgpu_op mgpu_op_gather_elements_grad = BACK("gather_elements_grad", elements);
const struct mgpu_op mgpu_op_gather_nd = FORWARD("gather_nd", nd);
const struct mgpu_op mgpu_op_gather_nd_grad = BACK("gather_nd_grad", nd);

/* ---- builders ------------------------------------------------------------------------------- */

static struct mgpu_value *build(struct mgpu_graph *g, const struct mgpu_op *op,
                                struct mgpu_value *x, struct mgpu_value *indices, int axis)
{
    struct mgpu_gather_attrs attrs = {.axis = axis};
    struct mgpu_value *input[] = {x, indices};
    return mgpu_build1(g, op, &attrs, 2, input);
}

struct mgpu_value *mgpu_gather(struct mgpu_graph *g, struct mgpu_value *x,
                               struct mgpu_value *indices, int axis)
{
    return build(g, &mgpu_op_gather, x, indices, axis);
}

struct mgpu_value *mgpu_gather_elements(struct mgpu_graph *g, struct mgpu_value *x,
                                        struct mgpu_value *indices, int axis)
{
    return build(g, &mgpu_op_gather_elements, x, indices, axis);
}

struct mgpu_value *mgpu_gather_nd(struct mgpu_graph *g, struct mgpu_value *x,
                                  struct mgpu_value *indices, int batch_dims)
{
    return build(g, &mgpu_op_gather_nd, x, indices, batch_dims);
}

struct mgpu_value *mgpu_gather_back(struct mgpu_graph *g, const struct mgpu_op *op,
                                    struct mgpu_value *dy, struct mgpu_value *indices, int axis,
                                    const struct mgpu_value *like)
{
    struct mgpu_gather_grad_attrs attrs = {.axis = axis};
    struct mgpu_value *input[] = {dy, indices};
    if (!like)
        return NULL;
    attrs.rank = like->rank;
    attrs.dims = mgpu_dims_copy(g, like->rank, like->dims);
    return mgpu_build1(g, op, &attrs, 2, input);
}
