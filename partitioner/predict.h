/* What the cost model says of a compiled program: to be held against what was measured. */
#ifndef MGPU_PARTITIONER_PREDICT_H
#define MGPU_PARTITIONER_PREDICT_H

#include "runtime/compile/program.h"

struct mgpu_predict;

/* For ranks on the devices of a topology's spec, `ranks` of them at work; `profile` (a file) may be
 * NULL. */
int mgpu_predict_new(struct mgpu_predict **out, const char *devices, int replicas, int places,
                     const char *profile);
void mgpu_predict_free(struct mgpu_predict *predict);

/* Milliseconds of instruction `k` of the rank's program: of a node as the planner costs it; of a
 * collective or a transfer from its start to its end. */
double mgpu_predict_ms(const struct mgpu_predict *predict, const struct mgpu_program *program,
                       int rank, int k);

/* What it is reported as: "gemm", "conv", ..., "communication". */
const char *mgpu_predict_class(const struct mgpu_instruction *instruction);

#endif
