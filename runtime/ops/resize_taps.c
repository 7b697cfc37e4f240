#include "runtime/ops/resize_taps.h"

#include <math.h>

#include "runtime/base/status.h"

bool mgpu_resize_is_identity(const struct mgpu_resize_attrs *a, int axis)
{
    bool crop = a->coordinates == MGPU_RESIZE_TF_CROP_AND_RESIZE &&
                (a->roi_start[axis] != 0 || a->roi_end[axis] != 1);
    if (a->in[axis].value == 0 && a->out[axis].value == 0)
        return true;
    return a->in[axis].value == a->out[axis].value && fabs(a->scale[axis] - 1) < 1e-9 && !crop;
}

/* The length that the scale stands for: not a whole number when scales were given. */
static double resized_length(const struct mgpu_resize_attrs *a, int axis)
{
    double length = a->scale[axis] * (double)a->in[axis].value, out = (double)a->out[axis].value;
    return fabs(length - out) <= 1e-6 * out ? out : length;
}

/* The place in x that output place `at` looks at. */
static double coordinate(const struct mgpu_resize_attrs *a, int axis, double at)
{
    double in = (double)a->in[axis].value, scale = a->scale[axis], length = resized_length(a, axis);
    double start = a->roi_start[axis], end = a->roi_end[axis];
    switch (a->coordinates) {
    case MGPU_RESIZE_ALIGN_CORNERS:
        return length == 1 ? 0 : at * (in - 1) / (length - 1);
    case MGPU_RESIZE_ASYMMETRIC:
        return at / scale;
    case MGPU_RESIZE_TF_HALF_PIXEL_FOR_NN:
        return (at + 0.5) / scale;
    case MGPU_RESIZE_PYTORCH_HALF_PIXEL:
        return length > 1 ? (at + 0.5) / scale - 0.5 : 0;
    case MGPU_RESIZE_HALF_PIXEL_SYMMETRIC: /* the centres of both sides meet */
        return in / 2 * (1 - (double)a->out[axis].value / length) + (at + 0.5) / scale - 0.5;
    case MGPU_RESIZE_TF_CROP_AND_RESIZE:
        return length > 1 ? start * (in - 1) + at * (end - start) * (in - 1) / (length - 1)
                          : 0.5 * (start + end) * (in - 1);
    default:
        return (at + 0.5) / scale - 0.5;
    }
}

static double nearest(const struct mgpu_resize_attrs *a, double x)
{
    switch (a->nearest) {
    case MGPU_NEAREST_ROUND_PREFER_FLOOR:
        return ceil(x - 0.5);
    case MGPU_NEAREST_ROUND_PREFER_CEIL:
        return floor(x + 0.5);
    case MGPU_NEAREST_FLOOR:
        return floor(x);
    default:
        return ceil(x);
    }
}

/* The interpolating function at distance d. */
static double filter(const struct mgpu_resize_attrs *a, double d)
{
    double c = a->cubic_a;
    d = fabs(d);
    if (a->mode == MGPU_RESIZE_LINEAR)
        return d < 1 ? 1 - d : 0;
    if (d <= 1)
        return ((c + 2) * d - (c + 3)) * d * d + 1;
    return d < 2 ? ((c * d - 5 * c) * d + 8 * c) * d - 4 * c : 0;
}

/* An antialiased filter is as wide as the output's steps are in x. */
static double stretch(const struct mgpu_resize_attrs *a, int axis)
{
    return a->antialias && a->scale[axis] < 1 ? a->scale[axis] : 1;
}

/* Elements under the filter left of the looked-at place and at it, without one on its border. */
static int64_t left_taps(const struct mgpu_resize_attrs *a, int axis)
{
    double reach = a->mode == MGPU_RESIZE_LINEAR ? 1 : 2;
    return -(int64_t)floor(-reach / stretch(a, axis));
}

static int64_t tap_count(const struct mgpu_resize_attrs *a, int axis)
{
    return a->mode == MGPU_RESIZE_NEAREST ? 1 : 2 * left_taps(a, axis);
}

static int64_t clamp(int64_t index, int64_t size)
{
    return index < 0 ? 0 : index >= size ? size - 1 : index;
}

/* The taps of one place around x; outside ones show the border unless they are excluded. */
static void place_taps(const struct mgpu_resize_attrs *a, int axis, double x,
                       const struct mgpu_resize_taps *taps, int64_t *index, double *weight)
{
    int64_t first = (int64_t)floor(x) - left_taps(a, axis) + 1;
    double sum = 0;
    for (int64_t t = 0; t < taps->count; t++) {
        bool outside = first + t < 0 || first + t >= taps->in;
        index[t] = clamp(first + t, taps->in);
        weight[t] = filter(a, stretch(a, axis) * ((double)(first + t) - x));
        if (outside && a->exclude_outside)
            weight[t] = 0;
        sum += weight[t];
    }
    if (sum != 0 && (a->exclude_outside || a->antialias))
        for (int64_t t = 0; t < taps->count; t++)
            weight[t] /= sum;
}

static void fill(const struct mgpu_resize_attrs *a, int axis, struct mgpu_resize_taps *taps)
{
    for (int64_t j = 0; j < taps->out; j++) {
        int64_t *index = taps->index + j * taps->count;
        double *weight = taps->weight + j * taps->count, x = coordinate(a, axis, (double)j);
        double last = (double)taps->in - 1, margin = (double)taps->count + 1;
        taps->extrapolated[j] =
            a->coordinates == MGPU_RESIZE_TF_CROP_AND_RESIZE && !(x >= 0 && x <= last);
        taps->any_extrapolated = taps->any_extrapolated || taps->extrapolated[j];
        x = fmin(fmax(x, -margin), last + margin); /* beyond that all is border */
        if (a->mode == MGPU_RESIZE_NEAREST) {
            *index = clamp((int64_t)nearest(a, x), taps->in);
            *weight = 1;
        } else {
            place_taps(a, axis, x, taps, index, weight);
        }
    }
}

int mgpu_resize_taps_make(const struct mgpu_resize_attrs *a, int axis,
                          struct mgpu_resize_taps *taps)
{
    *taps = (struct mgpu_resize_taps){.in = a->in[axis].value, .out = a->out[axis].value};
    taps->count = tap_count(a, axis);
    uint64_t places = (uint64_t)taps->out, all = places * (uint64_t)taps->count;
    void *index = NULL, *weight = NULL, *extrapolated = NULL;
    int rc = mgpu_alloc(&index, all * sizeof *taps->index, "resize table");
    if (rc == 0)
        rc = mgpu_alloc(&weight, all * sizeof *taps->weight, "resize table");
    if (rc == 0)
        rc = mgpu_alloc(&extrapolated, places * sizeof *taps->extrapolated, "resize table");
    taps->index = index;
    taps->weight = weight;
    taps->extrapolated = extrapolated;
    if (rc < 0)
        mgpu_resize_taps_free(taps);
    else
        fill(a, axis, taps);
    return rc;
}

void mgpu_resize_taps_free(struct mgpu_resize_taps *taps)
{
    mgpu_free(taps->index);
    mgpu_free(taps->weight);
    mgpu_free(taps->extrapolated);
    *taps = (struct mgpu_resize_taps){.in = 0};
}
