/* Records of resize and its transpose resize_grad. */
#include "runtime/ops/resize.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/resize_taps.h"

static int check_axis(const struct mgpu_resize_attrs *a, int axis)
{
    int64_t in = a->in[axis].value, out = a->out[axis].value;
    double length = a->scale[axis] * (double)in;
    bool crop = a->coordinates == MGPU_RESIZE_TF_CROP_AND_RESIZE;
    if (in == 0 && out == 0)
        return 0;
    if (!(a->scale[axis] > 0) || out < 0 || (out > 0 && in == 0))
        return mgpu_fail(MGPU_EINVALID,
                         "resize of axis %d: size %" PRId64 " to %" PRId64 ", scale %g", axis, in,
                         out, a->scale[axis]);
    if (out > 0 && !(length > 0.49 && fabs(length - (double)out) <= 1.001))
        return mgpu_fail(MGPU_EINVALID,
                         "resize of axis %d: size %" PRId64 " and scale %g do not give %" PRId64,
                         axis, in, a->scale[axis], out);
    if (crop && !(isfinite(a->roi_start[axis]) && isfinite(a->roi_end[axis])))
        return mgpu_fail(MGPU_EINVALID, "resize of axis %d: the region is not finite", axis);
    return 0;
}

static int check(const struct mgpu_node *node, const struct mgpu_dim *from)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    const struct mgpu_value *x = node->input[0];
    char text[2][MGPU_SHAPE_TEXT];
    if (x->rank != a->rank || !mgpu_dims_equal(x->rank, x->dims, from))
        return mgpu_fail(MGPU_EINVALID, "%s: %s is not the expected %s", node->op->name,
                         mgpu_dims_text(text[0], x->rank, x->dims),
                         mgpu_dims_text(text[1], (int)a->rank, from));
    if (a->antialias && a->mode == MGPU_RESIZE_NEAREST)
        return mgpu_fail(MGPU_EINVALID, "resize: nearest cannot be antialiased");
    for (int i = 0; i < x->rank; i++)
        MGPU_TRY(check_axis(a, i));
    return 0;
}

static int resize_shape(const struct mgpu_node *node)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    MGPU_TRY(check(node, a->in));
    mgpu_shape_set(node, 0, node->input[0]->type, (int)a->rank, a->out);
    return 0;
}

static int resize_grad_shape(const struct mgpu_node *node)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    MGPU_TRY(check(node, a->out));
    if (!mgpu_is_float(node->input[0]->type))
        return mgpu_fail(MGPU_EINVALID, "resize_grad of %s", mgpu_dtype_name(node->input[0]->type));
    mgpu_shape_set(node, 0, node->input[0]->type, (int)a->rank, a->in);
    return 0;
}

static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_build1(g, &mgpu_op_resize_grad, node->attrs, 1, &dy[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

static int grad_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                         struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_resize_attrs attrs = *(const struct mgpu_resize_attrs *)node->attrs;
    attrs.extrapolation = 0;
    if (!wanted[0] || !dy[0])
        return 0;
    dx[0] = mgpu_build1(g, &mgpu_op_resize, &attrs, 1, &dy[0]);
    return dx[0] ? 0 : mgpu_build_error();
}

/* Axis by axis: a multiply and an add for each tap. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    double taps = a->mode == MGPU_RESIZE_NEAREST ? 0 : a->mode == MGPU_RESIZE_LINEAR ? 2 : 4;
    double flops = 0, larger = fmax((double)mgpu_value_count(node->input[0]),
                                    (double)mgpu_value_count(node->output[0]));
    for (int i = 0; i < a->rank; i++)
        flops += mgpu_resize_is_identity(a, i) ? 0 : 2 * taps * larger;
    return (struct mgpu_cost){.flops = flops, .bytes = mgpu_operand_bytes(node)};
}

/* The samples' axis must not be resized. A sum passes unless a value is filled in around it. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    const struct mgpu_resize_attrs *a = node->attrs;
    bool fills = a->coordinates == MGPU_RESIZE_TF_CROP_AND_RESIZE && a->extrapolation != 0 &&
                 node->op == &mgpu_op_resize;
    out[0] = in[0];
    if (mgpu_split_is_term(in[0]) && fills)
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    if (in[0].kind == MGPU_SPLIT_AXIS && !mgpu_resize_is_identity(a, in[0].axis))
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    return MGPU_SPLIT_OK;
}

static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
static const char *const coordinates[] = {
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
    "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize", NULL};
static const char *const nearests[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil",
                                       NULL};

#define RESIZE(field, which)                                                                       \
    {                                                                                              \
        .name = #field, .kind = which, .offset = offsetof(struct mgpu_resize_attrs, field)         \
    }
#define RESIZE_ENUM(field, list)                                                                   \
    {                                                                                              \
        .name = #field, .kind = MGPU_ATTR_ENUM,                                                    \
        .offset = offsetof(struct mgpu_resize_attrs, field), .names = list                         \
    }

#define RESIZE_FLOATS(field)                                                                       \
    {                                                                                              \
        .name = #field, .kind = MGPU_ATTR_FLOATS,                                                  \
        .offset = offsetof(struct mgpu_resize_attrs, field), .length = MGPU_MAX_RANK               \
    }

static const struct mgpu_attr attrs[] = {RESIZE_ENUM(mode, modes),
                                         RESIZE_ENUM(coordinates, coordinates),
                                         RESIZE_ENUM(nearest, nearests),
                                         RESIZE(exclude_outside, MGPU_ATTR_BOOL),
                                         RESIZE(antialias, MGPU_ATTR_BOOL),
                                         RESIZE(cubic_a, MGPU_ATTR_FLOAT),
                                         RESIZE(extrapolation, MGPU_ATTR_FLOAT),
                                         RESIZE_FLOATS(scale),
                                         RESIZE_FLOATS(roi_start),
                                         RESIZE_FLOATS(roi_end),
                                         RESIZE(rank, MGPU_ATTR_INT),
                                         RESIZE(in, MGPU_ATTR_DIMS),
                                         RESIZE(out, MGPU_ATTR_DIMS),
                                         {0}};

const struct mgpu_op mgpu_op_resize = {
    .name = "resize",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_resize_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = resize_shape,
    .gradient = gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

const struct mgpu_op mgpu_op_resize_grad = {
    .name = "resize_grad",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_resize_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = resize_grad_shape,
    .gradient = grad_gradient,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};
