#include "runtime/cuda/ranks.h"

#include "runtime/base/status.h"
#include "runtime/cuda/device.h"

#include <stdlib.h>

int mgpu_gpu_members(const struct mgpu_gpu_ranks *all, int group,
                     struct mgpu_gpu_rank *members[MGPU_MAX_RANKS])
{
    int n = 0;
    for (int r = 0; r < all->count; r++)
        if (group == all->places || all->rank[r].place == group)
            members[n++] = &all->rank[r];
    return n;
}

static bool sums(enum mgpu_collective_kind kind)
{
    return kind == MGPU_COLLECTIVE_ALL_REDUCE || kind == MGPU_COLLECTIVE_REDUCE_SCATTER;
}

/* Kernels stay where they are, as the batch points to them: so they are counted first. */
void mgpu_gpu_emit_sums(const struct mgpu_gpu_ranks *all, struct mgpu_gpu_bound *bound,
                        struct mgpu_gpu_batch *batch)
{
    struct mgpu_gpu_rank *member[MGPU_MAX_RANKS];
    const struct mgpu_program *p = bound->program;
    bound->first_sum = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *bound->first_sum);
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        bound->first_sum[k] = bound->sums;
        if (in->queue == MGPU_QUEUE_COMMUNICATION && sums(in->collective.kind))
            bound->sums += in->collective.parts;
    }
    bound->sum = mgpu_xcalloc((size_t)bound->sums + 1, sizeof *bound->sum);
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        if (in->queue != MGPU_QUEUE_COMMUNICATION || !sums(in->collective.kind))
            continue;
        int members = mgpu_gpu_members(all, in->group, member);
        for (int i = 0; i < in->collective.parts; i++) {
            struct mgpu_gpu_kernel *kernel = &bound->sum[bound->first_sum[k] + i];
            if (members == 1 || in->part[i].count == 0)
                continue;
            mgpu_emit_sum(&kernel->emitted, in->collective.type, members, in->part[i].count,
                          MGPU_GPU_KERNEL);
            mgpu_gpu_batch_add(batch, kernel);
        }
    }
}

/* ---- Submitting what all members have come to ------------------------------------------------ */

struct meeting {
    struct mgpu_gpu_ranks *all;
    int group, members;
    struct mgpu_gpu_rank *member[MGPU_MAX_RANKS];
    int at[MGPU_MAX_RANKS]; /* the instruction that each has come to; -1: none */
};

static struct mgpu_instruction *instruction(const struct meeting *m, int i)
{
    return &m->member[i]->now->program->instruction[m->at[i]];
}

static CUstream stream(const struct meeting *m, int i)
{
    return m->member[i]->communicate[m->group];
}

static struct mgpu_gpu_queue queue_of(const struct meeting *m, int i)
{
    return (struct mgpu_gpu_queue){.gpu = &m->all->gpu, .stream = stream(m, i)};
}

static int64_t bytes_of(const struct mgpu_collective *op)
{
    return op->part[0].count * (int64_t)mgpu_dtype_size(op->type);
}

/* The computation that an instruction of communication waits for; -1: none. */
static int awaited(const struct mgpu_program *p, const struct mgpu_instruction *in, int i)
{
    int k = p->setter[in->wait[i]];
    return k >= 0 && p->instruction[k].queue == MGPU_QUEUE_COMPUTE ? in->wait[i] : -1;
}

/* A member's stream goes on when what it computed before it came here is done, no later. */
static int come(const struct meeting *m, int i)
{
    const struct mgpu_gpu_bound *b = m->member[i]->now;
    const struct mgpu_instruction *in = instruction(m, i);
    for (int w = 0; w < in->waits; w++) {
        int event = awaited(b->program, in, w);
        if (event >= 0)
            GPU_TRY(&m->all->gpu, cuStreamWaitEvent, (stream(m, i), b->event[event], 0));
    }
    return 0;
}

/* The first member's stream goes on when all are here. */
static int gather(const struct meeting *m)
{
    for (int i = 1; i < m->members; i++) {
        CUevent event = m->member[i]->arrived[m->group];
        GPU_TRY(&m->all->gpu, cuEventRecord, (event, stream(m, i)));
        GPU_TRY(&m->all->gpu, cuStreamWaitEvent, (stream(m, 0), event, 0));
    }
    return 0;
}

static int set_done(const struct meeting *m, int i)
{
    struct mgpu_gpu_bound *b = m->member[i]->now;
    GPU_TRY(&m->all->gpu, cuEventRecord, (b->event[instruction(m, i)->signal], stream(m, i)));
    b->state[m->at[i]] = MGPU_GPU_STARTED;
    return 0;
}

