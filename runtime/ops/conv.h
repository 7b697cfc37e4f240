/* Convolution over 1 to 3 spatial axes, channels first, and its two gradients.
 *
 *     conv(x [N,C,S...], w [O,C/group,K...], bias [O]?) -> y [N,O,T...]
 *     conv_grad_input(dy [N,O,T...], w) -> dx [N,C,S...]          (also ONNX's ConvTranspose)
 *     conv_grad_weight(x, dy) -> dw [O,C/group,K...], dbias [O]?
 *
 * T = (S + before + after - dilation*(K-1) - 1) / stride + 1. Pads may not be negative.
 * With `relu`, which compilation sets, never a gradient (runtime/compile/finish.c), what is below 0
 * in y then becomes 0. ConvTranspose(X, W [C,O/group,K...]) is conv_grad_input(dy = X, w = W): its
 * `input_dims` are the output's spatial sizes; a bias is added by a pointwise node.
 */
#ifndef MGPU_OPS_CONV_H
#define MGPU_OPS_CONV_H

#include "runtime/ops/op.h"

enum { MGPU_MAX_SPATIAL = 3 };

struct mgpu_conv_attrs {
    int64_t spatial; /* 1, 2 or 3 */
    int64_t stride[MGPU_MAX_SPATIAL], dilation[MGPU_MAX_SPATIAL];
    int64_t before[MGPU_MAX_SPATIAL], after[MGPU_MAX_SPATIAL];
    int64_t group;
    int64_t
        size[MGPU_MAX_SPATIAL]; /* conv: unused (0). conv_grad_input: S of x. conv_grad_weight: K */
    bool relu;
};

extern const struct mgpu_op mgpu_op_conv, mgpu_op_conv_grad_input, mgpu_op_conv_grad_weight;

#endif
