/* Which of a library's candidates is the fastest: timed once, remembered on disk. */
#include "runtime/base/status.h"
#include "runtime/cuda/cache.h"
#include "runtime/cuda/library_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 3, RUNS = 5, ALIGNMENT = 256 };

/* ---- What is remembered ---------------------------------------------------------------------- */

/* What a choice depends on besides the computation. */
static char *key_of(const struct mgpu_library *l)
{
    char key[512];
    const struct mgpu_library_options *o = &l->options;
    snprintf(key, sizeof key, "%s, cuBLASLt %zu, tf32 %d exact %d deterministic %d workspace %lld",
             l->dnn.key, l->lt.cublasLtGetVersion(), o->tf32, o->exact, o->deterministic,
             (long long)o->workspace);
    return mgpu_xstrdup(key);
}

int mgpu_library_remembered(const struct mgpu_library *l, const char *words)
{
    void *data;
    size_t size;
    char *key = key_of(l);
    bool found = mgpu_cache_read(key, words, &data, &size);
    free(key);
    if (!found)
        return -1;
    int candidate = atoi(data);
    free(data);
    return candidate;
}

/* False: there is no place for it. */
static bool remember(const struct mgpu_library *l, const char *words, int candidate)
{
    char *key = key_of(l), text[16];
    snprintf(text, sizeof text, "%d", candidate);
    bool kept = mgpu_cache_write(key, words, text, strlen(text) + 1);
    free(key);
    return kept;
}

/* ---- Trials ---------------------------------------------------------------------------------- */

/* Operands that a call is run on. */
struct trial {
    struct mgpu_library_call *call;
    CUstream stream;
    CUevent begin, end;
    CUdeviceptr memory;
    void *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
};

static bool driver_does(CUresult result)
{
    return result == CUDA_SUCCESS;
}

/* Zeros, as any numbers take the same time. */
static bool trial_init(struct trial *t, struct mgpu_library_call *call)
{
    const struct mgpu_cuda_driver *cu = &call->library->driver;
    const struct mgpu_node *node = call->node;
    size_t at[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS], size = 0;
    *t = (struct trial){.call = call};
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v = mgpu_library_operand(node, i);
        at[i] = size;
        size += v ? ((size_t)mgpu_value_bytes(v) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
    }
    bool ok = driver_does(cu->cuStreamCreateWithPriority(&t->stream, CU_STREAM_NON_BLOCKING, 0)) &&
              driver_does(cu->cuEventCreate(&t->begin, CU_EVENT_DEFAULT)) &&
              driver_does(cu->cuEventCreate(&t->end, CU_EVENT_DEFAULT)) &&
              driver_does(cu->cuMemAlloc(&t->memory, size)) &&
              driver_does(cu->cuMemsetD8Async(t->memory, 0, size, t->stream));
    for (int i = 0; ok && i < node->inputs + node->outputs; i++)
        t->operand[i] = mgpu_library_operand(node, i) ? (void *)(t->memory + at[i]) : NULL;
    return ok;
}

static void trial_free(struct trial *t)
{
    const struct mgpu_cuda_driver *cu = &t->call->library->driver;
    if (t->memory)
        cu->cuMemFree(t->memory);
    if (t->end)
        cu->cuEventDestroy(t->end);
    if (t->begin)
        cu->cuEventDestroy(t->begin);
    if (t->stream)
        cu->cuStreamDestroy(t->stream);
}

/* `runs` of them, one behind the other. */
static bool run_some(struct trial *t, void *workspace, int runs, float *ms)
{
    struct mgpu_library_call *call = t->call;
    const struct mgpu_cuda_driver *cu = &call->library->driver;
    bool ok = driver_does(cu->cuEventRecord(t->begin, t->stream));
    for (int i = 0; i < runs && ok; i++)
        ok = call->family->run(call, t->stream, t->operand, workspace) == 0;
    ok = ok && driver_does(cu->cuEventRecord(t->end, t->stream));
    ok = driver_does(cu->cuStreamSynchronize(t->stream)) && ok;
    return ok && driver_does(cu->cuEventElapsedTime(ms, t->begin, t->end));
}

/* The least time of a candidate in milliseconds; infinity: it does not run. */
static double time_candidate(struct trial *t, int candidate)
{
    struct mgpu_library_call *call = t->call;
    const struct mgpu_cuda_driver *cu = &call->library->driver;
    CUdeviceptr workspace = 0;
    double least = INFINITY;
    float ms;
    if (call->family->choose(call, candidate) < 0 ||
        !driver_does(cu->cuMemAlloc(&workspace, (size_t)call->workspace + ALIGNMENT)))
        return INFINITY;
    bool ok = run_some(t, (void *)workspace, 1, &ms); /* loads what it needs */
    for (int i = 0; i < TRIALS && ok; i++) {
        ok = run_some(t, (void *)workspace, RUNS, &ms);
        least = ok ? fmin(least, ms) : INFINITY;
    }
    cu->cuMemFree(workspace);
    return least;
}

static int find_fastest(struct mgpu_library_call *call)
{
    struct trial t;
    double least = INFINITY;
    int best = -1;
    bool ok = trial_init(&t, call);
    for (int i = 0; ok && i < call->family->candidates(call); i++) {
        double ms = time_candidate(&t, i);
        best = ms < least ? i : best;
        least = fmin(least, ms);
    }
    trial_free(&t);
    return best;
}

int mgpu_library_tune(struct mgpu_library_call *call)
{
    const struct mgpu_library_family *family = call->family;
    if (!family->words || mgpu_library_remembered(call->library, family->words(call)) >= 0 ||
        !remember(call->library, family->words(call), -1))
        return 0;
    int best = find_fastest(call);
    remember(call->library, family->words(call), best);
    return family->choose(call, best);
}
