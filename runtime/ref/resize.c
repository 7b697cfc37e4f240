/* Plain kernels of resize and resize_grad. Nearest moves elements; the others go axis by axis in
 * double, plane by plane. */
#include "runtime/ops/resize.h"
#include "runtime/base/status.h"
#include "runtime/ops/resize_taps.h"
#include "runtime/ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARALLEL = 1 << 13 };

struct state {
    bool resized[MGPU_MAX_RANK]; /* axes along which something happens */
    struct mgpu_resize_taps taps[MGPU_MAX_RANK];
};

static void release(void *pointer)
{
    struct state *s = pointer;
    for (int i = 0; s && i < MGPU_MAX_RANK; i++)
        mgpu_resize_taps_free(&s->taps[i]);
    free(s);
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **out)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    struct state *s = mgpu_xcalloc(1, sizeof *s);
    int rc = 0;
    (void)threads;
    (void)exact;
    for (int i = 0; i < a->rank && rc == 0; i++) {
        s->resized[i] = !mgpu_resize_is_identity(a, i);
        if (s->resized[i])
            rc = mgpu_resize_taps_make(a, i, &s->taps[i]);
    }
    if (rc < 0) {
        release(s);
        s = NULL;
    }
    *out = s;
    return rc;
}

/* Leading axes along which nothing happens make planes that are resized each by itself. */
struct planes {
    int leading;
    int64_t count, in, out, scratch; /* elements of a plane; of the largest between two passes */
};

static struct planes planes_of(const struct mgpu_resize_attrs *a)
{
    struct planes p = {.count = 1, .in = 1, .out = 1, .scratch = 1};
    while (p.leading < a->rank && mgpu_resize_is_identity(a, p.leading))
        p.count *= a->in[p.leading++].value;
    for (int i = p.leading; i < a->rank; i++) {
        int64_t in = a->in[i].value, out = a->out[i].value;
        p.in *= in;
        p.out *= out;
        p.scratch *= in > out ? in : out;
    }
    return p;
}

/* Two buffers a thread. */
static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    struct planes p = planes_of(node->attrs);
    (void)state;
    return 2 * p.scratch * (int64_t)sizeof(double) * threads;
}

/* Integers round to the nearest, halves to even. */
static void store(const struct mgpu_tensor *y, int64_t at, double *values, int64_t count)
{
    size_t size = mgpu_dtype_size(y->type);
    for (int64_t i = 0; i < count && !mgpu_is_float(y->type); i++)
        values[i] = nearbyint(values[i]);
    mgpu_convert((char *)y->data + (size_t)at * size, y->type, values, MGPU_DOUBLE, count);
}

/* ---- nearest -------------------------------------------------------------------------------- */

/* A walk through y that knows which element of x each place shows. */
struct nearest {
    const struct state *state;
    const struct mgpu_tensor *x, *y;
    int64_t x_stride[MGPU_MAX_RANK], y_stride[MGPU_MAX_RANK];
    char value[8]; /* extrapolation, as an element */
};

static struct nearest nearest_of(const struct mgpu_launch *l, const struct mgpu_tensor *x,
                                 const struct mgpu_tensor *y)
{
    const struct mgpu_resize_attrs *a = l->node->attrs;
    struct nearest n = {.state = l->state, .x = x, .y = y};
    mgpu_tensor_strides(x, n.x_stride);
    mgpu_tensor_strides(y, n.y_stride);
    mgpu_set_double(n.value, y->type, 0, a->extrapolation);
    return n;
}

static int64_t shown(const struct nearest *n, int axis, int64_t place)
{
    return n->state->resized[axis] ? n->state->taps[axis].index[place] : place;
}

static bool extrapolated(const struct nearest *n, int axis, int64_t place)
{
    return n->state->resized[axis] && n->state->taps[axis].extrapolated[place];
}

/* The last axis, four bytes an element, nothing extrapolated. */
static void show_words(const struct nearest *n, int axis, int64_t from, int64_t to)
{
    const int64_t *index = n->state->taps[axis].index;
    const uint32_t *x = (const uint32_t *)n->x->data + from;
    uint32_t *y = (uint32_t *)n->y->data + to;
    for (int64_t i = 0; i < n->y->dims[axis]; i++)
        y[i] = x[index[i]];
}

