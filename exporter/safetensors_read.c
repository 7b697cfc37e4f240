/* safetensors from strangers: the header is cut into its entries before any of it is parsed, so
 * that memory is bounded by the tensors that it really names. */
#include "exporter/checkpoint.h"
#include "runtime/base/status.h"
#include "runtime/data/mapped.h"

#include <ctype.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MOST = 100000000, ENTRY_MOST = 1 << 16 };

struct safetensors {
    struct mgpu_mapped file;
    const uint8_t *data; /* behind the header */
    uint64_t size;
    struct safetensors *next; /* of several shards */
};

struct place {
    uint64_t begin, end;
    const struct safetensors *in;
};

/* ---- One entry ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum mgpu_dtype type;
} types[] = {{"F32", MGPU_FLOAT},     {"F64", MGPU_DOUBLE}, {"F16", MGPU_FLOAT16},
             {"BF16", MGPU_BFLOAT16}, {"I8", MGPU_INT8},    {"I16", MGPU_INT16},
             {"I32", MGPU_INT32},     {"I64", MGPU_INT64},  {"U8", MGPU_UINT8},
             {"U16", MGPU_UINT16},    {"U32", MGPU_UINT32}, {"U64", MGPU_UINT64},
             {"BOOL", MGPU_BOOL}};

static int read_type(enum mgpu_dtype *out, struct json_object *o)
{
    const char *text =
        json_object_is_type(o, json_type_string) ? json_object_get_string(o) : "(none)";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(text, types[i].name)) {
            *out = types[i].type;
            return 0;
        }
    return mgpu_fail(MGPU_EUNSUPPORTED, "data type %s is not supported", text);
}

/* `count` numbers, none negative; count -1: any number of them up to MGPU_MAX_RANK. */
static int read_numbers(int64_t *to, int *count, struct json_object *o, const char *what)
{
    int n = json_object_is_type(o, json_type_array) ? (int)json_object_array_length(o) : -1;
    if (n < 0 || n > MGPU_MAX_RANK || (*count >= 0 && n != *count))
        return mgpu_fail(MGPU_EINVALID, "its %s is not a list of numbers", what);
    for (int i = 0; i < n; i++) {
        struct json_object *item = json_object_array_get_idx(o, (size_t)i);
        to[i] = json_object_is_type(item, json_type_int) ? json_object_get_int64(item) : -1;
        if (to[i] < 0)
            return mgpu_fail(MGPU_EINVALID, "its %s is not a list of numbers", what);
    }
    *count = n;
    return 0;
}

static int check_range(const struct mgpu_checkpoint_tensor *t, const struct place *p)
{
    const struct safetensors *s = p->in;
    int64_t count;
    char shape[MGPU_SHAPE_TEXT];
    if (p->begin > p->end || p->end > s->size)
        return mgpu_fail(MGPU_EINVALID,
                         "bytes %" PRIu64 " to %" PRIu64 " are not in the file (%" PRIu64
                         " bytes of data)",
                         p->begin, p->end, s->size);
    MGPU_TRY(mgpu_count(&count, t->type, t->rank, t->dims));
    if ((uint64_t)count * mgpu_dtype_size(t->type) != p->end - p->begin)
        return mgpu_fail(MGPU_EINVALID, "%s of %s are not %" PRIu64 " bytes",
                         mgpu_shape_text(shape, t->rank, t->dims), mgpu_dtype_name(t->type),
                         p->end - p->begin);
    return 0;
}

static int read_entry(struct mgpu_checkpoint *c, const char *name, struct json_object *o)
{
    struct mgpu_checkpoint_tensor *t = mgpu_checkpoint_add(c, name);
    struct place *p = MGPU_NEW(c->arena, struct place);
    int64_t range[MGPU_MAX_RANK];
    int any = -1, two = 2;
    MGPU_TRY(read_type(&t->type, json_object_object_get(o, "dtype")));
    MGPU_TRY(read_numbers(t->dims, &any, json_object_object_get(o, "shape"), "shape"));
    MGPU_TRY(read_numbers(range, &two, json_object_object_get(o, "data_offsets"), "data_offsets"));
    *p = (struct place){(uint64_t)range[0], (uint64_t)range[1], c->state};
    t->rank = any;
    t->place = p;
    mgpu_checkpoint_name(c, t, t->name);
    return check_range(t, p);
}

/* ---- The header ------------------------------------------------------------------------------ */

struct cursor {
    const char *at, *end;
};

static int not_json(void)
{
    return mgpu_fail(MGPU_EINVALID, "the header is not JSON");
}

