/* Layers of a file and of a model that are called the same. */
#include "exporter/keras_layers.h"
#include "exporter/match_parts.h"

#include <stdlib.h>
#include <string.h>

struct naming {
    struct mgpu_match *m;
    struct mgpu_layers *file;
    size_t model_root; /* the length of what all paths of the model begin with */
    const char *root;  /* what paths of the file begin with, of this length; the layers of other */
    size_t root_size;  /* paths are no layers of the model then */
    int tier;          /* 0: names must be equal, but for the roots; 1: one ends as the other; of a
                        * layer that another one wraps, 2: the model's may have one part more, or
                        * 3: the file's */
    bool strip;        /* "conv1_1" is conv1 */
};

/* ---- One layer ------------------------------------------------------------------------------- */

/* What was numbered again when the model was copied loses the number. */
static const char *spelled(const struct naming *n, const char *path)
{
    int number;
    if (!n->strip)
        return path;
    size_t first = strcspn(path, "/");
    const char *part = mgpu_arena_format(n->m->arena, "%.*s", (int)first, path);
    size_t base = mgpu_keras_numbered(part, &number);
    return mgpu_arena_format(n->m->arena, "%.*s%s", (int)base, part, path + first);
}

static bool is_end_of(const char *end, const char *path)
{
    size_t n = strlen(end), m = strlen(path);
    return n && n <= m && !strcmp(path + m - n, end) && (n == m || path[m - n - 1] == '/');
}

static const char *without_last(const struct naming *n, const char *path)
{
    const char *slash = strrchr(path, '/');
    return mgpu_arena_format(n->m->arena, "%.*s", slash ? (int)(slash - path) : 0, path);
}

static bool is_called(const struct naming *n, const char *path, const char *model_path)
{
    if (!*path || !*model_path)
        return !*path && !*model_path;
    if (n->tier == 2)
        model_path = without_last(n, model_path);
    if (n->tier == 3)
        path = without_last(n, path);
    if (n->tier > 0)
        return is_end_of(path, model_path);
    size_t root = strchr(model_path, '/') ? n->model_root : 0;
    return !strcmp(path, model_path) || !strcmp(path, model_path + root);
}

static bool has_root(const struct naming *n, const char *path)
{
    return !strncmp(path, n->root, n->root_size);
}

static bool same_layer(const struct naming *n, const struct mgpu_file_layer *l,
                       const struct mgpu_variable_layer *s)
{
    const char *path = s->direction ? l->outer : l->path;
    if (s->direction && (s->direction != l->direction || !path))
        return false;
    return is_called(n, spelled(n, path), s->path) ||
           (n->root_size && is_called(n, path + n->root_size, s->path)) ||
           (!s->direction && l->inner && is_called(n, spelled(n, l->inner), s->path));
}

/* The one layer of the model that the names allow; -1: none; -2: several. */
static int layer_called(const struct naming *n, const struct mgpu_file_layer *l, const bool *taken)
{
    int found = -1;
    for (int s = 0; s < n->m->model->layers; s++) {
        const struct mgpu_variable_layer *layer = &n->m->model->layer[s];
        if (taken[s] || !same_layer(n, l, layer) ||
            ((layer->guessed || n->tier >= 2) && !mgpu_match_looks_like(n->m, l, s)))
            continue;
        if (found >= 0)
            return -2;
        found = s;
    }
    return found;
}

/* ---- All layers ------------------------------------------------------------------------------ */

static void pair_layers(struct naming *n, bool *taken)
{
    for (n->tier = 0; n->tier < 4; n->tier++)
        for (int i = 0; i < n->file->count; i++) {
            struct mgpu_file_layer *l = &n->file->layer[i];
            if (l->of >= 0 || !*l->path || !has_root(n, l->path))
                continue;
            int s = layer_called(n, l, taken);
            if (s >= 0) {
                l->of = s;
                taken[s] = true;
            }
        }
}

static int named_layers(struct naming *n)
{
    bool *taken = mgpu_xcalloc((size_t)n->m->model->layers + 1, sizeof *taken);
    int count = 0;
    for (int i = 0; i < n->file->count; i++)
        n->file->layer[i].of = -1;
    pair_layers(n, taken);
    for (int i = 0; i < n->file->count; i++)
        count += n->file->layer[i].of >= 0;
    free(taken);
    return count;
}

/* ---- Roots ----------------------------------------------------------------------------------- */

static size_t first_part(const char *path)
{
    size_t n = strcspn(path, "/");
    return path[n] ? n + 1 : 0;
}

static int beginning_with(const struct mgpu_layers *f, const char *root, size_t size)
{
    int n = 0;
    for (int i = 0; i < f->count; i++)
        n += !strncmp(f->layer[i].path, root, size);
    return n;
}

/* One part longer: what all have that have the root, or, of the first part, more than half of the
 * layers: beside a model, Lightning's files hold losses and metrics. "module" is a wrapper only
 * where all have it. False: there is no such part. */
static bool longer_root(struct naming *n)
{
    const struct mgpu_layers *f = n->file;
    int least = n->root_size ? beginning_with(f, n->root, n->root_size) : f->count / 2 + 1;
    for (int i = 0; i < f->count; i++) {
        const char *path = f->layer[i].path;
        size_t more = has_root(n, path) ? first_part(path + n->root_size) : 0;
        int count = more ? beginning_with(f, path, n->root_size + more) : 0;
        bool module = more == 7 && !n->root_size && !strncmp(path, "module/", 7);
        if (count < (module ? f->count : least))
            continue;
        n->root = path;
        n->root_size += more;
        return true;
    }
    return false;
}

/* Counts with the root that most layers match with; the shortest of several such. */
static int best_root(struct naming *n)
{
    struct naming best = *n;
    int most = named_layers(n);
    while (most < n->file->count && longer_root(n)) {
        int count = named_layers(n);
        if (count > most) {
            best = *n;
            most = count;
        }
    }
    *n = best;
    return named_layers(n);
}

/* Only PyTorch's users look for it: in Keras it is the model's own name. */
static void tell_root(const struct naming *n)
{
    const struct mgpu_layers *f = n->file;
    if (n->m->file->kind < MGPU_CHECKPOINT_SAFETENSORS)
        return;
    for (int i = 0; i < f->count && n->root_size; i++)
        if (has_root(n, f->layer[i].path)) {
            const char *name = n->m->file->tensor[f->layer[i].tensor[0]].name;
            n->m->prefix = mgpu_arena_format(n->m->arena, "%.*s", (int)n->root_size, name);
            return;
        }
}

void mgpu_match_names(struct mgpu_match *m, struct mgpu_layers *f)
{
    struct naming n = {.m = m, .file = f, .model_root = mgpu_variables_root(m->model), .root = ""};
    int plain = best_root(&n);
    if (m->file->renumbered && plain < f->count) {
        n.strip = true;
        n.strip = named_layers(&n) > plain;
        if (!n.strip)
            named_layers(&n);
    }
    tell_root(&n);
    for (int i = 0; i < f->count; i++)
        if (f->layer[i].of >= 0)
            mgpu_match_layer(m, &f->layer[i], f->layer[i].of);
}
