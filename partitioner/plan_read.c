/* Reading plan.json: nothing of it is trusted. */
#include "partitioner/plan_file.h"

#include "importer/names.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 256 << 20, MAX_DEPTH = 16 };

/* ---- The file -------------------------------------------------------------------------------- */

static int load(char **out, size_t *size, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return mgpu_fail(MGPU_EIO, "%s", strerror(errno));
    size_t n = 0, room = 1 << 16;
    char *text = mgpu_xrealloc(NULL, room, 1);
    for (size_t got; (got = fread(text + n, 1, room - n, f)) > 0;) {
        n += got;
        if (n > MAX_BYTES)
            break;
        if (n == room)
            text = mgpu_xrealloc(text, room *= 2, 1);
    }
    int rc = ferror(f)       ? mgpu_fail(MGPU_EIO, "%s", strerror(errno))
             : n > MAX_BYTES ? mgpu_fail(MGPU_EINVALID, "too large for a plan")
                             : 0;
    fclose(f);
    if (rc < 0)
        free(text);
    else {
        *out = text;
        *size = n;
    }
    return rc;
}

static int line_of(const char *text, size_t end)
{
    int line = 1;
    for (size_t i = 0; i < end; i++)
        line += text[i] == '\n';
    return line;
}

static int parse(struct json_object **out, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    MGPU_TRY(load(&text, &size, path));
    struct json_tokener *t = json_tokener_new_ex(MAX_DEPTH);
    json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    *out = json_tokener_parse_ex(t, text, (int)size);
    enum json_tokener_error error = json_tokener_get_error(t);
    int rc = 0;
    if (error == json_tokener_continue)
        rc = mgpu_fail(MGPU_EINVALID, "not a whole plan: the file ends too early (line %d)",
                       line_of(text, size));
    else if (error != json_tokener_success)
        rc =
            mgpu_fail(MGPU_EINVALID, "line %d is not JSON: %s",
                      line_of(text, json_tokener_get_parse_end(t)), json_tokener_error_desc(error));
    json_tokener_free(t);
    free(text);
    return rc;
}

/* ---- Fields ---------------------------------------------------------------------------------- */

static const char *kind_name(enum json_type type)
{
    switch (type) {
    case json_type_string:
        return "text";
    case json_type_int:
        return "a whole number";
    case json_type_double:
        return "a number";
    case json_type_array:
        return "a list";
    case json_type_object:
        return "an object";
    default:
        return "something else";
    }
}

/* o[key], which must be of the type. */
static int field(struct json_object **out, struct json_object *o, const char *key,
                 enum json_type type)
{
    if (!json_object_object_get_ex(o, key, out))
        return mgpu_fail(MGPU_EINVALID, "\"%s\" is missing", key);
    bool number = type == json_type_double && json_object_is_type(*out, json_type_int);
    if (!number && !json_object_is_type(*out, type))
        return mgpu_fail(MGPU_EINVALID, "\"%s\" is %s, not %s", key,
                         kind_name(json_object_get_type(*out)), kind_name(type));
    return 0;
}

static int text_of(const char **out, struct mgpu_arena *arena, struct json_object *value)
{
    const char *text = json_object_get_string(value);
    if (strlen(text) != (size_t)json_object_get_string_len(value))
        return mgpu_fail(MGPU_EINVALID, "a text holds a zero byte");
    *out = mgpu_arena_string(arena, text);
    return 0;
}

static int text(const char **out, struct mgpu_plan_file *plan, struct json_object *o,
                const char *key)
{
    struct json_object *value;
    MGPU_TRY(field(&value, o, key, json_type_string));
    return mgpu_prefix(text_of(out, plan->arena, value), "\"%s\"", key);
}

static int whole(int64_t *out, struct json_object *o, const char *key, int64_t low, int64_t high)
{
    struct json_object *value;
    MGPU_TRY(field(&value, o, key, json_type_int));
    *out = json_object_get_int64(value);
    if (*out < low || *out > high)
        return mgpu_fail(MGPU_EINVALID, "\"%s\" is %lld: not from %lld to %lld", key,
                         (long long)*out, (long long)low, (long long)high);
    return 0;
}

