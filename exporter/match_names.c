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

bool mgpu_match_is_end(const char *end, const char *path)
{
    size_t n = strlen(end), m = strlen(path);
    return n && n <= m && !strcmp(path + m - n, end) && (n == m || path[m - n - 1] == '/');
}

static const char *without_last(const struct naming *n, const char *path)
{
    const char *slash = strrchr(path, '/');
    return mgpu_arena_format(n->m->arena, "%.*s", slash ? (int)(slash - path) : 0, path);
}

/* Whether one of its parts is all that the path has more: Keras's TimeDistributed may wrap a model,
 * whose name the graph does not have. */
static bool has_one_more(const struct naming *n, const char *path, const char *model_path)
{
    for (const char *part = path; *part;) {
        size_t size = strcspn(part, "/"), before = (size_t)(part - path);
        const char *rest = part + size;
        const char *shorter = mgpu_arena_format(
            n->m->arena, "%.*s%s", (int)(before - (before && !*rest)), path, rest + (*rest == '/'));
        if (mgpu_match_is_end(shorter, model_path))
            return true;
        part = rest + (*rest == '/');
    }
    return false;
}

static bool is_called(const struct naming *n, const char *path, const char *model_path)
{
    if (!*path || !*model_path)
        return !*path && !*model_path;
    if (n->tier == 2)
        model_path = without_last(n, model_path);
    if (n->tier == 3 && n->m->file->kind < MGPU_CHECKPOINT_SAFETENSORS)
        return has_one_more(n, path, model_path);
    if (n->tier == 3)
        path = without_last(n, path);
    if (n->tier > 0)
        return mgpu_match_is_end(path, model_path);
    size_t root = strchr(model_path, '/') ? n->model_root : 0;
    return !strcmp(path, model_path) || !strcmp(path, model_path + root);
}

static bool has_root(const struct naming *n, const char *path)
{
    return !strncmp(path, n->root, n->root_size);
}

static bool is_at(const struct naming *n, const struct mgpu_file_layer *l, const char *path,
                  enum mgpu_direction direction)
{
    const char *theirs = direction ? l->outer : l->path;
    if (direction && (direction != l->direction || !theirs))
        return false;
    return is_called(n, spelled(n, theirs), path) ||
           (n->root_size && is_called(n, theirs + n->root_size, path)) ||
           (!direction && l->inner && is_called(n, spelled(n, l->inner), path));
}

