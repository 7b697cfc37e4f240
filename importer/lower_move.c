/* Parts of tensors: Slice, Split, Concat, Pad. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Slice ---------------------------------------------------------------------------------- */

/* What is cut from each axis. */
struct cut {
    int64_t start[MGPU_MAX_RANK], step[MGPU_MAX_RANK];
    struct mgpu_dim size[MGPU_MAX_RANK];
};

/* A bound counted from the end where negative, and held within [low, high]. */
static struct mgpu_dim bound(struct mgpu_dim at, struct mgpu_dim size, int64_t low,
                             struct mgpu_dim high)
{
    if (at.value < 0 && at.value >= -size.value)
        at = mgpu_dim_add(at, size);
    else if (at.value < 0)
        return mgpu_dim_const(low);
    if (at.value < low)
        return mgpu_dim_const(low);
    return at.value >= high.value ? high : at;
}

/* One axis of size `size`. A whole axis keeps where its size comes from. */
static int cut_axis(struct cut *cut, int axis, struct mgpu_dim size, struct mgpu_dim start,
                    struct mgpu_dim end, int64_t step)
{
    if (step == 0)
        return mgpu_fail(MGPU_EINVALID, "a step is 0");
    step = step < -INT64_MAX ? -INT64_MAX : step;
    bool back = step < 0;
    struct mgpu_dim last = mgpu_dim_add(size, mgpu_dim_const(-1));
    start = bound(start, size, 0, back ? last : size);
    end = bound(end, size, back ? -1 : 0, back ? last : size);
    struct mgpu_dim span = mgpu_dim_add(back ? start : end, mgpu_dim_neg(back ? end : start));
    int64_t stride = back ? -step : step;
    int64_t count = span.value <= 0 ? 0 : (span.value - 1) / stride + 1;
    cut->start[axis] = size.value ? start.value : 0;
    cut->step[axis] = step;
    if (count == size.value)
        cut->size[axis] = size;
    else if (stride == 1 && count)
        cut->size[axis] = span;
    else
        cut->size[axis] = mgpu_dim_lost(count, span, span);
    return 0;
}

/* Lists of a Slice: attributes before opset 10, inputs after. */
struct bounds {
    int count;
    int64_t start[MGPU_MAX_RANK], end[MGPU_MAX_RANK], axis[MGPU_MAX_RANK], step[MGPU_MAX_RANK];
    struct mgpu_dim from[MGPU_MAX_RANK], to[MGPU_MAX_RANK];
};

static int read_bounds(struct mgpu_lower *l, struct bounds *b)
{
    int most = MGPU_MAX_RANK;
    b->count = mgpu_lower_list(l, "starts", 1, b->start, b->from, most);
    int ends = mgpu_lower_list(l, "ends", 2, b->end, b->to, most);
    if (b->count == MGPU_LOWER_ABSENT || ends == MGPU_LOWER_ABSENT)
        return mgpu_fail(MGPU_EINVALID, "starts or ends are missing");
    MGPU_TRY(b->count);
    MGPU_TRY(ends);
    for (int i = 0; i < b->count; i++) {
        b->axis[i] = i;
        b->step[i] = 1;
    }
    int axes = mgpu_lower_list(l, "axes", 3, b->axis, NULL, most);
    int steps = mgpu_lower_list(l, "steps", 4, b->step, NULL, most);
    if ((axes < 0 && axes != MGPU_LOWER_ABSENT) || (steps < 0 && steps != MGPU_LOWER_ABSENT))
        return axes < 0 && axes != MGPU_LOWER_ABSENT ? axes : steps;
    if (ends != b->count || (axes >= 0 && axes != b->count) || (steps >= 0 && steps != b->count))
        return mgpu_fail(MGPU_EINVALID, "starts, ends, axes and steps differ in length");
    return 0;
}

static int lower_slice(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct bounds b;
    struct cut cut;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(read_bounds(l, &b));
    for (int i = 0; i < x->rank; i++) {
        cut.start[i] = 0;
        cut.step[i] = 1;
        cut.size[i] = x->dims[i];
    }
    for (int i = 0; i < b.count; i++) {
        int64_t axis;
        MGPU_TRY(mgpu_lower_axis(&axis, b.axis[i], x->rank));
        MGPU_TRY(cut_axis(&cut, (int)axis, x->dims[axis], b.from[i], b.to[i], b.step[i]));
    }
    return mgpu_lower_give(l, mgpu_slice(l->g, x, cut.start, cut.step, cut.size));
}

/* ---- Split ---------------------------------------------------------------------------------- */

