#include "runtime/cuda/compile.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/cache.h"
#include "runtime/cuda/error.h"
#include "runtime/emit/emit.h"

#include <ctype.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Division, roots and functions as exact as they come: no --use_fast_math. 177: the prelude has
 * functions that a kernel does not use. */
static const char *const flags[] = {"--std=c++17", "--ptxas-options=-v", "--diag-suppress=177"};
enum { FLAGS = sizeof flags / sizeof *flags };

static char *whole_source(const char *text)
{
    char *source;
    size_t size;
    FILE *out = open_memstream(&source, &size);
    if (!out)
        abort(); /* no memory for metadata */
    fprintf(out, "%s%s", mgpu_emit_prelude(true), text);
    fclose(out);
    return source;
}

static char *log_of(const struct mgpu_cuda_nvrtc *nvrtc, nvrtcProgram program)
{
    size_t size = 0;
    if (nvrtc->nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS)
        return mgpu_xstrdup("");
    char *log = mgpu_xcalloc(size + 1, 1);
    nvrtc->nvrtcGetProgramLog(program, log);
    return log;
}

static int take_code(const struct mgpu_cuda_nvrtc *nvrtc, nvrtcProgram program, bool machine_code,
                     struct mgpu_cubin *out)
{
    nvrtcResult result = machine_code ? nvrtc->nvrtcGetCUBINSize(program, &out->size)
                                      : nvrtc->nvrtcGetPTXSize(program, &out->size);
    if (result == NVRTC_SUCCESS) {
        out->data = mgpu_xcalloc(out->size, 1);
        result = machine_code ? nvrtc->nvrtcGetCUBIN(program, out->data)
                              : nvrtc->nvrtcGetPTX(program, out->data);
    }
    return mgpu_nvrtc_status(nvrtc, result, "taking compiled kernels over", "");
}

/* The newest that the compiler knows up to `sm`; where it knows none, `sm`. */
static int newest_known(const struct mgpu_cuda_nvrtc *nvrtc, int sm)
{
    int count = 0, newest = 0;
    if (nvrtc->nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count <= 0)
        return sm;
    int *known = mgpu_xcalloc((size_t)count, sizeof *known);
    if (nvrtc->nvrtcGetSupportedArchs(known) != NVRTC_SUCCESS)
        count = 0;
    for (int i = 0; i < count; i++)
        newest = known[i] <= sm && known[i] > newest ? known[i] : newest;
    free(known);
    return newest ? newest : sm;
}

/* Spaces and ends of lines become one space. */
static void join_lines(char *text)
{
    size_t n = 0;
    for (const char *at = text; *at; at++)
        if (!isspace((unsigned char)*at))
            text[n++] = *at;
        else if (n && text[n - 1] != ' ')
            text[n++] = ' ';
    text[n && text[n - 1] == ' ' ? n - 1 : n] = 0;
}

static int refused(const struct mgpu_cuda_nvrtc *nvrtc, nvrtcResult result, char *log)
{
    join_lines(log);
    return mgpu_nvrtc_status(nvrtc, result, "compiling kernels", log);
}

/* For a GPU that is newer than the compiler its driver makes machine code, of PTX. */
static int compile(const struct mgpu_cuda_nvrtc *nvrtc, struct mgpu_cubin *out, const char *source,
                   int sm)
{
    nvrtcProgram program;
    char target[32];
    const char *options[FLAGS + 1];
    int known = newest_known(nvrtc, sm);
    memcpy(options, flags, sizeof flags);
    options[FLAGS] = target;
    snprintf(target, sizeof target, "--gpu-architecture=%s_%d", known == sm ? "sm" : "compute",
             known);
    nvrtcResult result = nvrtc->nvrtcCreateProgram(&program, source, "kernels.cu", 0, NULL, NULL);
    MGPU_TRY(mgpu_nvrtc_status(nvrtc, result, "making a program of kernels", ""));
    result = nvrtc->nvrtcCompileProgram(program, FLAGS + 1, options);
    out->log = log_of(nvrtc, program);
    int rc = result == NVRTC_SUCCESS ? take_code(nvrtc, program, known == sm, out)
                                     : refused(nvrtc, result, out->log);
    nvrtc->nvrtcDestroyProgram(&program);
    return rc;
}

int mgpu_cuda_compile_by(const struct mgpu_cuda_nvrtc *nvrtc, struct mgpu_cubin *out,
                         const char *text, int sm)
{
    *out = (struct mgpu_cubin){0};
    char *source = whole_source(text);
    int rc = compile(nvrtc, out, source, sm);
    free(source);
    if (rc < 0)
        mgpu_cubin_free(out);
    return rc;
}

