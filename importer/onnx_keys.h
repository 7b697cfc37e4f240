/* Unique names for the tensors and nodes of a file: see mgpu_onnx_key in onnx_file.h. */
#ifndef MGPU_IMPORTER_ONNX_KEYS_H
#define MGPU_IMPORTER_ONNX_KEYS_H

#include "importer/onnx.pb-c.h"

#include <stdbool.h>

struct mgpu_onnx_keys;

/* For a checked model, which must outlive the keys. */
struct mgpu_onnx_keys *mgpu_onnx_keys_new(const Onnx__ModelProto *model);
void mgpu_onnx_keys_free(struct mgpu_onnx_keys *keys);

const char *mgpu_onnx_keys_of(const struct mgpu_onnx_keys *keys, const void *message);
const void *mgpu_onnx_keys_find(const struct mgpu_onnx_keys *keys, const char *key, bool node);

/* Whether any graph or function has a value of this name. */
bool mgpu_onnx_keys_has_name(const struct mgpu_onnx_keys *keys, const char *name);

#endif
