/* Where each array stands in a Keras HDF5 file. */
#ifndef MGPU_EXPORTER_KERAS_NAMES_H
#define MGPU_EXPORTER_KERAS_NAMES_H

#include "exporter/named_array.h"
#include "runtime/base/memory.h"

struct mgpu_keras_place {
    const char *layer;  /* the group */
    const char *weight; /* the path below it: the array's name, or a changed one */
    const char *path;   /* layer/weight */
};

/* Places for all arrays, no two in each other's way, in `arena`. Errors as mgpu_keras_h5_write. */
int mgpu_keras_places(struct mgpu_keras_place **out, struct mgpu_arena *arena,
                      const struct mgpu_named_array *arrays, int count);

#endif
