/* The double's modules: the text of generated kernels, compiled for the host. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "tests/cuda/double_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Its functions, and the text of those that call them with an array of pointers. */
static char *read_functions(struct module *m)
{
    static const char mark[] = "KERNEL(";
    char *calls;
    size_t size;
    FILE *to = open_memstream(&calls, &size);
    if (!to)
        abort(); /* no memory for metadata */
    for (const char *at = m->text; (at = strstr(at, mark)); at += sizeof mark - 1)
        add_function(m, at + sizeof mark - 1, to);
    fclose(to);
    return calls;
}

CUresult double_module(struct module **out, const char *text)
{
    struct module *m = double_gpu.modules;
    while (m && strcmp(m->text, text))
        m = m->next;
    *out = m;
    if (m)
        return CUDA_SUCCESS;
    m = mgpu_xcalloc(1, sizeof *m);
    m->text = mgpu_xstrdup(text);
    m->next = double_gpu.modules;
    double_gpu.modules = m;
    char *calls = read_functions(m);
    int rc = double_gpu.sms ? 0 : emulate_open(&m->library, text, calls);
    free(calls);
    if (rc < 0)
        double_complain("%s", mgpu_error());
    *out = m;
    return rc < 0 ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

void double_free_modules(void)
{
    for (struct module *m = double_gpu.modules, *next; m; m = next) {
        next = m->next;
        emulate_close(m->library);
        for (struct function *f = m->functions, *other; f; f = other) {
            other = f->next;
            free(f);
        }
        free(m->text);
        free(m);
    }
    double_gpu.modules = NULL;
}
