#include "exporter/run_state.h"

#include "exporter/keras_h5.h"
#include "exporter/keras_names.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/data/mapped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define GROUP   MGPU_RUN_GROUP
#define RECORD  GROUP "/record"
#define UPDATES GROUP "/updates"
enum { VERSION = 2, PATH = 64, CRC = 4 };

static const char *const list_names[MGPU_RUN_LISTS] = {"weight", "state", "carried", "best"};

void mgpu_run_state_init(struct mgpu_run_state *s)
{
    *s = (struct mgpu_run_state){.arena = mgpu_arena_new()};
    mgpu_record_init(&s->record, s->arena);
}

void mgpu_run_state_free(struct mgpu_run_state *s)
{
    for (int i = 0; i < MGPU_RUN_LISTS; i++)
        mgpu_array_list_free(&s->list[i]);
    mgpu_record_free(&s->record);
    mgpu_arena_free(s->arena);
    *s = (struct mgpu_run_state){0};
}

/* ---- Checksums ------------------------------------------------------------------------------- */

static uint32_t crc_of(const void *bytes, size_t size)
{
    return (uint32_t)crc32_z(0, bytes, size);
}

/* Of all that an array is. */
static int64_t array_crc(const struct mgpu_array *a)
{
    int64_t head[2 + MGPU_MAX_RANK] = {a->type, a->rank};
    for (int i = 0; i < a->rank; i++)
        head[2 + i] = a->dims[i];
    uint64_t contents = crc_of(a->data, (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type));
    return (int64_t)(contents << 32 | crc_of(head, sizeof head));
}

/* ---- The record as bytes --------------------------------------------------------------------- */

/* A letter for the kind, name, zero, value, zero, for each field; the checksum of all that. */
static const char kinds[] = "irt";

static size_t put_field(char *to, size_t room, const struct mgpu_field *f)
{
    int n = f->kind == MGPU_FIELD_INT
                ? snprintf(to, room, "i%s%c%lld", f->name, 0, (long long)f->integer)
            : f->kind == MGPU_FIELD_REAL ? snprintf(to, room, "r%s%c%a", f->name, 0, f->real)
                                         : snprintf(to, room, "t%s%c%s", f->name, 0, f->text);
    return (size_t)n + 1;
}

static void pack(struct mgpu_array *out, const struct mgpu_record *r, struct mgpu_arena *arena)
{
    size_t size = 0;
    for (int i = 0; i < r->count; i++)
        size += put_field(NULL, 0, &r->field[i]);
    char *bytes = mgpu_arena_alloc(arena, size + CRC);
    for (int i = 0, at = 0; i < r->count; i++)
        at += (int)put_field(bytes + at, size - (size_t)at, &r->field[i]);
    uint32_t crc = crc_of(bytes, size);
    memcpy(bytes + size, &crc, CRC);
    *out = (struct mgpu_array){
        .type = MGPU_UINT8, .rank = 1, .dims = {(int64_t)size + CRC}, .data = bytes};
}

static void take_field(struct mgpu_record *r, const char *name, const char *value)
{
    enum mgpu_field_kind kind = (enum mgpu_field_kind)(strchr(kinds, *name) - kinds);
    struct mgpu_field *f = mgpu_record_add(r, name + 1, kind);
    if (kind == MGPU_FIELD_INT)
        f->integer = strtoll(value, NULL, 10);
    else if (kind == MGPU_FIELD_REAL)
        f->real = strtod(value, NULL);
    else
        f->text = mgpu_arena_string(r->arena, value);
}

