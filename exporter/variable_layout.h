/* Shape and layout of a variable, by what reads it. Between the files of variables.h. */
#ifndef MGPU_EXPORTER_VARIABLE_LAYOUT_H
#define MGPU_EXPORTER_VARIABLE_LAYOUT_H

#include "exporter/variables.h"

struct mgpu_variable_reader {
    const struct mgpu_onnx_node *node;
    int input;
    const struct mgpu_onnx_node *owner; /* of a bias: the product that it is added to */
    bool recurrent, product;
    bool moved;    /* the graph itself transposes or reshapes it first */
    bool own_name; /* PyTorch: has its name still, so it is as PyTorch has it */
    bool flat;     /* TensorFlow made a one-dimensional kernel two-dimensional */
};

/* Fill leaf, dims and layout of `x`, whose role is known. */
void mgpu_variable_plain(struct mgpu_variable *x, enum mgpu_family family,
                         const struct mgpu_variable_reader *reader, const struct mgpu_array *array,
                         const char *op);
/* Direction `d`; PyTorch: bias number `half`. */
void mgpu_variable_recurrent(struct mgpu_variable *x, enum mgpu_family family,
                             const struct mgpu_variable_reader *reader,
                             const struct mgpu_array *array, int d, int half);

#endif
