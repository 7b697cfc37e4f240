/* What a driver refuses, the double does (double.h). */
#include "runtime/cuda/gpu.h"
#include "tests/cuda/double.h"
#include "tests/test.h"

#include <pthread.h>
#include <string.h>

#define REFUSED(call, why)                                                                         \
    do {                                                                                           \
        CHECK_((call) != CUDA_SUCCESS && strstr(double_complaint(), why), "%s: %s", why,           \
               double_complaint());                                                                \
        double_forget();                                                                           \
    } while (0)

static void *without_context(void *context)
{
    const struct mgpu_cuda_driver *cu = context;
    CUdeviceptr memory;
    REFUSED(cu->cuMemAlloc(&memory, 4), "without a context");
    return NULL;
}

static void test_refused(void)
{
    struct mgpu_gpu gpu;
    CUdeviceptr memory, other;
    CUevent event[2];
    CUstream stream;
    CUgraph graph;
    float ms;
    pthread_t thread;
    CHECK_OK(mgpu_gpu_open(&gpu, 0, false));
    const struct mgpu_cuda_driver *cu = &gpu.cu;
    CUDA_MEMCPY2D far = {
        .srcPitch = (size_t)1 << 31, .dstPitch = 4, .WidthInBytes = 4, .Height = 1};
    CUDA_MEMCPY2D narrow = {.srcPitch = 4, .dstPitch = 4, .WidthInBytes = 8, .Height = 1};
    CHECK(!cu->cuMemAlloc(&memory, 16) &&
          !cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    for (int i = 0; i < 2; i++)
        CHECK(!cu->cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING) &&
              !cu->cuEventRecord(event[i], stream));
    REFUSED(cu->cuMemAlloc(&other, 0), "no bytes");
    REFUSED(cu->cuMemsetD8Async(memory, 0, 0, stream), "no bytes");
    REFUSED(cu->cuMemcpyDtoDAsync(memory, memory + 4, 0, stream), "no bytes");
    REFUSED(cu->cuMemcpy2DAsync(&far, stream), "2^31 bytes apart");
    REFUSED(cu->cuMemcpy2DAsync(&narrow, stream), "overlap");
    REFUSED(cu->cuEventElapsedTime(&ms, event[0], event[1]), "made without one");
    CHECK(!cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    REFUSED(cu->cuMemAlloc(&other, 4), "is captured");
    REFUSED(cu->cuMemFree(memory), "is captured");
    REFUSED(cu->cuStreamSynchronize(stream), "is captured");
    CHECK(!cu->cuStreamEndCapture(stream, &graph) && !cu->cuGraphDestroy(graph));
    CHECK(!pthread_create(&thread, NULL, without_context, &gpu.cu) && !pthread_join(thread, NULL));
    for (int i = 0; i < 2; i++)
        cu->cuEventDestroy(event[i]);
    cu->cuStreamDestroy(stream);
    cu->cuMemFree(memory);
    mgpu_gpu_close(&gpu);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    test_refused();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
