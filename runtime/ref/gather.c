/* Plain kernels of the gathers, their transposes and the scatters. */
#include "runtime/ops/gather.h"
#include "runtime/ref/indexed.h"
#include "runtime/ref/ref.h"

#include <string.h>

enum { PARALLEL_BYTES = 1 << 16 };

/* ---- gather and gather_grad ----------------------------------------------------------------- */

/* x as [outer, size, inner], indexed along `size` by `count` indices. */
struct rows {
    int64_t outer, size, inner, count;
};

static struct rows rows_of(const struct mgpu_tensor *x, const struct mgpu_tensor *indices,
                           int64_t axis)
{
    struct rows r = {.outer = 1, .inner = 1, .size = x->dims[axis]};
    for (int i = 0; i < x->rank; i++)
        if (i != axis)
            *(i < axis ? &r.outer : &r.inner) *= x->dims[i];
    r.count = mgpu_tensor_count(indices);
    return r;
}

static int gather(const struct mgpu_launch *l)
{
    const struct mgpu_gather_attrs *a = l->node->attrs;
    const struct mgpu_tensor *indices = &l->in[1];
    struct rows r = rows_of(&l->in[0], indices, a->axis);
    int64_t bytes = r.inner * (int64_t)mgpu_dtype_size(l->in[0].type);
    const char *from = l->in[0].data;
    char *to = l->out[0].data;
    MGPU_TRY(mgpu_check_indices(l, r.size, a->axis));
#pragma omp parallel for schedule(static) if (r.outer * r.count * bytes >= PARALLEL_BYTES)
    for (int64_t i = 0; i < r.outer * r.count; i++) {
        int64_t row = i / r.count * r.size + mgpu_index(indices, i % r.count, r.size);
        memcpy(to + i * bytes, from + row * bytes, (size_t)bytes);
    }
    return 0;
}

/* Columns [first, first + width) of one outer block, in the order of the indices. */
static void add_rows(const struct mgpu_launch *l, const struct rows *r, int64_t outer,
                     int64_t first, int64_t width, const struct mgpu_tensor *sum)
{
    const struct mgpu_tensor *dy = &l->in[0], *indices = &l->in[1];
    for (int64_t k = 0; k < r->count; k++) {
        int64_t row = mgpu_index(indices, k, r->size);
        mgpu_combine(MGPU_SCATTER_ADD, sum, (outer * r->size + row) * r->inner + first, dy,
                     (outer * r->count + k) * r->inner + first, width);
    }
}

/* Half types add up in float, in the workspace. */
static enum mgpu_dtype sum_type(enum mgpu_dtype type)
{
    return mgpu_dtype_size(type) < 4 ? MGPU_FLOAT : type;
}

static int64_t back_workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_value *dx = node->output[0];
    (void)threads;
    (void)state;
    return sum_type(dx->type) == dx->type ? 0 : mgpu_value_count(dx) * (int64_t)sizeof(float);
}

/* Where the sum is made, zeroed. */
static struct mgpu_tensor sum_of(const struct mgpu_launch *l)
{
    struct mgpu_tensor sum = l->out[0];
    sum.type = sum_type(sum.type);
    if (sum.type != l->out[0].type)
        sum.data = l->workspace;
    memset(sum.data, 0, (size_t)mgpu_tensor_count(&sum) * mgpu_dtype_size(sum.type));
    return sum;
}

static int finish_sum(const struct mgpu_launch *l, const struct mgpu_tensor *sum)
{
    if (sum->type != l->out[0].type)
        mgpu_convert(l->out[0].data, l->out[0].type, sum->data, sum->type, mgpu_tensor_count(sum));
    return 0;
}

static int gather_grad(const struct mgpu_launch *l)
{
    enum { WIDTH = 64 };
    const struct mgpu_gather_grad_attrs *a = l->node->attrs;
    struct rows r = rows_of(&l->out[0], &l->in[1], a->axis);
    MGPU_TRY(mgpu_check_indices(l, r.size, a->axis));
    struct mgpu_tensor sum = sum_of(l);
    int64_t blocks = (r.inner + WIDTH - 1) / WIDTH;
#pragma omp parallel for schedule(static) if (r.outer * r.count * r.inner * 4 >= PARALLEL_BYTES)
    for (int64_t i = 0; i < r.outer * blocks; i++) {
        int64_t first = i % blocks * WIDTH, left = r.inner - first;
        add_rows(l, &r, i / blocks, first, left < WIDTH ? left : WIDTH, &sum);
    }
    return finish_sum(l, &sum);
}

/* ---- gather_elements, gather_nd and their transposes ---------------------------------------- */

static int gather_elements(const struct mgpu_launch *l)
{
    const struct mgpu_gather_attrs *a = l->node->attrs;
    struct mgpu_walk w = mgpu_walk_elements(&l->in[0], &l->in[1], a->axis);
    int64_t size = l->in[0].dims[a->axis], count = mgpu_tensor_count(&l->in[1]);
    MGPU_TRY(mgpu_check_indices(l, size, a->axis));
    for (int64_t i = 0; i < count; i++, mgpu_walk_next(&w)) {
        int64_t at = w.at[0] + mgpu_index(&l->in[1], i, size) * w.stride[0][w.rank];
        mgpu_combine(MGPU_SCATTER_NONE, &l->out[0], i, &l->in[0], at, 1);
    }
    return 0;
}

