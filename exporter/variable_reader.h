/* What reads a weight, and what that makes of it. Between the files of variables.h. */
#ifndef MGPU_EXPORTER_VARIABLE_READER_H
#define MGPU_EXPORTER_VARIABLE_READER_H

#include "exporter/variables.h"

struct mgpu_variable_reader {
    const struct mgpu_onnx_node *node;
    int input;
    const struct mgpu_onnx_node *owner; /* of a bias: the product that it is added to */
    bool recurrent, product;
    bool moved;  /* the graph itself transposes or reshapes it first */
    bool shared; /* several layers have its initializer, or had it before they were trained */
    const char *own_name; /* that the exporter gave it; "" where it is shared */
    bool as_named;        /* PyTorch: has its name still, so it is as PyTorch has it */
    bool folded;          /* own name found in what dynamo says it was made of */
    bool computed;        /* the exporter computed it of parameters: it is none itself */
    bool rows;            /* as in mgpu_variable */
    bool grouped;     /* TensorFlow: of a group normalisation, which has the channels in groups */
    bool scaled;      /* TensorFlow: scales or shifts what had its mean taken: a normalisation's */
    bool behind_mean; /* TensorFlow: of a normalisation that was exported as another one */
    const struct mgpu_onnx_node *inner; /* in a loop's body, what computes with it; else node */
    bool cell;     /* TensorFlow: by its name, of the cell of a recurrent layer */
    int part;      /* TensorFlow: a row of a bias that has several; -1: none */
    bool flat;     /* TensorFlow made a one-dimensional kernel two-dimensional */
    size_t proven; /* PyTorch: of its layer's path, and whether the rest is not known */
    bool unknown;
    bool depthwise; /* TensorFlow calls the convolution so */
    bool einsum;    /* and the product so */
};

void mgpu_variable_reader_of(struct mgpu_variable_reader *reader, const struct mgpu_variables *v,
                             const struct mgpu_holder *holder);

/* What the names in its layer tell: flat, depthwise and einsum. */
void mgpu_variable_reader_in(struct mgpu_variable_reader *reader, const struct mgpu_variables *v,
                             const char *path);

/* tf_keras's exporter makes nameless products of an attention's einsums, which the biases name
 * where it has some: sets `owners` (by "#" and the node's number) to "model/attention/query", ...
 * of those that have no name there. */
void mgpu_variable_name_attention(const struct mgpu_variables *v, struct mgpu_names *owners);

/* The first node that computes with what `use` reads; *moved: the graph transposes or reshapes it
 * before. */
struct mgpu_use mgpu_variable_first_use(const struct mgpu_variables *v, struct mgpu_use use,
                                        bool *moved);

/* `op`: the operation in the weight's name (scopes.h). */
enum mgpu_variable_role mgpu_variable_role_of(const struct mgpu_variable_reader *reader,
                                              const struct mgpu_array *array, const char *op);

/* The class of its layer in snake case, or "". */
const char *mgpu_variable_class_of(const struct mgpu_variable_reader *reader,
                                   const struct mgpu_array *array, enum mgpu_variable_role role);

#endif
