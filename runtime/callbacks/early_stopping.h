/* --early-stop: ends a run when the monitored number no longer gets better (keras.callbacks.
 * EarlyStopping, with its options and meanings).
 *
 *     monitor=val_loss,patience=0,min_delta=0,mode=auto,baseline=B,start_from_epoch=0,
 *     restore_best_weights=false
 *
 * An epoch that beats the best so far by more than min_delta (and beats the baseline, if any)
 * starts the count again; after `patience` others in a row, never after the first epoch, the run
 * ends. With restore_best_weights it then has the weights of its best epoch, also where it ends by
 * itself with an epoch; the first epoch that counts is the best until another one is.
 */
#ifndef MGPU_CALLBACKS_EARLY_STOPPING_H
#define MGPU_CALLBACKS_EARLY_STOPPING_H

#include "runtime/callbacks/monitor.h"

struct mgpu_early_stopping {
    struct mgpu_monitor monitor;
    double min_delta, baseline; /* NaN: no baseline */
    int64_t patience, start_from_epoch;
    int64_t wait, best_epoch; /* from 0 */
    int64_t stopped;          /* 1: it ended the run */
    bool restores;            /* the best weights are wanted again at the end */
    bool best_now;            /* the epoch that has ended is the best */
    int64_t kept;             /* 1: its owner has the weights of best_epoch */
};

int mgpu_early_stopping_parse(struct mgpu_early_stopping *out, const char *text,
                              const struct mgpu_logs *logs, struct mgpu_arena *arena);

/* Epoch `epoch` (from 0) has ended. True: the run is to stop. */
bool mgpu_early_stopping_epoch(struct mgpu_early_stopping *stop, int64_t epoch,
                               const struct mgpu_logs *logs);

/* Whether it had ended the run, and would with today's patience too: for a run that was resumed. */
bool mgpu_early_stopping_stopped(const struct mgpu_early_stopping *stop);

int mgpu_early_stopping_record(struct mgpu_early_stopping *stop, struct mgpu_record *record);

#endif
