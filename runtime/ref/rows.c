#include "runtime/ref/rows.h"

/* The same loop twice: a stride that is known to be 1 makes it vector code. */
#define COPY(to, to_stride, from, from_stride, count, type)                                        \
    do {                                                                                           \
        if (to_stride == 1 && from_stride == 1)                                                    \
            for (int64_t i = 0; i < count; i++)                                                    \
                (to)[i] = (type)(from)[i];                                                         \
        else                                                                                       \
            for (int64_t i = 0; i < count; i++)                                                    \
                (to)[i * to_stride] = (type)(from)[i * from_stride];                               \
    } while (0)

void mgpu_row_load(double *to, const struct mgpu_tensor *t, int64_t offset, int64_t stride,
                   int64_t count)
{
    if (t->type == MGPU_FLOAT)
        COPY(to, 1, (const float *)t->data + offset, stride, count, double);
    else if (t->type == MGPU_DOUBLE)
        COPY(to, 1, (const double *)t->data + offset, stride, count, double);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = mgpu_get_double(t->data, t->type, offset + i * stride);
}

void mgpu_row_store(const struct mgpu_tensor *t, int64_t offset, int64_t stride, int64_t count,
                    const double *from)
{
    if (t->type == MGPU_FLOAT)
        COPY((float *)t->data + offset, stride, from, 1, count, float);
    else if (t->type == MGPU_DOUBLE)
        COPY((double *)t->data + offset, stride, from, 1, count, double);
    else
        for (int64_t i = 0; i < count; i++)
            mgpu_set_double(t->data, t->type, offset + i * stride, from[i]);
}

struct mgpu_lanes mgpu_lanes_of(const struct mgpu_tensor *t, int axis)
{
    struct mgpu_lanes lanes = {1, t->dims[axis], 1};
    for (int k = 0; k < axis; k++)
        lanes.outer *= t->dims[k];
    for (int k = axis + 1; k < t->rank; k++)
        lanes.inner *= t->dims[k];
    return lanes;
}

int64_t mgpu_lane_offset(const struct mgpu_lanes *lanes, int64_t i)
{
    return i / lanes->inner * lanes->size * lanes->inner + i % lanes->inner;
}
