/* What the architecture in a Keras file (JSON, read as text and never run) says of its weights. */
#ifndef MGPU_EXPORTER_ARCHITECTURE_H
#define MGPU_EXPORTER_ARCHITECTURE_H

#include "exporter/checkpoint.h"

/* Gives the tensors of a Keras 3 store the names of their layers, which the store may have only as
 * numbers of a class, then class names and, by these, the variables' names. With an architecture
 * they come in the order of the model's layers, if it tells that of all (c->ordered). Other kinds
 * of files stay as they are. */
int mgpu_architecture_name(struct mgpu_checkpoint *c);

/* A weight of a `.keras` whose place among the others its architecture does not tell; "": none. */
const char *mgpu_architecture_unplaced(const struct mgpu_checkpoint *c);

/* The weights of an ordered store in the order of the legacy layout, where a layer of the model
 * itself (`top`) is one group. `order` has room for all tensors; gives their number. */
int mgpu_architecture_legacy_order(int *order, const struct mgpu_checkpoint *c);

/* The mean that the layer Normalization at the end of `path` (or the only one) was given when it
 * was made: such a layer has no variables. false: none, or not of `count` numbers. */
bool mgpu_architecture_mean(double *out, int64_t count, const struct mgpu_checkpoint *c,
                            const char *path);

/* The one model that `multi_gpu_model` wrapped, or NULL: lambdas that cut batches, and one model
 * inside. */
const char *mgpu_architecture_wrapped(const struct mgpu_checkpoint *c);

/* Whether the model called `model` in it has a layer of this name. */
bool mgpu_architecture_has_layer(const struct mgpu_checkpoint *c, const char *model,
                                 const char *layer);

#endif
