#include "exporter/match_parts.h"

#include "exporter/keras_layers.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One pair -------------------------------------------------------------------------------- */

void mgpu_match_pair(struct mgpu_match *m, int tensor, int variable)
{
    m->tensor[variable] = tensor;
    m->variable[tensor] = variable;
}

static bool free_weight(const struct mgpu_match *m, int tensor)
{
    return m->file->tensor[tensor].weight && m->variable[tensor] < 0;
}

static bool fits(const struct mgpu_match *m, int tensor, int variable)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    return mgpu_variable_fits(m->model, variable, t->rank, t->dims);
}

/* All variables of the initializer that the variable is in. */
void mgpu_match_whole(struct mgpu_match *m, int tensor, int variable)
{
    const char *name = mgpu_variable_initializer(m->model, variable);
    for (int i = 0; i < m->model->count; i++)
        if (!strcmp(mgpu_variable_initializer(m->model, i), name)) {
            m->tensor[i] = tensor;
            m->whole[i] = true;
        }
    m->variable[tensor] = variable;
}

/* ---- Equal names ----------------------------------------------------------------------------- */

void mgpu_match_exact(struct mgpu_match *m)
{
    struct mgpu_names *names = mgpu_names_new(m->arena);
    for (int i = m->model->count - 1; i >= 0; i--)
        mgpu_names_set(names, mgpu_variable_initializer(m->model, i), (void *)(intptr_t)(i + 1));
    for (int t = 0; t < m->file->count; t++) {
        int variable =
            free_weight(m, t) ? (int)(intptr_t)mgpu_names_get(names, m->file->tensor[t].name) : 0;
        if (variable && m->tensor[variable - 1] < 0)
            mgpu_match_whole(m, t, variable - 1);
    }
}

/* ---- Layers of the file ---------------------------------------------------------------------- */

/* The layer of a nested model is also known without the model's name; the two parts of a
 * bidirectional layer without their own. */
static void name_layer(struct mgpu_match *m, struct mgpu_file_layer *l,
                       const struct mgpu_checkpoint_tensor *t)
{
    size_t n = strlen(t->group);
    bool legacy = m->file->kind == MGPU_CHECKPOINT_KERAS_WEIGHTS ||
                  m->file->kind == MGPU_CHECKPOINT_KERAS_MODEL;
    l->path = t->layer;
    l->inner =
        legacy && !strncmp(t->layer, t->group, n) && t->layer[n] == '/' ? t->layer + n + 1 : NULL;
    const char *slash = strrchr(t->layer, '/');
    l->outer = t->direction && slash
                   ? mgpu_arena_format(m->arena, "%.*s", (int)(slash - t->layer), t->layer)
                   : NULL;
}

static void list_layers(struct mgpu_layers *f, struct mgpu_match *m)
{
    struct mgpu_names *known = mgpu_names_new(m->arena);
    for (int i = 0; i < m->file->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &m->file->tensor[i];
        if (!t->weight)
            continue;
        const char *key = *t->layer ? mgpu_arena_format(m->arena, "/%s", t->layer)
                                    : mgpu_arena_format(m->arena, "#%s", t->group);
        int at = (int)(intptr_t)mgpu_names_get(known, key) - 1;
        if (at < 0) {
            f->layer = mgpu_grow(f->layer, (size_t)f->count, sizeof *f->layer);
            at = f->count++;
            f->layer[at] = (struct mgpu_file_layer){.group = t->group,
                                                    .class_name = t->class_name,
                                                    .direction = t->direction,
                                                    .of = -1};
            name_layer(m, &f->layer[at], t);
            mgpu_names_set(known, key, (void *)(intptr_t)f->count);
        }
        struct mgpu_file_layer *l = &f->layer[at];
        l->tensor = mgpu_grow(l->tensor, (size_t)l->tensors, sizeof *l->tensor);
        l->tensor[l->tensors++] = i;
    }
}

static void free_layers(struct mgpu_layers *f)
{
    for (int i = 0; i < f->count; i++)
        free(f->layer[i].tensor);
    free(f->layer);
}

/* ---- Variables of a pair of layers ----------------------------------------------------------- */

/* The one variable of the layer, not taken yet, that is called so, or, for a tensor without a name
 * of its own, that has its shape; -1: none, or several. */
static int choose(const struct mgpu_match *m, int tensor, int layer, bool by_name)
{
    int found = -1, count = 0;
    for (int i = 0; i < m->model->count; i++) {
        if (m->model->variable[i].layer != layer || m->tensor[i] >= 0)
            continue;
        bool good = by_name ? mgpu_variable_is(m->model, i, m->file->tensor[tensor].leaf)
                            : fits(m, tensor, i);
        if (good && by_name && fits(m, tensor, i))
            return i;
        if (good) {
            found = i;
            count++;
        }
    }
    return count == 1 ? found : -1;
}

