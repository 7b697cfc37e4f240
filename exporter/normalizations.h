/* Keras's layer Normalization (importer/normalization.h), between a graph and a file of Keras. Mean
 * and variance are no weights in the graph: of the variance it has what the exporter made of it,
 * and the mean only as an input without data, until a file gives it. */
#ifndef MGPU_EXPORTER_NORMALIZATIONS_H
#define MGPU_EXPORTER_NORMALIZATIONS_H

#include "exporter/variables.h"

/* Makes initializers of those inputs, with the contents that the Keras file at `path` has for them;
 * *model is made again then. What the file does not have stays as it is. */
int mgpu_normalizations_fill(struct mgpu_onnx_file *file, struct mgpu_onnx_model **model,
                             const char *path);

/* The path of the first such layer in the graph; NULL: there is none. */
const char *mgpu_normalizations_first(const struct mgpu_variables *v);

/* Whether the input of the graph is the mean of one. */
bool mgpu_normalizations_is_mean(const struct mgpu_onnx_model *model, const char *input);

/* The path of the layer whose node this is: "model/normalization". */
const char *mgpu_normalization_path(struct mgpu_arena *arena, const struct mgpu_onnx_node *node,
                                    bool renumbered);

#endif
