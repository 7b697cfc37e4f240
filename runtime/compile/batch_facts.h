/* How the values of a graph hang on the samples of a batch. */
#ifndef MGPU_COMPILE_BATCH_FACTS_H
#define MGPU_COMPILE_BATCH_FACTS_H

#include "runtime/graph/graph.h"

/* Whether a constant depends on the batch in another way than by its shape: what a rank makes of it
 * at its own size is not its part of the whole. */
bool mgpu_mixes_samples(const struct mgpu_graph *g, const struct mgpu_value *constant);

/* By value id: whether an output or a gradient depends on it; the others lead to running statistics
 * only. The caller frees it. */
bool *mgpu_find_steering(const struct mgpu_graph *g);

#endif
