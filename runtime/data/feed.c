#include "runtime/data/feed.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/feed_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Dims of one sample: those of a shape without its batch axis. */
static int drop_axis(int64_t *out, int rank, const int64_t *dims, int axis)
{
    int n = 0;
    for (int i = 0; i < rank; i++)
        if (i != axis)
            out[n++] = dims[i];
    return n;
}

/* The shape of a batch: "N" where the samples are counted, "?" where anything goes. */
static char *batch_text(char text[MGPU_SHAPE_TEXT], int rank, const int64_t *dims, int axis)
{
    int used = snprintf(text, MGPU_SHAPE_TEXT, "[");
    for (int i = 0, k = 0; i <= rank; i++) {
        size_t room = (size_t)(MGPU_SHAPE_TEXT - used);
        const char *comma = i ? "," : "";
        if (i == (axis < rank ? axis : rank))
            used += snprintf(text + used, room, "%sN", comma);
        else if (dims[k++] < 0)
            used += snprintf(text + used, room, "%s?", comma);
        else
            used += snprintf(text + used, room, "%s%" PRId64, comma, dims[k - 1]);
    }
    snprintf(text + used, (size_t)(MGPU_SHAPE_TEXT - used), "]");
    return text;
}

/* Elements of one sample, or -1 when a dimension is free. */
static int64_t sample_elements(int rank, const int64_t *dims)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return -1;
        n *= dims[i];
    }
    return n;
}

static bool same_dims(const struct mgpu_feed_want *w, int rank, const int64_t *dims)
{
    if (rank != w->rank)
        return false;
    for (int i = 0; i < rank; i++)
        if (w->dims[i] >= 0 && w->dims[i] != dims[i])
            return false;
    return true;
}

static int bind_shape(struct mgpu_feed *feed, struct mgpu_feed_slot *s)
{
    const struct mgpu_dataset *d = s->entry->dataset;
    int axis = s->entry->axis;
    int64_t dims[MGPU_MAX_RANK] = {0}, count;
    char have[MGPU_SHAPE_TEXT], want[MGPU_SHAPE_TEXT];
    MGPU_TRY(mgpu_count(&count, MGPU_DOUBLE, d->rank, d->dims));
    if (axis >= d->rank)
        return mgpu_fail(MGPU_EINVALID, "%s: the shape %s has no axis %d to count samples on",
                         d->title, mgpu_shape_text(have, d->rank, d->dims), axis);
    int rank = drop_axis(dims, d->rank, d->dims, axis);
    if (same_dims(&s->want, rank, dims)) {
        memcpy(s->want.dims, dims, (size_t)rank * sizeof *dims);
        return 0;
    }
    batch_text(have, rank, dims, axis);
    batch_text(want, s->want.rank, s->want.dims, axis);
    if (axis != 0 || sample_elements(rank, dims) != sample_elements(s->want.rank, s->want.dims))
        return mgpu_fail(MGPU_EINVALID, "%s has the shape %s, but %s is wanted", d->title, have,
                         want);
    if (!feed->quiet)
        mgpu_note("%s: %s of %s is read as %s", s->want.name, have, d->title, want);
    return 0;
}

static int bind_type(struct mgpu_feed *feed, struct mgpu_feed_slot *s)
{
    const struct mgpu_dataset *d = s->entry->dataset;
    if (s->entry->changes_values && !mgpu_is_float(s->want.type))
        return mgpu_fail(MGPU_EUSAGE,
                         "--scale and --normalize need a floating-point input, and "
                         "this one is %s",
                         mgpu_dtype_name(s->want.type));
    if (d->type != s->want.type && !feed->quiet)
        mgpu_note("%s: %s of %s is converted to %s", s->want.name, mgpu_dtype_name(d->type),
                  d->title, mgpu_dtype_name(s->want.type));
    return 0;
}

/* Which axis of the batch array has the channels of --normalize: 1, or the last. */
static int bind_channels(struct mgpu_feed_slot *s)
{
    const struct mgpu_feed_want *w = &s->want;
    int axis = s->entry->axis, at = -1;
    int64_t channels = s->entry->channels;
    char text[MGPU_SHAPE_TEXT];
    s->channel_inner = 1;
    if (channels <= 1)
        return 0;
    int second = axis == 0 ? 0 : axis == 1 ? -1 : 1; /* axis 1 among the sample's own axes */
    if (second >= 0 && second < w->rank && w->dims[second] == channels)
        at = second;
    else if (w->rank > 0 && axis < w->rank && w->dims[w->rank - 1] == channels)
        at = w->rank - 1;
    if (at < 0)
        return mgpu_fail(MGPU_EUSAGE,
                         "--normalize has %" PRId64
                         " channels, but neither axis 1 nor the last of %s has",
                         channels, batch_text(text, w->rank, w->dims, axis));
    s->channel_inner = sample_elements(w->rank - at - 1, w->dims + at + 1);
    s->batch_inside = axis > at;
    return 0;
}

