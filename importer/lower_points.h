/* Values of an image between its elements, for the operators that look there. */
#ifndef MGPU_IMPORTER_LOWER_POINTS_H
#define MGPU_IMPORTER_LOWER_POINTS_H

#include "importer/lower.h"

/* Points (y, x) of an image of H x W, in elements from the centre of the first; their shapes
 * broadcast. The value at a point is the sum over the four elements around it. */
struct mgpu_points {
    struct mgpu_value *y, *x;
    int64_t height, width;
};

/* The place of corner 0..3 in the image, row-major, int64; what it counts for. */
struct mgpu_value *mgpu_points_place(struct mgpu_lower *l, const struct mgpu_points *p, int corner);
struct mgpu_value *mgpu_points_weight(struct mgpu_lower *l, const struct mgpu_points *p,
                                      int corner);

/* `v` with an axis of size 1 at the end; NULL stays NULL. */
struct mgpu_value *mgpu_lower_open(struct mgpu_lower *l, struct mgpu_value *v);

#endif
