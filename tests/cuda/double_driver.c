/* The double's CUDA driver. */
#include "runtime/base/memory.h"
#include "tests/cuda/double_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Devices, memory ------------------------------------------------------------------------- */

#define LOCKED(...)                                                                                \
    pthread_mutex_lock(&double_gpu.lock);                                                          \
    CUresult result_ = (__VA_ARGS__);                                                              \
    pthread_mutex_unlock(&double_gpu.lock);                                                        \
    return result_

static bool any_capture(void)
{
    for (const struct CUstream_st *s = double_gpu.streams; s; s = s->next)
        if (s->capture)
            return true;
    return false;
}

/* What a capture forbids its thread. */
static CUresult outside_capture(const char *call)
{
    if (!any_capture())
        return CUDA_SUCCESS;
    double_complain("%s while a stream is captured", call);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult init(unsigned flags)
{
    (void)flags;
    return double_gpu.gpus ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult driver_version(int *version)
{
    *version = double_gpu.version;
    return CUDA_SUCCESS;
}

static CUresult device_count(int *count)
{
    *count = double_gpu.gpus;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal < double_gpu.gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_name(char *name, int size, CUdevice device)
{
    if (double_gpu.name)
        snprintf(name, (size_t)size, "%s", double_gpu.name);
    else
        snprintf(name, (size_t)size, "double %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device; /* the memory of an H100 */
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR  ? 9
             : attribute == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE       ? 2619000
             : attribute == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH ? 5120
                                                                        : 0;
    return CUDA_SUCCESS;
}

static CUresult device_memory(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)double_gpu.bytes;
    return CUDA_SUCCESS;
}

static CUresult error_string(CUresult result, const char **text)
{
    static char words[64];
    snprintf(words, sizeof words, "error %d of the double", (int)result);
    *text = words;
    return CUDA_SUCCESS;
}

static CUresult error_name(CUresult result, const char **text)
{
    (void)result;
    *text = "CUDA_ERROR_OF_THE_DOUBLE";
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    (void)device;
    if (double_gpu.busy)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    double_gpu.alive++;
    *context = (CUcontext)&double_gpu;
    return CUDA_SUCCESS;
}

static CUresult release_context(CUdevice device)
{
    (void)device;
    double_gpu.alive--;
    return CUDA_SUCCESS;
}

static _Thread_local bool in_context; /* of the calling thread */

static CUresult set_current(CUcontext context)
{
    in_context = context != NULL;
    return CUDA_SUCCESS;
}

/* Nearly every call wants one. */
static CUresult with_context(const char *call)
{
    if (in_context)
        return CUDA_SUCCESS;
    double_complain("%s in a thread without a context", call);
    return CUDA_ERROR_INVALID_CONTEXT;
}

#define IN_CONTEXT(call)                                                                           \
    if (with_context(call))                                                                        \
    return CUDA_ERROR_INVALID_CONTEXT

static CUresult memory_info(size_t *available, size_t *total)
{
    IN_CONTEXT("cuMemGetInfo");
    *available = (size_t)(double_gpu.bytes - double_gpu.used);
    *total = (size_t)double_gpu.bytes;
    return CUDA_SUCCESS;
}

static CUresult allocate(void **out, size_t bytes, bool host, const char *call)
{
    CUresult r = with_context(call);
    r = r ? r : outside_capture(call);
    if (r == CUDA_SUCCESS && bytes == 0) {
        double_complain("%s of no bytes", call);
        r = CUDA_ERROR_INVALID_VALUE;
    }
    return r ? r : double_allocate(out, bytes, host);
}

static CUresult mem_alloc(CUdeviceptr *out, size_t bytes)
{
    LOCKED(allocate((void **)out, bytes, false, "cuMemAlloc"));
}

/* Freeing waits for the GPU. */
static CUresult wait_and_free(void *at)
{
    struct set all;
    CUresult r = outside_capture("freeing memory");
    memset(&all, 0xff, sizeof all);
    double_run_set(&all);
    return r ? r : double_release(at);
}

static CUresult mem_free(CUdeviceptr at)
{
    LOCKED(wait_and_free((void *)at));
}

static CUresult host_alloc(void **out, size_t bytes)
{
    LOCKED(allocate(out, bytes, true, "cuMemAllocHost"));
}

static CUresult host_free(void *at)
{
    LOCKED(wait_and_free(at));
}

/* ---- Copies -------------------------------------------------------------------------------------
 */

static CUDA_MEMCPY2D line(void *to, const void *from, size_t bytes)
{
    return (CUDA_MEMCPY2D){.dstHost = to,
                           .srcHost = from,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .dstPitch = bytes,
                           .srcPitch = bytes};
}

static struct access rows_of(const CUDA_MEMCPY2D *c, const void *at, size_t pitch, bool write)
{
    struct access a = double_piece((CUdeviceptr)at, (int64_t)c->WidthInBytes, write);
    a.rows = (int64_t)c->Height;
    a.pitch = (int64_t)pitch;
    return a;
}

/* pageable: which side may be memory of the host that is not pinned; -1: none. */
static CUresult submit_copy(CUstream s, const CUDA_MEMCPY2D *c, int pageable)
{
    struct work w = {.kind = COPY, .copy = *c};
    struct accesses a = {.count = 2,
                         .at = {rows_of(c, c->srcHost, c->srcPitch, false),
                                rows_of(c, c->dstHost, c->dstPitch, true)}};
    if (c->WidthInBytes == 0 || c->Height == 0) {
        double_complain("a copy of no bytes");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pageable >= 0 && !double_is_there(&a.at[pageable])) {
        if (s->capture)
            double_complain("a captured copy of memory that is not pinned");
        a.at[pageable] = a.at[1 - pageable];
        a.count = 1;
    }
    return double_submit(s, &w, &a);
}

static CUresult copy_async(void *to, const void *from, size_t bytes, CUstream s, int pageable)
{
    IN_CONTEXT("a copy");
    CUDA_MEMCPY2D c = line(to, from, bytes);
    LOCKED(submit_copy(s, &c, pageable));
}

static CUresult htod_async(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    return copy_async((void *)to, from, bytes, s, 0);
}

static CUresult dtoh_async(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    return copy_async(to, (const void *)from, bytes, s, 1);
}

static CUresult dtod_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    return copy_async((void *)to, (const void *)from, bytes, s, -1);
}

static CUresult copy_rows(const CUDA_MEMCPY2D *rows, CUstream s)
{
    IN_CONTEXT("cuMemcpy2DAsync");
    CUDA_MEMCPY2D c = *rows;
    c.srcHost = (const void *)rows->srcDevice;
    c.dstHost = (void *)rows->dstDevice;
    if (c.srcPitch > INT32_MAX || c.dstPitch > INT32_MAX || c.WidthInBytes > c.srcPitch ||
        c.WidthInBytes > c.dstPitch) {
        double_complain("a copy of rows that overlap, or lie 2^31 bytes apart");
        return CUDA_ERROR_INVALID_VALUE;
    }
    LOCKED(submit_copy(s, &c, -1));
}

static CUresult fill_async(CUdeviceptr at, unsigned char byte, size_t bytes, CUstream s)
{
    IN_CONTEXT("cuMemsetD8Async");
    struct work w = {.kind = FILL, .copy = line((void *)at, NULL, bytes), .byte = byte};
    struct accesses a = {.count = 1, .at = {double_piece(at, (int64_t)bytes, true)}};
    if (bytes == 0) {
        double_complain("a fill of no bytes");
        return CUDA_ERROR_INVALID_VALUE;
    }
    LOCKED(double_submit(s, &w, &a));
}

/* ---- Streams and events -------------------------------------------------------------------------
 */

static CUresult stream_create(CUstream *out, unsigned flags, int priority)
{
    (void)priority;
    IN_CONTEXT("cuStreamCreate");
    if (flags != CU_STREAM_NON_BLOCKING)
        double_complain("a stream that waits for the legacy one");
    if (double_gpu.streams_left == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    double_gpu.streams_left -= double_gpu.streams_left > 0;
    struct CUstream_st *s = mgpu_xcalloc(1, sizeof *s);
    pthread_mutex_lock(&double_gpu.lock);
    double_gpu.calls.allocations++;
    double_gpu.alive++;
    s->next = double_gpu.streams;
    double_gpu.streams = s;
    pthread_mutex_unlock(&double_gpu.lock);
    *out = s;
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
    pthread_mutex_lock(&double_gpu.lock);
    for (struct CUstream_st **s = &double_gpu.streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    double_gpu.alive--;
    pthread_mutex_unlock(&double_gpu.lock);
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream s)
{
    if (s->capture) {
        double_complain("cuStreamSynchronize of a stream that is captured");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct set wanted = s->clock;
    double_gpu.calls.stops++;
    double_run_set(&wanted);
    return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream s)
{
    IN_CONTEXT("cuStreamSynchronize");
    LOCKED(synchronize(s));
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    IN_CONTEXT("cuEventCreate");
    pthread_mutex_lock(&double_gpu.lock);
    double_gpu.calls.allocations++;
    double_gpu.alive++;
    *out = mgpu_xcalloc(1, sizeof **out);
    (*out)->untimed = flags & CU_EVENT_DISABLE_TIMING;
    (*out)->next = double_gpu.events;
    double_gpu.events = *out;
    pthread_mutex_unlock(&double_gpu.lock);
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    pthread_mutex_lock(&double_gpu.lock);
    for (struct CUevent_st **e = &double_gpu.events; *e; e = &(*e)->next)
        if (*e == event) {
            *e = event->next;
            break;
        }
    double_gpu.alive--;
    pthread_mutex_unlock(&double_gpu.lock);
    free(event);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent e, CUstream s)
{
    e->dag = s->capture ? s->capture : &double_gpu.now;
    e->clock = s->capture ? s->captured : s->clock;
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent e, CUstream s)
{
    IN_CONTEXT("cuEventRecord");
    LOCKED(record(e, s));
}

/* One that a graph records anew at each launch orders nothing outside of it. */
static CUresult record_with_flags(CUevent e, CUstream s, unsigned flags)
{
    if (!s->capture != !(flags & CU_EVENT_RECORD_EXTERNAL))
        return CUDA_ERROR_INVALID_VALUE;
    e->timed = true;
    return s->capture ? CUDA_SUCCESS : record(e, s);
}

static CUresult event_record_with_flags(CUevent e, CUstream s, unsigned flags)
{
    LOCKED(record_with_flags(e, s, flags));
}

static CUresult synchronize_event(CUevent e)
{
    double_gpu.calls.stops++;
    if (any_capture())
        double_complain("cuEventSynchronize while a stream is captured");
    if (e->dag && e->dag != &double_gpu.now)
        double_complain("cuEventSynchronize for an event of a capture");
    if (double_gpu.calls.waits++ == double_gpu.drop || e->dag != &double_gpu.now)
        return CUDA_SUCCESS;
    struct set wanted = e->clock;
    double_run_set(&wanted);
    return CUDA_SUCCESS;
}

static CUresult event_synchronize(CUevent e)
{
    IN_CONTEXT("cuEventSynchronize");
    if (double_gpu.wait_result)
        return double_gpu.wait_result;
    LOCKED(synchronize_event(e));
}

/* All before it is done and forgotten. */
static bool is_over(CUevent e)
{
    static const struct set nothing;
    return e->dag && !memcmp(&e->clock, &nothing, sizeof nothing);
}

/* Events of graphs are a millisecond apart; times of others are the test's (double_gpu.elapsed). */
static CUresult elapsed_time(float *ms, CUevent from, CUevent to)
{
    bool in_graph = from->timed && to->timed, over = in_graph || (is_over(from) && is_over(to));
    if (from->untimed || to->untimed) {
        double_complain("the time of an event that was made without one");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!over)
        double_complain("the time of an event that is not over");
    *ms = in_graph ? 1 : over ? double_gpu.elapsed : 0;
    return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed_time(float *ms, CUevent from, CUevent to)
{
    LOCKED(elapsed_time(ms, from, to));
}

static CUresult wait_event(CUstream s, CUevent e)
{
    if (!e->dag || e->dag->ended) {
        double_complain(e->dag ? "a wait for an event of a capture that has ended"
                               : "a wait for an event that was never recorded");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (double_gpu.calls.waits++ == double_gpu.drop)
        return CUDA_SUCCESS;
    if (e->dag == &double_gpu.now && s->capture) {
        double_complain("a captured stream waits for an event outside");
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (e->dag == &double_gpu.now) {
        set_join(&s->clock, &e->clock);
        return CUDA_SUCCESS;
    }
    if (!s->capture) { /* it joins the capture */
        s->capture = e->dag;
        s->captured = (struct set){{0}};
    }
    set_join(&s->captured, &e->clock);
    return CUDA_SUCCESS;
}

static CUresult stream_wait_event(CUstream s, CUevent e, unsigned flags)
{
    (void)flags;
    LOCKED(wait_event(s, e));
}

/* ---- Graphs -------------------------------------------------------------------------------------
 */

static CUresult begin_capture(CUstream s, CUstreamCaptureMode mode)
{
    (void)mode;
    double_gpu.alive++;
    s->capture = mgpu_xcalloc(1, sizeof *s->capture);
    s->captured = (struct set){{0}};
    return CUDA_SUCCESS;
}

static CUresult end_capture(CUstream s, CUgraph *out)
{
    struct dag *dag = s->capture;
    bool broken = dag->broken, joined = !broken;
    for (int i = 0; i < dag->count && joined; i++)
        joined = joined && set_has(&s->captured, i);
    for (struct CUstream_st *t = double_gpu.streams; t; t = t->next)
        if (t->capture == dag)
            t->capture = NULL;
    dag->ended = true;
    *out = joined ? (CUgraph)dag : NULL;
    if (double_gpu.graph_count < 256)
        double_gpu.graphs[double_gpu.graph_count++] = dag; /* events may still point to it */
    if (joined)
        return CUDA_SUCCESS;
    double_gpu.alive--;
    double_free_nodes(dag);
    if (broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    double_complain("a capture ends with a stream that was not joined");
    return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static CUresult graph_begin(CUstream s, CUstreamCaptureMode mode)
{
    IN_CONTEXT("cuStreamBeginCapture");
    LOCKED(begin_capture(s, mode));
}

static CUresult graph_end(CUstream s, CUgraph *out)
{
    LOCKED(end_capture(s, out));
}

/* An executable graph has nodes of its own. */
static CUresult graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    const struct dag *from = (const struct dag *)graph;
    struct dag *to = mgpu_xcalloc(1, sizeof *to);
    (void)flags;
    double_gpu.alive++;
    for (int i = 0; i < from->count; i++)
        double_add_node(to, &from->node[i]->work, &from->node[i]->accesses, &from->node[i]->before);
    *out = (CUgraphExec)to;
    return CUDA_SUCCESS;
}

static CUresult launch_graph(const struct dag *graph, CUstream s)
{
    int base = double_gpu.now.count;
    struct set whole = s->clock;
    if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (int i = 0; i < graph->count; i++) {
        struct set before = s->clock;
        for (int k = 0; k < i; k++)
            if (set_has(&graph->node[i]->before, k))
                set_put(&before, base + k);
        double_check_node(double_add_node(&double_gpu.now, &graph->node[i]->work,
                                          &graph->node[i]->accesses, &before));
        set_put(&whole, base + i);
    }
    s->clock = whole;
    double_gpu.calls.launched++;
    return CUDA_SUCCESS;
}

static CUresult graph_launch(CUgraphExec exec, CUstream s)
{
    IN_CONTEXT("cuGraphLaunch");
    LOCKED(launch_graph((const struct dag *)exec, s));
}

static CUresult graph_destroy(CUgraph graph)
{
    double_gpu.alive--;
    double_free_nodes((struct dag *)graph);
    return CUDA_SUCCESS;
}

static CUresult exec_destroy(CUgraphExec exec)
{
    double_gpu.alive--;
    double_free_nodes((struct dag *)exec);
    free(exec);
    return CUDA_SUCCESS;
}

/* ---- Kernels ------------------------------------------------------------------------------------
 */

static CUresult module_load(CUmodule *out, const void *image)
{
    IN_CONTEXT("cuModuleLoadData");
    if (outside_capture("cuModuleLoadData"))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    double_gpu.calls.allocations++;
    double_gpu.alive++;
    struct module *m;
    CUresult r = double_module(&m, image);
    *out = (CUmodule)m;
    return r;
}

static CUresult module_unload(CUmodule module)
{
    (void)module;
    double_gpu.alive--;
    return CUDA_SUCCESS;
}

static CUresult module_function(CUfunction *out, CUmodule module, const char *name)
{
    for (struct function *f = ((struct module *)module)->functions; f; f = f->next)
        if (!strcmp(f->name, name)) {
            *out = (CUfunction)f;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads,
                       unsigned ty, unsigned tz, unsigned shared, CUstream s, void **parameters,
                       void **extra)
{
    const struct function *f = (const struct function *)function;
    struct work w = {.kind = KERNEL, .function = f};
    (void)extra;
    IN_CONTEXT("cuLaunchKernel");
    if (f && f->parameters > MOST_ACCESSES) {
        double_complain("%s has %d parameters, %d can be noted", f->name, f->parameters,
                        MOST_ACCESSES);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!f || y != 1 || z != 1 || ty != 1 || tz != 1 || shared || x == 0 || x > INT32_MAX ||
        threads == 0 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    w.launch =
        (struct mgpu_emit_launch){.blocks = x, .threads = (int)threads, .together = f->together};
    for (int i = 0; i < f->parameters; i++)
        w.pointer[i] = *(void **)parameters[i];
    LOCKED(double_submit(s, &w, &s->accesses));
}

static void touches(CUstream s, const struct mgpu_cuda_access *access, int count)
{
    if (count > MOST_ACCESSES)
        double_complain("a launch touches %d pieces of memory, %d can be noted", count,
                        MOST_ACCESSES);
    s->accesses.count = count < MOST_ACCESSES ? count : MOST_ACCESSES;
    for (int i = 0; i < s->accesses.count; i++)
        s->accesses.at[i] = double_piece(access[i].at, access[i].bytes, access[i].write);
}

const struct mgpu_cuda_driver double_driver = {
    .cuInit = init,
    .cuDriverGetVersion = driver_version,
    .cuDeviceGetCount = device_count,
    .cuDeviceGet = device_get,
    .cuDeviceGetName = device_name,
    .cuDeviceGetAttribute = device_attribute,
    .cuDeviceTotalMem = device_memory,
    .cuGetErrorName = error_name,
    .cuGetErrorString = error_string,
    .cuDevicePrimaryCtxRetain = retain,
    .cuDevicePrimaryCtxRelease = release_context,
    .cuCtxSetCurrent = set_current,
    .cuMemGetInfo = memory_info,
    .cuMemAlloc = mem_alloc,
    .cuMemFree = mem_free,
    .cuMemAllocHost = host_alloc,
    .cuMemFreeHost = host_free,
    .cuMemcpyHtoDAsync = htod_async,
    .cuMemcpyDtoHAsync = dtoh_async,
    .cuMemcpyDtoDAsync = dtod_async,
    .cuMemcpy2DAsync = copy_rows,
    .cuMemsetD8Async = fill_async,
    .cuStreamCreateWithPriority = stream_create,
    .cuStreamDestroy = stream_destroy,
    .cuStreamSynchronize = stream_synchronize,
    .cuStreamWaitEvent = stream_wait_event,
    .cuEventCreate = event_create,
    .cuEventDestroy = event_destroy,
    .cuEventRecord = event_record,
    .cuEventRecordWithFlags = event_record_with_flags,
    .cuEventSynchronize = event_synchronize,
    .cuEventElapsedTime = event_elapsed_time,
    .cuStreamBeginCapture = graph_begin,
    .cuStreamEndCapture = graph_end,
    .cuGraphInstantiateWithFlags = graph_instantiate,
    .cuGraphLaunch = graph_launch,
    .cuGraphDestroy = graph_destroy,
    .cuGraphExecDestroy = exec_destroy,
    .cuModuleLoadData = module_load,
    .cuModuleUnload = module_unload,
    .cuModuleGetFunction = module_function,
    .cuLaunchKernel = launch,
    .touches = touches,
};
