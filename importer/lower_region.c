/* Regions of an image: columns back to an image, unpooling, sampling at points between elements. */
#include "importer/lower_walk.h"

#include "runtime/base/status.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int need(struct mgpu_lower *l, int count)
{
    for (int i = 0; i < count; i++)
        if (!mgpu_lower_in(l, i))
            return mgpu_fail(MGPU_EINVALID, "input %d is missing", i);
    return 0;
}

/* An attribute of `count` integers, each `otherwise` when it is absent. */
static int list(struct mgpu_lower *l, const char *name, int count, int64_t otherwise, int64_t *out)
{
    int have = mgpu_onnx_ints(l->node, name, out, count);
    if (have >= 0 && have != count)
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' has %d elements, not %d", name, have,
                         count);
    for (int i = 0; i < count; i++) {
        out[i] = have < 0 ? otherwise : out[i];
        if (out[i] < 0 || out[i] > INT32_MAX)
            return mgpu_fail(MGPU_EINVALID, "%s %" PRId64 " is out of range", name, out[i]);
    }
    return 0;
}

/* ---- Col2Im --------------------------------------------------------------------------------- */

enum { MOST_PLACES = 1 << 26 };

/* A kernel for each channel and place in the block, with a one at that place: [C*K,1,K...]. */
static struct mgpu_value *places(struct mgpu_lower *l, enum mgpu_dtype type, int64_t channels,
                                 int spatial, const int64_t *block)
{
    struct mgpu_dim dims[2 + MGPU_MAX_SPATIAL];
    int64_t size = 1;
    for (int i = 0; i < spatial; i++) {
        dims[2 + i] = mgpu_dim_const(block[i]);
        size *= block[i];
    }
    dims[0] = mgpu_dim_const(channels * size);
    dims[1] = mgpu_dim_const(1);
    double *ones = mgpu_xcalloc((size_t)(channels * size * size), sizeof *ones);
    for (int64_t i = 0; i < channels * size; i++)
        ones[i * size + i % size] = 1;
    struct mgpu_value *w = mgpu_lower_numbers(l, type, 2 + spatial, dims, ones);
    free(ones);
    return w;
}

/* Blocks [N,C*K,L] laid over an image and added where they overlap: a transposed convolution whose
 * weight says where in its block each element goes. */
static int lower_col2im(struct mgpu_lower *l)
{
    int64_t image[MGPU_MAX_SPATIAL], block[MGPU_MAX_SPATIAL], pads[2 * MGPU_MAX_SPATIAL];
    struct mgpu_dim dims[2 + MGPU_MAX_SPATIAL];
    struct mgpu_conv_attrs attrs = {0};
    int64_t size = 1, blocks = 1;
    MGPU_TRY(need(l, 3));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    int spatial = mgpu_lower_ints(l, 1, image, NULL, MGPU_MAX_SPATIAL);
    MGPU_TRY(spatial);
    if (mgpu_lower_ints(l, 2, block, NULL, MGPU_MAX_SPATIAL) != spatial || !spatial || x->rank != 3)
        return mgpu_fail(MGPU_EINVALID, "%d sizes of the image, input of rank %d", spatial,
                         x->rank);
    MGPU_TRY(list(l, "pads", 2 * spatial, 0, pads));
    MGPU_TRY(list(l, "strides", spatial, 1, attrs.stride));
    MGPU_TRY(list(l, "dilations", spatial, 1, attrs.dilation));
    for (int i = 0; i < spatial; i++) {
        bool sane = image[i] > 0 && image[i] <= INT32_MAX && block[i] > 0 && block[i] <= 1 << 10;
        int64_t extent = sane ? attrs.dilation[i] * (block[i] - 1) + 1 : 0;
        int64_t room = sane ? image[i] + pads[i] + pads[spatial + i] - extent : -1;
        if (attrs.stride[i] < 1 || room < 0)
            return mgpu_fail(MGPU_EINVALID, "a block of %" PRId64 " in an image of %" PRId64,
                             block[i], image[i]);
        attrs.before[i] = pads[i];
        attrs.after[i] = pads[spatial + i];
        attrs.size[i] = image[i];
        dims[2 + i] = mgpu_dim_const(room / attrs.stride[i] + 1);
        size *= block[i];
        blocks *= dims[2 + i].value;
    }
    if (x->dims[1].value % size || x->dims[2].value != blocks ||
        x->dims[1].value > MOST_PLACES / size)
        return mgpu_fail(MGPU_EINVALID,
                         "%" PRId64 " blocks of %" PRId64 " elements do not fit the input", blocks,
                         size);
    attrs.spatial = spatial;
    attrs.group = x->dims[1].value / size;
    dims[0] = x->dims[0];
    dims[1] = x->dims[1];
    struct mgpu_value *input[] = {mgpu_reshape(l->g, x, 2 + spatial, dims),
                                  places(l, x->type, attrs.group, spatial, block)};
    if (!input[0] || !input[1])
        return mgpu_build_error();
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_conv_grad_input, &attrs, 2, input));
}

