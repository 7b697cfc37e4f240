/* Topology files:
 *
 *     {"version": 1,
 *      "kinds": [{"name": "mine", "like": "h100", "tflops": {"f32": 60, "half": 900},
 *                 "memory_gb_s": 3000, "launch_us": 7, "efficiency": {"compute": 0.7,
 *                 "memory": 0.7}, "interference": 1.3, "memory_gib": 80}],
 *      "devices": [{"name": "cuda", "count": 8, "kind": "mine", "machine": 0},
 *                  {"name": "old", "kind": "a100", "machine": 1, "memory_gib": 40}],
 *      "inside":  {"gb_s": 371, "latency_us": 3, "all_reduce_gb_s": 370, "shared": false},
 *      "between": {"gb_s": 48, "latency_us": 15, "adapters": 8},
 *      "links":   [{"from": "cuda:0", "to": "cuda:1", "gb_s": 12, "latency_us": 10}]}
 *
 * A kind of the table (h100 ...) may be used without an entry in "kinds"; without "like" an entry
 * must give tflops.f32, memory_gb_s and memory_gib. A device entry with a count is NAME:0, NAME:1
 * ... gb_s is in one direction. "inside" joins the devices of a machine (needed when one has two;
 * shared: all its transfers take turns), "between" the machines (needed when there are two; the
 * speed of one adapter, and how many a machine has), "links" are exceptions inside a machine, for
 * one direction each. A ring all-reduce runs at all_reduce_gb_s (default gb_s) or at its slowest
 * exception, a latency a hop.
 */
#include "partitioner/json_in.h"
#include "partitioner/plan_file.h"
#include "partitioner/topology_private.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KINDS = 64 };

struct kinds { /* while the file is read */
    int count;
    struct mgpu_device_kind kind[MOST_KINDS];
    double memory_gib[MOST_KINDS];
};

/* ---- Kinds ----------------------------------------------------------------------------------- */

static int find_kind(const struct kinds *k, const char *name)
{
    int i = 0;
    while (i < k->count && strcmp(k->kind[i].name, name))
        i++;
    return i < k->count ? i : -1;
}

static int add_kind(struct kinds *k, const struct mgpu_device_kind *kind, double gib,
                    const char *where)
{
    if (k->count == MOST_KINDS)
        return mgpu_fail(MGPU_EINVALID, "%s: more than %d kinds", where, MOST_KINDS);
    k->kind[k->count] = *kind;
    k->memory_gib[k->count] = gib;
    return k->count++;
}

/* The kind called `name`: of the file, else of the table. */
static int look_up(const struct kinds *k, const char *name, const char *where,
                   struct mgpu_device_kind *kind, double *gib)
{
    int found = find_kind(k, name), i = 0;
    if (found >= 0) {
        *kind = k->kind[found];
        *gib = k->memory_gib[found];
        return 0;
    }
    while (mgpu_known_devices[i].name && strcmp(mgpu_known_devices[i].name, name))
        i++;
    if (!mgpu_known_devices[i].name)
        return mgpu_fail(MGPU_EINVALID, "%s: '%.64s' is no kind of this file or of the table",
                         where, name);
    mgpu_kind_of_known(kind, &mgpu_known_devices[i]);
    *gib = mgpu_known_devices[i].memory_gib;
    return 0;
}

/* The number of the kind called `name`, which is added when only the table has it. */
static int used_kind(struct kinds *k, const char *name, const char *where)
{
    struct mgpu_device_kind kind;
    double gib;
    int found = find_kind(k, name);
    if (found >= 0)
        return found;
    MGPU_TRY(look_up(k, name, where, &kind, &gib));
    return add_kind(k, &kind, gib, where);
}

static int read_rates(struct mgpu_device_kind *kind, struct json_object *o, const char *where,
                      bool needed)
{
    static const char *const names[] = {[MGPU_RATE_F64] = "f64",
                                        [MGPU_RATE_F32] = "f32",
                                        [MGPU_RATE_TF32] = "tf32",
                                        [MGPU_RATE_HALF] = "half",
                                        NULL};
    struct json_object *rates = NULL;
    MGPU_TRY(mgpu_json_object(&rates, o, where, "tflops", needed));
    if (!rates)
        return 0;
    MGPU_TRY(mgpu_json_keys(rates, where, names));
    for (int r = 0; r < MGPU_RATES; r++) {
        double tflops = 0;
        MGPU_TRY(mgpu_json_number(&tflops, rates, where, names[r], needed && r == MGPU_RATE_F32,
                                  1e-6, 1e6));
        if (tflops > 0)
            kind->flops[r] = tflops * 1e12;
    }
    if (kind->flops[MGPU_RATE_F64] == 0)
        kind->flops[MGPU_RATE_F64] = kind->flops[MGPU_RATE_F32] / 2;
    for (int r = MGPU_RATE_TF32; r < MGPU_RATES; r++)
        if (kind->flops[r] == 0)
            kind->flops[r] = kind->flops[r - 1];
    return 0;
}

