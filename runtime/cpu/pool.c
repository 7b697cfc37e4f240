/* Pooling of float planes: the taps of a window one after the other, each over a row of outputs. */
#include "runtime/ops/pool.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/simd.h"

#include <float.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { D, H, W, AXES };

/* One axis of the windows; axes that the node lacks have size 1. */
struct axis {
    int64_t in, out, kernel, stride, dilation, before, after;
};

struct pool {
    struct axis axis[AXES];
    int64_t in_count, out_count, taps; /* elements of a plane of x and of y; of a window */
    int32_t *tap[AXES];                /* where tap k stands from its window's start */
    float *count[AXES];                /* what an average divides by: a factor an axis */
};

/* ---- Geometry -------------------------------------------------------------------------------- */

static struct axis axis_of(const struct mgpu_pool_attrs *a, int k)
{
    int64_t i = k + a->spatial - AXES;
    if (i < 0)
        return (struct axis){1, 1, 1, 1, 1, 0, 0};
    return (struct axis){a->in[i],       a->out[i],    a->kernel[i], a->stride[i],
                         a->dilation[i], a->before[i], a->after[i]};
}

/* Which outputs have tap k of their window inside x. */
static struct mgpu_range outputs_of(const struct axis *a, int64_t k)
{
    int64_t shift = a->before - k * a->dilation; /* x = output * stride - shift */
    int64_t begin = shift > 0 ? (shift + a->stride - 1) / a->stride : 0;
    int64_t last = a->in - 1 + shift;
    int64_t end = last < 0 ? 0 : last / a->stride + 1;
    end = end < a->out ? end : a->out;
    return (struct mgpu_range){begin < end ? begin : end, end};
}

/* Taps of output o's window that count: inside x, or inside the padded x. */
static int64_t taps_inside(const struct axis *a, int64_t o, bool padding)
{
    int64_t n = 0, start = o * a->stride - a->before;
    int64_t low = padding ? -a->before : 0, high = a->in + (padding ? a->after : 0);
    for (int64_t k = 0; k < a->kernel; k++) {
        int64_t at = start + k * a->dilation;
        n += at >= low && at < high;
    }
    return n;
}

static void fill_axis(struct pool *p, int k, bool padding)
{
    const struct axis *a = &p->axis[k];
    int64_t inner = k == D ? p->axis[H].kernel * p->axis[W].kernel : k == H ? p->axis[W].kernel : 1;
    p->count[k] = mgpu_xcalloc((size_t)a->out, sizeof(float));
    p->tap[k] = mgpu_xcalloc((size_t)p->taps, sizeof(int32_t));
    for (int64_t o = 0; o < a->out; o++)
        p->count[k][o] = (float)taps_inside(a, o, padding);
    for (int64_t t = 0; t < p->taps; t++)
        p->tap[k][t] = (int32_t)(t / inner % a->kernel * a->dilation);
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_pool_attrs *a = node->attrs;
    struct pool *p = mgpu_xcalloc(1, sizeof *p);
    p->in_count = p->out_count = p->taps = 1;
    for (int k = 0; k < AXES; k++) {
        p->axis[k] = axis_of(a, k);
        p->in_count *= p->axis[k].in;
        p->out_count *= p->axis[k].out;
        p->taps *= p->axis[k].kernel;
    }
    for (int k = 0; k < AXES; k++)
        fill_axis(p, k, a->count_include_pad);
    *state = p;
    return 0;
}

static void release(void *state)
{
    struct pool *p = state;
    for (int k = 0; p && k < AXES; k++) {
        free(p->tap[k]);
        free(p->count[k]);
    }
    free(p);
}

/* The row of x that output row (d, h) meets at taps (kd, kh), or NULL outside. */
static float *row_of(const struct pool *p, float *plane, int64_t d, int64_t h, int64_t kd,
                     int64_t kh)
{
    const struct axis *a = &p->axis[D], *b = &p->axis[H];
    int64_t x = d * a->stride - a->before + kd * a->dilation;
    int64_t y = h * b->stride - b->before + kh * b->dilation;
    if (x < 0 || x >= a->in || y < 0 || y >= b->in)
        return NULL;
    return plane + (x * b->in + y) * p->axis[W].in;
}

/* Calls `row(context, ...)` for every plane and every row of its outputs. */
typedef void row_fn(const struct pool *p, const struct mgpu_launch *l, int64_t plane, int64_t d,
                    int64_t h);

static void each_row(const struct mgpu_launch *l, int64_t planes, row_fn *row)
{
    const struct pool *p = l->state;
    int team = mgpu_cpu_team(l->threads, planes * p->in_count);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t plane = 0; plane < planes; plane++)
        for (int64_t d = 0; d < p->axis[D].out; d++)
            for (int64_t h = 0; h < p->axis[H].out; h++)
                row(p, l, plane, d, h);
}

