/* Replicas that keep one copy of what they all compute: each changes a part of it. */
#include "runtime/compile/program.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/update.h"

#include <assert.h>

enum { LINE = 64 };

static bool is_update(const struct mgpu_instruction *in)
{
    return in->node->op == &mgpu_op_update;
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

/* The sum that gives the gradient of an early update; -1: none. */
static int own_sum(const struct mgpu_program *p, const struct mgpu_instruction *update)
{
    const struct mgpu_value *g = update->node->input[MGPU_UPDATE_GRADIENT];
    for (int k = 0; k < p->instructions && g->kind == MGPU_VALUE_RESULT; k++)
        if (p->instruction[k].node == g->producer && g->producer->op == &mgpu_op_all_reduce)
            return k;
    return -1;
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

static void cut(struct mgpu_instruction *in, int part, int parts)
{
    const struct mgpu_value *w = in->node->input[0];
    int64_t size = (int64_t)mgpu_dtype_size(w->type), count = mgpu_value_count(w);
    int64_t line = LINE / size, lines = (count + line - 1) / line;
    int64_t from = lines * part / parts * line, to = lines * (part + 1) / parts * line;
    to = to < count ? to : count;
    for (int i = 0; i < in->inputs + in->outputs; i++) {
        struct mgpu_tensor *t = &in->tensor[i];
        const struct mgpu_value *v =
            i < in->inputs ? in->node->input[i] : in->node->output[i - in->inputs];
        if (!v || v->type != w->type || mgpu_value_count(v) != count)
            continue;
        assert(v->block == 0);
        t->data = (char *)t->data + from * size;
        t->rank = 1;
        t->dims[0] = to - from;
    }
}

void mgpu_program_cut(struct mgpu_program *p, int part, int parts)
{
    for (int k = 0; k < p->instructions; k++)
        if (is_update(&p->instruction[k]))
            cut(&p->instruction[k], part, parts);
}
