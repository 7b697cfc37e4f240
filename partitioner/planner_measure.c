/* --measure: which batches, and how many ranks at a time; then plans as a whole. */
#include "partitioner/measure.h"
#include "partitioner/plan_file.h"
#include "partitioner/planner_private.h"
#include "partitioner/signature.h"
#include "runtime/base/status.h"
#include "runtime/compile/plan.h"

#include <stdio.h>
#include <stdlib.h>

struct copies {
    struct mgpu_planner *p;
    int64_t batch;
    const struct mgpu_plan *plan;
};

static int copy(struct mgpu_graph **out, void *context)
{
    const struct copies *c = context;
    return c->p->model->graph(out, c->p->model->context, c->batch, c->plan);
}

static int measure(struct mgpu_planner *p, const struct mgpu_rank_device *device, int ranks,
                   int64_t batch, const struct mgpu_plan *plan, bool together)
{
    struct copies c = {p, batch, plan};
    struct mgpu_measure m = {.graph = copy,
                             .context = &c,
                             .device = device,
                             .ranks = ranks,
                             .together = together,
                             .seconds = 2,
                             .progress = p->options->progress,
                             .progress_context = p->options->progress_context};
    return mgpu_measure(p->profile, &m);
}

/* One device with the whole batch; then all at a time, with the whole (if there may be branches)
 * and with the parts that replicas take. */
static int measure_all(struct mgpu_planner *p, const struct mgpu_rank_device *device, int count,
                       const struct mgpu_plan *plan, bool branches)
{
    int64_t batch = p->options->batch, last = -1;
    MGPU_TRY(measure(p, device, 1, batch, plan, false));
    for (int replicas = 1; count > 1 && replicas <= count; replicas++) {
        int64_t part = (batch + replicas - 1) / replicas;
        if (count % replicas || part == last || (replicas > 1 && p->inseparable) ||
            (replicas == 1 && !branches))
            continue;
        MGPU_TRY(measure(p, device, count, part, plan, replicas == count));
        last = part;
    }
    return 0;
}

int mgpu_planner_may_measure(const struct mgpu_planner_options *o, const struct mgpu_topology *t)
{
    if (!o->measure)
        return 0;
    if (!t->present)
        return mgpu_fail(MGPU_EUSAGE, "--measure: %s are not here", o->devices);
    if (mgpu_topology_all_cpus(t))
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "--measure: only ranks on the CPU are measured so far, not those of %s; "
                     "without --measure a GPU's times are those of its table",
                     o->devices);
}

int mgpu_planner_measure(struct mgpu_planner *p)
{
    struct mgpu_rank_device *device;
    int count;
    MGPU_TRY(mgpu_devices_parse(&device, &count, p->options->devices, 0));
    if (!p->profile)
        p->profile = mgpu_profile_new();
    const struct mgpu_plan *stacked = p->variant[MGPU_VARIANT_STACKED];
    int rc = measure_all(p, device, count, p->variant[MGPU_VARIANT_PLAIN], true);
    if (rc == 0 && stacked)
        rc = measure_all(p, device, count, stacked, false);
    rc = mgpu_prefix(rc, "--measure");
    free(device);
    return rc;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Everything that its step depends on, but for the machine. */
static int hash_plan(char hash[MGPU_PROFILE_HASH], const struct mgpu_planner *p,
                     const struct mgpu_plan_file *plan)
{
    char *text = NULL;
    size_t size = 0;
    const struct mgpu_topology *t = p->planned->topology;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return mgpu_fail(MGPU_ENOMEM, "no memory for the plan");
    int rc = mgpu_plan_file_print(plan, to);
    fprintf(to, "%s, %d threads", p->model->training, t->kind[t->device[0].kind].threads);
    fclose(to);
    snprintf(hash, MGPU_PROFILE_HASH, "%016llx",
             (unsigned long long)mgpu_hash_bytes(0, text, size));
    free(text);
    return rc;
}

/* Runs what the profile does not have. What cannot be run keeps its simulated time. */
static int time_plan(struct mgpu_planner *p, const struct mgpu_plan_file *plan, double *ms)
{
    char hash[MGPU_PROFILE_HASH];
    const struct mgpu_planner_options *o = p->options;
    char what[64];
    snprintf(what, sizeof what, "plan '%s'", plan->strategy);
    MGPU_TRY(hash_plan(hash, p, plan));
    double known = mgpu_profile_plan_ms(p->profile, hash);
    if (known < 0 && (!o->measure || !p->model->run))
        return 0;
    if (known < 0) {
        if (o->progress)
            o->progress(o->progress_context, what, 0);
        if (p->model->run(&known, p->model->context, plan) < 0) {
            mgpu_note("--measure: %s was not run: %s", what, mgpu_error());
            return 0;
        }
        if (o->progress)
            o->progress(o->progress_context, what, 1);
        mgpu_profile_set_plan(p->profile, hash, known);
    }
    *ms = known;
    return 0;
}

int mgpu_planner_time(void *context, const struct mgpu_candidate *c, double *ms)
{
    struct mgpu_planner *p = context;
    int *device;
    if (!mgpu_topology_all_cpus(p->planned->topology))
        return 0;
    struct mgpu_plan_file *plan = mgpu_planner_plan(p, c, &device);
    for (int i = 0; i < plan->devices; i++)
        plan->predicted.memory_bytes[i] = 0; /* no part of the hash */
    mgpu_planner_describe(p, c, plan);
    int rc = plan->replicas * plan->places <= MGPU_MAX_RANKS ? time_plan(p, plan, ms) : 0;
    mgpu_plan_file_free(plan);
    return rc;
}
