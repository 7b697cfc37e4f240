#include "runtime/emit/last.h"

#include "runtime/ops/movement.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/reorder.h"

#include <string.h>

bool mgpu_lies_last(const struct mgpu_value *v)
{
    return v->block && v->block == v->dims[1].value;
}

/* In `rank` axes, the missing ones in front. */
static bool lies_both_in(const struct mgpu_value *v, int rank)
{
    int64_t places = 1;
    int shift = rank - v->rank;
    for (int k = 2 - shift < 0 ? 0 : 2 - shift; k < v->rank; k++)
        places *= v->dims[k].value;
    return places == 1 || shift > 1 || v->dims[1 - shift].value == 1;
}

bool mgpu_lies_both(const struct mgpu_value *v)
{
    return v->rank > 1 && lies_both_in(v, v->rank);
}

/* Axis k of [N,C,S...] among [N,S...,C]. */
static int axis_of(int k, int rank)
{
    return k == 0 ? 0 : k == 1 ? rank - 1 : k - 1;
}

static void permute_dims(struct mgpu_dim *to, const struct mgpu_dim *from, int rank)
{
    for (int k = 0; k < rank; k++)
        to[axis_of(k, rank)] = from[k];
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* v as a plain value of `rank` axes in their new order. */
static bool restate_value(struct mgpu_value *to, const struct mgpu_value *v, int rank)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int shift = rank - v->rank;
    bool known = v->block ? mgpu_lies_last(v) && shift == 0 : shift >= 0 && lies_both_in(v, rank);
    if (!known)
        return false;
    for (int k = 0; k < rank; k++)
        dims[k] = k < shift ? mgpu_dim_const(1) : v->dims[k - shift];
    *to = *v;
    to->block = 0;
    to->rank = rank;
    permute_dims(to->dims, dims, rank);
    return true;
}

static const struct mgpu_value *operand(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : node->output[i - node->inputs];
}

/* The first `count` operands. */
static bool restate_values(struct mgpu_restated *r, const struct mgpu_node *node, int count,
                           int rank)
{
    for (int i = 0; i < count; i++) {
        const struct mgpu_value *v = operand(node, i);
        r->operand[i] = v ? &r->value[i] : NULL;
        if (v && !restate_value(&r->value[i], v, rank))
            return false;
    }
    return true;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

/* One entry for each axis. */
static void permute_attrs(struct mgpu_restated *r, const struct mgpu_node *node, int rank)
{
    for (const struct mgpu_attr *a = node->op->attrs; a && a->name; a++) {
        const char *from = (const char *)node->attrs + a->offset;
        char *to = r->attrs.bytes + a->offset;
        if (a->kind == MGPU_ATTR_INTS)
            for (int k = 0; k < rank; k++)
                ((int64_t *)to)[axis_of(k, rank)] = ((const int64_t *)from)[k];
        if (a->kind == MGPU_ATTR_DIMS) {
            permute_dims(r->dims, *(const struct mgpu_dim *const *)from, rank);
            *(const struct mgpu_dim **)to = r->dims;
        }
    }
}

/* ---- Operators ------------------------------------------------------------------------------- */

static bool is_one_of(const struct mgpu_op *op, const struct mgpu_op *const *list)
{
    while (*list && *list != op)
        list++;
    return *list != NULL;
}

/* All operands have the same axes, or fewer that broadcast; attributes have one entry an axis. */
static bool restate_all(struct mgpu_restated *r, const struct mgpu_node *node)
{
    static const struct mgpu_op *const by_axis[] = {&mgpu_op_slice,  &mgpu_op_slice_grad,
                                                    &mgpu_op_pad,    &mgpu_op_pad_grad,
                                                    &mgpu_op_expand, NULL};
    int rank = node->output[0]->rank;
    if (!restate_values(r, node, node->inputs + node->outputs, rank))
        return false;
    if (is_one_of(node->op, by_axis))
        permute_attrs(r, node, rank);
    if (node->op == &mgpu_op_concat) {
        struct mgpu_concat_attrs *a = (struct mgpu_concat_attrs *)r->attrs.bytes;
        a->axis = axis_of((int)a->axis, rank);
    }
    return true;
}

/* y is plain, or of one place a channel: what is left of the axes must stand in the same order. */
static bool restate_reduce(struct mgpu_restated *r, const struct mgpu_node *node)
{
    struct mgpu_reduce_attrs *a = (struct mgpu_reduce_attrs *)r->attrs.bytes;
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    int64_t axes = 0, places = 1;
    for (int k = 2; k < x->rank; k++)
        places *= a->axes >> k & 1 ? 1 : x->dims[k].value;
    bool channels = !(a->axes >> 1 & 1) && x->dims[1].value > 1;
    if (!restate_values(r, node, 1, x->rank) || y->block || (channels && places > 1))
        return false;
    for (int k = 0; k < x->rank; k++)
        axes |= (a->axes >> k & 1) << axis_of(k, x->rank);
    a->axes = axes;
    r->operand[1] = &r->value[1];
    r->value[1] = *y;
    return true;
}

/* A transposition. */
static bool restate_reorder(struct mgpu_restated *r, const struct mgpu_node *node)
{
    struct mgpu_transpose_attrs *a = (struct mgpu_transpose_attrs *)r->attrs.bytes;
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    int rank = x->rank;
    bool forth = y->block != 0;
    if ((x->block && !mgpu_lies_last(x)) || (y->block && !mgpu_lies_last(y)) || !x->block == !forth)
        return false;
    for (int i = 0; i < 2; i++) {
        const struct mgpu_value *v = i ? y : x;
        r->operand[i] = &r->value[i];
        r->value[i] = *v;
        r->value[i].block = 0;
        if (v->block)
            permute_dims(r->value[i].dims, v->dims, rank);
    }
    for (int k = 0; k < rank; k++)
        a->perm[forth ? axis_of(k, rank) : k] = forth ? k : axis_of(k, rank);
    r->node.op = &mgpu_op_transpose;
    return true;
}

bool mgpu_restate(struct mgpu_restated *r, const struct mgpu_node *node)
{
    static const struct mgpu_op *const all[] = {
        &mgpu_op_pointwise, &mgpu_op_expand,   &mgpu_op_concat,     &mgpu_op_slice,
        &mgpu_op_pad,       &mgpu_op_pad_grad, &mgpu_op_slice_grad, NULL};
    if (node->inputs > MGPU_MAX_INPUTS || node->op->attrs_size > MGPU_RESTATED_ATTRS)
        return false;
    r->node = *node;
    r->node.input = r->operand;
    r->node.output = r->operand + node->inputs;
    r->node.attrs = r->attrs.bytes;
    memset(&r->attrs, 0, sizeof r->attrs);
    if (node->attrs)
        memcpy(r->attrs.bytes, node->attrs, node->op->attrs_size);
    if (node->op == &mgpu_op_reorder)
        return restate_reorder(r, node);
    if (node->op == &mgpu_op_reduce)
        return restate_reduce(r, node);
    return is_one_of(node->op, all) && restate_all(r, node);
}
