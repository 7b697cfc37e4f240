/* Records of reshape, transpose, expand and concat. slice.c and pad.c hold the others of the
 * family. All are linear in their inputs, so a sum or mean over ranks passes through. */
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

static const struct mgpu_attr shape_attrs[] = {
    {.name = "rank", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_shape_attrs, rank)},
    {.name = "dims", .kind = MGPU_ATTR_DIMS, .offset = offsetof(struct mgpu_shape_attrs, dims)},
    {0}};

/* ---- reshape ------------------------------------------------------------------------------- */

static int reshape_shape(const struct mgpu_node *node)
{
    const struct mgpu_shape_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    int64_t to[MGPU_MAX_RANK], count;
    if (a->rank < 0 || a->rank > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "rank %" PRId64 " is more than %d", a->rank,
                         MGPU_MAX_RANK);
    for (int i = 0; i < a->rank; i++)
        to[i] = a->dims[i].value;
    if (mgpu_count(&count, x->type, (int)a->rank, to) < 0 || count != mgpu_value_count(x)) {
        char from_text[MGPU_SHAPE_TEXT], to_text[MGPU_SHAPE_TEXT];
        return mgpu_fail(MGPU_EINVALID, "cannot reshape %s to %s: not the same number of elements",
                         mgpu_dims_text(from_text, x->rank, x->dims),
                         mgpu_shape_text(to_text, (int)a->rank, to));
    }
    mgpu_shape_set(node, 0, x->type, (int)a->rank, a->dims);
    return 0;
}

static int reshape_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                            struct mgpu_value *const *dy, const bool *wanted,
                            struct mgpu_value **dx)
{
    const struct mgpu_value *x = node->input[0];
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_reshape(g, dy[0], x->rank, x->dims);
    return dx[0] ? 0 : mgpu_build_error();
}

/* The samples' index keeps its place in row-major order: as many elements' worth of it stand before
 * and behind it. In the output it must lie inside one axis, which is the one that carries N. */
static enum mgpu_split_answer reshape_split(const struct mgpu_node *node,
                                            const struct mgpu_split *in, struct mgpu_split *out,
                                            int *which)
{
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    if (in[0].kind != MGPU_SPLIT_AXIS)
        return mgpu_split_ok(out, in[0].kind, 0, 1);
    int from = in[0].axis, to = mgpu_dims_batch_axis(y->rank, y->dims);
    if (to < 0 || mgpu_dims_batch_axis(x->rank, x->dims) != from)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    int64_t before = mgpu_dims_product(from, x->dims).value * in[0].outer;
    int64_t leading = mgpu_dims_product(to, y->dims).value;
    int64_t batch = mgpu_dims_batch(x->rank, x->dims, y->rank, y->dims);
    if (!before || !leading || before % leading || !batch)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    int64_t outer = before / leading;
    if (y->dims[to].value % (outer * batch))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return mgpu_split_ok(out, MGPU_SPLIT_AXIS, to, outer);
}

const struct mgpu_op mgpu_op_reshape = {
    .name = "reshape",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_shape_attrs),
    .attrs = shape_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = reshape_shape,
    .gradient = reshape_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_view,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = reshape_split,
};

/* ---- bit_cast ------------------------------------------------------------------------------- */

static int bit_cast_shape(const struct mgpu_node *node)
{
    const struct mgpu_bit_cast_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    enum mgpu_dtype type = (enum mgpu_dtype)a->type;
    if (mgpu_dtype_size(type) != mgpu_dtype_size(x->type))
        return mgpu_fail(MGPU_EINVALID, "the bits of %s are not those of %s",
                         mgpu_dtype_name(x->type), mgpu_dtype_name(type));
    mgpu_shape_set(node, 0, type, x->rank, x->dims);
    return 0;
}

