/* Data sets in HDF5 files, read through a cache of blocks.
 *
 * A block is a range of rows along the sample axis, whole chunks where possible, so that no chunk
 * is unpacked again for each of its rows. Blocks live in slots; the least recently used makes room.
 */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/dataset.h"
#include "runtime/data/h5_reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 << 10, MANY = 64 };

struct slot {
    int64_t block; /* -1: empty */
    uint64_t used; /* the clock when it was last needed */
};

struct h5_state {
    struct mgpu_h5_reader *reader;
    struct mgpu_h5_shape shape;
    pthread_mutex_t lock; /* of all that follows */
    int axis;
    int64_t samples, row_bytes, block_rows, block_bytes;
    int64_t slot_count, slots_filled;
    struct slot *slots;
    int32_t *slot_of; /* block -> slot, or -1 */
    char *cache;      /* slot_count x block_bytes; NULL before prepare */
    uint64_t clock, fetches;
};

static bool probe(const uint8_t *head, size_t size)
{
    static const size_t starts[] = {0, 512, 1024, 2048}; /* a user block may stand before */
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (size >= starts[i] + 8 && memcmp(head + starts[i], "\x89HDF\r\n\x1a\n", 8) == 0)
            return true;
    return false;
}

static int list_h5(struct mgpu_name_list *out, const char *path)
{
    struct mgpu_h5_reader *r;
    MGPU_TRY(mgpu_h5_reader_open(&r, path));
    int rc = mgpu_prefix(mgpu_h5_reader_list(out, r), "%s", path);
    mgpu_h5_reader_close(r);
    return rc;
}

static int open_h5(struct mgpu_dataset *d)
{
    struct h5_state *s = d->state = mgpu_xcalloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    MGPU_TRY(mgpu_h5_reader_open(&s->reader, d->path));
    MGPU_TRY(mgpu_h5_reader_describe(&s->shape, s->reader, d->name));
    d->type = s->shape.type;
    d->rank = s->shape.rank;
    memcpy(d->dims, s->shape.dims, sizeof d->dims);
    return 0;
}

static void close_h5(struct mgpu_dataset *d)
{
    struct h5_state *s = d->state;
    if (!s)
        return;
    mgpu_h5_reader_close(s->reader);
    pthread_mutex_destroy(&s->lock);
    mgpu_free(s->cache);
    free(s->slots);
    free(s->slot_of);
    free(s);
}

/* Rows of a block: whole chunks, of about BLOCK bytes or less where that would leave few slots.
 * Chunks of which not even two fit the budget are cut, and unpacked more than once. */
static int64_t choose_block(const struct h5_state *s, uint64_t budget)
{
    int64_t chunk = s->axis == MGPU_WHOLE ? 1 : s->shape.chunk[s->axis];
    int64_t bytes = budget / MANY < BLOCK ? (int64_t)(budget / MANY) : BLOCK;
    int64_t row = s->row_bytes > 0 ? s->row_bytes : 1, step = chunk > 0 ? chunk : 1;
    int64_t rows = bytes / row / step * step, most = (int64_t)(budget / 2) / row;
    if (rows < step)
        rows = step;
    if (rows > most)
        rows = most;
    if (rows > s->samples)
        rows = s->samples;
    return rows > 0 ? rows : 1;
}

static void forget(struct h5_state *s)
{
    mgpu_free(s->cache);
    free(s->slots);
    free(s->slot_of);
    s->cache = NULL;
    s->slots = NULL;
    s->slot_of = NULL;
    s->slots_filled = 0;
}

static int prepare(struct mgpu_dataset *d, int axis, uint64_t budget)
{
    struct h5_state *s = d->state;
    int64_t count;
    MGPU_TRY(mgpu_count(&count, d->type, d->rank, d->dims));
    forget(s);
    s->axis = axis;
    s->samples = mgpu_dataset_samples(d, axis);
    s->row_bytes = s->samples ? count / s->samples * (int64_t)mgpu_dtype_size(d->type) : 0;
    s->block_rows = choose_block(s, budget);
    s->block_bytes = s->block_rows * s->row_bytes;
    int64_t blocks = (s->samples + s->block_rows - 1) / s->block_rows;
    bool whole = (uint64_t)(s->samples * s->row_bytes) <= budget;
    s->slot_count = whole ? blocks : (int64_t)budget / s->block_bytes;
    s->slot_count = s->slot_count < 1 ? 1 : s->slot_count;
    if (blocks > INT32_MAX)
        return mgpu_fail(MGPU_EUNSUPPORTED, "more than %d blocks of rows", INT32_MAX);
    s->slots = mgpu_xcalloc((size_t)s->slot_count, sizeof *s->slots);
    s->slot_of = mgpu_xcalloc((size_t)blocks, sizeof *s->slot_of);
    memset(s->slot_of, -1, (size_t)blocks * sizeof *s->slot_of);
    void *cache;
    MGPU_TRY(mgpu_alloc(&cache, (uint64_t)(s->slot_count * s->block_bytes), "data cache"));
    s->cache = cache;
    return 0;
}

