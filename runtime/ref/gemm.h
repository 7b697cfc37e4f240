/* Matrix products for the plain kernels: matmul, the three convolutions and the recurrent cells are
 * all sums of products, so they share one loop.
 *
 *     c[b][i][j] = sum over k of a[b][i][k] * b[b][k][j]
 *
 * is computed in double, one tile of c at a time. Where elements lie in memory (transposes, the
 * windows of a convolution, half types) is only known to the functions that load and store tiles.
 * One thread computes a tile, over k in ascending order: the result does not depend on the number
 * of threads.
 */
#ifndef MGPU_REF_GEMM_H
#define MGPU_REF_GEMM_H

#include "runtime/backend.h"

enum { MGPU_TILE_M = 32, MGPU_TILE_N = 64, MGPU_TILE_K = 64 };

/* Indices first, first + 1, ... */
struct mgpu_span {
    int64_t first;
    int count;
};

struct mgpu_gemm {
    int64_t batch, m, n, k;
    const void *context; /* handed to the three functions */

    /* tile[i * MGPU_TILE_K + k] of a, tile[k * MGPU_TILE_N + j] of b, from 0 for the spans' firsts
     */
    void (*load_a)(const void *context, int64_t batch, struct mgpu_span i, struct mgpu_span k,
                   double *tile);
    void (*load_b)(const void *context, int64_t batch, struct mgpu_span k, struct mgpu_span j,
                   double *tile);
    /* takes tile[i * MGPU_TILE_N + j] */
    void (*store)(const void *context, int64_t batch, struct mgpu_span i, struct mgpu_span j,
                  const double *tile);
};

void mgpu_gemm_run(const struct mgpu_gemm *gemm);

/* A matrix in memory: element (i, j) is at offset + i * row + j * column. */
struct mgpu_matrix {
    void *data;
    enum mgpu_dtype type;
    int64_t offset, row, column;
};

/* tile[i * stride + j] = the matrix, and back; `add` adds to what stands there. */
void mgpu_matrix_load(const struct mgpu_matrix *from, struct mgpu_span i, struct mgpu_span j,
                      double *tile, int stride);
void mgpu_matrix_store(const struct mgpu_matrix *to, struct mgpu_span i, struct mgpu_span j,
                       const double *tile, bool add);

/* c = a b, or c += a b, for matrices [m, k], [k, n], [m, n]. */
void mgpu_matrix_multiply(int64_t m, int64_t n, int64_t k, const struct mgpu_matrix *a,
                          const struct mgpu_matrix *b, const struct mgpu_matrix *c, bool add);

/* One element as double, quick for the two types that matter. */
static inline double mgpu_ref_get(const void *data, enum mgpu_dtype type, int64_t i)
{
    if (type == MGPU_FLOAT)
        return ((const float *)data)[i];
    if (type == MGPU_DOUBLE)
        return ((const double *)data)[i];
    return mgpu_get_double(data, type, i);
}

static inline void mgpu_ref_set(void *data, enum mgpu_dtype type, int64_t i, double value)
{
    if (type == MGPU_FLOAT)
        ((float *)data)[i] = (float)value;
    else if (type == MGPU_DOUBLE)
        ((double *)data)[i] = value;
    else
        mgpu_set_double(data, type, i, value);
}

#endif
