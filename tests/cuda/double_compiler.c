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
            double_complain("%s spills %d bytes: %.400s", name, use.spilled, at);
        double_gpu.registers =
            use.registers > double_gpu.registers ? use.registers : double_gpu.registers;
        double_gpu.kernels++;
    }
}

static nvrtcResult nvrtc_compile(nvrtcProgram program, int count, const char *const *options)
{
    struct mgpu_cubin cubin;
    const char *text = (const char *)program;
    (void)count, (void)options;
    if (!double_gpu.sm)
        return NVRTC_SUCCESS;
    mgpu_cuda_stand_in(&double_driver, NULL);
    if (mgpu_cuda_compile(&cubin, text, double_gpu.sm) < 0)
        double_complain("%s", mgpu_error());
    else
        look_at_kernels(&cubin, text);
    mgpu_cubin_free(&cubin);
    mgpu_cuda_stand_in(&double_driver, &double_nvrtc);
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
    .nvrtcGetErrorString = nvrtc_error,
    .nvrtcCreateProgram = nvrtc_create,
    .nvrtcCompileProgram = nvrtc_compile,
    .nvrtcGetProgramLogSize = nvrtc_log_size,
    .nvrtcGetProgramLog = nvrtc_log,
    .nvrtcGetCUBINSize = nvrtc_size,
    .nvrtcGetCUBIN = nvrtc_code,
    .nvrtcDestroyProgram = nvrtc_destroy,
};
