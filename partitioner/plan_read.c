/* Reading plan.json: nothing of it is trusted. */
#include "partitioner/plan_file.h"

#include "partitioner/json_in.h"
#include "runtime/base/names.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE = 512 };

struct reader {
    struct mgpu_plan_file *plan;
    struct json_object *root;
    const char *path;
    struct mgpu_names *places; /* texts of devices that were read, to their place */
};

/* "plan.json: nodes[3]", for messages. */
static const char *entry(char where[WHERE], const struct reader *r, const char *list, int i)
{
    snprintf(where, WHERE, "%.400s: %s[%d]", r->path, list, i);
    return where;
}

static int text(const char **out, const struct reader *r, struct json_object *o, const char *where,
                const char *key)
{
    MGPU_TRY(mgpu_json_text(out, o, where, key, true));
    *out = mgpu_arena_string(r->plan->arena, *out);
    return 0;
}

/* A list of texts. */
static int texts(const char ***out, int *count, const struct reader *r, struct json_object *o,
                 const char *where, const char *key)
{
    struct json_object *list;
    MGPU_TRY(mgpu_json_array(&list, o, where, key, true));
    *count = (int)json_object_array_length(list);
    *out = MGPU_NEW_ARRAY(r->plan->arena, const char *, *count);
    for (int i = 0; i < *count; i++) {
        struct json_object *item = json_object_array_get_idx(list, (size_t)i);
        if (!json_object_is_type(item, json_type_string))
            return mgpu_fail(MGPU_EINVALID, "%s: '%s': entry %d must be a text", where, key, i);
        (*out)[i] = mgpu_arena_string(r->plan->arena, json_object_get_string(item));
    }
    return 0;
}

/* ---- Head ------------------------------------------------------------------------------------ */

static int read_version(const struct reader *r)
{
    int64_t version;
    MGPU_TRY(mgpu_json_integer(&version, r->root, r->path, "version", true, 0, INT_MAX));
    return version == MGPU_PLAN_VERSION
               ? 0
               : mgpu_fail(MGPU_EINVALID, "%s: a plan of version %lld; this mgpu reads version %d",
                           r->path, (long long)version, MGPU_PLAN_VERSION);
}

static int check_root(const struct reader *r)
{
    static const char *const keys[] = {"version",      "model",   "batch",  "devices", "strategy",
                                       "rewrites",     "nodes",   "owners", "buckets", "predicted",
                                       "alternatives", "profile", NULL};
    return mgpu_json_keys(r->root, r->path, keys);
}

static int read_model(const struct reader *r)
{
    static const char *const keys[] = {"file", "sha256", NULL};
    struct mgpu_plan_file *plan = r->plan;
    struct json_object *model;
    MGPU_TRY(mgpu_json_object(&model, r->root, r->path, "model", true));
    MGPU_TRY(mgpu_json_keys(model, r->path, keys));
    MGPU_TRY(text(&plan->model_file, r, model, r->path, "file"));
    MGPU_TRY(text(&plan->sha256, r, model, r->path, "sha256"));
    if (strlen(plan->sha256) != 64 || strspn(plan->sha256, "0123456789abcdef") != 64)
        return mgpu_fail(MGPU_EINVALID, "%s: 'sha256' must be 64 hexadecimal digits", r->path);
    return 0;
}

static int read_devices(const struct reader *r)
{
    const char **name;
    int count;
    MGPU_TRY(texts(&name, &count, r, r->root, r->path, "devices"));
    if (count < 1 || count > MGPU_PLAN_DEVICES)
        return mgpu_fail(MGPU_EINVALID, "%s: 'devices' lists %d: not from 1 to %d", r->path, count,
                         MGPU_PLAN_DEVICES);
    for (int i = 0; i < count; i++)
        if (!mgpu_is_device_name(name[i]))
            return mgpu_fail(MGPU_EINVALID, "%s: 'devices': '%s' is not the name of a device",
                             r->path, name[i]);
    mgpu_plan_file_devices(r->plan, count, name);
    return 0;
}

static int read_strategy(const struct reader *r)
{
    static const char *const known[] = {"single", "data", "branch", "hybrid", "stacked", "manual"};
    enum { KNOWN = sizeof known / sizeof *known };
    MGPU_TRY(text(&r->plan->strategy, r, r->root, r->path, "strategy"));
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(r->plan->strategy, known[i]))
            return 0;
    mgpu_unknown_name("strategy", r->plan->strategy, known, KNOWN);
    return mgpu_prefix(MGPU_EINVALID, "%s", r->path);
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

static int add_device(const struct mgpu_plan_file *plan, const char *word, struct set *s, int i)
{
    if (s->count == plan->devices)
        return mgpu_fail(MGPU_EINVALID, "'%s' names a device twice", word);
    s->device[s->count++] = i;
    return 0;
}

