/* softmax(x) -> y along one axis, or its logarithm; softmax_grad(y, dy) -> dx. */
#ifndef MGPU_OPS_SOFTMAX_H
#define MGPU_OPS_SOFTMAX_H

#include "runtime/ops/op.h"

struct mgpu_softmax_attrs {
    int64_t axis;
    bool log;
};

extern const struct mgpu_op mgpu_op_softmax, mgpu_op_softmax_grad;

#endif
