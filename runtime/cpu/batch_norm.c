/* Batch normalisation of floats in its training form, a channel after the other while its samples
 * are in the cache; where a channel has one element a sample, a block of channels at a time.
 * Formulas: Ioffe and Szegedy 2015, section 3.
 */
#include "runtime/cpu/simd.h"
#include "runtime/cpu/batch_norm_finish.h"

enum { BLOCK = 64 };

struct sizes {
    int64_t n, c, s; /* samples, channels, elements of a channel in a sample */
    double epsilon;
};

static struct sizes sizes_of(const struct mgpu_launch *l)
{
    const struct mgpu_tensor *x = &l->in[0];
    const struct mgpu_batch_norm_attrs *a = l->node->attrs;
    struct sizes z = {x->dims[0], x->dims[1], 1, a->epsilon};
    for (int i = 2; i < x->rank; i++)
        z.s *= x->dims[i];
    return z;
}

/* Element `i` of an output that may be unwanted. */
static void put(const struct mgpu_launch *l, int output, int64_t i, float value)
{
    if (output < l->outputs && l->out[output].data)
        ((float *)l->out[output].data)[i] = value;
}

static float get(const struct mgpu_launch *l, int input, int64_t i)
{
    return ((const float *)l->in[input].data)[i];
}

/* A channel in runs, each within a sample. */
struct run {
    int64_t at, n;
};

static int64_t runs_of(const struct sizes *z)
{
    return z->n * ((z->s + MGPU_RUN - 1) / MGPU_RUN);
}

static struct run run_of(const struct sizes *z, int64_t c, int64_t r)
{
    int64_t runs = (z->s + MGPU_RUN - 1) / MGPU_RUN, from = r % runs * MGPU_RUN;
    return (struct run){(r / runs * z->c + c) * z->s + from,
                        z->s - from < MGPU_RUN ? z->s - from : MGPU_RUN};
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* As they are stored: what is computed from them is the same when they are given. */
struct statistics {
    float mean, variance;
};

/* `scale`: which input it is. */
static float factor_of(const struct mgpu_launch *l, const struct sizes *z, int64_t c, int scale,
                       float variance)
{
    return (float)((double)get(l, scale, c) / sqrt((double)variance + z->epsilon));
}

static struct statistics statistics_of(const struct mgpu_launch *l, const struct sizes *z,
                                       int64_t c)
{
    const float *x = (const float *)l->in[0].data + c * z->s;
    int64_t step = z->c * z->s;
    double count = (double)(z->n * z->s), sum = 0, squares = 0;
    if (mgpu_statistics_given(l))
        return (struct statistics){get(l, 4, c), get(l, 5, c)};
    for (int64_t i = 0; i < z->n; i++)
        sum += mgpu_cpu_sum(x + i * step, z->s);
    float mean = (float)(sum / count);
    for (int64_t i = 0; i < z->n; i++)
        squares += mgpu_cpu_sum_squares(x + i * step, mean, z->s);
    return (struct statistics){mean, (float)(squares / count)};
}

static void forward_channel(const struct mgpu_launch *l, const struct sizes *z, int64_t c)
{
    struct statistics s = statistics_of(l, z, c);
    put(l, 1, c, s.mean);
    put(l, 2, c, s.variance);
    if (!l->out[0].data)
        return;
    float mean = s.mean, factor = factor_of(l, z, c, 1, s.variance);
    const float *x = l->in[0].data;
    float *y = l->out[0].data;
    for (int64_t r = 0; r < runs_of(z); r++) {
        struct run run = run_of(z, c, r);
        mgpu_cpu_affine(y + run.at, x + run.at, mean, factor, get(l, 2, c), run.n);
        mgpu_finish_run(l, run.at, run.n);
    }
}

/* Rows of x of `width` channels: sums, and sums of squares about the means, in double. */
MGPU_SIMD static void column_sums(const float *x, int64_t n, int64_t step, double *sum,
                                  int64_t width)
{
    for (int64_t j = 0; j < width; j++)
        sum[j] = 0;
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            sum[j] += (double)x[i * step + j];
}

MGPU_SIMD static void column_squares(const float *x, int64_t n, int64_t step, const float *mean,
                                     double *sum, int64_t width)
{
    for (int64_t j = 0; j < width; j++)
        sum[j] = 0;
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++) {
            double v = (double)(x[i * step + j] - mean[j]);
            sum[j] += v * v;
        }
}

