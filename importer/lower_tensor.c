/* Shapes and constants: what says how large something is, or is a view of it. */
#include "importer/lower_walk.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- What a size is ------------------------------------------------------------------------- */

static int clamp_axis(int64_t axis, int rank)
{
    axis = axis < 0 ? axis + rank : axis;
    return axis < 0 ? 0 : axis > rank ? rank : (int)axis;
}

static int lower_shape(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int start = clamp_axis(mgpu_onnx_int(l->node, "start", 0), x->rank);
    int end = clamp_axis(mgpu_onnx_int(l->node, "end", x->rank), x->rank);
    int count = end > start ? end - start : 0;
    return mgpu_lower_give(l, mgpu_const_dims(l->g, count, x->dims + start));
}

static int lower_size(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    struct mgpu_dim size = mgpu_dims_product(x->rank, x->dims);
    return mgpu_lower_give(
        l, mgpu_graph_constant(l->g, NULL, MGPU_INT64, 0, NULL, &size.value, &size));
}

static int lower_identity(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    return mgpu_lower_give(l, x);
}

/* ---- Constants ------------------------------------------------------------------------------ */

/* One element of the tensor attribute `value`, 0 of float when absent. */
static int fill_value(struct mgpu_lower *l, struct mgpu_value **out)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(l->node, "value", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR);
    struct mgpu_array array = {0};
    enum mgpu_dtype type;
    *out = mgpu_const_double(l->g, l->options->float_type, 0);
    if (!a || !a->t)
        return 0;
    MGPU_TRY(mgpu_onnx_tensor_read(l->model->file, a->t, &array));
    int rc = mgpu_array_count(&array) == 1
                 ? mgpu_lower_type(l, array.type, &type)
                 : mgpu_fail(MGPU_EINVALID, "attribute 'value' must have one element");
    if (rc >= 0) {
        char element[8];
        mgpu_convert(element, type, array.data, array.type, 1);
        *out = mgpu_graph_constant(l->g, NULL, type, 0, NULL, element, NULL);
    }
    mgpu_array_free(&array);
    return rc;
}

static int check_sizes(int count, const struct mgpu_dim *dims)
{
    for (int i = 0; i < count; i++)
        if (dims[i].value < 0)
            return mgpu_fail(MGPU_EINVALID, "size %" PRId64 " is negative", dims[i].value);
    return 0;
}

static int lower_constant_of_shape(struct mgpu_lower *l)
{
    int64_t sizes[MGPU_MAX_RANK];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_value *value;
    int rank = mgpu_lower_ints(l, 0, sizes, dims, MGPU_MAX_RANK);
    MGPU_TRY(rank);
    MGPU_TRY(check_sizes(rank, dims));
    MGPU_TRY(fill_value(l, &value));
    return mgpu_lower_give(l, mgpu_broadcast(l->g, value, rank, dims));
}

enum { MOST_RANGE = 1 << 27 };

static int range_ints(struct mgpu_lower *l, enum mgpu_dtype type)
{
    int64_t v[3];
    struct mgpu_dim d[3];
    for (int i = 0; i < 3; i++)
        MGPU_TRY(mgpu_lower_int(l, i, &v[i], &d[i]));
    if (v[2] == 0)
        return mgpu_fail(MGPU_EINVALID, "delta is 0");
    double steps = ceil(((double)v[1] - (double)v[0]) / (double)v[2]);
    if (steps > MOST_RANGE)
        return mgpu_fail(MGPU_EINVALID, "%.0f elements are too many", steps);
    int64_t count = steps > 0 ? (int64_t)steps : 0;
    struct mgpu_dim size = mgpu_dim_div(mgpu_dim_add(d[1], mgpu_dim_neg(d[0])), d[2]);
    if (size.value != count)
        size = mgpu_dim_lost(count, size, size);
    void *data;
    MGPU_TRY(mgpu_alloc(&data, (uint64_t)count * mgpu_dtype_size(type), l->node->output[0]));
    for (int64_t i = 0; i < count; i++)
        mgpu_set_int(data, type, i, (int64_t)((uint64_t)v[0] + (uint64_t)i * (uint64_t)v[2]));
    struct mgpu_value *y = mgpu_graph_constant(l->g, NULL, type, 1, &size, data, NULL);
    mgpu_free(data);
    y->tainted = mgpu_dim_has(size, MGPU_BATCH); /* a sample's place in the batch */
    return mgpu_lower_give(l, y);
}

