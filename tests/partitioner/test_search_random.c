/* The whole search on random models: honesty towards the baselines, what must not change a plan,
 * and that nothing better is left out. */
#include "tests/partitioner/brute_force.h"
#include "tests/partitioner/random_tasks.h"
#include "tests/partitioner/search_model.h"
#include "tests/test.h"

/* ---- Random models --------------------------------------------------------------------------- */

struct world {
    struct mgpu_task_graph *graph;
    struct search_model model;
    double speed, latency;
    int devices, kinds, channels, weights_on;
    int threads; /* of CPUs; 0: GPUs */
    int64_t memory;
};

static void make_world(struct world *w, struct test_random *r, int most_groups)
{
    struct test_net net;
    *w = (struct world){.kinds = 1, .devices = 2 + test_below(r, 3), .channels = test_below(r, 3)};
    test_net(&net, r, (enum test_shape)test_below(r, TEST_SHAPES),
             2 + test_below(r, most_groups - 1));
    w->graph = test_training(&net, r, 1, test_below(r, 2));
    w->speed = 1 << test_below(r, 8);
    w->latency = 0.25 * test_below(r, 4);
    w->memory = test_below(r, 3) ? 1 << 20 : 300 + 50 * test_below(r, 30);
    w->weights_on = test_below(r, 8) ? -1 : 0;
    w->threads = test_below(r, 3);
    w->model =
        (struct search_model){.whole = w->graph, .kinds = 1, .launch = 0.25 * test_below(r, 5)};
}

static void drop_world(struct world *w)
{
    search_forget(&w->model);
    test_graph_free(w->graph);
}

static struct mgpu_topology *topology_of(const struct world *w)
{
    struct mgpu_topology *t =
        test_topology(w->devices, w->kinds, w->speed, w->latency, w->channels, w->memory);
    for (int k = 0; k < w->kinds; k++)
        t->kind[k].threads = w->threads;
    return t;
}

/* Searches; NULL when nothing is feasible. */
static struct mgpu_search_result *search(struct world *w, struct search_model *m)
{
    struct mgpu_topology *t = topology_of(w);
    struct mgpu_search_request q = search_request(m, t);
    struct mgpu_search_result *r;
    q.weights_on = w->weights_on;
    if (mgpu_search(&r, &q) < 0)
        CHECK_(strstr(mgpu_error(), "needs") || strstr(mgpu_error(), "pinned"), "%s", mgpu_error());
    mgpu_arena_free(t->arena);
    return r;
}

static void check_honest(const struct mgpu_search_result *r)
{
    const struct mgpu_candidate *c = &r->candidate[0];
    CHECK(c->feasible && c->why && *c->why);
    CHECK(r->lower_bound_ms <= c->step_ms * (1 + 1e-12));
    CHECK(search_find(r, MGPU_TACTIC_SINGLE) && search_find(r, MGPU_TACTIC_DATA));
    for (int i = 1; i < r->candidates; i++) {
        const struct mgpu_candidate *o = &r->candidate[i];
        CHECK(o->why && *o->why);
        if (o->tried)
            CHECK(o->lower_bound_ms <= o->step_ms * (1 + 1e-12));
        if (!o->feasible)
            continue;
        CHECK_(c->step_ms * 0.98 <= o->step_ms, "chose %g over %g", c->step_ms, o->step_ms);
        if (o->strategy <= MGPU_TACTIC_DATA)
            CHECK(c->step_ms <= o->step_ms);
    }
}

/* More bandwidth, memory or devices never makes the best of the table worse. */
static void check_metamorphic(struct world *w, double best)
{
    for (int change = 0; change < 3; change++) {
        struct world more = *w;
        more.speed *= change == 0 ? 2 : 1;
        more.memory *= change == 1 ? 2 : 1;
        more.devices += change == 2;
        struct mgpu_search_result *r = search(&more, &w->model);
        static const char *const name[] = {"bandwidth", "memory", "devices"};
        CHECK(r != NULL);
        if (r)
            CHECK_(search_best(r) <= best * (1 + 1e-9), "more %s: %g after %g", name[change],
                   search_best(r), best);
        mgpu_search_result_free(r);
    }
}

/* Other numbers and names give the same table. */
static void check_permuted(struct world *w, const struct mgpu_search_result *r,
                           struct test_random *random, int *same, int *placed)
{
    int at[64];
    struct mgpu_task_graph *g = test_permuted(w->graph, random, 1, at);
    struct search_model m = {.whole = g, .kinds = 1, .launch = w->model.launch};
    struct mgpu_search_result *again = search(w, &m);
    CHECK(again && again->candidates == r->candidates);
    for (int i = 0; again && i < r->candidates && i < again->candidates; i++) {
        const struct mgpu_candidate *a = &r->candidate[i], *b = &again->candidate[i];
        CHECK(a->strategy == b->strategy && a->replicas == b->replicas && a->ranks == b->ranks);
        CHECK_(a->step_ms == b->step_ms, "%s: %.17g and %.17g in another order",
               mgpu_tactic_name(a->strategy), a->step_ms, b->step_ms);
        for (int k = 0; a->tried && k < w->graph->groups; k++) {
            *placed += 1;
            *same += a->device[k] == b->device[at[k]];
        }
    }
    mgpu_search_result_free(again);
    search_forget(&m);
    test_graph_free(g);
}

