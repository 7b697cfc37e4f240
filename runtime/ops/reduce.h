/* reduce: sum, mean, max, min, product over axes (enum mgpu_reduce_kind in build.h).
 * arg_reduce: index of the largest or smallest element along one axis. */
#ifndef MGPU_OPS_REDUCE_H
#define MGPU_OPS_REDUCE_H

#include "runtime/ops/build.h"
#include "runtime/ops/op.h"

/* reduce(x) -> y. Max and min share their gradient evenly among equal elements (as PyTorch's amax);
 * over no element: sum 0, product 1, mean NaN (0 for integers), max and min the type's smallest and
 * largest. */
struct mgpu_reduce_attrs {
    int kind;
    int64_t axes;         /* bit mask */
    bool keep;            /* keep reduced axes as size 1 */
    enum mgpu_dtype type; /* of y where it is not x's; 0: x's. What compilation makes of a sum of
                           * half types, never the gradient */
};

/* arg_reduce(x) -> int64 y. No gradient. */
struct mgpu_arg_reduce_attrs {
    int64_t axis;
    bool keep, min, last; /* last: the last of equal elements (ONNX select_last_index) */
};

extern const struct mgpu_op mgpu_op_reduce, mgpu_op_arg_reduce;

/* Builder of arg_reduce (build.h has those of reduce). */
struct mgpu_value *mgpu_arg_reduce(struct mgpu_graph *g, struct mgpu_value *a, int axis, bool keep,
                                   bool min, bool last);

#endif