/* `from` is negative where an axis so far was extrapolated. */
static void show(const struct nearest *n, int axis, int64_t from, int64_t to)
{
    size_t size = mgpu_dtype_size(n->y->type);
    if (axis == n->y->rank) {
        const char *x = from < 0 ? n->value : (const char *)n->x->data + (size_t)from * size;
        memcpy((char *)n->y->data + (size_t)to * size, x, size);
        return;
    }
    bool words = axis == n->y->rank - 1 && size == 4 && from >= 0 && n->state->resized[axis] &&
                 !n->state->taps[axis].any_extrapolated;
    if (words) {
        show_words(n, axis, from, to);
        return;
    }
    for (int64_t i = 0; i < n->y->dims[axis]; i++) {
        bool none = from < 0 || extrapolated(n, axis, i);
        show(n, axis + 1, none ? -1 : from + shown(n, axis, i) * n->x_stride[axis],
             to + i * n->y_stride[axis]);
    }
}

/* Adds y's elements up in `sum`, a plane of x. */
static void collect(const struct nearest *n, int axis, int64_t from, int64_t to, double *sum)
{
    if (axis == n->y->rank) {
        sum[to] += mgpu_get_double(n->y->data, n->y->type, from);
        return;
    }
    for (int64_t i = 0; i < n->y->dims[axis]; i++)
        if (!extrapolated(n, axis, i))
            collect(n, axis + 1, from + i * n->y_stride[axis],
                    to + shown(n, axis, i) * n->x_stride[axis], sum);
}

static void nearest_plane(const struct mgpu_launch *l, const struct planes *p, int64_t plane)
{
    struct nearest n = nearest_of(l, &l->in[0], &l->out[0]);
    show(&n, p->leading, plane * p->in, plane * p->out);
}

static void nearest_plane_back(const struct mgpu_launch *l, const struct planes *p, int64_t plane,
                               double *sum)
{
    struct nearest n = nearest_of(l, &l->out[0], &l->in[0]);
    memset(sum, 0, sizeof *sum * (size_t)p->in);
    collect(&n, p->leading, plane * p->out, 0, sum);
    store(&l->out[0], plane * p->in, sum, p->in);
}

/* ---- linear and cubic ----------------------------------------------------------------------- */

/* One axis: x as [outer, in, inner], y as [outer, out, inner]. */
struct pass {
    const struct mgpu_resize_taps *taps;
    int64_t outer, inner;
    double extrapolation;
};

static void forward_row(const struct pass *p, int64_t outer, int64_t place, const double *x,
                        double *y)
{
    const struct mgpu_resize_taps *t = p->taps;
    double *to = y + (outer * t->out + place) * p->inner;
    for (int64_t i = 0; i < p->inner; i++)
        to[i] = t->extrapolated[place] ? p->extrapolation : 0;
    for (int64_t k = 0; k < t->count && !t->extrapolated[place]; k++) {
        double weight = t->weight[place * t->count + k];
        const double *from = x + (outer * t->in + t->index[place * t->count + k]) * p->inner;
        for (int64_t i = 0; i < p->inner; i++)
            to[i] += weight * from[i];
    }
}

static void backward_row(const struct pass *p, int64_t outer, int64_t place, const double *dy,
                         double *dx)
{
    const struct mgpu_resize_taps *t = p->taps;
    const double *from = dy + (outer * t->out + place) * p->inner;
    for (int64_t k = 0; k < t->count && !t->extrapolated[place]; k++) {
        double weight = t->weight[place * t->count + k];
        double *to = dx + (outer * t->in + t->index[place * t->count + k]) * p->inner;
        for (int64_t i = 0; i < p->inner; i++)
            to[i] += weight * from[i];
    }
}

/* The last axis: rows of one element. */
static void forward_line(const struct pass *p, const double *x, double *y)
{
    const struct mgpu_resize_taps *t = p->taps;
    const double *weight = t->weight;
    const int64_t *index = t->index;
    for (int64_t place = 0; place < t->out; place++) {
        double sum = 0;
        for (int64_t k = 0; k < t->count; k++)
            sum += *weight++ * x[*index++];
        y[place] = t->extrapolated[place] ? p->extrapolation : sum;
    }
}

