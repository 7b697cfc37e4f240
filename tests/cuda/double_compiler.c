/* The double's compiler: its machine code is the text. It may ask the real one what it makes of it.
 */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/compile.h"
#include "tests/cuda/double_private.h"
#include "tests/emit/forms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nvrtcResult nvrtc_version(int *major, int *minor)
{
    *major = *minor = 0;
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_archs_count(int *count)
{
    *count = 0; /* it takes any */
    return NVRTC_SUCCESS;
}

static nvrtcResult nvrtc_archs(int *known)
{
    (void)known;
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

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static const char mark[] = "KERNEL("; /* where one begins */

static void look_at_kernels(const struct mgpu_cubin *cubin, const char *text, int kind)
{
    struct double_kernels *all = &double_gpu.kernels[kind];
    for (const char *at = text; (at = strstr(at, mark)); at += sizeof mark - 1) {
        char name[64];
        struct mgpu_kernel_use use;
        const char *from = at + sizeof mark - 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(from, ")"), from);
        if (mgpu_cubin_use(cubin, name, &use) < 0 || use.spilled)
            double_complain("%s spills %d bytes on sm_%d: %.400s", name, use.spilled,
                            double_gpu.sm[kind], at);
        all->registers = larger(all->registers, use.registers);
        all->shared = larger(all->shared, use.shared);
        all->spilled = larger(all->spilled, use.spilled);
        all->count++;
    }
}

static struct mgpu_cuda_nvrtc real;

void double_compile(const int *sm, int count)
{
    double_gpu.sm = sm;
    double_gpu.sms = count;
    mgpu_cuda_stand_in(&double_gpu.driver, NULL);
    if (mgpu_cuda_load_nvrtc(&real) < 0)
        double_complain("%s", mgpu_error());
    mgpu_cuda_stand_in(&double_gpu.driver, &double_nvrtc);
}

struct double_kernels double_compiled(int kind)
{
    return double_gpu.kernels[kind];
}

/* Whether a kernel is to be compiled for the kind of GPU: the first of its form is for each, any
 * other that differs from all so far, if by its numbers alone, for one kind in turn. */
static void choose(bool *chosen, const char *kernel)
{
    static struct kernel_forms forms, kernels;
    static int turn;
    bool form = kernel_form_is_new(&forms, kernel, false),
         new = kernel_form_is_new(&kernels, kernel, true);
    int only = new && !form ? turn++ % double_gpu.sms : -1;
    for (int i = 0; i < double_gpu.sms; i++)
        chosen[i] = form || i == only;
}

/* What is to be compiled of a program, for each kind of GPU. */
static void split_program(FILE *const *to, const char *program)
{
    for (const char *at = strstr(program, mark), *next; at; at = next) {
        bool chosen[MOST_KINDS];
        next = strstr(at + 1, mark);
        char *kernel = next ? strndup(at, (size_t)(next - at)) : strdup(at);
        choose(chosen, kernel);
        for (int i = 0; i < double_gpu.sms; i++)
            if (chosen[i])
                fprintf(to[i], "%s\n", kernel);
        free(kernel);
    }
}

static void compile_really(const char *text, int kind)
{
    struct mgpu_cubin cubin;
    int sm = double_gpu.sm[kind], rc = mgpu_cuda_compile_by(&real, &cubin, text, sm);
    pthread_mutex_lock(&double_gpu.lock);
    if (rc < 0)
        double_complain("sm_%d: %s", sm, mgpu_error());
    else
        look_at_kernels(&cubin, text, kind);
    pthread_mutex_unlock(&double_gpu.lock);
    mgpu_cubin_free(&cubin);
}

static nvrtcResult nvrtc_compile(nvrtcProgram program, int count, const char *const *options)
{
    char *text[MOST_KINDS];
    size_t size[MOST_KINDS];
    FILE *to[MOST_KINDS];
    (void)count, (void)options;
    if (!double_gpu.sms)
        return NVRTC_SUCCESS;
    for (int i = 0; i < double_gpu.sms; i++)
        to[i] = open_memstream(&text[i], &size[i]);
    pthread_mutex_lock(&double_gpu.lock); /* several compile at a time */
    split_program(to, (const char *)program);
    pthread_mutex_unlock(&double_gpu.lock);
    for (int i = 0; i < double_gpu.sms; i++) {
        fclose(to[i]);
        if (*text[i])
            compile_really(text[i], i);
        free(text[i]);
    }
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

const struct mgpu_cuda_nvrtc double_nvrtc = {
    .nvrtcVersion = nvrtc_version,
    .nvrtcGetNumSupportedArchs = nvrtc_archs_count,
    .nvrtcGetSupportedArchs = nvrtc_archs,
    .nvrtcGetErrorString = nvrtc_error,
    .nvrtcCreateProgram = nvrtc_create,
    .nvrtcCompileProgram = nvrtc_compile,
    .nvrtcGetProgramLogSize = nvrtc_log_size,
    .nvrtcGetProgramLog = nvrtc_log,
    .nvrtcGetCUBINSize = nvrtc_size,
    .nvrtcGetCUBIN = nvrtc_code,
    .nvrtcGetPTXSize = nvrtc_size,
    .nvrtcGetPTX = nvrtc_code,
    .nvrtcDestroyProgram = nvrtc_destroy,
};
