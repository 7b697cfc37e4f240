/* Convolutions and pools: padding, strides and sizes as the core operators want them. */
#include "importer/lower_walk.h"

#include "runtime/base/status.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/pool.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A sliding window over the spatial axes of x [N,C,S...]. */
struct window {
    int spatial;
    int64_t in[MGPU_MAX_SPATIAL], out[MGPU_MAX_SPATIAL];
    int64_t kernel[MGPU_MAX_SPATIAL], stride[MGPU_MAX_SPATIAL], dilation[MGPU_MAX_SPATIAL];
    int64_t before[MGPU_MAX_SPATIAL], after[MGPU_MAX_SPATIAL];
};

/* ---- Attributes ----------------------------------------------------------------------------- */

static int list(struct mgpu_lower *l, const char *name, int count, int64_t otherwise, int64_t *out)
{
    int have = mgpu_onnx_ints(l->node, name, out, count);
    if (have >= 0 && have != count)
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' has %d elements, not %d", name, have,
                         count);
    for (int i = 0; have < 0 && i < count; i++)
        out[i] = otherwise;
    return have;
}

static int positive(const char *name, int count, const int64_t *values)
{
    for (int i = 0; i < count; i++)
        if (values[i] < 1 || values[i] > INT32_MAX)
            return mgpu_fail(MGPU_EINVALID, "%s %" PRId64 " is out of range", name, values[i]);
    return 0;
}

static int64_t extent(const struct window *w, int i)
{
    return (w->kernel[i] - 1) * w->dilation[i] + 1;
}

static int read_pads(struct mgpu_lower *l, struct window *w)
{
    int64_t pads[2 * MGPU_MAX_SPATIAL];
    int have = list(l, "pads", 2 * w->spatial, 0, pads);
    if (have < -1)
        return have;
    for (int i = 0; i < 2 * w->spatial; i++)
        if (pads[i] > INT32_MAX || pads[i] < -INT32_MAX)
            return mgpu_fail(MGPU_EINVALID, "pad %" PRId64 " is out of range", pads[i]);
    for (int i = 0; i < w->spatial; i++) {
        w->before[i] = pads[i];
        w->after[i] = pads[w->spatial + i];
    }
    return 0;
}

/* Strides, dilations, kernel (from `weight` [O,C,K...] when the attribute is missing), sizes. */
static int read_window(struct mgpu_lower *l, const struct mgpu_value *x,
                       const struct mgpu_value *weight, struct window *w)
{
    *w = (struct window){.spatial = x->rank - 2};
    if (w->spatial < 1 || w->spatial > MGPU_MAX_SPATIAL)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d spatial axes (1 to %d are supported)", w->spatial,
                         MGPU_MAX_SPATIAL);
    if (weight && weight->rank != x->rank)
        return mgpu_fail(MGPU_EINVALID, "the weight has rank %d, the input %d", weight->rank,
                         x->rank);
    int kernel = list(l, "kernel_shape", w->spatial, 0, w->kernel);
    for (int i = 0; i < w->spatial; i++) {
        w->in[i] = x->dims[2 + i].value;
        if (weight && kernel >= 0 && w->kernel[i] != weight->dims[2 + i].value)
            return mgpu_fail(MGPU_EINVALID, "kernel_shape is not the weight's");
        if (weight)
            w->kernel[i] = weight->dims[2 + i].value;
    }
    if (kernel < -1 || list(l, "strides", w->spatial, 1, w->stride) < -1 ||
        list(l, "dilations", w->spatial, 1, w->dilation) < -1)
        return MGPU_EINVALID;
    MGPU_TRY(positive("kernel size", w->spatial, w->kernel));
    MGPU_TRY(positive("stride", w->spatial, w->stride));
    MGPU_TRY(positive("dilation", w->spatial, w->dilation));
    return read_pads(l, w);
}

/* auto_pad over a known total: the odd one goes behind for SAME_UPPER, in front for SAME_LOWER. */
static void share_pad(struct window *w, int i, int64_t total, bool upper)
{
    total = total > 0 ? total : 0;
    w->before[i] = upper ? total / 2 : total - total / 2;
    w->after[i] = total - w->before[i];
}

