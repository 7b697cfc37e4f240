/* NumPy's .npy: a short header in Python syntax, then the elements.
 * Format: numpy.lib.format, versions 1.0 to 3.0. */
#ifndef MGPU_DATA_NPY_H
#define MGPU_DATA_NPY_H

#include "runtime/data/dense.h"

/* Reads `size` bytes of .npy content (which must outlive the dataset) into a dense dataset. */
int mgpu_npy_parse(struct mgpu_dataset *dataset, const uint8_t *content, uint64_t size);

#endif
