/* What the kernels of gather.c share: reading indices, checking them, finding the places they stand
 * for, and combining elements there. */
#ifndef MGPU_REF_INDEXED_H
#define MGPU_REF_INDEXED_H

#include "runtime/backend.h"
#include "runtime/base/status.h"
#include "runtime/ops/gather.h"
#include "runtime/ref/walk.h"

/* Index `i` of an int32 or int64 tensor, counted from the end of `size` when negative. */
static inline int64_t mgpu_index(const struct mgpu_tensor *indices, int64_t i, int64_t size)
{
    int64_t v = indices->type == MGPU_INT32 ? ((const int32_t *)indices->data)[i]
                                            : ((const int64_t *)indices->data)[i];
    return v < 0 ? v + size : v;
}

/* All of input 1's elements must be in [-size, size); the error says which one is not, and where.
 */
int mgpu_check_indices(const struct mgpu_launch *launch, int64_t size, int64_t axis);

/* A walk over the places of `indices`, whose operand 0 is the offset in `x` without the share of
 * `axis`; stride[0][rank] is the stride of `axis` itself. */
struct mgpu_walk mgpu_walk_elements(const struct mgpu_tensor *x, const struct mgpu_tensor *indices,
                                    int64_t axis);

/* Index tuples into x: `count` of them, each naming a run of `slice` elements. */
struct mgpu_tuples {
    const struct mgpu_tensor *x, *indices;
    int64_t batch_dims, width; /* axes of x that a tuple follows, that it indexes */
    int64_t count, slice;
    int64_t per_batch, batch_stride; /* tuples, elements of x, of one place in the batch axes */
    int64_t stride[MGPU_MAX_RANK];   /* of x */
};

struct mgpu_tuples mgpu_tuples_of(const struct mgpu_tensor *x, const struct mgpu_tensor *indices,
                                  int64_t batch_dims);
int mgpu_check_tuples(const struct mgpu_launch *launch, const struct mgpu_tuples *tuples);
int64_t mgpu_tuple_offset(const struct mgpu_tuples *tuples, int64_t i); /* in elements of x */

/* to[at + i] = to[at + i] (reduction) from[from_at + i], `count` times. Both of one type, except
 * that halves may be added to floats. NaN wins in max and min. */
void mgpu_combine(enum mgpu_scatter_reduction reduction, const struct mgpu_tensor *to, int64_t at,
                  const struct mgpu_tensor *from, int64_t from_at, int64_t count);

#endif
