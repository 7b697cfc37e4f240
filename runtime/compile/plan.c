#include "runtime/compile/plan.h"

#include <assert.h>
#include <stdlib.h>

static const int64_t BUCKET_BYTES = INT64_C(4) << 20;

const char *mgpu_strategy_name(enum mgpu_strategy strategy)
{
    static const char *const names[] = {"single", "data", "branch", "hybrid"};
    return names[strategy];
}

struct mgpu_plan *mgpu_plan_new(int replicas, int places)
{
    assert(replicas >= 1 && places >= 1 && replicas * places <= MGPU_MAX_RANKS);
    struct mgpu_plan *plan = mgpu_xcalloc(1, sizeof *plan);
    plan->arena = mgpu_arena_new();
    plan->replicas = replicas;
    plan->places = places;
    plan->strategy = places > 1     ? (replicas > 1 ? MGPU_STRATEGY_HYBRID : MGPU_STRATEGY_BRANCH)
                     : replicas > 1 ? MGPU_STRATEGY_DATA
                                    : MGPU_STRATEGY_SINGLE;
    plan->bucket_bytes = BUCKET_BYTES;
    return plan;
}

struct mgpu_plan *mgpu_plan_data(int ranks)
{
    return mgpu_plan_new(ranks, 1);
}

void mgpu_plan_place(struct mgpu_plan *plan, const char *output, int place)
{
    plan->placement = mgpu_grow(plan->placement, (size_t)plan->placements, sizeof *plan->placement);
    plan->placement[plan->placements++] =
        (struct mgpu_placement){mgpu_arena_string(plan->arena, output), place};
}

void mgpu_plan_own(struct mgpu_plan *plan, const char *parameter, int place)
{
    plan->owner = mgpu_grow(plan->owner, (size_t)plan->owners, sizeof *plan->owner);
    plan->owner[plan->owners++] =
        (struct mgpu_owner){mgpu_arena_string(plan->arena, parameter), place};
}

void mgpu_plan_rewrite(struct mgpu_plan *plan, const char *kind, int outputs,
                       const char *const *output)
{
    plan->rewrite = mgpu_grow(plan->rewrite, (size_t)plan->rewrites, sizeof *plan->rewrite);
    struct mgpu_rewrite *r = &plan->rewrite[plan->rewrites++];
    *r = (struct mgpu_rewrite){.kind = mgpu_arena_string(plan->arena, kind), .outputs = outputs};
    r->output = MGPU_NEW_ARRAY(plan->arena, const char *, outputs);
    for (int i = 0; i < outputs; i++)
        r->output[i] = mgpu_arena_string(plan->arena, output[i]);
}

void mgpu_plan_free(struct mgpu_plan *plan)
{
    if (!plan)
        return;
    free(plan->rewrite);
    free(plan->placement);
    free(plan->owner);
    mgpu_arena_free(plan->arena);
    free(plan);
}
