/* Which of an optimizer's arrays belongs to which weight of a file, and what it is there.
 *
 * Slots have the names of our own optimizers' states (runtime/ops/update.h). In npz and
 * safetensors, and in the checkpoints of runs, an array called WEIGHT:SLOT is that slot of WEIGHT,
 * and the number of updates done is called MGPU_SLOT_UPDATES; PyTorch's own names are known, too:
 * WEIGHT:momentum_buffer, and WEIGHT:step for the updates, each weight's the same. Keras's whole
 * models and archives list them in an order that the optimizer's class and generation say:
 *
 *     Adam, AdamW    all m, then all v (Keras 2); m and v parameter by parameter (later); then
 *                    all v^ of AMSGrad
 *     SGD            velocity: it holds the learning rate, unlike PyTorch's momentum
 *     RMSprop        all squares, then all velocities, if it has a momentum, then all means, if it
 *                    is centered
 *     Adagrad        accumulators
 *
 * for the weights that are no statistics. Shapes have to agree; where they do not (frozen layers,
 * other optimizers), slots stay unknown.
 */
#ifndef MGPU_EXPORTER_SLOTS_H
#define MGPU_EXPORTER_SLOTS_H

#include "exporter/checkpoint.h"

#define MGPU_SLOT_UPDATES "optimizer:updates"

/* Fills slot and slot_of of tensors, and updates of the file. What is a slot is no weight. */
void mgpu_checkpoint_slots(struct mgpu_checkpoint *c);

/* How many arrays of the file are an optimizer's. */
int mgpu_checkpoint_state_count(const struct mgpu_checkpoint *c);

/* Whether all that it has of one is the count of updates, as of plain SGD. */
bool mgpu_checkpoint_only_counts(const struct mgpu_checkpoint *c);

/* MGPU_EINVALID where a run wrote more of it than the file has. */
int mgpu_checkpoint_state_check(const struct mgpu_checkpoint *c);

/* What PyTorch calls the slot, and whether it counts updates beside it. */
const char *mgpu_slot_torch_name(const char *slot);
bool mgpu_slot_torch_counts(const char *slot);

/* Whether it is made of squares, which have no sign that a layout could change. */
bool mgpu_slot_is_square(const char *slot);

/* The learning rate that a Keras file has beside it; NAN: none. */
int mgpu_checkpoint_rate(double *out, const struct mgpu_checkpoint *c);

/* Whether its store has the learning rate as a variable of the optimizer, as Keras 3's has. */
bool mgpu_checkpoint_keeps_rate(const struct mgpu_checkpoint *c);

/* The updates that the optimizer has done; where the file does not say, what does as well. It is an
 * error where nothing does. */
int mgpu_checkpoint_updates(int64_t *out, const struct mgpu_checkpoint *c);

#endif
