#include "runtime/data/dense.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int mgpu_dense_map(struct mgpu_dense **out, struct mgpu_dataset *dataset)
{
    *out = dataset->state = mgpu_xcalloc(1, sizeof **out);
    return mgpu_mapped_open(&(*out)->file, dataset->path);
}

static void swap_bytes(char *data, size_t item, int64_t count)
{
    for (int64_t i = 0; i < count; i++, data += item)
        for (size_t k = 0; k < item / 2; k++) {
            char t = data[k];
            data[k] = data[item - 1 - k];
            data[item - 1 - k] = t;
        }
}

/* Column order to row order: walks the target in order and counts its index up like an odometer. */
static void transpose(char *to, const uint8_t *from, size_t item, int rank, const int64_t *dims,
                      int64_t count)
{
    int64_t index[MGPU_MAX_RANK] = {0}, stride[MGPU_MAX_RANK], at = 0;
    for (int i = 0; i < rank; i++)
        stride[i] = i ? stride[i - 1] * dims[i - 1] : 1;
    for (int64_t n = 0; n < count; n++, to += item) {
        memcpy(to, from + (size_t)at * item, item);
        for (int i = rank - 1; i >= 0; i--) {
            at += stride[i];
            if (++index[i] < dims[i])
                break;
            at -= stride[i] * dims[i];
            index[i] = 0;
        }
    }
}

static int rearrange(struct mgpu_dataset *d, const uint8_t *from, int64_t count,
                     struct mgpu_layout layout)
{
    struct mgpu_dense *dense = d->state;
    size_t item = mgpu_dtype_size(d->type);
    void *owned;
    MGPU_TRY(mgpu_alloc(&owned, (uint64_t)count * item, d->title));
    if (layout.columns_first)
        transpose(owned, from, item, d->rank, d->dims, count);
    else if (count)
        memcpy(owned, from, (size_t)count * item);
    if (layout.big_endian)
        swap_bytes(owned, item, count);
    mgpu_free(dense->owned);
    dense->data = dense->owned = owned;
    return 0;
}

int mgpu_dense_set(struct mgpu_dataset *d, const uint8_t *from, uint64_t size,
                   struct mgpu_layout layout)
{
    struct mgpu_dense *dense = d->state;
    size_t item = mgpu_dtype_size(d->type);
    char text[MGPU_SHAPE_TEXT];
    int64_t count;
    MGPU_TRY(mgpu_count(&count, d->type, d->rank, d->dims));
    if ((uint64_t)count * item > size)
        return mgpu_fail(MGPU_EINVALID,
                         "the shape %s of %s needs %" PRIu64 " bytes, but the file holds %" PRIu64,
                         mgpu_shape_text(text, d->rank, d->dims), mgpu_dtype_name(d->type),
                         (uint64_t)count * item, size);
    bool big_endian = layout.big_endian && item > 1;
    bool columns_first = layout.columns_first && d->rank > 1;
    if (big_endian || columns_first || (uintptr_t)from % item)
        return rearrange(d, from, count, (struct mgpu_layout){big_endian, columns_first});
    dense->data = from;
    return 0;
}

int mgpu_dense_read(struct mgpu_dataset *d, int axis, const int64_t *rows,
                    const struct mgpu_rows *to)
{
    struct mgpu_dense *dense = d->state;
    struct mgpu_rows from = mgpu_rows_of((void *)(uintptr_t)dense->data, d->type, d->rank, d->dims,
                                         axis, mgpu_dataset_samples(d, axis));
    for (int64_t i = 0; i < to->rows; i++)
        MGPU_TRY(mgpu_prefix(mgpu_rows_copy(to, i, &from, rows[i]), "sample %" PRId64, rows[i]));
    return 0;
}

void mgpu_dense_close(struct mgpu_dataset *d)
{
    struct mgpu_dense *dense = d->state;
    if (!dense)
        return;
    mgpu_free(dense->owned);
    mgpu_mapped_close(&dense->file);
    free(dense);
}