/* A number that only informs: absent or null is 0. */
static int number(double *out, struct json_object *o, const char *key)
{
    struct json_object *value;
    *out = 0;
    if (!json_object_object_get_ex(o, key, &value) || !value)
        return 0;
    MGPU_TRY(field(&value, o, key, json_type_double));
    *out = json_object_get_double(value);
    return *out >= 0 ? 0 : mgpu_fail(MGPU_EINVALID, "\"%s\" is negative", key);
}

static int count(int64_t *out, struct json_object *o, const char *key)
{
    struct json_object *value;
    *out = 0;
    if (!json_object_object_get_ex(o, key, &value) || !value)
        return 0;
    return whole(out, o, key, 0, INT64_MAX);
}

static int element(struct json_object **out, struct json_object *list, int i, enum json_type type)
{
    *out = json_object_array_get_idx(list, (size_t)i);
    if (!json_object_is_type(*out, type))
        return mgpu_fail(MGPU_EINVALID, "%s, not %s", kind_name(json_object_get_type(*out)),
                         kind_name(type));
    return 0;
}

/* ---- Parts ----------------------------------------------------------------------------------- */

static int read_version(struct json_object *o)
{
    int64_t version;
    MGPU_TRY(whole(&version, o, "version", 0, INT_MAX));
    return version == MGPU_PLAN_VERSION
               ? 0
               : mgpu_fail(MGPU_EINVALID, "a plan of version %lld; this mgpu reads version %d",
                           (long long)version, MGPU_PLAN_VERSION);
}

static int read_model(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct json_object *model;
    MGPU_TRY(field(&model, o, "model", json_type_object));
    MGPU_TRY(mgpu_prefix(text(&plan->model_file, plan, model, "file"), "model"));
    MGPU_TRY(mgpu_prefix(text(&plan->sha256, plan, model, "sha256"), "model"));
    if (strlen(plan->sha256) != 64 || strspn(plan->sha256, "0123456789abcdef") != 64)
        return mgpu_fail(MGPU_EINVALID, "model: \"sha256\" is not 64 hexadecimal digits");
    return 0;
}

