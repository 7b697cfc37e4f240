/* Plain kernels of reshape, transpose, expand, slice, slice_grad and concat; pad.c has pad. They
 * move elements of 1, 2, 4 or 8 bytes and do not look at them. */
#include "runtime/ops/movement.h"
#include "runtime/ref/pad.h"
#include "runtime/ref/ref.h"
#include "runtime/ref/strided.h"

#include <string.h>

static size_t bytes(const struct mgpu_tensor *t)
{
    return (size_t)mgpu_tensor_count(t) * mgpu_dtype_size(t->type);
}

static int reshape(const struct mgpu_launch *l)
{
    if (l->out[0].data != l->in[0].data)
        memcpy(l->out[0].data, l->in[0].data, bytes(&l->in[0]));
    return 0;
}

/* A copy of the shape of `t`, whose strides are its own on both sides until changed. */
static struct mgpu_strided copy_of(const struct mgpu_launch *l, const struct mgpu_tensor *t)
{
    struct mgpu_strided c = {.rank = t->rank,
                             .size = mgpu_dtype_size(t->type),
                             .from = l->in[0].data,
                             .to = l->out[0].data};
    memcpy(c.dims, t->dims, sizeof c.dims);
    mgpu_tensor_strides(t, c.from_stride);
    mgpu_tensor_strides(t, c.to_stride);
    return c;
}

static int transpose(const struct mgpu_launch *l)
{
    const struct mgpu_transpose_attrs *a = l->node->attrs;
    struct mgpu_strided c = copy_of(l, &l->out[0]);
    int64_t strides[MGPU_MAX_RANK];
    mgpu_tensor_strides(&l->in[0], strides);
    for (int i = 0; i < c.rank; i++)
        c.from_stride[i] = strides[a->perm[i]];
    mgpu_strided_copy(&c);
    return 0;
}

static int expand(const struct mgpu_launch *l)
{
    struct mgpu_strided c = copy_of(l, &l->out[0]);
    int64_t strides[MGPU_MAX_RANK];
    int added = l->out[0].rank - l->in[0].rank;
    mgpu_tensor_strides(&l->in[0], strides);
    for (int i = 0; i < c.rank; i++)
        c.from_stride[i] = i < added || l->in[0].dims[i - added] == 1 ? 0 : strides[i - added];
    mgpu_strided_copy(&c);
    return 0;
}

/* The strides of a slice of `whole`; returns the offset of its first element in bytes. */
static int64_t slice_of(const struct mgpu_tensor *whole, const int64_t *start, const int64_t *step,
                        int64_t strides[MGPU_MAX_RANK])
{
    int64_t offset = 0;
    mgpu_tensor_strides(whole, strides);
    for (int i = 0; i < whole->rank; i++) {
        offset += start[i] * strides[i];
        strides[i] *= step[i];
    }
    return offset * (int64_t)mgpu_dtype_size(whole->type);
}

static int slice(const struct mgpu_launch *l)
{
    const struct mgpu_slice_attrs *a = l->node->attrs;
    struct mgpu_strided c = copy_of(l, &l->out[0]);
    if (mgpu_tensor_count(&l->out[0])) {
        c.from = (const char *)c.from + slice_of(&l->in[0], a->start, a->step, c.from_stride);
        mgpu_strided_copy(&c);
    }
    return 0;
}

static int slice_grad(const struct mgpu_launch *l)
{
    const struct mgpu_slice_grad_attrs *a = l->node->attrs;
    struct mgpu_strided c = copy_of(l, &l->in[0]);
    memset(l->out[0].data, 0, bytes(&l->out[0]));
    if (mgpu_tensor_count(&l->in[0])) {
        c.to = (char *)c.to + slice_of(&l->out[0], a->start, a->step, c.to_stride);
        mgpu_strided_copy(&c);
    }
    return 0;
}

static int concat(const struct mgpu_launch *l)
{
    const struct mgpu_concat_attrs *a = l->node->attrs;
    const struct mgpu_tensor *y = &l->out[0];
    int64_t strides[MGPU_MAX_RANK], at = 0;
    mgpu_tensor_strides(y, strides);
    for (int k = 0; k < l->inputs; k++) {
        const struct mgpu_tensor *x = &l->in[k];
        struct mgpu_strided c = copy_of(l, x);
        memcpy(c.to_stride, strides, sizeof strides);
        c.from = x->data;
        c.to = (char *)y->data + at * strides[a->axis] * (int64_t)c.size;
        mgpu_strided_copy(&c);
        at += x->dims[a->axis];
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_movement[] = {
    {.op = "reshape", .name = "ref", .run = reshape},
    {.op = "bit_cast", .name = "ref", .run = reshape},
    {.op = "transpose", .name = "ref", .run = transpose},
    {.op = "expand", .name = "ref", .run = expand},
    {.op = "slice", .name = "ref", .run = slice},
    {.op = "slice_grad", .name = "ref", .run = slice_grad},
    {.op = "concat", .name = "ref", .run = concat},
    {.op = "pad", .name = "ref", .run = mgpu_ref_pad, .workspace = mgpu_ref_pad_workspace},
    {.op = "pad_grad",
     .name = "ref",
     .run = mgpu_ref_pad_grad,
     .workspace = mgpu_ref_pad_grad_workspace},
    {.op = NULL},
};
