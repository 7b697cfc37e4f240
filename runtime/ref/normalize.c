/* Normalisations in double, channel by channel and row by row (runtime/ops/normalize.h). */
#include "runtime/ops/normalize.h"

#include "runtime/ref/ref.h"
#include "runtime/ref/rows.h"

#include <math.h>

/* A piece of a tensor that one loop looks at. */
struct piece {
    int64_t offset, stride;
    int count;
};

static int tile_of(int64_t left)
{
    return left < MGPU_TILE ? (int)left : MGPU_TILE;
}

static void load(double *to, const struct mgpu_tensor *t, struct piece p)
{
    mgpu_row_load(to, t, p.offset, p.stride, p.count);
}

static double value_at(const struct mgpu_tensor *t, int64_t i)
{
    return mgpu_get_double(t->data, t->type, i);
}

static void set_at(const struct mgpu_tensor *t, int64_t i, double value)
{
    if (t->data)
        mgpu_set_double(t->data, t->type, i, value);
}

static double mean_of(double sum, int64_t count)
{
    return count ? sum / (double)count : 0;
}

/* ---- batch_norm ------------------------------------------------------------------------------ */

/* x as [N, C, inner]; a channel is walked in pieces along `inner`, or along N where inner is 1. */
struct channels {
    struct mgpu_lanes x;
    int64_t runs, length, pieces; /* runs of `length` elements, each in this many pieces */
    int64_t count;                /* elements of a channel */
};

static struct channels channels_of(const struct mgpu_tensor *x)
{
    struct mgpu_lanes lanes = mgpu_lanes_of(x, 1);
    bool one = lanes.inner == 1;
    struct channels c = {.x = lanes,
                         .runs = one ? 1 : lanes.outer,
                         .length = one ? lanes.outer : lanes.inner,
                         .count = lanes.outer * lanes.inner};
    c.pieces = (c.length + MGPU_TILE - 1) / MGPU_TILE;
    return c;
}

static struct piece piece_of(const struct channels *c, int64_t channel, int64_t i)
{
    int64_t run = i / c->pieces, at = i % c->pieces * MGPU_TILE;
    int64_t stride = c->x.inner == 1 ? c->x.size : 1;
    return (struct piece){.offset = (run * c->x.size + channel) * c->x.inner + at * stride,
                          .stride = stride,
                          .count = tile_of(c->length - at)};
}

/* Sum of (x - centre)^power over a channel, power 1 or 2. */
static double moment(const struct mgpu_tensor *x, const struct channels *c, int64_t channel,
                     double centre, int power)
{
    double v[MGPU_TILE], sum = 0;
    for (int64_t i = 0; i < c->runs * c->pieces; i++) {
        struct piece p = piece_of(c, channel, i);
        load(v, x, p);
        for (int k = 0; k < p.count; k++)
            sum += power == 1 ? v[k] : (v[k] - centre) * (v[k] - centre);
    }
    return sum;
}

/* A limit as the tensor's type holds it, so that what was cut to it compares equal. */
static double limit_of(const struct mgpu_launch *l, double limit)
{
    return l->in[0].type == MGPU_DOUBLE ? limit : (double)(float)limit;
}

/* v, plus what is added, cut to the limits. */
static void finish(const struct mgpu_launch *l, struct piece p, double *v)
{
    const struct mgpu_batch_norm_attrs *attrs = l->node->attrs;
    double more[MGPU_TILE];
    if (l->inputs > 3 && l->in[3].data) {
        load(more, &l->in[3], p);
        for (int k = 0; k < p.count; k++)
            v[k] += more[k];
    }
    double low = limit_of(l, attrs->low), high = limit_of(l, attrs->high);
    for (int k = 0; k < p.count && attrs->clips; k++)
        v[k] = v[k] < low ? low : v[k] > high ? high : v[k];
}

/* y of a channel again, from x. */
static void load_output(const struct mgpu_launch *l, struct piece p, int64_t channel, double *y)
{
    const struct mgpu_batch_norm_attrs *attrs = l->node->attrs;
    double mean = value_at(&l->in[3], channel);
    double slope =
        value_at(&l->in[2], channel) / sqrt(value_at(&l->in[4], channel) + attrs->epsilon);
    load(y, &l->in[0], p);
    for (int k = 0; k < p.count; k++)
        y[k] = (y[k] - mean) * slope + value_at(&l->in[5], channel);
}

/* The part of dy that passed the limits. */
static void load_arriving(const struct mgpu_launch *l, struct piece p, int64_t channel, double *dy)
{
    const struct mgpu_batch_norm_attrs *attrs = l->node->attrs;
    double y[MGPU_TILE];
    load(dy, &l->in[1], p);
    if (!attrs->clips)
        return;
    if (l->in[5].rank == 1)
        load_output(l, p, channel, y);
    else
        load(y, &l->in[5], p);
    double low = limit_of(l, attrs->low), high = limit_of(l, attrs->high);
    for (int k = 0; k < p.count; k++)
        dy[k] = y[k] > low && y[k] < high ? dy[k] : 0;
}

