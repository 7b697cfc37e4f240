#include "exporter/module_paths.h"

#include "exporter/scopes.h"
#include "runtime/base/names.h"

#include <string.h>

struct mgpu_module_paths {
    struct mgpu_arena *arena;
    struct mgpu_names *whole;  /* by layer, the module */
    struct mgpu_names *around; /* by the first parts of layers */
    struct mgpu_names *reader; /* by layer and input, the first weight that is read there, plus 1 */
    struct mgpu_names *clash;  /* layers that were counted on and have other weights */
};

/* In the tables: more than one module. */
static const char several[] = "";

struct mgpu_module_paths *mgpu_module_paths_new(struct mgpu_arena *arena)
{
    struct mgpu_module_paths *p = MGPU_NEW(arena, struct mgpu_module_paths);
    *p = (struct mgpu_module_paths){.arena = arena,
                                    .whole = mgpu_names_new(arena),
                                    .around = mgpu_names_new(arena),
                                    .reader = mgpu_names_new(arena),
                                    .clash = mgpu_names_new(arena)};
    return p;
}

/* ---- Layers that were counted on ------------------------------------------------------------- */

/* "/h.0/fc_1" without the number; NULL: it has none. */
static const char *uncounted(const struct mgpu_module_paths *p, const char *layer)
{
    size_t n = strlen(layer), digits = 0;
    while (digits < n && strchr("0123456789", layer[n - digits - 1]))
        digits++;
    bool counted = digits && digits + 1 < n && layer[n - digits - 1] == '_';
    return counted ? mgpu_arena_format(p->arena, "%.*s", (int)(n - digits - 1), layer) : NULL;
}

static const char *reader_key(const struct mgpu_module_paths *p, const char *layer, int input)
{
    return mgpu_arena_format(p->arena, "%d %s", input, layer);
}

void mgpu_module_paths_read(struct mgpu_module_paths *p, const char *layer, int input, int weight)
{
    const char *key = reader_key(p, layer, input);
    if (!mgpu_names_get(p->reader, key))
        mgpu_names_set(p->reader, key, (void *)(intptr_t)(weight + 1));
}

/* `base`: the layer without its number. */
static void find_clash(struct mgpu_module_paths *p, const char *layer, const char *base, int input,
                       int weight)
{
    int other =
        base ? (int)(intptr_t)mgpu_names_get(p->reader, reader_key(p, base, input)) - 1 : -1;
    int first = (int)(intptr_t)mgpu_names_get(p->reader, reader_key(p, layer, input)) - 1;
    if (other < 0 || first != weight || other == weight)
        return;
    mgpu_names_set(p->clash, base, p);
    mgpu_names_set(p->clash, mgpu_arena_string(p->arena, layer), p);
}

/* ---- What parameters prove ------------------------------------------------------------------- */

static void set(struct mgpu_names *table, const char *layer, const char *module)
{
    const char *known = mgpu_names_get(table, layer);
    mgpu_names_set(table, layer, (void *)(known && strcmp(known, module) ? several : module));
}

/* Where `part` stands last in the first `end` characters of the path; -1: nowhere. */
static int find_last(const char *path, int end, const char *part)
{
    int n = (int)strlen(part);
    for (int at = end - n; at >= 0; at--)
        if (!strncmp(path + at, part, (size_t)n) && (at == 0 || path[at - 1] == '/') &&
            (at + n == end || path[at + n] == '/'))
            return at;
    return -1;
}

/* A part as a path: "layer1.0" is layer1/0. */
static const char *slashed(const struct mgpu_module_paths *p, const char *from, const char *to)
{
    char *part = mgpu_arena_format(p->arena, "%.*s", (int)(to - from), from);
    for (char *dot = part; (dot = strchr(dot, '.'));)
        *dot = '/';
    return part;
}

/* The parts of "/enc/enc.0" from the last one on, each where it stands in the module's path. Gives
 * where the last one ends there; -1: one has no place, so that the module is another one's. */
static int place_parts(struct mgpu_module_paths *p, const char *layer, const char *module,
                       bool record)
{
    const char *to = layer + strlen(layer), *next = NULL;
    int at = (int)strlen(module), last = -1;
    while (to > layer) {
        const char *from = to;
        while (from > layer && from[-1] != '/')
            from--;
        const char *part = slashed(p, from, to);
        int n = (int)strlen(part), end = at - (next && at > 0);
        bool again = next && !strncmp(next, part, (size_t)n) && next[n] == '/';
        at = again ? at : find_last(module, end, part);
        if (at < 0)
            return -1;
        last = next ? last : at + n;
        if (record)
            set(p->around, mgpu_arena_format(p->arena, "%.*s", (int)(to - layer), layer),
                mgpu_arena_format(p->arena, "%.*s", at + n, module));
        next = part;
        to = from - (from > layer);
    }
    return last;
}

void mgpu_module_paths_learn(struct mgpu_module_paths *p, const char *layer, int input, int weight,
                             const char *module)
{
    const char *own = layer, *base = uncounted(p, layer);
    find_clash(p, layer, base, input, weight);
    if (!*module)
        return;
    int end = place_parts(p, own, module, false);
    if (end < 0 && base)
        end = place_parts(p, own = base, module, false);
    if (end < 0)
        return;
    place_parts(p, own, module, true);
    set(p->whole, mgpu_arena_string(p->arena, layer),
        mgpu_arena_format(p->arena, "%.*s", end, module));
}

/* ---- A layer's path -------------------------------------------------------------------------- */

struct mgpu_module_path mgpu_module_path_of(const struct mgpu_module_paths *p, const char *layer)
{
    const char *module = mgpu_names_get(p->whole, layer);
    if (module && module != several)
        return (struct mgpu_module_path){module, strlen(module), false};
    const char *path = mgpu_scope_of_layer(p->arena, layer);
    struct mgpu_module_path out = {path, 0, module || mgpu_names_get(p->clash, layer)};
    for (size_t n = strlen(layer); n > 1 && !module; n--) {
        if (layer[n] && layer[n] != '/')
            continue;
        const char *around = mgpu_arena_format(p->arena, "%.*s", (int)n, layer);
        module = mgpu_names_get(p->around, around);
        if (!module)
            continue;
        out.unknown |= module == several;
        if (module != several)
            out = (struct mgpu_module_path){
                mgpu_arena_format(p->arena, "%s%s", module,
                                  path + strlen(mgpu_scope_of_layer(p->arena, around))),
                strlen(module), out.unknown};
    }
    return out;
}
