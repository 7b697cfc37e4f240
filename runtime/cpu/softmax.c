/* softmax, log-softmax and their gradients on floats.
 *
 * x is seen as [outer, n, inner], the classes in the middle. A task is a block of up to LANES
 * neighbouring lanes along `inner`; with inner 1 it is a row.
 */
#include "runtime/ops/softmax.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/simd.h"
#include "runtime/cpu/softmax.h"

enum { LANES = MGPU_LANES };

struct lanes {
    int64_t outer, n, inner;
};

static struct lanes lanes_of(const struct mgpu_launch *l)
{
    const struct mgpu_softmax_attrs *a = l->node->attrs;
    struct lanes s = {1, 1, 1};
    for (int i = 0; i < l->out[0].rank; i++)
        *(i < a->axis ? &s.outer : i == a->axis ? &s.n : &s.inner) *= l->out[0].dims[i];
    return s;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

MGPU_INLINE float largest(const float *x, int64_t n)
{
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

MGPU_SIMD float mgpu_cpu_exp_sum(const float *x, int64_t n, float *most_of)
{
    float most = largest(x, n), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += mgpu_exp_negativef(x[i] - most);
    *most_of = most;
    return sum;
}

/* y = scale * exp(x - max) / sum */
MGPU_SIMD void mgpu_cpu_softmax_row(float *y, const float *x, int64_t n, float scale)
{
    float most = largest(x, n), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float e = mgpu_exp_negativef(x[i] - most);
        y[i] = e;
        sum += e;
    }
    float factor = scale / sum;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] *= factor;
}

/* y = x - max - log(sum) */
MGPU_SIMD static void log_softmax_row(float *y, const float *x, int64_t n)
{
    float most, shift = logf(mgpu_cpu_exp_sum(x, n, &most));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - most - shift;
}

/* dx = y * (dy - sum(y*dy)) */
MGPU_SIMD static void softmax_gradient_row(float *dx, const float *y, const float *dy, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += y[i] * dy[i];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - sum);
}

/* dx = dy - exp(y) * sum(dy) */
MGPU_SIMD static void log_softmax_gradient_row(float *dx, const float *y, const float *dy,
                                               int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += dy[i];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] - mgpu_expf(y[i]) * sum;
}

/* ---- Blocks of lanes: element i of the axis is `width` floats at i * step -----------------------
 */

MGPU_SIMD void mgpu_cpu_exp_sum_lanes(const float *x, int64_t n, int64_t step, int64_t width,
                                      float *most, float *sum)
{
    for (int64_t j = 0; j < width; j++)
        most[j] = -INFINITY, sum[j] = 0;
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++) {
            float v = x[i * step + j];
            most[j] = v > most[j] ? v : most[j];
        }
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            sum[j] += mgpu_exp_negativef(x[i * step + j] - most[j]);
}

MGPU_SIMD void mgpu_cpu_softmax_lanes(float *y, const float *x, int64_t n, int64_t step,
                                      int64_t width, const float *scale)
{
    float most[LANES], factor[LANES];
    mgpu_cpu_exp_sum_lanes(x, n, step, width, most, factor);
    for (int64_t j = 0; j < width; j++)
        factor[j] = (scale ? scale[j] : 1) / factor[j];
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            y[i * step + j] = mgpu_exp_negativef(x[i * step + j] - most[j]) * factor[j];
}

MGPU_SIMD static void log_softmax_lanes(float *y, const float *x, int64_t n, int64_t step,
                                        int64_t width)
{
    float most[LANES], sum[LANES];
    mgpu_cpu_exp_sum_lanes(x, n, step, width, most, sum);
#pragma GCC ivdep
    for (int64_t j = 0; j < width; j++)
        sum[j] = logf(sum[j]);
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            y[i * step + j] = x[i * step + j] - most[j] - sum[j];
}

MGPU_SIMD static void softmax_gradient_lanes(float *dx, const float *y, const float *dy, int64_t n,
                                             int64_t step, int64_t width)
{
    float sum[LANES] = {0};
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            sum[j] += y[i * step + j] * dy[i * step + j];
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            dx[i * step + j] = y[i * step + j] * (dy[i * step + j] - sum[j]);
}

MGPU_SIMD static void log_softmax_gradient_lanes(float *dx, const float *y, const float *dy,
                                                 int64_t n, int64_t step, int64_t width)
{
    float sum[LANES] = {0};
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            sum[j] += dy[i * step + j];
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            dx[i * step + j] = dy[i * step + j] - mgpu_expf(y[i * step + j]) * sum[j];
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static void forward_block(bool log_of, const struct lanes *s, float *y, const float *x,
                          int64_t width)
{
    if (s->inner == 1 && log_of)
        log_softmax_row(y, x, s->n);
    else if (s->inner == 1)
        mgpu_cpu_softmax_row(y, x, s->n, 1);
    else if (log_of)
        log_softmax_lanes(y, x, s->n, s->inner, width);
    else
        mgpu_cpu_softmax_lanes(y, x, s->n, s->inner, width, NULL);
}

static void backward_block(bool log_of, const struct lanes *s, float *dx, const float *y,
                           const float *dy, int64_t width)
{
    if (s->inner == 1)
        (log_of ? log_softmax_gradient_row : softmax_gradient_row)(dx, y, dy, s->n);
    else
        (log_of ? log_softmax_gradient_lanes : softmax_gradient_lanes)(dx, y, dy, s->n, s->inner,
                                                                       width);
}

/* Lanes [at, at + width) of one outer place. */
static void run_block(const struct mgpu_launch *l, const struct lanes *s, int64_t at, int64_t width)
{
    bool log_of = ((const struct mgpu_softmax_attrs *)l->node->attrs)->log;
    float *to = (float *)l->out[0].data + at;
    const float *a = (const float *)l->in[0].data + at;
    if (l->inputs == 1)
        forward_block(log_of, s, to, a, width);
    else
        backward_block(log_of, s, to, a, (const float *)l->in[1].data + at, width);
}

static int run(const struct mgpu_launch *l)
{
    struct lanes s = lanes_of(l);
    int64_t blocks = (s.inner + LANES - 1) / LANES;
    int team = mgpu_cpu_team(l->threads, 4 * s.outer * s.n * s.inner);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < s.outer * blocks; task++) {
        int64_t first = task % blocks * LANES, left = s.inner - first;
        run_block(l, &s, task / blocks * s.n * s.inner + first, left < LANES ? left : LANES);
    }
    return 0;
}

const struct mgpu_kernel mgpu_cpu_softmax[] = {
    {"softmax", "loops", mgpu_cpu_all_float, NULL, NULL, NULL, run},
    {"softmax_grad", "loops", mgpu_cpu_all_float, NULL, NULL, NULL, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
