/* Losses and gradients that are not finite, and the node where that began. */
#ifndef MGPU_COMPILE_FINITE_H
#define MGPU_COMPILE_FINITE_H

#include "runtime/compile/walk.h"

/* What is not finite after a run, as text, from a rank's results and gradients as the host sees
 * them; NULL: all is well. `update` is what the walk's check was given (walk.h). */
const char *mgpu_find_not_finite(char text[MGPU_VALUE_TEXT], const struct mgpu_program *program,
                                 void *const buffer[MGPU_BUFFERS], const struct mgpu_execution *run,
                                 const struct mgpu_instruction *update);

/* "the gradient of 'weight'" */
const char *mgpu_gradient_text(char text[MGPU_VALUE_TEXT], const char *weight);

/* MGPU_EINVALID: `what` is not finite, and it began at this instruction (NULL: at none of this
 * rank's), as far as that can be told where weights have changed since. */
int mgpu_not_finite(const char *what, const struct mgpu_instruction *first, bool changed);

#endif
