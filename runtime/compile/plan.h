/* A plan: how one training step is spread over ranks.
 *
 *   rewrites    change the graph before the gradient is taken (batch two towers into one call ...)
 *   placement   which place runs a node
 *   owners      which place holds a parameter's master weight and optimizer state
 *   buckets     how gradients are grouped for their all-reduce
 *
 * `replicas` x `places` ranks: rank = replica * places + place. Each replica takes its part of the
 * batch; within a replica every node runs at one place, and what another place needs is sent there.
 * Plain data parallelism is one place and as many replicas as ranks; branch-wise placement is one
 * replica of several places. A parameter that is used at several places has one owner: the others
 * receive its value each step and send their gradient. Gradients are summed over the replicas.
 *
 * mgpu_plan_apply is the one pass that turns a whole graph (forward, backward, update) into one
 * rank's graph.
 */
#ifndef MGPU_COMPILE_PLAN_H
#define MGPU_COMPILE_PLAN_H

#include "runtime/graph/graph.h"
#include "runtime/ops/op.h"

enum mgpu_strategy {
    MGPU_STRATEGY_SINGLE,
    MGPU_STRATEGY_DATA,
    MGPU_STRATEGY_BRANCH,
    MGPU_STRATEGY_HYBRID,
};
const char *mgpu_strategy_name(enum mgpu_strategy strategy);

enum { MGPU_MAX_RANKS = 64 };

#define MGPU_REWRITE_STACK     "stack"
#define MGPU_REWRITE_RECOMPUTE "recompute"

struct mgpu_rewrite {
    const char *kind; /* rewrite.h */
    int outputs;      /* keys of the nodes that it takes */
    const char **output;
};

struct mgpu_placement {
    const char *output; /* the node's key: its origin's output */
    int place;
};

struct mgpu_owner {
    const char *parameter;
    int place;
};

struct mgpu_plan {
    struct mgpu_arena *arena; /* of its strings and lists */
    enum mgpu_strategy strategy;
    int replicas, places;
    int rewrites;
    struct mgpu_rewrite *rewrite;
    int placements; /* nodes that are not named run at place 0; backward nodes follow */
    struct mgpu_placement *placement;
    int owners; /* parameters that are not named are where they are first used */
    struct mgpu_owner *owner;
    int64_t bucket_bytes; /* a bucket is closed when it holds this many */
};

/* The plan of one rank, or of plain data parallelism over `ranks` (at most MGPU_MAX_RANKS). */
struct mgpu_plan *mgpu_plan_data(int ranks);
/* An empty plan of so many replicas and places, to be filled with mgpu_plan_place and _own. */
struct mgpu_plan *mgpu_plan_new(int replicas, int places);
void mgpu_plan_place(struct mgpu_plan *plan, const char *output, int place);
void mgpu_plan_own(struct mgpu_plan *plan, const char *parameter, int place);
void mgpu_plan_rewrite(struct mgpu_plan *plan, const char *kind, int outputs,
                       const char *const *output);
void mgpu_plan_free(struct mgpu_plan *plan);

static inline int mgpu_plan_ranks(const struct mgpu_plan *plan)
{
    return plan->replicas * plan->places;
}

/* Communicators of a rank: one a place (the same place in all replicas), then one of all ranks,
 * for what goes from place to place. */
static inline int mgpu_plan_world(const struct mgpu_plan *plan)
{
    return plan->places;
}

/* What became of the graph's outputs on this rank. */
struct mgpu_applied {
    int outputs;
    int *index;                /* graph->outputs[i] was output index[i] of the whole graph */
    struct mgpu_split *output; /* how it is spread over the replicas; in the graph's arena */
};

/* Turns the whole graph, lowered at this rank's part of the batch, into the graph that rank `rank`
 * runs: nodes of other places go, what comes from there is received, communication is added where a
 * sum over the replicas is needed whole, and where gradients are
 * complete (one all-reduce a bucket); nodes that mix samples are written as sums over the ranks
 * where they can be (op->expand), else refused, naming the node. With `pieces` > 1 (--accumulate)
 * the batch is cut in time as well, and what mixes samples in any other way than a mean is refused
 * on one rank too. The structure of the result is the same on every rank. */
int mgpu_plan_apply(struct mgpu_graph *g, const struct mgpu_plan *plan, int rank, int pieces,
                    struct mgpu_applied *applied);

/* How a value of the whole graph stands to the samples (follow.h). False where that cannot be
 * followed: something mixes samples on the way. */
bool mgpu_plan_follow(const struct mgpu_graph *g, const struct mgpu_value *value,
                      struct mgpu_split *out);

#endif
