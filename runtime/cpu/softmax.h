/* Softmax of rows and of blocks of lanes: what the kernels of softmax and of cross-entropy share.
 *
 * A row's n elements lie together. A lane's are `step` floats apart, and a block is `width` (up to
 * MGPU_LANES) lanes side by side. Everything is computed about the largest element.
 */
#ifndef MGPU_CPU_SOFTMAX_H
#define MGPU_CPU_SOFTMAX_H

#include <stdint.h>

enum { MGPU_LANES = 64 };

/* The largest element and the sum of exp(x - largest). */
float mgpu_cpu_exp_sum(const float *x, int64_t n, float *largest);
void mgpu_cpu_exp_sum_lanes(const float *x, int64_t n, int64_t step, int64_t width, float *largest,
                            float *sum);

/* y = scale * softmax(x); `scale` is one a lane, NULL: 1. */
void mgpu_cpu_softmax_row(float *y, const float *x, int64_t n, float scale);
void mgpu_cpu_softmax_lanes(float *y, const float *x, int64_t n, int64_t step, int64_t width,
                            const float *scale);

#endif
