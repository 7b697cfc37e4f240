/* Whether a model is well formed: what onnx_file.h promises, but for the bytes (onnx_scan.h). */
#ifndef MGPU_IMPORTER_ONNX_CHECK_H
#define MGPU_IMPORTER_ONNX_CHECK_H

#include "importer/onnx.pb-c.h"

/* `folder` is where external data must lie. The error names the tensor or node. */
int mgpu_onnx_check(const Onnx__ModelProto *model, const char *folder);

#endif
