/* In place of the folder where the CUDA toolkit was not found, or not wanted. */
#include "runtime/cuda/cuda.h"

#include "runtime/base/status.h"
#include "runtime/cuda/compile.h"

int mgpu_cuda_count(int *count)
{
    *count = 0;
    return mgpu_fail(MGPU_EDEVICE, "this build has no CUDA (cmake -DMGPU_CUDA=ON)");
}

int mgpu_cuda_check(int index)
{
    (void)index;
    int count;
    return mgpu_cuda_count(&count);
}

int mgpu_cuda_facts(struct mgpu_gpu_facts *out, int index)
{
    *out = (struct mgpu_gpu_facts){0};
    return mgpu_cuda_check(index);
}

const char *mgpu_cuda_default(void)
{
    return "cpu";
}

int mgpu_cuda_engines(struct mgpu_engine **out, int gpu, bool tf32, int replicas, int places)
{
    (void)out, (void)tf32, (void)replicas, (void)places;
    return mgpu_cuda_check(gpu);
}

int mgpu_cuda_compile(struct mgpu_cubin *out, const char *text, int sm)
{
    (void)text, (void)sm;
    int count;
    *out = (struct mgpu_cubin){0};
    return mgpu_cuda_count(&count);
}

int mgpu_cuda_compile_cached(struct mgpu_cubin *out, const char *text, int sm)
{
    return mgpu_cuda_compile(out, text, sm);
}

void mgpu_cubin_free(struct mgpu_cubin *cubin)
{
    *cubin = (struct mgpu_cubin){0};
}

int mgpu_cubin_use(const struct mgpu_cubin *cubin, const char *function,
                   struct mgpu_kernel_use *use)
{
    (void)cubin, (void)function;
    *use = (struct mgpu_kernel_use){0};
    return -1;
}
