/* The variables of the framework's model behind an ONNX graph: which layer each weight belongs to,
 * what it is there, its shape as the framework has it and how it lies in the initializer.
 *
 * Found by the names that exporters give (tf2onnx, Keras 3, PyTorch's two), and by what reads the
 * weight. An LSTM's W of two directions is two variables, its B in PyTorch is two a direction.
 */
#ifndef MGPU_EXPORTER_VARIABLES_H
#define MGPU_EXPORTER_VARIABLES_H

#include "exporter/checkpoint.h"
#include "exporter/layouts.h"
#include "importer/weights.h"

enum mgpu_family { MGPU_FAMILY_KERAS, MGPU_FAMILY_TORCH };

enum mgpu_variable_role {
    MGPU_VAR_KERNEL,
    MGPU_VAR_DEPTHWISE,
    MGPU_VAR_POINTWISE,
    MGPU_VAR_RECURRENT,
    MGPU_VAR_EMBEDDINGS,
    MGPU_VAR_ALPHA,
    MGPU_VAR_GAMMA,
    MGPU_VAR_BIAS, /* in Keras's order from here on: bias or beta, then statistics */
    MGPU_VAR_BETA,
    MGPU_VAR_RECURRENT_BIAS, /* PyTorch's second bias */
    MGPU_VAR_MEAN,
    MGPU_VAR_VARIANCE,
    MGPU_VAR_OTHER,
};

struct mgpu_variable {
    int weight, holder; /* in mgpu_weights */
    int layer;
    enum mgpu_variable_role role;
    bool computed;    /* the exporter computed it of parameters of the model: it is none itself */
    bool joined;      /* Keras: a kernel of which the exporter joined axes */
    bool turned;      /* `own` is the name of what the exporter only turned */
    bool rows;        /* dynamo: those of a parameter that the example needed */
    const char *own;  /* the exporter's name for it; "" where several layers share that */
    const char *leaf; /* its name in the layer: "kernel", "weight_ih_l0"; "" unknown */
    int rank;         /* as the framework has it */
    int64_t dims[MGPU_MAX_RANK];
    /* Several initializers may be one array of the framework, each a part of it: variables of one
     * layer, leaf and shape that differ in layout.before. */
    struct mgpu_weight_layout layout;
};

struct mgpu_variable_layer {
    const char *path; /* "model/conv2d_1", "enc/layers/0/linear1"; "" unknown */
    bool guessed;     /* the path comes from what stands around, not from the layer's own names */
    size_t proven;    /* its first characters that are (module_paths.h); Keras: all */
    const char *class_name; /* in snake case; "" unknown */
    enum mgpu_direction direction;
    int node;              /* that reads the first of its weights, by place in the graph */
    int inner;             /* in a loop: what computes with its kernel in the body; -1: unknown */
    const char *elsewhere; /* Keras: its path at another place, where the model has it twice: in a
                            * model inside; NULL: it has it once */
};

struct mgpu_variables {
    struct mgpu_arena *arena;
    const struct mgpu_onnx_model *model;
    const struct mgpu_weights *weights;
    enum mgpu_family family;
    bool renumbered; /* names are as Keras 3 exports them: no '/' in a layer's own name */
    int count;       /* by layer, in a layer in Keras's order */
    struct mgpu_variable *variable;
    int layers; /* in the order of the graph */
    struct mgpu_variable_layer *layer;
    struct mgpu_weight_flow *flow;
    const char *assumed; /* a module that only its structure tells to be attention; NULL: none */
};

void mgpu_variables_new(struct mgpu_variables **out, const struct mgpu_onnx_model *model,
                        const struct mgpu_weights *weights, enum mgpu_family family);
void mgpu_variables_free(struct mgpu_variables *variables); /* NULL is fine */

/* The length of what the paths of all layers begin with, the model's own name with its '/'; 0: they
 * do not. */
size_t mgpu_variables_root(const struct mgpu_variables *v);

/* The path of a layer without it. */
const char *mgpu_variable_layer_name(const struct mgpu_variables *v, int layer, size_t root);

/* What the initializer that holds it is, or will be, called. */
const char *mgpu_variable_initializer(const struct mgpu_variables *v, int variable);

/* "model/conv2d_1/kernel", "layers.0.weight": for messages, and for files where names are free. */
const char *mgpu_variable_name(const struct mgpu_variables *v, int variable);

/* PyTorch: neither the weight nor what reads it tells the name that the model has for it. */
bool mgpu_variable_is_nameless(const struct mgpu_variables *v, int variable);

/* Whether a file's shape is the variable's. A kernel may come with axes of one element left out,
 * or (attention) with an axis cut in two. */
bool mgpu_variable_fits(const struct mgpu_variables *v, int variable, int rank,
                        const int64_t *dims);

/* Whether a variable called `leaf` in its layer, in either framework, is this one. */
bool mgpu_variable_is(const struct mgpu_variables *v, int variable, const char *leaf);

/* The variable that is the next part of the same array of the framework; -1: there is none. And
 * whether it is a part that is not the first, or the same array once more. */
int mgpu_variable_next_part(const struct mgpu_variables *v, int variable);
bool mgpu_variable_is_later_part(const struct mgpu_variables *v, int variable);

/* Whether it is a constant of the graph that only its name makes one of the framework's. */
bool mgpu_variable_is_constant(const struct mgpu_variables *v, int variable);

/* Whether an exporter folded a batch normalisation into it: then it is not the framework's. */
bool mgpu_variable_is_folded(const struct mgpu_variables *v, int variable);

/* Whether it is a bias of a recurrent layer of which all is zero in the graph: the exporter may
 * have made it for one that has none. */
bool mgpu_variable_is_zero_bias(const struct mgpu_variables *v, int variable);

/* Whether what layer `a` computes goes into layer `b`: then Keras lists a before b. */
bool mgpu_variable_layer_before(const struct mgpu_variables *v, int a, int b);

#endif
