/* The plan in memory, and its text. Reading: plan_read.c. */
#include "partitioner/plan_file.h"

#include "exporter/atomic_file.h"
#include "runtime/base/status.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mgpu_plan_file *mgpu_plan_file_new(void)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_plan_file *plan = MGPU_NEW(arena, struct mgpu_plan_file);
    *plan = (struct mgpu_plan_file){.arena = arena,
                                    .model_file = "",
                                    .sha256 = "",
                                    .strategy = "single",
                                    .replicas = 1,
                                    .places = 1};
    return plan;
}

void mgpu_plan_file_free(struct mgpu_plan_file *plan)
{
    if (plan)
        mgpu_arena_free(plan->arena);
}

/* ---- Devices --------------------------------------------------------------------------------- */

bool mgpu_is_device_name(const char *name)
{
    return *name && !strpbrk(name, ",#") && strcmp(name, "all") && strcmp(name, MGPU_AND_SO_ON);
}

const char *mgpu_device_label(struct mgpu_arena *arena, const char *const *name, int device)
{
    int before = 0;
    for (int i = 0; i < device; i++)
        before += !strcmp(name[i], name[device]);
    return before ? mgpu_arena_format(arena, "%s#%d", name[device], before) : name[device];
}

void mgpu_plan_file_devices(struct mgpu_plan_file *plan, int count, const char *const *name)
{
    plan->devices = count;
    plan->device = MGPU_NEW_ARRAY(plan->arena, const char *, count);
    plan->label = MGPU_NEW_ARRAY(plan->arena, const char *, count);
    plan->predicted.memory_bytes = MGPU_NEW_ARRAY(plan->arena, int64_t, count);
    for (int i = 0; i < count; i++) {
        plan->device[i] = mgpu_arena_string(plan->arena, name[i]);
        plan->label[i] = mgpu_device_label(plan->arena, plan->device, i);
    }
}

const char *mgpu_plan_file_place(const struct mgpu_plan_file *plan, int place)
{
    enum { FEW = 4 };
    const char *text = plan->label[place];
    if (plan->replicas > 1 && plan->replicas == plan->devices)
        return "all";
    for (int r = 1; r < plan->replicas; r++) {
        bool left_out = plan->replicas > FEW && r > 1 && r < plan->replicas - 1;
        if (!left_out || r == 2)
            text = mgpu_arena_format(plan->arena, "%s,%s", text,
                                     left_out ? MGPU_AND_SO_ON
                                              : plan->label[r * plan->places + place]);
    }
    return text;
}

static int set_replicas(struct mgpu_plan_file *plan, const int *device, int count)
{
    plan->replicas = count;
    plan->places = count > 1 ? device[1] - device[0] : plan->devices;
    for (int r = 1; r < count; r++)
        if (device[r] <= device[r - 1])
            return mgpu_fail(MGPU_EINVALID, "the devices of a node must be listed in their order, "
                                            "each once");
    for (int r = 1; r < count; r++)
        if (device[r] - device[r - 1] != plan->places)
            return mgpu_fail(MGPU_EINVALID,
                             "the parts of a node must lie equally far apart in 'devices': '%s' "
                             "lies %d behind '%s', '%s' %d behind '%s'",
                             plan->label[device[1]], plan->places, plan->label[device[0]],
                             plan->label[device[r]], device[r] - device[r - 1],
                             plan->label[device[r - 1]]);
    if ((int64_t)count * plan->places > plan->devices)
        return mgpu_fail(MGPU_EINVALID,
                         "%d parts of a node that lie %d devices apart take %lld devices; "
                         "'devices' lists %d",
                         count, plan->places, (long long)count * plan->places, plan->devices);
    return 0;
}

int mgpu_plan_file_find(struct mgpu_plan_file *plan, const int *device, int count)
{
    if (!plan->replicas)
        MGPU_TRY(set_replicas(plan, device, count));
    if (count != plan->replicas)
        return mgpu_fail(MGPU_EINVALID,
                         "%d device%s, but the first node has %d: every node is computed in the "
                         "same number of parts",
                         count, count == 1 ? "" : "s", plan->replicas);
    for (int r = 0; r < count; r++)
        if (device[r] != device[0] + r * plan->places || device[0] >= plan->places)
            return mgpu_fail(MGPU_EINVALID,
                             "the parts of a node must lie %d devices apart, as those of the first "
                             "node do, from one of the first %d on",
                             plan->places, plan->places);
    return device[0];
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void put(struct json_object *o, const char *key, struct json_object *value)
{
    json_object_object_add(o, key, value);
}

static void put_text(struct json_object *o, const char *key, const char *text)
{
    put(o, key, json_object_new_string(text));
}

static void put_int(struct json_object *o, const char *key, int64_t value)
{
    put(o, key, json_object_new_int64(value));
}

/* With 6 digits: more would be noise. JSON has no word for what is not finite. */
static void put_number(struct json_object *o, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    put(o, key, isfinite(value) ? json_object_new_double_s(value, text) : NULL);
}

static struct json_object *rewrites_json(const struct mgpu_plan_file *plan)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < plan->rewrites; i++) {
        struct json_object *o = json_object_new_object(), *outputs = json_object_new_array();
        put_text(o, "kind", plan->rewrite[i].kind);
        for (int k = 0; k < plan->rewrite[i].outputs; k++)
            json_object_array_add(outputs, json_object_new_string(plan->rewrite[i].output[k]));
        put(o, "outputs", outputs);
        json_object_array_add(list, o);
    }
    return list;
}

/* By place: the text of its devices. */
static const char **place_texts(const struct mgpu_plan_file *plan)
{
    const char **text = MGPU_NEW_ARRAY(plan->arena, const char *, plan->places);
    for (int i = 0; i < plan->places; i++)
        text[i] = mgpu_plan_file_place(plan, i);
    return text;
}

