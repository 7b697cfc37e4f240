/* Replays a program's list: every two accesses of the same bytes, one of them writing, must be
 * ordered by their queue or by events. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/compile/program.h"

#include <stdlib.h>

/* One stream computes, each group communicates in one of its own. */
static int stream_of(const struct mgpu_instruction *in)
{
    return in->queue == MGPU_QUEUE_COMPUTE ? 0 : 1 + in->group;
}

/* before[i * streams + s]: the last instruction of stream s that is complete before i starts; -1:
 * none. */
static void join(int *into, const int *from, int streams)
{
    for (int s = 0; s < streams; s++)
        if (from[s] > into[s])
            into[s] = from[s];
}

/* Everything that is complete when `from` is. */
static void follow(int *into, const int *before, const struct mgpu_program *p, int from,
                   int streams)
{
    int own = stream_of(&p->instruction[from]);
    join(into, before + from * streams, streams);
    if (into[own] < from)
        into[own] = from;
}

static void replay(const struct mgpu_program *p, int *before, int streams)
{
    int *set_by = mgpu_xcalloc((size_t)p->events + 1, sizeof *set_by);
    int *last = mgpu_xcalloc((size_t)streams, sizeof *last); /* + 1 */
    for (int i = 0; i < p->instructions; i++) {
        const struct mgpu_instruction *in = &p->instruction[i];
        int *mine = before + i * streams, own = stream_of(in);
        for (int s = 0; s < streams; s++)
            mine[s] = -1;
        if (last[own])
            follow(mine, before, p, last[own] - 1, streams);
        for (int w = 0; w < in->waits; w++)
            if (set_by[in->wait[w]])
                follow(mine, before, p, set_by[in->wait[w]] - 1, streams);
        if (in->signal >= 0)
            set_by[in->signal] = i + 1;
        last[own] = i + 1;
    }
    free(set_by);
    free(last);
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

static int check_pair(const struct mgpu_program *p, int k, int i)
{
    const struct mgpu_instruction *a = &p->instruction[k], *b = &p->instruction[i];
    if (!touch(a, b))
        return 0;
    return mgpu_fail(MGPU_EINTERNAL,
                     "instructions %d (%s) and %d (%s) touch the same memory without an order", k,
                     a->node->op->name, i, b->node->op->name);
}

int mgpu_program_check(const struct mgpu_program *p)
{
    int streams = 1, rc = 0;
    for (int i = 0; i < p->instructions; i++)
        if (stream_of(&p->instruction[i]) >= streams)
            streams = stream_of(&p->instruction[i]) + 1;
    int *before = mgpu_xcalloc((size_t)p->instructions * (size_t)streams + 1, sizeof *before);
    replay(p, before, streams);
    int *earlier = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *earlier);
    int *last = mgpu_xcalloc((size_t)streams, sizeof *last);
    for (int s = 0; s < streams; s++)
        last[s] = -1;
    for (int i = 0; i < p->instructions && rc == 0; i++) {
        for (int s = 0; s < streams && rc == 0; s++)
            for (int k = last[s]; k > before[i * streams + s] && rc == 0; k = earlier[k])
                rc = check_pair(p, k, i);
        int own = stream_of(&p->instruction[i]);
        earlier[i] = last[own]; /* of the same stream */
        last[own] = i;
    }
    free(earlier);
    free(last);
    free(before);
    return rc;
}
