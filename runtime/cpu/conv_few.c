/* The gradient of a convolution by its kernels where the input has few channels, as images do that
 * enter a network. x lies plain, dy in blocks of 8 channels:
 *
 *     dw[o,c,i,j] = sum over samples and places of dy[o,h,w] * x[c, h*stride + i, w*stride + j]
 *
 * Blocks of x would be mostly padding. Here the eight channels of dy go side by side, and each of a
 * few neighbouring taps has a sum in a register. A thread sums up each of its samples, and those.
 */
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/simd.h"
#include "runtime/ops/conv.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANES = 8,
    FEW = 4,       /* channels are fewer */
    TAPS = 9,      /* sums in registers, at most */
    NEAR = 1 << 9, /* places of dy at a time: in the first cache */
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

struct few {
    int64_t samples, channels, blocks; /* of x; of dy's channels */
    int64_t x[2], y[2];                /* height and width */
    int64_t kernel[2], stride[2], before[2], dilation;
    int64_t padded[2]; /* height and width that the windows reach over */
    int64_t sums;      /* of a thread, in lanes */
};

bool mgpu_cpu_few_channels(const struct mgpu_node *node)
{
    if (node->op != &mgpu_op_conv_grad_weight || !node->output[0])
        return false;
    const struct mgpu_conv_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0], *w = node->output[0];
    int64_t wide = a->spatial == 2 ? w->dims[3].value : 0;
    return (wide == 3 || wide == 5 || wide == 7) && a->group == 1 && a->dilation[1] == 1 &&
           x->dims[1].value < FEW && w->dims[0].value % LANES == 0;
}

static bool accepts(const struct mgpu_node *node)
{
    return mgpu_cpu_few_channels(node) && node->input[0]->block == 0 &&
           node->input[1]->block == LANES;
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    const struct mgpu_conv_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0], *y = node->input[1], *w = node->output[0];
    struct few *z = mgpu_xcalloc(1, sizeof *z);
    z->samples = x->dims[0].value;
    z->channels = x->dims[1].value;
    z->blocks = y->dims[1].value / LANES;
    z->dilation = a->dilation[0];
    for (int i = 0; i < 2; i++) {
        z->x[i] = x->dims[2 + i].value;
        z->y[i] = y->dims[2 + i].value;
        z->kernel[i] = w->dims[2 + i].value;
        z->stride[i] = a->stride[i];
        z->before[i] = a->before[i];
        z->padded[i] = (z->y[i] - 1) * z->stride[i] + (z->kernel[i] - 1) * a->dilation[i] + 1;
    }
    z->sums = z->blocks * z->channels * z->kernel[0] * z->kernel[1];
    *state = z;
    return 0;
}

/* Floats of a thread: its sums, those of a sample, the sample with its padding. */
static int64_t room_of(const struct few *z)
{
    int64_t image = z->channels * z->padded[0] * z->padded[1];
    return 2 * z->sums * LANES + (image + LANES - 1) / LANES * LANES;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node;
    return threads * room_of(state) * (int64_t)sizeof(float);
}

/* The inside of a padded sample; its border stays zero. */
static void pad(const struct few *z, const float *x, float *to)
{
    int64_t h1 = z->padded[0] - z->before[0], w1 = z->padded[1] - z->before[1];
    h1 = h1 < z->x[0] ? h1 : z->x[0];
    w1 = w1 < z->x[1] ? w1 : z->x[1];
    for (int64_t c = 0; c < z->channels; c++)
        for (int64_t h = 0; h < h1 && w1 > 0; h++)
            memcpy(to + ((c * z->padded[0] + h + z->before[0]) * z->padded[1] + z->before[1]),
                   x + (c * z->x[0] + h) * z->x[1], (size_t)w1 * sizeof *to);
}

/* Taps of `rows` kernel rows, `row` elements of x apart, take in n places. */
MGPU_INLINE void add_taps(int rows, int wide, const float *x, int64_t row, int64_t step,
                          const lanes *dy, int64_t n, lanes *sum)
{
    lanes acc[TAPS];
#pragma GCC unroll 9
    for (int t = 0; t < rows * wide; t++)
        acc[t] = sum[t];
    for (int64_t i = 0; i < n; i++, x += step)
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 7
            for (int k = 0; k < wide; k++)
                acc[r * wide + k] += x[r * row + k] * dy[i];
#pragma GCC unroll 9
    for (int t = 0; t < rows * wide; t++)
        sum[t] = acc[t];
}