static int read_devices(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct json_object *list, *item;
    MGPU_TRY(field(&list, o, "devices", json_type_array));
    size_t n = json_object_array_length(list);
    if (n < 1 || n > MGPU_PLAN_DEVICES)
        return mgpu_fail(MGPU_EINVALID, "\"devices\" lists %zu: not from 1 to %d", n,
                         MGPU_PLAN_DEVICES);
    const char **name = MGPU_NEW_ARRAY(plan->arena, const char *, n);
    for (int i = 0; i < (int)n; i++) {
        MGPU_TRY(mgpu_prefix(element(&item, list, i, json_type_string), "devices[%d]", i));
        MGPU_TRY(mgpu_prefix(text_of(&name[i], plan->arena, item), "devices[%d]", i));
        if (!*name[i] || strpbrk(name[i], ",#") || !strcmp(name[i], "all"))
            return mgpu_fail(MGPU_EINVALID, "devices[%d]: '%s' is not the name of a device", i,
                             name[i]);
    }
    mgpu_plan_file_devices(plan, (int)n, name);
    return 0;
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* "cpu:0, cpu:1, ..." for messages: the first few. */
static const char *known_devices(const struct mgpu_plan_file *plan)
{
    int shown = plan->devices < 8 ? plan->devices : 8;
    const char *list = "";
    for (int i = 0; i < shown; i++)
        list = mgpu_arena_format(plan->arena, "%s%s%s", list, i ? ", " : "", plan->label[i]);
    return shown < plan->devices ? mgpu_arena_format(plan->arena, "%s, ...", list) : list;
}

static int find_device(const struct mgpu_plan_file *plan, const char *name)
{
    for (int i = 0; i < plan->devices; i++)
        if (!strcmp(plan->label[i], name))
            return i;
    return mgpu_fail(MGPU_EINVALID, "'%s' is not one of the devices (%s)", name,
                     known_devices(plan));
}

/* The devices that a text names. */
struct set {
    int count, *device;
};

static int parse_set(struct mgpu_plan_file *plan, const char *word, struct set *out)
{
    out->device = MGPU_NEW_ARRAY(plan->arena, int, plan->devices);
    out->count = 0;
    if (!strcmp(word, "all")) {
        for (int i = 0; i < plan->devices; i++)
            out->device[out->count++] = i;
        return 0;
    }
    char *rest = mgpu_arena_string(plan->arena, word), *name;
    while ((name = strsep(&rest, ","))) {
        int i = find_device(plan, name);
        MGPU_TRY(i);
        if (out->count == plan->devices)
            return mgpu_fail(MGPU_EINVALID, "'%s' names a device twice", word);
        out->device[out->count++] = i;
    }
    return 0;
}

/* The place that a text names. Most nodes stand where one before stood: texts are remembered. */
static int read_place(struct mgpu_plan_file *plan, struct mgpu_names *seen, const char *word,
                      int *out)
{
    struct set s;
    const int *before = mgpu_names_get(seen, word);
    if (before) {
        *out = *before;
        return 0;
    }
    MGPU_TRY(parse_set(plan, word, &s));
    *out = mgpu_plan_file_find(plan, s.device, s.count);
    MGPU_TRY(*out);
    mgpu_names_set(seen, word, mgpu_arena_copy(plan->arena, out, sizeof *out));
    return 0;
}

/* ---- Nodes and what belongs to them ---------------------------------------------------------- */

static int check_slice(const struct mgpu_plan_file *plan, const char *slice)
{
    if (strcmp(slice, "all") && strcmp(slice, "batch"))
        return mgpu_fail(MGPU_EINVALID, "\"slice\" is '%s', not 'all' or 'batch'", slice);
    if (plan->replicas > 1 && !strcmp(slice, "all"))
        return mgpu_fail(MGPU_EINVALID,
                         "\"slice\" is 'all', but there are %d devices: each takes "
                         "its part ('batch')",
                         plan->replicas);
    return 0;
}

static int read_node(struct mgpu_plan_file *plan, struct json_object *o, struct mgpu_plan_node *n,
                     struct mgpu_names *seen)
{
    const char *slice, *device;
    MGPU_TRY(text(&n->output, plan, o, "output"));
    MGPU_TRY(text(&n->name, plan, o, "name"));
    MGPU_TRY(text(&n->type, plan, o, "type"));
    MGPU_TRY(text(&device, plan, o, "device"));
    MGPU_TRY(text(&slice, plan, o, "slice"));
    MGPU_TRY(mgpu_prefix(read_place(plan, seen, device, &n->place), "\"device\""));
    return check_slice(plan, slice);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No name twice. */
static int check_unique(struct mgpu_plan_file *plan)
{
    const char **name = MGPU_NEW_ARRAY(plan->arena, const char *, plan->nodes);
    for (int i = 0; i < plan->nodes; i++)
        name[i] = plan->node[i].output;
    qsort(name, (size_t)plan->nodes, sizeof *name, by_text);
    for (int i = 1; i < plan->nodes; i++)
        if (!strcmp(name[i], name[i - 1]))
            return mgpu_fail(MGPU_EINVALID, "nodes: '%s' is placed twice", name[i]);
    return 0;
}

static int read_nodes(struct mgpu_plan_file *plan, struct json_object *o, struct mgpu_names *seen)
{
    struct json_object *list, *item;
    MGPU_TRY(field(&list, o, "nodes", json_type_array));
    plan->nodes = (int)json_object_array_length(list);
    plan->node = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_node, plan->nodes);
    for (int i = 0; i < plan->nodes; i++) {
        MGPU_TRY(mgpu_prefix(element(&item, list, i, json_type_object), "nodes[%d]", i));
        MGPU_TRY(mgpu_prefix(read_node(plan, item, &plan->node[i], seen), "nodes[%d]", i));
    }
    if (!plan->nodes)
        return mgpu_fail(MGPU_EINVALID, "\"nodes\" is empty");
    return check_unique(plan);
}

static int read_rewrite(struct mgpu_plan_file *plan, struct json_object *o,
                        struct mgpu_plan_rewrite *rewrite)
{
    struct json_object *list, *item;
    MGPU_TRY(text(&rewrite->kind, plan, o, "kind"));
    MGPU_TRY(field(&list, o, "outputs", json_type_array));
    rewrite->outputs = (int)json_object_array_length(list);
    rewrite->output = MGPU_NEW_ARRAY(plan->arena, const char *, rewrite->outputs);
    for (int i = 0; i < rewrite->outputs; i++) {
        MGPU_TRY(mgpu_prefix(element(&item, list, i, json_type_string), "outputs[%d]", i));
        MGPU_TRY(text_of(&rewrite->output[i], plan->arena, item));
    }
    return 0;
}

static int read_rewrites(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct json_object *list, *item;
    MGPU_TRY(field(&list, o, "rewrites", json_type_array));
    plan->rewrites = (int)json_object_array_length(list);
    plan->rewrite = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_rewrite, plan->rewrites);
    for (int i = 0; i < plan->rewrites; i++) {
        MGPU_TRY(mgpu_prefix(element(&item, list, i, json_type_object), "rewrites[%d]", i));
        MGPU_TRY(mgpu_prefix(read_rewrite(plan, item, &plan->rewrite[i]), "rewrites[%d]", i));
    }
    return 0;
}

