/* What the double has in place of NVIDIA's libraries: `ref` runs what they would. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_kernels.h"
#include "runtime/cuda/library_private.h"
#include "runtime/emit/last.h"
#include "runtime/ops/rnn.h"
#include "runtime/ref/ref.h"
#include "tests/cuda/double_private.h"
#include "tests/emit/lay.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int inside; /* threads in a library */

static int stand_in(const struct mgpu_launch *l)
{
    bool alone = atomic_fetch_add(&inside, 1) == 0;
    const struct mgpu_gpu_queue *queue = l->queue;
    struct work w = {.kind = REF, .ref.node = l->node};
    for (int i = 0; i < l->inputs; i++)
        w.ref.in[i] = l->in[i].data;
    for (int i = 0; i < l->outputs; i++)
        w.ref.out[i] = l->out[i].data;
    if (double_gpu.library_us)
        usleep((unsigned)double_gpu.library_us);
    pthread_mutex_lock(&double_gpu.lock);
    if (!alone)
        double_complain("%s: another thread is in the libraries of the GPU", l->node->op->name);
    double_submit(queue->stream, &w, &queue->stream->accesses);
    pthread_mutex_unlock(&double_gpu.lock);
    atomic_fetch_sub(&inside, 1);
    return 0;
}

/* ---- Which nodes ----------------------------------------------------------------------------- */

enum { MOST = 64, PROPERTIES = 8192 };

static struct mgpu_kernel library[MOST];

static bool is_recurrent(const struct mgpu_op *op)
{
    return op == &mgpu_op_rnn || op == &mgpu_op_rnn_grad;
}

/* Generated kernels of convolutions are there for what cuDNN has no engine for. */
static bool is_libraries(const struct mgpu_op *op)
{
    return !mgpu_emit_knows(op->name) || !strncmp(op->name, "conv", 4) || is_recurrent(op);
}

/* Of recurrent layers what cuDNN has: the others' kernels are generated here, too. */
static bool is_plain(const struct mgpu_node *node)
{
    return is_recurrent(node->op) ? mgpu_library_rnn.accepts(node)
                                  : !(node->op->flags & MGPU_OP_COMMUNICATION);
}

void double_make_library(void)
{
    int n = 0;
    memset(library, 0, sizeof library);
    for (int i = 0; mgpu_ops[i]; i++)
        if (is_libraries(mgpu_ops[i]) && n < MOST - 1)
            library[n++] = (struct mgpu_kernel){
                .op = mgpu_ops[i]->name, .name = "ref", .accepts = is_plain, .run = stand_in};
    mgpu_gpu_library(library);
}

bool double_cudnn_driver(void)
{
    char path[512];
    const char *build = getenv("MGPU_BUILD");
    snprintf(path, sizeof path, "%s/stand_in/libcuda.so.1", build ? build : "build");
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) || dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

bool double_libraries(const char *gpu)
{
    static char properties[PROPERTIES];
    char path[256];
    struct mgpu_library *try;
    snprintf(path, sizeof path, "tests/cuda/gpus/%s.json", gpu);
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(properties, 1, sizeof properties - 1, file) : 0;
    if (file)
        fclose(file);
    properties[size] = 0;
    double_gpu.driver.properties = properties;
    const struct mgpu_library_options options = {.properties = properties};
    if (!size || !double_cudnn_driver() || mgpu_library_open(&try, &options) < 0) {
        double_gpu.driver.properties = NULL;
        return false;
    }
    mgpu_library_close(try);
    for (int i = 0; mgpu_library_kernels[i].op; i++) {
        library[i] = mgpu_library_kernels[i];
        library[i].run = stand_in;
        library[i + 1].op = NULL;
    }
    return true;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* ref knows images channel by channel alone. */
static void *plain_of(struct mgpu_value *v, const void *data)
{
    void *plain = mgpu_xcalloc((size_t)mgpu_value_bytes(v) + 1, 1);
    if (data)
        lay_channels(v, plain, data, false);
    v->block = 0;
    return plain;
}

static bool is_last(const struct mgpu_value *v)
{
    return v && v->block && mgpu_lies_last(v);
}

int double_run_ref(const struct standing_in *r)
{
    struct mgpu_value value[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    struct mgpu_value *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    void *plain[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS] = {NULL};
    const void *in[MGPU_MAX_INPUTS + 1];
    void *out[MGPU_MAX_OUTPUTS + 1];
    struct mgpu_node node = *r->node;
    int inputs = node.inputs, count = inputs + node.outputs;
    memcpy(in, r->in, sizeof in);
    memcpy(out, r->out, sizeof out);
    for (int i = 0; i < count; i++) {
        struct mgpu_value *v = i < inputs ? node.input[i] : node.output[i - inputs];
        operand[i] = v;
        if (!is_last(v))
            continue;
        value[i] = *v;
        operand[i] = &value[i];
        plain[i] = plain_of(&value[i], i < inputs ? in[i] : NULL);
        if (i < inputs)
            in[i] = plain[i];
        else
            out[i - inputs] = plain[i];
    }
    node.input = operand;
    node.output = operand + inputs;
    int rc = mgpu_backend_run(&mgpu_backend_ref, &node, in, out);
    for (int i = 0; i < count; i++) {
        if (plain[i] && i >= inputs)
            lay_channels(r->node->output[i - inputs], r->out[i - inputs], plain[i], true);
        free(plain[i]);
    }
    return rc;
}
