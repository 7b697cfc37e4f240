#include "partitioner/search_private.h"

#include "runtime/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Steps of simulation (mgpu_flow.size) in a millisecond on a slow core; a placement search may use
 * one part in so many of what is left. */
enum { STEPS_A_MS = 50000, SEARCHES = 8 };

const char *mgpu_tactic_name(enum mgpu_tactic tactic)
{
    static const char *const name[] = {"single", "data", "branch", "hybrid", "stacked"};
    return name[tactic];
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

static int64_t local_batch(const struct mgpu_search_run *run, int replicas)
{
    return (run->request->batch + replicas - 1) / replicas;
}

/* The flow of a variant at the batch of so many replicas, made once a graph. */
static int get_flow(const struct mgpu_flow **out, struct mgpu_search_run *run, int variant,
                    int replicas, int devices)
{
    const struct mgpu_search_request *q = run->request;
    const struct mgpu_topology *t = q->topology;
    const struct mgpu_task_graph *graph;
    MGPU_TRY(q->tasks(q->context, variant, local_batch(run, replicas), devices, &graph));
    for (int i = 0; i < run->flows; i++)
        if (run->flow[i].graph == graph) {
            *out = run->flow[i].flow;
            return 0;
        }
    struct mgpu_flow *flow;
    MGPU_TRY(mgpu_flow_new(&flow, graph, t->kinds, t->device[0].kind, t->devices));
    run->flow = mgpu_grow(run->flow, (size_t)run->flows, sizeof *run->flow);
    run->flow[run->flows++] = (struct mgpu_search_flow){graph, flow};
    *out = flow;
    return 0;
}

static int first_pin(const struct mgpu_flow *f, int but)
{
    for (int g = 0; g < f->groups; g++)
        if (f->pin[g] >= 0 && f->pin[g] != but)
            return g;
    return -1;
}

static const char *group_key(const struct mgpu_flow *f, int group)
{
    const struct mgpu_task *t = NULL;
    if (f->group_first[group] < f->group_first[group + 1])
        t = &f->graph->task[f->task_of[f->group_task[f->group_first[group]]]];
    return t && t->key ? t->key : "?";
}

static const char *pin_refuses(const struct mgpu_search_run *run, const struct mgpu_flow *f,
                               int group)
{
    if (group < 0)
        return NULL;
    return mgpu_arena_format(run->arena, "'%s' is pinned to %s", group_key(f, group),
                             run->request->topology->device[f->pin[group]].name);
}

static const char *unstackable(const struct mgpu_search_run *run, enum mgpu_tactic tactic)
{
    return tactic == MGPU_TACTIC_STACKED ? run->request->unstackable : NULL;
}

/* ---- Tries ----------------------------------------------------------------------------------- */

static struct mgpu_tried *add_try(struct mgpu_search_run *run, enum mgpu_tactic tactic, int variant,
                                  int replicas, int ranks, const struct mgpu_flow *flow)
{
    run->tried = mgpu_grow(run->tried, (size_t)run->tries, sizeof *run->tried);
    struct mgpu_tried *t = &run->tried[run->tries++];
    *t = (struct mgpu_tried){.tactic = tactic,
                             .variant = variant,
                             .replicas = replicas,
                             .ranks = ranks,
                             .flow = flow,
                             .bucket_bytes = 25 << 20,
                             .ms = INFINITY};
    t->assignment.device = MGPU_NEW_ARRAY(run->arena, int, flow->groups);
    t->assignment.owner = MGPU_NEW_ARRAY(run->arena, int, flow->params);
    return t;
}

static void make_replica(const struct mgpu_search_run *run, struct mgpu_replica *replica,
                         int replicas, int ranks, struct mgpu_arena *arena)
{
    mgpu_replica_init(replica, run->request->topology, run->channels, replicas, ranks,
                      run->request->weights_on, arena);
}

static void put_all_on(const struct mgpu_tried *t, const struct mgpu_replica *replica, int device)
{
    for (int g = 0; g < t->flow->groups; g++)
        t->assignment.device[g] = device;
    mgpu_choose_owners(t->flow, replica, &t->assignment);
}

/* Simulates everything on one device of the (first) replica and records it. */
static void simulate_on(struct mgpu_tried *t, const struct mgpu_replica *replica,
                        struct mgpu_simulator *s, int device)
{
    put_all_on(t, replica, device);
    t->ms = mgpu_simulate(s, &t->assignment, INFINITY);
    t->lacking = mgpu_simulate_memory(s, &t->assignment);
    t->all_reduce = s->all_reduce;
    t->exposed = s->exposed;
    t->placed = true;
}

/* What it really needs, where the caller can say. */
int mgpu_settle_memory(const struct mgpu_search_run *run, struct mgpu_tried *t)
{
    const struct mgpu_search_request *q = run->request;
    struct mgpu_candidate c;
    if (!q->memory || !t->placed || t->refused || t->memory)
        return 0;
    mgpu_candidate_fill(run, &c, t);
    MGPU_TRY(q->memory(q->context, &c, c.memory));
    t->memory = c.memory;
    t->lacking = 0;
    for (int d = 0; d < q->topology->devices; d++)
        if (c.memory[d] - q->topology->device[d].memory > t->lacking)
            t->lacking = c.memory[d] - q->topology->device[d].memory;
    return 0;
}

static int settle_lacking(const struct mgpu_search_run *run, struct mgpu_tried *t)
{
    return t->lacking ? mgpu_settle_memory(run, t) : 0;
}

bool mgpu_tried_less(const struct mgpu_tried *a, const struct mgpu_tried *b)
{
    if (!a->refused != !b->refused)
        return !a->refused;
    if (a->lacking != b->lacking)
        return a->lacking < b->lacking;
    return a->ms < b->ms;
}

/* One of each kind and size of device, and those that a pin or weights_on names. */
static bool worth_alone(const struct mgpu_search_run *run, const struct mgpu_flow *f, int device)
{
    const struct mgpu_topology_device *all = run->request->topology->device;
    int pin = first_pin(f, -1), weights = run->request->weights_on;
    if (device == weights || (pin >= 0 && f->pin[pin] == device))
        return true;
    for (int e = 0; e < device; e++)
        if (e != weights && all[e].kind == all[device].kind && all[e].memory == all[device].memory)
            return false;
    return true;
}

static void copy_assignment(const struct mgpu_flow *f, const struct mgpu_assignment *to,
                            const struct mgpu_assignment *from)
{
    memcpy(to->device, from->device, sizeof *to->device * (size_t)f->groups);
    memcpy(to->owner, from->owner, sizeof *to->owner * (size_t)f->params);
}

/* One device: the best one. */
static int try_single(struct mgpu_search_run *run, enum mgpu_tactic tactic, int variant)
{
    const struct mgpu_flow *f;
    MGPU_TRY(get_flow(&f, run, variant, 1, 1));
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_replica replica;
    make_replica(run, &replica, 1, run->devices, arena);
    struct mgpu_simulator *s = mgpu_simulator_new(f, &replica);
    struct mgpu_tried *best = add_try(run, tactic, variant, 1, 1, f), now = *best;
    now.assignment.device = MGPU_NEW_ARRAY(arena, int, f->groups);
    now.assignment.owner = MGPU_NEW_ARRAY(arena, int, f->params);
    now.proven = true;
    for (int d = 0; d < run->devices; d++) {
        if (!worth_alone(run, f, d))
            continue;
        now.refused = unstackable(run, tactic);
        if (!now.refused)
            now.refused = pin_refuses(run, f, first_pin(f, d));
        simulate_on(&now, &replica, s, d);
        now.bound = now.ms;
        if (best->placed && !mgpu_tried_less(&now, best))
            continue;
        struct mgpu_assignment kept = best->assignment;
        copy_assignment(f, &kept, &now.assignment);
        *best = now;
        best->assignment = kept;
    }
    mgpu_simulator_free(s);
    mgpu_arena_free(arena);
    return settle_lacking(run, best);
}

/* The bucket size whose sums end first. Small graphs are simulated with each, else the sums alone
 * are followed: finish = max_k(r_k + sum_{j>=k} a_j). */
static void sweep_buckets(struct mgpu_tried *t, struct mgpu_replica *replica,
                          struct mgpu_simulator *s)
{
    static const int64_t sizes[] = {25 << 20, 1 << 20,   5 << 20,  10 << 20,
                                    50 << 20, 100 << 20, INT64_MAX};
    double least = INFINITY;
    for (int i = 0; mgpu_sums_gradients(replica) && i < (int)(sizeof sizes / sizeof *sizes); i++) {
        replica->bucket_bytes = sizes[i];
        double ms = t->flow->tasks <= 4096 ? mgpu_simulate(s, &t->assignment, INFINITY)
                                           : mgpu_sums_end(s, sizes[i]);
        if (ms < least) {
            least = ms;
            t->bucket_bytes = sizes[i];
        }
    }
    replica->bucket_bytes = t->bucket_bytes;
}

/* Whether a bound says that something of its kind that was tried and fits is no slower. */
static bool beaten(const struct mgpu_search_run *run, const struct mgpu_tried *t)
{
    for (int i = 0; i < run->tries; i++) {
        const struct mgpu_tried *o = &run->tried[i];
        if (o->tactic == t->tactic && o->variant == t->variant && o->placed && !o->refused &&
            !o->lacking && o->ms <= t->bound * (1 - 1e-9))
            return true;
    }
    return false;
}

static void simulate_data(struct mgpu_tried *t, struct mgpu_replica *replica)
{
    struct mgpu_simulator *s = mgpu_simulator_new(t->flow, replica);
    put_all_on(t, replica, 0);
    mgpu_simulate(s, &t->assignment, INFINITY);
    sweep_buckets(t, replica, s);
    simulate_on(t, replica, s, 0);
    t->bound = fmin(t->bound, t->ms);
    mgpu_simulator_free(s);
}

/* Data parallelism over `replicas` devices. */
static int try_data(struct mgpu_search_run *run, enum mgpu_tactic tactic, int variant, int replicas)
{
    const struct mgpu_flow *f;
    MGPU_TRY(get_flow(&f, run, variant, replicas, replicas));
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_replica replica;
    make_replica(run, &replica, replicas, 1, arena);
    struct mgpu_tried *t = add_try(run, tactic, variant, replicas, 1, f);
    t->refused = run->request->inseparable;
    if (!t->refused)
        t->refused = unstackable(run, tactic);
    if (!t->refused)
        t->refused = pin_refuses(run, f, first_pin(f, -1));
    struct mgpu_bounds bounds;
    mgpu_bound(&bounds, f, &replica);
    t->bound = bounds.step;
    t->decides = mgpu_bound_text(&bounds);
    if (!beaten(run, t))
        simulate_data(t, &replica);
    mgpu_arena_free(arena);
    return settle_lacking(run, t);
}

/* ---- Placement ------------------------------------------------------------------------------- */

static bool asked_for(const struct mgpu_search_run *run, enum mgpu_tactic tactic)
{
    const char *only = run->request->strategy;
    return only && !strcmp(only, mgpu_tactic_name(tactic));
}

bool mgpu_may_choose(const struct mgpu_search_run *run, const struct mgpu_tried *t)
{
    return t->placed && !t->refused && !t->lacking &&
           (!run->request->strategy || asked_for(run, t->tactic));
}

/* The least time of what may be chosen so far. */
static double incumbent(const struct mgpu_search_run *run)
{
    double least = INFINITY;
    for (int i = 0; i < run->tries; i++)
        if (mgpu_may_choose(run, &run->tried[i]) && run->tried[i].ms < least)
            least = run->tried[i].ms;
    return least;
}

static bool same_replicas(const struct mgpu_search_run *run, int replicas, int ranks)
{
    const struct mgpu_topology_device *d = run->request->topology->device;
    for (int i = ranks; i < replicas * ranks; i++)
        if (d[i].kind != d[i % ranks].kind)
            return false;
    return true;
}

/* Bounds, then the search on `ranks` devices. *used: devices that the placement uses. `from` (by
 * group of the flow; NULL) is a placement on fewer devices. */
static void place(struct mgpu_search_run *run, struct mgpu_tried *t, const int *from)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_replica replica;
    struct mgpu_bounds bounds;
    make_replica(run, &replica, t->replicas, t->ranks, arena);
    mgpu_bound(&bounds, t->flow, &replica);
    t->bound = bounds.step;
    t->decides = mgpu_bound_text(&bounds);
    int64_t limit = run->limit / SEARCHES + t->flow->size;
    if (t->bound < incumbent(run) * (1 - 1e-9)) {
        struct mgpu_place *p =
            mgpu_place_new(t->flow, &replica, t->bound, limit, run->request->seed);
        p->apart = asked_for(run, t->tactic);
        t->proven = mgpu_place_search(p, from);
        copy_assignment(t->flow, &t->assignment, &p->best);
        t->lacking = p->best_lacking;
        t->placed = p->best_lacking < INT64_MAX;
        t->ms = t->placed && t->flow->graph->busy
                    ? mgpu_simulate_contended(p->simulator, &t->assignment)
                    : p->best_ms;
        t->proven = t->proven && t->ms <= p->best_ms;
        run->limit -= p->effort;
        mgpu_place_free(p);
    }
    mgpu_arena_free(arena);
}

