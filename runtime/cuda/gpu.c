#include "runtime/cuda/gpu.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int take_context(struct mgpu_gpu *gpu, bool tf32)
{
    const char *properties = gpu->cu.properties;
    struct mgpu_library_options options = {
        .properties = properties, .sm = gpu->sm, .exact = true, .tf32 = tf32};
    GPU_TRY(gpu, cuDeviceGet, (&gpu->device, gpu->index));
    GPU_TRY(gpu, cuDevicePrimaryCtxRetain, (&gpu->context, gpu->device));
    MGPU_TRY(mgpu_gpu_enter(gpu));
    if (gpu->cu.touches && !properties)
        return 0;
    MGPU_TRY(mgpu_library_open(&gpu->library, &options));
    return mgpu_gpu_enter(gpu);
}

int mgpu_gpu_open(struct mgpu_gpu *gpu, int index, bool tf32)
{
    *gpu = (struct mgpu_gpu){.index = index};
    MGPU_TRY(mgpu_cuda_load_driver(&gpu->cu));
    MGPU_TRY(mgpu_cuda_driver_check(&gpu->cu, index, &gpu->sm));
    int rc = take_context(gpu, tf32);
    if (rc < 0)
        mgpu_gpu_close(gpu);
    return rc;
}

void mgpu_gpu_close(struct mgpu_gpu *gpu)
{
    for (int i = 0; i < gpu->modules; i++) {
        gpu->cu.cuModuleUnload(gpu->module[i].module);
        free(gpu->module[i].text);
    }
    free(gpu->module);
    mgpu_library_enter(NULL);
    mgpu_library_close(gpu->library);
    if (gpu->context)
        gpu->cu.cuDevicePrimaryCtxRelease(gpu->device);
}

int mgpu_gpu_enter(const struct mgpu_gpu *gpu)
{
    GPU_TRY(gpu, cuCtxSetCurrent, (gpu->context));
    mgpu_library_enter(gpu->library);
    return 0;
}

/* In MiB; rounded so that what is needed never looks like what is free. */
static int no_memory(int64_t bytes, size_t available, size_t total, const char *what)
{
    double needed = ceil((double)bytes / 0x1p20 * 1e3) / 1e3;
    double there = floor((double)available / 0x1p20 * 1e3) / 1e3, all = (double)total / 0x1p20;
    if ((uint64_t)bytes > available)
        return mgpu_fail(MGPU_ENOMEM,
                         "%.3f MiB are needed for %s, %.3f of %.3f MiB are free: %.3f MiB are "
                         "missing",
                         needed, what, there, all, needed - there);
    return mgpu_fail(MGPU_ENOMEM,
                     "%.3f MiB are needed for %s, and the driver does not give them, although %.3f "
                     "of %.3f MiB are free",
                     needed, what, there, all);
}

int mgpu_gpu_alloc(const struct mgpu_gpu *gpu, CUdeviceptr *out, int64_t bytes, const char *what)
{
    size_t available = 0, total = 0;
    *out = 0;
    GPU_TRY(gpu, cuMemGetInfo, (&available, &total));
    CUresult result = (uint64_t)bytes > available ? CUDA_ERROR_OUT_OF_MEMORY
                                                  : gpu->cu.cuMemAlloc(out, (size_t)bytes + !bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return no_memory(bytes, available, total, what);
    return mgpu_cuda_status(&gpu->cu, result, "cuMemAlloc");
}

int mgpu_gpu_alloc_host(const struct mgpu_gpu *gpu, void **out, int64_t bytes)
{
    CUresult result = gpu->cu.cuMemAllocHost(out, (size_t)bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return mgpu_fail(MGPU_ENOMEM,
                         "the host does not give %.3f MiB of locked memory for copies to and from "
                         "the GPU (other programs or the limit of a container may hold it)",
                         ceil((double)bytes / 0x1p20 * 1e3) / 1e3);
    return mgpu_cuda_status(&gpu->cu, result, "cuMemAllocHost");
}

static CUmodule loaded(const struct mgpu_gpu *gpu, const char *text)
{
    for (int i = 0; i < gpu->modules; i++)
        if (!strcmp(gpu->module[i].text, text))
            return gpu->module[i].module;
    return NULL;
}

static int load(struct mgpu_gpu *gpu, const char *text, const struct mgpu_cubin *cubin)
{
    struct mgpu_gpu_module m = {0};
    GPU_TRY(gpu, cuModuleLoadData, (&m.module, cubin->data));
    m.text = mgpu_xstrdup(text);
    gpu->module = mgpu_grow(gpu->module, (size_t)gpu->modules, sizeof *gpu->module);
    gpu->module[gpu->modules++] = m;
    return 0;
}

static int load_missing(struct mgpu_gpu *gpu, const char *const *text, int count)
{
    struct mgpu_cubin *cubin = mgpu_xcalloc((size_t)count + 1, sizeof *cubin);
    int rc = mgpu_cuda_compile_all(cubin, text, count, gpu->sm);
    for (int i = 0; i < count; i++) {
        if (rc == 0)
            rc = load(gpu, text[i], &cubin[i]);
        mgpu_cubin_free(&cubin[i]);
    }
    free(cubin);
    return rc;
}

int mgpu_gpu_load(struct mgpu_gpu *gpu, const char *const *text, int count, CUmodule *out)
{
    int missing = 0;
    const char **list = mgpu_xcalloc((size_t)count + 1, sizeof *list);
    for (int i = 0; i < count; i++)
        if (!loaded(gpu, text[i]))
            list[missing++] = text[i];
    int rc = load_missing(gpu, list, missing);
    free(list);
    for (int i = 0; i < count && rc == 0; i++)
        out[i] = loaded(gpu, text[i]);
    return rc;
}
