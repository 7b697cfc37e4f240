/* Convolution of 3x3 kernels and its gradients after Winograd, F(4x4, 3x3): Lavin and Gray 2016,
 * section 4.3. Images lie in blocks of 8 channels.
 *
 *     y = A' [ (G w G') * (B' x B) ] A      for each tile of 4x4 outputs from 6x6 inputs
 *
 * summed over the channels, which at each of the 36 places is a matrix product. A chunk of tiles is
 * brought into V [36, channels / 8, tiles, 8]; then, for a group of output channels at a time, the
 * kernels into U [36, group / 16, channels, 16], the products into M [36, group / 16, tiles, 16],
 * and those into y. At a place the products go over some channels at a time, so that what they read
 * again and again stays in the second cache; and the workspace is a fraction of the image.
 *
 * The gradient by the kernels is F(3x3, 4x4) of the same points, summed over the tiles: the
 * gradients of y take the kernels' place, in W [36, group / 16, tiles, 16], and the sums are kept
 * in D [36, group / 16, channels, 16] while all tiles go by.
 *
 * 2.25 products an output in place of 9, for a rounding about ten times that of the direct sum:
 * --exact does without. The gradient by the input is the same convolution with the kernels turned
 * by half a turn and their two channels exchanged.
 */
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/simd.h"
#include "runtime/ops/conv.h"

#include <stdlib.h>
#include <string.h>