/* Those between the last and device `to`, as far from each other as the last two. */
static int go_on(const struct mgpu_plan_file *plan, const char *word, struct set *s, int to)
{
    int last = s->count ? s->device[s->count - 1] : to;
    int step = s->count > 1 ? last - s->device[s->count - 2] : 1;
    if (step < 1 || last >= to || (to - last) % step)
        return mgpu_fail(MGPU_EINVALID,
                         "'%s': '" MGPU_AND_SO_ON "' goes on at the distance of the two devices "
                         "before it, up to the one behind it",
                         word);
    for (int i = last + step; i < to; i += step)
        MGPU_TRY(add_device(plan, word, s, i));
    return 0;
}

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
        bool more = !strcmp(name, MGPU_AND_SO_ON) && rest;
        int i = find_device(plan, more ? name = strsep(&rest, ",") : name);
        MGPU_TRY(i);
        if (more)
            MGPU_TRY(go_on(plan, word, out, i));
        MGPU_TRY(add_device(plan, word, out, i));
    }
    return 0;
}

/* Most nodes stand where one before stood: texts are remembered. */
static int place_called(const struct reader *r, const char *word, int *out)
{
    struct set s;
    const int *before = mgpu_names_get(r->places, word);
    if (before) {
        *out = *before;
        return 0;
    }
    MGPU_TRY(parse_set(r->plan, word, &s));
    *out = mgpu_plan_file_find(r->plan, s.device, s.count);
    MGPU_TRY(*out);
    mgpu_names_set(r->places, word, mgpu_arena_copy(r->plan->arena, out, sizeof *out));
    return 0;
}

/* The place that o[key] names. */
static int read_place(int *out, const struct reader *r, struct json_object *o, const char *where,
                      const char *key)
{
    const char *word;
    MGPU_TRY(text(&word, r, o, where, key));
    return mgpu_prefix(place_called(r, word, out), "%s: '%s'", where, key);
}

/* ---- Nodes and what belongs to them ---------------------------------------------------------- */

static int check_slice(const struct reader *r, const char *where, const char *slice)
{
    if (strcmp(slice, "all") && strcmp(slice, "batch"))
        return mgpu_fail(MGPU_EINVALID, "%s: 'slice' is '%s', not 'all' or 'batch'", where, slice);
    if (r->plan->replicas > 1 && !strcmp(slice, "all"))
        return mgpu_fail(MGPU_EINVALID,
                         "%s: 'slice' is 'all', but there are %d devices: each takes its part "
                         "('batch')",
                         where, r->plan->replicas);
    return 0;
}

static int read_node(const struct reader *r, struct json_object *list, int i)
{
    char buffer[WHERE];
    const char *where = entry(buffer, r, "nodes", i), *slice;
    static const char *const keys[] = {"output", "name", "type", "device", "slice", NULL};
    struct mgpu_plan_node *n = &r->plan->node[i];
    struct json_object *o;
    MGPU_TRY(mgpu_json_item(&o, list, where, i));
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    MGPU_TRY(text(&n->output, r, o, where, "output"));
    MGPU_TRY(text(&n->name, r, o, where, "name"));
    MGPU_TRY(text(&n->type, r, o, where, "type"));
    MGPU_TRY(mgpu_json_text(&slice, o, where, "slice", true));
    MGPU_TRY(read_place(&n->place, r, o, where, "device"));
    return check_slice(r, where, slice);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No name twice. */
static int check_unique(const struct reader *r)
{
    struct mgpu_plan_file *plan = r->plan;
    const char **name = MGPU_NEW_ARRAY(plan->arena, const char *, plan->nodes);
    for (int i = 0; i < plan->nodes; i++)
        name[i] = plan->node[i].output;
    qsort(name, (size_t)plan->nodes, sizeof *name, by_text);
    for (int i = 1; i < plan->nodes; i++)
        if (!strcmp(name[i], name[i - 1]))
            return mgpu_fail(MGPU_EINVALID, "%s: '%s' is placed twice", r->path, name[i]);
    return 0;
}

static int read_nodes(const struct reader *r)
{
    struct json_object *list;
    struct mgpu_plan_file *plan = r->plan;
    MGPU_TRY(mgpu_json_array(&list, r->root, r->path, "nodes", true));
    plan->nodes = (int)json_object_array_length(list);
    if (!plan->nodes)
        return mgpu_fail(MGPU_EINVALID, "%s: 'nodes' is empty", r->path);
    plan->node = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_node, plan->nodes);
    for (int i = 0; i < plan->nodes; i++)
        MGPU_TRY(read_node(r, list, i));
    return check_unique(r);
}

