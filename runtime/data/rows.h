/* Rows of arrays in memory: index r along one axis, of every element type. */
#ifndef MGPU_DATA_ROWS_H
#define MGPU_DATA_ROWS_H

#include "runtime/base/dtype.h"

/* A row-major array seen from one of its axes: outer x rows x inner elements. */
struct mgpu_rows {
    void *data;
    enum mgpu_dtype type;
    int64_t outer, rows, inner;
};

/* The view of a shape along `axis`, with `rows` in place of that dimension. */
struct mgpu_rows mgpu_rows_of(void *data, enum mgpu_dtype type, int rank, const int64_t *dims,
                              int axis, int64_t rows);

/* Row `from_row` of `from` becomes row `to_row` of `to` (same outer and inner), converted.
 *
 * Nothing is lost silently: a value that an integer target cannot hold (2.5, 300 for uint8, NaN)
 * is MGPU_EINVALID with the value in the text. To floating types it rounds as mgpu_convert does. */
int mgpu_rows_copy(const struct mgpu_rows *to, int64_t to_row, const struct mgpu_rows *from,
                   int64_t from_row);

#endif
