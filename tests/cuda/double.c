#include "tests/cuda/double.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/kernels.h"
#include "runtime/emit/emit.h"
#include "runtime/executor/devices.h"
#include "runtime/ref/ref.h"
#include "tests/emit/emulate.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 16384, WORDS = MOST_NODES / 64, MOST_ACCESSES = 96 };

/* ---- Nodes ----------------------------------------------------------------------------------- */

struct set {
    uint64_t word[WORDS];
};

struct accesses {
    int count;
    struct mgpu_cuda_access at[MOST_ACCESSES];
};

/* An operator that ref runs. */
struct standing_in {
    const struct mgpu_node *node;
    const void *in[MGPU_MAX_INPUTS + 1];
    void *out[MGPU_MAX_OUTPUTS + 1];
};

struct work {
    enum { KERNEL, COPY, FILL, REF } kind;
    const struct function *function;
    struct mgpu_emit_launch launch;
    void *pointer[MOST_ACCESSES];
    CUDA_MEMCPY2D copy; /* addresses of both sides in srcHost and dstHost */
    unsigned char byte;
    struct standing_in ref;
};

struct node {
    struct work work;
    struct accesses accesses;
    struct set before;
};

/* What was submitted and is not done, or a graph. */
struct dag {
    int count;
    struct node **node;
    struct set done;
    uint64_t emptied; /* how often: older events are over */
    bool ended;       /* a capture that is complete */
};

struct CUstream_st {
    struct set clock; /* what comes before the next call */
    struct dag *capture;
    struct set captured; /* the same in the capture */
    struct accesses accesses;
    struct CUstream_st *next;
};

struct CUevent_st {
    struct dag *dag; /* that it was recorded in; NULL: not yet */
    uint64_t emptied;
    struct set clock;
};

struct function {
    char name[64];
    struct module *module;
    int parameters;
    bool together;
    struct function *next;
};

struct module {
    char *text;
    struct module *next; /* of those that were made: equal texts are compiled once */
    struct emulated *library;
    struct function *functions;
};

struct block {
    char *at;
    int64_t bytes;
    bool host;
    struct block *next;
};

static struct {
    pthread_mutex_t lock;
    int gpus;
    int64_t bytes, used;
    struct dag now;
    struct CUstream_st *streams;
    struct dag *graphs[256];
    struct module *modules;
    int graph_count, alive; /* alive: what was made and not freed */
    struct block *blocks;
    uint64_t seed;
    int complaints, drop;
    bool no_capture;
    int sm, kernels, registers;
    char complaint[512];
    struct double_calls calls;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!gpu.complaints++)
        vsnprintf(gpu.complaint, sizeof gpu.complaint, format, args);
    va_end(args);
}

static bool has(const struct set *s, int i)
{
    return s->word[i / 64] >> i % 64 & 1;
}

static void put(struct set *s, int i)
{
    s->word[i / 64] |= UINT64_C(1) << i % 64;
}

