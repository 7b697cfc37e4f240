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

/* The output's dims as they are stored, and beside them the input's. Returns their number. */
static int stored_dims(const struct mgpu_value *input, const struct mgpu_value *output,
                       int64_t *dims, int64_t *own)
{
    int rank = output->rank, shift = rank - input->rank, block = output->block;
    int64_t plain[MGPU_MAX_RANK];
    mgpu_value_dims(output, plain);
    for (int k = 0; k < rank; k++)
        own[k] = k < shift ? 1 : input->dims[k - shift].value;
    if (block && own[1] == 1)
        own[rank] = 1;
    else if (block)
        mgpu_stored_dims(block, rank, own, own);
    return mgpu_stored_dims(block, rank, plain, dims);
}

struct mgpu_broadcast mgpu_broadcast_make(const struct mgpu_value *input,
                                          const struct mgpu_value *output)
{
    struct mgpu_broadcast b = {0};
    int64_t dims[MGPU_MAX_RANK + 1], own[MGPU_MAX_RANK + 1], stride = 1;
    int rank = stored_dims(input, output, dims, own);
    for (int k = 0; k < rank; k++)
        stride *= own[k];
    for (int k = 0; k < rank; k++) {
        stride /= own[k] > 0 ? own[k] : 1;
        append(&b, dims[k], own[k] == 1 ? 0 : stride);
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

/* Goes on with what is in the first `period` of `n` elements. */
static void repeat(float *to, int64_t period, int64_t n)
{
    for (int64_t done = period, run; done < n; done += run) {
        run = n - done < done ? n - done : done;
        memcpy(to + done, to, (size_t)run * sizeof *to);
    }
}

/* How many rows of the last axis follow that are all the same, wholly within n elements. */
static int64_t equal_rows(const struct mgpu_broadcast *b, const int64_t *at, int64_t n)
{
    int last = b->rank - 1;
    if (last == 0 || at[last] || b->strides[last - 1])
        return 1;
    int64_t rows = b->dims[last - 1] - at[last - 1], fit = n / b->dims[last];
    rows = rows < fit ? rows : fit;
    return rows < 1 ? 1 : rows;
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
        int64_t run = b->dims[last] - at[last], rows = equal_rows(b, at, n);
        run = run < n ? run : n;
        (b->strides[last] ? copy : splat)(to, x, index, run);
        repeat(to, run, rows * run);
        to += rows * run;
        n -= rows * run;
        index -= at[last] * b->strides[last];
        at[last] = 0;
        if (rows > 1)
            at[last - 1] += rows - 1;
        for (int k = last - 1; k >= 0; k--) {
            index += b->strides[k];
            if (++at[k] < b->dims[k])
                break;
            index -= b->strides[k] * b->dims[k];
            at[k] = 0;
        }
    }
}