/* The others go on when the first has done it. */
static int answer(const struct meeting *m)
{
    CUevent event = m->member[0]->answered[m->group];
    GPU_TRY(&m->all->gpu, cuEventRecord, (event, stream(m, 0)));
    for (int i = 0; i < m->members; i++) {
        if (i > 0)
            GPU_TRY(&m->all->gpu, cuStreamWaitEvent, (stream(m, i), event, 0));
        MGPU_TRY(set_done(m, i));
    }
    return 0;
}

/* What a member does not contribute counts as zero. */
static int clear_absent(const struct meeting *m)
{
    for (int i = 0; i < m->members; i++) {
        const struct mgpu_collective *op = &instruction(m, i)->collective;
        for (int p = 0; p < op->parts && !op->contributes; p++)
            if (op->part[p].count)
                GPU_TRY(&m->all->gpu, cuMemsetD8Async,
                        ((CUdeviceptr)op->part[p].data, 0,
                         (size_t)op->part[p].count * mgpu_dtype_size(op->type), stream(m, i)));
    }
    return 0;
}

static int sum_parts(const struct meeting *m)
{
    struct mgpu_gpu_queue queue = queue_of(m, 0);
    const struct mgpu_gpu_bound *b = m->member[0]->now;
    const struct mgpu_collective *op = &instruction(m, 0)->collective;
    for (int p = 0; p < op->parts && m->members > 1; p++) {
        CUdeviceptr pointer[MGPU_MAX_RANKS];
        struct mgpu_cuda_access access[MGPU_MAX_RANKS];
        int64_t bytes = op->part[p].count * (int64_t)mgpu_dtype_size(op->type);
        for (int i = 0; i < m->members; i++) {
            pointer[i] = (CUdeviceptr)instruction(m, i)->part[p].data;
            access[i] = (struct mgpu_cuda_access){pointer[i], bytes, true};
        }
        if (!bytes)
            continue;
        mgpu_gpu_touches(m->member[0], queue.stream, access, m->members);
        MGPU_TRY(mgpu_gpu_submit(&queue, &b->sum[b->first_sum[m->at[0]] + p], pointer));
    }
    return 0;
}

static int copy(const struct meeting *m, int i, void *to, const void *from, int64_t bytes)
{
    if (bytes && to != from)
        GPU_TRY(&m->all->gpu, cuMemcpyDtoDAsync,
                ((CUdeviceptr)to, (CUdeviceptr)from, (size_t)bytes, stream(m, i)));
    return 0;
}

/* `out` of a member is [outer, total], the part of each [outer, own]. */
static int gather_parts(const struct meeting *m, int i)
{
    const struct mgpu_collective *op = &instruction(m, i)->collective;
    int64_t size = (int64_t)mgpu_dtype_size(op->type), at = 0;
    if (op->out.count == 0)
        return 0;
    int64_t total = op->out.count / op->outer;
    GPU_TRY(&m->all->gpu, cuMemsetD8Async,
            ((CUdeviceptr)op->out.data, 0, (size_t)(op->out.count * size), stream(m, 0)));
    for (int k = 0; k < m->members; k++) {
        const struct mgpu_collective *from = &instruction(m, k)->collective;
        int64_t own = from->contributes ? from->part[0].count / op->outer : 0;
        CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = (CUdeviceptr)from->part[0].data,
                              .srcPitch = (size_t)(own * size),
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                              .dstDevice = (CUdeviceptr)((char *)op->out.data + at * size),
                              .dstPitch = (size_t)(total * size),
                              .WidthInBytes = (size_t)(own * size),
                              .Height = (size_t)op->outer};
        if (op->outer == 1) /* rows lie less than 2^31 bytes apart, a single one has any size */
            MGPU_TRY(copy(m, 0, (void *)rows.dstDevice, (void *)rows.srcDevice, own * size));
        else if (own)
            GPU_TRY(&m->all->gpu, cuMemcpy2DAsync, (&rows, stream(m, 0)));
        at += own;
    }
    return 0;
}

static int finish_member(const struct meeting *m, int i)
{
    const struct mgpu_collective *op = &instruction(m, i)->collective;
    int64_t size = (int64_t)mgpu_dtype_size(op->type), n = op->part[0].count;
    if (op->kind == MGPU_COLLECTIVE_ALL_GATHER)
        return gather_parts(m, i);
    if (op->kind == MGPU_COLLECTIVE_BROADCAST)
        return copy(m, 0, op->part[0].data, instruction(m, op->peer)->part[0].data, bytes_of(op));
    if (op->kind == MGPU_COLLECTIVE_REDUCE_SCATTER) {
        int64_t from = n * i / m->members, to = n * (i + 1) / m->members;
        return copy(m, 0, op->out.data, (char *)op->part[0].data + from * size, (to - from) * size);
    }
    return 0;
}

