/* Smaller graphs: constants inside expressions, equal nodes shared. */
#include "runtime/compile/fuse.h"
#include "runtime/compile/storage.h"
#include "runtime/ops/pointwise.h"

#include <stdlib.h>
#include <string.h>

const struct mgpu_expr *mgpu_expr_of(const struct mgpu_node *node)
{
    if (node->op != &mgpu_op_pointwise)
        return NULL;
    return ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
}

/* ---- Inputs of expressions ------------------------------------------------------------------- */

bool mgpu_set_expr(struct mgpu_graph *g, struct mgpu_node *node, struct mgpu_expr *e, int result,
                   int count, struct mgpu_value *const *input)
{
    struct mgpu_expr *made = (struct mgpu_expr *)mgpu_expr_end(e, result, g->arena);
    struct mgpu_value *packed[MGPU_MAX_INPUTS];
    if (!made)
        return false;
    made->inputs = mgpu_expr_pack(made, count, input, packed);
    struct mgpu_pointwise_attrs attrs = {.expr = made};
    node->attrs = mgpu_arena_copy(g->arena, &attrs, sizeof attrs);
    node->inputs = made->inputs;
    node->input = mgpu_arena_copy(g->arena, packed, sizeof *packed * (size_t)made->inputs);
    return true;
}

/* The one number that a constant holds, as an operation; -2: it is no such constant. */
static int number_of(struct mgpu_expr *e, const struct mgpu_value *v)
{
    if (v->kind != MGPU_VALUE_CONSTANT || mgpu_value_count(v) != 1)
        return -2;
    if (v->type == MGPU_FLOAT || v->type == MGPU_DOUBLE)
        return mgpu_expr_number(e, v->type, mgpu_get_double(v->data, v->type, 0));
    if (v->type == MGPU_BOOL || v->type == MGPU_INT32 || v->type == MGPU_INT64)
        return mgpu_expr_integer(e, v->type, (int64_t)mgpu_get_double(v->data, v->type, 0));
    return -2;
}

int mgpu_expr_again(struct mgpu_expr *e, const struct mgpu_expr *from, int k, const int *number)
{
    const struct mgpu_expr_op *op = &from->op[k];
    if (op->code == MGPU_X_INPUT)
        return mgpu_expr_input(e, (int)op->integer, op->type);
    int a = op->arg[0] < 0 ? -1 : number[op->arg[0]], b = op->arg[1] < 0 ? -1 : number[op->arg[1]];
    if (op->code == MGPU_X_CONST)
        return mgpu_is_float(op->type) ? mgpu_expr_number(e, op->type, op->number)
                                       : mgpu_expr_integer(e, op->type, op->integer);
    if (op->code == MGPU_X_CAST)
        return mgpu_expr_cast(e, op->type, a);
    if (op->code == MGPU_X_WHERE)
        return mgpu_expr_where(e, a, b, number[op->arg[2]]);
    return mgpu_expr_arity(op->code) == 1 ? mgpu_expr_1(e, op->code, a)
                                          : mgpu_expr_2(e, op->code, a, b);
}

/* An input that is given twice is read once. */
static int first_input(const struct mgpu_node *node, int which)
{
    for (int i = 0; i < which; i++)
        if (node->input[i] == node->input[which])
            return i;
    return which;
}

static void settle(struct mgpu_graph *g, struct mgpu_node *node)
{
    const struct mgpu_expr *from = mgpu_expr_of(node);
    struct mgpu_expr e;
    int number[MGPU_EXPR_MAX];
    mgpu_expr_begin(&e, node->inputs);
    for (int k = 0; k < from->count; k++) {
        const struct mgpu_expr_op *op = &from->op[k];
        if (op->code != MGPU_X_INPUT) {
            number[k] = mgpu_expr_again(&e, from, k, number);
            continue;
        }
        number[k] = number_of(&e, node->input[op->integer]);
        if (number[k] == -2)
            number[k] = mgpu_expr_input(&e, first_input(node, (int)op->integer), op->type);
    }
    mgpu_set_expr(g, node, &e, number[from->count - 1], node->inputs, node->input);
}

void mgpu_settle_expressions(struct mgpu_graph *g)
{
    for (int n = 0; n < g->node_count; n++)
        if (mgpu_expr_of(g->nodes[n]))
            settle(g, g->nodes[n]);
}

/* ---- Readers and what lasts ------------------------------------------------------------------ */