static int range_floats(struct mgpu_lower *l, enum mgpu_dtype type)
{
    double v[3];
    bool depends = false;
    for (int i = 0; i < 3; i++) {
        int count = mgpu_lower_doubles(l, i, &v[i], 1);
        MGPU_TRY(count);
        if (count == 0)
            return mgpu_fail(MGPU_EINVALID, "input %d is empty", i);
        depends = depends || mgpu_lower_in(l, i)->tainted;
    }
    double steps = ceil((v[1] - v[0]) / v[2]);
    if (!(steps <= MOST_RANGE))
        return mgpu_fail(MGPU_EINVALID, "%g elements are too many", steps);
    int64_t count = steps > 0 ? (int64_t)steps : 0;
    struct mgpu_dim size = depends ? mgpu_dim_opaque(count) : mgpu_dim_const(count);
    void *data;
    MGPU_TRY(mgpu_alloc(&data, (uint64_t)count * mgpu_dtype_size(type), l->node->output[0]));
    for (int64_t i = 0; i < count; i++)
        mgpu_set_double(data, type, i, v[0] + (double)i * v[2]);
    struct mgpu_value *y = mgpu_graph_constant(l->g, NULL, type, 1, &size, data, NULL);
    mgpu_free(data);
    y->tainted = depends;
    return mgpu_lower_give(l, y);
}

static int lower_range(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    return mgpu_is_float(x->type) ? range_floats(l, x->type) : range_ints(l, x->type);
}

static int lower_eye_like(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    enum mgpu_dtype type;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_type(l, mgpu_onnx_int(l->node, "dtype", x->type), &type));
    if (x->rank != 2)
        return mgpu_fail(MGPU_EINVALID, "the input has rank %d, not 2", x->rank);
    int64_t rows = x->dims[0].value, columns = x->dims[1].value;
    int64_t k = mgpu_onnx_int(l->node, "k", 0), sizes[2] = {rows, columns};
    struct mgpu_array eye;
    MGPU_TRY(mgpu_array_init(&eye, type, 2, sizes, l->node->output[0]));
    for (int64_t i = 0; i < rows; i++)
        if (k >= -i && k < columns - i)
            mgpu_set_int(eye.data, type, i * columns + i + k, 1);
    struct mgpu_value *y = mgpu_graph_constant(l->g, NULL, type, 2, x->dims, eye.data, NULL);
    mgpu_array_free(&eye);
    y->tainted = mgpu_dim_has(x->dims[0], MGPU_BATCH) || mgpu_dim_has(x->dims[1], MGPU_BATCH);
    return mgpu_lower_give(l, y);
}

/* x where the mask of a triangle is set, else 0. */
static int lower_trilu(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    int64_t k = 0;
    MGPU_TRY(mgpu_lower_first(l, &x));
    if (mgpu_lower_in(l, 1))
        MGPU_TRY(mgpu_lower_int(l, 1, &k, NULL));
    if (x->rank < 2)
        return mgpu_fail(MGPU_EINVALID, "the input has rank %d, less than 2", x->rank);
    bool upper = mgpu_onnx_int(l->node, "upper", 1);
    const struct mgpu_dim *dims = x->dims + x->rank - 2;
    int64_t sizes[2] = {dims[0].value, dims[1].value};
    struct mgpu_array mask;
    MGPU_TRY(mgpu_array_init(&mask, MGPU_BOOL, 2, sizes, l->node->output[0]));
    for (int64_t i = 0; i < sizes[0]; i++)
        for (int64_t j = 0; j < sizes[1]; j++)
            ((bool *)mask.data)[i * sizes[1] + j] = upper ? j - i >= k : j - i <= k;
    struct mgpu_value *m = mgpu_graph_constant(l->g, NULL, MGPU_BOOL, 2, dims, mask.data, NULL);
    mgpu_array_free(&mask);
    m->tainted = mgpu_dim_has(dims[0], MGPU_BATCH) || mgpu_dim_has(dims[1], MGPU_BATCH);
    struct mgpu_value *zero = mgpu_const_double(l->g, x->type, 0);
    return mgpu_lower_give(l, mgpu_where(l->g, m, x, zero));
}