int mgpu_cuda_compile(struct mgpu_cubin *out, const char *text, int sm)
{
    struct mgpu_cuda_nvrtc nvrtc;
    *out = (struct mgpu_cubin){0};
    MGPU_TRY(mgpu_cuda_load_nvrtc(&nvrtc));
    return mgpu_cuda_compile_by(&nvrtc, out, text, sm);
}

int mgpu_cuda_compile_cached(struct mgpu_cubin *out, const char *text, int sm)
{
    struct mgpu_cuda_nvrtc nvrtc;
    int major = 0, minor = 0;
    char key[256];
    *out = (struct mgpu_cubin){0};
    MGPU_TRY(mgpu_cuda_load_nvrtc(&nvrtc));
    nvrtc.nvrtcVersion(&major, &minor);
    snprintf(key, sizeof key, "NVRTC %d.%d sm_%d %s %s %s\n", major, minor, sm, flags[0], flags[1],
             flags[2]);
    char *source = whole_source(text);
    int rc = 0;
    if (!mgpu_cache_read(key, source, &out->data, &out->size)) {
        rc = compile(&nvrtc, out, source, sm);
        if (rc == 0)
            mgpu_cache_write(key, source, out->data, out->size);
    }
    free(source);
    if (rc < 0)
        mgpu_cubin_free(out);
    return rc;
}

/* ---- Several at a time ----------------------------------------------------------------------- */

struct job {
    const char *text;
    struct mgpu_cubin *cubin;
    int rc;
    char *error; /* of the thread that it failed on */
};

struct queue {
    struct job *job;
    int count, sm;
    atomic_int next;
};

static void *compile_jobs(void *context)
{
    struct queue *q = context;
    for (int i; (i = atomic_fetch_add(&q->next, 1)) < q->count;) {
        struct job *j = &q->job[i];
        j->rc = mgpu_cuda_compile_cached(j->cubin, j->text, q->sm);
        j->error = j->rc < 0 ? mgpu_xstrdup(mgpu_error()) : NULL;
    }
    return NULL;
}

/* This thread takes its part; what the system gives no thread for is its work, too. */
static void compile_on(struct queue *q, int threads)
{
    pthread_t *helper = mgpu_xcalloc((size_t)threads, sizeof *helper);
    int helpers = 0;
    while (helpers + 1 < threads && !pthread_create(&helper[helpers], NULL, compile_jobs, q))
        helpers++;
    compile_jobs(q);
    for (int i = 0; i < helpers; i++)
        pthread_join(helper[i], NULL);
    free(helper);
}

int mgpu_cuda_compile_all(struct mgpu_cubin *out, const char *const *text, int count, int sm)
{
    struct queue q = {.count = count, .sm = sm};
    int rc = 0, threads = omp_get_max_threads();
    q.job = mgpu_xcalloc((size_t)count + 1, sizeof *q.job);
    for (int i = 0; i < count; i++)
        q.job[i] = (struct job){.text = text[i], .cubin = &out[i]};
    compile_on(&q, threads < count ? threads : count);
    for (int i = 0; i < count; i++) {
        if (rc == 0 && q.job[i].rc < 0)
            rc = mgpu_fail_text(q.job[i].rc, q.job[i].error);
        free(q.job[i].error);
    }
    free(q.job);
    for (int i = 0; i < count && rc < 0; i++)
        mgpu_cubin_free(&out[i]);
    return rc;
}

void mgpu_cubin_free(struct mgpu_cubin *cubin)
{
    free(cubin->data);
    free(cubin->log);
    *cubin = (struct mgpu_cubin){0};
}

/* "Function properties for NAME\n 0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n
 * ptxas info : Used 24 registers, used 1 barriers, 1024 bytes smem, ..." */
int mgpu_cubin_use(const struct mgpu_cubin *cubin, const char *function,
                   struct mgpu_kernel_use *use)
{
    char title[128];
    *use = (struct mgpu_kernel_use){0};
    snprintf(title, sizeof title, "Function properties for %s\n", function);
    const char *at = cubin->log ? strstr(cubin->log, title) : NULL;
    const char *spill = at ? strstr(at, "stack frame, ") : NULL;
    const char *used = spill ? strstr(spill, "Used ") : NULL;
    if (!used)
        return -1;
    use->spilled = atoi(spill + strlen("stack frame, "));
    use->registers = atoi(used + strlen("Used "));
    const char *end = strchr(used, '\n'), *shared = strstr(used, " bytes smem");
    if (!shared || (end && shared > end))
        return 0;
    while (shared > used && shared[-1] >= '0' && shared[-1] <= '9')
        shared--;
    use->shared = atoi(shared);
    return 0;
}