/* A placement that leaves all on one device is no other plan than that device alone, which is then
 * what it takes: times that were measured with all devices busy are not better ones. */
static void fold_into_single(const struct mgpu_search_run *run, struct mgpu_tried *t)
{
    const struct mgpu_tried *single = run->tried;
    for (int g = 1; g < t->flow->groups; g++)
        if (t->assignment.device[g] != t->assignment.device[0])
            return;
    while (single->tactic != MGPU_TACTIC_SINGLE || single->variant != t->variant)
        single++;
    if (!t->placed || t->replicas > 1 || single->refused)
        return;
    t->flow = single->flow;
    t->assignment = single->assignment;
    t->ms = single->ms;
    t->lacking = single->lacking;
    t->memory = single->memory;
}

static int devices_used(const struct mgpu_tried *t)
{
    int most = 0;
    for (int g = 0; g < t->flow->groups; g++)
        if (t->assignment.device[g] >= most)
            most = t->assignment.device[g] + 1;
    return most;
}

static bool alike(const struct mgpu_search_run *run)
{
    const struct mgpu_topology_device *d = run->request->topology->device;
    for (int i = 1; i < run->devices; i++)
        if (d[i].kind != d[0].kind || d[i].memory != d[0].memory)
            return false;
    return true;
}

/* The counts of replicas or ranks that are looked at: all up to 8, powers of two, divisors. Each
 * set holds those of fewer devices, so that more devices are never worse; the divisors of more than
 * 8 are the exception. */
