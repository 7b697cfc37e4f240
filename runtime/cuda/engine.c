#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/ranks.h"
#include "runtime/graph/step_scalar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mgpu_gpu_rank *rank_of(struct mgpu_engine *engine)
{
    return (struct mgpu_gpu_rank *)engine;
}

static int enter(struct mgpu_engine *engine)
{
    return mgpu_gpu_enter(&rank_of(engine)->all->gpu);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* What moves at every step is where the GPU can fetch it while it computes. */
static bool is_pinned(int buffer)
{
    return buffer == MGPU_BUFFER_INPUTS || buffer == MGPU_BUFFER_RESULTS ||
           buffer == MGPU_BUFFER_SCALARS;
}

static int host_memory(struct mgpu_gpu_rank *rank, int b, int64_t bytes)
{
    if (!is_pinned(b))
        return mgpu_alloc(&rank->host[b], (uint64_t)bytes, "the host's copy of a GPU's memory");
    for (int i = 0; i < MGPU_GPU_RUNS; i++) {
        MGPU_TRY(mgpu_gpu_alloc_host(&rank->all->gpu, &rank->pinned[b][i], bytes));
        memset(rank->pinned[b][i], 0, (size_t)bytes);
    }
    rank->host[b] = rank->pinned[b][0];
    return 0;
}

/* One block of the GPU holds it all: `stop` stands behind the results, activations and the place
 * where inputs come up at the end. */
static int allocate(struct mgpu_engine *engine, const int64_t bytes[MGPU_BUFFERS],
                    void *host[MGPU_BUFFERS])
{
    enum { ALIGN = 256, STOP = 4 };
    struct mgpu_gpu_rank *rank = rank_of(engine);
    int64_t offset[MGPU_BUFFERS], size = 0;
    MGPU_TRY(enter(engine));
    memcpy(rank->bytes, bytes, sizeof rank->bytes);
    for (int b = 0; b < MGPU_BUFFER_CONSTANTS; b++) {
        offset[b] = size;
        size += (bytes[b] + STOP + ALIGN - 1) / ALIGN * ALIGN;
    }
    MGPU_TRY(mgpu_gpu_alloc(&rank->all->gpu, &rank->memory, size + bytes[MGPU_BUFFER_INPUTS],
                            "weights, gradients, optimizer state and activations"));
    rank->ahead = rank->memory + (CUdeviceptr)size;
    GPU_TRY(&rank->all->gpu, cuMemsetD8Async,
            (rank->memory, 0, (size_t)offset[MGPU_BUFFER_ARENA], rank->compute));
    for (int b = 0; b < MGPU_BUFFER_CONSTANTS; b++) {
        rank->buffer[b] = (void *)(rank->memory + (CUdeviceptr)offset[b]);
        if (b != MGPU_BUFFER_ARENA)
            MGPU_TRY(host_memory(rank, b, bytes[b] + STOP));
        host[b] = rank->host[b];
    }
    if (rank->rank == 0)
        rank->all->stop = (CUdeviceptr)rank->buffer[MGPU_BUFFER_RESULTS] +
                          (CUdeviceptr)bytes[MGPU_BUFFER_RESULTS];
    rank->queue = (struct mgpu_gpu_queue){.gpu = &rank->all->gpu, .stream = rank->compute};
    return 0;
}

/* Copies between steps go through the rank's stream, too: it does not wait for those outside. */
static int upload(struct mgpu_engine *engine, enum mgpu_buffer b, int64_t offset, int64_t bytes)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    MGPU_TRY(enter(engine));
    if (bytes)
        GPU_TRY(&rank->all->gpu, cuMemcpyHtoDAsync,
                ((CUdeviceptr)rank->buffer[b] + (CUdeviceptr)offset, (char *)rank->host[b] + offset,
                 (size_t)bytes, rank->compute));
    GPU_TRY(&rank->all->gpu, cuStreamSynchronize, (rank->compute));
    return 0;
}

