/* Training form to inference form: BatchNormalization and Dropout nodes that a training export
 * left active. */
#ifndef MGPU_EXPORTER_ONNX_INFERENCE_H
#define MGPU_EXPORTER_ONNX_INFERENCE_H

#include "importer/onnx.pb-c.h"
#include "runtime/base/memory.h"

/* Changes nodes of `model` in place, in inner graphs and functions too, by each body's opset:
 *   BatchNormalization: training_mode 1 becomes 0 (opset 14), is_test 0 becomes 1 (below 7), and
 *   only the first output stays. A node whose statistics something reads stays as it is (a note).
 *   Dropout: the training_mode input goes (opset 12), unless it is constantly false or the user
 *   feeds it; is_test 0 becomes 1 (below 7).
 * Names and added attributes come from `arena`. Says in one note how many nodes changed. */
void mgpu_onnx_inference_form(Onnx__ModelProto *model, struct mgpu_arena *arena);

#endif
