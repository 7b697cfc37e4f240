/* Pooling: a thread for each element of y, or of dx, which gathers what the windows over it send.
 * Planes lie apart, or channels-last. */
#include "runtime/ops/pool.h"
#include "runtime/emit/writer.h"

#include <float.h>

enum { AXES = MGPU_MAX_SPATIAL };

/* The attributes as three axes, the missing ones in front with size 1. */
struct pool {
    int64_t kernel[AXES], stride[AXES], dilation[AXES], before[AXES], after[AXES];
    int64_t in[AXES], out[AXES];
    bool counts_padding;
    int64_t step; /* elements from one place of a plane to the next: channels where they are last */
    const char *place; /* type of places along an axis */
};

static struct pool pool_of(const struct mgpu_node *node)
{
    const struct mgpu_pool_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0], *y = node->output[0];
    bool last = x->block || (y && y->block);
    struct pool p = {.counts_padding = a->count_include_pad, .step = last ? x->dims[1].value : 1};
    int64_t most = 0;
    for (int k = 0; k < AXES; k++) {
        int64_t i = k + a->spatial - AXES;
        p.kernel[k] = i < 0 ? 1 : a->kernel[i];
        p.stride[k] = i < 0 ? 1 : a->stride[i];
        p.dilation[k] = i < 0 ? 1 : a->dilation[i];
        p.before[k] = i < 0 ? 0 : a->before[i];
        p.after[k] = i < 0 ? 0 : a->after[i];
        p.in[k] = i < 0 ? 1 : a->in[i];
        p.out[k] = i < 0 ? 1 : a->out[i];
        int64_t reach = p.in[k] + p.before[k] + p.after[k] + p.kernel[k] * p.dilation[k] +
                        p.out[k] * p.stride[k];
        most = reach > most ? reach : most;
    }
    p.place = most < INT32_MAX ? "int" : "i64";
    return p;
}

static int64_t product(const int64_t sizes[AXES])
{
    return sizes[0] * sizes[1] * sizes[2];
}

/* Opens a kernel of one thread for each element of planes of sizes `own`: its place p_0, p_1, p_2,
 * and where its plane of sizes `other` begins. */
static void open_planes(struct mgpu_writer *w, const struct pool *p, int64_t count,
                        const int64_t own[AXES], const int64_t other[AXES])
{
    int64_t inside = p->step;
    mgpu_write_kernel_each(w, count);
    for (int k = AXES - 1; k >= 0; inside *= own[k--])
        mgpu_write(w, "    const %s p_%d = i / %lld %% %lld;\n", p->place, k, (long long)inside,
                   (long long)own[k]);
    mgpu_write(w, "    const i64 plane = (i64)(i / %lld) * %lld", (long long)inside,
               (long long)(product(other) * p->step));
    mgpu_write(w, p->step > 1 ? " + i %% %lld;\n" : ";\n", (long long)p->step);
}

/* The element of the other plane at at_0, at_1, at_2. */
static void write_at(struct mgpu_writer *w, const struct pool *p, const int64_t other[AXES])
{
    mgpu_write(w, "    const i64 at = plane + (((i64)at_0 * %lld + at_1) * %lld + at_2) * %lld;\n",
               (long long)other[1], (long long)other[2], (long long)p->step);
}

/* Loops over the taps k_0, k_1, k_2 of a window that fall inside x. */
static void open_window(struct mgpu_writer *w, const struct pool *p)
{
    for (int k = 0; k < AXES; k++) {
        mgpu_write(w, "    for (int k_%d = 0; k_%d < %lld; k_%d++) {\n", k, k,
                   (long long)p->kernel[k], k);
        mgpu_write(w, "    const %s at_%d = p_%d * %lld + k_%d * %lld - %lld;\n", p->place, k, k,
                   (long long)p->stride[k], k, (long long)p->dilation[k], (long long)p->before[k]);
        mgpu_write(w, "    if (at_%d < 0 || at_%d >= %lld)\n        continue;\n", k, k,
                   (long long)p->in[k]);
    }
    write_at(w, p, p->in);
}

