/* Reductions and order along axes. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/sort.h"

#include <inttypes.h>
#include <string.h>

/* The axes of a Reduce: none listed means all, or none with noop_with_empty_axes. */
static int reduced(struct mgpu_lower *l, struct mgpu_value **x, unsigned *axes, bool *keep)
{
    MGPU_TRY(mgpu_lower_first(l, x));
    bool noop = mgpu_onnx_int(l->node, "noop_with_empty_axes", 0);
    unsigned all = (1u << (*x)->rank) - 1;
    *keep = mgpu_onnx_int(l->node, "keepdims", 1);
    return mgpu_lower_axes(l, 1, (*x)->rank, noop ? 0 : all, axes);
}

static int plain(struct mgpu_lower *l, enum mgpu_reduce_kind kind)
{
    struct mgpu_value *x;
    unsigned axes;
    bool keep;
    MGPU_TRY(reduced(l, &x, &axes, &keep));
    bool truth = x->type == MGPU_BOOL; /* opset 20: max and min of bools */
    struct mgpu_value *y = truth ? mgpu_cast(l->g, x, MGPU_UINT8) : x;
    y = mgpu_reduce(l->g, kind, y, axes, keep);
    return mgpu_lower_give(l, truth ? mgpu_cast(l->g, y, MGPU_BOOL) : y);
}

static int lower_sum(struct mgpu_lower *l)
{
    return plain(l, MGPU_REDUCE_SUM);
}

static int lower_mean(struct mgpu_lower *l)
{
    return plain(l, MGPU_REDUCE_MEAN);
}

static int lower_max(struct mgpu_lower *l)
{
    return plain(l, MGPU_REDUCE_MAX);
}

static int lower_min(struct mgpu_lower *l)
{
    return plain(l, MGPU_REDUCE_MIN);
}

static int lower_prod(struct mgpu_lower *l)
{
    return plain(l, MGPU_REDUCE_PROD);
}

static struct mgpu_value *sum_of(struct mgpu_lower *l, struct mgpu_value *x, unsigned axes,
                                 bool keep)
{
    return mgpu_reduce(l->g, MGPU_REDUCE_SUM, x, axes, keep);
}

static int lower_l1(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    bool keep;
    MGPU_TRY(reduced(l, &x, &axes, &keep));
    return mgpu_lower_give(l, sum_of(l, mgpu_unary(l->g, MGPU_X_ABS, x), axes, keep));
}

static int lower_sum_square(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    bool keep;
    MGPU_TRY(reduced(l, &x, &axes, &keep));
    return mgpu_lower_give(l, sum_of(l, mgpu_mul(l->g, x, x), axes, keep));
}

/* Of a sum of squares; where it is 0 the gradient is 0, not infinite. */
static struct mgpu_value *norm_of(struct mgpu_lower *l, struct mgpu_value *s)
{
    struct mgpu_expr e;
    if (!s)
        return NULL;
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, s->type), zero = mgpu_expr_number(&e, s->type, 0);
    int none = mgpu_expr_2(&e, MGPU_X_EQ, a, zero);
    int safe = mgpu_expr_where(&e, none, mgpu_expr_number(&e, s->type, 1), a);
    int y = mgpu_expr_where(&e, none, zero, mgpu_expr_1(&e, MGPU_X_SQRT, safe));
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &s);
}

static int lower_l2(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    bool keep;
    MGPU_TRY(reduced(l, &x, &axes, &keep));
    enum mgpu_dtype type = mgpu_is_float(x->type) ? x->type : MGPU_DOUBLE;
    struct mgpu_value *y = mgpu_cast(l->g, x, type);
    y = norm_of(l, sum_of(l, mgpu_mul(l->g, y, y), axes, keep));
    return mgpu_lower_give(l, mgpu_cast(l->g, y, x->type));
}

static int lower_log_sum(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    bool keep;
    MGPU_TRY(reduced(l, &x, &axes, &keep));
    return mgpu_lower_give(l, mgpu_unary(l->g, MGPU_X_LOG, sum_of(l, x, axes, keep)));
}

/* m + log(sum(exp(x - m))) with m = max(x), which is a constant to the gradient. An infinite m is
 * taken as 0, so that it does not meet another infinity. */
static int lower_log_sum_exp(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    bool keep;
    MGPU_TRY(reduced(l, &x, &axes, &keep));
    if (!axes)
        return mgpu_lower_give(l, x);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, x->type);
    int finite =
        mgpu_expr_where(&e, mgpu_expr_1(&e, MGPU_X_ISINF, a), mgpu_expr_number(&e, x->type, 0), a);
    int stopped = mgpu_expr_1(&e, MGPU_X_STOP, finite);
    struct mgpu_value *m = mgpu_reduce(l->g, MGPU_REDUCE_MAX, x, axes, true);
    m = mgpu_pointwise(l->g, mgpu_expr_end(&e, stopped, l->g->arena), 1, &m);
    struct mgpu_value *y = mgpu_unary(l->g, MGPU_X_EXP, mgpu_sub(l->g, x, m));
    y = mgpu_unary(l->g, MGPU_X_LOG, sum_of(l, y, axes, true));
    y = mgpu_add(l->g, y, m);
    return mgpu_lower_give(l, keep ? y : mgpu_reduce(l->g, MGPU_REDUCE_SUM, y, axes, false));
}

