/* resize and its transpose: what a place takes from where stands in tables in the kernel. An
 * element is the sum over its axes' entries of the products of their weights. */
#include "runtime/ops/resize.h"
#include "runtime/emit/writer.h"
#include "runtime/base/status.h"
#include "runtime/ops/resize_taps.h"

#include <stdlib.h>

enum { MOST_ENTRIES = 1 << 14 }; /* of a node's tables */

/* Along one axis place p takes entries first[p] .. first[p + 1) of `from` and `weight`. */
struct links {
    int64_t places, count;
    int64_t *first, *from;
    double *weight;
};

static void links_free(struct links *l)
{
    free(l->first);
    free(l->from);
    free(l->weight);
}

static void add_link(struct links *l, const struct mgpu_resize_taps *t, int64_t tap, bool back)
{
    if (t->extrapolated[tap / t->count] || t->weight[tap] == 0)
        return;
    l->from[l->count] = back ? tap / t->count : t->index[tap];
    l->weight[l->count++] = t->weight[tap];
}

/* Places of y and what they show; or places of x and where they are shown. */
static struct links links_of(const struct mgpu_resize_taps *t, bool back)
{
    struct links l = {.places = back ? t->in : t->out};
    int64_t taps = t->out * t->count;
    l.first = mgpu_xcalloc((size_t)l.places + 2, sizeof *l.first);
    l.from = mgpu_xcalloc((size_t)taps + 1, sizeof *l.from);
    l.weight = mgpu_xcalloc((size_t)taps + 1, sizeof *l.weight);
    for (int64_t p = 0; p < l.places; p++) {
        l.first[p] = l.count;
        for (int64_t i = 0; i < taps; i++)
            if (back ? t->index[i] == p : i / t->count == p)
                add_link(&l, t, i, back);
    }
    l.first[l.places] = l.count;
    return l;
}

static void write_integers(struct mgpu_writer *w, const char *name, int axis, const int64_t *values,
                           int64_t count)
{
    mgpu_write(w, "    static const int %s_%d[] = {", name, axis);
    for (int64_t i = 0; i < count; i++)
        mgpu_write(w, "%lld, ", (long long)values[i]);
    mgpu_write(w, "0};\n");
}

/* The tables of an axis. An axis that stays as it is has none. */
static void write_axis_tables(struct mgpu_writer *w, int axis, bool back)
{
    enum mgpu_dtype type = w->node->output[0]->type;
    struct mgpu_resize_taps taps;
    if (mgpu_resize_taps_make(w->node->attrs, axis, &taps) < 0)
        abort(); /* accepts has made them */
    struct links l = links_of(&taps, back);
    type = mgpu_is_float(type) ? type : MGPU_DOUBLE;
    write_integers(w, "first", axis, l.first, l.places + 1);
    write_integers(w, "from", axis, l.from, l.count);
    mgpu_write(w, "    static const %s weight_%d[] = {", mgpu_compute_type(type), axis);
    for (int64_t i = 0; i < l.count; i++) {
        mgpu_write_number(w, type, l.weight[i]);
        mgpu_write(w, ", ");
    }
    mgpu_write(w, "0};\n");
    links_free(&l);
    mgpu_resize_taps_free(&taps);
}

/* A loop an axis over the entries of its place p_0, p_1 ... */
static void write_loops(struct mgpu_writer *w, const char *real)
{
    const struct mgpu_resize_attrs *a = w->node->attrs;
    const struct mgpu_value *x = w->node->input[0];
    int64_t x_stride = mgpu_value_count(x);
    char factor[32] = "1";
    for (int k = 0; k < a->rank; k++) {
        x_stride /= x->dims[k].value;
        if (mgpu_resize_is_identity(a, k)) {
            mgpu_write(w, "    {\n    const i64 at_%d = at_%d + (i64)p_%d * %lld;\n", k + 1, k, k,
                       (long long)x_stride);
            continue;
        }
        mgpu_write(w, "    for (int e_%d = first_%d[p_%d]; e_%d < first_%d[p_%d + 1]; e_%d++) {\n",
                   k, k, k, k, k, k, k);
        mgpu_write(w, "    const i64 at_%d = at_%d + (i64)from_%d[e_%d] * %lld;\n", k + 1, k, k, k,
                   (long long)x_stride);
        mgpu_write(w, "    const %s factor_%d = %s * weight_%d[e_%d];\n", real, k, factor, k, k);
        snprintf(factor, sizeof factor, "factor_%d", k);
    }
    mgpu_write(w, "    sum += %s * LOAD_%s(x0, at_%d);\n", factor, mgpu_dtype_name(x->type),
               (int)a->rank);
    for (int k = 0; k < a->rank; k++)
        mgpu_write(w, "    }\n");
}

static void write_kernel(struct mgpu_writer *w, bool back)
{
    const struct mgpu_resize_attrs *a = w->node->attrs;
    const struct mgpu_value *y = w->node->output[0];
    enum mgpu_dtype type = mgpu_is_float(y->type) ? y->type : MGPU_DOUBLE;
    const char *real = mgpu_compute_type(type);
    int64_t y_stride = mgpu_value_count(y);
    mgpu_write_kernel_each(w, y_stride);
    for (int k = 0; k < a->rank; k++)
        if (!mgpu_resize_is_identity(a, k))
            write_axis_tables(w, k, back);
    mgpu_write(w, "    %s sum = 0;\n    const i64 at_0 = 0;\n    int there = 1;\n", real);
    for (int k = 0; k < a->rank; k++) {
        y_stride /= y->dims[k].value;
        mgpu_write(w, "    const u32 p_%d = i / %lld %% %lld;\n", k, (long long)y_stride,
                   (long long)y->dims[k].value);
        if (!mgpu_resize_is_identity(a, k))
            mgpu_write(w, "    there = there && first_%d[p_%d] < first_%d[p_%d + 1];\n", k, k, k,
                       k);
    }
    write_loops(w, real);
    if (!back) {
        mgpu_write(w, "    if (!there)\n        sum = ");
        mgpu_write_number(w, type, a->extrapolation);
        mgpu_write(w, ";\n");
    }
    if (mgpu_is_float(y->type))
        mgpu_write(w, "    STORE_%s(y0, i, sum);\n}\n", mgpu_dtype_name(y->type));
    else
        mgpu_write(w, "    STORE_%s(y0, i, saturate_%s(nearbyint(sum)));\n}\n",
                   mgpu_dtype_name(y->type), mgpu_dtype_name(y->type));
}

static void emit(struct mgpu_writer *w)
{
    write_kernel(w, false);
}

static void emit_grad(struct mgpu_writer *w)
{
    write_kernel(w, true);
}

/* Nothing is empty, and the tables are of a size that a kernel can hold. */
static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    int64_t entries = 0;
    if (mgpu_value_count(node->input[0]) == 0 || node->input[0]->type == MGPU_BOOL)
        return false;
    for (int k = 0; k < a->rank; k++) {
        struct mgpu_resize_taps taps;
        if (mgpu_resize_is_identity(a, k))
            continue;
        if (mgpu_resize_taps_make(a, k, &taps) < 0)
            return false;
        entries += taps.out * taps.count + taps.in;
        mgpu_resize_taps_free(&taps);
    }
    return entries <= MOST_ENTRIES;
}

const struct mgpu_emitter mgpu_emit_resize[] = {
    {"resize", accepts, emit},
    {"resize_grad", accepts, emit_grad},
    {NULL, NULL, NULL},
};
