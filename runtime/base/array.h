/* A host array: plain row-major elements with a shape. What files hold and tools exchange. */
#ifndef MGPU_BASE_ARRAY_H
#define MGPU_BASE_ARRAY_H

#include "runtime/base/dtype.h"

enum { MGPU_MAX_RANK = 8 };

struct mgpu_array {
    enum mgpu_dtype type;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    void *data; /* from mgpu_alloc */
};

/* Elements of a shape, or MGPU_EINVALID when a dimension is negative or the product (in bytes of
 * `type`) passes 2^62. */
int mgpu_count(int64_t *out, enum mgpu_dtype type, int rank, const int64_t *dims);

/* Zeroed contents. `what` names the array in an error. */
int mgpu_array_init(struct mgpu_array *out, enum mgpu_dtype type, int rank, const int64_t *dims,
                    const char *what);
void mgpu_array_free(struct mgpu_array *array); /* the contents; the struct becomes empty */
int64_t mgpu_array_count(const struct mgpu_array *array);

/* "[2,3]" into `text`; returns text. */
enum { MGPU_SHAPE_TEXT = 192 };
char *mgpu_shape_text(char text[MGPU_SHAPE_TEXT], int rank, const int64_t *dims);

#endif
