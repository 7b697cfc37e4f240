/* Indexed movement. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"

#include <inttypes.h>
#include <string.h>

/* Indices are int32 or int64 to the core operators. */
static struct mgpu_value *indices(struct mgpu_lower *l, int i)
{
    struct mgpu_value *v = mgpu_lower_in(l, i);
    return v->type == MGPU_INT32 ? v : mgpu_cast(l->g, v, MGPU_INT64);
}

/* Indices of rows as gather_nd has them: each one a list of one. */
static struct mgpu_value *as_lists(struct mgpu_lower *l, struct mgpu_value *indices)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!indices || indices->rank == MGPU_MAX_RANK)
        return NULL;
    for (int i = 0; i < indices->rank; i++)
        dims[i] = indices->dims[i];
    dims[indices->rank] = mgpu_dim_const(1);
    return mgpu_reshape(l->g, indices, indices->rank + 1, dims);
}

static int lower_gather(struct mgpu_lower *l)
{
    struct mgpu_gather_attrs attrs;
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *input[] = {mgpu_lower_in(l, 0), indices(l, 1)}, *own;
    MGPU_TRY(mgpu_lower_axis(&attrs.axis, mgpu_onnx_int(l->node, "axis", 0), input[0]->rank));
    if (attrs.axis == 0 && (own = mgpu_lower_own_rows(l, input[0], as_lists(l, input[1]))))
        return mgpu_lower_give(l, own);
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_gather, &attrs, 2, input));
}

static int lower_gather_elements(struct mgpu_lower *l)
{
    struct mgpu_gather_attrs attrs;
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *input[] = {mgpu_lower_in(l, 0), indices(l, 1)};
    MGPU_TRY(mgpu_lower_axis(&attrs.axis, mgpu_onnx_int(l->node, "axis", 0), input[0]->rank));
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_gather_elements, &attrs, 2, input));
}

static int lower_gather_nd(struct mgpu_lower *l)
{
    struct mgpu_gather_attrs attrs = {.axis = mgpu_onnx_int(l->node, "batch_dims", 0)};
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *input[] = {mgpu_lower_in(l, 0), indices(l, 1)}, *own;
    if (attrs.axis == 0 && (own = mgpu_lower_own_rows(l, input[0], input[1])))
        return mgpu_lower_give(l, own);
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_gather_nd, &attrs, 2, input));
}

static int scatter(struct mgpu_lower *l, const struct mgpu_op *op, bool axis)
{
    static const char *const names[] = {"none", "add", "mul", "max", "min"};
    const char *reduction = mgpu_onnx_string(l->model, l->node, "reduction", "none");
    struct mgpu_scatter_attrs attrs = {.reduction = -1};
    MGPU_TRY(mgpu_lower_need(l, 3));
    for (int i = 0; i < 5; i++)
        if (!strcmp(reduction, names[i]))
            attrs.reduction = i;
    if (attrs.reduction < 0)
        return mgpu_fail(MGPU_EUNSUPPORTED, "reduction '%s' is not supported", reduction);
    struct mgpu_value *input[] = {mgpu_lower_in(l, 0), indices(l, 1), mgpu_lower_in(l, 2)};
    if (axis)
        MGPU_TRY(mgpu_lower_axis(&attrs.axis, mgpu_onnx_int(l->node, "axis", 0), input[0]->rank));
    return mgpu_lower_give(l, mgpu_lower_node(l, op, &attrs, 3, input));
}

static int lower_scatter_elements(struct mgpu_lower *l)
{
    return scatter(l, &mgpu_op_scatter_elements, true);
}

static int lower_scatter_nd(struct mgpu_lower *l)
{
    return scatter(l, &mgpu_op_scatter_nd, false);
}

/* Compares each index with 0 .. depth-1 on a new axis: on where equal, else off. */
static int lower_one_hot(struct mgpu_lower *l)
{
    int64_t depth, axis;
    struct mgpu_dim size, dims[MGPU_MAX_RANK];
    MGPU_TRY(mgpu_lower_need(l, 3));
    struct mgpu_value *index = mgpu_cast(l->g, mgpu_lower_in(l, 0), MGPU_INT64);
    struct mgpu_value *values = mgpu_lower_in(l, 2);
    if (!index)
        return mgpu_build_error();
    MGPU_TRY(mgpu_lower_int(l, 1, &depth, &size));
    if (index->rank == MGPU_MAX_RANK || depth < 1 || depth > 1 << 24)
        return mgpu_fail(MGPU_EUNSUPPORTED, "depth %" PRId64 " and rank %d", depth, index->rank);
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", -1), index->rank + 1));
    for (int i = 0; i <= index->rank; i++)
        dims[i] = i == axis ? mgpu_dim_const(1) : index->dims[i - (i > axis)];
    struct mgpu_value *x = mgpu_reshape(l->g, index, index->rank + 1, dims);
    int64_t *classes = MGPU_NEW_ARRAY(l->g->arena, int64_t, depth);
    for (int64_t i = 0; i < depth; i++)
        classes[i] = i;
    for (int i = 0; i <= index->rank; i++)
        dims[i] = i == axis ? size : mgpu_dim_const(1);
    struct mgpu_value *c = mgpu_const_ints(l->g, (int)depth, classes);
    c = mgpu_reshape(l->g, c, index->rank + 1, dims);
    struct mgpu_value *zero = mgpu_const_double(l->g, MGPU_INT64, 0);
    struct mgpu_value *from_end = mgpu_binary(l->g, MGPU_X_LT, x, zero);
    struct mgpu_value *number = mgpu_const_double(l->g, MGPU_INT64, (double)depth);
    x = x ? mgpu_where(l->g, from_end, mgpu_add(l->g, x, number), x) : NULL;
    struct mgpu_value *off = mgpu_slice_axis(l->g, values, 0, 0, mgpu_dim_const(1));
    struct mgpu_value *on = mgpu_slice_axis(l->g, values, 0, 1, mgpu_dim_const(1));
    return mgpu_lower_give(l, mgpu_where(l->g, mgpu_binary(l->g, MGPU_X_EQ, x, c), on, off));
}

