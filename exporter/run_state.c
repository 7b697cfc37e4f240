#include "exporter/run_state.h"

#include "exporter/keras_h5.h"
#include "exporter/keras_names.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP "training_state"
enum { VERSION = 1, FIELD_BYTES = 512, PATH = 64 };

void mgpu_run_state_init(struct mgpu_run_state *s)
{
    *s = (struct mgpu_run_state){.arena = mgpu_arena_new()};
    mgpu_record_init(&s->record, s->arena);
}

void mgpu_run_state_free(struct mgpu_run_state *s)
{
    mgpu_named_arrays_free(s->weight, s->weights);
    mgpu_named_arrays_free(s->state, s->states);
    mgpu_record_free(&s->record);
    mgpu_arena_free(s->arena);
    *s = (struct mgpu_run_state){0};
}

/* ---- Writing --------------------------------------------------------------------------------- */

static int write_number(hid_t group, const struct mgpu_field *f)
{
    bool integer = f->kind == MGPU_FIELD_INT;
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(group, f->name, integer ? H5T_STD_I64LE : H5T_IEEE_F64LE, space,
                                 H5P_DEFAULT, H5P_DEFAULT);
    herr_t rc = attribute < 0 ? -1
                : integer     ? H5Awrite(attribute, H5T_NATIVE_INT64, &f->integer)
                              : H5Awrite(attribute, H5T_NATIVE_DOUBLE, &f->real);
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    return rc < 0 ? mgpu_h5_fail(MGPU_EIO, "attribute '%s' cannot be written", f->name) : 0;
}

static int write_record(hid_t group, const struct mgpu_record *r)
{
    for (int i = 0; i < r->count; i++)
        MGPU_TRY(r->field[i].kind == MGPU_FIELD_TEXT
                     ? mgpu_h5_out_string(group, r->field[i].name, r->field[i].text)
                     : write_number(group, &r->field[i]));
    return 0;
}