static bool nameless(const struct mgpu_match *m, int tensor, int variable)
{
    const struct mgpu_variable *x = &m->model->variable[variable];
    return !*m->file->tensor[tensor].leaf || !*x->leaf || x->role == MGPU_VAR_OTHER;
}

/* As many tensors as variables are left: else some of them are of another kind. */
static bool even(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer)
{
    int left = 0;
    for (int k = 0; k < l->tensors; k++)
        left += m->variable[l->tensor[k]] < 0;
    for (int i = 0; i < m->model->count; i++)
        left -= m->model->variable[i].layer == layer && m->tensor[i] < 0;
    return left == 0;
}

static void pair_variables(struct mgpu_match *m, struct mgpu_file_layer *l, int layer, bool by_name)
{
    for (int k = 0; k < l->tensors; k++) {
        int t = l->tensor[k];
        int variable = m->variable[t] < 0 ? choose(m, t, layer, by_name) : -1;
        if (variable >= 0 && (by_name || nameless(m, t, variable)))
            mgpu_match_pair(m, t, variable);
    }
}

void mgpu_match_layer(struct mgpu_match *m, struct mgpu_file_layer *l, int layer)
{
    l->of = layer;
    pair_variables(m, l, layer, true);
    if (even(m, l, layer))
        pair_variables(m, l, layer, false);
}

/* ---- Names of layers ------------------------------------------------------------------------- */

static bool is_end_of(const char *end, const char *path)
{
    size_t n = strlen(end), m = strlen(path);
    return n && n <= m && !strcmp(path + m - n, end) && (n == m || path[m - n - 1] == '/');
}

static size_t first_part(const char *path)
{
    size_t n = strcspn(path, "/");
    return path[n] ? n + 1 : 0;
}

/* The part that all paths begin with, with its '/': the model's name. */
static size_t common_root(const char *const *paths, int count)
{
    size_t n = count ? first_part(paths[0]) : 0;
    for (int i = 1; i < count && n; i++)
        if (strncmp(paths[i], paths[0], n))
            n = 0;
    return n;
}

struct naming {
    struct mgpu_match *m;
    struct mgpu_layers *file;
    size_t model_root, file_root;
    int tier;   /* 0: names must be equal, but for the model's; 1: one ends as the other; 2: the
                 * model's may have one part more, of a layer that another one wraps */
    bool strip; /* "conv1_1" is conv1 */
};

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

static bool is_called(const struct naming *n, const char *path, const char *model_path)
{
    if (!*path || !*model_path)
        return !*path && !*model_path;
    if (n->tier == 2) {
        const char *slash = strrchr(model_path, '/');
        model_path = mgpu_arena_format(n->m->arena, "%.*s", slash ? (int)(slash - model_path) : 0,
                                       model_path);
    }
    if (n->tier == 0)
        return !strcmp(path, model_path) || !strcmp(path, model_path + n->model_root) ||
               (n->file_root && !strcmp(path + n->file_root, model_path + n->model_root));
    return is_end_of(path, model_path) ||
           (n->file_root && is_end_of(path + n->file_root, model_path));
}

static bool same_layer(const struct naming *n, const struct mgpu_file_layer *l,
                       const struct mgpu_variable_layer *s)
{
    if (s->direction)
        return s->direction == l->direction && l->outer &&
               is_called(n, spelled(n, l->outer), s->path);
    return is_called(n, spelled(n, l->path), s->path) ||
           (l->inner && is_called(n, spelled(n, l->inner), s->path));
}

static int variables_of(const struct mgpu_match *m, int layer)
{
    int n = 0;
    for (int i = 0; i < m->model->count; i++)
        n += m->model->variable[i].layer == layer;
    return n;
}

/* Whether the layer has a variable for the tensor: the one of that name, or else number `k`. */
static bool has_variable(const struct mgpu_match *m, int tensor, int layer, int k)
{
    const char *leaf = m->file->tensor[tensor].leaf;
    for (int i = 0; i < m->model->count; i++) {
        if (m->model->variable[i].layer != layer || m->tensor[i] >= 0)
            continue;
        if (*leaf ? mgpu_variable_is(m->model, i, leaf) : k-- == 0)
            return fits(m, tensor, i);
    }
    return false;
}

