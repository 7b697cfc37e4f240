#include "partitioner/flow.h"

#include "partitioner/canonical.h"
#include "runtime/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int check_task(const struct mgpu_task_graph *g, int index, int kinds)
{
    const struct mgpu_task *t = &g->task[index];
    if (t->group < -1 || t->group >= g->groups ||
        (t->group < 0 && (t->param < 0 || t->param >= g->params)))
        return mgpu_fail(MGPU_EINVALID, "task %d has no group and no parameter", index);
    if (t->phase < MGPU_PHASE_FORWARD || t->phase > MGPU_PHASE_UPDATE)
        return mgpu_fail(MGPU_EINVALID, "task %d has phase %d", index, t->phase);
    if (t->output < 0 || t->scratch < 0)
        return mgpu_fail(MGPU_EINVALID, "task %d has negative bytes", index);
    for (int k = 0; k < kinds; k++)
        if (!isfinite(t->ms[k]) || t->ms[k] < 0)
            return mgpu_fail(MGPU_EINVALID, "task %d takes %g ms", index, t->ms[k]);
    return 0;
}

static int check_param(const struct mgpu_task_graph *g, int index)
{
    const struct mgpu_shared *p = &g->param[index];
    if (p->bytes < 0 || p->state_bytes < 0 || p->factor_bytes < 0 || p->product_bytes < 0)
        return mgpu_fail(MGPU_EINVALID, "parameter %d has negative bytes", index);
    for (int i = 0; i < p->groups; i++)
        if (p->group[i] < 0 || p->group[i] >= g->groups)
            return mgpu_fail(MGPU_EINVALID, "parameter %d is used by group %d", index, p->group[i]);
    return 0;
}

static int check(const struct mgpu_task_graph *g, int kinds, int devices)
{
    for (int i = 0; i < g->tasks; i++)
        MGPU_TRY(check_task(g, i, kinds));
    for (int i = 0; i < g->params; i++)
        MGPU_TRY(check_param(g, i));
    for (int i = 0; i < g->edges; i++) {
        const struct mgpu_edge *e = &g->edge[i];
        if (e->from < 0 || e->from >= e->to || e->to >= g->tasks || e->bytes < 0)
            return mgpu_fail(MGPU_EINVALID, "edge %d from task %d to %d is out of order", i,
                             e->from, e->to);
    }
    for (int i = 0; g->pin && i < g->groups; i++)
        if (g->pin[i] < -1 || g->pin[i] >= devices)
            return mgpu_fail(MGPU_EINVALID, "group %d is pinned to device %d of %d", i, g->pin[i],
                             devices);
    return 0;
}

static void number_tasks(struct mgpu_flow *f)
{
    const struct mgpu_task_graph *g = f->graph;
    f->task = MGPU_NEW_ARRAY(f->arena, struct mgpu_flow_task, f->tasks);
    f->group_of = MGPU_NEW_ARRAY(f->arena, int, f->groups);
    f->group_at = MGPU_NEW_ARRAY(f->arena, int, f->groups);
    f->pin = MGPU_NEW_ARRAY(f->arena, int, f->groups);
    memset(f->group_at, -1, sizeof(int) * (size_t)f->groups);
    int groups = 0;
    for (int i = 0; i < f->tasks; i++) {
        const struct mgpu_task *t = &g->task[f->task_of[i]];
        f->task[i] = (struct mgpu_flow_task){.group = -1,
                                             .param = -1,
                                             .phase = t->phase,
                                             .output = t->output,
                                             .scratch = t->scratch,
                                             .sums = t->sums,
                                             .sum_bytes = t->sum_bytes,
                                             .ms = t->ms,
                                             .beside = t->beside};
        if (t->group < 0)
            continue;
        if (f->group_at[t->group] < 0) {
            f->group_of[groups] = t->group;
            f->group_at[t->group] = groups++;
        }
        f->task[i].group = f->group_at[t->group];
    }
    for (int i = 0; i < f->groups; i++) /* groups without tasks come last */
        if (f->group_at[i] < 0) {
            f->group_of[groups] = i;
            f->group_at[i] = groups++;
        }
    for (int i = 0; i < f->groups; i++)
        f->pin[i] = g->pin ? g->pin[f->group_of[i]] : -1;
}

