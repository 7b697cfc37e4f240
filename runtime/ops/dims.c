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

/* A size that holds one unknown symbol, in the first power, tells what it is bound to: then
 * symbol[] gets it and the answer is true. */
static bool learn(int64_t symbol[MGPU_SYMBOLS], struct mgpu_dim d)
{
    int unknown = -1;
    int64_t rest = d.opaque ? 0 : d.factor;
    for (int s = 0; s < MGPU_SYMBOLS; s++) {
        for (int k = 0; k < d.power[s] && symbol[s]; k++)
            rest *= symbol[s];
        if (!d.power[s] || symbol[s])
            continue;
        if (unknown >= 0 || d.power[s] > 1)
            return false;
        unknown = s;
    }
    if (unknown < 0 || rest <= 0 || d.value < rest)
        return false;
    symbol[unknown] = d.value / rest;
    return true;
}

int64_t mgpu_dims_batch(int a_rank, const struct mgpu_dim *a, int b_rank, const struct mgpu_dim *b)
{
    int64_t symbol[MGPU_SYMBOLS] = {0};
    for (bool learned = true; learned;) {
        learned = false;
        for (int i = 0; i < a_rank; i++)
            learned = learn(symbol, a[i]) || learned;
        for (int i = 0; i < b_rank; i++)
            learned = learn(symbol, b[i]) || learned;
    }
    return symbol[MGPU_BATCH];
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