/* Class, direction, and all shapes. */
bool mgpu_match_looks_like(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer)
{
    const struct mgpu_variable_layer *s = &m->model->layer[layer];
    bool known = *l->class_name && *s->class_name && strcmp(l->class_name, "bidirectional");
    if (l->direction != s->direction || l->tensors != variables_of(m, layer) ||
        (known && strcmp(l->class_name, s->class_name)))
        return false;
    for (int k = 0; k < l->tensors; k++)
        if (!has_variable(m, l->tensor[k], layer, k))
            return false;
    return true;
}

/* The one layer of the model that the names allow; -1: none; -2: several. */
static int layer_called(const struct naming *n, const struct mgpu_file_layer *l, const bool *taken)
{
    int found = -1;
    for (int s = 0; s < n->m->model->layers; s++) {
        const struct mgpu_variable_layer *layer = &n->m->model->layer[s];
        if (taken[s] || !same_layer(n, l, layer) ||
            ((layer->guessed || n->tier == 2) && !mgpu_match_looks_like(n->m, l, s)))
            continue;
        if (found >= 0)
            return -2;
        found = s;
    }
    return found;
}

static void pair_layers(struct naming *n, bool *taken)
{
    for (n->tier = 0; n->tier < 3; n->tier++)
        for (int i = 0; i < n->file->count; i++) {
            struct mgpu_file_layer *l = &n->file->layer[i];
            if (l->of >= 0 || !*l->path)
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

static size_t root_of_model(const struct mgpu_match *m)
{
    const char **paths = mgpu_xcalloc((size_t)m->model->layers + 1, sizeof *paths);
    int n = 0;
    for (int i = 0; i < m->model->layers; i++)
        if (*m->model->layer[i].path)
            paths[n++] = m->model->layer[i].path;
    size_t root = common_root(paths, n);
    free(paths);
    return root;
}

static size_t root_of_file(const struct mgpu_layers *f)
{
    const char **paths = mgpu_xcalloc((size_t)f->count + 1, sizeof *paths);
    for (int i = 0; i < f->count; i++)
        paths[i] = f->layer[i].path;
    size_t root = common_root(paths, f->count);
    free(paths);
    return root;
}

static void match_names(struct mgpu_match *m, struct mgpu_layers *f)
{
    struct naming n = {
        .m = m, .file = f, .model_root = root_of_model(m), .file_root = root_of_file(f)};
    int plain = named_layers(&n);
    if (m->file->renumbered && plain < f->count) {
        n.strip = true;
        n.strip = named_layers(&n) > plain;
        if (!n.strip)
            named_layers(&n);
    }
    for (int i = 0; i < f->count; i++)
        if (f->layer[i].of >= 0)
            mgpu_match_layer(m, &f->layer[i], f->layer[i].of);
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void start(struct mgpu_match *m, const struct mgpu_checkpoint *file,
                  const struct mgpu_variables *model)
{
    m->arena = mgpu_arena_new();
    m->file = file;
    m->model = model;
    m->tensor = MGPU_NEW_ARRAY(m->arena, int, model->count + 1);
    m->whole = MGPU_NEW_ARRAY(m->arena, bool, model->count + 1);
    m->variable = MGPU_NEW_ARRAY(m->arena, int, file->count + 1);
    m->why = MGPU_NEW_ARRAY(m->arena, const char *, file->count + 1);
    for (int i = 0; i < model->count; i++)
        m->tensor[i] = -1;
    for (int i = 0; i < file->count; i++)
        m->variable[i] = -1;
}

static void match_layers(struct mgpu_match *m, struct mgpu_layers *layers, bool by_order)
{
    list_layers(layers, m);
    match_names(m, layers);
    mgpu_match_structure(m, layers);
    if (by_order)
        mgpu_match_order(m, layers);
}

int mgpu_match_new(struct mgpu_match **out, const struct mgpu_checkpoint *file,
                   const struct mgpu_variables *model, const struct mgpu_match_options *options)
{
    struct mgpu_match *m = *out = mgpu_xcalloc(1, sizeof *m);
    struct mgpu_layers layers = {0};
    start(m, file, model);
    int rc = options->map ? mgpu_match_rules(m, options->map) : 0;
    if (rc == 0) {
        mgpu_match_exact(m);
        if (file->kind != MGPU_CHECKPOINT_ONNX) /* whose layouts are no framework's */
            match_layers(m, &layers, options->by_order);
        rc = mgpu_match_judge(m, &layers, options);
    }
    free_layers(&layers);
    return rc;
}

void mgpu_match_free(struct mgpu_match *m)
{
    if (!m)
        return;
    free(m->fault);
    mgpu_arena_free(m->arena);
    free(m);
}