static int arg(struct mgpu_lower *l, bool min)
{
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    struct mgpu_arg_reduce_attrs attrs = {
        .keep = mgpu_onnx_int(l->node, "keepdims", 1),
        .min = min,
        .last = mgpu_onnx_int(l->node, "select_last_index", 0),
    };
    MGPU_TRY(mgpu_lower_axis(&attrs.axis, mgpu_onnx_int(l->node, "axis", 0), x->rank));
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_arg_reduce, &attrs, 1, &x));
}

static int lower_arg_max(struct mgpu_lower *l)
{
    return arg(l, false);
}

static int lower_arg_min(struct mgpu_lower *l)
{
    return arg(l, true);
}

/* 1 at the first largest along the axis; before opset 13 over all axes from `axis` on. */
static int lower_hardmax(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    int64_t axis;
    bool flat = l->node->opset < 13;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", flat ? 1 : -1), x->rank));
    struct mgpu_value *y = flat ? mgpu_lower_flatten(l, x, (int)axis) : x;
    if (!y)
        return mgpu_build_error();
    axis = flat ? 1 : axis;
    struct mgpu_arg_reduce_attrs attrs = {.axis = axis, .keep = true};
    struct mgpu_value *best = mgpu_lower_node(l, &mgpu_op_arg_reduce, &attrs, 1, &y);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int64_t size = y->dims[axis].value, *place = MGPU_NEW_ARRAY(l->g->arena, int64_t, size);
    for (int64_t i = 0; i < size; i++)
        place[i] = i;
    for (int i = 0; i < y->rank; i++)
        dims[i] = i == axis ? y->dims[i] : mgpu_dim_const(1);
    struct mgpu_value *places =
        mgpu_graph_constant(l->g, NULL, MGPU_INT64, y->rank, dims, place, NULL);
    y = mgpu_cast(l->g, mgpu_binary(l->g, MGPU_X_EQ, best, places), x->type);
    return mgpu_lower_give(l, mgpu_reshape(l->g, y, x->rank, x->dims));
}

static int lower_cumsum(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct mgpu_cumsum_attrs attrs = {
        .exclusive = mgpu_onnx_int(l->node, "exclusive", 0),
        .reverse = mgpu_onnx_int(l->node, "reverse", 0),
    };
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_int(l, 1, &attrs.axis, NULL));
    MGPU_TRY(mgpu_lower_axis(&attrs.axis, attrs.axis, x->rank));
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_cumsum, &attrs, 1, &x));
}

/* x moved by `places` along the axis (from the end when negative), ones in front. */
static struct mgpu_value *moved(struct mgpu_lower *l, struct mgpu_value *x, int64_t axis,
                                int64_t places)
{
    struct mgpu_pad_attrs attrs = {.mode = MGPU_PAD_CONSTANT};
    if (!x)
        return NULL;
    attrs.before[axis] = places;
    attrs.after[axis] = -places;
    struct mgpu_value *input[] = {x, mgpu_const_double(l->g, x->type, 1)};
    return mgpu_lower_node(l, &mgpu_op_pad, &attrs, 2, input);
}

/* Products of 1, 2, 4, 8 ... neighbours: exact for zeros too, and so is the gradient. */
static int lower_cumprod(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    int64_t axis, sign = mgpu_onnx_int(l->node, "reverse", 0) ? -1 : 1;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_int(l, 1, &axis, NULL));
    MGPU_TRY(mgpu_lower_axis(&axis, axis, x->rank));
    int64_t size = x->dims[axis].value;
    if (mgpu_dim_has(x->dims[axis], MGPU_BATCH))
        return mgpu_fail(MGPU_EUNSUPPORTED, "products over the batch are not supported");
    if (mgpu_onnx_int(l->node, "exclusive", 0) && size)
        x = moved(l, x, axis, sign);
    for (int64_t places = 1; places < size; places *= 2)
        x = mgpu_mul(l->g, x, moved(l, x, axis, sign * places));
    return mgpu_lower_give(l, x);
}

static int lower_topk(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct mgpu_topk_attrs attrs = {
        .k = mgpu_onnx_int(l->node, "k", 0),
        .smallest = !mgpu_onnx_int(l->node, "largest", 1),
    };
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_axis(&attrs.axis, mgpu_onnx_int(l->node, "axis", -1), x->rank));
    if (mgpu_lower_in(l, 1))
        MGPU_TRY(mgpu_lower_int(l, 1, &attrs.k, NULL));
    return mgpu_graph_node(l->g, &mgpu_op_topk, &attrs, 1, &x, 2, l->out);
}

const struct mgpu_lowering mgpu_lower_reduce[] = {
    {"ReduceSum", 1, 0, lower_sum},
    {"ReduceMean", 1, 0, lower_mean},
    {"ReduceMax", 1, 0, lower_max},
    {"ReduceMin", 1, 0, lower_min},
    {"ReduceProd", 1, 0, lower_prod},
    {"ReduceL1", 1, 0, lower_l1},
    {"ReduceL2", 1, 0, lower_l2},
    {"ReduceSumSquare", 1, 0, lower_sum_square},
    {"ReduceLogSum", 1, 0, lower_log_sum},
    {"ReduceLogSumExp", 1, 0, lower_log_sum_exp},
    {"ArgMax", 1, 0, lower_arg_max},
    {"ArgMin", 1, 0, lower_arg_min},
    {"Hardmax", 1, 0, lower_hardmax},
    {"CumSum", 11, 0, lower_cumsum},
    {"CumProd", 26, 0, lower_cumprod},
    {"TopK", 1, 0, lower_topk},
    {0},
};