/* Elements along an axis (or of the flat input) where a constant mask is set. */
static int lower_compress(struct mgpu_lower *l)
{
    enum { MOST = 1 << 16 };
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    int64_t *mask = MGPU_NEW_ARRAY(l->g->arena, int64_t, MOST), kept = 0;
    int count = mgpu_lower_ints(l, 1, mask, NULL, MOST);
    MGPU_TRY(count);
    struct mgpu_gather_attrs attrs = {0};
    if (mgpu_onnx_attribute(l->node, "axis"))
        MGPU_TRY(mgpu_lower_axis(&attrs.axis, mgpu_onnx_int(l->node, "axis", 0), x->rank));
    else {
        struct mgpu_dim all = mgpu_dims_product(x->rank, x->dims);
        x = mgpu_reshape(l->g, x, 1, &all);
    }
    for (int64_t i = 0; i < count; i++)
        if (mask[i])
            mask[kept++] = i;
    struct mgpu_value *input[] = {x, mgpu_const_ints(l->g, (int)kept, mask)};
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_gather, &attrs, 2, input));
}

/* Where element s of an update of `size` goes along the axis: write index + s, round and round when
 * `circular`; of the update's rank, 1 on the other axes but the batch's. */
static struct mgpu_value *write_places(struct mgpu_lower *l, const struct mgpu_value *update,
                                       int64_t axis, int64_t limit, bool circular)
{
    struct mgpu_dim dims[MGPU_MAX_RANK], batch[MGPU_MAX_RANK];
    int64_t size = update->dims[axis].value;
    double *count = MGPU_NEW_ARRAY(l->g->arena, double, size);
    for (int64_t i = 0; i < size; i++)
        count[i] = (double)i;
    for (int i = 0; i < update->rank; i++) {
        dims[i] = mgpu_dim_const(i == axis ? size : 1);
        batch[i] = i ? mgpu_dim_const(1) : update->dims[0];
    }
    struct mgpu_value *place = mgpu_lower_numbers(l, MGPU_INT64, update->rank, dims, count);
    struct mgpu_value *first = mgpu_cast(l->g, mgpu_lower_in(l, 2), MGPU_INT64);
    if (first)
        place = mgpu_add(l->g, place, mgpu_reshape(l->g, first, update->rank, batch));
    if (circular)
        place = mgpu_binary(l->g, MGPU_X_MOD, place, mgpu_const_ints(l->g, 1, &limit));
    return mgpu_broadcast(l->g, place, update->rank, update->dims);
}

static int lower_tensor_scatter(struct mgpu_lower *l)
{
    int64_t axis;
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *past = mgpu_lower_in(l, 0), *update = mgpu_lower_in(l, 1);
    const char *mode = mgpu_onnx_string(l->model, l->node, "mode", "linear");
    bool circular = !strcmp(mode, "circular");
    if (strcmp(mode, "linear") && !circular)
        return mgpu_fail(MGPU_EINVALID, "mode '%s'", mode);
    if (past->rank != update->rank)
        return mgpu_fail(MGPU_EINVALID, "ranks %d and %d", past->rank, update->rank);
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", -2), past->rank));
    if (axis == 0)
        return mgpu_fail(MGPU_EINVALID, "axis 0 is the batch");
    struct mgpu_value *places = write_places(l, update, axis, past->dims[axis].value, circular);
    return mgpu_lower_give(
        l, mgpu_scatter_elements(l->g, past, places, update, (int)axis, MGPU_SCATTER_NONE));
}

const struct mgpu_lowering mgpu_lower_gather[] = {
    {"Gather", 1, 0, lower_gather},
    {"GatherElements", 11, 0, lower_gather_elements},
    {"GatherND", 11, 0, lower_gather_nd},
    {"Scatter", 9, 0, lower_scatter_elements},
    {"ScatterElements", 11, 0, lower_scatter_elements},
    {"ScatterND", 11, 0, lower_scatter_nd},
    {"OneHot", 9, 0, lower_one_hot},
    {"Compress", 9, 0, lower_compress},
    {"TensorScatter", 24, 0, lower_tensor_scatter},
    {0},
};
