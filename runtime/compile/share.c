/* Replicas that keep one copy of what they all compute: each changes a part of it. */
#include "runtime/compile/program.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/update.h"

#include <assert.h>
#include <stdlib.h>

static bool is_update(const struct mgpu_instruction *in)
{
    return mgpu_is_update(in->node);
}

static bool writes_store(const struct mgpu_instruction *in)
{
    for (int i = 0; i < in->operands; i++) {
        const struct mgpu_operand *o = &in->operand[i];
        bool stored = o->buffer == MGPU_BUFFER_WEIGHTS || o->buffer == MGPU_BUFFER_STATES;
        if (stored && o->bytes >= 0 && o->write)
            return true;
    }
    return false;
}

/* The last sum of gradients that every rank waits for before it changes anything (executor.c): when
 * it is done, all replicas have come that far. */
static int last_sum(const struct mgpu_program *p)
{
    int last = -1;
    for (int k = 0; k < p->instructions && p->instruction[k].node->origin.role != MGPU_UPDATE; k++)
        if (p->instruction[k].gradients)
            last = k;
    return last;
}

static bool gives(const struct mgpu_node *node, const struct mgpu_value *v)
{
    return v && v->kind == MGPU_VALUE_RESULT && v->producer == node;
}

/* What gives the gradient of an early update, or its factors, over all replicas; -1: nothing. */
static int own_sum(const struct mgpu_program *p, const struct mgpu_instruction *update)
{
    const struct mgpu_node *u = update->node;
    int last = -1;
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_node *node = p->instruction[k].node;
        bool all = node->op == &mgpu_op_all_reduce || node->op == &mgpu_op_all_gather;
        for (int i = 0; i < u->inputs && all; i++)
            if ((i == MGPU_UPDATE_GRADIENT || i == MGPU_UPDATE_FACTOR) && gives(node, u->input[i]))
                last = k;
    }
    return last;
}

static bool overlap(const struct mgpu_operand *a, const struct mgpu_operand *b)
{
    return a->bytes > 0 && b->bytes > 0 && a->buffer == b->buffer &&
           a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Whether somebody else than updates touches what the update changes, behind its sum. */
static bool is_read_late(const struct mgpu_program *p, const struct mgpu_instruction *update)
{
    for (int k = p->early ? own_sum(p, update) + 1 : last_sum(p) + 1; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        for (int i = 0; i < in->operands && !is_update(in); i++)
            for (int o = update->inputs; o < update->inputs + update->outputs; o++)
                if (overlap(&in->operand[i], &update->operand[o]))
                    return true;
    }
    return false;
}

bool mgpu_program_may_share(const struct mgpu_program *p)
{
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        if (is_update(in) ? !mgpu_update_is_pointwise(in->node) || is_read_late(p, in)
                          : writes_store(in))
            return false;
    }
    return true;
}

/* Whether operand v of the update of weight w is one element for each of its. */
static bool is_cut(const struct mgpu_value *v, const struct mgpu_value *w)
{
    return v && v->type == w->type && mgpu_value_count(v) == mgpu_value_count(w);
}

static void move(struct mgpu_tensor *t, int64_t elements)
{
    t->data = (char *)t->data + elements * (int64_t)mgpu_dtype_size(t->type);
}

/* The elements of a part; of a product it is whole rows, made of columns of its first factor. */
static void cut(struct mgpu_instruction *in, int part, int parts)
{
    const struct mgpu_value *w = in->node->input[MGPU_UPDATE_WEIGHT];
    bool product = in->node->op == &mgpu_op_product_update;
    int64_t row = product ? w->dims[1].value : 1, from, to;
    mgpu_comm_slice(mgpu_value_count(w) / row, w->type, part, parts, &from, &to);
    for (int i = 0; i < in->inputs + in->outputs; i++) {
        struct mgpu_tensor *t = &in->tensor[i];
        const struct mgpu_value *v =
            i < in->inputs ? in->node->input[i] : in->node->output[i - in->inputs];
        if (!is_cut(v, w) || (product && (i == MGPU_UPDATE_GRADIENT || i == MGPU_UPDATE_FACTOR)))
            continue;
        assert(v->block == 0);
        move(t, from * row);
        t->rank = product ? 2 : 1;
        t->dims[0] = to - from;
    }
    if (product)
        move(&in->tensor[MGPU_UPDATE_GRADIENT], from);
}

/* Values that some node, be it a view, reads elsewhere than in the part of an update that was cut,
 * by id. */
static bool *find_whole(const struct mgpu_program *p)
{
    bool *whole = mgpu_xcalloc((size_t)p->graph->value_count, sizeof *whole);
    for (int i = 0; i < p->graph->output_count; i++)
        whole[p->graph->outputs[i]->id] = true;
    for (int k = 0; k < p->graph->node_count; k++) {
        const struct mgpu_node *n = p->graph->nodes[k];
        for (int i = 0; i < n->inputs; i++)
            if (n->input[i] && !(n->op == &mgpu_op_update && i == MGPU_UPDATE_GRADIENT &&
                                 is_cut(n->input[i], n->input[MGPU_UPDATE_WEIGHT])))
                whole[n->input[i]->id] = true;
    }
    return whole;
}

/* Sums that nobody needs whole. Updates at the step's end are not among them: gradients are looked
 * at there before (finite.c). */
static void cut_sums(struct mgpu_program *p)
{
    bool *whole = find_whole(p);
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        bool slice = in->node->op == &mgpu_op_all_reduce;
        for (int i = 0; i < in->node->outputs; i++)
            slice = slice && !whole[in->node->output[i]->id];
        in->collective.slice_only = slice;
    }
    free(whole);
}

void mgpu_program_cut(struct mgpu_program *p, int part, int parts)
{
    for (int k = 0; k < p->instructions; k++)
        if (is_update(&p->instruction[k]))
            cut(&p->instruction[k], part, parts);
    if (p->early)
        cut_sums(p);
}
