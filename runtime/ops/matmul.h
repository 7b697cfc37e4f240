/* matmul(a, b) -> y: [..., M, K] x [..., K, N] -> [..., M, N], leading axes broadcast (numpy);
 * either operand may be stored transposed in its last two axes. Ranks 2 and up (the importer
 * reshapes vectors).
 *
 * What compilation makes of it, never a gradient (runtime/compile/finish.c): matmul(a, b, bias [N])
 * adds the bias to each row of y; with `relu`, what is below 0 then becomes 0.
 * matmul_gelu(a, b[, bias]) -> y, kept: GELU in tanh's form (expr.h) of product and bias, and what
 * it was taken of, where somebody reads that. matmul_gelu_grad(a, b, kept) -> y: the product times
 * that function's derivative.
 * matmul_sums(a, b) -> y, sums: the product of two matrices, and one of them summed over what the
 * product sums over: of a [M], or of b [N]. */
#ifndef MGPU_OPS_MATMUL_H
#define MGPU_OPS_MATMUL_H

#include "runtime/ops/op.h"

enum mgpu_matmul_sums { MGPU_SUMS_A, MGPU_SUMS_B };

struct mgpu_matmul_attrs {
    bool transpose_a, transpose_b;
    enum mgpu_dtype type; /* of y where it is not a's; 0: a's. As in reduce.h */
    bool relu;
    int sums; /* matmul_sums: enum mgpu_matmul_sums */
};

extern const struct mgpu_op mgpu_op_matmul, mgpu_op_matmul_sums, mgpu_op_matmul_gelu,
    mgpu_op_matmul_gelu_grad;

#endif
