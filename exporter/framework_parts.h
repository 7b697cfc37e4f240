/* What the files of framework_names.h pass to one another. */
#ifndef MGPU_EXPORTER_FRAMEWORK_PARTS_H
#define MGPU_EXPORTER_FRAMEWORK_PARTS_H

#include "exporter/framework_names.h"

/* Appends a variable under `name` (of the arena); `layer` as in mgpu_named_array. */
void mgpu_framework_add(struct mgpu_framework_arrays *arrays, int variable, const char *name,
                        const char *layer);

/* The path of its modules and its own name, as the framework writes them: PyTorch with dots. `root`
 * (mgpu_variables_root) is left out. */
const char *mgpu_framework_name(const struct mgpu_framework_arrays *arrays, int variable,
                                size_t root);

/* framework_keras.c: all variables, for one of the two HDF5 layouts. MGPU_EINVALID where the graph
 * does not tell what the layout needs; `by_order`: its order is Keras's, but of layers that look
 * alike. With an optimizer's `state` the order of all layers is needed, not only of those of a
 * class. */
int mgpu_framework_keras(struct mgpu_framework_arrays *arrays, enum mgpu_target target,
                         bool by_order, bool state);

/* Whether an array has this name. */
bool mgpu_framework_lists(const struct mgpu_framework_arrays *arrays, const char *name);

/* framework_notes.c: of names that are the graph's own, and of those of a file that is followed. */
void mgpu_framework_tell(const struct mgpu_framework_arrays *arrays);
void mgpu_framework_tell_like(const struct mgpu_framework_arrays *arrays);

#endif
