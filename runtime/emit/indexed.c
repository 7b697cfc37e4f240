/* Gathers, their transposes and scatters. What may hit one place several times is put in order
 * first, stably, by the place: then each place takes its share in the order of the indices, and the
 * result is always the same. An index out of range gives NaN (zero for integers). */
#include "runtime/ops/gather.h"
#include "runtime/emit/order.h"

#include <string.h>

static const char *type_of(const struct mgpu_value *v)
{
    return mgpu_dtype_name(v->type);
}

static int64_t stride_of(const struct mgpu_value *v, int axis)
{
    int64_t stride = 1;
    for (int k = axis + 1; k < v->rank; k++)
        stride *= v->dims[k].value;
    return stride;
}

/* How entries (indices, or tuples of them) name places of x: whole runs of `slice` elements, at
 * slot * slice, over again in each of `outer` blocks. */
struct places {
    const struct mgpu_value *x, *indices;
    int axis;        /* gather, elements; nd: batch_dims */
    int64_t entries; /* of one outer block */
    int64_t slots, slice, outer;
    bool elements, tuples;
};

static bool named(const struct mgpu_node *node, const char *part)
{
    return strstr(node->op->name, part) != NULL;
}

static struct places places_of(const struct mgpu_node *node, const struct mgpu_value *x, int axis)
{
    struct places p = {.x = x,
                       .indices = node->input[1],
                       .axis = axis,
                       .slice = 1,
                       .outer = 1,
                       .elements = named(node, "elements"),
                       .tuples = named(node, "_nd")};
    p.entries = mgpu_value_count(p.indices);
    if (p.tuples) {
        int64_t width = p.indices->dims[p.indices->rank - 1].value;
        p.entries /= width ? width : 1;
        for (int64_t k = axis + width; k < x->rank; k++)
            p.slice *= x->dims[k].value;
    } else if (!p.elements) {
        for (int k = 0; k < axis; k++)
            p.outer *= x->dims[k].value;
        p.slice = stride_of(x, axis);
    }
    p.slots = mgpu_value_count(x) / (p.slice * p.outer);
    return p;
}

/* `v` = an index of `size`, counted from the end when negative; `ok` goes where it is out of range.
 */
static void write_index(struct mgpu_writer *w, const struct places *p, const char *place,
                        int64_t size)
{
    mgpu_write(
        w,
        "        i64 v = LOAD_%s(x1, %s);\n        v += v < 0 ? %lldLL : 0;\n        ok = ok "
        "&& v >= 0 && v < %lldLL;\n",
        type_of(p->indices), place, (long long)size, (long long)size);
}

/* `slot` of entry `e`, and `ok`: all its indices are in range. */
static void write_slot(struct mgpu_writer *w, const struct places *p)
{
    mgpu_write(w, "    i64 slot = 0;\n    int ok = 1;\n");
    if (p->tuples) {
        int64_t width = p->indices->dims[p->indices->rank - 1].value, per_batch = 1, batch = 1;
        for (int k = p->axis; k < p->indices->rank - 1; k++)
            per_batch *= p->indices->dims[k].value;
        for (int64_t k = p->axis; k < p->axis + width; k++)
            batch *= p->x->dims[k].value;
        mgpu_write(w, "    slot = e / %lld * %lld;\n", (long long)(per_batch ? per_batch : 1),
                   (long long)batch);
        for (int64_t k = 0; k < width; k++) {
            char place[64];
            snprintf(place, sizeof place, "e * %lld + %lld", (long long)width, (long long)k);
            mgpu_write(w, "    {\n");
            write_index(w, p, place, p->x->dims[p->axis + k].value);
            mgpu_write(w, "        slot += v * %lld;\n    }\n",
                       (long long)(stride_of(p->x, p->axis + (int)k) / p->slice));
        }
        return;
    }
    if (p->elements) {
        struct mgpu_view v = {0};
        for (int k = 0; k < p->indices->rank; k++)
            mgpu_view_add(&v, p->indices->dims[k].value, k == p->axis ? 0 : stride_of(p->x, k));
        mgpu_write(w, "    slot = ");
        mgpu_write_offset(w, &v, "e");
        mgpu_write(w, ";\n");
    }
    mgpu_write(w, "    {\n");
    write_index(w, p, "e", p->x->dims[p->axis].value);
    mgpu_write(w, "        slot += v * %lld;\n    }\n",
               p->elements ? (long long)stride_of(p->x, p->axis) : 1LL);
}

/* ---- Gathers --------------------------------------------------------------------------------- */

static void emit_gather(struct mgpu_writer *w)
{
    const struct mgpu_gather_attrs *a = w->node->attrs;
    const struct mgpu_value *y = w->node->output[0];
    struct places p = places_of(w->node, w->node->input[0], (int)a->axis);
    mgpu_write_kernel_each(w, mgpu_value_count(y));
    mgpu_write(
        w, "    const %s e = i / %lld %% %lld;\n    const i64 outer = i / %lld, in = i %% %lld;\n",
        mgpu_place_type(mgpu_value_count(y)), (long long)p.slice, (long long)p.entries,
        (long long)(p.slice * p.entries), (long long)p.slice);
    write_slot(w, &p);
    mgpu_write(w,
               "    if (ok)\n        y0[i] = x0[(outer * %lld + slot) * %lld + in];\n    else\n"
               "        STORE_%s(y0, i, %s);\n}\n",
               (long long)p.slots, (long long)p.slice, type_of(y),
               mgpu_is_float(y->type) ? "NAN" : "0");
}

