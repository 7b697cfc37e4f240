/* One GPU as its ranks share it: the driver, its context, and the kernels that were loaded. */
#ifndef MGPU_CUDA_GPU_H
#define MGPU_CUDA_GPU_H

#include "runtime/cuda/error.h"

struct mgpu_library;

struct mgpu_gpu_module {
    char *text; /* that it was made from */
    CUmodule module;
};

struct mgpu_gpu {
    struct mgpu_cuda_driver cu;
    int index, sm;
    CUdevice device;
    CUcontext context;
    int modules;
    struct mgpu_gpu_module *module;
    struct mgpu_library *library; /* NULL where a test's driver has no properties */
};

/* The GPU is checked, and its context is the calling thread's. `tf32`: as mgpu_library_options. */
int mgpu_gpu_open(struct mgpu_gpu *gpu, int index, bool tf32);
void mgpu_gpu_close(struct mgpu_gpu *gpu);

/* Makes its context and its library the calling thread's. */
int mgpu_gpu_enter(const struct mgpu_gpu *gpu);

/* Memory, with anything in it; MGPU_ENOMEM says what is needed and what is free. */
int mgpu_gpu_alloc(const struct mgpu_gpu *gpu, CUdeviceptr *out, int64_t bytes, const char *what);

/* Memory of the host that the GPU reads and writes on its own; MGPU_ENOMEM as above. */
int mgpu_gpu_alloc_host(const struct mgpu_gpu *gpu, void **out, int64_t bytes);

/* Modules of kernels (runtime/emit), no two of the same text; those that are not there yet are
 * compiled side by side. */
int mgpu_gpu_load(struct mgpu_gpu *gpu, const char *const *text, int count, CUmodule *out);

/* As mgpu_cuda_status: GPU_TRY(gpu, cuMemFree, (p)) calls and passes errors on. */
#define GPU_TRY(gpu, call, arguments)                                                              \
    MGPU_TRY(mgpu_cuda_status(&(gpu)->cu, (gpu)->cu.call arguments, #call))

#endif
