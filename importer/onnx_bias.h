/* Biases that an exporter left out, put back into a file in memory. */
#ifndef MGPU_IMPORTER_ONNX_BIAS_H
#define MGPU_IMPORTER_ONNX_BIAS_H

#include "importer/onnx_file.h"

/* Gives a layer of the main graph (Conv, ConvTranspose, Gemm: a third input; MatMul: an Add behind
 * it) a bias of zeros, as an initializer called `name`, of the element type of the layer's weight
 * and `size` elements; one of that name that was added before is used again. The file has then to
 * be made a model again; what is written holds it. */
int mgpu_onnx_add_bias(struct mgpu_onnx_file *file, const Onnx__NodeProto *node, const char *name,
                       int64_t size);

#endif
