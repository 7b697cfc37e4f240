/* Plain kernels of grid_sample and its gradients: the taps of a place once, then every channel. */
#include "runtime/ops/grid_sample.h"
#include "runtime/ref/ref.h"

#include <math.h>
#include <string.h>

enum { AXES = 3, MOST_TAPS = 16, PARALLEL = 1 << 12 };

/* What a place takes along one axis. `slope` is the weight's derivative by the coordinate. */
struct taps {
    int count;
    int64_t index[4]; /* -1: outside, zero */
    double weight[4], slope[4];
};

/* What a place takes of a plane of x. */
struct place {
    int count;
    int64_t at[MOST_TAPS];
    double weight[MOST_TAPS], slope[MOST_TAPS][AXES]; /* by coordinate, the last axis first */
};

struct sampler {
    const struct mgpu_grid_sample_attrs *attrs;
    const struct mgpu_tensor *grid;
    int axes;
    int64_t size[AXES];           /* of x's axes */
    int64_t n, channels, in, out; /* samples; elements of a plane of x and of y */
};

static struct sampler sampler_of(const struct mgpu_launch *l, const struct mgpu_tensor *grid)
{
    const struct mgpu_grid_sample_attrs *a = l->node->attrs;
    struct sampler s = {.attrs = a,
                        .grid = grid,
                        .axes = (int)a->rank - 2,
                        .n = grid->dims[0],
                        .channels = a->dims[1].value,
                        .in = 1,
                        .out = 1};
    for (int i = 0; i < s.axes; i++) {
        s.size[i] = a->dims[i + 2].value;
        s.in *= s.size[i];
        s.out *= grid->dims[i + 1];
    }
    return s;
}

/* ---- Along one axis -------------------------------------------------------------------------- */

/* -1 .. 1 to 0 .. size - 1, in the grid's own precision; *slope gets the derivative. */
static double place_of(const struct sampler *s, double g, int64_t size, double *slope)
{
    bool align = s->attrs->align_corners;
    *slope = (double)(align ? size - 1 : size) / 2;
    if (!isfinite(g))
        return -100;
    if (s->grid->type == MGPU_DOUBLE)
        return align ? (g + 1) / 2 * (double)(size - 1) : ((g + 1) * (double)size - 1) / 2;
    float f = (float)g, n = (float)size;
    return align ? (f + 1) / 2 * (n - 1) : ((f + 1) * n - 1) / 2;
}

static double clip(double x, int64_t size, double *slope)
{
    if (x > 0 && x < (double)(size - 1))
        return x;
    *slope = 0;
    return x <= 0 ? 0 : (double)(size - 1);
}

/* Mirrored at the ends of the axis as often as it takes. */
static double reflect(double x, int64_t size, bool align, double *slope)
{
    double low = align ? 0 : -0.5, span = (double)(align ? size - 1 : size);
    if (span <= 0) {
        *slope = 0;
        return 0;
    }
    x -= low;
    double sign = x < 0 ? -1 : 1, extra = fmod(fabs(x), span);
    bool even = fmod(floor(fabs(x) / span), 2) == 0;
    *slope *= even ? sign : -sign;
    return low + (even ? extra : span - extra);
}

static double padded(const struct sampler *s, double x, int64_t size, double *slope)
{
    if (s->attrs->padding == MGPU_GRID_REFLECTION)
        x = reflect(x, size, s->attrs->align_corners, slope);
    return s->attrs->padding == MGPU_GRID_ZEROS ? x : clip(x, size, slope);
}

/* Places far outside stay so as integers. */
static int64_t whole(double x)
{
    return (int64_t)fmax(fmin(x, 1e15), -1e15);
}

static int64_t inside(int64_t index, int64_t size)
{
    return index < 0 || index >= size ? -1 : index;
}

/* Keys' cubic, with PyTorch's and ONNX's -0.75. */
static void cubic_taps(const struct sampler *s, double x, int64_t size, double slope,
                       struct taps *t)
{
    double a = -0.75, f = x - floor(x), none = 0;
    t->count = 4;
    for (int i = 0; i < 4; i++) {
        double d = fabs(f - (i - 1)), sign = f - (i - 1) < 0 ? -1 : 1;
        bool near = i == 1 || i == 2;
        t->weight[i] =
            near ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
        t->slope[i] =
            (near ? (3 * (a + 2) * d - 2 * (a + 3)) * d : (3 * a * d - 10 * a) * d + 8 * a) * sign *
            slope;
        t->index[i] = inside(whole(padded(s, floor(x) + i - 1, size, &none)), size);
    }
}

static void axis_taps(const struct sampler *s, double g, int64_t size, struct taps *t)
{
    double slope, x = place_of(s, g, size, &slope);
    if (s->attrs->mode == MGPU_GRID_CUBIC) {
        cubic_taps(s, x, size, slope, t);
        return;
    }
    x = padded(s, x, size, &slope);
    if (s->attrs->mode == MGPU_GRID_NEAREST) {
        *t = (struct taps){.count = 1, .weight = {1}, .index = {inside(whole(nearbyint(x)), size)}};
        return;
    }
    int64_t from = whole(floor(x));
    double f = x - floor(x);
    *t = (struct taps){.count = 2,
                       .index = {inside(from, size), inside(from + 1, size)},
                       .weight = {1 - f, f},
                       .slope = {-slope, slope}};
}