static bool counts(int count, int devices)
{
    return count <= 8 || !(count & (count - 1)) || devices % count == 0;
}

/* The devices of `t`'s groups, for another flow of the same model; NULL when it is another model.
 */
static int *carry_over(const struct mgpu_tried *t, const struct mgpu_flow *to,
                       struct mgpu_arena *arena)
{
    if (t->flow->groups != to->groups)
        return NULL;
    int *device = MGPU_NEW_ARRAY(arena, int, to->groups);
    for (int g = 0; g < to->groups; g++)
        device[g] = t->assignment.device[t->flow->group_at[to->group_of[g]]];
    return device;
}

/* The replicas whose placements are looked at, with what they could reach at best. */
struct prospect {
    int replicas;
    double bound;
    const char *decides;
};

static int compare_prospects(const void *a, const void *b)
{
    const struct prospect *x = a, *y = b;
    if (x->bound != y->bound)
        return x->bound < y->bound ? -1 : 1;
    return x->replicas - y->replicas;
}

static enum mgpu_tactic tactic_of(int replicas)
{
    return replicas > 1 ? MGPU_TACTIC_HYBRID : MGPU_TACTIC_BRANCH;
}

/* Bounds a number of replicas with all the ranks that there are for them. */
static int bound_replicas(struct prospect *out, struct mgpu_search_run *run, int replicas)
{
    const struct mgpu_flow *f;
    struct mgpu_replica replica;
    struct mgpu_bounds bounds;
    int ranks = run->devices / replicas;
    MGPU_TRY(get_flow(&f, run, run->variant, replicas, replicas * ranks));
    struct mgpu_arena *arena = mgpu_arena_new();
    make_replica(run, &replica, replicas, ranks, arena);
    mgpu_bound(&bounds, f, &replica);
    mgpu_arena_free(arena);
    if (replicas == 1 && !run->variant)
        run->whole = bounds;
    run->bound = fmin(run->bound, bounds.step);
    *out = (struct prospect){replicas, bounds.step, mgpu_bound_text(&bounds)};
    return 0;
}

