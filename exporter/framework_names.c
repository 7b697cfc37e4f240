#include "exporter/framework_names.h"

#include "exporter/keras_layers.h"
#include "exporter/scopes.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum mgpu_family mgpu_framework_family(const struct mgpu_onnx_model *model)
{
    return model->producer == MGPU_PRODUCER_TENSORFLOW ? MGPU_FAMILY_KERAS : MGPU_FAMILY_TORCH;
}

static struct mgpu_named_array *add(struct mgpu_framework_arrays *a, const char *name,
                                    const char *layer, struct mgpu_framework_from from)
{
    a->array = mgpu_grow(a->array, (size_t)a->count, sizeof *a->array);
    a->from = mgpu_grow(a->from, (size_t)a->count, sizeof *a->from);
    a->from[a->count] = from;
    a->array[a->count] = (struct mgpu_named_array){.name = (char *)name, .layer = layer};
    return &a->array[a->count++];
}

/* ---- Initializers' names --------------------------------------------------------------------- */

static void list_initializers(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s)
{
    for (int i = 0; i < s->weights->count; i++) {
        const struct mgpu_weight *w = &s->weights->weight[i];
        for (int h = 0; h < w->holders; h++) {
            const char *own = s->model->initializer[w->holder[h].initializer].name;
            add(a, w->holder[h].added ? w->name : own, NULL,
                (struct mgpu_framework_from){
                    .variable = -1, .weight = i, .holder = h, .tensor = -1});
        }
    }
}

/* ---- Names of variables ---------------------------------------------------------------------- */

/* The length of the model's own name with its '/', before the names of all layers. */
static size_t root_of(const struct mgpu_variables *v)
{
    size_t n = 0;
    for (int i = 0; i < v->layers; i++) {
        const struct mgpu_variable_layer *l = &v->layer[i];
        size_t first = strcspn(l->path, "/");
        if (l->guessed && !l->path[first])
            continue; /* a made-up name */
        if (!l->path[first] || (n && (n != first + 1 || strncmp(l->path, v->layer[0].path, n))))
            return 0;
        n = first + 1;
    }
    return n;
}

static const char *layer_name(const struct mgpu_variables *v, int layer, size_t root)
{
    const char *path = v->layer[layer].path;
    return path + (strchr(path, '/') ? root : 0);
}

/* A path of modules, as the framework writes it: PyTorch with dots. */
static const char *plain_name(struct mgpu_framework_arrays *a, int variable, size_t root)
{
    const struct mgpu_variables *v = a->variables;
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_variable_layer *l = &v->layer[x->layer];
    if (!*x->leaf)
        return mgpu_variable_initializer(v, variable);
    if (v->family == MGPU_FAMILY_TORCH) {
        const char *own = mgpu_variable_initializer(v, variable);
        struct mgpu_scope scope = mgpu_scope_dotted(a->arena, own);
        if (!strcmp(scope.path, l->path) && !strcmp(scope.op, x->leaf))
            return own;
        char *name = mgpu_arena_format(a->arena, "%s%s%s", l->path, *l->path ? "/" : "", x->leaf);
        for (char *slash = name; (slash = strchr(slash, '/'));)
            *slash = '.';
        return name;
    }
    const char *layer = layer_name(v, x->layer, root), *slash = strrchr(layer, '/');
    const char *last = slash ? slash + 1 : layer;
    const char *way = l->direction == MGPU_WAY_FORWARD ? "forward_" : "backward_";
    return l->direction ? mgpu_arena_format(a->arena, "%s/%s%s/%s", layer, way, last, x->leaf)
                        : mgpu_arena_format(a->arena, "%s/%s", layer, x->leaf);
}

