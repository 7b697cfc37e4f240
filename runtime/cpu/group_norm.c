/* Layer, instance, group and RMS normalisation of floats: rows of n elements.
 *
 *     y = (x - mean) * inv_std * scale + bias
 *     dx = inv_std * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * scale;
 *     RMS: mean is 0 and the middle term is absent
 */
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/rows.h"
#include "runtime/cpu/simd.h"
#include "runtime/ops/normalize.h"

#include <omp.h>
#include <string.h>

struct rows {
    int64_t g, n; /* rows, elements of one */
    double epsilon;
    bool rms;
};

static struct rows rows_of(const struct mgpu_launch *l)
{
    const struct mgpu_group_norm_attrs *a = l->node->attrs;
    struct rows r = {1, 1, a->epsilon, a->rms};
    for (int i = 0; i < l->in[0].rank; i++)
        *(i < a->axis ? &r.g : &r.n) *= l->in[0].dims[i];
    return r;
}

static float *out_data(const struct mgpu_launch *l, int output)
{
    return output < l->outputs ? l->out[output].data : NULL;
}

static const float *in_data(const struct mgpu_launch *l, int input)
{
    return input < l->inputs ? l->in[input].data : NULL;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* y = y * scale + bias, either absent. */
MGPU_SIMD static void scale_row(float *y, const float *scale, const float *bias, int64_t n)
{
    if (scale && bias)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] * scale[i] + bias[i];
    else if (scale)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            y[i] *= scale[i];
    else if (bias)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            y[i] += bias[i];
}

static void forward_row(const struct mgpu_launch *l, const struct rows *r, int64_t row)
{
    const float *x = in_data(l, 0) + row * r->n;
    double n = (double)r->n;
    float mean = r->rms ? 0 : (float)(mgpu_cpu_sum(x, r->n) / n);
    double variance = mgpu_cpu_sum_squares(x, mean, r->n) / n;
    float inv_std = (float)(1 / sqrt(variance + r->epsilon));
    if (out_data(l, 1))
        out_data(l, 1)[row] = mean;
    if (out_data(l, 2))
        out_data(l, 2)[row] = inv_std;
    if (!out_data(l, 0))
        return;
    mgpu_cpu_affine(out_data(l, 0) + row * r->n, x, mean, inv_std, 0, r->n);
    scale_row(out_data(l, 0) + row * r->n, in_data(l, 1), in_data(l, 2), r->n);
}

static int run_forward(const struct mgpu_launch *l)
{
    struct rows r = rows_of(l);
    int team = mgpu_cpu_team(l->threads, r.g * r.n);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t row = 0; row < r.g; row++)
        forward_row(l, &r, row);
    return 0;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* The sums of a thread's rows, for dscale and dbias. */
MGPU_SIMD static void add_row(float *dscale, float *dbias, const float *x, float mean,
                              float inv_std, const float *dy, int64_t n)
{
    if (dscale)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            dscale[i] += dy[i] * ((x[i] - mean) * inv_std);
    if (dbias)
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            dbias[i] += dy[i];
}

MGPU_SIMD static void multiply(float *to, const float *a, const float *b, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        to[i] = a[i] * b[i];
}

/* `g` is a row of scratch for dy * scale. */
static void gradient_row(const struct mgpu_launch *l, const struct rows *r, int64_t row, float mean,
                         float inv_std, float *g)
{
    const float *x = in_data(l, 0) + row * r->n, *dy = in_data(l, 1) + row * r->n;
    if (in_data(l, 2)) {
        multiply(g, dy, in_data(l, 2), r->n);
        dy = g;
    }
    double n = (double)r->n, inv = (double)inv_std;
    double sum = r->rms ? 0 : mgpu_cpu_sum(dy, r->n) / n;
    double products = mgpu_cpu_sum_products(x, mean, dy, r->n) / n;
    mgpu_cpu_affine_2(out_data(l, 0) + row * r->n, dy, inv_std, x, mean,
                      (float)(-inv * inv * inv * products), (float)(-inv * sum), r->n);
}

/* Per thread: a row for dy * scale, the sums of dscale, the sums of dbias. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)state;
    const struct mgpu_group_norm_attrs *a = node->attrs;
    int64_t n = 1;
    for (int i = (int)a->axis; i < node->input[0]->rank; i++)
        n *= node->input[0]->dims[i].value;
    return threads * 3 * n * (int64_t)sizeof(float);
}

static void gradient_rows(const struct mgpu_launch *l, const struct rows *r, float *scratch,
                          struct mgpu_range range)
{
    float *dscale = out_data(l, 1) ? scratch + r->n : NULL;
    float *dbias = out_data(l, 2) ? scratch + 2 * r->n : NULL;
    memset(scratch, 0, 3 * (size_t)r->n * sizeof *scratch);
    for (int64_t row = range.begin; row < range.end; row++) {
        const float *x = in_data(l, 0) + row * r->n, *dy = in_data(l, 1) + row * r->n;
        float mean = in_data(l, 3) && !r->rms ? in_data(l, 3)[row] : 0;
        float inv_std = in_data(l, 4)[row];
        add_row(dscale, dbias, x, mean, inv_std, dy, r->n);
        if (out_data(l, 0))
            gradient_row(l, r, row, mean, inv_std, scratch);
    }
}

/* Adds up what the threads have, in their order. */
static void join(float *to, const float *scratch, int64_t n, int team)
{
    for (int64_t i = 0; to && i < n; i++) {
        double sum = 0;
        for (int t = 0; t < team; t++)
            sum += (double)scratch[t * 3 * n + i];
        to[i] = (float)sum;
    }
}

static int run_backward(const struct mgpu_launch *l)
{
    struct rows r = rows_of(l);
    float *scratch = l->workspace;
    int team = mgpu_cpu_team(l->threads, r.g * r.n);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        int me = omp_get_thread_num();
        gradient_rows(l, &r, scratch + me * 3 * r.n, mgpu_cpu_part(r.g, me, team));
    }
    join(out_data(l, 1), scratch + r.n, r.n, team);
    join(out_data(l, 2), scratch + 2 * r.n, r.n, team);
    return 0;
}

const struct mgpu_kernel mgpu_cpu_group_norm[] = {
    {"group_norm", "loops", mgpu_cpu_all_float, NULL, NULL, NULL, run_forward},
    {"group_norm_grad", "loops", mgpu_cpu_all_float, NULL, NULL, workspace, run_backward},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