static int64_t planes_of(const struct mgpu_launch *l)
{
    return l->in[0].dims[0] * l->in[0].dims[1];
}

/* ---- max ------------------------------------------------------------------------------------- */

MGPU_INLINE void max_tap_by(int64_t stride, float *y, int32_t *argument, const float *x, int64_t n,
                            int32_t k)
{
    MGPU_LOOP for (int64_t i = 0; i < n; i++)
    {
        float v = x[i * stride], most = y[i];
        bool take = (v > most) | (argument[i] < 0) | ((v != v) & (most == most));
        y[i] = take ? v : most;
        argument[i] = take ? k : argument[i];
    }
}

/* Outputs take in x[i * stride] as tap k where it is larger, the first, or the first NaN. */
MGPU_SIMD static void max_tap(int64_t stride, float *y, int32_t *argument, const float *x,
                              int64_t n, int32_t k)
{
    if (stride == 1)
        max_tap_by(1, y, argument, x, n, k);
    else if (stride == 2)
        max_tap_by(2, y, argument, x, n, k);
    else
        max_tap_by(stride, y, argument, x, n, k);
}

static void max_row(const struct pool *p, const struct mgpu_launch *l, int64_t plane, int64_t d,
                    int64_t h)
{
    const struct axis *w = &p->axis[W];
    int64_t at = plane * p->out_count + (d * p->axis[H].out + h) * w->out;
    float *y = (float *)l->out[0].data + at;
    int32_t *argument = l->outputs > 1 && l->out[1].data
                            ? (int32_t *)l->out[1].data + at
                            : (int32_t *)l->workspace + omp_get_thread_num() * w->out;
    for (int64_t i = 0; i < w->out; i++) {
        y[i] = -FLT_MAX; /* what a window over nothing but padding gives, as in ref */
        argument[i] = -1;
    }
    for (int64_t k = 0; k < p->taps; k += w->kernel) {
        int64_t kh = k / w->kernel % p->axis[H].kernel, kd = k / w->kernel / p->axis[H].kernel;
        const float *x = row_of(p, (float *)l->in[0].data + plane * p->in_count, d, h, kd, kh);
        for (int64_t kw = 0; x && kw < w->kernel; kw++) {
            struct mgpu_range o = outputs_of(w, kw);
            max_tap(w->stride, y + o.begin, argument + o.begin,
                    x + o.begin * w->stride - w->before + kw * w->dilation, o.end - o.begin,
                    (int32_t)(k + kw));
        }
    }
    for (int64_t i = 0; i < w->out; i++)
        argument[i] = argument[i] < 0 ? 0 : argument[i];
}

static int64_t max_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct pool *p = state;
    bool wanted = node->outputs > 1 && node->output[1];
    return wanted ? 0 : threads * p->axis[W].out * (int64_t)sizeof(int32_t);
}

static int run_max(const struct mgpu_launch *l)
{
    each_row(l, planes_of(l), max_row);
    return 0;
}

static void max_grad_row(const struct pool *p, const struct mgpu_launch *l, int64_t plane,
                         int64_t d, int64_t h)
{
    const struct axis *a = p->axis;
    int64_t at = plane * p->out_count + (d * a[H].out + h) * a[W].out;
    const float *dy = (const float *)l->in[0].data + at;
    const int32_t *argument = (const int32_t *)l->in[1].data + at;
    float *dx = (float *)l->out[0].data + plane * p->in_count;
    if (d == 0 && h == 0)
        memset(dx, 0, (size_t)p->in_count * sizeof *dx);
    for (int64_t i = 0; i < a[W].out; i++) {
        int32_t k = argument[i];
        int64_t x = d * a[D].stride - a[D].before + p->tap[D][k];
        int64_t y = h * a[H].stride - a[H].before + p->tap[H][k];
        int64_t z = i * a[W].stride - a[W].before + p->tap[W][k];
        if (x >= 0 && x < a[D].in && y >= 0 && y < a[H].in && z >= 0 && z < a[W].in)
            dx[(x * a[H].in + y) * a[W].in + z] += dy[i];
    }
}

static int run_max_grad(const struct mgpu_launch *l)
{
    each_row(l, planes_of(l), max_grad_row);
    return 0;
}

/* ---- average --------------------------------------------------------------------------------- */

/* Sums take in x[i * stride]. */
MGPU_SIMD static void add_tap(int64_t stride, float *y, const float *x, int64_t n)
{
    if (stride == 1)
        MGPU_LOOP for (int64_t i = 0; i < n; i++) y[i] += x[i];
    else if (stride == 2)
        MGPU_LOOP for (int64_t i = 0; i < n; i++) y[i] += x[2 * i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] += x[i * stride];
}

