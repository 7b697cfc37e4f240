/* The three convolutions in plain C. Each is one matrix product a group, where one factor is
 * gathered from windows of a tensor as it is needed:
 *
 *     y[o, (n,t)]     = sum over (c,k) of w[o, (c,k)]     * x at tap k of window t      (+ bias[o])
 *     dx[c, (n,s)]    = sum over (o,k) of w[(o,k), c]     * dy of the window whose tap k is s
 *     dw[o, (c,k)]    = sum over (n,t) of dy[o, (n,t)]    * x at tap k of window t
 */
#include "runtime/ops/conv.h"
#include "runtime/ref/gemm.h"
#include "runtime/ref/ref.h"

/* A tensor [N, C, size...] seen through taps: position p and tap k on an axis meet at
 * (p * scale + offset + k * step) / divide, where that is a whole number inside the axis. */
struct taps {
    const struct mgpu_tensor *tensor;
    int64_t channels, group_channels; /* of the tensor, of one group */
    int64_t size[MGPU_MAX_SPATIAL];   /* of the tensor */
    int64_t positions[MGPU_MAX_SPATIAL], kernel[MGPU_MAX_SPATIAL];
    int64_t scale[MGPU_MAX_SPATIAL], offset[MGPU_MAX_SPATIAL];
    int64_t step[MGPU_MAX_SPATIAL], divide[MGPU_MAX_SPATIAL];
};

struct conv {
    struct taps taps;
    struct mgpu_tensor w;            /* w or dw */
    const struct mgpu_tensor *other; /* y, dx or dy: [N, channels, positions] */
    const struct mgpu_tensor *bias;  /* NULL: none */
    int64_t group, samples;
    int64_t out_channels, in_channels; /* of one group: O/group and C/group */
    int64_t kernel, positions;         /* products over the axes */
    bool relu;
};

static int64_t product(const int64_t *sizes)
{
    return sizes[0] * sizes[1] * sizes[2];
}

/* Spatial sizes as three axes, the missing ones in front with size 1. */
static void spatial_sizes(const struct mgpu_tensor *t, int64_t sizes[MGPU_MAX_SPATIAL])
{
    for (int axis = 0; axis < MGPU_MAX_SPATIAL; axis++) {
        int i = axis + t->rank - MGPU_MAX_SPATIAL;
        sizes[axis] = i < 2 ? 1 : t->dims[i];
    }
}

/* `source` is the tensor that is gathered from, `other` the one whose positions are walked. `back`:
 * positions are those of x and the source is dy. */
static struct conv conv_of(const struct mgpu_launch *l, const struct mgpu_tensor *source,
                           const struct mgpu_tensor *other, const struct mgpu_tensor *w, bool back)
{
    const struct mgpu_conv_attrs *attrs = l->node->attrs;
    struct conv c = {.w = *w, .other = other, .group = attrs->group, .samples = other->dims[0]};
    struct taps *taps = &c.taps;
    taps->tensor = source;
    taps->channels = source->dims[1];
    taps->group_channels = source->dims[1] / attrs->group;
    spatial_sizes(source, taps->size);
    spatial_sizes(other, taps->positions);
    spatial_sizes(w, taps->kernel);
    for (int axis = 0; axis < MGPU_MAX_SPATIAL; axis++) {
        int64_t i = axis + attrs->spatial - MGPU_MAX_SPATIAL;
        int64_t stride = i < 0 ? 1 : attrs->stride[i];
        int64_t dilation = i < 0 ? 1 : attrs->dilation[i], before = i < 0 ? 0 : attrs->before[i];
        taps->scale[axis] = back ? 1 : stride;
        taps->offset[axis] = back ? before : -before;
        taps->step[axis] = back ? -dilation : dilation;
        taps->divide[axis] = back ? stride : 1;
    }
    c.out_channels = w->dims[0] / attrs->group;
    c.in_channels = w->dims[1];
    c.kernel = product(taps->kernel);
    c.positions = product(taps->positions);
    return c;
}

/* Where position and tap meet on the axis, or -1. */
static int64_t meet(const struct taps *taps, int axis, int64_t base, int64_t tap)
{
    int64_t at = base + tap * taps->step[axis];
    if (at < 0)
        return -1;
    if (taps->divide[axis] != 1) {
        if (at % taps->divide[axis])
            return -1;
        at /= taps->divide[axis];
    }
    return at < taps->size[axis] ? at : -1;
}

