/* The order of samples in an epoch, cut into batches.
 *
 *     struct mgpu_batches b;
 *     MGPU_TRY(mgpu_batches_init(&b, &(struct mgpu_order){.samples = 60000, .shuffle = true,
 *                                                         .seed = 1}, 64));
 *     mgpu_batches_epoch(&b, 0);
 *     for (int64_t i = 0; i < mgpu_batches_count(&b); i++)
 *         n = mgpu_batches_rows(&b, i, rows);
 *
 * The order is a function of the numbers in struct mgpu_order and the epoch alone: the same on
 * every machine and for every number of ranks. To go on after a stop, (epoch, batch index) is all
 * there is to keep.
 *
 * Shuffle: the samples are cut into blocks of `block` rows; the blocks are shuffled, `window` of
 * them in a row form a window, and the rows of a window are shuffled among each other. One window
 * of everything is a full shuffle. Smaller windows serve data that do not fit in memory: a window's
 * blocks are unpacked once, and come from all over the file, so that sorted classes mix.
 * Every shuffle is Fisher-Yates from the back (Durstenfeld, CACM 7 (1964) 420) with numbers of
 * SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), keyed by seed, epoch and window, brought into range
 * without bias by rejection (Lemire, ACM TOMACS 29 (2019) 3).
 */
#ifndef MGPU_DATA_BATCHES_H
#define MGPU_DATA_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

struct mgpu_order {
    int64_t first, samples; /* rows first .. first + samples - 1 */
    bool shuffle;
    uint64_t seed;
    int64_t block, window; /* 0, 0: shuffle everything at once */
};

struct mgpu_batches {
    struct mgpu_order order;
    int64_t batch, epoch;
    int64_t blocks;       /* how many */
    int64_t *block_order; /* this epoch's; the last block may be short */
    int64_t short_at;     /* where in block_order the last block stands */
    int64_t *window_rows; /* the shuffled rows of window `window` */
    int64_t window, window_count;
};

/* MGPU_EINVALID without samples or with a batch below 1. Starts in epoch 0. */
int mgpu_batches_init(struct mgpu_batches *out, const struct mgpu_order *order, int64_t batch);
void mgpu_batches_free(struct mgpu_batches *batches);

/* Batches in an epoch; the last may be short. */
int64_t mgpu_batches_count(const struct mgpu_batches *batches);

void mgpu_batches_epoch(struct mgpu_batches *batches, int64_t epoch);

/* The sample indices of batch `index` of this epoch into rows[batch size]; returns how many.
 * Allocates nothing. */
int64_t mgpu_batches_rows(struct mgpu_batches *batches, int64_t index, int64_t *rows);

/* The part [*first, *first + *count) of a batch of `size` rows that is rank `rank`'s: sizes differ
 * by at most one, the first ranks have the larger. */
void mgpu_batches_slice(int64_t size, int ranks, int rank, int64_t *first, int64_t *count);

#endif