/* ---- Reshape and its kin -------------------------------------------------------------------- */

/* Whether the samples of x, one after the other, are cut by the shape: the sizes before the batch's
 * axis must divide those before it in x. A [N,4] seen as [2,N*2] has half a batch in each row. */
static bool cuts_samples(const struct mgpu_value *x, int rank, const struct mgpu_dim *dims)
{
    int from = mgpu_dims_batch_axis(x->rank, x->dims), to = mgpu_dims_batch_axis(rank, dims);
    if (from < 0 || to < 0)
        return false;
    struct mgpu_dim before = mgpu_dims_product(from, x->dims);
    struct mgpu_dim outer = mgpu_dims_product(to, dims);
    if (!outer.value || x->dims[from].factor != 1)
        return false;
    return before.value % outer.value != 0;
}

static int check_reshape(struct mgpu_lower *l, const struct mgpu_value *x, int rank,
                         const struct mgpu_dim *dims)
{
    char from[MGPU_VALUE_TEXT], to[MGPU_SHAPE_TEXT];
    mgpu_value_text(from, l->g, x);
    mgpu_dims_text(to, rank, dims);
    if (mgpu_dims_product(rank, dims).value != mgpu_dims_product(x->rank, x->dims).value)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "%s cannot be seen as %s; does the file hold a fixed batch? Then it has "
                         "to be " MGPU_EXPORT_BATCH,
                         from, to);
    if (cuts_samples(x, rank, dims))
        return mgpu_fail(
            MGPU_EUNSUPPORTED,
            "%s seen as %s cuts samples apart; does the file hold a fixed batch? Then it "
            "has to be " MGPU_EXPORT_BATCH,
            from, to);
    return 0;
}

/* Replaces 0 (the size in x, unless `zero`) and -1 (what is left over) among the sizes. */
static int fill_in(const struct mgpu_value *x, bool zero, int rank, const int64_t *sizes,
                   struct mgpu_dim *dims)
{
    struct mgpu_dim known = mgpu_dim_const(1);
    int open = -1;
    for (int i = 0; i < rank; i++) {
        if (sizes[i] == 0 && !zero) {
            if (i >= x->rank)
                return mgpu_fail(MGPU_EINVALID, "size 0 at axis %d, where the input has none", i);
            dims[i] = x->dims[i];
        }
        if (sizes[i] < -1 || (sizes[i] == -1 && open >= 0))
            return mgpu_fail(MGPU_EINVALID, "size %" PRId64 " at axis %d", sizes[i], i);
        if (sizes[i] == -1)
            open = i;
        else
            known = mgpu_dim_mul(known, dims[i]);
    }
    struct mgpu_dim total = mgpu_dims_product(x->rank, x->dims);
    if (open >= 0)
        dims[open] = known.value ? mgpu_dim_div(total, known) : mgpu_dim_const(0);
    return 0;
}

static int lower_reshape(struct mgpu_lower *l)
{
    int64_t sizes[MGPU_MAX_RANK];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int rank = mgpu_lower_list(l, "shape", 1, sizes, dims, MGPU_MAX_RANK);
    if (rank == MGPU_LOWER_ABSENT)
        return mgpu_fail(MGPU_EINVALID, "there is no shape");
    MGPU_TRY(rank);
    bool zero = mgpu_onnx_int(l->node, "allowzero", 0);
    MGPU_TRY(fill_in(x, zero, rank, sizes, dims));
    mgpu_rebatch_shape(l, x, zero, rank, sizes, dims);
    MGPU_TRY(check_reshape(l, x, rank, dims));
    return mgpu_lower_give(l, mgpu_reshape(l->g, x, rank, dims));
}

