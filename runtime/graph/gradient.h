/* Reverse differentiation of the whole graph, at the level of core operators.
 *
 * Backward work is ordinary nodes, appended in an order in which they can run, with the origin of
 * the forward node and the role MGPU_BACKWARD.
 */
#ifndef MGPU_GRAPH_GRADIENT_H
#define MGPU_GRAPH_GRADIENT_H

#include "runtime/graph/graph.h"

/* Appends the gradient of `loss` (rank 0, floating) with respect to every parameter whose role is
 * MGPU_WEIGHT and sets its ->gradient (same type and shape). Several uses of one parameter add up.
 * A weight that the loss does not reach, or reaches only through operators without a gradient, is
 * collected with the node that stops it; all of them are named in one error (MGPU_EUNSUPPORTED).
 * Each ->gradient is a value of its own: not a view and used by no other node, or a constant.
 * With `allow_missing` such weights keep a NULL gradient instead. */
int mgpu_gradient(struct mgpu_graph *g, struct mgpu_value *loss, bool allow_missing);

/* The same for any values: dx[i] gets the gradient of `loss` by wrt[i], NULL where it is zero. */
int mgpu_gradient_of(struct mgpu_graph *g, struct mgpu_value *loss, int count,
                     struct mgpu_value *const *wrt, struct mgpu_value **dx);

#endif
