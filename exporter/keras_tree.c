#include "exporter/keras_tree.h"

#include "exporter/keras_layers.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <string.h>

/* ---- Growing --------------------------------------------------------------------------------- */

/* Objects that hold others, by the names that Keras gives them. Of a layer around others it depends
 * on the class where these are: "" stands for unknown. */
static const char *const holders[][2] = {
    {"sequential", "sequential"}, {"functional", "functional"}, {"model", "functional"},
    {"time_distributed", ""},     {"bidirectional", ""},        {"multi_head_attention", ""}};
enum { HOLDERS = sizeof holders / sizeof *holders };

/* Which of them has a name that begins with `n` letters of `path`; HOLDERS: none. */
static int holder_called(const struct mgpu_variables *v, const char *path, size_t n)
{
    int number, i = 0;
    const char *name = mgpu_arena_format(v->arena, "%.*s", (int)n, path);
    n = mgpu_keras_numbered(name, &number);
    while (i < HOLDERS && (strlen(holders[i][0]) != n || strncmp(name, holders[i][0], n)))
        i++;
    return i;
}

/* The length of the first part of a layer's path that is an object with others in it; 0: none. */
static size_t outer_part(const struct mgpu_variables *v, const char *path)
{
    size_t n = strcspn(path, "/");
    return path[n] && (v->renumbered || holder_called(v, path, n) < HOLDERS) ? n : 0;
}

static int add_object(struct mgpu_keras_tree *t, int parent, const char *name, int layer)
{
    t->object[t->count] = (struct mgpu_keras_object){
        .name = name, .class_name = "", .parent = parent, .first = layer, .last = layer};
    return t->count++;
}

/* The object called so, or -1. A layer that PyTorch stacks has the path of those below it: only
 * what holds others is known by its name. */
static int find_object(const struct mgpu_keras_tree *t, int parent, const char *name, bool holds)
{
    for (int i = t->count - 1; i >= 0; i--)
        if (t->object[i].parent == parent && !strcmp(t->object[i].name, name))
            return holds || t->object[i].holds ? i : -1;
    return -1;
}

static int add_holder(struct mgpu_keras_tree *t, int parent, const char *path, size_t n, int layer)
{
    const struct mgpu_variables *v = t->variables;
    const char *name = mgpu_arena_format(v->arena, "%.*s", (int)n, path);
    int known = holder_called(v, path, n), i = find_object(t, parent, name, true);
    if (i < 0)
        i = add_object(t, parent, name, layer);
    t->object[i].holds = true;
    t->object[i].class_name = known < HOLDERS ? holders[known][1] : "";
    t->object[i].last = layer;
    return i;
}

/* Keras calls the layer after one around another, which the graph does not show. */
static bool is_around(const struct mgpu_variables *v, const char *name)
{
    int i = holder_called(v, name, strlen(name));
    return i < HOLDERS && !*holders[i][1];
}

/* Or an attention, of which the part's class is none that a model has itself. */
static bool is_inner(const struct mgpu_variables *v, const char *name,
                     const struct mgpu_variable_layer *l)
{
    return is_around(v, name) || mgpu_keras_attention_part(l->class_name) >= 0;
}

static void add_layer(struct mgpu_keras_tree *t, int layer, size_t root)
{
    const struct mgpu_variables *v = t->variables;
    const struct mgpu_variable_layer *l = &v->layer[layer];
    const char *path = mgpu_variable_layer_name(v, layer, root);
    int parent = -1;
    for (size_t n; (n = outer_part(v, path)); path += n + 1)
        parent = add_holder(t, parent, path, n, layer);
    bool second = layer && l->direction && l->node == l[-1].node;
    int own = second ? t->of[layer - 1] : find_object(t, parent, path, false);
    if (own < 0) {
        own = add_object(t, parent, path, layer);
        t->object[own].class_name = l->direction           ? "bidirectional"
                                    : is_inner(v, path, l) ? ""
                                                           : l->class_name;
    }
    t->of[layer] = own;
    t->object[own].last = layer;
    if (strchr(path, '/'))
        t->slash = l->path;
}

