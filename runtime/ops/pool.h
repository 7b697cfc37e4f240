/* Pooling over 1 to 3 spatial axes of [N,C,S...].
 *
 *     max_pool(x) -> y, int32 argument     argument: which element of the window (row-major, 0 ..
 *                                          product(kernel)-1) was the first largest
 *     average_pool(x) -> y
 *     max_pool_grad(dy, argument) -> dx, average_pool_grad(dy) -> dx
 *
 * The output's size is `out` (ceil_mode and auto_pad are resolved by the importer); windows may
 * reach past the padding, and what is there is never counted. Padding counts in an average only
 * when count_include_pad (see row 5 of the ONNX notes: a window is clipped to the padded input).
 */
#ifndef MGPU_OPS_POOL_H
#define MGPU_OPS_POOL_H

#include "runtime/ops/conv.h"
#include "runtime/ops/op.h"

struct mgpu_pool_attrs {
    int64_t spatial;
    int64_t kernel[MGPU_MAX_SPATIAL], stride[MGPU_MAX_SPATIAL], dilation[MGPU_MAX_SPATIAL];
    int64_t before[MGPU_MAX_SPATIAL], after[MGPU_MAX_SPATIAL];
    int64_t in[MGPU_MAX_SPATIAL], out[MGPU_MAX_SPATIAL]; /* spatial sizes of x and y */
    bool count_include_pad;
};

extern const struct mgpu_op mgpu_op_max_pool, mgpu_op_average_pool, mgpu_op_max_pool_grad,
    mgpu_op_average_pool_grad;

#endif