/* ---- MaxUnpool ------------------------------------------------------------------------------ */

/* The place within its channel that an index over the whole tensor means, [N,C,L]: what MaxPool
 * kept of it, so that it does not depend on the place in the batch, or the rest. */
static struct mgpu_value *place_in_channel(struct mgpu_lower *l, struct mgpu_dim size,
                                           const struct mgpu_dim *dims)
{
    struct mgpu_value *index = mgpu_names_get(l->walk->places, l->node->input[1]);
    if (!index) {
        index = mgpu_cast(l->g, mgpu_lower_in(l, 1), MGPU_INT64);
        index = mgpu_binary(l->g, MGPU_X_MOD, index, mgpu_const_ints(l->g, 1, &size.value));
    }
    return mgpu_reshape(l->g, index, 3, dims);
}

/* Sizes without padding behind: (in - 1) * stride + kernel - pads. */
static int unpooled_sizes(struct mgpu_lower *l, const struct mgpu_value *x, struct mgpu_dim *dims)
{
    int64_t kernel[MGPU_MAX_SPATIAL], stride[MGPU_MAX_SPATIAL], pads[2 * MGPU_MAX_SPATIAL];
    int spatial = x->rank - 2;
    MGPU_TRY(list(l, "kernel_shape", spatial, 1, kernel));
    MGPU_TRY(list(l, "strides", spatial, 1, stride));
    MGPU_TRY(list(l, "pads", 2 * spatial, 0, pads));
    dims[0] = x->dims[0];
    dims[1] = x->dims[1];
    for (int i = 0; i < spatial; i++) {
        int64_t in = x->dims[2 + i].value, size = 0;
        if (in > 0 && in <= INT32_MAX)
            size = (in - 1) * stride[i] + kernel[i] - pads[i] - pads[spatial + i];
        if (size < 1 || size > INT32_MAX)
            return mgpu_fail(MGPU_EINVALID, "the result would have size %" PRId64, size);
        dims[2 + i] = mgpu_dim_const(size);
    }
    return 0;
}

/* Zeros behind (or a cut), up to the sizes that input 2 gives. */
static int pad_to_shape(struct mgpu_lower *l, struct mgpu_value **y)
{
    int64_t size[MGPU_MAX_RANK];
    struct mgpu_pad_attrs attrs = {.mode = MGPU_PAD_CONSTANT};
    if (!mgpu_lower_in(l, 2) || !*y)
        return 0;
    int count = mgpu_lower_ints(l, 2, size, NULL, MGPU_MAX_RANK);
    MGPU_TRY(count);
    if (count != (*y)->rank)
        return mgpu_fail(MGPU_EINVALID, "output_shape has %d elements, not %d", count, (*y)->rank);
    for (int i = 2; i < count; i++)
        attrs.after[i] = size[i] - (*y)->dims[i].value;
    *y = mgpu_lower_node(l, &mgpu_op_pad, &attrs, 1, y);
    return 0;
}

