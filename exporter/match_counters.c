/* Layers that Keras named itself, and counted on: the second model of one program has dense_3,
 * dense_4 and dense_5 where the first has dense, dense_1 and dense_2. */
#include "exporter/keras_layers.h"
#include "exporter/match_parts.h"

#include <string.h>

static bool is_automatic(const char *base)
{
    static const char *const others[] = {"sequential",
                                         "functional",
                                         "model",
                                         "time_distributed",
                                         "multi_head_attention",
                                         "group_query_attention",
                                         "attention",
                                         "additive_attention",
                                         "rms_normalization",
                                         NULL};
    const char *names[MGPU_KERAS_VARIABLES];
    if (!strncmp(base, "forward_", 8) || !strncmp(base, "backward_", 9))
        base = strchr(base, '_') + 1;
    for (int i = 0; others[i]; i++)
        if (!strcmp(base, others[i]))
            return true;
    return mgpu_keras_variables(names, base, 0);
}

struct counting {
    struct mgpu_arena *arena;
    struct mgpu_names *lowest[2]; /* number + 1, by depth and base: of the file, of the model */
};

/* The part at `path`, cut behind its base; `depth` parts stand before it. */
static const char *key_of(const struct counting *c, const char *path, int depth, int *number,
                          bool *automatic)
{
    const char *part = mgpu_arena_format(c->arena, "%.*s", (int)strcspn(path, "/"), path);
    const char *base =
        mgpu_arena_format(c->arena, "%.*s", (int)mgpu_keras_numbered(part, number), part);
    *automatic = is_automatic(base);
    return mgpu_arena_format(c->arena, "%d %s", depth, base);
}

static void count_path(const struct counting *c, int side, const char *path)
{
    for (int depth = 0; *path; depth++) {
        int number;
        bool automatic;
        const char *key = key_of(c, path, depth, &number, &automatic);
        int known = (int)(intptr_t)mgpu_names_get(c->lowest[side], key);
        if (automatic && (!known || number < known - 1))
            mgpu_names_set(c->lowest[side], key, (void *)(intptr_t)(number + 1));
        path += strcspn(path, "/");
        path += *path == '/';
    }
}

/* The path with the model's numbers. */
static const char *recounted(const struct counting *c, const char *path)
{
    const char *out = "";
    for (int depth = 0; path && *path; depth++) {
        int number, n = (int)strcspn(path, "/");
        bool automatic;
        const char *key = key_of(c, path, depth, &number, &automatic);
        int theirs = (int)(intptr_t)mgpu_names_get(c->lowest[0], key);
        int ours = (int)(intptr_t)mgpu_names_get(c->lowest[1], key);
        const char *part = mgpu_arena_format(c->arena, "%.*s", n, path);
        int moved = number - theirs + ours;
        if (theirs && ours && moved > 0)
            part = mgpu_arena_format(c->arena, "%s_%d", strchr(key, ' ') + 1, moved);
        else if (theirs && ours && moved == 0)
            part = strchr(key, ' ') + 1;
        out = mgpu_arena_format(c->arena, "%s%s%s", out, depth ? "/" : "", part);
        path += n + (path[n] == '/');
    }
    return path ? out : NULL;
}

bool mgpu_match_recount(struct mgpu_match *m, struct mgpu_layers *f)
{
    struct counting c = {m->arena, {mgpu_names_new(m->arena), mgpu_names_new(m->arena)}};
    size_t root = mgpu_variables_root(m->model);
    bool changed = false;
    for (int i = 0; i < f->count; i++)
        count_path(&c, 0, f->layer[i].path);
    for (int i = 0; i < m->model->layers; i++)
        count_path(&c, 1, mgpu_variable_layer_name(m->model, i, root));
    for (int i = 0; i < f->count; i++) {
        struct mgpu_file_layer *l = &f->layer[i];
        const char *before = l->path;
        l->path = recounted(&c, l->path);
        l->inner = NULL; /* whole paths have to agree */
        l->outer = recounted(&c, l->outer);
        if (!changed && strcmp(before, l->path)) {
            changed = true;
            m->counted = mgpu_arena_format(m->arena, "'%s' is the model's '%s'", before, l->path);
        }
    }
    return changed;
}
