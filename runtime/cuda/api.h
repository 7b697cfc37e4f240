/* Every function of the driver and NVIDIA's libraries that mgpu calls, as tables of pointers.
 *
 * The libraries are opened when first asked for, so that one program runs on machines with and
 * without them; a test puts functions of its own into a table. Members have the functions' names:
 * api->cuInit(0).
 */
#ifndef MGPU_CUDA_API_H
#define MGPU_CUDA_API_H

#include <cublasLt.h>
#include <cuda.h>
#include <cudnn.h>
#include <nvrtc.h>
#include <stdbool.h>
#include <stdint.h>

/* cmake tells the error to those who build (find.cmake). */
#define MGPU_CUDA_OLDEST_CUDNN 90800 /* which makes plans for a GPU's properties */
#if CUDA_VERSION < 13000
#error "CUDA 13 or newer is needed"
#endif
#if CUDNN_VERSION < MGPU_CUDA_OLDEST_CUDNN
#error "cuDNN 9.8 or newer is needed"
#endif

#define MGPU_CUDA_DRIVER(F)                                                                        \
    F(cuInit)                                                                                      \
    F(cuDriverGetVersion)                                                                          \
    F(cuDeviceGetCount)                                                                            \
    F(cuDeviceGet)                                                                                 \
    F(cuDeviceGetName)                                                                             \
    F(cuDeviceGetAttribute)                                                                        \
    F(cuDeviceTotalMem)                                                                            \
    F(cuGetErrorName)                                                                              \
    F(cuGetErrorString)                                                                            \
    F(cuDevicePrimaryCtxRetain)                                                                    \
    F(cuDevicePrimaryCtxRelease)                                                                   \
    F(cuCtxSetCurrent)                                                                             \
    F(cuMemGetInfo)                                                                                \
    F(cuMemAlloc)                                                                                  \
    F(cuMemFree)                                                                                   \
    F(cuMemAllocHost)                                                                              \
    F(cuMemFreeHost)                                                                               \
    F(cuMemcpyHtoDAsync)                                                                           \
    F(cuMemcpyDtoHAsync)                                                                           \
    F(cuMemcpyDtoDAsync)                                                                           \
    F(cuMemcpy2DAsync)                                                                             \
    F(cuMemsetD8Async)                                                                             \
    F(cuStreamCreateWithPriority)                                                                  \
    F(cuStreamDestroy)                                                                             \
    F(cuStreamSynchronize)                                                                         \
    F(cuStreamWaitEvent)                                                                           \
    F(cuEventCreate)                                                                               \
    F(cuEventDestroy)                                                                              \
    F(cuEventRecord)                                                                               \
    F(cuEventRecordWithFlags)                                                                      \
    F(cuEventSynchronize)                                                                          \
    F(cuEventElapsedTime)                                                                          \
    F(cuStreamBeginCapture)                                                                        \
    F(cuStreamEndCapture)                                                                          \
    F(cuGraphInstantiateWithFlags)                                                                 \
    F(cuGraphLaunch)                                                                               \
    F(cuGraphDestroy)                                                                              \
    F(cuGraphExecDestroy)                                                                          \
    F(cuModuleLoadData)                                                                            \
    F(cuModuleUnload)                                                                              \
    F(cuModuleGetFunction)                                                                         \
    F(cuLaunchKernel)

#define MGPU_CUDA_NVRTC(F)                                                                         \
    F(nvrtcVersion)                                                                                \
    F(nvrtcGetNumSupportedArchs)                                                                   \
    F(nvrtcGetSupportedArchs)                                                                      \
    F(nvrtcGetErrorString)                                                                         \
    F(nvrtcCreateProgram)                                                                          \
    F(nvrtcCompileProgram)                                                                         \
    F(nvrtcGetProgramLogSize)                                                                      \
    F(nvrtcGetProgramLog)                                                                          \
    F(nvrtcGetCUBINSize)                                                                           \
    F(nvrtcGetCUBIN)                                                                               \
    F(nvrtcGetPTXSize)                                                                             \
    F(nvrtcGetPTX)                                                                                 \
    F(nvrtcDestroyProgram)

