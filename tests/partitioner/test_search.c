/* The whole search: closed forms, honesty towards the baselines, and what must not change a plan.
 */
#include "partitioner/search.h"
#include "tests/partitioner/brute_force.h"
#include "tests/partitioner/random_tasks.h"
#include "tests/test.h"

enum { F = MGPU_PHASE_FORWARD, B = MGPU_PHASE_BACKWARD, U = MGPU_PHASE_UPDATE, BATCH = 8 };

/* The graphs of one model: at the whole batch, and at smaller ones, where tasks take less time but
 * for a launch, and activations are smaller. */
struct model {
    const struct mgpu_task_graph *whole, *variant;
    int kinds;
    double launch; /* share of the time that does not shrink */
    struct mgpu_task_graph *at[2][BATCH + 1];
};

static struct mgpu_task_graph *shrunk(const struct model *m, const struct mgpu_task_graph *g,
                                      int64_t batch)
{
    double part = (double)batch / BATCH;
    struct mgpu_task_graph *to = test_scaled(g, m->kinds, 1);
    to->batch = batch;
    to->edge = mgpu_arena_copy(to->arena, g->edge, sizeof *g->edge * (size_t)g->edges);
    for (int i = 0; i < to->tasks; i++) {
        to->task[i].output = (int64_t)ceil((double)g->task[i].output * part);
        for (int k = 0; k < m->kinds && to->task[i].phase != U; k++)
            to->task[i].ms[k] *= m->launch + (1 - m->launch) * part;
    }
    for (int i = 0; i < to->edges; i++)
        if (to->task[to->edge[i].to].phase != U && to->task[to->edge[i].to].group >= 0)
            to->edge[i].bytes = (int64_t)ceil((double)g->edge[i].bytes * part);
    return to;
}

static int tasks(void *context, int variant, int64_t batch, int devices,
                 const struct mgpu_task_graph **out)
{
    struct model *m = context;
    (void)devices;
    if (!m->at[variant][batch])
        m->at[variant][batch] = shrunk(m, variant ? m->variant : m->whole, batch);
    *out = m->at[variant][batch];
    return 0;
}

static void forget(struct model *m)
{
    for (int v = 0; v < 2; v++)
        for (int b = 0; b <= BATCH; b++)
            if (m->at[v][b])
                test_graph_free(m->at[v][b]);
    memset(m->at, 0, sizeof m->at);
}

static struct mgpu_search_request request_for(struct model *m, const struct mgpu_topology *t)
{
    return (struct mgpu_search_request){
        .topology = t, .batch = BATCH, .tasks = tasks, .context = m, .weights_on = -1, .seed = 1};
}

static const struct mgpu_candidate *find(const struct mgpu_search_result *r,
                                         enum mgpu_tactic tactic)
{
    for (int i = 0; i < r->candidates; i++)
        if (r->candidate[i].strategy == tactic)
            return &r->candidate[i];
    return NULL;
}

