/* Plain kernels of cumsum and topk: lines along one axis, each by one thread. */
#include "runtime/ops/sort.h"
#include "runtime/ref/ref.h"

#include <math.h>
#include <string.h>

enum { PARALLEL = 1 << 14 };

/* The lines along an axis: line i starts at mgpu_line and goes on by `stride`. */
struct lines {
    int64_t count, size, stride;
};

static struct lines lines_of(const struct mgpu_tensor *t, int64_t axis)
{
    int64_t strides[MGPU_MAX_RANK], count = mgpu_tensor_count(t);
    mgpu_tensor_strides(t, strides);
    int64_t size = t->dims[axis];
    return (struct lines){.count = size ? count / size : 0, .size = size, .stride = strides[axis]};
}

static int64_t line_start(const struct lines *l, int64_t i)
{
    return i / l->stride * l->size * l->stride + i % l->stride;
}

/* ---- cumsum -------------------------------------------------------------------------------- */

static void sum_line(const struct mgpu_launch *l, const struct lines *lines, int64_t line)
{
    const struct mgpu_cumsum_attrs *a = l->node->attrs;
    enum mgpu_dtype type = l->in[0].type;
    int64_t at = line_start(lines, line), step = a->reverse ? -lines->stride : lines->stride;
    double sum = 0;
    uint64_t whole = 0;
    if (a->reverse)
        at += (lines->size - 1) * lines->stride;
    for (int64_t i = 0; i < lines->size; i++, at += step) {
        double before = sum;
        uint64_t whole_before = whole;
        if (mgpu_is_float(type)) {
            sum += mgpu_get_double(l->in[0].data, type, at);
            mgpu_set_double(l->out[0].data, type, at, a->exclusive ? before : sum);
        } else {
            whole += (uint64_t)mgpu_get_int(l->in[0].data, type, at);
            mgpu_set_int(l->out[0].data, type, at, (int64_t)(a->exclusive ? whole_before : whole));
        }
    }
}

static int cumsum(const struct mgpu_launch *l)
{
    const struct mgpu_cumsum_attrs *a = l->node->attrs;
    struct lines lines = lines_of(&l->in[0], a->axis);
#pragma omp parallel for schedule(static) if (lines.count * lines.size >= PARALLEL)
    for (int64_t i = 0; i < lines.count; i++)
        sum_line(l, &lines, i);
    return 0;
}

/* ---- topk ---------------------------------------------------------------------------------- */

/* An element to be ordered: `key` orders as the elements do, the smallest key comes first. */
struct item {
    int64_t key, index;
};

static bool before(struct item a, struct item b)
{
    return a.key != b.key ? a.key < b.key : a.index < b.index;
}

/* Doubles as integers of the same order; -0 equals 0; all NaN are one, above infinity. */
static int64_t key_of_double(double v)
{
    int64_t bits;
    if (isnan(v))
        return INT64_MAX;
    v += 0.0;
    memcpy(&bits, &v, sizeof bits);
    return bits < 0 ? INT64_MIN - bits : bits;
}

static int64_t key_of(const struct mgpu_tensor *x, int64_t at, bool smallest)
{
    int64_t key;
    if (mgpu_is_float(x->type))
        key = key_of_double(mgpu_get_double(x->data, x->type, at));
    else if (x->type == MGPU_UINT64)
        key = (int64_t)((uint64_t)mgpu_get_int(x->data, x->type, at) ^ (UINT64_C(1) << 63));
    else
        key = mgpu_get_int(x->data, x->type, at);
    return smallest ? key : ~key;
}

/* A heap with the last of its items in front. */
static void sink(struct item *heap, int64_t size, int64_t at)
{
    struct item item = heap[at];
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && before(heap[child], heap[child + 1]))
            child++;
        if (!before(item, heap[child]))
            break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

/* The k first of the line, in order, in items[0..k). */
static void first_items(const struct mgpu_launch *l, const struct lines *lines, int64_t start,
                        struct item *items)
{
    const struct mgpu_topk_attrs *a = l->node->attrs;
    for (int64_t i = 0; i < lines->size; i++) {
        struct item item = {.key = key_of(&l->in[0], start + i * lines->stride, a->smallest),
                            .index = i};
        if (i < a->k) {
            items[i] = item;
            for (int64_t at = i == a->k - 1 ? a->k / 2 : -1; at >= 0; at--)
                sink(items, a->k, at);
        } else if (before(item, items[0])) {
            items[0] = item;
            sink(items, a->k, 0);
        }
    }
    for (int64_t n = a->k - 1; n > 0; n--) {
        struct item last = items[0];
        items[0] = items[n];
        items[n] = last;
        sink(items, n, 0);
    }
}

static void topk_line(const struct mgpu_launch *l, const struct lines *from, const struct lines *to,
                      int64_t line, struct item *items)
{
    const struct mgpu_topk_attrs *a = l->node->attrs;
    size_t size = mgpu_dtype_size(l->in[0].type);
    int64_t start = line_start(from, line), at = line_start(to, line);
    first_items(l, from, start, items);
    for (int64_t i = 0; i < a->k; i++, at += to->stride) {
        int64_t source = start + items[i].index * from->stride;
        if (l->out[0].data)
            memcpy((char *)l->out[0].data + (size_t)at * size,
                   (const char *)l->in[0].data + (size_t)source * size, size);
        if (l->outputs > 1 && l->out[1].data)
            ((int64_t *)l->out[1].data)[at] = items[i].index;
    }
}

static int64_t topk_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_topk_attrs *a = node->attrs;
    (void)state;
    return a->k * (int64_t)sizeof(struct item) * threads;
}

/* Thread t has the lines t, t + threads, ... and a part of the workspace. */
static int topk(const struct mgpu_launch *l)
{
    const struct mgpu_topk_attrs *a = l->node->attrs;
    struct lines from = lines_of(&l->in[0], a->axis), to = from;
    to.size = a->k;
    if (!a->k)
        return 0;
#pragma omp parallel for schedule(static) if (from.count * from.size >= PARALLEL)
    for (int t = 0; t < l->threads; t++)
        for (int64_t i = t; i < from.count; i += l->threads)
            topk_line(l, &from, &to, i, (struct item *)l->workspace + t * a->k);
    return 0;
}

const struct mgpu_kernel mgpu_ref_sort[] = {
    {.op = "cumsum", .name = "ref", .run = cumsum},
    {.op = "topk", .name = "ref", .run = topk, .workspace = topk_workspace},
    {.op = NULL},
};
