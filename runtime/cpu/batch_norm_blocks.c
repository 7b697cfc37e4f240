/* Batch normalisation of floats whose channels lie in blocks: a block after the other, all its
 * channels at once. Formulas as in batch_norm.c; the statistics of pieces that stay in the first
 * cache are joined as in Chan, Golub and LeVeque 1979, so that memory is read once for them.
 */
#include "runtime/cpu/batch_norm_finish.h"
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/simd.h"

enum { LANES = 64, MOST = MGPU_MOST_BLOCK };

/* A block of channels while it is worked on. */
struct task {
    const struct mgpu_launch *l;
    struct mgpu_planes p;
    int64_t first, channels; /* of the block, those that are there */
    int64_t step, run;       /* elements from sample to sample, of the block in a sample */
};

static struct task task_of(const struct mgpu_launch *l, int64_t b)
{
    struct task t = {.l = l, .p = mgpu_planes_of(&l->in[0])};
    t.first = b * t.p.block;
    t.channels = t.p.channels - t.first < t.p.block ? t.p.channels - t.first : t.p.block;
    t.run = t.p.places * t.p.block;
    t.step = t.p.blocks * t.run;
    return t;
}

/* The block's elements in runs, each within a sample. */
static int64_t runs_of(const struct task *t)
{
    return t->p.samples * ((t->run + MGPU_RUN - 1) / MGPU_RUN);
}

/* Where run r starts; *n elements. */
static int64_t run_of(const struct task *t, int64_t r, int64_t *n)
{
    int64_t runs = (t->run + MGPU_RUN - 1) / MGPU_RUN, from = r % runs * MGPU_RUN;
    *n = t->run - from < MGPU_RUN ? t->run - from : MGPU_RUN;
    return r / runs * t->step + t->first * t->p.places + from;
}

static void put(const struct task *t, int output, int j, double value)
{
    if (output < t->l->outputs && t->l->out[output].data)
        ((float *)t->l->out[output].data)[t->first + j] = (float)value;
}

static double get(const struct task *t, int input, int j)
{
    return (double)((const float *)t->l->in[input].data)[t->first + j];
}

/* ---- Loops over a run of n elements; element i belongs to channel i % block -------------------
 */

/* `take` takes element i into sums of lane j = i % LANES. */
#define EACH_LANE(take)                                                                            \
    for (int64_t at = 0; at < n; at += LANES) {                                                    \
        int64_t width = n - at < LANES ? n - at : LANES;                                           \
        if (width == LANES)                                                                        \
            _Pragma("GCC ivdep") for (int j = 0; j < LANES; j++)                                   \
            {                                                                                      \
                int64_t i = at + j;                                                                \
                take;                                                                              \
            }                                                                                      \
        else                                                                                       \
            for (int j = 0; j < width; j++) {                                                      \
                int64_t i = at + j;                                                                \
                take;                                                                              \
            }                                                                                      \
    }

static void fold(const float *lanes, int block, double *sum)
{
    for (int j = 0; j < block; j++)
        sum[j] = 0;
    for (int at = 0; at < LANES; at += block)
        for (int j = 0; j < block; j++)
            sum[j] += (double)lanes[at + j];
}

/* Of each channel: the sum, and the sum of squares about `mean` [LANES]. */
MGPU_SIMD static void lane_sums(const float *x, int64_t n,
                                float *lanes){EACH_LANE(lanes[j] += x[i])}

MGPU_SIMD static void lane_squares(const float *x, int64_t n, const float *mean, float *lanes){
    EACH_LANE(lanes[j] += (x[i] - mean[j]) * (x[i] - mean[j]))}

/* The sums of dy and of (x - mean) * dy. */
MGPU_SIMD static void lane_products(const float *x, const float *dy, int64_t n, const float *mean,
                                    float *lanes, float *products)
{
    EACH_LANE((lanes[j] += dy[i], products[j] += (x[i] - mean[j]) * dy[i]))
}

/* y = (x - mean) * factor + offset: the coefficients repeat over LANES. */
struct map {
    float mean[LANES], factor[LANES], offset[LANES];
};

MGPU_INLINE float mapped(const struct map *m, int64_t j, float x)
{
    return (x - m->mean[j]) * m->factor[j] + m->offset[j];
}

