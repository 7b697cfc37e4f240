/* Which initializer is which weight.
 *
 * Exporters merge equal tensors, copy tied ones, fold, transpose and rename (weight_split.c says
 * how, exporter by exporter). This page decides, before anything is lowered, what each stored
 * tensor is and which of its uses are one trainable parameter. Every decision that is not plain is
 * printed by the caller (`notes`) and can be overruled.
 */
#ifndef MGPU_IMPORTER_WEIGHTS_H
#define MGPU_IMPORTER_WEIGHTS_H

#include "importer/model.h"

enum mgpu_weight_role {
    MGPU_ROLE_TRAINED,
    MGPU_ROLE_FROZEN,
    MGPU_ROLE_STATISTIC,
    MGPU_ROLE_SHAPE,    /* integers or floats that only say sizes, axes, scales, bounds */
    MGPU_ROLE_CONSTANT, /* used as data, not trained: masks, class weights, scalars */
    MGPU_ROLE_UNUSED,
};
const char *mgpu_weight_role_name(enum mgpu_weight_role role); /* "trained" ... */

/* How a tied copy is stored, against the parameter's own layout. */
enum mgpu_copy { MGPU_COPY_SAME, MGPU_COPY_TRANSPOSED };

/* How PyTorch exports what it would fold. */
#define MGPU_WEIGHT_UNFOLDED                                                                       \
    " (torch.onnx.export with optimize=False, or with dynamo=False and "                           \
    "do_constant_folding=False, leaves the model's own)"

struct mgpu_use { /* input `input` of node `node` (index over the whole model) */
    int node, input;
};

/* An initializer that holds a parameter: several when they are tied. */
struct mgpu_holder {
    int initializer;
    enum mgpu_copy copy;
    int uses;
    struct mgpu_use *use; /* the uses of this initializer that are this parameter */
    bool added; /* split off: has no initializer of its own in the file; leaves as a new one, called
                 * the parameter's name, to which exactly these uses are rewired */
    const char *alias; /* what the framework calls it, where the file says so beside the
                        * initializer's name; else "" */
};

/* One parameter: trained, frozen or a statistic. Its contents are holder[0]'s. Behind all of these
 * stand the named constants, which files of weights have, too: PyTorch's buffers, and scalars that
 * may be learned. The graph computes with them as with any constant. */
struct mgpu_weight {
    const char *name; /* the initializer's; for one split off, a made unique name that holds it */
    enum mgpu_weight_role role; /* TRAINED, FROZEN, STATISTIC or CONSTANT */
    int holders;
    struct mgpu_holder *holder;
    /* Keras: the recurrent half of an LSTM's B belongs to no variable: elements from this one on,
     * in each direction, stay as they are; -1: all are trained. B is [D, 8H] (rnn.h). */
    int64_t frozen_from;
};

struct mgpu_weights {
    struct mgpu_arena *arena;
    int count;
    struct mgpu_weight *weight;
    /* By model->initializer: the role as --report tells it (a merged one that is the scale of one
     * layer and the variance of another is TRAINED), a note ("merged: split into 3") or "", and how
     * many uses there are. */
    enum mgpu_weight_role *role;
    const char **note;
    int *uses;
    const struct mgpu_use **use;           /* seen through Identities */
    const struct mgpu_weight_place *place; /* mgpu_weights_of_use's */
    int places;
    int bares; /* nodes of layers without a bias, by index */
    int *bare;
    bool *lost;   /* by bare: the exporter may have removed its bias; else it never had one */
    bool *folded; /* by initializer: a batch normalisation was folded into it */
    bool *zero;   /* by initializer: all of it is zero in the file */
    /* By weight: contents that take the place of the file's, in holder[0]'s type and layout; of
     * type MGPU_UNDEFINED where there are none. NULL: there are none at all. */
    struct mgpu_array *given;
    int notes; /* lines for the user: what was split, tied, left frozen and why */
    const char **line;
};

struct mgpu_weights_options {
    const char *const *train; /* glob patterns; when there are any, only what matches is trained */
    int train_count;
    const char *const *freeze;
    int freeze_count;
    const char *const (*tie)[2];
    int tie_count;
    const char *const *untie;
    int untie_count;
};

/* A pattern that matches nothing is an error. Nothing to train is not one here (--report). */
int mgpu_weights_identify(struct mgpu_weights **out, struct mgpu_onnx_model *model,
                          const struct mgpu_weights_options *options);
void mgpu_weights_free(struct mgpu_weights *weights);

/* Whether PyTorch's exporters took the name from the model, as far as it tells: "fc.weight", not
 * "zeros_2" or "onnx::MatMul_13". */
bool mgpu_onnx_is_parameter_name(const char *name);

/* Whether it is one of the words (NULL ends them), or one with a number: "zeros_2". */
bool mgpu_onnx_is_result_name(const char *name, const char *const *words);

/* The one parameter of those names that dynamo says it computed a tensor of, where all others are
 * among the words, with or without a number; NULL: there is none such. */
const char *mgpu_onnx_moved_from(struct mgpu_arena *arena, const char *folded_from,
                                 const char *const *words);

/* The name of a layer's node, or its first output where it has none. */
const char *mgpu_onnx_layer_name(const struct mgpu_onnx_node *node);

bool mgpu_weights_given(const struct mgpu_weights *weights, int weight);

/* The contents of a weight: given, or the file's. */
const struct mgpu_array *mgpu_weight_contents(const struct mgpu_weights *weights,
                                              const struct mgpu_onnx_model *model, int weight);

/* What named constants were given becomes what the model computes with. */
void mgpu_weights_put_constants(const struct mgpu_weights *weights, struct mgpu_onnx_model *model);

/* The weight that this use is, and its holder (may be NULL); -1 when the use is a constant.
 * An input that names the output of an Identity of an initializer is a use too (TorchScript keeps
 * merged parameters so), and the Identity's own input, unless it leads to several weights. Ask for
 * every input, before looking its name up. */
int mgpu_weights_of_use(const struct mgpu_weights *weights, int node, int input, int *holder);

#endif
