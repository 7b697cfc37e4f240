/* softmax, log-softmax and their gradients on floats.
 *
 * x is seen as [outer, n, inner], the classes in the middle. A task is a block of up to LANES
 * neighbouring lanes along `inner`; with inner 1 it is a row.
 */
#include "runtime/ops/softmax.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/simd.h"

#include <string.h>

enum { LANES = 64 };

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

/* y = exp(x - max) / sum, or x - max - log(sum). */
MGPU_SIMD static void softmax_row(float *y, const float *x, int64_t n, bool log_of)
{
    float most = largest(x, n), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float e = expf(x[i] - most);
        y[i] = log_of ? x[i] - most : e;
        sum += e;
    }
    float factor = 1 / sum, shift = logf(sum);
    MGPU_LOOP for (int64_t i = 0; i < n; i++) y[i] = log_of ? y[i] - shift : y[i] * factor;
}

/* dx = y * (dy - sum(y*dy)), or dy - exp(y) * sum(dy). */
MGPU_SIMD static void gradient_row(float *dx, const float *y, const float *dy, int64_t n,
                                   bool log_of)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += log_of ? dy[i] : y[i] * dy[i];
    if (log_of)
        MGPU_LOOP for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - expf(y[i]) * sum;
    else
        MGPU_LOOP for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
}

/* ---- Blocks of lanes: element i of the axis is `width` floats at i * inner ----------------------
 */

MGPU_SIMD static void softmax_lanes(float *y, const float *x, const struct lanes *s, int64_t width,
                                    bool log_of)
{
    float most[LANES], sum[LANES];
    for (int64_t j = 0; j < width; j++)
        most[j] = -INFINITY, sum[j] = 0;
    for (int64_t i = 0; i < s->n; i++)
        MGPU_LOOP for (int64_t j = 0; j < width; j++)
        {
            float v = x[i * s->inner + j];
            most[j] = v > most[j] ? v : most[j];
        }
    for (int64_t i = 0; i < s->n; i++)
        MGPU_LOOP for (int64_t j = 0; j < width; j++)
        {
            float v = x[i * s->inner + j] - most[j], e = expf(v);
            y[i * s->inner + j] = log_of ? v : e;
            sum[j] += e;
        }
    MGPU_LOOP for (int64_t j = 0; j < width; j++) sum[j] = log_of ? logf(sum[j]) : 1 / sum[j];
    for (int64_t i = 0; i < s->n; i++)
        MGPU_LOOP for (int64_t j = 0; j < width; j++)
        {
            float v = y[i * s->inner + j];
            y[i * s->inner + j] = log_of ? v - sum[j] : v * sum[j];
        }
}

MGPU_SIMD static void gradient_lanes(float *dx, const float *y, const float *dy,
                                     const struct lanes *s, int64_t width, bool log_of)
{
    float sum[LANES] = {0};
    for (int64_t i = 0; i < s->n; i++)
        MGPU_LOOP for (int64_t j = 0; j < width; j++)
        {
            int64_t at = i * s->inner + j;
            sum[j] += log_of ? dy[at] : y[at] * dy[at];
        }
    for (int64_t i = 0; i < s->n; i++)
        MGPU_LOOP for (int64_t j = 0; j < width; j++)
        {
            int64_t at = i * s->inner + j;
            dx[at] = log_of ? dy[at] - expf(y[at]) * sum[j] : y[at] * (dy[at] - sum[j]);
        }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Lanes [at, at + width) of one outer place. */
static void run_block(const struct mgpu_launch *l, const struct lanes *s, int64_t at, int64_t width)
{
    bool log_of = ((const struct mgpu_softmax_attrs *)l->node->attrs)->log;
    float *to = (float *)l->out[0].data + at;
    const float *a = (const float *)l->in[0].data + at;
    if (l->inputs == 1 && s->inner == 1)
        softmax_row(to, a, s->n, log_of);
    else if (l->inputs == 1)
        softmax_lanes(to, a, s, width, log_of);
    else if (s->inner == 1)
        gradient_row(to, a, (const float *)l->in[1].data + at, s->n, log_of);
    else
        gradient_lanes(to, a, (const float *)l->in[1].data + at, s, width, log_of);
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
