/* The part of the operator harness that cuts the batch over ranks. */
#ifndef MGPU_TESTS_SPLIT_CHECK_H
#define MGPU_TESTS_SPLIT_CHECK_H

#include "tests/ops/op_case.h"

/* Runs the row over 1, 2 and 3 ranks and with sums and means for inputs, node by node in step,
 * all-reducing where a `split` rule answers FULL, and compares with `judge`, the finished run of
 * `whole` in double on `ref`. Prints failures; returns their number. */
int split_check(const struct mgpu_check *check, const struct op_case *whole,
                const struct op_numbers *n, struct mgpu_run *judge);

#endif