/* Bits of a sum are not the sum of bits. */
static enum mgpu_split_answer bit_cast_split(const struct mgpu_node *node,
                                             const struct mgpu_split *in, struct mgpu_split *out,
                                             int *which)
{
    (void)node;
    if (mgpu_split_is_term(in[0]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    out[0] = in[0];
    return MGPU_SPLIT_OK;
}

static const struct mgpu_attr bit_cast_attrs[] = {
    {.name = "type", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_bit_cast_attrs, type)},
    {0}};

const struct mgpu_op mgpu_op_bit_cast = {
    .name = "bit_cast",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_NO_GRADIENT,
    .attrs_size = sizeof(struct mgpu_bit_cast_attrs),
    .attrs = bit_cast_attrs,
    .shape = bit_cast_shape,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_view,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = bit_cast_split,
};

/* ---- transpose ----------------------------------------------------------------------------- */

static int transpose_shape(const struct mgpu_node *node)
{
    const struct mgpu_transpose_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    unsigned seen = 0;
    for (int i = 0; i < x->rank; i++) {
        int64_t p = a->perm[i];
        if (p < 0 || p >= x->rank || seen & 1u << p)
            return mgpu_fail(MGPU_EINVALID,
                             "transpose: %" PRId64 " at place %d of the permutation is out of "
                             "range or repeated (rank %d)",
                             p, i, x->rank);
        seen |= 1u << p;
        dims[i] = x->dims[p];
    }
    mgpu_shape_set(node, 0, x->type, x->rank, dims);
    return 0;
}

static int transpose_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                              struct mgpu_value *const *dy, const bool *wanted,
                              struct mgpu_value **dx)
{
    const struct mgpu_transpose_attrs *a = node->attrs;
    int inverse[MGPU_MAX_RANK] = {0};
    if (!wanted[0] || !dy[0])
        return 0;
    for (int i = 0; i < node->input[0]->rank; i++)
        inverse[a->perm[i]] = i;
    dx[0] = mgpu_transpose(g, dy[0], inverse);
    return dx[0] ? 0 : mgpu_build_error();
}

static enum mgpu_split_answer transpose_split(const struct mgpu_node *node,
                                              const struct mgpu_split *in, struct mgpu_split *out,
                                              int *which)
{
    const struct mgpu_transpose_attrs *a = node->attrs;
    (void)which;
    out[0] = in[0];
    for (int i = 0; i < node->input[0]->rank && in[0].kind == MGPU_SPLIT_AXIS; i++)
        if (a->perm[i] == in[0].axis)
            out[0].axis = i;
    return MGPU_SPLIT_OK;
}

static const struct mgpu_attr transpose_attrs[] = {
    {.name = "perm",
     .kind = MGPU_ATTR_INTS,
     .offset = offsetof(struct mgpu_transpose_attrs, perm),
     .length = MGPU_MAX_RANK},
    {0}};

const struct mgpu_op mgpu_op_transpose = {
    .name = "transpose",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_transpose_attrs),
    .attrs = transpose_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = transpose_shape,
    .gradient = transpose_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = transpose_split,
};

/* ---- expand -------------------------------------------------------------------------------- */

/* A size that the caller knows only as a number takes the monomial of the equal one in x. */
static struct mgpu_dim expanded(struct mgpu_dim from, struct mgpu_dim to)
{
    return from.value == to.value && mgpu_dim_is_const(to) ? from : to;
}

static int expand_shape(const struct mgpu_node *node)
{
    const struct mgpu_shape_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int added = (int)a->rank - x->rank;
    bool ok = added >= 0 && a->rank <= MGPU_MAX_RANK;
    for (int i = 0; ok && i < a->rank; i++) {
        struct mgpu_dim from = i < added ? mgpu_dim_const(1) : x->dims[i - added];
        ok = a->dims[i].value >= 0 && (from.value == 1 || from.value == a->dims[i].value);
        dims[i] = expanded(from, a->dims[i]);
    }
    char from_text[MGPU_SHAPE_TEXT], to_text[MGPU_SHAPE_TEXT];
    if (!ok)
        return mgpu_fail(MGPU_EINVALID, "cannot expand %s to %s",
                         mgpu_dims_text(from_text, x->rank, x->dims),
                         mgpu_dims_text(to_text, (int)a->rank, a->dims));
    mgpu_shape_set(node, 0, x->type, (int)a->rank, dims);
    return 0;
}

