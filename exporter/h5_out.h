/* An HDF5 file being written, atomically. Expects the lock of runtime/data/h5.h to be held. */
#ifndef MGPU_EXPORTER_H5_OUT_H
#define MGPU_EXPORTER_H5_OUT_H

#include "exporter/atomic_file.h"
#include "runtime/data/h5.h"

struct mgpu_h5_out {
    struct mgpu_atomic_file file;
    hid_t id;
    char *path;
};

/* A new file that will take about `bytes`: when the disk has no room for them, that is the error,
 * before HDF5 is asked. */
int mgpu_h5_out_open(struct mgpu_h5_out *out, const char *path, uint64_t bytes);

/* A contiguous data set at `name` ("a/b" makes the group a), little-endian. *out: H5Dclose. */
int mgpu_h5_out_create(hid_t *out, struct mgpu_h5_out *file, const char *name, enum mgpu_dtype type,
                       int rank, const int64_t *dims);

/* A data set with contents; `true_name`, where given, goes into its attribute `name`. bfloat16 gets
 * Keras's attribute dtype. */
int mgpu_h5_out_array(struct mgpu_h5_out *file, const char *name, const struct mgpu_array *array,
                      const char *true_name);

/* A list of strings as a fixed-length attribute, cut into NAME0, NAME1, ... when it passes HDF5's
 * limit, the way Keras does. */
int mgpu_h5_out_strings(hid_t object, const char *name, const char *const *strings, int count);

/* One string as a scalar attribute. */
int mgpu_h5_out_string(hid_t object, const char *name, const char *string);

/* Closes; with rc 0 the file takes its name, else nothing is left. Returns the first error. */
int mgpu_h5_out_close(struct mgpu_h5_out *out, int rc);

#endif
