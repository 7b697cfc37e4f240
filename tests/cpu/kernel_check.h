/* Checks the kernels of backend `cpu` against `ref`: every node that a row of the operator harness
 * makes (the operator and its gradient), in float.
 *
 * For each node and for 1, 2 and 3 threads: the result is ref's to 1e-5 of the norm; a second run
 * on a dirty workspace gives the same bits; nothing outside the outputs and the workspace is
 * written. In blocks of channels too, where the backend takes them: outputs must be filled up with
 * zeros.
 */
#ifndef MGPU_TESTS_KERNEL_CHECK_H
#define MGPU_TESTS_KERNEL_CHECK_H

#include "tests/ops/op_check.h"

/* Every row, up to a NULL name. The kernels of the row's operator and of its _grad must not be
 * ref's. Prints failures; returns their number. */
int mgpu_kernel_check(const struct mgpu_check *checks);

/* The same for rows whose images can lie in blocks of channels: the operator must have a kernel for
 * that, if not another. */
int mgpu_block_check(const struct mgpu_check *checks);

/* Every row by two threads at once, two OpenMP threads each: both get the bits that one alone gets.
 * Prints failures; returns their number. */
int mgpu_kernel_check_together(const struct mgpu_check *checks);

/* |got - want| / |want|, both of the value's type; equal elements (NaN, infinities) count as 0. */
double kernel_norm_error(const struct mgpu_value *v, const void *got, const void *want);

#endif
