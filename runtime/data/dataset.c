#include "runtime/data/dataset.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/images.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 4096 };

static const struct mgpu_dataset_kind *const kinds[] = {
    &mgpu_dataset_hdf5, &mgpu_dataset_npy,    &mgpu_dataset_npz,
    &mgpu_dataset_idx,  &mgpu_dataset_idx_gz, &mgpu_dataset_csv,
};

void mgpu_name_list_add(struct mgpu_name_list *names, const char *name)
{
    names->items = mgpu_grow(names->items, (size_t)names->count, sizeof *names->items);
    names->items[names->count++] = mgpu_xstrdup(name);
}

void mgpu_name_list_free(struct mgpu_name_list *names)
{
    for (int i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
    memset(names, 0, sizeof *names);
}

static int read_head(uint8_t head[HEAD], size_t *size, const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) < 0) {
        int rc = mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    ssize_t got = S_ISREG(info.st_mode) ? pread(fd, head, HEAD, 0) : 0;
    close(fd);
    if (!S_ISREG(info.st_mode) || got < 0)
        return mgpu_fail(MGPU_EIO, "%s: not a regular file", path);
    *size = (size_t)got;
    return 0;
}

static int find_kind(const struct mgpu_dataset_kind **out, const char *path)
{
    uint8_t head[HEAD];
    size_t size = 0;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        *out = &mgpu_dataset_images;
        return 0;
    }
    MGPU_TRY(read_head(head, &size, path));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i]->probe(head, size)) {
            *out = kinds[i];
            return 0;
        }
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s: not a kind of data file that is known (HDF5, npy, npz, IDX, gzipped IDX, "
                     "CSV)",
                     path);
}

int mgpu_dataset_list(struct mgpu_name_list *out, const char *path)
{
    const struct mgpu_dataset_kind *kind;
    memset(out, 0, sizeof *out);
    MGPU_TRY(find_kind(&kind, path));
    int rc = kind->list ? kind->list(out, path) : 0;
    if (rc < 0)
        mgpu_name_list_free(out);
    return rc;
}

/* The one array of a file that may hold several. */
static int only_name(char **out, const char *path)
{
    enum { SHOWN = 16 };
    struct mgpu_name_list names;
    char text[1024] = "";
    MGPU_TRY(mgpu_dataset_list(&names, path));
    size_t used = 0;
    for (int i = 0; i < names.count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "",
                                 i == SHOWN ? "..." : names.items[i]);
    int rc = 0, count = names.count;
    if (count == 1)
        *out = mgpu_xstrdup(names.items[0]);
    else if (count == 0)
        rc = mgpu_fail(MGPU_EINVALID, "%s: holds no arrays", path);
    else
        rc = mgpu_fail(MGPU_EINVALID, "%s: holds %d arrays, choose one as FILE:NAME: %s", path,
                       count, text);
    mgpu_name_list_free(&names);
    return rc;
}

static int choose_name(char **out, const struct mgpu_dataset_kind *kind, const char *path,
                       const char *name)
{
    if (!kind->list && name)
        return mgpu_fail(MGPU_EINVALID, "%s: one %s array, which has no name; '%s' was asked for",
                         path, kind->name, name);
    if (!kind->list || kind->whole || name) {
        *out = mgpu_xstrdup(name ? name : "");
        return 0;
    }
    return only_name(out, path);
}

static char *join(const char *path, const char *name)
{
    size_t n = strlen(path) + strlen(name) + 2;
    char *out = mgpu_xcalloc(n, 1);
    snprintf(out, n, "%s%s%s", path, *name ? ":" : "", name);
    return out;
}

int mgpu_dataset_open_named(struct mgpu_dataset **out, const char *path, const char *name)
{
    const struct mgpu_dataset_kind *kind;
    char *chosen;
    *out = NULL;
    MGPU_TRY(find_kind(&kind, path));
    MGPU_TRY(choose_name(&chosen, kind, path, name));
    struct mgpu_dataset *d = mgpu_xcalloc(1, sizeof *d);
    d->kind = kind;
    d->path = mgpu_xstrdup(path);
    d->name = chosen;
    d->title = join(path, chosen);
    int rc = mgpu_prefix(kind->open(d), "%s", d->title);
    if (rc < 0)
        mgpu_dataset_close(d);
    else
        *out = d;
    return rc;
}

