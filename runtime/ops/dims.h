/* Small things about shapes that the operator families share. */
#ifndef MGPU_OPS_DIMS_H
#define MGPU_OPS_DIMS_H

#include "runtime/base/status.h"
#include "runtime/ops/op.h"

/* Product of `count` sizes, with its monomial (1 for none). */
struct mgpu_dim mgpu_dims_product(int count, const struct mgpu_dim *dims);

/* Same values and monomials; same values. */
bool mgpu_dims_same(int rank, const struct mgpu_dim *a, const struct mgpu_dim *b);
bool mgpu_dims_equal(int rank, const struct mgpu_dim *a, const struct mgpu_dim *b);

/* A copy in the graph's arena; never NULL. */
const struct mgpu_dim *mgpu_dims_copy(struct mgpu_graph *g, int rank, const struct mgpu_dim *dims);

/* "[2,3]" of the values. Returns text. */
char *mgpu_dims_text(char text[MGPU_SHAPE_TEXT], int rank, const struct mgpu_dim *dims);

/* The only axis whose size has the first power of the batch and nothing unknown, no other axis
 * having any; -1 when there is none, -2 when it is otherwise. */
int mgpu_dims_batch_axis(int rank, const struct mgpu_dim *dims);

/* The number that the batch is bound to, as far as the sizes of two shapes tell it: 0 when they do
 * not. */
int64_t mgpu_dims_batch(int a_rank, const struct mgpu_dim *a, int b_rank, const struct mgpu_dim *b);

/* Sets out[0] and answers OK. */
enum mgpu_split_answer mgpu_split_ok(struct mgpu_split *out, enum mgpu_split_kind kind, int axis,
                                     int64_t outer);

/* Sets *which and answers `answer`. */
enum mgpu_split_answer mgpu_split_no(int *which, int input, enum mgpu_split_answer answer);

#endif
