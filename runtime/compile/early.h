/* Updates within backward (early.c). */
#ifndef MGPU_COMPILE_EARLY_H
#define MGPU_COMPILE_EARLY_H

#include "runtime/backend.h"

/* For a graph whose gradients only updates take (graph->updates_early), after all that makes or
 * moves nodes: updates stand as early as they can, and parameters have no gradient that would be
 * kept. The order of communication stays. */
void mgpu_update_early(struct mgpu_graph *g);

/* For the same graph, first of all: updates take large gradients as the products that they are. */
void mgpu_update_by_products(struct mgpu_graph *g, const struct mgpu_backend *backend);

/* By parameter index: what mgpu_update_by_products would do for it on any backend, were all the
 * samples of the step here; nothing where updates are not early. The same on all ranks. The caller
 * frees it. */
bool *mgpu_find_products(const struct mgpu_graph *g);

/* Of a size that counts samples, what it is over all ranks. */
int64_t mgpu_rows_in_all(const struct mgpu_graph *g, struct mgpu_dim rows);

#endif