/* Lists by a key 0..count-1 of `items` (counting sort): first[] has count + 1 entries. */
static int *bucket_lists(struct mgpu_arena *arena, int **first, int count, int items,
                         const int *key)
{
    int *at = MGPU_NEW_ARRAY(arena, int, count + 1);
    int *list = MGPU_NEW_ARRAY(arena, int, items);
    for (int i = 0; i < items; i++)
        if (key[i] >= 0)
            at[key[i] + 1]++;
    for (int i = 0; i < count; i++)
        at[i + 1] += at[i];
    int *fill = MGPU_NEW_ARRAY(arena, int, count + 1);
    memcpy(fill, at, sizeof(int) * (size_t)(count + 1));
    for (int i = 0; i < items; i++)
        if (key[i] >= 0)
            list[fill[key[i]]++] = i;
    *first = at;
    return list;
}

static void list_group_tasks(struct mgpu_flow *f)
{
    int *key = MGPU_NEW_ARRAY(f->arena, int, f->tasks);
    for (int i = 0; i < f->tasks; i++)
        key[i] = f->task[i].group;
    f->group_task = bucket_lists(f->arena, &f->group_first, f->groups, f->tasks, key);
}

struct param_key {
    int first; /* smallest group */
    int64_t bytes, state_bytes;
    uint64_t hash;
    const char *name;
    int index;
};

static int compare_param(const void *a, const void *b)
{
    const struct param_key *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->state_bytes != y->state_bytes)
        return x->state_bytes < y->state_bytes ? -1 : 1;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    int names = x->name && y->name ? strcmp(x->name, y->name) : 0;
    return names ? names : x->index - y->index;
}

static int compare_int(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The rising groups of parameter `p`, without repetition, into list; returns how many. */
static int param_groups(const struct mgpu_flow *f, const struct mgpu_shared *p, int *list)
{
    int n = 0;
    for (int i = 0; i < p->groups; i++)
        list[i] = f->group_at[p->group[i]];
    qsort(list, (size_t)p->groups, sizeof *list, compare_int);
    for (int i = 0; i < p->groups; i++)
        if (!n || list[n - 1] != list[i])
            list[n++] = list[i];
    return n;
}

static uint64_t hash_groups(const int *group, int count, bool trained)
{
    uint64_t h = trained;
    for (int i = 0; i < count; i++)
        h = mgpu_mix(h, (uint64_t)group[i]);
    return h;
}

static void number_params(struct mgpu_flow *f)
{
    const struct mgpu_task_graph *g = f->graph;
    struct param_key *key = MGPU_NEW_ARRAY(f->arena, struct param_key, f->params);
    int total = 0;
    for (int i = 0; i < f->params; i++)
        total += g->param[i].groups;
    int *scratch = MGPU_NEW_ARRAY(f->arena, int, total);
    for (int i = 0; i < f->params; i++) {
        const struct mgpu_shared *p = &g->param[i];
        int n = param_groups(f, p, scratch);
        key[i] = (struct param_key){n ? scratch[0] : f->groups,          p->bytes, p->state_bytes,
                                    hash_groups(scratch, n, p->trained), p->name,  i};
    }
    qsort(key, (size_t)f->params, sizeof *key, compare_param);
    f->param = MGPU_NEW_ARRAY(f->arena, struct mgpu_flow_param, f->params);
    f->param_of = MGPU_NEW_ARRAY(f->arena, int, f->params);
    f->param_at = MGPU_NEW_ARRAY(f->arena, int, f->params);
    f->param_group = MGPU_NEW_ARRAY(f->arena, int, total);
    for (int i = 0, used = 0; i < f->params; i++) {
        const struct mgpu_shared *p = &g->param[key[i].index];
        int n = param_groups(f, p, f->param_group + used);
        f->param[i] = (struct mgpu_flow_param){.bytes = p->bytes,
                                               .state_bytes = p->state_bytes,
                                               .product_bytes = p->product_bytes,
                                               .factor_bytes = p->factor_bytes,
                                               .trained = p->trained,
                                               .first = used,
                                               .groups = n,
                                               .home = p->groups ? f->group_at[p->group[0]] : -1,
                                               .complete = -1};
        used += n;
        f->param_of[i] = key[i].index;
        f->param_at[key[i].index] = i;
    }
    for (int i = 0; i < f->tasks; i++) {
        const struct mgpu_task *t = &g->task[f->task_of[i]];
        if (t->group >= 0)
            continue;
        f->task[i].param = f->param_at[t->param];
        f->param[f->task[i].param].home = -1;
    }
}

struct edge_key {
    int from, value, to;
    int64_t bytes, held;
};

/* Of one producer. */
static int compare_edge(const void *a, const void *b)
{
    const struct edge_key *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->to - y->to;
}

/* Of one producer: by the first user, so that the numbering of values does not matter. */
static int compare_tensor(const void *a, const void *b, void *uses)
{
    const struct mgpu_flow_tensor *x = a, *y = b;
    const int *use = uses;
    if (use[x->use] != use[y->use])
        return use[x->use] - use[y->use];
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->uses != y->uses)
        return x->uses - y->uses;
    int last = use[x->use + x->uses - 1] - use[y->use + y->uses - 1];
    return last ? last : x->use - y->use;
}