static int auto_pad(struct mgpu_lower *l, struct window *w, bool *same)
{
    const char *mode = mgpu_onnx_string(l->model, l->node, "auto_pad", "NOTSET");
    bool upper = !strcmp(mode, "SAME_UPPER");
    *same = upper || !strcmp(mode, "SAME_LOWER");
    if (!*same && strcmp(mode, "NOTSET") && strcmp(mode, "VALID"))
        return mgpu_fail(MGPU_EINVALID, "auto_pad '%s'", mode);
    for (int i = 0; i < w->spatial; i++) {
        if (!strcmp(mode, "VALID"))
            w->before[i] = w->after[i] = 0;
        if (!*same)
            continue;
        w->out[i] = (w->in[i] + w->stride[i] - 1) / w->stride[i];
        share_pad(w, i, (w->out[i] - 1) * w->stride[i] + extent(w, i) - w->in[i], upper);
    }
    return 0;
}

/* Sizes of the result. With `ceil`, a last window that reaches past the padding counts when it
 * starts before the padding behind. */
static int output_sizes(struct window *w, bool same, bool ceil_mode)
{
    for (int i = 0; i < w->spatial; i++) {
        int64_t room = w->in[i] + w->before[i] + w->after[i] - extent(w, i);
        if (room < 0)
            return mgpu_fail(MGPU_EINVALID,
                             "a window of %" PRId64 " does not fit %" PRId64 " padded elements",
                             extent(w, i), w->in[i] + w->before[i] + w->after[i]);
        if (same)
            continue;
        w->out[i] = room / w->stride[i] + 1;
        if (ceil_mode && room % w->stride[i] && w->out[i] * w->stride[i] < w->in[i] + w->before[i])
            w->out[i]++;
    }
    return 0;
}

/* ---- Conv ----------------------------------------------------------------------------------- */

/* x padded (or cut, where negative) on its spatial axes by the operator itself. */
static struct mgpu_value *pad_spatial(struct mgpu_lower *l, struct mgpu_value *x,
                                      const struct window *w, const int64_t *before,
                                      const int64_t *after)
{
    struct mgpu_pad_attrs attrs = {.mode = MGPU_PAD_CONSTANT};
    bool any = false;
    for (int i = 0; i < w->spatial; i++) {
        attrs.before[2 + i] = before[i];
        attrs.after[2 + i] = after[i];
        any = any || before[i] || after[i];
    }
    return any ? mgpu_lower_node(l, &mgpu_op_pad, &attrs, 1, &x) : x;
}

/* Core convolutions take no negative pads: those are cut from x first. */
static struct mgpu_value *cut_negative(struct mgpu_lower *l, struct mgpu_value *x, struct window *w)
{
    int64_t before[MGPU_MAX_SPATIAL], after[MGPU_MAX_SPATIAL];
    for (int i = 0; i < w->spatial; i++) {
        before[i] = w->before[i] < 0 ? w->before[i] : 0;
        after[i] = w->after[i] < 0 ? w->after[i] : 0;
        w->before[i] -= before[i];
        w->after[i] -= after[i];
        w->in[i] += before[i] + after[i];
    }
    return pad_spatial(l, x, w, before, after);
}

static struct mgpu_conv_attrs conv_attrs(struct mgpu_lower *l, const struct window *w)
{
    struct mgpu_conv_attrs attrs = {
        .spatial = w->spatial,
        .group = mgpu_onnx_int(l->node, "group", 1),
    };
    for (int i = 0; i < w->spatial; i++) {
        attrs.stride[i] = w->stride[i];
        attrs.dilation[i] = w->dilation[i];
        attrs.before[i] = w->before[i];
        attrs.after[i] = w->after[i];
    }
    return attrs;
}

static int two(struct mgpu_lower *l, struct mgpu_value **x, struct mgpu_value **weight)
{
    *x = mgpu_lower_in(l, 0);
    *weight = mgpu_lower_in(l, 1);
    return *x && *weight ? 0 : mgpu_fail(MGPU_EINVALID, "an input is missing");
}