/* Sample and scaled place of a flat position (n, p0, p1, p2). */
struct place {
    int64_t sample, base[MGPU_MAX_SPATIAL];
};

static struct place place_of(const struct taps *taps, int64_t position)
{
    struct place place;
    for (int axis = MGPU_MAX_SPATIAL - 1; axis >= 0; axis--) {
        int64_t p = position % taps->positions[axis];
        position /= taps->positions[axis];
        place.base[axis] = p * taps->scale[axis] + taps->offset[axis];
    }
    place.sample = position;
    return place;
}

static double tap_value(const struct taps *taps, const struct place *place, int64_t channel,
                        const int64_t *tap)
{
    int64_t index = place->sample * taps->channels + channel;
    for (int axis = 0; axis < MGPU_MAX_SPATIAL; axis++) {
        int64_t at = meet(taps, axis, place->base[axis], tap[axis]);
        if (at < 0)
            return 0;
        index = index * taps->size[axis] + at;
    }
    return mgpu_ref_get(taps->tensor->data, taps->tensor->type, index);
}

/* tile[r * row + p * column] for flat taps (channel, k) r and flat positions p. */
static void gather(const struct taps *taps, int64_t group, struct mgpu_span rows,
                   struct mgpu_span positions, double *tile, int row, int column)
{
    struct place places[MGPU_TILE_N > MGPU_TILE_K ? MGPU_TILE_N : MGPU_TILE_K];
    for (int p = 0; p < positions.count; p++)
        places[p] = place_of(taps, positions.first + p);
    for (int r = 0; r < rows.count; r++) {
        int64_t rest = rows.first + r, tap[MGPU_MAX_SPATIAL];
        for (int axis = MGPU_MAX_SPATIAL - 1; axis >= 0; axis--) {
            tap[axis] = rest % taps->kernel[axis];
            rest /= taps->kernel[axis];
        }
        int64_t channel = group * taps->group_channels + rest;
        for (int p = 0; p < positions.count; p++)
            tile[r * row + p * column] = tap_value(taps, &places[p], channel, tap);
    }
}

static void load_taps(const void *context, int64_t group, struct mgpu_span k, struct mgpu_span j,
                      double *tile)
{
    const struct conv *c = context;
    gather(&c->taps, group, k, j, tile, MGPU_TILE_N, 1);
}

/* Element (channel i of the group, flat position j) of the other tensor. */
static int64_t other_index(const struct conv *c, int64_t group, int64_t i, int64_t j)
{
    int64_t channels = c->other->dims[1];
    int64_t channel = group * (channels / c->group) + i;
    return (j / c->positions * channels + channel) * c->positions + j % c->positions;
}

static void store_other(const void *context, int64_t group, struct mgpu_span i, struct mgpu_span j,
                        const double *tile)
{
    const struct conv *c = context;
    const struct mgpu_tensor *y = c->other;
    for (int r = 0; r < i.count; r++) {
        int64_t channel = group * (y->dims[1] / c->group) + i.first + r;
        double bias = c->bias ? mgpu_ref_get(c->bias->data, c->bias->type, channel) : 0;
        for (int p = 0; p < j.count; p++) {
            double v = tile[r * MGPU_TILE_N + p] + bias;
            mgpu_ref_set(y->data, y->type, other_index(c, group, i.first + r, j.first + p),
                         c->relu && v < 0 ? 0 : v);
        }
    }
}

/* w of the group as [O/group, C/group * K]. */
static struct mgpu_matrix weights(const struct conv *c, int64_t group)
{
    int64_t row = c->in_channels * c->kernel;
    return (struct mgpu_matrix){c->w.data, c->w.type, group * c->out_channels * row, row, 1};
}

/* ---- conv ------------------------------------------------------------------------------------ */

static void load_weights(const void *context, int64_t group, struct mgpu_span i, struct mgpu_span k,
                         double *tile)
{
    const struct conv *c = context;
    struct mgpu_matrix w = weights(c, group);
    mgpu_matrix_load(&w, i, k, tile, MGPU_TILE_K);
}