static struct json_object *nodes_json(const struct mgpu_plan_file *plan, const char **place)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < plan->nodes; i++) {
        const struct mgpu_plan_node *n = &plan->node[i];
        struct json_object *o = json_object_new_object();
        put_text(o, "output", n->output);
        put_text(o, "name", n->name);
        put_text(o, "type", n->type);
        put_text(o, "device", place[n->place]);
        put_text(o, "slice", plan->replicas > 1 ? "batch" : "all");
        json_object_array_add(list, o);
    }
    return list;
}

static struct json_object *owners_json(const struct mgpu_plan_file *plan, const char **place)
{
    struct json_object *o = json_object_new_object();
    for (int i = 0; i < plan->owners; i++)
        put_text(o, plan->owner[i].parameter, place[plan->owner[i].place]);
    return o;
}

static struct json_object *predicted_json(const struct mgpu_plan_file *plan)
{
    const struct mgpu_predicted *p = &plan->predicted;
    struct json_object *o = json_object_new_object(), *memory = json_object_new_object();
    put_number(o, "step_ms", p->step_ms);
    put_number(o, "speedup", p->speedup);
    put_number(o, "single_ms", p->single_ms);
    for (int i = 0; i < plan->devices; i++)
        put_int(memory, plan->label[i], p->memory_bytes[i]);
    put(o, "memory_bytes", memory);
    put_int(o, "bytes_moved", p->bytes_moved);
    if (p->resident_bytes)
        put_int(o, "resident_bytes", p->resident_bytes);
    put_number(o, "lower_bound_ms", p->lower_bound_ms);
    put_number(o, "parallelism", p->parallelism);
    return o;
}

static struct json_object *alternatives_json(const struct mgpu_plan_file *plan)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < plan->alternatives; i++) {
        const struct mgpu_alternative *a = &plan->alternative[i];
        struct json_object *o = json_object_new_object();
        put_text(o, "strategy", a->strategy);
        put_int(o, "replicas", a->replicas);
        put_int(o, "places", a->places);
        put_int(o, "devices", a->devices);
        if (a->feasible) {
            put_number(o, "step_ms", a->step_ms);
            put_number(o, "speedup", a->speedup);
            put_int(o, "memory_bytes", a->memory_bytes);
            put_int(o, "bytes_moved", a->bytes_moved);
        } else {
            put(o, "step_ms", NULL);
        }
        if (a->recompute)
            put(o, "recompute", json_object_new_boolean(true));
        put_text(o, "why", a->why);
        json_object_array_add(list, o);
    }
    return list;
}

static struct json_object *plan_json(const struct mgpu_plan_file *plan)
{
    struct json_object *o = json_object_new_object(), *model = json_object_new_object();
    struct json_object *devices = json_object_new_array(), *buckets = json_object_new_array();
    const char **place = place_texts(plan);
    put_int(o, "version", MGPU_PLAN_VERSION);
    put_text(model, "file", plan->model_file);
    put_text(model, "sha256", plan->sha256);
    put(o, "model", model);
    put_int(o, "batch", plan->batch);
    for (int i = 0; i < plan->devices; i++)
        json_object_array_add(devices, json_object_new_string(plan->device[i]));
    put(o, "devices", devices);
    put_text(o, "strategy", plan->strategy);
    put(o, "rewrites", rewrites_json(plan));
    put(o, "nodes", nodes_json(plan, place));
    put(o, "owners", owners_json(plan, place));
    if (plan->bucket_bytes) {
        struct json_object *bucket = json_object_new_object();
        put_int(bucket, "bytes", plan->bucket_bytes);
        json_object_array_add(buckets, bucket);
    }
    put(o, "buckets", buckets);
    put(o, "predicted", predicted_json(plan));
    put(o, "alternatives", alternatives_json(plan));
    put(o, "profile", plan->profile ? json_object_new_string(plan->profile) : NULL);
    return o;
}

/* One line for each field, and for each element of a list: short, and good to edit. */
static void print_fields(struct json_object *o, FILE *to)
{
    const int flags = JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE;
    const char *end = "{\n";
    json_object_object_foreach(o, key, value)
    {
        struct json_object *name = json_object_new_string(key);
        fprintf(to, "%s  %s: ", end, json_object_to_json_string_ext(name, flags));
        json_object_put(name);
        end = ",\n";
        bool lines = json_object_is_type(value, json_type_array) &&
                     json_object_array_length(value) > 0 && strcmp(key, "devices");
        if (!lines) {
            fputs(json_object_to_json_string_ext(value, flags), to);
            continue;
        }
        for (size_t i = 0; i < json_object_array_length(value); i++)
            fprintf(to, "%s    %s", i ? ",\n" : "[\n",
                    json_object_to_json_string_ext(json_object_array_get_idx(value, i), flags));
        fputs("\n  ]", to);
    }
    fputs("\n}\n", to);
}

int mgpu_plan_file_print(const struct mgpu_plan_file *plan, FILE *to)
{
    struct json_object *o = plan_json(plan);
    print_fields(o, to);
    json_object_put(o);
    return fflush(to) || ferror(to) ? mgpu_fail(MGPU_EIO, "the plan cannot be written") : 0;
}

int mgpu_plan_file_write(const struct mgpu_plan_file *plan, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory)
        return mgpu_fail(MGPU_ENOMEM, "%s: no memory for the plan", path);
    int rc = mgpu_plan_file_print(plan, memory);
    if (fclose(memory) && rc == 0)
        rc = mgpu_fail(MGPU_ENOMEM, "%s: no memory for the plan", path);
    if (rc == 0)
        rc = mgpu_atomic_save(path, text, size);
    free(text);
    return rc;
}