static bool same_layer(const struct naming *n, const struct mgpu_file_layer *l,
                       const struct mgpu_variable_layer *s)
{
    return is_at(n, l, s->path, s->direction) ||
           (s->elsewhere && is_at(n, l, s->elsewhere, s->direction));
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

/* ---- Layers in what was not called ----------------------------------------------------------- */

/* Whether the path is the layer's with more parts between those that nothing proves: of a
 * ModuleDict TorchScript does not tell, and what it counts on may have its number from there. */
static bool may_be_inside(const struct naming *n, const char *path,
                          const struct mgpu_variable_layer *s)
{
    const char *ours = s->path + s->proven, *theirs = path + s->proven;
    if (s->proven == strlen(s->path) || strncmp(path, s->path, s->proven))
        return false;
    while (*ours) {
        int number;
        ours += *ours == '/';
        const char *part = mgpu_arena_format(n->m->arena, "%.*s", (int)strcspn(ours, "/"), ours);
        bool last = !ours[strlen(part)], found = false;
        size_t base = last && s->guessed ? mgpu_keras_numbered(part, &number) : strlen(part);
        while (*theirs && !found) {
            theirs += *theirs == '/';
            size_t size = strcspn(theirs, "/");
            found = (!last || !theirs[size]) && !strncmp(theirs, part, size) &&
                    (size == strlen(part) || size == base);
            theirs += size;
        }
        if (!found)
            return false;
        ours += strlen(part);
    }
    return !*theirs;
}

/* The one layer of the file that such a layer may be; -1: none, or several. */
static int layer_inside(const struct naming *n, int layer)
{
    int found = -1;
    for (int i = 0; i < n->file->count; i++) {
        const struct mgpu_file_layer *l = &n->file->layer[i];
        if (l->of >= 0 || !may_be_inside(n, l->path, &n->m->model->layer[layer]) ||
            !mgpu_match_looks_like(n->m, l, layer))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static bool is_taken(const struct naming *n, int layer)
{
    for (int i = 0; i < n->file->count; i++)
        if (n->file->layer[i].of == layer)
            return true;
    return false;
}

/* Each of the layers and each of the file's must have but one that it may be. */
static void pair_inside(struct naming *n)
{
    const struct mgpu_variables *v = n->m->model;
    for (int s = 0; s < v->layers && !n->m->rivals; s++) {
        int found = is_taken(n, s) ? -1 : layer_inside(n, s);
        for (int other = 0; other < v->layers && found >= 0; other++)
            if (other != s && !is_taken(n, other) &&
                may_be_inside(n, n->file->layer[found].path, &v->layer[other]) &&
                mgpu_match_looks_like(n->m, &n->file->layer[found], other))
                found = -1;
        if (found >= 0)
            n->file->layer[found].of = s;
    }
}

/* ---- Roots ----------------------------------------------------------------------------------- */

static size_t first_part(const char *path)
{
    size_t n = strcspn(path, "/");
    return path[n] ? n + 1 : 0;
}

/* The part of the name that the root of one part was. */
static const char *in_quotes(const struct naming *n, const char *path)
{
    return mgpu_arena_format(n->m->arena, "'%.*s'", (int)first_part(path) - 1, path);
}

/* In the model whose name `path` begins with, or a parameter of it itself. */
static bool is_of(const struct mgpu_file_layer *l, const char *path)
{
    size_t n = first_part(path) - 1;
    return !strncmp(l->path, path, n) && (!l->path[n] || l->path[n] == '/');
}

static void tell_rivals(struct naming *n, const char *a, const char *b)
{
    n->m->rivals = mgpu_arena_format(n->m->arena, "two models, %s and %s: --map tells which",
                                     in_quotes(n, a), in_quotes(n, b));
    const char *why = mgpu_arena_format(n->m->arena, "is of one of %s", n->m->rivals);
    for (int i = 0; i < n->file->count; i++) {
        const struct mgpu_file_layer *l = &n->file->layer[i];
        bool either = is_of(l, a) || is_of(l, b);
        for (int k = 0; k < l->tensors && either; k++)
            n->m->why[l->tensor[k]] = why;
    }
}

static int beginning_with(const struct mgpu_layers *f, const char *root, size_t size)
{
    int n = 0;
    for (int i = 0; i < f->count; i++)
        n += !strncmp(f->layer[i].path, root, size);
    return n;
}

/* One part longer, where all layers go on with it that have the root so far. */
static bool longer_root(struct naming *n)
{
    size_t more = first_part(n->root + n->root_size), size = n->root_size + more;
    if (!more ||
        beginning_with(n->file, n->root, size) < beginning_with(n->file, n->root, n->root_size))
        return false;
    n->root_size = size;
    return true;
}

struct best_root {
    const char *root;
    size_t size;
    int most;          /* layers that match with it */
    bool told;         /* rules of the user name tensors that have it */
    const char *rival; /* another one, with which as many do; or NULL */
};

/* Whether something in the model whose name `path` begins with has its place already. */
static bool is_told(const struct naming *n, const char *path)
{
    for (int i = 0; i < n->file->count; i++)
        for (int k = 0; k < n->file->layer[i].tensors; k++)
            if (is_of(&n->file->layer[i], path) && n->m->variable[n->file->layer[i].tensor[k]] >= 0)
                return true;
    return false;
}

/* A root of one part, and longer ones below it. */
static void try_root(struct naming *n, struct best_root *best, const char *path)
{
    bool told = is_told(n, path);
    n->root = path;
    n->root_size = first_part(path);
    do {
        int count = named_layers(n);
        bool equal = count == best->most && best->size;
        if (count > best->most || (equal && told && !best->told))
            *best = (struct best_root){path, n->root_size, count, told, NULL};
        else if (equal && told == best->told && strncmp(path, best->root, first_part(path)))
            best->rival = path;
    } while (longer_root(n));
}

/* Whether the layer's first part is worth a try as a root: not tried before, and in front of as
 * many layers as match already. "module" is a wrapper only where all have it. */
static bool may_be_root(const struct mgpu_layers *f, int layer, int most)
{
    const char *path = f->layer[layer].path;
    size_t n = first_part(path);
    int count = n ? beginning_with(f, path, n) : 0;
    for (int i = 0; i < layer && n; i++)
        if (!strncmp(f->layer[i].path, path, n))
            return false;
    return count > 0 && count >= most && (strncmp(path, "module/", 7) || count == f->count);
}

/* The root that most layers match with: beside a model, a file may hold a second one, losses and
 * metrics. Where two do as well, none is taken. */
static void find_root(struct naming *n)
{
    enum { TRIED_MOST = 16 };
    const struct mgpu_layers *f = n->file;
    struct best_root best = {.root = "", .most = named_layers(n)};
    int tried = 0;
    for (int i = 0; i < f->count && best.most < f->count && tried < TRIED_MOST; i++)
        if (may_be_root(f, i, best.most)) {
            try_root(n, &best, f->layer[i].path);
            tried++;
        }
    n->root = best.rival ? "" : best.root;
    n->root_size = best.rival ? 0 : best.size;
    if (best.rival)
        tell_rivals(n, best.root, best.rival);
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

/* The file without the prefix, in front of each name that has it: its own parameters, which are in
 * no layer, too. False: two names would be one. */
static bool take_off(struct mgpu_match *m, const char *prefix)
{
    struct mgpu_checkpoint *c = mgpu_arena_copy(m->arena, m->file, sizeof *c);
    struct mgpu_names *seen = mgpu_names_new(m->arena);
    size_t size = strlen(prefix);
    c->arena = m->arena;
    c->tensor = mgpu_arena_copy(m->arena, c->tensor, (size_t)c->count * sizeof *c->tensor);
    for (int i = 0; i < c->count; i++) {
        struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        if (!t->weight)
            continue;
        if (!strncmp(t->name, prefix, size) && t->name[size]) {
            t->name += size;
            mgpu_checkpoint_name(c, t, t->name);
        }
        if (mgpu_names_get(seen, t->name))
            return false;
        mgpu_names_set(seen, t->name, c);
    }
    m->file = c;
    return true;
}

/* PyTorch's names lose it before anything is matched by them. */
static void settle_root(struct naming *n)
{
    struct mgpu_match *m = n->m;
    tell_root(n);
    const char *prefix = m->prefix;
    m->prefix = NULL;
    if (!prefix || prefix[n->root_size - 1] != '.')
        return;
    n->root = "";
    n->root_size = 0;
    if (take_off(m, prefix)) {
        m->prefix = prefix;
        mgpu_match_list_again(m, n->file);
    }
}

/* Each layer of the one is a layer of the other, and has its shapes. */
static bool is_whole(const struct naming *n, int named)
{
    bool whole = named == n->m->model->layers;
    for (int i = 0; i < n->file->count && whole; i++) {
        const struct mgpu_file_layer *l = &n->file->layer[i];
        whole = l->of < 0 ? mgpu_match_is_beside(n->m, l) : mgpu_match_fits_layer(n->m, l, l->of);
    }
    return whole;
}

/* A second model of the same program: taken only if all of it fits. */
static bool count_on(struct naming *n)
{
    struct mgpu_layers *f = n->file;
    struct naming plain = *n;
    size_t size = (size_t)f->count * sizeof *f->layer;
    struct mgpu_file_layer *before = mgpu_xcalloc((size_t)f->count, sizeof *before);
    memcpy(before, f->layer, size);
    n->root = "";
    n->root_size = 0;
    n->strip = false;
    bool fits = mgpu_match_recount(n->m, f) && is_whole(n, named_layers(n));
    if (!fits) {
        memcpy(f->layer, before, size);
        n->m->counted = NULL;
        *n = plain;
    }
    free(before);
    return fits;
}

void mgpu_match_names(struct mgpu_match *m, struct mgpu_layers *f, bool counted)
{
    struct naming n = {.m = m, .file = f, .model_root = mgpu_variables_root(m->model), .root = ""};
    find_root(&n);
    settle_root(&n);
    int plain = named_layers(&n);
    if (m->file->renumbered && plain < f->count) {
        n.strip = true;
        n.strip = named_layers(&n) > plain;
        if (!n.strip)
            named_layers(&n);
    }
    bool some = f->count && (plain < f->count || plain < m->model->layers);
    if (some && counted && m->model->family == MGPU_FAMILY_KERAS) {
        if (count_on(&n))
            m->rivals = NULL;
        else
            named_layers(&n);
    }
    pair_inside(&n);
    tell_root(&n);
    for (int i = 0; i < f->count; i++)
        if (f->layer[i].of >= 0)
            mgpu_match_layer(m, &f->layer[i], f->layer[i].of);
}
