/* The task graph of clusters (coarsen.h). */
#include "partitioner/coarsen.h"

#include <stdlib.h>
#include <string.h>

enum { PHASES = MGPU_PHASE_UPDATE + 1 };

struct builder {
    const struct mgpu_flow *flow;
    const int *cluster;
    struct mgpu_task_graph *out;
    int *param; /* by parameter: number of the joined one */
    int *unit;  /* by position: number of the coarse task, before they are sorted */
    int units;
};

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* ---- Parameters ------------------------------------------------------------------------------ */

struct joined {
    int *cluster, clusters; /* rising */
    int home, trained;
    int param;
};

static int compare_joined(const void *a, const void *b)
{
    const struct joined *x = a, *y = b;
    if (x->trained != y->trained)
        return x->trained - y->trained;
    if (x->home != y->home)
        return x->home - y->home;
    if (x->clusters != y->clusters)
        return x->clusters - y->clusters;
    for (int i = 0; i < x->clusters; i++)
        if (x->cluster[i] != y->cluster[i])
            return x->cluster[i] - y->cluster[i];
    return 0;
}

static int compare_joined_stable(const void *a, const void *b)
{
    int order = compare_joined(a, b);
    return order ? order : ((const struct joined *)a)->param - ((const struct joined *)b)->param;
}

static struct joined describe(const struct builder *b, int p)
{
    const struct mgpu_flow_param *param = &b->flow->param[p];
    struct joined j = {.home = param->home, .trained = param->trained, .param = p};
    j.cluster = MGPU_NEW_ARRAY(b->out->arena, int, param->groups + 1);
    for (int k = 0; k < param->groups; k++)
        j.cluster[k] = b->cluster[b->flow->param_group[param->first + k]];
    qsort(j.cluster, (size_t)param->groups, sizeof *j.cluster, compare_ints);
    for (int k = 0; k < param->groups; k++)
        if (!j.clusters || j.cluster[j.clusters - 1] != j.cluster[k])
            j.cluster[j.clusters++] = j.cluster[k];
    if (j.home >= 0)
        j.home = b->cluster[j.home];
    return j;
}