/* ---- Sums and scatters ----------------------------------------------------------------------- */

/* Slots and numbers of the entries; slot `slots` is for what is out of range. */
static void write_keys(struct mgpu_writer *w, const struct places *p,
                       const struct mgpu_emit_order *o)
{
    mgpu_write_kernel_each(w, p->entries);
    mgpu_write_order_arrays(w, o, 0);
    mgpu_write(w, "    const u32 e = (u32)i;\n");
    write_slot(w, p);
    mgpu_write(w, "    slot_of[i] = ok ? (u32)slot : %lluu;\n    entry_of[i] = (u32)i;\n}\n",
               (unsigned long long)p->slots);
}

/* The result starts as zeros, or as the data. */
static void write_start(struct mgpu_writer *w, bool data)
{
    mgpu_write_kernel_each(w, mgpu_value_count(w->node->output[0]));
    mgpu_write(w, "    y0[i] = %s;\n}\n", data ? "x0[i]" : "0");
}

static const char *combine(int reduction, enum mgpu_dtype type)
{
    static const char *const names[5][4] = {
        {"", "", "", ""},
        {"addf", "add", "add_i", "add_i"},
        {"timesf", "times", "times_i", "times_i"},
        {"largerf", "larger", "larger_i", "larger_u"},
        {"smallerf", "smaller", "smaller_i", "smaller_u"},
    };
    return names[reduction][mgpu_is_float(type)   ? type == MGPU_DOUBLE
                            : type == MGPU_UINT64 ? 3
                                                  : 2];
}

/* An index out of range: it is the last in order. */
static void write_fault(struct mgpu_writer *w, const struct mgpu_emit_order *o)
{
    mgpu_write_kernel(w, 1, 32, false);
    mgpu_write_order_arrays(w, o, o->passes);
    mgpu_write(w,
               "    if (threadIdx.x == 0 && slot_of[%lldLL] == %lluu)\n        STORE_%s(y0, 0, "
               "NAN);\n}\n",
               (long long)o->entries - 1, (unsigned long long)o->slots,
               type_of(w->node->output[0]));
}

/* Entries and elements of their slices, of `updates`. */
static void write_apply(struct mgpu_writer *w, const struct places *p,
                        const struct mgpu_emit_order *o, int updates, int reduction)
{
    const struct mgpu_value *y = w->node->output[0];
    char declare[96], value[128], place[96];
    long long slice = p->slice;
    struct mgpu_emit_runs r = {.lanes = p->outer * p->slice,
                               .declare = declare,
                               .value = value,
                               .place = place,
                               .join = combine(reduction, y->type),
                               .type = y->type};
    int64_t at = (mgpu_emit_order_bytes(o) + 7) / 8 * 8;
    snprintf(declare, sizeof declare, "const i64 in = lane %% %lld, outer = lane / %lld;", slice,
             slice);
    snprintf(value, sizeof value, "LOAD_%s(x%d, (outer * %lld + entry) * %lld + in)", type_of(y),
             updates, (long long)p->entries, slice);
    snprintf(place, sizeof place, "(outer * %lld + slot) * %lld + in", (long long)p->slots, slice);
    w->result->workspace = at + mgpu_emit_runs_bytes(o, &r);
    write_start(w, updates == 2);
    write_keys(w, p, o);
    mgpu_write_order(w, o);
    mgpu_write_runs(w, o, &r, at);
    if (mgpu_is_float(y->type))
        write_fault(w, o);
}

static void write_indexed(struct mgpu_writer *w, const struct places *p, int updates, int reduction)
{
    struct mgpu_emit_order o = mgpu_emit_order_of(p->entries, p->slots);
    if (p->entries * p->slice == 0)
        write_start(w, updates == 2);
    else
        write_apply(w, p, &o, updates, reduction);
}

static void emit_grad(struct mgpu_writer *w)
{
    const struct mgpu_gather_grad_attrs *a = w->node->attrs;
    struct places p = places_of(w->node, w->node->output[0], (int)a->axis);
    write_indexed(w, &p, 0, MGPU_SCATTER_ADD);
}

static void emit_scatter(struct mgpu_writer *w)
{
    const struct mgpu_scatter_attrs *a = w->node->attrs;
    int axis = named(w->node, "elements") ? (int)a->axis : 0;
    struct places p = places_of(w->node, w->node->input[0], axis);
    write_indexed(w, &p, 2, a->reduction);
}

/* Slots and entries are counted in 32 bits. */
static bool accepts(const struct mgpu_node *node)
{
    const struct mgpu_value *y = node->output[0];
    return mgpu_value_count(y) < UINT32_MAX && mgpu_value_count(node->input[1]) < UINT32_MAX;
}

const struct mgpu_emitter mgpu_emit_indexed[] = {
    {"gather", NULL, emit_gather},
    {"gather_elements", NULL, emit_gather},
    {"gather_nd", NULL, emit_gather},
    {"gather_grad", accepts, emit_grad},
    {"gather_elements_grad", accepts, emit_grad},
    {"gather_nd_grad", accepts, emit_grad},
    {"scatter_elements", accepts, emit_scatter},
    {"scatter_nd", accepts, emit_scatter},
    {NULL, NULL, NULL},
};
