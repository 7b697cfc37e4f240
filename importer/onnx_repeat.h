/* A parameter that PyTorch's exporter stored repeated, as itself again in a file in memory. */
#ifndef MGPU_IMPORTER_ONNX_REPEAT_H
#define MGPU_IMPORTER_ONNX_REPEAT_H

#include "importer/onnx_file.h"

#include <stdbool.h>

/* dynamo's optimizer stores what `cls_token.expand(batch, -1, -1)` gave for the example, with the
 * names that it was computed of. Where these are one parameter's and of nothing but moves, and all
 * rows are the same, the row becomes an initializer of the parameter's name, which an Expand
 * repeats: PyTorch has one, and the batch may be another. `told`: each is said. To be called before
 * the file is made a model; what is written holds the row. */
int mgpu_onnx_unrepeat(struct mgpu_onnx_file *file, bool told);

#endif
