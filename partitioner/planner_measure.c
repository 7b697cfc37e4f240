/* --measure: which batches, and how many ranks at a time. */
#include "partitioner/measure.h"
#include "partitioner/planner_private.h"
#include "runtime/base/status.h"

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

int mgpu_planner_measure(struct mgpu_planner *p)
{
    struct mgpu_rank_device *device;
    int count;
    if (!p->planned->topology->present)
        return mgpu_fail(MGPU_EUSAGE, "--measure: %s are not here", p->options->devices);
    MGPU_TRY(mgpu_devices_parse(&device, &count, p->options->devices, 0));
    if (!p->profile)
        p->profile = mgpu_profile_new();
    const struct mgpu_plan *stacked = p->variant[MGPU_VARIANT_STACKED];
    int rc = measure_all(p, device, count, p->variant[MGPU_VARIANT_PLAIN], true);
    if (rc == 0 && stacked)
        rc = measure_all(p, device, count, stacked, false);
    rc = mgpu_prefix(rc, "--measure");
    free(device);
    if (rc == 0 && p->options->profile)
        rc = mgpu_profile_write(p->profile, p->options->profile);
    return rc;
}
