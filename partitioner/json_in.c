#include "partitioner/json_in.h"

#include "runtime/base/memory.h"
#include "runtime/base/names.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const long LARGEST = 64L << 20;
enum { DEPTH = 32 }; /* of objects and lists */

/* ---- Files ----------------------------------------------------------------------------------- */

static int load(char **text, long *length, const char *path)
{
    void *block = NULL;
    FILE *f = fopen(path, "rb");
    *text = NULL;
    if (!f)
        return mgpu_fail(MGPU_EIO, "%s: %s", path, strerror(errno));
    *length = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    rewind(f);
    int rc = 0;
    if (*length < 0 || *length > LARGEST)
        rc = mgpu_fail(MGPU_EINVALID, "%s: not a JSON file of at most 64 MiB", path);
    if (rc == 0)
        rc = mgpu_alloc(&block, (uint64_t)*length + 1, path);
    if (rc == 0 && fread(block, 1, (size_t)*length, f) != (size_t)*length)
        rc = mgpu_fail(MGPU_EIO, "%s: cannot be read", path);
    fclose(f);
    if (rc < 0)
        mgpu_free(block);
    else
        *text = block;
    return rc;
}

static int line_of(const char *text, size_t at)
{
    int line = 1;
    for (size_t i = 0; i < at && text[i]; i++)
        line += text[i] == '\n';
    return line;
}

static int parse(struct json_object **out, const char *text, long length, const char *path)
{
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH);
    int rc = 0;
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    /* with the final zero, so that a number at the end ends */
    *out = json_tokener_parse_ex(tokener, text, (int)length + 1);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    if (error != json_tokener_success)
        rc = mgpu_fail(MGPU_EINVALID, "%s: line %d: %s", path,
                       line_of(text, json_tokener_get_parse_end(tokener)),
                       error == json_tokener_error_parse_eof || error == json_tokener_continue
                           ? "the file ends too early"
                           : json_tokener_error_desc(error));
    else if (!json_object_is_type(*out, json_type_object))
        rc = mgpu_fail(MGPU_EINVALID, "%s: must hold one object, {...}", path);
    json_tokener_free(tokener);
    return rc;
}

/* ---- Keys that stand twice ------------------------------------------------------------------- */

/* Where the string at `text` ends: behind its closing quote. */
static const char *end_of_string(const char *text)
{
    for (text++; *text && *text != '"'; text++)
        text += *text == '\\' && text[1];
    return *text ? text + 1 : text;
}

/* json-c takes the last of two values: the text, which is good JSON, is searched for keys that an
 * object before had. */
static int check_twice(const char *text, const char *path)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_names *seen[DEPTH + 1];
    int depth = 0, rc = 0;
    for (const char *at = text; *at && rc == 0;) {
        const char *from = at;
        at = *from == '"' ? end_of_string(from) : from + 1;
        if (*from == '{' || *from == '[')
            seen[++depth] = mgpu_names_new(arena);
        else if (*from == '}' || *from == ']')
            depth--;
        if (*from != '"' || at[strspn(at, " \t\r\n")] != ':')
            continue;
        const char *key = mgpu_arena_format(arena, "%.*s", (int)(at - from), from);
        if (mgpu_names_get(seen[depth], key))
            rc = mgpu_fail(MGPU_EINVALID, "%s: line %d: the key %s stands twice in one object",
                           path, line_of(text, (size_t)(from - text)), key);
        mgpu_names_set(seen[depth], key, key);
    }
    mgpu_arena_free(arena);
    return rc;
}

int mgpu_json_read(struct json_object **out, const char *path)
{
    char *text;
    long length = 0;
    *out = NULL;
    MGPU_TRY(load(&text, &length, path));
    int rc = parse(out, text, length, path);
    if (rc == 0)
        rc = check_twice(text, path);
    if (rc < 0) {
        json_object_put(*out);
        *out = NULL;
    }
    mgpu_free(text);
    return rc;
}

/* ---- Members --------------------------------------------------------------------------------- */

