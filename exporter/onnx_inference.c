#include "exporter/onnx_inference.h"

#include "importer/onnx_file.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

/* The names that nodes read or a graph returns, sorted. */
struct uses {
    const char **names;
    size_t count;
};

/* A graph or function body with those around it. */
struct body {
    Onnx__NodeProto **nodes;
    size_t count;
    const Onnx__GraphProto *graph;       /* NULL: a function */
    const Onnx__FunctionProto *function; /* NULL: a graph */
    const struct body *outer;
    struct uses uses; /* in it and in the graphs inside */
};

struct rewrite {
    struct mgpu_arena *arena;
    int64_t opset;
    int batch_norms, dropouts;
};

static void use(struct uses *u, const char *name)
{
    u->names = mgpu_grow(u->names, u->count, sizeof *u->names);
    u->names[u->count++] = name;
}

static void collect_graph(struct uses *u, const Onnx__GraphProto *graph);

static void collect_nodes(struct uses *u, Onnx__NodeProto *const *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < nodes[i]->n_input; k++)
            use(u, nodes[i]->input[k]);
        for (size_t k = 0; k < nodes[i]->n_attribute; k++) {
            const Onnx__AttributeProto *a = nodes[i]->attribute[k];
            if (a->g)
                collect_graph(u, a->g);
            for (size_t g = 0; g < a->n_graphs; g++)
                collect_graph(u, a->graphs[g]);
        }
    }
}

