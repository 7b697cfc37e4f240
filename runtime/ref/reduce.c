/* Plain kernels of reduce and arg_reduce. Floats accumulate in double, integers in 64 bits. Every
 * output element is made by one thread in row-major order of x, so thread counts change nothing. */
#include "runtime/ops/reduce.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/walk.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256, PARALLEL = 1 << 14 };

/* A block of elements or of accumulators, in the class their type is computed in. */
union block {
    double d[BLOCK];
    int64_t i[BLOCK];
};

static void load(union block *b, const struct mgpu_tensor *x, int64_t at, int n)
{
    if (x->type == MGPU_FLOAT)
        for (int i = 0; i < n; i++)
            b->d[i] = (double)((const float *)x->data)[at + i];
    else if (x->type == MGPU_DOUBLE)
        memcpy(b->d, (const double *)x->data + at, sizeof(double) * (size_t)n);
    else if (mgpu_is_float(x->type))
        for (int i = 0; i < n; i++)
            b->d[i] = mgpu_get_double(x->data, x->type, at + i);
    else
        for (int i = 0; i < n; i++)
            b->i[i] = mgpu_get_int(x->data, x->type, at + i);
}

static bool less(int64_t a, int64_t b, enum mgpu_dtype type)
{
    return type == MGPU_UINT64 ? (uint64_t)a < (uint64_t)b : a < b;
}

/* The smallest and largest value of an integer type. */
static int64_t extreme(enum mgpu_dtype type, bool largest)
{
    int bits = 8 * (int)mgpu_dtype_size(type);
    if (type == MGPU_BOOL)
        return largest;
    if (mgpu_is_signed(type))
        return largest ? INT64_MAX >> (64 - bits) : INT64_MIN >> (64 - bits);
    return largest ? (int64_t)(UINT64_MAX >> (64 - bits)) : 0;
}

static void begin(union block *acc, int kind, enum mgpu_dtype type, int n)
{
    bool min = kind == MGPU_REDUCE_MIN, max = kind == MGPU_REDUCE_MAX;
    double d = max ? -INFINITY : min ? INFINITY : kind == MGPU_REDUCE_PROD;
    int64_t v = max || min ? extreme(type, min) : kind == MGPU_REDUCE_PROD;
    for (int i = 0; i < n; i++)
        if (mgpu_is_float(type))
            acc->d[i] = d;
        else
            acc->i[i] = v;
}

static void add_floats(double *acc, const double *x, int kind, int n)
{
    switch (kind) {
    case MGPU_REDUCE_MAX:
        for (int i = 0; i < n; i++)
            acc[i] = x[i] > acc[i] || isnan(x[i]) ? x[i] : acc[i];
        break;
    case MGPU_REDUCE_MIN:
        for (int i = 0; i < n; i++)
            acc[i] = x[i] < acc[i] || isnan(x[i]) ? x[i] : acc[i];
        break;
    case MGPU_REDUCE_PROD:
        for (int i = 0; i < n; i++)
            acc[i] *= x[i];
        break;
    default:
        for (int i = 0; i < n; i++)
            acc[i] += x[i];
    }
}

static void add_ints(int64_t *acc, const int64_t *x, int kind, enum mgpu_dtype type, int n)
{
    for (int i = 0; i < n; i++)
        if (kind == MGPU_REDUCE_MAX)
            acc[i] = less(acc[i], x[i], type) ? x[i] : acc[i];
        else if (kind == MGPU_REDUCE_MIN)
            acc[i] = less(x[i], acc[i], type) ? x[i] : acc[i];
        else if (kind == MGPU_REDUCE_PROD)
            acc[i] = (int64_t)((uint64_t)acc[i] * (uint64_t)x[i]);
        else
            acc[i] = (int64_t)((uint64_t)acc[i] + (uint64_t)x[i]);
}

static void add(union block *acc, const union block *x, int kind, enum mgpu_dtype type, int n)
{
    if (mgpu_is_float(type))
        add_floats(acc->d, x->d, kind, n);
    else
        add_ints(acc->i, x->i, kind, type, n);
}

