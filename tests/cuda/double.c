#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/executor/devices.h"
#include "tests/cuda/double_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct double_gpu double_gpu = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .version = CUDA_VERSION,
                                .no_capture = -1,
                                .streams_left = -1};

void double_complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!double_gpu.complaints++)
        vsnprintf(double_gpu.complaint, sizeof double_gpu.complaint, format, args);
    va_end(args);
}

bool double_skipped(void)
{
    if (emulate_possible())
        return false;
    fprintf(stderr, "skipped: no C compiler, or the thread sanitizer\n");
    return true;
}

void double_begin(int gpus, int64_t bytes)
{
    double_gpu.gpus = gpus;
    double_gpu.bytes = bytes;
    double_gpu.drop = -1;
    setenv("MGPU_CACHE", "/dev/null", 1); /* nothing is kept */
    double_make_library();
    double_gpu.driver = double_driver;
    mgpu_cuda_stand_in(&double_gpu.driver, &double_nvrtc);
}

void double_end(void)
{
    mgpu_cuda_stand_in(NULL, NULL);
    mgpu_gpu_library(NULL);
    for (int i = 0; i < double_gpu.graph_count; i++)
        free(double_gpu.graphs[i]);
    double_gpu.graph_count = 0;
    double_free_modules();
    if (double_gpu.alive || double_gpu.blocks)
        double_complain("%d things and %s memory were not freed", double_gpu.alive,
                        double_gpu.blocks ? "some" : "no");
}

bool double_wanted(void)
{
    const char *check = getenv("MGPU_CHECK"), *gpu = check ? strchr(check, ' ') : NULL;
    if (!check || strncmp(check, "double", strlen("double")))
        return false;
    if (double_skipped())
        exit(77);
    double_begin(1, INT64_C(1) << 30);
    if (gpu && !double_libraries(gpu + 1)) {
        fprintf(stderr, "no cuDNN or cuBLASLt, or no such GPU: '%s'\n", gpu + 1);
        exit(EXIT_FAILURE);
    }
    return true;
}

const char *double_devices(char list[1024], const char *devices)
{
    struct mgpu_rank_device *d;
    int count = 0;
    if (!devices || mgpu_devices_parse(&d, &count, devices, 0) < 0)
        return devices;
    *list = 0;
    for (int i = 0; i < count; i++)
        snprintf(list + strlen(list), 1024 - strlen(list), "%scuda:0", i ? "," : "");
    free(d);
    return list;
}

int double_complaints(void)
{
    return double_gpu.complaints;
}

const char *double_complaint(void)
{
    return double_gpu.complaints ? double_gpu.complaint : "";
}

void double_forget(void)
{
    double_gpu.complaints = 0;
}

struct double_calls double_count(void)
{
    return double_gpu.calls;
}

void double_drop_wait(int wait)
{
    double_gpu.drop = wait;
}

void double_driver_version(int version)
{
    double_gpu.version = version;
}

void double_name(const char *name)
{
    double_gpu.name = name;
}

void double_busy(bool busy)
{
    double_gpu.busy = busy;
}

void double_waits_fail(int result)
{
    double_gpu.wait_result = (CUresult)result;
}

void double_most_streams(int count)
{
    double_gpu.streams_left = count;
}

void double_slow_library(int us)
{
    double_gpu.library_us = us;
}

void double_no_capture(int work, int result)
{
    double_gpu.no_capture = work;
    double_gpu.capture_result = (CUresult)result;
}
