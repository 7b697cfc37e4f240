/* Updates within backward (early.c). */
#ifndef MGPU_COMPILE_EARLY_H
#define MGPU_COMPILE_EARLY_H

#include "runtime/graph/graph.h"

/* For a graph whose gradients only updates take (graph->updates_early), after all that makes or
 * moves nodes: updates stand as early as they can, and parameters have no gradient that would be
 * kept. The order of communication stays. */
void mgpu_update_early(struct mgpu_graph *g);

/* For the same graph, first of all: updates take large gradients as the products that they are. */
void mgpu_update_by_products(struct mgpu_graph *g);

#endif
