/* Images: Resize and Upsample, DepthToSpace, SpaceToDepth. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/resize.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static int choose(struct mgpu_lower *l, const char *name, const char *otherwise, int count,
                  const char *const *names, int *out)
{
    const char *text = mgpu_onnx_string(l->model, l->node, name, otherwise);
    for (int i = 0; i < count; i++)
        if (!strcmp(text, names[i])) {
            *out = i;
            return 0;
        }
    return mgpu_fail(MGPU_EUNSUPPORTED, "%s '%s' is not supported", name, text);
}

/* ---- Resize --------------------------------------------------------------------------------- */

struct resize {
    struct mgpu_resize_attrs attrs;
    struct mgpu_dim out[MGPU_MAX_RANK];
    int axes; /* the axes that scales, sizes and roi list */
    int64_t axis[MGPU_MAX_RANK];
};

static int read_modes(struct mgpu_lower *l, struct resize *r)
{
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    static const char *const coordinates[] = {
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
        "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"};
    static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                          "ceil"};
    const char *mode = mgpu_onnx_string(l->model, l->node, "mode", "nearest");
    bool old = l->node->opset < 11; /* no choice then */
    if (!strcmp(mode, "bilinear") && l->node->opset < 7)
        r->attrs.mode = MGPU_RESIZE_LINEAR;
    else
        MGPU_TRY(choose(l, "mode", "nearest", 3, modes, &r->attrs.mode));
    MGPU_TRY(choose(l, "coordinate_transformation_mode", old ? "asymmetric" : "half_pixel", 7,
                    coordinates, &r->attrs.coordinates));
    MGPU_TRY(choose(l, "nearest_mode", old ? "floor" : "round_prefer_floor", 4, nearest,
                    &r->attrs.nearest));
    r->attrs.exclude_outside = mgpu_onnx_int(l->node, "exclude_outside", 0);
    r->attrs.antialias = mgpu_onnx_int(l->node, "antialias", 0);
    r->attrs.cubic_a = mgpu_onnx_float(l->node, "cubic_coeff_a", -0.75);
    r->attrs.extrapolation = mgpu_onnx_float(l->node, "extrapolation_value", 0);
    return 0;
}

static int read_axes(struct mgpu_lower *l, const struct mgpu_value *x, struct resize *r)
{
    int count = mgpu_onnx_ints(l->node, "axes", r->axis, MGPU_MAX_RANK);
    if (count > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EINVALID, "%d axes", count);
    r->axes = count < 0 ? x->rank : count;
    for (int i = 0; i < r->axes; i++)
        MGPU_TRY(mgpu_lower_axis(&r->axis[i], count < 0 ? i : r->axis[i], x->rank));
    for (int i = 0; i < x->rank; i++) {
        r->out[i] = x->dims[i];
        r->attrs.scale[i] = 1;
        r->attrs.roi_end[i] = 1;
    }
    return 0;
}

static int set_size(struct resize *r, const struct mgpu_value *x, int64_t axis, double scale,
                    struct mgpu_dim size)
{
    bool empty = x->dims[axis].value == 0 && size.value == 0; /* stays so, whatever the scale */
    if (empty)
        scale = 1;
    if (!(scale > 0) || size.value < !empty || size.value > INT32_MAX)
        return mgpu_fail(MGPU_EINVALID, "axis %" PRId64 " of size %" PRId64 " times %g", axis,
                         x->dims[axis].value, scale);
    r->attrs.scale[axis] = scale;
    r->out[axis] = size.value == x->dims[axis].value ? mgpu_lower_same(x->dims[axis], size) : size;
    return 0;
}

/* out = floor(in * scale), in float as other runtimes do. The standard stretches corners by in *
 * scale; PyTorch, whose scale it is, by out. */
