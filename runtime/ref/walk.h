/* Walking over all places of a shape in row-major order, with the offset of each place in up to
 * four operands that have strides of their own (0: broadcast). */
#ifndef MGPU_REF_WALK_H
#define MGPU_REF_WALK_H

#include "runtime/base/array.h"

enum { MGPU_WALK_OPERANDS = 4, MGPU_WALK_RANK = MGPU_MAX_RANK + 2 };

struct mgpu_walk {
    int rank, operands;
    int64_t dims[MGPU_WALK_RANK];
    int64_t stride[MGPU_WALK_OPERANDS][MGPU_WALK_RANK];
    int64_t index[MGPU_WALK_RANK]; /* the place now */
    int64_t at[MGPU_WALK_OPERANDS];
};

/* Goes to place number `flat`, which is below the product of dims (0 when there is no place). */
static inline void mgpu_walk_seek(struct mgpu_walk *w, int64_t flat)
{
    for (int k = 0; k < w->operands; k++)
        w->at[k] = 0;
    for (int i = w->rank - 1; i >= 0; i--) {
        int64_t size = w->dims[i] ? w->dims[i] : 1;
        w->index[i] = flat % size;
        flat /= size;
        for (int k = 0; k < w->operands; k++)
            w->at[k] += w->index[i] * w->stride[k][i];
    }
}

/* Goes to the next place; after the last comes the first. */
static inline void mgpu_walk_next(struct mgpu_walk *w)
{
    for (int i = w->rank - 1; i >= 0; i--) {
        bool carry = ++w->index[i] == w->dims[i];
        for (int k = 0; k < w->operands; k++)
            w->at[k] += w->stride[k][i] * (carry ? 1 - w->dims[i] : 1);
        if (!carry)
            return;
        w->index[i] = 0;
    }
}

/* Places in the shape. */
static inline int64_t mgpu_walk_count(const struct mgpu_walk *w)
{
    int64_t count = 1;
    for (int i = 0; i < w->rank; i++)
        count *= w->dims[i];
    return count;
}

#endif
