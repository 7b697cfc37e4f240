#include "exporter/architecture.h"

#include "exporter/keras_layers.h"
#include "runtime/base/status.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MOST = 64 };

static struct json_object *parse(const char *text)
{
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MOST);
    struct json_object *out = json_tokener_parse_ex(tokener, text, (int)strnlen(text, INT32_MAX));
    json_tokener_free(tokener);
    return out;
}

static struct json_object *member(struct json_object *o, const char *name)
{
    struct json_object *out;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, name, &out)
               ? out
               : NULL;
}

static const char *text_of(struct json_object *o, const char *name)
{
    struct json_object *value = member(o, name);
    return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
}

static const char *layer_name(struct json_object *layer)
{
    const char *own = text_of(member(layer, "config"), "name");
    return *own ? own : text_of(layer, "name");
}

/* The list of a model's layers: config is the list itself (Sequential before 2.2.4) or has it; of
 * the cells of a stack. NULL for what is neither. */
static struct json_object *layers_of(struct json_object *model)
{
    struct json_object *config = member(model, "config"), *cells = member(config, "cells");
    struct json_object *list = json_object_is_type(config, json_type_array) ? config
                               : cells                                      ? cells
                                       : member(config, "layers");
    return json_object_is_type(list, json_type_array) ? list : NULL;
}

static int count_of(struct json_object *list)
{
    return list ? (int)json_object_array_length(list) : 0;
}

static struct json_object *item(struct json_object *list, int i)
{
    return json_object_array_get_idx(list, (size_t)i);
}

/* ---- Names of a store ------------------------------------------------------------------------ */

struct naming {
    struct mgpu_checkpoint *c;
    struct json_object *model;
};

static bool is_container(const char *part)
{
    return !strcmp(part, "layers") || !strcmp(part, "_layer_checkpoint_dependencies") ||
           !strcmp(part, "cells");
}

/* What an RNN runs, where that holds others: a stack of cells. */
static struct json_object *stack_in(struct json_object *layer, const char *part)
{
    struct json_object *cell = strcmp(part, "cell") ? NULL : member(member(layer, "config"), part);
    return layers_of(cell) ? cell : NULL;
}

/* The number of the class that a group has right after `prefix`, which ends with the class's name
 * (of `length`); -1: it is another's. */
static int number_after(const char *group, const char *prefix, size_t length)
{
    size_t n = strlen(prefix);
    char part[128];
    int number;
    if (strncmp(group, prefix, n))
        return -1;
    size_t size = strcspn(group + n - length, "/");
    if (size >= sizeof part)
        return -1;
    memcpy(part, group + n - length, size);
    part[size] = 0;
    return mgpu_keras_numbered(part, &number) == length ? number : -1;
}

/* Keras 2.13 skips numbers: how many smaller ones there are. Equal ones stand together. */
static int rank_of(const struct mgpu_checkpoint *c, const char *prefix, size_t length, int number)
{
    int rank = 0, before = -1;
    for (int i = 0; i < c->count; i++) {
        int other = number_after(c->tensor[i].group, prefix, length);
        if (other >= 0 && other != before && other < number)
            rank++;
        before = other;
    }
    return rank;
}

/* Where the layer number `number` of the class is among a model's; -1: nowhere. */
static int find_layer(struct naming *n, struct json_object *list, const char *class_name,
                      size_t length, int number)
{
    for (int i = 0; i < count_of(list); i++) {
        const char *snake =
            mgpu_keras_snake_case(n->c->arena, text_of(item(list, i), "class_name"));
        if (strlen(snake) == length && !strncmp(snake, class_name, length) && number-- == 0)
            return i;
    }
    return -1;
}

/* tf_keras's attributes for the layers of its attention begin with a '_'. */
static const char *without_underscore(const char *part)
{
    return *part == '_' && mgpu_keras_attention_part(part + 1) >= 0 ? part + 1 : part;
}