/* ---- All axes -------------------------------------------------------------------------------- */

static void read_place(const struct sampler *s, int64_t sample, int64_t out, struct place *p)
{
    struct taps t[AXES];
    int total = 1;
    p->count = 0;
    for (int i = 0; i < s->axes; i++) { /* coordinate i is of axis axes - 1 - i */
        int64_t at = (sample * s->out + out) * s->axes + i;
        axis_taps(s, mgpu_get_double(s->grid->data, s->grid->type, at), s->size[s->axes - 1 - i],
                  &t[i]);
        total *= t[i].count;
    }
    for (int k = 0; k < total; k++) {
        int64_t at = 0, stride = 1;
        double weight = 1, slope[AXES] = {1, 1, 1};
        for (int i = 0, rest = k; i < s->axes; rest /= t[i].count, i++) {
            int one = rest % t[i].count;
            at = t[i].index[one] < 0 || at < 0 ? -1 : at + t[i].index[one] * stride;
            stride *= s->size[s->axes - 1 - i];
            weight *= t[i].weight[one];
            for (int j = 0; j < s->axes; j++)
                slope[j] *= i == j ? t[i].slope[one] : t[i].weight[one];
        }
        if (at < 0)
            continue;
        p->at[p->count] = at;
        p->weight[p->count] = weight;
        memcpy(p->slope[p->count++], slope, sizeof slope);
    }
}

static int sample(const struct mgpu_launch *l)
{
    const struct mgpu_tensor *x = &l->in[0], *y = &l->out[0];
    struct sampler s = sampler_of(l, &l->in[1]);
#pragma omp parallel for schedule(static) if (s.n * s.out >= PARALLEL)
    for (int64_t k = 0; k < s.n * s.out; k++) {
        int64_t n = k / s.out, out = k % s.out;
        struct place p;
        read_place(&s, n, out, &p);
        for (int64_t c = n * s.channels; c < (n + 1) * s.channels; c++) {
            double sum = 0;
            for (int i = 0; i < p.count; i++)
                sum += p.weight[i] * mgpu_get_double(x->data, x->type, c * s.in + p.at[i]);
            mgpu_set_double(y->data, y->type, c * s.out + out, sum);
        }
    }
    return 0;
}

static int back_to_data(const struct mgpu_launch *l)
{
    const struct mgpu_tensor *dy = &l->in[0], *dx = &l->out[0];
    struct sampler s = sampler_of(l, &l->in[1]);
    memset(dx->data, 0, (size_t)mgpu_tensor_count(dx) * mgpu_dtype_size(dx->type));
#pragma omp parallel for schedule(static) if (s.n * s.out >= PARALLEL)
    for (int64_t n = 0; n < s.n; n++)
        for (int64_t out = 0; out < s.out; out++) {
            struct place p;
            read_place(&s, n, out, &p);
            for (int64_t c = n * s.channels; c < (n + 1) * s.channels; c++) {
                double d = mgpu_get_double(dy->data, dy->type, c * s.out + out);
                for (int i = 0; i < p.count; i++) {
                    int64_t at = c * s.in + p.at[i];
                    mgpu_set_double(dx->data, dx->type, at,
                                    mgpu_get_double(dx->data, dx->type, at) + p.weight[i] * d);
                }
            }
        }
    return 0;
}

static int back_to_grid(const struct mgpu_launch *l)
{
    const struct mgpu_tensor *dy = &l->in[0], *x = &l->in[1], *dgrid = &l->out[0];
    struct sampler s = sampler_of(l, &l->in[2]);
#pragma omp parallel for schedule(static) if (s.n * s.out >= PARALLEL)
    for (int64_t k = 0; k < s.n * s.out; k++) {
        int64_t n = k / s.out, out = k % s.out;
        double sum[AXES] = {0};
        struct place p;
        read_place(&s, n, out, &p);
        for (int64_t c = n * s.channels; c < (n + 1) * s.channels; c++) {
            double d = mgpu_get_double(dy->data, dy->type, c * s.out + out);
            for (int i = 0; i < p.count; i++) {
                double v = d * mgpu_get_double(x->data, x->type, c * s.in + p.at[i]);
                for (int j = 0; j < s.axes; j++)
                    sum[j] += v * p.slope[i][j];
            }
        }
        for (int j = 0; j < s.axes; j++)
            mgpu_set_double(dgrid->data, dgrid->type, k * s.axes + j, sum[j]);
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_grid_sample[] = {
    {.op = "grid_sample", .name = "ref", .run = sample},
    {.op = "grid_sample_data", .name = "ref", .run = back_to_data},
    {.op = "grid_sample_grid", .name = "ref", .run = back_to_grid},
    {.op = NULL},
};
