/* Pooling in plain C, one thread a plane (sample and channel). */
#include "runtime/ops/pool.h"
#include "runtime/ref/gemm.h"
#include "runtime/ref/ref.h"

#include <float.h>
#include <string.h>

/* The attributes as three axes, the missing ones in front with size 1. */
struct pool {
    int64_t kernel[MGPU_MAX_SPATIAL], stride[MGPU_MAX_SPATIAL], dilation[MGPU_MAX_SPATIAL];
    int64_t before[MGPU_MAX_SPATIAL], after[MGPU_MAX_SPATIAL];
    int64_t in[MGPU_MAX_SPATIAL], out[MGPU_MAX_SPATIAL];
    bool count_include_pad;
    int64_t planes, in_count, out_count; /* N*C; elements of a plane of x and of y */
};

static int64_t three(const int64_t *field, int64_t spatial, int axis, int64_t missing)
{
    int64_t i = axis + spatial - MGPU_MAX_SPATIAL;
    return i < 0 ? missing : field[i];
}

static struct pool pool_of(const struct mgpu_launch *l)
{
    const struct mgpu_pool_attrs *a = l->node->attrs;
    struct pool p = {.count_include_pad = a->count_include_pad, .in_count = 1, .out_count = 1};
    for (int axis = 0; axis < MGPU_MAX_SPATIAL; axis++) {
        p.kernel[axis] = three(a->kernel, a->spatial, axis, 1);
        p.stride[axis] = three(a->stride, a->spatial, axis, 1);
        p.dilation[axis] = three(a->dilation, a->spatial, axis, 1);
        p.before[axis] = three(a->before, a->spatial, axis, 0);
        p.after[axis] = three(a->after, a->spatial, axis, 0);
        p.in[axis] = three(a->in, a->spatial, axis, 1);
        p.out[axis] = three(a->out, a->spatial, axis, 1);
        p.in_count *= p.in[axis];
        p.out_count *= p.out[axis];
    }
    p.planes = l->in[0].dims[0] * l->in[0].dims[1];
    return p;
}

/* One window on each axis: where its first tap stands in x, and which taps [first, end) fall
 * inside x. `count`: what an average divides by. */
struct window {
    int64_t start[MGPU_MAX_SPATIAL], first[MGPU_MAX_SPATIAL], end[MGPU_MAX_SPATIAL];
    int64_t count;
};

/* Number of taps k < kernel with start + k * dilation < limit. */
static int64_t taps_below(const struct pool *p, int axis, int64_t start, int64_t limit)
{
    int64_t room = limit - start;
    int64_t taps = room <= 0 ? 0 : (room - 1) / p->dilation[axis] + 1;
    return taps < p->kernel[axis] ? taps : p->kernel[axis];
}

static struct window window_of(const struct pool *p, int64_t output)
{
    struct window w = {.count = 1};
    for (int axis = MGPU_MAX_SPATIAL - 1; axis >= 0; axis--) {
        int64_t start = output % p->out[axis] * p->stride[axis] - p->before[axis];
        output /= p->out[axis];
        w.start[axis] = start;
        w.first[axis] = taps_below(p, axis, start, 0);
        w.end[axis] = taps_below(p, axis, start, p->in[axis]);
        w.count *= p->count_include_pad ? taps_below(p, axis, start, p->in[axis] + p->after[axis])
                                        : w.end[axis] - w.first[axis];
    }
    return w;
}

/* Element of the plane of x at a tap. */
static int64_t element(const struct pool *p, const struct window *w, const int64_t *tap)
{
    int64_t index = 0;
    for (int axis = 0; axis < MGPU_MAX_SPATIAL; axis++)
        index = index * p->in[axis] + w->start[axis] + tap[axis] * p->dilation[axis];
    return index;
}

/* All taps of a window that fall inside x, in row-major order. */
#define EACH_TAP(w, k)                                                                             \
    for (k[0] = (w).first[0]; k[0] < (w).end[0]; k[0]++)                                           \
        for (k[1] = (w).first[1]; k[1] < (w).end[1]; k[1]++)                                       \
            for (k[2] = (w).first[2]; k[2] < (w).end[2]; k[2]++)

/* ---- max ------------------------------------------------------------------------------------- */

/* The first largest element; a NaN counts as the largest, as in PyTorch. Returns its place in
 * the plane, or -1 when the window is empty. */
static int64_t largest(const struct pool *p, const struct mgpu_tensor *x, int64_t plane,
                       const struct window *w, int32_t *argument)
{
    int64_t best = -1, k[MGPU_MAX_SPATIAL];
    double most = 0;
    *argument = 0;
    EACH_TAP(*w, k)
    {
        int64_t at = element(p, w, k);
        double v = mgpu_ref_get(x->data, x->type, plane * p->in_count + at);
        if (best >= 0 && !(v > most) && !(v != v && most == most))
            continue;
        best = at;
        most = v;
        *argument = (int32_t)((k[0] * p->kernel[1] + k[1]) * p->kernel[2] + k[2]);
    }
    return best;
}

/* The lowest finite value of the type: what a window over nothing but padding gives. */
static void set_lowest(void *data, enum mgpu_dtype type, int64_t i)
{
    static const double half = -65504, bfloat = -0x1.FEp127;
    if (mgpu_is_integer(type))
        mgpu_set_int(data, type, i,
                     mgpu_is_signed(type) ? -(INT64_C(1) << (8 * mgpu_dtype_size(type) - 1)) : 0);
    else
        mgpu_ref_set(data, type, i,
                     type == MGPU_FLOAT     ? -FLT_MAX
                     : type == MGPU_DOUBLE  ? -DBL_MAX
                     : type == MGPU_FLOAT16 ? half
                                            : bfloat);
}