static int read_numbers(struct mgpu_device_kind *kind, double *memory_gib, struct json_object *o,
                        const char *where, bool needed)
{
    static const char *const shares[] = {"compute", "memory", NULL};
    double gb_s = kind->bytes / 1e9, us = kind->launch_ms * 1e3;
    struct json_object *efficiency = NULL;
    MGPU_TRY(mgpu_json_number(&gb_s, o, where, "memory_gb_s", needed, 1e-3, 1e7));
    MGPU_TRY(mgpu_json_number(&us, o, where, "launch_us", false, 0, 1e6));
    MGPU_TRY(mgpu_json_number(memory_gib, o, where, "memory_gib", needed, 1e-6, 1e7));
    MGPU_TRY(mgpu_json_number(&kind->interference, o, where, "interference", false, 1, 1e6));
    kind->bytes = gb_s * 1e9;
    kind->launch_ms = us / 1e3;
    MGPU_TRY(mgpu_json_object(&efficiency, o, where, "efficiency", false));
    if (!efficiency)
        return 0;
    MGPU_TRY(mgpu_json_keys(efficiency, where, shares));
    MGPU_TRY(
        mgpu_json_number(&kind->efficiency_compute, efficiency, where, "compute", false, 0.01, 1));
    return mgpu_json_number(&kind->efficiency_memory, efficiency, where, "memory", false, 0.01, 1);
}

static int read_kind(struct kinds *k, struct json_object *o, const char *where)
{
    static const char *const keys[] = {"name",         "like",       "tflops",
                                       "memory_gb_s",  "launch_us",  "efficiency",
                                       "interference", "memory_gib", NULL};
    struct mgpu_device_kind kind = {.launch_ms = 7e-3,
                                    .efficiency_compute = 0.7,
                                    .efficiency_memory = 0.7,
                                    .interference = 1.3};
    const char *name = NULL, *like = NULL;
    double gib = 0;
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    MGPU_TRY(mgpu_json_text(&name, o, where, "name", true));
    MGPU_TRY(mgpu_json_text(&like, o, where, "like", false));
    if (find_kind(k, name) >= 0)
        return mgpu_fail(MGPU_EINVALID, "%s: kind '%.64s' is there twice", where, name);
    if (like)
        MGPU_TRY(look_up(k, like, where, &kind, &gib));
    kind.name = name;
    MGPU_TRY(read_rates(&kind, o, where, !like));
    MGPU_TRY(read_numbers(&kind, &gib, o, where, !like));
    int rc = add_kind(k, &kind, gib, where);
    return rc < 0 ? rc : 0;
}

static int read_kinds(struct kinds *k, struct json_object *root)
{
    struct json_object *list = NULL, *o;
    char where[64];
    MGPU_TRY(mgpu_json_array(&list, root, "topology", "kinds", false));
    for (int i = 0; list && i < (int)json_object_array_length(list); i++) {
        snprintf(where, sizeof where, "kinds[%d]", i);
        MGPU_TRY(mgpu_json_item(&o, list, "kinds", i));
        MGPU_TRY(read_kind(k, o, where));
    }
    return 0;
}

/* ---- Devices --------------------------------------------------------------------------------- */

struct devices {
    int count, machines;
    struct mgpu_topology_device *device; /* MGPU_MAX_PLANNED */
};

