#include "partitioner/canonical.h"

#include <math.h>
#include <string.h>

/* What is known of each task while the order is made. */
struct canon {
    const struct mgpu_task_graph *graph;
    struct mgpu_arena *arena;
    int kinds, kind;
    int *out_first, *out; /* edges by producer */
    int *in_first, *in;   /* edges by consumer */
    double *rank;         /* longest path to the end, by phase */
    uint64_t *hash;       /* of the structure around it */
    int *latest;          /* position of its latest predecessor */
};

static int *edge_lists(struct canon *c, int **first, bool by_from)
{
    const struct mgpu_task_graph *g = c->graph;
    int *at = MGPU_NEW_ARRAY(c->arena, int, g->tasks + 2);
    int *list = MGPU_NEW_ARRAY(c->arena, int, g->edges);
    for (int i = 0; i < g->edges; i++)
        at[(by_from ? g->edge[i].from : g->edge[i].to) + 2]++;
    for (int i = 0; i < g->tasks; i++)
        at[i + 2] += at[i + 1];
    for (int i = 0; i < g->edges; i++)
        list[at[(by_from ? g->edge[i].from : g->edge[i].to) + 1]++] = i;
    *first = at;
    return list;
}

/* What is computed again comes right before its first user. */
static void rank_again(struct canon *c)
{
    const struct mgpu_task_graph *g = c->graph;
    for (int u = g->tasks - 1; u >= 0; u--) {
        if (!g->task[u].again)
            continue;
        c->rank[u] = 0;
        for (int k = c->out_first[u]; k < c->out_first[u + 1]; k++)
            c->rank[u] = fmax(c->rank[u], c->rank[g->edge[c->out[k]].to]);
    }
}

/* The longest path from a task to the end that leaves out updates. A task that feeds nothing else
 * gets its predecessors' smallest rank, so that it follows them at once (a weight's gradient). */
static void rank_tasks(struct canon *c)
{
    const struct mgpu_task_graph *g = c->graph;
    c->rank = MGPU_NEW_ARRAY(c->arena, double, g->tasks);
    bool *feeds = MGPU_NEW_ARRAY(c->arena, bool, g->tasks);
    for (int u = g->tasks - 1; u >= 0; u--) {
        double longest = 0;
        for (int k = c->out_first[u]; k < c->out_first[u + 1]; k++) {
            int to = g->edge[c->out[k]].to;
            if (g->task[to].phase == MGPU_PHASE_UPDATE)
                continue;
            feeds[u] = true;
            if (c->rank[to] > longest)
                longest = c->rank[to];
        }
        c->rank[u] = longest + g->task[u].ms[c->kind];
    }
    for (int u = 0; u < g->tasks; u++) {
        if (feeds[u] || g->task[u].phase != MGPU_PHASE_BACKWARD)
            continue;
        double least = -1;
        for (int k = c->in_first[u]; k < c->in_first[u + 1]; k++) {
            int from = g->edge[c->in[k]].from;
            if (g->task[from].phase == MGPU_PHASE_BACKWARD && !g->task[from].again &&
                (least < 0 || c->rank[from] < least))
                least = c->rank[from];
        }
        if (least > c->rank[u])
            c->rank[u] = least;
    }
    rank_again(c);
}

/* A time as a share of the longest, rounded: the same when everything takes three times as long. */
static uint64_t share(double ms, double longest)
{
    float part = longest > 0 ? (float)(ms / longest) : 0;
    uint32_t word;
    memcpy(&word, &part, sizeof word);
    return word;
}

/* Pins are left out: pinning a plan where it is must not change its order. */
static void hash_tasks(struct canon *c)
{
    const struct mgpu_task_graph *g = c->graph;
    double longest = 0;
    for (int u = 0; u < g->tasks; u++)
        longest = fmax(longest, g->task[u].ms[c->kind]);
    for (int u = 0; u < g->tasks; u++) {
        const struct mgpu_task *t = &g->task[u];
        uint64_t h = mgpu_mix((uint64_t)t->phase + 1, (uint64_t)t->output);
        h = mgpu_mix(h, (uint64_t)t->scratch);
        for (int k = 0; k < c->kinds; k++)
            h = mgpu_mix(h, share(t->ms[k], longest));
        if (t->sums)
            h = mgpu_mix(mgpu_mix(h, (uint64_t)t->sums), (uint64_t)t->sum_bytes);
        c->hash[u] = mgpu_mix(h, t->group < 0);
    }
}

/* One sweep through the edges: what precedes (or follows) a task becomes part of its hash. Sums, so
 * that the order of edges does not count. */
static void sweep(struct canon *c, bool down)
{
    const struct mgpu_task_graph *g = c->graph;
    const int *first = down ? c->in_first : c->out_first, *list = down ? c->in : c->out;
    for (int i = 0; i < g->tasks; i++) {
        int u = down ? i : g->tasks - 1 - i;
        uint64_t sum = 0;
        for (int k = first[u]; k < first[u + 1]; k++) {
            const struct mgpu_edge *e = &g->edge[list[k]];
            sum += mgpu_mix(c->hash[down ? e->from : e->to], (uint64_t)e->bytes);
        }
        c->hash[u] = mgpu_mix(c->hash[u], sum);
    }
}