static int write_group(struct mgpu_h5_out *out, const struct mgpu_record *r)
{
    hid_t group = H5Gcreate2(out->id, GROUP, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (group < 0)
        return mgpu_h5_fail(MGPU_EIO, "the group " GROUP " cannot be written");
    int rc = write_record(group, r);
    H5Gclose(group);
    return rc;
}

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

static int write_states(struct mgpu_h5_out *out, const struct mgpu_run_state *s)
{
    for (int i = 0; i < s->states; i++) {
        char path[PATH];
        snprintf(path, sizeof path, GROUP "/state/%d", i);
        MGPU_TRY(mgpu_prefix(mgpu_h5_out_array(out, path, &s->state[i].array, NULL), "'%s'",
                             s->state[i].name));
    }
    return 0;
}

static int write_all(struct mgpu_h5_out *out, const struct mgpu_run_state *s)
{
    struct mgpu_keras_place *places;
    MGPU_TRY(mgpu_keras_places(&places, s->arena, s->weight, s->weights));
    MGPU_TRY(mgpu_keras_h5_put(out, s->weight, s->weights));
    MGPU_TRY(write_group(out, &s->record));
    MGPU_TRY(link_weights(out, places, s->weights));
    return write_states(out, s);
}

static uint64_t bytes_needed(const struct mgpu_run_state *s)
{
    uint64_t bytes =
        mgpu_keras_h5_bytes(s->weight, s->weights) + mgpu_keras_h5_bytes(s->state, s->states);
    for (int i = 0; i < s->record.count; i++)
        bytes += FIELD_BYTES + (s->record.field[i].text ? strlen(s->record.field[i].text) : 0);
    return bytes;
}

static int record_names(struct mgpu_record *r, const char *kind,
                        const struct mgpu_named_array *arrays, int count)
{
    for (int i = 0; i < count; i++) {
        char field[PATH];
        const char *name = arrays[i].name;
        snprintf(field, sizeof field, "%s.%d", kind, i);
        MGPU_TRY(mgpu_record_text(r, field, &name));
    }
    return 0;
}

int mgpu_run_state_write(struct mgpu_run_state *s, const char *path)
{
    struct mgpu_h5_out out;
    int64_t version = VERSION;
    MGPU_TRY(mgpu_record_int(&s->record, "version", &version));
    MGPU_TRY(record_names(&s->record, "weight", s->weight, s->weights));
    MGPU_TRY(record_names(&s->record, "state", s->state, s->states));
    mgpu_h5_lock();
    int rc = mgpu_h5_out_open(&out, path, bytes_needed(s));
    if (rc == 0) {
        rc = mgpu_prefix(write_all(&out, s), "%s", path);
        rc = mgpu_h5_out_close(&out, rc);
    }
    mgpu_h5_unlock();
    return rc;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static int read_text(struct mgpu_record *r, hid_t group, const char *name)
{
    char **strings;
    int count;
    MGPU_TRY(mgpu_h5_read_strings(&strings, &count, group, name));
    mgpu_record_add(r, name, MGPU_FIELD_TEXT)->text =
        mgpu_arena_string(r->arena, count ? strings[0] : "");
    for (int i = 0; i < count; i++)
        free(strings[i]);
    free(strings);
    return 0;
}

static int read_number(struct mgpu_record *r, hid_t attribute, const char *name, bool integer)
{
    hid_t space = H5Aget_space(attribute);
    hssize_t points = H5Sget_simple_extent_npoints(space);
    H5Sclose(space);
    if (points != 1)
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' is not one number", name);
    struct mgpu_field *f = mgpu_record_add(r, name, integer ? MGPU_FIELD_INT : MGPU_FIELD_REAL);
    herr_t rc = integer ? H5Aread(attribute, H5T_NATIVE_INT64, &f->integer)
                        : H5Aread(attribute, H5T_NATIVE_DOUBLE, &f->real);
    return rc < 0 ? mgpu_h5_fail(MGPU_EINVALID, "attribute '%s' cannot be read", name) : 0;
}

struct reading {
    struct mgpu_record *record;
    int rc;
};

static herr_t read_field(hid_t group, const char *name, const H5A_info_t *info, void *context)
{
    struct reading *r = context;
    (void)info;
    hid_t attribute = H5Aopen(group, name, H5P_DEFAULT), type = H5Aget_type(attribute);
    H5T_class_t kind = H5Tget_class(type);
    if (kind == H5T_STRING)
        r->rc = read_text(r->record, group, name);
    else if (kind == H5T_INTEGER || kind == H5T_FLOAT)
        r->rc = read_number(r->record, attribute, name, kind == H5T_INTEGER);
    else
        r->rc = mgpu_fail(MGPU_EINVALID, "attribute '%s' is no number and no text", name);
    H5Tclose(type);
    H5Aclose(attribute);
    return r->rc;
}

static int read_record(struct mgpu_record *r, hid_t group)
{
    struct reading reading = {.record = r};
    int64_t version;
    if (H5Aiterate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, read_field, &reading) < 0 &&
        reading.rc == 0)
        reading.rc = mgpu_h5_fail(MGPU_EINVALID, "the training state cannot be read");
    MGPU_TRY(reading.rc);
    r->restores = true;
    MGPU_TRY(mgpu_record_int(r, "version", &version));
    return version == VERSION ? 0
                              : mgpu_fail(MGPU_EUNSUPPORTED,
                                          "version %lld of the training state; this program knows "
                                          "version %d",
                                          (long long)version, VERSION);
}

static int read_array(struct mgpu_named_array *out, hid_t group, const char *path, const char *name)
{
    struct mgpu_h5_info info;
    hid_t set;
    out->name = mgpu_xstrdup(name);
    MGPU_TRY(mgpu_h5_open_dataset(&set, group, path));
    int rc = mgpu_h5_describe(&info, set);
    if (rc == 0)
        rc = mgpu_array_init(&out->array, info.type, info.rank, info.dims, name);
    if (rc == 0)
        rc = mgpu_h5_read_all(set, &info, out->array.data);
    if (info.memory >= 0)
        H5Tclose(info.memory);
    H5Dclose(set);
    return mgpu_prefix(rc, "'%s'", name);
}

/* As many as the record names. */
static int read_arrays(struct mgpu_named_array **list, int *count, struct mgpu_record *r,
                       hid_t group, const char *kind)
{
    for (;;) {
        char field[PATH], path[PATH];
        const char *name;
        snprintf(field, sizeof field, "%s.%d", kind, *count);
        snprintf(path, sizeof path, "%s/%d", kind, *count);
        if (!mgpu_record_has(r, field))
            return 0;
        MGPU_TRY(mgpu_record_text(r, field, &name));
        *list = mgpu_grow(*list, (size_t)*count, sizeof **list);
        struct mgpu_named_array *a = &(*list)[(*count)++];
        *a = (struct mgpu_named_array){0};
        MGPU_TRY(read_array(a, group, path, name));
    }
}

static int read_state(struct mgpu_run_state *s, hid_t file)
{
    hid_t group;
    if (H5Lexists(file, GROUP, H5P_DEFAULT) <= 0)
        return mgpu_fail(MGPU_EINVALID, "this is no checkpoint of a run: it has no " GROUP);
    MGPU_TRY(mgpu_h5_open_group(&group, file, GROUP));
    int rc = read_record(&s->record, group);
    if (rc == 0)
        rc = read_arrays(&s->weight, &s->weights, &s->record, group, "weight");
    if (rc == 0)
        rc = read_arrays(&s->state, &s->states, &s->record, group, "state");
    H5Gclose(group);
    return rc;
}

int mgpu_run_state_read(struct mgpu_run_state *s, const char *path)
{
    hid_t file;
    mgpu_h5_lock();
    int rc = mgpu_h5_open_file(&file, path);
    if (rc == 0) {
        rc = mgpu_prefix(read_state(s, file), "%s", path);
        H5Fclose(file);
    }
    mgpu_h5_unlock();
    return rc;
}