MGPU_INLINE float cut(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* y of x, plus `more` (NULL: nothing), cut to [low, high]. */
MGPU_SIMD static void normalise(float *y, const float *x, const float *more, int64_t n,
                                const struct map *m, float low, float high)
{
    for (int64_t at = 0; at < n; at += LANES) {
        int64_t width = n - at < LANES ? n - at : LANES;
        if (more)
#pragma GCC ivdep
            for (int64_t j = 0; j < width; j++)
                y[at + j] = cut(mapped(m, j, x[at + j]) + more[at + j], low, high);
        else
#pragma GCC ivdep
            for (int64_t j = 0; j < width; j++)
                y[at + j] = cut(mapped(m, j, x[at + j]), low, high);
    }
}

/* dy where y of x is within the limits, else 0. */
MGPU_SIMD static void mask(float *to, const float *dy, const float *x, int64_t n,
                           const struct map *m, float low, float high)
{
    for (int64_t at = 0; at < n; at += LANES) {
        int64_t width = n - at < LANES ? n - at : LANES;
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++) {
            float y = mapped(m, j, x[at + j]), d = dy[at + j];
            to[at + j] = y > low && y < high ? d : 0;
        }
    }
}

/* dx = dy * factor + (x - mean) * slope + offset */
MGPU_SIMD static void affine_2(float *dx, const float *dy, const float *x, int64_t n,
                               const float *mean, const float *factor, const float *slope,
                               const float *offset)
{
    for (int64_t at = 0; at < n; at += LANES) {
        int64_t width = n - at < LANES ? n - at : LANES;
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            dx[at + j] = dy[at + j] * factor[j] + (x[at + j] - mean[j]) * slope[j] + offset[j];
    }
}

static void repeat(float lanes[LANES], int block)
{
    for (int j = block; j < LANES; j++)
        lanes[j] = lanes[j - block];
}

static void repeat_map(struct map *m, int block)
{
    repeat(m->mean, block);
    repeat(m->factor, block);
    repeat(m->offset, block);
}

/* ---- Forward --------------------------------------------------------------------------------- */

struct statistics {
    double count, mean[MOST], squares[MOST]; /* about the mean */
};

static void add_piece(struct statistics *s, const float *x, int64_t n, int block)
{
    float lanes[LANES] = {0}, about[LANES], squares[LANES] = {0};
    double sum[MOST], more[MOST], count = (double)(n / block), all = s->count + count;
    lane_sums(x, n, lanes);
    fold(lanes, block, sum);
    for (int j = 0; j < block; j++)
        about[j] = (float)(sum[j] / count);
    repeat(about, block);
    lane_squares(x, n, about, squares);
    fold(squares, block, more);
    for (int j = 0; j < block; j++) {
        double mean = sum[j] / count, shift = mean - (double)about[j], delta = mean - s->mean[j];
        s->mean[j] += delta * count / all;
        s->squares[j] += more[j] - count * shift * shift + delta * delta * s->count * count / all;
    }
    s->count = all;
}

static struct statistics statistics_of(const struct task *t)
{
    struct statistics s = {0};
    for (int64_t r = 0, n; r < runs_of(t); r++) {
        int64_t at = run_of(t, r, &n);
        add_piece(&s, (const float *)t->l->in[0].data + at, n, t->p.block);
    }
    return s;
}

/* As they are stored: what is computed from them is the same when they are given. */
static void find_statistics(const struct task *t, float *mean, float *variance)
{
    bool given = mgpu_statistics_given(t->l);
    struct statistics s = given ? (struct statistics){0} : statistics_of(t);
    for (int j = 0; j < t->channels; j++) {
        mean[j] = (float)(given ? get(t, 4, j) : s.mean[j]);
        variance[j] = (float)(given ? get(t, 5, j) : s.squares[j] / s.count);
    }
}

