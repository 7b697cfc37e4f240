/* Regions of interest: RoiAlign, MaxRoiPool. */
#include "importer/lower_points.h"
#include "importer/lower_walk.h"

#include "runtime/base/status.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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
    MGPU_TRY(mgpu_lower_need(l, 3));
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
static struct mgpu_value *corner_value(struct mgpu_lower *l, const struct mgpu_points *p,
                                       struct mgpu_value *rows, struct mgpu_value *first,
                                       int corner)
{
    struct mgpu_value *place = mgpu_add(l->g, mgpu_points_place(l, p, corner), first);
    return mgpu_mul(l->g, mgpu_gather(l->g, rows, place, 0),
                    mgpu_lower_open(l, mgpu_points_weight(l, p, corner)));
}

/* The mean over the points of a bin, or the largest that a corner gives. */
static struct mgpu_value *pooled(struct mgpu_lower *l, const struct align *a,
                                 const struct mgpu_points *p)
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
    struct mgpu_points p = {.y = spread(l, coordinates(l, &a, 0), 0, 5),
                            .x = spread(l, coordinates(l, &a, 1), 1, 5),
                            .height = a.x->dims[2].value,
                            .width = a.x->dims[3].value};
    return mgpu_lower_give(l, mgpu_transpose(l->g, pooled(l, &a, &p), (int[]){0, 3, 1, 2}));
}

/* ---- MaxRoiPool ------------------------------------------------------------------------------ */

/* Regions [batch, x1, y1, x2, y2] in whole elements, both ends inside; bins of whole elements,
 * which may share some. */
struct pool {
    struct mgpu_value *x, *rois;
    int64_t out[2], most[2]; /* bins; the most elements of a bin along an axis */
    double scale;
};

static int read_roi_pool(struct mgpu_lower *l, struct pool *p)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    *p = (struct pool){.x = mgpu_lower_in(l, 0),
                       .rois = mgpu_lower_in(l, 1),
                       .scale = mgpu_onnx_float(l->node, "spatial_scale", 1)};
    if (mgpu_onnx_ints(l->node, "pooled_shape", p->out, 2) != 2 || p->x->rank != 4 ||
        p->rois->rank != 2 || p->rois->dims[1].value != 5 || p->rois->type != p->x->type)
        return mgpu_fail(MGPU_EINVALID, "image, regions and pooled_shape do not fit together");
    for (int axis = 0; axis < 2; axis++) {
        if (p->out[axis] < 1 || p->out[axis] > 4096)
            return mgpu_fail(MGPU_EINVALID, "%" PRId64 " bins", p->out[axis]);
        p->most[axis] = p->x->dims[2 + axis].value; /* a region may reach beyond the image */
    }
    return 0;
}

/* Column `i` of the regions as [R,1,1]. */
static struct mgpu_value *region(struct mgpu_lower *l, const struct pool *p, int i)
{
    struct mgpu_dim dims[] = {p->rois->dims[0], mgpu_dim_const(1), mgpu_dim_const(1)};
    return mgpu_reshape(l->g, mgpu_slice_axis(l->g, p->rois, 1, i, mgpu_dim_const(1)), 3, dims);
}

