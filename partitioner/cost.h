/* Milliseconds of one node on a kind of device, from its operator's record: a roofline whose
 * efficiency falls with size, and never less than a launch. */
#ifndef MGPU_PARTITIONER_COST_H
#define MGPU_PARTITIONER_COST_H

#include "partitioner/topology.h"
#include "runtime/ops/op.h"

/* What operators are reported as. */
enum mgpu_class {
    MGPU_CLASS_GEMM,
    MGPU_CLASS_CONV,
    MGPU_CLASS_RNN,
    MGPU_CLASS_NORM, /* normalisation, softmax, cross entropy */
    MGPU_CLASS_POOL,
    MGPU_CLASS_POINTWISE,
    MGPU_CLASS_REDUCE,
    MGPU_CLASS_MOVEMENT, /* transpose, gather, concat ...; views cost nothing */
    MGPU_CLASS_UPDATE,
    MGPU_CLASS_COMMUNICATION,
    MGPU_CLASSES
};
extern const char *const mgpu_op_class[MGPU_CLASSES];
enum mgpu_class mgpu_class_of(const struct mgpu_op *op);

/* Shares of the peak that work reaches which would take `ms` at the peak: Calculon's steps for the
 * A100 (0.1 GFLOP 0.1, 1 0.6, 16 0.9, 128 0.95; 0.1 MB 0.3, 1 0.6, 10 0.75, 100 0.9) read as times
 * and joined by straight lines in logarithms, so that more work never takes less time. The last is
 * scaled to the kind's own efficiency of large kernels. */
double mgpu_compute_efficiency(const struct mgpu_device_kind *kind, double ms);
double mgpu_memory_efficiency(const struct mgpu_device_kind *kind, double ms);

/* max(flops / peak / efficiency, bytes / bandwidth / efficiency, launch), times the ranks of the
 * GPU, whose kernels take turns. Matrix work runs at `rate`, all else at f32 (f64 at
 * MGPU_RATE_F64); bytes are those of the node's types. A recurrent node is that many steps in turn,
 * each with its own launch. 0 for a view. */
double mgpu_cost_ms(const struct mgpu_device_kind *kind, const struct mgpu_node *node,
                    enum mgpu_rate rate);

/* The roofline alone, of `steps` equal parts in turn. */
double mgpu_roofline_ms(const struct mgpu_device_kind *kind, enum mgpu_rate rate, double flops,
                        double bytes, double steps);

#endif
