/* A plan as the ONNX standard's multi-device annotations (IR 11: docs/IR.md, "Multi-Device
 * Configuration"): hints in the model file, which other tools may ignore.
 *
 * They hold which device computes each node of the forward graph and how the batch is cut; not the
 * owners of weights, rewrites or buckets, which are only in plan.json. The configuration is called
 * "mgpu". Every output of a node says where it is: on one device; or cut along its batch axis over
 * the devices of its place; or, where it has no such axis, whole on all of them.
 */
#ifndef MGPU_PARTITIONER_ANNOTATE_H
#define MGPU_PARTITIONER_ANNOTATE_H

#include "importer/onnx_file.h"
#include "partitioner/plan_file.h"
#include "runtime/graph/graph.h"

/* Writes `file` with the plan's annotations (in place of older ones of the same name) to `path`.
 * `graph` is the model lowered at any batch: it tells the batch axes. Nodes that the graph does not
 * compute (constants) carry none. */
int mgpu_annotate(const struct mgpu_onnx_file *file, const struct mgpu_plan_file *plan,
                  const struct mgpu_graph *graph, const char *path);

/* The plan that a file's annotations say: of the configuration "mgpu", else of the only one. *out
 * is NULL when there is none. Nodes are those of the file's graph that are annotated. What the
 * standard or this runtime does not allow is MGPU_EINVALID or MGPU_EUNSUPPORTED, naming the node.
 */
int mgpu_annotate_read(struct mgpu_plan_file **out, const struct mgpu_onnx_file *file);

#endif
