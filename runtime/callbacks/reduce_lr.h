/* --reduce-lr: a smaller learning rate when the monitored number no longer gets better
 * (keras.callbacks.ReduceLROnPlateau, with its options and meanings).
 *
 *     monitor=val_loss,factor=0.1,patience=10,min_delta=1e-4,mode=auto,cooldown=0,min_lr=0
 *
 * After `patience` epochs in a row that do not beat the best by more than min_delta, every learning
 * rate is multiplied by `factor`, down to min_lr; the next `cooldown` epochs do not count.
 */
#ifndef MGPU_CALLBACKS_REDUCE_LR_H
#define MGPU_CALLBACKS_REDUCE_LR_H

#include "runtime/callbacks/monitor.h"

struct mgpu_reduce_lr {
    struct mgpu_monitor monitor;
    double factor, min_delta, min_lr;
    int64_t patience, cooldown;
    int64_t wait, cooldown_counter;
};

int mgpu_reduce_lr_parse(struct mgpu_reduce_lr *out, const char *text, const struct mgpu_logs *logs,
                         struct mgpu_arena *arena);

/* An epoch has ended with learning rate `lr`: what it is from now on. */
double mgpu_reduce_lr_epoch(struct mgpu_reduce_lr *reduce, const struct mgpu_logs *logs, double lr);

int mgpu_reduce_lr_record(struct mgpu_reduce_lr *reduce, struct mgpu_record *record);

#endif
