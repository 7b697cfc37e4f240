#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/library_private.h"
#include "runtime/cuda/kernels.h"
#include "runtime/executor/devices.h"
#include "runtime/ops/rnn.h"
#include "tests/cuda/double_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct double_gpu double_gpu = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .version = CUDA_VERSION, .streams_left = -1};

void double_complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!double_gpu.complaints++)
        vsnprintf(double_gpu.complaint, sizeof double_gpu.complaint, format, args);
    va_end(args);
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
    pthread_mutex_lock(&double_gpu.lock);
    double_submit(queue->stream, &w, &queue->stream->accesses);
    pthread_mutex_unlock(&double_gpu.lock);
    return 0;
}

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

static struct mgpu_kernel library[64];

static void make_library(void)
{
    int n = 0;
    for (int i = 0; mgpu_ops[i]; i++)
        if (is_libraries(mgpu_ops[i]) && n < 63)
            library[n++] = (struct mgpu_kernel){
                .op = mgpu_ops[i]->name, .name = "ref", .accepts = is_plain, .run = stand_in};
}

bool double_possible(void)
{
    return emulate_possible();
}

void double_begin(int gpus, int64_t bytes)
{
    double_gpu.gpus = gpus;
    double_gpu.bytes = bytes;
    double_gpu.drop = -1;
    setenv("MGPU_CACHE", "/dev/null/none", 1); /* nothing is kept */
    make_library();
    mgpu_gpu_library(library);
    mgpu_cuda_stand_in(&double_driver, &double_nvrtc);
}

void double_end(void)
{
    mgpu_cuda_stand_in(NULL, NULL);
    mgpu_gpu_library(NULL);
    for (int i = 0; i < double_gpu.graph_count; i++)
        free(double_gpu.graphs[i]);
    double_gpu.graph_count = 0;
    double_free_modules();
    if (double_gpu.alive || double_gpu.blocks)
        double_complain("%d things and %s memory were not freed", double_gpu.alive,
                        double_gpu.blocks ? "some" : "no");
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
    return double_gpu.complaints;
}

const char *double_complaint(void)
{
    return double_gpu.complaints ? double_gpu.complaint : "";
}

void double_forget(void)
{
    double_gpu.complaints = 0;
}

struct double_calls double_count(void)
{
    return double_gpu.calls;
}

void double_drop_wait(int wait)
{
    double_gpu.drop = wait;
}

void double_driver_version(int version)
{
    double_gpu.version = version;
}

void double_busy(bool busy)
{
    double_gpu.busy = busy;
}

void double_most_streams(int count)
{
    double_gpu.streams_left = count;
}

void double_no_capture(bool fails)
{
    double_gpu.no_capture = fails;
}
