/* Signals: windows, the Mel matrix, Fourier transforms as products with a constant matrix. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- Windows -------------------------------------------------------------------------------- */

/* a[0] - a[1] cos(2 pi i / n) + a[2] cos(4 pi i / n), n = size, or size - 1 when symmetric. */
static int window(struct mgpu_lower *l, const double a[3])
{
    enum { MOST = 1 << 24 };
    int64_t size;
    struct mgpu_dim dim;
    enum mgpu_dtype type;
    MGPU_TRY(mgpu_lower_int(l, 0, &size, &dim));
    MGPU_TRY(mgpu_lower_type(l, mgpu_onnx_int(l->node, "output_datatype", MGPU_FLOAT), &type));
    if (size < 0 || size > MOST)
        return mgpu_fail(MGPU_EINVALID, "size %" PRId64, size);
    int64_t period = mgpu_onnx_int(l->node, "periodic", 1) ? size : size - 1;
    double *w = mgpu_xcalloc((size_t)size + 1, sizeof *w);
    for (int64_t i = 0; i < size; i++) {
        double angle = period > 0 ? 2 * M_PI * (double)i / (double)period : 0;
        w[i] = a[0] - a[1] * cos(angle) + a[2] * cos(2 * angle);
    }
    struct mgpu_value *y = mgpu_lower_numbers(l, type, 1, &dim, w);
    free(w);
    return mgpu_lower_give(l, y);
}

static int lower_hann(struct mgpu_lower *l)
{
    return window(l, (const double[]){0.5, 0.5, 0});
}

static int lower_hamming(struct mgpu_lower *l)
{
    return window(l, (const double[]){25.0 / 46, 21.0 / 46, 0});
}

static int lower_blackman(struct mgpu_lower *l)
{
    return window(l, (const double[]){0.42, 0.5, 0.08});
}

/* ---- MelWeightMatrix ------------------------------------------------------------------------ */

static double mel(double hertz)
{
    return 2595 * log10(1 + hertz / 700);
}

static double hertz(double mels)
{
    return 700 * (pow(10, mels / 2595) - 1);
}

/* Band b rises from bin edge[b] to 1 at edge[b + 1] and falls to 0 at edge[b + 2]. */
static void fill_bands(double *y, int64_t bins, int64_t bands, const int64_t *edge)
{
    for (int64_t b = 0; b < bands; b++) {
        int64_t low = edge[b], top = edge[b + 1], high = edge[b + 2];
        for (int64_t i = low; i < high || i == top; i++) {
            if (i < 0 || i >= bins)
                continue;
            double rise = top > low ? (double)(i - low) / (double)(top - low) : 1;
            double fall = high > top ? (double)(high - i) / (double)(high - top) : 1;
            y[i * bands + b] = i < top ? rise : i > top ? fall : 1;
        }
    }
}

static int lower_mel(struct mgpu_lower *l)
{
    enum { MOST = 1 << 20 };
    int64_t bands, length, rate, edge[1026];
    double low, high;
    enum mgpu_dtype type;
    MGPU_TRY(mgpu_lower_int(l, 0, &bands, NULL));
    MGPU_TRY(mgpu_lower_int(l, 1, &length, NULL));
    MGPU_TRY(mgpu_lower_int(l, 2, &rate, NULL));
    MGPU_TRY(mgpu_lower_doubles(l, 3, &low, 1));
    MGPU_TRY(mgpu_lower_doubles(l, 4, &high, 1));
    MGPU_TRY(mgpu_lower_type(l, mgpu_onnx_int(l->node, "output_datatype", MGPU_FLOAT), &type));
    if (bands < 1 || bands > 1024 || length < 1 || length > MOST || rate < 1)
        return mgpu_fail(MGPU_EINVALID, "%" PRId64 " bands of %" PRId64 " at rate %" PRId64, bands,
                         length, rate);
    double step = (mel(high) - mel(low)) / (double)(bands + 2);
    for (int64_t i = 0; i < bands + 2; i++) {
        double at = floor((double)(length + 1) * hertz((double)i * step + mel(low)) / (double)rate);
        edge[i] = at > MOST ? MOST : (int64_t)at;
    }
    struct mgpu_dim dims[] = {mgpu_dim_const(length / 2 + 1), mgpu_dim_const(bands)};
    double *y = mgpu_xcalloc((size_t)(dims[0].value * bands), sizeof *y);
    fill_bands(y, dims[0].value, bands, edge);
    struct mgpu_value *out = mgpu_lower_numbers(l, type, 2, dims, y);
    free(y);
    return mgpu_lower_give(l, out);
}

