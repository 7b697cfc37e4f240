/* Why each candidate lost, in a sentence. */
#include "partitioner/search_private.h"

#include <math.h>
#include <string.h>

static const char *bytes_text(struct mgpu_arena *arena, double bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    return mgpu_arena_format(arena, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}

/* "cpu:0 needs 3.0 GiB and has 2.0 GiB" of the device that lacks most. */
static const char *lacking(const struct mgpu_search_run *run, const struct mgpu_candidate *c)
{
    const struct mgpu_topology *t = run->request->topology;
    int worst = -1;
    for (int d = 0; d < t->devices; d++)
        if (c->memory[d] > t->device[d].memory &&
            (worst < 0 ||
             c->memory[d] - t->device[d].memory > c->memory[worst] - t->device[worst].memory))
            worst = d;
    if (worst < 0)
        return "does not fit";
    return mgpu_arena_format(run->arena, "does not fit: %s needs %s and has %s",
                             t->device[worst].name,
                             bytes_text(run->arena, (double)c->memory[worst]),
                             bytes_text(run->arena, (double)t->device[worst].memory));
}

/* Milliseconds of transfers on the busiest device's links, as sender or receiver. */
static double transfer_ms(const struct mgpu_candidate *c)
{
    double sum = 0;
    for (int i = 0; i < c->events; i++)
        if (c->event[i].activity == MGPU_ACTIVITY_SEND ||
            c->event[i].activity == MGPU_ACTIVITY_PARAMETER)
            sum += c->event[i].end_ms - c->event[i].start_ms;
    return sum;
}

static double sums_ms(const struct mgpu_candidate *c, double *exposed)
{
    double all = 0, last = 0, tasks = 0;
    for (int i = 0; i < c->events; i++) {
        const struct mgpu_event *e = &c->event[i];
        bool joint = e->activity == MGPU_ACTIVITY_SUM || e->activity == MGPU_ACTIVITY_GATHER;
        if (joint && e->device == 0) {
            all += e->end_ms - e->start_ms;
            last = fmax(last, e->end_ms);
        }
        if (e->activity == MGPU_ACTIVITY_TASK && c->graph->task[e->task].phase != MGPU_PHASE_UPDATE)
            tasks = fmax(tasks, e->end_ms);
    }
    *exposed = fmax(0, last - tasks);
    return all;
}

static const char *data_lost(const struct mgpu_search_run *run, const struct mgpu_candidate *c)
{
    double exposed, sums = sums_ms(c, &exposed);
    if (run->request->weights_on >= 0)
        return mgpu_arena_format(run->arena,
                                 "%s of weights and gradients pass through %s each step",
                                 bytes_text(run->arena, (double)c->bytes_moved),
                                 run->request->topology->device[run->request->weights_on].name);
    if (exposed > 0.1 * c->step_ms)
        return mgpu_arena_format(run->arena,
                                 "summing gradients takes %.3g ms, of which %.3g ms are not hidden "
                                 "behind backward",
                                 sums, exposed);
    return mgpu_arena_format(run->arena,
                             "with %lld samples a device still takes %.3g ms: smaller batches save "
                             "little time",
                             (long long)c->graph->batch, c->step_ms - exposed);
}

const char *mgpu_bound_text(const struct mgpu_bounds *b)
{
    if (b->sums >= b->step)
        return "the longest path and the sums of gradients";
    if (b->path >= b->step)
        return "the longest path";
    return b->work >= b->group ? "all work divided among the devices" : "the longest node";
}

/* c->why says what decides. */
static const char *ruled_out(const struct mgpu_search_run *run, const struct mgpu_candidate *c)
{
    return mgpu_arena_format(run->arena,
                             "no placement on %d devices%s takes less than %.4g ms (%s)", c->ranks,
                             c->replicas > 1 ? " a replica" : "", c->lower_bound_ms, c->why);
}

static bool on_one_device(const struct mgpu_candidate *c)
{
    for (int g = 1; g < c->graph->groups; g++)
        if (c->device[g] != c->device[0])
            return false;
    return true;
}

static const char *within_noise(const struct mgpu_search_run *run,
                                const struct mgpu_candidate *best)
{
    return mgpu_arena_format(run->arena,
                             "the gain over '%s' is within the noise of a prediction (2 %%)",
                             mgpu_tactic_name(best->strategy));
}

static const char *placement_lost(const struct mgpu_search_run *run, const struct mgpu_candidate *c,
                                  const struct mgpu_candidate *best)
{
    double moving = transfer_ms(c);
    if (on_one_device(c))
        return "no placement on several devices is faster than one device";
    if (c->step_ms <= best->step_ms)
        return within_noise(run, best);
    if (moving > 0.1 * c->step_ms)
        return mgpu_arena_format(run->arena, "moving %s between devices takes %.3g ms in all",
                                 bytes_text(run->arena, (double)c->bytes_moved), moving);
    return mgpu_arena_format(run->arena,
                             "branches leave devices idle: the longest path alone takes %.4g ms",
                             c->lower_bound_ms);
}

static const char *why_lost(const struct mgpu_search_run *run, const struct mgpu_candidate *c,
                            const struct mgpu_candidate *best)
{
    if (!c->tried)
        return ruled_out(run, c);
    if (c->why)
        return c->why;
    if (!c->feasible)
        return lacking(run, c);
    if (run->request->strategy && c->step_ms < best->step_ms)
        return mgpu_arena_format(run->arena, "it is faster, but '%s' was asked for",
                                 run->request->strategy);
    switch (c->strategy) {
    case MGPU_TACTIC_SINGLE:
        return mgpu_arena_format(run->arena, "one device does all the work: %.2f times as long",
                                 c->step_ms / best->step_ms);
    case MGPU_TACTIC_DATA:
        return data_lost(run, c);
    case MGPU_TACTIC_STACKED:
        if (c->step_ms <= best->step_ms)
            return within_noise(run, best);
        if (c->replicas > 1)
            return data_lost(run, c);
        return mgpu_arena_format(run->arena, "on one device it takes %.2f times as long",
                                 c->step_ms / best->step_ms);
    default:
        return placement_lost(run, c, best);
    }
}

static const char *reason(const struct mgpu_search_run *run, const struct mgpu_search_result *r)
{
    const struct mgpu_candidate *won = &r->candidate[0], *data = NULL;
    for (int i = 1; i < r->candidates; i++)
        if (r->candidate[i].strategy == MGPU_TACTIC_DATA &&
            r->candidate[i].replicas == run->devices)
            data = &r->candidate[i];
    if (run->request->strategy)
        return mgpu_arena_format(run->arena, "'%s' was asked for", run->request->strategy);
    if (won->strategy == MGPU_TACTIC_SINGLE)
        return run->devices > 1 ? "no use of more devices is predicted to be faster"
                                : "there is one device";
    if (!data || !data->feasible)
        return mgpu_arena_format(run->arena, "%.2f times as fast as one device", won->speedup);
    return mgpu_arena_format(run->arena,
                             "%.2f times as fast as one device, %.2f times as data parallelism "
                             "over all",
                             won->speedup, data->step_ms / won->step_ms);
}

static const char *why_won(const struct mgpu_search_run *run, const struct mgpu_search_result *r)
{
    const struct mgpu_candidate *won = &r->candidate[0];
    const char *why = reason(run, r);
    return won->variant && won->variant == run->request->thrifty
               ? mgpu_arena_format(run->arena, "nothing fits without recomputing activations; %s",
                                   why)
               : why;
}

/* What placement can win at most, and whether it was worth looking. */
static void explain_placement(const struct mgpu_search_run *run, struct mgpu_search_result *r)
{
    if (run->devices < 2)
        return;
    r->parallelism = run->whole.path > 0 ? run->whole.alone / run->whole.path : 1;
    bool tried = false;
    for (int i = 0; i < run->tries; i++)
        tried |= run->tried[i].placed && run->tried[i].tactic == MGPU_TACTIC_BRANCH;
    if (tried)
        r->placement = mgpu_arena_format(run->arena,
                                         "work / longest path is %.2f: the most that placing "
                                         "branches could win over one device",
                                         r->parallelism);
    else
        r->placement =
            mgpu_arena_format(run->arena,
                              "placing branches was not searched: work / longest path is "
                              "%.2f, so it cannot take less than %.4g ms",
                              r->parallelism, run->whole.step);
}

void mgpu_explain(const struct mgpu_search_run *run, struct mgpu_search_result *r)
{
    r->candidate[0].why = why_won(run, r);
    for (int i = 1; i < r->candidates; i++)
        r->candidate[i].why = why_lost(run, &r->candidate[i], &r->candidate[0]);
    explain_placement(run, r);
}
