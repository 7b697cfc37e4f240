#include "runtime/cuda/error.h"

#include "runtime/base/status.h"

#include <stdio.h>
#include <string.h>

/* ---- What can be done ------------------------------------------------------------------------ */

enum cause {
    OTHER,
    MEMORY,
    NO_START,
    OURS,
    BROKEN,
    OLD_DRIVER,
    COMPAT,
    NO_SUCH,
    MPS,
    TAKEN,
    WATCHDOG,
    NOT_WHOLE,
    SETUP
};

static const char *const ways_out[] = {
    [OTHER] = "",
    [MEMORY] = "; the GPU's memory is used up: a smaller --batch takes less, and nvidia-smi lists "
               "other programs that hold some",
    [NO_START] = "; other programs hold the GPU's memory (nvidia-smi lists them), or a limit "
                 "(ulimit -v, a container's, CUDA MPS) is too low to begin with",
    [OURS] = "; this is a fault of mgpu, not of the model or its data: please report it with the "
             "command, the model and this line",
    [BROKEN] = "; the GPU itself has failed or is lost: dmesg (Xid) and nvidia-smi -q say more; "
               "reset it or restart the machine, and go on from a checkpoint",
    [OLD_DRIVER] = "; the driver is older than the compiler of its kernels (NVRTC): install a "
                   "newer driver",
    [COMPAT] = "; the libcuda.so.1 that is found is newer than the machine's driver, as that of a "
               "container's cuda-compat package is, which only GPUs of data centres take: leave "
               "its folder out of LD_LIBRARY_PATH, or install a newer driver on the machine",
    [NO_SUCH] = "; no GPU of such a number can be used: nvidia-smi -L lists those that are there, "
                "and CUDA_VISIBLE_DEVICES or the container's settings choose among them",
    [MPS] = "; CUDA MPS, which lets programs share the GPU, does not serve this one: restart "
            "nvidia-cuda-mps-control, or end it and unset CUDA_MPS_PIPE_DIRECTORY",
    [TAKEN] = "; another process has the GPU for itself: wait for it to end (nvidia-smi lists it)",
    [WATCHDOG] = "; the GPU drives a display, too, whose watchdog ends long kernels: a smaller "
                 "--batch makes them shorter",
    [NOT_WHOLE] = "; a part of the library is missing or of another version: install it whole, "
                  "and name its folder in LD_LIBRARY_PATH",
    [SETUP] = "; the machine is not set up for GPUs: nvidia-smi says whether the driver works, and "
              "a new driver needs a restart",
};

/* A call of the driver, or what a library does, before a run has any memory. */
static bool starts(const char *what)
{
    return !strcmp(what, "cuInit") || !strcmp(what, "cuDevicePrimaryCtxRetain") ||
           !strncmp(what, "starting", strlen("starting"));
}

/* A smaller batch is of no help to a start. */
static const char *way_out(enum cause cause, const char *what)
{
    return ways_out[cause == MEMORY && starts(what) ? NO_START : cause];
}

int mgpu_gpu_error_length(void)
{
    const char *text = mgpu_error(), *ours = strstr(text, ways_out[OURS]);
    return (int)(ours ? (size_t)(ours - text) : strlen(text));
}

/* ---- The driver ------------------------------------------------------------------------------ */

static enum cause cause_of(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return MEMORY;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return OURS;
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_UNKNOWN: /* also of a GPU that fell off its bus */
        return BROKEN;
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
        return OLD_DRIVER;
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
        return COMPAT;
    case CUDA_ERROR_INVALID_DEVICE:
        return NO_SUCH;
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
        return MPS;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return TAKEN;
    case CUDA_ERROR_LAUNCH_TIMEOUT:
        return WATCHDOG;
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_STUB_LIBRARY:
        return SETUP;
    default:
        return OTHER;
    }
}

