/* Measuring a model's nodes and this machine's ranks: --measure.
 *
 * A node alone in a loop finds its operands in the cache and the memory's bandwidth free; in a step
 * it does not. So the whole step is compiled and run as training does, on as many ranks at a time
 * as will work, and each instruction's own time is taken there.
 */
#ifndef MGPU_PARTITIONER_MEASURE_H
#define MGPU_PARTITIONER_MEASURE_H

#include "partitioner/profile.h"
#include "runtime/executor/devices.h"

struct mgpu_measure {
    /* Makes another copy of the whole training graph at one local batch. */
    int (*graph)(struct mgpu_graph **out, void *context);
    void *context;

    const struct mgpu_rank_device *device; /* that work at the same time, each on its own copy */
    int ranks;
    bool together; /* their batches are the parts of one: what data parallelism adds is timed too */
    bool exact;
    double seconds; /* to spend on steps; at least three are run */

    /* NULL, or called as it goes on: what is measured, and the share that is done. */
    void (*progress)(void *context, const char *what, double share);
    void *progress_context;
};

/* Adds what the profile does not have yet: the times of the graph's nodes with so many ranks busy;
 * those of communication and of starting a step. Needs the memory that training would need. */
int mgpu_measure(struct mgpu_profile *profile, const struct mgpu_measure *measure);

#endif
