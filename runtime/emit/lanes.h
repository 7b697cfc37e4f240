/* Kernels that go along one axis of a tensor: a block for each lane where lanes are long and
 * contiguous, else a thread for each lane. */
#ifndef MGPU_EMIT_LANES_H
#define MGPU_EMIT_LANES_H

#include "runtime/emit/writer.h"

/* The tensor as [outer, size, inner]; lane l of outer * inner. */
struct mgpu_emit_lanes {
    int64_t size, inner, count;
    bool block;         /* a block for each lane */
    const char *real;   /* type of computation */
    const char *suffix; /* of its functions */
    char loop[128];     /* "for (...)" over the thread's elements c; element c is at AT */
    const char *first;  /* condition: this thread speaks for its lane */
};

/* Where element c of the lane is. */
#define MGPU_AT "base + c * inner"

struct mgpu_emit_lanes mgpu_emit_lanes_of(const struct mgpu_value *x, int64_t outer, int64_t size,
                                          int64_t inner);
struct mgpu_emit_lanes mgpu_emit_lanes_along(const struct mgpu_value *x, int axis);

/* Opens a kernel with `lane`, `base` and `inner`. */
void mgpu_write_lanes(struct mgpu_writer *w, const struct mgpu_emit_lanes *l);

/* The variable becomes the sum, or the largest, over the whole lane. */
void mgpu_write_lane_sum(struct mgpu_writer *w, const struct mgpu_emit_lanes *l, const char *name);
void mgpu_write_lane_max(struct mgpu_writer *w, const struct mgpu_emit_lanes *l, const char *name);

#endif
