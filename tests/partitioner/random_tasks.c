#include "tests/partitioner/random_tasks.h"

#include <stdlib.h>
#include <string.h>

uint64_t test_random(struct test_random *r)
{
    r->state += 0x9E3779B97F4A7C15u;
    uint64_t z = r->state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int test_below(struct test_random *r, int limit)
{
    return (int)(test_random(r) % (uint64_t)limit);
}

/* ---- Topologies ------------------------------------------------------------------------------ */

struct mgpu_topology *test_topology(int devices, int kinds, double bytes_a_ms, double latency_ms,
                                    int channels, int64_t memory)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_topology *t = MGPU_NEW(arena, struct mgpu_topology);
    *t = (struct mgpu_topology){.arena = arena, .text = "test", .kinds = kinds, .devices = devices};
    t->kind = MGPU_NEW_ARRAY(arena, struct mgpu_device_kind, kinds);
    t->device = MGPU_NEW_ARRAY(arena, struct mgpu_topology_device, devices);
    t->link = MGPU_NEW_ARRAY(arena, struct mgpu_link, devices * devices);
    for (int i = 0; i < devices; i++) {
        t->device[i] = (struct mgpu_topology_device){.kind = i % kinds, .memory = memory};
        char *name = mgpu_arena_format(arena, "cpu:%d", i);
        memcpy(t->device[i].name, name, strlen(name) + 1);
        for (int k = 0; k < devices; k++)
            t->link[i * devices + k] = (struct mgpu_link){bytes_a_ms * 1e3, latency_ms,
                                                          channels == 0   ? i * devices + k
                                                          : channels == 1 ? i
                                                                          : 0};
    }
    t->fabric = (struct mgpu_fabric){.ring = bytes_a_ms * 1e3,
                                     .adapter = bytes_a_ms * 1e3,
                                     .adapters = 1,
                                     .share = {0, 0, 1},
                                     .inside_ms = {0, 0, latency_ms}};
    return t;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

struct mgpu_task_graph *test_graph(int kinds, int most_tasks, int most_edges, int groups,
                                   int most_params)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_task_graph *g = MGPU_NEW(arena, struct mgpu_task_graph);
    *g = (struct mgpu_task_graph){.arena = arena, .batch = 1, .groups = groups};
    g->task = MGPU_NEW_ARRAY(arena, struct mgpu_task, most_tasks);
    g->edge = MGPU_NEW_ARRAY(arena, struct mgpu_edge, most_edges);
    g->param = MGPU_NEW_ARRAY(arena, struct mgpu_shared, most_params);
    g->host_ms = MGPU_NEW_ARRAY(arena, double, kinds);
    g->pin = MGPU_NEW_ARRAY(arena, int, groups);
    memset(g->pin, -1, sizeof(int) * (size_t)groups);
    return g;
}

void test_graph_free(struct mgpu_task_graph *g)
{
    mgpu_arena_free(g->arena);
}

int test_task(struct mgpu_task_graph *g, int kinds, int group, int phase, double ms, int64_t output)
{
    struct mgpu_task *t = &g->task[g->tasks];
    *t = (struct mgpu_task){.group = group, .phase = phase, .output = output, .type = "T"};
    t->ms = MGPU_NEW_ARRAY(g->arena, double, kinds);
    for (int k = 0; k < kinds; k++)
        t->ms[k] = ms * (k + 1);
    t->key = t->name = mgpu_arena_format(g->arena, "k%d", group);
    return g->tasks++;
}

void test_edge(struct mgpu_task_graph *g, int from, int to, int64_t bytes, int value)
{
    g->edge[g->edges++] =
        (struct mgpu_edge){.from = from, .to = to, .bytes = bytes, .value = value};
}

int test_param(struct mgpu_task_graph *g, int64_t bytes, int groups, const int *group)
{
    struct mgpu_shared *p = &g->param[g->params];
    *p = (struct mgpu_shared){
        .bytes = bytes, .state_bytes = 2 * bytes, .trained = true, .groups = groups};
    p->name = mgpu_arena_format(g->arena, "w%d", g->params);
    p->group = mgpu_arena_copy(g->arena, group, sizeof *group * (size_t)groups);
    return g->params++;
}

static void link_groups(struct test_net *net, int from, int to)
{
    for (int i = 0; i < net->edges; i++)
        if (net->from[i] == from && net->to[i] == to)
            return;
    if (from == to || net->edges == 256)
        return;
    net->from[net->edges] = from < to ? from : to;
    net->to[net->edges++] = from < to ? to : from;
}