static void list_plain(struct mgpu_framework_arrays *a, enum mgpu_target target)
{
    const struct mgpu_variables *v = a->variables;
    size_t root = v->family == MGPU_FAMILY_KERAS ? root_of(v) : 0;
    bool keras = target == MGPU_TARGET_KERAS_H5 && v->family == MGPU_FAMILY_KERAS;
    for (int i = 0; i < v->count; i++) {
        const struct mgpu_variable *x = &v->variable[i];
        const char *name = plain_name(a, i, root);
        add(a, keras && *x->leaf ? mgpu_arena_format(a->arena, "%s:0", name) : name,
            keras ? layer_name(v, x->layer, root) : NULL,
            (struct mgpu_framework_from){
                .variable = i, .weight = x->weight, .holder = x->holder, .tensor = -1});
    }
}

/* Two variables may get one name where the graph says too little; then their initializers' names
 * are taken. */
static bool names_differ(const struct mgpu_framework_arrays *a)
{
    struct mgpu_names *names = mgpu_names_new(a->arena);
    for (int i = 0; i < a->count; i++) {
        if (mgpu_names_get(names, a->array[i].name))
            return false;
        mgpu_names_set(names, a->array[i].name, a);
    }
    return true;
}

/* ---- Order of layers ------------------------------------------------------------------------- */

static bool same_shapes(const struct mgpu_variables *v, int a, int b)
{
    int i = 0, k = 0;
    for (;; i++, k++) {
        while (i < v->count && v->variable[i].layer != a)
            i++;
        while (k < v->count && v->variable[k].layer != b)
            k++;
        if (i == v->count || k == v->count)
            return i == v->count && k == v->count;
        const struct mgpu_variable *x = &v->variable[i], *y = &v->variable[k];
        if (x->rank != y->rank || memcmp(x->dims, y->dims, (size_t)x->rank * sizeof *x->dims))
            return false;
    }
}

/* Keras lists a layer behind those that feed it; of others the graph does not tell. Layers that
 * look alike would be exchanged without a word. */
static int check_order(const struct mgpu_variables *v, bool of_class)
{
    for (int b = 1; b < v->layers; b++) {
        const struct mgpu_variable_layer *l = &v->layer[b];
        int a = b - 1;
        while (a >= 0 && of_class &&
               (strcmp(v->layer[a].class_name, l->class_name) ||
                v->layer[a].direction != l->direction))
            a--;
        if (a < 0 || v->layer[a].node == l->node || mgpu_variable_layer_before(v, a, b))
            continue;
        for (int k = 0; k < b; k++)
            if (same_shapes(v, k, b) && !mgpu_variable_layer_before(v, k, b))
                return mgpu_fail(MGPU_EINVALID,
                                 "'%s' and '%s' look alike, and the graph does not tell which one "
                                 "Keras lists first",
                                 v->layer[k].path, l->path);
    }
    return 0;
}

/* ---- Keras 3 --------------------------------------------------------------------------------- */

static int number_of_class(const struct mgpu_variables *v, int layer, const char *class_name)
{
    int n = 0;
    for (int i = 0; i < layer; i++) {
        const struct mgpu_variable_layer *l = &v->layer[i];
        bool again = i && l->node == l[-1].node && l->direction;
        n += !again && !strcmp(l->direction ? "bidirectional" : l->class_name, class_name);
    }
    return n;
}

static bool is_recurrent(const char *class_name)
{
    return !strcmp(class_name, "lstm") || !strcmp(class_name, "gru") ||
           !strcmp(class_name, "simple_rnn");
}

/* "layers/dense_1/vars": where the variables of a layer are. */
static const char *store_group(struct mgpu_framework_arrays *a, int layer)
{
    const struct mgpu_variables *v = a->variables;
    const struct mgpu_variable_layer *l = &v->layer[layer];
    const char *class_name = l->direction ? "bidirectional" : l->class_name;
    bool second = layer && l->node == l[-1].node && l->direction;
    int number = number_of_class(v, second ? layer - 1 : layer, class_name);
    char text[32] = "";
    if (number)
        snprintf(text, sizeof text, "_%d", number);
    return mgpu_arena_format(a->arena, "layers/%s%s%s%s/vars", class_name, text,
                             l->direction == MGPU_WAY_FORWARD    ? "/forward_layer"
                             : l->direction == MGPU_WAY_BACKWARD ? "/backward_layer"
                                                                 : "",
                             is_recurrent(l->class_name) ? "/cell" : "");
}

