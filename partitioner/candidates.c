/* Candidates as callers see them: in the numbers of the task graph, with memory and timeline. */
#include "partitioner/search_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void fill_placement(const struct mgpu_search_run *run, struct mgpu_candidate *c,
                           const struct mgpu_tried *t)
{
    const struct mgpu_flow *f = t->flow;
    c->device = MGPU_NEW_ARRAY(run->arena, int, f->groups);
    c->owner = MGPU_NEW_ARRAY(run->arena, int, f->params);
    c->order = mgpu_arena_copy(run->arena, f->task_of, sizeof(int) * (size_t)f->tasks);
    for (int g = 0; g < f->groups; g++)
        c->device[f->group_of[g]] = t->assignment.device[g];
    for (int p = 0; p < f->params; p++)
        c->owner[f->param_of[p]] = t->assignment.owner[p];
}

static void add_event(const struct mgpu_flow *f, struct mgpu_event *e,
                      const struct mgpu_transfer *t)
{
    *e = (struct mgpu_event){.activity = t->gathers ? MGPU_ACTIVITY_GATHER : MGPU_ACTIVITY_SUM,
                             .device = t->from,
                             .peer = t->to,
                             .task = -1,
                             .param = -1,
                             .bytes = t->bytes,
                             .start_ms = t->start,
                             .end_ms = t->end};
    if (t->tensor >= 0) {
        e->activity = MGPU_ACTIVITY_SEND;
        e->task = f->task_of[f->tensor[t->tensor].from];
    } else if (t->param >= 0) {
        e->activity = MGPU_ACTIVITY_PARAMETER;
        e->param = f->param_of[t->param];
    }
}

static int by_start(const void *a, const void *b)
{
    const struct mgpu_event *x = a, *y = b;
    if (x->start_ms != y->start_ms)
        return x->start_ms < y->start_ms ? -1 : 1;
    if (x->device != y->device)
        return x->device - y->device;
    if (x->activity != y->activity)
        return (int)x->activity - (int)y->activity;
    if (x->end_ms != y->end_ms)
        return x->end_ms < y->end_ms ? -1 : 1;
    return x->peer != y->peer   ? x->peer - y->peer
           : x->task != y->task ? x->task - y->task
                                : x->param - y->param;
}

/* What all replicas sum last, on each device of one. */
static void add_rest(struct mgpu_candidate *c, const struct mgpu_simulator *s, double end)
{
    for (int d = 0; s->rest_ms > 0 && d < s->replica->ranks; d++)
        c->event[c->events++] = (struct mgpu_event){.activity = MGPU_ACTIVITY_REST,
                                                    .device = d,
                                                    .peer = d,
                                                    .task = -1,
                                                    .param = -1,
                                                    .bytes = s->flow->graph->rest_bytes,
                                                    .start_ms = end - s->rest_ms,
                                                    .end_ms = end};
}

/* Of a step that ends at `end` as simulated, at c->step_ms as said. */
static void fill_events(const struct mgpu_search_run *run, struct mgpu_candidate *c,
                        const struct mgpu_tried *t, const struct mgpu_simulator *s, double end)
{
    const struct mgpu_flow *f = t->flow;
    double stretch = c->step_ms / end;
    c->events = f->tasks + s->transfers;
    c->event = MGPU_NEW_ARRAY(run->arena, struct mgpu_event, c->events + s->replica->ranks);
    for (int i = 0; i < f->tasks; i++)
        c->event[i] = (struct mgpu_event){.activity = MGPU_ACTIVITY_TASK,
                                          .device = s->at[i],
                                          .peer = s->at[i],
                                          .task = f->task_of[i],
                                          .param = -1,
                                          .start_ms = s->start[i],
                                          .end_ms = s->end[i]};
    for (int i = 0; i < s->transfers; i++)
        add_event(f, &c->event[f->tasks + i], &s->transfer[i]);
    add_rest(c, s, end);
    for (int i = 0; i < c->events; i++) {
        c->event[i].start_ms *= stretch;
        c->event[i].end_ms *= stretch;
    }
    qsort(c->event, (size_t)c->events, sizeof *c->event, by_start);
}

/* Every replica has the first one's peaks. */
static void fill_memory(const struct mgpu_search_run *run, struct mgpu_candidate *c,
                        const struct mgpu_simulator *s)
{
    int devices = run->request->topology->devices;
    c->memory = mgpu_arena_copy(run->arena, s->peak, sizeof *s->peak * (size_t)devices);
    for (int d = c->ranks; c->replicas > 1 && d < c->replicas * c->ranks; d++)
        c->memory[d] = s->peak[d % c->ranks] > c->memory[d] ? s->peak[d % c->ranks] : c->memory[d];
}

void mgpu_candidate_fill(const struct mgpu_search_run *run, struct mgpu_candidate *c,
                         const struct mgpu_tried *t)
{
    *c = (struct mgpu_candidate){.strategy = t->tactic,
                                 .variant = t->variant,
                                 .replicas = t->replicas,
                                 .ranks = t->ranks,
                                 .graph = t->flow->graph,
                                 .bucket_bytes = t->bucket_bytes,
                                 .tried = t->placed,
                                 .ran = t->ran,
                                 .proven = t->proven,
                                 .lower_bound_ms = t->bound,
                                 .step_ms = t->ms};
    c->feasible = t->placed && !t->refused && !t->lacking;
    c->why = t->refused ? t->refused : t->placed ? NULL : t->decides;
    if (!t->placed)
        return;
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_replica replica;
    int ranks = t->replicas == 1 ? run->devices : t->ranks; /* a single device may be any */
    mgpu_replica_init(&replica, run->request->topology, run->channels, t->replicas, ranks,
                      run->request->weights_on, arena);
    replica.bucket_bytes = t->bucket_bytes;
    struct mgpu_simulator *s = mgpu_simulator_new(t->flow, &replica);
    double simulated = mgpu_simulate_contended(s, &t->assignment);
    c->step_ms = t->ran ? t->ms : simulated;
    mgpu_simulate_memory(s, &t->assignment);
    c->speedup = run->single / c->step_ms;
    c->gap = c->lower_bound_ms > 0 ? c->step_ms / c->lower_bound_ms - 1 : 0;
    c->bytes_moved = s->moved;
    fill_placement(run, c, t);
    fill_memory(run, c, s);
    c->memory = t->memory ? t->memory : c->memory;
    fill_events(run, c, t, s, simulated);
    mgpu_simulator_free(s);
    mgpu_arena_free(arena);
}
