#include "runtime/ops/dims.h"

struct mgpu_dim mgpu_dims_product(int count, const struct mgpu_dim *dims)
{
    struct mgpu_dim product = mgpu_dim_const(1);
    for (int i = 0; i < count; i++)
        product = mgpu_dim_mul(product, dims[i]);
    return product;
}

bool mgpu_dims_same(int rank, const struct mgpu_dim *a, const struct mgpu_dim *b)
{
    for (int i = 0; i < rank; i++)
        if (!mgpu_dim_same(a[i], b[i]))
            return false;
    return true;
}

bool mgpu_dims_equal(int rank, const struct mgpu_dim *a, const struct mgpu_dim *b)
{
    for (int i = 0; i < rank; i++)
        if (a[i].value != b[i].value)
            return false;
    return true;
}

const struct mgpu_dim *mgpu_dims_copy(struct mgpu_graph *g, int rank, const struct mgpu_dim *dims)
{
    struct mgpu_dim *copy = MGPU_NEW_ARRAY(g->arena, struct mgpu_dim, rank + 1);
    for (int i = 0; i < rank; i++)
        copy[i] = dims[i];
    return copy;
}

char *mgpu_dims_text(char text[MGPU_SHAPE_TEXT], int rank, const struct mgpu_dim *dims)
{
    int64_t values[MGPU_MAX_RANK];
    for (int i = 0; i < rank; i++)
        values[i] = dims[i].value;
    return mgpu_shape_text(text, rank, values);
}

int mgpu_dims_batch_axis(int rank, const struct mgpu_dim *dims)
{
    int axis = -1;
    for (int i = 0; i < rank; i++) {
        if (!mgpu_dim_has(dims[i], MGPU_BATCH))
            continue;
        if (axis >= 0 || dims[i].opaque || dims[i].power[MGPU_BATCH] != 1)
            return -2;
        axis = i;
    }
    return axis;
}

bool mgpu_split_equal(struct mgpu_split a, struct mgpu_split b)
{
    return a.kind == b.kind &&
           (a.kind != MGPU_SPLIT_AXIS || (a.axis == b.axis && a.outer == b.outer));
}

enum mgpu_split_answer mgpu_split_ok(struct mgpu_split *out, enum mgpu_split_kind kind, int axis,
                                     int64_t outer)
{
    out[0] = mgpu_split_make(kind, axis, outer);
    return MGPU_SPLIT_OK;
}

enum mgpu_split_answer mgpu_split_no(int *which, int input, enum mgpu_split_answer answer)
{
    *which = input;
    return answer;
}
