/* Exact search against brute force, heuristics and lower bounds, on seeded random graphs. */
#include "partitioner/bounds.h"
#include "partitioner/place.h"
#include "tests/partitioner/brute_force.h"
#include "tests/partitioner/random_tasks.h"
#include "tests/test.h"

struct problem {
    struct mgpu_task_graph *graph;
    struct mgpu_topology *topology;
    struct mgpu_flow *flow;
    struct mgpu_replica replica;
    struct mgpu_arena *arena;
    int devices;
};

static void make(struct problem *p, struct test_random *r, int most_groups)
{
    struct test_net net;
    int kinds = 1 + (test_below(r, 4) == 0);
    test_net(&net, r, (enum test_shape)test_below(r, TEST_SHAPES),
             2 + test_below(r, most_groups - 1));
    p->arena = mgpu_arena_new();
    p->devices = 2 + test_below(r, 2);
    p->graph = test_training(&net, r, kinds, test_below(r, 3));
    for (int i = 0; i < p->graph->params; i++)
        if (test_below(r, 4) == 0) {
            p->graph->param[i].product_bytes = p->graph->param[i].bytes;
            p->graph->param[i].factor_bytes = 1 + test_below(r, 8);
        }
    int64_t memory = test_below(r, 3) ? 1 << 20 : 400 + 40 * test_below(r, 40);
    double speed = 1 << test_below(r, 7);
    int replicas = test_below(r, 4) ? 1 : 2;
    p->topology = test_topology(p->devices * replicas, kinds, speed, 0.25 * test_below(r, 4),
                                test_below(r, 3), memory);
    if (replicas == 1 && test_below(r, 4) == 0)
        p->graph->pin[test_below(r, net.groups)] = test_below(r, p->devices);
    CHECK_OK(mgpu_flow_new(&p->flow, p->graph, kinds, 0, p->topology->devices));
    int weights_on = test_below(r, 8) ? -1 : test_below(r, p->devices);
    mgpu_replica_init(&p->replica, p->topology, mgpu_channels(p->topology), replicas, p->devices,
                      weights_on, p->arena);
    p->replica.bucket_bytes = 8 << test_below(r, 5);
    p->topology->kind[0].interference = 1 + test_below(r, 2);
    p->topology->kind[0].threads = test_below(r, 3);
}

static void drop(struct problem *p)
{
    mgpu_flow_free(p->flow);
    mgpu_arena_free(p->topology->arena);
    mgpu_arena_free(p->arena);
    test_graph_free(p->graph);
}

/* Everything that could move on one path, and the longest such path: C of the ETF bound. */
static double longest_communication(const struct problem *p)
{
    const struct mgpu_flow *f = p->flow;
    double *far = mgpu_xcalloc((size_t)f->tasks, sizeof *far), all = 0, weights = 0;
    for (int i = 0; i < f->tensors; i++)
        for (int k = 0; k < f->tensor[i].uses; k++) {
            double *to = &far[f->use[f->tensor[i].use + k]];
            double ms = mgpu_transfer_ms(p->topology, 0, 1, (double)f->tensor[i].bytes);
            *to = fmax(*to, far[f->tensor[i].from] + ms);
            all = fmax(all, *to);
        }
    for (int i = 0; i < f->params; i++)
        weights += f->param[i].groups > 1 || p->replica.weights_on >= 0
                       ? mgpu_transfer_ms(p->topology, 0, 1, (double)f->param[i].bytes)
                       : 0;
    free(far);
    return all + weights;
}

/* When the parameters of a group that others own are there. */
static double weights_ready(const struct problem *p, int group, const int *device, const int *owner)
{
    double ready = 0;
    for (int i = 0; i < p->graph->params; i++)
        for (int k = 0; k < p->graph->param[i].groups; k++)
            if (p->graph->param[i].group[k] == group)
                ready = fmax(ready, mgpu_transfer_ms(p->topology, owner[i], device[group],
                                                     (double)p->graph->param[i].bytes));
    return ready;
}