/* Sizes of the parts when the file gives none: equal ones, the last smaller. */
static int equal_parts(struct mgpu_dim size, int count, struct mgpu_dim *part)
{
    struct mgpu_dim each = mgpu_dim_div(size, mgpu_dim_const(count));
    if (each.value * count != size.value)
        each = mgpu_dim_const(each.value + 1);
    for (int i = 0; i < count - 1; i++)
        part[i] = each;
    part[count - 1] = each.value * count == size.value
                          ? each
                          : mgpu_dim_const(size.value - each.value * (count - 1));
    return part[count - 1].value < 0 ? mgpu_fail(MGPU_EINVALID, "too many parts") : 0;
}

static int lower_split(struct mgpu_lower *l)
{
    enum { MOST = sizeof l->out / sizeof *l->out };
    struct mgpu_value *x;
    int64_t axis, sizes[MOST], at = 0;
    struct mgpu_dim part[MOST];
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", 0), x->rank));
    if (l->node->outputs < 1 || l->node->outputs > MOST)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d parts (1 to %d are supported)", l->node->outputs,
                         MOST);
    int count = mgpu_lower_list(l, "split", 1, sizes, part, MOST);
    if (count == MGPU_LOWER_ABSENT) {
        count = l->node->outputs;
        MGPU_TRY(equal_parts(x->dims[axis], count, part));
    }
    MGPU_TRY(count);
    if (count < l->node->outputs)
        return mgpu_fail(MGPU_EINVALID, "%d sizes for %d outputs", count, l->node->outputs);
    for (int i = 0; i < l->node->outputs; at += part[i++].value) {
        if (part[i].value < 0 || at > x->dims[axis].value - part[i].value)
            return mgpu_fail(MGPU_EINVALID, "part %d reaches past the axis of size %" PRId64, i,
                             x->dims[axis].value);
        l->out[i] = mgpu_slice_axis(l->g, x, (int)axis, at, part[i]);
        if (!l->out[i])
            return mgpu_build_error();
    }
    return 0;
}

/* ---- Concat --------------------------------------------------------------------------------- */

static int lower_concat(struct mgpu_lower *l)
{
    struct mgpu_value *first;
    int64_t axis;
    MGPU_TRY(mgpu_lower_first(l, &first));
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", 1), first->rank));
    struct mgpu_value **part = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, l->node->inputs);
    for (int i = 0; i < l->node->inputs; i++)
        if (!(part[i] = mgpu_lower_in(l, i)))
            return mgpu_fail(MGPU_EINVALID, "input %d is missing", i);
    return mgpu_lower_give(l, mgpu_concat(l->g, (int)axis, l->node->inputs, part));
}

/* ---- Pad ------------------------------------------------------------------------------------ */

static int pad_mode(struct mgpu_lower *l, int *out)
{
    static const char *const names[] = {"constant", "reflect", "edge", "wrap"};
    const char *mode = mgpu_onnx_string(l->model, l->node, "mode", "constant");
    for (int i = 0; i < 4; i++)
        if (!strcmp(mode, names[i])) {
            *out = i;
            return 0;
        }
    return mgpu_fail(MGPU_EUNSUPPORTED, "mode '%s' is not supported", mode);
}

/* Begins then ends, for all axes or (opset 18) for those that input 3 lists. */
static int read_pads(struct mgpu_lower *l, int rank, struct mgpu_pad_attrs *attrs)
{
    int64_t pads[2 * MGPU_MAX_RANK], axes[MGPU_MAX_RANK];
    const char *name = l->node->opset < 2 ? "paddings" : "pads";
    int most = 2 * MGPU_MAX_RANK, listed = rank;
    int count = mgpu_lower_list(l, name, 1, pads, NULL, most);
    if (count == MGPU_LOWER_ABSENT)
        return mgpu_fail(MGPU_EINVALID, "there are no pads");
    MGPU_TRY(count);
    for (int i = 0; i < rank; i++)
        axes[i] = i;
    if (mgpu_lower_in(l, 3))
        MGPU_TRY(listed = mgpu_lower_ints(l, 3, axes, NULL, MGPU_MAX_RANK));
    if (count != 2 * listed)
        return mgpu_fail(MGPU_EINVALID, "%d pads for %d axes", count, listed);
    for (int i = 0; i < listed; i++) {
        MGPU_TRY(mgpu_lower_axis(&axes[i], axes[i], rank));
        attrs->before[axes[i]] = pads[i];
        attrs->after[axes[i]] = pads[listed + i];
    }
    return 0;
}

static struct mgpu_value *pad_value(struct mgpu_lower *l, const struct mgpu_value *x)
{
    struct mgpu_value *value = mgpu_lower_in(l, 2);
    if (value)
        return mgpu_cast(l->g, mgpu_lower_scalar(l, value), x->type);
    double number = mgpu_onnx_float(l->node, "value", 0);
    return mgpu_const_double(l->g, x->type, number);
}

