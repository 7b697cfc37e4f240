/* IDX, the format of MNIST's files, raw or gzipped.
 * Two zero bytes, a type, a rank, then the dimensions and the elements, all big-endian (Yann
 * LeCun's MNIST page). */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/dense.h"
#include "runtime/data/unpack.h"

#include <inttypes.h>
#include <string.h>

enum { MAGIC = 4, HEADER_MOST = MAGIC + 4 * MGPU_MAX_RANK };

static const struct {
    uint8_t code;
    enum mgpu_dtype type;
} types[] = {{0x08, MGPU_UINT8}, {0x09, MGPU_INT8},  {0x0b, MGPU_INT16},
             {0x0c, MGPU_INT32}, {0x0d, MGPU_FLOAT}, {0x0e, MGPU_DOUBLE}};

static enum mgpu_dtype type_of(uint8_t code)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].code == code)
            return types[i].type;
    return MGPU_UNDEFINED;
}

static bool probe(const uint8_t *head, size_t size)
{
    return size >= MAGIC && head[0] == 0 && head[1] == 0 && type_of(head[2]) && head[3] > 0;
}

static bool probe_gz(const uint8_t *head, size_t size)
{
    return size >= 2 && head[0] == 0x1f && head[1] == 0x8b;
}

/* Fills type and shape from the first `size` bytes of the content; *used is the header's length. */
static int read_header(struct mgpu_dataset *d, const uint8_t *head, uint64_t size, uint64_t *used)
{
    if (!probe(head, size))
        return mgpu_fail(MGPU_EUNSUPPORTED, "gzipped, but what is inside is not IDX");
    if (head[3] > MGPU_MAX_RANK)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d dimensions, more than %d", head[3], MGPU_MAX_RANK);
    d->type = type_of(head[2]);
    d->rank = head[3];
    *used = MAGIC + 4 * (uint64_t)d->rank;
    if (size < *used)
        return mgpu_fail(MGPU_EINVALID, "cut off in its header");
    for (int i = 0; i < d->rank; i++) {
        const uint8_t *p = head + MAGIC + 4 * i;
        d->dims[i] = (int64_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
    }
    return 0;
}

static int open_idx(struct mgpu_dataset *d)
{
    struct mgpu_dense *dense;
    uint64_t used;
    MGPU_TRY(mgpu_dense_map(&dense, d));
    MGPU_TRY(read_header(d, dense->file.data, dense->file.size, &used));
    return mgpu_dense_set(d, dense->file.data + used, dense->file.size - used,
                          (struct mgpu_layout){.big_endian = true});
}

/* The elements after the header; one more byte is asked for, so that the end is seen and with it
 * the check sum. */
static int unpack_elements(struct mgpu_dataset *d, struct mgpu_unpack *unpack)
{
    struct mgpu_dense *dense = d->state;
    int64_t count;
    MGPU_TRY(mgpu_count(&count, d->type, d->rank, d->dims));
    uint64_t bytes = (uint64_t)count * mgpu_dtype_size(d->type), got;
    if (bytes / MGPU_DEFLATE_MOST > dense->file.size)
        return mgpu_fail(MGPU_EINVALID,
                         "claims %" PRIu64 " bytes, which %" PRIu64 " packed bytes cannot hold",
                         bytes, dense->file.size);
    MGPU_TRY(mgpu_alloc(&dense->owned, bytes + 1, d->title));
    MGPU_TRY(mgpu_unpack_read(unpack, dense->owned, bytes + 1, &got));
    void *unpacked = dense->owned;
    return mgpu_dense_set(d, unpacked, got, (struct mgpu_layout){.big_endian = true});
}

static int unpack_idx(struct mgpu_dataset *d, struct mgpu_unpack *unpack)
{
    uint8_t head[HEADER_MOST];
    uint64_t got, more, used;
    MGPU_TRY(mgpu_unpack_read(unpack, head, MAGIC, &got));
    if (got == MAGIC && head[3] <= MGPU_MAX_RANK) {
        MGPU_TRY(mgpu_unpack_read(unpack, head + MAGIC, 4 * (uint64_t)head[3], &more));
        got += more;
    }
    MGPU_TRY(read_header(d, head, got, &used));
    return unpack_elements(d, unpack);
}

static int open_idx_gz(struct mgpu_dataset *d)
{
    struct mgpu_dense *dense;
    struct mgpu_unpack unpack;
    MGPU_TRY(mgpu_dense_map(&dense, d));
    MGPU_TRY(mgpu_unpack_begin(&unpack, MGPU_UNPACK_GZIP, dense->file.data, dense->file.size));
    int rc = unpack_idx(d, &unpack);
    mgpu_unpack_end(&unpack);
    return rc;
}

const struct mgpu_dataset_kind mgpu_dataset_idx = {
    .name = "IDX",
    .probe = probe,
    .open = open_idx,
    .read = mgpu_dense_read,
    .close = mgpu_dense_close,
};

const struct mgpu_dataset_kind mgpu_dataset_idx_gz = {
    .name = "gzipped IDX",
    .probe = probe_gz,
    .open = open_idx_gz,
    .read = mgpu_dense_read,
    .close = mgpu_dense_close,
};