static int submit_collective(const struct meeting *m)
{
    const struct mgpu_collective *first = &instruction(m, 0)->collective;
    for (int i = 1; i < m->members; i++) {
        const struct mgpu_collective *op = &instruction(m, i)->collective;
        if (op->tag != first->tag || op->kind != first->kind || op->parts != first->parts)
            return mgpu_fail(MGPU_EINTERNAL, "ranks %d and %d meet in different operations",
                             m->member[0]->rank, m->member[i]->rank);
    }
    for (int i = 0; i < m->members; i++)
        MGPU_TRY(come(m, i));
    if (sums(first->kind))
        MGPU_TRY(clear_absent(m));
    MGPU_TRY(gather(m));
    if (sums(first->kind))
        MGPU_TRY(sum_parts(m));
    for (int i = 0; i < m->members; i++)
        MGPU_TRY(finish_member(m, i));
    return answer(m);
}

/* The receiver copies when both are here; the sender's stream goes on when that is done. */
static int submit_pair(const struct meeting *m, int from, int to)
{
    const struct mgpu_gpu *gpu = &m->all->gpu;
    CUevent sent = m->member[from]->arrived[m->group], taken = m->member[to]->answered[m->group];
    const struct mgpu_instruction *in = instruction(m, to);
    MGPU_TRY(come(m, from));
    MGPU_TRY(come(m, to));
    GPU_TRY(gpu, cuEventRecord, (sent, stream(m, from)));
    GPU_TRY(gpu, cuStreamWaitEvent, (stream(m, to), sent, 0));
    MGPU_TRY(copy(m, to, in->part[0].data, instruction(m, from)->part[0].data,
                  bytes_of(&in->collective)));
    GPU_TRY(gpu, cuEventRecord, (taken, stream(m, to)));
    GPU_TRY(gpu, cuStreamWaitEvent, (stream(m, from), taken, 0));
    MGPU_TRY(set_done(m, from));
    return set_done(m, to);
}

/* ---- Who has come to what -------------------------------------------------------------------- */

/* A group's operations of a member go in order. */
static int come_to(const struct mgpu_gpu_rank *rank, int group)
{
    const struct mgpu_program *p = rank->now->program;
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        if (in->queue == MGPU_QUEUE_COMMUNICATION && in->group == group &&
            rank->now->state[k] == MGPU_GPU_POSTED)
            return k;
    }
    return -1;
}

static bool is_pair(const struct mgpu_collective *op)
{
    return op->kind == MGPU_COLLECTIVE_SEND || op->kind == MGPU_COLLECTIVE_RECV;
}

/* 1: something was submitted. */
static int submit_any(struct meeting *m)
{
    bool all = true;
    for (int i = 0; i < m->members; i++) {
        m->at[i] = come_to(m->member[i], m->group);
        all = all && m->at[i] >= 0 && !is_pair(&instruction(m, i)->collective);
    }
    if (all) {
        MGPU_TRY(submit_collective(m));
        return 1;
    }
    for (int i = 0; i < m->members; i++) {
        const struct mgpu_collective *op = m->at[i] >= 0 ? &instruction(m, i)->collective : NULL;
        if (!op || op->kind != MGPU_COLLECTIVE_SEND || m->at[op->peer] < 0)
            continue;
        const struct mgpu_collective *other = &instruction(m, op->peer)->collective;
        if (other->kind == MGPU_COLLECTIVE_RECV && other->tag == op->tag && other->peer == i) {
            MGPU_TRY(submit_pair(m, i, op->peer));
            return 1;
        }
    }
    return 0;
}

int mgpu_gpu_post(struct mgpu_gpu_rank *rank, int k)
{
    struct mgpu_gpu_bound *b = rank->now;
    const struct mgpu_instruction *in = &b->program->instruction[k];
    struct meeting m = {.all = rank->all, .group = in->group};
    int more = 1;
    for (int w = 0; w < in->waits; w++) {
        int event = awaited(b->program, in, w);
        if (event >= 0)
            GPU_TRY(&rank->all->gpu, cuEventRecord, (b->event[event], rank->compute));
    }
    b->state[k] = MGPU_GPU_POSTED;
    m.members = mgpu_gpu_members(rank->all, m.group, m.member);
    while (more > 0)
        more = submit_any(&m);
    return more;
}