/* Loops over the windows at at_0, at_1, at_2 that have the place as their tap k_0, k_1, k_2. */
static void open_windows(struct mgpu_writer *w, const struct pool *p)
{
    for (int k = 0; k < AXES; k++) {
        mgpu_write(w, "    for (int k_%d = %lld; k_%d >= 0; k_%d--) {\n", k,
                   (long long)p->kernel[k] - 1, k, k);
        mgpu_write(w, "    const %s from_%d = p_%d + %lld - k_%d * %lld, at_%d = from_%d / %lld;\n",
                   p->place, k, k, (long long)p->before[k], k, (long long)p->dilation[k], k, k,
                   (long long)p->stride[k]);
        mgpu_write(w, "    if (from_%d < 0 || from_%d %% %lld || at_%d >= %lld)\n", k, k,
                   (long long)p->stride[k], k, (long long)p->out[k]);
        mgpu_write(w, "        continue;\n");
    }
    write_at(w, p, p->out);
}

static void close_loops(struct mgpu_writer *w)
{
    mgpu_write(w, "    }}}\n");
}

/* Which tap of the window, row-major. */
static void write_tap(struct mgpu_writer *w, const struct pool *p)
{
    mgpu_write(w, "(k_0 * %lld + k_1) * %lld + k_2", (long long)p->kernel[1],
               (long long)p->kernel[2]);
}

/* ---- Max ------------------------------------------------------------------------------------- */

/* What a window over nothing but padding gives. */
static void write_lowest(struct mgpu_writer *w, enum mgpu_dtype type)
{
    if (mgpu_is_integer(type))
        mgpu_write(w, mgpu_is_signed(type) ? "-1 - (i64)(~0ull >> %d)" : "0 * %d",
                   65 - 8 * (int)mgpu_dtype_size(type));
    else
        mgpu_write_number(w, type,
                          type == MGPU_FLOAT     ? -FLT_MAX
                          : type == MGPU_DOUBLE  ? -DBL_MAX
                          : type == MGPU_FLOAT16 ? -65504
                                                 : -0x1.FEp127);
}

static bool accepts_max(const struct mgpu_node *node)
{
    return node->input[0]->type != MGPU_UINT64 && node->input[0]->type != MGPU_BOOL;
}

/* The first largest; a NaN counts as the largest. */
static void emit_max(struct mgpu_writer *w)
{
    const struct mgpu_node *node = w->node;
    struct pool p = pool_of(node);
    enum mgpu_dtype type = node->input[0]->type;
    const struct mgpu_value *y = node->output[0] ? node->output[0] : node->output[1];
    open_planes(w, &p, mgpu_value_count(y), p.out, p.in);
    mgpu_write(w, "    int there = 0, tap = 0;\n    %s most = ", mgpu_compute_type(type));
    write_lowest(w, type);
    mgpu_write(w, ";\n");
    open_window(w, &p);
    mgpu_write(w, "    const %s v = LOAD_%s(x0, at);\n", mgpu_compute_type(type),
               mgpu_dtype_name(type));
    mgpu_write(w,
               "    if (there && !(v > most) && !(v != v && most == most))\n        continue;\n");
    mgpu_write(w, "    there = 1;\n    most = v;\n    tap = ");
    write_tap(w, &p);
    mgpu_write(w, ";\n");
    close_loops(w);
    if (node->output[0])
        mgpu_write(w, "    STORE_%s(y0, i, most);\n", mgpu_dtype_name(type));
    if (node->outputs > 1 && node->output[1])
        mgpu_write(w, "    y1[i] = tap;\n");
    mgpu_write(w, "}\n");
}

