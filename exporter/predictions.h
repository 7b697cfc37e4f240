/* Predictions on disk: one array an output, filled batch by batch, in a file that takes its name
 * when all is written.
 *
 *     struct mgpu_predictions *p;
 *     MGPU_TRY(mgpu_predictions_open(&p, "out.npz", outputs, n));
 *     for each batch:
 *         rc = mgpu_predictions_write(p, output, first, count, data);
 *     return mgpu_predictions_close(p, rc);
 *
 * OUT.npz: a zip archive of stored npy files called OUTPUT.npy. OUT.h5: data sets called as the
 * outputs; a '/' in a name makes groups, as HDF5 and h5py do.
 */
#ifndef MGPU_EXPORTER_PREDICTIONS_H
#define MGPU_EXPORTER_PREDICTIONS_H

#include "runtime/base/array.h"

struct mgpu_prediction_output {
    const char *name;
    enum mgpu_dtype type; /* any but bfloat16 */
    int rank;             /* 0, for npz alone: a single number, with dims[0] = 1 and axis 0 */
    int64_t dims[MGPU_MAX_RANK]; /* of all samples together */
    int axis;                    /* that counts the samples */
};

struct mgpu_predictions;

/* The kind is told by the extension: .npz, .h5 or .hdf5; another is MGPU_EUSAGE. Disk space is
 * reserved now. The outputs are copied, their names borrowed. */
int mgpu_predictions_open(struct mgpu_predictions **out, const char *path,
                          const struct mgpu_prediction_output *outputs, int count);

/* The same for npz, whatever the file is called. */
int mgpu_predictions_open_npz(struct mgpu_predictions **out, const char *path,
                              const struct mgpu_prediction_output *outputs, int count);

/* `count` samples, the first being number `first`: the output's shape with `count` on its axis.
 * Several threads may write at once. */
int mgpu_predictions_write(struct mgpu_predictions *predictions, int output, int64_t first,
                           int64_t count, const void *data);

/* With rc 0: checks that as many samples were written as announced, and the file takes its name.
 * Else nothing is left. Returns rc or the error. Frees. */
int mgpu_predictions_close(struct mgpu_predictions *predictions, int rc);

#endif
