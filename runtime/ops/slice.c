/* Records of slice and its transpose slice_grad. */
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

/* Elements start, start + step, ... (`size` of them) must lie in [0, whole). */
static int check_range(int axis, int64_t start, int64_t step, int64_t size, int64_t whole)
{
    int64_t last, way;
    if (size == 0)
        return 0;
    bool wide =
        __builtin_mul_overflow(size - 1, step, &way) || __builtin_add_overflow(start, way, &last);
    if (size < 0 || wide || start < 0 || start >= whole || last < 0 || last >= whole)
        return mgpu_fail(MGPU_EINVALID,
                         "slice of axis %d: %" PRId64 " elements from %" PRId64 " by %" PRId64
                         " do not lie within its %" PRId64 " elements",
                         axis, size, start, step, whole);
    return 0;
}

static int slice_shape(const struct mgpu_node *node)
{
    const struct mgpu_slice_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    for (int i = 0; i < x->rank; i++)
        MGPU_TRY(check_range(i, a->start[i], a->step[i], a->size[i].value, x->dims[i].value));
    mgpu_shape_set(node, 0, x->type, x->rank, a->size);
    return 0;
}

static int slice_grad_shape(const struct mgpu_node *node)
{
    const struct mgpu_slice_grad_attrs *a = node->attrs;
    const struct mgpu_value *dy = node->input[0];
    if (dy->rank != a->rank)
        return mgpu_fail(MGPU_EINVALID, "slice_grad: rank %d is not %" PRId64, dy->rank, a->rank);
    for (int i = 0; i < dy->rank; i++)
        MGPU_TRY(check_range(i, a->start[i], a->step[i], dy->dims[i].value, a->dims[i].value));
    mgpu_shape_set(node, 0, dy->type, dy->rank, a->dims);
    return 0;
}

static int slice_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                          struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_slice_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_slice_grad_attrs grad = {.rank = x->rank};
    if (!wanted[0] || !dy[0])
        return 0;
    for (int i = 0; i < x->rank; i++) {
        grad.start[i] = a->start[i];
        grad.step[i] = a->step[i];
    }
    grad.dims = mgpu_dims_copy(g, x->rank, x->dims);
    dx[0] = mgpu_build1(g, &mgpu_op_slice_grad, &grad, 1, &dy[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

static int slice_grad_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                               struct mgpu_value *const *dy, const bool *wanted,
                               struct mgpu_value **dx)
{
    const struct mgpu_slice_grad_attrs *a = node->attrs;
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_slice(g, dy[0], a->start, a->step, node->input[0]->dims);
    return dx[0] ? 0 : mgpu_build_error();
}

/* Where a samples' axis of `outer` blocks is cut at block borders, whole blocks go over. `part` is
 * the smaller side (a slice's y), `whole` the larger; `outer` counts the blocks of the given side,
 * whose size is `given`. Gives the blocks of the other side, or 0. */
static int64_t other_blocks(const struct mgpu_dim *given, int64_t outer,
                            const struct mgpu_dim *other, int64_t start, int64_t step)
{
    if (mgpu_dim_same(*given, *other) && start == 0 && step == 1)
        return outer;
    int64_t block = given->value / outer;
    bool samples = !other->opaque && other->power[MGPU_BATCH] == 1;
    if (!samples || block == 0 || step != 1 || start % block || other->value % block)
        return 0;
    return other->value / block;
}

/* Both directions: the axis other than the split one are free. A slice of a whole value down to N
 * elements would have to know which samples are this rank's. */
static enum mgpu_split_answer cut_split(const struct mgpu_value *from, const struct mgpu_value *to,
                                        const int64_t *start, const int64_t *step,
                                        const struct mgpu_split *in, struct mgpu_split *out,
                                        int *which)
{
    int k = in[0].axis;
    out[0] = in[0];
    if (in[0].kind == MGPU_SPLIT_AXIS) {
        out[0].outer = other_blocks(&from->dims[k], in[0].outer, &to->dims[k], start[k], step[k]);
        return out[0].outer ? MGPU_SPLIT_OK : mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    }
    for (int i = 0; i < to->rank; i++)
        if (mgpu_dim_has(to->dims[i], MGPU_BATCH) && !mgpu_dim_same(to->dims[i], from->dims[i]))
            return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer slice_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                          struct mgpu_split *out, int *which)
{
    const struct mgpu_slice_attrs *a = node->attrs;
    return cut_split(node->input[0], node->output[0], a->start, a->step, in, out, which);
}

static enum mgpu_split_answer slice_grad_split(const struct mgpu_node *node,
                                               const struct mgpu_split *in, struct mgpu_split *out,
                                               int *which)
{
    const struct mgpu_slice_grad_attrs *a = node->attrs;
    return cut_split(node->input[0], node->output[0], a->start, a->step, in, out, which);
}

/* Reads no more of x than it writes. */
static struct mgpu_cost slice_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.bytes = 2.0 * (double)mgpu_value_bytes(node->output[0])};
}

#define START_STEP(type)                                                                           \
    {.name = "start",                                                                              \
     .kind = MGPU_ATTR_INTS,                                                                       \
     .offset = offsetof(struct type, start),                                                       \
     .length = MGPU_MAX_RANK},                                                                     \
    {                                                                                              \
        .name = "step", .kind = MGPU_ATTR_INTS, .offset = offsetof(struct type, step),             \
        .length = MGPU_MAX_RANK                                                                    \
    }

static const struct mgpu_attr slice_attrs[] = {
    START_STEP(mgpu_slice_attrs),
    {.name = "size", .kind = MGPU_ATTR_DIMS, .offset = offsetof(struct mgpu_slice_attrs, size)},
    {0}};
static const struct mgpu_attr slice_grad_attrs[] = {
    START_STEP(mgpu_slice_grad_attrs),
    {.name = "rank", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_slice_grad_attrs, rank)},
    {.name = "dims",
     .kind = MGPU_ATTR_DIMS,
     .offset = offsetof(struct mgpu_slice_grad_attrs, dims)},
    {0}};

const struct mgpu_op mgpu_op_slice = {
    .name = "slice",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_slice_attrs),
    .attrs = slice_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = slice_shape,
    .gradient = slice_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = slice_cost,
    .split = slice_split,
};

const struct mgpu_op mgpu_op_slice_grad = {
    .name = "slice_grad",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_slice_grad_attrs),
    .attrs = slice_grad_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = slice_grad_shape,
    .gradient = slice_grad_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = slice_grad_split,
};
