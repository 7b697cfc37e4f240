/* A trained model as an ONNX file: the file that was read, with new weights in it.
 *
 * Everything that is not named here stays as it came: names, order, opset, metadata, functions,
 * fields that mgpu does not know, the type of each tensor and the field that holds it.
 */
#ifndef MGPU_EXPORTER_ONNX_WRITE_H
#define MGPU_EXPORTER_ONNX_WRITE_H

#include "importer/onnx_file.h"

#include <stdbool.h>

struct mgpu_onnx_copy;

/* New contents of a tensor. */
struct mgpu_onnx_patch {
    const char *tensor;             /* mgpu_onnx_key of an initializer or a Constant's value, or of
                                     * a Constant node with value_floats */
    const struct mgpu_array *array; /* of the tensor's shape; converted to the tensor's type */
};

/* A weight that the exporter had merged with another and that leaves as an initializer of its own,
 * at the end of the main graph's. */
struct mgpu_onnx_addition {
    const char *name; /* new: not the name of any value in the file (mgpu_onnx_has_name) */
    const char *like; /* mgpu_onnx_key of the tensor that it was one with: gives the type */
    const struct mgpu_array *array;
};

/* Another name for one input of a node: of an addition, or of anything else that it may read. */
struct mgpu_onnx_rewire {
    const char *node; /* mgpu_onnx_key of the node: mostly its first output */
    int input;        /* which */
    const char *name;
};

struct mgpu_onnx_write_options {
    bool as_exported; /* leave training-form nodes (onnx_inference.h) and device annotations */
    const struct mgpu_onnx_addition *additions;
    int addition_count;
    const struct mgpu_onnx_rewire *rewires;
    int rewire_count;
    /* Anything else: called last, with the copy that will be written. NULL: nothing. */
    int (*edit)(void *context, struct mgpu_onnx_copy *copy);
    void *context;
};

/* Writes `file` with the patches to `path`, which may be the file's own; `options` may be NULL.
 * Old file or new file, never a mix (atomic_file.h).
 *
 * External tensors stay external, each at its offset, in a new data file beside the new model; all
 * other bytes of that file are copied. It keeps its name in another folder, where that is free;
 * otherwise it is called after the new model ("trained.onnx.data"), and never overwrites data that
 * the model now at `path`, or `file`, refers to. Data files so called that the replaced model was
 * the last to use are removed. A patched tensor that shares bytes with another moves to the end.
 *
 * MGPU_EINVALID: an unknown key, another shape, a name that exists or that the node cannot see;
 * MGPU_EIO: names the file and the reason. */
int mgpu_onnx_write(const struct mgpu_onnx_file *file, const char *path,
                    const struct mgpu_onnx_patch *patches, int count,
                    const struct mgpu_onnx_write_options *options);

#endif
