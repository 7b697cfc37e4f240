#include "importer/onnx_check.h"

#include "importer/onnx_file.h"
#include "importer/onnx_tensor.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Who gives a name its value: a node, by its index, or one of these. */
enum { INITIALIZER = -2, INPUT = -1 };

struct name {
    const char *text;
    long producer;
};

/* A list of names; sorted before it is searched, so that no file can make the search slow. */
struct names {
    struct name *items;
    size_t count;
};

/* The names of one graph or function body. */
struct scope {
    struct names names;
    Onnx__NodeProto *const *nodes;
    const struct scope *outer; /* whose names are visible as far as they are older than its node */
    long current;              /* the node that is being checked */
};

struct check {
    const char *folder;
    struct names domains; /* with an imported opset */
    bool in_function;
};

static void add_name(struct names *names, const char *text, long producer)
{
    names->items = mgpu_grow(names->items, names->count, sizeof *names->items);
    names->items[names->count++] = (struct name){text, producer};
}

static int compare_names(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->producer > y->producer) - (x->producer < y->producer);
}

static void sort_names(struct names *names)
{
    if (names->count)
        qsort(names->items, names->count, sizeof *names->items, compare_names);
}

static int compare_text(const void *text, const void *name)
{
    return strcmp(text, ((const struct name *)name)->text);
}

static const struct name *find_name(const struct names *names, const char *text)
{
    if (!names->count)
        return NULL;
    return bsearch(text, names->items, names->count, sizeof *names->items, compare_text);
}

/* The first name of a sorted list that occurs again right after it. */
static const struct name *find_twice(const struct names *names, const struct name *from)
{
    const struct name *end = names->items + names->count;
    for (const struct name *n = from ? from : names->items; n && n + 1 < end; n++)
        if (!strcmp(n[0].text, n[1].text))
            return n;
    return NULL;
}

static void free_names(struct names *names)
{
    free(names->items);
    *names = (struct names){0};
}

static const char *node_name(const Onnx__NodeProto *node)
{
    if (*node->name)
        return node->name;
    for (size_t i = 0; i < node->n_output; i++)
        if (*node->output[i])
            return node->output[i];
    return "";
}

static int prefix_node(int rc, const Onnx__NodeProto *node)
{
    return mgpu_prefix(rc, "node '%s' (%s)", node_name(node), node->op_type);
}

static const char *plain_domain(const char *domain)
{
    return strcmp(domain, "ai.onnx") ? domain : "";
}

static int check_opsets(struct names *domains, size_t count,
                        Onnx__OperatorSetIdProto *const *opsets)
{
    for (size_t i = 0; i < count; i++) {
        const char *domain = plain_domain(opsets[i]->domain);
        int64_t version = opsets[i]->version;
        if (version < 1)
            return mgpu_fail(MGPU_EINVALID, "opset %" PRId64 " of domain '%s' does not exist",
                             version, domain);
        if (!*domain && version > MGPU_ONNX_OPSET_MAX)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "opset %" PRId64 " is newer than %d, the newest that mgpu knows",
                             version, MGPU_ONNX_OPSET_MAX);
        add_name(domains, domain, (long)i);
    }
    sort_names(domains);
    const struct name *twice = find_twice(domains, NULL);
    if (twice)
        return mgpu_fail(MGPU_EINVALID, "domain '%s' has two opset imports", twice->text);
    return 0;
}

static int refuse_twice(const struct scope *scope, const struct name *n)
{
    const char *text = n[0].text;
    if (n[1].producer < 0)
        return mgpu_fail(MGPU_EINVALID, "%s '%s' occurs twice",
                         n[1].producer == INPUT ? "input" : "initializer", text);
    const Onnx__NodeProto *node = scope->nodes[n[1].producer];
    if (n[0].producer < 0)
        return prefix_node(mgpu_fail(MGPU_EINVALID, "output '%s' is also an %s", text,
                                     n[0].producer == INPUT ? "input" : "initializer"),
                           node);
    return prefix_node(mgpu_fail(MGPU_EINVALID, "output '%s' is already produced by node '%s'",
                                 text, node_name(scope->nodes[n[0].producer])),
                       node);
}

/* Sorts the names and refuses doubles; an initializer may also be an input (its default). */
static int close_scope(struct scope *scope, size_t n_node)
{
    for (size_t i = 0; i < n_node; i++)
        for (size_t k = 0; k < scope->nodes[i]->n_output; k++)
            if (*scope->nodes[i]->output[k])
                add_name(&scope->names, scope->nodes[i]->output[k], (long)i);
    sort_names(&scope->names);
    const struct name *twice = NULL;
    while ((twice = find_twice(&scope->names, twice))) {
        if (twice[0].producer != INITIALIZER || twice[1].producer != INPUT)
            return refuse_twice(scope, twice);
        twice++;
    }
    return 0;
}