static int lower_flatten(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int64_t axis = mgpu_onnx_int(l->node, "axis", 1);
    axis = axis < 0 ? axis + x->rank : axis;
    if (axis < 0 || axis > x->rank)
        return mgpu_fail(MGPU_EINVALID, "axis %" PRId64 " is outside rank %d", axis, x->rank);
    return mgpu_lower_give(l, mgpu_lower_flatten(l, x, (int)axis));
}

static int lower_squeeze(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    unsigned ones = 0, mask;
    int rank = 0;
    MGPU_TRY(mgpu_lower_first(l, &x));
    for (int i = 0; i < x->rank; i++)
        ones |= x->dims[i].value == 1 && mgpu_dim_is_const(x->dims[i]) ? 1u << i : 0;
    MGPU_TRY(mgpu_lower_axes(l, 1, x->rank, ones, &mask));
    for (int i = 0; i < x->rank; i++)
        if (!(mask & 1u << i))
            dims[rank++] = x->dims[i];
        else if (x->dims[i].value != 1)
            return mgpu_fail(MGPU_EINVALID, "axis %d has size %" PRId64 ", not 1", i,
                             x->dims[i].value);
    return mgpu_lower_give(l, mgpu_reshape(l->g, x, rank, dims));
}

static int lower_unsqueeze(struct mgpu_lower *l)
{
    int64_t axes[MGPU_MAX_RANK];
    struct mgpu_value *x;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    unsigned mask = 0;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int count = mgpu_lower_list(l, "axes", 1, axes, NULL, MGPU_MAX_RANK);
    if (count == MGPU_LOWER_ABSENT)
        return mgpu_fail(MGPU_EINVALID, "there are no axes");
    MGPU_TRY(count);
    int rank = x->rank + count;
    if (rank > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "rank %d is more than %d", rank, MGPU_MAX_RANK);
    for (int i = 0; i < count; i++) {
        MGPU_TRY(mgpu_lower_axis(&axes[i], axes[i], rank));
        if (mask & 1u << axes[i])
            return mgpu_fail(MGPU_EINVALID, "axis %" PRId64 " stands twice", axes[i]);
        mask |= 1u << axes[i];
    }
    for (int i = 0, from = 0; i < rank; i++)
        dims[i] = mask & 1u << i ? mgpu_dim_const(1) : x->dims[from++];
    return mgpu_lower_give(l, mgpu_reshape(l->g, x, rank, dims));
}

static int lower_transpose(struct mgpu_lower *l)
{
    int64_t order[MGPU_MAX_RANK];
    int perm[MGPU_MAX_RANK];
    unsigned seen = 0;
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int count = mgpu_onnx_ints(l->node, "perm", order, MGPU_MAX_RANK);
    if (count >= 0 && count != x->rank)
        return mgpu_fail(MGPU_EINVALID, "perm has %d axes, the input %d", count, x->rank);
    for (int i = 0; i < x->rank; i++) {
        int64_t axis = count < 0 ? x->rank - 1 - i : order[i];
        MGPU_TRY(mgpu_lower_axis(&axis, axis, x->rank));
        perm[i] = (int)axis;
        seen |= 1u << axis;
    }
    if (seen != (1u << x->rank) - 1)
        return mgpu_fail(MGPU_EINVALID, "perm is not a permutation");
    return mgpu_lower_give(l, mgpu_transpose(l->g, x, perm));
}

/* ---- Expand and Tile ------------------------------------------------------------------------ */