/* And the other way: x[i * stride] takes in y[i]. */
MGPU_SIMD static void spread_tap(int64_t stride, float *x, const float *y, int64_t n)
{
    if (stride == 1)
        MGPU_LOOP for (int64_t i = 0; i < n; i++) x[i] += y[i];
    else
        for (int64_t i = 0; i < n; i++)
            x[i * stride] += y[i];
}

/* to = from / count, the count of output row (d, h). */
MGPU_SIMD static void divide(float *to, const float *from, const float *count, float rows,
                             int64_t n)
{
    MGPU_LOOP for (int64_t i = 0; i < n; i++)
    {
        float c = rows * count[i];
        to[i] = c > 0 ? from[i] / c : 0;
    }
}

MGPU_SIMD static float sum_of(const float *x, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* One row of x into one row of sums. Rows of few, wide windows are summed window by window. */
static void add_row(const struct axis *w, float *y, const float *x)
{
    if (w->out < 4 && w->kernel > w->out && w->dilation == 1) {
        for (int64_t o = 0; o < w->out; o++) {
            int64_t begin = o * w->stride - w->before, end = begin + w->kernel;
            begin = begin < 0 ? 0 : begin;
            end = end < w->in ? end : w->in;
            y[o] += end > begin ? sum_of(x + begin, end - begin) : 0;
        }
        return;
    }
    for (int64_t k = 0; k < w->kernel; k++) {
        struct mgpu_range o = outputs_of(w, k);
        add_tap(w->stride, y + o.begin, x + o.begin * w->stride - w->before + k * w->dilation,
                o.end - o.begin);
    }
}

static void average_row(const struct pool *p, const struct mgpu_launch *l, int64_t plane, int64_t d,
                        int64_t h)
{
    const struct axis *w = &p->axis[W];
    float *y = (float *)l->out[0].data + plane * p->out_count + (d * p->axis[H].out + h) * w->out;
    memset(y, 0, (size_t)w->out * sizeof *y);
    for (int64_t kd = 0; kd < p->axis[D].kernel; kd++)
        for (int64_t kh = 0; kh < p->axis[H].kernel; kh++) {
            const float *x = row_of(p, (float *)l->in[0].data + plane * p->in_count, d, h, kd, kh);
            if (x)
                add_row(w, y, x);
        }
    divide(y, y, p->count[W], p->count[D][d] * p->count[H][h], w->out);
}

static int run_average(const struct mgpu_launch *l)
{
    each_row(l, planes_of(l), average_row);
    return 0;
}

static void average_grad_row(const struct pool *p, const struct mgpu_launch *l, int64_t plane,
                             int64_t d, int64_t h)
{
    const struct axis *w = &p->axis[W];
    float *dx = (float *)l->out[0].data + plane * p->in_count;
    float *part = (float *)l->workspace + omp_get_thread_num() * w->out;
    const float *dy = (const float *)l->in[0].data + plane * p->out_count;
    if (d == 0 && h == 0)
        memset(dx, 0, (size_t)p->in_count * sizeof *dx);
    divide(part, dy + (d * p->axis[H].out + h) * w->out, p->count[W],
           p->count[D][d] * p->count[H][h], w->out);
    for (int64_t k = 0; k < p->taps; k++) {
        int64_t kw = k % w->kernel, kh = k / w->kernel % p->axis[H].kernel;
        float *x = row_of(p, dx, d, h, k / w->kernel / p->axis[H].kernel, kh);
        struct mgpu_range o = outputs_of(w, kw);
        if (x)
            spread_tap(w->stride, x + o.begin * w->stride - w->before + kw * w->dilation,
                       part + o.begin, o.end - o.begin);
    }
}

static int64_t average_grad_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node;
    return threads * ((const struct pool *)state)->axis[W].out * (int64_t)sizeof(float);
}

static int run_average_grad(const struct mgpu_launch *l)
{
    each_row(l, planes_of(l), average_grad_row);
    return 0;
}

/* ---- The table ------------------------------------------------------------------------------- */

static bool is_float(const struct mgpu_value *v)
{
    return v && v->type == MGPU_FLOAT && mgpu_value_count(v) > 0;
}

static bool accepts(const struct mgpu_node *node)
{
    return is_float(node->input[0]) && is_float(node->output[0]);
}

const struct mgpu_kernel mgpu_cpu_pool[] = {
    {"max_pool", "loops", accepts, prepare, release, max_workspace, run_max},
    {"max_pool_grad", "loops", accepts, prepare, release, NULL, run_max_grad},
    {"average_pool", "loops", accepts, prepare, release, NULL, run_average},
    {"average_pool_grad", "loops", accepts, prepare, release, average_grad_workspace,
     run_average_grad},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
