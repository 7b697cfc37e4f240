/* What is known of an epoch when it ends, under Keras's names: "loss", "accuracy", "val_loss" ...,
 * "learning_rate". The names are the same in every epoch of a run. */
#ifndef MGPU_CALLBACKS_LOGS_H
#define MGPU_CALLBACKS_LOGS_H

struct mgpu_logs {
    int count;
    const char **name;
    double *value;
};

#endif