struct mgpu_readers *mgpu_readers_of(const struct mgpu_graph *g)
{
    struct mgpu_readers *readers = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *readers);
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++) {
            if (!g->nodes[n]->input[i])
                continue;
            struct mgpu_readers *r = &readers[g->nodes[n]->input[i]->id];
            if (r->count && r->node[r->count - 1] == g->nodes[n])
                continue;
            r->node = mgpu_grow(r->node, (size_t)r->count, sizeof *r->node);
            r->node[r->count++] = g->nodes[n];
        }
    return readers;
}

void mgpu_readers_free(struct mgpu_readers *readers, const struct mgpu_graph *g)
{
    for (int i = 0; i < g->value_count; i++)
        free(readers[i].node);
    free(readers);
}

bool *mgpu_lasting_values(const struct mgpu_graph *g)
{
    bool *lasts = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *lasts);
    for (int i = 0; i < g->output_count; i++)
        lasts[g->outputs[i]->id] = true;
    for (int i = 0; i < g->parameter_count; i++) {
        const struct mgpu_parameter *p = &g->parameters[i];
        if (p->gradient)
            lasts[p->gradient->id] = true;
        if (p->next)
            lasts[p->next->id] = true;
    }
    return lasts;
}

/* ---- Equal nodes ----------------------------------------------------------------------------- */

static bool same_value(struct mgpu_dim a, struct mgpu_dim b)
{
    return a.value == b.value;
}

bool mgpu_same_attrs(const struct mgpu_node *a, const struct mgpu_node *b)
{
    return mgpu_attrs_same(a, b, same_value);
}

/* Scalars may be shared by whoever comes later; larger values only within a pass, so that forward's
 * do not live through backward for it. */
static bool may_share(const struct mgpu_node *first, const struct mgpu_node *later)
{
    bool small = mgpu_value_count(first->output[0]) == 1;
    return first->origin.role == later->origin.role ||
           (small && first->origin.role != MGPU_UPDATE && first->origin.role != MGPU_COMMUNICATION);
}

static bool equal_nodes(const struct mgpu_node *a, const struct mgpu_node *b)
{
    if (a->op != b->op || a->inputs != b->inputs || a->outputs != b->outputs)
        return false;
    if (memcmp(a->input, b->input, sizeof *a->input * (size_t)a->inputs))
        return false;
    for (int i = 0; i < a->outputs; i++)
        if (!a->output[i] || !b->output[i] || a->output[i]->rank != b->output[i]->rank ||
            a->output[i]->type != b->output[i]->type)
            return false;
    return may_share(a, b) && mgpu_same_attrs(a, b);
}

/* Values whose memory has another purpose than to be read: what lasts, what is communicated (in
 * place), and what those are views of. */
static bool *find_claimed(const struct mgpu_graph *g)
{
    bool *claimed = mgpu_lasting_values(g);
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = g->nodes[n];
        bool all = node->op->flags & MGPU_OP_COMMUNICATION;
        bool view = mgpu_is_view(node) && claimed[node->output[0]->id];
        for (int i = 0; i < node->inputs; i++)
            if (node->input[i] && (all || view))
                claimed[node->input[i]->id] = true;
    }
    return claimed;
}

static bool can_share(const struct mgpu_node *node, const bool *claimed)
{
    if (!node->inputs || !node->input[0] || !node->outputs ||
        node->op->flags & (MGPU_OP_NO_FOLD | MGPU_OP_COMMUNICATION))
        return false;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && claimed[node->output[i]->id])
            return false;
    return true;
}

void mgpu_share_equal_nodes(struct mgpu_graph *g)
{
    bool *claimed = find_claimed(g);
    size_t values = (size_t)g->value_count + 1, nodes = (size_t)g->node_count + 1;
    struct mgpu_value **instead = mgpu_xcalloc(values, sizeof(struct mgpu_value *));
    struct mgpu_node **with = mgpu_xcalloc(values, sizeof(struct mgpu_node *));
    struct mgpu_node **before = mgpu_xcalloc(nodes, sizeof(struct mgpu_node *));
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *node = g->nodes[n];
        for (int i = 0; i < node->inputs; i++)
            if (node->input[i] && instead[node->input[i]->id])
                node->input[i] = instead[node->input[i]->id];
        if (!can_share(node, claimed))
            continue;
        struct mgpu_node **last = &with[node->input[0]->id], *other = *last;
        while (other && !equal_nodes(other, node))
            other = before[other->id];
        for (int i = 0; other && i < node->outputs; i++)
            instead[node->output[i]->id] = other->output[i];
        if (other)
            continue;
        before[n] = *last;
        *last = node;
    }
    free(claimed);
    free(instead);
    free(with);
    free(before);
}
