/* Replicas that keep one copy of what they all compute: each changes a part of it. */
#include "runtime/compile/program.h"
#include "runtime/ops/update.h"

#include <assert.h>

enum { LINE = 64 };

static bool is_update(const struct mgpu_instruction *in)
{
    return in->node->op == &mgpu_op_update;
}

static bool touches_store(const struct mgpu_instruction *in, bool only_writing)
{
    for (int i = 0; i < in->operands; i++) {
        const struct mgpu_operand *o = &in->operand[i];
        bool stored = o->buffer == MGPU_BUFFER_WEIGHTS || o->buffer == MGPU_BUFFER_STATES;
        if (stored && o->bytes >= 0 && (o->write || !only_writing))
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

bool mgpu_program_may_share(const struct mgpu_program *p)
{
    int sum = last_sum(p);
    bool updates = false;
    for (int k = 0; k < p->instructions; k++)
        updates = updates || is_update(&p->instruction[k]);
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        if (is_update(in) ? !mgpu_update_is_pointwise(in->node)
                          : touches_store(in, k < sum || !updates))
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
