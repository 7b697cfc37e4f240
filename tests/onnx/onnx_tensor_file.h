/* The tensors of a test case: files that hold one serialized message. */
#ifndef MGPU_TESTS_ONNX_TENSOR_FILE_H
#define MGPU_TESTS_ONNX_TENSOR_FILE_H

#include "importer/lower.h"

/* The TensorProto in a file, which the model declares as `type`. MGPU_EUNSUPPORTED for element
 * types that mgpu does not hold. */
int mgpu_onnx_tensor_file(struct mgpu_array *out, const char *path, enum mgpu_dtype type);

/* The SequenceProto, or with `optional` the OptionalProto, in a file. The caller frees the arrays
 * and the list of them. An optional with a tensor is a list of one; *tensor tells. */
int mgpu_onnx_list_file(struct mgpu_lower_list *out, const char *path, bool optional, bool *tensor);

#endif