bool mgpu_dataset_cut(char *path)
{
    while (access(path, F_OK) < 0) {
        char *colon = strrchr(path, ':');
        if (!colon)
            return false;
        *colon = 0;
    }
    return true;
}

int mgpu_dataset_open(struct mgpu_dataset **out, const char *spec)
{
    *out = NULL;
    char *path = mgpu_xstrdup(spec);
    const char *name = NULL;
    bool found = mgpu_dataset_cut(path);
    if (strlen(path) < strlen(spec))
        name = spec + strlen(path) + 1;
    int rc = found ? mgpu_dataset_open_named(out, path, name)
                   : mgpu_fail(MGPU_EIO, "%s: no such file", spec);
    free(path);
    return rc;
}

void mgpu_dataset_close(struct mgpu_dataset *d)
{
    if (!d)
        return;
    d->kind->close(d);
    free(d->path);
    free(d->name);
    free(d->title);
    free(d);
}

int64_t mgpu_dataset_samples(const struct mgpu_dataset *d, int axis)
{
    return axis == MGPU_WHOLE ? 1 : d->dims[axis];
}

static int check_axis(const struct mgpu_dataset *d, int axis)
{
    char text[MGPU_SHAPE_TEXT];
    if (axis >= MGPU_WHOLE && axis < d->rank)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "%s: the shape %s has no axis %d to count samples on", d->title,
                     mgpu_shape_text(text, d->rank, d->dims), axis);
}

int mgpu_dataset_prepare(struct mgpu_dataset *d, int axis, uint64_t budget)
{
    MGPU_TRY(check_axis(d, axis));
    if (!d->kind->prepare)
        return 0;
    return mgpu_prefix(d->kind->prepare(d, axis, budget), "%s", d->title);
}

void mgpu_dataset_blocks(const struct mgpu_dataset *d, int64_t *rows, int64_t *held)
{
    *rows = *held = 0;
    if (d->kind->blocks)
        d->kind->blocks(d, rows, held);
}

uint64_t mgpu_dataset_fetches(const struct mgpu_dataset *d)
{
    return d->kind->fetches ? d->kind->fetches(d) : 0;
}

int mgpu_dataset_read(struct mgpu_dataset *d, int axis, const int64_t *rows, int64_t count,
                      void *to, enum mgpu_dtype to_type)
{
    MGPU_TRY(check_axis(d, axis));
    int64_t samples = mgpu_dataset_samples(d, axis);
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= samples)
            return mgpu_fail(MGPU_EINVALID,
                             "%s: there is no sample %" PRId64 " (there are %" PRId64 ")", d->title,
                             rows[i], samples);
    struct mgpu_rows target = mgpu_rows_of(to, to_type, d->rank, d->dims, axis, count);
    return mgpu_prefix(d->kind->read(d, axis, rows, &target), "%s", d->title);
}

static int load(struct mgpu_array *out, struct mgpu_dataset *d, uint64_t most)
{
    int64_t count, row = 0;
    MGPU_TRY(mgpu_count(&count, d->type, d->rank, d->dims));
    uint64_t bytes = (uint64_t)count * mgpu_dtype_size(d->type);
    if (bytes > most)
        return mgpu_fail(MGPU_EINVALID,
                         "%s: %" PRIu64 " bytes, more than the %" PRIu64 " that are allowed",
                         d->title, bytes, most);
    MGPU_TRY(mgpu_array_init(out, d->type, d->rank, d->dims, d->title));
    MGPU_TRY(mgpu_dataset_prepare(d, MGPU_WHOLE, bytes));
    return mgpu_dataset_read(d, MGPU_WHOLE, &row, 1, out->data, d->type);
}

int mgpu_dataset_load(struct mgpu_array *out, const char *spec, uint64_t most)
{
    struct mgpu_dataset *d;
    memset(out, 0, sizeof *out);
    MGPU_TRY(mgpu_dataset_open(&d, spec));
    int rc = load(out, d, most);
    if (rc < 0)
        mgpu_array_free(out);
    mgpu_dataset_close(d);
    return rc;
}