int mgpu_lower_convolution(struct mgpu_lower *l, struct mgpu_value *x, struct mgpu_value *weight,
                           struct mgpu_value *bias)
{
    struct window w;
    bool same;
    MGPU_TRY(read_window(l, x, weight, &w));
    MGPU_TRY(auto_pad(l, &w, &same));
    x = cut_negative(l, x, &w);
    if (!x)
        return mgpu_build_error();
    MGPU_TRY(output_sizes(&w, same, false));
    struct mgpu_conv_attrs attrs = conv_attrs(l, &w);
    struct mgpu_value *input[] = {x, weight, bias};
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_conv, &attrs, bias ? 3 : 2, input));
}

static int lower_conv(struct mgpu_lower *l)
{
    struct mgpu_value *x, *weight;
    MGPU_TRY(two(l, &x, &weight));
    return mgpu_lower_convolution(l, x, weight, mgpu_lower_in(l, 2));
}

/* ---- ConvTranspose -------------------------------------------------------------------------- */

/* Sizes of the result, and pads where the file gives sizes (or SAME) instead of pads:
 * out = stride*(in-1) + output_padding + extent - before - after. */
static int transposed_sizes(struct mgpu_lower *l, struct window *w)
{
    int64_t extra[MGPU_MAX_SPATIAL], want[MGPU_MAX_SPATIAL];
    const char *mode = mgpu_onnx_string(l->model, l->node, "auto_pad", "NOTSET");
    bool upper = !strcmp(mode, "SAME_UPPER"), same = upper || !strcmp(mode, "SAME_LOWER");
    if (list(l, "output_padding", w->spatial, 0, extra) < -1)
        return MGPU_EINVALID;
    int given = mgpu_onnx_ints(l->node, "output_shape", want, MGPU_MAX_SPATIAL);
    if (given >= 0 && given != w->spatial)
        return mgpu_fail(MGPU_EUNSUPPORTED, "output_shape has %d elements, not %d", given,
                         w->spatial);
    for (int i = 0; i < w->spatial; i++) {
        int64_t full = w->stride[i] * (w->in[i] - 1) + extra[i] + extent(w, i);
        if (!strcmp(mode, "VALID"))
            w->before[i] = w->after[i] = 0;
        if (given >= 0 || same) {
            w->out[i] = given >= 0 ? want[i] : w->in[i] * w->stride[i];
            int64_t total = full - w->out[i];
            int64_t half = (total - (total < 0)) / 2; /* floor */
            w->before[i] = upper ? half : total - half;
            w->after[i] = total - w->before[i];
        }
        w->out[i] = full - w->before[i] - w->after[i];
        if (w->out[i] < 1 || w->out[i] > INT32_MAX)
            return mgpu_fail(MGPU_EINVALID, "the result would have size %" PRId64, w->out[i]);
    }
    return 0;
}

/* A bias [C] as [C,1,1]: to be added to [N,C,S,S]. */
static struct mgpu_value *per_channel(struct mgpu_lower *l, struct mgpu_value *bias, int spatial)
{
    struct mgpu_dim dims[1 + MGPU_MAX_SPATIAL];
    dims[0] = bias->dims[0];
    for (int i = 1; i <= spatial; i++)
        dims[i] = mgpu_dim_const(1);
    return mgpu_reshape(l->g, bias, 1 + spatial, dims);
}

