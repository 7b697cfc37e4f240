/* Indexed movement. Indices are int32 or int64, may be negative (from the end), and are checked
 * when they are used: one out of range stops the step with its value. */
#ifndef MGPU_OPS_GATHER_H
#define MGPU_OPS_GATHER_H

#include "runtime/ops/op.h"

/* gather(x, indices) -> y: ONNX Gather: y = x with axis `axis` replaced by indices' shape. */
/* gather_grad(dy, indices) -> dx of shape dims: repeated indices add up, in index order. */
/* gather_elements(x, indices) -> y: ONNX GatherElements along `axis`. */
/* gather_nd(x, indices) -> y: ONNX GatherND with `batch_dims`. */
/* gather_elements_grad(dy, indices) -> dx, gather_nd_grad(dy, indices) -> dx: as gather_grad. */
struct mgpu_gather_attrs {
    int64_t axis; /* gather_nd: batch_dims */
};

struct mgpu_gather_grad_attrs {
    int64_t axis; /* gather_nd_grad: batch_dims */
    int64_t rank;
    const struct mgpu_dim *dims; /* of x; in the graph's arena */
};

/* scatter_elements(data, indices, updates) -> y, scatter_nd(data, indices, updates) -> y: ONNX's,
 * with reduction. Without one (`none`) an index that occurs twice leaves the last update, and the
 * gradient takes every update for the last: ONNX forbids repeated indices there. Max and min share
 * their gradient among all that are equal to the result. */
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
    mgpu_op_gather_elements_grad, mgpu_op_gather_nd, mgpu_op_gather_nd_grad,
    mgpu_op_scatter_elements, mgpu_op_scatter_nd;

/* Builders (build.h): NULL with the error text set when the operands do not fit. */
struct mgpu_value *mgpu_gather(struct mgpu_graph *g, struct mgpu_value *x,
                               struct mgpu_value *indices, int axis);
struct mgpu_value *mgpu_gather_elements(struct mgpu_graph *g, struct mgpu_value *x,
                                        struct mgpu_value *indices, int axis);
struct mgpu_value *mgpu_gather_nd(struct mgpu_graph *g, struct mgpu_value *x,
                                  struct mgpu_value *indices, int batch_dims);
/* Transposes of the three (`op` says which) onto a tensor of the shape of `like`. */
struct mgpu_value *mgpu_gather_back(struct mgpu_graph *g, const struct mgpu_op *op,
                                    struct mgpu_value *dy, struct mgpu_value *indices, int axis,
                                    const struct mgpu_value *like);
struct mgpu_value *mgpu_scatter_elements(struct mgpu_graph *g, struct mgpu_value *data,
                                         struct mgpu_value *indices, struct mgpu_value *updates,
                                         int axis, enum mgpu_scatter_reduction reduction);
struct mgpu_value *mgpu_scatter_nd(struct mgpu_graph *g, struct mgpu_value *data,
                                   struct mgpu_value *indices, struct mgpu_value *updates,
                                   enum mgpu_scatter_reduction reduction);

#endif
