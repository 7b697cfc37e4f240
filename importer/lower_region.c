/* Parts of an image: columns back to an image, unpooling, a convolution that looks where it is
 * told. */
#include "importer/lower_points.h"
#include "importer/lower_walk.h"

#include "runtime/base/status.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <stdlib.h>

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
    MGPU_TRY(mgpu_lower_need(l, 3));
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
    MGPU_TRY(mgpu_lower_need(l, 2));
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

/* ---- DeformConv ----------------------------------------------------------------------------- */

struct deform {
    struct mgpu_value *x, *weight, *offset, *mask;
    int64_t pads[4], stride[2], dilation[2], groups, shifts; /* groups of weights, of offsets */
    int64_t kernel[2], out[2];
};

static int read_deform(struct mgpu_lower *l, struct deform *d)
{
    MGPU_TRY(mgpu_lower_need(l, 3));
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
    struct mgpu_points p = {.y = shifted(l, d, 0),
                            .x = shifted(l, d, 1),
                            .height = d->x->dims[2].value,
                            .width = d->x->dims[3].value};
    struct mgpu_value *rows = as_rows(l, d), *sum = NULL, *mask = NULL;
    if (d->mask && p.y)
        mask = mgpu_reshape(l->g, d->mask, 3, p.y->dims);
    if (!p.y || !rows || (d->mask && !mask))
        return NULL;
    for (int corner = 0; corner < 4; corner++) {
        struct mgpu_value *weight = mgpu_points_weight(l, &p, corner);
        if (mask)
            weight = mgpu_mul(l->g, weight, mask);
        struct mgpu_value *v =
            mgpu_gather_nd(l->g, rows, mgpu_lower_open(l, mgpu_points_place(l, &p, corner)), 1);
        v = mgpu_mul(l->g, v, mgpu_lower_open(l, weight)); /* [N*G,K,L,C/G] */
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

const struct mgpu_lowering mgpu_lower_region[] = {
    {"Col2Im", 18, 0, lower_col2im},
    {"MaxUnpool", 9, 0, lower_max_unpool},
    {"DeformConv", 19, 0, lower_deform_conv},
    {0},
};