static void backward_line(const struct pass *p, const double *dy, double *dx)
{
    const struct mgpu_resize_taps *t = p->taps;
    for (int64_t place = 0; place < t->out; place++)
        for (int64_t k = 0; k < t->count && !t->extrapolated[place]; k++)
            dx[t->index[place * t->count + k]] += t->weight[place * t->count + k] * dy[place];
}

static void forward(const struct pass *p, const double *x, double *y)
{
    const struct mgpu_resize_taps *t = p->taps;
    for (int64_t outer = 0; outer < p->outer; outer++)
        if (p->inner == 1)
            forward_line(p, x + outer * t->in, y + outer * t->out);
        else
            for (int64_t place = 0; place < t->out; place++)
                forward_row(p, outer, place, x, y);
}

static void backward(const struct pass *p, const double *dy, double *dx)
{
    const struct mgpu_resize_taps *t = p->taps;
    memset(dx, 0, sizeof *dx * (size_t)(p->outer * t->in * p->inner));
    for (int64_t outer = 0; outer < p->outer; outer++)
        if (p->inner == 1)
            backward_line(p, dy + outer * t->out, dx + outer * t->in);
        else
            for (int64_t place = 0; place < t->out; place++)
                backward_row(p, outer, place, dy, dx);
}

/* All passes over a plane, from buffer to buffer; gives the one that holds the result. */
static double *all_passes(const struct mgpu_launch *l, const struct planes *planes, double *from,
                          double *to, bool back)
{
    const struct mgpu_resize_attrs *a = l->node->attrs;
    const struct state *s = l->state;
    int64_t dims[MGPU_MAX_RANK];
    memcpy(dims, l->in[0].dims, sizeof dims);
    for (int axis = planes->leading; axis < a->rank; axis++) {
        if (!s->resized[axis])
            continue;
        struct pass p = {
            .taps = &s->taps[axis], .outer = 1, .inner = 1, .extrapolation = a->extrapolation};
        for (int i = planes->leading; i < a->rank; i++)
            if (i != axis)
                *(i < axis ? &p.outer : &p.inner) *= dims[i];
        (back ? backward : forward)(&p, from, to);
        dims[axis] = back ? p.taps->in : p.taps->out;
        double *done = to;
        to = from;
        from = done;
    }
    return from;
}

static void smooth_plane(const struct mgpu_launch *l, const struct planes *p, int64_t plane,
                         bool back, double *scratch)
{
    const struct mgpu_tensor *x = &l->in[0];
    int64_t from = back ? p->out : p->in, to = back ? p->in : p->out;
    size_t size = mgpu_dtype_size(x->type);
    mgpu_convert(scratch, MGPU_DOUBLE, (const char *)x->data + (size_t)(plane * from) * size,
                 x->type, from);
    store(&l->out[0], plane * to, all_passes(l, p, scratch, scratch + p->scratch, back), to);
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* Thread t has planes t, t + threads, ... and its own scratch. */
static int run(const struct mgpu_launch *l, bool back)
{
    const struct mgpu_resize_attrs *a = l->node->attrs;
    struct planes p = planes_of(a);
    bool large = p.count * p.scratch >= PARALLEL;
#pragma omp parallel for schedule(static) if (large)
    for (int t = 0; t < l->threads; t++)
        for (int64_t plane = t; plane < p.count; plane += l->threads) {
            double *scratch = (double *)l->workspace + t * 2 * p.scratch;
            if (a->mode != MGPU_RESIZE_NEAREST)
                smooth_plane(l, &p, plane, back, scratch);
            else if (back)
                nearest_plane_back(l, &p, plane, scratch);
            else
                nearest_plane(l, &p, plane);
        }
    return 0;
}

static int resize(const struct mgpu_launch *l)
{
    return run(l, false);
}

static int resize_grad(const struct mgpu_launch *l)
{
    return run(l, true);
}

#define RESIZE(text, function)                                                                     \
    {                                                                                              \
        .op = text, .name = "ref", .run = function, .prepare = prepare, .release = release,        \
        .workspace = workspace                                                                     \
    }

const struct mgpu_kernel mgpu_ref_resize[] = {
    RESIZE("resize", resize),
    RESIZE("resize_grad", resize_grad),
    {.op = NULL},
};