static int gather_elements_grad(const struct mgpu_launch *l)
{
    const struct mgpu_gather_grad_attrs *a = l->node->attrs;
    struct mgpu_walk w = mgpu_walk_elements(&l->out[0], &l->in[1], a->axis);
    int64_t size = l->out[0].dims[a->axis], count = mgpu_tensor_count(&l->in[1]);
    MGPU_TRY(mgpu_check_indices(l, size, a->axis));
    struct mgpu_tensor sum = sum_of(l);
    for (int64_t i = 0; i < count; i++, mgpu_walk_next(&w)) {
        int64_t at = w.at[0] + mgpu_index(&l->in[1], i, size) * w.stride[0][w.rank];
        mgpu_combine(MGPU_SCATTER_ADD, &sum, at, &l->in[0], i, 1);
    }
    return finish_sum(l, &sum);
}

static int gather_nd(const struct mgpu_launch *l)
{
    const struct mgpu_gather_attrs *a = l->node->attrs;
    struct mgpu_tuples t = mgpu_tuples_of(&l->in[0], &l->in[1], a->axis);
    MGPU_TRY(mgpu_check_tuples(l, &t));
#pragma omp parallel for schedule(static) if (t.count * t.slice * 4 >= PARALLEL_BYTES)
    for (int64_t i = 0; i < t.count; i++)
        mgpu_combine(MGPU_SCATTER_NONE, &l->out[0], i * t.slice, &l->in[0],
                     mgpu_tuple_offset(&t, i), t.slice);
    return 0;
}

static int gather_nd_grad(const struct mgpu_launch *l)
{
    const struct mgpu_gather_grad_attrs *a = l->node->attrs;
    struct mgpu_tuples t = mgpu_tuples_of(&l->out[0], &l->in[1], a->axis);
    MGPU_TRY(mgpu_check_tuples(l, &t));
    struct mgpu_tensor sum = sum_of(l);
    for (int64_t i = 0; i < t.count; i++)
        mgpu_combine(MGPU_SCATTER_ADD, &sum, mgpu_tuple_offset(&t, i), &l->in[0], i * t.slice,
                     t.slice);
    return finish_sum(l, &sum);
}

/* ---- scatters ------------------------------------------------------------------------------- */

static void copy_data(const struct mgpu_launch *l)
{
    size_t bytes = (size_t)mgpu_tensor_count(&l->in[0]) * mgpu_dtype_size(l->in[0].type);
    if (l->out[0].data != l->in[0].data)
        memcpy(l->out[0].data, l->in[0].data, bytes);
}

static int scatter_elements(const struct mgpu_launch *l)
{
    const struct mgpu_scatter_attrs *a = l->node->attrs;
    const struct mgpu_tensor *indices = &l->in[1];
    struct mgpu_walk w = mgpu_walk_elements(&l->out[0], indices, a->axis);
    int64_t size = l->out[0].dims[a->axis], count = mgpu_tensor_count(indices);
    MGPU_TRY(mgpu_check_indices(l, size, a->axis));
    copy_data(l);
    for (int64_t i = 0; i < count; i++, mgpu_walk_next(&w)) {
        int64_t at = w.at[0] + mgpu_index(indices, i, size) * w.stride[0][w.rank];
        mgpu_combine((enum mgpu_scatter_reduction)a->reduction, &l->out[0], at, &l->in[2], i, 1);
    }
    return 0;
}

static int scatter_nd(const struct mgpu_launch *l)
{
    const struct mgpu_scatter_attrs *a = l->node->attrs;
    struct mgpu_tuples t = mgpu_tuples_of(&l->out[0], &l->in[1], 0);
    MGPU_TRY(mgpu_check_tuples(l, &t));
    copy_data(l);
    for (int64_t i = 0; i < t.count; i++)
        mgpu_combine((enum mgpu_scatter_reduction)a->reduction, &l->out[0],
                     mgpu_tuple_offset(&t, i), &l->in[2], i * t.slice, t.slice);
    return 0;
}

#define BACK(text, function)                                                                       \
    {                                                                                              \
        .op = text, .name = "ref", .run = function, .workspace = back_workspace                    \
    }

const struct mgpu_kernel mgpu_ref_gather[] = {
    {.op = "gather", .name = "ref", .run = gather},
    BACK("gather_grad", gather_grad),
    {.op = "gather_elements", .name = "ref", .run = gather_elements},
    BACK("gather_elements_grad", gather_elements_grad),
    {.op = "gather_nd", .name = "ref", .run = gather_nd},
    BACK("gather_nd_grad", gather_nd_grad),
    {.op = "scatter_elements", .name = "ref", .run = scatter_elements},
    {.op = "scatter_nd", .name = "ref", .run = scatter_nd},
    {.op = NULL},
};