static void set_want(struct mgpu_feed *feed, struct mgpu_feed_slot *s,
                     const struct mgpu_feed_want *want)
{
    s->want = *want;
    s->entry = mgpu_feed_find(feed, want->name);
    if (s->entry)
        s->entry->wanted = true;
}

static int bind_slot(struct mgpu_feed *feed, struct mgpu_feed_slot *s)
{
    const struct mgpu_dataset *d;
    MGPU_TRY(mgpu_feed_dataset(&d, feed, s->want.name));
    if (!d)
        return mgpu_fail(MGPU_EUSAGE, "there are no data for it (give --data %s=FILE)",
                         s->want.name);
    MGPU_TRY(bind_type(feed, s));
    MGPU_TRY(bind_shape(feed, s));
    return bind_channels(s);
}

/* Data that nothing wants: an error when the user wrote the name, a note when a file had it. */
static int check_unwanted(struct mgpu_feed *feed)
{
    const char **known = mgpu_xcalloc((size_t)feed->slot_count, sizeof *known);
    for (int i = 0; i < feed->slot_count; i++)
        known[i] = feed->slots[i].want.name;
    int rc = 0;
    for (int i = 0; rc == 0 && i < feed->entry_count; i++) {
        const struct mgpu_feed_entry *e = &feed->entries[i];
        if (e->wanted)
            continue;
        if (e->named)
            rc = mgpu_feed_unknown("--data: the model has no input or label", e->name, known,
                                   feed->slot_count);
        else if (!feed->quiet)
            mgpu_note("%s of %s is not used", e->name, e->path);
    }
    free(known);
    return rc;
}

static int64_t rows_of(const struct mgpu_feed_slot *s)
{
    return s->entry->dataset->dims[s->entry->axis];
}

/* Slots that hold one row a sample must agree. */
static int count_samples(struct mgpu_feed *feed)
{
    const struct mgpu_feed_slot *first = NULL;
    for (int i = 0; i < feed->slot_count; i++) {
        const struct mgpu_feed_slot *s = &feed->slots[i];
        if (s->entry->step_rows || s->want.first_only)
            continue;
        if (!first)
            first = s;
        else if (rows_of(s) != rows_of(first))
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' (%s) has %" PRId64 " samples, but '%s' (%s) has %" PRId64,
                             first->want.name, first->entry->dataset->title, rows_of(first),
                             s->want.name, s->entry->dataset->title, rows_of(s));
    }
    feed->samples = first ? rows_of(first) : -1;
    return 0;
}

/* Slots that hold R rows a step must hold as many steps as the samples make. */
static int check_steps(struct mgpu_feed *feed, int64_t batch)
{
    for (int i = 0; i < feed->slot_count; i++) {
        const struct mgpu_feed_slot *s = &feed->slots[i];
        int64_t each = s->entry->step_rows, rows = rows_of(s), steps;
        if (!each || s->want.first_only)
            continue;
        if (feed->samples < 0)
            feed->samples = rows / each * batch;
        steps = (feed->samples + batch - 1) / batch;
        if (rows % each || rows / each != steps)
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' (%s) has %" PRId64 " rows, but %" PRId64 " steps of %" PRId64
                             " rows take %" PRId64,
                             s->want.name, s->entry->dataset->title, rows, steps, each,
                             steps * each);
    }
    if (feed->samples < 1)
        return mgpu_fail(MGPU_EINVALID, "the data hold no samples");
    return 0;
}

static uint64_t bytes_of(const struct mgpu_dataset *d)
{
    int64_t n = sample_elements(d->rank, d->dims);
    return (uint64_t)n * mgpu_dtype_size(d->type);
}

static int smaller_first(const void *a, const void *b)
{
    const struct mgpu_feed_slot *const *x = a, *const *y = b;
    uint64_t m = bytes_of((*x)->entry->dataset), n = bytes_of((*y)->entry->dataset);
    return (m > n) - (m < n);
}

/* Shares the cache: small data sets are held whole, the rest is divided evenly. */
static int prepare(struct mgpu_feed *feed)
{
    struct mgpu_feed_slot **order = mgpu_xcalloc((size_t)feed->slot_count, sizeof *order);
    uint64_t left = feed->cache_bytes;
    int count = 0, rc = 0;
    for (int i = 0; i < feed->slot_count; i++)
        if (feed->slots[i].entry->dataset->kind->prepare)
            order[count++] = &feed->slots[i];
    qsort(order, (size_t)count, sizeof *order, smaller_first);
    for (int i = 0; rc == 0 && i < count; i++) {
        struct mgpu_dataset *d = order[i]->entry->dataset;
        uint64_t share = left / (uint64_t)(count - i), whole = bytes_of(d);
        share = whole < share ? whole : share;
        rc = mgpu_dataset_prepare(d, order[i]->entry->axis, share);
        left -= share;
    }
    free(order);
    return rc;
}

