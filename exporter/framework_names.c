#include "exporter/framework_names.h"

#include "exporter/architecture.h"
#include "exporter/framework_parts.h"
#include "exporter/scopes.h"
#include "exporter/wrappers.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum mgpu_family mgpu_framework_family(const struct mgpu_onnx_model *model)
{
    return model->producer == MGPU_PRODUCER_TENSORFLOW ? MGPU_FAMILY_KERAS : MGPU_FAMILY_TORCH;
}

static void add(struct mgpu_framework_arrays *a, const char *name, const char *layer,
                struct mgpu_framework_from from)
{
    a->array = mgpu_grow(a->array, (size_t)a->count, sizeof *a->array);
    a->from = mgpu_grow(a->from, (size_t)a->count, sizeof *a->from);
    a->from[a->count] = from;
    a->array[a->count++] = (struct mgpu_named_array){.name = (char *)name, .layer = layer};
}

void mgpu_framework_add(struct mgpu_framework_arrays *a, int variable, const char *name,
                        const char *layer)
{
    const struct mgpu_variable *x = &a->variables->variable[variable];
    add(a, name, layer,
        (struct mgpu_framework_from){
            .variable = variable, .weight = x->weight, .holder = x->holder, .tensor = -1});
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

const char *mgpu_framework_name(const struct mgpu_framework_arrays *a, int variable, size_t root)
{
    const struct mgpu_variables *v = a->variables;
    const struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_variable_layer *l = &v->layer[x->layer];
    if (!*x->leaf)
        return mgpu_variable_initializer(v, variable);
    if (v->family == MGPU_FAMILY_TORCH) {
        struct mgpu_scope scope = mgpu_scope_dotted(a->arena, x->own);
        if (!strcmp(scope.path, l->path) && !strcmp(scope.op, x->leaf))
            return x->own;
        char *name = mgpu_arena_format(a->arena, "%s%s%s", l->path, *l->path ? "/" : "", x->leaf);
        for (char *slash = name; (slash = strchr(slash, '/'));)
            *slash = '.';
        return name;
    }
    const char *layer = mgpu_variable_layer_name(v, x->layer, root), *slash = strrchr(layer, '/');
    const char *last = slash ? slash + 1 : layer;
    const char *way = l->direction == MGPU_WAY_FORWARD ? "forward_" : "backward_";
    return l->direction ? mgpu_arena_format(a->arena, "%s/%s%s/%s", layer, way, last, x->leaf)
                        : mgpu_arena_format(a->arena, "%s/%s", layer, x->leaf);
}

/* A copy of the same weight for the same module. */
static bool is_listed(const struct mgpu_variables *v, int variable)
{
    const struct mgpu_variable *x = &v->variable[variable];
    for (int i = 0; i < variable; i++)
        if (v->variable[i].weight == x->weight && v->variable[i].layer == x->layer &&
            v->variable[i].holder != x->holder && !strcmp(v->variable[i].leaf, x->leaf))
            return true;
    return false;
}

bool mgpu_framework_lists(const struct mgpu_framework_arrays *a, const char *name)
{
    for (int i = 0; i < a->count; i++)
        if (!strcmp(a->array[i].name, name))
            return true;
    return false;
}

static void add_nameless(struct mgpu_framework_arrays *a, int variable)
{
    const struct mgpu_variable *x = &a->variables->variable[variable];
    const char *name = mgpu_variable_initializer(a->variables, variable);
    if (mgpu_framework_lists(a, name)) /* a recurrent layer has several variables in one tensor */
        return;
    add(a, name, NULL,
        (struct mgpu_framework_from){
            .variable = -1, .weight = x->weight, .holder = x->holder, .tensor = -1});
    int initializer = a->variables->weights->weight[x->weight].holder[x->holder].initializer;
    const char *from = a->variables->model->initializer[initializer].folded_from;
    if (x->computed)
        mgpu_note("'%s' is no parameter of the model: the exporter computed it of %s", name, from);
}

/* PyTorch's own modules with parameters that are called weight and bias. */
static bool is_plain_module(const char *class_name)
{
    static const char *const classes[] = {"linear.Linear", "sparse.Embedding", "conv.Conv1d",
                                          "conv.Conv2d", "conv.Conv3d"};
    static const char modules[] = "torch.nn.modules.";
    size_t n = strlen(modules);
    for (size_t i = 0; i < sizeof classes / sizeof *classes && !strncmp(class_name, modules, n);
         i++)
        if (!strcmp(class_name + n, classes[i]))
            return true;
    return false;
}

/* What a weight is called in the module that reads it; NULL: that is not known to be its own. */
static const char *name_in_module(const struct mgpu_framework_arrays *a, const char *leaf,
                                  const struct mgpu_onnx_node *node)
{
    if (!*node->layer || strchr(node->layer, '/') ||
        !is_plain_module(mgpu_onnx_module_class(a->arena, node)))
        return NULL;
    return mgpu_without_wrappers(a->arena, mgpu_arena_format(a->arena, "%s.%s", node->layer, leaf));
}

/* dynamo stores a weight that modules share once, under one name; a state_dict has it under each.
 */
static void list_shared(struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    struct mgpu_names *listed = mgpu_names_new(a->arena);
    for (int i = 0; i < a->count; i++)
        mgpu_names_set(listed, a->array[i].name, a);
    for (int i = 0; i < v->count; i++) {
        const struct mgpu_variable *x = &v->variable[i];
        const struct mgpu_holder *h = &v->weights->weight[x->weight].holder[x->holder];
        bool own = !mgpu_variable_is_nameless(v, i) &&
                   (!strcmp(x->leaf, "weight") || !strcmp(x->leaf, "bias"));
        for (int u = 0; u < h->uses && own; u++) {
            const char *name = name_in_module(a, x->leaf, v->model->all[h->use[u].node]);
            if (!name || mgpu_names_get(listed, name))
                continue;
            mgpu_names_set(listed, name, a);
            mgpu_framework_add(a, i, name, NULL);
        }
    }
}

static void list_plain(struct mgpu_framework_arrays *a)
{
    const struct mgpu_variables *v = a->variables;
    size_t root = v->family == MGPU_FAMILY_KERAS ? mgpu_variables_root(v) : 0;
    for (int i = 0; i < v->count; i++)
        if (mgpu_variable_is_nameless(v, i))
            add_nameless(a, i);
        else if (!is_listed(v, i) && !mgpu_variable_is_later_part(v, i))
            mgpu_framework_add(a, i, mgpu_framework_name(a, i, root), NULL);
    if (v->family == MGPU_FAMILY_TORCH)
        list_shared(a);
    mgpu_framework_tell(a);
}

/* Where the graph says too little two variables get one name, which is given; else NULL. */
static const char *doubled_name(const struct mgpu_framework_arrays *a)
{
    struct mgpu_names *names = mgpu_names_new(a->arena);
    for (int i = 0; i < a->count; i++) {
        if (mgpu_names_get(names, a->array[i].name))
            return a->array[i].name;
        mgpu_names_set(names, a->array[i].name, a);
    }
    return NULL;
}

/* ---- As another file ------------------------------------------------------------------------- */

static bool is_keras(enum mgpu_target target)
{
    return target == MGPU_TARGET_KERAS_H5 || target == MGPU_TARGET_KERAS_STORE;
}

static void add_like(struct mgpu_framework_arrays *a, int tensor, const char *name,
                     const char *layer)
{
    int i = a->match->variable[tensor];
    add(a, name, layer,
        (struct mgpu_framework_from){.variable = i,
                                     .weight = i < 0 ? -1 : a->variables->variable[i].weight,
                                     .holder = i < 0 ? -1 : a->variables->variable[i].holder,
                                     .tensor = tensor});
}

static void list_like(struct mgpu_framework_arrays *a, enum mgpu_target target)
{
    const struct mgpu_checkpoint *c = a->like;
    bool store = target == MGPU_TARGET_KERAS_STORE;
    for (int t = 0; t < c->count; t++) {
        const struct mgpu_checkpoint_tensor *x = &c->tensor[t];
        bool seed = strstr(x->group, "seed_generator");
        if (store && (x->weight || seed))
            add_like(a, t, x->name + 1, *x->layer ? x->layer : NULL);
        else if (x->weight)
            add_like(a, t, x->name, is_keras(target) ? x->group : NULL);
    }
}

/* The legacy layout, by the architecture that an archive has beside its store. */
static void list_legacy_like(struct mgpu_framework_arrays *a)
{
    const struct mgpu_checkpoint *c = a->like;
    int *order = MGPU_NEW_ARRAY(a->arena, int, c->count + 1);
    int n = mgpu_architecture_legacy_order(order, c);
    for (int i = 0; i < n; i++) {
        const struct mgpu_checkpoint_tensor *x = &c->tensor[order[i]];
        add_like(a, order[i], mgpu_checkpoint_legacy_name(a->arena, x), x->top);
    }
}

static int check_like(const struct mgpu_checkpoint *c, enum mgpu_target target)
{
    bool legacy = target == MGPU_TARGET_KERAS_H5;
    bool free_names = c->kind == MGPU_CHECKPOINT_SAFETENSORS || c->kind == MGPU_CHECKPOINT_NPZ;
    if (!is_keras(target) && !free_names)
        return mgpu_fail(MGPU_EINVALID, "%s is %s: a .safetensors or .npz must be followed",
                         c->path, mgpu_checkpoint_kind_name(c->kind));
    if (!is_keras(target))
        return 0;
    if (legacy ? !mgpu_checkpoint_is_store(c) && c->kind < MGPU_CHECKPOINT_SAFETENSORS
               : mgpu_checkpoint_is_store(c))
        return 0;
    if (legacy && mgpu_checkpoint_is_store(c) && c->ordered)
        return 0;
    if (legacy && c->kind == MGPU_CHECKPOINT_KERAS_ARCHIVE)
        return mgpu_fail(MGPU_EINVALID,
                         "%s does not say where '%s' stands among the weights: a file of the same "
                         "layout (.h5) must be followed",
                         c->path, mgpu_architecture_unplaced(c));
    return mgpu_fail(MGPU_EINVALID, "%s is %s: a file of the same layout must be followed%s",
                     c->path, mgpu_checkpoint_kind_name(c->kind), legacy ? ", or a .keras" : "");
}

/* Whether one of the files is for others than Keras's layouts. */
static bool has_free_names(const char *const *like)
{
    bool found = false;
    for (int i = 0; like[i] && !found; i++) {
        struct mgpu_checkpoint *c;
        found = mgpu_checkpoint_open(&c, like[i], true) < 0 ||
                check_like(c, MGPU_TARGET_SAFETENSORS) == 0;
        mgpu_checkpoint_close(c);
    }
    return found;
}

/* The first file of this layout, or one that stands for it. */
static int open_like(struct mgpu_framework_arrays *a, enum mgpu_target target,
                     const char *const *like)
{
    int rc = 0;
    for (int i = 0; like[i]; i++) {
        mgpu_checkpoint_close(a->like);
        a->like = NULL;
        MGPU_TRY(mgpu_checkpoint_open(&a->like, like[i], true));
        if ((rc = check_like(a->like, target)) == 0)
            return 0;
    }
    return rc;
}

static int follow(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s,
                  enum mgpu_target target, const char *const *like, bool by_order)
{
    const struct mgpu_match_options all = {.by_order = by_order, .like = true};
    MGPU_TRY(open_like(a, target, like));
    const char *unplaced = mgpu_architecture_unplaced(a->like);
    if (s->state && is_keras(target) && *unplaced)
        return mgpu_fail(MGPU_EINVALID,
                         "%s does not say where '%s' stands among the weights, as a class of your "
                         "own decides it, and the optimizer's state goes by that: leave out "
                         "--optimizer-state",
                         a->like->path, unplaced);
    if (s->state && is_keras(target) && !a->like->ordered)
        return mgpu_fail(MGPU_EINVALID,
                         "%s does not say in which order the model has its layers, which the "
                         "optimizer's state goes by: --like wants a .keras",
                         a->like->path);
    mgpu_variables_new(&a->variables, s->model, s->weights,
                       is_keras(target) ? MGPU_FAMILY_KERAS : mgpu_framework_family(s->model));
    MGPU_TRY(mgpu_match_new(&a->match, a->like, a->variables, &all));
    mgpu_framework_tell_like(a);
    if (target == MGPU_TARGET_KERAS_H5 && mgpu_checkpoint_is_store(a->like))
        list_legacy_like(a);
    else
        list_like(a, target);
    return 0;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static int name_all(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s,
                    enum mgpu_target target, const struct mgpu_model_write_options *o)
{
    bool store = target == MGPU_TARGET_KERAS_STORE;
    bool like = o->like && *o->like;
    if (like && (is_keras(target) || has_free_names(o->like)))
        return follow(a, s, target, o->like, o->by_order);
    if (like)
        mgpu_note("names and layouts in a %s are the model's own: of --like, only .safetensors and "
                  ".npz have others for it",
                  target == MGPU_TARGET_NPZ ? ".npz" : ".safetensors");
    if (o->onnx_names && !store) {
        list_initializers(a, s);
        return 0;
    }
    enum mgpu_family family = store ? MGPU_FAMILY_KERAS : mgpu_framework_family(s->model);
    mgpu_variables_new(&a->variables, s->model, s->weights, family);
    if (family == MGPU_FAMILY_KERAS && is_keras(target))
        MGPU_TRY(mgpu_framework_keras(a, target, o->by_order, s->state != NULL));
    else
        list_plain(a);
    const char *doubled = store ? NULL : doubled_name(a);
    if (!doubled)
        return 0;
    mgpu_note("the graph does not tell what is called '%s': all names are the graph's own",
              doubled);
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

int mgpu_framework_array(struct mgpu_array *out, const struct mgpu_framework_arrays *a, int i,
                         int variable, const struct mgpu_array *whole, bool squares,
                         enum mgpu_tail *tail)
{
    *tail = MGPU_TAIL_ZERO;
    if (variable < 0 || (a->match && a->match->whole[variable])) {
        MGPU_TRY(mgpu_array_init(out, whole->type, whole->rank, whole->dims, a->array[i].name));
        memcpy(out->data, whole->data,
               (size_t)mgpu_array_count(whole) * mgpu_dtype_size(whole->type));
        return 0;
    }
    struct mgpu_weight_layout layout = a->variables->variable[variable].layout;
    layout.negate = layout.negate && !squares;
    if (variable == a->from[i].variable) {
        out->type = whole->type;
        MGPU_TRY(shape_like(out, a, i));
    }
    *tail = mgpu_weight_layout_out(&layout, whole->data, out->data, out->type);
    return 0;
}

static int fill(struct mgpu_framework_arrays *a, const struct mgpu_model_source *s, int i,
                enum mgpu_tail *tail)
{
    struct mgpu_array whole;
    const struct mgpu_framework_from *from = &a->from[i];
    int variable = from->variable, weight = from->weight, holder = from->holder, rc;
    *tail = MGPU_TAIL_ZERO;
    if (weight < 0)
        return mgpu_checkpoint_load(a->like, from->tensor, &a->array[i].array);
    do {
        enum mgpu_tail one;
        MGPU_TRY(s->contents(s->context, weight, holder, &whole));
        rc = mgpu_framework_array(&a->array[i].array, a, i, variable, &whole, false, &one);
        mgpu_array_free(&whole);
        *tail = one > *tail ? one : *tail;
        variable = variable < 0 ? -1 : mgpu_variable_next_part(a->variables, variable);
        if (variable >= 0) {
            weight = a->variables->variable[variable].weight;
            holder = a->variables->variable[variable].holder;
        }
    } while (rc == 0 && variable >= 0);
    return rc;
}

static bool is_all_zero(const struct mgpu_array *a)
{
    bool zero = true;
    for (int64_t i = 0; i < mgpu_array_count(a) && zero; i++)
        zero = mgpu_get_double(a->data, a->type, i) == 0;
    return zero;
}

/* Zeros that the exporter made may have been trained (or, where training is yet to come, may be),
 * and the file that is followed has no place for them. */
static int check_left(const struct mgpu_framework_arrays *a, const struct mgpu_model_source *s,
                      bool before)
{
    for (int i = 0; a->match && i < a->variables->count; i++) {
        const struct mgpu_variable *x = &a->variables->variable[i];
        struct mgpu_array whole;
        if (a->match->tensor[i] >= 0 || !mgpu_variable_is_zero_bias(a->variables, i))
            continue;
        MGPU_TRY(s->contents(s->context, x->weight, x->holder, &whole));
        bool moves = before && s->weights->weight[x->weight].role == MGPU_ROLE_TRAINED &&
                     s->changed(s->context, x->weight);
        bool stays = is_all_zero(&whole) && !moves;
        mgpu_array_free(&whole);
        if (!stays)
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' %s trained, and '%s' in %s has no bias: train with --freeze "
                             "'%s'",
                             mgpu_variable_initializer(a->variables, i), moves ? "is" : "was",
                             a->variables->layer[x->layer].path, a->like->path,
                             mgpu_variable_initializer(a->variables, i));
    }
    return 0;
}

int mgpu_framework_arrays_fill(struct mgpu_framework_arrays *a,
                               const struct mgpu_model_source *source)
{
    int added = 0, rounded = 0;
    MGPU_TRY(check_left(a, source, false));
    for (int i = 0; i < a->count; i++) {
        enum mgpu_tail tail;
        MGPU_TRY(fill(a, source, i, &tail));
        added += tail != MGPU_TAIL_ZERO;
        rounded += tail == MGPU_TAIL_ROUNDED;
    }
    if (added)
        mgpu_note("%d recurrent bias%s the sum of the graph's two halves, as Keras has one (%s); "
                  "coming back, one half is the sum and the other is zero",
                  added, added == 1 ? " is" : "es are each", rounded ? "rounded" : "exact");
    return 0;
}

int mgpu_framework_arrays_check(struct mgpu_framework_arrays *a,
                                const struct mgpu_model_source *source, enum mgpu_target target)
{
    MGPU_TRY(check_left(a, source, true));
    for (int i = 0; i < a->count; i++) {
        enum mgpu_tail tail;
        int rc = fill(a, source, i, &tail);
        if (rc == 0)
            rc = mgpu_target_check(target, &a->array[i]);
        mgpu_array_free(&a->array[i].array);
        MGPU_TRY(rc);
    }
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
