/* mgpu: train an ONNX model on one device or many.
 *
 *     struct mgpu_options options = MGPU_OPTIONS;
 *     options.data = (const char *[]){"input=images.npy", "label=labels.npy", NULL};
 *     options.loss = (const char *[]){"cross_entropy", NULL};
 *     struct mgpu_trainer *t;
 *     if (mgpu_trainer_new(&t, "model.onnx", &options) < 0)
 *         fail(mgpu_error());
 *     struct mgpu_step_result r;
 *     while ((rc = mgpu_step(t, &r)) > 0)
 *         printf("step %lld loss %g\n", (long long)r.step, r.loss);
 *     mgpu_save(t, "trained.onnx");
 *     mgpu_trainer_free(t);
 *
 * Functions return 0 (or a positive answer), or a negative code with a text in mgpu_error().
 * Strings and arrays given in are borrowed during the call; what is returned by pointer belongs to
 * the trainer. One trainer is used by one thread at a time.
 */
#ifndef MGPU_H
#define MGPU_H

#include "mgpu_status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Everything that can be said of a run, in the words of the command line (mgpu-train --help). Lists
 * end with NULL; a NULL list is empty; a NULL string is not given. Start from MGPU_OPTIONS. */
struct mgpu_options {
    /* data */
    const char *const *data, *const *val;
    const char *const *scale, *const *normalize, *const *batch_axis, *const *rows;
    const char *const *state; /* INPUT=OUTPUT: what one batch gives the next takes;
                               * or a recurrent node */
    const char *sample_weight;
    bool shuffle;
    int64_t seed;
    double val_split;
    /* model */
    int64_t batch, accumulate;
    const char *const *dim;
    const char *const *reinit; /* PATTERN[=he|glorot|normal|zeros] */
    int64_t classes;           /* the last layer gets so many, and new weights; 0: as it is */
    const char *add_bias;      /* zero biases for layers of this pattern; "": all without one */
    const char *const *freeze, *const *train, *const *tie, *const *untie;
    const char *init; /* a file of weights of any kind; as in mgpu_convert_options: */
    const char *map;
    bool partial, skip_mismatch, allow_nonfinite;
    bool optimizer_state;    /* what it holds of an optimizer, too */
    const char *const *like; /* files, of a layout each, whose structure and names saved ones get */
    bool by_order; /* where names leave it open, layers go by order: init, and Keras 3 files */
    const char *batch_norm, *bn_variance;
    const char *const *bn_momentum, *const *dropout;
    /* loss and optimizer */
    const char *const *loss, *const *metric, *const *group;
    const char *optimizer, *lr_schedule;
    double clip_norm, clip_value, warmup;
    const char *precision, *loss_scale;
    bool exact, recompute;
    /* devices */
    const char *devices, *strategy;
    const char *plan;               /* plan.json */
    const char *const *place;       /* PATTERN=DEVICE */
    const char *merge, *weights_on; /* devices */
    int threads;
    int deterministic; /* logical ranks; 0: off */
    bool run_ahead;    /* see mgpu_step_begun */
    /* run */
    int64_t epochs, steps, steps_per_epoch; /* in all, also after a resume */
    int64_t initial_epoch;                  /* epochs that are taken as done */
    const char *checkpoint;                 /* a template: "w-{epoch:02d}-{val_loss:.2f}.h5" */
    const char *monitor, *mode;
    bool save_best, weights_only;
    int64_t period, keep;
    const char *resume; /* a checkpoint */
    const char *early_stop, *reduce_lr;
    const char *log_csv, *tensorboard; /* file, folder */
    bool skip_nonfinite; /* a step that is not finite changes nothing and stops nothing */
    bool gradients;      /* mgpu_gradient_read will be called: gradients stay after their update */
    bool as_exported;
    bool profile; /* mgpu_trainer_profile will be called */
    /* without training: nothing is needed but inputs */
    bool inference;       /* evaluate, predict: no gradient, no optimizer */
    bool predict;         /* mgpu_predict will be called */
    bool check_gradients; /* mgpu_check_gradients will be called, and mgpu_step not */
};

#define MGPU_OPTIONS                                                                               \
    {                                                                                              \
        .shuffle = true, .batch = 0, .accumulate = 1, .epochs = 1, .optimizer = "adam",            \
        .precision = "f32", .strategy = "auto"                                                     \
    }

struct mgpu_trainer;

/* Reads, checks and compiles: everything up to step 1. */
int mgpu_trainer_new(struct mgpu_trainer **out, const char *model,
                     const struct mgpu_options *options);
void mgpu_trainer_free(struct mgpu_trainer *trainer);

struct mgpu_step_result {
    int64_t step;  /* updates done, this one included */
    int64_t epoch; /* of this step, from 1 */
    int64_t samples;
    double loss;
    bool epoch_ends;   /* the last step of its epoch */
    bool skipped;      /* its loss or gradient was not finite: it changed nothing (skip_nonfinite;
                        * in float16, where the scale of the loss was too large) */
    double loss_scale; /* of this step in float16; else 1 */
};

