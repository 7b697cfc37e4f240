#include "partitioner/cost.h"

#include "runtime/compile/storage.h"
#include "runtime/ops/rnn.h"

#include <math.h>
#include <string.h>

const char *const mgpu_op_class[MGPU_CLASSES] = {
    "matmul",    "convolution", "recurrent", "normalization", "pool",
    "pointwise", "reduce",      "movement",  "update",        "communication"};

/* By the beginning of the operator's name; the first row that fits. Movement is the rest. */
static const struct {
    const char *begins;
    enum mgpu_class class;
} classes[] = {
    {"matmul", MGPU_CLASS_GEMM},
    {"matmul_sums", MGPU_CLASS_GEMM},
    {"conv", MGPU_CLASS_CONV},
    {"rnn", MGPU_CLASS_RNN},
    {"batch_norm", MGPU_CLASS_NORM},
    {"group_norm", MGPU_CLASS_NORM},
    {"softmax", MGPU_CLASS_NORM},
    {"cross_entropy", MGPU_CLASS_NORM},
    {"max_pool", MGPU_CLASS_POOL},
    {"average_pool", MGPU_CLASS_POOL},
    {"pointwise", MGPU_CLASS_POINTWISE},
    {"accumulate", MGPU_CLASS_POINTWISE},
    {"random_mask", MGPU_CLASS_POINTWISE},
    {"random_uniform", MGPU_CLASS_POINTWISE},
    {"reduce_scatter", MGPU_CLASS_COMMUNICATION},
    {"reduce", MGPU_CLASS_REDUCE},
    {"arg_reduce", MGPU_CLASS_REDUCE},
    {"global_norm", MGPU_CLASS_UPDATE},
    {"product_update", MGPU_CLASS_UPDATE},
    {"update", MGPU_CLASS_UPDATE},
};

enum mgpu_class mgpu_class_of(const struct mgpu_op *op)
{
    if (op->flags & MGPU_OP_COMMUNICATION)
        return MGPU_CLASS_COMMUNICATION;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (*op->name == *classes[i].begins &&
            !strncmp(op->name, classes[i].begins, strlen(classes[i].begins)))
            return classes[i].class;
    return MGPU_CLASS_MOVEMENT;
}

/* ---- Efficiency ------------------------------------------------------------------------------ */

struct point {
    double ms, share;
};

/* Sizes over the A100's peaks: 312 TFLOP/s, 2039 GB/s. */
static const struct point compute_curve[] = {{0.1e9 / 312e12 * 1e3, 0.1},
                                             {1e9 / 312e12 * 1e3, 0.6},
                                             {16e9 / 312e12 * 1e3, 0.9},
                                             {128e9 / 312e12 * 1e3, 0.95}};
static const struct point memory_curve[] = {{1e5 / 2039e9 * 1e3, 0.3},
                                            {1e6 / 2039e9 * 1e3, 0.6},
                                            {1e7 / 2039e9 * 1e3, 0.75},
                                            {1e8 / 2039e9 * 1e3, 0.9}};

static double on_curve(const struct point *p, int count, double ms)
{
    int i = 1;
    if (ms <= p[0].ms)
        return p[0].share;
    if (ms >= p[count - 1].ms)
        return p[count - 1].share;
    while (ms > p[i].ms)
        i++;
    double part = log(ms / p[i - 1].ms) / log(p[i].ms / p[i - 1].ms);
    return p[i - 1].share * pow(p[i].share / p[i - 1].share, part);
}

double mgpu_compute_efficiency(const struct mgpu_device_kind *kind, double ms)
{
    return on_curve(compute_curve, 4, ms) / compute_curve[3].share * kind->efficiency_compute;
}

double mgpu_memory_efficiency(const struct mgpu_device_kind *kind, double ms)
{
    return on_curve(memory_curve, 4, ms) / memory_curve[3].share * kind->efficiency_memory;
}

/* ---- Roofline -------------------------------------------------------------------------------- */

double mgpu_roofline_ms(const struct mgpu_device_kind *kind, enum mgpu_rate rate, double flops,
                        double bytes, double steps)
{
    double compute = flops / steps / kind->flops[rate] * 1e3;
    double memory = bytes / steps / kind->bytes * 1e3;
    if (compute > 0)
        compute /= mgpu_compute_efficiency(kind, compute);
    if (memory > 0)
        memory /= mgpu_memory_efficiency(kind, memory);
    return fmax(1, kind->ranks) * steps * fmax(kind->launch_ms, fmax(compute, memory));
}

/* Computed at the rate of the half type or of TF32. */
static bool is_matrix(const struct mgpu_node *node, enum mgpu_class class)
{
    return node->op->half == MGPU_HALF_PRODUCT || class == MGPU_CLASS_GEMM ||
           class == MGPU_CLASS_CONV || class == MGPU_CLASS_RNN;
}

/* Time steps of a recurrent node, which run one after the other. */
static double steps_of(const struct mgpu_node *node, enum mgpu_class class)
{
    const struct mgpu_value *x = node->input[0];
    if (class != MGPU_CLASS_RNN || !x || x->rank < 1)
        return 1;
    return x->dims[0].value > 1 ? (double)x->dims[0].value : 1;
}

double mgpu_cost_ms(const struct mgpu_device_kind *kind, const struct mgpu_node *node,
                    enum mgpu_rate rate)
{
    if (mgpu_is_view(node))
        return 0;
    struct mgpu_cost c = node->op->cost(node);
    enum mgpu_class class = mgpu_class_of(node->op);
    bool matrix = is_matrix(node, class);
    enum mgpu_rate own = matrix || rate == MGPU_RATE_F64 ? rate : MGPU_RATE_F32;
    return mgpu_roofline_ms(kind, own, c.flops, c.bytes, steps_of(node, class));
}
