/* An ONNX file in memory: read, bound-checked and validated; only onnx_bias.h, onnx_head.h and
 * onnx_repeat.h change it.
 *
 * What mgpu_onnx_read lets through can be walked without further care: every string is non-NULL,
 * messages nest at most MGPU_ONNX_DEPTH deep, every node's inputs are graph inputs, initializers
 * or outputs of earlier nodes (of its own graph or one around it), no graph produces a name
 * twice, every attribute holds the value that its type promises (or a ref_attr_name, in a
 * function), every tensor's dims and data agree, and external data lies inside the model's folder.
 * Not checked: whether operators exist, take these inputs and attributes, or call functions in a
 * circle.
 */
#ifndef MGPU_IMPORTER_ONNX_FILE_H
#define MGPU_IMPORTER_ONNX_FILE_H

#include "importer/onnx.pb-c.h"
#include "runtime/base/array.h"

enum {
    MGPU_ONNX_DEPTH = 100, /* levels of nested messages, as in ONNX's own reader */
    MGPU_ONNX_IR_MIN = 3,
    MGPU_ONNX_IR_MAX = 13,
    MGPU_ONNX_OPSET_MAX = 28, /* of the default domain */
};

struct mgpu_onnx_keys;

struct mgpu_onnx_file {
    Onnx__ModelProto *proto;
    char *path;                  /* as given */
    char *folder;                /* that holds it, "." at least; external data is inside */
    struct mgpu_onnx_keys *keys; /* see mgpu_onnx_key */
};

/* Reads and checks `path`. The error is one line that begins with the path and names the tensor
 * or node. Memory is bounded by the file's size before any is taken. Free with mgpu_onnx_free. */
int mgpu_onnx_read(struct mgpu_onnx_file **out, const char *path);
void mgpu_onnx_free(struct mgpu_onnx_file *file);

/* The imported version of `domain` in a list of opsets; "" and "ai.onnx" are one. 0: none. */
int64_t mgpu_onnx_opset(size_t count, Onnx__OperatorSetIdProto *const *opsets, const char *domain);

/* The values of a tensor of this file, whichever field or external file holds them; the caller
 * frees them. MGPU_EUNSUPPORTED for strings, complex and 8-bit or smaller floats and integers
 * below 8 bits, naming the tensor. */
int mgpu_onnx_tensor_read(const struct mgpu_onnx_file *file, const Onnx__TensorProto *tensor,
                          struct mgpu_array *out);

/* The same without a copy where that can be; see mgpu_onnx_tensor_view. */
struct mgpu_onnx_held;
int mgpu_onnx_tensor_borrow(const struct mgpu_onnx_file *file, const Onnx__TensorProto *tensor,
                            struct mgpu_array *out, struct mgpu_onnx_held *held);

/* A name for a tensor (an initializer, or the value of a Constant node, by the node's output) or
 * a node (by its first output) that no other tensor, or no other node, of the file has. It is the
 * plain name, unless an inner graph or a function uses a name that also stands elsewhere; then it
 * begins with that graph and its number in the file: "if_out.then_branch#1/W",
 * "function inner#2/W". The exporter finds tensors and nodes again by it. NULL for what is not in
 * the file; owned by the file. */
const char *mgpu_onnx_key(const struct mgpu_onnx_file *file, const void *tensor_or_node);

/* The way back. NULL when there is none. */
const Onnx__TensorProto *mgpu_onnx_find_tensor(const struct mgpu_onnx_file *file, const char *key);
const Onnx__NodeProto *mgpu_onnx_find_node(const struct mgpu_onnx_file *file, const char *key);

/* Whether any graph of the file has a value of this name. */
bool mgpu_onnx_has_name(const struct mgpu_onnx_file *file, const char *name);

#endif
