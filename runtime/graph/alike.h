/* Whether a graph depends on the size of its batch, or on a sample's place in it, in a way that
 * its shapes do not show.
 *
 * Folding marks what it cannot follow (value->tainted, value->ints, graph->whole), to be safe: a
 * mask that is made from positions in the batch and is the same for all samples is marked too. The
 * same model lowered at another batch size decides: where both graphs are alike, each sample is
 * treated in the same way whatever batch it is in.
 */
#ifndef MGPU_GRAPH_ALIKE_H
#define MGPU_GRAPH_ALIKE_H

#include "runtime/graph/graph.h"

/* Whether something that an output or statistic needs is marked. */
bool mgpu_batch_unsure(const struct mgpu_graph *g);

/* Whether the nodes that outputs and statistics need are the same in both graphs, in order, with
 * sizes of the same monomials, and whether the constants that they read are the same for each
 * sample. */
bool mgpu_graphs_alike(const struct mgpu_graph *a, const struct mgpu_graph *b);

/* Takes the marks off. */
void mgpu_batch_sure(struct mgpu_graph *g);

/* The first axis that grows with the batch; -1: none. */
int mgpu_batch_axis(const struct mgpu_value *v);

/* The first axis that counts samples, in so many rows each (the batch in the first power, nothing
 * unknown); `single`: one row each. -1: none. */
int mgpu_rows_axis(const struct mgpu_value *v, bool single);

/* Whether an axis of a constant holds the same for each of `batch` samples. */
bool mgpu_same_for_samples(const struct mgpu_value *constant, int axis, int64_t batch);

#endif