/* One update. 1: done; 0: nothing left (epochs or steps are reached); < 0: an error, after which
 * the weights must not be used: some may have changed already. A loss or gradient that is not
 * finite is one, and names the node where that began. */
int mgpu_step(struct mgpu_trainer *trainer, struct mgpu_step_result *result);

/* With options->run_ahead, mgpu_step gives a GPU the next step of the epoch before it reads the
 * loss of this one, so that the GPU never waits for the host. The weights are then no longer those
 * of the step that was told: who wants them within an epoch calls this before, which is mgpu_step
 * for a step that has begun, and begins no other. 0: none has. Where the next step needs the host
 * to know how this one ends, it has not: with profile, gradients, before a larger loss_scale, and
 * with carried states in pieces, on placed ranks or before a batch of another size. */
int mgpu_step_begun(struct mgpu_trainer *trainer, struct mgpu_step_result *result);

/* Named numbers: the loss and the metrics, of the epoch so far or of an evaluation. */
struct mgpu_number {
    const char *name;
    double value;
};

/* Of the training epoch so far (reset when the next one starts): "loss", metrics. */
int mgpu_epoch_numbers(struct mgpu_trainer *trainer, const struct mgpu_number **numbers);

/* What to do when an epoch ends (epoch_ends, or the last step): validates, writes the logs, and
 * after a whole epoch does what early_stop, reduce_lr and checkpoint say. */
struct mgpu_epoch_result {
    const struct mgpu_number *numbers; /* training's, then validation's as "val_..." */
    int count;
    const char *saved;   /* the checkpoint that was written, or NULL */
    const char *removed; /* the one that options->keep let go, or NULL */
    double lr;           /* the learning rate from now on where reduce_lr lowered it, else 0 */
    bool stops;          /* early_stop ends the run: mgpu_step gives 0 */
};
int mgpu_epoch_end(struct mgpu_trainer *trainer, struct mgpu_epoch_result *result);

/* Losses and metrics on the validation data (with options.inference on the data): "loss",
 * "loss_<output>" of each when there are several, metrics. Gives their count. */
int mgpu_evaluate(struct mgpu_trainer *trainer, const struct mgpu_number **numbers);
bool mgpu_has_validation(const struct mgpu_trainer *trainer);

/* Outputs for every sample, into OUT.npz or OUT.h5. */
int mgpu_predict(struct mgpu_trainer *trainer, const char *path);

/* Compares gradients with central differences in float64 on `samples` samples: `elements` of each
 * weight. Lines for a person go to `to`; the largest difference, relative to the largest gradient,
 * to *worst. Elements at a kink of the loss are told and not counted. */
#define MGPU_GRADIENT_TOLERANCE 1e-5
int mgpu_check_gradients(struct mgpu_trainer *trainer, int64_t elements, FILE *to, double *worst);

/* Writes the weights: .onnx, .h5 and .weights.h5 (Keras), .safetensors, .npz. The file is the old
 * one or the new one, never half. */
int mgpu_save(struct mgpu_trainer *trainer, const char *path);

/* Writes everything from which options->resume goes on, as one HDF5 file: weights, optimizer state,
 * step, place in the data, and what the callbacks count. */
int mgpu_save_checkpoint(struct mgpu_trainer *trainer, const char *path);

/* For a run that stops within an epoch: sees to it that there is a full checkpoint of this step,
 * when options->checkpoint says where they go. *path: its name, or NULL. */
int mgpu_stop_checkpoint(struct mgpu_trainer *trainer, const char **path);

/* Whether that will work, as far as can be known before. */
int mgpu_check_save(struct mgpu_trainer *trainer, const char *path);

/* Whether the file is none of those that the run reads, which would be lost. */
int mgpu_check_apart(const struct mgpu_trainer *trainer, const char *path);

/* Whether a file could be written there, without touching what is there now. */
int mgpu_check_target(const char *path);

/* One weight, or (options->gradients) the gradient of the last step (the mean over the whole batch,
 * before clipping and weight decay), as `count` doubles in the layout of the file. `name` is an
 * initializer's, or what a weight that was split off is called in the saved file. Unknown names and
 * other counts are errors. */
int mgpu_weight_read(struct mgpu_trainer *trainer, const char *name, double *to, int64_t count);
int mgpu_gradient_read(struct mgpu_trainer *trainer, const char *name, double *to, int64_t count);
/* The other way, into every rank: `count` doubles, rounded to what is stored. Tied initializers
 * change together. */
int mgpu_weight_write(struct mgpu_trainer *trainer, const char *name, const double *from,
                      int64_t count);

