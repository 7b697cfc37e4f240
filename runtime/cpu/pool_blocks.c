/* Pooling of floats whose channels lie in blocks: tap by tap over a row of outputs, all channels of
 * a block side by side. */
#include "runtime/base/status.h"
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/pool_axis.h"
#include "runtime/cpu/simd.h"

#include <float.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct pool {
    struct mgpu_pool_axis axis[AXES];
    float *count[AXES]; /* what an average divides by: a factor an axis */
};

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_pool_attrs *a = node->attrs;
    struct pool *p = mgpu_xcalloc(1, sizeof *p);
    for (int k = 0; k < AXES; k++) {
        p->axis[k] = mgpu_pool_axis_of(a, k);
        p->count[k] = mgpu_xcalloc((size_t)p->axis[k].out, sizeof(float));
        for (int64_t o = 0; o < p->axis[k].out; o++)
            p->count[k][o] = (float)mgpu_pool_taps(&p->axis[k], o, a->count_include_pad);
    }
    *state = p;
    return 0;
}

static void release(void *state)
{
    struct pool *p = state;
    for (int k = 0; p && k < AXES; k++)
        free(p->count[k]);
    free(p);
}

/* Row (d, h) of the outputs of a block of channels in a sample. */
struct row {
    const struct pool *p;
    int block;
    int64_t d, h;
    float *y;      /* this row of y or dy */
    int32_t *best; /* and of the places of maxima */
    float *x;      /* the whole plane of x or dx */
};

/* Works on the outputs o that have tap k of their window inside x: n of them, `step` elements of x
 * apart. */
typedef void tap_fn(const struct row *r, int64_t o, int64_t n, float *x, int64_t step, int32_t k);

static bool inside(const struct mgpu_pool_axis *a, int64_t o, int64_t k, int64_t *x)
{
    *x = o * a->stride - a->before + k * a->dilation;
    return *x >= 0 && *x < a->in;
}

/* Taps in the order of the window. */
static void each_tap(const struct row *r, tap_fn *tap)
{
    const struct mgpu_pool_axis *a = r->p->axis, *w = &a[W];
    int64_t x, y;
    for (int64_t kd = 0; kd < a[D].kernel; kd++)
        for (int64_t kh = 0; kh < a[H].kernel; kh++) {
            if (!inside(&a[D], r->d, kd, &x) || !inside(&a[H], r->h, kh, &y))
                continue;
            for (int64_t kw = 0; kw < w->kernel; kw++) {
                struct mgpu_range o = mgpu_pool_outputs(w, kw);
                int64_t z = o.begin * w->stride - w->before + kw * w->dilation;
                int64_t k = (kd * a[H].kernel + kh) * w->kernel + kw;
                if (o.begin < o.end)
                    tap(r, o.begin, o.end - o.begin,
                        r->x + ((x * a[H].in + y) * w->in + z) * r->block, w->stride * r->block,
                        (int32_t)k);
            }
        }
}

/* ---- Taps ------------------------------------------------------------------------------------ */

/* Both widths of a block as constants. */
#define BY_BLOCK(name, r, ...)                                                                     \
    do {                                                                                           \
        if ((r)->block == 8)                                                                       \
            name(8, __VA_ARGS__);                                                                  \
        else                                                                                       \
            name(16, __VA_ARGS__);                                                                 \
    } while (0)

/* The first of equal elements stays; NaN counts as the largest. */
MGPU_INLINE void max_by(int block, float *y, int32_t *best, const float *x, int64_t n, int64_t step,
                        int32_t k)
{
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int j = 0; j < block; j++) {
            float v = x[i * step + j], most = y[i * block + j];
            int32_t old = best[i * block + j];
            bool take = (old < 0) | (v > most) | ((v != v) & (most == most));
            y[i * block + j] = take ? v : most;
            best[i * block + j] = take ? k : old;
        }
}

MGPU_SIMD static void max_tap(const struct row *r, int64_t o, int64_t n, float *x, int64_t step,
                              int32_t k)
{
    BY_BLOCK(max_by, r, r->y + o * r->block, r->best + o * r->block, x, n, step, k);
}

MGPU_INLINE void max_grad_by(int block, const float *dy, const int32_t *best, float *dx, int64_t n,
                             int64_t step, int32_t k)
{
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int j = 0; j < block; j++)
            dx[i * step + j] += best[i * block + j] == k ? dy[i * block + j] : 0;
}

MGPU_SIMD static void max_grad_tap(const struct row *r, int64_t o, int64_t n, float *x,
                                   int64_t step, int32_t k)
{
    BY_BLOCK(max_grad_by, r, r->y + o * r->block, r->best + o * r->block, x, n, step, k);
}

MGPU_INLINE void sum_by(int block, float *y, const float *x, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int j = 0; j < block; j++)
            y[i * block + j] += x[i * step + j];
}

