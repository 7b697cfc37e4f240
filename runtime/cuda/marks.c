/* What each instruction takes, by events in the stream that computes: the time between two belongs
 * to what stands between them, a kernel, or communication that was waited for. */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/ranks.h"

#include <stdlib.h>

/* In a graph the event is a node of its own, and its times are those of each launch. */
static int record(const struct mgpu_gpu_rank *rank, CUevent event)
{
    unsigned flags = rank->all->capturing ? CU_EVENT_RECORD_EXTERNAL : CU_EVENT_RECORD_DEFAULT;
    GPU_TRY(&rank->all->gpu, cuEventRecordWithFlags, (event, rank->compute, flags));
    return 0;
}

/* Events are made in the first run that wants times. */
static int next_event(const struct mgpu_gpu *gpu, struct mgpu_gpu_marks *m, CUevent *out)
{
    if (m->count == m->events) {
        m->event = mgpu_grow(m->event, (size_t)m->events, sizeof *m->event);
        m->of = mgpu_grow(m->of, (size_t)m->events, sizeof *m->of);
        GPU_TRY(gpu, cuEventCreate, (&m->event[m->events], CU_EVENT_DEFAULT));
        m->events++;
    }
    *out = m->event[m->count++];
    return 0;
}

int mgpu_gpu_mark(struct mgpu_gpu_rank *rank, int k)
{
    CUevent event;
    if (!rank->marks)
        return 0;
    MGPU_TRY(next_event(&rank->all->gpu, rank->marks, &event));
    rank->marks->of[rank->marks->count - 1] = k;
    return record(rank, event);
}

int mgpu_gpu_begin_marks(struct mgpu_gpu_rank *rank)
{
    if (rank->marks)
        rank->marks->count = 0;
    return mgpu_gpu_mark(rank, -1);
}

int mgpu_gpu_add_times(struct mgpu_gpu_rank *rank)
{
    const struct mgpu_gpu_marks *m = rank->marks;
    for (int i = 1; m && i < m->count; i++) {
        float ms = 0;
        GPU_TRY(&rank->all->gpu, cuEventElapsedTime, (&ms, m->event[i - 1], m->event[i]));
        if (m->of[i] >= 0)
            rank->run->times[m->of[i]] += 1e-3 * (double)ms;
    }
    return 0;
}

void mgpu_gpu_free_marks(const struct mgpu_gpu *gpu, struct mgpu_gpu_marks *m)
{
    for (int i = 0; i < m->events; i++)
        gpu->cu.cuEventDestroy(m->event[i]);
    free(m->event);
    free(m->of);
}