/* Facts for messages. */
struct mgpu_facts {
    int64_t samples, val_samples, batch, steps_per_epoch, total_steps;
    int64_t step, epochs; /* done so far (a resume); all there will be */
    int ranks, threads;
    int64_t trained_elements;
    int trained, frozen, statistics;
    uint64_t memory_bytes, peak_memory_bytes; /* of our allocators */
    const char *devices;                      /* of the ranks: "cpu:0,cpu:1" */
    const char *strategy;                     /* "single", "data" */
    const char *batch_norm; /* "per rank", ...; NULL: no statistics are taken in training */
};
void mgpu_trainer_facts(const struct mgpu_trainer *trainer, struct mgpu_facts *facts);
/* What each instruction of a training step took so far, on the mean, as a trace for Perfetto or
 * chrome://tracing. */
int mgpu_trainer_profile(const struct mgpu_trainer *trainer, const char *path);
/* How the training went so far, what was trained and how, as one page for a browser; with
 * options->profile, also what the operators took. */
int mgpu_trainer_html(struct mgpu_trainer *trainer, const char *path);
/* The plan, memory and what will be saved, for --dry-run. */
int mgpu_trainer_describe(struct mgpu_trainer *trainer, FILE *to);

/* What each initializer is (--report); `json`: one JSON object on one line. */
int mgpu_report(const char *model, const struct mgpu_options *options, bool json, FILE *to);

/* ---- Files of weights (mgpu-convert) ----------------------------------------------------------
 */

/* How weights find their place in a model, and what is allowed to be missing. */
struct mgpu_convert_options {
    const char *model; /* ONNX: the graph, where a file holds only weights */
    const char *to;    /* onnx, keras-h5, keras3, safetensors, npz; NULL: by the name */
    const char *map;   /* a file of rules "theirs -> ours" */
    const char *names; /* "onnx" or "source" (the framework's, default) */
    const char *like;  /* a file of the same model, whose structure and names are followed */
    bool by_order, partial, skip_mismatch, allow_nonfinite, optimizer_state, verify;
    bool keep_wrapper; /* names as they are */
};

/* Reads weights of any kind and writes them as another. The result goes to `to` as "N of N tensors,
 * ...", or as one JSON object. Anything less than all is an error unless it is allowed. */
int mgpu_weights_convert(const char *in, const char *out,
                         const struct mgpu_convert_options *options, bool json, FILE *to);

/* What a file of weights holds, a line a tensor or as JSON. */
int mgpu_weights_list(const char *path, bool json, FILE *to);

/* Two files of weights side by side, in the names and layouts of the model, where there is one.
 * *differ: tensors that are not the same. */
int mgpu_weights_compare(const char *a, const char *b, const struct mgpu_convert_options *options,
                         bool json, FILE *to, int *differ);

/* ---- Planning (mgpu-partition) --------------------------------------------------------------- */

/* What a plan is made for, besides the model, batch, loss, optimizer, precision and devices in
 * mgpu_options. `devices` may also be ones that are not here ("8xh100-nvlink", a file). */
struct mgpu_partition_options {
    const char *const *pin; /* "PATTERN=DEVICE" */
    const char *merge, *weights_on;
    const char *memory;  /* of each device: "16GiB" */
    const char *profile; /* file of measured costs */
    bool measure;        /* times the operators here first, then runs the plans that may be chosen
                          * (into `profile`, when given) */
    /* Called while measuring: what is timed, and the share that is done; may be NULL. */
    void (*progress)(void *context, const char *what, double share);
    void *progress_context;
};

struct mgpu_partition;

/* Plans. No data are needed: without options->loss it is the mean square of every output, and
 * labels have the shape that fits. */
int mgpu_partition_new(struct mgpu_partition **out, const char *model,
                       const struct mgpu_options *options,
                       const struct mgpu_partition_options *partition);
void mgpu_partition_free(struct mgpu_partition *partition);

/* The table of `top` strategies and the placement; the plan as JSON. */
void mgpu_partition_table(const struct mgpu_partition *partition, int top, FILE *to);
int mgpu_partition_print(const struct mgpu_partition *partition, FILE *to);

/* Files: the plan, a trace for Perfetto, a page for a browser, the model with annotations. */
int mgpu_partition_save(const struct mgpu_partition *partition, const char *path);
int mgpu_partition_timeline(const struct mgpu_partition *partition, const char *path);
int mgpu_partition_html(const struct mgpu_partition *partition, const char *path);
int mgpu_partition_annotate(const struct mgpu_partition *partition, const char *path);

/* Whether mgpu-train can run the plan on this machine: 0, or MGPU_EDEVICE, MGPU_EUNSUPPORTED or
 * MGPU_EUSAGE and why not. */
int mgpu_partition_runs_here(const struct mgpu_partition *partition);

/* Runs a plan here with made-up data and prints what was predicted beside what was measured. */
int mgpu_verify(const char *model, const char *plan, const struct mgpu_options *options,
                const struct mgpu_partition_options *partition, bool json, FILE *to);

/* The tables of ONNX operators and of core operators; the devices here and those known by name. */
int mgpu_list_operators(bool json, FILE *to);
int mgpu_list_devices(bool json, FILE *to);

/* Help texts of --help loss, --help optimizer. NULL: no such topic. */
const char *mgpu_help(const char *topic);

#endif
