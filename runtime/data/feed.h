/* Binds data files to a model's inputs and labels, and fills a rank's buffers with samples.
 *
 *     struct mgpu_feed *feed;
 *     MGPU_TRY(mgpu_feed_open(&feed, &options));          // --data and what belongs to it
 *     const struct mgpu_dataset *x = mgpu_feed_dataset(feed, "x");   // its shape, to bind dims
 *     MGPU_TRY(mgpu_feed_bind(feed, wants, 2, batch));    // checks everything, takes all memory
 *     MGPU_TRY(mgpu_feed_rows(feed, 0, rows, count, buffer));
 *     mgpu_feed_close(feed);
 */
#ifndef MGPU_DATA_FEED_H
#define MGPU_DATA_FEED_H

#include "runtime/data/batches.h"
#include "runtime/data/dataset.h"

/* Option values as they were typed. */
struct mgpu_texts {
    const char *const *items;
    int count;
};

struct mgpu_feed_options {
    struct mgpu_texts data;       /* NAME=FILE[:DATASET], or FILE: all its arrays by name */
    struct mgpu_texts names;      /* the model's inputs: the longest that fits is NAME */
    struct mgpu_texts scale;      /* NAME=FACTOR, FACTOR being X or X/Y */
    struct mgpu_texts normalize;  /* NAME=MEAN/STD, each a number or a list by channel */
    struct mgpu_texts batch_axis; /* NAME=K */
    struct mgpu_texts rows;       /* NAME=R: a step takes R rows */
    uint64_t cache_bytes;         /* for all files that are unpacked while reading; 0: 192 MiB */
    bool quiet;                   /* no notes about conversions (a second feed of the same kind) */
};

/* What the model wants under a name. */
struct mgpu_feed_want {
    const char *name;            /* must live as long as the feed */
    enum mgpu_dtype type;        /* of the buffer */
    int rank;                    /* of one sample: the buffer's rank less the batch axis */
    int64_t dims[MGPU_MAX_RANK]; /* -1: any */
    bool first_only; /* a state: the data hold step 0's value only and are not counted */
};

struct mgpu_feed;

/* Where the FILE of NAME=FILE begins, behind the longest of `names` or the first '='; NULL: there
 * is no NAME. */
const char *mgpu_feed_file_of(const char *text, const struct mgpu_texts *names);

/* Opens the files. Errors: no such file, two values for a name, options that do not parse or name
 * what has no data. */
int mgpu_feed_open(struct mgpu_feed **out, const struct mgpu_feed_options *options);
void mgpu_feed_close(struct mgpu_feed *feed); /* NULL is fine */

/* *out is the data under a name, or NULL when there are none. Borrowed. */
int mgpu_feed_dataset(const struct mgpu_dataset **out, struct mgpu_feed *feed, const char *name);
/* The classes of a folder of pictures; NULL: there is none among the data. */
const struct mgpu_name_list *mgpu_feed_classes(const struct mgpu_feed *feed);
/* Pictures take the shape of the input that they are for (mgpu_images_fit). */
int mgpu_feed_fit(struct mgpu_feed *feed, const char *name, int rank, const int64_t *dims);
int mgpu_feed_axis(const struct mgpu_feed *feed, const char *name);          /* default 0 */
int64_t mgpu_feed_step_rows(const struct mgpu_feed *feed, const char *name); /* 0: one a sample */

/* Checks that every want has data of a fitting shape, that all data are wanted and that their
 * numbers of samples agree; takes the memory for reading. Conversions of type and shape are noted,
 * one line each. `batch` is what a step takes. Slots are numbered as the wants. Shapes are those
 * of the batch array, the batch axis where --batch-axis puts it. */
int mgpu_feed_bind(struct mgpu_feed *feed, const struct mgpu_feed_want *wants, int count,
                   int64_t batch);

int64_t mgpu_feed_samples(const struct mgpu_feed *feed);

/* Fills in block and window as the files like to be read. */
void mgpu_feed_order(const struct mgpu_feed *feed, struct mgpu_order *order);

/* `count` samples of a slot into `to`: the batch array with `count` on its batch axis, converted,
 * scaled and normalised. Threads may call it at the same time; it allocates nothing. */
int mgpu_feed_rows(struct mgpu_feed *feed, int slot, const int64_t *rows, int64_t count, void *to);

/* A number that tells the data of a slot from others: of type, sizes and a few rows, as the file
 * has them. */
int mgpu_feed_digest(uint32_t *out, struct mgpu_feed *feed, int slot);

/* Checks class numbers that mgpu_feed_rows gave (integers): each in [0, classes), or equal to
 * *ignore_index where that is not NULL. The error names sample and value. */
int mgpu_feed_check_labels(const struct mgpu_feed *feed, int slot, const int64_t *rows,
                           int64_t count, const void *labels, int64_t classes,
                           const int64_t *ignore_index);

#endif