static int lower_conv_transpose(struct mgpu_lower *l)
{
    struct mgpu_value *x, *weight, *bias = mgpu_lower_in(l, 2);
    struct window w;
    int64_t before[MGPU_MAX_SPATIAL], after[MGPU_MAX_SPATIAL];
    MGPU_TRY(two(l, &x, &weight));
    MGPU_TRY(read_window(l, x, weight, &w));
    MGPU_TRY(transposed_sizes(l, &w));
    for (int i = 0; i < w.spatial; i++) { /* what pads cannot say is added around the result */
        int64_t full = w.stride[i] * (w.in[i] - 1) + extent(&w, i);
        before[i] = w.before[i] < 0 ? -w.before[i] : 0;
        w.before[i] += before[i];
        after[i] = w.out[i] - before[i] - (full - w.before[i]);
        after[i] = after[i] > 0 ? after[i] : 0;
        w.after[i] = full - w.before[i] - (w.out[i] - before[i] - after[i]);
    }
    struct mgpu_conv_attrs attrs = conv_attrs(l, &w);
    for (int i = 0; i < w.spatial; i++)
        attrs.size[i] = w.out[i] - before[i] - after[i];
    struct mgpu_value *y =
        mgpu_lower_node(l, &mgpu_op_conv_grad_input, &attrs, 2, (struct mgpu_value *[]){x, weight});
    if (y)
        y = pad_spatial(l, y, &w, before, after);
    if (y && bias)
        y = mgpu_add(l->g, y, per_channel(l, bias, w.spatial));
    return mgpu_lower_give(l, y);
}

/* ---- Pools ---------------------------------------------------------------------------------- */

static int read_pool(struct mgpu_lower *l, struct mgpu_value **x, struct window *w)
{
    bool same;
    *x = mgpu_lower_in(l, 0);
    if (!*x)
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    MGPU_TRY(read_window(l, *x, NULL, w));
    MGPU_TRY(auto_pad(l, w, &same));
    *x = cut_negative(l, *x, w);
    if (!*x)
        return mgpu_build_error();
    return output_sizes(w, same, mgpu_onnx_int(l->node, "ceil_mode", 0));
}

static struct mgpu_pool_attrs pool_attrs(const struct window *w, bool count_include_pad)
{
    struct mgpu_pool_attrs attrs = {.spatial = w->spatial, .count_include_pad = count_include_pad};
    for (int i = 0; i < w->spatial; i++) {
        attrs.kernel[i] = w->kernel[i];
        attrs.stride[i] = w->stride[i];
        attrs.dilation[i] = w->dilation[i];
        attrs.before[i] = w->before[i];
        attrs.after[i] = w->after[i];
        attrs.in[i] = w->in[i];
        attrs.out[i] = w->out[i];
    }
    return attrs;
}

/* Where windows begin in their channel, [1,1,out...]; `stride` steps along each axis of x. */
static struct mgpu_value *window_starts(struct mgpu_lower *l, const struct window *w,
                                        const int64_t *stride)
{
    struct mgpu_dim dims[2 + MGPU_MAX_SPATIAL] = {mgpu_dim_const(1), mgpu_dim_const(1)};
    int64_t count = 1;
    for (int i = 0; i < w->spatial; i++) {
        dims[2 + i] = mgpu_dim_const(w->out[i]);
        count *= w->out[i];
    }
    int64_t *start = MGPU_NEW_ARRAY(l->g->arena, int64_t, count);
    for (int64_t k = 0; k < count; k++)
        for (int64_t rest = k, i = w->spatial - 1; i >= 0; rest /= w->out[i], i--)
            start[k] += (rest % w->out[i] * w->stride[i] - w->before[i]) * stride[i];
    return mgpu_graph_constant(l->g, NULL, MGPU_INT64, 2 + w->spatial, dims, start, NULL);
}

