/* Whether numbers are finite. */
#ifndef MGPU_BASE_FINITE_H
#define MGPU_BASE_FINITE_H

#include "runtime/base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether `bytes` of elements of the type are; integers always are. */
bool mgpu_all_finite(const void *data, enum mgpu_dtype type, int64_t bytes);

#endif