MGPU_SIMD static void sum_tap(const struct row *r, int64_t o, int64_t n, float *x, int64_t step,
                              int32_t k)
{
    (void)k;
    BY_BLOCK(sum_by, r, r->y + o * r->block, x, n, step);
}

MGPU_INLINE void spread_by(int block, const float *dy, const float *count, float rows, float *dx,
                           int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        float c = rows * count[i], factor = c > 0 ? 1 / c : 0;
#pragma GCC ivdep
        for (int j = 0; j < block; j++)
            dx[i * step + j] += dy[i * block + j] * factor;
    }
}

static float row_count(const struct row *r)
{
    return r->p->count[D][r->d] * r->p->count[H][r->h];
}

MGPU_SIMD static void spread_tap(const struct row *r, int64_t o, int64_t n, float *x, int64_t step,
                                 int32_t k)
{
    (void)k;
    BY_BLOCK(spread_by, r, r->y + o * r->block, r->p->count[W] + o, row_count(r), x, n, step);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void max_row(const struct row *r)
{
    int64_t n = r->p->axis[W].out * r->block;
    for (int64_t i = 0; i < n; i++) {
        r->y[i] = -FLT_MAX; /* what a window over nothing but padding gives, as in ref */
        r->best[i] = -1;
    }
    each_tap(r, max_tap);
    for (int64_t i = 0; i < n; i++)
        r->best[i] = r->best[i] < 0 ? 0 : r->best[i];
}

static void max_grad_row(const struct row *r)
{
    each_tap(r, max_grad_tap);
}

static void average_row(const struct row *r)
{
    const struct mgpu_pool_axis *w = &r->p->axis[W];
    memset(r->y, 0, (size_t)(w->out * r->block) * sizeof *r->y);
    each_tap(r, sum_tap);
    for (int64_t o = 0; o < w->out; o++) {
        float c = row_count(r) * r->p->count[W][o];
        for (int j = 0; j < r->block; j++)
            r->y[o * r->block + j] = c > 0 ? r->y[o * r->block + j] / c : 0;
    }
}

static void average_grad_row(const struct row *r)
{
    each_tap(r, spread_tap);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* A row of places for each thread, for whom nobody wants them. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node;
    const struct pool *p = state;
    return threads * p->axis[W].out * MGPU_MOST_BLOCK * (int64_t)sizeof(int32_t);
}

static int64_t plane_of(const struct mgpu_tensor *t)
{
    struct mgpu_planes p = mgpu_planes_of(t);
    return p.places * p.block;
}

/* `y` and `best` (NULL: there is none) in the outputs' sizes, x in the inputs'. */
static int each_row(const struct mgpu_launch *l, const struct mgpu_tensor *y,
                    const struct mgpu_tensor *best, const struct mgpu_tensor *x, bool clear,
                    void (*run)(const struct row *r))
{
    const struct pool *p = l->state;
    struct mgpu_planes planes = mgpu_planes_of(x);
    int64_t count = planes.samples * planes.blocks, in = plane_of(x), out = plane_of(y);
    int64_t width = p->axis[W].out * planes.block, rows = p->axis[D].out * p->axis[H].out;
    int team = mgpu_cpu_team(l->threads, count * in);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        struct row r = {.p = p, .block = planes.block, .x = (float *)x->data + i * in};
        if (clear)
            memset(r.x, 0, (size_t)in * sizeof *r.x);
        for (int64_t row = 0; row < rows; row++) {
            r.d = row / p->axis[H].out;
            r.h = row % p->axis[H].out;
            r.y = (float *)y->data + i * out + row * width;
            r.best = best && best->data ? (int32_t *)best->data + i * out + row * width
                                        : (int32_t *)l->workspace + omp_get_thread_num() * width;
            run(&r);
        }
    }
    return 0;
}

static int run_max(const struct mgpu_launch *l)
{
    const struct mgpu_tensor *best = l->outputs > 1 ? &l->out[1] : NULL;
    MGPU_TRY(each_row(l, &l->out[0], best, &l->in[0], false, max_row));
    mgpu_clear_padding(&l->out[0]);
    if (best && best->data)
        mgpu_clear_padding(best);
    return 0;
}

static int run_max_grad(const struct mgpu_launch *l)
{
    return each_row(l, &l->in[0], &l->in[1], &l->out[0], true, max_grad_row);
}

static int run_average(const struct mgpu_launch *l)
{
    return each_row(l, &l->out[0], NULL, &l->in[0], false, average_row);
}

static int run_average_grad(const struct mgpu_launch *l)
{
    return each_row(l, &l->in[0], NULL, &l->out[0], true, average_grad_row);
}

const struct mgpu_kernel mgpu_cpu_pool_blocks[] = {
    {"max_pool", "blocks", NULL, prepare, release, workspace, run_max},
    {"max_pool_grad", "blocks", NULL, prepare, release, workspace, run_max_grad},
    {"average_pool", "blocks", NULL, prepare, release, workspace, run_average},
    {"average_pool_grad", "blocks", NULL, prepare, release, workspace, run_average_grad},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