static void batch_channel(const struct mgpu_launch *l, const struct channels *c, int64_t channel)
{
    const struct mgpu_batch_norm_attrs *attrs = l->node->attrs;
    double v[MGPU_TILE];
    bool given = l->inputs > 4;
    double mean = given ? value_at(&l->in[4], channel)
                        : mean_of(moment(&l->in[0], c, channel, 0, 1), c->count);
    double variance = given ? value_at(&l->in[5], channel)
                            : mean_of(moment(&l->in[0], c, channel, mean, 2), c->count);
    double slope = value_at(&l->in[1], channel) / sqrt(variance + attrs->epsilon);
    double bias = value_at(&l->in[2], channel);
    for (int64_t i = 0; i < c->runs * c->pieces; i++) {
        struct piece p = piece_of(c, channel, i);
        load(v, &l->in[0], p);
        for (int k = 0; k < p.count; k++)
            v[k] = (v[k] - mean) * slope + bias;
        finish(l, p, v);
        mgpu_row_store(&l->out[0], p.offset, p.stride, p.count, v);
    }
    set_at(&l->out[1], channel, mean);
    set_at(&l->out[2], channel, variance);
}

/* With z = (x-mean)/deviation: dbias = sum(dy), dscale = sum(dy*z),
 * dx = scale/deviation * (dy - dbias/n - z*dscale/n). */
static void batch_grad_channel(const struct mgpu_launch *l, const struct channels *c,
                               int64_t channel)
{
    const struct mgpu_batch_norm_attrs *attrs = l->node->attrs;
    double x[MGPU_TILE], dy[MGPU_TILE], dbias = 0, dscale = 0;
    double mean = value_at(&l->in[3], channel);
    double inverse = 1 / sqrt(value_at(&l->in[4], channel) + attrs->epsilon);
    for (int64_t i = 0; i < c->runs * c->pieces; i++) {
        struct piece p = piece_of(c, channel, i);
        load(x, &l->in[0], p);
        load_arriving(l, p, channel, dy);
        for (int k = 0; k < p.count; k++) {
            dbias += dy[k];
            dscale += dy[k] * (x[k] - mean) * inverse;
        }
    }
    set_at(&l->out[1], channel, dscale);
    set_at(&l->out[2], channel, dbias);
    double slope = value_at(&l->in[2], channel) * inverse;
    double shift = mean_of(dbias, c->count), tilt = mean_of(dscale, c->count) * inverse;
    for (int64_t i = 0; i < c->runs * c->pieces && l->out[0].data; i++) {
        struct piece p = piece_of(c, channel, i);
        load(x, &l->in[0], p);
        load_arriving(l, p, channel, dy);
        for (int k = 0; k < p.count; k++)
            dy[k] = slope * (dy[k] - shift - (x[k] - mean) * tilt);
        mgpu_row_store(&l->out[0], p.offset, p.stride, p.count, dy);
    }
}

static int run_batch(const struct mgpu_launch *l)
{
    struct channels c = channels_of(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t channel = 0; channel < c.x.size; channel++)
        batch_channel(l, &c, channel);
    return 0;
}

static int run_batch_grad(const struct mgpu_launch *l)
{
    struct channels c = channels_of(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t channel = 0; channel < c.x.size; channel++)
        batch_grad_channel(l, &c, channel);
    return 0;
}

/* ---- group_norm ------------------------------------------------------------------------------ */

/* x as [rows, size]. */
struct rows {
    int64_t rows, size;
    bool rms;
    double epsilon;
};

static struct rows rows_of(const struct mgpu_launch *l)
{
    const struct mgpu_group_norm_attrs *attrs = l->node->attrs;
    const struct mgpu_tensor *x = &l->in[0];
    struct rows r = {.rows = 1, .size = 1, .rms = attrs->rms, .epsilon = attrs->epsilon};
    for (int k = 0; k < x->rank; k++)
        *(k < attrs->axis ? &r.rows : &r.size) *= x->dims[k];
    return r;
}

/* Elements of a vector over the row, or `otherwise` where it is absent. */
static void load_or(double *to, const struct mgpu_launch *l, int input, struct piece p,
                    double otherwise)
{
    if (input < l->inputs && l->in[input].data)
        load(to, &l->in[input], p);
    else
        for (int k = 0; k < p.count; k++)
            to[k] = otherwise;
}

static struct piece row_piece(const struct rows *r, int64_t row, int64_t at)
{
    return (struct piece){
        .offset = row * r->size + at, .stride = 1, .count = tile_of(r->size - at)};
}

static double row_moment(const struct mgpu_tensor *x, const struct rows *r, int64_t row,
                         double centre, int power)
{
    double v[MGPU_TILE], sum = 0;
    for (int64_t at = 0; at < r->size; at += MGPU_TILE) {
        struct piece p = row_piece(r, row, at);
        load(v, x, p);
        for (int k = 0; k < p.count; k++)
            sum += power == 1 ? v[k] : (v[k] - centre) * (v[k] - centre);
    }
    return mean_of(sum, r->size);
}