static int lower_max_unpool(struct mgpu_lower *l)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(need(l, 2));
    struct mgpu_value *x = mgpu_lower_in(l, 0), *index = mgpu_lower_in(l, 1);
    if (x->rank < 3 || x->rank > 2 + MGPU_MAX_SPATIAL || index->rank != x->rank)
        return mgpu_fail(MGPU_EINVALID, "input of rank %d, indices of rank %d", x->rank,
                         index->rank);
    MGPU_TRY(unpooled_sizes(l, x, dims));
    struct mgpu_dim from[] = {x->dims[0], x->dims[1], mgpu_dims_product(x->rank - 2, x->dims + 2)};
    struct mgpu_dim to[] = {x->dims[0], x->dims[1], mgpu_dims_product(x->rank - 2, dims + 2)};
    struct mgpu_value *places = place_in_channel(l, to[2], from);
    struct mgpu_value *zero = mgpu_const_double(l->g, x->type, 0);
    struct mgpu_value *y =
        mgpu_scatter_elements(l->g, mgpu_broadcast(l->g, zero, 3, to), places,
                              mgpu_reshape(l->g, x, 3, from), 2, MGPU_SCATTER_NONE);
    y = mgpu_reshape(l->g, y, x->rank, dims);
    MGPU_TRY(pad_to_shape(l, &y));
    return mgpu_lower_give(l, y);
}

/* ---- Between elements ------------------------------------------------------------------------ */

/* Points (y, x) of an image of H x W, in elements from the centre of the first; their shapes
 * broadcast. The value at a point is the sum over the four elements around it. */
struct points {
    struct mgpu_value *y, *x;
    int64_t height, width;
};

/* Element `near` (0 below, 1 above) along one axis: *place clamped into it, *weight 0 outside. */
static void neighbour(struct mgpu_expr *e, int at, int near, int64_t size, int *place, int *weight)
{
    enum mgpu_dtype type = e->op[at].type;
    int zero = mgpu_expr_number(e, type, 0), last = mgpu_expr_number(e, type, (double)size - 1);
    int below = mgpu_expr_1(e, MGPU_X_FLOOR, at), share = mgpu_expr_2(e, MGPU_X_SUB, at, below);
    if (!near)
        share = mgpu_expr_2(e, MGPU_X_SUB, mgpu_expr_number(e, type, 1), share);
    int here = mgpu_expr_2(e, MGPU_X_ADD, below, mgpu_expr_number(e, type, near));
    int inside = mgpu_expr_2(e, MGPU_X_AND, mgpu_expr_2(e, MGPU_X_LE, zero, here),
                             mgpu_expr_2(e, MGPU_X_LE, here, last));
    *weight = mgpu_expr_where(e, inside, share, zero);
    here = mgpu_expr_2(e, MGPU_X_MIN, mgpu_expr_2(e, MGPU_X_MAX, here, zero), last);
    *place = mgpu_expr_cast(e, MGPU_INT64, here);
}

static struct mgpu_value *of_points(struct mgpu_lower *l, const struct points *p, int corner,
                                    bool weight)
{
    struct mgpu_expr e;
    int place[2], share[2];
    if (!p->y || !p->x)
        return NULL;
    mgpu_expr_begin(&e, 2);
    int y = mgpu_expr_input(&e, 0, p->y->type), x = mgpu_expr_input(&e, 1, p->x->type);
    neighbour(&e, y, corner / 2, p->height, &place[0], &share[0]);
    neighbour(&e, x, corner % 2, p->width, &place[1], &share[1]);
    int row = mgpu_expr_2(&e, MGPU_X_MUL, place[0], mgpu_expr_integer(&e, MGPU_INT64, p->width));
    int result = weight ? mgpu_expr_2(&e, MGPU_X_MUL, share[0], share[1])
                        : mgpu_expr_2(&e, MGPU_X_ADD, row, place[1]);
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, result, l->g->arena), 2,
                          (struct mgpu_value *[]){p->y, p->x});
}

/* The place of corner 0..3 in the image, row-major, int64; what it counts for. */
static struct mgpu_value *corner_place(struct mgpu_lower *l, const struct points *p, int corner)
{
    return of_points(l, p, corner, false);
}

static struct mgpu_value *corner_weight(struct mgpu_lower *l, const struct points *p, int corner)
{
    return of_points(l, p, corner, true);
}

/* `v` with an axis of size 1 at the end. */
static struct mgpu_value *open(struct mgpu_lower *l, struct mgpu_value *v)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!v)
        return NULL;
    for (int i = 0; i < v->rank; i++)
        dims[i] = v->dims[i];
    dims[v->rank] = mgpu_dim_const(1);
    return mgpu_reshape(l->g, v, v->rank + 1, dims);
}

/* ---- DeformConv ----------------------------------------------------------------------------- */

