/* Names of layers out of the names that exporters give to tensors and nodes. */
#ifndef MGPU_EXPORTER_SCOPES_H
#define MGPU_EXPORTER_SCOPES_H

#include "importer/model.h"

/* A path of modules and the operation in the last of them. */
struct mgpu_scope {
    const char *path; /* "model/dense_1"; "" unknown */
    const char *op;   /* "MatMul", "ReadVariableOp_1"; PyTorch: the parameter's own name */
    bool cell;        /* TensorFlow: of the cell of a recurrent layer */
    bool call;        /* TensorFlow: of a function that the layer calls, as tf.keras's recurrent
                       * layers do with a mask */
    int part;         /* TensorFlow: which of the operation's outputs was computed; -1: none */
};

/* Of TensorFlow: "model/dense_1/MatMul/ReadVariableOp:0" is MatMul of model/dense_1. Keras 3 puts
 * "_1" behind each part (`renumbered`), which is taken off. */
struct mgpu_scope mgpu_scope_tensorflow(struct mgpu_arena *arena, const char *name,
                                        bool renumbered);

/* Whether the names of this model's initializers are Keras 3's. */
bool mgpu_scope_renumbered(struct mgpu_arena *arena, const struct mgpu_onnx_model *model);

/* Of others: "enc.layers.0.linear1.weight" and "fc/weight" are weight of enc/layers/0/linear1 and
 * of fc. Names that an exporter made up ("onnx::MatMul_12", "val_3") say nothing. */
struct mgpu_scope mgpu_scope_dotted(struct mgpu_arena *arena, const char *name);

/* "/enc/enc.0/linear1", a node's layer, as a path: "enc/0/linear1". */
const char *mgpu_scope_of_layer(struct mgpu_arena *arena, const char *layer);

/* Of "['fc.weight', 'val_1']", what dynamo made a tensor of: the one name that it took from the
 * model; "" where there are several; NULL: none. */
const char *mgpu_scope_source(struct mgpu_arena *arena, const char *folded_from);

/* Whether PyTorch's exporters did not make the name up, as "onnx::MatMul_12" and "val_3", but took
 * it from the model. */
bool mgpu_scope_is_own(const char *name);

#endif
