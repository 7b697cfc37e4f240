#include "runtime/executor/executor.h"

#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static bool skipped(const struct mgpu_instruction *in, const struct mgpu_execution *run)
{
    return (in->last_piece && !run->last_piece) || (run->idle && !in->when_idle);
}

static int launch(const struct mgpu_instruction *in)
{
    char text[MGPU_VALUE_TEXT];
    int rc = in->kernel->run(&in->launch);
    return rc < 0 ? mgpu_prefix(rc, "%s", mgpu_origin_text(text, &in->node->origin)) : 0;
}

/* ---- Values that are not finite -------------------------------------------------------------- */

static bool finite_floats(const float *x, int64_t n)
{
    float sum = 0; /* 0 * x is NaN where x is not finite */
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += 0 * x[i];
    return sum == 0;
}

static bool finite_doubles(const double *x, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += 0 * x[i];
    return sum == 0;
}

static bool all_finite(const void *data, enum mgpu_dtype type, int64_t n)
{
    if (type == MGPU_FLOAT)
        return finite_floats(data, n);
    return type != MGPU_DOUBLE || finite_doubles(data, n);
}

static bool finite_outputs(const struct mgpu_instruction *in)
{
    for (int i = in->inputs; i < in->inputs + in->outputs; i++) {
        const struct mgpu_tensor *t = &in->tensor[i];
        int64_t n = in->operand[i].bytes / (int64_t)(mgpu_dtype_size(t->type) | !t->data);
        if (t->data && !all_finite(t->data, t->type, n))
            return false;
    }
    return true;
}

/* Computes again, looking at every value, to name the node where it began. */
static int name_first(struct mgpu_program *p, const struct mgpu_execution *run, const char *what)
{
    char text[MGPU_VALUE_TEXT];
    if (run->not_finite) {
        *run->not_finite = true;
        return 0;
    }
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        if (in->node->origin.role == MGPU_UPDATE)
            break;
        if (skipped(in, run) || in->queue != MGPU_QUEUE_COMPUTE)
            continue;
        MGPU_TRY(launch(in));
        if (finite_outputs(in))
            continue;
        const struct mgpu_origin *o = &in->node->origin;
        return mgpu_fail(MGPU_EINVALID,
                         "%s is not finite; the first value that is not is %s%s (operator %s)",
                         what, o->role == MGPU_BACKWARD ? "the gradient of " : "the output of ",
                         mgpu_origin_text(text, o), in->node->op->name);
    }
    return mgpu_fail(MGPU_EINVALID, "%s is not finite (all of this rank's values are)", what);
}

static int check_before_update(struct mgpu_program *p, void *const buffer[MGPU_BUFFERS],
                               const struct mgpu_execution *run)
{
    for (int i = 0; i < p->results && !run->idle; i++) {
        const struct mgpu_port *r = &p->result[i];
        if (r->index < run->losses &&
            !all_finite((char *)buffer[MGPU_BUFFER_RESULTS] + r->offset, r->type, 1))
            return name_first(p, run, "the loss");
    }
    for (int i = 0; i < p->graph->parameter_count && run->check_gradients; i++) {
        const struct mgpu_parameter *q = &p->graph->parameters[i];
        if (q->gradient && p->gradient[i] >= 0 &&
            !all_finite((char *)buffer[MGPU_BUFFER_GRADIENTS] + p->gradient[i], q->value->type,
                        mgpu_value_count(q->value))) {
            char what[MGPU_VALUE_TEXT];
            snprintf(what, sizeof what, "the gradient of '%.200s'", q->name);
            return name_first(p, run, what);
        }
    }
    return 0;
}

/* ---- The loop -------------------------------------------------------------------------------- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits for communication `k`; the time counts as its. */
static int wait_for_one(struct mgpu_program *p, struct mgpu_comm *const *comm,
                        const struct mgpu_execution *run, int k)
{
    const struct mgpu_instruction *in = &p->instruction[k];
    double start = run->times ? seconds_now() : 0;
    MGPU_TRY(mgpu_comm_wait(comm[in->group], &p->done[in->signal]));
    if (run->times)
        run->times[k] += seconds_now() - start;
    return 0;
}

static int wait_for(struct mgpu_program *p, struct mgpu_comm *const *comm,
                    const struct mgpu_execution *run, const struct mgpu_instruction *in)
{
    for (int i = 0; i < in->waits; i++) {
        int k = p->setter[in->wait[i]];
        if (k >= 0 && p->instruction[k].queue == MGPU_QUEUE_COMMUNICATION)
            MGPU_TRY(wait_for_one(p, comm, run, k));
    }
    return 0;
}

/* All communication, or what this rank gets of it, started before instruction `before`. */
static int wait_for_started(struct mgpu_program *p, struct mgpu_comm *const *comm,
                            const struct mgpu_execution *run, int before, bool sends)
{
    for (int k = 0; k < before; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        bool counts = in->queue == MGPU_QUEUE_COMMUNICATION &&
                      (sends || in->collective.kind != MGPU_COLLECTIVE_SEND);
        if (counts && !skipped(in, run))
            MGPU_TRY(wait_for_one(p, comm, run, k));
    }
    return 0;
}

static int compute(struct mgpu_program *p, const struct mgpu_execution *run, int k)
{
    double start = run->times ? seconds_now() : 0;
    MGPU_TRY(launch(&p->instruction[k]));
    if (run->times)
        run->times[k] += seconds_now() - start;
    return 0;
}

int mgpu_execute(struct mgpu_program *p, struct mgpu_comm *const *comm,
                 void *const buffer[MGPU_BUFFERS], const struct mgpu_execution *run)
{
    bool updating = false;
    memcpy(buffer[MGPU_BUFFER_SCALARS], run->scalars, sizeof(double) * MGPU_SCALARS);
    for (int k = 0; k < p->instructions; k++) {
        struct mgpu_instruction *in = &p->instruction[k];
        if (skipped(in, run))
            continue;
        if (in->queue == MGPU_QUEUE_COMMUNICATION) {
            in->collective.contributes = in->gradients ? run->contributes : !run->idle;
            MGPU_TRY(wait_for(p, comm, run, in)); /* what another group communicates */
            MGPU_TRY(mgpu_comm_start(comm[in->group], &in->collective));
            continue;
        }
        if (in->node->origin.role == MGPU_UPDATE && !updating) {
            /* others' receives may still wait for this rank */
            MGPU_TRY(wait_for_started(p, comm, run, k, false));
            MGPU_TRY(check_before_update(p, buffer, run));
            updating = true;
        }
        MGPU_TRY(wait_for(p, comm, run, in));
        MGPU_TRY(compute(p, run, k));
    }
    MGPU_TRY(wait_for_started(p, comm, run, p->instructions, true));
    return updating ? 0 : check_before_update(p, buffer, run);
}
