#include "runtime/ref/rows.h"

void mgpu_row_load(double *to, const struct mgpu_tensor *t, int64_t offset, int64_t stride,
                   int64_t count)
{
    if (t->type == MGPU_FLOAT) {
        const float *from = (const float *)t->data + offset;
        for (int64_t i = 0; i < count; i++)
            to[i] = (double)from[i * stride];
    } else if (t->type == MGPU_DOUBLE) {
        const double *from = (const double *)t->data + offset;
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i * stride];
    } else {
        for (int64_t i = 0; i < count; i++)
            to[i] = mgpu_get_double(t->data, t->type, offset + i * stride);
    }
}

void mgpu_row_store(const struct mgpu_tensor *t, int64_t offset, int64_t stride, int64_t count,
                    const double *from)
{
    if (t->type == MGPU_FLOAT) {
        float *to = (float *)t->data + offset;
        for (int64_t i = 0; i < count; i++)
            to[i * stride] = (float)from[i];
    } else if (t->type == MGPU_DOUBLE) {
        double *to = (double *)t->data + offset;
        for (int64_t i = 0; i < count; i++)
            to[i * stride] = from[i];
    } else {
        for (int64_t i = 0; i < count; i++)
            mgpu_set_double(t->data, t->type, offset + i * stride, from[i]);
    }
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
