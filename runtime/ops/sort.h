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
 * equal to the size sorts. NaN counts as larger than all numbers (NumPy, PyTorch). */
struct mgpu_topk_attrs {
    int64_t axis, k;
    bool smallest;
};

extern const struct mgpu_op mgpu_op_cumsum, mgpu_op_topk;

/* Builder of cumsum (build.h); topk has two outputs: mgpu_graph_node. */
struct mgpu_value *mgpu_cumsum(struct mgpu_graph *g, struct mgpu_value *x, int axis, bool exclusive,
                               bool reverse);

#endif