static int check_class(const struct mgpu_variables *v, int layer)
{
    const char *names[MGPU_KERAS_VARIABLES];
    int count = 0;
    for (int i = 0; i < v->count; i++)
        count += v->variable[i].layer == layer;
    if (mgpu_keras_variables(names, v->layer[layer].class_name, count))
        return 0;
    return mgpu_fail(MGPU_EINVALID,
                     "of which class the layer '%s' is, the graph does not tell: give --like FILE, "
                     "a Keras file of the same model",
                     v->layer[layer].path);
}

static int list_store(struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    size_t root = root_of(v);
    for (int i = 0, index = 0; i < v->count; i++) {
        const struct mgpu_variable *x = &v->variable[i];
        index = i && x->layer == x[-1].layer ? index + 1 : 0;
        if (index == 0)
            MGPU_TRY(check_class(v, x->layer));
        const char *name = plain_name(a, i, root), *slash = strrchr(name, '/');
        int length = slash ? (int)(slash - name) : 0;
        add(a, mgpu_arena_format(a->arena, "%s/%d", store_group(a, x->layer), index),
            length ? mgpu_arena_format(a->arena, "%.*s", length, name) : NULL,
            (struct mgpu_framework_from){
                .variable = i, .weight = x->weight, .holder = x->holder, .tensor = -1});
    }
    return 0;
}

/* ---- As another file ------------------------------------------------------------------------- */

static void list_like(struct mgpu_framework_arrays *a, enum mgpu_target target)
{
    const struct mgpu_checkpoint *c = a->like;
    for (int t = 0; t < c->count; t++) {
        const struct mgpu_checkpoint_tensor *x = &c->tensor[t];
        int i = a->match->variable[t];
        bool store = target == MGPU_TARGET_KERAS_STORE;
        bool seed = strstr(x->group, "seed_generator");
        if (!x->weight && !(store && seed))
            continue;
        add(a, store ? x->name + 1 : x->name,
            !store      ? x->group
            : *x->layer ? x->layer
                        : NULL,
            (struct mgpu_framework_from){.variable = i,
                                         .weight = i < 0 ? -1 : a->variables->variable[i].weight,
                                         .holder = i < 0 ? -1 : a->variables->variable[i].holder,
                                         .tensor = t});
    }
}

static int check_like(const struct mgpu_checkpoint *c, enum mgpu_target target)
{
    bool legacy =
        c->kind == MGPU_CHECKPOINT_KERAS_WEIGHTS || c->kind == MGPU_CHECKPOINT_KERAS_MODEL;
    bool store = c->kind == MGPU_CHECKPOINT_KERAS_STORE || c->kind == MGPU_CHECKPOINT_KERAS_ARCHIVE;
    if (target == MGPU_TARGET_KERAS_H5 ? legacy : store)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "%s is %s: a file of the same layout must be followed", c->path,
                     mgpu_checkpoint_kind_name(c->kind));
}

