/* reorder(x) -> y: the same elements in another layout of memory (graph.h: blocks of channels).
 * Made by the compilation, where an operator wants another layout than it gets. */
#ifndef MGPU_OPS_REORDER_H
#define MGPU_OPS_REORDER_H

#include "runtime/ops/op.h"

struct mgpu_reorder_attrs {
    int64_t block; /* y's; 0: plain */
};

extern const struct mgpu_op mgpu_op_reorder;

#endif
