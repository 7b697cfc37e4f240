/* Gathers, their transposes and scatters. What may hit one place several times is put in order
 * first, stably, by the place: then each place takes its share in the order of the indices, and the
 * result is always the same. An index out of range gives NaN (zero for integers). */
#include "runtime/ops/gather.h"
#include "runtime/emit/writer.h"

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

/* ---- Ordering entries by slot: radix sort, eight bits at a time, each pass stable --------------
 */

enum { CHUNK = 1024, DIGITS = 256, SCAN_THREADS = 256 };

/* The workspace: u32 slots and entry numbers, twice, and counts of digits by chunk. */
struct order {
    int64_t entries, chunks, counts; /* counts: how many there are */
    int passes;
};

static struct order order_of(const struct places *p)
{
    struct order o = {
        .entries = p->entries, .chunks = (p->entries + CHUNK - 1) / CHUNK, .passes = 1};
    while (o.passes < 4 &&
           p->slots >> (8 * o.passes)) /* slot `slots` is for what is out of range */
        o.passes++;
    o.counts = o.chunks * DIGITS;
    return o;
}

static int64_t order_bytes(const struct order *o)
{
    return (4 * o->entries + o->counts) * (int64_t)sizeof(uint32_t);
}

/* Which of the two pairs of arrays pass `pass` reads. */
static void write_arrays(struct mgpu_writer *w, const struct order *o, int pass)
{
    long long n = o->entries;
    mgpu_write(w, "    u32 *slot_of = (u32 *)work + %lldLL, *entry_of = slot_of + %lldLL;\n",
               pass % 2 ? 2 * n : 0LL, n);
    mgpu_write(w, "    u32 *next_slot = (u32 *)work + %lldLL, *next_entry = next_slot + %lldLL;\n",
               pass % 2 ? 0LL : 2 * n, n);
    mgpu_write(w, "    u32 *counts = (u32 *)work + %lldLL;\n", 4 * n);
    mgpu_write(w, "    (void)slot_of, (void)entry_of, (void)next_slot, (void)next_entry, "
                  "(void)counts;\n");
}

static void write_keys(struct mgpu_writer *w, const struct places *p, const struct order *o)
{
    mgpu_write_kernel_each(w, p->entries);
    write_arrays(w, o, 0);
    mgpu_write(w, "    const u32 e = (u32)i;\n");
    write_slot(w, p);
    mgpu_write(w, "    slot_of[i] = ok ? (u32)slot : %lluu;\n    entry_of[i] = (u32)i;\n}\n",
               (unsigned long long)p->slots);
}

/* A block for each chunk, a thread for each digit, which goes through the chunk in order. */
static void write_chunk(struct mgpu_writer *w, const struct order *o, int pass)
{
    mgpu_write_kernel(w, o->chunks, DIGITS, true);
    write_arrays(w, o, pass);
    mgpu_write(w,
               "    __shared__ unsigned char digit[%d];\n    const i64 first = (i64)blockIdx.x * "
               "%d;\n    const int n = %lldLL - first < %d ? (int)(%lldLL - first) : %d;\n",
               CHUNK, CHUNK, (long long)o->entries, CHUNK, (long long)o->entries, CHUNK);
    mgpu_write(w,
               "    for (int k = threadIdx.x; k < n; k += %d)\n        digit[k] = (unsigned "
               "char)(slot_of[first + k] >> %d);\n    __syncthreads();\n",
               DIGITS, 8 * pass);
    mgpu_write(w, "    const i64 at = (i64)threadIdx.x * %lld + blockIdx.x;\n",
               (long long)o->chunks);
}