/* Edges by producer, value and user: those of producer p are [first[p], first[p + 1]). */
static struct edge_key *sort_edges(struct mgpu_flow *f, int **first)
{
    const struct mgpu_task_graph *g = f->graph;
    struct edge_key *key = MGPU_NEW_ARRAY(f->arena, struct edge_key, g->edges);
    int *from = MGPU_NEW_ARRAY(f->arena, int, g->edges);
    for (int i = 0; i < g->edges; i++)
        from[i] = f->task_at[g->edge[i].from];
    const int *list = bucket_lists(f->arena, first, f->tasks, g->edges, from);
    for (int i = 0; i < g->edges; i++) {
        const struct mgpu_edge *e = &g->edge[list[i]];
        key[i] = (struct edge_key){from[list[i]], e->value, f->task_at[e->to], e->bytes, e->held};
    }
    for (int p = 0; p < f->tasks; p++)
        if ((*first)[p + 1] - (*first)[p] > 1)
            qsort(key + (*first)[p], (size_t)((*first)[p + 1] - (*first)[p]), sizeof *key,
                  compare_edge);
    return key;
}

/* The tensors of producer p, whose edges are [first, end). */
static void list_made(struct mgpu_flow *f, int p, const struct edge_key *key, int first, int end)
{
    int made = f->tensors, uses = first;
    struct mgpu_flow_tensor *t = NULL;
    for (int i = first; i < end; i++) {
        if (!t || key[i].value != key[i - 1].value) {
            t = &f->tensor[f->tensors++];
            *t = (struct mgpu_flow_tensor){.from = p, .held = key[i].held, .use = uses};
        }
        if (t->bytes < key[i].bytes)
            t->bytes = key[i].bytes;
        if (t->uses && f->use[uses - 1] == key[i].to)
            continue;
        f->use[uses++] = key[i].to;
        t->uses++;
    }
    f->task[p].tensor = f->tensors > made ? made : 0;
    f->task[p].tensors = f->tensors - made;
    if (f->tensors - made > 1)
        qsort_r(f->tensor + made, (size_t)(f->tensors - made), sizeof *f->tensor, compare_tensor,
                f->use);
}

static void list_tensors(struct mgpu_flow *f)
{
    int *first;
    const struct edge_key *key = sort_edges(f, &first);
    f->tensor = MGPU_NEW_ARRAY(f->arena, struct mgpu_flow_tensor, f->graph->edges);
    f->use = MGPU_NEW_ARRAY(f->arena, int, f->graph->edges);
    for (int p = 0; p < f->tasks; p++)
        list_made(f, p, key, first[p], first[p + 1]);
}

/* The trained parameters whose home is each group. */
static int *group_params(struct mgpu_flow *f, int **first)
{
    int *key = MGPU_NEW_ARRAY(f->arena, int, f->params);
    for (int p = 0; p < f->params; p++)
        key[p] = f->param[p].trained ? f->param[p].home : -1;
    return bucket_lists(f->arena, first, f->groups, f->params, key);
}