static int download(struct mgpu_engine *engine, enum mgpu_buffer b, int64_t offset, int64_t bytes)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    MGPU_TRY(enter(engine));
    if (bytes)
        GPU_TRY(&rank->all->gpu, cuMemcpyDtoHAsync,
                ((char *)rank->host[b] + offset, (CUdeviceptr)rank->buffer[b] + (CUdeviceptr)offset,
                 (size_t)bytes, rank->compute));
    GPU_TRY(&rank->all->gpu, cuStreamSynchronize, (rank->compute));
    return 0;
}

/* In the stream that runs begin in. */
static int clear(struct mgpu_engine *engine, enum mgpu_buffer b)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    MGPU_TRY(enter(engine));
    if (rank->bytes[b])
        GPU_TRY(
            &rank->all->gpu, cuMemsetD8Async,
            ((CUdeviceptr)rank->buffer[b], 0, (size_t)rank->bytes[b], rank->all->rank[0].compute));
    return 0;
}

/* The other pinned buffer is written next: the run that took what was in it is over. */
static int send(struct mgpu_engine *engine, const struct mgpu_program *p, void **host)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    const struct mgpu_gpu *gpu = &rank->all->gpu;
    MGPU_TRY(enter(engine));
    rank->input_bytes = p->bytes[MGPU_BUFFER_INPUTS];
    GPU_TRY(gpu, cuStreamWaitEvent, (rank->copy, rank->taken, 0));
    if (rank->input_bytes)
        GPU_TRY(gpu, cuMemcpyHtoDAsync,
                (rank->ahead, rank->pinned[MGPU_BUFFER_INPUTS][rank->writes],
                 (size_t)rank->input_bytes, rank->copy));
    GPU_TRY(gpu, cuEventRecord, (rank->sent, rank->copy));
    rank->writes ^= 1;
    *host = rank->host[MGPU_BUFFER_INPUTS] = rank->pinned[MGPU_BUFFER_INPUTS][rank->writes];
    return 0;
}

/* ---- Programs -------------------------------------------------------------------------------- */

static void emit_checks(const struct mgpu_gpu_rank *rank, struct mgpu_gpu_bound *b,
                        struct mgpu_gpu_batch *batch)
{
    const struct mgpu_graph *g = b->program->graph;
    enum mgpu_dtype type = MGPU_FLOAT;
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].gradient)
            type = g->parameters[i].gradient->type;
    int64_t count = rank->bytes[MGPU_BUFFER_GRADIENTS] / (int64_t)mgpu_dtype_size(type);
    if (count) {
        mgpu_emit_finite(&b->finite_gradients.emitted, type, count, MGPU_GPU_KERNEL);
        mgpu_gpu_batch_add(batch, &b->finite_gradients);
    }
    if (b->program->results) {
        mgpu_emit_finite(&b->finite_loss.emitted, b->program->result[0].type, 1, MGPU_GPU_KERNEL);
        mgpu_gpu_batch_add(batch, &b->finite_loss);
    }
}

/* What a program changes of MGPU_BUFFER_FIXED before its updates; each that trains the same. */
static void find_statistics(struct mgpu_gpu_rank *rank, const struct mgpu_program *p)
{
    int64_t from = INT64_MAX, to = 0;
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        for (int i = 0; i < in->operands && in->node->origin.role != MGPU_UPDATE; i++) {
            const struct mgpu_operand *o = &in->operand[i];
            if (o->buffer != MGPU_BUFFER_FIXED || !o->write || o->bytes <= 0)
                continue;
            from = o->offset < from ? o->offset : from;
            to = o->offset + o->bytes > to ? o->offset + o->bytes : to;
        }
    }
    rank->statistics = to ? from : 0;
    rank->statistics_bytes = to ? to - from : 0;
}

static int prepare_statistics(struct mgpu_gpu_rank *rank, const struct mgpu_program *p,
                              struct mgpu_gpu_batch *batch)
{
    if (rank->statistics_bytes)
        return 0;
    find_statistics(rank, p);
    if (!rank->statistics_bytes)
        return 0;
    mgpu_emit_put_back(&rank->put_back.emitted, rank->statistics_bytes / 4, MGPU_GPU_KERNEL);
    mgpu_gpu_batch_add(batch, &rank->put_back);
    return mgpu_gpu_alloc(&rank->all->gpu, &rank->kept, rank->statistics_bytes,
                          "a copy of the running statistics");
}