static void write_pass(struct mgpu_writer *w, const struct order *o, int pass)
{
    write_chunk(w, o, pass);
    mgpu_write(w,
               "    u32 count = 0;\n    for (int k = 0; k < n; k++)\n        count += digit[k] == "
               "threadIdx.x;\n    counts[at] = count;\n}\n");
    mgpu_write_kernel(w, 1, SCAN_THREADS, true);
    write_arrays(w, o, pass);
    long long each = (o->counts + SCAN_THREADS - 1) / SCAN_THREADS;
    mgpu_write(w,
               "    __shared__ u32 part[%d];\n    const i64 first = (i64)threadIdx.x * %lld;\n    "
               "const i64 end = first + %lld < %lld ? first + %lld : %lld;\n    u32 own = 0;\n    "
               "for (i64 k = first; k < end; k++)\n        own += counts[k];\n    "
               "part[threadIdx.x] = own;\n    __syncthreads();\n",
               SCAN_THREADS, each, each, (long long)o->counts, each, (long long)o->counts);
    mgpu_write(
        w,
        "    for (u32 d = 1; d < %d; d *= 2) {\n        const u32 before = threadIdx.x >= d ? "
        "part[threadIdx.x - d] : 0;\n        __syncthreads();\n        part[threadIdx.x] += "
        "before;\n        __syncthreads();\n    }\n    u32 at = part[threadIdx.x] - own;\n",
        SCAN_THREADS);
    mgpu_write(
        w, "    for (i64 k = first; k < end; k++) {\n        const u32 count = counts[k];\n      "
           "  counts[k] = at;\n        at += count;\n    }\n}\n");
    write_chunk(w, o, pass);
    mgpu_write(w,
               "    u32 to = counts[at];\n    for (int k = 0; k < n; k++)\n        if (digit[k] == "
               "threadIdx.x) {\n            next_slot[to] = slot_of[first + k];\n            "
               "next_entry[to++] = entry_of[first + k];\n        }\n}\n");
}

static void write_order(struct mgpu_writer *w, const struct places *p, const struct order *o)
{
    write_keys(w, p, o);
    for (int pass = 0; pass < o->passes; pass++)
        write_pass(w, o, pass);
}

/* ---- Sums and scatters ----------------------------------------------------------------------- */

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

/* A thread for each entry and element of its run; the first entry of a slot does the slot's. */
static void write_apply(struct mgpu_writer *w, const struct places *p, const struct order *o,
                        int updates, int reduction)
{
    const struct mgpu_value *y = w->node->output[0];
    const char *real = mgpu_compute_type(y->type), *name = combine(reduction, y->type);
    mgpu_write_kernel_each(w, p->outer * p->entries * p->slice);
    write_arrays(w, o, o->passes);
    mgpu_write(w,
               "    const i64 in = i %% %lld, outer = i / %lld;\n    u32 e = i / %lld %% %lld;\n",
               (long long)p->slice, (long long)(p->slice * p->entries), (long long)p->slice,
               (long long)p->entries);
    mgpu_write(
        w,
        "    const u32 slot = slot_of[e];\n    if (slot == %lluu || (e > 0 && slot_of[e - 1] "
        "== slot))\n        return;\n",
        (unsigned long long)p->slots);
    mgpu_write(
        w, "    const i64 to = (outer * %lld + slot) * %lld + in;\n    %s a = LOAD_%s(y0, to);\n",
        (long long)p->slots, (long long)p->slice, real, type_of(y));
    mgpu_write(
        w,
        "    for (; e < %lld && slot_of[e] == slot; e++)\n        a = %s%sLOAD_%s(x%d, (outer "
        "* %lld + entry_of[e]) * %lld + in)%s;\n    STORE_%s(y0, to, a);\n}\n",
        (long long)p->entries, name, *name ? "(a, " : "", type_of(y), updates,
        (long long)p->entries, (long long)p->slice, *name ? ")" : "", type_of(y));
    if (!mgpu_is_float(y->type))
        return;
    mgpu_write_kernel(w, 1, 32, false);
    write_arrays(w, o, o->passes);
    mgpu_write(w,
               "    if (threadIdx.x == 0 && slot_of[%lldLL] == %lluu)\n        STORE_%s(y0, 0, "
               "NAN);\n}\n",
               (long long)p->entries - 1, (unsigned long long)p->slots, type_of(y));
}

static void write_indexed(struct mgpu_writer *w, const struct places *p, int updates, int reduction)
{
    struct order o = order_of(p);
    bool data = updates == 2;
    if (p->entries * p->slice > 0)
        w->result->workspace = order_bytes(&o);
    write_start(w, data);
    if (p->entries * p->slice == 0)
        return;
    write_order(w, p, &o);
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
