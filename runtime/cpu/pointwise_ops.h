/* The operations of a pointwise expression over a run of float elements; bool is 0 or 1. */
#ifndef MGPU_CPU_POINTWISE_OPS_H
#define MGPU_CPU_POINTWISE_OPS_H

#include "runtime/ops/expr.h"

/* Whether mgpu_cpu_apply knows the operation (on floats and bools). */
bool mgpu_cpu_applies(enum mgpu_expr_code code);

/* What an operation does at once before and behind it: an operation of one operand applies to
 * a * head, and each gives result * factor + offset. {1, 1, -0.0f} changes nothing. */
struct mgpu_cpu_ends {
    float head, factor, offset;
};

/* to[i] = code(a[i], b[i], c[i]) for i < n, with its ends. `to` may be an operand. Operands that
 * the code does not have are not read. */
void mgpu_cpu_apply(enum mgpu_expr_code code, float *to, const float *a, const float *b,
                    const float *c, struct mgpu_cpu_ends ends, int64_t n);

#endif
