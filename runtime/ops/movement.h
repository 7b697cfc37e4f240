/* Views and data movement: reshape, transpose, expand, slice, pad, concat. */
#ifndef MGPU_OPS_MOVEMENT_H
#define MGPU_OPS_MOVEMENT_H

#include "runtime/ops/op.h"

/* reshape(x) -> y: same elements, same order, another shape. A view. */
struct mgpu_shape_attrs {
    int64_t rank;
    const struct mgpu_dim *dims; /* `rank` of them, in the graph's arena */
};

/* bit_cast(x) -> y: the same bits as another type of the same size. A view. */
struct mgpu_bit_cast_attrs {
    int64_t type; /* enum mgpu_dtype */
};

/* transpose(x) -> y: y's axis i is x's axis perm[i]. */
struct mgpu_transpose_attrs {
    int64_t perm[MGPU_MAX_RANK];
};

/* expand(x) -> y: numpy broadcasting to shape `dims` (struct mgpu_shape_attrs). */

/* slice(x) -> y: y[i] = x[start + i * step] per axis, i < size; step may be negative. */
struct mgpu_slice_attrs {
    int64_t start[MGPU_MAX_RANK], step[MGPU_MAX_RANK];
    const struct mgpu_dim *size; /* x's rank of them, in the graph's arena */
};

/* slice_grad(dy) -> dx of shape `dims`: zeros with dy written at the slice's places. */
struct mgpu_slice_grad_attrs {
    int64_t start[MGPU_MAX_RANK], step[MGPU_MAX_RANK];
    int64_t rank;
    const struct mgpu_dim *dims; /* of dx */
};

/* pad(x [, value rank 0]) -> y: before/after may be negative (cuts); the value is for `constant`
 * and defaults to 0. */
enum mgpu_pad_mode { MGPU_PAD_CONSTANT, MGPU_PAD_REFLECT, MGPU_PAD_EDGE, MGPU_PAD_WRAP };
struct mgpu_pad_attrs {
    int mode;
    int64_t before[MGPU_MAX_RANK], after[MGPU_MAX_RANK];
};
/* pad_grad(dy) -> dx: the transposed map; `dims` is x's shape. */
struct mgpu_pad_grad_attrs {
    int mode;
    int64_t before[MGPU_MAX_RANK], after[MGPU_MAX_RANK];
    int64_t rank;
    const struct mgpu_dim *dims;
};

/* concat(x0, x1, ...) -> y along `axis`. Variadic. */
struct mgpu_concat_attrs {
    int64_t axis;
};

extern const struct mgpu_op mgpu_op_reshape, mgpu_op_bit_cast, mgpu_op_transpose, mgpu_op_expand,
    mgpu_op_slice, mgpu_op_slice_grad, mgpu_op_pad, mgpu_op_pad_grad, mgpu_op_concat;

#endif