/* Blocks of how many rows to shuffle, and how many of them at a time: so many that a window of
 * every data set stays in its cache. A quarter is kept for the change from one window to the next.
 */
static void choose_order(struct mgpu_feed *feed)
{
    enum { FEW = 8 };
    int64_t rows, held;
    const char *title = NULL;
    for (int i = 0; i < feed->slot_count; i++) {
        mgpu_dataset_blocks(feed->slots[i].entry->dataset, &rows, &held);
        if (rows > feed->block) {
            feed->block = rows;
            title = feed->slots[i].entry->dataset->title;
        }
    }
    for (int i = 0; i < feed->slot_count; i++) {
        mgpu_dataset_blocks(feed->slots[i].entry->dataset, &rows, &held);
        if (!rows)
            continue;
        int64_t touched = feed->block % rows ? feed->block / rows + 2 : feed->block / rows;
        int64_t window = held * 3 / 4 / touched;
        window = window < 1 ? 1 : window;
        if (!feed->window || window < feed->window)
            feed->window = window;
    }
    if (feed->block && feed->window < FEW && !feed->quiet)
        mgpu_note("%s: the chunks are so large that a shuffle mixes only %" PRId64 " of %" PRId64
                  " rows at a time",
                  title, feed->window, feed->block);
}

int mgpu_feed_bind(struct mgpu_feed *feed, const struct mgpu_feed_want *wants, int count,
                   int64_t batch)
{
    feed->slots = mgpu_xcalloc((size_t)count, sizeof *feed->slots);
    feed->slot_count = count;
    for (int i = 0; i < count; i++)
        set_want(feed, &feed->slots[i], &wants[i]);
    MGPU_TRY(check_unwanted(feed));
    for (int i = 0; i < count; i++)
        MGPU_TRY(mgpu_prefix(bind_slot(feed, &feed->slots[i]), "'%s'", wants[i].name));
    MGPU_TRY(count_samples(feed));
    MGPU_TRY(check_steps(feed, batch));
    MGPU_TRY(prepare(feed));
    choose_order(feed);
    return 0;
}

int64_t mgpu_feed_samples(const struct mgpu_feed *feed)
{
    return feed->samples;
}

void mgpu_feed_order(const struct mgpu_feed *feed, struct mgpu_order *order)
{
    order->block = feed->block;
    order->window = feed->window;
}

/* value * scale, then (value - mean) / std: one multiplication and addition in double. */
static void change_values(const struct mgpu_feed_slot *s, int64_t count, void *to)
{
    const struct mgpu_feed_entry *e = s->entry;
    int64_t inner = s->channel_inner * (s->batch_inside ? count : 1);
    int64_t n = count * sample_elements(s->want.rank, s->want.dims);
    if (e->channels <= 1)
        inner = n;
    for (int64_t i = 0, channel = 0; i < n; i += inner, channel++) {
        int c = e->channels ? (int)(channel % e->channels) : 0;
        double factor = e->mean ? e->scale / e->std[c] : e->scale;
        double shift = e->mean ? -e->mean[c] / e->std[c] : 0;
        for (int64_t k = i; k < i + inner; k++)
            if (s->want.type == MGPU_FLOAT)
                ((float *)to)[k] = (float)(((float *)to)[k] * factor + shift);
            else
                mgpu_set_double(to, s->want.type, k,
                                mgpu_get_double(to, s->want.type, k) * factor + shift);
    }
}

int mgpu_feed_rows(struct mgpu_feed *feed, int slot, const int64_t *rows, int64_t count, void *to)
{
    struct mgpu_feed_slot *s = &feed->slots[slot];
    MGPU_TRY(mgpu_prefix(
        mgpu_dataset_read(s->entry->dataset, s->entry->axis, rows, count, to, s->want.type), "'%s'",
        s->want.name));
    if (s->entry->changes_values)
        change_values(s, count, to);
    return 0;
}

int mgpu_feed_check_labels(const struct mgpu_feed *feed, int slot, const int64_t *rows,
                           int64_t count, const void *labels, int64_t classes,
                           const int64_t *ignore_index)
{
    const struct mgpu_feed_slot *s = &feed->slots[slot];
    int64_t n = count * sample_elements(s->want.rank, s->want.dims), inner = 1;
    for (int i = s->entry->axis; i < s->want.rank; i++)
        inner *= s->want.dims[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t v = mgpu_get_int(labels, s->want.type, i);
        if ((v < 0 || v >= classes) && !(ignore_index && v == *ignore_index))
            return mgpu_fail(MGPU_EINVALID,
                             "'%s': sample %" PRId64 " of %s has the class %" PRId64
                             ", but there are %" PRId64 " classes (0 to %" PRId64 ")",
                             s->want.name, rows[i / inner % count], s->entry->dataset->title, v,
                             classes, classes - 1);
    }
    return 0;
}
