/* resize(x) -> y: ONNX Resize of any rank; resize_grad(dy) -> dx is its transpose. */
#ifndef MGPU_OPS_RESIZE_H
#define MGPU_OPS_RESIZE_H

#include "runtime/ops/op.h"

enum mgpu_resize_mode { MGPU_RESIZE_NEAREST, MGPU_RESIZE_LINEAR, MGPU_RESIZE_CUBIC };
enum mgpu_resize_coordinates {
    MGPU_RESIZE_HALF_PIXEL,
    MGPU_RESIZE_HALF_PIXEL_SYMMETRIC,
    MGPU_RESIZE_PYTORCH_HALF_PIXEL,
    MGPU_RESIZE_ALIGN_CORNERS,
    MGPU_RESIZE_ASYMMETRIC,
    MGPU_RESIZE_TF_HALF_PIXEL_FOR_NN,
    MGPU_RESIZE_TF_CROP_AND_RESIZE,
};
enum mgpu_resize_nearest {
    MGPU_NEAREST_ROUND_PREFER_FLOOR,
    MGPU_NEAREST_ROUND_PREFER_CEIL,
    MGPU_NEAREST_FLOOR,
    MGPU_NEAREST_CEIL,
};

struct mgpu_resize_attrs {
    int mode, coordinates, nearest;
    bool exclude_outside, antialias;
    double cubic_a, extrapolation;
    double scale[MGPU_MAX_RANK]; /* per axis; as given, not as sizes imply */
    double roi_start[MGPU_MAX_RANK], roi_end[MGPU_MAX_RANK]; /* tf_crop_and_resize */
    int64_t rank;
    const struct mgpu_dim *in, *out; /* dims of x and y, in the graph's arena */
};

extern const struct mgpu_op mgpu_op_resize, mgpu_op_resize_grad;

#endif
