/* Replays a program's list: every two accesses of the same bytes, one of them writing, must be
 * ordered by their queue or by events. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/compile/program.h"

#include <stdlib.h>

/* clock[i][q]: instructions of queue q up to this position (in the list) are complete before
 * instruction i starts; -1: none. */
typedef int clock_of[MGPU_QUEUES];

static void join(clock_of into, const clock_of from)
{
    for (int q = 0; q < MGPU_QUEUES; q++)
        if (from[q] > into[q])
            into[q] = from[q];
}

static void replay(const struct mgpu_program *p, clock_of *before)
{
    int *set_by = mgpu_xcalloc((size_t)p->events + 1, sizeof *set_by);
    int last[MGPU_QUEUES] = {-1, -1};
    for (int i = 0; i < p->instructions; i++) {
        const struct mgpu_instruction *in = &p->instruction[i];
        for (int q = 0; q < MGPU_QUEUES; q++)
            before[i][q] = -1;
        if (last[in->queue] >= 0) {
            join(before[i], before[last[in->queue]]);
            before[i][in->queue] = last[in->queue];
        }
        for (int w = 0; w < in->waits; w++) {
            int from = set_by[in->wait[w]] - 1;
            if (from < 0)
                continue;
            join(before[i], before[from]);
            if (before[i][p->instruction[from].queue] < from)
                before[i][p->instruction[from].queue] = from;
        }
        if (in->signal >= 0)
            set_by[in->signal] = i + 1;
        last[in->queue] = i;
    }
    free(set_by);
}

static bool conflict(const struct mgpu_operand *a, const struct mgpu_operand *b)
{
    return a->bytes > 0 && b->bytes > 0 && a->buffer == b->buffer && (a->write || b->write) &&
           a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool touch(const struct mgpu_instruction *a, const struct mgpu_instruction *b)
{
    for (int i = 0; i < a->operands; i++)
        for (int k = 0; k < b->operands; k++)
            if (conflict(&a->operand[i], &b->operand[k]))
                return true;
    return false;
}

int mgpu_program_check(const struct mgpu_program *p)
{
    clock_of *before = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *before);
    int rc = 0;
    replay(p, before);
    for (int i = 0; i < p->instructions && rc == 0; i++)
        for (int k = 0; k < i && rc == 0; k++) {
            const struct mgpu_instruction *a = &p->instruction[k], *b = &p->instruction[i];
            if (before[i][a->queue] < k && touch(a, b))
                rc = mgpu_fail(MGPU_EINTERNAL,
                               "instructions %d (%s) and %d (%s) touch the same memory without "
                               "an order",
                               k, a->node->op->name, i, b->node->op->name);
        }
    free(before);
    return rc;
}
