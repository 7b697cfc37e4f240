/* Matrix products that the memory bounds: y [m,n] = a [m,k] b [k,n] where few rows (or few steps)
 * meet one large matrix, as dense layers of small batches do. Nothing is packed; each element of
 * the large matrix comes from memory once, or goes there once.
 */
#ifndef MGPU_CPU_PRODUCT_FEW_H
#define MGPU_CPU_PRODUCT_FEW_H

#include "runtime/cpu/product.h"

enum { MGPU_FEW = 15 /* rows or steps, at most */ };

/* Whether mgpu_product_few computes products of these sizes and steps. */
bool mgpu_product_is_few(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                         int64_t k);

/* The part-th of `parts` of such a product; rows of y are `step` apart. An element is summed in one
 * order whatever the parts are. */
void mgpu_product_few(struct mgpu_matrix_of a, struct mgpu_matrix_of b, int64_t m, int64_t n,
                      int64_t k, float *y, int64_t step, int part, int parts);

#endif
