#include "runtime/base/record.h"

#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

void mgpu_record_init(struct mgpu_record *r, struct mgpu_arena *arena)
{
    *r = (struct mgpu_record){.arena = arena};
}

void mgpu_record_free(struct mgpu_record *r)
{
    free(r->field);
    r->field = NULL;
    r->count = 0;
}

struct mgpu_field *mgpu_record_add(struct mgpu_record *r, const char *name,
                                   enum mgpu_field_kind kind)
{
    r->field = mgpu_grow(r->field, (size_t)r->count, sizeof *r->field);
    struct mgpu_field *f = &r->field[r->count++];
    *f = (struct mgpu_field){.name = mgpu_arena_string(r->arena, name), .kind = kind};
    return f;
}

static struct mgpu_field *find(const struct mgpu_record *r, const char *name)
{
    for (int i = 0; i < r->count; i++)
        if (!strcmp(r->field[i].name, name))
            return &r->field[i];
    return NULL;
}

bool mgpu_record_has(const struct mgpu_record *r, const char *name)
{
    return find(r, name) != NULL;
}

/* The field to write, or the one to read. */
static int field(struct mgpu_field **out, struct mgpu_record *r, const char *name,
                 enum mgpu_field_kind kind)
{
    *out = r->restores ? find(r, name) : mgpu_record_add(r, name, kind);
    if (!*out || (*out)->kind != kind)
        return mgpu_fail(MGPU_EINVALID, "'%s' is %s", name, *out ? "of another kind" : "missing");
    return 0;
}

int mgpu_record_int(struct mgpu_record *r, const char *name, int64_t *value)
{
    struct mgpu_field *f;
    MGPU_TRY(field(&f, r, name, MGPU_FIELD_INT));
    if (r->restores)
        *value = f->integer;
    else
        f->integer = *value;
    return 0;
}

int mgpu_record_real(struct mgpu_record *r, const char *name, double *value)
{
    struct mgpu_field *f;
    MGPU_TRY(field(&f, r, name, MGPU_FIELD_REAL));
    if (r->restores)
        *value = f->real;
    else
        f->real = *value;
    return 0;
}

int mgpu_record_text(struct mgpu_record *r, const char *name, const char **value)
{
    struct mgpu_field *f;
    MGPU_TRY(field(&f, r, name, MGPU_FIELD_TEXT));
    if (r->restores)
        *value = f->text;
    else
        f->text = mgpu_arena_string(r->arena, *value);
    return 0;
}