/* Branches on 2, 3, ... devices, for one number of replicas. */
static int try_placements(struct mgpu_search_run *run, const struct prospect *now)
{
    int replicas = now->replicas, most = run->devices / replicas, last = -1;
    const struct mgpu_flow *f;
    for (int ranks = 2; ranks <= most && run->limit > 0; ranks++) {
        if (!counts(ranks, run->devices) || !same_replicas(run, replicas, ranks))
            continue;
        MGPU_TRY(get_flow(&f, run, run->variant, replicas, replicas * ranks));
        if (replicas > 1 && first_pin(f, -1) >= 0)
            return 0; /* data parallelism says why */
        struct mgpu_tried *t = add_try(run, tactic_of(replicas), run->variant, replicas, ranks, f);
        place(run, t, last >= 0 ? carry_over(&run->tried[last], f, run->arena) : NULL);
        fold_into_single(run, t);
        MGPU_TRY(settle_lacking(run, t));
        if (!t->placed)
            continue;
        last = run->tries - 1;
        if (ranks >= 8 && alike(run) && !t->lacking && devices_used(t) < ranks)
            break;
    }
    return 0;
}

/* What cannot beat the best so far is not searched; one try says so. */
static int rule_out(struct mgpu_search_run *run, const struct prospect *now)
{
    const struct mgpu_flow *f;
    int ranks = run->devices / now->replicas;
    MGPU_TRY(get_flow(&f, run, run->variant, now->replicas, now->replicas * ranks));
    struct mgpu_tried *t =
        add_try(run, tactic_of(now->replicas), run->variant, now->replicas, ranks, f);
    t->bound = now->bound;
    t->decides = now->decides;
    return 0;
}

