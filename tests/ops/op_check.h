/* The operator harness: one row a case, checked in every way that a row allows.
 *
 *     mgpu_op_check  builds one node of the operator with inputs of the given shapes (seeded random
 *     values in [low, high]), and checks
 *       - that the gradient of sum(G * y) for random G, by every floating input that is not marked
 *         constant, equals central differences of the same node run on `ref` in double (1e-6
 *         relative to the largest element), and reads only what `saved` names;
 *       - float against double on `ref` (1e-5 of the norm), gradients too;
 *       - backend `cpu` against `ref` in float and double (1e-5 of the norm), gradients too;
 *       - that the pairs of `alias` may share memory, on both;
 *       - that 1, 2 and 3 ranks, each with its slice of the batch axis (inputs whose dims carry N),
 *         give the whole's outputs and gradients (1e-12), after op->expand where the node mixes
 *         samples; and that a sum or mean over the ranks is passed on rightly where `split` says
 *         that it may be.
 */
#ifndef MGPU_TESTS_OP_CHECK_H
#define MGPU_TESTS_OP_CHECK_H

#include "runtime/ops/op.h"

struct mgpu_check_input {
    int rank; /* -1: absent */
    int64_t dims[MGPU_MAX_RANK];
    int batch_axis; /* axis whose size is the batch N (its dim becomes symbol 0), -1: none */
    int64_t outer;  /* batch_axis has size outer * N * inner; 0 means 1 */
    int64_t inner;
    int scalar;           /* 1 + enum mgpu_step_scalar: a field of the step-scalar buffer */
    enum mgpu_dtype type; /* 0: the float type under test */
    bool constant;        /* no gradient is asked for: indices, masks */
    double low, high;     /* both 0: -1 .. 1 (floats); integers need a range, both ends in it */
    const double *values; /* instead of random ones: as many as elements */
};

struct mgpu_check {
    const char *name;
    const struct mgpu_op *op;
    const void *attrs;
    /* Instead of attrs where they hold sizes that carry the batch: makes them for `batch`. */
    const void *(*attrs_at)(struct mgpu_arena *arena, int64_t batch);
    int inputs;
    struct mgpu_check_input input[MGPU_MAX_INPUTS];
    int64_t batch;         /* N, where no input carries it but the attributes do */
    unsigned skip_outputs; /* outputs that get no G (integer ones never do) */
    bool mixes;            /* the batch cannot be cut: `split` must say so, and no `expand` */
    double tolerance;      /* of the difference quotient; 0: 1e-6 */
};

/* Runs a NULL-name-terminated list of checks; prints failures; returns their number. Not under the
 * thread sanitizer: rows run on one thread. */
int mgpu_op_check(const struct mgpu_check *checks);

/* Runs one node in double on `ref` and compares output 0 with `want` (1e-12). 0 when equal. */
int mgpu_op_value(const struct mgpu_check *check, const double *want, int64_t count);

#endif
