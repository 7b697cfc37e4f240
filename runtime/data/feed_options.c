/* Opens what --data and its companions name. */
#include "runtime/base/memory.h"
#include "runtime/base/nearest.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/data/feed_private.h"
#include "runtime/data/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_CACHE = 192 << 20 };

int mgpu_feed_unknown(const char *what, const char *name, const char *const *known, int count)
{
    char list[1024] = "";
    size_t used = 0;
    for (int i = 0; i < count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", known[i]);
    const char *near = mgpu_nearest(name, known, count);
    return mgpu_fail(MGPU_EUSAGE, "%s '%s'; known: %s%s%s%s", what, name, count ? list : "none",
                     near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

struct mgpu_feed_entry *mgpu_feed_find(const struct mgpu_feed *feed, const char *name)
{
    for (int i = 0; i < feed->entry_count; i++)
        if (strcmp(feed->entries[i].name, name) == 0)
            return &feed->entries[i];
    return NULL;
}

static int add_entry(struct mgpu_feed_entry **out, struct mgpu_feed *feed, const char *name)
{
    if (mgpu_feed_find(feed, name))
        return mgpu_fail(MGPU_EUSAGE, "--data: two files for '%s'", name);
    feed->entries = mgpu_grow(feed->entries, (size_t)feed->entry_count, sizeof *feed->entries);
    *out = &feed->entries[feed->entry_count++];
    **out = (struct mgpu_feed_entry){.name = mgpu_xstrdup(name), .scale = 1};
    return 0;
}

static int add_file(struct mgpu_feed *feed, const char *path)
{
    struct mgpu_name_list names;
    MGPU_TRY(mgpu_dataset_list(&names, path));
    int rc = 0;
    if (names.count == 0)
        rc = mgpu_fail(MGPU_EUSAGE, "--data %s: the file has no names inside; write NAME=%s", path,
                       path);
    for (int i = 0; rc == 0 && i < names.count; i++) {
        struct mgpu_feed_entry *entry;
        rc = add_entry(&entry, feed, names.items[i]);
        if (rc == 0) {
            entry->path = mgpu_xstrdup(path);
            entry->array = mgpu_xstrdup(names.items[i]);
        }
    }
    mgpu_name_list_free(&names);
    return rc;
}

/* Cuts a copy of NAME=VALUE at `equals` (a pointer into `text`). */
static char *cut_name(const char *text, const char *equals)
{
    char *name = mgpu_xcalloc((size_t)(equals - text) + 1, 1);
    memcpy(name, text, (size_t)(equals - text));
    return name;
}

const char *mgpu_feed_file_of(const char *text, const struct mgpu_texts *names)
{
    size_t n = mgpu_longest_name(text, names->items, names->count, "=");
    const char *equals = n && text[n] ? text + n : strchr(text, '=');
    return equals ? equals + 1 : NULL;
}

static int add_data(struct mgpu_feed *feed, const char *text, const struct mgpu_texts *names)
{
    const char *file = mgpu_feed_file_of(text, names);
    if (!file || access(text, F_OK) == 0)
        return add_file(feed, text);
    char *name = cut_name(text, file - 1);
    struct mgpu_feed_entry *entry;
    int rc = add_entry(&entry, feed, name);
    if (rc == 0) {
        entry->named = true;
        rc = mgpu_prefix(mgpu_dataset_open(&entry->dataset, file), "--data %s", name);
    }
    free(name);
    return rc;
}

/* A whole number or X/Y. */
static int parse_factor(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    bool ok = end != text;
    if (ok && *end == '/') {
        const char *below = end + 1;
        *out /= strtod(below, &end);
        ok = end != below;
    }
    return ok && !*end && *out - *out == 0
               ? 0
               : mgpu_fail(MGPU_EUSAGE, "'%s' is not a factor such as 0.5 or 1/255", text);
}

/* Numbers with commas between them, up to the character `stop`. */
static double *parse_list(const char **text, char stop, int *count)
{
    double *out = NULL;
    char *end;
    for (*count = 0;; *text = end + 1) {
        double v = strtod(*text, &end);
        if (end == *text || (*end != ',' && *end != stop)) {
            free(out);
            return NULL;
        }
        out = mgpu_grow(out, (size_t)*count, sizeof *out);
        out[(*count)++] = v;
        if (*end == stop) {
            *text = end + (stop != 0);
            return out;
        }
    }
}

static int set_scale(struct mgpu_feed_entry *e, const char *value)
{
    e->changes_values = true;
    return parse_factor(value, &e->scale);
}

static int set_normalize(struct mgpu_feed_entry *e, const char *value)
{
    const char *at = value;
    int stds = 0;
    e->changes_values = true;
    e->mean = parse_list(&at, '/', &e->channels);
    e->std = e->mean ? parse_list(&at, 0, &stds) : NULL;
    if (!e->std || stds != e->channels)
        return mgpu_fail(MGPU_EUSAGE,
                         "'%s' is not MEAN/STD such as 0.5/0.25, or lists of one length", value);
    for (int i = 0; i < stds; i++)
        if (!(e->std[i] > 0))
            return mgpu_fail(MGPU_EUSAGE, "'%s': a standard deviation of %g", value, e->std[i]);
    return 0;
}

static int parse_whole(const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    if (end == text || *end || *out < least || *out > most)
        return mgpu_fail(MGPU_EUSAGE, "'%s' is not a whole number from %lld to %lld", text,
                         (long long)least, (long long)most);
    return 0;
}

static int set_axis(struct mgpu_feed_entry *e, const char *value)
{
    int64_t axis;
    MGPU_TRY(parse_whole(value, 0, MGPU_MAX_RANK - 1, &axis));
    e->axis = (int)axis;
    return 0;
}

static int set_rows(struct mgpu_feed_entry *e, const char *value)
{
    return parse_whole(value, 1, INT64_MAX / 2, &e->step_rows);
}

static int unknown_entry(const struct mgpu_feed *feed, const char *name)
{
    const char **known = mgpu_xcalloc((size_t)feed->entry_count, sizeof *known);
    for (int i = 0; i < feed->entry_count; i++)
        known[i] = feed->entries[i].name;
    int rc = mgpu_feed_unknown("no --data for", name, known, feed->entry_count);
    free(known);
    return rc;
}

static int set_option(struct mgpu_feed *feed, const char *text,
                      int (*set)(struct mgpu_feed_entry *, const char *))
{
    const char *equals = strrchr(text, '=');
    if (!equals)
        return mgpu_fail(MGPU_EUSAGE, "'%s' is not NAME=VALUE", text);
    char *name = cut_name(text, equals);
    struct mgpu_feed_entry *entry = mgpu_feed_find(feed, name);
    int rc = entry ? set(entry, equals + 1) : unknown_entry(feed, name);
    free(name);
    return rc;
}

static int set_options(struct mgpu_feed *feed, const struct mgpu_feed_options *o)
{
    const struct {
        const char *option;
        const struct mgpu_texts *texts;
        int (*set)(struct mgpu_feed_entry *, const char *);
    } rows[] = {{"--scale", &o->scale, set_scale},
                {"--normalize", &o->normalize, set_normalize},
                {"--batch-axis", &o->batch_axis, set_axis},
                {"--rows", &o->rows, set_rows}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < rows[i].texts->count; k++)
            MGPU_TRY(mgpu_prefix(set_option(feed, rows[i].texts->items[k], rows[i].set), "%s",
                                 rows[i].option));
    return 0;
}

/* A folder of pictures gives the labels too, where no other file does. */
static int add_classes(struct mgpu_feed *feed)
{
    const struct mgpu_feed_entry *pictures = NULL;
    struct mgpu_feed_entry *label;
    for (int i = 0; i < feed->entry_count && !pictures; i++) {
        const struct mgpu_dataset *d = feed->entries[i].dataset;
        const struct mgpu_name_list *classes = d ? mgpu_images_classes(d) : NULL;
        if (classes && classes->count)
            pictures = &feed->entries[i];
    }
    if (!pictures || mgpu_feed_find(feed, "label"))
        return 0;
    const char *path = pictures->dataset->path;
    MGPU_TRY(add_entry(&label, feed, "label"));
    label->path = mgpu_xstrdup(path);
    label->array = mgpu_xstrdup("label");
    return 0;
}

const struct mgpu_name_list *mgpu_feed_classes(const struct mgpu_feed *feed)
{
    for (int i = 0; i < feed->entry_count; i++) {
        const struct mgpu_dataset *d = feed->entries[i].dataset;
        const struct mgpu_name_list *classes = d ? mgpu_images_classes(d) : NULL;
        if (classes)
            return classes;
    }
    return NULL;
}

int mgpu_feed_fit(struct mgpu_feed *feed, const char *name, int rank, const int64_t *dims)
{
    struct mgpu_feed_entry *e = mgpu_feed_find(feed, name);
    return e && e->dataset ? mgpu_images_fit(e->dataset, rank, dims) : 0;
}

int mgpu_feed_open(struct mgpu_feed **out, const struct mgpu_feed_options *o)
{
    struct mgpu_feed *feed = *out = mgpu_xcalloc(1, sizeof *feed);
    feed->cache_bytes = o->cache_bytes ? o->cache_bytes : DEFAULT_CACHE;
    feed->quiet = o->quiet;
    int rc = 0;
    for (int i = 0; rc == 0 && i < o->data.count; i++)
        rc = add_data(feed, o->data.items[i], &o->names);
    if (rc == 0)
        rc = add_classes(feed);
    if (rc == 0)
        rc = set_options(feed, o);
    if (rc < 0) {
        mgpu_feed_close(feed);
        *out = NULL;
    }
    return rc;
}

void mgpu_feed_close(struct mgpu_feed *feed)
{
    if (!feed)
        return;
    for (int i = 0; i < feed->entry_count; i++) {
        struct mgpu_feed_entry *e = &feed->entries[i];
        mgpu_dataset_close(e->dataset);
        free(e->name);
        free(e->path);
        free(e->array);
        free(e->mean);
        free(e->std);
    }
    free(feed->entries);
    free(feed->slots);
    free(feed);
}

int mgpu_feed_dataset(const struct mgpu_dataset **out, struct mgpu_feed *feed, const char *name)
{
    struct mgpu_feed_entry *e = mgpu_feed_find(feed, name);
    *out = NULL;
    if (!e)
        return 0;
    if (!e->dataset)
        MGPU_TRY(mgpu_prefix(mgpu_dataset_open_named(&e->dataset, e->path, e->array), "--data"));
    *out = e->dataset;
    return 0;
}

int mgpu_feed_axis(const struct mgpu_feed *feed, const char *name)
{
    const struct mgpu_feed_entry *e = mgpu_feed_find(feed, name);
    return e ? e->axis : 0;
}

int64_t mgpu_feed_step_rows(const struct mgpu_feed *feed, const char *name)
{
    const struct mgpu_feed_entry *e = mgpu_feed_find(feed, name);
    return e ? e->step_rows : 0;
}
