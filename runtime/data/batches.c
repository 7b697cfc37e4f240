#include "runtime/data/batches.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <string.h>

/* Rows of one window at most, so that the order of billions of samples needs little memory. */
enum { WINDOW_MOST = 1 << 22, SMALL_BLOCK = 64 };

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Uniform in [0, n). */
static uint64_t below(uint64_t *state, uint64_t n)
{
    unsigned __int128 product = (unsigned __int128)splitmix64(state) * n;
    if ((uint64_t)product < n)
        for (uint64_t least = -n % n; (uint64_t)product < least;)
            product = (unsigned __int128)splitmix64(state) * n;
    return (uint64_t)(product >> 64);
}

/* A generator of its own for each (seed, epoch, stream). */
static uint64_t key(uint64_t seed, int64_t epoch, int64_t stream)
{
    uint64_t state = seed;
    state = splitmix64(&state) ^ (uint64_t)epoch;
    state = splitmix64(&state) ^ (uint64_t)stream;
    return splitmix64(&state);
}

static void shuffle(int64_t *items, int64_t count, uint64_t state)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t k = (int64_t)below(&state, (uint64_t)i + 1), t = items[i];
        items[i] = items[k];
        items[k] = t;
    }
}

/* Without advice: everything in one window, unless there is too much. */
static void choose_blocks(struct mgpu_order *o)
{
    bool advised = o->block > 0 && o->window > 0;
    if (!advised)
        o->block = o->samples <= WINDOW_MOST ? o->samples : SMALL_BLOCK;
    int64_t most = o->block < WINDOW_MOST ? WINDOW_MOST / o->block : 1;
    if (!advised || o->window > most)
        o->window = most;
}

static int allocate(struct mgpu_batches *b)
{
    void *rows, *blocks;
    int64_t window = b->order.block * b->order.window;
    if (window > b->order.samples)
        window = b->order.samples;
    MGPU_TRY(mgpu_alloc(&rows, (uint64_t)window * sizeof(int64_t), "order of the samples"));
    b->window_rows = rows;
    MGPU_TRY(mgpu_alloc(&blocks, (uint64_t)b->blocks * sizeof(int64_t), "order of the samples"));
    b->block_order = blocks;
    return 0;
}

int mgpu_batches_init(struct mgpu_batches *b, const struct mgpu_order *order, int64_t batch)
{
    memset(b, 0, sizeof *b);
    if (order->samples < 1)
        return mgpu_fail(MGPU_EINVALID, "there are no samples");
    if (batch < 1)
        return mgpu_fail(MGPU_EINVALID, "a batch of %" PRId64 " samples", batch);
    b->order = *order;
    b->batch = batch;
    b->epoch = -1;
    if (order->shuffle) {
        choose_blocks(&b->order);
        b->blocks = (order->samples + b->order.block - 1) / b->order.block;
        int rc = allocate(b);
        if (rc < 0) {
            mgpu_batches_free(b);
            return rc;
        }
    }
    mgpu_batches_epoch(b, 0);
    return 0;
}

void mgpu_batches_free(struct mgpu_batches *b)
{
    mgpu_free(b->block_order);
    mgpu_free(b->window_rows);
    memset(b, 0, sizeof *b);
}

int64_t mgpu_batches_count(const struct mgpu_batches *b)
{
    return (b->order.samples + b->batch - 1) / b->batch;
}

void mgpu_batches_epoch(struct mgpu_batches *b, int64_t epoch)
{
    if (b->epoch == epoch)
        return;
    b->epoch = epoch;
    b->window = -1;
    for (int64_t i = 0; i < b->blocks; i++)
        b->block_order[i] = i;
    shuffle(b->block_order, b->blocks, key(b->order.seed, epoch, -1));
    for (int64_t i = 0; i < b->blocks; i++)
        if (b->block_order[i] == b->blocks - 1)
            b->short_at = i;
}

/* Rows that block number `block` lacks. */
static int64_t missing(const struct mgpu_batches *b, int64_t block)
{
    return block == b->blocks - 1 ? b->blocks * b->order.block - b->order.samples : 0;
}

/* Position in the epoch where a window starts: all before it are whole but for the short block. */
static int64_t window_start(const struct mgpu_batches *b, int64_t window)
{
    int64_t before = window * b->order.window;
    return before * b->order.block - (b->short_at < before ? missing(b, b->blocks - 1) : 0);
}

static void load_window(struct mgpu_batches *b, int64_t window)
{
    int64_t first = window * b->order.window, n = 0;
    for (int64_t i = first; i < first + b->order.window && i < b->blocks; i++) {
        int64_t block = b->block_order[i], rows = b->order.block - missing(b, block);
        for (int64_t r = 0; r < rows; r++)
            b->window_rows[n++] = b->order.first + block * b->order.block + r;
    }
    shuffle(b->window_rows, n, key(b->order.seed, b->epoch, window));
    b->window = window;
    b->window_count = n;
}

/* The sample at a position of the epoch. A short block lets windows start earlier than by their
 * number, by less than one block. */
static int64_t sample_at(struct mgpu_batches *b, int64_t position)
{
    if (!b->order.shuffle)
        return b->order.first + position;
    int64_t window = b->window;
    if (window < 0 || position < window_start(b, window) ||
        position >= window_start(b, window) + b->window_count) {
        window = position / (b->order.block * b->order.window);
        if (window_start(b, window + 1) <= position)
            window++;
        load_window(b, window);
    }
    return b->window_rows[position - window_start(b, window)];
}

int64_t mgpu_batches_rows(struct mgpu_batches *b, int64_t index, int64_t *rows)
{
    int64_t first = index * b->batch, left = b->order.samples - first;
    int64_t count = left < b->batch ? left : b->batch;
    for (int64_t i = 0; i < count; i++)
        rows[i] = sample_at(b, first + i);
    return count > 0 ? count : 0;
}

void mgpu_batches_slice(int64_t size, int ranks, int rank, int64_t *first, int64_t *count)
{
    int64_t each = size / ranks, larger = size % ranks;
    *count = each + (rank < larger);
    *first = rank * each + (rank < larger ? rank : larger);
}
