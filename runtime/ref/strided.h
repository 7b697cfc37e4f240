/* Copying between two strided views of one shape: what transpose, slice, expand, concat and pad
 * are. Contiguous runs go by memcpy, transposed planes tile by tile, large copies in parallel. */
#ifndef MGPU_REF_STRIDED_H
#define MGPU_REF_STRIDED_H

#include "runtime/base/array.h"

struct mgpu_strided {
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    int64_t from_stride[MGPU_MAX_RANK], to_stride[MGPU_MAX_RANK]; /* in elements */
    size_t size;                                                  /* bytes of an element: 1 2 4 8 */
    const void *from; /* the element at place 0, 0, ... */
    void *to;         /* must not overlap `from` */
};

void mgpu_strided_copy(const struct mgpu_strided *copy);

#endif