static int load_kernels(struct mgpu_gpu_rank *rank, struct mgpu_gpu_bound *b)
{
    struct mgpu_gpu_batch batch = {0};
    mgpu_gpu_find_passes(b, &batch);
    for (int k = 0; k < b->program->instructions; k++) {
        struct mgpu_instruction *in = &b->program->instruction[k];
        struct mgpu_gpu_kernel *kernel = mgpu_gpu_kernel_of(in);
        if (kernel && !b->pass_of[k])
            mgpu_gpu_batch_add(&batch, kernel);
    }
    mgpu_gpu_emit_sums(rank->all, b, &batch);
    emit_checks(rank, b, &batch);
    int rc = prepare_statistics(rank, b->program, &batch);
    if (rc == 0)
        rc = mgpu_gpu_batch_load(&batch, &rank->all->gpu);
    mgpu_gpu_batch_free(&batch);
    return rc;
}

static int make_events(struct mgpu_gpu_rank *rank, CUevent *event, int count)
{
    for (int i = 0; i < count; i++)
        GPU_TRY(&rank->all->gpu, cuEventCreate, (&event[i], CU_EVENT_DISABLE_TIMING));
    return 0;
}

static int bind(struct mgpu_engine *engine, struct mgpu_program *p)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    struct mgpu_gpu_bound *b = mgpu_xcalloc(1, sizeof *b);
    int64_t constants = p->bytes[MGPU_BUFFER_CONSTANTS];
    MGPU_TRY(enter(engine));
    rank->bound = mgpu_grow(rank->bound, (size_t)rank->bounds, sizeof(struct mgpu_gpu_bound *));
    rank->bound[rank->bounds++] = b;
    b->program = p;
    b->event = mgpu_xcalloc((size_t)p->events + 1, sizeof *b->event);
    b->state = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *b->state);
    b->events = p->events;
    MGPU_TRY(make_events(rank, b->event, p->events));
    MGPU_TRY(mgpu_gpu_alloc(&rank->all->gpu, &b->constants, constants, "constants"));
    if (constants)
        GPU_TRY(&rank->all->gpu, cuMemcpyHtoDAsync,
                (b->constants, p->constants, (size_t)constants, rank->compute));
    GPU_TRY(&rank->all->gpu, cuStreamSynchronize, (rank->compute));
    rank->buffer[MGPU_BUFFER_CONSTANTS] = (void *)b->constants;
    mgpu_program_bind(p, rank->buffer);
    return load_kernels(rank, b);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* The last rank to come submits for all; they go on while the GPU computes. */
static int meet(struct mgpu_gpu_rank *rank)
{
    struct mgpu_gpu_ranks *all = rank->all;
    pthread_mutex_lock(&all->lock);
    uint64_t round = all->round;
    if (++all->arrived == all->count && !all->aborted) {
        mgpu_gpu_submit_step(all);
        all->arrived = 0;
        all->round++;
        pthread_cond_broadcast(&all->changed);
    }
    while (all->round == round && !all->aborted)
        pthread_cond_wait(&all->changed, &all->lock);
    int rc = all->round == round ? mgpu_fail_text(MGPU_EDEVICE, all->reason) : rank->rc;
    if (rc < 0 && all->round != round)
        mgpu_fail_text(rc, rank->text);
    pthread_mutex_unlock(&all->lock);
    return rc;
}

/* One rank after the other: the handles of the libraries are those of the GPU. */
static int name_first(struct mgpu_gpu_rank *rank)
{
    pthread_mutex_lock(&rank->all->lock);
    int rc = mgpu_gpu_name_first(rank);
    pthread_mutex_unlock(&rank->all->lock);
    return rc;
}