/* The shortest step of all that may be chosen: what the table offers. */
static double best_of(const struct mgpu_search_result *r)
{
    double best = INFINITY;
    for (int i = 0; i < r->candidates; i++)
        if (r->candidate[i].feasible)
            best = fmin(best, r->candidate[i].step_ms);
    return best;
}

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
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = request_for(&m, t);
    struct mgpu_search_result *r;
    q.inseparable = "the samples are mixed";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_SINGLE);
    CHECK_NEAR(r->candidate[0].step_ms, 18, 1e-12);
    CHECK_NEAR(r->lower_bound_ms, 18, 1e-12);
    CHECK_NEAR(r->parallelism, 1, 1e-12);
    CHECK(strstr(r->placement, "not searched"));
    const struct mgpu_candidate *branch = find(r, MGPU_TACTIC_BRANCH);
    CHECK(branch && !branch->tried && strstr(branch->why, "no placement"));
    const struct mgpu_candidate *data = find(r, MGPU_TACTIC_DATA);
    CHECK(data && !data->feasible && strstr(data->why, "mixed"));
    mgpu_search_result_free(r);
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* A strategy that is asked for is planned, even where it does not pay. */
static void check_forced(void)
{
    struct mgpu_task_graph *g = towers(1, 6, false);
    struct mgpu_topology *t = test_topology(4, 1, 100, 0, 0, 1 << 20);
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = request_for(&m, t);
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
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* A gain within noise is no reason to leave one device: 1 ms of 100 beside a chain. */
static void check_noise(void)
{
    for (int ms = 1; ms <= 10; ms += 9) {
        struct mgpu_task_graph *g = test_graph(1, 2, 1, 2, 1);
        struct mgpu_topology *t = test_topology(2, 1, 1e6, 0, 0, 1 << 20);
        struct model m = {.whole = g, .kinds = 1};
        struct mgpu_search_request q = request_for(&m, t);
        struct mgpu_search_result *r;
        test_task(g, 1, 0, F, 100 - ms, 0);
        test_task(g, 1, 1, F, ms, 0);
        q.inseparable = "the samples are mixed";
        CHECK_OK(mgpu_search(&r, &q));
        CHECK(r->candidate[0].strategy == (ms == 1 ? MGPU_TACTIC_SINGLE : MGPU_TACTIC_BRANCH));
        const struct mgpu_candidate *branch = find(r, MGPU_TACTIC_BRANCH);
        CHECK_NEAR(branch->step_ms, 100 - ms, 1e-12);
        CHECK(branch->proven);
        if (ms == 1)
            CHECK(strstr(branch->why, "within the noise"));
        mgpu_search_result_free(r);
        forget(&m);
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
            struct model m = {.whole = g, .kinds = 1};
            struct mgpu_search_request q = request_for(&m, t);
            struct mgpu_search_result *r;
            q.inseparable = "the samples are mixed";
            CHECK_OK(mgpu_search(&r, &q));
            double rounds = (k + n - 1) / n;
            CHECK_NEAR(r->candidate[0].step_ms, 9 * rounds, 1e-12);
            CHECK_NEAR(r->candidate[0].speedup, k / rounds, 1e-12);
            CHECK(r->candidate[0].strategy ==
                  (n > 1 && k > 1 ? MGPU_TACTIC_BRANCH : MGPU_TACTIC_SINGLE));
            mgpu_search_result_free(r);
            forget(&m);
            test_graph_free(g);
            mgpu_arena_free(t->arena);
        }
}

/* When nothing can be moved in time, one device does it all. */
static void check_no_links(void)
{
    struct mgpu_task_graph *g = towers(3, 2, true);
    struct mgpu_topology *t = test_topology(3, 1, 1e-9, 1e9, 0, 1 << 20);
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = request_for(&m, t);
    struct mgpu_search_result *r;
    test_param(g, 100, 1, (int[]){0});
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_SINGLE);
    const struct mgpu_candidate *data = find(r, MGPU_TACTIC_DATA);
    CHECK(data && data->feasible && strstr(data->why, "summing gradients"));
    mgpu_search_result_free(r);
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* Two towers and a head: branches where launches dominate, data parallelism where they do not. */
static void check_launches(void)
{
    for (int dominated = 0; dominated < 2; dominated++) {
        struct mgpu_task_graph *g = towers(2, 4, true);
        struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
        struct model m = {.whole = g, .kinds = 1, .launch = dominated ? 0.9 : 0};
        struct mgpu_search_request q = request_for(&m, t);
        struct mgpu_search_result *r;
        CHECK_OK(mgpu_search(&r, &q));
        CHECK(r->candidate[0].strategy == (dominated ? MGPU_TACTIC_BRANCH : MGPU_TACTIC_DATA));
        /* work 27; path 15; the output of a tower and its gradient take 0.01 ms each */
        CHECK_NEAR(r->parallelism, 27.0 / 15, 1e-12);
        CHECK_NEAR(r->candidate[0].step_ms, dominated ? 15.02 : 13.5, 1e-9);
        CHECK(r->candidate[0].lower_bound_ms <= r->candidate[0].step_ms);
        CHECK(r->lower_bound_ms <= r->candidate[0].lower_bound_ms);
        mgpu_search_result_free(r);
        forget(&m);
        test_graph_free(g);
        mgpu_arena_free(t->arena);
    }
}

/* What all replicas sum last is an event on each device: the timeline ends where the step does. */
static void check_rest(void)
{
    struct mgpu_task_graph *g = towers(2, 4, true);
    struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = request_for(&m, t);
    struct mgpu_search_result *r;
    g->rest_bytes = 100;
    CHECK_OK(mgpu_search(&r, &q));
    const struct mgpu_candidate *data = find(r, MGPU_TACTIC_DATA);
    CHECK(data && data->events && data->step_ms > 13.5);
    if (data && data->events) {
        const struct mgpu_event *last = &data->event[data->events - 1];
        CHECK(last->activity == MGPU_ACTIVITY_REST && last->bytes == 100 && last->device == 0);
        CHECK_NEAR(last->start_ms, 13.5, 1e-9);
        CHECK_NEAR(last->end_ms, data->step_ms, 1e-9);
    }
    mgpu_search_result_free(r);
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* Eight launch-bound towers on four devices: two replicas of two ranks have to be looked at, and
 * stacking is a candidate. */
static void check_variant(void)
{
    struct mgpu_task_graph *g = towers(2, 3, true), *stacked = towers(1, 4, false);
    struct mgpu_topology *t = test_topology(2, 1, 1e4, 0, 0, 1 << 20);
    struct model m = {.whole = g, .variant = stacked, .kinds = 1, .launch = 0.95};
    struct mgpu_search_request q = request_for(&m, t);
    struct mgpu_search_result *r;
    q.variants = 1;
    q.variant_name = (const char *const[]){"stacked"};
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_STACKED && r->candidate[0].variant == 1);
    CHECK(r->candidate[0].step_ms <= 12 && r->candidate[0].graph->groups == 4);
    for (int i = 0; i < r->candidates; i++)
        CHECK(r->candidate[i].why && *r->candidate[i].why);
    mgpu_search_result_free(r);
    forget(&m);
    m.whole = stacked; /* it gains nothing */
    m.launch = 0;
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(strstr(find(r, MGPU_TACTIC_STACKED)->why, "within the noise"));
    mgpu_search_result_free(r);
    forget(&m);
    test_graph_free(stacked);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* ---- What was run ---------------------------------------------------------------------------- */

/* By tactic: what a step takes here (0: it cannot be run), and how often that was asked. */
struct here {
    struct model m;
    double ms[MGPU_TACTIC_STACKED + 1];
    int asked[MGPU_TACTIC_STACKED + 1];
};

static int here_tasks(void *context, int variant, int64_t batch, int devices,
                      const struct mgpu_task_graph **out)
{
    return tasks(&((struct here *)context)->m, variant, batch, devices, out);
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
    struct mgpu_search_request q = request_for(&h.m, t);
    struct mgpu_search_result *r;
    q.tasks = here_tasks;
    q.time = time_here;
    q.context = &h;
    CHECK_OK(mgpu_search(&r, &q)); /* simulated: data more than 25, branch 15.02 */
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_BRANCH && !r->candidate[0].ran);
    CHECK_NEAR(r->candidate[0].step_ms, 15.02, 1e-9);
    CHECK_NEAR(r->candidate[0].speedup, 30 / 15.02, 1e-9);
    const struct mgpu_candidate *data = find(r, MGPU_TACTIC_DATA);
    CHECK(data->ran && data->step_ms == 25 && data->lower_bound_ms <= 25);
    CHECK_NEAR(data->event[data->events - 1].end_ms, 25, 1e-9);
    CHECK(h.asked[MGPU_TACTIC_SINGLE] == 1 && h.asked[MGPU_TACTIC_BRANCH] == 1);
    mgpu_search_result_free(r);
    h.ms[MGPU_TACTIC_BRANCH] = 40;
    h.ms[MGPU_TACTIC_DATA] = 9; /* below the bound of the simulation */
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_DATA && r->candidate[0].step_ms == 9);
    CHECK(r->lower_bound_ms <= 9 && find(r, MGPU_TACTIC_BRANCH)->step_ms == 40);
    mgpu_search_result_free(r);
    memset(h.asked, 0, sizeof h.asked);
    q.strategy = "branch"; /* and one device, for the speed-up */
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].step_ms == 40 && r->candidate[0].speedup == 30.0 / 40);
    CHECK(h.asked[MGPU_TACTIC_SINGLE] == 1 && h.asked[MGPU_TACTIC_DATA] == 0);
    mgpu_search_result_free(r);
    forget(&h.m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* ---- Random models --------------------------------------------------------------------------- */

struct world {
    struct mgpu_task_graph *graph;
    struct model model;
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
    w->model = (struct model){.whole = w->graph, .kinds = 1, .launch = 0.25 * test_below(r, 5)};
}

static void drop_world(struct world *w)
{
    forget(&w->model);
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
static struct mgpu_search_result *search(struct world *w, struct model *m)
{
    struct mgpu_topology *t = topology_of(w);
    struct mgpu_search_request q = request_for(m, t);
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
    CHECK(find(r, MGPU_TACTIC_SINGLE) && find(r, MGPU_TACTIC_DATA));
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
            CHECK_(best_of(r) <= best * (1 + 1e-9), "more %s: %g after %g", name[change],
                   best_of(r), best);
        mgpu_search_result_free(r);
    }
}

/* Other numbers and names give the same table. */
static void check_permuted(struct world *w, const struct mgpu_search_result *r,
                           struct test_random *random, int *same, int *placed)
{
    int at[64];
    struct mgpu_task_graph *g = test_permuted(w->graph, random, 1, at);
    struct model m = {.whole = g, .kinds = 1, .launch = w->model.launch};
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
    forget(&m);
    test_graph_free(g);
}

/* Everything pinned where it is: the same step. */
static void check_pinned_to(struct world *w, const struct mgpu_candidate *plan)
{
    if (!plan || !plan->feasible)
        return;
    struct mgpu_task_graph *g = test_scaled(w->graph, 1, 1);
    g->pin = plan->device;
    struct model m = {.whole = g, .kinds = 1, .launch = w->model.launch};
    struct mgpu_search_result *again = search(w, &m);
    CHECK(again != NULL);
    if (again)
        CHECK_NEAR(again->candidate[0].step_ms, plan->step_ms, 1e-12);
    for (int i = 0; again && i < g->groups; i++)
        CHECK(again->candidate[0].device[i] == plan->device[i]);
    mgpu_search_result_free(again);
    forget(&m);
    test_graph_free(g);
}

static void check_pinned(struct world *w, const struct mgpu_search_result *r)
{
    check_pinned_to(w, find(r, MGPU_TACTIC_SINGLE));
    check_pinned_to(w, find(r, MGPU_TACTIC_BRANCH));
}

/* Times four times as long everywhere: the same plan, four times as long. */
static void check_scaled(struct world *w, const struct mgpu_search_result *r)
{
    struct mgpu_task_graph *g = test_scaled(w->graph, 1, 4);
    struct model m = {.whole = g, .kinds = 1, .launch = w->model.launch};
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
    forget(&m);
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
            check_metamorphic(&w, best_of(r));
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
    CHECK_OK(tasks(&w->model, 0, (BATCH + replicas - 1) / replicas, 0, &g));
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
        double found = r ? best_of(r) : INFINITY;
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

/* ---- Pins, owners, faults -------------------------------------------------------------------- */

static void check_pins(void)
{
    struct mgpu_task_graph *g = towers(2, 2, true);
    struct mgpu_topology *t = test_topology(3, 1, 1e4, 0, 0, 1 << 20);
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = request_for(&m, t);
    struct mgpu_search_result *r;
    g->pin[0] = 2;
    g->pin[4] = 1;
    q.devices = 2; /* the third only serves the pin */
    CHECK_OK(mgpu_search(&r, &q));
    const struct mgpu_candidate *c = &r->candidate[0];
    CHECK(c->strategy == MGPU_TACTIC_BRANCH && c->device[0] == 2 && c->device[4] == 1);
    for (int i = 1; i < 4; i++)
        CHECK(c->device[i] < 2);
    CHECK(!find(r, MGPU_TACTIC_DATA)->feasible);
    CHECK(strstr(find(r, MGPU_TACTIC_DATA)->why, "pinned to cpu:"));
    mgpu_search_result_free(r);
    q.strategy = "data";
    CHECK_FAILS(mgpu_search(&r, &q), "'k");
    q.strategy = NULL;
    forget(&m);
    t->device[2].memory = 10;
    CHECK_FAILS(mgpu_search(&r, &q), "cpu:2 is too small");
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

static void check_owner(void)
{
    struct mgpu_task_graph *g = towers(2, 2, true);
    struct mgpu_topology *t = test_topology(3, 1, 1e3, 0, 0, 1 << 20);
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_request q = request_for(&m, t);
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
    CHECK(strstr(find(r, MGPU_TACTIC_DATA)->why, "cpu:2") || !r->candidate[0].variant);
    mgpu_search_result_free(r);
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* The single device is the fast one, wherever it stands. */
static void check_kinds(void)
{
    struct mgpu_task_graph *g = towers(1, 4, false);
    struct mgpu_topology *t = test_topology(3, 3, 1e3, 0, 0, 1 << 20);
    struct model m = {.whole = g, .kinds = 3};
    struct mgpu_search_request q = request_for(&m, t);
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
    forget(&m);
    test_graph_free(g);
    mgpu_arena_free(t->arena);
}

/* A chain that one device cannot hold is cut where little has to move. */
static void check_memory_cut(void)
{
    struct mgpu_task_graph *g = towers(1, 20, false);
    struct model m = {.whole = g, .kinds = 1};
    struct mgpu_search_result *r;
    for (int i = 0; i < 20; i++)
        test_param(g, 1000, 1, &i);
    struct mgpu_topology *t = test_topology(2, 1, 100, 0, 0, 20 * 4000 / 2 + 20 * 100 / 2 + 300);
    struct mgpu_search_request q = request_for(&m, t);
    q.inseparable = "the samples are mixed";
    CHECK_OK(mgpu_search(&r, &q));
    CHECK(r->candidate[0].strategy == MGPU_TACTIC_BRANCH);
    CHECK_NEAR(r->candidate[0].step_ms, 60 + 2, 1e-12); /* one cut: there and back */
    CHECK(strstr(find(r, MGPU_TACTIC_SINGLE)->why, "does not fit: cpu:0 needs"));
    mgpu_search_result_free(r);
    t->device[0].memory = t->device[1].memory = 1000;
    CHECK_FAILS(mgpu_search(&r, &q), "bytes there, 1000 are available");
    forget(&m);
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
    check_random(1500, 3);
    check_all_plans(2000, 4);
    return test_end();
}