struct deform {
    struct mgpu_value *x, *weight, *offset, *mask;
    int64_t pads[4], stride[2], dilation[2], groups, shifts; /* groups of weights, of offsets */
    int64_t kernel[2], out[2];
};

static int read_deform(struct mgpu_lower *l, struct deform *d)
{
    MGPU_TRY(need(l, 3));
    d->x = mgpu_lower_in(l, 0);
    d->weight = mgpu_lower_in(l, 1);
    d->offset = mgpu_lower_in(l, 2);
    d->mask = mgpu_lower_in(l, 4);
    if (d->x->rank != 4)
        return mgpu_fail(MGPU_EUNSUPPORTED, "the input has rank %d; only 4 is supported",
                         d->x->rank);
    if (d->weight->rank != 4 || d->offset->rank != 4)
        return mgpu_fail(MGPU_EINVALID, "weight and offset must have rank 4");
    MGPU_TRY(list(l, "pads", 4, 0, d->pads));
    MGPU_TRY(list(l, "strides", 2, 1, d->stride));
    MGPU_TRY(list(l, "dilations", 2, 1, d->dilation));
    d->groups = mgpu_onnx_int(l->node, "group", 1);
    d->shifts = mgpu_onnx_int(l->node, "offset_group", 1);
    int64_t channels = d->x->dims[1].value, size = 1;
    for (int i = 0; i < 2; i++) {
        d->kernel[i] = d->weight->dims[2 + i].value;
        d->out[i] = d->offset->dims[2 + i].value;
        size *= d->kernel[i];
        if (d->kernel[i] < 1 || d->kernel[i] > 1 << 15)
            return mgpu_fail(MGPU_EINVALID, "a kernel of %" PRId64, d->kernel[i]);
        int64_t room = d->x->dims[2 + i].value + d->pads[i] + d->pads[2 + i] -
                       d->dilation[i] * (d->kernel[i] - 1) - 1;
        if (d->stride[i] < 1 || room < 0 || room / d->stride[i] + 1 != d->out[i])
            return mgpu_fail(MGPU_EINVALID, "the offsets' size %" PRId64 " is not the result's",
                             d->out[i]);
    }
    if (d->groups < 1 || d->shifts < 1 || channels % d->groups || channels % d->shifts ||
        d->weight->dims[1].value != channels / d->groups || d->weight->dims[0].value % d->groups ||
        d->offset->dims[1].value != 2 * d->shifts * size ||
        (d->mask && d->mask->dims[1].value != d->shifts * size))
        return mgpu_fail(MGPU_EINVALID, "channels, groups, offsets and mask do not fit together");
    return 0;
}

/* Where the undeformed kernel looks along an axis (0: rows), [1,K,L]. */
static struct mgpu_value *grid(struct mgpu_lower *l, const struct deform *d, int axis)
{
    int64_t size = d->kernel[0] * d->kernel[1], area = d->out[0] * d->out[1];
    struct mgpu_dim dims[] = {mgpu_dim_const(1), mgpu_dim_const(size), mgpu_dim_const(area)};
    double *at = mgpu_xcalloc((size_t)(size * area) + 1, sizeof *at);
    for (int64_t k = 0; k < size; k++)
        for (int64_t i = 0; i < area; i++) {
            int64_t tap = axis ? k % d->kernel[1] : k / d->kernel[1];
            int64_t out = axis ? i % d->out[1] : i / d->out[1];
            at[k * area + i] =
                (double)(out * d->stride[axis] - d->pads[axis] + tap * d->dilation[axis]);
        }
    struct mgpu_value *v = mgpu_lower_numbers(l, d->x->type, 3, dims, at);
    free(at);
    return v;
}

/* Where it looks with the offsets [N,2*G*K,h,w], as [N*G,K,L]. */
static struct mgpu_value *shifted(struct mgpu_lower *l, const struct deform *d, int axis)
{
    struct mgpu_dim n = mgpu_dim_mul(d->x->dims[0], mgpu_dim_const(d->shifts));
    struct mgpu_dim size = mgpu_dim_const(d->kernel[0] * d->kernel[1]);
    struct mgpu_dim area = mgpu_dim_const(d->out[0] * d->out[1]);
    struct mgpu_dim split[] = {n, size, mgpu_dim_const(2), area}, one[] = {n, size, area};
    struct mgpu_value *v = mgpu_reshape(l->g, d->offset, 4, split);
    v = mgpu_reshape(l->g, mgpu_slice_axis(l->g, v, 2, axis, mgpu_dim_const(1)), 3, one);
    return mgpu_add(l->g, v, grid(l, d, axis));
}