static int read_owners(struct mgpu_plan_file *plan, struct json_object *o, struct mgpu_names *seen)
{
    struct json_object *owners;
    int i = 0;
    MGPU_TRY(field(&owners, o, "owners", json_type_object));
    plan->owners = json_object_object_length(owners);
    plan->owner = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_owner, plan->owners);
    json_object_object_foreach(owners, key, value)
    {
        const char *word;
        struct mgpu_plan_owner *owner = &plan->owner[i++];
        owner->parameter = mgpu_arena_string(plan->arena, key);
        if (!json_object_is_type(value, json_type_string))
            return mgpu_fail(MGPU_EINVALID, "owners: \"%s\" is %s, not text", key,
                             kind_name(json_object_get_type(value)));
        MGPU_TRY(mgpu_prefix(text_of(&word, plan->arena, value), "owners: \"%s\"", key));
        MGPU_TRY(mgpu_prefix(read_place(plan, seen, word, &owner->place), "owners: \"%s\"", key));
    }
    return 0;
}

static int read_buckets(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct json_object *list, *item;
    MGPU_TRY(field(&list, o, "buckets", json_type_array));
    for (int i = 0; i < (int)json_object_array_length(list); i++) {
        int64_t bytes;
        MGPU_TRY(mgpu_prefix(element(&item, list, i, json_type_object), "buckets[%d]", i));
        MGPU_TRY(mgpu_prefix(whole(&bytes, item, "bytes", 1, INT64_MAX), "buckets[%d]", i));
        if (bytes > plan->bucket_bytes)
            plan->bucket_bytes = bytes;
    }
    return 0;
}

/* ---- What only informs: may be missing ------------------------------------------------------- */

static int read_predicted(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct mgpu_predicted *p = &plan->predicted;
    struct json_object *from, *memory;
    if (!json_object_object_get_ex(o, "predicted", &from))
        return 0;
    MGPU_TRY(field(&from, o, "predicted", json_type_object));
    MGPU_TRY(number(&p->step_ms, from, "step_ms"));
    MGPU_TRY(number(&p->speedup, from, "speedup"));
    MGPU_TRY(number(&p->single_ms, from, "single_ms"));
    MGPU_TRY(number(&p->lower_bound_ms, from, "lower_bound_ms"));
    MGPU_TRY(number(&p->parallelism, from, "parallelism"));
    MGPU_TRY(count(&p->bytes_moved, from, "bytes_moved"));
    if (!json_object_object_get_ex(from, "memory_bytes", &memory))
        return 0;
    MGPU_TRY(field(&memory, from, "memory_bytes", json_type_object));
    for (int i = 0; i < plan->devices; i++)
        MGPU_TRY(mgpu_prefix(count(&p->memory_bytes[i], memory, plan->label[i]), "memory_bytes"));
    return 0;
}