/* Whether the node in turn may read `text`. */
static int check_use(const struct scope *scope, const char *text)
{
    for (const struct scope *s = scope; s; s = s->outer) {
        const struct name *n = find_name(&s->names, text);
        if (!n)
            continue;
        if (n->producer == s->current)
            return mgpu_fail(MGPU_EINVALID, "uses its own output '%s'", text);
        if (n->producer > s->current)
            return mgpu_fail(MGPU_EINVALID,
                             "uses '%s', which a later node, '%s', produces: the nodes are out of "
                             "order or form a cycle",
                             text, node_name(s->nodes[n->producer]));
        return 0;
    }
    return mgpu_fail(MGPU_EINVALID, "'%s' is produced by nothing", text);
}

static int check_graph(struct check *c, const Onnx__GraphProto *graph, const struct scope *outer);

static int check_tensor(const struct check *c, const Onnx__TensorProto *t)
{
    return t ? mgpu_onnx_tensor_check(t, c->folder) : mgpu_fail(MGPU_EINVALID, "no tensor");
}

static int check_value(struct check *c, const Onnx__AttributeProto *a, const struct scope *scope)
{
    switch (a->type) {
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED:
        return mgpu_fail(MGPU_EINVALID, "no type");
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR:
        return check_tensor(c, a->t);
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH:
        return a->g ? check_graph(c, a->g, scope) : mgpu_fail(MGPU_EINVALID, "no graph");
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSORS:
        for (size_t i = 0; i < a->n_tensors; i++)
            MGPU_TRY(check_tensor(c, a->tensors[i]));
        return 0;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPHS:
        for (size_t i = 0; i < a->n_graphs; i++)
            MGPU_TRY(check_graph(c, a->graphs[i], scope));
        return 0;
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__SPARSE_TENSOR:
    case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__SPARSE_TENSORS:
        return mgpu_fail(MGPU_EUNSUPPORTED, "sparse tensors are not supported");
    default:
        return 0;
    }
}

/* Tensors and graphs stand only where the type says so: nobody looks at others. */
static int check_stray(const Onnx__AttributeProto *a)
{
    bool tensor = a->t && a->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
    bool graph = a->g && a->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH;
    bool tensors = a->n_tensors && a->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSORS;
    bool graphs = a->n_graphs && a->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPHS;
    if (tensor || graph || tensors || graphs || a->sparse_tensor || a->n_sparse_tensors)
        return mgpu_fail(MGPU_EINVALID, "holds a value that is not of its type");
    return 0;
}

static int check_attribute(struct check *c, const Onnx__AttributeProto *a,
                           const struct scope *scope)
{
    int rc = 0;
    if (!*a->ref_attr_name)
        rc = check_value(c, a, scope);
    else if (!c->in_function)
        rc = mgpu_fail(MGPU_EINVALID, "refers to '%s' outside of a function", a->ref_attr_name);
    if (rc >= 0)
        rc = check_stray(a);
    return mgpu_prefix(rc, "attribute '%s'", a->name);
}

static int check_attributes(struct check *c, size_t count, Onnx__AttributeProto *const *attributes,
                            const struct scope *scope)
{
    struct names names = {0};
    int rc = 0;
    for (size_t i = 0; i < count && rc >= 0; i++) {
        add_name(&names, attributes[i]->name, (long)i);
        rc = check_attribute(c, attributes[i], scope);
    }
    sort_names(&names);
    const struct name *twice = rc >= 0 ? find_twice(&names, NULL) : NULL;
    if (twice)
        rc = mgpu_fail(MGPU_EINVALID, "attribute '%s' occurs twice", twice->text);
    free_names(&names);
    return rc;
}

static int check_node(struct check *c, const Onnx__NodeProto *node, const struct scope *scope)
{
    if (!*node->op_type)
        return mgpu_fail(MGPU_EINVALID, "no operator type");
    if (!find_name(&c->domains, plain_domain(node->domain)))
        return mgpu_fail(MGPU_EINVALID, "domain '%s' has no opset import", node->domain);
    for (size_t i = 0; i < node->n_input; i++)
        if (*node->input[i])
            MGPU_TRY(check_use(scope, node->input[i]));
    return check_attributes(c, node->n_attribute, node->attribute, scope);
}

static int check_nodes(struct check *c, struct scope *scope, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        scope->current = (long)i;
        MGPU_TRY(prefix_node(check_node(c, scope->nodes[i], scope), scope->nodes[i]));
    }
    scope->current = (long)count;
    return 0;
}

