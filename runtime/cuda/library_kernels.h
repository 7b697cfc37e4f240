/* What NVIDIA's libraries run (library.h), as kernels of the GPUs' backend. */
#ifndef MGPU_CUDA_LIBRARY_KERNELS_H
#define MGPU_CUDA_LIBRARY_KERNELS_H

#include "runtime/backend.h"

struct mgpu_library;

/* A table; launch->queue is a struct mgpu_gpu_queue (kernels.h). They accept nothing on a thread
 * that has no library. */
extern const struct mgpu_kernel mgpu_library_kernels[];

/* The calling thread prepares nodes with this one from now on; NULL: with none. */
void mgpu_library_enter(struct mgpu_library *library);

/* mgpu_backend's `blocks`: images are channels-last around what tensor cores compute. */
bool mgpu_cuda_blocks(const struct mgpu_node *node, int *block, int64_t *hidden);

#endif
