/* Which nodes of a graph run: those that a gradient, a parameter's next value or a result needs. */
#ifndef MGPU_PARTITIONER_LIVE_H
#define MGPU_PARTITIONER_LIVE_H

#include "runtime/graph/graph.h"

/* live[] by node id, all false before. */
void mgpu_find_live(const struct mgpu_graph *graph, bool *live);

#endif