static int read_rewrites(const struct reader *r)
{
    static const char *const keys[] = {"kind", "outputs", NULL};
    char buffer[WHERE];
    struct json_object *list, *o;
    struct mgpu_plan_file *plan = r->plan;
    MGPU_TRY(mgpu_json_array(&list, r->root, r->path, "rewrites", true));
    plan->rewrites = (int)json_object_array_length(list);
    plan->rewrite = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_rewrite, plan->rewrites);
    for (int i = 0; i < plan->rewrites; i++) {
        struct mgpu_plan_rewrite *w = &plan->rewrite[i];
        const char *where = entry(buffer, r, "rewrites", i);
        MGPU_TRY(mgpu_json_item(&o, list, where, i));
        MGPU_TRY(mgpu_json_keys(o, where, keys));
        MGPU_TRY(text(&w->kind, r, o, where, "kind"));
        MGPU_TRY(texts(&w->output, &w->outputs, r, o, where, "outputs"));
    }
    return 0;
}

static int read_owners(const struct reader *r)
{
    char where[WHERE];
    struct json_object *owners;
    struct mgpu_plan_file *plan = r->plan;
    int i = 0;
    MGPU_TRY(mgpu_json_object(&owners, r->root, r->path, "owners", true));
    snprintf(where, sizeof where, "%.400s: owners", r->path);
    plan->owner =
        MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_owner, json_object_object_length(owners));
    json_object_object_foreach(owners, key, value)
    {
        (void)value;
        plan->owner[i].parameter = mgpu_arena_string(plan->arena, key);
        MGPU_TRY(read_place(&plan->owner[i].place, r, owners, where, key));
        i++;
    }
    plan->owners = i;
    return 0;
}

/* How many places compute. */
static int computing_places(const struct mgpu_plan_file *plan)
{
    bool *computes = MGPU_NEW_ARRAY(plan->arena, bool, plan->places);
    int count = 0;
    for (int i = 0; i < plan->nodes; i++) {
        count += !computes[plan->node[i].place];
        computes[plan->node[i].place] = true;
    }
    return count;
}

/* Places up to the last that has something to do. */
static int used_places(const struct mgpu_plan_file *plan)
{
    int last = 0;
    for (int i = 0; i < plan->nodes; i++)
        last = plan->node[i].place > last ? plan->node[i].place : last;
    for (int i = 0; i < plan->owners; i++)
        last = plan->owner[i].place > last ? plan->owner[i].place : last;
    return last + 1;
}

static const char *strategy_of(const struct mgpu_plan_file *plan, int places)
{
    if (plan->replicas > 1)
        return places > 1 ? "hybrid" : "data";
    return places > 1 ? "branch" : "single";
}

/* The strategy is a name for what the nodes' devices say; weights may have one of their own. */
static int check_strategy(const struct reader *r)
{
    const struct mgpu_plan_file *plan = r->plan;
    const char *is = strategy_of(plan, computing_places(plan)), *said = plan->strategy;
    if (!strcmp(said, is) || !strcmp(said, strategy_of(plan, used_places(plan))) ||
        !strcmp(said, "stacked") || !strcmp(said, "manual"))
        return 0;
    return mgpu_fail(MGPU_EINVALID,
                     "%s: 'strategy' is '%s', but by their devices the nodes are '%s'", r->path,
                     said, is);
}

static int read_buckets(const struct reader *r)
{
    char buffer[WHERE];
    static const char *const keys[] = {"bytes", NULL};
    struct json_object *list, *o;
    MGPU_TRY(mgpu_json_array(&list, r->root, r->path, "buckets", true));
    for (int i = 0; i < (int)json_object_array_length(list); i++) {
        int64_t bytes;
        const char *where = entry(buffer, r, "buckets", i);
        MGPU_TRY(mgpu_json_item(&o, list, where, i));
        MGPU_TRY(mgpu_json_keys(o, where, keys));
        MGPU_TRY(mgpu_json_integer(&bytes, o, where, "bytes", true, 1, INT64_MAX));
        if (bytes > r->plan->bucket_bytes)
            r->plan->bucket_bytes = bytes;
    }
    return 0;
}

/* ---- What only informs: may be missing ------------------------------------------------------- */

/* null: there is none. */
static int number(double *out, struct json_object *o, const char *where, const char *key)
{
    struct json_object *v;
    *out = 0;
    if (json_object_object_get_ex(o, key, &v) && !v)
        return 0;
    return mgpu_json_number(out, o, where, key, false, 0, 1e300);
}

static int count(int64_t *out, struct json_object *o, const char *where, const char *key)
{
    *out = 0;
    return mgpu_json_integer(out, o, where, key, false, 0, INT64_MAX);
}