static int add_device(struct devices *d, struct mgpu_topology_device device, const char *name,
                      int number, const char *where)
{
    size_t room = sizeof device.name;
    int n = number < 0 ? snprintf(device.name, room, "%s", name)
                       : snprintf(device.name, room, "%s:%d", name, number);
    if (n <= 0 || (size_t)n >= room)
        return mgpu_fail(MGPU_EINVALID, "%s: a name has 1 to %zu letters", where, room - 1);
    if (!mgpu_is_device_name(device.name))
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' is not a name: no ',' or '#', not 'all' or '%s'",
                         where, device.name, MGPU_AND_SO_ON);
    if (d->count == MGPU_MAX_PLANNED)
        return mgpu_fail(MGPU_EINVALID, "%s: more than %d devices", where, MGPU_MAX_PLANNED);
    for (int i = 0; i < d->count; i++)
        if (!strcmp(d->device[i].name, device.name))
            return mgpu_fail(MGPU_EINVALID, "%s: device '%s' is there twice", where, device.name);
    d->device[d->count++] = device;
    return 0;
}

static int read_device(struct devices *d, struct kinds *k, struct json_object *o, const char *where)
{
    static const char *const keys[] = {"name", "count", "kind", "machine", "memory_gib", NULL};
    const char *name = NULL, *kind = NULL;
    int64_t count = 0, machine = 0;
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    MGPU_TRY(mgpu_json_text(&name, o, where, "name", true));
    MGPU_TRY(mgpu_json_text(&kind, o, where, "kind", true));
    MGPU_TRY(mgpu_json_integer(&count, o, where, "count", false, 1, MGPU_MAX_PLANNED));
    MGPU_TRY(mgpu_json_integer(&machine, o, where, "machine", false, 0, MGPU_MAX_PLANNED - 1));
    int number = used_kind(k, kind, where);
    MGPU_TRY(number);
    double gib = k->memory_gib[number];
    MGPU_TRY(mgpu_json_number(&gib, o, where, "memory_gib", false, 1e-6, 1e7));
    struct mgpu_topology_device device = {
        .kind = number, .node = (int)machine, .memory = (int64_t)(gib * 0x1p30)};
    if (!count)
        return add_device(d, device, name, -1, where);
    for (int i = 0; i < count; i++)
        MGPU_TRY(add_device(d, device, name, i, where));
    return 0;
}

static int read_devices(struct devices *d, struct kinds *k, struct json_object *root)
{
    struct json_object *list = NULL, *o;
    char where[64];
    MGPU_TRY(mgpu_json_array(&list, root, "topology", "devices", true));
    for (int i = 0; i < (int)json_object_array_length(list); i++) {
        snprintf(where, sizeof where, "devices[%d]", i);
        MGPU_TRY(mgpu_json_item(&o, list, "devices", i));
        MGPU_TRY(read_device(d, k, o, where));
    }
    return d->count ? 0 : mgpu_fail(MGPU_EINVALID, "devices: the list is empty");
}

/* ---- Links ----------------------------------------------------------------------------------- */

struct speed {
    double gb_s, latency_us, ring_gb_s;
    int64_t adapters;
    bool shared;
};

static int read_speed(struct speed *s, struct json_object *root, const char *key, bool needed)
{
    static const char *const inside[] = {"gb_s", "latency_us", "all_reduce_gb_s", "shared", NULL};
    static const char *const between[] = {"gb_s", "latency_us", "adapters", NULL};
    struct json_object *o = NULL;
    *s = (struct speed){.gb_s = 1, .adapters = 1};
    MGPU_TRY(mgpu_json_object(&o, root, "topology", key, needed));
    if (!o)
        return 0;
    MGPU_TRY(mgpu_json_keys(o, key, strcmp(key, "inside") ? between : inside));
    MGPU_TRY(mgpu_json_number(&s->gb_s, o, key, "gb_s", true, 1e-6, 1e6));
    s->ring_gb_s = s->gb_s;
    MGPU_TRY(mgpu_json_number(&s->latency_us, o, key, "latency_us", false, 0, 1e7));
    MGPU_TRY(mgpu_json_number(&s->ring_gb_s, o, key, "all_reduce_gb_s", false, 1e-6, 1e6));
    MGPU_TRY(mgpu_json_integer(&s->adapters, o, key, "adapters", false, 1, MGPU_MAX_PLANNED));
    return mgpu_json_bool(&s->shared, o, key, "shared");
}