static int use_scales(const struct mgpu_lower *l, const struct mgpu_value *x, struct resize *r,
                      int count, const double *scale)
{
    bool exact = l->model->producer == MGPU_PRODUCER_PYTORCH &&
                 r->attrs.coordinates == MGPU_RESIZE_ALIGN_CORNERS;
    if (count != r->axes)
        return mgpu_fail(MGPU_EINVALID, "%d scales for %d axes", count, r->axes);
    for (int i = 0; i < count; i++) {
        double size = (double)floorf((float)x->dims[r->axis[i]].value * (float)scale[i]);
        int64_t whole = size >= 0 && size < 1e15 ? (int64_t)size : 0;
        double stretch = (double)whole / (double)x->dims[r->axis[i]].value;
        MGPU_TRY(set_size(r, x, r->axis[i], exact ? stretch : scale[i], mgpu_dim_const(whole)));
    }
    return 0;
}

/* Sizes that keep the proportions: the smallest (or largest) scale for all listed axes. */
static double common_scale(const struct mgpu_value *x, const struct resize *r, const int64_t *size,
                           bool larger)
{
    double scale = 0;
    for (int i = 0; i < r->axes; i++) {
        double s = (double)size[i] / (double)x->dims[r->axis[i]].value;
        scale = i == 0 || (larger ? s > scale : s < scale) ? s : scale;
    }
    return scale;
}

static int use_sizes(struct mgpu_lower *l, const struct mgpu_value *x, struct resize *r)
{
    static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
    int64_t size[MGPU_MAX_RANK];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int policy = 0, count = mgpu_lower_ints(l, 3, size, dims, MGPU_MAX_RANK);
    MGPU_TRY(count);
    if (count != r->axes)
        return mgpu_fail(MGPU_EINVALID, "%d sizes for %d axes", count, r->axes);
    MGPU_TRY(choose(l, "keep_aspect_ratio_policy", "stretch", 3, policies, &policy));
    for (int i = 0; i < count; i++) {
        double in = (double)x->dims[r->axis[i]].value, scale = (double)size[i] / in;
        if (policy) {
            scale = common_scale(x, r, size, policy == 2);
            dims[i] = mgpu_dim_const((int64_t)floor(scale * in + 0.5));
        }
        MGPU_TRY(set_size(r, x, r->axis[i], scale, dims[i]));
    }
    return 0;
}

static int read_roi(struct mgpu_lower *l, struct resize *r)
{
    double roi[2 * MGPU_MAX_RANK];
    if (r->attrs.coordinates != MGPU_RESIZE_TF_CROP_AND_RESIZE)
        return 0;
    int count = mgpu_lower_doubles(l, 1, roi, 2 * MGPU_MAX_RANK);
    MGPU_TRY(count);
    if (count != 2 * r->axes)
        return mgpu_fail(MGPU_EINVALID, "roi has %d elements for %d axes", count, r->axes);
    for (int i = 0; i < r->axes; i++) {
        r->attrs.roi_start[r->axis[i]] = roi[i];
        r->attrs.roi_end[r->axis[i]] = roi[r->axes + i];
    }
    return 0;
}

/* Scales as an attribute (Upsample 1 and 7) or as an input; absent or empty: sizes say it. */
static int read_scales(struct mgpu_lower *l, int *count, double *scale)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(l->node, "scales", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS);
    int input = l->node->opset < 11 || !strcmp(l->node->type, "Upsample") ? 1 : 2;
    if (mgpu_onnx_attribute(l->node, "height_scale")) {
        scale[0] = scale[1] = 1;
        scale[2] = mgpu_onnx_float(l->node, "height_scale", 1);
        scale[3] = mgpu_onnx_float(l->node, "width_scale", 1);
        *count = 4;
    } else if (a) {
        *count = a->n_floats > MGPU_MAX_RANK ? MGPU_MAX_RANK + 1 : (int)a->n_floats;
        for (int i = 0; i < *count && i < MGPU_MAX_RANK; i++)
            scale[i] = (double)a->floats[i];
    } else if (mgpu_lower_in(l, input))
        MGPU_TRY(*count = mgpu_lower_doubles(l, input, scale, MGPU_MAX_RANK));
    return 0;
}