/* Which element of its channel each window found, from its number in the window. */
static struct mgpu_value *places_found(struct mgpu_lower *l, const struct window *w,
                                       struct mgpu_value *argument)
{
    bool columns = mgpu_onnx_int(l->node, "storage_order", 0); /* the first axis runs fastest */
    int64_t stride[MGPU_MAX_SPATIAL], size = 1, below = 1;
    for (int k = 0; k < w->spatial; k++) {
        int i = columns ? k : w->spatial - 1 - k;
        stride[i] = size;
        size *= w->in[i];
    }
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int number = mgpu_expr_cast(&e, MGPU_INT64, mgpu_expr_input(&e, 0, MGPU_INT32));
    int place = mgpu_expr_input(&e, 1, MGPU_INT64);
    for (int i = w->spatial - 1; i >= 0; below *= w->kernel[i], i--) {
        int tap = mgpu_expr_2(&e, MGPU_X_DIV, number, mgpu_expr_integer(&e, MGPU_INT64, below));
        tap = mgpu_expr_2(&e, MGPU_X_MOD, tap, mgpu_expr_integer(&e, MGPU_INT64, w->kernel[i]));
        int step = mgpu_expr_integer(&e, MGPU_INT64, w->dilation[i] * stride[i]);
        place = mgpu_expr_2(&e, MGPU_X_ADD, place, mgpu_expr_2(&e, MGPU_X_MUL, tap, step));
    }
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, place, l->g->arena), 2,
                          (struct mgpu_value *[]){argument, window_starts(l, w, stride)});
}

/* Places in their channels as indices into the whole tensor. */
static struct mgpu_value *over_batch(struct mgpu_lower *l, const struct window *w,
                                     struct mgpu_value *place)
{
    struct mgpu_dim dims[2 + MGPU_MAX_SPATIAL];
    int64_t size = 1;
    if (!place)
        return NULL;
    for (int i = 0; i < w->spatial; i++) {
        dims[2 + i] = mgpu_dim_const(1);
        size *= w->in[i];
    }
    dims[0] = place->dims[0];
    dims[1] = place->dims[1];
    int64_t count = dims[0].value * dims[1].value;
    int64_t *first = MGPU_NEW_ARRAY(l->g->arena, int64_t, count);
    for (int64_t i = 0; i < count; i++)
        first[i] = i * size;
    struct mgpu_value *channel =
        mgpu_graph_constant(l->g, NULL, MGPU_INT64, 2 + w->spatial, dims, first, NULL);
    channel->tainted = mgpu_dim_has(dims[0], MGPU_BATCH);
    return mgpu_add(l->g, place, channel);
}

static int lower_max_pool(struct mgpu_lower *l)
{
    struct mgpu_value *x, *out[2], *place;
    struct window w;
    MGPU_TRY(read_pool(l, &x, &w));
    struct mgpu_pool_attrs attrs = pool_attrs(&w, false);
    if (!mgpu_lower_wants(l, 1))
        return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_max_pool, &attrs, 1, &x));
    if (x != mgpu_lower_in(l, 0))
        return mgpu_fail(MGPU_EUNSUPPORTED, "indices beside negative pads are not supported");
    MGPU_TRY(mgpu_graph_node(l->g, &mgpu_op_max_pool, &attrs, 1, &x, 2, out));
    place = places_found(l, &w, out[1]);
    l->out[0] = out[0];
    l->out[1] = over_batch(l, &w, place);
    if (l->out[1] && !mgpu_onnx_int(l->node, "storage_order", 0))
        mgpu_names_set(l->walk->places, l->node->output[1], place);
    return l->out[1] ? 0 : mgpu_build_error();
}

static int lower_average_pool(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct window w;
    MGPU_TRY(read_pool(l, &x, &w));
    struct mgpu_pool_attrs attrs = pool_attrs(&w, mgpu_onnx_int(l->node, "count_include_pad", 0));
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_average_pool, &attrs, 1, &x));
}

/* (sum |x|^p)^(1/p); p = 2 without a logarithm. */
static struct mgpu_value *power(struct mgpu_lower *l, struct mgpu_value *x, double p)
{
    struct mgpu_expr e;
    if (!x)
        return NULL;
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, x->type);
    int y = mgpu_expr_2(&e, MGPU_X_POW, a, mgpu_expr_number(&e, x->type, p));
    if (p < 1) { /* a root: at 0 its gradient is 0, not infinite */
        int zero = mgpu_expr_number(&e, x->type, 0), none = mgpu_expr_2(&e, MGPU_X_EQ, a, zero);
        int safe = mgpu_expr_where(&e, none, mgpu_expr_number(&e, x->type, 1), a);
        y = mgpu_expr_2(&e, MGPU_X_POW, safe, mgpu_expr_number(&e, x->type, p));
        y = mgpu_expr_where(&e, none, zero, y);
    }
    return y == a ? x : mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &x);
}