/* x as rows of one group's channels at each place: [N*G,H*W,C/G]. */
static struct mgpu_value *as_rows(struct mgpu_lower *l, const struct deform *d)
{
    const struct mgpu_dim *x = d->x->dims;
    struct mgpu_dim dims[] = {mgpu_dim_mul(x[0], mgpu_dim_const(d->shifts)),
                              mgpu_dim_const(x[1].value / d->shifts), mgpu_dim_mul(x[2], x[3])};
    return mgpu_transpose(l->g, mgpu_reshape(l->g, d->x, 3, dims), (int[]){0, 2, 1});
}

/* What the kernel sees of x: [N,C,K,L]. */
static struct mgpu_value *sampled(struct mgpu_lower *l, const struct deform *d)
{
    struct points p = {.y = shifted(l, d, 0),
                       .x = shifted(l, d, 1),
                       .height = d->x->dims[2].value,
                       .width = d->x->dims[3].value};
    struct mgpu_value *rows = as_rows(l, d), *sum = NULL, *mask = NULL;
    if (d->mask && p.y)
        mask = mgpu_reshape(l->g, d->mask, 3, p.y->dims);
    if (!p.y || !rows || (d->mask && !mask))
        return NULL;
    for (int corner = 0; corner < 4; corner++) {
        struct mgpu_value *weight = corner_weight(l, &p, corner);
        if (mask)
            weight = mgpu_mul(l->g, weight, mask);
        struct mgpu_value *v = mgpu_gather_nd(l->g, rows, open(l, corner_place(l, &p, corner)), 1);
        v = mgpu_mul(l->g, v, open(l, weight)); /* [N*G,K,L,C/G] */
        sum = corner ? mgpu_add(l->g, sum, v) : v;
    }
    struct mgpu_dim dims[] = {d->x->dims[0], d->x->dims[1], p.y->dims[1], p.y->dims[2]};
    return mgpu_reshape(l->g, mgpu_transpose(l->g, sum, (int[]){0, 3, 1, 2}), 4, dims);
}

static int lower_deform_conv(struct mgpu_lower *l)
{
    struct deform d;
    MGPU_TRY(read_deform(l, &d));
    struct mgpu_dim groups = mgpu_dim_const(d.groups);
    struct mgpu_dim in = mgpu_dim_const(mgpu_dims_product(3, d.weight->dims + 1).value);
    struct mgpu_dim each = mgpu_dim_const(d.weight->dims[0].value / d.groups);
    struct mgpu_dim area = mgpu_dim_const(d.out[0] * d.out[1]);
    struct mgpu_dim columns[] = {d.x->dims[0], groups, in, area}, kernel[] = {groups, each, in};
    struct mgpu_dim out[] = {d.x->dims[0], d.weight->dims[0], d.offset->dims[2], d.offset->dims[3]};
    struct mgpu_value *y = mgpu_matmul(l->g, mgpu_reshape(l->g, d.weight, 3, kernel), false,
                                       mgpu_reshape(l->g, sampled(l, &d), 4, columns), false);
    y = mgpu_reshape(l->g, y, 4, out);
    struct mgpu_value *bias = mgpu_lower_in(l, 3);
    if (bias) {
        struct mgpu_dim dims[] = {out[1], mgpu_dim_const(1), mgpu_dim_const(1)};
        y = mgpu_add(l->g, y, mgpu_reshape(l->g, bias, 3, dims));
    }
    return mgpu_lower_give(l, y);
}

/* ---- RoiAlign ------------------------------------------------------------------------------- */

struct align {
    struct mgpu_value *x, *rois, *batch;
    int64_t out[2];  /* bins of a region: rows, columns */
    int64_t grid[2]; /* points of a bin, the most of all regions */
    double *points;  /* by axis and region: points of its bins; NULL: `grid` */
    double scale, shift;
    bool half, max;
};