static int lower_resize(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct resize r = {0};
    double scale[MGPU_MAX_RANK];
    int scales = 0;
    MGPU_TRY(mgpu_lower_first(l, &x));
    MGPU_TRY(read_modes(l, &r));
    MGPU_TRY(read_axes(l, x, &r));
    MGPU_TRY(read_scales(l, &scales, scale));
    MGPU_TRY(scales ? use_scales(l, x, &r, scales, scale) : use_sizes(l, x, &r));
    MGPU_TRY(read_roi(l, &r));
    if (mgpu_dims_same(x->rank, x->dims, r.out) &&
        r.attrs.coordinates != MGPU_RESIZE_TF_CROP_AND_RESIZE)
        return mgpu_lower_give(l, x);
    r.attrs.rank = x->rank;
    r.attrs.in = mgpu_dims_copy(l->g, x->rank, x->dims);
    r.attrs.out = mgpu_dims_copy(l->g, x->rank, r.out);
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_resize, &r.attrs, 1, &x));
}

/* ---- Blocks --------------------------------------------------------------------------------- */

/* x [N,C,H,W] through a shape of rank 6 and a permutation to a shape of rank 4. */
static int blocks(struct mgpu_lower *l, struct mgpu_value *x, const struct mgpu_dim *middle,
                  const int *perm, const struct mgpu_dim *out)
{
    x = mgpu_transpose(l->g, mgpu_reshape(l->g, x, 6, middle), perm);
    return mgpu_lower_give(l, mgpu_reshape(l->g, x, 4, out));
}

static int read_blocks(struct mgpu_lower *l, struct mgpu_value **x, struct mgpu_dim *size)
{
    MGPU_TRY(mgpu_lower_first(l, x));
    *size = mgpu_dim_const(mgpu_onnx_int(l->node, "blocksize", 0));
    if ((*x)->rank != 4 || size->value < 1 || size->value > 1 << 15)
        return mgpu_fail(MGPU_EINVALID, "blocksize %" PRId64 " for rank %d", size->value,
                         (*x)->rank);
    return 0;
}

static int lower_depth_to_space(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct mgpu_dim b;
    MGPU_TRY(read_blocks(l, &x, &b));
    bool crd = !strcmp(mgpu_onnx_string(l->model, l->node, "mode", "DCR"), "CRD");
    if (x->dims[1].value % (b.value * b.value))
        return mgpu_fail(MGPU_EINVALID, "blocksize %" PRId64 " does not divide the channels",
                         b.value);
    struct mgpu_dim c = mgpu_dim_div(x->dims[1], mgpu_dim_mul(b, b));
    struct mgpu_dim dcr_dims[] = {x->dims[0], b, b, c, x->dims[2], x->dims[3]};
    struct mgpu_dim crd_dims[] = {x->dims[0], c, b, b, x->dims[2], x->dims[3]};
    struct mgpu_dim out[] = {x->dims[0], c, mgpu_dim_mul(x->dims[2], b),
                             mgpu_dim_mul(x->dims[3], b)};
    return crd ? blocks(l, x, crd_dims, (int[]){0, 1, 4, 2, 5, 3}, out)
               : blocks(l, x, dcr_dims, (int[]){0, 3, 4, 1, 5, 2}, out);
}

static int lower_space_to_depth(struct mgpu_lower *l)
{
    struct mgpu_value *x;
    struct mgpu_dim b;
    MGPU_TRY(read_blocks(l, &x, &b));
    if (x->dims[2].value % b.value || x->dims[3].value % b.value)
        return mgpu_fail(MGPU_EINVALID, "blocksize %" PRId64 " does not divide the image", b.value);
    struct mgpu_dim h = mgpu_dim_div(x->dims[2], b), w = mgpu_dim_div(x->dims[3], b);
    struct mgpu_dim middle[] = {x->dims[0], x->dims[1], h, b, w, b};
    struct mgpu_dim out[] = {x->dims[0], mgpu_dim_mul(x->dims[1], mgpu_dim_mul(b, b)), h, w};
    return blocks(l, x, middle, (int[]){0, 3, 5, 1, 2, 4}, out);
}

const struct mgpu_lowering mgpu_lower_image[] = {
    {"Resize", 10, 0, lower_resize},
    {"Upsample", 1, 0, lower_resize},
    {"DepthToSpace", 1, 0, lower_depth_to_space},
    {"SpaceToDepth", 1, 0, lower_space_to_depth},
    {"GridSample", 16, 0, mgpu_lower_grid_sample},
    {"AffineGrid", 20, 0, mgpu_lower_affine_grid},
    {0},
};