static int follow(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s,
                  enum mgpu_target target, const char *like)
{
    static const struct mgpu_match_options strict;
    MGPU_TRY(mgpu_checkpoint_open(&a->like, like, true));
    MGPU_TRY(check_like(a->like, target));
    mgpu_variables_new(&a->variables, s->model, s->weights, MGPU_FAMILY_KERAS);
    MGPU_TRY(mgpu_match_new(&a->match, a->like, a->variables, &strict));
    list_like(a, target);
    return 0;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static int ask(int rc)
{
    char what[1024];
    if (rc >= 0)
        return 0;
    snprintf(what, sizeof what, "%s", mgpu_error());
    return mgpu_fail(rc,
                     "%s: give --like FILE, a Keras file of the same model, or take the graph's "
                     "order with --by-order",
                     what);
}

static int name_keras(struct mgpu_framework_arrays *a, enum mgpu_target target, bool by_order)
{
    bool store = target == MGPU_TARGET_KERAS_STORE;
    int rc = by_order ? 0 : check_order(a->variables, store);
    if (rc < 0 && !store) { /* such a file can be loaded by name */
        mgpu_note("%s: load it with by_name=True, or write it with --like FILE, a Keras file of "
                  "the same model",
                  mgpu_error());
        rc = 0;
    }
    MGPU_TRY(ask(rc));
    if (store)
        return list_store(a);
    list_plain(a, target);
    return 0;
}

static int name_all(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s,
                    enum mgpu_target target, const struct mgpu_model_write_options *o)
{
    bool store = target == MGPU_TARGET_KERAS_STORE;
    if (o->like && (store || target == MGPU_TARGET_KERAS_H5))
        return follow(a, s, target, o->like);
    if (o->onnx_names && !store) {
        list_initializers(a, s);
        return 0;
    }
    enum mgpu_family family = store ? MGPU_FAMILY_KERAS : mgpu_framework_family(s->model);
    mgpu_variables_new(&a->variables, s->model, s->weights, family);
    if (family == MGPU_FAMILY_KERAS)
        MGPU_TRY(name_keras(a, target, o->by_order));
    else
        list_plain(a, target);
    if (store || names_differ(a))
        return 0;
    a->count = 0;
    list_initializers(a, s);
    return 0;
}

int mgpu_framework_arrays_new(struct mgpu_framework_arrays **out,
                              const struct mgpu_model_source *source, enum mgpu_target target,
                              const struct mgpu_model_write_options *options)
{
    struct mgpu_framework_arrays *a = mgpu_xcalloc(1, sizeof *a);
    a->arena = mgpu_arena_new();
    int rc = name_all(a, source, target, options);
    if (rc < 0) {
        mgpu_framework_arrays_free(a);
        a = NULL;
    }
    *out = a;
    return rc;
}

static int shape_like(struct mgpu_array *out, const struct mgpu_framework_arrays *a, int i)
{
    const struct mgpu_variable *x = &a->variables->variable[a->from[i].variable];
    if (a->from[i].tensor < 0)
        return mgpu_array_init(out, out->type, x->rank, x->dims, a->array[i].name);
    const struct mgpu_checkpoint_tensor *t = &a->like->tensor[a->from[i].tensor];
    return mgpu_array_init(out, out->type, t->rank, t->dims, a->array[i].name);
}

static int fill(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s, int i)
{
    struct mgpu_array whole, *out = &a->array[i].array;
    const struct mgpu_framework_from *from = &a->from[i];
    if (from->weight < 0)
        return mgpu_checkpoint_load(a->like, from->tensor, out);
    MGPU_TRY(s->contents(s->context, from->weight, from->holder, &whole));
    if (from->variable < 0 || (a->match && a->match->whole[from->variable])) {
        *out = whole;
        return 0;
    }
    out->type = whole.type;
    int rc = shape_like(out, a, i);
    if (rc == 0 && mgpu_weight_layout_out(&a->variables->variable[from->variable].layout,
                                          whole.data, out->data, out->type))
        mgpu_note("'%s': the two biases of the graph are added, Keras has one", a->array[i].name);
    mgpu_array_free(&whole);
    return rc;
}

int mgpu_framework_arrays_fill(struct mgpu_framework_arrays *a,
                               const struct mgpu_model_source *source)
{
    for (int i = 0; i < a->count; i++)
        MGPU_TRY(fill(a, source, i));
    return 0;
}

void mgpu_framework_arrays_free(struct mgpu_framework_arrays *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->count; i++)
        mgpu_array_free(&a->array[i].array);
    free(a->array);
    free(a->from);
    mgpu_match_free(a->match);
    mgpu_checkpoint_close(a->like);
    mgpu_variables_free(a->variables);
    mgpu_arena_free(a->arena);
    free(a);
}
