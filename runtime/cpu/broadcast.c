#include "runtime/cpu/broadcast.h"

#include <string.h>

/* Appends an axis, or widens the last one where the two are one. */
static void append(struct mgpu_broadcast *b, int64_t size, int64_t stride)
{
    int last = b->rank - 1;
    if (size == 1)
        return;
    if (last >= 0 && b->strides[last] == stride * size) {
        b->dims[last] *= size;
        b->strides[last] = stride;
        return;
    }
    b->dims[b->rank] = size;
    b->strides[b->rank++] = stride;
}

struct mgpu_broadcast mgpu_broadcast_make(const struct mgpu_value *input,
                                          const struct mgpu_value *output)
{
    struct mgpu_broadcast b = {0};
    int shift = output->rank - input->rank;
    int64_t stride = mgpu_value_count(input);
    for (int k = 0; k < output->rank; k++) {
        int64_t own = k < shift ? 1 : input->dims[k - shift].value;
        stride /= own > 0 ? own : 1;
        append(&b, output->dims[k].value, own == 1 ? 0 : stride);
    }
    if (b.rank == 0)
        b = (struct mgpu_broadcast){1, {1}, {1}};
    return b;
}

static void copy(float *to, const struct mgpu_tensor *x, int64_t index, int64_t n)
{
    const char *from = (const char *)x->data + index * (int64_t)mgpu_dtype_size(x->type);
    if (x->type == MGPU_FLOAT)
        memcpy(to, from, (size_t)n * sizeof *to);
    else if (x->type == MGPU_BOOL)
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i] != 0;
    else
        mgpu_convert(to, MGPU_FLOAT, from, x->type, n);
}

static void splat(float *to, const struct mgpu_tensor *x, int64_t index, int64_t n)
{
    float value;
    copy(&value, x, index, 1);
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

void mgpu_broadcast_load(const struct mgpu_broadcast *b, const struct mgpu_tensor *x, int64_t flat,
                         int64_t n, float *to)
{
    int last = b->rank - 1;
    int64_t at[MGPU_MAX_RANK], index = 0;
    for (int k = last; k >= 0; k--) {
        at[k] = flat % b->dims[k];
        flat /= b->dims[k];
        index += at[k] * b->strides[k];
    }
    while (n > 0) {
        int64_t run = b->dims[last] - at[last];
        run = run < n ? run : n;
        (b->strides[last] ? copy : splat)(to, x, index, run);
        to += run;
        n -= run;
        index -= at[last] * b->strides[last];
        at[last] = 0;
        for (int k = last - 1; k >= 0; k--) {
            index += b->strides[k];
            if (++at[k] < b->dims[k])
                break;
            index -= b->strides[k] * b->dims[k];
            at[k] = 0;
        }
    }
}