static int lower_expand(struct mgpu_lower *l)
{
    int64_t sizes[MGPU_MAX_RANK];
    struct mgpu_dim want[MGPU_MAX_RANK], dims[MGPU_MAX_RANK];
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int count = mgpu_lower_ints(l, 1, sizes, want, MGPU_MAX_RANK);
    MGPU_TRY(count);
    MGPU_TRY(check_sizes(count, want));
    int rank = count > x->rank ? count : x->rank;
    for (int i = 0; i < rank; i++) {
        int a = i - (rank - x->rank), b = i - (rank - count);
        if (a >= 0 && b >= 0 && mgpu_dim_has(want[b], MGPU_BATCH) &&
            !(x = mgpu_rebatch_rows(l, x, a)))
            return mgpu_build_error();
        struct mgpu_dim have = a < 0 ? mgpu_dim_const(1) : x->dims[a];
        struct mgpu_dim to = b < 0 ? mgpu_dim_const(1) : want[b];
        if (have.value != to.value && have.value != 1 && to.value != 1)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "axis %d of size %" PRId64 " cannot become %" PRId64, i, have.value,
                             to.value);
        dims[i] = have.value == to.value ? mgpu_lower_same(have, to) : have.value == 1 ? to : have;
    }
    return mgpu_lower_give(l, mgpu_broadcast(l->g, x, rank, dims));
}

/* x repeated along one axis: a new axis before it is spread and joined with it. */
static struct mgpu_value *repeat(struct mgpu_lower *l, struct mgpu_value *x, int axis,
                                 struct mgpu_dim times)
{
    struct mgpu_dim dims[MGPU_MAX_RANK + 1], out[MGPU_MAX_RANK];
    if (!x || (times.value == 1 && mgpu_dim_is_const(times)))
        return x;
    if (x->rank == MGPU_MAX_RANK)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "Tile of rank %d", x->rank);
    for (int i = 0; i < x->rank; i++) {
        out[i] = x->dims[i];
        dims[i + (i >= axis)] = x->dims[i];
    }
    out[axis] = mgpu_dim_mul(times, x->dims[axis]);
    dims[axis] = mgpu_dim_const(1);
    struct mgpu_value *y = mgpu_reshape(l->g, x, x->rank + 1, dims);
    dims[axis] = times;
    return mgpu_reshape(l->g, mgpu_broadcast(l->g, y, x->rank + 1, dims), x->rank, out);
}

static int lower_tile(struct mgpu_lower *l)
{
    int64_t counts[MGPU_MAX_RANK], axis;
    struct mgpu_dim times[MGPU_MAX_RANK];
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int count = mgpu_lower_ints(l, 1, counts, times, MGPU_MAX_RANK);
    MGPU_TRY(count);
    MGPU_TRY(check_sizes(count, times));
    if (l->node->opset < 6) { /* `tiles` copies along `axis` */
        MGPU_TRY(mgpu_lower_int(l, 2, &axis, NULL));
        MGPU_TRY(mgpu_lower_axis(&axis, axis, x->rank));
        return mgpu_lower_give(l, repeat(l, x, (int)axis, times[0]));
    }
    if (count != x->rank)
        return mgpu_fail(MGPU_EINVALID, "%d repeats for rank %d", count, x->rank);
    for (int i = 0; i < count; i++)
        x = repeat(l, x, i, times[i]);
    return mgpu_lower_give(l, x);
}

const struct mgpu_lowering mgpu_lower_tensor[] = {
    {"Shape", 1, 0, lower_shape},
    {"Size", 1, 0, lower_size},
    {"Identity", 1, 0, lower_identity},
    {"ConstantOfShape", 9, 0, lower_constant_of_shape},
    {"Range", 11, 0, lower_range},
    {"EyeLike", 9, 0, lower_eye_like},
    {"Trilu", 14, 0, lower_trilu},
    {"Reshape", 1, 0, lower_reshape},
    {"Flatten", 1, 0, lower_flatten},
    {"Squeeze", 1, 0, lower_squeeze},
    {"Unsqueeze", 1, 0, lower_unsqueeze},
    {"Transpose", 1, 0, lower_transpose},
    {"Expand", 8, 0, lower_expand},
    {"Tile", 1, 0, lower_tile},
    {0},
};
