/* How a TensorProto holds its elements: the field for each type, sizes, and the way both ways. */
#ifndef MGPU_IMPORTER_ONNX_TENSOR_H
#define MGPU_IMPORTER_ONNX_TENSOR_H

#include "importer/onnx.pb-c.h"
#include "runtime/base/array.h"

/* Whether dims, type and data agree, wherever the data is; external data is opened but not read.
 * The error does not name the tensor. */
int mgpu_onnx_tensor_check(const Onnx__TensorProto *tensor, const char *folder);

/* The values. `what` names the tensor in errors. */
int mgpu_onnx_tensor_decode(const Onnx__TensorProto *tensor, const char *folder, const char *what,
                            struct mgpu_array *out);

/* The same without a copy where the elements lie as an array has them: `out` then points into the
 * tensor, or into its external file, which is mapped (it may be replaced meanwhile, but not be
 * cut). `out` is not to be changed or freed; what it needs is in `held`, which is freed before the
 * tensor. */
struct mgpu_onnx_held {
    void *copied, *mapped; /* or NULL */
    size_t mapped_size;
};
int mgpu_onnx_tensor_view(const Onnx__TensorProto *tensor, const char *folder, const char *what,
                          struct mgpu_array *out, struct mgpu_onnx_held *held);
void mgpu_onnx_held_free(struct mgpu_onnx_held *held);

/* Puts the elements of `array` (already of the tensor's type and shape) into a tensor with data of
 * its own, in the field that holds them there now. The new field is one block of mgpu_alloc that
 * the tensor borrows and the caller frees; *block is NULL when the field only points into `array`,
 * which must then outlive the tensor. */
int mgpu_onnx_tensor_encode(Onnx__TensorProto *tensor, const struct mgpu_array *array,
                            void **block);

#endif