static void store(const struct mgpu_tensor *y, int64_t at, const union block *acc, int n,
                  int64_t mean_of)
{
    bool is_unsigned = y->type == MGPU_UINT64;
    for (int i = 0; i < n; i++)
        if (mgpu_is_float(y->type))
            mgpu_set_double(y->data, y->type, at + i,
                            mean_of >= 0 ? acc->d[i] / (double)mean_of : acc->d[i]);
        else if (mean_of > 0 && is_unsigned)
            mgpu_set_int(y->data, y->type, at + i,
                         (int64_t)((uint64_t)acc->i[i] / (uint64_t)mean_of));
        else
            mgpu_set_int(y->data, y->type, at + i, mean_of > 0 ? acc->i[i] / mean_of : acc->i[i]);
}

/* x seen as kept places, each with reduced places under it, each with a row of `row` elements that
 * lie together: reduced too (sums) or a row of the output (columns). */
struct reduction {
    const struct mgpu_tensor *x, *y;
    int kind;
    struct mgpu_walk kept, reduced;
    int64_t row, mean_of; /* mean_of: elements of a mean, else -1 */
    bool columns;
};

static void push(struct mgpu_walk *w, int64_t size, int64_t stride)
{
    w->operands = 1;
    w->dims[w->rank] = size;
    w->stride[0][w->rank++] = stride;
}

static void plan(struct reduction *r, const struct mgpu_launch *l)
{
    const struct mgpu_reduce_attrs *a = l->node->attrs;
    int64_t strides[MGPU_MAX_RANK], count = 1;
    int last = l->in[0].rank;
    *r = (struct reduction){.x = &l->in[0], .y = &l->out[0], .kind = a->kind, .row = 1};
    mgpu_tensor_strides(r->x, strides);
    r->kept.operands = r->reduced.operands = 1;
    r->columns = last && !(a->axes >> (last - 1) & 1);
    while (last > 0 && (a->axes >> (last - 1) & 1) == !r->columns) /* the row */
        r->row *= r->x->dims[--last];
    for (int i = 0; i < last; i++)
        push(a->axes >> i & 1 ? &r->reduced : &r->kept, r->x->dims[i], strides[i]);
    for (int i = 0; i < r->x->rank; i++)
        count *= a->axes >> i & 1 ? r->x->dims[i] : 1;
    r->mean_of = a->kind == MGPU_REDUCE_MEAN ? count : -1;
}

/* Output row `place`, columns from `first`. */
static void reduce_columns(struct reduction *r, int64_t place, int64_t first)
{
    union block acc, x;
    int64_t left = r->row - first, n = mgpu_walk_count(&r->reduced);
    int width = left < BLOCK ? (int)left : BLOCK;
    mgpu_walk_seek(&r->kept, place);
    mgpu_walk_seek(&r->reduced, 0);
    begin(&acc, r->kind, r->x->type, width);
    for (int64_t k = 0; k < n; k++, mgpu_walk_next(&r->reduced)) {
        load(&x, r->x, r->kept.at[0] + r->reduced.at[0] + first, width);
        add(&acc, &x, r->kind, r->x->type, width);
    }
    store(r->y, place * r->row + first, &acc, width, r->mean_of);
}

/* The elements of a block, one after the other, into one accumulator. */
static double fold_floats(double acc, const double *x, int kind, int n)
{
    switch (kind) {
    case MGPU_REDUCE_MAX:
        for (int i = 0; i < n; i++)
            acc = x[i] > acc || isnan(x[i]) ? x[i] : acc;
        return acc;
    case MGPU_REDUCE_MIN:
        for (int i = 0; i < n; i++)
            acc = x[i] < acc || isnan(x[i]) ? x[i] : acc;
        return acc;
    case MGPU_REDUCE_PROD:
        for (int i = 0; i < n; i++)
            acc *= x[i];
        return acc;
    default:
        for (int i = 0; i < n; i++)
            acc += x[i];
        return acc;
    }
}