static void blocks(const struct mgpu_dataset *d, int64_t *rows, int64_t *held)
{
    const struct h5_state *s = d->state;
    if (!s->cache || s->slot_count * s->block_rows >= s->samples)
        return; /* all of it stays in memory */
    *rows = s->block_rows;
    *held = s->slot_count;
}

static uint64_t fetches(const struct mgpu_dataset *d)
{
    const struct h5_state *s = d->state;
    return s->fetches;
}

/* Rows [first, first + rows) into `to`. */
static int fetch(const struct mgpu_dataset *d, int64_t first, int64_t rows, void *to)
{
    struct h5_state *s = d->state;
    s->fetches++;
    return mgpu_h5_reader_read(s->reader, d->name, s->axis, first, rows, to,
                               (size_t)(rows * s->row_bytes));
}

/* A slot for a new block: an empty one, else the one that was not needed for longest. */
static int32_t make_room(struct h5_state *s)
{
    if (s->slots_filled < s->slot_count)
        return (int32_t)s->slots_filled++;
    int32_t oldest = 0;
    for (int64_t i = 1; i < s->slot_count; i++)
        if (s->slots[i].used < s->slots[oldest].used)
            oldest = (int32_t)i;
    if (s->slots[oldest].block >= 0)
        s->slot_of[s->slots[oldest].block] = -1;
    return oldest;
}

/* The rows of a block that are in the data: the last one may be short. */
static int64_t rows_in(const struct h5_state *s, int64_t block)
{
    int64_t left = s->samples - block * s->block_rows;
    return left < s->block_rows ? left : s->block_rows;
}

/* Rows that were read together. */
struct held {
    char *data;
    int64_t first, rows;
};

/* The block that holds a row; where the block has a row that cannot be read, this row alone. */
static int find_row(const struct mgpu_dataset *d, int64_t row, struct held *out)
{
    struct h5_state *s = d->state;
    int64_t block = row / s->block_rows;
    int32_t slot = s->slot_of[block];
    bool fetched = slot < 0;
    if (fetched) {
        slot = make_room(s);
        s->slots[slot] = (struct slot){-1, 0};
    }
    *out =
        (struct held){s->cache + slot * s->block_bytes, block * s->block_rows, rows_in(s, block)};
    if (fetched && fetch(d, out->first, out->rows, out->data) < 0) {
        out->first = row;
        out->rows = 1;
        return fetch(d, row, 1, out->data);
    }
    s->slot_of[block] = slot;
    s->slots[slot] = (struct slot){block, ++s->clock};
    return 0;
}

static int read_row(struct mgpu_dataset *d, int64_t row, const struct mgpu_rows *to, int64_t to_row)
{
    struct h5_state *s = d->state;
    struct held held;
    MGPU_TRY(find_row(d, row, &held));
    struct mgpu_rows from = mgpu_rows_of(held.data, d->type, d->rank, d->dims, s->axis, held.rows);
    return mgpu_rows_copy(to, to_row, &from, row - held.first);
}

static int read_locked(struct mgpu_dataset *d, const int64_t *rows, const struct mgpu_rows *to)
{
    for (int64_t i = 0; i < to->rows; i++)
        MGPU_TRY(mgpu_prefix(read_row(d, rows[i], to, i), "sample %" PRId64, rows[i]));
    return 0;
}

static int read_h5(struct mgpu_dataset *d, int axis, const int64_t *rows,
                   const struct mgpu_rows *to)
{
    enum { DEFAULT_BUDGET = 64 << 20 };
    struct h5_state *s = d->state;
    pthread_mutex_lock(&s->lock);
    int rc = s->cache && s->axis == axis ? 0 : prepare(d, axis, DEFAULT_BUDGET);
    if (rc == 0)
        rc = read_locked(d, rows, to);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

const struct mgpu_dataset_kind mgpu_dataset_hdf5 = {
    .name = "HDF5",
    .probe = probe,
    .list = list_h5,
    .open = open_h5,
    .prepare = prepare,
    .blocks = blocks,
    .read = read_h5,
    .fetches = fetches,
    .close = close_h5,
};
