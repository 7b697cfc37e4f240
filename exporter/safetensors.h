/* safetensors: the length of a JSON header, the header, the tensors' bytes one after another.
 * Format: huggingface.co/docs/safetensors, "Format". Reading: checkpoint.h. */
#ifndef MGPU_EXPORTER_SAFETENSORS_H
#define MGPU_EXPORTER_SAFETENSORS_H

#include "exporter/named_array.h"

/* Atomic: on an error the old file is as it was. MGPU_EINVALID for a name given twice or one that
 * JSON cannot hold. */
int mgpu_safetensors_write(const char *path, const struct mgpu_named_array *arrays, int count);

#endif
