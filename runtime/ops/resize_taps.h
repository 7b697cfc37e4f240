/* What resize does along one axis: each output place is a weighted sum of a few input elements.
 *
 *     y[j] = sum over t < count of weight[j * count + t] * x[index[j * count + t]]
 *
 * Formulas: ONNX Resize (operator documentation, versions 10 to 19).
 */
#ifndef MGPU_OPS_RESIZE_TAPS_H
#define MGPU_OPS_RESIZE_TAPS_H

#include "runtime/ops/resize.h"

struct mgpu_resize_taps {
    int64_t in, out, count;
    int64_t *index;     /* in [0, in) */
    double *weight;     /* of one place they add up to 1 */
    bool *extrapolated; /* per place: shows the extrapolation value instead */
    bool any_extrapolated;
};

/* Nothing happens along this axis. */
bool mgpu_resize_is_identity(const struct mgpu_resize_attrs *attrs, int axis);

/* Fills *taps, which mgpu_resize_taps_free empties again. */
int mgpu_resize_taps_make(const struct mgpu_resize_attrs *attrs, int axis,
                          struct mgpu_resize_taps *taps);
void mgpu_resize_taps_free(struct mgpu_resize_taps *taps);

#endif
