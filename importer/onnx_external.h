/* External data: tensors whose bytes lie in another file in (or below) the model's folder. */
#ifndef MGPU_IMPORTER_ONNX_EXTERNAL_H
#define MGPU_IMPORTER_ONNX_EXTERNAL_H

#include "importer/onnx.pb-c.h"

#include <stdbool.h>

struct mgpu_onnx_external {
    const char *location; /* as in the file: relative to the model's folder */
    uint64_t offset;
    uint64_t length;
    bool has_length;
};

bool mgpu_onnx_is_external(const Onnx__TensorProto *tensor);

/* Reads the key-value list; refuses a missing location and numbers that are none. */
int mgpu_onnx_external_parse(struct mgpu_onnx_external *out, const Onnx__TensorProto *tensor);

/* Opens a location for reading; *out is a file descriptor of a regular file. Refuses absolute
 * paths and "..", and follows no link on the way down from `folder`. */
int mgpu_onnx_external_open(int *out, const char *folder, const char *location);

/* Opens the tensor's file and checks that its `bytes` lie inside; *offset is where. */
int mgpu_onnx_external_find(int *out, uint64_t *offset, const char *folder,
                            const Onnx__TensorProto *tensor, uint64_t bytes);

#endif
