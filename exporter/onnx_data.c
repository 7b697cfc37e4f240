#include "exporter/onnx_data.h"

#include "exporter/atomic_file.h"
#include "importer/onnx_external.h"
#include "runtime/base/file_name.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 1 << 20 };

/* One data file: the old location and what becomes of it. */
struct part {
    const char *old, *name; /* locations; name NULL: stays the old file */
    struct mgpu_atomic_file file;
};

/* One external tensor: its bytes in the old file. */
struct external {
    Onnx__TensorProto *tensor;
    size_t part;
    uint64_t offset, end;
    const struct mgpu_onnx_data_patch *patch;
};

struct mgpu_onnx_data {
    struct mgpu_arena *arena; /* strings: those of this struct, and of the copy */
    struct mgpu_arena *copy_arena;
    const struct mgpu_onnx_file *source;
    char *folder;       /* of the new model, with the last "/", "" for none */
    const char *base;   /* its name in there */
    bool same_folder;   /* as the source's */
    const char **taken; /* locations that the model now at the path uses */
    size_t taken_count;
    struct part *parts;
    size_t part_count;
    struct external *externals;
    size_t external_count;
};

static bool same_location(const char *a, const char *b)
{
    while (!strncmp(a, "./", 2))
        a += 2;
    while (!strncmp(b, "./", 2))
        b += 2;
    return !strcmp(a, b);
}

static size_t part_of(struct mgpu_onnx_data *d, const char *location)
{
    for (size_t i = 0; i < d->part_count; i++)
        if (same_location(d->parts[i].old, location))
            return i;
    d->parts = mgpu_grow(d->parts, d->part_count, sizeof *d->parts);
    d->parts[d->part_count] = (struct part){.old = location, .file = {.fd = -1}};
    return d->part_count++;
}

static int add_external(struct mgpu_onnx_data *d, Onnx__TensorProto *t)
{
    struct mgpu_onnx_external e;
    MGPU_TRY(mgpu_onnx_external_parse(&e, t));
    d->externals = mgpu_grow(d->externals, d->external_count, sizeof *d->externals);
    d->externals[d->external_count++] = (struct external){
        .tensor = t,
        .part = part_of(d, e.location),
        .offset = e.offset,
        .end = e.has_length ? e.offset + e.length : UINT64_MAX,
    };
    return 0;
}

static bool is_external(const ProtobufCMessage *m)
{
    return m->descriptor == &onnx__tensor_proto__descriptor &&
           mgpu_onnx_is_external((const Onnx__TensorProto *)m);
}

static int collect(struct mgpu_onnx_data *d, const struct mgpu_onnx_copy *copy,
                   const struct mgpu_onnx_data_patch *patches, size_t count)
{
    for (size_t i = 0; i < copy->twin_count; i++)
        if (is_external(copy->twins[i].copy))
            MGPU_TRY(add_external(d, (Onnx__TensorProto *)copy->twins[i].copy));
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < d->external_count; k++)
            if (d->externals[k].tensor == patches[i].tensor) {
                d->externals[k].patch = &patches[i];
                d->externals[k].end = d->externals[k].offset + patches[i].size;
            }
    return 0;
}

/* What the model that is to be replaced refers to; nothing when it is none. */
static void collect_taken(struct mgpu_onnx_data *d, const char *path)
{
    struct mgpu_onnx_file *old;
    if (mgpu_onnx_read(&old, path) < 0)
        return;
    struct mgpu_onnx_copy copy;
    mgpu_onnx_copy_init(&copy, old->proto);
    for (size_t i = 0; i < copy.twin_count; i++) {
        struct mgpu_onnx_external e;
        if (!is_external(copy.twins[i].copy) ||
            mgpu_onnx_external_parse(&e, (Onnx__TensorProto *)copy.twins[i].copy) < 0)
            continue;
        d->taken = mgpu_grow(d->taken, d->taken_count, sizeof *d->taken);
        d->taken[d->taken_count++] = mgpu_arena_string(d->arena, e.location);
    }
    mgpu_onnx_copy_free(&copy);
    mgpu_onnx_free(old);
}

