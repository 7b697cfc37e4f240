/* A model's arrays in the two layouts of Keras, which finds them by the order of its layers. */
#include "exporter/framework_parts.h"
#include "exporter/keras_tree.h"
#include "exporter/normalizations.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <string.h>

static bool is_statistic(const struct mgpu_variables *v, int variable)
{
    return v->variable[variable].role == MGPU_VAR_MEAN ||
           v->variable[variable].role == MGPU_VAR_VARIANCE;
}

/* ---- What the graph does not tell ------------------------------------------------------------ */

static int ask(int rc)
{
    char what[1024];
    if (rc >= 0)
        return 0;
    snprintf(what, sizeof what, "%s", mgpu_error());
    return mgpu_fail(rc, "%s: give --like FILE, a Keras file of the same model", what);
}

static bool has_statistics(const struct mgpu_keras_tree *t, int object)
{
    for (int i = 0; i < t->variables->count; i++)
        if (is_statistic(t->variables, i) &&
            mgpu_keras_tree_top(t, t->variables->variable[i].layer) == object)
            return true;
    return false;
}

/* The legacy layout has a model inside in one group: what is trained, then all else. */
static int check_inside(const struct mgpu_keras_tree *t)
{
    for (int i = 0; i < t->count; i++) {
        if (!t->object[i].holds)
            continue;
        if (!*t->object[i].class_name)
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' is a model or layer with others inside, whose order the graph "
                             "does not tell",
                             t->object[i].name);
        MGPU_TRY(mgpu_keras_tree_order(t, i, MGPU_KERAS_ALL));
        if (t->object[i].parent < 0 && has_statistics(t, i))
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' is a model inside, whose weights stand in an order that depends "
                             "on which of its layers are frozen in Keras",
                             t->object[i].name);
    }
    return 0;
}

static void tell_inside(const struct mgpu_keras_tree *t)
{
    for (int i = 0; i < t->count; i++)
        if (t->object[i].holds && t->object[i].parent < 0 &&
            t->object[i].first < t->object[i].last) {
            mgpu_note("'%s' is a model inside, whose weights are written as if all of its layers "
                      "were trained or all frozen in Keras; if only some are, give --like FILE",
                      t->object[i].name);
            return;
        }
}

/* The legacy layout has a model inside at each of its places, the store at the first one only; and
 * the numbers of both count it each time. */
static int check_places(const struct mgpu_variables *v)
{
    for (int i = 0; i < v->layers; i++)
        if (v->layer[i].elsewhere)
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' is '%s', too: how Keras lists a model inside that stands at "
                             "several places, the graph does not tell",
                             v->layer[i].path, v->layer[i].elsewhere);
    return 0;
}

static int check_constants(const struct mgpu_variables *v)
{
    const char *layer = mgpu_normalizations_first(v);
    return layer ? mgpu_fail(MGPU_EINVALID,
                             "mean and variance of '%s' are constants of the graph, which has them "
                             "not as Keras has",
                             layer)
                 : 0;
}

/* Keras starts an LSTM's bias with ones, others with zeros. */
static int check_bias(const struct mgpu_variables *v)
{
    for (int i = 0; i < v->count; i++)
        if (mgpu_variable_is_zero_bias(v, i) &&
            !strcmp(v->layer[v->variable[i].layer].class_name, "lstm"))
            return mgpu_fail(MGPU_EINVALID,
                             "the graph does not tell whether '%s' has a bias in Keras: all of it "
                             "is zero",
                             v->layer[v->variable[i].layer].path);
    return 0;
}

/* In the order of the graph, Keras refuses what it lists otherwise, by the shapes: but for layers
 * that look alike, which it would take for one another. */
static int check_order(const struct mgpu_keras_tree *t, int parent, enum mgpu_keras_pairs pairs,
                       bool by_order)
{
    char what[1024];
    int rc = mgpu_keras_tree_order(t, parent, pairs);
    if (rc == 0 || !by_order)
        return ask(rc);
    snprintf(what, sizeof what, "%s", mgpu_error());
    MGPU_TRY(ask(mgpu_keras_tree_order(t, parent, pairs | MGPU_KERAS_ALIKE)));
    mgpu_note("%s: it is written in the graph's order, and Keras refuses the file if that is not "
              "its own",
              what);
    return 0;
}

static int check_legacy(const struct mgpu_keras_tree *t, bool by_order)
{
    MGPU_TRY(ask(mgpu_keras_tree_variables(t)));
    MGPU_TRY(ask(check_inside(t)));
    tell_inside(t);
    return check_order(t, -1, MGPU_KERAS_ALL, by_order);
}

static int check_store(const struct mgpu_keras_tree *t, bool by_order, bool state)
{
    enum mgpu_keras_pairs pairs = state ? MGPU_KERAS_ALL : MGPU_KERAS_OF_CLASS;
    MGPU_TRY(mgpu_keras_tree_classes(t));
    MGPU_TRY(ask(mgpu_keras_tree_variables(t)));
    MGPU_TRY(check_order(t, -1, pairs, by_order));
    for (int i = 0; i < t->count; i++)
        if (t->object[i].holds)
            MGPU_TRY(check_order(t, i, pairs, by_order));
    return 0;
}

/* Keras has the normalisation and the weights as they were before: neither can be had back. In
 * its exports in training form the statistics are missing. */