static int expand_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                           struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_reduce_to(g, dy[0], node->input[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

/* Copies for the samples of this rank come into being here: what was whole and gets an axis of size
 * N is split along it. */
static enum mgpu_split_answer expand_split(const struct mgpu_node *node,
                                           const struct mgpu_split *in, struct mgpu_split *out,
                                           int *which)
{
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    int batch = mgpu_dims_batch_axis(y->rank, y->dims), added = y->rank - x->rank;
    if (in[0].kind == MGPU_SPLIT_AXIS) {
        int axis = in[0].axis + added;
        if (batch != axis || !mgpu_dim_same(y->dims[axis], x->dims[in[0].axis]))
            return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
        return mgpu_split_ok(out, MGPU_SPLIT_AXIS, axis, in[0].outer);
    }
    if (batch == -1)
        return mgpu_split_ok(out, in[0].kind, 0, 1);
    if (mgpu_split_is_term(in[0]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    if (batch < 0 || (batch >= added && x->dims[batch - added].value != 1))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return mgpu_split_ok(out, MGPU_SPLIT_AXIS, batch, 1);
}

const struct mgpu_op mgpu_op_expand = {
    .name = "expand",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_shape_attrs),
    .attrs = shape_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = expand_shape,
    .gradient = expand_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = expand_split,
};

/* ---- concat -------------------------------------------------------------------------------- */

static int concat_mismatch(const struct mgpu_node *node, int part)
{
    const struct mgpu_concat_attrs *a = node->attrs;
    const struct mgpu_value *first = node->input[0], *other = node->input[part];
    char text[2][MGPU_SHAPE_TEXT];
    return mgpu_fail(
        MGPU_EINVALID, "concat along axis %" PRId64 ": %s %s does not fit %s %s", a->axis,
        mgpu_dtype_name(other->type), mgpu_dims_text(text[0], other->rank, other->dims),
        mgpu_dtype_name(first->type), mgpu_dims_text(text[1], first->rank, first->dims));
}

static int concat_shape(const struct mgpu_node *node)
{
    const struct mgpu_concat_attrs *a = node->attrs;
    const struct mgpu_value *first = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (a->axis < 0 || a->axis >= first->rank)
        return mgpu_fail(MGPU_EINVALID, "concat: axis %" PRId64 " of a tensor of rank %d", a->axis,
                         first->rank);
    for (int i = 0; i < first->rank; i++)
        dims[i] = first->dims[i];
    for (int k = 1; k < node->inputs; k++) {
        const struct mgpu_value *x = node->input[k];
        if (x->rank != first->rank || x->type != first->type)
            return concat_mismatch(node, k);
        for (int i = 0; i < x->rank; i++) {
            if (i == a->axis)
                dims[i] = mgpu_dim_add(dims[i], x->dims[i]);
            else if (x->dims[i].value != first->dims[i].value)
                return concat_mismatch(node, k);
            else if (mgpu_dim_is_const(dims[i]))
                dims[i] = x->dims[i];
        }
    }
    mgpu_shape_set(node, 0, first->type, first->rank, dims);
    return 0;
}

static int concat_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                           struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    const struct mgpu_concat_attrs *a = node->attrs;
    int64_t start = 0;
    for (int k = 0; k < node->inputs && dy[0]; k++) {
        struct mgpu_dim size = node->input[k]->dims[a->axis];
        if (wanted[k]) {
            dx[k] = mgpu_slice_axis(g, dy[0], (int)a->axis, start, size);
            if (!dx[k])
                return mgpu_build_error();
        }
        start += size.value;
    }
    return 0;
}

/* Parts that all carry their samples along the concatenated axis: the part's number becomes the
 * slowest index of the samples' axis. */
static enum mgpu_split_answer concat_split(const struct mgpu_node *node,
                                           const struct mgpu_split *in, struct mgpu_split *out,
                                           int *which)
{
    const struct mgpu_concat_attrs *a = node->attrs;
    bool equal = true;
    int term = -1;
    for (int k = 0; k < node->inputs; k++) {
        if (mgpu_split_is_term(in[k]))
            term = k;
        if (!mgpu_split_same(in[k], in[0])) {
            equal = false;
            *which = k;
        }
    }
    if (!equal)
        return term >= 0 ? mgpu_split_no(which, term, MGPU_SPLIT_FULL) : MGPU_SPLIT_MIXES;
    out[0] = in[0];
    if (in[0].kind != MGPU_SPLIT_AXIS || in[0].axis != a->axis)
        return MGPU_SPLIT_OK;
    for (int k = 1; k < node->inputs; k++)
        if (!mgpu_dim_same(node->input[k]->dims[a->axis], node->input[0]->dims[a->axis]))
            return mgpu_split_no(which, k, MGPU_SPLIT_MIXES);
    out[0].outer = in[0].outer * node->inputs;
    return MGPU_SPLIT_OK;
}

static const struct mgpu_attr concat_attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_concat_attrs, axis)},
    {0}};

const struct mgpu_op mgpu_op_concat = {
    .name = "concat",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_VARIADIC,
    .attrs_size = sizeof(struct mgpu_concat_attrs),
    .attrs = concat_attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = concat_shape,
    .gradient = concat_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = mgpu_cost_move,
    .split = concat_split,
};
