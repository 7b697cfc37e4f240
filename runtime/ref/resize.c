/* Plain kernels of resize and resize_grad. Nearest moves elements; the others go axis by axis in
 * double. */
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

/* `from` is negative where an axis so far was extrapolated. */
static void show(const struct nearest *n, int axis, int64_t from, int64_t to)
{
    size_t size = mgpu_dtype_size(n->y->type);
    if (axis == n->y->rank) {
        const char *x = from < 0 ? n->value : (const char *)n->x->data + (size_t)from * size;
        memcpy((char *)n->y->data + (size_t)to * size, x, size);
        return;
    }
    for (int64_t i = 0; i < n->y->dims[axis]; i++) {
        bool none = from < 0 || extrapolated(n, axis, i);
        show(n, axis + 1, none ? -1 : from + shown(n, axis, i) * n->x_stride[axis],
             to + i * n->y_stride[axis]);
    }
}

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

/* The first axis is cut among threads: its places in y are apart, and in x when it is kept. */
static void show_all(const struct nearest *n)
{
    int64_t count = mgpu_tensor_count(n->y), size = n->y->rank ? n->y->dims[0] : 0;
    if (!n->y->rank)
        show(n, 0, 0, 0);
#pragma omp parallel for schedule(static) if (count >= PARALLEL)
    for (int64_t i = 0; i < size; i++)
        show(n, 1, extrapolated(n, 0, i) ? -1 : shown(n, 0, i) * n->x_stride[0],
             i * n->y_stride[0]);
}

static void collect_all(const struct nearest *n, double *sum)
{
    int64_t count = mgpu_tensor_count(n->y), size = n->y->rank ? n->y->dims[0] : 0;
    if (!n->y->rank || n->state->resized[0]) {
        collect(n, 0, 0, 0, sum);
        return;
    }
#pragma omp parallel for schedule(static) if (count >= PARALLEL)
    for (int64_t i = 0; i < size; i++)
        collect(n, 1, i * n->y_stride[0], i * n->x_stride[0], sum);
}

/* ---- linear and cubic ----------------------------------------------------------------------- */

/* One axis: x as [outer, in, inner], y as [outer, out, inner]. */
struct pass {
    const struct mgpu_resize_taps *taps;
    int64_t outer, inner;
    double extrapolation;
};

static void forward_row(const struct pass *p, int64_t row, const double *x, double *y)
{
    const struct mgpu_resize_taps *t = p->taps;
    int64_t place = row % t->out;
    double *to = y + row * p->inner;
    for (int64_t i = 0; i < p->inner; i++)
        to[i] = t->extrapolated[place] ? p->extrapolation : 0;
    for (int64_t k = 0; k < t->count && !t->extrapolated[place]; k++) {
        double weight = t->weight[place * t->count + k];
        const double *from = x + (row / t->out * t->in + t->index[place * t->count + k]) * p->inner;
        for (int64_t i = 0; i < p->inner; i++)
            to[i] += weight * from[i];
    }
}

static void forward(const struct pass *p, const double *x, double *y)
{
    int64_t rows = p->outer * p->taps->out;
#pragma omp parallel for schedule(static) if (rows * p->inner >= PARALLEL)
    for (int64_t row = 0; row < rows; row++)
        forward_row(p, row, x, y);
}

static void backward_row(const struct pass *p, int64_t row, const double *dy, double *dx)
{
    const struct mgpu_resize_taps *t = p->taps;
    int64_t place = row % t->out;
    const double *from = dy + row * p->inner;
    for (int64_t k = 0; k < t->count && !t->extrapolated[place]; k++) {
        double weight = t->weight[place * t->count + k];
        double *to = dx + (row / t->out * t->in + t->index[place * t->count + k]) * p->inner;
        for (int64_t i = 0; i < p->inner; i++)
            to[i] += weight * from[i];
    }
}

static void backward(const struct pass *p, const double *dy, double *dx)
{
    int64_t rows = p->outer * p->taps->out;
    memset(dx, 0, sizeof *dx * (size_t)(p->outer * p->taps->in * p->inner));
#pragma omp parallel for schedule(static) if (rows * p->inner >= PARALLEL)
    for (int64_t outer = 0; outer < p->outer; outer++)
        for (int64_t k = 0; k < p->taps->out; k++)
            backward_row(p, outer * p->taps->out + k, dy, dx);
}

/* The largest tensor between two passes, in elements. */
static int64_t most_elements(const struct mgpu_resize_attrs *a)
{
    int64_t most = 1;
    for (int i = 0; i < a->rank; i++)
        most *= a->in[i].value > a->out[i].value ? a->in[i].value : a->out[i].value;
    return most;
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)threads;
    (void)state;
    return 2 * most_elements(node->attrs) * (int64_t)sizeof(double);
}

/* All passes, from buffer to buffer; gives the one that holds the result. */
static double *all_passes(const struct mgpu_launch *l, double *from, double *to, bool back)
{
    const struct mgpu_resize_attrs *a = l->node->attrs;
    const struct state *s = l->state;
    int64_t dims[MGPU_MAX_RANK];
    memcpy(dims, l->in[0].dims, sizeof dims);
    for (int axis = 0; axis < a->rank; axis++) {
        if (!s->resized[axis])
            continue;
        struct pass p = {
            .taps = &s->taps[axis], .outer = 1, .inner = 1, .extrapolation = a->extrapolation};
        for (int i = 0; i < a->rank; i++)
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

/* Integers round to the nearest, halves to even. */
static void store(const struct mgpu_tensor *y, double *values)
{
    int64_t count = mgpu_tensor_count(y);
    for (int64_t i = 0; i < count && !mgpu_is_float(y->type); i++)
        values[i] = nearbyint(values[i]);
    mgpu_convert(y->data, y->type, values, MGPU_DOUBLE, count);
}

static int interpolate(const struct mgpu_launch *l, bool back)
{
    double *from = l->workspace, *to = from + most_elements(l->node->attrs);
    mgpu_convert(from, MGPU_DOUBLE, l->in[0].data, l->in[0].type, mgpu_tensor_count(&l->in[0]));
    store(&l->out[0], all_passes(l, from, to, back));
    return 0;
}

static int resize(const struct mgpu_launch *l)
{
    const struct mgpu_resize_attrs *a = l->node->attrs;
    if (a->mode != MGPU_RESIZE_NEAREST)
        return interpolate(l, false);
    struct nearest n = nearest_of(l, &l->in[0], &l->out[0]);
    show_all(&n);
    return 0;
}

static int resize_grad(const struct mgpu_launch *l)
{
    const struct mgpu_resize_attrs *a = l->node->attrs;
    if (a->mode != MGPU_RESIZE_NEAREST)
        return interpolate(l, true);
    struct nearest n = nearest_of(l, &l->out[0], &l->in[0]);
    double *sum = l->workspace;
    memset(sum, 0, sizeof *sum * (size_t)mgpu_tensor_count(&l->out[0]));
    collect_all(&n, sum);
    store(&l->out[0], sum);
    return 0;
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
