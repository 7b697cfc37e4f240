#include "runtime/compile/plan.h"

#include <assert.h>
#include <stdlib.h>

static const int64_t BUCKET_BYTES = INT64_C(4) << 20;

const char *mgpu_strategy_name(enum mgpu_strategy strategy)
{
    return strategy == MGPU_STRATEGY_SINGLE ? "single" : "data";
}

struct mgpu_plan *mgpu_plan_data(int ranks)
{
    assert(ranks >= 1 && ranks <= MGPU_MAX_RANKS);
    mgpu_rank_set all = ranks == MGPU_MAX_RANKS ? ~UINT64_C(0) : (UINT64_C(1) << ranks) - 1;
    struct mgpu_plan *plan = mgpu_xcalloc(1, sizeof *plan);
    plan->strategy = ranks > 1 ? MGPU_STRATEGY_DATA : MGPU_STRATEGY_SINGLE;
    plan->ranks = ranks;
    plan->placements = plan->owners = 1;
    plan->placement = mgpu_xcalloc(1, sizeof *plan->placement);
    *plan->placement = (struct mgpu_placement){.ranks = all, .slice = MGPU_SLICE_BATCH};
    plan->owner = mgpu_xcalloc(1, sizeof *plan->owner);
    *plan->owner = (struct mgpu_owner){.ranks = all};
    plan->bucket_bytes = BUCKET_BYTES;
    return plan;
}

void mgpu_plan_free(struct mgpu_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->rewrites; i++)
        free(plan->rewrite[i].output);
    free(plan->rewrite);
    free(plan->placement);
    free(plan->owner);
    free(plan);
}
