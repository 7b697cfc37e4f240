/* What is measured on a GPU besides networks. tests/device/run calls it.
 *
 *     bench_gpu libraries           names of NVIDIA's libraries that this build opens
 *     bench_gpu check               the name of cuda:0; ends with 77 and what is missing for it
 *     bench_gpu properties          cuDNN's properties of it, as JSON: a file of tests/cuda/gpus
 *     bench_gpu launches            microseconds of a small kernel, submitted alone and in a graph
 *     bench_gpu overlap MODEL       a trace (opens in Perfetto) of copies and graphs of some steps
 *
 * MGPU_CHECK=double in the environment: on a GPU that there is not (tests/cuda/double.h).
 */
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/ranks.h"
#include "runtime/facade/facade.h"
#include "tests/bench/models.h"
#include "tests/cuda/double.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_gpu: %s\n", mgpu_error());
    exit(rc == MGPU_EDEVICE ? 77 : EXIT_FAILURE);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- What is here ---------------------------------------------------------------------------- */

static void print_libraries(void)
{
    printf("libcuda.so.1\nlibnvrtc.so.%d\nlibcublasLt.so.%d\nlibcudnn.so.%d\n", CUDA_VERSION / 1000,
           CUBLAS_VER_MAJOR, CUDNN_MAJOR);
}

static void check(void)
{
    struct mgpu_gpu_facts gpu;
    must(mgpu_cuda_check(0));
    must(mgpu_cuda_facts(&gpu, 0));
    puts(gpu.name);
}

static void print_properties(void)
{
    static char json[1 << 16];
    struct mgpu_gpu gpu;
    struct mgpu_cudnn dnn;
    int64_t size = 0;
    must(mgpu_gpu_open(&gpu, 0, false));
    must(gpu.cu.touches ? mgpu_fail(MGPU_EDEVICE, "the double has no cuDNN") : 0);
    must(mgpu_cudnn_open(&dnn, NULL));
    cudnnStatus_t status =
        dnn.api.cudnnBackendGetAttribute(dnn.gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                         CUDNN_TYPE_CHAR, sizeof json - 1, &size, json);
    must(mgpu_dnn_status(&dnn.api, status, "reading the GPU's properties"));
    puts(json);
    mgpu_cudnn_close(&dnn);
    mgpu_gpu_close(&gpu);
}

/* ---- Launches -------------------------------------------------------------------------------- */

enum { LAUNCHES = 1000, ROUNDS = 10 };

struct launches {
    struct mgpu_gpu gpu;
    struct mgpu_gpu_queue queue;
    struct mgpu_gpu_kernel kernel;
    CUdeviceptr memory;
};

static int submit_all(const struct launches *l)
{
    CUdeviceptr pointer[] = {l->memory, l->memory + 256};
    struct mgpu_cuda_access access[] = {{pointer[0], 4, false}, {pointer[1], 4, true}};
    for (int i = 0; i < LAUNCHES; i++) {
        if (l->gpu.cu.touches)
            l->gpu.cu.touches(l->queue.stream, access, 2);
        MGPU_TRY(mgpu_gpu_submit(&l->queue, &l->kernel, pointer));
    }
    return 0;
}

