/* What the families share: numbers of inputs, axes, types, small shapes. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"

#include <inttypes.h>
#include <string.h>

int mgpu_lower_need(struct mgpu_lower *l, int count)
{
    for (int i = 0; i < count; i++)
        if (!mgpu_lower_in(l, i))
            return mgpu_fail(MGPU_EINVALID, "input %d is missing", i);
    return 0;
}

int mgpu_lower_first(struct mgpu_lower *l, struct mgpu_value **x)
{
    MGPU_TRY(mgpu_lower_need(l, 1));
    *x = mgpu_lower_in(l, 0);
    return 0;
}

bool mgpu_lower_wants(const struct mgpu_lower *l, int i)
{
    return i < l->node->outputs && *l->node->output[i];
}

int mgpu_lower_give(struct mgpu_lower *l, struct mgpu_value *value)
{
    if (!value)
        return mgpu_build_error();
    l->out[0] = value;
    return 0;
}

struct mgpu_value *mgpu_lower_node(struct mgpu_lower *l, const struct mgpu_op *op,
                                   const void *attrs, int inputs, struct mgpu_value *const *input)
{
    return mgpu_build1(l->g, op, attrs, inputs, input);
}

/* ---- Numbers -------------------------------------------------------------------------------- */

static int constant_input(struct mgpu_lower *l, int i, int most, const struct mgpu_value **out)
{
    const struct mgpu_value *v = *out = mgpu_lower_in(l, i);
    if (!v)
        return mgpu_fail(MGPU_EINVALID, "input %d is missing", i);
    if (v->kind != MGPU_VALUE_CONSTANT)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "input %d ('%s') is known only when the model runs; it must be constant",
                         i, l->node->input[i]);
    int64_t count = mgpu_value_count(v);
    if (count > most)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "input %d ('%s') has %" PRId64 " elements; %d is the most", i,
                         l->node->input[i], count, most);
    return (int)count;
}

int mgpu_lower_ints(struct mgpu_lower *l, int i, int64_t *values, struct mgpu_dim *dims, int most)
{
    const struct mgpu_value *v;
    int count = constant_input(l, i, most, &v);
    for (int k = 0; k < count; k++) {
        values[k] = mgpu_get_int(v->data, v->type, k);
        if (dims && v->ints)
            dims[k] = v->ints[k];
        else if (dims)
            dims[k] = v->tainted ? mgpu_dim_opaque(values[k]) : mgpu_dim_const(values[k]);
    }
    return count;
}

int mgpu_lower_int(struct mgpu_lower *l, int i, int64_t *value, struct mgpu_dim *dim)
{
    int count = mgpu_lower_ints(l, i, value, dim, 1);
    MGPU_TRY(count);
    return count ? 0 : mgpu_fail(MGPU_EINVALID, "input %d is empty", i);
}

int mgpu_lower_doubles(struct mgpu_lower *l, int i, double *values, int most)
{
    const struct mgpu_value *v;
    int count = constant_input(l, i, most, &v);
    for (int k = 0; k < count; k++)
        values[k] = mgpu_get_double(v->data, v->type, k);
    return count;
}

struct mgpu_value *mgpu_lower_numbers(struct mgpu_lower *l, enum mgpu_dtype type, int rank,
                                      const struct mgpu_dim *dims, const double *elements)
{
    int64_t count = mgpu_dims_product(rank, dims).value;
    void *data;
    int rc = mgpu_alloc(&data, (uint64_t)count * mgpu_dtype_size(type), l->node->output[0]);
    if (rc < 0)
        return mgpu_build_fail(rc, "%s", mgpu_error());
    mgpu_convert(data, type, elements, MGPU_DOUBLE, count);
    struct mgpu_value *y = mgpu_graph_constant(l->g, NULL, type, rank, dims, data, NULL);
    mgpu_free(data);
    return y;
}

