/* Sizes of the graph inputs: which axes are the batch, and what the other symbols are. */
#ifndef MGPU_IMPORTER_LOWER_BIND_H
#define MGPU_IMPORTER_LOWER_BIND_H

#include "importer/lower.h"

struct mgpu_binder;

/* Reads the declared inputs, --dim and the data's sizes; sets g->batch and g->symbols. Errors: a
 * symbol with two values, a --dim that names no symbol or contradicts the batch. The binder lives
 * in g's arena. */
int mgpu_binder_new(struct mgpu_binder **out, struct mgpu_graph *g,
                    const struct mgpu_onnx_model *model, const struct mgpu_lower_options *options);

/* The number that stands for the batch in the declared inputs; 0: none does. */
int64_t mgpu_binder_example(const struct mgpu_binder *binder);

/* Rank (returned) and sizes of one declared input. A symbol without a value is an error that says
 * how to give one. */
int mgpu_binder_dims(const struct mgpu_binder *binder, const struct mgpu_onnx_value *input,
                     struct mgpu_dim dims[MGPU_MAX_RANK]);

#endif