/* Output element `place`. */
static void reduce_rows(struct reduction *r, int64_t place)
{
    union block acc, x;
    int64_t n = mgpu_walk_count(&r->reduced);
    enum mgpu_dtype type = r->x->type;
    mgpu_walk_seek(&r->kept, place);
    mgpu_walk_seek(&r->reduced, 0);
    begin(&acc, r->kind, type, 1);
    for (int64_t place_in = 0; place_in < n; place_in++, mgpu_walk_next(&r->reduced))
        for (int64_t i = 0; i < r->row; i += BLOCK) {
            int width = r->row - i < BLOCK ? (int)(r->row - i) : BLOCK;
            load(&x, r->x, r->kept.at[0] + r->reduced.at[0] + i, width);
            if (mgpu_is_float(type))
                acc.d[0] = fold_floats(acc.d[0], x.d, r->kind, width);
            else
                for (int k = 0; k < width; k++)
                    add_ints(acc.i, &x.i[k], r->kind, type, 1);
        }
    store(r->y, place, &acc, 1, r->mean_of);
}

static int reduce(const struct mgpu_launch *l)
{
    struct reduction plan_of_all;
    if (!mgpu_tensor_count(&l->out[0]))
        return 0;
    plan(&plan_of_all, l);
    int64_t places = mgpu_walk_count(&plan_of_all.kept);
    int64_t blocks = plan_of_all.columns ? (plan_of_all.row + BLOCK - 1) / BLOCK : 1;
    bool parallel = places * blocks > 1 && mgpu_tensor_count(&l->in[0]) >= PARALLEL;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < places * blocks; i++) {
        struct reduction r = plan_of_all;
        if (r.columns)
            reduce_columns(&r, i / blocks, i % blocks * BLOCK);
        else
            reduce_rows(&r, i);
    }
    return 0;
}

/* ---- arg_reduce ---------------------------------------------------------------------------- */

/* Is `a` a better choice than `b`: NaN beats all, as in NumPy. */
static bool better(const union block *a, const union block *b, int i, enum mgpu_dtype type,
                   const struct mgpu_arg_reduce_attrs *how)
{
    if (!mgpu_is_float(type)) {
        int64_t x = how->min ? b->i[i] : a->i[i], y = how->min ? a->i[i] : b->i[i];
        return less(y, x, type) || (how->last && x == y);
    }
    double x = how->min ? -a->d[i] : a->d[i], y = how->min ? -b->d[i] : b->d[i];
    if (isnan(y))
        return how->last && isnan(x);
    return isnan(x) || x > y || (how->last && x == y);
}

/* `width` neighbouring columns of `size` rows that are `stride` apart. */
static void arg_columns(const struct mgpu_launch *l, int64_t at, int64_t size, int64_t stride,
                        int width, int64_t *index)
{
    union block best, x;
    const struct mgpu_tensor *t = &l->in[0];
    load(&best, t, at, width);
    memset(index, 0, sizeof *index * (size_t)width);
    for (int64_t k = 1; k < size; k++) {
        load(&x, t, at + k * stride, width);
        for (int i = 0; i < width; i++)
            if (better(&x, &best, i, t->type, l->node->attrs)) {
                best.i[i] = x.i[i]; /* the bits: doubles too */
                index[i] = k;
            }
    }
}

static int arg_reduce(const struct mgpu_launch *l)
{
    const struct mgpu_arg_reduce_attrs *a = l->node->attrs;
    const struct mgpu_tensor *x = &l->in[0];
    int64_t strides[MGPU_MAX_RANK], *index = l->out[0].data;
    int64_t count = mgpu_tensor_count(&l->out[0]);
    mgpu_tensor_strides(x, strides);
    int64_t size = x->dims[a->axis], inner = strides[a->axis];
    int64_t blocks = inner ? (inner + BLOCK - 1) / BLOCK : 0, outer = count ? count / inner : 0;
#pragma omp parallel for schedule(static) if (count * size >= PARALLEL)
    for (int64_t i = 0; i < outer * blocks; i++) {
        int64_t row = i / blocks, first = i % blocks * BLOCK;
        int width = inner - first < BLOCK ? (int)(inner - first) : BLOCK;
        arg_columns(l, row * size * inner + first, size, inner, width, index + row * inner + first);
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_reduce[] = {
    {.op = "reduce", .name = "ref", .run = reduce},
    {.op = "arg_reduce", .name = "ref", .run = arg_reduce},
    {.op = NULL},
};