static int capture_all(const struct launches *l, CUgraphExec *exec)
{
    CUgraph graph;
    GPU_TRY(&l->gpu, cuStreamBeginCapture, (l->queue.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MGPU_TRY(submit_all(l));
    GPU_TRY(&l->gpu, cuStreamEndCapture, (l->queue.stream, &graph));
    GPU_TRY(&l->gpu, cuGraphInstantiateWithFlags, (exec, graph, 0));
    GPU_TRY(&l->gpu, cuGraphDestroy, (graph));
    return 0;
}

/* The least time of the rounds, to the end of the work and until the host is free again. */
static int time_launches(const struct launches *l, CUgraphExec exec, const char *what)
{
    double least = 1e9, least_host = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double start = now();
        if (exec)
            GPU_TRY(&l->gpu, cuGraphLaunch, (exec, l->queue.stream));
        else
            MGPU_TRY(submit_all(l));
        double host = now() - start;
        GPU_TRY(&l->gpu, cuStreamSynchronize, (l->queue.stream));
        double all = now() - start;
        least = all < least ? all : least;
        least_host = host < least_host ? host : least_host;
    }
    printf("what=%s kernels=%d us_a_kernel=%.3f host_us=%.1f\n", what, LAUNCHES,
           1e6 * least / LAUNCHES, 1e6 * least_host);
    return 0;
}

static int open_launches(struct launches *l)
{
    struct mgpu_gpu_batch batch = {0};
    mgpu_gpu_backend_begin();
    MGPU_TRY(mgpu_gpu_open(&l->gpu, 0, false));
    MGPU_TRY(mgpu_gpu_alloc(&l->gpu, &l->memory, 512, "a kernel's operands"));
    l->queue.gpu = &l->gpu;
    GPU_TRY(&l->gpu, cuStreamCreateWithPriority, (&l->queue.stream, CU_STREAM_NON_BLOCKING, 0));
    GPU_TRY(&l->gpu, cuMemsetD8Async, (l->memory, 0, 512, l->queue.stream));
    mgpu_emit_finite(&l->kernel.emitted, MGPU_FLOAT, 1, MGPU_GPU_KERNEL);
    mgpu_gpu_batch_add(&batch, &l->kernel);
    int rc = mgpu_gpu_batch_load(&batch, &l->gpu);
    mgpu_gpu_batch_free(&batch);
    return rc;
}

static int launches(void)
{
    struct launches l = {0};
    CUgraphExec exec;
    MGPU_TRY(open_launches(&l));
    MGPU_TRY(time_launches(&l, NULL, "alone"));
    MGPU_TRY(capture_all(&l, &exec));
    MGPU_TRY(time_launches(&l, exec, "graph"));
    l.gpu.cu.cuGraphExecDestroy(exec);
    l.gpu.cu.cuStreamDestroy(l.queue.stream);
    l.gpu.cu.cuMemFree(l.memory);
    mgpu_emitted_free(&l.kernel.emitted);
    mgpu_gpu_close(&l.gpu);
    return 0;
}

/* ---- Overlap --------------------------------------------------------------------------------- */

/* Stands between a rank's engine and the driver: notes when copies up and graphs begin and end. */
enum { MOST_EVENTS = 256 };
static struct {
    struct mgpu_cuda_driver cu;
    const struct mgpu_gpu_ranks *all;
    int count;
    struct {
        const char *what;
        CUevent from, to;
    } event[MOST_EVENTS];
} trace;

static CUresult note_before(const char *what, CUstream stream)
{
    CUresult r = CUDA_SUCCESS;
    if (trace.count == MOST_EVENTS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUevent *from = &trace.event[trace.count].from, *to = &trace.event[trace.count].to;
    r = trace.cu.cuEventCreate(from, CU_EVENT_DEFAULT);
    if (r == CUDA_SUCCESS)
        r = trace.cu.cuEventCreate(to, CU_EVENT_DEFAULT);
    trace.event[trace.count++].what = what;
    return r == CUDA_SUCCESS
               ? trace.cu.cuEventRecordWithFlags(*from, stream, CU_EVENT_RECORD_DEFAULT)
               : r;
}

static CUresult note_after(CUresult result, CUstream stream)
{
    CUevent to = trace.event[trace.count - 1].to;
    return result == CUDA_SUCCESS
               ? trace.cu.cuEventRecordWithFlags(to, stream, CU_EVENT_RECORD_DEFAULT)
               : result;
}

static CUresult copy_up(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    if (stream != trace.all->rank[0].copy)
        return trace.cu.cuMemcpyHtoDAsync(to, from, bytes, stream);
    CUresult r = note_before("inputs go up", stream);
    return r == CUDA_SUCCESS
               ? note_after(trace.cu.cuMemcpyHtoDAsync(to, from, bytes, stream), stream)
               : r;
}

static CUresult launch_graph(CUgraphExec exec, CUstream stream)
{
    CUresult r = note_before("step", stream);
    return r == CUDA_SUCCESS ? note_after(trace.cu.cuGraphLaunch(exec, stream), stream) : r;
}

static int print_trace(void)
{
    printf("{\"traceEvents\":[\n");
    for (int i = 0; i < trace.count; i++) {
        float at = 0, took = 0;
        const struct mgpu_gpu *gpu = &trace.all->gpu;
        if (i > 0)
            GPU_TRY(gpu, cuEventElapsedTime, (&at, trace.event[0].from, trace.event[i].from));
        GPU_TRY(gpu, cuEventElapsedTime, (&took, trace.event[i].from, trace.event[i].to));
        printf("%s{\"ph\":\"X\",\"name\":\"%s\",\"pid\":0,\"tid\":%d,\"ts\":%.1f,\"dur\":%.1f}",
               i ? ",\n" : "", trace.event[i].what, *trace.event[i].what == 's', 1e3 * (double)at,
               1e3 * (double)took);
    }
    printf("\n],\"displayTimeUnit\":\"ms\"}\n");
    return 0;
}

/* Four steps an epoch, so that inputs can go up ahead; the first epoch runs without a graph, then
 * captures it. */
static int train(const char *path, const struct bench_model *m, const char *const *data)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const char *loss[] = {"cross_entropy", NULL};
    o.data = data;
    o.loss = loss;
    o.optimizer = m->optimizer;
    o.devices = "cuda:0";
    o.batch = m->batch / 4;
    o.epochs = 3;
    o.threads = 2;
    MGPU_TRY(mgpu_trainer_new(&t, path, &o));
    struct mgpu_gpu_ranks *all = ((struct mgpu_gpu_rank *)mgpu_team_rank(t->team, 0)->engine)->all;
    for (int i = 0; i < 4; i++)
        MGPU_TRY(mgpu_step(t, &s));
    trace.cu = all->gpu.cu;
    trace.all = all;
    all->gpu.cu.cuMemcpyHtoDAsync = copy_up;
    all->gpu.cu.cuGraphLaunch = launch_graph;
    for (int i = 0; i < 8; i++)
        MGPU_TRY(mgpu_step(t, &s));
    MGPU_TRY(print_trace());
    for (int i = 0; i < trace.count; i++) {
        trace.cu.cuEventDestroy(trace.event[i].from);
        trace.cu.cuEventDestroy(trace.event[i].to);
    }
    mgpu_trainer_free(t);
    return 0;
}

static int overlap(const struct bench_model *m)
{
    char folder[] = "/tmp/mgpu-bench-XXXXXX", path[5][256];
    const char *data[4] = {NULL};
    if (!mkdtemp(folder))
        return mgpu_fail(MGPU_EIO, "cannot make a folder in /tmp");
    bench_model_write(m, m->batch, folder);
    snprintf(path[4], sizeof path[4], "%s/%s.onnx", folder, m->name);
    for (int i = 0; i < m->inputs; i++) {
        snprintf(path[i], sizeof path[i], "%s=%s/%s.%s.npy", m->input[i].name, folder, m->name,
                 m->input[i].name);
        data[i] = path[i];
    }
    int rc = train(path[4], m, data);
    unlink(path[4]);
    for (int i = 0; i < m->inputs; i++)
        unlink(strchr(path[i], '=') + 1);
    rmdir(folder);
    return rc;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const struct bench_model *m = argc > 2 ? bench_model_find(argv[2]) : NULL;
    bool doubled = double_wanted();
    if (!strcmp(what, "libraries"))
        print_libraries();
    else if (!strcmp(what, "check"))
        check();
    else if (!strcmp(what, "properties"))
        print_properties();
    else if (!strcmp(what, "launches"))
        must(launches());
    else if (!strcmp(what, "overlap") && m)
        must(overlap(m));
    else {
        fprintf(stderr, "usage: bench_gpu libraries | check | properties | launches | overlap "
                        "MODEL\n");
        return 2;
    }
    if (doubled)
        double_end();
    must(doubled && double_complaints() ? mgpu_fail(MGPU_EINTERNAL, "%s", double_complaint()) : 0);
    return EXIT_SUCCESS;
}
