/* Sums over runs of floats: vector code inside short pieces, double between them. */
#ifndef MGPU_CPU_ROWS_H
#define MGPU_CPU_ROWS_H

#include <stdint.h>

/* sum of x[i]; of (x[i] - mean)^2; of (x[i] - mean) * dy[i]. */
double mgpu_cpu_sum(const float *x, int64_t n);
double mgpu_cpu_sum_squares(const float *x, float mean, int64_t n);
double mgpu_cpu_sum_products(const float *x, float mean, const float *dy, int64_t n);

/* to[j] = sum over rows of x[row * step + j], for j < width <= MGPU_COLUMNS. */
enum { MGPU_COLUMNS = 256 };
void mgpu_cpu_column_sums(const float *x, int64_t rows, int64_t step, int64_t width, float *to);

/* y[i] = (x[i] - mean) * factor + offset */
void mgpu_cpu_affine(float *y, const float *x, float mean, float factor, float offset, int64_t n);

/* dx[i] = dy[i] * factor + (x[i] - mean) * slope + offset */
void mgpu_cpu_affine_2(float *dx, const float *dy, float factor, const float *x, float mean,
                       float slope, float offset, int64_t n);

/* y[i] = y[i] + more[i], cut to [low, high]; more NULL: 0. */
void mgpu_cpu_finish(float *y, const float *more, float low, float high, int64_t n);

/* to[i] = dy[i] where low < y[i] < high, else 0. */
void mgpu_cpu_mask(float *to, const float *dy, const float *y, float low, float high, int64_t n);

#endif