/* `bytes` end with a zero that is not counted. */
static int unpack(struct mgpu_record *r, const char *bytes, size_t size)
{
    uint32_t crc = 0;
    if (size >= CRC)
        memcpy(&crc, bytes + size - CRC, CRC);
    if (size < CRC || crc != crc_of(bytes, size - CRC))
        return mgpu_fail(MGPU_EINVALID, "the training state is damaged: its checksum is wrong");
    for (size_t at = 0; at < size - CRC;) {
        const char *name = bytes + at, *value = name + strlen(name) + 1;
        if (value >= bytes + size || !*name || !strchr(kinds, *name))
            return mgpu_fail(MGPU_EINVALID, "the training state is not one of this program");
        take_field(r, name, value);
        at = (size_t)(value - bytes) + strlen(value) + 1;
    }
    return 0;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static int link_weights(struct mgpu_h5_out *out, const struct mgpu_keras_place *places, int count)
{
    hid_t create = H5Pcreate(H5P_LINK_CREATE);
    int rc = 0;
    H5Pset_create_intermediate_group(create, 1);
    for (int i = 0; i < count && rc == 0; i++) {
        char path[PATH];
        snprintf(path, sizeof path, GROUP "/weight/%d", i);
        if (H5Lcreate_hard(out->id, places[i].path, out->id, path, create, H5P_DEFAULT) < 0)
            rc = mgpu_h5_fail(MGPU_EIO, "a link to '%s' cannot be written", places[i].path);
    }
    H5Pclose(create);
    return rc;
}

static int write_list(struct mgpu_h5_out *out, const char *kind, const struct mgpu_array_list *list)
{
    for (int i = 0; i < list->count; i++) {
        char path[PATH];
        snprintf(path, sizeof path, GROUP "/%s/%d", kind, i);
        MGPU_TRY(mgpu_prefix(mgpu_h5_out_array(out, path, &list->item[i].array, list->item[i].name),
                             "'%s'", list->item[i].name));
    }
    return 0;
}

static int write_all(struct mgpu_h5_out *out, const struct mgpu_run_state *s,
                     const struct mgpu_array *record)
{
    const struct mgpu_array_list *weights = &s->list[MGPU_RUN_WEIGHT];
    int64_t done = s->updates;
    const struct mgpu_array updates = {.type = MGPU_INT64, .data = &done};
    struct mgpu_keras_place *places;
    MGPU_TRY(mgpu_keras_places(&places, s->arena, weights->item, weights->count));
    MGPU_TRY(mgpu_keras_h5_put(out, weights->item, weights->count));
    MGPU_TRY(mgpu_h5_out_array(out, RECORD, record, NULL));
    MGPU_TRY(mgpu_h5_out_array(out, UPDATES, &updates, NULL));
    MGPU_TRY(link_weights(out, places, weights->count));
    for (int i = MGPU_RUN_WEIGHT + 1; i < MGPU_RUN_LISTS; i++)
        MGPU_TRY(write_list(out, list_names[i], &s->list[i]));
    return 0;
}

static uint64_t bytes_needed(const struct mgpu_run_state *s)
{
    uint64_t bytes = 0;
    for (int i = 0; i < MGPU_RUN_LISTS; i++)
        bytes += mgpu_keras_h5_bytes(s->list[i].item, s->list[i].count);
    return bytes;
}

/* "KIND.N" is the name of array N, "KIND.N.crc" its checksum. */
static int record_list(struct mgpu_record *r, const char *kind, const struct mgpu_array_list *list)
{
    for (int i = 0; i < list->count; i++) {
        char field[PATH];
        const char *name = list->item[i].name;
        int64_t crc = array_crc(&list->item[i].array);
        snprintf(field, sizeof field, "%s.%d", kind, i);
        MGPU_TRY(mgpu_record_text(r, field, &name));
        snprintf(field, sizeof field, "%s.%d.crc", kind, i);
        MGPU_TRY(mgpu_record_int(r, field, &crc));
    }
    return 0;
}

int mgpu_run_state_write(struct mgpu_run_state *s, const char *path)
{
    struct mgpu_h5_out out;
    struct mgpu_array record;
    int64_t version = VERSION;
    MGPU_TRY(mgpu_record_int(&s->record, "version", &version));
    for (int i = 0; i < MGPU_RUN_LISTS; i++)
        MGPU_TRY(record_list(&s->record, list_names[i], &s->list[i]));
    pack(&record, &s->record, s->arena);
    mgpu_h5_lock();
    int rc = mgpu_h5_out_open(&out, path, bytes_needed(s) + (uint64_t)record.dims[0]);
    if (rc == 0) {
        rc = mgpu_prefix(write_all(&out, s, &record), "%s", path);
        rc = mgpu_h5_out_close(&out, rc);
    }
    mgpu_h5_unlock();
    return rc;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* *out is free()d. */
static int read_bytes(char **out, size_t *size, struct mgpu_h5_reader *file)
{
    struct mgpu_h5_shape shape;
    int64_t count;
    *out = NULL;
    MGPU_TRY(mgpu_h5_reader_describe(&shape, file, RECORD));
    MGPU_TRY(mgpu_count(&count, shape.type, shape.rank, shape.dims));
    if (shape.type != MGPU_UINT8)
        return mgpu_fail(MGPU_EINVALID, "the training state is not one of this program");
    *size = (size_t)count;
    *out = mgpu_xcalloc(*size + 1, 1);
    return mgpu_h5_reader_read(file, RECORD, MGPU_WHOLE, 0, 0, *out, *size);
}

int mgpu_run_record_read(struct mgpu_record *r, struct mgpu_h5_reader *file)
{
    char *bytes;
    size_t size = 0;
    int64_t version = 0;
    int rc = read_bytes(&bytes, &size, file);
    if (rc == 0)
        rc = unpack(r, bytes, size);
    free(bytes);
    MGPU_TRY(rc);
    r->restores = true;
    MGPU_TRY(mgpu_record_int(r, "version", &version));
    return version == VERSION ? 0
                              : mgpu_fail(MGPU_EUNSUPPORTED,
                                          "version %lld of the training state; this program knows "
                                          "version %d",
                                          (long long)version, VERSION);
}

static int check_crc(const struct mgpu_array *a, int64_t crc)
{
    if (array_crc(a) == crc)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "the contents are damaged: their checksum is wrong");
}

int mgpu_run_array_check(const struct mgpu_record *r, const char *name, const struct mgpu_array *a)
{
    for (int i = 0; i + 1 < r->count; i++) /* the checksum is the field behind the name */
        if (r->field[i].kind == MGPU_FIELD_TEXT && r->field[i + 1].kind == MGPU_FIELD_INT &&
            !strcmp(r->field[i].text, name) && mgpu_ends_with(r->field[i + 1].name, ".crc"))
            return check_crc(a, r->field[i + 1].integer);
    return mgpu_fail(MGPU_EINVALID, "the run did not write it");
}

static int read_array(struct mgpu_named_array *out, struct mgpu_h5_reader *file, const char *path,
                      int64_t crc)
{
    struct mgpu_h5_shape s;
    struct mgpu_array *a = &out->array;
    MGPU_TRY(mgpu_h5_reader_describe(&s, file, path));
    MGPU_TRY(mgpu_array_init(a, s.type, s.rank, s.dims, out->name));
    MGPU_TRY(mgpu_h5_reader_read(file, path, MGPU_WHOLE, 0, 0, a->data,
                                 (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type)));
    return check_crc(a, crc);
}

/* As many as the record names. */
static int read_list(struct mgpu_array_list *list, struct mgpu_record *r,
                     struct mgpu_h5_reader *file, const char *kind)
{
    for (;;) {
        char field[PATH], path[PATH];
        const char *name;
        int64_t crc;
        snprintf(field, sizeof field, "%s.%d", kind, list->count);
        snprintf(path, sizeof path, GROUP "/%s/%d", kind, list->count);
        if (!mgpu_record_has(r, field))
            return 0;
        MGPU_TRY(mgpu_record_text(r, field, &name));
        snprintf(field, sizeof field, "%s.%d.crc", kind, list->count);
        MGPU_TRY(mgpu_record_int(r, field, &crc));
        struct mgpu_named_array *a = mgpu_array_list_add(list, name);
        MGPU_TRY(mgpu_prefix(read_array(a, file, path, crc), "'%s'", name));
    }
}

static int read_state(struct mgpu_run_state *s, struct mgpu_h5_reader *file)
{
    int rc = mgpu_h5_reader_has(file, GROUP);
    if (rc == 0)
        return mgpu_fail(MGPU_EINVALID, "no checkpoint of a run, it has no " GROUP
                                        " (--init takes files of weights)");
    if (rc > 0)
        rc = mgpu_run_record_read(&s->record, file);
    for (int i = 0; i < MGPU_RUN_LISTS && rc == 0; i++)
        rc = read_list(&s->list[i], &s->record, file, list_names[i]);
    return rc;
}

static int check_kind(const char *path)
{
    struct mgpu_mapped f;
    MGPU_TRY(mgpu_mapped_open(&f, path));
    bool fine = f.size >= 8 && !memcmp(f.data, "\x89HDF\r\n\x1a\n", 8);
    mgpu_mapped_close(&f);
    return fine ? 0
                : mgpu_fail(MGPU_EINVALID,
                            "%s: no checkpoint of a run, which is HDF5 (--init takes files of "
                            "weights)",
                            path);
}

int mgpu_run_state_read(struct mgpu_run_state *s, const char *path)
{
    struct mgpu_h5_reader *file;
    MGPU_TRY(check_kind(path));
    MGPU_TRY(mgpu_h5_reader_open(&file, path));
    int rc = mgpu_prefix(read_state(s, file), "%s", path);
    mgpu_h5_reader_close(file);
    return rc;
}
