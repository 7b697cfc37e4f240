/* Weights in Keras's legacy HDF5 layout, readable with h5py and by Keras's own rules:
 *
 *     /             attributes layer_names, backend, keras_version
 *     /LAYER        attribute weight_names
 *     /LAYER/NAME   the array
 *
 * Where none is given, a layer is what stands before the last '.' or '/' of a name ("conv1.weight"
 * and "conv1/kernel:0" are of the layer conv1), the name itself where there is none. Order is in
 * the attributes, which are cut into layer_names0, layer_names1, ... past 64512 bytes. A name that
 * HDF5 cannot keep
 * ("a//b", ".", one that is also a group) is stored under a changed one, with the true name in the
 * data set's attribute `name`. bfloat16 is Keras's opaque type with an attribute dtype.
 */
#ifndef MGPU_EXPORTER_KERAS_H5_H
#define MGPU_EXPORTER_KERAS_H5_H

#include "exporter/h5_out.h"
#include "exporter/named_array.h"

/* Atomic: on an error the old file is as it was. MGPU_EINVALID for an empty name or one given
 * twice. */
int mgpu_keras_h5_write(const char *path, const struct mgpu_named_array *arrays, int count);

/* The same into a file that is being written and may hold other things too; about the bytes that
 * it takes. */
int mgpu_keras_h5_put(struct mgpu_h5_out *out, const struct mgpu_named_array *arrays, int count);
uint64_t mgpu_keras_h5_bytes(const struct mgpu_named_array *arrays, int count);

#endif
