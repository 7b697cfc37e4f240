/* What feed.c (binding and reading) and feed_options.c (opening) share. */
#ifndef MGPU_DATA_FEED_PRIVATE_H
#define MGPU_DATA_FEED_PRIVATE_H

#include "runtime/data/feed.h"

/* One name with data. */
struct mgpu_feed_entry {
    char *name;
    char *path, *array; /* of a file given alone: opened when it is asked for */
    struct mgpu_dataset *dataset;
    bool named; /* the user wrote the name: it must be wanted */
    bool wanted;
    int axis;
    int64_t step_rows;
    double scale;       /* 1 without --scale */
    double *mean, *std; /* `channels` values each, or NULL without --normalize */
    int channels;
    bool changes_values; /* scale or normalize was given */
};

/* One want that has been bound. */
struct mgpu_feed_slot {
    struct mgpu_feed_entry *entry;
    struct mgpu_feed_want want;
    int64_t channel_inner; /* elements that follow each other with one channel, for one sample */
    bool batch_inside;     /* ... times the samples, when the batch axis lies inside */
};

struct mgpu_feed {
    struct mgpu_feed_entry *entries;
    int entry_count;
    struct mgpu_feed_slot *slots;
    int slot_count;
    int64_t samples;
    int64_t block, window;
    uint64_t cache_bytes;
    bool quiet;
};

struct mgpu_feed_entry *mgpu_feed_find(const struct mgpu_feed *feed, const char *name);

/* The error about a name that is not known: "...; known: a, b; did you mean 'a'?" */
int mgpu_feed_unknown(const char *what, const char *name, const char *const *known, int count);

#endif