static int read_align(struct mgpu_lower *l, struct align *a)
{
    bool old = l->node->opset < 16;
    MGPU_TRY(need(l, 3));
    const char *mode = mgpu_onnx_string(l->model, l->node, "mode", "avg");
    *a = (struct align){
        .x = mgpu_lower_in(l, 0),
        .rois = mgpu_lower_in(l, 1),
        .batch = mgpu_lower_in(l, 2),
        .out = {mgpu_onnx_int(l->node, "output_height", 1),
                mgpu_onnx_int(l->node, "output_width", 1)},
        .scale = mgpu_onnx_float(l->node, "spatial_scale", 1),
        .half = !strcmp(mgpu_onnx_string(l->model, l->node, "coordinate_transformation_mode",
                                         old ? "output_half_pixel" : "half_pixel"),
                        "half_pixel"),
        .max = !strcmp(mode, "max"),
    };
    a->shift = a->half ? 0.5 : 0;
    a->grid[0] = a->grid[1] = mgpu_onnx_int(l->node, "sampling_ratio", 0);
    if (a->x->rank != 4 || a->rois->rank != 2 || a->rois->dims[1].value != 4 ||
        a->rois->type != a->x->type || a->batch->rank != 1 ||
        a->batch->dims[0].value != a->rois->dims[0].value)
        return mgpu_fail(MGPU_EINVALID, "image, regions and batch indices do not fit together");
    if (a->out[0] < 1 || a->out[1] < 1 || a->out[0] > 4096 || a->out[1] > 4096 || a->grid[0] < 0 ||
        a->grid[0] > 1024)
        return mgpu_fail(MGPU_EINVALID, "%" PRId64 " by %" PRId64 " bins", a->out[0], a->out[1]);
    return strcmp(mode, "avg") && !a->max ? mgpu_fail(MGPU_EINVALID, "mode '%s'", mode) : 0;
}

/* Without a sampling ratio a bin has as many points as it is large: the regions must be known. */
static int count_points(struct mgpu_lower *l, struct align *a)
{
    int64_t regions = a->rois->dims[0].value;
    if (a->grid[0])
        return 0;
    if (a->rois->kind != MGPU_VALUE_CONSTANT)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "with sampling_ratio 0 the regions '%s' must be constant",
                         l->node->input[1]);
    a->points = MGPU_NEW_ARRAY(l->walk->arena, double, 2 * regions);
    a->grid[0] = a->grid[1] = 1;
    for (int axis = 0; axis < 2; axis++)
        for (int64_t r = 0; r < regions; r++) {
            int64_t low = r * 4 + 1 - axis; /* x1 y1 x2 y2 */
            double size = (mgpu_get_double(a->rois->data, a->rois->type, low + 2) -
                           mgpu_get_double(a->rois->data, a->rois->type, low)) *
                          a->scale;
            size = a->half || size > 1 ? size : 1;
            double points = ceil(size / (double)a->out[axis]);
            points = points > 0 ? points : 0;
            if (!(points <= 1024))
                return mgpu_fail(MGPU_EUNSUPPORTED, "region %" PRId64 " has bins of %g points", r,
                                 points);
            a->points[axis * regions + r] = points;
            a->grid[axis] = points > (double)a->grid[axis] ? (int64_t)points : a->grid[axis];
        }
    return 0;
}

/* A constant 0, 1, ... along axis `axis` of rank 3. */
static struct mgpu_value *counted(struct mgpu_lower *l, enum mgpu_dtype type, int axis,
                                  int64_t count)
{
    struct mgpu_dim dims[] = {mgpu_dim_const(1), mgpu_dim_const(1), mgpu_dim_const(1)};
    double *numbers = MGPU_NEW_ARRAY(l->walk->arena, double, count);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (double)i;
    dims[axis] = mgpu_dim_const(count);
    return mgpu_lower_numbers(l, type, 3, dims, numbers);
}

/* Points of the bins of each region along an axis, [R,1,1]. */
static struct mgpu_value *point_counts(struct mgpu_lower *l, const struct align *a, int axis)
{
    struct mgpu_dim dims[] = {a->rois->dims[0], mgpu_dim_const(1), mgpu_dim_const(1)};
    if (!a->points)
        return mgpu_const_double(l->g, a->x->type, (double)a->grid[axis]);
    return mgpu_lower_numbers(l, a->x->type, 3, dims, a->points + axis * dims[0].value);
}

