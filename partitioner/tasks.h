/* A training graph as tasks (task.h): what the search places. */
#ifndef MGPU_PARTITIONER_TASKS_H
#define MGPU_PARTITIONER_TASKS_H

#include "partitioner/cost.h"
#include "partitioner/task.h"
#include "runtime/graph/graph.h"

struct mgpu_profile;

/* The tasks of a whole graph (forward, backward, update), lowered at one local batch. Costs come
 * from `profile` where it knows the node, else from the operators' records (cost.h) at `rate`;
 * profile may be NULL.
 *
 * A group is everything that one ONNX node became: forward, backward, the update of weights that
 * only it uses. The update of a weight that several groups use stands in the first of them. Sums of
 * gradients that arrive at one value are one task of the group that made the value.
 *
 * Tasks, groups, edges and parameters stand in an order that depends on the graph's structure and
 * names, not on the order of nodes in the file. Linear in nodes and edges, but for a sort. Keys and
 * names are copied. */
int mgpu_tasks_build(struct mgpu_task_graph **out, const struct mgpu_graph *whole,
                     const struct mgpu_topology *topology, enum mgpu_rate rate,
                     const struct mgpu_profile *profile);

/* For a graph that got another batch (mgpu_graph_set_batch) since its tasks were built: whether
 * they are still the same ones, and the same ones at that batch. These borrow all else from `from`,
 * what the caller set in it too; graph and profile are still those that it was built of. */
bool mgpu_tasks_same(const struct mgpu_task_graph *tasks);
void mgpu_tasks_cost(struct mgpu_task_graph **out, const struct mgpu_task_graph *from,
                     const struct mgpu_topology *topology);
void mgpu_task_graph_free(struct mgpu_task_graph *tasks);

#endif
