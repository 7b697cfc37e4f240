#include "runtime/executor/executor.h"

#include "runtime/base/finite.h"
#include "runtime/base/status.h"
#include "runtime/compile/finite.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/update.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct context { /* of a walk */
    struct mgpu_comm *const *comm;
    void *const *buffer;
};

static int launch(const struct mgpu_instruction *in)
{
    char text[MGPU_VALUE_TEXT];
    int rc = in->kernel->run(&in->launch);
    return rc < 0 ? mgpu_prefix(rc, "%s", mgpu_origin_text(text, &in->node->origin)) : 0;
}

/* ---- Values that are not finite -------------------------------------------------------------- */

static bool finite_outputs(const struct mgpu_instruction *in)
{
    for (int i = in->inputs; i < in->inputs + in->outputs; i++) {
        const struct mgpu_tensor *t = &in->tensor[i];
        if (t->data && !mgpu_all_finite(t->data, t->type, in->operand[i].bytes))
            return false;
    }
    return true;
}

/* Computes again, looking at every value, to name the node where it began: what stands before
 * instruction `end`, but for updates, which have changed some weights if there are any. */
static int name_first(struct mgpu_program *p, const struct mgpu_execution *run, const char *what,
                      int end)
{
    bool changed = false;
    for (int k = 0; k < end; k++)
        changed = changed || (p->instruction[k].node->origin.role == MGPU_UPDATE &&
                              !mgpu_skipped(&p->instruction[k], run));
    for (int k = 0; k < end; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        if (mgpu_skipped(in, run) || in->queue != MGPU_QUEUE_COMPUTE ||
            in->node->origin.role == MGPU_UPDATE)
            continue;
        MGPU_TRY(launch(in));
        if (!finite_outputs(in))
            return mgpu_not_finite(what, in, changed);
    }
    return mgpu_not_finite(what, NULL, changed);
}

/* Other ranks may change weights that this one shares as long as they run: where updates are early
 * the node is named later, when nobody does (run->names). */
static int stop(struct mgpu_program *p, const char *what, int at)
{
    snprintf(p->stop.what, MGPU_VALUE_TEXT, "%s", what);
    p->stop.at = at;
    return mgpu_fail(MGPU_EINVALID, "%s is not finite", what);
}

static int check(struct mgpu_walk *walk, const struct mgpu_instruction *update)
{
    char text[MGPU_VALUE_TEXT];
    const struct context *c = walk->context;
    struct mgpu_program *p = walk->program;
    const char *what = mgpu_find_not_finite(text, p, c->buffer, walk->run, update);
    int before = update ? (int)(update - p->instruction) : p->instructions;
    if (!what)
        return 0;
    if (p->early)
        return stop(p, what, before);
    if (!walk->run->not_finite)
        return name_first(p, walk->run, what, before);
    *walk->run->not_finite = true;
    return 0;
}

/* ---- The loop -------------------------------------------------------------------------------- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The thread waits, whoever it is for; the time counts as the communication's. */
static int wait(struct mgpu_walk *walk, const struct mgpu_instruction *by, int k)
{
    const struct context *c = walk->context;
    struct mgpu_program *p = walk->program;
    const struct mgpu_instruction *in = &p->instruction[k];
    double *times = walk->run->times, start = times ? seconds_now() : 0;
    (void)by;
    MGPU_TRY(mgpu_comm_wait(c->comm[in->group], &p->done[in->signal]));
    if (times)
        times[k] += seconds_now() - start;
    return 0;
}

static int compute(struct mgpu_walk *walk, int k)
{
    char text[MGPU_VALUE_TEXT];
    double *times = walk->run->times, start = times ? seconds_now() : 0;
    const struct mgpu_instruction *in = &walk->program->instruction[k];
    int rc = launch(in);
    if (rc == MGPU_EINVALID && in->node->op == &mgpu_op_product_update)
        rc = stop(walk->program,
                  mgpu_gradient_text(text, in->node->input[MGPU_UPDATE_WEIGHT]->name), k);
    MGPU_TRY(rc);
    if (times)
        times[k] += seconds_now() - start;
    return 0;
}

static int communicate(struct mgpu_walk *walk, int k)
{
    const struct context *c = walk->context;
    struct mgpu_instruction *in = &walk->program->instruction[k];
    return mgpu_comm_start(c->comm[in->group], &in->collective);
}

static const struct mgpu_walk_ops ops = {
    .compute = compute, .communicate = communicate, .wait = wait, .check = check};

int mgpu_execute(struct mgpu_program *p, struct mgpu_comm *const *comm,
                 void *const buffer[MGPU_BUFFERS], const struct mgpu_execution *run)
{
    struct context c = {.comm = comm, .buffer = buffer};
    struct mgpu_walk walk = {.ops = &ops, .context = &c, .program = p, .run = run};
    memcpy(buffer[MGPU_BUFFER_SCALARS], run->scalars, sizeof(double) * MGPU_SCALARS);
    if (run->names)
        return p->stop.what[0] ? name_first(p, run, p->stop.what, p->stop.at) : 0;
    return mgpu_walk_on(&walk);
}
