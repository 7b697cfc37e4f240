/* The search for a placement of a flow's groups on the devices of one replica.
 *
 * A placement costs what lacks in memory first, and then its simulated time. Methods try
 * placements; the best so far is kept. Effort is counted in steps of simulation
 * (mgpu_flow.size), not in seconds, so that the same input always gives the same plan.
 */
#ifndef MGPU_PARTITIONER_PLACE_H
#define MGPU_PARTITIONER_PLACE_H

#include "partitioner/coarsen.h"

struct mgpu_place {
    const struct mgpu_flow *flow;
    const struct mgpu_replica *replica;
    struct mgpu_arena *arena;
    struct mgpu_simulator *simulator;
    struct mgpu_net net;
    int *sort;                    /* by device below ranks: the first device of its sort */
    bool *fresh;                  /* by sort: working memory */
    bool *named;                  /* by device of the topology: by a pin or weights_on */
    struct mgpu_assignment trial; /* what the methods write, pins obeyed */
    struct mgpu_assignment best;
    bool apart; /* placements that use one device only do not count */
    double best_ms;
    int64_t best_lacking; /* bytes; INT64_MAX: nothing tried yet */
    double bound;         /* of the step's time: a placement that reaches it ends the search */
    int64_t effort, limit;
    uint64_t random;
};

/* `limit`: of effort; `bound`: 0 for none. Free with mgpu_place_free. */
struct mgpu_place *mgpu_place_new(const struct mgpu_flow *flow, const struct mgpu_replica *replica,
                                  double bound, int64_t limit, uint64_t seed);
void mgpu_place_free(struct mgpu_place *place);

/* Simulates the trial, with the owners that follow from it (mgpu_choose_owners) or with those that
 * it has, and keeps it if it is better than the best. */
bool mgpu_place_try(struct mgpu_place *place);
bool mgpu_place_try_owned(struct mgpu_place *place);

/* The limit is reached, or the bound. */
bool mgpu_place_spent(const struct mgpu_place *place);

/* Copies the best into the trial. */
void mgpu_place_recall(struct mgpu_place *place);

/* The devices worth trying beside those that run something: one unused device of each sort (kind,
 * memory, machine). Writes the used ones and these to list[], rising; returns how many. */
int mgpu_place_devices(const struct mgpu_place *place, const int *device, int *list);

/* First placements: everything on each sort of device; lists by earliest finish (HEFT's order) and
 * earliest start (ETF); longest groups first on the least loaded device; the groups in order cut
 * into pieces that fit the memory, with the least communication. */
void mgpu_place_start(struct mgpu_place *place);

/* Moves and swaps from the best as long as they help, then from random changes of it, until the
 * limit. */
void mgpu_place_improve(struct mgpu_place *place);

/* Branch and bound over all placements and owners. True: the best is proven; false: the limit came
 * first. */
bool mgpu_place_exact(struct mgpu_place *place);

/* The whole search: exact for few groups, else on clusters first (coarsen.h). `first` (by group;
 * may be NULL) is a placement to begin from. best[] is filled; true: it is proven optimal for the
 * simulation's order. */
bool mgpu_place_search(struct mgpu_place *place, const int *first);

enum { MGPU_EXACT_GROUPS = 14, MGPU_EXACT_DEVICES = 4 };

#endif
