/* Keras's layer Normalization in a graph of tf2onnx: (x - mean) / deviation, or, inverted, mean +
 * x * deviation, of constants that no step of training changes. The deviation is made of the
 * variance; of what divides the reciprocal may multiply. */
#ifndef MGPU_IMPORTER_NORMALIZATION_H
#define MGPU_IMPORTER_NORMALIZATION_H

#include "importer/weight_flow.h"

struct mgpu_normalization {
    const struct mgpu_onnx_node *shift, *scale; /* by the mean; by the deviation */
    int mean, deviation;                        /* their inputs that are these */
    bool inverted;
};

/* Whether this node shifts by a mean. That is an initializer or, since tf2onnx makes inputs of the
 * graph of what a layer holds beside its variables, an input that there are no data for. */
bool mgpu_normalization(struct mgpu_normalization *out, const struct mgpu_onnx_model *model,
                        const struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node);

/* Whether the input of the node is mean or deviation of one. */
bool mgpu_normalization_has(const struct mgpu_onnx_model *model,
                            const struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node,
                            int input);

/* The number of the input of the graph that is called so; -1: none. */
int mgpu_onnx_find_input(const struct mgpu_onnx_model *model, const char *name);

#endif