MGPU_SIMD static void columns_affine(float *y, const float *x, int64_t n, int64_t step,
                                     const float *mean, const float *factor, const float *offset,
                                     int64_t width)
{
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            y[i * step + j] = (x[i * step + j] - mean[j]) * factor[j] + offset[j];
}

static void block_statistics(const struct mgpu_launch *l, const struct sizes *z, int64_t c,
                             int64_t width, float *mean, float *variance)
{
    const float *x = (const float *)l->in[0].data + c;
    double sum[BLOCK];
    column_sums(x, z->n, z->c, sum, width);
    for (int64_t j = 0; j < width; j++)
        mean[j] = (float)(sum[j] / (double)z->n);
    column_squares(x, z->n, z->c, mean, sum, width);
    for (int64_t j = 0; j < width; j++)
        variance[j] = (float)(sum[j] / (double)z->n);
}

static void forward_block(const struct mgpu_launch *l, const struct sizes *z, int64_t c,
                          int64_t width)
{
    const float *x = (const float *)l->in[0].data + c;
    float mean[BLOCK], variance[BLOCK], factor[BLOCK];
    if (!mgpu_statistics_given(l))
        block_statistics(l, z, c, width, mean, variance);
    for (int64_t j = 0; j < width; j++) {
        mean[j] = mgpu_statistics_given(l) ? get(l, 4, c + j) : mean[j];
        variance[j] = mgpu_statistics_given(l) ? get(l, 5, c + j) : variance[j];
        put(l, 1, c + j, mean[j]);
        put(l, 2, c + j, variance[j]);
        factor[j] = factor_of(l, z, c + j, 1, variance[j]);
    }
    if (l->out[0].data)
        columns_affine((float *)l->out[0].data + c, x, z->n, z->c, mean, factor,
                       (const float *)l->in[2].data + c, width);
}

/* ---- Backward --------------------------------------------------------------------------------
 * dbias = sum dy, dscale = sum dy * xhat, dx = scale / std * (dy - dbias / n - xhat * dscale / n)
 */

struct gradient {
    float factor, slope, offset; /* dx = dy * factor + (x - mean) * slope + offset */
};

static struct gradient finish_channel(const struct mgpu_launch *l, const struct sizes *z, int64_t c,
                                      double sum, double products)
{
    double count = (double)(z->n * z->s);
    double inv_std = 1 / sqrt((double)get(l, 4, c) + z->epsilon);
    double factor = (double)get(l, 2, c) * inv_std;
    put(l, 1, c, (float)(products * inv_std));
    put(l, 2, c, (float)sum);
    return (struct gradient){(float)factor, (float)(-factor * inv_std * inv_std * products / count),
                             (float)(-factor * sum / count)};
}

static const float *arriving(const struct mgpu_launch *l, const struct sizes *z, int64_t c,
                             struct run run, float room[MGPU_RUN])
{
    if (mgpu_limits_by_bias(l))
        mgpu_cpu_affine(room, (const float *)l->in[0].data + run.at, get(l, 3, c),
                        factor_of(l, z, c, 2, get(l, 4, c)), get(l, 5, c), run.n);
    return mgpu_arriving_run(l, run.at, run.n, room);
}

