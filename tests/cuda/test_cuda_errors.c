/* What is said when a call of the driver or a library fails: the device, what was done, the error's
 * name and words, and what to do. */
#include "runtime/cuda/error.h"
#include "runtime/mgpu.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <string.h>

/* ---- A driver and libraries that only tell errors -------------------------------------------- */

static CUresult name_of(CUresult result, const char **name)
{
    *name = "NAME";
    return result == CUDA_ERROR_TOO_MANY_PEERS                            ? *name = NULL,
                                                 CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult text_of(CUresult result, const char **text)
{
    *text = "its words";
    return result == CUDA_ERROR_TOO_MANY_PEERS                            ? *text = NULL,
                                                 CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static const struct mgpu_cuda_driver driver = {.cuGetErrorName = name_of,
                                               .cuGetErrorString = text_of};

static const char *lt_word(cublasStatus_t status)
{
    (void)status;
    return "CUBLAS";
}

static const struct mgpu_cuda_lt lt = {.cublasLtGetStatusName = lt_word,
                                       .cublasLtGetStatusString = lt_word};

static const char *dnn_word(cudnnStatus_t status)
{
    (void)status;
    return "CUDNN";
}

static void last_dnn_words(char *words, size_t size)
{
    snprintf(words, size, "the first line\nmore");
}

static const struct mgpu_cuda_dnn dnn = {.cudnnGetErrorString = dnn_word,
                                         .cudnnGetLastErrorString = last_dnn_words};

static const char *nvrtc_word(nvrtcResult result)
{
    (void)result;
    return "NVRTC_ERROR";
}

static const struct mgpu_cuda_nvrtc nvrtc = {.nvrtcGetErrorString = nvrtc_word};

/* ---- Checks ---------------------------------------------------------------------------------- */

static void check(CUresult result, const char *call, const char *want)
{
    int rc = mgpu_cuda_status(&driver, result, call);
    CHECK_(rc == MGPU_EDEVICE && strstr(mgpu_error(), want), "'%s', not '%s'", mgpu_error(), want);
}

static void test_driver(void)
{
    CHECK_OK(mgpu_cuda_status(&driver, CUDA_SUCCESS, "cuMemFree"));
    check(CUDA_ERROR_OUT_OF_MEMORY, "cuStreamCreateWithPriority",
          "making a stream (cuStreamCreateWithPriority) failed: NAME, its words; the GPU's memory "
          "is used up: a smaller --batch");
    check(CUDA_ERROR_OUT_OF_MEMORY, "cuInit",
          "starting the driver (cuInit) failed: NAME, its words; other programs hold the GPU's "
          "memory (nvidia-smi lists them), or a limit");
    check(CUDA_ERROR_OUT_OF_MEMORY, "cuDevicePrimaryCtxRetain", "; other programs hold");
    check(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "cuInit",
          "its words; the libcuda.so.1 that is found is newer than the machine's driver");
    check(CUDA_ERROR_INVALID_DEVICE, "cuInit", "its words; no GPU of such a number can be used");
    check(CUDA_ERROR_MPS_CONNECTION_FAILED, "cuInit", "its words; CUDA MPS, which lets");
    check(CUDA_ERROR_ILLEGAL_ADDRESS, "cuEventSynchronize",
          "waiting for the GPU's work (cuEventSynchronize) failed: NAME, its words; this is a "
          "fault of mgpu");
    check(CUDA_ERROR_LAUNCH_FAILED, "cuGraphLaunch", "this is a fault of mgpu");
    check(CUDA_ERROR_ECC_UNCORRECTABLE, "cuMemcpyDtoHAsync", "the GPU itself has failed");
    check(CUDA_ERROR_UNKNOWN, "cuMemcpyDtoHAsync", "the GPU itself has failed");
    check(CUDA_ERROR_UNKNOWN, "cuInit", "its words; the machine is not set up for GPUs");
    check(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "cuModuleLoadData",
          "loading kernels (cuModuleLoadData) failed: NAME, its words; the driver is older than");
    check(CUDA_ERROR_DEVICE_UNAVAILABLE, "cuDevicePrimaryCtxRetain", "another process has the GPU");
    check(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "cuInit", "a new driver needs a restart");
    check(CUDA_ERROR_TOO_MANY_PEERS, "cuNone",
          "a call of the driver (cuNone) failed: error 711, which the driver does not know");
}

static void test_libraries(void)
{
    CHECK_OK(mgpu_lt_status(&lt, CUBLAS_STATUS_SUCCESS, "running"));
    CHECK(mgpu_lt_status(&lt, CUBLAS_STATUS_NOT_SUPPORTED, "running") == MGPU_EUNSUPPORTED);
    CHECK_FAILS(mgpu_lt_status(&lt, CUBLAS_STATUS_ALLOC_FAILED, "starting (cublasLtCreate)"),
                "cuBLASLt: starting (cublasLtCreate) failed: CUBLAS, CUBLAS; other programs hold");
    CHECK_FAILS(mgpu_lt_status(&lt, CUBLAS_STATUS_ALLOC_FAILED, "running"),
                "cuBLASLt: running failed: CUBLAS, CUBLAS; the GPU's memory is used up");
    CHECK_FAILS(mgpu_lt_status(&lt, CUBLAS_STATUS_EXECUTION_FAILED, "running"), "fault of mgpu");
    CHECK_OK(mgpu_dnn_status(&dnn, CUDNN_STATUS_SUCCESS, "running"));
    CHECK(mgpu_dnn_status(&dnn, CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "running") == MGPU_EUNSUPPORTED);
    CHECK_FAILS(mgpu_dnn_status(&dnn, CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "running"),
                "cuDNN: running failed: CUDNN, the first line; this is a fault of mgpu");
    CHECK_FAILS(mgpu_dnn_status(&dnn, CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH, "starting"),
                "of another version: install it whole");
    CHECK_FAILS(mgpu_dnn_status(&dnn, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "x"),
                "the GPU's memory is used up");
    CHECK_OK(mgpu_nvrtc_status(&nvrtc, NVRTC_SUCCESS, "compiling", ""));
    CHECK_FAILS(mgpu_nvrtc_status(&nvrtc, NVRTC_ERROR_COMPILATION, "compiling", "k.cu(3): error"),
                "NVRTC: compiling failed: NVRTC_ERROR, k.cu(3): error; this is a fault of mgpu");
    CHECK_FAILS(mgpu_nvrtc_status(&nvrtc, NVRTC_ERROR_OUT_OF_MEMORY, "compiling", ""),
                "NVRTC: compiling failed: NVRTC_ERROR");
    CHECK(!strstr(mgpu_error(), "fault of mgpu"));
}

/* A run in the middle of which the GPU fails names it, whether it has one rank or several. */
static void test_run(const char *devices)
{
    struct tiny_result r;
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){8, 4}),
                       tiny_noise("label", 5, 2, (int64_t[]){8, 2}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 8;
    o.steps = 4;
    o.devices = devices;
    o.strategy = "data";
    double_waits_fail(CUDA_ERROR_ECC_UNCORRECTABLE);
    tiny_train(&r,
               tiny_model("input x float N 4\ninit w float 4 2 = 0\ny = MatMul(x, w)\n"
                          "output y float N 2\n"),
               &o, NULL, 0);
    double_waits_fail(CUDA_SUCCESS);
    CHECK_(r.rc == MGPU_EDEVICE &&
               strstr(r.error, " (cuda:0): waiting for the GPU's work (cuEventSynchronize) "
                               "failed: CUDA_ERROR_OF_THE_DOUBLE, error 214 of the double; the GPU "
                               "itself has failed"),
           "%s: %s", devices, r.error);
    const char *first = strstr(r.error, "cuda:0");
    CHECK_(first && !strstr(first + 1, "cuda:0"), "%s: %s", devices, r.error);
}

int main(void)
{
    test_driver();
    test_libraries();
    if (double_skipped())
        return test_end();
    tiny_begin();
    double_begin(1, INT64_C(1) << 30);
    test_run("cuda:0");
    test_run("cuda:0,cuda:0");
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint()); /* all is freed then, too */
    tiny_end();
    return test_end();
}