static const char *full_path(struct mgpu_onnx_data *d, const char *location)
{
    return mgpu_arena_format(d->arena, "%s%s", d->folder, location);
}

/* Whether the source, where it lies in the same folder, or the new model uses a location. */
static bool is_used(const struct mgpu_onnx_data *d, const char *location)
{
    for (size_t i = 0; i < d->part_count; i++) {
        const struct part *p = &d->parts[i];
        if ((p->name && same_location(p->name, location)) ||
            (d->same_folder && same_location(p->old, location)))
            return true;
    }
    return false;
}

static bool is_taken(const struct mgpu_onnx_data *d, const char *location)
{
    for (size_t i = 0; i < d->taken_count; i++)
        if (same_location(d->taken[i], location))
            return true;
    return false;
}

static const char *choose_name(struct mgpu_onnx_data *d, const char *old)
{
    if (!d->same_folder && access(full_path(d, old), F_OK) < 0)
        return old;
    const char *name = mgpu_arena_format(d->arena, "%s.data", d->base);
    for (int i = 1; is_used(d, name) || is_taken(d, name); i++)
        name = mgpu_arena_format(d->arena, "%s.data.%d", d->base, i);
    return name;
}

static int make_folders(const char *path)
{
    char *copy = mgpu_xstrdup(path);
    int rc = 0;
    for (char *p = strchr(copy + 1, '/'); p && rc >= 0; p = strchr(p + 1, '/')) {
        *p = 0;
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            rc = mgpu_fail(MGPU_EIO, "%s: cannot make the folder: %s", copy, strerror(errno));
        *p = '/';
    }
    free(copy);
    return rc;
}