/* Tasks learn of the other tasks of their group and of the parameters they share. */
static void hash_groups(struct canon *c, uint64_t *group, uint64_t *param)
{
    const struct mgpu_task_graph *g = c->graph;
    memset(group, 0, sizeof *group * (size_t)g->groups);
    for (int u = 0; u < g->tasks; u++)
        if (g->task[u].group >= 0)
            group[g->task[u].group] += mgpu_mix(c->hash[u], 1);
    for (int p = 0; p < g->params; p++) {
        const struct mgpu_shared *s = &g->param[p];
        param[p] = mgpu_mix(mgpu_mix((uint64_t)s->bytes, (uint64_t)s->state_bytes), s->trained);
        uint64_t sum = 0;
        for (int i = 0; i < s->groups; i++)
            sum += mgpu_mix(group[s->group[i]], 2);
        param[p] = mgpu_mix(param[p], sum);
    }
    for (int p = 0; p < g->params; p++)
        for (int i = 0; i < g->param[p].groups; i++)
            group[g->param[p].group[i]] += mgpu_mix(param[p], 3);
    for (int u = 0; u < g->tasks; u++) {
        const struct mgpu_task *t = &g->task[u];
        c->hash[u] = mgpu_mix(c->hash[u], t->group < 0 ? param[t->param] : group[t->group]);
    }
}

static void hash_structure(struct canon *c)
{
    const struct mgpu_task_graph *g = c->graph;
    c->hash = MGPU_NEW_ARRAY(c->arena, uint64_t, g->tasks);
    uint64_t *group = MGPU_NEW_ARRAY(c->arena, uint64_t, g->groups);
    uint64_t *param = MGPU_NEW_ARRAY(c->arena, uint64_t, g->params);
    hash_tasks(c);
    for (int round = 0; round < 2; round++) {
        sweep(c, true);
        sweep(c, false);
        hash_groups(c, group, param);
    }
}

static int by_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "");
}

static bool before(const struct canon *c, int a, int b)
{
    const struct mgpu_task *x = &c->graph->task[a], *y = &c->graph->task[b];
    if (x->phase != y->phase)
        return x->phase < y->phase;
    if (x->phase == MGPU_PHASE_UPDATE && c->latest[a] != c->latest[b])
        return c->latest[a] < c->latest[b]; /* as the gradients come */
    if (c->rank[a] != c->rank[b])
        return c->rank[a] > c->rank[b];
    if (c->hash[a] != c->hash[b])
        return c->hash[a] < c->hash[b];
    if (c->latest[a] != c->latest[b])
        return c->latest[a] < c->latest[b];
    int order = by_text(x->key, y->key);
    if (!order)
        order = by_text(x->name, y->name);
    return order ? order < 0 : a < b;
}

static void push(const struct canon *c, int *heap, int count, int item)
{
    int i = count;
    for (; i > 0 && before(c, item, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = item;
}

static int pop(const struct canon *c, int *heap, int count)
{
    int top = heap[0], item = heap[--count], i = 0;
    for (int child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && before(c, heap[child + 1], heap[child]))
            child++;
        if (!before(c, heap[child], item))
            break;
        heap[i] = heap[child];
    }
    heap[i] = item;
    return top;
}

static void sort_tasks(struct canon *c, int *order)
{
    const struct mgpu_task_graph *g = c->graph;
    int *waits = MGPU_NEW_ARRAY(c->arena, int, g->tasks);
    int *heap = MGPU_NEW_ARRAY(c->arena, int, g->tasks), count = 0;
    c->latest = MGPU_NEW_ARRAY(c->arena, int, g->tasks);
    for (int u = 0; u < g->tasks; u++) {
        c->latest[u] = -1;
        waits[u] = c->in_first[u + 1] - c->in_first[u];
    }
    for (int u = 0; u < g->tasks; u++)
        if (!waits[u])
            push(c, heap, count++, u);
    for (int position = 0; count; position++) {
        int u = order[position] = pop(c, heap, count--);
        for (int k = c->out_first[u]; k < c->out_first[u + 1]; k++) {
            int to = g->edge[c->out[k]].to;
            c->latest[to] = position;
            if (!--waits[to])
                push(c, heap, count++, to);
        }
    }
}

void mgpu_canonical_order(int *order, const struct mgpu_task_graph *graph, int kinds, int kind)
{
    struct canon c = {.graph = graph, .arena = mgpu_arena_new(), .kinds = kinds, .kind = kind};
    c.out = edge_lists(&c, &c.out_first, true);
    c.in = edge_lists(&c, &c.in_first, false);
    rank_tasks(&c);
    hash_structure(&c);
    sort_tasks(&c, order);
    mgpu_arena_free(c.arena);
}