static int lower_pad(struct mgpu_lower *l)
{
    struct mgpu_pad_attrs attrs = {0};
    struct mgpu_value *x;
    bool any = false;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(pad_mode(l, &attrs.mode));
    MGPU_TRY(read_pads(l, x->rank, &attrs));
    for (int i = 0; i < x->rank; i++)
        any = any || attrs.before[i] || attrs.after[i];
    if (!any)
        return mgpu_lower_give(l, x);
    struct mgpu_value *input[2] = {x, attrs.mode == MGPU_PAD_CONSTANT ? pad_value(l, x) : NULL};
    int inputs = attrs.mode == MGPU_PAD_CONSTANT ? 2 : 1;
    if (inputs == 2 && !input[1])
        return mgpu_build_error();
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_pad, &attrs, inputs, input));
}

/* Each listed axis is cut or padded around its middle to a size. */
static int lower_center_crop_pad(struct mgpu_lower *l)
{
    struct mgpu_pad_attrs attrs = {.mode = MGPU_PAD_CONSTANT};
    int64_t sizes[MGPU_MAX_RANK], axes[MGPU_MAX_RANK];
    struct mgpu_value *x;
    MGPU_TRY(mgpu_lower_first(l, &x));
    int count = mgpu_lower_ints(l, 1, sizes, NULL, MGPU_MAX_RANK);
    MGPU_TRY(count);
    for (int i = 0; i < x->rank; i++)
        axes[i] = i;
    int listed = mgpu_onnx_ints(l->node, "axes", axes, MGPU_MAX_RANK);
    if (count != (listed < 0 ? x->rank : listed))
        return mgpu_fail(MGPU_EINVALID, "%d sizes for %d axes", count, listed);
    for (int i = 0; i < count; i++) {
        MGPU_TRY(mgpu_lower_axis(&axes[i], axes[i], x->rank));
        int64_t more = sizes[i] - x->dims[axes[i]].value;
        attrs.before[axes[i]] = more < 0 ? -(-more / 2) : more / 2;
        attrs.after[axes[i]] = more - attrs.before[axes[i]];
    }
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_pad, &attrs, 1, &x));
}

/* ---- ReverseSequence ------------------------------------------------------------------------- */

/* The places along the time axis, as int64 with x's rank. */
static struct mgpu_value *places(struct mgpu_lower *l, const struct mgpu_value *x, int axis)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int64_t size = x->dims[axis].value, *place = MGPU_NEW_ARRAY(l->g->arena, int64_t, size);
    for (int64_t i = 0; i < size; i++)
        place[i] = i;
    for (int i = 0; i < x->rank; i++)
        dims[i] = i == axis ? x->dims[i] : mgpu_dim_const(1);
    return mgpu_graph_constant(l->g, NULL, MGPU_INT64, x->rank, dims, place, NULL);
}

/* y[t] = x[t < length ? length - 1 - t : t], gathered element by element. */
static int lower_reverse_sequence(struct mgpu_lower *l)
{
    struct mgpu_value *x, *lengths = mgpu_lower_in(l, 1);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int64_t time, batch;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(mgpu_lower_axis(&time, mgpu_onnx_int(l->node, "time_axis", 0), x->rank));
    MGPU_TRY(mgpu_lower_axis(&batch, mgpu_onnx_int(l->node, "batch_axis", 1), x->rank));
    if (!lengths || lengths->rank != 1 || time == batch)
        return mgpu_fail(MGPU_EINVALID, "axes or lengths are wrong");
    for (int i = 0; i < x->rank; i++)
        dims[i] = i == batch ? lengths->dims[0] : mgpu_dim_const(1);
    lengths = mgpu_reshape(l->g, mgpu_cast(l->g, lengths, MGPU_INT64), x->rank, dims);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int t = mgpu_expr_input(&e, 0, MGPU_INT64), n = mgpu_expr_input(&e, 1, MGPU_INT64);
    int back = mgpu_expr_2(&e, MGPU_X_SUB, n, mgpu_expr_integer(&e, MGPU_INT64, 1));
    int y = mgpu_expr_where(&e, mgpu_expr_2(&e, MGPU_X_LT, t, n),
                            mgpu_expr_2(&e, MGPU_X_SUB, back, t), t);
    struct mgpu_value *index =
        mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 2,
                       (struct mgpu_value *[]){places(l, x, (int)time), lengths});
    index = mgpu_broadcast(l->g, index, x->rank, x->dims);
    struct mgpu_gather_attrs attrs = {.axis = time};
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_gather_elements, &attrs, 2,
                                              (struct mgpu_value *[]){x, index}));
}

const struct mgpu_lowering mgpu_lower_move[] = {
    {"Slice", 1, 0, lower_slice},
    {"Split", 1, 0, lower_split},
    {"Concat", 1, 0, lower_concat},
    {"Pad", 1, 0, lower_pad},
    {"CenterCropPad", 18, 0, lower_center_crop_pad},
    {"ReverseSequence", 10, 0, lower_reverse_sequence},
    {0},
};
