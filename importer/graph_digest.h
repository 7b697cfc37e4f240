/* A number that tells one graph from another of the same weights. */
#ifndef MGPU_IMPORTER_GRAPH_DIGEST_H
#define MGPU_IMPORTER_GRAPH_DIGEST_H

#include "importer/model.h"

/* Of what the outputs are computed by: operators, their attributes, integers that are stored, and
 * the names and shapes of weights. Not of the weights' numbers, of names of other values, or of the
 * order in which the file has its nodes and initializers. */
uint32_t mgpu_graph_digest(const struct mgpu_onnx_model *model);

#endif
