#include "runtime/ref/gemm.h"

#include <string.h>

/* Two columns of a tile, and the columns of c that one pass over k keeps in registers. */
typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));
enum { STRIP = 8 };

static struct mgpu_span span(int64_t tile, int size, int64_t end)
{
    int64_t first = tile * size;
    return (struct mgpu_span){first, (int)(end - first < size ? end - first : size)};
}

static int64_t tiles(int64_t length, int size)
{
    return (length + size - 1) / size;
}

/* c[rows][STRIP] += a[rows][depth] b[depth][STRIP] */
static void multiply_strip(const double *a, const double *b, double *c, int rows, int depth)
{
    for (int i = 0; i < rows; i++) {
        pair *to = (pair *)(c + i * MGPU_TILE_N);
        pair c0 = to[0], c1 = to[1], c2 = to[2], c3 = to[3];
        for (int k = 0; k < depth; k++) {
            const pair *row = (const pair *)(b + k * MGPU_TILE_N);
            double factor = a[i * MGPU_TILE_K + k];
            c0 += factor * row[0];
            c1 += factor * row[1];
            c2 += factor * row[2];
            c3 += factor * row[3];
        }
        to[0] = c0;
        to[1] = c1;
        to[2] = c2;
        to[3] = c3;
    }
}

static void compute_tile(const struct mgpu_gemm *g, int64_t batch, struct mgpu_span i,
                         struct mgpu_span j)
{
    double a[MGPU_TILE_M * MGPU_TILE_K], b[MGPU_TILE_K * MGPU_TILE_N];
    double c[MGPU_TILE_M * MGPU_TILE_N] = {0};
    if (j.count % STRIP) /* the last strip also multiplies the columns beyond the matrix */
        memset(b, 0, sizeof b);
    for (int64_t t = 0; t < tiles(g->k, MGPU_TILE_K); t++) {
        struct mgpu_span k = span(t, MGPU_TILE_K, g->k);
        g->load_a(g->context, batch, i, k, a);
        g->load_b(g->context, batch, k, j, b);
        for (int s = 0; s < j.count; s += STRIP)
            multiply_strip(a, b + s, c + s, i.count, k.count);
    }
    g->store(g->context, batch, i, j, c);
}

void mgpu_gemm_run(const struct mgpu_gemm *g)
{
    int64_t rows = tiles(g->m, MGPU_TILE_M), columns = tiles(g->n, MGPU_TILE_N);
    int64_t count = g->batch * rows * columns;
#pragma omp parallel for schedule(dynamic) if (count > 1)
    for (int64_t t = 0; t < count; t++)
        compute_tile(g, t / (rows * columns), span(t / columns % rows, MGPU_TILE_M, g->m),
                     span(t % columns, MGPU_TILE_N, g->n));
}

void mgpu_matrix_load(const struct mgpu_matrix *from, struct mgpu_span i, struct mgpu_span j,
                      double *tile, int stride)
{
    for (int r = 0; r < i.count; r++) {
        int64_t at = from->offset + (i.first + r) * from->row + j.first * from->column;
        for (int c = 0; c < j.count; c++)
            tile[r * stride + c] = mgpu_ref_get(from->data, from->type, at + c * from->column);
    }
}

void mgpu_matrix_store(const struct mgpu_matrix *to, struct mgpu_span i, struct mgpu_span j,
                       const double *tile, bool add)
{
    for (int r = 0; r < i.count; r++) {
        int64_t at = to->offset + (i.first + r) * to->row + j.first * to->column;
        for (int c = 0; c < j.count; c++) {
            int64_t e = at + c * to->column;
            double old = add ? mgpu_ref_get(to->data, to->type, e) : 0;
            mgpu_ref_set(to->data, to->type, e, old + tile[r * MGPU_TILE_N + c]);
        }
    }
}

/* ---- products of matrices in memory ---------------------------------------------------------- */

struct product {
    const struct mgpu_matrix *a, *b, *c;
    bool add;
};

static void load_a(const void *context, int64_t batch, struct mgpu_span i, struct mgpu_span k,
                   double *tile)
{
    const struct product *p = context;
    (void)batch;
    mgpu_matrix_load(p->a, i, k, tile, MGPU_TILE_K);
}

static void load_b(const void *context, int64_t batch, struct mgpu_span k, struct mgpu_span j,
                   double *tile)
{
    const struct product *p = context;
    (void)batch;
    mgpu_matrix_load(p->b, k, j, tile, MGPU_TILE_N);
}

static void store(const void *context, int64_t batch, struct mgpu_span i, struct mgpu_span j,
                  const double *tile)
{
    const struct product *p = context;
    (void)batch;
    mgpu_matrix_store(p->c, i, j, tile, p->add);
}

void mgpu_matrix_multiply(int64_t m, int64_t n, int64_t k, const struct mgpu_matrix *a,
                          const struct mgpu_matrix *b, const struct mgpu_matrix *c, bool add)
{
    struct product p = {a, b, c, add};
    struct mgpu_gemm gemm = {1, m, n, k, &p, load_a, load_b, store};
    mgpu_gemm_run(&gemm);
}
