/* What tasks lose to those that run at the same time on the other cores (simulate.h). */
#include "partitioner/simulate.h"

#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 8 };

/* The start or the end of a task; the pressure from then on, of all that run. */
struct moment {
    double when, pressure;
    int task;
};

struct contention {
    struct mgpu_simulator *s;
    double *loss;     /* by position: d, per one */
    double *pressure; /* d over its average */
    int *start, *end; /* its moments */
    struct moment *moment;
};

/* Milliseconds beside the others, or alone where that was not measured. */
static double beside_ms(const struct mgpu_simulator *s, int position, double alone)
{
    const double *beside = s->flow->task[position].beside;
    int kind = s->replica->topology->device[s->at[position]].kind;
    return beside ? fmax(beside[kind], alone) : alone;
}

/* False: nobody loses anything. */
static bool fill_losses(struct contention *c)
{
    const struct mgpu_simulator *s = c->s;
    double lost = 0, time = 0;
    for (int i = 0; i < s->flow->tasks; i++) {
        double alone = mgpu_task_ms(s->flow, s->replica, i, s->at[i]);
        double beside = beside_ms(s, i, alone);
        c->loss[i] = alone > 0 ? beside / alone - 1 : 0;
        lost += beside * c->loss[i];
        time += beside;
    }
    for (int i = 0; i < s->flow->tasks && lost > 0; i++)
        c->pressure[i] = c->loss[i] * time / lost;
    return lost > 0;
}

static int by_time(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    return x->when != y->when ? (x->when < y->when ? -1 : 1) : x->task - y->task;
}

static void list_moments(struct contention *c)
{
    const struct mgpu_simulator *s = c->s;
    int tasks = s->flow->tasks;
    double sum = 0;
    for (int i = 0; i < tasks; i++) {
        c->moment[2 * i] = (struct moment){s->start[i], c->pressure[i], i};
        c->moment[2 * i + 1] = (struct moment){s->end[i], -c->pressure[i], tasks + i};
    }
    qsort(c->moment, 2 * (size_t)tasks, sizeof *c->moment, by_time);
    for (int k = 0; k < 2 * tasks; k++) {
        struct moment *m = &c->moment[k];
        *(m->task < tasks ? &c->start[m->task] : &c->end[m->task - tasks]) = k;
        m->pressure = sum += m->pressure;
    }
}

/* How many times as long as alone a task takes with those that it meets now. */
static double stretch(const struct contention *c, int position)
{
    const struct mgpu_simulator *s = c->s;
    double others = s->flow->graph->busy - 1, work = 0;
    for (int k = c->start[position]; k < c->end[position]; k++) {
        double ms = c->moment[k + 1].when - c->moment[k].when;
        double met = s->replica->replicas * c->moment[k].pressure - c->pressure[position];
        work += ms / (1 + c->loss[position] * fmax(met, 0) / others);
    }
    return work > 0 ? (s->end[position] - s->start[position]) / work : 1;
}

double mgpu_simulate_contended(struct mgpu_simulator *s, const struct mgpu_assignment *a)
{
    double ms = mgpu_simulate(s, a, INFINITY);
    struct mgpu_arena *arena = mgpu_arena_new();
    int tasks = s->flow->tasks;
    struct contention c = {.s = s,
                           .loss = MGPU_NEW_ARRAY(arena, double, tasks),
                           .pressure = MGPU_NEW_ARRAY(arena, double, tasks),
                           .start = MGPU_NEW_ARRAY(arena, int, tasks),
                           .end = MGPU_NEW_ARRAY(arena, int, tasks),
                           .moment = MGPU_NEW_ARRAY(arena, struct moment, 2 * tasks)};
    for (int round = fill_losses(&c) ? ROUNDS : 0; round > 0; round--) {
        list_moments(&c);
        for (int i = 0; i < tasks; i++)
            s->stretch[i] = (s->stretch[i] + stretch(&c, i)) / 2;
        ms = mgpu_simulate(s, a, INFINITY);
    }
    for (int i = 0; i < tasks; i++)
        s->stretch[i] = 1;
    mgpu_arena_free(arena);
    return ms;
}
