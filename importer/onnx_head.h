/* A new last layer: another number of classes for a model in memory. */
#ifndef MGPU_IMPORTER_ONNX_HEAD_H
#define MGPU_IMPORTER_ONNX_HEAD_H

#include "importer/onnx_file.h"

struct mgpu_onnx_head {
    const char *layer;                   /* the node's name, or its output */
    const char *weight_name, *bias_name; /* initializers; bias_name NULL: there is none */
    struct mgpu_array weight, bias;      /* zeros in the file, to be filled; not to be freed */
    int64_t before;                      /* classes that it had */
    int64_t inputs;                      /* numbers that one class is made of */
};

/* Gives the layer that makes the graph's output `output` so many classes: the Gemm, MatMul or Conv
 * (a bias may be added behind it) before it, with nothing in between but functions of each element,
 * softmax, pooling and moves. Weight and bias get new shapes (a tensor that another layer uses too
 * stays, and the head gets one of its own), and so do the shapes that the file declares. Refused
 * with a reason where the layer, or the place of its classes, cannot be told. The file has then to
 * be made a model again; what is written holds the new head. */
int mgpu_onnx_new_head(struct mgpu_onnx_file *file, const char *output, int64_t classes,
                       struct mgpu_onnx_head *head);

#endif