/* Parts below a layer: attributes of the layer that hold other layers. */
static const char *part_name(struct naming *n, struct json_object *layer, const char *part)
{
    const char *inner = layer_name(member(member(layer, "config"), "layer"));
    if (!strcmp(part, "forward_layer"))
        return mgpu_arena_format(n->c->arena, "forward_%s", inner);
    if (!strcmp(part, "backward_layer"))
        return mgpu_arena_format(n->c->arena, "backward_%s", inner);
    if (!strcmp(part, "cell") || !strcmp(part, "layer"))
        return NULL;
    int attention = mgpu_keras_attention_part(part);
    return attention < 0 ? part : mgpu_keras_attention[attention][1];
}

/* Their places in the layer's weights; -1: it is the layer's own code that says. */
static int part_place(const char *part)
{
    static const struct {
        const char *part;
        int place;
    } parts[] = {{"cell", 0}, {"layer", 0}, {"forward_layer", 0}, {"backward_layer", 1}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(parts[i].part, part))
            return parts[i].place;
    return mgpu_keras_attention_part(part);
}

static bool is_frozen(struct json_object *layer)
{
    struct json_object *trainable = member(member(layer, "config"), "trainable");
    return json_object_is_type(trainable, json_type_boolean) && !json_object_get_boolean(trainable);
}

/* One level more of a place; NULL: not known. */
static const char *deeper(struct naming *n, const char *place, int at)
{
    return place && at >= 0 ? mgpu_arena_format(n->c->arena, "%s%06d/", place, at) : NULL;
}

static const char *append(struct naming *n, const char *path, const char *part)
{
    return !part   ? path
           : *path ? mgpu_arena_format(n->c->arena, "%s/%s", path, part)
                   : mgpu_arena_string(n->c->arena, part);
}

/* Goes down the path from the model: names, places, what is frozen. */
static void name_tensor(struct naming *n, struct mgpu_checkpoint_tensor *t)
{
    char *path = mgpu_arena_string(n->c->arena, t->group), *rest = path;
    struct json_object *at = n->model;
    const char *name = "", *place = "";
    bool in_container = false, skips = false;
    for (char *part; at && (part = strtok_r(rest, "/", &rest));) {
        int number;
        if (is_container(part)) {
            in_container = true;
            skips = *part == '_';
            continue;
        }
        if (!in_container) {
            struct json_object *stack = stack_in(at, part);
            const char *plain = without_underscore(part);
            name = append(n, name, part_name(n, at, plain));
            place = deeper(n, place, part_place(plain));
            at = stack ? stack : at;
            continue;
        }
        size_t length = mgpu_keras_numbered(part, &number);
        if (skips)
            number = rank_of(n->c,
                             mgpu_arena_format(n->c->arena, "%.*s",
                                               (int)(part - path + (ptrdiff_t)length), t->group),
                             length, number);
        int index = find_layer(n, layers_of(at), part, length, number);
        at = index < 0 ? NULL : item(layers_of(at), index);
        name = append(n, name, layer_name(at));
        place = deeper(n, place, index);
        t->top = *t->top || !at ? t->top : name;
        t->frozen |= is_frozen(at);
        in_container = false;
    }
    if (!*t->layer && at) {
        t->layer = name;
        t->by_attribute = !place;
    }
    /* What it has beside the layer that it wraps, the legacy layout has once, or behind. */
    t->order = at && strcmp(t->class_name, "spectral_normalization") ? place : NULL;
}

/* The class of the object that has the variables: the last part that is not "cell"; "" of a layer
 * that another one wraps, which is called "layer". */
static void classify(struct mgpu_checkpoint *c, struct mgpu_checkpoint_tensor *t)
{
    const char *last = "";
    int number;
    char *path = mgpu_arena_string(c->arena, t->group), *rest = path;
    for (char *part; (part = strtok_r(rest, "/", &rest));)
        if (strcmp(part, "cell") && strcmp(part, "forward_layer") && strcmp(part, "backward_layer"))
            last = without_underscore(part);
    size_t length = strcmp(last, "layer") ? mgpu_keras_numbered(last, &number) : 0;
    t->class_name = mgpu_arena_format(c->arena, "%.*s", (int)length, last);
}

