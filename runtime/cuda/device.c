#include "runtime/cuda/device.h"

#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/error.h"
#include "runtime/cuda/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_TRY(driver, call, arguments)                                                        \
    MGPU_TRY(mgpu_cuda_status(driver, (driver)->call arguments, #call))

/* A driver runs what its own or an earlier major version of the toolkit made. */
static int check_version(const struct mgpu_cuda_driver *driver)
{
    int version = 0;
    DRIVER_TRY(driver, cuDriverGetVersion, (&version));
    if (version / 1000 < CUDA_VERSION / 1000)
        return mgpu_cuda_too_old(version);
    return 0;
}

int mgpu_cuda_driver_count(const struct mgpu_cuda_driver *driver, int *count)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = 0;
    MGPU_TRY(check_version(driver));
    const char *call = "cuInit";
    CUresult result = driver->cuInit(0);
    if (result == CUDA_SUCCESS) {
        call = "cuDeviceGetCount";
        result = driver->cuDeviceGetCount(count);
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE)
        return mgpu_cuda_status(driver, result, call);
    if (*count > 0)
        return 0;
    if (visible)
        return mgpu_fail(
            MGPU_EDEVICE,
            "no GPU is visible: CUDA_VISIBLE_DEVICES is '%s' (nvidia-smi -L lists GPUs, "
            "from 0 on)",
            visible);
    return mgpu_fail(MGPU_EDEVICE,
                     "there is an NVIDIA driver but no GPU (nvidia-smi -L lists those it has)");
}

static int no_such_device(int index, int count)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *why = visible ? " (CUDA_VISIBLE_DEVICES may hide others)" : "";
    if (count == 1)
        return mgpu_fail(MGPU_EDEVICE, "there is no GPU %d, only cuda:0%s", index, why);
    return mgpu_fail(MGPU_EDEVICE, "there is no GPU %d, only cuda:0 to cuda:%d%s", index, count - 1,
                     why);
}