static int read_alternative(struct mgpu_plan_file *plan, struct json_object *o,
                            struct mgpu_alternative *a)
{
    int64_t replicas, places;
    MGPU_TRY(text(&a->strategy, plan, o, "strategy"));
    MGPU_TRY(text(&a->why, plan, o, "why"));
    MGPU_TRY(number(&a->step_ms, o, "step_ms"));
    MGPU_TRY(number(&a->speedup, o, "speedup"));
    MGPU_TRY(count(&a->memory_bytes, o, "memory_bytes"));
    MGPU_TRY(count(&a->bytes_moved, o, "bytes_moved"));
    MGPU_TRY(count(&replicas, o, "replicas"));
    MGPU_TRY(count(&places, o, "places"));
    a->replicas = (int)(replicas < INT_MAX ? replicas : INT_MAX);
    a->places = (int)(places < INT_MAX ? places : INT_MAX);
    a->feasible = a->step_ms > 0;
    return 0;
}

static int read_alternatives(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct json_object *list, *item;
    if (!json_object_object_get_ex(o, "alternatives", &list))
        return 0;
    MGPU_TRY(field(&list, o, "alternatives", json_type_array));
    plan->alternatives = (int)json_object_array_length(list);
    plan->alternative = MGPU_NEW_ARRAY(plan->arena, struct mgpu_alternative, plan->alternatives);
    for (int i = 0; i < plan->alternatives; i++) {
        MGPU_TRY(mgpu_prefix(element(&item, list, i, json_type_object), "alternatives[%d]", i));
        MGPU_TRY(mgpu_prefix(read_alternative(plan, item, &plan->alternative[i]),
                             "alternatives[%d]", i));
    }
    return 0;
}

static int read_strategy(struct mgpu_plan_file *plan, struct json_object *o)
{
    static const char *const known[] = {"single", "data", "branch", "hybrid", "stacked", "manual"};
    enum { KNOWN = sizeof known / sizeof *known };
    MGPU_TRY(text(&plan->strategy, plan, o, "strategy"));
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(plan->strategy, known[i]))
            return 0;
    const char *near = mgpu_nearest(plan->strategy, known, KNOWN);
    return mgpu_fail(MGPU_EINVALID, "\"strategy\" '%s' is not known%s%s%s", plan->strategy,
                     near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int read_all(struct mgpu_plan_file *plan, struct json_object *o)
{
    struct json_object *profile;
    struct mgpu_names *seen = mgpu_names_new(plan->arena);
    if (!json_object_is_type(o, json_type_object))
        return mgpu_fail(MGPU_EINVALID, "a plan is a JSON object");
    plan->replicas = plan->places = 0; /* until the first node says */
    MGPU_TRY(read_version(o));
    MGPU_TRY(read_model(plan, o));
    MGPU_TRY(whole(&plan->batch, o, "batch", 1, INT64_C(1) << 40));
    MGPU_TRY(read_devices(plan, o));
    MGPU_TRY(read_strategy(plan, o));
    MGPU_TRY(read_rewrites(plan, o));
    MGPU_TRY(read_nodes(plan, o, seen));
    MGPU_TRY(read_owners(plan, o, seen));
    MGPU_TRY(read_buckets(plan, o));
    MGPU_TRY(mgpu_prefix(read_predicted(plan, o), "predicted"));
    MGPU_TRY(read_alternatives(plan, o));
    if (json_object_object_get_ex(o, "profile", &profile) && profile)
        MGPU_TRY(text(&plan->profile, plan, o, "profile"));
    return 0;
}

int mgpu_plan_file_read(struct mgpu_plan_file **out, const char *path)
{
    struct json_object *o = NULL;
    *out = NULL;
    MGPU_TRY(mgpu_prefix(parse(&o, path), "%s", path));
    struct mgpu_plan_file *plan = mgpu_plan_file_new();
    int rc = mgpu_prefix(read_all(plan, o), "%s", path);
    json_object_put(o);
    if (rc < 0)
        mgpu_plan_file_free(plan);
    else
        *out = plan;
    return rc;
}