/* Which parameters an update task waits for: its own, or those of its group. */
static void list_gates(struct mgpu_flow *f)
{
    int *first, *list = group_params(f, &first), gates = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass)
            f->gate = MGPU_NEW_ARRAY(f->arena, int, gates);
        gates = 0;
        for (int i = 0; i < f->tasks; i++) {
            struct mgpu_flow_task *t = &f->task[i];
            t->gate = gates;
            if (t->phase != MGPU_PHASE_UPDATE)
                continue;
            int n =
                t->group < 0 ? f->param[t->param].trained : first[t->group + 1] - first[t->group];
            for (int k = 0; pass && k < n; k++)
                f->gate[gates + k] = t->group < 0 ? t->param : list[first[t->group] + k];
            gates += t->gates = n;
        }
    }
}

static void list_updates(struct mgpu_flow *f)
{
    int gates = f->tasks ? f->task[f->tasks - 1].gate + f->task[f->tasks - 1].gates : 0;
    int *task = MGPU_NEW_ARRAY(f->arena, int, gates), *first;
    for (int i = 0; i < f->tasks; i++)
        for (int k = 0; k < f->task[i].gates; k++)
            task[f->task[i].gate + k] = i;
    f->param_update = bucket_lists(f->arena, &first, f->params, gates, f->gate);
    for (int i = 0; i < gates; i++)
        f->param_update[i] = task[f->param_update[i]];
    for (int p = 0; p < f->params; p++) {
        f->param[p].update = first[p];
        f->param[p].updates = first[p + 1] - first[p];
    }
}

/* A gradient is whole when all that the update takes from before it is there; without an update,
 * when the last backward task of its groups has run. */
static int completion(const struct mgpu_flow *f, const struct mgpu_flow_param *p, const int *feeder)
{
    int last = -1;
    for (int k = p->update; k < p->update + p->updates; k++)
        if (feeder[f->param_update[k]] > last)
            last = feeder[f->param_update[k]];
    for (int k = p->first; last < 0 && k < p->first + p->groups; k++) {
        int g = f->param_group[k];
        for (int i = f->group_first[g]; i < f->group_first[g + 1]; i++)
            if (f->task[f->group_task[i]].phase == MGPU_PHASE_BACKWARD)
                last = f->group_task[i] > last ? f->group_task[i] : last;
    }
    return last;
}

static void list_completions(struct mgpu_flow *f)
{
    int *feeder = MGPU_NEW_ARRAY(f->arena, int, f->tasks), *first;
    memset(feeder, -1, sizeof(int) * (size_t)f->tasks);
    for (int i = 0; i < f->tensors; i++) {
        const struct mgpu_flow_tensor *t = &f->tensor[i];
        for (int k = 0; k < t->uses && f->task[t->from].phase != MGPU_PHASE_UPDATE; k++)
            if (feeder[f->use[t->use + k]] < t->from)
                feeder[f->use[t->use + k]] = t->from;
    }
    int *key = MGPU_NEW_ARRAY(f->arena, int, f->params);
    for (int p = 0; p < f->params; p++) {
        struct mgpu_flow_param *param = &f->param[p];
        key[p] = param->complete = param->trained ? completion(f, param, feeder) : -1;
        f->completions += key[p] >= 0;
    }
    f->completion = bucket_lists(f->arena, &first, f->tasks, f->params, key);
}

int mgpu_flow_new(struct mgpu_flow **out, const struct mgpu_task_graph *graph, int kinds, int kind,
                  int devices)
{
    *out = NULL;
    MGPU_TRY(check(graph, kinds, devices));
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_flow *f = MGPU_NEW(arena, struct mgpu_flow);
    *f = (struct mgpu_flow){.arena = arena,
                            .graph = graph,
                            .kinds = kinds,
                            .tasks = graph->tasks,
                            .groups = graph->groups,
                            .params = graph->params};
    f->task_of = MGPU_NEW_ARRAY(arena, int, f->tasks);
    f->task_at = MGPU_NEW_ARRAY(arena, int, f->tasks);
    mgpu_canonical_order(f->task_of, graph, kinds, kind);
    for (int i = 0; i < f->tasks; i++)
        f->task_at[f->task_of[i]] = i;
    number_tasks(f);
    list_group_tasks(f);
    number_params(f);
    list_tensors(f);
    f->size = f->tasks;
    for (int i = 0; i < f->tensors; i++)
        f->size += f->tensor[i].uses;
    list_gates(f);
    list_updates(f);
    list_completions(f);
    *out = f;
    return 0;
}

void mgpu_flow_free(struct mgpu_flow *flow)
{
    if (flow)
        mgpu_arena_free(flow->arena);
}