static void backward_channel(const struct mgpu_launch *l, const struct sizes *z, int64_t c)
{
    const float *x = l->in[0].data;
    double sum = 0, products = 0;
    float mean = get(l, 3, c), room[MGPU_RUN];
    for (int64_t r = 0; r < runs_of(z); r++) {
        struct run run = run_of(z, c, r);
        const float *dy = arriving(l, z, c, run, room);
        sum += mgpu_cpu_sum(dy, run.n);
        products += mgpu_cpu_sum_products(x + run.at, mean, dy, run.n);
    }
    struct gradient g = finish_channel(l, z, c, sum, products);
    if (!l->out[0].data)
        return;
    float *dx = l->out[0].data;
    for (int64_t r = 0; r < runs_of(z); r++) {
        struct run run = run_of(z, c, r);
        mgpu_cpu_affine_2(dx + run.at, arriving(l, z, c, run, room), g.factor, x + run.at, mean,
                          g.slope, g.offset, run.n);
    }
}

MGPU_SIMD static void column_products(const float *x, const float *dy, int64_t n, int64_t step,
                                      const float *mean, double *sum, double *products,
                                      int64_t width)
{
    for (int64_t j = 0; j < width; j++)
        sum[j] = products[j] = 0;
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++) {
            double d = (double)dy[i * step + j];
            sum[j] += d;
            products[j] += d * (double)(x[i * step + j] - mean[j]);
        }
}

MGPU_SIMD static void columns_affine_2(float *dx, const float *dy, const float *x, int64_t n,
                                       int64_t step, const float *mean, const float *factor,
                                       const float *slope, const float *offset, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
#pragma GCC ivdep
        for (int64_t j = 0; j < width; j++)
            dx[i * step + j] =
                dy[i * step + j] * factor[j] + (x[i * step + j] - mean[j]) * slope[j] + offset[j];
}

static void backward_block(const struct mgpu_launch *l, const struct sizes *z, int64_t c,
                           int64_t width)
{
    const float *x = (const float *)l->in[0].data + c, *dy = (const float *)l->in[1].data + c;
    const float *mean = (const float *)l->in[3].data + c;
    double sum[BLOCK], products[BLOCK];
    float factor[BLOCK], slope[BLOCK], offset[BLOCK];
    column_products(x, dy, z->n, z->c, mean, sum, products, width);
    for (int64_t j = 0; j < width; j++) {
        struct gradient g = finish_channel(l, z, c + j, sum[j], products[j]);
        factor[j] = g.factor, slope[j] = g.slope, offset[j] = g.offset;
    }
    if (l->out[0].data)
        columns_affine_2((float *)l->out[0].data + c, dy, x, z->n, z->c, mean, factor, slope,
                         offset, width);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

typedef void channel_fn(const struct mgpu_launch *l, const struct sizes *z, int64_t c);
typedef void block_fn(const struct mgpu_launch *l, const struct sizes *z, int64_t c, int64_t width);

static int each(const struct mgpu_launch *l, channel_fn *channel, block_fn *block)
{
    struct sizes z = sizes_of(l);
    int team = mgpu_cpu_team(l->threads, z.n * z.c * z.s);
    int64_t tasks = z.s > 1 ? z.c : (z.c + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t c = task * BLOCK;
        if (z.s > 1)
            channel(l, &z, task);
        else
            block(l, &z, c, z.c - c < BLOCK ? z.c - c : BLOCK);
    }
    return 0;
}

static int run_forward(const struct mgpu_launch *l)
{
    return each(l, forward_channel, forward_block);
}

static int run_backward(const struct mgpu_launch *l)
{
    return each(l, backward_channel, backward_block);
}

/* Blocks of channels end with the normalisation itself. */
static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_batch_norm_attrs *a = node->attrs;
    bool adds = node->op == &mgpu_op_batch_norm && node->inputs > 3 && node->input[3];
    bool finishes = a->clips || adds;
    const struct mgpu_value *x = node->input[0];
    int64_t samples = x->dims[0].value * x->dims[1].value;
    return mgpu_cpu_all_float(node) && (!finishes || mgpu_value_count(x) > samples);
}

const struct mgpu_kernel mgpu_cpu_batch_norm[] = {
    {"batch_norm", "loops", accepts, NULL, NULL, NULL, run_forward},
    {"batch_norm_grad", "loops", accepts, NULL, NULL, NULL, run_backward},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
