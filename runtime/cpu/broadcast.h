/* Reading an input as if it had the output's shape (numpy's rules), a run of elements at a time, in
 * the order in which the output lies: where that is in blocks of channels, the input is too, or it
 * is plain and has one element for each place. */
#ifndef MGPU_CPU_BROADCAST_H
#define MGPU_CPU_BROADCAST_H

#include "runtime/backend.h"

/* The output's axes as the input sees them, merged where it makes no difference. The stride along
 * the last axis is 0 or 1. */
struct mgpu_broadcast {
    int rank;
    int64_t dims[MGPU_MAX_RANK], strides[MGPU_MAX_RANK];
};

struct mgpu_broadcast mgpu_broadcast_make(const struct mgpu_value *input,
                                          const struct mgpu_value *output);

/* Elements [flat, flat + n) of the output's space as floats (bool: 0 or 1). */
void mgpu_broadcast_load(const struct mgpu_broadcast *b, const struct mgpu_tensor *x, int64_t flat,
                         int64_t n, float *to);

#endif