static int read_predicted(const struct reader *r)
{
    char where[WHERE];
    struct mgpu_plan_file *plan = r->plan;
    struct mgpu_predicted *p = &plan->predicted;
    struct json_object *o = NULL, *memory = NULL;
    snprintf(where, sizeof where, "%.400s: predicted", r->path);
    MGPU_TRY(mgpu_json_object(&o, r->root, r->path, "predicted", false));
    if (!o)
        return 0;
    MGPU_TRY(number(&p->step_ms, o, where, "step_ms"));
    MGPU_TRY(number(&p->speedup, o, where, "speedup"));
    MGPU_TRY(number(&p->single_ms, o, where, "single_ms"));
    MGPU_TRY(number(&p->lower_bound_ms, o, where, "lower_bound_ms"));
    MGPU_TRY(number(&p->parallelism, o, where, "parallelism"));
    MGPU_TRY(count(&p->bytes_moved, o, where, "bytes_moved"));
    MGPU_TRY(count(&p->resident_bytes, o, where, "resident_bytes"));
    MGPU_TRY(mgpu_json_object(&memory, o, where, "memory_bytes", false));
    for (int i = 0; memory && i < plan->devices; i++)
        MGPU_TRY(count(&p->memory_bytes[i], memory, where, plan->label[i]));
    return 0;
}

static int read_alternative(const struct reader *r, struct json_object *list, int i)
{
    char buffer[WHERE];
    const char *where = entry(buffer, r, "alternatives", i);
    struct mgpu_alternative *a = &r->plan->alternative[i];
    struct json_object *o;
    int64_t replicas = 0, places = 0, devices = 0;
    MGPU_TRY(mgpu_json_item(&o, list, where, i));
    MGPU_TRY(text(&a->strategy, r, o, where, "strategy"));
    MGPU_TRY(text(&a->why, r, o, where, "why"));
    MGPU_TRY(number(&a->step_ms, o, where, "step_ms"));
    MGPU_TRY(number(&a->speedup, o, where, "speedup"));
    MGPU_TRY(count(&a->memory_bytes, o, where, "memory_bytes"));
    MGPU_TRY(count(&a->bytes_moved, o, where, "bytes_moved"));
    MGPU_TRY(mgpu_json_integer(&replicas, o, where, "replicas", false, 0, MGPU_PLAN_DEVICES));
    MGPU_TRY(mgpu_json_integer(&places, o, where, "places", false, 0, MGPU_PLAN_DEVICES));
    MGPU_TRY(mgpu_json_integer(&devices, o, where, "devices", false, 0, MGPU_PLAN_DEVICES));
    a->replicas = (int)replicas;
    a->places = (int)places;
    a->devices = (int)devices;
    MGPU_TRY(mgpu_json_bool(&a->recompute, o, where, "recompute"));
    a->feasible = a->step_ms > 0;
    return 0;
}

static int read_alternatives(const struct reader *r)
{
    struct json_object *list = NULL;
    struct mgpu_plan_file *plan = r->plan;
    MGPU_TRY(mgpu_json_array(&list, r->root, r->path, "alternatives", false));
    plan->alternatives = list ? (int)json_object_array_length(list) : 0;
    plan->alternative = MGPU_NEW_ARRAY(plan->arena, struct mgpu_alternative, plan->alternatives);
    for (int i = 0; i < plan->alternatives; i++)
        MGPU_TRY(read_alternative(r, list, i));
    return 0;
}

/* null: none. */
static int read_profile(const struct reader *r)
{
    struct json_object *profile;
    if (!json_object_object_get_ex(r->root, "profile", &profile) || !profile)
        return 0;
    return text(&r->plan->profile, r, r->root, r->path, "profile");
}

static int read_all(const struct reader *r)
{
    r->plan->replicas = r->plan->places = 0; /* until the first node says */
    MGPU_TRY(read_version(r));
    MGPU_TRY(check_root(r));
    MGPU_TRY(read_model(r));
    MGPU_TRY(
        mgpu_json_integer(&r->plan->batch, r->root, r->path, "batch", true, 1, INT64_C(1) << 40));
    MGPU_TRY(read_devices(r));
    MGPU_TRY(read_strategy(r));
    MGPU_TRY(read_rewrites(r));
    MGPU_TRY(read_nodes(r));
    MGPU_TRY(read_owners(r));
    MGPU_TRY(check_strategy(r));
    if (r->plan->replicas == 1)
        r->plan->places = used_places(r->plan);
    MGPU_TRY(read_buckets(r));
    MGPU_TRY(read_predicted(r));
    MGPU_TRY(read_alternatives(r));
    return read_profile(r);
}

int mgpu_plan_file_read(struct mgpu_plan_file **out, const char *path)
{
    struct reader r = {.path = path};
    *out = NULL;
    MGPU_TRY(mgpu_json_read(&r.root, path));
    r.plan = mgpu_plan_file_new();
    r.places = mgpu_names_new(r.plan->arena);
    int rc = read_all(&r);
    json_object_put(r.root);
    if (rc < 0)
        mgpu_plan_file_free(r.plan);
    else
        *out = r.plan;
    return rc;
}
