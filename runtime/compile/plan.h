/* A plan: how one training step is spread over ranks.
 *
 *   rewrites    change the graph before the gradient is taken (batch two towers into one call ...)
 *   placement   which ranks run a node, and whether each takes its part of the batch or all of it
 *   owners      which ranks hold a parameter's master weight and optimizer state
 *   buckets     how gradients are grouped for their all-reduce
 *
 * Data parallelism is the plan in which all ranks run every node on their part of the batch and all
 * own every parameter. mgpu_plan_apply is the one pass that turns a whole graph (forward, backward,
 * update) into one rank's graph.
 */
#ifndef MGPU_COMPILE_PLAN_H
#define MGPU_COMPILE_PLAN_H

#include "runtime/graph/graph.h"
#include "runtime/ops/op.h"

enum mgpu_strategy { MGPU_STRATEGY_SINGLE, MGPU_STRATEGY_DATA };
const char *mgpu_strategy_name(enum mgpu_strategy strategy);

enum mgpu_slice { MGPU_SLICE_ALL, MGPU_SLICE_BATCH };

/* Ranks as a bit set. */
enum { MGPU_MAX_RANKS = 64 };
typedef uint64_t mgpu_rank_set;

struct mgpu_rewrite {
    const char *kind;
    int outputs; /* keys of the nodes that it takes */
    const char **output;
};

struct mgpu_placement {
    const char *output; /* the node's key: its origin's output; NULL: every node not named */
    mgpu_rank_set ranks;
    enum mgpu_slice slice;
};

struct mgpu_owner {
    const char *parameter; /* NULL: every parameter not named */
    mgpu_rank_set ranks;
};

struct mgpu_plan {
    enum mgpu_strategy strategy;
    int ranks;
    int rewrites;
    struct mgpu_rewrite *rewrite;
    int placements;
    struct mgpu_placement *placement;
    int owners;
    struct mgpu_owner *owner;
    int64_t bucket_bytes; /* a bucket is closed when it holds this many */
};

/* The plan of one rank, or of plain data parallelism over `ranks` (at most MGPU_MAX_RANKS). */
struct mgpu_plan *mgpu_plan_data(int ranks);
void mgpu_plan_free(struct mgpu_plan *plan);

/* What became of the graph's outputs on this rank. */
struct mgpu_applied {
    struct mgpu_split *output; /* by graph->outputs; in the graph's arena */
};

/* Turns the whole graph, lowered at this rank's part of the batch, into the graph that rank `rank`
 * runs: communication is added where a sum over the ranks is needed whole, and where gradients are
 * complete (one all-reduce a bucket); nodes that mix samples are written as sums over the ranks
 * where they can be (op->expand), else refused, naming the node. With `pieces` > 1 (--accumulate)
 * the batch is cut in time as well, and what mixes samples in any other way than a mean is refused
 * on one rank too. The structure of the result is the same on every rank. */
int mgpu_plan_apply(struct mgpu_graph *g, const struct mgpu_plan *plan, int rank, int pieces,
                    struct mgpu_applied *applied);

#endif
