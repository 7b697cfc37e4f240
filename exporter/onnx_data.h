/* The external data files of a model that is written. */
#ifndef MGPU_EXPORTER_ONNX_DATA_H
#define MGPU_EXPORTER_ONNX_DATA_H

#include "exporter/onnx_copy.h"
#include "importer/onnx_file.h"

#include <stdbool.h>

/* An external tensor with new contents, of its own type. */
struct mgpu_onnx_data_patch {
    Onnx__TensorProto *tensor; /* in the copy */
    const void *bytes;
    uint64_t size;
};

struct mgpu_onnx_data;

/* Writes new data files as far as needed, under temporary names, and changes the locations in
 * `copy`. *out is for mgpu_onnx_data_finish, also after an error. */
int mgpu_onnx_data_write(struct mgpu_onnx_data **out, const struct mgpu_onnx_file *file,
                         const struct mgpu_onnx_copy *copy, const char *path,
                         const struct mgpu_onnx_data_patch *patches, size_t count);

/* Gives the files their names. */
int mgpu_onnx_data_commit(struct mgpu_onnx_data *data);

/* Removes what is not committed, or, when `replaced`, the data files of the old model that nobody
 * uses any more. Frees `data`, which may be NULL. */
void mgpu_onnx_data_finish(struct mgpu_onnx_data *data, bool replaced);

#endif