static void layered(struct test_net *net, struct test_random *r)
{
    int layers = 1 + test_below(r, net->groups);
    for (int a = 0; a < net->groups; a++)
        for (int b = a + 1; b < net->groups; b++)
            if (b * layers / net->groups == a * layers / net->groups + 1 && test_below(r, 2))
                link_groups(net, a, b);
}

static void fork_join(struct test_net *net, int groups)
{
    for (int i = 1; i + 1 < groups; i++) {
        link_groups(net, 0, i);
        link_groups(net, i, groups - 1);
    }
    if (groups == 2)
        link_groups(net, 0, 1);
}

/* Splits an interval of groups: in series or side by side. */
static void series_parallel(struct test_net *net, struct test_random *r, int first, int last,
                            int source, int sink)
{
    if (first > last) {
        link_groups(net, source, sink);
        return;
    }
    if (first == last) {
        link_groups(net, source, first);
        link_groups(net, first, sink);
        return;
    }
    int middle = first + test_below(r, last - first + 1);
    if (test_below(r, 2)) {
        series_parallel(net, r, first, middle - 1, source, middle);
        series_parallel(net, r, middle + 1, last, middle, sink);
    } else {
        series_parallel(net, r, first, middle, source, sink);
        if (middle < last)
            series_parallel(net, r, middle + 1, last, source, sink);
    }
}

void test_net(struct test_net *net, struct test_random *r, enum test_shape shape, int groups)
{
    *net = (struct test_net){.groups = groups};
    if (shape == TEST_LAYERED)
        layered(net, r);
    if (shape == TEST_FORK_JOIN)
        fork_join(net, groups);
    if (shape == TEST_SERIES_PARALLEL && groups > 1)
        series_parallel(net, r, 1, groups - 2, 0, groups - 1);
    for (int i = 0; shape == TEST_IN_TREE && i + 1 < groups; i++)
        link_groups(net, i, i + 1 + test_below(r, groups - 1 - i));
}

/* Gradients come from the users of what the group made, or from nowhere (the loss). */
static void add_backward(struct mgpu_task_graph *g, const struct test_net *net, const int *forward,
                         int *backward, const int64_t *bytes, int group, double ms, int kinds)
{
    backward[group] = test_task(g, kinds, group, MGPU_PHASE_BACKWARD, ms, bytes[group] / 2);
    test_edge(g, forward[group], backward[group], bytes[group], forward[group]);
    for (int i = 0; i < net->edges; i++)
        if (net->from[i] == group)
            test_edge(g, backward[net->to[i]], backward[group], bytes[group], 1000 + i);
}

static void add_shared(struct mgpu_task_graph *g, struct test_random *r, int kinds,
                       const int *backward)
{
    int group[2] = {test_below(r, g->groups), test_below(r, g->groups)};
    int p = test_param(g, 8 * test_below(r, 4), 2, group);
    int sum = test_task(g, kinds, -1, MGPU_PHASE_BACKWARD, 1, 0);
    int update = test_task(g, kinds, -1, MGPU_PHASE_UPDATE, 1, 0);
    g->task[sum].param = g->task[update].param = p;
    for (int i = 0; i < 2; i++)
        test_edge(g, backward[group[i]], sum, g->param[p].bytes, 3000 + 10 * p + i);
    test_edge(g, sum, update, g->param[p].bytes, 3000 + 10 * p + 2);
}

struct mgpu_task_graph *test_training(const struct test_net *net, struct test_random *r, int kinds,
                                      int shared)
{
    int n = net->groups, forward[256], backward[256];
    int64_t bytes[256];
    double ms[256];
    struct mgpu_task_graph *g =
        test_graph(kinds, 3 * n + 2 * shared, 2 * n + 2 * net->edges + 3 * shared, n, n + shared);
    for (int i = 0; i < n; i++) {
        bytes[i] = 8 * test_below(r, 8);
        ms[i] = 1 + test_below(r, 8);
        forward[i] = test_task(g, kinds, i, MGPU_PHASE_FORWARD, ms[i], bytes[i]);
    }
    for (int i = 0; i < net->edges; i++)
        test_edge(g, forward[net->from[i]], forward[net->to[i]], bytes[net->from[i]],
                  forward[net->from[i]]);
    for (int i = n - 1; i >= 0; i--)
        add_backward(g, net, forward, backward, bytes, i, 2 * ms[i], kinds);
    for (int i = 0; i < shared; i++)
        add_shared(g, r, kinds, backward);
    for (int i = 0; i < n; i++) {
        int64_t weight = 8 * test_below(r, 8);
        test_param(g, weight, 1, &i);
        int update = test_task(g, kinds, i, MGPU_PHASE_UPDATE, test_below(r, 2), 0);
        test_edge(g, backward[i], update, weight, 2000 + i);
    }
    for (int i = 0; i < 2 * n; i += 1 + test_below(r, 8)) /* statistics of the whole batch */
        if (g->task[i].group >= 0) {
            g->task[i].sums = 1 + test_below(r, 2);
            g->task[i].sum_bytes = 8 * g->task[i].sums;
        }
    g->input_bytes = 16;
    g->rest_bytes = 8;
    return g;
}