static double norm_order(const struct mgpu_lower *l)
{
    return mgpu_onnx_attribute(l->node, "p") && l->node->opset < 2
               ? mgpu_onnx_float(l->node, "p", 2)
               : (double)mgpu_onnx_int(l->node, "p", 2);
}

/* An average over windows that are padded with zeros by hand, times the window's size. */
static int lower_lp_pool(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct window w;
    double p = norm_order(l), size = 1;
    MGPU_TRY(read_pool(l, &x, &w));
    for (int i = 0; i < w.spatial; i++) {
        int64_t covered = (w.out[i] - 1) * w.stride[i] + extent(&w, i);
        w.after[i] = covered > w.in[i] + w.before[i] ? covered - w.in[i] - w.before[i] : 0;
        size *= (double)w.kernel[i];
    }
    x = pad_spatial(l, power(l, mgpu_unary(l->g, MGPU_X_ABS, x), p), &w, w.before, w.after);
    for (int i = 0; i < w.spatial; i++) {
        w.in[i] += w.before[i] + w.after[i];
        w.before[i] = w.after[i] = 0;
    }
    struct mgpu_pool_attrs attrs = pool_attrs(&w, true);
    struct mgpu_value *y = mgpu_lower_node(l, &mgpu_op_average_pool, &attrs, 1, &x);
    return mgpu_lower_give(l, power(l, mgpu_affine(l->g, y, size, 0), 1 / p));
}

static int global(struct mgpu_lower *l, struct mgpu_value **x, unsigned *axes)
{
    *x = mgpu_lower_in(l, 0);
    if (!*x || (*x)->rank < 2)
        return mgpu_fail(MGPU_EINVALID, "the input has rank %d", *x ? (*x)->rank : 0);
    *axes = ((1u << (*x)->rank) - 1) & ~3u;
    return 0;
}

static int lower_global_average(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    MGPU_TRY(global(l, &x, &axes));
    return mgpu_lower_give(l, mgpu_reduce(l->g, MGPU_REDUCE_MEAN, x, axes, true));
}

/* A window over the whole image, so that the first of equal elements gets the gradient. */
static int lower_global_max(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    MGPU_TRY(global(l, &x, &axes));
    struct window w = {.spatial = x->rank - 2};
    bool fits = w.spatial > 0 && w.spatial <= MGPU_MAX_SPATIAL;
    for (int i = 0; fits && i < w.spatial; i++) {
        w.in[i] = w.kernel[i] = x->dims[2 + i].value;
        w.out[i] = w.stride[i] = w.dilation[i] = 1;
        fits = w.in[i] > 0 && mgpu_dim_is_const(x->dims[2 + i]);
    }
    struct mgpu_pool_attrs attrs = pool_attrs(&w, false);
    if (fits)
        return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_max_pool, &attrs, 1, &x));
    return mgpu_lower_give(l, mgpu_reduce(l->g, MGPU_REDUCE_MAX, x, axes, true));
}

static int lower_global_lp(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    unsigned axes;
    double p = norm_order(l);
    MGPU_TRY(global(l, &x, &axes));
    x = power(l, mgpu_unary(l->g, MGPU_X_ABS, x), p);
    return mgpu_lower_give(l, power(l, mgpu_reduce(l->g, MGPU_REDUCE_SUM, x, axes, true), 1 / p));
}

const struct mgpu_lowering mgpu_lower_conv[] = {
    {"Conv", 1, 0, lower_conv},
    {"ConvTranspose", 1, 0, lower_conv_transpose},
    {"MaxPool", 1, 0, lower_max_pool},
    {"AveragePool", 1, 0, lower_average_pool},
    {"LpPool", 1, 0, lower_lp_pool},
    {"GlobalAveragePool", 1, 0, lower_global_average},
    {"GlobalMaxPool", 1, 0, lower_global_max},
    {"GlobalLpPool", 1, 0, lower_global_lp},
    {0},
};
