/* What joins, cuts, spreads and sums channels that lie in blocks. */
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/broadcast.h"
#include "runtime/cpu/simd.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/reduce.h"

#include <string.h>

/* Elements of a sample. */
static int64_t sample_of(const struct mgpu_tensor *t)
{
    struct mgpu_planes p = mgpu_planes_of(t);
    return p.blocks * p.places * p.block;
}

/* Runs of `n` elements, one a sample. */
static void copy_runs(float *to, int64_t to_step, const float *from, int64_t from_step, int64_t n,
                      int64_t samples, int threads)
{
    int team = mgpu_cpu_team(threads, n * samples);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < samples; i++)
        memcpy(to + i * to_step, from + i * from_step, (size_t)n * sizeof *to);
}

static int run_concat(const struct mgpu_launch *l)
{
    float *to = l->out[0].data;
    int64_t step = sample_of(&l->out[0]);
    for (int i = 0; i < l->inputs; i++) {
        int64_t n = sample_of(&l->in[i]);
        copy_runs(to, step, l->in[i].data, n, n, l->in[i].dims[0], l->threads);
        to += n;
    }
    return 0;
}

static int run_slice(const struct mgpu_launch *l)
{
    const struct mgpu_slice_attrs *a = l->node->attrs;
    struct mgpu_planes p = mgpu_planes_of(&l->in[0]);
    const float *from = (const float *)l->in[0].data + a->start[1] * p.places;
    int64_t n = sample_of(&l->out[0]);
    copy_runs(l->out[0].data, n, from, sample_of(&l->in[0]), n, p.samples, l->threads);
    return 0;
}

/* One number to all, or one a channel or a channel of a sample to all its places. */
static int run_expand(const struct mgpu_launch *l)
{
    struct mgpu_planes p = mgpu_planes_of(&l->out[0]);
    struct mgpu_broadcast b = mgpu_broadcast_make(l->node->input[0], l->node->output[0]);
    int64_t plane = p.places * p.block, planes = p.samples * p.blocks;
    int team = mgpu_cpu_team(l->threads, planes * plane);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < planes; i++)
        mgpu_broadcast_load(&b, &l->in[0], i * plane, plane, (float *)l->out[0].data + i * plane);
    mgpu_clear_padding(&l->out[0]);
    return 0;
}

/* ---- Sums over places ------------------------------------------------------------------------ */

/* sum[j] takes in x[i * block + j]: in float over short pieces. */
MGPU_INLINE void add_places_by(int block, const float *x, int64_t places, double *sum)
{
    enum { PIECE = 64 };
    for (int64_t at = 0; at < places; at += PIECE) {
        float part[MGPU_MOST_BLOCK] = {0};
        int64_t end = places - at < PIECE ? places : at + PIECE;
        for (int64_t i = at; i < end; i++)
#pragma GCC ivdep
            for (int j = 0; j < block; j++)
                part[j] += x[i * block + j];
        for (int j = 0; j < block; j++)
            sum[j] += (double)part[j];
    }
}

MGPU_SIMD static void add_places(int block, const float *x, int64_t places, double *sum)
{
    if (block == 8)
        add_places_by(8, x, places, sum);
    else
        add_places_by(16, x, places, sum);
}

void mgpu_sum_planes(const struct mgpu_tensor *x, int64_t first, int64_t planes, int64_t step,
                     double factor, float *to)
{
    struct mgpu_planes p = mgpu_planes_of(x);
    double sum[MGPU_MOST_BLOCK] = {0};
    for (int64_t i = 0; i < planes; i++)
        add_places(p.block, (const float *)x->data + (first + i * step) * p.places * p.block,
                   p.places, sum);
    for (int j = 0; j < p.block; j++)
        to[j] = (float)(sum[j] * factor);
}

/* [C], or [N,C]: no channel is left over. */
static int run_reduce(const struct mgpu_launch *l)
{
    const struct mgpu_reduce_attrs *a = l->node->attrs;
    struct mgpu_planes p = mgpu_planes_of(&l->in[0]);
    bool samples = a->axes & 1;
    int64_t planes = samples ? p.samples : 1, tasks = p.samples * p.blocks / planes;
    double factor = a->kind == MGPU_REDUCE_MEAN ? 1 / (double)(planes * p.places) : 1;
    int team = mgpu_cpu_team(l->threads, p.samples * p.channels * p.places);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
    for (int64_t i = 0; i < tasks; i++)
        mgpu_sum_planes(&l->in[0], i, planes, p.blocks, factor,
                        (float *)l->out[0].data + i * p.block);
    return 0;
}

const struct mgpu_kernel mgpu_cpu_channel_blocks[] = {
    {"concat", "blocks", NULL, NULL, NULL, NULL, run_concat},
    {"slice", "blocks", NULL, NULL, NULL, NULL, run_slice},
    {"expand", "blocks", NULL, NULL, NULL, NULL, run_expand},
    {"reduce", "blocks", NULL, NULL, NULL, NULL, run_reduce},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
