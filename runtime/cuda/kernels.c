#include "runtime/cuda/kernels.h"

#include "runtime/base/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/library_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Generated kernels of nodes -------------------------------------------------------------- */

/* Updates are left out where a loss or gradient is not finite. */
static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    struct mgpu_gpu_kernel *k = mgpu_xcalloc(1, sizeof *k);
    (void)threads, (void)exact;
    mgpu_emit(&k->emitted, node, MGPU_GPU_KERNEL, node->origin.role == MGPU_UPDATE);
    *state = k;
    return 0;
}

static void release(void *state)
{
    struct mgpu_gpu_kernel *k = state;
    mgpu_emitted_free(&k->emitted);
    free(k);
}

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    const struct mgpu_gpu_kernel *k = state;
    (void)node, (void)threads;
    return k->emitted.workspace;
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_gpu_kernel *k = l->state;
    const struct mgpu_gpu_queue *queue = l->queue;
    CUdeviceptr pointer[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 2];
    int n = 0;
    for (int i = 0; i < l->inputs + l->outputs; i++)
        if (l->in[i].data) /* out stands behind in */
            pointer[n++] = (CUdeviceptr)l->in[i].data;
    if (k->emitted.workspace)
        pointer[n++] = (CUdeviceptr)l->workspace;
    pointer[n++] = queue->stop;
    return mgpu_gpu_submit(queue, k, pointer);
}

/* More operands than a launch should take go to no kernel. */
static bool accepts(const struct mgpu_node *node)
{
    return node->inputs <= MGPU_MAX_INPUTS && mgpu_emit_accepts(node);
}

int mgpu_gpu_submit(const struct mgpu_gpu_queue *queue, const struct mgpu_gpu_kernel *kernel,
                    const CUdeviceptr *pointers)
{
    void *parameter[MGPU_MAX_RANKS + MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS + 2];
    for (int i = 0; i < kernel->emitted.parameters; i++)
        parameter[i] = (void *)&pointers[i];
    for (int k = 0; k < kernel->emitted.launches; k++) {
        const struct mgpu_emit_launch *l = &kernel->emitted.launch[k];
        GPU_TRY(queue->gpu, cuLaunchKernel,
                (kernel->function[k], (unsigned)l->blocks, 1, 1, (unsigned)l->threads, 1, 1, 0,
                 queue->stream, parameter, NULL));
    }
    return 0;
}

/* ---- The backend ----------------------------------------------------------------------------- */

enum { MOST_KERNELS = 128 };

static struct mgpu_kernel generated[MOST_KERNELS];
static const struct mgpu_kernel *tables[] = {mgpu_library_kernels, generated, NULL};

const struct mgpu_backend mgpu_backend_cuda = {.name = "cuda",
                                               .biases_apart = true,
                                               .most_parts = MGPU_MAX_INPUTS,
                                               .ends = true,
                                               .tables = tables,
                                               .blocked = tables,
                                               .blocks = mgpu_cuda_blocks};

void mgpu_gpu_library(const struct mgpu_kernel *library)
{
    tables[0] = library ? library : mgpu_library_kernels;
}

void mgpu_gpu_backend_begin(void)
{
    int n = 0;
    for (int i = 0; mgpu_ops[i]; i++)
        if (mgpu_emit_knows(mgpu_ops[i]->name) && n < MOST_KERNELS - 1)
            generated[n++] = (struct mgpu_kernel){.op = mgpu_ops[i]->name,
                                                  .name = "generated",
                                                  .accepts = accepts,
                                                  .prepare = prepare,
                                                  .release = release,
                                                  .workspace = workspace,
                                                  .run = run};
}

struct mgpu_gpu_kernel *mgpu_gpu_kernel_of(const struct mgpu_instruction *in)
{
    return in->kernel && in->kernel->run == run ? in->state : NULL;
}

/* ---- Modules --------------------------------------------------------------------------------- */

void mgpu_gpu_batch_add(struct mgpu_gpu_batch *batch, struct mgpu_gpu_kernel *kernel)
{
    batch->kernel =
        mgpu_grow(batch->kernel, (size_t)batch->count, sizeof(struct mgpu_gpu_kernel *));
    batch->kernel[batch->count++] = kernel;
}

