/* What the loss files and the metrics share: shapes of outputs and labels, and label inputs. */
#ifndef MGPU_TRAIN_LOSS_PRIVATE_H
#define MGPU_TRAIN_LOSS_PRIVATE_H

#include "runtime/ops/build.h"
#include "runtime/train/loss.h"

/* Losses over the classes of one axis, whose labels may be class numbers. */
bool mgpu_loss_has_classes(enum mgpu_loss_kind kind);

/* An output's shape with the samples on an axis of their own: [N*8,C] is [N,8,C]. */
struct mgpu_loss_shape {
    int rank, batch;
    bool added; /* the axis of samples is before all of y's, which is one sample */
    struct mgpu_dim dims[MGPU_MAX_RANK];
};
int mgpu_loss_shape_of(struct mgpu_loss_shape *out, const struct mgpu_graph *g,
                       const struct mgpu_value *y, bool by_step);

/* The axis of that shape that y's axis `axis` became. */
int mgpu_loss_shape_axis(const struct mgpu_loss_shape *shape, const struct mgpu_value *y, int axis);
void mgpu_loss_shape_drop(struct mgpu_loss_shape *shape, int axis);

/* y, or what y is a transpose of with all axes but that of the classes in their old order; *axis
 * becomes the classes' axis there. What reads it needs no transpose. */
struct mgpu_value *mgpu_loss_untransposed(struct mgpu_value *y, int *axis);

/* The softmax (along y's axis) or the sigmoid (`axis` < 0) that y comes from, through reshapes and
 * transposes, or NULL. */
const struct mgpu_node *mgpu_loss_activation(const struct mgpu_value *y, int axis);

/* The label input, shaped as y, without the axis of the classes for class numbers. */
struct mgpu_value *mgpu_loss_label(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                   struct mgpu_value *y);

/* The sample weights (g->float_type) spread over the label's positions; without any, NULL. */
struct mgpu_value *mgpu_loss_weights(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                     struct mgpu_value *y);

/* Every axis of v. */
unsigned mgpu_loss_all_axes(const struct mgpu_value *v);

#endif
