/* A file of weights, of any kind: what it holds, read only when asked for.
 *
 *     struct mgpu_checkpoint *c;
 *     MGPU_TRY(mgpu_checkpoint_open(&c, "weights.h5"));
 *     for (int i = 0; i < c->count; i++)
 *         MGPU_TRY(mgpu_checkpoint_load(c, i, &array));
 *     mgpu_checkpoint_close(c);
 *
 * The kind is told by the content, never by the name. Opening reads names, types and shapes only,
 * so that a size that somebody made up costs nothing; no code in a file is ever run, and no other
 * file is opened but the shards that a `.weights.json` names beside it.
 */
#ifndef MGPU_EXPORTER_CHECKPOINT_H
#define MGPU_EXPORTER_CHECKPOINT_H

#include "runtime/base/array.h"
#include "runtime/base/memory.h"

enum mgpu_checkpoint_kind {
    MGPU_CHECKPOINT_KERAS_WEIGHTS, /* legacy HDF5: layer_names, weight_names */
    MGPU_CHECKPOINT_KERAS_MODEL,   /* the same below model_weights, with model_config */
    MGPU_CHECKPOINT_KERAS_STORE,   /* Keras 3: layers/dense/vars/0 */
    MGPU_CHECKPOINT_KERAS_ARCHIVE, /* .keras: a zip of config.json and such a store */
    MGPU_CHECKPOINT_SAFETENSORS,
    MGPU_CHECKPOINT_NPZ,
    MGPU_CHECKPOINT_ONNX,
};
/* "Keras weights (legacy HDF5)", ... */
const char *mgpu_checkpoint_kind_name(enum mgpu_checkpoint_kind kind);

enum mgpu_direction {
    MGPU_WAY_ONE,
    MGPU_WAY_FORWARD,
    MGPU_WAY_BACKWARD
}; /* of a recurrent layer */

struct mgpu_checkpoint_tensor {
    /* As the file has it: "conv1/kernel:0", "/layers/dense/vars/0"; without what a wrapper put
     * around it, so that only `place` tells where the contents are. */
    const char *name;
    /* Names of modules from the outside in, and the variable's own: "model_1/conv1" and "kernel",
     * "enc/layers/0" and "weight". Empty where the file has only numbers. */
    const char *layer, *leaf;
    const char *group;      /* what stands together in the file */
    const char *class_name; /* of the layer, in snake case ("conv2d"), or "" */
    const char *top;   /* the layer of the model itself that it is in, where an architecture says */
    const char *order; /* its place among all weights, to be compared; NULL: unknown */
    bool by_attribute; /* `layer` has attributes of a class of one's own, not the layers' names */
    bool frozen;       /* the architecture says that Keras does not train it */
    enum mgpu_direction direction; /* by the names */
    int index;                     /* place among its layer's */
    bool weight;                   /* else: optimizer state, metrics, random seeds */
    const char *slot;              /* of the weight `slot_of`, as slots.h says, or NULL */
    int slot_of;
    enum mgpu_dtype type;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    const void *place; /* for the reader of the kind */
};

struct mgpu_checkpoint {
    struct mgpu_arena *arena;
    char *path;
    enum mgpu_checkpoint_kind kind;
    int count, weights; /* tensors; those that are weights */
    struct mgpu_checkpoint_tensor *tensor;
    bool run;              /* of a run of ours: names are those of the model's initializers */
    bool ordered;          /* tensors come in the order of the model's layers */
    int lambdas;           /* layers called lambda, lambda_1, ... */
    const char *config;    /* the architecture as JSON, or NULL */
    const char *training;  /* the training configuration as JSON, of a run --optimizer's text */
    bool scheduled;        /* its optimizer's learning rate follows a schedule */
    double rate_scale;     /* what a run has made of its learning rate */
    const char *unwrapped; /* "wrapper model_1 removed", ...; NULL: nothing was */
    const char *lost;      /* of a run: an optimizer's array that a damaged file has no more */
    int updates;           /* the tensor that counts the optimizer's updates; -1: none */
    bool renumbered;       /* the wrapper may have put "_1" behind each layer's name */
    void *state;
    int (*load)(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                struct mgpu_array *to); /* an array of its type and shape */
    void (*close)(struct mgpu_checkpoint *c);
};

/* MGPU_EINVALID where it is none of the kinds, or damaged. With `unwrap`, what parallel wrappers
 * put around the names is taken off (wrappers.h). */
int mgpu_checkpoint_open(struct mgpu_checkpoint **out, const char *path, bool unwrap);
void mgpu_checkpoint_close(struct mgpu_checkpoint *checkpoint); /* NULL is fine */

/* The contents, in the file's type; mgpu_array_free. */
int mgpu_checkpoint_load(const struct mgpu_checkpoint *checkpoint, int tensor,
                         struct mgpu_array *out);

/* What Keras's legacy layout calls a weight of a store: "conv1/kernel:0". */
const char *mgpu_checkpoint_legacy_name(struct mgpu_arena *arena,
                                        const struct mgpu_checkpoint_tensor *tensor);

/* ---- For the readers of the kinds ---- */

/* Appends one that is zero but for its name (copied). Pointers to others go stale. */
struct mgpu_checkpoint_tensor *mgpu_checkpoint_add(struct mgpu_checkpoint *c, const char *name);

/* MGPU_EINVALID where two have one name. */
int mgpu_checkpoint_check_names(const struct mgpu_checkpoint *c);

/* What no number of a model depends on: a count of batches, in PyTorch's normalisations, of steps
 * or averages, beside all modules; the vector that Keras's SpectralNormalization goes on from. */
bool mgpu_checkpoint_is_counter(const struct mgpu_checkpoint_tensor *tensor);

/* Whether the tensors are Keras 3\'s: in groups that only its classes and their order name. */
bool mgpu_checkpoint_is_store(const struct mgpu_checkpoint *checkpoint);

/* Fills layer, leaf and direction from a path whose last part is the variable, cut at '/' or, where
 * there is none, at '.'. Takes off ":0" and the cell of a recurrent layer. */
void mgpu_checkpoint_name(struct mgpu_checkpoint *c, struct mgpu_checkpoint_tensor *t,
                          const char *path);

/* The readers. Their errors name the file. */
int mgpu_checkpoint_read_h5(struct mgpu_checkpoint *c);      /* an HDF5 file */
int mgpu_checkpoint_read_archive(struct mgpu_checkpoint *c); /* a zip: .keras or .npz */
int mgpu_checkpoint_read_shards(struct mgpu_checkpoint *c);  /* .weights.json, .index.json */
int mgpu_checkpoint_read_safetensors(struct mgpu_checkpoint *c);
/* Appends a shard of either kind. */
int mgpu_checkpoint_read_shard(struct mgpu_checkpoint *c, const char *path);
int mgpu_checkpoint_safetensors_file(struct mgpu_checkpoint *c, const char *path);
int mgpu_checkpoint_read_onnx(struct mgpu_checkpoint *c);
int mgpu_checkpoint_read_pickle(struct mgpu_checkpoint *c); /* refuses */

#endif
