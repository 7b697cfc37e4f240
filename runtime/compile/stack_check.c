/* Stacking: what can be one call (stack.h). */
#include "runtime/compile/stack.h"

#include "runtime/compile/batch_facts.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/movement.h"

#include <stdlib.h>
#include <string.h>

void mgpu_stack_view_init(struct mgpu_stack_view *view, const struct mgpu_graph *g)
{
    view->g = g;
    mgpu_follow_init(&view->follow, g);
    view->ends = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *view->ends);
    for (int i = 0; i < g->output_count; i++)
        view->ends[g->outputs[i]->id] = true;
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = g->nodes[n];
        bool moves = node->op == &mgpu_op_reshape || node->op == &mgpu_op_transpose;
        if (moves && view->ends[node->output[0]->id])
            view->ends[node->input[0]->id] = true;
    }
}

void mgpu_stack_view_free(struct mgpu_stack_view *view)
{
    mgpu_follow_free(&view->follow);
    free(view->ends);
}

bool mgpu_stack_has_samples(const struct mgpu_stack_view *view, const struct mgpu_value *v)
{
    return v && (!view->follow.known[v->id] || view->follow.split[v->id].kind == MGPU_SPLIT_AXIS);
}

bool mgpu_stack_concerns(const struct mgpu_stack_view *view, const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (mgpu_stack_has_samples(view, node->input[i]))
            return true;
    return false;
}

static bool same_shape(const struct mgpu_value *a, const struct mgpu_value *b)
{
    if (a->type != b->type || a->rank != b->rank)
        return false;
    for (int k = 0; k < a->rank; k++)
        if (!mgpu_dim_same(a->dims[k], b->dims[k]))
            return false;
    return true;
}

static bool same_numbers(const struct mgpu_value *a, const struct mgpu_value *b)
{
    return a == b || (a->kind == MGPU_VALUE_CONSTANT && b->kind == MGPU_VALUE_CONSTANT &&
                      same_shape(a, b) && !memcmp(a->data, b->data, (size_t)mgpu_value_bytes(a)));
}

/* The samples of `v` can be set apart: the axis is `outer` blocks of as many. */
static bool divides(const struct mgpu_value *v, struct mgpu_split s)
{
    struct mgpu_dim blocks = mgpu_dim_const(s.outer);
    return s.outer == 1 ||
           (v->rank < MGPU_MAX_RANK && !mgpu_dim_div(v->dims[s.axis], blocks).opaque);
}

static const char *refuses_value(const struct mgpu_stack_view *view, const struct mgpu_value *v)
{
    if (!view->follow.known[v->id])
        return "its samples are mixed";
    struct mgpu_split s = view->follow.split[v->id];
    if (mgpu_split_is_term(s))
        return "it sums over the batch";
    if (v->kind == MGPU_VALUE_CONSTANT && mgpu_mixes_samples(view->g, v))
        return "a constant belongs to samples of the batch";
    return s.kind == MGPU_SPLIT_AXIS && !divides(v, s) ? "its samples cannot be told apart" : NULL;
}

/* A cut along the samples' axis says where in numbers. */
static bool cuts_samples(const struct mgpu_stack_view *view, const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    int axis = view->follow.split[x->id].axis;
    return (node->op == &mgpu_op_slice || node->op == &mgpu_op_slice_grad) &&
           x->dims[axis].value != y->dims[axis].value;
}

static const char *refuses_inputs(const struct mgpu_stack_view *view, const struct mgpu_node *a,
                                  const struct mgpu_node *b)
{
    for (int i = 0; i < a->inputs; i++) {
        const struct mgpu_value *x = a->input[i], *y = b->input[i];
        if (!x != !y)
            return "it takes other inputs";
        const char *why = x ? refuses_value(view, x) : NULL;
        if (!why && y)
            why = refuses_value(view, y);
        if (why)
            return why;
        if (!x)
            continue;
        struct mgpu_split s = view->follow.split[x->id], t = view->follow.split[y->id];
        if (!mgpu_split_same(s, t) || !same_shape(x, y))
            return "its inputs have other sizes";
        if (s.kind != MGPU_SPLIT_AXIS && !same_numbers(x, y))
            return x->kind == MGPU_VALUE_PARAMETER ? "its weights are others"
                                                   : "it takes other inputs";
    }
    return NULL;
}

static const char *refuses_outputs(const struct mgpu_stack_view *view, const struct mgpu_node *a,
                                   const struct mgpu_node *b)
{
    for (int i = 0; i < a->outputs; i++) {
        const struct mgpu_value *x = a->output[i], *y = b->output[i];
        if (!x != !y || (x && !same_shape(x, y)))
            return "its outputs have other sizes";
        const char *why = x ? refuses_value(view, x) : NULL;
        if (why)
            return why;
        if (x && view->follow.split[x->id].kind != MGPU_SPLIT_AXIS)
            return "its samples are mixed";
        if (x && (view->ends[x->id] || view->ends[y->id]))
            return "it makes an output of the model";
    }
    return NULL;
}

const char *mgpu_stack_refuses(const struct mgpu_stack_view *view, const struct mgpu_node *first,
                               const struct mgpu_node *node)
{
    if (first->op != node->op || first->inputs != node->inputs || first->outputs != node->outputs ||
        !mgpu_same_attrs(first, node))
        return "it is another operator, or has other attributes";
    if (first->op->flags & (MGPU_OP_NO_FOLD | MGPU_OP_COMMUNICATION))
        return "it depends on more than its inputs";
    const char *why = refuses_inputs(view, first, node);
    if (!why)
        why = refuses_outputs(view, first, node);
    return !why && cuts_samples(view, first) ? "it cuts the batch" : why;
}
