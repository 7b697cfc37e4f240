#include "runtime/compile/walk.h"

/* Passes on errors and MGPU_LATER. */
#define PASS_ON(expr)                                                                              \
    do {                                                                                           \
        int rc_ = (expr);                                                                          \
        if (rc_ != 0)                                                                              \
            return rc_;                                                                            \
    } while (0)

bool mgpu_skipped(const struct mgpu_instruction *in, const struct mgpu_execution *run)
{
    return (in->last_piece && !run->last_piece) || (run->idle && !in->when_idle);
}

/* Computation runs in order by itself. */
static int wait_for(struct mgpu_walk *w, const struct mgpu_instruction *in)
{
    for (int i = 0; i < in->waits; i++) {
        int k = w->program->setter[in->wait[i]];
        if (k >= 0 && w->program->instruction[k].queue == MGPU_QUEUE_COMMUNICATION &&
            !mgpu_skipped(&w->program->instruction[k], w->run))
            PASS_ON(w->ops->wait(w, in, k));
    }
    return 0;
}

/* All communication, or what this rank gets of it, started before instruction `before`. */
static int wait_for_started(struct mgpu_walk *w, const struct mgpu_instruction *by, int before,
                            bool sends)
{
    for (int k = 0; k < before; k++) {
        const struct mgpu_instruction *in = &w->program->instruction[k];
        bool counts = in->queue == MGPU_QUEUE_COMMUNICATION &&
                      (sends || in->collective.kind != MGPU_COLLECTIVE_SEND);
        if (counts && !mgpu_skipped(in, w->run))
            PASS_ON(w->ops->wait(w, by, k));
    }
    return 0;
}

static int step(struct mgpu_walk *w, int k)
{
    struct mgpu_instruction *in = &w->program->instruction[k];
    if (in->queue == MGPU_QUEUE_COMMUNICATION) {
        in->collective.contributes = in->gradients ? w->run->contributes : !w->run->idle;
        PASS_ON(wait_for(w, in)); /* what another group communicates */
        return w->ops->communicate(w, k);
    }
    bool update = in->node->origin.role == MGPU_UPDATE;
    if (update && !w->updating && !w->program->early) {
        /* others' receives may still wait for this rank */
        PASS_ON(wait_for_started(w, in, k, false));
        PASS_ON(w->ops->check(w, in));
        w->updating = true;
    }
    PASS_ON(wait_for(w, in));
    if (update && w->program->early)
        PASS_ON(w->ops->check(w, in));
    return w->ops->compute(w, k);
}

int mgpu_walk_on(struct mgpu_walk *w)
{
    struct mgpu_program *p = w->program;
    for (; w->next < p->instructions; w->next++)
        if (!mgpu_skipped(&p->instruction[w->next], w->run))
            PASS_ON(step(w, w->next));
    PASS_ON(wait_for_started(w, NULL, p->instructions, true));
    return w->updating ? 0 : w->ops->check(w, NULL);
}