/* A schedule of its own making: a random order, random devices, links without queues. */
static double random_schedule(const struct problem *p, struct test_random *r)
{
    const struct mgpu_task_graph *g = p->graph;
    int device[8], owner[16];
    double device_free[3] = {0}, *end = mgpu_xcalloc((size_t)g->tasks, sizeof *end), last = 0;
    for (int i = 0; i < g->groups; i++)
        device[i] = g->pin[i] >= 0 ? g->pin[i] : test_below(r, p->devices);
    for (int i = 0; i < g->params; i++)
        owner[i] = p->replica.weights_on >= 0 ? p->replica.weights_on
                   : g->param[i].groups > 1   ? test_below(r, p->devices)
                                              : device[g->param[i].group[0]];
    for (int done = 0; done < g->tasks;) {
        int i = test_below(r, g->tasks);
        const struct mgpu_task *t = &g->task[i];
        double start = end[i] > 0     ? -1
                       : t->group < 0 ? 0
                                      : weights_ready(p, t->group, device, owner);
        int at = t->group >= 0 ? device[t->group] : owner[t->param];
        if (p->replica.weights_on >= 0 && (t->group < 0 || t->phase == MGPU_PHASE_UPDATE))
            at = p->replica.weights_on;
        for (int k = 0; k < g->edges && start >= 0; k++) {
            const struct mgpu_task *from = &g->task[g->edge[k].from];
            if (g->edge[k].to != i)
                continue;
            int there = from->group >= 0 ? device[from->group] : owner[from->param];
            if (p->replica.weights_on >= 0 && (from->group < 0 || from->phase == MGPU_PHASE_UPDATE))
                there = p->replica.weights_on;
            double ms = mgpu_transfer_ms(p->topology, there, at, (double)g->edge[k].bytes);
            start = end[g->edge[k].from] ? fmax(start, end[g->edge[k].from] + ms) : -1;
        }
        if (start < 0)
            continue;
        done++;
        end[i] = fmax(start, device_free[at]) + t->ms[p->topology->device[at].kind];
        device_free[at] = end[i];
        last = fmax(last, end[i]);
        end[i] = fmax(end[i], 1e-300); /* not 0: it has run */
    }
    free(end);
    return last;
}

static void check_problem(struct problem *p, struct test_random *r, int *proven, double *worst)
{
    double best = test_brute_force(p->flow, &p->replica);
    struct mgpu_bounds bounds;
    mgpu_bound(&bounds, p->flow, &p->replica);
    CHECK_(bounds.step <= best * (1 + 1e-12), "bound %g above the optimum %g", bounds.step, best);
    for (int i = 0; i < 10 && p->replica.replicas == 1 && bounds.step < INFINITY; i++) {
        double ms = random_schedule(p, r);
        CHECK_(bounds.step <= ms * (1 + 1e-12), "bound %g above a schedule's %g", bounds.step, ms);
    }

    struct mgpu_place *exact = mgpu_place_new(p->flow, &p->replica, bounds.step, 1 << 30, 1);
    mgpu_place_start(exact);
    CHECK(mgpu_place_exact(exact));
    double found = exact->best_lacking ? INFINITY : exact->best_ms;
    CHECK_(found == best, "exact search found %.17g, brute force %.17g", found, best);
    *proven += best < INFINITY;

    struct mgpu_place *quick = mgpu_place_new(p->flow, &p->replica, bounds.step, 20000, 1);
    mgpu_place_start(quick);
    mgpu_place_improve(quick);
    double heuristic = quick->best_lacking ? INFINITY : quick->best_ms;
    CHECK_(heuristic >= best, "%g is better than the optimum %g", heuristic, best);
    bool roomy = p->topology->device[0].memory >= 1 << 20;
    if (roomy && p->topology->kinds == 1 && p->replica.weights_on < 0 && p->replica.replicas == 1) {
        double limit = (2 - 1.0 / p->devices) * best + longest_communication(p);
        CHECK_(heuristic <= limit, "heuristic %g passes its bound %g", heuristic, limit);
    }
    if (best < INFINITY && heuristic < INFINITY)
        *worst = fmax(*worst, heuristic / best);
    mgpu_place_free(exact);
    mgpu_place_free(quick);
}

static void check_many(int cases, int most_groups, uint64_t seed)
{
    struct test_random r = {seed};
    int proven = 0;
    double worst = 1;
    for (int i = 0; i < cases; i++) {
        struct problem p;
        make(&p, &r, most_groups);
        int before = test_failures;
        check_problem(&p, &r, &proven, &worst);
        CHECK_(test_failures == before, "in case %d of seed %llu", i, (unsigned long long)seed);
        drop(&p);
    }
    CHECK(proven > cases / 2);
    printf("%d of %d with a placement that fits; heuristic at most %.3f of the optimum\n", proven,
           cases, worst);
}

int main(void)
{
    check_many(4000, 6, 1);
    check_many(300, 8, 2);
    return test_end();
}
