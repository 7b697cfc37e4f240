/* Indexed movement. Indices are int32 or int64, may be negative (from the end), and are checked
 * when they are used: one out of range stops the step with its value. */
#ifndef MGPU_OPS_GATHER_H
#define MGPU_OPS_GATHER_H

#include "runtime/ops/op.h"

/* gather(x, indices) -> y: ONNX Gather: y = x with axis `axis` replaced by indices' shape. */
/* gather_grad(dy, indices) -> dx of shape dims: repeated indices add up, in index order. */
/* gather_elements(x, indices) -> y: ONNX GatherElements along `axis`. */
/* gather_nd(x, indices) -> y: ONNX GatherND with `batch_dims`. */
struct mgpu_gather_attrs {
    int64_t axis; /* gather_nd: batch_dims */
};

struct mgpu_gather_grad_attrs {
    int64_t axis;
    int64_t rank;
    const struct mgpu_dim *dims; /* of x; in the graph's arena */
};

/* scatter_elements(data, indices, updates) -> y, scatter_nd(data, indices, updates) -> y: ONNX's,
 * with reduction. Their gradients for none and add; mul, max and min too. */
enum mgpu_scatter_reduction {
    MGPU_SCATTER_NONE,
    MGPU_SCATTER_ADD,
    MGPU_SCATTER_MUL,
    MGPU_SCATTER_MAX,
    MGPU_SCATTER_MIN,
};
struct mgpu_scatter_attrs {
    int64_t axis; /* scatter_elements */
    int reduction;
};

extern const struct mgpu_op mgpu_op_gather, mgpu_op_gather_grad, mgpu_op_gather_elements,
    mgpu_op_gather_nd, mgpu_op_scatter_elements, mgpu_op_scatter_nd;

#endif
