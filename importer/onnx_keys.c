#include "importer/onnx_keys.h"

#include "runtime/base/memory.h"

#include <stdlib.h>
#include <string.h>

/* A tensor or a node. */
struct entry {
    const char *key;
    const void *message;
    const struct scope *scope;
    bool node;
};

/* A graph or a function's body. */
struct scope {
    const char *holder, *attribute; /* holder: the node's name, or the function's */
    int number;                     /* 0: the main graph */
};

struct mgpu_onnx_keys {
    struct mgpu_arena *arena;
    struct entry *by_key, *by_message;
    size_t count;
    const char **names;
    size_t name_count;
    int scopes;
};

static const char *first_output(const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_output; i++)
        if (*node->output[i])
            return node->output[i];
    return "";
}

static void add_entry(struct mgpu_onnx_keys *k, const char *name, const void *message,
                      const struct scope *scope, bool node)
{
    k->by_key = mgpu_grow(k->by_key, k->count, sizeof *k->by_key);
    k->by_key[k->count++] = (struct entry){name, message, scope, node};
}

static void add_name(struct mgpu_onnx_keys *k, const char *name)
{
    k->names = mgpu_grow(k->names, k->name_count, sizeof *k->names);
    k->names[k->name_count++] = name;
}

static const struct scope *new_scope(struct mgpu_onnx_keys *k, const char *holder,
                                     const char *attribute)
{
    struct scope *s = MGPU_NEW(k->arena, struct scope);
    *s = (struct scope){holder, attribute, k->scopes++};
    return s;
}

static void add_graph(struct mgpu_onnx_keys *k, const Onnx__GraphProto *graph,
                      const struct scope *scope);

static void add_node(struct mgpu_onnx_keys *k, const Onnx__NodeProto *node,
                     const struct scope *scope)
{
    const char *name = first_output(node);
    add_entry(k, name, node, scope, true);
    for (size_t i = 0; i < node->n_output; i++)
        add_name(k, node->output[i]);
    for (size_t i = 0; i < node->n_attribute; i++) {
        const Onnx__AttributeProto *a = node->attribute[i];
        if (a->t && !strcmp(node->op_type, "Constant"))
            add_entry(k, name, a->t, scope, false);
        if (a->g)
            add_graph(k, a->g, new_scope(k, name, a->name));
        for (size_t j = 0; j < a->n_graphs; j++)
            add_graph(k, a->graphs[j], new_scope(k, name, a->name));
    }
}

static void add_graph(struct mgpu_onnx_keys *k, const Onnx__GraphProto *graph,
                      const struct scope *scope)
{
    for (size_t i = 0; i < graph->n_input; i++)
        add_name(k, graph->input[i]->name);
    for (size_t i = 0; i < graph->n_initializer; i++) {
        add_entry(k, graph->initializer[i]->name, graph->initializer[i], scope, false);
        add_name(k, graph->initializer[i]->name);
    }
    for (size_t i = 0; i < graph->n_node; i++)
        add_node(k, graph->node[i], scope);
}

static void add_function(struct mgpu_onnx_keys *k, const Onnx__FunctionProto *f)
{
    const struct scope *scope = new_scope(k, f->name, NULL);
    for (size_t i = 0; i < f->n_input; i++)
        add_name(k, f->input[i]);
    for (size_t i = 0; i < f->n_node; i++)
        add_node(k, f->node[i], scope);
}

static int compare_keys(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->node != y->node)
        return x->node ? 1 : -1;
    int order = strcmp(x->key, y->key);
    return order ? order : x->scope->number - y->scope->number;
}

static int compare_messages(const void *a, const void *b)
{
    const char *x = ((const struct entry *)a)->message, *y = ((const struct entry *)b)->message;
    return (x > y) - (x < y);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *long_key(struct mgpu_onnx_keys *k, const struct entry *e)
{
    const struct scope *s = e->scope;
    if (s->attribute)
        return mgpu_arena_format(k->arena, "%.64s.%.64s#%d/%s", s->holder, s->attribute, s->number,
                                 e->key);
    return mgpu_arena_format(k->arena, "function %.64s#%d/%s", s->holder, s->number, e->key);
}

/* Of entries with one name (neighbours once sorted) only the main graph's keeps it. */
static void make_unique(struct mgpu_onnx_keys *k)
{
    struct entry *e = k->by_key, *end = e + k->count, *next;
    for (; e < end; e = next) {
        for (next = e + 1; next < end && next->node == e->node && !strcmp(next->key, e->key);)
            next++;
        if (next == e + 1)
            continue;
        for (struct entry *each = next - 1; each >= e; each--)
            if (each->scope->number)
                each->key = long_key(k, each);
    }
}

static void sort(void *items, size_t count, size_t size, int (*compare)(const void *, const void *))
{
    if (count)
        qsort(items, count, size, compare);
}

struct mgpu_onnx_keys *mgpu_onnx_keys_new(const Onnx__ModelProto *model)
{
    struct mgpu_onnx_keys *k = mgpu_xcalloc(1, sizeof *k);
    k->arena = mgpu_arena_new();
    add_graph(k, model->graph, new_scope(k, "", ""));
    for (size_t i = 0; i < model->n_functions; i++)
        add_function(k, model->functions[i]);
    sort(k->by_key, k->count, sizeof *k->by_key, compare_keys);
    make_unique(k);
    sort(k->by_key, k->count, sizeof *k->by_key, compare_keys);
    k->by_message = mgpu_xcalloc(k->count, sizeof *k->by_message);
    if (k->count)
        memcpy(k->by_message, k->by_key, k->count * sizeof *k->by_key);
    sort(k->by_message, k->count, sizeof *k->by_message, compare_messages);
    sort(k->names, k->name_count, sizeof *k->names, compare_names);
    return k;
}

void mgpu_onnx_keys_free(struct mgpu_onnx_keys *k)
{
    if (!k)
        return;
    mgpu_arena_free(k->arena);
    free(k->by_key);
    free(k->by_message);
    free(k->names);
    free(k);
}

const char *mgpu_onnx_keys_of(const struct mgpu_onnx_keys *k, const void *message)
{
    struct entry wanted = {.message = message};
    const struct entry *e =
        bsearch(&wanted, k->by_message, k->count, sizeof wanted, compare_messages);
    return e ? e->key : NULL;
}

static int compare_wanted(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->node != y->node)
        return x->node ? 1 : -1;
    return strcmp(x->key, y->key);
}

const void *mgpu_onnx_keys_find(const struct mgpu_onnx_keys *k, const char *key, bool node)
{
    struct entry wanted = {.key = key, .node = node};
    if (!k->count)
        return NULL;
    const struct entry *e = bsearch(&wanted, k->by_key, k->count, sizeof wanted, compare_wanted);
    return e ? e->message : NULL;
}

bool mgpu_onnx_keys_has_name(const struct mgpu_onnx_keys *k, const char *name)
{
    return k->name_count &&
           bsearch(&name, k->names, k->name_count, sizeof *k->names, compare_names);
}
