/* Writing Keras 3's store (.weights.h5): a group for each object, its variables below vars/0, 1,
 * ... Rules of names: mgpu_keras_snake_case, mgpu_keras_numbered. */
#ifndef MGPU_EXPORTER_KERAS_STORE_H
#define MGPU_EXPORTER_KERAS_STORE_H

#include "exporter/named_array.h"

/* Names are paths ("layers/dense/vars/0"); `layer`, where given, is the path of the layers' own
 * names, for the attributes that Keras 3.15 writes. Atomic. */
int mgpu_keras_store_write(const char *path, const struct mgpu_named_array *arrays, int count);

#endif