static int read_link(struct mgpu_topology *t, struct json_object *o, const char *where)
{
    static const char *const keys[] = {"from", "to", "gb_s", "latency_us", NULL};
    const char *end[2] = {NULL, NULL};
    int device[2];
    double gb_s = 0, us = -1;
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    for (int i = 0; i < 2; i++) {
        MGPU_TRY(mgpu_json_text(&end[i], o, where, keys[i], true));
        device[i] = mgpu_topology_find(t, end[i]);
        if (device[i] < 0)
            return mgpu_fail(MGPU_EINVALID, "%s: there is no device '%.64s'", where, end[i]);
    }
    if (device[0] == device[1] || t->device[device[0]].node != t->device[device[1]].node)
        return mgpu_fail(MGPU_EINVALID, "%s: '%s' and '%s' are not two devices of one machine",
                         where, end[0], end[1]);
    MGPU_TRY(mgpu_json_number(&gb_s, o, where, "gb_s", true, 1e-6, 1e6));
    MGPU_TRY(mgpu_json_number(&us, o, where, "latency_us", false, 0, 1e7));
    struct mgpu_link *l = &t->link[(size_t)device[0] * (size_t)t->devices + (size_t)device[1]];
    l->bytes = gb_s * 1e9;
    l->latency_ms = us >= 0 ? us / 1e3 : l->latency_ms;
    return 0;
}

static int read_links(struct mgpu_topology *t, struct json_object *root)
{
    struct json_object *list = NULL, *o;
    char where[64];
    MGPU_TRY(mgpu_json_array(&list, root, "topology", "links", false));
    for (int i = 0; list && i < (int)json_object_array_length(list); i++) {
        snprintf(where, sizeof where, "links[%d]", i);
        MGPU_TRY(mgpu_json_item(&o, list, "links", i));
        MGPU_TRY(read_link(t, o, where));
    }
    return 0;
}

static int set_speeds(struct mgpu_topology *t, struct json_object *root)
{
    bool pairs = false, machines = false;
    struct speed in, out;
    for (int i = 1; i < t->devices; i++) {
        bool same = t->device[i].node == t->device[i - 1].node;
        if (!same && t->device[i].node < t->device[i - 1].node)
            return mgpu_fail(MGPU_EINVALID, "devices: list them machine by machine, in order");
        pairs = pairs || same;
        machines = machines || !same;
    }
    MGPU_TRY(read_speed(&in, root, "inside", pairs));
    MGPU_TRY(read_speed(&out, root, "between", machines));
    mgpu_fabric_plain(&t->fabric, in.ring_gb_s * 1e9, 0, in.latency_us / 1e3);
    t->fabric.ring_ms[MGPU_PROTOCOLS - 1] = t->fabric.tree_ms[MGPU_PROTOCOLS - 1] =
        out.latency_us / 1e3;
    mgpu_links_inside(t, in.gb_s * 1e9, in.latency_us / 1e3, in.shared);
    mgpu_links_between(t, out.gb_s * 1e9, out.latency_us / 1e3, (int)out.adapters);
    return read_links(t, root);
}

/* ---- The file -------------------------------------------------------------------------------- */

static struct mgpu_topology *build(const char *path, const struct kinds *k, const struct devices *d)
{
    struct mgpu_topology *t = mgpu_topology_new(path, k->count, d->count);
    memcpy(t->kind, k->kind, sizeof *t->kind * (size_t)k->count);
    for (int i = 0; i < t->kinds; i++)
        t->kind[i].name = mgpu_arena_string(t->arena, k->kind[i].name);
    memcpy(t->device, d->device, sizeof *t->device * (size_t)d->count);
    return t;
}

static int read_all(struct mgpu_topology **out, const char *path, struct json_object *root,
                    struct devices *d)
{
    static const char *const keys[] = {"version", "kinds", "devices", "inside",
                                       "between", "links", NULL};
    struct kinds k = {0};
    int64_t version;
    MGPU_TRY(mgpu_json_keys(root, "topology", keys));
    MGPU_TRY(mgpu_json_integer(&version, root, "topology", "version", true, 1, 1));
    MGPU_TRY(read_kinds(&k, root));
    MGPU_TRY(read_devices(d, &k, root));
    *out = build(path, &k, d);
    return set_speeds(*out, root);
}

int mgpu_topology_json(struct mgpu_topology **out, const char *path)
{
    struct json_object *root;
    struct devices d = {.device = mgpu_xcalloc(MGPU_MAX_PLANNED, sizeof *d.device)};
    *out = NULL;
    int rc = mgpu_json_read(&root, path);
    if (rc == 0)
        rc = mgpu_prefix(read_all(out, path, root, &d), "%s", path);
    json_object_put(root);
    free(d.device);
    if (rc < 0) {
        mgpu_topology_free(*out);
        *out = NULL;
    }
    return rc;
}