#define MGPU_CUDA_LT(F)                                                                            \
    F(cublasLtGetVersion)                                                                          \
    F(cublasLtGetStatusName)                                                                       \
    F(cublasLtGetStatusString)                                                                     \
    F(cublasLtCreate)                                                                              \
    F(cublasLtDestroy)                                                                             \
    F(cublasLtMatmulDescCreate)                                                                    \
    F(cublasLtMatmulDescDestroy)                                                                   \
    F(cublasLtMatmulDescSetAttribute)                                                              \
    F(cublasLtMatrixLayoutCreate)                                                                  \
    F(cublasLtMatrixLayoutDestroy)                                                                 \
    F(cublasLtMatrixLayoutSetAttribute)                                                            \
    F(cublasLtMatmulPreferenceCreate)                                                              \
    F(cublasLtMatmulPreferenceDestroy)                                                             \
    F(cublasLtMatmulPreferenceSetAttribute)                                                        \
    F(cublasLtMatmulAlgoGetHeuristic)                                                              \
    F(cublasLtMatmul)

#define MGPU_CUDA_DNN(F)                                                                           \
    F(cudnnGetVersion)                                                                             \
    F(cudnnGetErrorString)                                                                         \
    F(cudnnGetLastErrorString)                                                                     \
    F(cudnnCreate)                                                                                 \
    F(cudnnDestroy)                                                                                \
    F(cudnnSetStream)                                                                              \
    F(cudnnBackendCreateDescriptor)                                                                \
    F(cudnnBackendDestroyDescriptor)                                                               \
    F(cudnnBackendSetAttribute)                                                                    \
    F(cudnnBackendGetAttribute)                                                                    \
    F(cudnnBackendFinalize)                                                                        \
    F(cudnnBackendExecute)                                                                         \
    F(cudnnCreateTensorDescriptor)                                                                 \
    F(cudnnDestroyTensorDescriptor)                                                                \
    F(cudnnSetTensorNdDescriptor)                                                                  \
    F(cudnnCreateRNNDescriptor)                                                                    \
    F(cudnnDestroyRNNDescriptor)                                                                   \
    F(cudnnSetRNNDescriptor_v8)                                                                    \
    F(cudnnCreateRNNDataDescriptor)                                                                \
    F(cudnnDestroyRNNDataDescriptor)                                                               \
    F(cudnnSetRNNDataDescriptor)                                                                   \
    F(cudnnGetRNNTempSpaceSizes)                                                                   \
    F(cudnnGetRNNWeightSpaceSize)                                                                  \
    F(cudnnGetRNNWeightParams)                                                                     \
    F(cudnnRNNForward)                                                                             \
    F(cudnnRNNBackwardData_v8)                                                                     \
    F(cudnnRNNBackwardWeights_v8)

#define MGPU_CUDA_MEMBER(f) __typeof__(&f) f;

/* Memory of the GPU that work submitted to a stream touches. */
struct mgpu_cuda_access {
    CUdeviceptr at;
    int64_t bytes;
    bool write; /* and perhaps read */
};

struct mgpu_cuda_driver {
    MGPU_CUDA_DRIVER(MGPU_CUDA_MEMBER)

    /* Told before work is submitted what it touches, where the call does not say so itself (a
     * launch); for tests' tables, NULL in a real one. */
    void (*touches)(CUstream stream, const struct mgpu_cuda_access *access, int count);

    /* With it: a GPU's properties (library.h), that NVIDIA's libraries accept nodes and make plans
     * for. NULL: the libraries are not opened. */
    const char *properties;
};
struct mgpu_cuda_nvrtc {
    MGPU_CUDA_NVRTC(MGPU_CUDA_MEMBER)
};
struct mgpu_cuda_lt {
    MGPU_CUDA_LT(MGPU_CUDA_MEMBER)
};
struct mgpu_cuda_dnn {
    MGPU_CUDA_DNN(MGPU_CUDA_MEMBER)
};

/* Fill a table, once its library has been opened. MGPU_EDEVICE: what is missing; what the library
 * has is in the table all the same. Libraries stay open to the end of the program. */
int mgpu_cuda_load_driver(struct mgpu_cuda_driver *table);
int mgpu_cuda_load_nvrtc(struct mgpu_cuda_nvrtc *table);
int mgpu_cuda_load_lt(struct mgpu_cuda_lt *table);
int mgpu_cuda_load_dnn(struct mgpu_cuda_dnn *table);

/* MGPU_EDEVICE, saying that the driver runs only CUDA `version` (as cuDriverGetVersion has it). */
int mgpu_cuda_too_old(int version);

/* MGPU_EDEVICE: cuDNN is too old (`version` as cudnnGetVersion gives it). */
int mgpu_cuda_check_dnn(size_t version);

/* From now on these are what loading gives, until both are NULL; then no other library is asked
 * for, but cuBLASLt and cuDNN where the driver has properties. For tests. */
void mgpu_cuda_stand_in(const struct mgpu_cuda_driver *driver, const struct mgpu_cuda_nvrtc *nvrtc);

#endif
