/* What those share that change a file in memory (onnx_bias.c, onnx_head.c). All of it is from
 * malloc, as protobuf-c's own. */
#ifndef MGPU_IMPORTER_ONNX_EDIT_H
#define MGPU_IMPORTER_ONNX_EDIT_H

#include "importer/onnx_file.h"

/* The tensor that `name` is: an initializer of the graph, or the value of a Constant; or NULL. */
Onnx__TensorProto *mgpu_onnx_edit_stored(const Onnx__GraphProto *graph, const char *name);

/* A new initializer of zeros. */
Onnx__TensorProto *mgpu_onnx_edit_add(Onnx__GraphProto *graph, const char *name, int32_t type,
                                      int rank, const int64_t *dims);

/* Makes the contents zeros of these dims, stored in the file as raw data. */
void mgpu_onnx_edit_resize(Onnx__TensorProto *tensor, int rank, const int64_t *dims);

/* To be called after changes: names and keys have to be listed again. */
void mgpu_onnx_edit_done(struct mgpu_onnx_file *file);

#endif