/* ---- Fourier transforms ---------------------------------------------------------------------- */

/* `in` given numbers (of `parts` parts: real, or real and imaginary) become `out`; `n` is the
 * length of the transform: what is given beyond it is left out, what is missing is zero. */
struct transform {
    int64_t n, in, parts, out;
    bool inverse, real; /* real: the result is real, of a spectrum's first half */
};

enum { MOST_MATRIX = 1 << 26, MOST_FRAMES = 1 << 27 };

/* How the transform weighs given number i: those of a first half stand for two, but the ends. */
static double weight_of(const struct transform *t, int64_t i)
{
    int64_t known = t->real ? t->n / 2 + 1 : t->n;
    double scale = t->inverse ? 1 / (double)t->n : 1;
    if (i >= known)
        return 0;
    return t->real && i > 0 && 2 * i != t->n ? 2 * scale : scale;
}

/* The transform as a matrix [in*parts, out*2] (out*1 where the result is real). */
static struct mgpu_value *matrix(struct mgpu_lower *l, const struct transform *t,
                                 enum mgpu_dtype type)
{
    int64_t width = t->real ? 1 : 2, columns = t->out * width;
    struct mgpu_dim dims[] = {mgpu_dim_const(t->in * t->parts), mgpu_dim_const(columns)};
    if (t->n < 1 || t->n > MOST_MATRIX || t->in * t->parts > MOST_MATRIX / (columns ? columns : 1))
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "a transform of length %" PRId64 " is too long",
                               t->n);
    double *m = mgpu_xcalloc((size_t)(dims[0].value * columns) + 1, sizeof *m);
    for (int64_t i = 0; i < t->in; i++)
        for (int64_t k = 0; k < t->out; k++) {
            double angle = 2 * M_PI * (double)(i * k % t->n) / (double)t->n;
            double c = weight_of(t, i) * cos(angle);
            double s = weight_of(t, i) * sin(angle) * (t->inverse ? 1 : -1); /* of e^(j angle) */
            double *row = m + i * t->parts * columns + k * width;
            row[0] = c;
            if (width == 2)
                row[1] = s;
            if (t->parts == 2)
                row[columns] = -s;
            if (t->parts == 2 && width == 2)
                row[columns + 1] = c;
        }
    struct mgpu_value *y = mgpu_lower_numbers(l, type, 2, dims, m);
    free(m);
    return y;
}

/* x [..., in, parts] -> [..., out, 2]. */
static struct mgpu_value *transform(struct mgpu_lower *l, const struct transform *t,
                                    struct mgpu_value *x)
{
    if (!x)
        return NULL;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_dim flat[] = {mgpu_dims_product(x->rank - 2, x->dims),
                              mgpu_dim_const(t->in * t->parts)};
    for (int i = 0; i < x->rank - 2; i++)
        dims[i] = x->dims[i];
    dims[x->rank - 2] = mgpu_dim_const(t->out);
    dims[x->rank - 1] = mgpu_dim_const(t->real ? 1 : 2);
    struct mgpu_value *y = mgpu_reshape(l->g, x, 2, flat);
    y = mgpu_matmul(l->g, y, false, matrix(l, t, x->type), false);
    return mgpu_reshape(l->g, y, x->rank, dims);
}

/* x with axes a and b exchanged. */
static struct mgpu_value *exchange(struct mgpu_lower *l, struct mgpu_value *x, int a, int b)
{
    int perm[MGPU_MAX_RANK];
    for (int i = 0; x && i < x->rank; i++)
        perm[i] = i == a ? b : i == b ? a : i;
    return mgpu_transpose(l->g, x, perm);
}