static int run_conv(const struct mgpu_launch *l)
{
    struct conv c = conv_of(l, &l->in[0], &l->out[0], &l->in[1], false);
    if (l->inputs > 2 && l->in[2].data)
        c.bias = &l->in[2];
    c.relu = ((const struct mgpu_conv_attrs *)l->node->attrs)->relu;
    struct mgpu_gemm gemm = {.batch = c.group,
                             .m = c.out_channels,
                             .n = c.samples * c.positions,
                             .k = c.in_channels * c.kernel,
                             .context = &c,
                             .load_a = load_weights,
                             .load_b = load_taps,
                             .store = store_other};
    mgpu_gemm_run(&gemm);
    return 0;
}

/* ---- conv_grad_input ------------------------------------------------------------------------- */

static void load_weights_transposed(const void *context, int64_t group, struct mgpu_span i,
                                    struct mgpu_span k, double *tile)
{
    const struct conv *c = context;
    struct mgpu_matrix w = weights(c, group);
    for (int r = 0; r < k.count; r++) {
        int64_t out = (k.first + r) / c->kernel, tap = (k.first + r) % c->kernel;
        for (int p = 0; p < i.count; p++)
            tile[p * MGPU_TILE_K + r] = mgpu_ref_get(
                w.data, w.type, w.offset + out * w.row + (i.first + p) * c->kernel + tap);
    }
}

static int run_grad_input(const struct mgpu_launch *l)
{
    struct conv c = conv_of(l, &l->in[0], &l->out[0], &l->in[1], true);
    struct mgpu_gemm gemm = {.batch = c.group,
                             .m = c.in_channels,
                             .n = c.samples * c.positions,
                             .k = c.out_channels * c.kernel,
                             .context = &c,
                             .load_a = load_weights_transposed,
                             .load_b = load_taps,
                             .store = store_other};
    mgpu_gemm_run(&gemm);
    return 0;
}

/* ---- conv_grad_weight ------------------------------------------------------------------------ */

static void load_other(const void *context, int64_t group, struct mgpu_span i, struct mgpu_span k,
                       double *tile)
{
    const struct conv *c = context;
    for (int r = 0; r < i.count; r++)
        for (int p = 0; p < k.count; p++)
            tile[r * MGPU_TILE_K + p] = mgpu_ref_get(
                c->other->data, c->other->type, other_index(c, group, i.first + r, k.first + p));
}

static void load_taps_transposed(const void *context, int64_t group, struct mgpu_span k,
                                 struct mgpu_span j, double *tile)
{
    const struct conv *c = context;
    gather(&c->taps, group, j, k, tile, 1, MGPU_TILE_N);
}

static void store_weights(const void *context, int64_t group, struct mgpu_span i,
                          struct mgpu_span j, const double *tile)
{
    const struct conv *c = context;
    struct mgpu_matrix w = weights(c, group);
    mgpu_matrix_store(&w, i, j, tile, false);
}

/* dbias[o] = sum of dy over samples and positions. */
static void sum_bias(const struct conv *c, const struct mgpu_tensor *dbias)
{
    const struct mgpu_tensor *dy = c->other;
#pragma omp parallel for
    for (int64_t o = 0; o < dy->dims[1]; o++) {
        double sum = 0;
        for (int64_t n = 0; n < c->samples; n++)
            for (int64_t t = 0; t < c->positions; t++)
                sum += mgpu_ref_get(dy->data, dy->type, (n * dy->dims[1] + o) * c->positions + t);
        mgpu_ref_set(dbias->data, dbias->type, o, sum);
    }
}

static int run_grad_weight(const struct mgpu_launch *l)
{
    struct conv c = conv_of(l, &l->in[0], &l->in[1], &l->out[0], false);
    struct mgpu_gemm gemm = {.batch = c.group,
                             .m = c.out_channels,
                             .n = c.in_channels * c.kernel,
                             .k = c.samples * c.positions,
                             .context = &c,
                             .load_a = load_other,
                             .load_b = load_taps_transposed,
                             .store = store_weights};
    if (c.w.data)
        mgpu_gemm_run(&gemm);
    if (l->outputs > 1 && l->out[1].data)
        sum_bias(&c, &l->out[1]);
    return 0;
}

const struct mgpu_kernel mgpu_ref_conv[] = {
    {.op = "conv", .name = "ref", .run = run_conv},
    {.op = "conv_grad_input", .name = "ref", .run = run_grad_input},
    {.op = "conv_grad_weight", .name = "ref", .run = run_grad_weight},
    {.op = NULL},
};
