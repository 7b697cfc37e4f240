/* How long planning takes: graphs of 1,000, 3,000 and 10,000 groups on 1024 devices.
 *
 *     bench_planner [DEVICES [GROUPS...]]
 */
#include "partitioner/search.h"
#include "tests/partitioner/random_tasks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 100000, BATCH = 8192, BRANCHES = 4, DEPTH = 4, IN_NODE = 8 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Nodes of 8 devices with fast links inside; one channel for what leaves a device. */
static struct mgpu_topology *cluster(int devices)
{
    struct mgpu_topology *t = test_topology(devices, 1, 50e6, 0.02, 1, (int64_t)80 << 30);
    for (int i = 0; i < devices; i++) {
        t->device[i].node = i / IN_NODE;
        for (int k = 0; k < devices; k++)
            if (i / IN_NODE == k / IN_NODE)
                t->link[(size_t)i * (size_t)devices + (size_t)k].bytes = 400e9;
    }
    t->fabric.ring = 370e9;
    t->fabric.adapter = 48e9;
    t->fabric.adapters = IN_NODE;
    return t;
}

/* Blocks as in Inception: a fork, branches of a few groups, a join. */
static void inception(int *from, int *to, int *edges, int groups)
{
    int fork = 0, next = 1;
    *edges = 0;
    while (next + BRANCHES * DEPTH < groups) {
        int join = next + BRANCHES * DEPTH;
        for (int b = 0; b < BRANCHES; b++)
            for (int d = 0; d <= DEPTH; d++) {
                int last = next + b * DEPTH + d - 1;
                from[*edges] = d ? last : fork;
                to[(*edges)++] = d < DEPTH ? last + 1 : join;
            }
        fork = join;
        next = join + 1;
    }
    for (; next < groups; fork = next++) {
        from[*edges] = fork;
        to[(*edges)++] = next;
    }
}

static struct mgpu_task_graph *model(int groups)
{
    struct test_random r = {7};
    int *from = malloc(sizeof *from * 2 * (size_t)groups), edges;
    int *to = malloc(sizeof *to * 2 * (size_t)groups);
    inception(from, to, &edges, groups);
    struct mgpu_task_graph *g = test_graph(1, 3 * groups, 2 * edges + 2 * groups, groups, groups);
    int *forward = malloc(sizeof *forward * (size_t)groups);
    int *backward = malloc(sizeof *backward * (size_t)groups);
    double *ms = malloc(sizeof *ms * (size_t)groups);
    for (int i = 0; i < groups; i++) {
        ms[i] = 0.1 * (1 + test_below(&r, 40));
        forward[i] = test_task(g, 1, i, MGPU_PHASE_FORWARD, ms[i], 1 << 16);
    }
    for (int i = 0; i < edges; i++)
        test_edge(g, forward[from[i]], forward[to[i]], 1 << 16, from[i]);
    for (int i = groups - 1; i >= 0; i--)
        backward[i] = test_task(g, 1, i, MGPU_PHASE_BACKWARD, 2 * ms[i], 1 << 16);
    for (int i = 0; i < edges; i++)
        test_edge(g, backward[to[i]], backward[from[i]], 1 << 16, groups + i);
    for (int i = 0; i < groups; i++) {
        test_edge(g, forward[i], backward[i], 1 << 16, i);
        int update = test_task(g, 1, i, MGPU_PHASE_UPDATE, 0.01, 0);
        test_edge(g, backward[i], update, 1 << 20, 4 * groups + i);
        test_param(g, 1 << 20, 1, &i);
    }
    free(from);
    free(to);
    free(forward);
    free(backward);
    free(ms);
    return g;
}

/* The model at a local batch: 5 us of each task are a launch. */
struct at_batch {
    const struct mgpu_task_graph *whole;
    int count;
    struct mgpu_task_graph *made[64];
};

static int tasks(void *context, int variant, int64_t batch, int devices,
                 const struct mgpu_task_graph **out)
{
    struct at_batch *m = context;
    (void)variant;
    (void)devices;
    for (int i = 0; i < m->count; i++)
        if (m->made[i]->batch == batch) {
            *out = m->made[i];
            return 0;
        }
    struct mgpu_task_graph *g = test_scaled(m->whole, 1, (double)batch / BATCH);
    for (int i = 0; i < g->tasks; i++)
        g->task[i].ms[0] += 0.005;
    g->batch = batch;
    m->made[m->count++] = g;
    *out = g;
    return 0;
}

static void time_one(int devices, int groups)
{
    struct mgpu_topology *t = cluster(devices);
    struct at_batch m = {.whole = model(groups)};
    struct mgpu_search_request q = {
        .topology = t, .batch = BATCH, .tasks = tasks, .context = &m, .weights_on = -1, .seed = 1};
    struct mgpu_search_result *r;
    double start = now_ms();
    int rc = mgpu_search(&r, &q);
    double ms = now_ms() - start;
    if (rc < 0) {
        fprintf(stderr, "search failed\n");
        exit(EXIT_FAILURE);
    }
    const struct mgpu_candidate *c = &r->candidate[0];
    printf("%6d groups, %4d devices: %7.0f ms; %s, %d x %d devices, step %.3f ms, bound %.3f ms\n",
           groups, devices, ms, mgpu_tactic_name(c->strategy), c->replicas, c->ranks, c->step_ms,
           r->lower_bound_ms);
    for (int i = 1; getenv("VERBOSE") && i < r->candidates; i++)
        printf("    %s %d x %d: %.3f ms, %s\n", mgpu_tactic_name(r->candidate[i].strategy),
               r->candidate[i].replicas, r->candidate[i].ranks, r->candidate[i].step_ms,
               r->candidate[i].why);
    mgpu_search_result_free(r);
    for (int i = 0; i < m.count; i++)
        test_graph_free(m.made[i]);
    test_graph_free((struct mgpu_task_graph *)m.whole);
    mgpu_arena_free(t->arena);
}

int main(int argc, char **argv)
{
    int devices = argc > 1 ? atoi(argv[1]) : 1024;
    static const int sizes[] = {1000, 3000, 10000};
    if (devices < 1 || devices > 4096)
        return EXIT_FAILURE;
    for (int i = 2; i < argc; i++)
        if (atoi(argv[i]) > 1 && atoi(argv[i]) <= MOST)
            time_one(devices, atoi(argv[i]));
    for (int i = 0; argc <= 2 && i < 3; i++)
        time_one(devices, sizes[i]);
    return EXIT_SUCCESS;
}
