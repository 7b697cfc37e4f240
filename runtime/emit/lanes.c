#include "runtime/emit/lanes.h"

#include <stdio.h>

enum { SHORT = 32, MOST_THREADS = 256, EACH = 4 /* elements of a lane for a thread, at least */ };

static int threads_for(int64_t size)
{
    int threads = 32;
    while (threads < MOST_THREADS && threads * EACH < size)
        threads *= 2;
    return threads;
}

struct mgpu_emit_lanes mgpu_emit_lanes_of(const struct mgpu_value *x, int64_t outer, int64_t size,
                                          int64_t inner)
{
    struct mgpu_emit_lanes l = {.size = size,
                                .inner = inner,
                                .count = outer * inner,
                                .block = inner == 1 && size > SHORT,
                                .real = mgpu_compute_type(x->type),
                                .suffix = mgpu_math_suffix(x->type)};
    const char *place = mgpu_place_type(outer * inner * size + MOST_THREADS);
    l.first = l.block ? "threadIdx.x == 0" : "1";
    snprintf(l.loop, sizeof l.loop, "for (%s c = %s; c < %lld; c += %d)", place,
             l.block ? "threadIdx.x" : "0", (long long)size, l.block ? threads_for(size) : 1);
    return l;
}

struct mgpu_emit_lanes mgpu_emit_lanes_along(const struct mgpu_value *x, int axis)
{
    int64_t outer = 1, inner = 1;
    for (int k = 0; k < x->rank; k++)
        if (k != axis)
            *(k < axis ? &outer : &inner) *= x->dims[k].value;
    return mgpu_emit_lanes_of(x, outer, x->dims[axis].value, inner);
}

void mgpu_write_lanes(struct mgpu_writer *w, const struct mgpu_emit_lanes *l)
{
    const char *place = mgpu_place_type(l->count * l->size + MOST_THREADS);
    if (l->block) {
        mgpu_write_kernel(w, l->count, threads_for(l->size), true);
        mgpu_write(w, "    const %s lane = blockIdx.x;\n", place);
    } else {
        mgpu_write_kernel_each(w, l->count);
        mgpu_write(w, "    const %s lane = i;\n", place);
    }
    mgpu_write(w, "    const %s inner = %lld, base = lane / inner * %lld + lane %% inner;\n", place,
               (long long)l->inner, (long long)(l->size * l->inner));
}

void mgpu_write_lane_sum(struct mgpu_writer *w, const struct mgpu_emit_lanes *l, const char *name)
{
    if (l->block)
        mgpu_write(w, "    %s = block_add%s(%s);\n", name, l->suffix, name);
}

void mgpu_write_lane_max(struct mgpu_writer *w, const struct mgpu_emit_lanes *l, const char *name)
{
    if (l->block)
        mgpu_write(w, "    %s = block_larger%s(%s);\n", name, l->suffix, name);
}
