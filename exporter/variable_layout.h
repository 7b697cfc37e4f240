/* Shape and layout of a variable, by what reads it. Between the files of variables.h. */
#ifndef MGPU_EXPORTER_VARIABLE_LAYOUT_H
#define MGPU_EXPORTER_VARIABLE_LAYOUT_H

#include "exporter/variable_reader.h"

/* Fill leaf, dims and layout of `x`, whose role is known. */
void mgpu_variable_plain(struct mgpu_variable *x, enum mgpu_family family,
                         const struct mgpu_variable_reader *reader, const struct mgpu_array *array,
                         const char *op);
/* Direction `d`; PyTorch: bias number `half`. */
void mgpu_variable_recurrent(struct mgpu_variable *x, enum mgpu_family family,
                             const struct mgpu_variable_reader *reader,
                             const struct mgpu_array *array, int d, int half);

#endif
