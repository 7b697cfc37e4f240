/* Pieces of tensors as doubles: what the row-wise kernels of `ref` compute in, whatever the type.
 */
#ifndef MGPU_REF_ROWS_H
#define MGPU_REF_ROWS_H

#include "runtime/backend.h"

/* How many elements a kernel takes at a time where a row may be of any length. */
enum { MGPU_TILE = 256 };

/* Elements offset, offset + stride, ... of `t`, `count` of them, to and from doubles. */
void mgpu_row_load(double *to, const struct mgpu_tensor *t, int64_t offset, int64_t stride,
                   int64_t count);
void mgpu_row_store(const struct mgpu_tensor *t, int64_t offset, int64_t stride, int64_t count,
                    const double *from);

/* An axis of a tensor: the tensor seen as [outer, size, inner]. A lane is what runs along it. */
struct mgpu_lanes {
    int64_t outer, size, inner;
};
struct mgpu_lanes mgpu_lanes_of(const struct mgpu_tensor *t, int axis);

/* The offset of lane `i` of outer * inner; its stride is `inner`. */
int64_t mgpu_lane_offset(const struct mgpu_lanes *lanes, int64_t i);

#endif