int mgpu_json_keys(struct json_object *object, const char *where, const char *const *known)
{
    int count = 0;
    while (known[count])
        count++;
    json_object_object_foreach(object, key, value)
    {
        bool found = false;
        (void)value;
        for (int i = 0; i < count; i++)
            found = found || !strcmp(known[i], key);
        const char *near = found ? NULL : mgpu_nearest(key, known, count);
        if (near)
            return mgpu_fail(MGPU_EINVALID, "%s: unknown key '%.64s'; did you mean '%s'?", where,
                             key, near);
        if (!found)
            return mgpu_fail(MGPU_EINVALID, "%s: unknown key '%.64s'", where, key);
    }
    return 0;
}

/* *out: the member, or NULL where it is missing and need not be there. */
static int member(struct json_object **out, struct json_object *object, const char *where,
                  const char *key, bool needed)
{
    *out = NULL;
    bool there = json_object_object_get_ex(object, key, out);
    if (there && !*out)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' is null", where, key);
    if (!there && needed)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' is missing", where, key);
    return 0;
}

static int wrong(const char *where, const char *key, const char *what)
{
    return mgpu_fail(MGPU_EINVALID, "%s: '%s' must be %s", where, key, what);
}

int mgpu_json_number(double *out, struct json_object *object, const char *where, const char *key,
                     bool needed, double low, double high)
{
    struct json_object *v;
    MGPU_TRY(member(&v, object, where, key, needed));
    if (!v)
        return 0;
    double x = json_object_get_double(v);
    bool number = json_object_is_type(v, json_type_double) || json_object_is_type(v, json_type_int);
    if (!number || !isfinite(x) || x < low || x > high)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' must be a number from %g to %g", where, key, low,
                         high);
    *out = x;
    return 0;
}

int mgpu_json_integer(int64_t *out, struct json_object *object, const char *where, const char *key,
                      bool needed, int64_t low, int64_t high)
{
    struct json_object *v;
    MGPU_TRY(member(&v, object, where, key, needed));
    if (!v)
        return 0;
    int64_t x = json_object_get_int64(v);
    if (!json_object_is_type(v, json_type_int) || x < low || x > high)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' must be a whole number from %lld to %lld", where,
                         key, (long long)low, (long long)high);
    *out = x;
    return 0;
}

int mgpu_json_bool(bool *out, struct json_object *object, const char *where, const char *key)
{
    struct json_object *v;
    MGPU_TRY(member(&v, object, where, key, false));
    if (v && !json_object_is_type(v, json_type_boolean))
        return wrong(where, key, "true or false");
    if (v)
        *out = json_object_get_boolean(v);
    return 0;
}

int mgpu_json_text(const char **out, struct json_object *object, const char *where, const char *key,
                   bool needed)
{
    struct json_object *v;
    MGPU_TRY(member(&v, object, where, key, needed));
    if (v && !json_object_is_type(v, json_type_string))
        return wrong(where, key, "a text");
    if (v)
        *out = json_object_get_string(v);
    return 0;
}

static int typed(struct json_object **out, struct json_object *object, const char *where,
                 const char *key, bool needed, enum json_type type)
{
    struct json_object *v;
    MGPU_TRY(member(&v, object, where, key, needed));
    if (v && !json_object_is_type(v, type))
        return wrong(where, key, type == json_type_array ? "a list, [...]" : "an object, {...}");
    if (v)
        *out = v;
    return 0;
}

int mgpu_json_object(struct json_object **out, struct json_object *object, const char *where,
                     const char *key, bool needed)
{
    return typed(out, object, where, key, needed, json_type_object);
}

int mgpu_json_array(struct json_object **out, struct json_object *object, const char *where,
                    const char *key, bool needed)
{
    return typed(out, object, where, key, needed, json_type_array);
}

int mgpu_json_item(struct json_object **out, struct json_object *array, const char *where, int i)
{
    *out = json_object_array_get_idx(array, (size_t)i);
    if (!json_object_is_type(*out, json_type_object))
        return mgpu_fail(MGPU_EINVALID, "%s: entry %d must be an object, {...}", where, i);
    return 0;
}