/* Column `i` of the regions as [R,1,1]. */
static struct mgpu_value *column(struct mgpu_lower *l, const struct align *a, int i)
{
    struct mgpu_dim dims[] = {a->rois->dims[0], mgpu_dim_const(1), mgpu_dim_const(1)};
    return mgpu_reshape(l->g, mgpu_slice_axis(l->g, a->rois, 1, i, mgpu_dim_const(1)), 3, dims);
}

/* Coordinates along an axis, [R,bins,grid]: low + (bin + (point + 1/2) / points) * bin's size;
 * outside [-1, size] they become NaN, then they are clamped. */
static struct mgpu_value *coordinates(struct mgpu_lower *l, const struct align *a, int axis)
{
    enum { LOW, HIGH, BIN, POINT, POINTS, INPUTS };
    enum mgpu_dtype type = a->x->type;
    double size = (double)a->x->dims[2 + axis].value;
    struct mgpu_value *input[INPUTS] = {
        [LOW] = column(l, a, 1 - axis),
        [HIGH] = column(l, a, 3 - axis),
        [BIN] = counted(l, type, 1, a->out[axis]),
        [POINT] = counted(l, type, 2, a->grid[axis]),
        [POINTS] = point_counts(l, a, axis),
    };
    struct mgpu_expr e;
    int in[INPUTS];
    mgpu_expr_begin(&e, INPUTS);
    for (int i = 0; i < INPUTS; i++)
        in[i] = mgpu_expr_input(&e, i, type);
    int scale = mgpu_expr_number(&e, type, a->scale), one = mgpu_expr_number(&e, type, 1);
    int low = mgpu_expr_2(&e, MGPU_X_MUL, in[LOW], scale);
    int extent = mgpu_expr_2(&e, MGPU_X_SUB, mgpu_expr_2(&e, MGPU_X_MUL, in[HIGH], scale), low);
    low = mgpu_expr_2(&e, MGPU_X_SUB, low, mgpu_expr_number(&e, type, a->shift));
    if (!a->half)
        extent = mgpu_expr_2(&e, MGPU_X_MAX, extent, one);
    extent =
        mgpu_expr_2(&e, MGPU_X_MUL, extent, mgpu_expr_number(&e, type, 1 / (double)a->out[axis]));
    int part = mgpu_expr_2(&e, MGPU_X_ADD, in[POINT], mgpu_expr_number(&e, type, 0.5));
    part = mgpu_expr_2(&e, MGPU_X_DIV, part, in[POINTS]);
    part = mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_2(&e, MGPU_X_ADD, in[BIN], part), extent);
    int at = mgpu_expr_2(&e, MGPU_X_ADD, low, part);
    int inside =
        mgpu_expr_2(&e, MGPU_X_AND, mgpu_expr_2(&e, MGPU_X_LE, mgpu_expr_number(&e, type, -1), at),
                    mgpu_expr_2(&e, MGPU_X_LE, at, mgpu_expr_number(&e, type, size)));
    int y = mgpu_expr_2(&e, MGPU_X_MAX, at, mgpu_expr_number(&e, type, 0));
    y = mgpu_expr_2(&e, MGPU_X_MIN, y, mgpu_expr_number(&e, type, size - 1));
    y = mgpu_expr_where(&e, inside, y, mgpu_expr_number(&e, type, NAN));
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), INPUTS, input);
}

/* [R,bins,grid] along an axis as one operand of [R,rows,grid,columns,grid,1]. */
static struct mgpu_value *spread(struct mgpu_lower *l, struct mgpu_value *v, int axis, int rank)
{
    struct mgpu_dim dims[6];
    if (!v)
        return NULL;
    for (int i = 0; i < 6; i++)
        dims[i] = mgpu_dim_const(1);
    dims[0] = v->rank ? v->dims[0] : dims[0];
    for (int i = 1; i < v->rank; i++)
        dims[2 * axis + i] = v->dims[i];
    return mgpu_reshape(l->g, v, rank, dims);
}

/* Whether a point counts: 1 for the first `points` of the grid, along an axis, [R,1,grid]. */
static struct mgpu_value *counts(struct mgpu_lower *l, const struct align *a, int axis)
{
    struct mgpu_value *point = counted(l, a->x->type, 2, a->grid[axis]);
    return mgpu_binary(l->g, MGPU_X_LT, point, point_counts(l, a, axis));
}

