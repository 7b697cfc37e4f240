/* The order of a task graph's tasks that does not depend on their numbers or names (flow.h). */
#ifndef MGPU_PARTITIONER_CANONICAL_H
#define MGPU_PARTITIONER_CANONICAL_H

#include "partitioner/task.h"

/* Mixes `word` into a hash. */
static inline uint64_t mgpu_mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

/* order[0..tasks) becomes the task numbers in the canonical order. `kind` is the device kind whose
 * times count. The graph must be checked: edges lead from smaller to larger numbers. */
void mgpu_canonical_order(int *order, const struct mgpu_task_graph *graph, int kinds, int kind);

#endif
