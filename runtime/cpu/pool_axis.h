/* The windows of a pooling along one axis. */
#ifndef MGPU_CPU_POOL_AXIS_H
#define MGPU_CPU_POOL_AXIS_H

#include "runtime/cpu/cpu.h"
#include "runtime/ops/pool.h"

/* The last is W; axes that the node lacks have size 1. */
enum { D, H, W, AXES };

struct mgpu_pool_axis {
    int64_t in, out, kernel, stride, dilation, before, after;
};

struct mgpu_pool_axis mgpu_pool_axis_of(const struct mgpu_pool_attrs *a, int k);

/* Which outputs have tap k of their window inside x. */
struct mgpu_range mgpu_pool_outputs(const struct mgpu_pool_axis *a, int64_t k);

/* Taps of output o's window that count: inside x, or inside the padded x. */
int64_t mgpu_pool_taps(const struct mgpu_pool_axis *a, int64_t o, bool padding);

#endif
