#include "runtime/cpu/pool_axis.h"

struct mgpu_pool_axis mgpu_pool_axis_of(const struct mgpu_pool_attrs *a, int k)
{
    int64_t i = k + a->spatial - AXES;
    if (i < 0)
        return (struct mgpu_pool_axis){1, 1, 1, 1, 1, 0, 0};
    return (struct mgpu_pool_axis){a->in[i],       a->out[i],    a->kernel[i], a->stride[i],
                                   a->dilation[i], a->before[i], a->after[i]};
}

struct mgpu_range mgpu_pool_outputs(const struct mgpu_pool_axis *a, int64_t k)
{
    int64_t shift = a->before - k * a->dilation; /* x = output * stride - shift */
    int64_t begin = shift > 0 ? (shift + a->stride - 1) / a->stride : 0;
    int64_t last = a->in - 1 + shift;
    int64_t end = last < 0 ? 0 : last / a->stride + 1;
    end = end < a->out ? end : a->out;
    return (struct mgpu_range){begin < end ? begin : end, end};
}

int64_t mgpu_pool_taps(const struct mgpu_pool_axis *a, int64_t o, bool padding)
{
    int64_t n = 0, start = o * a->stride - a->before;
    int64_t low = padding ? -a->before : 0, high = a->in + (padding ? a->after : 0);
    for (int64_t k = 0; k < a->kernel; k++) {
        int64_t at = start + k * a->dilation;
        n += at >= low && at < high;
    }
    return n;
}
