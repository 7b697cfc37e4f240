/* Plain kernels of det and cofactor: elimination in double, one matrix after the other. */
#include "runtime/ops/det.h"
#include "runtime/ref/ref.h"

#include <math.h>

/* Each thread has the matrices t, t + threads, ... and n * n doubles of the workspace. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_value *x = node->input[0];
    int64_t n = x->dims[x->rank - 1].value;
    (void)state;
    return (int64_t)sizeof(double) * n * n * threads;
}

static void exchange_rows(double *m, int64_t n, int64_t a, int64_t b)
{
    for (int64_t k = 0; k < n && a != b; k++) {
        double kept = m[a * n + k];
        m[a * n + k] = m[b * n + k];
        m[b * n + k] = kept;
    }
}

/* The determinant of m [n,n], which is used up: rows with the largest pivot first. */
static double eliminate(double *m, int64_t n)
{
    double det = 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t best = i;
        for (int64_t r = i + 1; r < n; r++)
            if (fabs(m[r * n + i]) > fabs(m[best * n + i]))
                best = r;
        exchange_rows(m, n, i, best);
        det *= best == i ? m[i * n + i] : -m[i * n + i];
        if (m[i * n + i] == 0)
            return 0;
        for (int64_t r = i + 1; r < n; r++) {
            double factor = m[r * n + i] / m[i * n + i];
            for (int64_t k = i; k < n; k++)
                m[r * n + k] -= factor * m[i * n + k];
        }
    }
    return det;
}

/* Copies matrix `at` of x without row `row` and column `column` (-1: with all). */
static int64_t copy(double *m, const struct mgpu_tensor *x, int64_t at, int64_t row, int64_t column)
{
    int64_t n = x->dims[x->rank - 1], k = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (i != row && j != column)
                m[k++] = mgpu_get_double(x->data, x->type, (at * n + i) * n + j);
    return row < 0 ? n : n - 1;
}

static void one_det(const struct mgpu_launch *l, int64_t at, double *m)
{
    int64_t n = copy(m, &l->in[0], at, -1, -1);
    mgpu_set_double(l->out[0].data, l->out[0].type, at, eliminate(m, n));
}

static void one_cofactor(const struct mgpu_launch *l, int64_t at, double *m)
{
    int64_t n = l->in[0].dims[l->in[0].rank - 1];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double minor = eliminate(m, copy(m, &l->in[0], at, i, j));
            mgpu_set_double(l->out[0].data, l->out[0].type, (at * n + i) * n + j,
                            (i + j) % 2 ? -minor : minor);
        }
}

static int run(const struct mgpu_launch *l,
               void (*one)(const struct mgpu_launch *, int64_t, double *))
{
    const struct mgpu_tensor *x = &l->in[0];
    int64_t n = x->dims[x->rank - 1], matrices = 1;
    for (int i = 0; i < x->rank - 2; i++)
        matrices *= x->dims[i];
#pragma omp parallel for schedule(static) if (matrices * n * n >= 1 << 12)
    for (int t = 0; t < l->threads; t++)
        for (int64_t at = t; at < matrices; at += l->threads)
            one(l, at, (double *)l->workspace + t * n * n);
    return 0;
}

static int det(const struct mgpu_launch *l)
{
    return run(l, one_det);
}

static int cofactor(const struct mgpu_launch *l)
{
    return run(l, one_cofactor);
}

const struct mgpu_kernel mgpu_ref_det[] = {
    {.op = "det", .name = "ref", .run = det, .workspace = workspace},
    {.op = "cofactor", .name = "ref", .run = cofactor, .workspace = workspace},
    {.op = NULL},
};