static void number_objects(struct mgpu_keras_tree *t)
{
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < i; k++)
            t->object[i].number += t->object[k].parent == t->object[i].parent &&
                                   !strcmp(t->object[k].class_name, t->object[i].class_name);
}

/* A path of n parts makes at most n objects. */
static int count_parts(const struct mgpu_variables *v)
{
    int n = 1;
    for (int i = 0; i < v->layers; i++) {
        n++;
        for (const char *c = v->layer[i].path; *c; c++)
            n += *c == '/';
    }
    return n;
}

struct mgpu_keras_tree *mgpu_keras_tree_new(const struct mgpu_variables *v)
{
    struct mgpu_keras_tree *t = MGPU_NEW(v->arena, struct mgpu_keras_tree);
    size_t root = mgpu_variables_root(v);
    t->variables = v;
    t->own = root && holder_called(v, v->layer[0].path, root - 1) == HOLDERS;
    t->object = MGPU_NEW_ARRAY(v->arena, struct mgpu_keras_object, count_parts(v));
    t->of = MGPU_NEW_ARRAY(v->arena, int, v->layers + 1);
    for (int i = 0; i < v->layers; i++)
        add_layer(t, i, root);
    number_objects(t);
    return t;
}

/* ---- Questions ------------------------------------------------------------------------------- */

int mgpu_keras_tree_top(const struct mgpu_keras_tree *t, int layer)
{
    int i = t->of[layer];
    while (t->object[i].parent >= 0)
        i = t->object[i].parent;
    return i;
}

static const char *object_path(const struct mgpu_keras_tree *t, int object)
{
    const struct mgpu_keras_object *o = &t->object[object];
    const char *above = o->parent < 0 ? "" : object_path(t, o->parent);
    char number[16] = "";
    if (o->number)
        snprintf(number, sizeof number, "_%d", o->number);
    return mgpu_arena_format(t->variables->arena, "%s%slayers/%s%s", above, *above ? "/" : "",
                             o->class_name, number);
}

static bool has_cell(const char *class_name)
{
    return !strcmp(class_name, "lstm") || !strcmp(class_name, "gru") ||
           !strcmp(class_name, "simple_rnn");
}

const char *mgpu_keras_tree_group(const struct mgpu_keras_tree *t, int layer)
{
    const struct mgpu_variable_layer *l = &t->variables->layer[layer];
    return mgpu_arena_format(t->variables->arena, "%s%s%s/vars", object_path(t, t->of[layer]),
                             l->direction == MGPU_WAY_FORWARD    ? "/forward_layer"
                             : l->direction == MGPU_WAY_BACKWARD ? "/backward_layer"
                                                                 : "",
                             has_cell(l->class_name) ? "/cell" : "");
}

/* Keras numbered them the other way round: a model of one's own may call its layers in another
 * order than it has them. */
static bool made_later(const struct mgpu_keras_object *a, const struct mgpu_keras_object *b)
{
    int i, k;
    size_t n = mgpu_keras_numbered(a->name, &i), m = mgpu_keras_numbered(b->name, &k);
    return n == m && !strncmp(a->name, b->name, n) && !strcmp(a->class_name, b->class_name) &&
           strlen(a->class_name) == n && i > k;
}

static bool is_in(const struct mgpu_keras_tree *t, int variable, int object)
{
    int i = t->of[t->variables->variable[variable].layer];
    while (i >= 0 && i != object)
        i = t->object[i].parent;
    return i >= 0;
}

/* The object's first variable from `from` on; the count of all: there is none. */
static int next_in(const struct mgpu_keras_tree *t, int from, int object)
{
    while (from < t->variables->count && !is_in(t, from, object))
        from++;
    return from;
}

