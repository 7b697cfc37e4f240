/* Between the readers of Keras's files. */
#ifndef MGPU_EXPORTER_CHECKPOINT_H5_H
#define MGPU_EXPORTER_CHECKPOINT_H5_H

#include "exporter/checkpoint.h"

/* Appends what an HDF5 file, on disk or in memory (copied), holds. */
int mgpu_checkpoint_h5_file(struct mgpu_checkpoint *c, const char *path);
int mgpu_checkpoint_h5_memory(struct mgpu_checkpoint *c, const void *bytes, size_t size);

#endif