static void emit_max_grad(struct mgpu_writer *w)
{
    struct pool p = pool_of(w->node);
    const struct mgpu_value *dx = w->node->output[0];
    const char *type = mgpu_dtype_name(dx->type);
    open_planes(w, &p, mgpu_value_count(dx), p.in, p.out);
    mgpu_write(w, "    %s sum = 0;\n", mgpu_compute_type(dx->type));
    open_windows(w, &p);
    mgpu_write(w, "    if (x1[at] == ");
    write_tap(w, &p);
    mgpu_write(w, ")\n        sum += LOAD_%s(x0, at);\n", type);
    close_loops(w);
    mgpu_write(w, "    STORE_%s(y0, i, sum);\n}\n", type);
}

/* ---- Average --------------------------------------------------------------------------------- */

/* taps_k below `limit` of the window at place `at`: "at_0". */
static void write_taps(struct mgpu_writer *w, const struct pool *p, int k, const char *name,
                       const char *at, int64_t limit)
{
    mgpu_write(w, "    %s %s_%d = %lld - %s_%d * %lld;\n", p->place, name, k,
               (long long)(limit + p->before[k]), at, k, (long long)p->stride[k]);
    mgpu_write(w, "    %s_%d = %s_%d <= 0 ? 0 : (%s_%d - 1) / %lld + 1;\n", name, k, name, k, name,
               k, (long long)p->dilation[k]);
    mgpu_write(w, "    %s_%d = %s_%d < %lld ? %s_%d : %lld;\n", name, k, name, k,
               (long long)p->kernel[k], name, k, (long long)p->kernel[k]);
}

/* What the average of the window at `at` divides by, as `count`. */
static void write_count(struct mgpu_writer *w, const struct pool *p, const char *at)
{
    for (int k = 0; k < AXES; k++) {
        write_taps(w, p, k, "end", at, p->in[k] + (p->counts_padding ? p->after[k] : 0));
        if (p->counts_padding)
            mgpu_write(w, "    const int first_%d = 0;\n", k);
        else
            write_taps(w, p, k, "first", at, 0);
    }
    mgpu_write(w, "    const i64 count = (i64)(end_0 - first_0) * (end_1 - first_1) * "
                  "(end_2 - first_2);\n");
}

static void emit_average(struct mgpu_writer *w)
{
    struct pool p = pool_of(w->node);
    const struct mgpu_value *y = w->node->output[0];
    const char *type = mgpu_dtype_name(y->type), *real = mgpu_compute_type(y->type);
    open_planes(w, &p, mgpu_value_count(y), p.out, p.in);
    mgpu_write(w, "    %s sum = 0;\n", real);
    open_window(w, &p);
    mgpu_write(w, "    sum += LOAD_%s(x0, at);\n", type);
    close_loops(w);
    write_count(w, &p, "p");
    mgpu_write(w, "    STORE_%s(y0, i, count > 0 ? sum / (%s)count : 0);\n}\n", type, real);
}

static void emit_average_grad(struct mgpu_writer *w)
{
    struct pool p = pool_of(w->node);
    const struct mgpu_value *dx = w->node->output[0];
    const char *type = mgpu_dtype_name(dx->type), *real = mgpu_compute_type(dx->type);
    open_planes(w, &p, mgpu_value_count(dx), p.in, p.out);
    mgpu_write(w, "    %s sum = 0;\n", real);
    open_windows(w, &p);
    write_count(w, &p, "at");
    mgpu_write(w, "    sum += LOAD_%s(x0, at) / (%s)count;\n", type, real);
    close_loops(w);
    mgpu_write(w, "    STORE_%s(y0, i, sum);\n}\n", type);
}

const struct mgpu_emitter mgpu_emit_pool[] = {
    {"max_pool", accepts_max, emit_max},
    {"max_pool_grad", NULL, emit_max_grad},
    {"average_pool", NULL, emit_average},
    {"average_pool_grad", NULL, emit_average_grad},
    {NULL},
};
