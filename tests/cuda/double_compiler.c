/* The double's compiler: its machine code is the text. It may ask the real one what it makes of it.
 */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/compile.h"
#include "tests/cuda/double_private.h"

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

static void look_at_kernels(const struct mgpu_cubin *cubin, const char *text, int sm)
{
    static const char mark[] = "KERNEL(";
    struct double_kernels *all = &double_gpu.kernels;
    for (const char *at = text; (at = strstr(at, mark)); at += sizeof mark - 1) {
        char name[64];
        struct mgpu_kernel_use use;
        const char *from = at + sizeof mark - 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(from, ")"), from);
        if (mgpu_cubin_use(cubin, name, &use) < 0 || use.spilled)
            double_complain("%s spills %d bytes on sm_%d: %.400s", name, use.spilled, sm, at);
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

struct double_kernels double_compiled(void)
{
    return double_gpu.kernels;
}

static void compile_really(const char *text, int sm)
{
    struct mgpu_cubin cubin;
    int rc = mgpu_cuda_compile_by(&real, &cubin, text, sm);
    pthread_mutex_lock(&double_gpu.lock); /* several compile at a time */
    if (rc < 0)
        double_complain("sm_%d: %s", sm, mgpu_error());
    else
        look_at_kernels(&cubin, text, sm);
    pthread_mutex_unlock(&double_gpu.lock);
    mgpu_cubin_free(&cubin);
}

static nvrtcResult nvrtc_compile(nvrtcProgram program, int count, const char *const *options)
{
    (void)count, (void)options;
    for (int i = 0; i < double_gpu.sms; i++)
        compile_really((const char *)program, double_gpu.sm[i]);
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
