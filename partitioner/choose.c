/* Which of the tried ways is taken, and which are listed beside it. */
#include "partitioner/search_private.h"

#include "runtime/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Predictions closer than this are taken for equal. */
static const double NOISE = 0.02;

/* The fastest that may be chosen, of the baselines or of all; of equals the simpler, which was
 * tried first; -1: none. */
static int fastest(const struct mgpu_search_run *run, bool baselines)
{
    int best = -1;
    for (int i = 0; i < run->tries; i++) {
        const struct mgpu_tried *t = &run->tried[i];
        if (mgpu_may_choose(run, t) && (!baselines || t->tactic <= MGPU_TACTIC_DATA) &&
            (best < 0 || t->ms < run->tried[best].ms))
            best = i;
    }
    return best;
}

/* The faster baseline, unless something else is faster by more than noise. */
static int choose(const struct mgpu_search_run *run)
{
    int best = fastest(run, false), base = fastest(run, true);
    if (base >= 0 && run->tried[base].ms * (1 - NOISE) <= run->tried[best].ms)
        return base;
    return best;
}

/* Of each tactic (and variant) the best; of data parallelism also that over all devices. */
static bool listed(const struct mgpu_search_run *run, int index, int chosen)
{
    const struct mgpu_tried *t = &run->tried[index];
    if (index == chosen ||
        (t->tactic == MGPU_TACTIC_DATA && t->replicas == run->devices && !t->variant))
        return true;
    if (t->tactic == MGPU_TACTIC_DATA && t->refused)
        return false; /* said once */
    for (int i = 0; i < run->tries; i++) {
        const struct mgpu_tried *o = &run->tried[i];
        if (o->tactic != t->tactic || o->variant != t->variant || i == index)
            continue;
        bool better = o->placed != t->placed ? o->placed
                      : o->placed            ? mgpu_tried_less(o, t)
                                             : o->bound < t->bound;
        bool equal =
            o->placed == t->placed &&
            (o->placed ? !mgpu_tried_less(o, t) && !mgpu_tried_less(t, o) : o->bound == t->bound);
        if (better || (equal && i < index) || (i == chosen && equal))
            return false;
    }
    return true;
}

static int rank_of(const struct mgpu_candidate *c)
{
    return c->feasible ? 0 : c->tried ? 1 : 2;
}

/* Insertion sort: the chosen one stays first, equals keep their order. */
static void sort_candidates(struct mgpu_candidate *c, int count)
{
    for (int i = 2; i < count; i++)
        for (int k = i; k > 1; k--) {
            int a = rank_of(&c[k - 1]), b = rank_of(&c[k]);
            if (a < b || (a == b && c[k - 1].step_ms <= c[k].step_ms))
                break;
            struct mgpu_candidate other = c[k];
            c[k] = c[k - 1];
            c[k - 1] = other;
        }
}

static int list_candidate(const struct mgpu_search_run *run, struct mgpu_search_result *r,
                          int index)
{
    MGPU_TRY(mgpu_settle_memory(run, &run->tried[index]));
    mgpu_candidate_fill(run, &r->candidate[r->candidates++], &run->tried[index]);
    return 0;
}

static int list_candidates(const struct mgpu_search_run *run, struct mgpu_search_result *r,
                           int chosen)
{
    r->candidate = MGPU_NEW_ARRAY(run->arena, struct mgpu_candidate, run->tries);
    MGPU_TRY(list_candidate(run, r, chosen));
    for (int i = 0; i < run->tries; i++)
        if (i != chosen && listed(run, i, chosen))
            MGPU_TRY(list_candidate(run, r, i));
    sort_candidates(r->candidate, r->candidates);
    return 0;
}

/* What it takes here, where the caller can say. No bound is above it. */
static int settle_time(struct mgpu_search_run *run, struct mgpu_tried *t)
{
    const struct mgpu_search_request *q = run->request;
    struct mgpu_candidate c;
    double ms = 0;
    if (t->asked)
        return 0;
    t->asked = true;
    mgpu_candidate_fill(run, &c, t);
    MGPU_TRY(q->time(q->context, &c, &ms));
    if (ms <= 0)
        return 0;
    t->ran = true;
    t->ms = ms;
    t->bound = fmin(t->bound, ms);
    return 0;
}

