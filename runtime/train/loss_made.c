/* Labels that nobody gave: what a plan needs of them is their shape. */
#include "runtime/base/status.h"
#include "runtime/train/loss_private.h"

/* The axis that probably holds the classes. */
static int class_axis(const struct mgpu_loss_shape *shape, const struct mgpu_value *y)
{
    for (int k = y->rank - 1; k >= 0; k--)
        if (mgpu_loss_shape_axis(shape, y, k) != shape->batch && mgpu_loss_activation(y, k))
            return k;
    return shape->batch == 0 && y->rank > 1 ? 1 : y->rank - 1;
}

int mgpu_loss_bind_made(struct mgpu_loss *loss, const struct mgpu_graph *g,
                        const struct mgpu_value *y, struct mgpu_arena *arena)
{
    struct mgpu_loss_shape shape;
    int64_t dims[MGPU_MAX_RANK];
    bool classes = mgpu_loss_has_classes(loss->kind);
    if (loss->kind == MGPU_LOSS_OUTPUT)
        return mgpu_loss_bind(loss, g, y, MGPU_UNDEFINED, 0, NULL, arena);
    MGPU_TRY(mgpu_prefix(mgpu_loss_shape_of(&shape, g, y, false), "--loss %s", loss->text));
    if (classes && loss->axis == MGPU_AXIS_UNSET)
        loss->axis = class_axis(&shape, y);
    if (classes && loss->axis > -y->rank && loss->axis < y->rank && y->rank > 1)
        mgpu_loss_shape_drop(&shape,
                             mgpu_loss_shape_axis(&shape, y, (loss->axis + y->rank) % y->rank));
    for (int k = 0; k < shape.rank; k++)
        dims[k] = shape.dims[k].value;
    return mgpu_loss_bind(loss, g, y, classes ? MGPU_INT64 : y->type, shape.rank, dims, arena);
}
