/* What the kernels of batch normalisation share: the sum and the limits behind it
 * (runtime/ops/normalize.h), on runs of elements that stay in the first cache. */
#ifndef MGPU_CPU_BATCH_NORM_FINISH_H
#define MGPU_CPU_BATCH_NORM_FINISH_H

#include "runtime/cpu/cpu.h"
#include "runtime/cpu/rows.h"
#include "runtime/ops/normalize.h"

#include <math.h>

enum { MGPU_RUN = 4096 }; /* elements of a run, at most */

/* Whether the statistics are given, and not those of x. */
static inline bool mgpu_statistics_given(const struct mgpu_launch *l)
{
    return l->inputs > 4;
}

/* Elements [at, at + n) of y, which the normalisation has just written. */
static inline void mgpu_finish_run(const struct mgpu_launch *l, int64_t at, int64_t n)
{
    const struct mgpu_batch_norm_attrs *a = l->node->attrs;
    const float *more = l->inputs > 3 ? l->in[3].data : NULL;
    if (more || a->clips)
        mgpu_cpu_finish((float *)l->out[0].data + at, more ? more + at : NULL,
                        a->clips ? (float)a->low : -INFINITY, a->clips ? (float)a->high : INFINITY,
                        n);
}

/* Whether y, which tells what passed the limits, is to be computed from x. */
static inline bool mgpu_limits_by_bias(const struct mgpu_launch *l)
{
    const struct mgpu_batch_norm_attrs *a = l->node->attrs;
    return a->clips && l->in[5].rank == 1;
}

/* Elements [at, at + n) of dy as far as they passed the limits: dy itself, or `room`, which holds y
 * where it was computed. */
static inline const float *mgpu_arriving_run(const struct mgpu_launch *l, int64_t at, int64_t n,
                                             float room[MGPU_RUN])
{
    const struct mgpu_batch_norm_attrs *a = l->node->attrs;
    const float *dy = (const float *)l->in[1].data + at;
    if (!a->clips)
        return dy;
    const float *y = mgpu_limits_by_bias(l) ? room : (const float *)l->in[5].data + at;
    mgpu_cpu_mask(room, dy, y, (float)a->low, (float)a->high, n);
    return room;
}

#endif
