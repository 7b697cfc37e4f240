/* Which values of a graph lie in blocks of channels (graph.h): decided once, before compilation.
 *
 * Some kernels want blocks (convolutions), some take either (what works element by element or
 * channel by channel), all others are plain; the backend says which (mgpu_backend's `blocks`). Each
 * node becomes blocked or plain as a whole, such that few elements are reordered. A reorder is a
 * node of its own, one for each value and other layout that somebody wants, before the first who
 * does: the profile lists it.
 *
 *     conv -> batch_norm -> relu -> conv        no reorder in between
 *     conv -> relu -> matmul                    one, of the smaller of the values in between
 *
 * What comes in (weights, inputs, constants) and what leaves (outputs, gradients of weights, new
 * values of parameters) is plain. Only the sizes of one sample count, so that ranks and tail
 * batches have the same layouts.
 */
#ifndef MGPU_COMPILE_LAYOUT_H
#define MGPU_COMPILE_LAYOUT_H

#include "runtime/backend.h"

int mgpu_choose_layouts(struct mgpu_graph *g, const struct mgpu_backend *backend);

#endif