/* x as rows [N*H*W,C], and the first row of each region's image, [R,1,1,1,1]. */
static struct mgpu_value *image_rows(struct mgpu_lower *l, const struct align *a,
                                     struct mgpu_value **first)
{
    struct mgpu_dim dims[] = {mgpu_dims_product(1, a->x->dims),
                              mgpu_dim_mul(a->x->dims[2], a->x->dims[3]), a->x->dims[1]};
    struct mgpu_dim flat[] = {mgpu_dim_mul(dims[0], dims[1]), dims[2]};
    struct mgpu_dim ones[5] = {a->batch->dims[0]};
    for (int i = 1; i < 5; i++)
        ones[i] = mgpu_dim_const(1);
    struct mgpu_value *batch = mgpu_cast(l->g, a->batch, MGPU_INT64);
    *first = mgpu_mul(l->g, mgpu_reshape(l->g, batch, 5, ones),
                      mgpu_const_ints(l->g, 1, &dims[1].value));
    return mgpu_reshape(l->g, mgpu_transpose(l->g, a->x, (int[]){0, 2, 3, 1}), 2, flat);
}

/* What corner `corner` gives at each point, [R,rows,grid,columns,grid,C]. */
static struct mgpu_value *corner_value(struct mgpu_lower *l, const struct points *p,
                                       struct mgpu_value *rows, struct mgpu_value *first,
                                       int corner)
{
    struct mgpu_value *place = mgpu_add(l->g, corner_place(l, p, corner), first);
    return mgpu_mul(l->g, mgpu_gather(l->g, rows, place, 0), open(l, corner_weight(l, p, corner)));
}

/* The mean over the points of a bin, or the largest that a corner gives. */
static struct mgpu_value *pooled(struct mgpu_lower *l, const struct align *a,
                                 const struct points *p)
{
    struct mgpu_value *first, *rows = image_rows(l, a, &first), *all = NULL;
    struct mgpu_value *used = mgpu_binary(l->g, MGPU_X_AND, spread(l, counts(l, a, 0), 0, 6),
                                          spread(l, counts(l, a, 1), 1, 6));
    for (int corner = 0; corner < 4; corner++) {
        struct mgpu_value *v = corner_value(l, p, rows, first, corner);
        all = !corner ? v : mgpu_binary(l->g, a->max ? MGPU_X_MAX : MGPU_X_ADD, all, v);
    }
    double otherwise = a->max ? -INFINITY : 0;
    all = mgpu_where(l->g, used, all, mgpu_const_double(l->g, a->x->type, otherwise));
    all = mgpu_reduce(l->g, a->max ? MGPU_REDUCE_MAX : MGPU_REDUCE_SUM, all, 1u << 2 | 1u << 4,
                      false);
    struct mgpu_value *one = mgpu_const_double(l->g, a->x->type, 1);
    struct mgpu_value *count = mgpu_mul(l->g, spread(l, point_counts(l, a, 0), 0, 4),
                                        spread(l, point_counts(l, a, 1), 1, 4));
    if (a->max) /* a region without points */
        return mgpu_where(l->g, mgpu_binary(l->g, MGPU_X_LT, count, one),
                          mgpu_const_double(l->g, a->x->type, 0), all);
    return mgpu_div(l->g, all, mgpu_binary(l->g, MGPU_X_MAX, count, one));
}

static int lower_roi_align(struct mgpu_lower *l)
{
    struct align a;
    MGPU_TRY(read_align(l, &a));
    MGPU_TRY(count_points(l, &a));
    struct points p = {.y = spread(l, coordinates(l, &a, 0), 0, 5),
                       .x = spread(l, coordinates(l, &a, 1), 1, 5),
                       .height = a.x->dims[2].value,
                       .width = a.x->dims[3].value};
    return mgpu_lower_give(l, mgpu_transpose(l->g, pooled(l, &a, &p), (int[]){0, 3, 1, 2}));
}

const struct mgpu_lowering mgpu_lower_region[] = {
    {"Col2Im", 18, 0, lower_col2im},
    {"MaxUnpool", 9, 0, lower_max_unpool},
    {"DeformConv", 19, 0, lower_deform_conv},
    {"RoiAlign", 10, 0, lower_roi_align},
    {0},
};