static int check_initializers(const struct check *c, const Onnx__GraphProto *graph)
{
    if (graph->n_sparse_initializer) {
        const Onnx__TensorProto *values = graph->sparse_initializer[0]->values;
        return mgpu_fail(MGPU_EUNSUPPORTED, "initializer '%s': sparse tensors are not supported",
                         values ? values->name : "");
    }
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const Onnx__TensorProto *t = graph->initializer[i];
        if (!*t->name)
            return mgpu_fail(MGPU_EINVALID, "initializer %zu has no name", i);
        MGPU_TRY(mgpu_prefix(mgpu_onnx_tensor_check(t, c->folder), "initializer '%s'", t->name));
    }
    return 0;
}

static int check_graph_in(struct check *c, const Onnx__GraphProto *graph, struct scope *scope)
{
    for (size_t i = 0; i < graph->n_input; i++) {
        if (!*graph->input[i]->name)
            return mgpu_fail(MGPU_EINVALID, "graph input %zu has no name", i);
        add_name(&scope->names, graph->input[i]->name, INPUT);
    }
    for (size_t i = 0; i < graph->n_initializer; i++)
        add_name(&scope->names, graph->initializer[i]->name, INITIALIZER);
    MGPU_TRY(check_initializers(c, graph));
    MGPU_TRY(close_scope(scope, graph->n_node));
    MGPU_TRY(check_nodes(c, scope, graph->n_node));
    for (size_t i = 0; i < graph->n_output; i++)
        MGPU_TRY(mgpu_prefix(check_use(scope, graph->output[i]->name), "graph output"));
    return 0;
}

static int check_graph(struct check *c, const Onnx__GraphProto *graph, const struct scope *outer)
{
    struct scope scope = {.nodes = graph->node, .outer = outer};
    int rc = check_graph_in(c, graph, &scope);
    free_names(&scope.names);
    return rc;
}

static int check_body(struct check *c, const Onnx__FunctionProto *f, struct scope *scope)
{
    for (size_t i = 0; i < f->n_input; i++)
        add_name(&scope->names, f->input[i], INPUT);
    MGPU_TRY(check_opsets(&c->domains, f->n_opset_import, f->opset_import));
    MGPU_TRY(close_scope(scope, f->n_node));
    MGPU_TRY(check_attributes(c, f->n_attribute_proto, f->attribute_proto, scope));
    MGPU_TRY(check_nodes(c, scope, f->n_node));
    for (size_t i = 0; i < f->n_output; i++)
        MGPU_TRY(mgpu_prefix(check_use(scope, f->output[i]), "output"));
    return 0;
}

static int check_function(const Onnx__FunctionProto *f, const char *folder)
{
    struct check c = {.folder = folder, .in_function = true};
    struct scope scope = {.nodes = f->node};
    int rc = check_body(&c, f, &scope);
    free_names(&scope.names);
    free_names(&c.domains);
    return mgpu_prefix(rc, "function '%s' of '%s'", f->name, f->domain);
}

/* A function is known by its domain, name and overload. */
static int check_functions(const Onnx__ModelProto *model, const char *folder)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct names ids = {0};
    int rc = 0;
    for (size_t i = 0; i < model->n_functions && rc >= 0; i++) {
        const Onnx__FunctionProto *f = model->functions[i];
        add_name(&ids, mgpu_arena_format(arena, "%s\n%s\n%s", f->domain, f->name, f->overload),
                 (long)i);
        rc = check_function(f, folder);
    }
    sort_names(&ids);
    const struct name *twice = rc >= 0 ? find_twice(&ids, NULL) : NULL;
    if (twice)
        rc = mgpu_fail(MGPU_EINVALID, "function '%s' is defined twice",
                       model->functions[twice->producer]->name);
    free_names(&ids);
    mgpu_arena_free(arena);
    return rc;
}

static int check_version(const Onnx__ModelProto *model)
{
    int64_t ir = model->ir_version;
    if (!model->has_ir_version && !model->graph)
        return mgpu_fail(MGPU_EINVALID, "is not an ONNX model: it has no version and no graph");
    if (ir < MGPU_ONNX_IR_MIN || ir > MGPU_ONNX_IR_MAX)
        return mgpu_fail(MGPU_EUNSUPPORTED, "IR version %" PRId64 " is not one of %d to %d", ir,
                         MGPU_ONNX_IR_MIN, MGPU_ONNX_IR_MAX);
    if (!model->graph)
        return mgpu_fail(MGPU_EINVALID, "has no graph");
    if (!model->n_opset_import)
        return mgpu_fail(MGPU_EINVALID, "has no opset import");
    return 0;
}

int mgpu_onnx_check(const Onnx__ModelProto *model, const char *folder)
{
    struct check c = {.folder = folder};
    MGPU_TRY(check_version(model));
    int rc = check_opsets(&c.domains, model->n_opset_import, model->opset_import);
    if (rc >= 0)
        rc = check_graph(&c, model->graph, NULL);
    free_names(&c.domains);
    return rc < 0 ? rc : check_functions(model, folder);
}