/* The most promising number of replicas first. */
static int try_all_placements(struct mgpu_search_run *run, int most)
{
    int count = 0, rc = 0;
    struct prospect *list = mgpu_xcalloc((size_t)most + 1, sizeof *list);
    for (int r = 1; r <= most && rc >= 0 && 2 * r <= run->devices; r++)
        if (counts(r, run->devices) && (r == 1 || !run->request->inseparable))
            rc = bound_replicas(&list[count++], run, r);
    qsort(list, (size_t)count, sizeof *list, compare_prospects);
    for (int i = 0; i < count && rc >= 0; i++)
        rc = list[i].bound < incumbent(run) * (1 - 1e-9) ? try_placements(run, &list[i])
                                                         : rule_out(run, &list[i]);
    free(list);
    return rc;
}

static int try_baselines(struct mgpu_search_run *run, int most)
{
    MGPU_TRY(try_single(run, MGPU_TACTIC_SINGLE, run->variant));
    for (int r = run->devices; r >= 2; r--)
        if (r == run->devices || (r <= most && counts(r, run->devices)))
            MGPU_TRY(try_data(run, MGPU_TACTIC_DATA, run->variant, r));
    return 0;
}

static int try_all(struct mgpu_search_run *run)
{
    int most = run->devices < run->request->batch ? run->devices : (int)run->request->batch;
    MGPU_TRY(try_baselines(run, most));
    run->single = run->tried[0].ms;
    for (int v = 1; v <= run->request->variants; v++) {
        MGPU_TRY(try_single(run, MGPU_TACTIC_STACKED, v));
        for (int r = run->devices; r >= 2; r--)
            if (r <= most && counts(r, run->devices))
                MGPU_TRY(try_data(run, MGPU_TACTIC_STACKED, v, r));
    }
    MGPU_TRY(try_all_placements(run, most));
    run->variant = run->request->thrifty;
    if (!run->variant || incumbent(run) < INFINITY)
        return 0;
    MGPU_TRY(try_baselines(run, most));
    return try_all_placements(run, most);
}

/* ---- The search --------------------------------------------------------------------------------
 */

static int check_request(const struct mgpu_search_request *q)
{
    const struct mgpu_topology *t = q->topology;
    if (t->devices < 1 || q->batch < 1)
        return mgpu_fail(MGPU_EINVALID, "%d devices, batch %lld", t->devices, (long long)q->batch);
    if (t->kinds > 64)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d kinds of devices are more than 64", t->kinds);
    if (q->weights_on < -1 || q->weights_on >= t->devices)
        return mgpu_fail(MGPU_EINVALID, "weights on device %d of %d", q->weights_on, t->devices);
    return 0;
}

int mgpu_search(struct mgpu_search_result **out, const struct mgpu_search_request *request)
{
    *out = NULL;
    MGPU_TRY(check_request(request));
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_search_result *result = MGPU_NEW(arena, struct mgpu_search_result);
    struct mgpu_search_run run = {.request = request, .arena = arena, .bound = INFINITY};
    double budget = request->budget_ms > 0 ? request->budget_ms : 500;
    run.limit = (int64_t)(budget * STEPS_A_MS);
    run.channels = mgpu_channels(request->topology);
    run.devices = request->devices > 0 && request->devices < request->topology->devices
                      ? request->devices
                      : request->topology->devices;
    result->arena = arena;
    int rc = try_all(&run);
    if (rc >= 0)
        rc = mgpu_search_finish(&run, result);
    for (int i = 0; i < run.flows; i++)
        mgpu_flow_free(run.flow[i].flow);
    free(run.flow);
    free(run.tried);
    if (rc < 0)
        mgpu_search_result_free(result);
    else
        *out = result;
    return rc;
}

void mgpu_search_result_free(struct mgpu_search_result *result)
{
    if (result)
        mgpu_arena_free(result->arena);
}