int mgpu_lower_list(struct mgpu_lower *l, const char *name, int i, int64_t *values,
                    struct mgpu_dim *dims, int most)
{
    int count = mgpu_onnx_ints(l->node, name, values, most);
    if (count > most)
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' has %d elements; %d is the most", name,
                         count, most);
    for (int k = 0; k < count && dims; k++)
        dims[k] = mgpu_dim_const(values[k]);
    if (count >= 0)
        return count;
    return mgpu_lower_in(l, i) ? mgpu_lower_ints(l, i, values, dims, most) : MGPU_LOWER_ABSENT;
}

int mgpu_lower_axis(int64_t *out, int64_t axis, int rank)
{
    if (axis < -(int64_t)rank || axis >= rank)
        return mgpu_fail(MGPU_EINVALID, "axis %" PRId64 " is outside a tensor of rank %d", axis,
                         rank);
    *out = axis < 0 ? axis + rank : axis;
    return 0;
}

int mgpu_lower_axes(struct mgpu_lower *l, int i, int rank, unsigned otherwise, unsigned *mask)
{
    int64_t axes[2 * MGPU_MAX_RANK];
    int count = mgpu_lower_list(l, "axes", i, axes, NULL, 2 * MGPU_MAX_RANK);
    *mask = otherwise;
    if (count == MGPU_LOWER_ABSENT || count == 0)
        return 0;
    MGPU_TRY(count);
    *mask = 0;
    for (int k = 0; k < count; k++) {
        MGPU_TRY(mgpu_lower_axis(&axes[k], axes[k], rank));
        *mask |= 1u << axes[k];
    }
    return 0;
}

/* ---- Types and shapes ----------------------------------------------------------------------- */

enum mgpu_dtype mgpu_lower_held(const struct mgpu_lower *l, enum mgpu_dtype type)
{
    bool half = type == MGPU_FLOAT16 || type == MGPU_BFLOAT16;
    return type == MGPU_FLOAT || (half && l->weights) ? l->options->float_type : type;
}

int mgpu_lower_type(const struct mgpu_lower *l, int64_t onnx, enum mgpu_dtype *out)
{
    *out = mgpu_lower_held(l, (enum mgpu_dtype)onnx);
    if (onnx < 0 || onnx > INT32_MAX || !mgpu_dtype_size(*out))
        return mgpu_fail(MGPU_EUNSUPPORTED, "element type %" PRId64 " is not supported", onnx);
    return 0;
}

struct mgpu_dim mgpu_lower_same(struct mgpu_dim a, struct mgpu_dim b)
{
    return mgpu_dim_is_const(a) || (a.opaque && !mgpu_dim_is_const(b)) ? b : a;
}

struct mgpu_value *mgpu_lower_flatten(struct mgpu_lower *l, struct mgpu_value *a, int axis)
{
    if (!a)
        return NULL;
    struct mgpu_dim dims[2] = {mgpu_dims_product(axis, a->dims),
                               mgpu_dims_product(a->rank - axis, a->dims + axis)};
    return mgpu_reshape(l->g, a, 2, dims);
}

struct mgpu_value *mgpu_lower_scalar(struct mgpu_lower *l, struct mgpu_value *a)
{
    if (a && mgpu_value_count(a) != 1)
        return mgpu_build_fail(MGPU_EINVALID, "'%s' should have one element, not %" PRId64, a->name,
                               mgpu_value_count(a));
    return mgpu_reshape(l->g, a, 0, NULL);
}

struct mgpu_value *mgpu_lower_spread(struct mgpu_lower *l, struct mgpu_value *a,
                                     struct mgpu_value *b)
{
    int64_t axis = mgpu_onnx_int(l->node, "axis", INT64_MAX);
    if (!a || !b || l->node->opset >= 7 || !mgpu_onnx_int(l->node, "broadcast", 0) ||
        axis == INT64_MAX || b->rank >= a->rank)
        return b;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    axis = axis < 0 ? axis + a->rank : axis;
    if (axis < 0 || axis + b->rank > a->rank)
        return mgpu_build_fail(MGPU_EINVALID, "axis %" PRId64 " does not fit ranks %d and %d", axis,
                               a->rank, b->rank);
    int rank = a->rank - (int)axis;
    for (int i = 0; i < rank; i++)
        dims[i] = i < b->rank ? b->dims[i] : mgpu_dim_const(1);
    return mgpu_reshape(l->g, b, rank, dims);
}
