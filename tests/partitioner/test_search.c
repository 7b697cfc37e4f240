/* The whole search: closed forms, plans that were run, pins and owners. */
#include "tests/partitioner/random_tasks.h"
#include "tests/partitioner/search_model.h"
#include "tests/test.h"

enum { F = MGPU_PHASE_FORWARD, B = MGPU_PHASE_BACKWARD };

/* ---- Closed forms ---------------------------------------------------------------------------- */

/* `towers` chains of `length` groups, joined by one last group or not. */
static struct mgpu_task_graph *towers(int count, int length, bool joined)
{
    struct test_net net = {.groups = count * length + joined};
    for (int t = 0; t < count; t++)
        for (int i = 0; i < length; i++) {
            int g = t * length + i;
            if (i + 1 == length && !joined)
                continue;
            net.from[net.edges] = g;
            net.to[net.edges++] = i + 1 < length ? g + 1 : count * length;
        }
    struct mgpu_task_graph *g =
        test_graph(1, 2 * net.groups, 3 * net.edges + net.groups, net.groups, net.groups);
    int forward[64], backward[64];
    for (int i = 0; i < net.groups; i++)
        forward[i] = test_task(g, 1, i, F, 1, 100);
    for (int i = 0; i < net.edges; i++)
        test_edge(g, forward[net.from[i]], forward[net.to[i]], 100, net.from[i]);
    for (int i = net.groups - 1; i >= 0; i--) {
        backward[i] = test_task(g, 1, i, B, 2, 100);
        test_edge(g, forward[i], backward[i], 100, i);
        for (int k = 0; k < net.edges; k++)
            if (net.from[k] == i)
                test_edge(g, backward[net.to[k]], backward[i], 100, 100 + k);
    }
    return g;
}

/* A chain stays on one device, and the bound says so. */
static void check_chain(void)
{
    struct mgpu_task_graph *g = towers(1, 6, false);
    struct mgpu_topology *t = test_topology(4, 1, 1e6, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    q.inseparable = "the samples are mixed";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_SINGLE);
    CHECK_NEAR(r->candidate[0].step_ms, 18, 1e-12);
    CHECK_NEAR(r->lower_bound_ms, 18, 1e-12);
    CHECK_NEAR(r->parallelism, 1, 1e-12);
    CHECK(strstr(r->placement, "not searched"));
    const struct mgpu_candidate *branch = search_find(r, MGPU_TACTIC_BRANCH);
    CHECK(branch && !branch->tried && strstr(branch->why, "no placement"));
    const struct mgpu_candidate *data = search_find(r, MGPU_TACTIC_DATA);
    CHECK(data && !data->feasible && strstr(data->why, "mixed"));
    mgpu_search_result_free(r);
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* A strategy that is asked for is planned, even where it does not pay. */
static void check_forced(void)
{
    struct mgpu_task_graph *g = towers(1, 6, false);
    struct mgpu_topology *t = test_topology(4, 1, 100, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    q.strategy = "branch";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_BRANCH);
    CHECK_NEAR(r->candidate[0].step_ms, 18 + 2, 1e-12); /* there and back once */
    mgpu_search_result_free(r);
    q.strategy = "hybrid";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_HYBRID);
    CHECK(r->candidate[0].replicas == 2 && r->candidate[0].ranks == 2);
    mgpu_search_result_free(r);
    q.strategy = "single";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_SINGLE);
    CHECK(strstr(r->candidate[0].why, "asked"));
    mgpu_search_result_free(r);
    q.strategy = "stacked";
    CHECK_FAILS(mgpu_search(&r, &q), "no equal towers");
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* A gain within noise is no reason to leave one device: 1 ms of 100 beside a chain. */
static void check_noise(void)
{
    for (int ms = 1; ms <= 10; ms += 9) {
        struct mgpu_task_graph *g = test_graph(1, 2, 1, 2, 1);
        struct mgpu_topology *t = test_topology(2, 1, 1e6, 0, 0, 1 << 20);
        struct search_model m = {.whole = g, .kinds = 1};
        struct mgpu_search_request q = search_request(&m, t);
        struct mgpu_search_result *r;
        test_task(g, 1, 0, F, 100 - ms, 0);
        test_task(g, 1, 1, F, ms, 0);
        q.inseparable = "the samples are mixed";
        CHECK_OK(mgpu_search(&r, &q));
        CHECK(r->candidate[0].strategy == (ms == 1 ? MGPU_TACTIC_SINGLE : MGPU_TACTIC_BRANCH));
        const struct mgpu_candidate *branch = search_find(r, MGPU_TACTIC_BRANCH);
        CHECK_NEAR(branch->step_ms, 100 - ms, 1e-12);
        CHECK(branch->proven);
        if (ms == 1)
            CHECK(strstr(branch->why, "within the noise"));
        mgpu_search_result_free(r);
        search_forget(&m);
        test_graph_free(g);
        mgpu_arena_free(t->arena);
    }
}