static int execute(struct mgpu_engine *engine, struct mgpu_program *p,
                   const struct mgpu_execution *run)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    int64_t number = rank->given % MGPU_GPU_RUNS;
    rank->now = NULL;
    for (int i = 0; i < rank->bounds; i++)
        if (rank->bound[i]->program == p)
            rank->now = rank->bound[i];
    if (!rank->now)
        return mgpu_fail(MGPU_EINTERNAL, "the program was not bound");
    rank->of[number] = *run;
    rank->run = &rank->of[number];
    memcpy(rank->pinned[MGPU_BUFFER_SCALARS][number], run->scalars, sizeof(double) * MGPU_SCALARS);
    return run->names ? name_first(rank) : meet(rank);
}

static int finish(struct mgpu_engine *engine, void **host)
{
    struct mgpu_gpu_rank *rank = rank_of(engine);
    int rc = mgpu_gpu_finish(rank);
    *host = rank->host[MGPU_BUFFER_RESULTS];
    return rc;
}

static void abort_all(struct mgpu_engine *engine, const char *reason)
{
    struct mgpu_gpu_ranks *all = rank_of(engine)->all;
    pthread_mutex_lock(&all->lock);
    if (!all->aborted)
        snprintf(all->reason, sizeof all->reason, "%s", reason);
    all->aborted = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static void free_bound(struct mgpu_gpu_rank *rank, struct mgpu_gpu_bound *b)
{
    const struct mgpu_cuda_driver *cu = &rank->all->gpu.cu;
    for (int i = 0; i < b->events; i++)
        if (b->event[i])
            cu->cuEventDestroy(b->event[i]);
    for (int i = 0; i < b->sums; i++)
        mgpu_emitted_free(&b->sum[i].emitted);
    mgpu_emitted_free(&b->finite_loss.emitted);
    mgpu_emitted_free(&b->finite_gradients.emitted);
    mgpu_gpu_free_passes(b);
    if (b->constants)
        cu->cuMemFree(b->constants);
    free(b->event);
    free(b->state);
    free(b->sum);
    free(b->first_sum);
    free(b);
}

static void free_streams(struct mgpu_gpu_rank *rank)
{
    const struct mgpu_cuda_driver *cu = &rank->all->gpu.cu;
    for (int g = 0; g <= rank->all->places && rank->communicate; g++) {
        if (rank->communicate[g])
            cu->cuStreamDestroy(rank->communicate[g]);
        if (rank->arrived[g])
            cu->cuEventDestroy(rank->arrived[g]);
        if (rank->answered[g])
            cu->cuEventDestroy(rank->answered[g]);
    }
    if (rank->compute)
        cu->cuStreamDestroy(rank->compute);
    if (rank->copy)
        cu->cuStreamDestroy(rank->copy);
    CUevent event[] = {rank->here, rank->looked, rank->sent, rank->taken};
    for (int i = 0; i < 4; i++)
        if (event[i])
            cu->cuEventDestroy(event[i]);
    free(rank->communicate);
    free(rank->arrived);
    free(rank->answered);
}

static void free_rank(struct mgpu_gpu_rank *rank)
{
    const struct mgpu_cuda_driver *cu = &rank->all->gpu.cu;
    if (rank->copy)
        cu->cuStreamSynchronize(rank->copy); /* inputs of a run that never came */
    for (int i = 0; i < rank->bounds; i++)
        free_bound(rank, rank->bound[i]);
    free(rank->bound);
    for (int b = 0; b < MGPU_BUFFERS; b++) {
        for (int i = 0; i < MGPU_GPU_RUNS; i++)
            if (rank->pinned[b][i])
                cu->cuMemFreeHost(rank->pinned[b][i]);
        if (!is_pinned(b))
            mgpu_free(rank->host[b]);
    }
    mgpu_emitted_free(&rank->put_back.emitted);
    if (rank->kept)
        cu->cuMemFree(rank->kept);
    if (rank->memory)
        cu->cuMemFree(rank->memory);
    free_streams(rank);
}

/* The last one takes the GPU along. */
static void free_engine(struct mgpu_engine *engine)
{
    struct mgpu_gpu_ranks *all = rank_of(engine)->all;
    if (--all->references > 0)
        return;
    mgpu_gpu_enter(&all->gpu);
    mgpu_gpu_graphs_free(all);
    for (int i = 0; i < MGPU_GPU_RUNS; i++)
        if (all->done[i])
            all->gpu.cu.cuEventDestroy(all->done[i]);
    for (int r = 0; r < all->count; r++)
        free_rank(&all->rank[r]);
    mgpu_gpu_close(&all->gpu);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all->rank);
    free(all);
}

