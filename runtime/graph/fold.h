/* Constant folding: nodes whose inputs are all constants are computed when they are made.
 *
 * The values are computed by the `ref` backend, through a function that runtime/ref gives here (so
 * that the graph does not know backends). The monomials of integers that came from sizes follow
 * along: data movement carries them element by element, products and quotients combine them, and
 * whatever else touches a batch-dependent integer taints its result.
 */
#ifndef MGPU_GRAPH_FOLD_H
#define MGPU_GRAPH_FOLD_H

#include "runtime/graph/graph.h"

/* Runs one node on plain host buffers: in[i], out[i] hold operand i's elements. */
typedef int (*mgpu_fold_fn)(const struct mgpu_node *node, const void *const *in, void *const *out);

void mgpu_fold_set(mgpu_fold_fn run);

/* Turns the outputs of `node` (shapes known, inputs constant) into constants. Folded constants of
 * more than 1 GiB are refused. */
int mgpu_fold(struct mgpu_graph *g, struct mgpu_node *node);

#endif
