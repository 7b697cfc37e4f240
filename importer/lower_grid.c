/* GridSample and AffineGrid. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/grid_sample.h"

#include <inttypes.h>
#include <string.h>

static int choose(struct mgpu_lower *l, const char *name, const char *const *names, int *out)
{
    const char *text = mgpu_onnx_string(l->model, l->node, name, names[0]);
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i])) {
            *out = i;
            return 0;
        }
    return mgpu_fail(MGPU_EUNSUPPORTED, "%s '%s' is not supported", name, text);
}

int mgpu_lower_grid_sample(struct mgpu_lower *l)
{
    static const char *const modes[] = {"linear", "nearest", "cubic", NULL};
    static const char *const old_modes[] = {"bilinear", "nearest", "bicubic", NULL};
    static const char *const paddings[] = {"zeros", "border", "reflection", NULL};
    static const enum mgpu_grid_mode mode_of[] = {MGPU_GRID_LINEAR, MGPU_GRID_NEAREST,
                                                  MGPU_GRID_CUBIC};
    struct mgpu_value *x = mgpu_lower_in(l, 0), *grid = mgpu_lower_in(l, 1);
    int mode, padding;
    if (!x || !grid)
        return mgpu_fail(MGPU_EINVALID, "the input or its grid is missing");
    MGPU_TRY(choose(l, "mode", l->node->opset < 20 ? old_modes : modes, &mode));
    MGPU_TRY(choose(l, "padding_mode", paddings, &padding));
    return mgpu_lower_give(l, mgpu_grid_sample(l->g, x, grid, mode_of[mode],
                                               (enum mgpu_grid_padding)padding,
                                               mgpu_onnx_int(l->node, "align_corners", 0)));
}

/* Element i of an axis, from -1 to 1. */
static double coordinate(int64_t i, int64_t size, bool align)
{
    if (align)
        return size > 1 ? -1 + 2 * (double)i / (double)(size - 1) : 0;
    return (2 * (double)i + 1) / (double)size - 1;
}

/* [places, axes + 1]: each place's coordinates, the last axis first, and 1. */
static struct mgpu_value *base_grid(struct mgpu_lower *l, enum mgpu_dtype type, int axes,
                                    const int64_t *size)
{
    bool align = mgpu_onnx_int(l->node, "align_corners", 0);
    int64_t places = 1, sizes[2];
    struct mgpu_array base;
    for (int i = 0; i < axes; i++)
        places *= size[i];
    sizes[0] = places;
    sizes[1] = axes + 1;
    int rc = mgpu_array_init(&base, type, 2, sizes, l->node->output[0]);
    if (rc < 0)
        return mgpu_build_fail(rc, "%s", mgpu_error());
    for (int64_t p = 0; p < places; p++) {
        int64_t rest = p;
        for (int i = axes - 1; i >= 0; rest /= size[i--])
            mgpu_set_double(base.data, type, p * (axes + 1) + axes - 1 - i,
                            coordinate(rest % size[i], size[i], align));
        mgpu_set_double(base.data, type, p * (axes + 1) + axes, 1);
    }
    struct mgpu_dim dims[2] = {mgpu_dim_const(places), mgpu_dim_const(axes + 1)};
    struct mgpu_value *v = mgpu_graph_constant(l->g, NULL, type, 2, dims, base.data, NULL);
    mgpu_array_free(&base);
    return v;
}

int mgpu_lower_affine_grid(struct mgpu_lower *l)
{
    enum { MOST = 1 << 26 };
    struct mgpu_value *theta = mgpu_lower_in(l, 0);
    int64_t size[5], places = 1;
    struct mgpu_dim dims[5];
    int count = mgpu_lower_ints(l, 1, size, dims, 5), axes = count - 2;
    MGPU_TRY(count);
    if (!theta || count < 4 || theta->rank != 3 || theta->dims[0].value != size[0] ||
        theta->dims[1].value != axes || theta->dims[2].value != axes + 1 ||
        !mgpu_is_float(theta->type))
        return mgpu_fail(MGPU_EINVALID, "theta does not fit a size of %d numbers", count);
    for (int i = 2; i < count; i++) {
        if (size[i] < 1 || size[i] > MOST || (places *= size[i]) > MOST)
            return mgpu_fail(MGPU_EINVALID, "a grid of size %" PRId64, size[i]);
        dims[i - 1] = dims[i];
    }
    dims[0] = theta->dims[0];
    dims[count - 1] = mgpu_dim_const(axes);
    struct mgpu_value *base = base_grid(l, theta->type, axes, size + 2);
    struct mgpu_value *y = mgpu_matmul(l->g, base, false, theta, true);
    return mgpu_lower_give(l, mgpu_reshape(l->g, y, count, dims));
}
