/* What a driver refuses, the double does, and it finds races in copies of rows (double.h). */
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

/* ---- Copies of rows ---------------------------------------------------------------------------
 */

enum { ROWS = 200, PITCH = 16, WIDTH = 8 };

struct place {
    struct mgpu_gpu gpu;
    CUdeviceptr memory, other;
    CUstream stream[2];
};

/* To the columns from `column` on, on one of the streams. */
static void copy_rows(const struct place *p, int stream, int column)
{
    CUDA_MEMCPY2D rows = {.srcDevice = p->other,
                          .srcPitch = WIDTH,
                          .dstDevice = p->memory + (CUdeviceptr)column,
                          .dstPitch = PITCH,
                          .WidthInBytes = WIDTH,
                          .Height = ROWS};
    CHECK(!p->gpu.cu.cuMemcpy2DAsync(&rows, p->stream[stream]));
}

/* A race with what the streams do, and only if there is one; then all is done. */
static void check_race(const struct place *p, const char *what, bool race)
{
    CHECK_(race == (strstr(double_complaint(), "without an order") != NULL), "%s: '%s'", what,
           double_complaint());
    double_forget();
    for (int i = 0; i < 2; i++)
        CHECK(!p->gpu.cu.cuStreamSynchronize(p->stream[i]));
}

static void test_rows(void)
{
    struct place p;
    CHECK_OK(mgpu_gpu_open(&p.gpu, 0, false));
    const struct mgpu_cuda_driver *cu = &p.gpu.cu;
    CHECK(!cu->cuMemAlloc(&p.memory, ROWS * PITCH) && !cu->cuMemAlloc(&p.other, ROWS * WIDTH));
    for (int i = 0; i < 2; i++)
        CHECK(!cu->cuStreamCreateWithPriority(&p.stream[i], CU_STREAM_NON_BLOCKING, 0));
    for (int row = 0; row < ROWS; row += ROWS - 1)
        for (int column = 0; column < PITCH; column++) {
            copy_rows(&p, 0, 4);
            CHECK(!cu->cuMemsetD8Async(p.memory + (CUdeviceptr)(row * PITCH + column), 0, 1,
                                       p.stream[1]));
            check_race(&p, "a byte", column >= 4 && column < 4 + WIDTH);
        }
    for (int column = 0; column <= PITCH - WIDTH; column++) {
        copy_rows(&p, 0, 0);
        copy_rows(&p, 1, column);
        check_race(&p, "columns", column < WIDTH);
    }
    copy_rows(&p, 0, 0);
    CHECK(!cu->cuMemsetD8Async(p.other + ROWS * WIDTH - 1, 0, 1, p.stream[1]));
    check_race(&p, "what is read", true);
    for (int i = 0; i < 2; i++)
        cu->cuStreamDestroy(p.stream[i]);
    cu->cuMemFree(p.memory);
    cu->cuMemFree(p.other);
    mgpu_gpu_close(&p.gpu);
}

/* More than it can note is not left out without a word. */
static void test_too_much(void)
{
    static const struct mgpu_cuda_access access[1000];
    struct mgpu_gpu gpu;
    CUstream stream;
    CHECK_OK(mgpu_gpu_open(&gpu, 0, false));
    CHECK(!gpu.cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    gpu.cu.touches(stream, access, 1000);
    CHECK_(strstr(double_complaint(), "touches 1000 pieces"), "%s", double_complaint());
    double_forget();
    gpu.cu.cuStreamDestroy(stream);
    mgpu_gpu_close(&gpu);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    test_refused();
    test_rows();
    test_too_much();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
