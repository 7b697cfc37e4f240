/* accumulate(x) -> y: adds x to what y already holds. Gradients of a batch that is cut into pieces
 * (--accumulate): y is the stored gradient, zeroed before the first piece. */
#ifndef MGPU_OPS_ACCUMULATE_H
#define MGPU_OPS_ACCUMULATE_H

#include "runtime/ops/op.h"

extern const struct mgpu_op mgpu_op_accumulate;

#endif