/* The transform that the node asks of `in` numbers, `length` long (-1: its default). */
static int plan(struct mgpu_lower *l, const struct mgpu_value *x, int64_t in, int64_t length,
                bool one_sided, struct transform *t)
{
    *t = (struct transform){
        .in = in,
        .parts = x->dims[x->rank - 1].value,
        .inverse = mgpu_onnx_int(l->node, "inverse", 0),
    };
    t->real = t->inverse && one_sided;
    t->n = length >= 0 ? length : t->real ? 2 * (in - 1) : in;
    t->out = one_sided && !t->inverse ? t->n / 2 + 1 : t->n;
    if (!mgpu_is_float(x->type) || t->parts < 1 || t->parts > 2)
        return mgpu_fail(MGPU_EINVALID, "the input's last axis has size %" PRId64 ", not 1 or 2",
                         t->parts);
    if (t->n < 1)
        return mgpu_fail(MGPU_EINVALID, "the length is %" PRId64, t->n);
    return 0;
}

static int lower_dft(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    struct transform t;
    bool old = l->node->opset < 20;
    int64_t length = -1, axis = old ? mgpu_onnx_int(l->node, "axis", 1) : -2;
    if (!x || x->rank < 2)
        return mgpu_fail(MGPU_EINVALID, "the input must have rank 2 at least");
    if (mgpu_lower_in(l, 1))
        MGPU_TRY(mgpu_lower_int(l, 1, &length, NULL));
    if (mgpu_lower_in(l, 2))
        MGPU_TRY(mgpu_lower_int(l, 2, &axis, NULL));
    MGPU_TRY(mgpu_lower_axis(&axis, axis, x->rank));
    if (axis == x->rank - 1)
        return mgpu_fail(MGPU_EINVALID, "the last axis holds the parts of a number");
    bool one_sided = mgpu_onnx_int(l->node, "onesided", 0);
    MGPU_TRY(plan(l, x, x->dims[axis].value, length, one_sided, &t));
    struct mgpu_value *y = transform(l, &t, exchange(l, x, (int)axis, x->rank - 2));
    return mgpu_lower_give(l, exchange(l, y, (int)axis, x->rank - 2));
}

/* Frames of x [B,L,parts] that start `step` apart: [B,frames,size,parts]. */
static struct mgpu_value *cut_frames(struct mgpu_lower *l, struct mgpu_value *x, int64_t frames,
                                     int64_t size, int64_t step)
{
    int64_t *place = MGPU_NEW_ARRAY(l->g->arena, int64_t, frames * size);
    for (int64_t i = 0; i < frames * size; i++)
        place[i] = i / size * step + i % size;
    struct mgpu_dim dims[] = {mgpu_dim_const(frames), mgpu_dim_const(size)};
    return mgpu_gather(l->g, x, mgpu_graph_constant(l->g, NULL, MGPU_INT64, 2, dims, place, NULL),
                       1);
}

static int lower_stft(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0), *window = mgpu_lower_in(l, 2);
    int64_t step, length = window && window->rank == 1 ? window->dims[0].value : -1;
    struct transform t;
    if (!x || x->rank != 3)
        return mgpu_fail(MGPU_EINVALID, "the signal must have rank 3");
    MGPU_TRY(mgpu_lower_int(l, 1, &step, NULL));
    if (mgpu_lower_in(l, 3))
        MGPU_TRY(mgpu_lower_int(l, 3, &length, NULL));
    int64_t size = window ? window->dims[0].value : length, whole = x->dims[1].value;
    if (step < 1 || length < 1 || size < 1 || size > length || length > whole)
        return mgpu_fail(MGPU_EINVALID,
                         "frames of %" PRId64 " by %" PRId64 " of a signal of %" PRId64, length,
                         step, whole);
    MGPU_TRY(plan(l, x, size, length, mgpu_onnx_int(l->node, "onesided", 1), &t));
    int64_t frames = (whole - length) / step + 1;
    if (frames > MOST_FRAMES / size)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%" PRId64 " frames of %" PRId64 " are too many",
                         frames, size);
    struct mgpu_value *y = cut_frames(l, x, frames, size, step);
    if (window) {
        struct mgpu_dim dims[] = {window->dims[0], mgpu_dim_const(1)};
        y = mgpu_mul(l->g, y, mgpu_reshape(l->g, window, 2, dims));
    }
    return mgpu_lower_give(l, transform(l, &t, y));
}

const struct mgpu_lowering mgpu_lower_signal[] = {
    {"HannWindow", 17, 0, lower_hann},
    {"HammingWindow", 17, 0, lower_hamming},
    {"BlackmanWindow", 17, 0, lower_blackman},
    {"MelWeightMatrix", 17, 0, lower_mel},
    {"DFT", 17, 0, lower_dft},
    {"STFT", 17, 0, lower_stft},
    {0},
};