/* One device, what is listed, and then what would be chosen until that was asked for. */
static int settle_times(struct mgpu_search_run *run)
{
    struct mgpu_tried *single = run->tried;
    bool *list = mgpu_xcalloc((size_t)run->tries + 1, sizeof *list);
    int chosen, rc = 0;
    for (int i = 0; i < run->tries; i++)
        list[i] = mgpu_may_choose(run, &run->tried[i]) && listed(run, i, -1);
    list[0] = list[0] || (single->placed && !single->refused && !single->lacking);
    for (int i = 0; i < run->tries && rc == 0; i++)
        rc = list[i] ? settle_time(run, &run->tried[i]) : 0;
    free(list);
    while (rc == 0 && (chosen = choose(run)) >= 0 && !run->tried[chosen].asked)
        rc = settle_time(run, &run->tried[chosen]);
    run->single = single->ms;
    return rc;
}

/* Why nothing of the strategy that was asked for was tried: placements are not, where dividing the
 * batch is refused already. */
static int fail_untried(const struct mgpu_search_run *run, const char *only)
{
    bool hybrid = !strcmp(only, "hybrid");
    int least = hybrid ? 4 : 2;
    if (!strcmp(only, "stacked"))
        return mgpu_fail(MGPU_EINVALID, "strategy 'stacked': the model has no equal towers that "
                                        "share weights");
    if (run->devices < least)
        return mgpu_fail(MGPU_EINVALID, "strategy '%s' is for %d devices or more, and %s %d", only,
                         least, run->devices == 1 ? "there is" : "there are", run->devices);
    for (int i = 0; hybrid && i < run->tries; i++)
        if (run->tried[i].tactic == MGPU_TACTIC_DATA && run->tried[i].refused)
            return mgpu_fail(MGPU_EINVALID, "strategy '%s': %s", only, run->tried[i].refused);
    return mgpu_fail(MGPU_EINVALID, "no plan of strategy '%s' for this model and these devices",
                     only);
}

/* What stands in the way of the plan that comes closest. */
static int fail_infeasible(const struct mgpu_search_run *run)
{
    const struct mgpu_tried *best = NULL;
    const char *only = run->request->strategy;
    for (int i = 0; i < run->tries; i++) {
        const struct mgpu_tried *t = &run->tried[i];
        if (t->placed && (!only || !strcmp(only, mgpu_tactic_name(t->tactic))) &&
            (!best || mgpu_tried_less(t, best)))
            best = t;
    }
    if (!best)
        return fail_untried(run, only ? only : "any");
    if (best->refused)
        return mgpu_fail(MGPU_EINVALID, "strategy '%s': %s", mgpu_tactic_name(best->tactic),
                         best->refused);
    struct mgpu_candidate c;
    mgpu_candidate_fill(run, &c, best);
    const struct mgpu_topology *t = run->request->topology;
    for (int d = 0; d < t->devices; d++)
        if (c.memory[d] > t->device[d].memory)
            return mgpu_fail(MGPU_EINVALID,
                             "%s is too small: the best plan needs %lld bytes there, %lld are "
                             "available",
                             t->device[d].name, (long long)c.memory[d],
                             (long long)t->device[d].memory);
    return mgpu_fail(MGPU_EINTERNAL, "the plan lacks %lld bytes", (long long)best->lacking);
}

int mgpu_search_finish(struct mgpu_search_run *run, struct mgpu_search_result *result)
{
    if (run->request->time)
        MGPU_TRY(settle_times(run));
    int chosen = choose(run);
    if (chosen < 0)
        return fail_infeasible(run);
    for (int i = 0; i < run->tries; i++)
        if (run->tried[i].placed && !run->tried[i].refused)
            run->bound = fmin(run->bound, run->tried[i].bound);
    result->lower_bound_ms = run->bound;
    MGPU_TRY(list_candidates(run, result, chosen));
    mgpu_explain(run, result);
    return 0;
}