static void max_plane(const struct pool *p, const struct mgpu_launch *l, int64_t plane)
{
    const struct mgpu_tensor *x = &l->in[0], *y = &l->out[0];
    int32_t *arguments = l->outputs > 1 ? l->out[1].data : NULL;
    size_t size = mgpu_dtype_size(x->type);
    for (int64_t o = 0; o < p->out_count; o++) {
        struct window w = window_of(p, o);
        int32_t argument;
        int64_t best = largest(p, x, plane, &w, &argument), at = plane * p->out_count + o;
        if (arguments)
            arguments[at] = argument;
        if (y->data && best < 0)
            set_lowest(y->data, y->type, at);
        else if (y->data)
            memcpy((char *)y->data + (size_t)at * size,
                   (const char *)x->data + (size_t)(plane * p->in_count + best) * size, size);
    }
}

static int run_max(const struct mgpu_launch *l)
{
    struct pool p = pool_of(l);
#pragma omp parallel for
    for (int64_t plane = 0; plane < p.planes; plane++)
        max_plane(&p, l, plane);
    return 0;
}

static void add(const struct mgpu_tensor *t, int64_t i, double value)
{
    mgpu_ref_set(t->data, t->type, i, mgpu_ref_get(t->data, t->type, i) + value);
}

static void clear_plane(const struct pool *p, const struct mgpu_tensor *dx, int64_t plane)
{
    size_t bytes = (size_t)p->in_count * mgpu_dtype_size(dx->type);
    memset((char *)dx->data + (size_t)plane * bytes, 0, bytes);
}

static bool inside(const struct window *w, const int64_t *tap)
{
    for (int axis = 0; axis < MGPU_MAX_SPATIAL; axis++)
        if (tap[axis] < w->first[axis] || tap[axis] >= w->end[axis])
            return false;
    return true;
}

static void max_grad_plane(const struct pool *p, const struct mgpu_launch *l, int64_t plane)
{
    const struct mgpu_tensor *dy = &l->in[0], *dx = &l->out[0];
    const int32_t *arguments = l->in[1].data;
    clear_plane(p, dx, plane);
    for (int64_t o = 0; o < p->out_count; o++) {
        struct window w = window_of(p, o);
        int64_t at = plane * p->out_count + o, argument = arguments[at];
        int64_t tap[] = {argument / (p->kernel[1] * p->kernel[2]),
                         argument / p->kernel[2] % p->kernel[1], argument % p->kernel[2]};
        if (inside(&w, tap)) /* an empty window sends its gradient nowhere */
            add(dx, plane * p->in_count + element(p, &w, tap),
                mgpu_ref_get(dy->data, dy->type, at));
    }
}

static int run_max_grad(const struct mgpu_launch *l)
{
    struct pool p = pool_of(l);
#pragma omp parallel for
    for (int64_t plane = 0; plane < p.planes; plane++)
        max_grad_plane(&p, l, plane);
    return 0;
}

/* ---- average --------------------------------------------------------------------------------- */

static void average_plane(const struct pool *p, const struct mgpu_launch *l, int64_t plane)
{
    const struct mgpu_tensor *x = &l->in[0], *y = &l->out[0];
    for (int64_t o = 0; o < p->out_count; o++) {
        struct window w = window_of(p, o);
        int64_t k[MGPU_MAX_SPATIAL];
        double sum = 0;
        EACH_TAP(w, k)
        sum += mgpu_ref_get(x->data, x->type, plane * p->in_count + element(p, &w, k));
        mgpu_ref_set(y->data, y->type, plane * p->out_count + o,
                     w.count ? sum / (double)w.count : 0);
    }
}

static int run_average(const struct mgpu_launch *l)
{
    struct pool p = pool_of(l);
#pragma omp parallel for
    for (int64_t plane = 0; plane < p.planes; plane++)
        average_plane(&p, l, plane);
    return 0;
}

static void average_grad_plane(const struct pool *p, const struct mgpu_launch *l, int64_t plane)
{
    const struct mgpu_tensor *dy = &l->in[0], *dx = &l->out[0];
    clear_plane(p, dx, plane);
    for (int64_t o = 0; o < p->out_count; o++) {
        struct window w = window_of(p, o);
        int64_t k[MGPU_MAX_SPATIAL];
        double each = mgpu_ref_get(dy->data, dy->type, plane * p->out_count + o) / (double)w.count;
        EACH_TAP(w, k)
        add(dx, plane * p->in_count + element(p, &w, k), each);
    }
}

static int run_average_grad(const struct mgpu_launch *l)
{
    struct pool p = pool_of(l);
#pragma omp parallel for
    for (int64_t plane = 0; plane < p.planes; plane++)
        average_grad_plane(&p, l, plane);
    return 0;
}

const struct mgpu_kernel mgpu_ref_pool[] = {
    {.op = "max_pool", .name = "ref", .run = run_max},
    {.op = "max_pool_grad", .name = "ref", .run = run_max_grad},
    {.op = "average_pool", .name = "ref", .run = run_average},
    {.op = "average_pool_grad", .name = "ref", .run = run_average_grad},
    {.op = NULL},
};
