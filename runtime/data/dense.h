/* Data sets that lie in memory as one row-major array: what npy, npz and IDX files become. */
#ifndef MGPU_DATA_DENSE_H
#define MGPU_DATA_DENSE_H

#include "runtime/data/dataset.h"
#include "runtime/data/mapped.h"

/* The `state` of such a dataset. */
struct mgpu_dense {
    struct mgpu_mapped file;
    void *owned; /* from mgpu_alloc, or NULL where `data` points into the file */
    const void *data;
};

/* A new dense state on `dataset`, its file mapped. */
int mgpu_dense_map(struct mgpu_dense **out, struct mgpu_dataset *dataset);

/* How elements lie in a file. */
struct mgpu_layout {
    bool big_endian;
    bool columns_first; /* Fortran's order */
};

/* Makes `from` (`size` bytes, anywhere in memory) the data: points to it where it already is as we
 * want it, else rearranges a copy. Extra bytes are ignored; too few are MGPU_EINVALID with both
 * sizes. `from` must live as long as the dataset. */
int mgpu_dense_set(struct mgpu_dataset *dataset, const uint8_t *from, uint64_t size,
                   struct mgpu_layout layout);

/* Members for mgpu_dataset_kind. */
int mgpu_dense_read(struct mgpu_dataset *dataset, int axis, const int64_t *rows,
                    const struct mgpu_rows *to);
void mgpu_dense_close(struct mgpu_dataset *dataset);

#endif