enum {
    OUT = 4,          /* outputs of a tile along an axis */
    IN = 6,           /* inputs */
    PLACES = IN * IN, /* of a tile */
    LANES = 8,        /* channels in a block */
    PANEL = 16,       /* output channels that a product holds in registers */
    GROUP = 128,      /* output channels at a time, at most */
    ROWS = 6,         /* tiles that a product holds in registers */
    TILES = 192,      /* of a chunk, at most; half of it with many channels */
    MANY = 512,       /* channels */
    STREAMS = 16,     /* blocks of channels at a time: prefetchers follow no more */
    LEAST = 32,       /* channels that pay for the transforms */
    SMALLEST = 5,     /* height and width that do: of two tiles */
    APART = 16,       /* floats between places, so that they do not meet in the caches' sets */
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

/* One convolution's sizes, as if forward. */
struct winograd {
    int64_t samples, channels, outputs; /* of w that is x's and y's, or the other way round */
    int64_t x[2], y[2];                 /* height and width */
    int64_t before[2];
    int64_t tiles[2], count; /* of a sample along its axes; of all samples */
    int64_t chunk;           /* tiles at a time, a multiple of ROWS */
    int64_t group;           /* output channels at a time, a multiple of PANEL */
    int64_t v, u, m;         /* floats from place to place in V, U and M */
    bool backward;
};

/* ---- Which convolutions ---------------------------------------------------------------------- */

static bool fits(const struct mgpu_conv_attrs *a, const struct mgpu_value *x,
                 const struct mgpu_value *y, const struct mgpu_value *w)
{
    bool fit = a->spatial == 2 && a->group == 1 && x->block == LANES && y->block == LANES;
    for (int i = 0; i < 2 && fit; i++)
        fit = w->dims[2 + i].value == 3 && a->stride[i] == 1 && a->dilation[i] == 1 &&
              a->before[i] < 3 && a->after[i] < 3 && w->dims[i].value >= LEAST &&
              w->dims[i].value % PANEL == 0 && y->dims[2 + i].value >= SMALLEST &&
              x->dims[2 + i].value >= SMALLEST;
    return fit;
}

static bool accepts_forward(const struct mgpu_node *node)
{
    return fits(node->attrs, node->input[0], node->output[0], node->input[1]);
}

static bool accepts_input(const struct mgpu_node *node)
{
    return fits(node->attrs, node->output[0], node->input[0], node->input[1]);
}

/* `from` by kernels of `outputs` channels to `to`. */
static struct winograd *sizes(const struct mgpu_conv_attrs *a, const struct mgpu_value *from,
                              const struct mgpu_value *to, bool backward)
{
    struct winograd *z = mgpu_xcalloc(1, sizeof *z);
    z->samples = from->dims[0].value;
    z->channels = from->dims[1].value;
    z->outputs = to->dims[1].value;
    z->backward = backward;
    z->count = z->samples;
    for (int i = 0; i < 2; i++) {
        z->x[i] = from->dims[2 + i].value;
        z->y[i] = to->dims[2 + i].value;
        z->before[i] = backward ? 2 - a->before[i] : a->before[i];
        z->tiles[i] = (z->y[i] + OUT - 1) / OUT;
        z->count *= z->tiles[i];
    }
    int64_t most = z->channels > MANY ? TILES / 2 : TILES, chunks = (z->count + most - 1) / most;
    z->chunk = (z->count + chunks * ROWS - 1) / (chunks * ROWS) * ROWS;
    z->group = z->outputs < GROUP ? z->outputs : GROUP;
    z->v = z->channels * z->chunk + APART;
    z->u = z->channels * z->group + APART;
    z->m = z->chunk * z->group + APART;
    return z;
}

static int prepare_forward(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    *state = sizes(node->attrs, node->input[0], node->output[0], false);
    return 0;
}

static int prepare_input(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    *state = sizes(node->attrs, node->input[0], node->output[0], true);
    return 0;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)node, (void)threads;
    const struct winograd *z = state;
    return PLACES * (z->v + z->u + z->m) * (int64_t)sizeof(float);
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* B' d of six values `step` apart, to `to`, six `to_step` apart. */
MGPU_INLINE void input_line(const lanes *d, int step, lanes *to, int64_t to_step)
{
    lanes a = d[0], b = d[step], c = d[2 * step], e = d[3 * step], f = d[4 * step], g = d[5 * step];
    lanes even = f - 4 * c, odd = e - 4 * b, near = f - c, far = 2 * (e - b);
    to[0] = 4 * a - 5 * c + f;
    to[to_step] = even + odd;
    to[2 * to_step] = even - odd;
    to[3 * to_step] = near + far;
    to[4 * to_step] = near - far;
    to[5 * to_step] = 4 * b - 5 * e + g;
}

struct tile {
    int64_t sample, at[2]; /* first output */
};

MGPU_INLINE struct tile tile_of(const struct winograd *z, int64_t t)
{
    int64_t w = t % z->tiles[1], h = t / z->tiles[1];
    return (struct tile){h / z->tiles[0], {h % z->tiles[0] * OUT, w * OUT}};
}

/* The inputs of a tile; zero outside. */
MGPU_INLINE void load_tile(const struct winograd *z, const float *plane, const struct tile *tile,
                           lanes d[PLACES])
{
    int64_t h0 = tile->at[0] - z->before[0], w0 = tile->at[1] - z->before[1];
    for (int i = 0; i < IN; i++)
        for (int j = 0; j < IN; j++) {
            int64_t h = h0 + i, w = w0 + j;
            bool inside = h >= 0 && h < z->x[0] && w >= 0 && w < z->x[1];
            d[i * IN + j] =
                inside ? *(const lanes *)(plane + (h * z->x[1] + w) * LANES) : (lanes){0};
        }
}

/* Tiles [first, first + chunk) of one block of channels into V. */
MGPU_SIMD static void bring_inputs(const struct winograd *z, const float *x, int64_t first,
                                   int64_t block, float *v)
{
    int64_t blocks = z->channels / LANES, plane = z->x[0] * z->x[1] * LANES;
    int64_t step = z->v / LANES;
    lanes d[PLACES], half[PLACES];
    for (int64_t t = 0; t < z->chunk; t++) {
        lanes *to = (lanes *)v + block * z->chunk + t;
        if (first + t >= z->count) {
            for (int k = 0; k < PLACES; k++)
                to[k * step] = (lanes){0};
            continue;
        }
        struct tile tile = tile_of(z, first + t);
        load_tile(z, x + (tile.sample * blocks + block) * plane, &tile, d);
        for (int j = 0; j < IN; j++)
            input_line(d + j, IN, half + j, IN);
        for (int i = 0; i < IN; i++)
            input_line(half + i * IN, 1, to + i * IN * step, step);
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* G of three values `step` apart, to six `to_step` apart. */
MGPU_INLINE void kernel_line(const lanes *d, int step, lanes *to, int64_t to_step)
{
    lanes a = d[0], b = d[step], c = d[2 * step];
    lanes sum = (a + c) * (-1.0f / 6), far = a * (1.0f / 24) + c * (1.0f / 6);
    to[0] = a * 0.25f;
    to[to_step] = sum - b * (1.0f / 6);
    to[2 * to_step] = sum + b * (1.0f / 6);
    to[3 * to_step] = far + b * (1.0f / 12);
    to[4 * to_step] = far - b * (1.0f / 12);
    to[5 * to_step] = c;
}

/* The kernels from channel c to outputs [o, o + PANEL), tap by tap. w is [O,C,3,3] of the forward
 * convolution. */
MGPU_INLINE void load_kernels(const struct winograd *z, const float *w, int64_t o, int64_t c,
                              float taps[9][PANEL])
{
    for (int j = 0; j < PANEL; j++) {
        const float *from =
            z->backward ? w + (c * z->outputs + o + j) * 9 : w + ((o + j) * z->channels + c) * 9;
        for (int k = 0; k < 9; k++)
            taps[z->backward ? 8 - k : k][j] = from[k];
    }
}

MGPU_SIMD static void bring_kernels(const struct winograd *z, const float *w, int64_t o, float *u)
{
    float taps[9][PANEL];
    lanes half[3 * IN];
    int64_t step = z->u / LANES;
    for (int64_t c = 0; c < z->channels; c++) {
        load_kernels(z, w, o, c, taps);
        for (int side = 0; side < PANEL / LANES; side++) {
            const lanes *g = (const lanes *)taps[0] + side;
            lanes *to = (lanes *)(u + c * PANEL) + side;
            for (int j = 0; j < 3; j++) /* columns of three taps: [6, 3] */
                kernel_line(g + j * (PANEL / LANES), 3 * (PANEL / LANES), half + j, 3);
            for (int i = 0; i < IN; i++)
                kernel_line(half + i * 3, 1, to + i * IN * step, step);
        }
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* M rows [0, ROWS) of a place take in the sum over some blocks of channels of V by U. */
MGPU_INLINE void multiply_rows(const float *v, const lanes *u, int64_t blocks, int64_t chunk,
                               lanes *m, bool first)
{
    lanes acc[ROWS][2] = {{{0}}};
#pragma GCC unroll 6
    for (int i = 0; i < ROWS && !first; i++) {
        acc[i][0] = m[2 * i];
        acc[i][1] = m[2 * i + 1];
    }
    for (int64_t b = 0; b < blocks; b++, v += chunk * LANES, u += 2 * LANES)
        for (int j = 0; j < LANES; j++) {
            lanes left = u[2 * j], right = u[2 * j + 1];
#pragma GCC unroll 6
            for (int i = 0; i < ROWS; i++) {
                acc[i][0] += v[i * LANES + j] * left;
                acc[i][1] += v[i * LANES + j] * right;
            }
        }
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
        m[2 * i] = acc[i][0];
        m[2 * i + 1] = acc[i][1];
    }
}

/* At one place, for all panels of a group. */
MGPU_SIMD static void multiply(const struct winograd *z, const float *v, const float *u, float *m,
                               int64_t panels)
{
    int64_t blocks = z->channels / LANES;
    for (int64_t b = 0; b < blocks; b += STREAMS)
        for (int64_t p = 0; p < panels; p++)
            for (int64_t t = 0; t < z->chunk; t += ROWS)
                multiply_rows(v + (b * z->chunk + t) * LANES,
                              (const lanes *)(u + (p * z->channels + b * LANES) * PANEL),
                              blocks - b < STREAMS ? blocks - b : STREAMS, z->chunk,
                              (lanes *)(m + (p * z->chunk + t) * PANEL), b == 0);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* A' of six values `step` apart, to four OUT apart or side by side. */
MGPU_INLINE void output_line(const lanes *d, int64_t step, lanes *to, int to_step)
{
    lanes a = d[step] + d[2 * step], b = d[step] - d[2 * step];
    lanes c = d[3 * step] + d[4 * step], e = d[3 * step] - d[4 * step];
    to[0] = d[0] + a + c;
    to[to_step] = b + 2 * e;
    to[2 * to_step] = a + 4 * c;
    to[3 * to_step] = b + 8 * e + d[5 * step];
}

MGPU_INLINE void store_tile(const struct winograd *z, float *plane, const struct tile *tile,
                            const lanes *y, const lanes *bias)
{
    for (int64_t i = 0; i < OUT && tile->at[0] + i < z->y[0]; i++)
        for (int64_t j = 0; j < OUT && tile->at[1] + j < z->y[1]; j++) {
            int64_t at = (tile->at[0] + i) * z->y[1] + tile->at[1] + j;
            *(lanes *)(plane + at * LANES) = y[i * OUT + j] + *bias;
        }
}

MGPU_SIMD static void bring_outputs(const struct winograd *z, const float *m, int64_t first,
                                    int64_t o, const float *bias, float *y)
{
    int64_t blocks = z->outputs / LANES, plane = z->y[0] * z->y[1] * LANES;
    int64_t step = z->m / LANES;
    const lanes none = {0};
    lanes half[OUT * IN], out[OUT * OUT];
    for (int64_t t = 0; t < z->chunk && first + t < z->count; t++)
        for (int side = 0; side < PANEL / LANES; side++) {
            const lanes *from = (const lanes *)(m + t * PANEL) + side;
            struct tile tile = tile_of(z, first + t);
            int64_t block = o / LANES + side;
            for (int j = 0; j < IN; j++)
                output_line(from + j * step, IN * step, half + j, IN);
            for (int i = 0; i < OUT; i++)
                output_line(half + i * IN, 1, out + i * OUT, 1);
            store_tile(z, y + (tile.sample * blocks + block) * plane, &tile, out,
                       bias ? (const lanes *)(bias + block * LANES) : &none);
        }
}

/* ---- Running --------------------------------------------------------------------------------- */

/* V, U and M of a launch. */
struct room {
    float *v, *u, *m;
};

static struct room room_of(const struct mgpu_launch *l)
{
    const struct winograd *z = l->state;
    float *v = l->workspace;
    return (struct room){v, v + PLACES * z->v, v + PLACES * (z->v + z->u)};
}

static int team_of(const struct mgpu_launch *l)
{
    const struct winograd *z = l->state;
    return mgpu_cpu_team(l->threads, z->count * z->channels * PLACES);
}

/* Outputs [o, o + group) of the chunk of tiles that is in V: by all threads of the team. */
static void run_group(const struct mgpu_launch *l, const struct room *r, int64_t first, int64_t o)
{
    const struct winograd *z = l->state;
    const float *w = l->in[1].data, *bias = l->inputs > 2 ? l->in[2].data : NULL;
    int64_t left = z->outputs - o, panels = (left < z->group ? left : z->group) / PANEL;
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels; p++)
        bring_kernels(z, w, o + p * PANEL, r->u + p * z->channels * PANEL);
#pragma omp for schedule(static)
    for (int k = 0; k < PLACES; k++)
        multiply(z, r->v + k * z->v, r->u + k * z->u, r->m + k * z->m, panels);
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels; p++)
        bring_outputs(z, r->m + p * z->chunk * PANEL, first, o + p * PANEL, bias, l->out[0].data);
}

static int run(const struct mgpu_launch *l)
{
    const struct winograd *z = l->state;
    struct room r = room_of(l);
    int team = team_of(l);
#pragma omp parallel num_threads(team) if (team > 1)
    for (int64_t first = 0; first < z->count; first += z->chunk) {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < z->channels / LANES; block++)
            bring_inputs(z, l->in[0].data, first, block, r.v);
        for (int64_t o = 0; o < z->outputs; o += z->group)
            run_group(l, &r, first, o);
    }
    return 0;
}

/* ---- The gradient by the kernels ------------------------------------------------------------- */

static bool accepts_weight(const struct mgpu_node *node)
{
    return node->output[0] && fits(node->attrs, node->input[0], node->input[1], node->output[0]);
}

static int prepare_weight(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    (void)threads, (void)exact;
    *state = sizes(node->attrs, node->input[0], node->input[1], false);
    return 0;
}

/* Of four values `step` apart, to six `to_step` apart. */
MGPU_INLINE void gradient_line(const lanes *d, int step, lanes *to, int64_t to_step)
{
    lanes a = d[0], b = d[step], c = d[2 * step], e = d[3 * step];
    lanes even = (a + c) * (-1.0f / 6), odd = (b + e) * (-1.0f / 6);
    lanes far = a * (1.0f / 24) + c * (1.0f / 6), more = b * (1.0f / 12) + e * (1.0f / 3);
    to[0] = a * 0.25f;
    to[to_step] = even + odd;
    to[2 * to_step] = even - odd;
    to[3 * to_step] = far + more;
    to[4 * to_step] = far - more;
    to[5 * to_step] = e;
}

MGPU_INLINE void load_gradients(const struct winograd *z, const float *plane,
                                const struct tile *tile, lanes d[OUT * OUT])
{
    for (int i = 0; i < OUT; i++)
        for (int j = 0; j < OUT; j++) {
            int64_t h = tile->at[0] + i, w = tile->at[1] + j;
            bool inside = h < z->y[0] && w < z->y[1];
            d[i * OUT + j] =
                inside ? *(const lanes *)(plane + (h * z->y[1] + w) * LANES) : (lanes){0};
        }
}

/* The chunk's tiles of outputs [o, o + PANEL) into W, from place to place as M. */
MGPU_SIMD static void bring_gradients(const struct winograd *z, const float *dy, int64_t first,
                                      int64_t o, float *w)
{
    int64_t blocks = z->outputs / LANES, plane = z->y[0] * z->y[1] * LANES, step = z->m / LANES;
    lanes d[OUT * OUT] = {{0}}, half[IN * OUT];
    for (int64_t t = 0; t < z->chunk; t++)
        for (int side = 0; side < PANEL / LANES; side++) {
            lanes *to = (lanes *)(w + t * PANEL) + side;
            bool there = first + t < z->count;
            struct tile tile = tile_of(z, there ? first + t : 0);
            int64_t block = o / LANES + side;
            load_gradients(z, dy + (tile.sample * blocks + block) * plane, &tile, d);
            for (int j = 0; j < OUT; j++)
                gradient_line(d + j, OUT, half + j, OUT);
            for (int i = 0; i < IN; i++)
                gradient_line(half + i * OUT, 1, to + i * IN * step, step);
            for (int k = 0; k < PLACES && !there; k++)
                to[k * step] = (lanes){0};
        }
}

/* D rows [0, LANES / 2) of a place and panel take in the sum over tiles of V by W. */
MGPU_INLINE void add_products(const float *v, const lanes *w, int64_t tiles, lanes *d)
{
    enum { HALF = LANES / 2 };
    lanes acc[HALF][2];
#pragma GCC unroll 4
    for (int i = 0; i < HALF; i++) {
        acc[i][0] = d[2 * i];
        acc[i][1] = d[2 * i + 1];
    }
    for (int64_t t = 0; t < tiles; t++) {
        lanes left = w[2 * t], right = w[2 * t + 1];
#pragma GCC unroll 4
        for (int i = 0; i < HALF; i++) {
            acc[i][0] += v[t * LANES + i] * left;
            acc[i][1] += v[t * LANES + i] * right;
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < HALF; i++) {
        d[2 * i] = acc[i][0];
        d[2 * i + 1] = acc[i][1];
    }
}

/* At one place. */
MGPU_SIMD static void multiply_tiles(const struct winograd *z, const float *v, const float *w,
                                     float *d, int64_t panels)
{
    for (int64_t c = 0; c < z->channels; c += LANES)
        for (int64_t p = 0; p < panels; p++)
            for (int64_t i = 0; i < LANES; i += LANES / 2)
                add_products(v + c * z->chunk + i, (const lanes *)(w + p * z->chunk * PANEL),
                             z->chunk, (lanes *)(d + (p * z->channels + c + i) * PANEL));
}

/* Of six values `step` apart, to three `to_step` apart. */
MGPU_INLINE void weight_line(const lanes *d, int64_t step, lanes *to, int to_step)
{
    lanes a = d[step] + d[2 * step], b = d[step] - d[2 * step];
    lanes c = d[3 * step] + d[4 * step], e = d[3 * step] - d[4 * step];
    to[0] = d[0] + a + c;
    to[to_step] = b + 2 * e;
    to[2 * to_step] = a + 4 * c + d[5 * step];
}

/* D of a panel to dw [O,C,3,3]. */
MGPU_SIMD static void bring_weights(const struct winograd *z, const float *d, int64_t o, float *dw)
{
    float taps[9][PANEL];
    lanes half[3 * IN];
    int64_t step = z->u / LANES;
    for (int64_t c = 0; c < z->channels; c++) {
        for (int side = 0; side < PANEL / LANES; side++) {
            const lanes *from = (const lanes *)(d + c * PANEL) + side;
            lanes *to = (lanes *)taps[0] + side;
            for (int j = 0; j < IN; j++)
                weight_line(from + j * step, IN * step, half + j, IN);
            for (int i = 0; i < 3; i++)
                weight_line(half + i * IN, 1, to + i * 3 * (PANEL / LANES), PANEL / LANES);
        }
        for (int j = 0; j < PANEL; j++)
            for (int k = 0; k < 9; k++)
                dw[((o + j) * z->channels + c) * 9 + k] = taps[k][j];
    }
}

/* dw of outputs [o, o + group): by all threads of the team. W lies as M, D as U. */
static void run_weights(const struct mgpu_launch *l, const struct room *r, int64_t o)
{
    const struct winograd *z = l->state;
    int64_t left = z->outputs - o, panels = (left < z->group ? left : z->group) / PANEL;
#pragma omp for schedule(static)
    for (int k = 0; k < PLACES; k++)
        memset(r->u + k * z->u, 0, (size_t)(panels * PANEL * z->channels) * sizeof *r->u);
    for (int64_t first = 0; first < z->count; first += z->chunk) {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < z->channels / LANES; block++)
            bring_inputs(z, l->in[0].data, first, block, r->v);
#pragma omp for schedule(static)
        for (int64_t p = 0; p < panels; p++)
            bring_gradients(z, l->in[1].data, first, o + p * PANEL, r->m + p * z->chunk * PANEL);
#pragma omp for schedule(static)
        for (int k = 0; k < PLACES; k++)
            multiply_tiles(z, r->v + k * z->v, r->m + k * z->m, r->u + k * z->u, panels);
    }
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels; p++)
        bring_weights(z, r->u + p * z->channels * PANEL, o + p * PANEL, l->out[0].data);
}

static int run_weight(const struct mgpu_launch *l)
{
    const struct winograd *z = l->state;
    struct room r = room_of(l);
    float *dbias = l->outputs > 1 ? l->out[1].data : NULL;
    int team = team_of(l), blocks = (int)(z->outputs / LANES);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        for (int64_t o = 0; o < z->outputs; o += z->group)
            run_weights(l, &r, o);
#pragma omp for schedule(static)
        for (int b = 0; b < (dbias ? blocks : 0); b++)
            mgpu_sum_planes(&l->in[1], b, z->samples, blocks, 1, dbias + b * LANES);
    }
    return 0;
}

static void release(void *state)
{
    free(state);
}

const struct mgpu_kernel mgpu_cpu_winograd[] = {
    {"conv", "winograd", accepts_forward, prepare_forward, release, workspace, run},
    {"conv_grad_input", "winograd", accepts_input, prepare_input, release, workspace, run},
    {"conv_grad_weight", "winograd", accepts_weight, prepare_weight, release, workspace,
     run_weight},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};
