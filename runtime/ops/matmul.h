/* matmul(a, b) -> y: [..., M, K] x [..., K, N] -> [..., M, N], leading axes broadcast (numpy);
 * either operand may be stored transposed in its last two axes. Ranks 2 and up (the importer
 * reshapes vectors). */
#ifndef MGPU_OPS_MATMUL_H
#define MGPU_OPS_MATMUL_H

#include "runtime/ops/op.h"

struct mgpu_matmul_attrs {
    bool transpose_a, transpose_b;
    enum mgpu_dtype type; /* of y where it is not a's; 0: a's. As in reduce.h */
};

extern const struct mgpu_op mgpu_op_matmul;

#endif
