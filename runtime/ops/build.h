/* Building graphs: one call a core operator, for lowerings, gradients, losses and rewrites.
 *
 * Every function appends to `g` (with g->origin) and returns the new value, or NULL with the error
 * text set; NULL as an operand gives NULL, so that a formula can be written in one line and checked
 * once:
 *
 *     y = mgpu_mul(g, x, mgpu_unary(g, MGPU_X_SIGMOID, x));
 *     if (!y) return mgpu_build_error();
 *
 * What costs nothing is not appended: a reshape to the same shape, a transpose by the identity, a
 * cast to the same type, a broadcast to the same shape, a sum over no axis.
 */
#ifndef MGPU_OPS_BUILD_H
#define MGPU_OPS_BUILD_H

#include "runtime/ops/expr.h"
#include "runtime/ops/op.h"

/* The code of the error that made the last NULL (this thread). */
int mgpu_build_error(void);

/* Sets the error text and code, returns NULL: for builders in family files. */
struct mgpu_value *mgpu_build_fail(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* One node with one wanted output. */
struct mgpu_value *mgpu_build1(struct mgpu_graph *g, const struct mgpu_op *op, const void *attrs,
                               int inputs, struct mgpu_value *const *input);

/* ---- pointwise ------------------------------------------------------------------------------ */
struct mgpu_value *mgpu_pointwise(struct mgpu_graph *g, const struct mgpu_expr *expr, int inputs,
                                  struct mgpu_value *const *input);
struct mgpu_value *mgpu_unary(struct mgpu_graph *g, enum mgpu_expr_code code, struct mgpu_value *a);
struct mgpu_value *mgpu_binary(struct mgpu_graph *g, enum mgpu_expr_code code, struct mgpu_value *a,
                               struct mgpu_value *b); /* of one type */
struct mgpu_value *mgpu_add(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b);
struct mgpu_value *mgpu_sub(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b);
struct mgpu_value *mgpu_mul(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b);
struct mgpu_value *mgpu_div(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b);
struct mgpu_value *mgpu_where(struct mgpu_graph *g, struct mgpu_value *condition,
                              struct mgpu_value *a, struct mgpu_value *b);
struct mgpu_value *mgpu_cast(struct mgpu_graph *g, struct mgpu_value *a, enum mgpu_dtype type);
/* The same elements in memory of their own. */
struct mgpu_value *mgpu_copy(struct mgpu_graph *g, struct mgpu_value *a);
/* a * factor + offset in a's type (a constant inside the expression). */
struct mgpu_value *mgpu_affine(struct mgpu_graph *g, struct mgpu_value *a, double factor,
                               double offset);

/* ---- constants ------------------------------------------------------------------------------ */
struct mgpu_value *mgpu_const_double(struct mgpu_graph *g, enum mgpu_dtype type, double value);
struct mgpu_value *mgpu_const_ints(struct mgpu_graph *g, int count, const int64_t *values);
/* An int64 vector that keeps monomials: the shape of something. */
struct mgpu_value *mgpu_const_dims(struct mgpu_graph *g, int count, const struct mgpu_dim *dims);

/* ---- shape and movement (runtime/ops/movement.h has the attribute structs) ------------------- */
struct mgpu_value *mgpu_reshape(struct mgpu_graph *g, struct mgpu_value *a, int rank,
                                const struct mgpu_dim *dims);
struct mgpu_value *mgpu_transpose(struct mgpu_graph *g, struct mgpu_value *a, const int *perm);
/* numpy broadcasting of `a` to the shape. */
struct mgpu_value *mgpu_broadcast(struct mgpu_graph *g, struct mgpu_value *a, int rank,
                                  const struct mgpu_dim *dims);
/* start and step per axis of a's rank; `size` elements from start by step (may be negative). */
struct mgpu_value *mgpu_slice(struct mgpu_graph *g, struct mgpu_value *a, const int64_t *start,
                              const int64_t *step, const struct mgpu_dim *size);
/* One axis only: elements [start, start + size). */
struct mgpu_value *mgpu_slice_axis(struct mgpu_graph *g, struct mgpu_value *a, int axis,
                                   int64_t start, struct mgpu_dim size);
struct mgpu_value *mgpu_concat(struct mgpu_graph *g, int axis, int count,
                               struct mgpu_value *const *parts);

/* ---- reductions and products ----------------------------------------------------------------- */
enum mgpu_reduce_kind {
    MGPU_REDUCE_SUM,
    MGPU_REDUCE_MEAN,
    MGPU_REDUCE_MAX,
    MGPU_REDUCE_MIN,
    MGPU_REDUCE_PROD,
};
/* `axes` is a bit mask; `keep` leaves size-1 axes. */
struct mgpu_value *mgpu_reduce(struct mgpu_graph *g, enum mgpu_reduce_kind kind,
                               struct mgpu_value *a, unsigned axes, bool keep);
/* Sums a gradient back to the shape that was broadcast to a's shape. */
struct mgpu_value *mgpu_reduce_to(struct mgpu_graph *g, struct mgpu_value *a,
                                  const struct mgpu_value *like);
/* Batched over leading axes (broadcast): [..., M, K] x [..., K, N], either one transposed in its
 * last two axes. Both of rank 2 or more. */
struct mgpu_value *mgpu_matmul(struct mgpu_graph *g, struct mgpu_value *a, bool transpose_a,
                               struct mgpu_value *b, bool transpose_b);
/* softmax or log-softmax along one axis. */
struct mgpu_value *mgpu_softmax(struct mgpu_graph *g, struct mgpu_value *a, int axis, bool log);

#endif