static int check_folded(const struct mgpu_variables *v)
{
    for (int i = 0; i < v->count; i++)
        if (mgpu_variable_is_folded(v, i))
            return mgpu_fail(MGPU_EINVALID,
                             "the exporter folded a batch normalisation into '%s', and Keras "
                             "refuses a file without it: only safetensors, npz and ONNX take such "
                             "weights",
                             mgpu_variable_initializer(v, i));
    return 0;
}

static void tell_slash(const struct mgpu_keras_tree *t)
{
    if (t->slash)
        mgpu_note("names with '/' ('%s') are taken for layers of the model itself; if they are in "
                  "a model inside, Keras refuses the file: give --like FILE then, a Keras file of "
                  "the same model",
                  t->slash);
}

/* Of several layers: one alone has no order. */
static void tell_own(const struct mgpu_keras_tree *t)
{
    const char *path = t->variables->layers ? t->variables->layer[0].path : "";
    if (t->own && t->of[t->variables->layers - 1] > 0)
        mgpu_note("'%.*s' is taken for a model of Keras's own, which lists its layers as they run; "
                  "if it is of a class of your own that lists them otherwise, give --like FILE, a "
                  "Keras file of the same model",
                  (int)strcspn(path, "/"), path);
}

static bool has_bias(const struct mgpu_variables *v, int layer)
{
    bool has = false;
    for (int i = 0; i < v->count; i++)
        has |= v->variable[i].layer == layer && v->variable[i].role == MGPU_VAR_BIAS;
    return has;
}

/* The layer without a bias whose product this is; -1: none. */
static int bare_layer(const struct mgpu_variables *v, int node)
{
    for (int i = 0; i < v->layers; i++)
        if (v->layer[i].node == node)
            return has_bias(v, i) ? -1 : i;
    return -1;
}

static void tell_bare(const struct mgpu_variables *v)
{
    int count = 0, first = -1;
    for (int i = 0; i < v->weights->bares; i++) {
        int layer = v->weights->lost[i] ? bare_layer(v, v->weights->bare[i]) : -1;
        count += layer >= 0;
        first = first < 0 ? layer : first;
    }
    if (count)
        mgpu_note(
            "%d layer%s no bias in the graph ('%s'): exporters leave out biases that are all "
            "zero, and if it has one in Keras, Keras refuses the file: give --like FILE then, "
            "a Keras file of the same model",
            count, count == 1 ? " has" : "s have", v->layer[first].path);
}

/* ---- The two layouts ------------------------------------------------------------------------- */

static void list_legacy(struct mgpu_framework_arrays *a, const struct mgpu_keras_tree *t)
{
    const struct mgpu_variables *v = a->variables;
    size_t root = mgpu_variables_root(v);
    for (int top = 0; top < t->count; top++)
        for (int pass = 0; pass < 2 && t->object[top].parent < 0; pass++)
            for (int i = 0; i < v->count; i++) {
                int last = t->object[top].holds && is_statistic(v, i);
                if (mgpu_keras_tree_top(t, v->variable[i].layer) != top || last != pass ||
                    mgpu_variable_is_later_part(v, i))
                    continue;
                const char *name = mgpu_framework_name(a, i, root);
                bool known = *v->variable[i].leaf;
                mgpu_framework_add(a, i, known ? mgpu_arena_format(a->arena, "%s:0", name) : name,
                                   t->object[top].name);
            }
}

/* PyTorch's stacked layers have one path: that is no name for either. */
static bool has_own_path(const struct mgpu_keras_tree *t, int layer)
{
    const struct mgpu_variable_layer *l = t->variables->layer;
    for (int i = 0; i < t->variables->layers; i++)
        if (t->of[i] != t->of[layer] && !strcmp(l[i].path, l[layer].path))
            return false;
    return true;
}

static void list_store(struct mgpu_framework_arrays *a, const struct mgpu_keras_tree *t)
{
    const struct mgpu_variables *v = a->variables;
    size_t root = mgpu_variables_root(v);
    for (int i = 0, index = 0, last = -1; i < v->count; i++) {
        int layer = v->variable[i].layer;
        if (mgpu_variable_is_later_part(v, i))
            continue;
        index = layer == last ? index + 1 : 0;
        last = layer;
        const char *name = mgpu_framework_name(a, i, root), *slash = strrchr(name, '/');
        const char *path = slash && has_own_path(t, layer)
                               ? mgpu_arena_format(a->arena, "%.*s", (int)(slash - name), name)
                               : NULL;
        mgpu_framework_add(
            a, i, mgpu_arena_format(a->arena, "%s/%d", mgpu_keras_tree_group(t, layer), index),
            path);
    }
}

int mgpu_framework_keras(struct mgpu_framework_arrays *a, enum mgpu_target target, bool by_order,
                         bool state)
{
    struct mgpu_keras_tree *t = mgpu_keras_tree_new(a->variables);
    bool store = target == MGPU_TARGET_KERAS_STORE;
    bool keras = a->variables->model->producer == MGPU_PRODUCER_TENSORFLOW;
    MGPU_TRY(keras ? check_folded(a->variables) : 0);
    if (keras)
        tell_bare(a->variables);
    MGPU_TRY(ask(check_constants(a->variables)));
    MGPU_TRY(ask(check_places(a->variables)));
    MGPU_TRY(store ? check_store(t, by_order, state) : check_legacy(t, by_order));
    MGPU_TRY(keras ? ask(check_bias(a->variables)) : 0);
    if (keras) {
        tell_slash(t);
        tell_own(t);
    }
    if (store)
        list_store(a, t);
    else
        list_legacy(a, t);
    return 0;
}