static void collect_graph(struct uses *u, const Onnx__GraphProto *graph)
{
    collect_nodes(u, graph->node, graph->n_node);
    for (size_t i = 0; i < graph->n_output; i++)
        use(u, graph->output[i]->name);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void collect(struct body *body)
{
    struct uses *u = &body->uses;
    if (body->graph) {
        collect_graph(u, body->graph);
    } else {
        collect_nodes(u, body->nodes, body->count);
        for (size_t i = 0; i < body->function->n_output; i++)
            use(u, body->function->output[i]);
    }
    if (u->count)
        qsort(u->names, u->count, sizeof *u->names, compare);
}

static bool is_used(const struct uses *u, const char *name)
{
    return *name && u->count && bsearch(&name, u->names, u->count, sizeof name, compare);
}

static Onnx__AttributeProto *find_attribute(const Onnx__NodeProto *node, const char *name)
{
    for (size_t i = 0; i < node->n_attribute; i++)
        if (!strcmp(node->attribute[i]->name, name))
            return node->attribute[i];
    return NULL;
}

/* Adds an integer attribute, or changes the one there is. */
static void set_int(struct rewrite *w, Onnx__NodeProto *node, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = find_attribute(node, name);
    if (!a) {
        Onnx__AttributeProto **list =
            MGPU_NEW_ARRAY(w->arena, Onnx__AttributeProto *, node->n_attribute + 1);
        if (node->n_attribute)
            memcpy(list, node->attribute, node->n_attribute * sizeof *list);
        a = list[node->n_attribute++] = MGPU_NEW(w->arena, Onnx__AttributeProto);
        onnx__attribute_proto__init(a);
        a->name = mgpu_arena_string(w->arena, name);
        a->has_type = 1;
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        node->attribute = list;
    }
    a->has_i = 1;
    a->i = value;
}

/* Whether the attribute is 1 here: not only through a function's argument. */
static bool is_set(const Onnx__NodeProto *node, const char *name)
{
    const Onnx__AttributeProto *a = find_attribute(node, name);
    return a && a->i && !*a->ref_attr_name;
}

static bool trains_batch_norm(const struct rewrite *w, const Onnx__NodeProto *node)
{
    if (w->opset >= 14)
        return is_set(node, "training_mode");
    if (w->opset >= 7)
        return node->n_output > 1;
    return !find_attribute(node, "is_test") || !is_set(node, "is_test");
}

static void batch_norm(struct rewrite *w, Onnx__NodeProto *node, const struct body *body)
{
    if (!trains_batch_norm(w, node))
        return;
    for (size_t i = 1; i < node->n_output; i++)
        if (is_used(&body->uses, node->output[i])) {
            mgpu_note("node '%s' (BatchNormalization) stays in training form: its output '%s' is "
                      "used",
                      node->name, node->output[i]);
            return;
        }
    if (w->opset >= 14)
        set_int(w, node, "training_mode", 0);
    else if (w->opset < 7)
        set_int(w, node, "is_test", 1);
    if (node->n_output > 1)
        node->n_output = 1;
    w->batch_norms++;
}

static const Onnx__TensorProto *find_constant(const struct body *body, const char *name)
{
    for (; body; body = body->outer) {
        for (size_t i = 0; body->graph && i < body->graph->n_initializer; i++)
            if (!strcmp(body->graph->initializer[i]->name, name))
                return body->graph->initializer[i];
        for (size_t i = 0; i < body->count; i++) {
            const Onnx__NodeProto *node = body->nodes[i];
            if (node->n_output == 1 && !strcmp(node->output[0], name) &&
                !strcmp(node->op_type, "Constant")) {
                const Onnx__AttributeProto *value = find_attribute(node, "value");
                return value ? value->t : NULL;
            }
        }
    }
    return NULL;
}

/* Whether the main graph has an input of this name, for the user to feed. */
static bool is_fed(const struct body *body, const char *name)
{
    while (body->outer)
        body = body->outer;
    for (size_t i = 0; body->graph && i < body->graph->n_input; i++)
        if (!strcmp(body->graph->input[i]->name, name))
            return true;
    return false;
}

static bool keeps_mode(const struct body *body, const char *mode)
{
    const Onnx__TensorProto *t = find_constant(body, mode);
    if (!t)
        return is_fed(body, mode);
    return t->raw_data.len == 1 ? !t->raw_data.data[0] : t->n_int32_data == 1 && !t->int32_data[0];
}

static void dropout(struct rewrite *w, Onnx__NodeProto *node, const struct body *body)
{
    if (w->opset >= 12) {
        if (node->n_input < 3 || !*node->input[2] || keeps_mode(body, node->input[2]))
            return;
        node->n_input = 2;
    } else if (w->opset < 7 && !is_set(node, "is_test")) {
        set_int(w, node, "is_test", 1);
    } else {
        return;
    }
    w->dropouts++;
}

static void rewrite_body(struct rewrite *w, struct body *body);

static void rewrite_graph(struct rewrite *w, const Onnx__GraphProto *graph,
                          const struct body *outer)
{
    struct body body = {graph->node, graph->n_node, graph, NULL, outer, {NULL, 0}};
    rewrite_body(w, &body);
}

static void rewrite_node(struct rewrite *w, Onnx__NodeProto *node, const struct body *body)
{
    bool standard = !*node->domain || !strcmp(node->domain, "ai.onnx");
    if (standard && !strcmp(node->op_type, "BatchNormalization"))
        batch_norm(w, node, body);
    if (standard && !strcmp(node->op_type, "Dropout"))
        dropout(w, node, body);
    for (size_t i = 0; i < node->n_attribute; i++) {
        if (node->attribute[i]->g)
            rewrite_graph(w, node->attribute[i]->g, body);
        for (size_t k = 0; k < node->attribute[i]->n_graphs; k++)
            rewrite_graph(w, node->attribute[i]->graphs[k], body);
    }
}

static void rewrite_body(struct rewrite *w, struct body *body)
{
    collect(body);
    for (size_t i = 0; i < body->count; i++)
        rewrite_node(w, body->nodes[i], body);
    free(body->uses.names);
}

void mgpu_onnx_inference_form(Onnx__ModelProto *model, struct mgpu_arena *arena)
{
    struct rewrite w = {.arena = arena};
    w.opset = mgpu_onnx_opset(model->n_opset_import, model->opset_import, "");
    rewrite_graph(&w, model->graph, NULL);
    for (size_t i = 0; i < model->n_functions; i++) {
        const Onnx__FunctionProto *f = model->functions[i];
        struct body body = {f->node, f->n_node, NULL, f, NULL, {NULL, 0}};
        w.opset = mgpu_onnx_opset(f->n_opset_import, f->opset_import, "");
        rewrite_body(&w, &body);
    }
    if (w.batch_norms || w.dropouts)
        mgpu_note("%d BatchNormalization and %d Dropout nodes leave in inference form "
                  "(--as-exported keeps them as they came)",
                  w.batch_norms, w.dropouts);
}
