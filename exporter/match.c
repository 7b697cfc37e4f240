#include "exporter/match_parts.h"

#include "exporter/keras_layers.h"
#include "exporter/wrappers.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One pair -------------------------------------------------------------------------------- */

void mgpu_match_pair(struct mgpu_match *m, int tensor, int variable)
{
    const struct mgpu_variable *x = &m->model->variable[variable];
    for (int i = 0; i < m->model->count; i++) {
        const struct mgpu_variable *part = &m->model->variable[i];
        if (part->layer == x->layer && part->layout.before != x->layout.before &&
            !strcmp(part->leaf, x->leaf))
            m->tensor[i] = tensor;
    }
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

static struct mgpu_names *tensor_names(struct mgpu_match *m)
{
    struct mgpu_names *tensors = mgpu_names_new(m->arena);
    for (int t = 0; t < m->file->count; t++)
        if (m->file->tensor[t].weight)
            mgpu_names_set(tensors, m->file->tensor[t].name, m);
    return tensors;
}

/* Whether the file has what the exporter copied or turned, too, as ONNX does: each is its own. */
static bool has_copies(const struct mgpu_match *m, const struct mgpu_names *tensors, int variable)
{
    const struct mgpu_variable *x = &m->model->variable[variable];
    bool all = x->turned || m->model->weights->weight[x->weight].holders > 1;
    for (int i = 0; i < m->model->count && all; i++)
        all = m->model->variable[i].weight != x->weight ||
              mgpu_names_get(tensors, mgpu_variable_initializer(m->model, i));
    return all;
}

/* Of an initializer that two modules share the name is one's, and the file may have the other's. */
static bool has_other_name(const struct mgpu_match *m, const struct mgpu_names *tensors, int tensor,
                           int variable)
{
    const char *name = mgpu_variable_name(m->model, variable);
    return strcmp(name, m->file->tensor[tensor].name) && mgpu_names_get(tensors, name) &&
           !has_copies(m, tensors, variable);
}

/* A model as the file has lost what wrappers put around its names; this one's have it. */
static void name_unwrapped(struct mgpu_match *m, struct mgpu_names *names)
{
    static const char module[] = "module.";
    if (m->file->kind != MGPU_CHECKPOINT_ONNX || !m->file->unwrapped)
        return;
    for (int i = m->model->count - 1; i >= 0; i--) {
        const char *name = mgpu_without_wrappers(m->arena, mgpu_variable_initializer(m->model, i));
        size_t n = strncmp(name, module, strlen(module)) ? 0 : strlen(module);
        mgpu_names_set(names, name + n, (void *)(intptr_t)(i + 1));
    }
}

void mgpu_match_exact(struct mgpu_match *m)
{
    struct mgpu_names *names = mgpu_names_new(m->arena), *tensors = tensor_names(m);
    name_unwrapped(m, names);
    for (int i = m->model->count - 1; i >= 0; i--)
        mgpu_names_set(names, mgpu_variable_initializer(m->model, i), (void *)(intptr_t)(i + 1));
    for (int t = 0; t < m->file->count; t++) {
        int variable =
            free_weight(m, t) ? (int)(intptr_t)mgpu_names_get(names, m->file->tensor[t].name) : 0;
        if (variable && m->tensor[variable - 1] < 0 && !has_other_name(m, tensors, t, variable - 1))
            mgpu_match_whole(m, t, variable - 1);
    }
}

/* A merged parameter goes by a name that is no initializer's. */
static void match_merged(struct mgpu_match *m)
{
    struct mgpu_names *names = mgpu_names_new(m->arena), *tensors = tensor_names(m);
    for (int i = m->model->count - 1; i >= 0; i--) {
        const struct mgpu_variable *x = &m->model->variable[i];
        const char *name = mgpu_variable_initializer(m->model, i);
        if (*x->own && strcmp(x->own, name) && !(x->turned && has_copies(m, tensors, i)))
            mgpu_names_set(names, x->own, (void *)(intptr_t)(i + 1));
    }
    for (int t = 0; t < m->file->count; t++) {
        int variable =
            free_weight(m, t) ? (int)(intptr_t)mgpu_names_get(names, m->file->tensor[t].name) : 0;
        if (!variable || m->tensor[variable - 1] >= 0)
            continue;
        if (m->model->variable[variable - 1].turned)
            mgpu_match_pair(m, t, variable - 1);
        else
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
    bool store = mgpu_checkpoint_is_store(m->file);
    for (int i = 0; i < m->file->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &m->file->tensor[i];
        if (!t->weight)
            continue;
        bool by_layer = *t->layer && !store; /* a wrapper's own variables are in another group */
        const char *key =
            mgpu_arena_format(m->arena, by_layer ? "/%s" : "#%s", by_layer ? t->layer : t->group);
        int at = (int)(intptr_t)mgpu_names_get(known, key) - 1;
        if (at < 0) {
            f->layer = mgpu_grow(f->layer, (size_t)f->count, sizeof *f->layer);
            at = f->count++;
            f->layer[at] = (struct mgpu_file_layer){.group = t->group,
                                                    .class_name = t->class_name,
                                                    .direction = t->direction,
                                                    .by_attribute = t->by_attribute,
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
        if (m->model->variable[i].layer != layer || m->tensor[i] >= 0 ||
            mgpu_variable_is_later_part(m->model, i))
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
    const char *leaf = m->file->tensor[tensor].leaf;
    bool own = m->model->family == MGPU_FAMILY_KERAS && !mgpu_keras_is_variable(leaf);
    return !*leaf || own || !*x->leaf || x->role == MGPU_VAR_OTHER;
}

/* As many tensors as variables are left: else some of them are of another kind. */
static bool even(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer)
{
    int left = 0;
    for (int k = 0; k < l->tensors; k++)
        left += m->variable[l->tensor[k]] < 0;
    for (int i = 0; i < m->model->count; i++)
        left -= m->model->variable[i].layer == layer && m->tensor[i] < 0 &&
                !mgpu_variable_is_later_part(m->model, i);
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

/* Number `k` of the layer's variables; -1: there are not so many. */
static int variable_at(const struct mgpu_match *m, int layer, int k)
{
    for (int i = 0; i < m->model->count; i++)
        if (m->model->variable[i].layer == layer && !mgpu_variable_is_later_part(m->model, i) &&
            k-- == 0)
            return i;
    return -1;
}

/* A store may call a group as the attribute that holds the layer, and so does not tell its class;
 * where the model does, the order of the variables is known. */
static void pair_in_order(struct mgpu_match *m, struct mgpu_file_layer *l, int layer)
{
    const char *names[MGPU_KERAS_VARIABLES];
    bool fine = mgpu_checkpoint_is_store(m->file) &&
                mgpu_keras_variables(names, m->model->layer[layer].class_name, l->tensors);
    for (int k = 0; k < l->tensors && fine; k++) {
        int t = l->tensor[k], i = variable_at(m, layer, k);
        fine = i >= 0 && m->variable[t] < 0 && m->tensor[i] < 0 && fits(m, t, i) &&
               !*m->file->tensor[t].leaf && m->file->tensor[t].index == k;
    }
    for (int k = 0; k < l->tensors && fine; k++)
        mgpu_match_pair(m, l->tensor[k], variable_at(m, layer, k));
}

void mgpu_match_layer(struct mgpu_match *m, struct mgpu_file_layer *l, int layer)
{
    l->of = layer;
    pair_variables(m, l, layer, true);
    if (even(m, l, layer)) {
        pair_in_order(m, l, layer);
        pair_variables(m, l, layer, false);
    }
}

/* Whether the layer has as many variables, not counting a bias that may be the exporter's. */
static bool has_count(const struct mgpu_match *m, int tensors, int layer)
{
    int n = 0, zero = 0;
    for (int i = 0; i < m->model->count; i++)
        if (m->model->variable[i].layer == layer && !mgpu_variable_is_later_part(m->model, i)) {
            n++;
            zero += mgpu_variable_is_zero_bias(m->model, i);
        }
    return tensors == n || tensors == n - zero;
}

/* Whether the layer has a variable for the tensor: the one of that name, or else number `k`. */
static bool has_variable(const struct mgpu_match *m, int tensor, int layer, int k)
{
    const char *leaf = m->file->tensor[tensor].leaf;
    for (int i = 0; i < m->model->count; i++) {
        if (m->model->variable[i].layer != layer || m->tensor[i] >= 0 ||
            mgpu_variable_is_later_part(m->model, i))
            continue;
        if (*leaf ? mgpu_variable_is(m->model, i, leaf) : k-- == 0)
            return fits(m, tensor, i);
    }
    return false;
}

static int variables_of(const struct mgpu_match *m, const struct mgpu_file_layer *l)
{
    int n = 0;
    for (int k = 0; k < l->tensors; k++)
        n += !mgpu_checkpoint_is_counter(&m->file->tensor[l->tensor[k]]);
    return n;
}

/* Whether the class says what is in the layer: a group of a store may be called as the attribute
 * that holds the layer, and layers around others are of any class. */
static bool tells_class(const char *class_name)
{
    const char *names[MGPU_KERAS_VARIABLES];
    return strcmp(class_name, "bidirectional") && strcmp(class_name, "rnn") &&
           mgpu_keras_variables(names, class_name, 0);
}

/* Of a bidirectional layer that was exported as two loops only their names tell which is which. */
static bool goes_as(const struct mgpu_match *m, enum mgpu_direction direction, int layer)
{
    const struct mgpu_variable_layer *l = &m->model->layer[layer];
    const char *slash = strrchr(l->path, '/'), *name = slash ? slash + 1 : l->path;
    enum mgpu_direction told = !strncmp(name, "forward_", 8)    ? MGPU_WAY_FORWARD
                               : !strncmp(name, "backward_", 9) ? MGPU_WAY_BACKWARD
                                                                : MGPU_WAY_ONE;
    return direction == l->direction || (!l->direction && direction == told);
}

/* Class, direction, and all shapes. */
bool mgpu_match_looks_like(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer)
{
    const struct mgpu_variable_layer *s = &m->model->layer[layer];
    bool known = tells_class(l->class_name) && *s->class_name;
    if (!goes_as(m, l->direction, layer) || !has_count(m, variables_of(m, l), layer) ||
        (known && strcmp(l->class_name, s->class_name)))
        return false;
    for (int k = 0; k < l->tensors; k++)
        if (!mgpu_checkpoint_is_counter(&m->file->tensor[l->tensor[k]]) &&
            !has_variable(m, l->tensor[k], layer, k))
            return false;
    return true;
}

static bool has_place(const struct mgpu_match *m, int tensor, int layer)
{
    const char *leaf = m->file->tensor[tensor].leaf;
    for (int i = 0; i < m->model->count; i++)
        if (m->model->variable[i].layer == layer && fits(m, tensor, i) &&
            (!*leaf || !*m->model->variable[i].leaf || mgpu_variable_is(m->model, i, leaf)))
            return true;
    return false;
}

bool mgpu_match_fits_layer(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer)
{
    bool fine = has_count(m, l->tensors, layer);
    for (int k = 0; k < l->tensors && fine; k++)
        fine = has_place(m, l->tensor[k], layer);
    return fine;
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
    m->constant = MGPU_NEW_ARRAY(m->arena, bool, file->count + 1);
    m->why = MGPU_NEW_ARRAY(m->arena, const char *, file->count + 1);
    for (int i = 0; i < model->count; i++)
        m->tensor[i] = -1;
    for (int i = 0; i < file->count; i++)
        m->variable[i] = -1;
}

void mgpu_match_list_again(struct mgpu_match *m, struct mgpu_layers *layers)
{
    free_layers(layers);
    *layers = (struct mgpu_layers){0};
    match_merged(m);
    mgpu_match_exact(m);
    list_layers(layers, m);
}

static void match_layers(struct mgpu_match *m, struct mgpu_layers *layers, bool by_order)
{
    list_layers(layers, m);
    mgpu_match_names(m, layers, by_order);
    mgpu_match_structure(m, layers);
    if (by_order && !m->rivals)
        mgpu_match_order(m, layers);
}

/* Plain order is never taken unasked, but named where all would fit so. */
static int name_order(int rc, const struct mgpu_checkpoint *file,
                      const struct mgpu_variables *model, const struct mgpu_match_options *options)
{
    char what[2048];
    struct mgpu_match *again;
    const struct mgpu_match_options order = {
        .map = options->map, .by_order = true, .like = options->like, .fresh = options->fresh};
    snprintf(what, sizeof what, "%s", mgpu_error());
    const char *how = "";
    if (mgpu_match_new(&again, file, model, &order) == 0)
        how = again->counted
                  ? mgpu_arena_format(again->arena,
                                      " (all would fit if %s, and so on: --by-order takes them so)",
                                      again->counted)
                  : " (all would fit one after the other: --by-order takes them so)";
    rc = mgpu_fail(rc, "%s%s", what, how);
    mgpu_match_free(again);
    return rc;
}

int mgpu_match_new(struct mgpu_match **out, const struct mgpu_checkpoint *file,
                   const struct mgpu_variables *model, const struct mgpu_match_options *options)
{
    struct mgpu_match *m = *out = mgpu_xcalloc(1, sizeof *m);
    struct mgpu_layers layers = {0};
    start(m, file, model);
    int rc = options->map ? mgpu_match_rules(m, options->map) : 0;
    if (rc == 0) {
        match_merged(m);
        mgpu_match_exact(m);
        if (file->kind != MGPU_CHECKPOINT_ONNX) /* whose layouts are no framework's */
            match_layers(m, &layers, options->by_order);
        m->file = file; /* messages have its own names, as --map wants them */
        rc = mgpu_match_judge(m, &layers, options);
    }
    free_layers(&layers);
    return rc < 0 && !options->by_order ? name_order(rc, file, model, options) : rc;
}

void mgpu_match_free(struct mgpu_match *m)
{
    if (!m)
        return;
    free(m->fault);
    mgpu_arena_free(m->arena);
    free(m);
}
