/* The number that a callback watches, and which direction is better. */
#ifndef MGPU_CALLBACKS_MONITOR_H
#define MGPU_CALLBACKS_MONITOR_H

#include "runtime/base/record.h"
#include "runtime/callbacks/logs.h"

struct mgpu_monitor {
    int index; /* in the logs */
    const char *name;
    bool max; /* larger is better */
    double best;
};

/* `name` NULL: val_loss, or loss where nothing is validated; then one line says that `option`
 * (NULL: nobody) watches that. `mode`: "min", "max", or "auto" (also NULL), which takes "max" for
 * accuracy, top-k and AUC. Errors are MGPU_EUSAGE and name what is known. */
int mgpu_monitor_init(struct mgpu_monitor *out, const char *name, const char *mode,
                      const struct mgpu_logs *logs, const char *option);

double mgpu_monitor_value(const struct mgpu_monitor *monitor, const struct mgpu_logs *logs);

/* Whether `value` beats `reference` by more than `min_delta`; what is not a number never does. */
bool mgpu_monitor_beats(const struct mgpu_monitor *monitor, double value, double reference,
                        double min_delta);

/* Saves or restores the best value, as "PREFIX.best". *same: whether the record is of the same
 * monitor; where it is not, one line says that the callback begins afresh. */
int mgpu_monitor_record(struct mgpu_monitor *monitor, const char *prefix, bool *same,
                        struct mgpu_record *record);

#endif
