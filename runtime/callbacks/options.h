/* "monitor=val_loss,patience=3": the options of a callback. */
#ifndef MGPU_CALLBACKS_OPTIONS_H
#define MGPU_CALLBACKS_OPTIONS_H

#include "runtime/callbacks/monitor.h"

/* One option: exactly one of the pointers is set. */
struct mgpu_callback_option {
    const char *name;
    const char **text;
    double *real;
    int64_t *integer;
    bool *flag;
    double low, high;
};

/* Reads `text` into the options' places; a value may hold commas where it is a name in the logs.
 * Errors are MGPU_EUSAGE: an unknown option with the nearest that is known. */
int mgpu_callback_options(const char *text, const struct mgpu_callback_option *options, int count,
                          const struct mgpu_logs *logs, struct mgpu_arena *arena);

#endif
