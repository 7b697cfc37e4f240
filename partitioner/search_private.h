/* What the files of the search share. */
#ifndef MGPU_PARTITIONER_SEARCH_PRIVATE_H
#define MGPU_PARTITIONER_SEARCH_PRIVATE_H

#include "partitioner/bounds.h"
#include "partitioner/place.h"
#include "partitioner/search.h"

struct mgpu_search_flow {
    const struct mgpu_task_graph *graph;
    struct mgpu_flow *flow;
};

/* One way to run a step that was looked at. */
struct mgpu_tried {
    enum mgpu_tactic tactic;
    int variant, replicas, ranks;
    int64_t bucket_bytes;
    const struct mgpu_flow *flow;
    struct mgpu_assignment assignment;
    bool placed; /* false: ruled out by its bound */
    bool proven;
    bool asked, ran; /* whether it was run: the caller was asked; it was, and `ms` is from there */
    double ms, bound;
    const char *decides; /* what makes the bound: "the longest path" */
    int64_t lacking;
    int64_t *memory;            /* by device of the topology, exactly; NULL: not asked for */
    const char *refused;        /* why it may not be chosen, or NULL */
    double all_reduce, exposed; /* as in the simulator */
};

struct mgpu_search_run {
    const struct mgpu_search_request *request;
    struct mgpu_arena *arena; /* of the result */
    int devices, channels;
    int variant;   /* that placements are of */
    int64_t limit; /* steps of simulation left to placement searches */
    int flows;
    struct mgpu_search_flow *flow;
    int tries;
    struct mgpu_tried *tried;
    double bound;             /* of everything looked at */
    double single;            /* ms of the best single device, whether it fits or not */
    struct mgpu_bounds whole; /* of one replica on all devices */
};

/* Which of the bounds is the largest, in words. */
const char *mgpu_bound_text(const struct mgpu_bounds *bounds);

/* Whether it was placed, fits, and is of the strategy that the user asked for, if any. */
bool mgpu_may_choose(const struct mgpu_search_run *run, const struct mgpu_tried *tried);

/* Whether a is better: not refused, then lacking less memory, then faster. */
bool mgpu_tried_less(const struct mgpu_tried *a, const struct mgpu_tried *b);

/* Fills in the exact memory, once. Errors are those of the request's `memory`. */
int mgpu_settle_memory(const struct mgpu_search_run *run, struct mgpu_tried *tried);

/* Chooses of what was tried, after it was run where the request says how, and lists the candidates;
 * an error where nothing may be chosen, which says why. */
int mgpu_search_finish(struct mgpu_search_run *run, struct mgpu_search_result *result);

/* The candidate's numbers and timeline from a last simulation. */
void mgpu_candidate_fill(const struct mgpu_search_run *run, struct mgpu_candidate *to,
                         const struct mgpu_tried *from);

/* Why each lost, once all are filled and ranked ([0] is chosen). */
void mgpu_explain(const struct mgpu_search_run *run, struct mgpu_search_result *result);

#endif