static void group_row(const struct mgpu_launch *l, const struct rows *r, int64_t row)
{
    double v[MGPU_TILE], scale[MGPU_TILE], bias[MGPU_TILE];
    double mean = r->rms ? 0 : row_moment(&l->in[0], r, row, 0, 1);
    double inverse = 1 / sqrt(row_moment(&l->in[0], r, row, mean, 2) + r->epsilon);
    for (int64_t at = 0; at < r->size; at += MGPU_TILE) {
        struct piece p = row_piece(r, row, at), across = row_piece(r, 0, at);
        load(v, &l->in[0], p);
        load_or(scale, l, 1, across, 1);
        load_or(bias, l, 2, across, 0);
        for (int k = 0; k < p.count; k++)
            v[k] = (v[k] - mean) * inverse * scale[k] + bias[k];
        mgpu_row_store(&l->out[0], p.offset, 1, p.count, v);
    }
    set_at(&l->out[1], row, mean);
    set_at(&l->out[2], row, inverse);
}

static int run_group(const struct mgpu_launch *l)
{
    struct rows r = rows_of(l);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t row = 0; row < r.rows; row++)
        group_row(l, &r, row);
    return 0;
}

/* z = (x-mean)/deviation and h = dy*scale of one piece. */
static void load_z(const struct mgpu_launch *l, const struct rows *r, int64_t row, int64_t at,
                   double *z, double *h)
{
    struct piece p = row_piece(r, row, at);
    double mean = r->rms ? 0 : value_at(&l->in[3], row), inverse = value_at(&l->in[4], row);
    double scale[MGPU_TILE];
    load(z, &l->in[0], p);
    load(h, &l->in[1], p);
    load_or(scale, l, 2, row_piece(r, 0, at), 1);
    for (int k = 0; k < p.count; k++) {
        z[k] = (z[k] - mean) * inverse;
        h[k] *= scale[k];
    }
}

/* dx = (h - mean(h) - z*mean(h*z)) / deviation; without mean(h) where no mean was taken off. */
static void group_grad_row(const struct mgpu_launch *l, const struct rows *r, int64_t row)
{
    double z[MGPU_TILE], h[MGPU_TILE], sum = 0, product = 0;
    for (int64_t at = 0; at < r->size; at += MGPU_TILE) {
        load_z(l, r, row, at, z, h);
        for (int k = 0, n = tile_of(r->size - at); k < n; k++) {
            sum += h[k];
            product += h[k] * z[k];
        }
    }
    double shift = r->rms ? 0 : mean_of(sum, r->size), slope = mean_of(product, r->size);
    for (int64_t at = 0; at < r->size; at += MGPU_TILE) {
        struct piece p = row_piece(r, row, at);
        load_z(l, r, row, at, z, h);
        for (int k = 0; k < p.count; k++)
            h[k] = (h[k] - shift - z[k] * slope) * value_at(&l->in[4], row);
        mgpu_row_store(&l->out[0], p.offset, 1, p.count, h);
    }
}

/* dscale = sum over rows of dy*z, dbias of dy: some columns, all rows in order. */
static void group_grad_columns(const struct mgpu_launch *l, const struct rows *r, int64_t at)
{
    double x[MGPU_TILE], dy[MGPU_TILE], dscale[MGPU_TILE] = {0}, dbias[MGPU_TILE] = {0};
    struct piece across = row_piece(r, 0, at);
    for (int64_t row = 0; row < r->rows; row++) {
        struct piece p = row_piece(r, row, at);
        double mean = r->rms ? 0 : value_at(&l->in[3], row), inverse = value_at(&l->in[4], row);
        load(x, &l->in[0], p);
        load(dy, &l->in[1], p);
        for (int k = 0; k < p.count; k++) {
            dscale[k] += dy[k] * (x[k] - mean) * inverse;
            dbias[k] += dy[k];
        }
    }
    if (l->out[1].data)
        mgpu_row_store(&l->out[1], at, 1, across.count, dscale);
    if (l->out[2].data)
        mgpu_row_store(&l->out[2], at, 1, across.count, dbias);
}

/* The columns first: dx may overwrite dy. */
static int run_group_grad(const struct mgpu_launch *l)
{
    struct rows r = rows_of(l);
    int64_t columns = l->out[1].data || l->out[2].data ? r.size : 0;
    int64_t rows = l->out[0].data ? r.rows : 0;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t at = 0; at < columns; at += MGPU_TILE)
        group_grad_columns(l, &r, at);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        group_grad_row(l, &r, row);
    return 0;
}

const struct mgpu_kernel mgpu_ref_normalize[] = {
    {.op = "batch_norm", .name = "ref", .run = run_batch},
    {.op = "batch_norm_grad", .name = "ref", .run = run_batch_grad},
    {.op = "group_norm", .name = "ref", .run = run_group},
    {.op = "group_norm_grad", .name = "ref", .run = run_group_grad},
    {.op = NULL},
};