/* Parameters with the same clusters become one. The first in its list is its home. */
static void join_params(struct builder *b)
{
    const struct mgpu_flow *f = b->flow;
    struct mgpu_task_graph *g = b->out;
    struct joined *list = MGPU_NEW_ARRAY(g->arena, struct joined, f->params);
    for (int p = 0; p < f->params; p++)
        list[p] = describe(b, p);
    qsort(list, (size_t)f->params, sizeof *list, compare_joined_stable);
    g->param = MGPU_NEW_ARRAY(g->arena, struct mgpu_shared, f->params);
    b->param = MGPU_NEW_ARRAY(g->arena, int, f->params);
    for (int i = 0; i < f->params; i++) {
        if (!i || compare_joined(&list[i - 1], &list[i])) {
            struct mgpu_shared *fresh = &g->param[g->params++];
            fresh->trained = list[i].trained;
            fresh->groups = list[i].clusters;
            fresh->group = list[i].cluster;
            for (int k = 1; k < fresh->groups; k++)
                if (fresh->group[k] == list[i].home) {
                    fresh->group[k] = fresh->group[0];
                    fresh->group[0] = list[i].home;
                }
        }
        b->param[list[i].param] = g->params - 1;
        struct mgpu_shared *into = &g->param[g->params - 1];
        const struct mgpu_flow_param *from = &f->param[list[i].param];
        into->bytes += from->bytes;
        into->state_bytes += from->state_bytes;
        into->product_bytes += from->product_bytes;
        into->factor_bytes += from->factor_bytes;
    }
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

/* Which coarse task each task belongs to: by cluster (or parameter) and phase. */
static void find_units(struct builder *b, int clusters)
{
    const struct mgpu_flow *f = b->flow;
    int slots = (clusters + b->out->params) * PHASES;
    int *number = MGPU_NEW_ARRAY(b->out->arena, int, slots);
    b->unit = MGPU_NEW_ARRAY(b->out->arena, int, f->tasks);
    for (int i = 0; i < f->tasks; i++) {
        const struct mgpu_flow_task *t = &f->task[i];
        int owner = t->group >= 0 ? b->cluster[t->group] : clusters + b->param[t->param];
        int *n = &number[owner * PHASES + t->phase];
        if (!*n)
            *n = ++b->units;
        b->unit[i] = *n - 1;
    }
}

/* Whether something that the task made is used in another coarse task. */
static bool leaves(const struct builder *b, int position)
{
    const struct mgpu_flow *f = b->flow;
    const struct mgpu_flow_task *t = &f->task[position];
    for (int i = t->tensor; i < t->tensor + t->tensors; i++)
        for (int k = f->tensor[i].use; k < f->tensor[i].use + f->tensor[i].uses; k++)
            if (b->unit[f->use[k]] != b->unit[position])
                return true;
    return false;
}

static void add_task(struct builder *b, struct mgpu_task *to, int position)
{
    const struct mgpu_flow_task *t = &b->flow->task[position];
    if (!to->ms)
        to->ms = MGPU_NEW_ARRAY(b->out->arena, double, b->flow->kinds);
    for (int k = 0; k < b->flow->kinds; k++)
        to->ms[k] += t->ms[k];
    int64_t inside = t->scratch;
    if (leaves(b, position))
        to->output += t->output;
    else
        inside += t->output;
    to->scratch = inside > to->scratch ? inside : to->scratch;
    to->phase = t->phase;
    to->group = t->group >= 0 ? b->cluster[t->group] : -1;
    to->param = t->group >= 0 ? 0 : b->param[t->param];
}

/* Of one coarse task. */
static int compare_edge(const void *a, const void *b)
{
    const struct mgpu_edge *x = a, *y = b;
    return x->to != y->to ? x->to - y->to : x->value - y->value;
}

/* Whether all users of a tensor are in its own coarse task or in one other. */
static bool one_target(const struct builder *b, const struct mgpu_flow_tensor *t)
{
    int target = -1;
    for (int k = t->use; k < t->use + t->uses; k++) {
        int to = b->unit[b->flow->use[k]];
        if (to == b->unit[t->from] || to == target)
            continue;
        if (target >= 0)
            return false;
        target = to;
    }
    return true;
}

/* Working memory while the edges of one coarse task are listed. */
struct targets {
    int *edge; /* by coarse task: edge of what only goes there */
    int *seen; /* by coarse task: the last tensor that was met there, and one more */
};

/* Adds the edges of a tensor; those of its coarse task begin at `first`. */
static void add_tensor(const struct builder *b, const struct targets *s, int tensor, int first)
{
    const struct mgpu_flow *f = b->flow;
    struct mgpu_task_graph *g = b->out;
    const struct mgpu_flow_tensor *t = &f->tensor[tensor];
    bool one = one_target(b, t);
    int from = b->unit[t->from];
    for (int k = t->use; k < t->use + t->uses; k++) {
        int to = b->unit[f->use[k]], *edge = &s->edge[to];
        if (to == from || s->seen[to] == tensor + 1)
            continue;
        s->seen[to] = tensor + 1;
        if (one && *edge > first) {
            g->edge[*edge - 1].bytes += t->bytes;
            continue;
        }
        g->edge[g->edges++] = (struct mgpu_edge){
            .from = from, .to = to, .bytes = t->bytes, .value = one ? -1 - to : tensor};
        if (one)
            *edge = g->edges;
    }
}

/* Edges between coarse tasks, each tensor once; what only goes to one of them is one tensor. */
static void add_edges(struct builder *b)
{
    const struct mgpu_flow *f = b->flow;
    struct mgpu_task_graph *g = b->out;
    int uses = 0, *next = MGPU_NEW_ARRAY(g->arena, int, f->tensors);
    int *last = MGPU_NEW_ARRAY(g->arena, int, b->units); /* tensor of a coarse task, and one more */
    struct targets s = {MGPU_NEW_ARRAY(g->arena, int, b->units),
                        MGPU_NEW_ARRAY(g->arena, int, b->units)};
    for (int i = 0; i < f->tensors; i++) {
        uses += f->tensor[i].uses;
        next[i] = last[b->unit[f->tensor[i].from]];
        last[b->unit[f->tensor[i].from]] = i + 1;
    }
    g->edge = MGPU_NEW_ARRAY(g->arena, struct mgpu_edge, uses);
    for (int u = 0; u < b->units; u++) {
        int first = g->edges;
        for (int i = last[u]; i; i = next[i - 1])
            add_tensor(b, &s, i - 1, first);
        qsort(g->edge + first, (size_t)(g->edges - first), sizeof *g->edge, compare_edge);
    }
}

/* Positions of the coarse tasks so that edges lead forward; false: there is a cycle. */
static bool sort_units(const struct builder *b, int *at)
{
    const struct mgpu_task_graph *g = b->out;
    int *waits = MGPU_NEW_ARRAY(g->arena, int, b->units), head = 0, tail = 0;
    int *first = MGPU_NEW_ARRAY(g->arena, int, b->units + 1);
    int *queue = MGPU_NEW_ARRAY(g->arena, int, b->units);
    for (int i = 0; i < g->edges; i++) {
        first[g->edge[i].from + 1]++;
        waits[g->edge[i].to]++;
    }
    for (int u = 0; u < b->units; u++) {
        first[u + 1] += first[u];
        if (!waits[u])
            queue[tail++] = u;
    }
    for (; head < tail; head++) {
        at[queue[head]] = head;
        for (int k = first[queue[head]]; k < first[queue[head] + 1]; k++)
            if (!--waits[g->edge[k].to])
                queue[tail++] = g->edge[k].to;
    }
    return tail == b->units;
}

static bool place_tasks(struct builder *b)
{
    struct mgpu_task_graph *g = b->out;
    int *at = MGPU_NEW_ARRAY(g->arena, int, b->units);
    if (!sort_units(b, at))
        return false;
    g->tasks = b->units;
    g->task = MGPU_NEW_ARRAY(g->arena, struct mgpu_task, b->units);
    for (int i = 0; i < b->flow->tasks; i++)
        add_task(b, &g->task[at[b->unit[i]]], i);
    for (int i = 0; i < g->edges; i++) {
        g->edge[i].from = at[g->edge[i].from];
        g->edge[i].to = at[g->edge[i].to];
    }
    return true;
}

struct mgpu_task_graph *mgpu_coarse_graph(const struct mgpu_flow *flow, const int *cluster,
                                          int clusters)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_task_graph *g = MGPU_NEW(arena, struct mgpu_task_graph);
    struct builder b = {.flow = flow, .cluster = cluster, .out = g};
    *g = (struct mgpu_task_graph){.arena = arena,
                                  .batch = flow->graph->batch,
                                  .groups = clusters,
                                  .input_bytes = flow->graph->input_bytes,
                                  .rest_bytes = flow->graph->rest_bytes,
                                  .host_ms = flow->graph->host_ms};
    g->pin = MGPU_NEW_ARRAY(arena, int, clusters);
    memset(g->pin, -1, sizeof(int) * (size_t)clusters);
    for (int i = 0; i < flow->groups; i++)
        if (flow->pin[i] >= 0)
            g->pin[cluster[i]] = flow->pin[i];
    join_params(&b);
    find_units(&b, clusters);
    add_edges(&b);
    if (place_tasks(&b))
        return g;
    mgpu_arena_free(arena);
    return NULL;
}