static const struct {
    const char *call, *words;
} calls[] = {
    {"cuInit", "starting the driver"},
    {"cuDriverGetVersion", "asking for the driver's version"},
    {"cuDeviceGet", "looking for the GPU"},
    {"cuDeviceGetCount", "counting the GPUs"},
    {"cuDeviceGetName", "asking for the GPU's name"},
    {"cuDeviceGetAttribute", "asking for a property of the GPU"},
    {"cuDeviceTotalMem", "asking for the size of the GPU's memory"},
    {"cuDevicePrimaryCtxRetain", "taking the GPU into use"},
    {"cuCtxSetCurrent", "turning a thread to the GPU"},
    {"cuMemGetInfo", "asking how much memory is free"},
    {"cuMemAlloc", "taking memory of the GPU"},
    {"cuMemAllocHost", "taking memory of the host that the GPU reads"},
    {"cuMemcpyHtoDAsync", "copying to the GPU"},
    {"cuMemcpyDtoHAsync", "copying from the GPU"},
    {"cuMemcpyDtoDAsync", "copying on the GPU"},
    {"cuMemcpy2DAsync", "copying on the GPU"},
    {"cuMemsetD8Async", "filling memory of the GPU"},
    {"cuStreamCreateWithPriority", "making a stream"},
    {"cuStreamSynchronize", "waiting for the GPU's work"},
    {"cuStreamWaitEvent", "ordering the GPU's work"},
    {"cuEventCreate", "making an event"},
    {"cuEventRecord", "ordering the GPU's work"},
    {"cuEventRecordWithFlags", "timing the GPU's work"},
    {"cuEventSynchronize", "waiting for the GPU's work"},
    {"cuEventElapsedTime", "timing the GPU's work"},
    {"cuStreamBeginCapture", "capturing a step as a graph"},
    {"cuStreamEndCapture", "capturing a step as a graph"},
    {"cuGraphInstantiateWithFlags", "making a captured step ready"},
    {"cuGraphLaunch", "launching a captured step"},
    {"cuModuleLoadData", "loading kernels"},
    {"cuModuleGetFunction", "finding a kernel"},
    {"cuLaunchKernel", "launching a kernel"},
};

static const char *words_of(const char *call)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i].call, call))
            return calls[i].words;
    return "a call of the driver";
}

int mgpu_cuda_status(const struct mgpu_cuda_driver *driver, CUresult result, const char *call)
{
    const char *name = NULL, *text = NULL;
    char number[32];
    if (result == CUDA_SUCCESS)
        return 0;
    driver->cuGetErrorName(result, &name);
    driver->cuGetErrorString(result, &text);
    snprintf(number, sizeof number, "error %d", (int)result);
    /* What is lost in a run was never there at its start. */
    enum cause cause = result == CUDA_ERROR_UNKNOWN && starts(call) ? SETUP : cause_of(result);
    return mgpu_fail(MGPU_EDEVICE, "%s (%s) failed: %s, %s%s", words_of(call), call,
                     name ? name : number, text ? text : "which the driver does not know",
                     way_out(cause, call));
}

/* ---- Libraries ------------------------------------------------------------------------------- */

int mgpu_lt_status(const struct mgpu_cuda_lt *lt, cublasStatus_t status, const char *what)
{
    enum cause cause = status == CUBLAS_STATUS_ALLOC_FAILED      ? MEMORY
                       : status == CUBLAS_STATUS_NOT_INITIALIZED ? SETUP
                       : status == CUBLAS_STATUS_INVALID_VALUE ||
                               status == CUBLAS_STATUS_EXECUTION_FAILED ||
                               status == CUBLAS_STATUS_MAPPING_ERROR
                           ? OURS
                           : OTHER;
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return mgpu_fail(status == CUBLAS_STATUS_NOT_SUPPORTED ? MGPU_EUNSUPPORTED : MGPU_EDEVICE,
                     "cuBLASLt: %s failed: %s, %s%s", what, lt->cublasLtGetStatusName(status),
                     lt->cublasLtGetStatusString(status), way_out(cause, what));
}

static enum cause dnn_cause(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
        return MEMORY;
    case CUDNN_STATUS_NOT_INITIALIZED:
        return SETUP;
    case CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH:
    case CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH:
    case CUDNN_STATUS_DEPRECATED:
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
        return NOT_WHOLE;
    default:
        return status / 1000 == CUDNN_STATUS_EXECUTION_FAILED / 1000 ? OURS : OTHER;
    }
}

int mgpu_dnn_status(const struct mgpu_cuda_dnn *dnn, cudnnStatus_t status, const char *what)
{
    char words[1024] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return 0;
    dnn->cudnnGetLastErrorString(words, sizeof words);
    words[strcspn(words, "\n")] = 0;
    bool no_engine = status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ||
                     status / 1000 == CUDNN_STATUS_BAD_PARAM / 1000;
    return mgpu_fail(no_engine ? MGPU_EUNSUPPORTED : MGPU_EDEVICE, "cuDNN: %s failed: %s%s%s%s",
                     what, dnn->cudnnGetErrorString(status), *words ? ", " : "", words,
                     way_out(dnn_cause(status), what));
}

/* Builtins: a part of NVRTC that is a library of its own, which it opens when it compiles. */
int mgpu_nvrtc_status(const struct mgpu_cuda_nvrtc *nvrtc, nvrtcResult result, const char *what,
                      const char *log)
{
    bool builtins = result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
    enum cause cause = builtins ? NOT_WHOLE : result == NVRTC_ERROR_OUT_OF_MEMORY ? OTHER : OURS;
    if (result == NVRTC_SUCCESS)
        return 0;
    return mgpu_fail(builtins ? MGPU_EDEVICE : MGPU_EINTERNAL, "NVRTC: %s failed: %s%s%.2000s%s",
                     what, nvrtc->nvrtcGetErrorString(result), *log ? ", " : "", log,
                     way_out(cause, what));
}