void mgpu_gpu_batch_free(struct mgpu_gpu_batch *batch)
{
    free(batch->kernel);
}

static int by_text(const void *a, const void *b)
{
    const struct mgpu_gpu_kernel *const *x = a, *const *y = b;
    return strcmp((*x)->emitted.text, (*y)->emitted.text);
}

/* The functions k_0, k_1 ... of a text become kNUMBER_0, kNUMBER_1 ... */
static void write_named(FILE *out, const char *text, int number)
{
    static const char mark[] = "KERNEL(" MGPU_GPU_KERNEL "_";
    for (const char *at; (at = strstr(text, mark)); text = at + sizeof mark - 1)
        fprintf(out, "%.*sKERNEL(" MGPU_GPU_KERNEL "%d_", (int)(at - text), text, number);
    fputs(text, out);
}

static bool repeats(const struct mgpu_gpu_batch *b, int i, int first)
{
    return i > first && by_text(&b->kernel[i - 1], &b->kernel[i]) == 0;
}

static int find_functions(const struct mgpu_gpu *gpu, CUmodule module,
                          struct mgpu_gpu_kernel *kernel, int number)
{
    char name[64];
    for (int k = 0; k < kernel->emitted.launches; k++) {
        snprintf(name, sizeof name, MGPU_GPU_KERNEL "%d_%d", number, k);
        GPU_TRY(gpu, cuModuleGetFunction, (&kernel->function[k], module, name));
    }
    return 0;
}

/* Kernels [first, last), sorted by text, that become one module. */
struct unit {
    int first, last;
};

static char *text_of(const struct mgpu_gpu_batch *b, const struct unit *u)
{
    char *text;
    size_t size;
    int number = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        abort(); /* no memory for metadata */
    for (int i = u->first; i < u->last; i++)
        if (!repeats(b, i, u->first))
            write_named(out, b->kernel[i]->emitted.text, number++);
    fclose(out);
    return text;
}

static int find_unit(const struct mgpu_gpu_batch *b, const struct mgpu_gpu *gpu,
                     const struct unit *u, CUmodule module)
{
    int number = -1;
    for (int i = u->first; i < u->last; i++) {
        number += !repeats(b, i, u->first);
        MGPU_TRY(find_functions(gpu, module, b->kernel[i], number));
    }
    return 0;
}

static int load_units(const struct mgpu_gpu_batch *b, struct mgpu_gpu *gpu, const struct unit *unit,
                      int units)
{
    CUmodule *module = mgpu_xcalloc((size_t)units, sizeof *module);
    char **text = mgpu_xcalloc((size_t)units, sizeof *text);
    for (int u = 0; u < units; u++)
        text[u] = text_of(b, &unit[u]);
    int rc = mgpu_gpu_load(gpu, (const char *const *)text, units, module);
    for (int u = 0; u < units; u++) {
        if (rc == 0)
            rc = find_unit(b, gpu, &unit[u], module[u]);
        free(text[u]);
    }
    free(text);
    free(module);
    return rc;
}

/* Units of a size that no number of threads changes, so that what the cache holds serves all. */
int mgpu_gpu_batch_load(struct mgpu_gpu_batch *b, struct mgpu_gpu *gpu)
{
    enum { UNIT = 16 };
    struct unit *unit = NULL;
    int units = 0;
    if (b->count)
        qsort(b->kernel, (size_t)b->count, sizeof(struct mgpu_gpu_kernel *), by_text);
    for (int first = 0, last; first < b->count; first = last) {
        last = first + UNIT < b->count ? first + UNIT : b->count;
        while (last < b->count && repeats(b, last, first)) /* equal texts stay together */
            last++;
        unit = mgpu_grow(unit, (size_t)units, sizeof *unit);
        unit[units++] = (struct unit){first, last};
    }
    int rc = units ? load_units(b, gpu, unit, units) : 0;
    free(unit);
    return rc;
}