/* k equal independent towers on n devices take ceil(k/n) times as long as one (where cutting one
 * would take longer). */
static void check_towers(void)
{
    for (int k = 1; k <= 9; k++)
        for (int n = 1; n <= 4; n++) {
            struct mgpu_task_graph *g = towers(k, 3, false);
            struct mgpu_topology *t = test_topology(n, 1, 1e3, 20, 0, 1 << 20);
            struct search_model m = {.whole = g, .kinds = 1};
            struct mgpu_search_request q = search_request(&m, t);
            struct mgpu_search_result *r;
            q.inseparable = "the samples are mixed";
            CHECK_OK(mgpu_search(&r, &q));
            double rounds = (k + n - 1) / n;
            CHECK_NEAR(r->candidate[0].step_ms, 9 * rounds, 1e-12);
            CHECK_NEAR(r->candidate[0].speedup, k / rounds, 1e-12);
            CHECK(r->candidate[0].strategy ==
                  (n > 1 && k > 1 ? MGPU_TACTIC_BRANCH : MGPU_TACTIC_SINGLE));
            mgpu_search_result_free(r);
            search_forget(&m);
            test_graph_free(g);
            mgpu_arena_free(t->arena);
        }
}

/* When nothing can be moved in time, one device does it all. */
static void check_no_links(void)
{
    struct mgpu_task_graph *g = towers(3, 2, true);
    struct mgpu_topology *t = test_topology(3, 1, 1e-9, 1e9, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    test_param(g, 100, 1, (int[]){0});
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_SINGLE);
    const struct mgpu_candidate *data = search_find(r, MGPU_TACTIC_DATA);
    CHECK(data && data->feasible && strstr(data->why, "summing gradients"));
    mgpu_search_result_free(r);
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* Two towers and a head: branches where launches dominate, data parallelism where they do not. */
static void check_launches(void)
{
    for (int dominated = 0; dominated < 2; dominated++) {
        struct mgpu_task_graph *g = towers(2, 4, true);
        struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
        struct search_model m = {.whole = g, .kinds = 1, .launch = dominated ? 0.9 : 0};
        struct mgpu_search_request q = search_request(&m, t);
        struct mgpu_search_result *r;
        CHECK_OK(mgpu_search(&r, &q));
        CHECK(r->candidate[0].strategy == (dominated ? MGPU_TACTIC_BRANCH : MGPU_TACTIC_DATA));
        /* work 27; path 15; the output of a tower and its gradient take 0.01 ms each */
        CHECK_NEAR(r->parallelism, 27.0 / 15, 1e-12);
        CHECK_NEAR(r->candidate[0].step_ms, dominated ? 15.02 : 13.5, 1e-9);
        CHECK(r->candidate[0].lower_bound_ms <= r->candidate[0].step_ms);
        CHECK(r->lower_bound_ms <= r->candidate[0].lower_bound_ms);
        mgpu_search_result_free(r);
        search_forget(&m);
        test_graph_free(g);
        mgpu_arena_free(t->arena);
    }
}

/* What all replicas sum last is an event on each device: the timeline ends where the step does. */
static void check_rest(void)
{
    struct mgpu_task_graph *g = towers(2, 4, true);
    struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    g->rest_bytes = 100;
    CHECK_OK(mgpu_search(&r, &q));
    const struct mgpu_candidate *data = search_find(r, MGPU_TACTIC_DATA);
    CHECK(data && data->events && data->step_ms > 13.5);
    if (data && data->events) {
        const struct mgpu_event *last = &data->event[data->events - 1];
        CHECK(last->activity == MGPU_ACTIVITY_REST && last->bytes == 100 && last->device == 0);
        CHECK_NEAR(last->start_ms, 13.5, 1e-9);
        CHECK_NEAR(last->end_ms, data->step_ms, 1e-9);
    }
    mgpu_search_result_free(r);
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* Eight launch-bound towers on four devices: two replicas of two ranks have to be looked at, and
 * stacking is a candidate. */
static void check_variant(void)
{
    struct mgpu_task_graph *g = towers(2, 3, true), *stacked = towers(1, 4, false);
    struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .variant = stacked, .kinds = 1, .launch = 0.95};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    q.variants = 1;
    q.variant_name = (const char *const[]){"stacked"};
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_STACKED && r->candidate[0].variant == 1);
    CHECK(r->candidate[0].step_ms <= 12 && r->candidate[0].graph->groups == 4);
    for (int i = 0; i < r->candidates; i++)
        CHECK(r->candidate[i].why && *r->candidate[i].why);
    mgpu_search_result_free(r);
    search_forget(&m);
    m.whole = stacked; /* it gains nothing */
    m.launch = 0;
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(strstr(search_find(r, MGPU_TACTIC_STACKED)->why, "within the noise"));
    mgpu_search_result_free(r);
    search_forget(&m);
    test_graph_free(stacked);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* ---- What was run ---------------------------------------------------------------------------- */

/* By tactic: what a step takes here (0: it cannot be run), and how often that was asked. */
struct here {
    struct search_model m;
    double ms[MGPU_TACTIC_STACKED + 1];
    int asked[MGPU_TACTIC_STACKED + 1];
};

static int here_tasks(void *context, int variant, int64_t batch, int devices,
                      const struct mgpu_task_graph **out)
{
    return search_tasks(&((struct here *)context)->m, variant, batch, devices, out);
}

static int time_here(void *context, const struct mgpu_candidate *c, double *ms)
{
    struct here *h = context;
    h->asked[c->strategy]++;
    *ms = h->ms[c->strategy];
    return 0;
}

/* What a step takes here decides, not what was simulated; what was not run stays simulated. */
static void check_run(void)
{
    struct mgpu_task_graph *g = towers(2, 4, true);
    struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
    struct here h = {.m = {.whole = g, .kinds = 1, .launch = 0.9},
                     .ms = {[MGPU_TACTIC_SINGLE] = 30, [MGPU_TACTIC_DATA] = 25}};
    struct mgpu_search_request q = search_request(&h.m, t);
    struct mgpu_search_result *r;
    q.tasks = here_tasks;
    q.time = time_here;
    q.context = &h;
    CHECK_OK(mgpu_search(&r, &q)); /* simulated: data more than 25, branch 15.02 */
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_BRANCH && !r->candidate[0].ran);
    CHECK_NEAR(r->candidate[0].step_ms, 15.02, 1e-9);
    CHECK_NEAR(r->candidate[0].speedup, 30 / 15.02, 1e-9);
    const struct mgpu_candidate *data = search_find(r, MGPU_TACTIC_DATA);
    CHECK(data->ran && data->step_ms == 25 && data->lower_bound_ms <= 25);
    CHECK_NEAR(data->event[data->events - 1].end_ms, 25, 1e-9);
    CHECK(h.asked[MGPU_TACTIC_SINGLE] == 1 && h.asked[MGPU_TACTIC_BRANCH] == 1);
    mgpu_search_result_free(r);
    h.ms[MGPU_TACTIC_BRANCH] = 40;
    h.ms[MGPU_TACTIC_DATA] = 9; /* below the bound of the simulation */
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_DATA && r->candidate[0].step_ms == 9);
    CHECK(r->lower_bound_ms <= 9 && search_find(r, MGPU_TACTIC_BRANCH)->step_ms == 40);
    mgpu_search_result_free(r);
    memset(h.asked, 0, sizeof h.asked);
    q.strategy = "branch"; /* and one device, for the speed-up */
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].step_ms == 40 && r->candidate[0].speedup == 30.0 / 40);
    CHECK(h.asked[MGPU_TACTIC_SINGLE] == 1 && h.asked[MGPU_TACTIC_DATA] == 0);
    mgpu_search_result_free(r);
    search_forget(&h.m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* ---- Pins, owners, faults -------------------------------------------------------------------- */

static void check_pins(void)
{
    struct mgpu_task_graph *g = towers(2, 2, true);
    struct mgpu_topology *t = test_topology(3, 1, 1e4, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    g->pin[0] = 2;
    g->pin[4] = 1;
    q.devices = 2; /* the third only serves the pin */
    CHECK_OK(mgpu_search(&r, &q));
    const struct mgpu_candidate *c = &r->candidate[0];
    CHECK(c->strategy == MGPU_TACTIC_BRANCH && c->device[0] == 2 && c->device[4] == 1);
    for (int i = 1; i < 4; i++)
        CHECK(c->device[i] < 2);
    CHECK(!search_find(r, MGPU_TACTIC_DATA)->feasible);
    CHECK(strstr(search_find(r, MGPU_TACTIC_DATA)->why, "pinned to cpu:"));
    mgpu_search_result_free(r);
    q.strategy = "data";
    CHECK_FAILS(mgpu_search(&r, &q), "'k");
    q.strategy = NULL;
    search_forget(&m);
    t->device[2].memory = 10;
    CHECK_FAILS(mgpu_search(&r, &q), "cpu:2 is too small");
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

static void check_owner(void)
{
    struct mgpu_task_graph *g = towers(2, 2, true);
    struct mgpu_topology *t = test_topology(3, 1, 1e3, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    for (int i = 0; i < 5; i++)
        test_param(g, 100, 1, &i);
    q.devices = 2;
    q.weights_on = 2;
    CHECK_OK(mgpu_search(&r, &q));
    for (int i = 0; i < r->candidates; i++)
        for (int p = 0; r->candidate[i].tried && p < 5; p++)
            CHECK(r->candidate[i].owner[p] == 2);
    /* the state is on the third device only: 5 x (value, gradient, state) */
    CHECK(r->candidate[0].memory[2] >= 5 * 400);
    CHECK(strstr(search_find(r, MGPU_TACTIC_DATA)->why, "cpu:2") || !r->candidate[0].variant);
    mgpu_search_result_free(r);
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* The single device is the fast one, wherever it stands. */
static void check_kinds(void)
{
    struct mgpu_task_graph *g = towers(1, 4, false);
    struct mgpu_topology *t = test_topology(3, 3, 1e3, 0, 0, 1 << 20);
    struct search_model m = {.whole = g, .kinds = 3};
    struct mgpu_search_request q = search_request(&m, t);
    struct mgpu_search_result *r;
    g->host_ms = NULL; /* there is none */
    for (int i = 0; i < g->tasks; i++) {
        double ms = g->task[i].ms[0];
        g->task[i].ms = mgpu_arena_copy(g->arena, (double[]){3 * ms, ms, 2 * ms}, 3 * sizeof ms);
    }
    q.inseparable = "the samples are mixed";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_SINGLE);
    for (int i = 0; i < 4; i++)
        CHECK(r->candidate[0].device[i] == 1);
    CHECK_NEAR(r->candidate[0].step_ms, 12, 1e-12);
    mgpu_search_result_free(r);
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* A chain that one device cannot hold is cut where little has to move. */
static void check_memory_cut(void)
{
    struct mgpu_task_graph *g = towers(1, 20, false);
    struct search_model m = {.whole = g, .kinds = 1};
    struct mgpu_search_result *r;
    for (int i = 0; i < 20; i++)
        test_param(g, 1000, 1, &i);
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 20 * 4000 / 2 + 20 * 100 / 2 + 300);
    struct mgpu_search_request q = search_request(&m, t);
    q.inseparable = "the samples are mixed";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_BRANCH);
    CHECK_NEAR(r->candidate[0].step_ms, 60 + 2, 1e-12); /* one cut: there and back */
    CHECK(strstr(search_find(r, MGPU_TACTIC_SINGLE)->why, "does not fit: cpu:0 needs"));
    mgpu_search_result_free(r);
    t->device[0].memory = t->device[1].memory = 1000;
    CHECK_FAILS(mgpu_search(&r, &q), "bytes there, 1000 are available");
    search_forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

int main(void)
{
    check_chain();
    check_forced();
    check_noise();
    check_towers();
    check_no_links();
    check_launches();
    check_rest();
    check_variant();
    check_run();
    check_pins();
    check_owner();
    check_kinds();
    check_memory_cut();
    return test_end();
}