static const struct mgpu_engine_ops ops = {.backend = &mgpu_backend_cuda,
                                           .undoes = true,
                                           .enter = enter,
                                           .allocate = allocate,
                                           .bind = bind,
                                           .send = send,
                                           .execute = execute,
                                           .finish = finish,
                                           .upload = upload,
                                           .download = download,
                                           .clear = clear,
                                           .abort = abort_all,
                                           .free = free_engine};

static int open_rank(struct mgpu_gpu_ranks *all, int r)
{
    struct mgpu_gpu_rank *rank = &all->rank[r];
    int groups = all->places + 1;
    rank->communicate = mgpu_xcalloc((size_t)groups, sizeof *rank->communicate);
    rank->arrived = mgpu_xcalloc((size_t)groups, sizeof *rank->arrived);
    rank->answered = mgpu_xcalloc((size_t)groups, sizeof *rank->answered);
    GPU_TRY(&all->gpu, cuStreamCreateWithPriority, (&rank->compute, CU_STREAM_NON_BLOCKING, 0));
    GPU_TRY(&all->gpu, cuStreamCreateWithPriority, (&rank->copy, CU_STREAM_NON_BLOCKING, 0));
    MGPU_TRY(make_events(rank, &rank->here, 1));
    MGPU_TRY(make_events(rank, &rank->looked, 1));
    MGPU_TRY(make_events(rank, &rank->taken, 1));
    MGPU_TRY(make_events(rank, &rank->sent, 1));
    GPU_TRY(&all->gpu, cuEventRecord, (rank->taken, rank->copy));
    MGPU_TRY(make_events(rank, rank->arrived, groups));
    MGPU_TRY(make_events(rank, rank->answered, groups));
    for (int g = 0; g < groups; g++) /* communication goes before computation */
        if (all->count > 1 && (g == rank->place || (g == all->places && all->places > 1)))
            GPU_TRY(&all->gpu, cuStreamCreateWithPriority,
                    (&rank->communicate[g], CU_STREAM_NON_BLOCKING, -1));
    return 0;
}

static int cannot_use(int gpu, int rc)
{
    return mgpu_prefix(rc, "cuda:%d cannot be used", gpu);
}

int mgpu_cuda_engines(struct mgpu_engine **out, int gpu, bool tf32, int replicas, int places)
{
    struct mgpu_gpu_ranks *all = mgpu_xcalloc(1, sizeof *all);
    mgpu_gpu_backend_begin();
    int rc = mgpu_gpu_open(&all->gpu, gpu, tf32);
    if (rc < 0) {
        free(all);
        return cannot_use(gpu, rc);
    }
    all->count = all->references = replicas * places;
    all->replicas = replicas;
    all->places = places;
    all->rank = mgpu_xcalloc((size_t)all->count, sizeof *all->rank);
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    for (int r = 0; r < all->count; r++) {
        all->rank[r] = (struct mgpu_gpu_rank){
            .engine.ops = &ops, .all = all, .rank = r, .replica = r / places, .place = r % places};
        out[r] = &all->rank[r].engine;
    }
    for (int r = 0; r < all->count && rc == 0; r++)
        rc = open_rank(all, r);
    if (rc == 0)
        rc = make_events(&all->rank[0], all->done, MGPU_GPU_RUNS);
    for (int r = 0; r < replicas * places && rc < 0; r++) /* `all` goes with the last one */
        free_engine(out[r]);
    return cannot_use(gpu, rc);
}