/* ---- The same in other words ----------------------------------------------------------------- */

static void shuffle(struct test_random *r, int *list, int count)
{
    for (int i = 0; i < count; i++)
        list[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int k = test_below(r, i + 1), other = list[i];
        list[i] = list[k];
        list[k] = other;
    }
}

/* A random order in which the tasks can run: at[] by old number. */
static void shuffle_tasks(const struct mgpu_task_graph *g, struct test_random *r, int *at)
{
    int *waits = mgpu_xcalloc((size_t)g->tasks, sizeof *waits);
    for (int i = 0; i < g->tasks; i++)
        at[i] = -1;
    for (int i = 0; i < g->edges; i++)
        waits[g->edge[i].to]++;
    for (int done = 0; done < g->tasks; done++) {
        int pick = test_below(r, g->tasks);
        while (at[pick] >= 0 || waits[pick])
            pick = (pick + 1) % g->tasks;
        at[pick] = done;
        for (int i = 0; i < g->edges; i++)
            if (g->edge[i].from == pick)
                waits[g->edge[i].to]--;
    }
    free(waits);
}

struct mgpu_task_graph *test_permuted(const struct mgpu_task_graph *g, struct test_random *r,
                                      int kinds, int *group_at)
{
    struct mgpu_task_graph *to = test_graph(kinds, g->tasks, g->edges, g->groups, g->params);
    int *at = MGPU_NEW_ARRAY(to->arena, int, g->tasks);
    int *param_at = MGPU_NEW_ARRAY(to->arena, int, g->params);
    int *edge_at = MGPU_NEW_ARRAY(to->arena, int, g->edges);
    shuffle_tasks(g, r, at);
    shuffle(r, group_at, g->groups);
    shuffle(r, param_at, g->params);
    shuffle(r, edge_at, g->edges);
    to->tasks = g->tasks;
    to->edges = g->edges;
    to->params = g->params;
    to->input_bytes = g->input_bytes;
    to->rest_bytes = g->rest_bytes;
    for (int i = 0; i < g->tasks; i++) {
        struct mgpu_task *t = &to->task[at[i]];
        *t = g->task[i];
        t->key = t->name = mgpu_arena_format(to->arena, "n%d", test_below(r, 1 << 20));
        if (t->group >= 0)
            t->group = group_at[t->group];
        else
            t->param = param_at[t->param];
    }
    for (int i = 0; i < g->edges; i++)
        to->edge[edge_at[i]] = (struct mgpu_edge){.from = at[g->edge[i].from],
                                                  .to = at[g->edge[i].to],
                                                  .bytes = g->edge[i].bytes,
                                                  .value = 7919 * g->edge[i].value % 99991};
    for (int i = 0; i < g->groups; i++)
        to->pin[group_at[i]] = g->pin[i];
    for (int i = 0; i < g->params; i++) {
        struct mgpu_shared *p = &to->param[param_at[i]];
        *p = g->param[i];
        p->name = mgpu_arena_format(to->arena, "p%d", test_below(r, 1 << 20));
        p->group = MGPU_NEW_ARRAY(to->arena, int, p->groups);
        for (int k = 0; k < p->groups; k++)
            p->group[k] = group_at[g->param[i].group[k]];
    }
    return to;
}

struct mgpu_task_graph *test_scaled(const struct mgpu_task_graph *g, int kinds, double factor)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_task_graph *to = MGPU_NEW(arena, struct mgpu_task_graph);
    *to = *g;
    to->arena = arena;
    to->task = mgpu_arena_copy(arena, g->task, sizeof *g->task * (size_t)g->tasks);
    for (int i = 0; i < g->tasks; i++) {
        to->task[i].ms = mgpu_arena_copy(arena, g->task[i].ms, sizeof(double) * (size_t)kinds);
        for (int k = 0; k < kinds; k++)
            to->task[i].ms[k] *= factor;
    }
    return to;
}
