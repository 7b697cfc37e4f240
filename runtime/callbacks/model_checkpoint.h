/* --checkpoint: files at the ends of epochs (keras.callbacks.ModelCheckpoint, with its options and
 * meanings), and how many of them stay (--keep). Writes through a sink, so that it knows no file
 * format. */
#ifndef MGPU_CALLBACKS_MODEL_CHECKPOINT_H
#define MGPU_CALLBACKS_MODEL_CHECKPOINT_H

#include "runtime/callbacks/monitor.h"

struct mgpu_model_checkpoint_options {
    const char *path; /* template.h */
    const char *monitor, *mode;
    bool save_best, weights_only;
    int64_t period; /* every so many epochs; 0: each */
    int64_t keep;   /* the last so many files; 0: all */
};

/* Writes weights, or everything from which the run goes on. */
struct mgpu_save_sink {
    int (*save)(void *context, const char *path, bool weights_only);
    void *context;
};

struct mgpu_model_checkpoint {
    struct mgpu_model_checkpoint_options options;
    struct mgpu_monitor monitor;
    struct mgpu_arena *arena; /* of names */
    int64_t epochs_since;     /* the last one that counted */
    int64_t kept;
    const char **file; /* oldest first; more than --keep allows while one is written */
};

/* Everything that may be wrong with the options is found here: MGPU_EUSAGE. */
int mgpu_model_checkpoint_init(struct mgpu_model_checkpoint *out,
                               const struct mgpu_model_checkpoint_options *options,
                               const struct mgpu_logs *logs, struct mgpu_arena *arena);

/* Epoch `epoch` (from 0) has ended. *saved is the file that was written, *removed the one that went
 * for it, or NULL; names belong to the arena. */
int mgpu_model_checkpoint_epoch(struct mgpu_model_checkpoint *checkpoint, int64_t epoch,
                                const struct mgpu_logs *logs, const struct mgpu_save_sink *sink,
                                const char **saved, const char **removed);

/* Where a run that ends between two epochs' ends goes: always a full checkpoint, and never over one
 * that is the best, or holds weights only. */
const char *mgpu_model_checkpoint_step(const struct mgpu_model_checkpoint *checkpoint,
                                       int64_t step);

int mgpu_model_checkpoint_record(struct mgpu_model_checkpoint *checkpoint,
                                 struct mgpu_record *record);

#endif