/* Everything pinned where it is: the same step. */
static void check_pinned_to(struct world *w, const struct mgpu_candidate *plan)
{
    if (!plan || !plan->feasible)
        return;
    struct mgpu_task_graph *g = test_scaled(w->graph, 1, 1);
    g->pin = plan->device;
    struct search_model m = {.whole = g, .kinds = 1, .launch = w->model.launch};
    struct mgpu_search_result *again = search(w, &m);
    CHECK(again != NULL);
    if (again)
        CHECK_NEAR(again->candidate[0].step_ms, plan->step_ms, 1e-12);
    for (int i = 0; again && i < g->groups; i++)
        CHECK(again->candidate[0].device[i] == plan->device[i]);
    mgpu_search_result_free(again);
    search_forget(&m);
    test_graph_free(g);
}

static void check_pinned(struct world *w, const struct mgpu_search_result *r)
{
    check_pinned_to(w, search_find(r, MGPU_TACTIC_SINGLE));
    check_pinned_to(w, search_find(r, MGPU_TACTIC_BRANCH));
}

/* Times four times as long everywhere: the same plan, four times as long. */
static void check_scaled(struct world *w, const struct mgpu_search_result *r)
{
    struct mgpu_task_graph *g = test_scaled(w->graph, 1, 4);
    struct search_model m = {.whole = g, .kinds = 1, .launch = w->model.launch};
    struct world slow = *w;
    slow.speed /= 4;
    slow.latency *= 4;
    struct mgpu_search_result *again = search(&slow, &m);
    CHECK(again && again->candidates == r->candidates);
    if (again) {
        CHECK_NEAR(again->candidate[0].step_ms, 4 * r->candidate[0].step_ms, 1e-12);
        CHECK(again->candidate[0].strategy == r->candidate[0].strategy);
        for (int i = 0; i < g->groups; i++)
            CHECK(again->candidate[0].device[i] == r->candidate[0].device[i]);
    }
    mgpu_search_result_free(again);
    search_forget(&m);
    test_graph_free(g);
}

static void check_random(int cases, uint64_t seed)
{
    struct test_random random = {seed};
    int kinds[5] = {0}, same = 0, placed = 0, feasible = 0;
    for (int i = 0; i < cases; i++) {
        struct world w;
        int before = test_failures;
        make_world(&w, &random, 7);
        struct mgpu_search_result *r = search(&w, &w.model);
        if (r) {
            feasible++;
            kinds[r->candidate[0].strategy]++;
            check_honest(r);
            check_metamorphic(&w, search_best(r));
            check_permuted(&w, r, &random, &same, &placed);
            check_pinned(&w, r);
            check_scaled(&w, r);
        }
        CHECK_(test_failures == before, "in case %d of seed %llu", i, (unsigned long long)seed);
        mgpu_search_result_free(r);
        drop_world(&w);
    }
    printf(
        "%d of %d feasible; chosen: %d single, %d data, %d branch, %d hybrid; %d of %d groups on "
        "the same device in another order\n",
        feasible, cases, kinds[0], kinds[1], kinds[2], kinds[3], same, placed);
    CHECK(feasible > cases * 3 / 4);
    for (int k = 0; k < 4; k++)
        CHECK_(kinds[k] > 0, "%s was never chosen", mgpu_tactic_name((enum mgpu_tactic)k));
}

/* ---- All plans that there are ---------------------------------------------------------------- */

/* The least time on so many replicas of so many devices. */
static double best_placement(struct world *w, const struct mgpu_topology *t, int replicas,
                             int ranks)
{
    const struct mgpu_task_graph *g;
    struct mgpu_replica replica;
    struct mgpu_flow *flow;
    struct mgpu_arena *arena = mgpu_arena_new();
    CHECK_OK(search_tasks(&w->model, 0, (BATCH + replicas - 1) / replicas, 0, &g));
    CHECK_OK(mgpu_flow_new(&flow, g, w->kinds, 0, t->devices));
    mgpu_replica_init(&replica, t, mgpu_channels(t), replicas, ranks, w->weights_on, arena);
    double best = test_brute_force(flow, &replica);
    mgpu_flow_free(flow);
    mgpu_arena_free(arena);
    return best;
}

/* The table offers the best of all numbers of replicas, of devices for each, of placements and
 * owners; where it has nothing to offer there is nothing. */
static void check_all_plans(int cases, uint64_t seed)
{
    struct test_random random = {seed};
    int feasible = 0;
    for (int i = 0; i < cases; i++) {
        struct world w;
        double best = INFINITY;
        make_world(&w, &random, 5);
        struct mgpu_topology *t = topology_of(&w);
        for (int replicas = 1; replicas <= w.devices; replicas++)
            for (int ranks = 1; ranks * replicas <= w.devices; ranks++)
                best = fmin(best, best_placement(&w, t, replicas, ranks));
        struct mgpu_search_result *r = search(&w, &w.model);
        double found = r ? search_best(r) : INFINITY;
        CHECK_(found == best || fabs(found - best) <= 1e-12 * best,
               "case %d of seed %llu: %.17g, the best is %.17g", i, (unsigned long long)seed, found,
               best);
        feasible += r != NULL;
        mgpu_search_result_free(r);
        mgpu_arena_free(t->arena);
        drop_world(&w);
    }
    printf("%d searches give the best of all plans\n", feasible);
    CHECK(feasible > cases * 3 / 4);
}

int main(void)
{
    check_random(1500, 3);
    check_all_plans(2000, 4);
    return test_end();
}
