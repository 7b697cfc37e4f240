/* Plain kernels of pad and pad_grad, for the table in movement.c. */
#ifndef MGPU_REF_PAD_H
#define MGPU_REF_PAD_H

#include "runtime/backend.h"

int mgpu_ref_pad(const struct mgpu_launch *launch);
int64_t mgpu_ref_pad_workspace(const struct mgpu_node *node, int threads, const void *state);
int mgpu_ref_pad_grad(const struct mgpu_launch *launch);
int64_t mgpu_ref_pad_grad_workspace(const struct mgpu_node *node, int threads, const void *state);

#endif
