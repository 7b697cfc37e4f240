/* A copy of a model that may be changed: new messages and lists, in an arena, around the old
 * strings and bytes. The original is not touched and must outlive the copy. */
#ifndef MGPU_EXPORTER_ONNX_COPY_H
#define MGPU_EXPORTER_ONNX_COPY_H

#include "importer/onnx.pb-c.h"
#include "runtime/base/memory.h"

struct mgpu_onnx_twin {
    const ProtobufCMessage *original;
    ProtobufCMessage *copy;
};

struct mgpu_onnx_copy {
    struct mgpu_arena *arena; /* owns all of the copy */
    Onnx__ModelProto *model;
    struct mgpu_onnx_twin *twins; /* tensors and nodes, in the order of their originals */
    size_t twin_count;
};

void mgpu_onnx_copy_init(struct mgpu_onnx_copy *copy, const Onnx__ModelProto *model);
void mgpu_onnx_copy_free(struct mgpu_onnx_copy *copy);

/* The copy of a tensor or a node of the original; NULL for another message, or for NULL. */
void *mgpu_onnx_copy_of(const struct mgpu_onnx_copy *copy, const void *original);

#endif
