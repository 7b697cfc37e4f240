/* The memory of CPU plans is known exactly: the plan is compiled, and nothing of it runs. */
#include "partitioner/memory.h"
#include "partitioner/plan_check.h"
#include "partitioner/planner_private.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

static int compiled_bytes(struct mgpu_planner *p, const struct mgpu_plan *plan, int place,
                          int64_t *out)
{
    struct mgpu_graph *g;
    struct mgpu_memory memory;
    const struct mgpu_topology *t = p->planned->topology;
    int64_t batch = (p->options->batch + plan->replicas - 1) / plan->replicas;
    MGPU_TRY(p->model->graph(&g, p->model->context, batch, plan));
    MGPU_TRY(
        mgpu_memory_compiled(&memory, g, plan, place, 1, t->kind[t->device[place].kind].threads));
    *out = memory.total;
    return 0;
}

static int chosen_bytes(struct mgpu_planner *p, const struct mgpu_plan *plan)
{
    struct mgpu_plan_file *file = p->planned->plan;
    int64_t most = 0;
    for (int place = 0; place < plan->places; place++) {
        int64_t bytes;
        MGPU_TRY(compiled_bytes(p, plan, place, &bytes));
        for (int r = 0; r < plan->replicas; r++)
            file->predicted.memory_bytes[r * plan->places + place] = bytes;
        most = bytes > most ? bytes : most;
    }
    file->alternative[0].memory_bytes = most;
    return 0;
}

static int baseline_bytes(struct mgpu_planner *p, struct mgpu_alternative *a)
{
    enum mgpu_planner_variant v = !strcmp(a->strategy, "stacked")          ? MGPU_VARIANT_STACKED
                                  : a->recompute && !p->options->recompute ? MGPU_VARIANT_THRIFTY
                                                                           : MGPU_VARIANT_PLAIN;
    const struct mgpu_plan *from = p->variant[v];
    if (!a->feasible || a->places > 1 || a->replicas > MGPU_MAX_RANKS)
        return 0;
    struct mgpu_plan *plan = mgpu_plan_data(a->replicas);
    for (int i = 0; from && i < from->rewrites; i++)
        mgpu_plan_rewrite(plan, from->rewrite[i].kind, from->rewrite[i].outputs,
                          from->rewrite[i].output);
    int rc = compiled_bytes(p, plan, 0, &a->memory_bytes);
    mgpu_plan_free(plan);
    return rc;
}

static bool all_cpus(const struct mgpu_topology *t)
{
    for (int k = 0; k < t->kinds; k++)
        if (!t->kind[k].threads)
            return false;
    return true;
}

int mgpu_planner_memory(struct mgpu_planner *p)
{
    struct mgpu_plan_file *file = p->planned->plan;
    struct mgpu_plan *plan;
    if (!all_cpus(p->planned->topology) || file->replicas * file->places > MGPU_MAX_RANKS)
        return 0;
    MGPU_TRY(mgpu_plan_from_file(&plan, file));
    int rc = chosen_bytes(p, plan);
    mgpu_plan_free(plan);
    for (int i = 1; i < file->alternatives && rc == 0; i++)
        rc = baseline_bytes(p, &file->alternative[i]);
    return rc;
}