static void forward(const struct task *t)
{
    const struct mgpu_batch_norm_attrs *a = t->l->node->attrs;
    struct map m = {{0}, {0}, {0}};
    float variance[MOST];
    find_statistics(t, m.mean, variance);
    for (int j = 0; j < t->channels; j++) {
        put(t, 1, j, (double)m.mean[j]);
        put(t, 2, j, (double)variance[j]);
        m.factor[j] = (float)(get(t, 1, j) / sqrt((double)variance[j] + a->epsilon));
        m.offset[j] = (float)get(t, 2, j);
    }
    repeat_map(&m, t->p.block);
    const float *x = t->l->in[0].data, *more = t->l->inputs > 3 ? t->l->in[3].data : NULL;
    float *y = t->l->out[0].data;
    for (int64_t r = 0, n; y && r < runs_of(t); r++) {
        int64_t at = run_of(t, r, &n);
        normalise(y + at, x + at, more ? more + at : NULL, n, &m,
                  a->clips ? (float)a->low : -INFINITY, a->clips ? (float)a->high : INFINITY);
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* As forward made y of x. */
static struct map map_of(const struct task *t)
{
    const struct mgpu_batch_norm_attrs *a = t->l->node->attrs;
    struct map m = {{0}, {0}, {0}};
    for (int j = 0; j < t->channels; j++) {
        m.mean[j] = (float)get(t, 3, j);
        m.factor[j] = (float)(get(t, 2, j) / sqrt(get(t, 4, j) + a->epsilon));
        m.offset[j] = mgpu_limits_by_bias(t->l) ? (float)get(t, 5, j) : 0;
    }
    repeat_map(&m, t->p.block);
    return m;
}

static const float *arriving(const struct task *t, const struct map *m, int64_t at, int64_t n,
                             float room[MGPU_RUN])
{
    const struct mgpu_batch_norm_attrs *a = t->l->node->attrs;
    if (!mgpu_limits_by_bias(t->l))
        return mgpu_arriving_run(t->l, at, n, room);
    mask(room, (const float *)t->l->in[1].data + at, (const float *)t->l->in[0].data + at, n, m,
         (float)a->low, (float)a->high);
    return room;
}

static void add_sums(const struct task *t, const struct map *m, double *sum, double *products)
{
    double part[MOST];
    float room[MGPU_RUN];
    for (int64_t r = 0, n; r < runs_of(t); r++) {
        int64_t at = run_of(t, r, &n);
        const float *x = (const float *)t->l->in[0].data + at;
        const float *dy = arriving(t, m, at, n, room);
        float lanes[LANES] = {0}, more[LANES] = {0};
        lane_products(x, dy, n, m->mean, lanes, more);
        fold(lanes, t->p.block, part);
        for (int j = 0; j < t->p.block; j++)
            sum[j] += part[j];
        fold(more, t->p.block, part);
        for (int j = 0; j < t->p.block; j++)
            products[j] += part[j];
    }
}

static void backward(const struct task *t)
{
    const struct mgpu_batch_norm_attrs *a = t->l->node->attrs;
    double sum[MOST] = {0}, products[MOST] = {0}, count = (double)(t->p.samples * t->p.places);
    float factor[LANES] = {0}, slope[LANES] = {0}, offset[LANES] = {0};
    const struct map m = map_of(t);
    add_sums(t, &m, sum, products);
    for (int j = 0; j < t->channels; j++) {
        double inv_std = 1 / sqrt(get(t, 4, j) + a->epsilon), scale = get(t, 2, j) * inv_std;
        put(t, 1, j, products[j] * inv_std);
        put(t, 2, j, sum[j]);
        factor[j] = (float)scale;
        slope[j] = (float)(-scale * inv_std * inv_std * products[j] / count);
        offset[j] = (float)(-scale * sum[j] / count);
    }
    repeat(factor, t->p.block);
    repeat(slope, t->p.block);
    repeat(offset, t->p.block);
    float *dx = t->l->out[0].data, room[MGPU_RUN];
    const float *x = t->l->in[0].data;
    for (int64_t r = 0, n; dx && r < runs_of(t); r++) {
        int64_t at = run_of(t, r, &n);
        affine_2(dx + at, arriving(t, &m, at, n, room), x + at, n, m.mean, factor, slope, offset);
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static int each_block(const struct mgpu_launch *l, void (*run)(const struct task *t))
{
    struct mgpu_planes p = mgpu_planes_of(&l->in[0]);
    int team = mgpu_cpu_team(l->threads, p.samples * p.channels * p.places);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t b = 0; b < p.blocks; b++) {
        struct task t = task_of(l, b);
        run(&t);
    }
    return 0;
}

static int run_forward(const struct mgpu_launch *l)
{
    return each_block(l, forward);
}

static int run_backward(const struct mgpu_launch *l)
{
    return each_block(l, backward);
}

const struct mgpu_kernel mgpu_cpu_batch_norm_blocks[] = {
    {"batch_norm", "blocks", NULL, NULL, NULL, NULL, run_forward},
    {"batch_norm_grad", "blocks", NULL, NULL, NULL, NULL, run_backward},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
