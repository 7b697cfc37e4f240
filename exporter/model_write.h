/* A model's weights, whoever has them, into files of every kind. */
#ifndef MGPU_EXPORTER_MODEL_WRITE_H
#define MGPU_EXPORTER_MODEL_WRITE_H

#include "exporter/checkpoint.h"
#include "exporter/named_array.h"
#include "exporter/onnx_write.h"
#include "importer/weights.h"

/* An optimizer's: arrays "WEIGHT:SLOT" (slots.h) in the layouts of the weights. */
struct mgpu_model_state {
    struct mgpu_array_list list;
    int64_t updates;
    double rate;    /* of learning; NAN: unknown */
    bool scheduled; /* it follows a schedule */
};

/* Where the weights are. */
struct mgpu_model_source {
    const struct mgpu_onnx_model *model;
    const struct mgpu_weights *weights;
    /* A holder's contents, in its initializer's layout (mgpu_array_free); whether they may differ
     * from the file's. */
    int (*contents)(void *context, int weight, int holder, struct mgpu_array *out);
    bool (*changed)(void *context, int weight);
    void *context;
    const struct mgpu_model_state *state; /* to be written, too; NULL: none */
};

enum mgpu_target {
    MGPU_TARGET_ONNX,
    MGPU_TARGET_KERAS_H5,    /* legacy HDF5 */
    MGPU_TARGET_KERAS_STORE, /* Keras 3: .weights.h5 */
    MGPU_TARGET_SAFETENSORS,
    MGPU_TARGET_NPZ,
};
/* By `to` ("onnx", "keras-h5", "keras3", "safetensors", "npz") or, where that is NULL, by the end
 * of the path. MGPU_EUSAGE lists what is known. */
int mgpu_target_of(enum mgpu_target *out, const char *path, const char *to);

struct mgpu_model_write_options {
    bool as_exported; /* ONNX: leave training-form nodes and device annotations as they are */
    bool onnx_names;  /* initializers' names and layouts, not the framework's */
    bool by_order;    /* take the graph's order for the order of Keras's layers, where that is not
                       * certain: but not of two that look alike */
    bool told;        /* the notes on names and order: they are not said again */
    const char *const *like; /* files of the same model, NULL at the end: names, order and
                              * structure are those of the first of the same layout */
};

/* Writes, atomically. *count: tensors written. MGPU_EINVALID, before anything is written, where
 * Keras's order or classes of layers cannot be known from the graph: the text says what to give. */
int mgpu_model_write(const struct mgpu_model_source *source, const char *path,
                     enum mgpu_target target, const struct mgpu_model_write_options *options,
                     int *count);

/* All of that but the writing, before training: which of the weights it will change, counts. */
int mgpu_model_write_check(const struct mgpu_model_source *source, const char *path,
                           enum mgpu_target target, const struct mgpu_model_write_options *options);

/* Arrays that are not a model's; `target` is none of ONNX and Keras 3. */
int mgpu_arrays_write(const char *path, enum mgpu_target target,
                      const struct mgpu_named_array *arrays, int count);

/* MGPU_EUNSUPPORTED where that kind of file cannot hold the array. */
int mgpu_target_check(enum mgpu_target target, const struct mgpu_named_array *array);

/* The contents that weights have of themselves: for mgpu_model_source. `context` is the source. */
int mgpu_model_own_contents(void *context, int weight, int holder, struct mgpu_array *out);
bool mgpu_model_own_changed(void *context, int weight);

#endif