static void name_variables(struct mgpu_checkpoint *c, int first, int count)
{
    const char *names[MGPU_KERAS_VARIABLES];
    for (int i = first; i < first + count; i++)
        classify(c, &c->tensor[i]);
    if (!mgpu_keras_variables(names, c->tensor[first].class_name, count))
        return;
    for (int i = 0; i < count; i++)
        c->tensor[first + i].leaf = names[i];
}

static int by_group_and_index(const void *a, const void *b)
{
    const struct mgpu_checkpoint_tensor *x = a, *y = b;
    int groups = strcmp(x->group, y->group);
    return groups ? groups : (x->index > y->index) - (x->index < y->index);
}

static int by_order(const void *a, const void *b)
{
    const struct mgpu_checkpoint_tensor *x = a, *y = b;
    if (!x->order || !y->order)
        return x->order ? -1 : y->order ? 1 : by_group_and_index(a, b);
    int order = strcmp(x->order, y->order);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static void sort(struct mgpu_checkpoint *c, int (*compare)(const void *, const void *))
{
    if (c->count)
        qsort(c->tensor, (size_t)c->count, sizeof *c->tensor, compare);
}

/* 0, 1, 2, ... in every group. */
static int check_numbers(const struct mgpu_checkpoint *c)
{
    for (int i = 0; i < c->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        bool first = i == 0 || strcmp(t->group, t[-1].group) != 0;
        if (t->index != (first ? 0 : t[-1].index + 1))
            return mgpu_fail(MGPU_EINVALID, "'%s' is in it, and what comes before it is not",
                             t->name);
    }
    return 0;
}

static int name_store(struct mgpu_checkpoint *c, struct json_object *model)
{
    struct naming n = {c, model};
    sort(c, by_group_and_index);
    MGPU_TRY(check_numbers(c));
    for (int i = 0, count; i < c->count; i += count) {
        for (count = 1;
             i + count < c->count && !strcmp(c->tensor[i].group, c->tensor[i + count].group);)
            count++;
        name_variables(c, i, count);
        for (int k = i; k < i + count && model; k++)
            if (c->tensor[k].weight)
                name_tensor(&n, &c->tensor[k]);
    }
    sort(c, by_order);
    c->ordered = model != NULL;
    for (int i = 0; i < c->count; i++)
        c->ordered &= !c->tensor[i].weight || c->tensor[i].order;
    return 0;
}

const char *mgpu_architecture_unplaced(const struct mgpu_checkpoint *c)
{
    for (int i = 0; i < c->count && c->kind == MGPU_CHECKPOINT_KERAS_ARCHIVE; i++)
        if (c->tensor[i].weight && !c->tensor[i].order)
            return c->tensor[i].name;
    return "";
}

/* ---- The legacy layout's order --------------------------------------------------------------- */

/* What Keras does not train stands last in a model inside. */
static bool stands_last(const struct mgpu_checkpoint_tensor *t)
{
    return t->frozen || !strcmp(t->leaf, "moving_mean") || !strcmp(t->leaf, "moving_variance");
}

int mgpu_architecture_legacy_order(int *order, const struct mgpu_checkpoint *c)
{
    int n = 0, end;
    for (int i = 0; i < c->count && c->tensor[i].weight; i = end) {
        for (end = i; end < c->count && !strcmp(c->tensor[end].top, c->tensor[i].top);)
            end++;
        for (int last = 0; last < 2; last++)
            for (int k = i; k < end; k++)
                if (c->tensor[k].weight && stands_last(&c->tensor[k]) == last)
                    order[n++] = k;
    }
    return n;
}

int mgpu_architecture_name(struct mgpu_checkpoint *c)
{
    if (c->kind != MGPU_CHECKPOINT_KERAS_STORE && c->kind != MGPU_CHECKPOINT_KERAS_ARCHIVE)
        return 0;
    struct json_object *model = c->config ? parse(c->config) : NULL;
    if (c->config && !model)
        return mgpu_fail(MGPU_EINVALID, "config.json is not JSON");
    int rc = name_store(c, model);
    json_object_put(model);
    return rc;
}

/* ---- Means that a layer was given ------------------------------------------------------------ */

/* Whether the path's last part is `name`. */
static bool is_last_part(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return !strcmp(slash ? slash + 1 : path, name);
}

/* The one Normalization with a mean that is called as the path's end; without names, the only one
 * at all. */
static void find_means(struct json_object *model, const char *path, struct json_object **named,
                       struct json_object **any, int *count)
{
    struct json_object *list = layers_of(model);
    for (int i = 0; i < count_of(list); i++) {
        struct json_object *layer = item(list, i), *mean = member(member(layer, "config"), "mean");
        find_means(layer, path, named, any, count);
        if (strcmp(text_of(layer, "class_name"), "Normalization") || !mean)
            continue;
        *any = mean;
        ++*count;
        if (is_last_part(path, layer_name(layer)))
            *named = mean;
    }
}

/* Numbers of lists in lists, one after the other; more than `count` are counted only, and what is
 * no number is too many. */
static int64_t flatten(double *out, int64_t count, struct json_object *from, int64_t at)
{
    if (json_object_is_type(from, json_type_array)) {
        for (int i = 0; i < count_of(from); i++)
            at = flatten(out, count, item(from, i), at);
        return at;
    }
    bool number =
        json_object_is_type(from, json_type_double) || json_object_is_type(from, json_type_int);
    if (number && at < count)
        out[at] = json_object_get_double(from);
    return number ? at + 1 : count + 1;
}

bool mgpu_architecture_mean(double *out, int64_t count, const struct mgpu_checkpoint *c,
                            const char *path)
{
    struct json_object *model = c->config ? parse(c->config) : NULL, *named = NULL, *any = NULL;
    int means = 0;
    find_means(model, path, &named, &any, &means);
    struct json_object *mean = named ? named : means == 1 ? any : NULL;
    int64_t n = mean ? flatten(out, count, mean, 0) : 0;
    for (int64_t i = 1; n == 1 && i < count; i++)
        out[i] = out[0];
    json_object_put(model);
    return n == count || n == 1;
}

/* ---- multi_gpu_model ------------------------------------------------------------------------- */

/* A Lambda whose arguments are the number of a piece of the batch and of all pieces. */
static bool cuts_batch(struct json_object *layer)
{
    struct json_object *arguments = member(member(layer, "config"), "arguments");
    return !strcmp(text_of(layer, "class_name"), "Lambda") && member(arguments, "i") &&
           member(arguments, "parts");
}

const char *mgpu_architecture_wrapped(const struct mgpu_checkpoint *c)
{
    struct json_object *model = c->config ? parse(c->config) : NULL, *list = layers_of(model);
    const char *inner = NULL;
    int lambdas = 0, models = 0;
    for (int i = 0; i < count_of(list); i++) {
        lambdas += cuts_batch(item(list, i));
        if (layers_of(item(list, i))) {
            models++;
            inner = layer_name(item(list, i));
        }
    }
    inner = lambdas >= 2 && models == 1 ? mgpu_arena_string(c->arena, inner) : NULL;
    json_object_put(model);
    return inner;
}

static bool has_layer(struct json_object *model, const char *layer)
{
    struct json_object *list = layers_of(model);
    bool found = false;
    for (int i = 0; i < count_of(list) && !found; i++)
        found = !strcmp(layer_name(item(list, i)), layer) || has_layer(item(list, i), layer);
    return found;
}

bool mgpu_architecture_has_layer(const struct mgpu_checkpoint *c, const char *model,
                                 const char *layer)
{
    struct json_object *outer = c->config ? parse(c->config) : NULL, *list = layers_of(outer);
    bool found = false;
    for (int i = 0; i < count_of(list) && !found; i++)
        found = !strcmp(layer_name(item(list, i)), model) && has_layer(item(list, i), layer);
    json_object_put(outer);
    return found;
}