/* Output rows [h0, h1) of one channel of x and one block of dy. */
MGPU_SIMD static void add_rows(const struct few *z, const float *x, const lanes *dy, int64_t h0,
                               int64_t h1, lanes *sum)
{
    int64_t row = z->dilation * z->padded[1], wide = z->kernel[1], n = z->y[1];
    int64_t rows = wide == 3 && z->kernel[0] == 3 ? 3 : 1;
    for (int64_t k = 0; k < z->kernel[0]; k += rows)
        for (int64_t h = h0; h < h1; h++) {
            const float *from = x + h * z->stride[0] * z->padded[1] + k * row;
            const lanes *d = dy + h * n;
            lanes *to = sum + k * wide;
            if (rows == 3)
                add_taps(3, 3, from, row, z->stride[1], d, n, to);
            else if (wide == 3)
                add_taps(1, 3, from, row, z->stride[1], d, n, to);
            else if (wide == 5)
                add_taps(1, 5, from, row, z->stride[1], d, n, to);
            else
                add_taps(1, 7, from, row, z->stride[1], d, n, to);
        }
}

MGPU_SIMD static void add(float *to, float *from, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        to[i] += from[i];
        from[i] = 0;
    }
}

/* x: with its padding; `own`: zero before and after. */
static void add_sample(const struct few *z, const float *x, const lanes *dy, float *sums,
                       float *own)
{
    int64_t taps = z->kernel[0] * z->kernel[1], image = z->padded[0] * z->padded[1];
    int64_t height = z->y[0], step = 1 + NEAR / z->y[1];
    for (int64_t h = 0; h < height; h += step)
        for (int64_t b = 0; b < z->blocks; b++)
            for (int64_t c = 0; c < z->channels; c++)
                add_rows(z, x + c * image, dy + b * height * z->y[1], h,
                         h + step < height ? h + step : height,
                         (lanes *)own + (b * z->channels + c) * taps);
    add(sums, own, z->sums * LANES);
}

/* The threads' sums to dw [O,C,K,K]. */
static void join(const struct few *z, const float *room, int team, int64_t o, float *dw)
{
    int64_t taps = z->sums / z->blocks;
    for (int64_t t = 0; t < taps; t++) {
        float sum = 0;
        for (int i = 0; i < team; i++)
            sum += room[i * room_of(z) + (o / LANES * taps + t) * LANES + o % LANES];
        dw[o * taps + t] = sum;
    }
}

static int run(const struct mgpu_launch *l)
{
    const struct few *z = l->state;
    float *dbias = l->outputs > 1 ? l->out[1].data : NULL;
    int64_t x = z->channels * z->x[0] * z->x[1], y = z->blocks * z->y[0] * z->y[1];
    int team = mgpu_cpu_team(l->threads, z->samples * y * LANES);
    team = team < z->samples ? team : (int)z->samples;
#pragma omp parallel num_threads(team) if (team > 1)
    {
        int me = omp_get_thread_num();
        float *sums = (float *)l->workspace + me * room_of(z), *sample = sums + z->sums * LANES;
        float *image = sample + z->sums * LANES;
        struct mgpu_range own = mgpu_cpu_part(z->samples, me, team);
        memset(sums, 0, (size_t)room_of(z) * sizeof *sums);
        for (int64_t n = own.begin; n < own.end; n++) {
            pad(z, (const float *)l->in[0].data + n * x, image);
            add_sample(z, image, (const lanes *)l->in[1].data + n * y, sums, sample);
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t o = 0; o < z->blocks * LANES; o++)
            join(z, l->workspace, team, o, l->out[0].data);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < (dbias ? z->blocks : 0); b++)
            mgpu_sum_planes(&l->in[1], b, z->samples, z->blocks, 1, dbias + b * LANES);
    }
    return 0;
}

static void release(void *state)
{
    free(state);
}

const struct mgpu_kernel mgpu_cpu_conv_few[] = {
    {"conv_grad_weight", "few", accepts, prepare, release, workspace, run},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
