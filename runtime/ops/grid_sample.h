/* grid_sample(x [N, C, D1 .. Dk], grid [N, O1 .. Ok, k]) -> y [N, C, O1 .. Ok]: x at the places of
 * the grid, k from 1 to 3. A place lists its coordinates from the last axis to the first; -1 and 1
 * are the ends of an axis: the centres of its end elements with `align_corners`, else their outer
 * edges. ONNX GridSample, PyTorch's formulas (torch.nn.functional.grid_sample).
 *
 * grid_sample_data(dy, grid) -> dx of shape `dims`: the transpose, by x.
 * grid_sample_grid(dy, x, grid) -> dgrid: zero for `nearest`, and where a place is moved to the
 * border. Coordinates that are not finite lie outside. */
#ifndef MGPU_OPS_GRID_SAMPLE_H
#define MGPU_OPS_GRID_SAMPLE_H

#include "runtime/ops/op.h"

enum mgpu_grid_mode { MGPU_GRID_NEAREST, MGPU_GRID_LINEAR, MGPU_GRID_CUBIC };
enum mgpu_grid_padding { MGPU_GRID_ZEROS, MGPU_GRID_BORDER, MGPU_GRID_REFLECTION };

struct mgpu_grid_sample_attrs {
    int mode, padding;
    bool align_corners;
    int64_t rank;                /* of x */
    const struct mgpu_dim *dims; /* of x, in the graph's arena */
};

extern const struct mgpu_op mgpu_op_grid_sample, mgpu_op_grid_sample_data, mgpu_op_grid_sample_grid;

/* NULL with the error text set when the operands do not fit (build.h). */
struct mgpu_value *mgpu_grid_sample(struct mgpu_graph *g, struct mgpu_value *x,
                                    struct mgpu_value *grid, enum mgpu_grid_mode mode,
                                    enum mgpu_grid_padding padding, bool align_corners);

#endif