static bool take(struct cursor *c, char wanted)
{
    while (c->at < c->end && isspace((unsigned char)*c->at))
        c->at++;
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* Past the closing quote; the opening one has been taken. */
static bool skip_string(struct cursor *c)
{
    for (; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && c->at + 1 < c->end)
            c->at++;
    return c->at < c->end && *c->at++ == '"';
}

/* Past an object; its opening brace has been taken. */
static bool skip_object(struct cursor *c)
{
    for (int depth = 1; c->at < c->end;) {
        char ch = *c->at++;
        if (ch == '"' && !skip_string(c))
            return false;
        depth += (ch == '{') - (ch == '}');
        if (depth == 0)
            return true;
    }
    return false;
}

static struct json_object *parse(const char *begin, const char *end)
{
    struct json_tokener *tokener = json_tokener_new_ex(8);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    struct json_object *out = json_tokener_parse_ex(tokener, begin, (int)(end - begin));
    if (json_tokener_get_error(tokener) != json_tokener_success) {
        json_object_put(out);
        out = NULL;
    }
    json_tokener_free(tokener);
    return out;
}

/* What a trainer put beside the tensors, which may be long: texts that nobody here reads. */
static bool is_metadata(const char *name, const char *end)
{
    static const char metadata[] = "\"__metadata__\"";
    return end - name == sizeof metadata - 1 && !memcmp(name, metadata, sizeof metadata - 1);
}

/* "name": {...} */
static int take_entry(struct cursor *cursor, struct mgpu_checkpoint *c)
{
    if (!take(cursor, '"'))
        return not_json();
    const char *name = cursor->at - 1;
    if (!skip_string(cursor))
        return not_json();
    const char *name_end = cursor->at;
    if (!take(cursor, ':') || !take(cursor, '{'))
        return not_json();
    const char *value = cursor->at - 1;
    if (!skip_object(cursor))
        return not_json();
    if (is_metadata(name, name_end))
        return 0;
    if (cursor->at - name > ENTRY_MOST)
        return not_json();
    struct json_object *key = parse(name, name_end), *entry = parse(value, cursor->at);
    int rc = key && entry ? 0 : not_json();
    if (rc == 0 && strlen(json_object_get_string(key)) != (size_t)json_object_get_string_len(key))
        rc = mgpu_fail(MGPU_EINVALID, "a name with a zero byte: '%s'", json_object_get_string(key));
    if (rc == 0)
        rc = mgpu_prefix(read_entry(c, json_object_get_string(key), entry), "'%s'",
                         json_object_get_string(key));
    json_object_put(key);
    json_object_put(entry);
    return rc;
}

/* Only blanks follow. */
static int at_end(struct cursor *c)
{
    while (c->at < c->end && isspace((unsigned char)*c->at))
        c->at++;
    return c->at == c->end ? 0 : not_json();
}

static int take_header(struct cursor *cursor, struct mgpu_checkpoint *c)
{
    if (!take(cursor, '{'))
        return not_json();
    if (!take(cursor, '}'))
        do
            MGPU_TRY(take_entry(cursor, c));
        while (take(cursor, ','));
    else
        return at_end(cursor);
    return take(cursor, '}') ? at_end(cursor) : not_json();
}

/* ---- All of it ------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b)
{
    const struct place *const *x = a, *const *y = b;
    return (*x)->begin != (*y)->begin ? ((*x)->begin > (*y)->begin) - ((*x)->begin < (*y)->begin)
                                      : ((*x)->end > (*y)->end) - ((*x)->end < (*y)->end);
}

/* The tensors, from number `first` on, fill the data from the first byte to the last. */
static int check_cover(struct mgpu_checkpoint *c, int first)
{
    const struct safetensors *s = c->state;
    const struct place **order = mgpu_xcalloc((size_t)c->count + 1, sizeof *order);
    uint64_t at = 0;
    int rc = 0, count = c->count - first;
    for (int i = 0; i < count; i++)
        order[i] = c->tensor[first + i].place;
    qsort(order, (size_t)count, sizeof *order, by_begin);
    for (int i = 0; i < count && rc == 0; at = order[i++]->end)
        if (order[i]->begin != at)
            rc = mgpu_fail(MGPU_EINVALID, "%s at byte %" PRIu64 " of the data",
                           order[i]->begin < at ? "two tensors share bytes" : "unused bytes", at);
    free(order);
    if (rc == 0 && at != s->size)
        rc = mgpu_fail(MGPU_EINVALID, "%" PRIu64 " bytes after the last tensor", s->size - at);
    return rc;
}

static int find_header(struct cursor *out, struct safetensors *s)
{
    uint64_t length = 0;
    for (int i = 0; i < 8 && s->file.size >= 8; i++)
        length |= (uint64_t)s->file.data[i] << 8 * i;
    if (s->file.size < 8 || length > HEADER_MOST || length > s->file.size - 8)
        return mgpu_fail(MGPU_EINVALID, "a header of %" PRIu64 " bytes is not in the file", length);
    s->data = s->file.data + 8 + length;
    s->size = s->file.size - 8 - length;
    *out = (struct cursor){(const char *)s->file.data + 8, (const char *)s->data};
    return 0;
}

static int load_bytes(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                      struct mgpu_array *to)
{
    const struct place *p = t->place;
    (void)c;
    if (p->end > p->begin)
        memcpy(to->data, p->in->data + p->begin, p->end - p->begin);
    return 0;
}

static void close_files(struct mgpu_checkpoint *c)
{
    for (struct safetensors *s = c->state, *next; s; s = next) {
        next = s->next;
        mgpu_mapped_close(&s->file);
        free(s);
    }
}

static int read_all(struct mgpu_checkpoint *c)
{
    struct safetensors *s = c->state;
    struct cursor cursor;
    int first = c->count;
    MGPU_TRY(find_header(&cursor, s));
    MGPU_TRY(take_header(&cursor, c));
    MGPU_TRY(mgpu_checkpoint_check_names(c));
    return check_cover(c, first);
}

int mgpu_checkpoint_safetensors_file(struct mgpu_checkpoint *c, const char *path)
{
    struct safetensors *s = mgpu_xcalloc(1, sizeof *s);
    s->next = c->state;
    c->state = s;
    c->kind = MGPU_CHECKPOINT_SAFETENSORS;
    c->load = load_bytes;
    c->close = close_files;
    MGPU_TRY(mgpu_mapped_open(&s->file, path));
    return mgpu_prefix(read_all(c), "%s", path);
}

int mgpu_checkpoint_read_safetensors(struct mgpu_checkpoint *c)
{
    return mgpu_checkpoint_safetensors_file(c, c->path);
}
