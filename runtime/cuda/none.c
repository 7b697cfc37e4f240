/* In place of the folder where the CUDA toolkit was not found, or not wanted. */
#include "runtime/cuda/cuda.h"

#include "runtime/base/status.h"
#include "runtime/cuda/compile.h"

#include <dlfcn.h>
#include <unistd.h>

/* What speaks for a GPU here, that a build with CUDA might use; NULL: nothing. */
static const char *sign_of_gpu(void)
{
    if (access("/dev/nvidia0", F_OK) == 0)
        return "/dev/nvidia0";
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) ? "libcuda.so.1" : NULL;
}

int mgpu_cuda_count(int *count)
{
    const char *sign = sign_of_gpu();
    *count = 0;
    return mgpu_fail(MGPU_EDEVICE,
                     "this build has no CUDA%s%s%s; for a GPU, install the headers of CUDA and "
                     "cuDNN (cuda.h, nvrtc.h, cublasLt.h, cudnn.h) and build with cmake "
                     "-DMGPU_CUDA=ON",
                     sign ? ", though a GPU seems to be here (" : "", sign ? sign : "",
                     sign ? ")" : "");
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

int mgpu_cuda_free_memory(int64_t *bytes, int index)
{
    *bytes = 0;
    return mgpu_cuda_check(index);
}

int mgpu_cuda_version(int *version)
{
    return mgpu_cuda_count(version);
}

const char *mgpu_cuda_default(void)
{
    int count;
    if (sign_of_gpu() && mgpu_cuda_count(&count) < 0)
        mgpu_warn("training on the CPU: %s", mgpu_error());
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