static void join(struct set *into, const struct set *from)
{
    for (int w = 0; w < WORDS; w++)
        into->word[w] |= from->word[w];
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static bool is_there(const struct mgpu_cuda_access *a)
{
    for (const struct block *b = gpu.blocks; b; b = b->next)
        if ((char *)a->at >= b->at && (char *)a->at + a->bytes <= b->at + b->bytes)
            return true;
    return false;
}

static CUresult allocate(void **out, size_t bytes, bool host)
{
    struct block *b;
    gpu.calls.allocations++;
    if (!host && gpu.used + (int64_t)bytes > gpu.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    b = mgpu_xcalloc(1, sizeof *b);
    *b = (struct block){.bytes = (int64_t)bytes, .host = host, .next = gpu.blocks};
    if (posix_memalign((void **)&b->at, 256, bytes + 256))
        abort();
    memset(b->at, 0xff, bytes); /* not numbers */
    gpu.used += host ? 0 : (int64_t)bytes;
    gpu.blocks = b;
    *out = b->at;
    return CUDA_SUCCESS;
}

static CUresult release(void *at)
{
    for (struct block **b = &gpu.blocks; *b; b = &(*b)->next)
        if ((*b)->at == at) {
            struct block *old = *b;
            *b = old->next;
            gpu.used -= old->host ? 0 : old->bytes;
            free(old->at);
            free(old);
            return CUDA_SUCCESS;
        }
    complain("memory is freed that was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- Order ----------------------------------------------------------------------------------- */

static bool conflict(const struct accesses *a, const struct accesses *b)
{
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++) {
            const struct mgpu_cuda_access *x = &a->at[i], *y = &b->at[k];
            if ((x->write || y->write) && x->at < y->at + (CUdeviceptr)y->bytes &&
                y->at < x->at + (CUdeviceptr)x->bytes)
                return true;
        }
    return false;
}

static const char *name_of(const struct work *w)
{
    return w->kind == KERNEL ? w->function->name
           : w->kind == REF  ? w->ref.node->op->name
           : w->kind == COPY ? "copy"
                             : "fill";
}

/* Node `n`, the last of those that wait, against all others. */
static void check_node(const struct node *n)
{
    for (int i = 0; i < n->accesses.count; i++)
        if (!is_there(&n->accesses.at[i]))
            complain("%s touches memory that is not allocated", name_of(&n->work));
    for (int i = 0; i < gpu.now.count; i++) {
        const struct node *m = gpu.now.node[i];
        if (m != n && !has(&gpu.now.done, i) && !has(&n->before, i) &&
            conflict(&m->accesses, &n->accesses))
            complain("%s and %s touch the same memory without an order", name_of(&m->work),
                     name_of(&n->work));
    }
}

static struct node *add_node(struct dag *dag, const struct work *work,
                             const struct accesses *accesses, const struct set *before)
{
    struct node *n = mgpu_xcalloc(1, sizeof *n);
    if (dag->count == MOST_NODES)
        abort();
    n->work = *work;
    n->accesses = *accesses;
    n->before = *before;
    dag->node = mgpu_grow(dag->node, (size_t)dag->count, sizeof(struct node *));
    dag->node[dag->count++] = n;
    return n;
}

static CUresult submit(CUstream s, const struct work *work, const struct accesses *accesses)
{
    if (!accesses->count)
        complain("%s: nobody said what it touches", name_of(work));
    if (s->capture) {
        add_node(s->capture, work, accesses, &s->captured);
        put(&s->captured, s->capture->count - 1);
        return CUDA_SUCCESS;
    }
    gpu.calls.submitted++;
    check_node(add_node(&gpu.now, work, accesses, &s->clock));
    put(&s->clock, gpu.now.count - 1);
    return CUDA_SUCCESS;
}

/* ---- Running --------------------------------------------------------------------------------- */

static void run_copy(const CUDA_MEMCPY2D *c)
{
    for (size_t row = 0; row < c->Height; row++)
        memcpy((char *)c->dstHost + row * c->dstPitch, (const char *)c->srcHost + row * c->srcPitch,
               c->WidthInBytes);
}

static void run_work(struct work *w)
{
    int rc = 0;
    if (w->kind == KERNEL)
        rc = emulate_launch(w->function->module->library, &w->launch, w->function->name, w->pointer,
                            EMULATE_SHUFFLED);
    else if (w->kind == REF)
        rc = mgpu_backend_run(&mgpu_backend_ref, w->ref.node, w->ref.in, w->ref.out);
    else if (w->kind == COPY)
        run_copy(&w->copy);
    else
        memset(w->copy.dstHost, w->byte, w->copy.WidthInBytes);
    if (rc < 0)
        complain("%s: %s", name_of(w), mgpu_error());
}

static bool is_ready(const struct node *n)
{
    for (int w = 0; w < (gpu.now.count + 63) / 64; w++)
        if (n->before.word[w] & ~gpu.now.done.word[w])
            return false;
    return true;
}

static void free_nodes(struct dag *dag)
{
    for (int i = 0; i < dag->count; i++)
        free(dag->node[i]);
    free(dag->node);
    *dag = (struct dag){.ended = dag->ended, .emptied = dag->emptied + 1};
}

/* When nothing waits, everything comes before what follows. */
static void forget_done(void)
{
    for (int i = 0; i < gpu.now.count; i++)
        if (!has(&gpu.now.done, i))
            return;
    free_nodes(&gpu.now);
    for (struct CUstream_st *s = gpu.streams; s; s = s->next)
        s->clock = (struct set){{0}};
}

/* What is in the set, each time one of those that may be next. */
static void run_set(const struct set *wanted)
{
    for (;;) {
        int ready = 0, pick = -1;
        for (int i = 0; i < gpu.now.count; i++) {
            if (!has(wanted, i) || has(&gpu.now.done, i) || !is_ready(gpu.now.node[i]))
                continue;
            gpu.seed = gpu.seed * 6364136223846793005u + 1442695040888963407u;
            if ((gpu.seed >> 33) % (uint64_t)++ready == 0)
                pick = i;
        }
        if (pick < 0)
            break;
        run_work(&gpu.now.node[pick]->work);
        put(&gpu.now.done, pick);
    }
    forget_done();
}

/* ---- The driver: devices, memory ------------------------------------------------------------- */

#define LOCKED(...)                                                                                \
    pthread_mutex_lock(&gpu.lock);                                                                 \
    CUresult result_ = (__VA_ARGS__);                                                              \
    pthread_mutex_unlock(&gpu.lock);                                                               \
    return result_

static bool any_capture(void)
{
    for (const struct CUstream_st *s = gpu.streams; s; s = s->next)
        if (s->capture)
            return true;
    return false;
}

/* What a capture forbids its thread. */
static CUresult outside_capture(const char *call)
{
    if (!any_capture())
        return CUDA_SUCCESS;
    complain("%s while a stream is captured", call);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult init(unsigned flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

static CUresult driver_version(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

static CUresult device_count(int *count)
{
    *count = gpu.gpus;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal < gpu.gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_name(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "double %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
}

static CUresult error_string(CUresult result, const char **text)
{
    static char words[64];
    snprintf(words, sizeof words, "error %d of the double", (int)result);
    *text = words;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    (void)device;
    gpu.alive++;
    *context = (CUcontext)&gpu;
    return CUDA_SUCCESS;
}

static CUresult release_context(CUdevice device)
{
    (void)device;
    gpu.alive--;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult memory_info(size_t *available, size_t *total)
{
    *available = (size_t)(gpu.bytes - gpu.used);
    *total = (size_t)gpu.bytes;
    return CUDA_SUCCESS;
}

static CUresult mem_alloc(CUdeviceptr *out, size_t bytes)
{
    LOCKED(outside_capture("cuMemAlloc") ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                         : allocate((void **)out, bytes, false));
}

/* Freeing waits for the GPU. */
static CUresult wait_and_free(void *at)
{
    struct set all;
    memset(&all, 0xff, sizeof all);
    run_set(&all);
    return release(at);
}

static CUresult mem_free(CUdeviceptr at)
{
    LOCKED(wait_and_free((void *)at));
}

static CUresult host_alloc(void **out, size_t bytes)
{
    LOCKED(allocate(out, bytes, true));
}

static CUresult host_free(void *at)
{
    LOCKED(release(at));
}

/* ---- The driver: copies ---------------------------------------------------------------------- */

static CUDA_MEMCPY2D line(void *to, const void *from, size_t bytes)
{
    return (CUDA_MEMCPY2D){.dstHost = to,
                           .srcHost = from,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .dstPitch = bytes,
                           .srcPitch = bytes};
}

/* pageable: which side may be memory of the host that is not pinned; -1: none. */
static CUresult submit_copy(CUstream s, const CUDA_MEMCPY2D *c, int pageable)
{
    struct work w = {.kind = COPY, .copy = *c};
    int64_t from = (int64_t)((c->Height - 1) * c->srcPitch + c->WidthInBytes);
    int64_t to = (int64_t)((c->Height - 1) * c->dstPitch + c->WidthInBytes);
    struct accesses a = {
        .count = 2,
        .at = {{(CUdeviceptr)c->srcHost, from, false}, {(CUdeviceptr)c->dstHost, to, true}}};
    if (pageable >= 0 && !is_there(&a.at[pageable])) {
        a.at[pageable] = a.at[1 - pageable];
        a.count = 1;
    }
    /* What lies between rows belongs to others. */
    if (c->Height > 1 && c->dstPitch > c->WidthInBytes) {
        for (a.count = 1; a.count <= (int)c->Height && a.count < MOST_ACCESSES; a.count++)
            a.at[a.count] = (struct mgpu_cuda_access){(CUdeviceptr)c->dstHost +
                                                          (CUdeviceptr)(a.count - 1) * c->dstPitch,
                                                      (int64_t)c->WidthInBytes, true};
    }
    return submit(s, &w, &a);
}

static CUresult copy_async(void *to, const void *from, size_t bytes, CUstream s, int pageable)
{
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
    CUDA_MEMCPY2D c = *rows;
    c.srcHost = (const void *)rows->srcDevice;
    c.dstHost = (void *)rows->dstDevice;
    LOCKED(submit_copy(s, &c, -1));
}

static CUresult fill_async(CUdeviceptr at, unsigned char byte, size_t bytes, CUstream s)
{
    struct work w = {.kind = FILL, .copy = line((void *)at, NULL, bytes), .byte = byte};
    struct accesses a = {.count = 1, .at = {{at, (int64_t)bytes, true}}};
    LOCKED(submit(s, &w, &a));
}

/* ---- The driver: streams and events ---------------------------------------------------------- */

static CUresult stream_create(CUstream *out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    struct CUstream_st *s = mgpu_xcalloc(1, sizeof *s);
    pthread_mutex_lock(&gpu.lock);
    gpu.calls.allocations++;
    gpu.alive++;
    s->next = gpu.streams;
    gpu.streams = s;
    pthread_mutex_unlock(&gpu.lock);
    *out = s;
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
    pthread_mutex_lock(&gpu.lock);
    for (struct CUstream_st **s = &gpu.streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    gpu.alive--;
    pthread_mutex_unlock(&gpu.lock);
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream s)
{
    if (s->capture) {
        complain("cuStreamSynchronize of a stream that is captured");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct set wanted = s->clock;
    run_set(&wanted);
    return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream s)
{
    LOCKED(synchronize(s));
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    (void)flags;
    gpu.calls.allocations++;
    gpu.alive++;
    *out = mgpu_xcalloc(1, sizeof **out);
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent e)
{
    gpu.alive--;
    free(e);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent e, CUstream s)
{
    e->dag = s->capture ? s->capture : &gpu.now;
    e->emptied = e->dag->emptied;
    e->clock = s->capture ? s->captured : s->clock;
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent e, CUstream s)
{
    LOCKED(record(e, s));
}

static CUresult wait_event(CUstream s, CUevent e)
{
    if (!e->dag || e->dag->ended) {
        complain(e->dag ? "a wait for an event of a capture that has ended"
                        : "a wait for an event that was never recorded");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (gpu.calls.waits++ == gpu.drop || e->emptied != e->dag->emptied)
        return CUDA_SUCCESS;
    if (e->dag == &gpu.now && s->capture) {
        complain("a captured stream waits for an event outside");
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (e->dag == &gpu.now) {
        join(&s->clock, &e->clock);
        return CUDA_SUCCESS;
    }
    if (!s->capture) { /* it joins the capture */
        s->capture = e->dag;
        s->captured = (struct set){{0}};
    }
    join(&s->captured, &e->clock);
    return CUDA_SUCCESS;
}

static CUresult stream_wait_event(CUstream s, CUevent e, unsigned flags)
{
    (void)flags;
    LOCKED(wait_event(s, e));
}

/* ---- The driver: graphs ---------------------------------------------------------------------- */

static CUresult begin_capture(CUstream s, CUstreamCaptureMode mode)
{
    (void)mode;
    if (gpu.no_capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    gpu.alive++;
    s->capture = mgpu_xcalloc(1, sizeof *s->capture);
    s->captured = (struct set){{0}};
    return CUDA_SUCCESS;
}

static CUresult end_capture(CUstream s, CUgraph *out)
{
    struct dag *dag = s->capture;
    bool joined = true;
    for (int i = 0; i < dag->count; i++)
        joined = joined && has(&s->captured, i);
    for (struct CUstream_st *t = gpu.streams; t; t = t->next)
        if (t->capture == dag)
            t->capture = NULL;
    dag->ended = true;
    *out = joined ? (CUgraph)dag : NULL;
    if (gpu.graph_count < 256)
        gpu.graphs[gpu.graph_count++] = dag; /* events may still point to it */
    if (joined)
        return CUDA_SUCCESS;
    gpu.alive--;
    free_nodes(dag);
    complain("a capture ends with a stream that was not joined");
    return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static CUresult graph_begin(CUstream s, CUstreamCaptureMode mode)
{
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
    gpu.alive++;
    for (int i = 0; i < from->count; i++)
        add_node(to, &from->node[i]->work, &from->node[i]->accesses, &from->node[i]->before);
    *out = (CUgraphExec)to;
    return CUDA_SUCCESS;
}

static CUresult launch_graph(const struct dag *graph, CUstream s)
{
    int base = gpu.now.count;
    struct set whole = s->clock;
    if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (int i = 0; i < graph->count; i++) {
        struct set before = s->clock;
        for (int k = 0; k < i; k++)
            if (has(&graph->node[i]->before, k))
                put(&before, base + k);
        check_node(add_node(&gpu.now, &graph->node[i]->work, &graph->node[i]->accesses, &before));
        put(&whole, base + i);
    }
    s->clock = whole;
    gpu.calls.launched++;
    return CUDA_SUCCESS;
}

static CUresult graph_launch(CUgraphExec exec, CUstream s)
{
    LOCKED(launch_graph((const struct dag *)exec, s));
}

static CUresult graph_destroy(CUgraph graph)
{
    gpu.alive--;
    free_nodes((struct dag *)graph);
    return CUDA_SUCCESS;
}

static CUresult exec_destroy(CUgraphExec exec)
{
    gpu.alive--;
    free_nodes((struct dag *)exec);
    free(exec);
    return CUDA_SUCCESS;
}

/* ---- The driver: kernels --------------------------------------------------------------------- */

static bool waits_inside(const char *from, const char *to)
{
    static const char *const words[] = {"__syncthreads", "block_", "shuffle_"};
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(from, words[i]);
        if (at && at < to)
            return true;
    }
    return false;
}

/* Reads "KERNEL(name)(a, b) {...": what follows the mark. */
static void add_function(struct module *m, const char *text, FILE *calls)
{
    struct function *f = mgpu_xcalloc(1, sizeof *f);
    const char *end = strchr(text, ')'), *close = strchr(end + 1, ')');
    const char *next = strstr(text, "KERNEL(");
    snprintf(f->name, sizeof f->name, "%.*s", (int)(end - text), text);
    f->module = m;
    f->parameters = 1;
    for (const char *c = end; c < close; c++)
        f->parameters += *c == ',';
    f->together = waits_inside(text, next ? next : text + strlen(text));
    f->next = m->functions;
    m->functions = f;
    fprintf(calls, "void call_%s(void **p) { %s(", f->name, f->name);
    for (int i = 0; i < f->parameters; i++)
        fprintf(calls, "%sp[%d]", i ? ", " : "", i);
    fprintf(calls, "); }\n");
}

static CUresult module_load(CUmodule *out, const void *image)
{
    static const char mark[] = "KERNEL(";
    char *calls;
    size_t size;
    struct module *m = gpu.modules;
    gpu.calls.allocations++;
    gpu.alive++;
    while (m && strcmp(m->text, image))
        m = m->next;
    *out = (CUmodule)m;
    if (m)
        return CUDA_SUCCESS;
    m = mgpu_xcalloc(1, sizeof *m);
    m->text = mgpu_xstrdup(image);
    m->next = gpu.modules;
    gpu.modules = m;
    FILE *to = open_memstream(&calls, &size);
    for (const char *at = image; (at = strstr(at, mark)); at += sizeof mark - 1)
        add_function(m, at + sizeof mark - 1, to);
    fclose(to);
    int rc = emulate_open(&m->library, image, calls);
    free(calls);
    if (rc < 0)
        complain("%s", mgpu_error());
    *out = (CUmodule)m;
    return rc < 0 ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module)
{
    (void)module;
    gpu.alive--;
    return CUDA_SUCCESS;
}

static void free_modules(void)
{
    for (struct module *m = gpu.modules, *next; m; m = next) {
        next = m->next;
        emulate_close(m->library);
        for (struct function *f = m->functions, *other; f; f = other) {
            other = f->next;
            free(f);
        }
        free(m->text);
        free(m);
    }
    gpu.modules = NULL;
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
    if (!f || y != 1 || z != 1 || ty != 1 || tz != 1 || shared || x == 0 || x > INT32_MAX ||
        threads == 0 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    w.launch =
        (struct mgpu_emit_launch){.blocks = x, .threads = (int)threads, .together = f->together};
    for (int i = 0; i < f->parameters; i++)
        w.pointer[i] = *(void **)parameters[i];
    LOCKED(submit(s, &w, &s->accesses));
}

static void touches(CUstream s, const struct mgpu_cuda_access *access, int count)
{
    s->accesses.count = count < MOST_ACCESSES ? count : MOST_ACCESSES;
    memcpy(s->accesses.at, access, sizeof *access * (size_t)s->accesses.count);
}

/* ---- In place of NVIDIA's libraries ---------------------------------------------------------- */

static int stand_in(const struct mgpu_launch *l)
{
    const struct mgpu_gpu_queue *queue = l->queue;
    struct work w = {.kind = REF, .ref.node = l->node};
    for (int i = 0; i < l->inputs; i++)
        w.ref.in[i] = l->in[i].data;
    for (int i = 0; i < l->outputs; i++)
        w.ref.out[i] = l->out[i].data;
    pthread_mutex_lock(&gpu.lock);
    submit(queue->stream, &w, &queue->stream->accesses);
    pthread_mutex_unlock(&gpu.lock);
    return 0;
}

static bool is_plain(const struct mgpu_node *node)
{
    return !(node->op->flags & MGPU_OP_COMMUNICATION);
}

static struct mgpu_kernel library[64];

static void make_library(void)
{
    int n = 0;
    for (int i = 0; mgpu_ops[i]; i++)
        if (!mgpu_emit_knows(mgpu_ops[i]->name) && n < 63)
            library[n++] = (struct mgpu_kernel){
                .op = mgpu_ops[i]->name, .name = "ref", .accepts = is_plain, .run = stand_in};
}

static const struct mgpu_cuda_driver driver;
static const struct mgpu_cuda_nvrtc nvrtc;

/* ---- The compiler: its machine code is the text -----------------------------------------------
 */

static nvrtcResult nvrtc_version(int *major, int *minor)
{
    *major = *minor = 0;
    return NVRTC_SUCCESS;
}

static const char *nvrtc_error(nvrtcResult result)
{
    (void)result;
    return "error of the double";
}

static nvrtcResult nvrtc_create(nvrtcProgram *out, const char *source, const char *name, int count,
                                const char *const *headers, const char *const *names)
{
    (void)name, (void)count, (void)headers, (void)names;
    *out = (nvrtcProgram)mgpu_xstrdup(source + strlen(mgpu_emit_prelude(true)));
    return NVRTC_SUCCESS;
}

static void look_at_kernels(const struct mgpu_cubin *cubin, const char *text)
{
    static const char mark[] = "KERNEL(";
    for (const char *at = text; (at = strstr(at, mark)); at += sizeof mark - 1) {
        char name[64];
        struct mgpu_kernel_use use;
        const char *from = at + sizeof mark - 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(from, ")"), from);
        if (mgpu_cubin_use(cubin, name, &use) < 0 || use.spilled)
            complain("%s spills %d bytes: %.400s", name, use.spilled, at);
        gpu.registers = use.registers > gpu.registers ? use.registers : gpu.registers;
        gpu.kernels++;
    }
}

static nvrtcResult nvrtc_compile(nvrtcProgram program, int count, const char *const *options)
{
    struct mgpu_cubin cubin;
    const char *text = (const char *)program;
    (void)count, (void)options;
    if (!gpu.sm)
        return NVRTC_SUCCESS;
    mgpu_cuda_stand_in(&driver, NULL);
    if (mgpu_cuda_compile(&cubin, text, gpu.sm) < 0)
        complain("%s", mgpu_error());
    else
        look_at_kernels(&cubin, text);
    mgpu_cubin_free(&cubin);
    mgpu_cuda_stand_in(&driver, &nvrtc);
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_log_size(nvrtcProgram program, size_t *size)
{
    (void)program;
    *size = 1;
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_log(nvrtcProgram program, char *log)
{
    (void)program;
    *log = 0;
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_size(nvrtcProgram program, size_t *size)
{
    *size = strlen((const char *)program) + 1;
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_code(nvrtcProgram program, char *code)
{
    memcpy(code, program, strlen((const char *)program) + 1);
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_destroy(nvrtcProgram *program)
{
    free(*program);
    return NVRTC_SUCCESS;
}

/* ---- All ------------------------------------------------------------------------------------- */

static const struct mgpu_cuda_driver driver = {
    .cuInit = init,
    .cuDriverGetVersion = driver_version,
    .cuDeviceGetCount = device_count,
    .cuDeviceGet = device_get,
    .cuDeviceGetName = device_name,
    .cuDeviceGetAttribute = device_attribute,
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

static const struct mgpu_cuda_nvrtc nvrtc = {
    .nvrtcVersion = nvrtc_version,
    .nvrtcGetErrorString = nvrtc_error,
    .nvrtcCreateProgram = nvrtc_create,
    .nvrtcCompileProgram = nvrtc_compile,
    .nvrtcGetProgramLogSize = nvrtc_log_size,
    .nvrtcGetProgramLog = nvrtc_log,
    .nvrtcGetCUBINSize = nvrtc_size,
    .nvrtcGetCUBIN = nvrtc_code,
    .nvrtcDestroyProgram = nvrtc_destroy,
};

bool double_possible(void)
{
    return emulate_possible();
}

void double_begin(int gpus, int64_t bytes)
{
    gpu.gpus = gpus;
    gpu.bytes = bytes;
    gpu.drop = -1;
    setenv("MGPU_CACHE", "/dev/null/none", 1); /* nothing is kept */
    make_library();
    mgpu_gpu_library(library);
    mgpu_cuda_stand_in(&driver, &nvrtc);
}

void double_end(void)
{
    mgpu_cuda_stand_in(NULL, NULL);
    mgpu_gpu_library(NULL);
    for (int i = 0; i < gpu.graph_count; i++)
        free(gpu.graphs[i]);
    gpu.graph_count = 0;
    free_modules();
    if (gpu.alive || gpu.blocks)
        complain("%d things and %s memory were not freed", gpu.alive, gpu.blocks ? "some" : "no");
}

bool double_wanted(void)
{
    const char *check = getenv("MGPU_CHECK");
    if (!check || strcmp(check, "double"))
        return false;
    if (!double_possible()) {
        fprintf(stderr, "skipped: no C compiler, or the thread sanitizer\n");
        exit(77);
    }
    double_begin(1, INT64_C(1) << 30);
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
    return gpu.complaints;
}

const char *double_complaint(void)
{
    return gpu.complaints ? gpu.complaint : "";
}

void double_forget(void)
{
    gpu.complaints = 0;
}

struct double_calls double_count(void)
{
    return gpu.calls;
}

void double_drop_wait(int wait)
{
    gpu.drop = wait;
}

void double_no_capture(bool fails)
{
    gpu.no_capture = fails;
}

void double_compile(int sm)
{
    gpu.sm = sm;
}

int double_compiled(int *registers)
{
    *registers = gpu.registers;
    return gpu.kernels;
}
