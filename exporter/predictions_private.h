/* The two kinds of predictions files behind predictions.h. */
#ifndef MGPU_EXPORTER_PREDICTIONS_PRIVATE_H
#define MGPU_EXPORTER_PREDICTIONS_PRIVATE_H

#include "exporter/predictions.h"

struct mgpu_predictions {
    const struct mgpu_predictions_kind *kind;
    char *path;
    struct mgpu_prediction_output *outputs;
    _Atomic int64_t *written; /* samples, by output; the ranks write at the same time */
    int count;
    void *state; /* the kind's own */
};

struct mgpu_predictions_kind {
    const char *extension;
    int (*open)(struct mgpu_predictions *p); /* cleans up after its own errors */
    /* by several threads at once, of different samples */
    int (*write)(struct mgpu_predictions *p, int output, int64_t first, int64_t count,
                 const void *data);
    int (*close)(struct mgpu_predictions *p, int rc);
};

extern const struct mgpu_predictions_kind mgpu_predictions_npz, mgpu_predictions_h5,
    mgpu_predictions_hdf5;

#endif
