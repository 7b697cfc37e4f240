#include "runtime/cuda/library_kernels.h"

#include "runtime/base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/library.h"
#include "runtime/emit/emit.h"

static _Thread_local struct mgpu_library *current;

void mgpu_library_enter(struct mgpu_library *library)
{
    current = library;
}

static bool accepts(const struct mgpu_node *node)
{
    return current && mgpu_library_accepts(current, node);
}

static int prepare(const struct mgpu_node *node, int threads, bool exact, void **state)
{
    struct mgpu_library_call *call;
    (void)threads, (void)exact; /* what may be rounded was said when the library was opened */
    int rc = mgpu_library_prepare(&call, current, node);
    if (rc == MGPU_EUNSUPPORTED && mgpu_emit_accepts(node)) /* a generated kernel is the next */
        mgpu_library_warn(current, node);
    *state = call;
    return rc;
}

static void release(void *state)
{
    mgpu_library_release(state);
}

/* Libraries want more of a boundary than there is for what else lies in the arena. */
enum { BOUNDARY = 256 };

static int64_t workspace(const struct mgpu_node *node, int threads, const void *state)
{
    int64_t bytes = mgpu_library_workspace(state);
    (void)node, (void)threads;
    return bytes > 0 ? bytes + BOUNDARY : 0;
}

static void *on_boundary(void *at)
{
    return (void *)(((uintptr_t)at + BOUNDARY - 1) / BOUNDARY * BOUNDARY);
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_gpu_queue *queue = l->queue;
    void *operand[MGPU_MAX_INPUTS + MGPU_MAX_OUTPUTS];
    for (int i = 0; i < l->inputs + l->outputs; i++) /* out stands behind in */
        operand[i] = l->in[i].data;
    return mgpu_library_run(l->state, queue->stream, operand, on_boundary(l->workspace));
}

#define KERNEL(operator)                                                                           \
    {                                                                                              \
        .op = operator, .name = "library", .accepts = accepts, .prepare = prepare,                 \
        .release = release, .workspace = workspace, .run = run                                     \
    }

const struct mgpu_kernel mgpu_library_kernels[] = {
    KERNEL("conv"),        KERNEL("conv_grad_input"), KERNEL("conv_grad_weight"),
    KERNEL("rnn"),         KERNEL("rnn_grad"),        KERNEL("matmul"),
    KERNEL("matmul_sums"), KERNEL("matmul_gelu"),     KERNEL("matmul_gelu_grad"),
    KERNEL("attention"),   KERNEL("attention_grad"),  {.op = NULL}};

/* ---- Layouts --------------------------------------------------------------------------------- */

static int64_t sample_elements(const struct mgpu_value *v)
{
    int64_t n = 1;
    for (int i = 1; i < v->rank; i++)
        n *= v->dims[i].value;
    return n;
}

/* Images in a type that tensor cores take, whatever stands beside them. */
static bool for_tensor_cores(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        if (v && mgpu_is_float(v->type) && v->type != MGPU_DOUBLE &&
            mgpu_library_tensor_cores(current, v->type))
            return true;
    }
    return false;
}

bool mgpu_cuda_blocks(const struct mgpu_node *node, int *block, int64_t *hidden)
{
    *hidden = 0;
    if (!current || node->inputs == 0 || !node->input[0] || !for_tensor_cores(node))
        return false;
    if (!mgpu_library_accepts(current, node))
        return mgpu_emit_channels_last(node, block);
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v =
            i < node->inputs ? node->input[i] : node->output[i - node->inputs];
        bool last = mgpu_library_channels_last(current, node, i);
        block[i] = last ? (int)v->dims[1].value : 0;
        *hidden += last ? sample_elements(v) : 0;
    }
    return *hidden > 0;
}
