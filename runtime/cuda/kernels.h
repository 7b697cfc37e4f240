/* The kernels of a program on a GPU: made when nodes are prepared, compiled when a program is
 * bound, submitted when it runs.
 */
#ifndef MGPU_CUDA_KERNELS_H
#define MGPU_CUDA_KERNELS_H

#include "runtime/compile/program.h"
#include "runtime/cuda/gpu.h"
#include "runtime/emit/emit.h"

/* What launch->queue points to. */
struct mgpu_gpu_queue {
    const struct mgpu_gpu *gpu;
    CUstream stream;
    CUdeviceptr stop; /* a u32: where it is not zero, updates do nothing */
};

/* Generated kernels, and the functions they became. */
struct mgpu_gpu_kernel {
    struct mgpu_emitted emitted;
    CUfunction function[MGPU_EMIT_LAUNCHES];
};

/* Its kernels, which submit to a struct mgpu_gpu_queue: first those of `library` (a table that ends
 * with a NULL op; NULL: NVIDIA's libraries), then generated ones. mgpu_gpu_backend_begin goes
 * before its use. */
extern const struct mgpu_backend mgpu_backend_cuda;
void mgpu_gpu_backend_begin(void);
void mgpu_gpu_library(const struct mgpu_kernel *library);

/* Submits a kernel with these parameters. */
int mgpu_gpu_submit(const struct mgpu_gpu_queue *queue, const struct mgpu_gpu_kernel *kernel,
                    const CUdeviceptr *pointers);

/* Many kernels, compiled together: add all, then load. Texts that are equal are compiled once. The
 * kernels were emitted under the name MGPU_GPU_KERNEL. */
#define MGPU_GPU_KERNEL "k"
struct mgpu_gpu_batch {
    int count;
    struct mgpu_gpu_kernel **kernel;
};
void mgpu_gpu_batch_add(struct mgpu_gpu_batch *batch, struct mgpu_gpu_kernel *kernel);
int mgpu_gpu_batch_load(struct mgpu_gpu_batch *batch, struct mgpu_gpu *gpu);
void mgpu_gpu_batch_free(struct mgpu_gpu_batch *batch);

/* The generated kernel of an instruction; NULL: a library runs it. */
struct mgpu_gpu_kernel *mgpu_gpu_kernel_of(const struct mgpu_instruction *in);

#endif
