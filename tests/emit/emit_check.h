/* Checks generated kernels (runtime/emit) on the rows of the operator harness: every node that a
 * row makes, in float, double and the half types.
 *
 * MGPU_CHECK in the environment chooses: "emulated" runs the kernels on emulated threads and
 * compares with `ref`; "nvrtc" compiles them for several kinds of GPU. The tests of operators and
 * of CPU kernels then do this in place of their own checks of rows, so that their tables serve all.
 */
#ifndef MGPU_TESTS_EMIT_CHECK_H
#define MGPU_TESTS_EMIT_CHECK_H

#include "tests/ops/op_check.h"

/* Whether MGPU_CHECK is set: the rows are for emit_check. */
bool emit_check_wanted(void);

/* Every row, up to a NULL name, in float and, with all_types, in another type in turn. Prints
 * failures; returns their number. Ends the program with 77 (skipped) where what it needs is
 * missing. */
int emit_check(const struct mgpu_check *checks, bool all_types);

/* The same in float, emulated, with `from` replaced by `to` in the kernels' text wherever it
 * occurs: 1 when a check fails or the kernels crash, 0 when all is well, -1 when `from` does not
 * occur. */
int emit_check_damaged(const struct mgpu_check *checks, const char *from, const char *to);

#endif