/* What only predictions want: 0 where the driver does not say. */
static double property(const struct mgpu_cuda_driver *driver, CUdevice device,
                       CUdevice_attribute attribute)
{
    int value = 0;
    return driver->cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

/* Clocks are in kHz; a memory's makes two transfers of so many bits a cycle. */
static void ask_speed(const struct mgpu_cuda_driver *driver, CUdevice device,
                      struct mgpu_gpu_facts *out)
{
    out->cycles = 1e3 * property(driver, device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) *
                  property(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    out->bytes = 1e3 * property(driver, device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * 2 *
                 property(driver, device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8;
}

static int ask_facts(const struct mgpu_cuda_driver *driver, int index, struct mgpu_gpu_facts *out)
{
    int major = 0, minor = 0;
    size_t memory = 0;
    CUdevice device;
    DRIVER_TRY(driver, cuDeviceGet, (&device, index));
    DRIVER_TRY(driver, cuDeviceGetName, (out->name, sizeof out->name, device));
    DRIVER_TRY(driver, cuDeviceTotalMem, (&memory, device));
    DRIVER_TRY(driver, cuDeviceGetAttribute,
               (&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    DRIVER_TRY(driver, cuDeviceGetAttribute,
               (&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    out->sm = 10 * major + minor;
    out->memory = (int64_t)memory;
    ask_speed(driver, device, out);
    return 0;
}

int mgpu_cuda_driver_facts(const struct mgpu_cuda_driver *driver, int index,
                           struct mgpu_gpu_facts *out)
{
    int count;
    *out = (struct mgpu_gpu_facts){0};
    MGPU_TRY(mgpu_cuda_driver_count(driver, &count));
    if (index >= count)
        return no_such_device(index, count);
    int rc = ask_facts(driver, index, out);
    return mgpu_prefix(rc, "cuda:%d", index);
}

int mgpu_cuda_driver_check(const struct mgpu_cuda_driver *driver, int index, int *sm)
{
    struct mgpu_gpu_facts gpu;
    MGPU_TRY(mgpu_cuda_driver_facts(driver, index, &gpu));
    *sm = gpu.sm;
    if (*sm < MGPU_CUDA_OLDEST_SM)
        return mgpu_fail(MGPU_EDEVICE,
                         "'%s' has compute capability %d.%d, mgpu needs %d.%d or more", gpu.name,
                         *sm / 10, *sm % 10, MGPU_CUDA_OLDEST_SM / 10, MGPU_CUDA_OLDEST_SM % 10);
    return 0;
}

int mgpu_cuda_facts(struct mgpu_gpu_facts *out, int index)
{
    struct mgpu_cuda_driver driver;
    MGPU_TRY(mgpu_cuda_load_driver(&driver));
    return mgpu_cuda_driver_facts(&driver, index, out);
}

/* Memory is a context's to tell. */
static int ask_free(const struct mgpu_cuda_driver *driver, int index, size_t *available)
{
    CUdevice device;
    CUcontext context;
    size_t total;
    DRIVER_TRY(driver, cuDeviceGet, (&device, index));
    DRIVER_TRY(driver, cuDevicePrimaryCtxRetain, (&context, device));
    int rc = mgpu_cuda_status(driver, driver->cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (rc == 0)
        rc = mgpu_cuda_status(driver, driver->cuMemGetInfo(available, &total), "cuMemGetInfo");
    driver->cuCtxSetCurrent(NULL);
    driver->cuDevicePrimaryCtxRelease(device);
    return rc;
}

int mgpu_cuda_free_memory(int64_t *bytes, int index)
{
    struct mgpu_cuda_driver driver;
    int count;
    size_t available = 0;
    MGPU_TRY(mgpu_cuda_load_driver(&driver));
    MGPU_TRY(mgpu_cuda_driver_count(&driver, &count));
    MGPU_TRY(index < count ? ask_free(&driver, index, &available) : no_such_device(index, count));
    *bytes = (int64_t)available;
    return 0;
}

int mgpu_cuda_version(int *version)
{
    struct mgpu_cuda_driver driver;
    MGPU_TRY(mgpu_cuda_load_driver(&driver));
    return mgpu_cuda_status(&driver, driver.cuDriverGetVersion(version), "cuDriverGetVersion");
}

int mgpu_cuda_count(int *count)
{
    struct mgpu_cuda_driver driver;
    *count = 0;
    MGPU_TRY(mgpu_cuda_load_driver(&driver));
    return mgpu_cuda_driver_count(&driver, count);
}

int mgpu_cuda_check_libraries(void)
{
    struct mgpu_cuda_nvrtc nvrtc;
    struct mgpu_cuda_lt lt;
    struct mgpu_cuda_dnn dnn;
    char lacks[1024] = "";
    for (int i = 0; i < 3; i++) {
        int rc = i == 0   ? mgpu_cuda_load_nvrtc(&nvrtc)
                 : i == 1 ? mgpu_cuda_load_lt(&lt)
                          : mgpu_cuda_load_dnn(&dnn);
        size_t length = strlen(lacks);
        if (rc < 0)
            snprintf(lacks + length, sizeof lacks - length, "%s; ", mgpu_error());
    }
    if (!*lacks)
        return 0;
    return mgpu_fail(MGPU_EDEVICE,
                     "%sinstall what is missing, or name its folder in LD_LIBRARY_PATH (Python's "
                     "packages have it in site-packages/nvidia/*/lib)",
                     lacks);
}

int mgpu_cuda_check(int index)
{
    int sm;
    struct mgpu_cuda_driver driver;
    MGPU_TRY(mgpu_cuda_load_driver(&driver));
    MGPU_TRY(mgpu_cuda_driver_check(&driver, index, &sm));
    return mgpu_cuda_check_libraries();
}

/* It may be there and not to be had: taken by another process alone, without memory for a context.
 */
static int try_gpu(int index)
{
    struct mgpu_gpu gpu;
    MGPU_TRY(mgpu_cuda_check(index));
    MGPU_TRY(mgpu_gpu_open(&gpu, index, false));
    mgpu_gpu_close(&gpu);
    return 0;
}

const char *mgpu_cuda_default(void)
{
    struct mgpu_cuda_driver driver;
    int rc = mgpu_cuda_load_driver(&driver), count = 0;
    if (!driver.cuInit || driver.cuInit(0) == CUDA_ERROR_NO_DEVICE)
        return "cpu";
    if (rc == 0)
        rc = try_gpu(0);
    if (rc < 0) {
        mgpu_warn("training on the CPU; the GPU cannot be used: %s", mgpu_error());
        return "cpu";
    }
    if (driver.cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 1)
        mgpu_note("training on cuda:0, one of %d GPUs (several are not supported yet)", count);
    return "cuda:0";
}