/* Whether element e of the image's axis is in bin b of the region, [R,bins,size]. */
static struct mgpu_value *inside(struct mgpu_lower *l, const struct pool *p, int axis)
{
    enum mgpu_dtype type = p->x->type;
    struct mgpu_value *input[] = {region(l, p, 2 - axis), region(l, p, 4 - axis),
                                  counted(l, type, 1, p->out[axis]),
                                  counted(l, type, 2, p->most[axis])};
    struct mgpu_expr e;
    int in[4], half;
    mgpu_expr_begin(&e, 4);
    for (int i = 0; i < 4; i++)
        in[i] = mgpu_expr_input(&e, i, type);
    half = mgpu_expr_number(&e, type, 0.5);
    for (int i = 0; i < 2; i++) { /* round half up */
        int scaled = mgpu_expr_2(&e, MGPU_X_MUL, in[i], mgpu_expr_number(&e, type, p->scale));
        in[i] = mgpu_expr_1(&e, MGPU_X_FLOOR, mgpu_expr_2(&e, MGPU_X_ADD, scaled, half));
    }
    int one = mgpu_expr_number(&e, type, 1);
    int size = mgpu_expr_2(&e, MGPU_X_ADD, mgpu_expr_2(&e, MGPU_X_SUB, in[1], in[0]), one);
    size = mgpu_expr_2(&e, MGPU_X_DIV, mgpu_expr_2(&e, MGPU_X_MAX, size, one),
                       mgpu_expr_number(&e, type, (double)p->out[axis]));
    int from = mgpu_expr_1(&e, MGPU_X_FLOOR, mgpu_expr_2(&e, MGPU_X_MUL, in[2], size));
    int to = mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_2(&e, MGPU_X_ADD, in[2], one), size);
    to = mgpu_expr_1(&e, MGPU_X_CEIL, to);
    int at = mgpu_expr_2(&e, MGPU_X_SUB, in[3], in[0]);
    int y = mgpu_expr_2(&e, MGPU_X_AND, mgpu_expr_2(&e, MGPU_X_LE, from, at),
                        mgpu_expr_2(&e, MGPU_X_LT, at, to));
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 4, input);
}

/* The largest of v [R,C,...,size] in each bin, along the last axis: [R,C,...,bins]. */
static struct mgpu_value *largest(struct mgpu_lower *l, struct mgpu_value *v,
                                  struct mgpu_value *mask)
{
    struct mgpu_dim dims[6];
    if (!v || !mask)
        return NULL;
    int rank = v->rank; /* v gets an axis of bins before the last one */
    for (int i = 0; i < rank - 1; i++)
        dims[i] = v->dims[i];
    dims[rank - 1] = mgpu_dim_const(1);
    dims[rank] = v->dims[rank - 1];
    v = mgpu_reshape(l->g, v, rank + 1, dims);
    for (int i = 1; i < rank - 1; i++)
        dims[i] = mgpu_dim_const(1);
    dims[0] = mask->dims[0];
    dims[rank - 1] = mask->dims[1];
    mask = mgpu_reshape(l->g, mask, rank + 1, dims);
    if (!v || !mask)
        return NULL;
    v = mgpu_where(l->g, mask, v, mgpu_const_double(l->g, v->type, -INFINITY));
    return mgpu_reduce(l->g, MGPU_REDUCE_MAX, v, 1u << rank, false);
}

/* First along the columns, then along the rows; an empty bin gives 0. */
static int lower_max_roi_pool(struct mgpu_lower *l)
{
    struct pool p;
    MGPU_TRY(read_roi_pool(l, &p));
    struct mgpu_value *batch = mgpu_slice_axis(l->g, p.rois, 1, 0, mgpu_dim_const(1));
    batch = mgpu_cast(l->g, mgpu_reshape(l->g, batch, 1, p.rois->dims), MGPU_INT64);
    struct mgpu_value *y = mgpu_gather(l->g, p.x, batch, 0); /* [R,C,H,W] */
    y = mgpu_transpose(l->g, largest(l, y, inside(l, &p, 1)), (int[]){0, 1, 3, 2});
    y = mgpu_transpose(l->g, largest(l, y, inside(l, &p, 0)), (int[]){0, 1, 3, 2});
    if (!y)
        return mgpu_build_error();
    struct mgpu_value *none = mgpu_const_double(l->g, y->type, -INFINITY);
    return mgpu_lower_give(l, mgpu_where(l->g, mgpu_binary(l->g, MGPU_X_EQ, y, none),
                                         mgpu_const_double(l->g, y->type, 0), y));
}

const struct mgpu_lowering mgpu_lower_roi[] = {
    {"RoiAlign", 10, 0, lower_roi_align},
    {"MaxRoiPool", 1, 0, lower_max_roi_pool},
    {0},
};
