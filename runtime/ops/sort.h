/* Order along one axis: cumulative sums, the k largest. */
#ifndef MGPU_OPS_SORT_H
#define MGPU_OPS_SORT_H

#include "runtime/ops/op.h"

/* cumsum(x) -> y: ONNX CumSum along `axis`. */
struct mgpu_cumsum_attrs {
    int64_t axis;
    bool exclusive, reverse;
};

/* topk(x) -> values, int64 indices: the k largest (or smallest), sorted, ties by lower index. k
 * equal to the size sorts. */
struct mgpu_topk_attrs {
    int64_t axis, k;
    bool smallest;
};

extern const struct mgpu_op mgpu_op_cumsum, mgpu_op_topk;

#endif