static int copy_bytes(struct mgpu_atomic_file *to, int from, char *buffer)
{
    for (;;) {
        ssize_t n = read(from, buffer, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? mgpu_fail(MGPU_EIO, "read: %s", strerror(errno)) : 0;
        MGPU_TRY(mgpu_atomic_write(to, buffer, (size_t)n));
    }
}

static int copy_old(struct mgpu_onnx_data *d, struct part *p)
{
    int fd;
    MGPU_TRY(mgpu_onnx_external_open(&fd, d->source->folder, p->old));
    char *buffer = mgpu_xcalloc(CHUNK, 1);
    int rc = copy_bytes(&p->file, fd, buffer);
    free(buffer);
    close(fd);
    return rc;
}

static void set_value(struct mgpu_onnx_data *d, Onnx__TensorProto *t, const char *key,
                      const char *value)
{
    for (size_t i = 0; i < t->n_external_data; i++)
        if (!strcmp(t->external_data[i]->key, key)) {
            t->external_data[i]->value = mgpu_arena_string(d->copy_arena, value);
            return;
        }
    size_t n = t->n_external_data;
    Onnx__StringStringEntryProto **list =
        MGPU_NEW_ARRAY(d->copy_arena, Onnx__StringStringEntryProto *, n + 1);
    memcpy(list, t->external_data, n * sizeof *list);
    list[n] = MGPU_NEW(d->copy_arena, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(list[n]);
    list[n]->key = mgpu_arena_string(d->copy_arena, key);
    list[n]->value = mgpu_arena_string(d->copy_arena, value);
    t->external_data = list;
    t->n_external_data = n + 1;
}

/* The checksum of a file with other contents would be wrong. */
static void drop_checksum(Onnx__TensorProto *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n_external_data; i++)
        if (strcmp(t->external_data[i]->key, "checksum"))
            t->external_data[kept++] = t->external_data[i];
    t->n_external_data = kept;
}

static bool shares_bytes(const struct mgpu_onnx_data *d, const struct external *e)
{
    for (size_t i = 0; i < d->external_count; i++) {
        const struct external *o = &d->externals[i];
        if (o != e && o->part == e->part && o->offset < e->end && e->offset < o->end)
            return true;
    }
    return false;
}

static int write_patch(struct mgpu_onnx_data *d, struct part *p, struct external *e)
{
    off_t at = (off_t)e->offset;
    if (shares_bytes(d, e)) {
        off_t end = lseek(p->file.fd, 0, SEEK_END);
        at = (end + PAGE - 1) / PAGE * PAGE;
        set_value(d, e->tensor, "offset", mgpu_arena_format(d->arena, "%" PRId64, (int64_t)at));
        set_value(d, e->tensor, "length", mgpu_arena_format(d->arena, "%" PRIu64, e->patch->size));
    }
    if (lseek(p->file.fd, at, SEEK_SET) < 0)
        return mgpu_fail(MGPU_EIO, "%s: %s", p->file.path, strerror(errno));
    return mgpu_atomic_write(&p->file, e->patch->bytes, e->patch->size);
}

static bool is_patched(const struct mgpu_onnx_data *d, size_t part)
{
    for (size_t i = 0; i < d->external_count; i++)
        if (d->externals[i].part == part && d->externals[i].patch)
            return true;
    return false;
}

static int write_part(struct mgpu_onnx_data *d, size_t index)
{
    struct part *p = &d->parts[index];
    bool patched = is_patched(d, index);
    if (d->same_folder && !patched)
        return 0;
    p->name = choose_name(d, p->old);
    const char *path = full_path(d, p->name);
    if (p->name == p->old)
        MGPU_TRY(make_folders(path));
    MGPU_TRY(mgpu_atomic_open(&p->file, path));
    MGPU_TRY(copy_old(d, p));
    for (size_t i = 0; i < d->external_count; i++) {
        struct external *e = &d->externals[i];
        if (e->part != index)
            continue;
        if (patched)
            drop_checksum(e->tensor);
        if (p->name != p->old)
            set_value(d, e->tensor, "location", p->name);
        if (e->patch)
            MGPU_TRY(write_patch(d, p, e));
    }
    return 0;
}

static bool is_same_folder(const char *a, const char *b)
{
    return mgpu_same_file(a, *b ? b : ".");
}

int mgpu_onnx_data_write(struct mgpu_onnx_data **out, const struct mgpu_onnx_file *file,
                         const struct mgpu_onnx_copy *copy, const char *path,
                         const struct mgpu_onnx_data_patch *patches, size_t count)
{
    struct mgpu_onnx_data *d = *out = mgpu_xcalloc(1, sizeof *d);
    d->arena = mgpu_arena_new();
    d->copy_arena = copy->arena;
    d->source = file;
    const char *slash = strrchr(path, '/');
    d->base = mgpu_arena_string(d->arena, slash ? slash + 1 : path);
    d->folder = mgpu_arena_format(d->arena, "%.*s", slash ? (int)(slash + 1 - path) : 0, path);
    d->same_folder = is_same_folder(file->folder, d->folder);
    MGPU_TRY(collect(d, copy, patches, count));
    if (d->external_count)
        collect_taken(d, path);
    for (size_t i = 0; i < d->part_count; i++)
        MGPU_TRY(write_part(d, i));
    return 0;
}

int mgpu_onnx_data_commit(struct mgpu_onnx_data *d)
{
    for (size_t i = 0; i < d->part_count; i++)
        if (d->parts[i].file.fd >= 0)
            MGPU_TRY(mgpu_atomic_commit(&d->parts[i].file));
    return 0;
}

/* Old data files that were called after the model, and so are nobody else's. */
static void remove_unused(struct mgpu_onnx_data *d)
{
    const char *ours = mgpu_arena_format(d->arena, "%s.data", d->base);
    for (size_t i = 0; i < d->taken_count; i++)
        if (!strncmp(d->taken[i], ours, strlen(ours)) && !strchr(d->taken[i], '/') &&
            !is_used(d, d->taken[i]))
            unlink(full_path(d, d->taken[i]));
}

void mgpu_onnx_data_finish(struct mgpu_onnx_data *d, bool replaced)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->part_count; i++)
        if (d->parts[i].file.fd >= 0)
            mgpu_atomic_abort(&d->parts[i].file, 0);
    if (replaced)
        remove_unused(d);
    mgpu_arena_free(d->arena);
    free(d->taken);
    free(d->parts);
    free(d->externals);
    free(d);
}
