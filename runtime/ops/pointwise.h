/* `pointwise`: an expression over broadcast inputs (numpy's rules: shapes aligned at their ends).
 *
 *     y[i] = expr(x0[i], x1[i], ...)     up to MGPU_MAX_INPUTS inputs of any types
 */
#ifndef MGPU_OPS_POINTWISE_H
#define MGPU_OPS_POINTWISE_H

#include "runtime/ops/expr.h"
#include "runtime/ops/op.h"

struct mgpu_pointwise_attrs {
    const struct mgpu_expr *expr; /* in the graph's arena */
};

extern const struct mgpu_op mgpu_op_pointwise;

/* Renumbers the inputs that are read, of `count`, to packed[]; gives how many. An expression
 * without any keeps its first, as a pointwise node has one at least. */
int mgpu_expr_pack(struct mgpu_expr *expr, int count, struct mgpu_value *const *input,
                   struct mgpu_value **packed);

#endif
