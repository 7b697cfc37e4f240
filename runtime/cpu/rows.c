#include "runtime/cpu/rows.h"
#include "runtime/cpu/simd.h"

enum { PIECE = 1024 };

/* Sums `term` over [0, n), a float sum for each piece. */
#define SUM(term)                                                                                  \
    double total = 0;                                                                              \
    for (int64_t at = 0; at < n; at += PIECE) {                                                    \
        int64_t end = n - at < PIECE ? n : at + PIECE;                                             \
        float sum = 0;                                                                             \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = at; i < end; i++) sum += (term);   \
        total += (double)sum;                                                                      \
    }                                                                                              \
    return total

MGPU_SIMD double mgpu_cpu_sum(const float *x, int64_t n)
{
    SUM(x[i]);
}

MGPU_SIMD double mgpu_cpu_sum_squares(const float *x, float mean, int64_t n)
{
    SUM((x[i] - mean) * (x[i] - mean));
}

MGPU_SIMD double mgpu_cpu_sum_products(const float *x, float mean, const float *dy, int64_t n)
{
    SUM((x[i] - mean) * dy[i]);
}

MGPU_SIMD void mgpu_cpu_column_sums(const float *x, int64_t rows, int64_t step, int64_t width,
                                    float *to)
{
    double sum[MGPU_COLUMNS] = {0};
    for (int64_t row = 0; row < rows; row++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            sum[j] += (double)x[row * step + j];
    for (int64_t j = 0; j < width; j++)
        to[j] = (float)sum[j];
}

MGPU_SIMD void mgpu_cpu_affine(float *y, const float *x, float mean, float factor, float offset,
                               int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * factor + offset;
}

MGPU_SIMD void mgpu_cpu_affine_2(float *dx, const float *dy, float factor, const float *x,
                                 float mean, float slope, float offset, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * factor + (x[i] - mean) * slope + offset;
}

MGPU_INLINE float cut(float x, float low, float high)
{
    x = x < low ? low : x; /* NaN stays */
    return x > high ? high : x;
}

MGPU_SIMD void mgpu_cpu_finish(float *y, const float *more, float low, float high, int64_t n)
{
    if (more)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            y[i] = cut(y[i] + more[i], low, high);
    else
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            y[i] = cut(y[i], low, high);
}

MGPU_SIMD void mgpu_cpu_mask(float *to, const float *dy, const float *y, float low, float high,
                             int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float d = dy[i];
        to[i] = y[i] > low && y[i] < high ? d : 0;
    }
}
