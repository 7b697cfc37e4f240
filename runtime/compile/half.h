/* Half types: a graph of floats, with its gradient and updates, computed in float16 or bfloat16
 * where that pays.
 *
 * What an operator takes and gives is its record's rule (op->half):
 *
 *   products    take and give the half type: matmul, convolution, recurrent layers
 *   what follows  (activations, movement, norms, softmax) gives it where its data have it and
 *               somebody behind takes it; what only sums and losses read stays a float
 *   sums, losses  take it and give floats
 *   all else    takes and gives floats
 *
 * Everything is computed in float, whatever it is stored in. Parameters, their gradients, optimizer
 * state, statistics and the graph's outputs stay floats; a weight is rounded once a step, and so is
 * a product's bias. Casts stand where types meet; pointwise expressions take any types and have
 * them inside. What is finite before a softmax stays so: masks of the lowest float become the
 * lowest number of the half type.
 */
#ifndef MGPU_COMPILE_HALF_H
#define MGPU_COMPILE_HALF_H

#include "runtime/graph/graph.h"

/* Before the plan is applied. `half`: MGPU_FLOAT16 or MGPU_BFLOAT16. */
int mgpu_use_half(struct mgpu_graph *g, enum mgpu_dtype half);

#endif
