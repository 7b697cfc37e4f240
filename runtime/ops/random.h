/* random_mask: the mask of a dropout; random_uniform: numbers in [0, 1).
 *
 *     random_mask(key, step, sample_base) -> y in {0, 1/(1-p)}, of the graph's float type
 *     random_uniform(key, step, sample_base) -> y, multiples of 2^-24
 *
 * The three inputs are step scalars (step_scalar.h). Each element is a pure function of (key, step,
 * salt, place of its sample in the whole batch, place of the element in its sample), so that the
 * same sample gets the same mask on whatever rank and in whatever piece it is. Counter based
 * (Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11):
 *
 *     word w of philox(counter = {e / 4, sample, step, salt}, key = {key low, key high}),
 *     w = e % 4, each counter word modulo 2^32; y = w < p * 2^32 ? 0 : 1/(1-p), or
 *     floor(w / 2^8) / 2^24
 *
 * with e the row-major place of the element in its sample, sample = sample_base + its place along
 * the axis that carries N. There N stands first: an axis of size N*8 holds sample 0 eight times,
 * then sample 1. Without such an axis the whole tensor is one sample, number 0.
 */
#ifndef MGPU_OPS_RANDOM_H
#define MGPU_OPS_RANDOM_H

#include "runtime/ops/op.h"

struct mgpu_random_attrs {
    double probability; /* of zero; random_uniform: unused */
    int64_t salt;       /* tells one dropout of the graph from another */
    int64_t type;       /* enum mgpu_dtype of y */
    int64_t rank;
    const struct mgpu_dim *dims; /* of y; the axis that carries N is the sample's */
};

extern const struct mgpu_op mgpu_op_random_mask, mgpu_op_random_uniform;

/* The mask of the next dropout (build.h): reads the step scalars itself. `type` is a float. */
struct mgpu_value *mgpu_random_mask(struct mgpu_graph *g, double probability, int64_t salt,
                                    enum mgpu_dtype type, int rank, const struct mgpu_dim *dims);

/* Numbers in the same way. */
struct mgpu_value *mgpu_random_uniform(struct mgpu_graph *g, int64_t salt, enum mgpu_dtype type,
                                       int rank, const struct mgpu_dim *dims);

#endif
