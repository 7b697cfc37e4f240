#include "runtime/ref/indexed.h"

#include "runtime/ref/ref.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* "[1,2]": where element `flat` stands. */
static char *place_text(char text[MGPU_SHAPE_TEXT], const struct mgpu_tensor *t, int64_t flat)
{
    int64_t place[MGPU_MAX_RANK];
    for (int i = t->rank - 1; i >= 0; i--) {
        place[i] = flat % t->dims[i];
        flat /= t->dims[i];
    }
    return mgpu_shape_text(text, t->rank, place);
}

static int out_of_range(const struct mgpu_launch *l, int64_t i, int64_t size, int64_t axis)
{
    char text[MGPU_SHAPE_TEXT];
    const struct mgpu_tensor *indices = &l->in[1];
    int64_t given = mgpu_get_int(indices->data, indices->type, i);
    return mgpu_fail(MGPU_EINVALID,
                     "%s: index %" PRId64 " at %s is out of range: axis %" PRId64 " has %" PRId64
                     " elements",
                     l->node->op->name, given, place_text(text, indices, i), axis, size);
}

int mgpu_check_indices(const struct mgpu_launch *l, int64_t size, int64_t axis)
{
    for (int64_t i = 0, n = mgpu_tensor_count(&l->in[1]); i < n; i++) {
        int64_t v = mgpu_index(&l->in[1], i, size);
        if (v < 0 || v >= size)
            return out_of_range(l, i, size, axis);
    }
    return 0;
}

struct mgpu_walk mgpu_walk_elements(const struct mgpu_tensor *x, const struct mgpu_tensor *indices,
                                    int64_t axis)
{
    struct mgpu_walk w = {.rank = indices->rank, .operands = 1};
    memcpy(w.dims, indices->dims, sizeof indices->dims);
    mgpu_tensor_strides(x, w.stride[0]);
    w.stride[0][w.rank] = w.stride[0][axis];
    w.stride[0][axis] = 0;
    mgpu_walk_seek(&w, 0);
    return w;
}

struct mgpu_tuples mgpu_tuples_of(const struct mgpu_tensor *x, const struct mgpu_tensor *indices,
                                  int64_t batch_dims)
{
    struct mgpu_tuples t = {.x = x,
                            .indices = indices,
                            .batch_dims = batch_dims,
                            .width = indices->dims[indices->rank - 1],
                            .count = 1,
                            .slice = 1,
                            .per_batch = 1};
    mgpu_tensor_strides(x, t.stride);
    for (int i = 0; i < indices->rank - 1; i++) {
        t.count *= indices->dims[i];
        t.per_batch *= i < batch_dims ? 1 : indices->dims[i];
    }
    for (int64_t i = batch_dims + t.width; i < x->rank; i++)
        t.slice *= x->dims[i];
    t.batch_stride = t.slice;
    for (int64_t i = batch_dims; i < batch_dims + t.width; i++)
        t.batch_stride *= x->dims[i];
    return t;
}

int mgpu_check_tuples(const struct mgpu_launch *l, const struct mgpu_tuples *t)
{
    for (int64_t i = 0; i < t->count * t->width; i++) {
        int64_t axis = t->batch_dims + i % t->width, size = t->x->dims[axis];
        int64_t v = mgpu_index(t->indices, i, size);
        if (v < 0 || v >= size)
            return out_of_range(l, i, size, axis);
    }
    return 0;
}

int64_t mgpu_tuple_offset(const struct mgpu_tuples *t, int64_t i)
{
    int64_t at = i / t->per_batch * t->batch_stride;
    for (int64_t k = 0; k < t->width; k++) {
        int64_t axis = t->batch_dims + k;
        at += mgpu_index(t->indices, i * t->width + k, t->x->dims[axis]) * t->stride[axis];
    }
    return at;
}

static double combine_floats(enum mgpu_scatter_reduction reduction, double a, double b)
{
    switch (reduction) {
    case MGPU_SCATTER_ADD:
        return a + b;
    case MGPU_SCATTER_MUL:
        return a * b;
    case MGPU_SCATTER_MAX:
        return b > a || isnan(b) ? b : a;
    case MGPU_SCATTER_MIN:
        return b < a || isnan(b) ? b : a;
    default:
        return b;
    }
}

static int64_t combine_ints(enum mgpu_scatter_reduction reduction, enum mgpu_dtype type, int64_t a,
                            int64_t b)
{
    bool less = type == MGPU_UINT64 ? (uint64_t)a < (uint64_t)b : a < b;
    switch (reduction) {
    case MGPU_SCATTER_ADD:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case MGPU_SCATTER_MUL:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case MGPU_SCATTER_MAX:
        return less ? b : a;
    case MGPU_SCATTER_MIN:
        return less ? a : b;
    default:
        return b;
    }
}

static void combine_any(enum mgpu_scatter_reduction reduction, const struct mgpu_tensor *to,
                        int64_t at, const struct mgpu_tensor *from, int64_t from_at)
{
    if (mgpu_is_float(to->type))
        mgpu_set_double(to->data, to->type, at,
                        combine_floats(reduction, mgpu_get_double(to->data, to->type, at),
                                       mgpu_get_double(from->data, from->type, from_at)));
    else
        mgpu_set_int(to->data, to->type, at,
                     combine_ints(reduction, to->type, mgpu_get_int(to->data, to->type, at),
                                  mgpu_get_int(from->data, from->type, from_at)));
}

static void add_run(const struct mgpu_tensor *to, int64_t at, const struct mgpu_tensor *from,
                    int64_t from_at, int64_t count)
{
    float *y = (float *)to->data + at;
    const float *x = (const float *)from->data + from_at;
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

void mgpu_combine(enum mgpu_scatter_reduction reduction, const struct mgpu_tensor *to, int64_t at,
                  const struct mgpu_tensor *from, int64_t from_at, int64_t count)
{
    size_t size = mgpu_dtype_size(to->type);
    if (reduction == MGPU_SCATTER_NONE)
        memcpy((char *)to->data + (size_t)at * size,
               (const char *)from->data + (size_t)from_at * size, (size_t)count * size);
    else if (reduction == MGPU_SCATTER_ADD && to->type == MGPU_FLOAT && from->type == MGPU_FLOAT)
        add_run(to, at, from, from_at, count);
    else
        for (int64_t i = 0; i < count; i++)
            combine_any(reduction, to, at + i, from, from_at + i);
}
