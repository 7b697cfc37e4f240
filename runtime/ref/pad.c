/* pad and pad_grad: along each axis a table says which element of the small side a place of the
 * padded side shows, or that it shows the constant. */
#include "runtime/ref/pad.h"

#include "runtime/ops/movement.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/strided.h"

#include <string.h>

struct pads {
    int mode;
    const int64_t *before, *after;
};

/* What pads count from: negative ones cut elements off before the rest is padded. */
static void kept_range(const struct pads *p, int axis, int64_t size, int64_t *low, int64_t *high)
{
    *low = p->before[axis] < 0 ? -p->before[axis] : 0;
    *high = size + (p->after[axis] < 0 ? p->after[axis] : 0);
}

static int64_t modulo(int64_t a, int64_t n)
{
    int64_t r = a % n;
    return r < 0 ? r + n : r;
}

/* Which element of [low, high) place `at` shows; at < low or at >= high is padding. */
static int64_t source(enum mgpu_pad_mode mode, int64_t at, int64_t low, int64_t high)
{
    int64_t n = high - low, turn;
    if (at >= low && at < high)
        return at;
    switch (mode) {
    case MGPU_PAD_EDGE:
        return at < low ? low : high - 1;
    case MGPU_PAD_WRAP:
        return low + modulo(at - low, n);
    case MGPU_PAD_REFLECT:
        if (n == 1)
            return low;
        turn = modulo(at - low, 2 * (n - 1));
        return low + (turn < n ? turn : 2 * (n - 1) - turn);
    default:
        return -1;
    }
}

/* A walk through the padded side: offsets of the small side go by the tables. */
struct padding {
    int rank;
    const struct mgpu_tensor *small, *padded;
    int64_t small_stride[MGPU_MAX_RANK], padded_stride[MGPU_MAX_RANK];
    const int64_t *table[MGPU_MAX_RANK];
};

static void start(struct padding *w, const struct pads *p, const struct mgpu_tensor *small,
                  const struct mgpu_tensor *padded, int64_t *tables)
{
    w->rank = small->rank;
    w->small = small;
    w->padded = padded;
    mgpu_tensor_strides(small, w->small_stride);
    mgpu_tensor_strides(padded, w->padded_stride);
    for (int i = 0; i < w->rank; i++) {
        int64_t low, high;
        kept_range(p, i, small->dims[i], &low, &high);
        w->table[i] = tables;
        for (int64_t k = 0; k < padded->dims[i]; k++)
            *tables++ = source((enum mgpu_pad_mode)p->mode, k - p->before[i], low, high);
    }
}

static void copy_from(const struct padding *w, int axis, int64_t from, int64_t to)
{
    size_t size = mgpu_dtype_size(w->small->type);
    if (axis == w->rank) {
        memcpy((char *)w->padded->data + (size_t)to * size,
               (const char *)w->small->data + (size_t)from * size, size);
        return;
    }
    for (int64_t i = 0; i < w->padded->dims[axis]; i++)
        copy_from(w, axis + 1, from + w->table[axis][i] * w->small_stride[axis],
                  to + i * w->padded_stride[axis]);
}

static void add_to(const struct padding *w, int axis, int64_t from, int64_t to, double *sum)
{
    if (axis == w->rank) {
        sum[to] += mgpu_get_double(w->padded->data, w->padded->type, from);
        return;
    }
    for (int64_t i = 0; i < w->padded->dims[axis]; i++)
        add_to(w, axis + 1, from + i * w->padded_stride[axis],
               to + w->table[axis][i] * w->small_stride[axis], sum);
}

/* Every element becomes `value`. */
static void fill(const struct mgpu_tensor *t, const void *value)
{
    struct mgpu_strided c = {.rank = 1,
                             .dims = {mgpu_tensor_count(t)},
                             .to_stride = {1},
                             .size = mgpu_dtype_size(t->type),
                             .from = value,
                             .to = t->data};
    mgpu_strided_copy(&c);
}

/* The part that padded and small side share, copied from one to the other. */
static void copy_shared(const struct pads *p, const struct mgpu_tensor *small,
                        const struct mgpu_tensor *padded, bool to_padded)
{
    int64_t small_at = 0, padded_at = 0;
    struct mgpu_strided c = {.rank = small->rank, .size = mgpu_dtype_size(small->type)};
    int64_t *small_stride = to_padded ? c.from_stride : c.to_stride;
    int64_t *padded_stride = to_padded ? c.to_stride : c.from_stride;
    mgpu_tensor_strides(small, small_stride);
    mgpu_tensor_strides(padded, padded_stride);
    for (int i = 0; i < small->rank; i++) {
        int64_t low, high;
        kept_range(p, i, small->dims[i], &low, &high);
        c.dims[i] = high > low ? high - low : 0;
        small_at += low * small_stride[i];
        padded_at += (low + p->before[i]) * padded_stride[i];
    }
    char *at_small = (char *)small->data + small_at * (int64_t)c.size;
    char *at_padded = (char *)padded->data + padded_at * (int64_t)c.size;
    c.from = to_padded ? at_small : at_padded;
    c.to = to_padded ? at_padded : at_small;
    mgpu_strided_copy(&c);
}

static int64_t table_bytes(const struct mgpu_value *padded)
{
    int64_t n = 0;
    for (int i = 0; i < padded->rank; i++)
        n += padded->dims[i].value;
    return n * (int64_t)sizeof(int64_t);
}

int64_t mgpu_ref_pad_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)threads;
    (void)state;
    return table_bytes(node->output[0]);
}

int mgpu_ref_pad(const struct mgpu_launch *l)
{
    const struct mgpu_pad_attrs *a = l->node->attrs;
    struct pads p = {.mode = a->mode, .before = a->before, .after = a->after};
    struct padding w;
    if (a->mode == MGPU_PAD_CONSTANT) {
        bool given = l->inputs > 1 && l->in[1].data;
        fill(&l->out[0], given ? l->in[1].data : &(int64_t){0});
        copy_shared(&p, &l->in[0], &l->out[0], true);
        return 0;
    }
    start(&w, &p, &l->in[0], &l->out[0], l->workspace);
    copy_from(&w, 0, 0, 0);
    return 0;
}

int64_t mgpu_ref_pad_grad_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    (void)threads;
    (void)state;
    int64_t sums = mgpu_value_count(node->output[0]) * (int64_t)sizeof(double);
    return sums + table_bytes(node->input[0]);
}

int mgpu_ref_pad_grad(const struct mgpu_launch *l)
{
    const struct mgpu_pad_grad_attrs *a = l->node->attrs;
    const struct mgpu_tensor *dx = &l->out[0];
    struct pads p = {.mode = a->mode, .before = a->before, .after = a->after};
    int64_t count = mgpu_tensor_count(dx);
    double *sum = l->workspace;
    struct padding w;
    if (a->mode == MGPU_PAD_CONSTANT) {
        fill(dx, &(int64_t){0});
        copy_shared(&p, dx, &l->in[0], false);
        return 0;
    }
    start(&w, &p, dx, &l->in[0], (int64_t *)(sum + count));
    memset(sum, 0, (size_t)count * sizeof *sum);
    add_to(&w, 0, 0, 0, sum);
    mgpu_convert(dx->data, dx->type, sum, MGPU_DOUBLE, count);
    return 0;
}
