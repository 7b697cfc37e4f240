/* An .npy file from a host array, for tests. */
#ifndef MGPU_TESTS_WRITE_NPY_H
#define MGPU_TESTS_WRITE_NPY_H

#include "runtime/base/array.h"

/* Aborts where the file cannot be written. */
void write_npy(const char *path, const struct mgpu_array *array);

/* The same from plain elements of `type`. */
void write_npy_data(const char *path, enum mgpu_dtype type, int rank, const int64_t *dims,
                    const void *data);

#endif