static bool are_alike(const struct mgpu_keras_tree *t, int a, int b)
{
    const struct mgpu_variables *v = t->variables;
    int i = next_in(t, 0, a), k = next_in(t, 0, b);
    for (; i < v->count && k < v->count; i = next_in(t, i + 1, a), k = next_in(t, k + 1, b)) {
        const struct mgpu_variable *x = &v->variable[i], *y = &v->variable[k];
        if (x->rank != y->rank || memcmp(x->dims, y->dims, (size_t)x->rank * sizeof *x->dims))
            return false;
    }
    return i == k;
}

static bool is_pair(const struct mgpu_keras_tree *t, int a, int b, enum mgpu_keras_pairs pairs)
{
    const struct mgpu_keras_object *x = &t->object[a], *y = &t->object[b];
    return x->parent == y->parent &&
           (!(pairs & MGPU_KERAS_OF_CLASS) || !strcmp(x->class_name, y->class_name)) &&
           (!(pairs & MGPU_KERAS_ALIKE) || are_alike(t, a, b));
}

/* Keras lists an object behind those that feed it; of others the graph does not tell. */
int mgpu_keras_tree_order(const struct mgpu_keras_tree *t, int parent, enum mgpu_keras_pairs pairs)
{
    for (int b = 1; b < t->count; b++) {
        int a = b - 1;
        if (t->object[b].parent != parent)
            continue;
        while (a >= 0 && !is_pair(t, a, b, pairs))
            a--;
        if (a < 0 ||
            (mgpu_variable_layer_before(t->variables, t->object[a].first, t->object[b].last) &&
             !(t->own && made_later(&t->object[a], &t->object[b]))))
            continue;
        return mgpu_fail(MGPU_EINVALID,
                         "the graph does not tell whether Keras lists '%s' or '%s' first",
                         t->variables->layer[t->object[a].first].path,
                         t->variables->layer[t->object[b].first].path);
    }
    return 0;
}

/* Keras has a variable of a kind once in a layer: two kernels are a module's with others inside. */
static bool has_two(const struct mgpu_variables *v, int layer)
{
    for (int i = 0; i + 1 < v->count; i++) /* by layer, in a layer by kind */
        if (v->variable[i].layer == layer && v->variable[i + 1].layer == layer &&
            !strcmp(v->variable[i].leaf, v->variable[i + 1].leaf))
            return true;
    return false;
}

static int check_layer(const struct mgpu_variables *v, int layer)
{
    const char *names[MGPU_KERAS_VARIABLES];
    int count = 0;
    if (has_two(v, layer))
        return -1;
    for (int i = 0; i < v->count; i++)
        count += v->variable[i].layer == layer && !mgpu_variable_is_later_part(v, i);
    return mgpu_keras_variables(names, v->layer[layer].class_name, count) ? 0 : -1;
}

int mgpu_keras_tree_variables(const struct mgpu_keras_tree *t)
{
    const struct mgpu_variables *v = t->variables;
    for (int i = 0; i < v->count; i++) {
        if (!*v->variable[i].leaf)
            return mgpu_fail(
                MGPU_EINVALID,
                "what '%s' is in Keras, the graph does not tell (of a layer in a loop, "
                "or of a class of its own)",
                mgpu_variable_initializer(v, i));
        if (v->variable[i].joined)
            return mgpu_fail(MGPU_EINVALID,
                             "of what shape '%s' is in Keras, the graph does not tell",
                             mgpu_variable_initializer(v, i));
    }
    return 0;
}

int mgpu_keras_tree_classes(const struct mgpu_keras_tree *t)
{
    const char *unknown = NULL;
    for (int i = 0; i < t->count && !unknown; i++)
        if (t->object[i].holds && !*t->object[i].class_name)
            unknown = t->object[i].name;
    for (int i = 0; i < t->variables->layers && !unknown; i++)
        if (t->object[t->of[i]].holds || !*t->object[t->of[i]].class_name ||
            check_layer(t->variables, i) < 0)
            unknown = t->variables->layer[i].path;
    return unknown ? mgpu_fail(MGPU_EINVALID,
                               "of which class '%s' is, the graph does not tell: give --like FILE, "
                               "a Keras file of the same model",
                               unknown)
                   : 0;
}
