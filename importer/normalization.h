/* Keras's layer Normalization in a graph of tf2onnx: (x - mean) / deviation, of constants that no
 * step of training changes. What divides is made of the variance, or its reciprocal multiplies. */
#ifndef MGPU_IMPORTER_NORMALIZATION_H
#define MGPU_IMPORTER_NORMALIZATION_H

#include "importer/weight_flow.h"

/* The node that divides what this one takes the mean off, or NULL: this one does not. The constants
 * are input 1 of both. The mean is an initializer or, since tf2onnx makes inputs of the graph of
 * what a layer holds beside its variables, an input that there are no data for. */
const struct mgpu_onnx_node *mgpu_normalization(const struct mgpu_onnx_model *model,
                                                const struct mgpu_weight_flow *flow,
                                                const struct mgpu_onnx_node *node);

/* The number of the input of the graph that is called so; -1: none. */
int mgpu_onnx_find_input(const struct mgpu_onnx_model *model, const char *name);

#endif
