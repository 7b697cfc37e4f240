/* The tensors of a test case: files that hold one serialized message. */
#ifndef MGPU_TESTS_ONNX_TENSOR_FILE_H
#define MGPU_TESTS_ONNX_TENSOR_FILE_H

#include "importer/model.h"

/* The TensorProto in a file, which the model declares as `type`. MGPU_EUNSUPPORTED for element
 * types that mgpu does not hold. */
int mgpu_onnx_tensor_file(struct mgpu_array *out, const char *path, enum mgpu_dtype type);

#endif
