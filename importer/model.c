/* Inlining: walks the file's graph, calls and bodies once and writes the flat model. */
#include "importer/model.h"

#include "importer/model_parts.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROWTH = 1000000, MAX_CALLS = 100 };

/* A function while it is being inlined. */
struct call {
    const struct call *outer;
    const Onnx__FunctionProto *function;
    const char *layer;
    int depth;
    size_t attributes; /* of the call, resolved; then the function's defaults */
    const Onnx__AttributeProto **attribute;
};

/* The names of one graph, body or function that is being walked. */
struct scope {
    const struct scope *outer; /* the graph around it; NULL at the top and in a function */
    const struct call *call;   /* NULL at the top */
    const char *path;
    const char *prefix;       /* put before a name that is taken: "path/if_out.then_branch/" */
    struct mgpu_names *flat;  /* local name -> flat name */
    struct mgpu_names *given; /* function outputs: local name -> the caller's flat name */
};

struct inliner {
    struct mgpu_onnx_model *model;
    struct mgpu_names *functions; /* "domain:name:overload" -> FunctionProto */
    struct mgpu_names *used;      /* flat names */
    int64_t growth;               /* nodes and calls so far */
};

struct list {
    int count;
    struct mgpu_onnx_node *node; /* from mgpu_grow */
};

static struct mgpu_arena *arena_of(const struct inliner *in)
{
    return in->model->arena;
}

/* ---- Names ---------------------------------------------------------------------------------- */

static bool is_top(const struct scope *scope)
{
    return !scope->call && !scope->outer;
}

static void take(struct inliner *in, struct scope *scope, const char *name, const char *flat)
{
    mgpu_names_set(in->used, flat, flat);
    mgpu_names_set(scope->flat, name, flat);
}

/* A flat name for a value that this scope makes. At the top it is the name itself. */
static const char *define(struct inliner *in, struct scope *scope, const char *name)
{
    if (!*name)
        return "";
    const char *flat = scope->given ? mgpu_names_get(scope->given, name) : NULL;
    if (!flat && is_top(scope))
        flat = name;
    if (!flat) {
        flat = mgpu_arena_format(arena_of(in), "%s%s", scope->path, name);
        if (mgpu_names_get(in->used, flat))
            flat = mgpu_arena_format(arena_of(in), "%s%s", scope->prefix, name);
        for (int i = 2; mgpu_names_get(in->used, flat); i++)
            flat = mgpu_arena_format(arena_of(in), "%s%s_%d", scope->prefix, name, i);
    }
    take(in, scope, name, flat);
    return flat;
}

/* The flat name of a value that this scope reads, or NULL. */
static const char *resolve(const struct scope *scope, const char *name)
{
    if (!*name)
        return "";
    const char *flat = NULL;
    for (; scope && !flat; scope = scope->outer)
        flat = mgpu_names_get(scope->flat, name);
    return flat;
}

static int resolve_into(const struct scope *scope, const char *name, const char **flat)
{
    *flat = resolve(scope, name);
    return *flat ? 0 : mgpu_fail(MGPU_EINVALID, "'%s' is used but never made", name);
}

/* ---- Initializers --------------------------------------------------------------------------- */

static int add_initializer(struct inliner *in, const char *name, const Onnx__TensorProto *proto)
{
    struct mgpu_onnx_model *m = in->model;
    m->initializer = mgpu_grow(m->initializer, (size_t)m->initializers, sizeof *m->initializer);
    struct mgpu_onnx_initializer *i = &m->initializer[m->initializers++];
    *i = (struct mgpu_onnx_initializer){.name = name, .proto = proto};
    mgpu_names_set(m->initializer_names, name, (void *)(intptr_t)m->initializers);
    if (!proto)
        return 0;
    int rc = mgpu_onnx_tensor_borrow(m->file, proto, &i->array, &i->held);
    return rc == MGPU_EUNSUPPORTED ? 0
                                   : rc; /* matters only where it is used: the lowering says so */
}

/* A tensor of the file under its local name. It is one initializer however often the function that
 * holds it is called. */
static int add_tensor(struct inliner *in, struct scope *scope, const char *name,
                      const Onnx__TensorProto *proto)
{
    const char *key = is_top(scope) ? name : mgpu_onnx_key(in->model->file, proto);
    int known = key ? mgpu_onnx_find_initializer(in->model, key) : -1;
    if (known >= 0 && in->model->initializer[known].proto == proto) {
        mgpu_names_set(scope->flat, name, in->model->initializer[known].name);
        return 0;
    }
    if (key && (is_top(scope) || !mgpu_names_get(in->used, key)))
        take(in, scope, name, key);
    else
        key = define(in, scope, name);
    return add_initializer(in, key, proto);
}

static int add_constant(struct inliner *in, struct scope *scope, const char *name,
                        const Onnx__AttributeProto *value)
{
    if (value->t)
        MGPU_TRY(add_tensor(in, scope, name, value->t));
    else {
        MGPU_TRY(add_initializer(in, define(in, scope, name), NULL));
        in->model->initializer[in->model->initializers - 1].array = mgpu_onnx_constant(value);
    }
    int index = mgpu_onnx_find_initializer(in->model, resolve(scope, name));
    in->model->initializer[index].constant_node = true;
    return 0;
}

/* ---- Attributes ----------------------------------------------------------------------------- */

/* What a reference stands for, under the name that the node gives it; *out is NULL when the call
 * leaves it out: then the node has no such attribute. */
static int referred(struct inliner *in, const struct call *call, const Onnx__AttributeProto *a,
                    const Onnx__AttributeProto **out)
{
    *out = NULL;
    if (!call)
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' refers to '%s' outside a function", a->name,
                         a->ref_attr_name);
    if (!mgpu_onnx_declares(call->function, a->ref_attr_name))
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' refers to '%s', which function '%s' lacks",
                         a->name, a->ref_attr_name, call->function->name);
    const Onnx__AttributeProto *value =
        mgpu_onnx_in_list(call->attributes, call->attribute, a->ref_attr_name);
    if (!value)
        return 0;
    if (a->has_type && value->has_type && a->type != value->type)
        return mgpu_fail(MGPU_EINVALID, "attribute '%s' and '%s' of function '%s' differ in type",
                         a->name, a->ref_attr_name, call->function->name);
    Onnx__AttributeProto *copy = mgpu_arena_copy(arena_of(in), value, sizeof *value);
    copy->name = a->name;
    *out = copy;
    return 0;
}

/* The attributes of a node, references resolved; room for `more` is left after them. */
static int resolve_attributes(struct inliner *in, const struct scope *scope,
                              const Onnx__NodeProto *proto, size_t more, size_t *count,
                              const Onnx__AttributeProto ***list)
{
    *count = 0;
    *list = MGPU_NEW_ARRAY(arena_of(in), const Onnx__AttributeProto *, proto->n_attribute + more);
    for (size_t i = 0; i < proto->n_attribute; i++) {
        const Onnx__AttributeProto *a = proto->attribute[i];
        if (*a->ref_attr_name)
            MGPU_TRY(referred(in, scope->call, proto->attribute[i], &a));
        if (a)
            (*list)[(*count)++] = a;
    }
    return 0;
}

/* ---- Nodes ---------------------------------------------------------------------------------- */

static int grow(struct inliner *in, const struct scope *scope)
{
    if (++in->growth <= MAX_GROWTH)
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED, "inlining function '%s' gives more than %d nodes",
                     scope->call ? scope->call->function->name : "", MAX_GROWTH);
}

static struct mgpu_onnx_node *append(struct inliner *in, const struct scope *scope,
                                     struct list *list, const Onnx__NodeProto *proto)
{
    list->node = mgpu_grow(list->node, (size_t)list->count, sizeof *list->node);
    struct mgpu_onnx_node *n = &list->node[list->count++];
    const char *outer = scope->call ? scope->call->layer : "";
    *n = (struct mgpu_onnx_node){
        .index = in->model->node_total++,
        .type = proto->op_type,
        .domain = mgpu_onnx_domain(proto->domain),
        .name = proto->name,
        .path = scope->path,
        .layer = mgpu_onnx_layer(arena_of(in), proto, outer),
        .proto = proto,
    };
    return n;
}

/* Gives `flat` the value `from`: for outputs that are not made where they are given. */
static int add_identity(struct inliner *in, const struct scope *scope, struct list *list,
                        const Onnx__NodeProto *proto, const char *from, const char *flat)
{
    static const char *type = "Identity";
    MGPU_TRY(grow(in, scope));
    struct mgpu_onnx_node *n = append(in, scope, list, proto);
    n->type = type;
    n->domain = "";
    n->opset = 1;
    n->inputs = n->outputs = 1;
    n->input = mgpu_arena_copy(arena_of(in), &from, sizeof from);
    n->output = mgpu_arena_copy(arena_of(in), &flat, sizeof flat);
    return 0;
}

static int add_nodes(struct inliner *in, struct scope *scope, size_t count,
                     Onnx__NodeProto *const *proto, struct list *list);

static void store(struct inliner *in, struct mgpu_onnx_body *body, struct list *list)
{
    body->nodes = list->count;
    body->node =
        mgpu_arena_copy(arena_of(in), list->node, sizeof *list->node * (size_t)list->count);
    free(list->node);
}

static int add_initializers(struct inliner *in, struct scope *scope, const Onnx__GraphProto *graph)
{
    for (size_t i = 0; i < graph->n_initializer; i++)
        MGPU_TRY(add_tensor(in, scope, graph->initializer[i]->name, graph->initializer[i]));
    return 0;
}

/* Outputs of a body, each made by a node of it. */
static int add_outputs(struct inliner *in, struct scope *scope, const Onnx__NodeProto *owner,
                       const Onnx__GraphProto *graph, struct mgpu_onnx_body *body,
                       struct list *list)
{
    struct mgpu_names *made = mgpu_names_new(arena_of(in));
    for (int i = 0; i < list->count; i++)
        for (int k = 0; k < list->node[i].outputs; k++)
            mgpu_names_set(made, list->node[i].output[k], made);
    body->outputs = (int)graph->n_output;
    body->output = MGPU_NEW_ARRAY(arena_of(in), struct mgpu_onnx_value, graph->n_output);
    for (size_t i = 0; i < graph->n_output; i++) {
        const char *from;
        mgpu_onnx_declared(arena_of(in), graph->output[i], &body->output[i]);
        MGPU_TRY(resolve_into(scope, graph->output[i]->name, &from));
        body->output[i].name = from;
        if (mgpu_names_get(made, from))
            continue;
        body->output[i].name = mgpu_arena_format(arena_of(in), "%soutput_%zu", scope->prefix, i);
        MGPU_TRY(add_identity(in, scope, list, owner, from, body->output[i].name));
    }
    return 0;
}

static int add_body(struct inliner *in, const struct scope *outer, const Onnx__NodeProto *owner,
                    const Onnx__AttributeProto *attribute, struct mgpu_onnx_body *body)
{
    const Onnx__GraphProto *graph = attribute->g;
    const char *first = owner->n_output ? resolve(outer, owner->output[0]) : "";
    struct scope scope = {
        .outer = outer,
        .call = outer->call,
        .path = outer->path,
        .prefix = mgpu_arena_format(arena_of(in), "%s.%s/", first, attribute->name),
        .flat = mgpu_names_new(arena_of(in)),
    };
    struct list list = {0};
    body->inputs = (int)graph->n_input;
    body->input = MGPU_NEW_ARRAY(arena_of(in), struct mgpu_onnx_value, graph->n_input);
    for (size_t i = 0; i < graph->n_input; i++) {
        mgpu_onnx_declared(arena_of(in), graph->input[i], &body->input[i]);
        body->input[i].name = define(in, &scope, graph->input[i]->name);
    }
    int rc = add_initializers(in, &scope, graph);
    if (rc >= 0)
        rc = add_nodes(in, &scope, graph->n_node, graph->node, &list);
    if (rc >= 0)
        rc = add_outputs(in, &scope, owner, graph, body, &list);
    store(in, body, &list);
    return rc;
}

static int add_bodies(struct inliner *in, const struct scope *scope, const Onnx__NodeProto *proto,
                      struct mgpu_onnx_node *n)
{
    for (int i = 0; i < n->attributes; i++)
        n->bodies += n->attribute[i]->g != NULL;
    n->body = MGPU_NEW_ARRAY(arena_of(in), struct mgpu_onnx_body, n->bodies);
    n->body_name = MGPU_NEW_ARRAY(arena_of(in), const char *, n->bodies);
    for (int i = 0, k = 0; i < n->attributes; i++)
        if (n->attribute[i]->g) {
            n->body_name[k] = n->attribute[i]->name;
            MGPU_TRY(add_body(in, scope, proto, n->attribute[i], &n->body[k++]));
        }
    return 0;
}

static int opset_of(const struct inliner *in, const struct scope *scope, const char *domain)
{
    const Onnx__ModelProto *m = in->model->file->proto;
    const struct call *call = scope->call;
    int64_t version =
        call ? mgpu_onnx_opset(call->function->n_opset_import, call->function->opset_import, domain)
             : mgpu_onnx_opset(m->n_opset_import, m->opset_import, domain);
    return version < 0 || version > INT32_MAX ? 0 : (int)version;
}

static int add_plain(struct inliner *in, struct scope *scope, const Onnx__NodeProto *proto,
                     size_t attributes, const Onnx__AttributeProto **attribute, struct list *list)
{
    struct mgpu_onnx_node n = *append(in, scope, list, proto);
    int at = list->count - 1;
    n.opset = opset_of(in, scope, n.domain);
    n.attributes = (int)attributes;
    n.attribute = attribute;
    n.misread = MGPU_NEW(arena_of(in), const Onnx__AttributeProto *);
    n.inputs = (int)proto->n_input;
    n.input = MGPU_NEW_ARRAY(arena_of(in), const char *, proto->n_input);
    for (int i = 0; i < n.inputs; i++)
        MGPU_TRY(resolve_into(scope, proto->input[i], &n.input[i]));
    n.outputs = (int)proto->n_output;
    n.output = MGPU_NEW_ARRAY(arena_of(in), const char *, proto->n_output);
    for (int i = 0; i < n.outputs; i++)
        n.output[i] = define(in, scope, proto->output[i]);
    MGPU_TRY(add_bodies(in, scope, proto, &n));
    list->node[at] = n;
    return 0;
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static const Onnx__FunctionProto *find_function(struct inliner *in, const Onnx__NodeProto *proto)
{
    char *key = NULL;
    if (asprintf(&key, "%s:%s:%s", mgpu_onnx_domain(proto->domain), proto->op_type,
                 proto->overload) < 0)
        return NULL;
    const Onnx__FunctionProto *function = mgpu_names_get(in->functions, key);
    free(key);
    return function;
}

static int check_call(const struct scope *scope, const Onnx__NodeProto *proto,
                      const Onnx__FunctionProto *function)
{
    for (const struct call *c = scope->call; c; c = c->outer)
        if (c->function == function)
            return mgpu_fail(MGPU_EINVALID, "function '%s' is recursive", function->name);
    if (scope->call && scope->call->depth >= MAX_CALLS)
        return mgpu_fail(MGPU_EUNSUPPORTED, "function '%s' is called more than %d deep",
                         function->name, MAX_CALLS);
    if (proto->n_input > function->n_input || proto->n_output > function->n_output)
        return mgpu_fail(MGPU_EINVALID, "function '%s' is called with too many %s", function->name,
                         proto->n_input > function->n_input ? "inputs" : "outputs");
    return 0;
}

static const char *first_output(const Onnx__NodeProto *proto)
{
    for (size_t i = 0; i < proto->n_output; i++)
        if (*proto->output[i])
            return proto->output[i];
    return proto->op_type;
}

/* The call's formal inputs and outputs; the outputs' flat names are the caller's. */
static int bind_call(struct inliner *in, struct scope *scope, const Onnx__NodeProto *proto,
                     struct scope *inner)
{
    const Onnx__FunctionProto *f = inner->call->function;
    for (size_t i = 0; i < f->n_input; i++) {
        const char *flat = "";
        if (i < proto->n_input)
            MGPU_TRY(resolve_into(scope, proto->input[i], &flat));
        mgpu_names_set(inner->flat, f->input[i], flat);
    }
    for (size_t i = 0; i < proto->n_output; i++) {
        const char *flat = define(in, scope, proto->output[i]);
        if (*flat && !mgpu_names_get(inner->given, f->output[i]))
            mgpu_names_set(inner->given, f->output[i], flat);
    }
    return 0;
}

/* Outputs that the function did not make itself (an input passed through, a stored tensor, one
 * value given twice). */
static int finish_call(struct inliner *in, struct scope *scope, const Onnx__NodeProto *proto,
                       const struct scope *inner, struct list *list)
{
    for (size_t i = 0; i < proto->n_output; i++) {
        const char *from, *flat = resolve(scope, proto->output[i]);
        if (!*flat)
            continue;
        MGPU_TRY(resolve_into(inner, inner->call->function->output[i], &from));
        if (strcmp(from, flat))
            MGPU_TRY(add_identity(in, inner, list, proto, from, flat));
    }
    return 0;
}

static int add_call(struct inliner *in, struct scope *scope, const Onnx__NodeProto *proto,
                    const Onnx__FunctionProto *function, struct list *list)
{
    MGPU_TRY(check_call(scope, proto, function));
    struct call call = {
        .outer = scope->call,
        .function = function,
        .layer = mgpu_onnx_layer(arena_of(in), proto, scope->call ? scope->call->layer : ""),
        .depth = scope->call ? scope->call->depth + 1 : 1,
    };
    MGPU_TRY(resolve_attributes(in, scope, proto, function->n_attribute_proto, &call.attributes,
                                &call.attribute));
    for (size_t i = 0; i < function->n_attribute_proto; i++)
        call.attribute[call.attributes++] = function->attribute_proto[i];
    const char *path = mgpu_arena_format(arena_of(in), "%s%s/", scope->path, first_output(proto));
    struct scope inner = {
        .call = &call,
        .path = path,
        .prefix = path,
        .flat = mgpu_names_new(arena_of(in)),
        .given = mgpu_names_new(arena_of(in)),
    };
    MGPU_TRY(bind_call(in, scope, proto, &inner));
    MGPU_TRY(add_nodes(in, &inner, function->n_node, function->node, list));
    return finish_call(in, scope, proto, &inner, list);
}

static int add_node(struct inliner *in, struct scope *scope, const Onnx__NodeProto *proto,
                    struct list *list)
{
    MGPU_TRY(grow(in, scope));
    const Onnx__FunctionProto *function = find_function(in, proto);
    if (function)
        return add_call(in, scope, proto, function, list);
    size_t attributes;
    const Onnx__AttributeProto **attribute;
    MGPU_TRY(resolve_attributes(in, scope, proto, 0, &attributes, &attribute));
    const Onnx__AttributeProto *value =
        !strcmp(proto->op_type, "Constant") && proto->n_output == 1 && attributes == 1
            ? attribute[0]
            : NULL;
    if (value && mgpu_onnx_is_constant(value))
        return add_constant(in, scope, proto->output[0], value);
    return add_plain(in, scope, proto, attributes, attribute, list);
}

static int add_nodes(struct inliner *in, struct scope *scope, size_t count,
                     Onnx__NodeProto *const *proto, struct list *list)
{
    for (size_t i = 0; i < count; i++)
        MGPU_TRY(mgpu_prefix(add_node(in, scope, proto[i], list), "node '%s' (%s)",
                             *proto[i]->name ? proto[i]->name : first_output(proto[i]),
                             proto[i]->op_type));
    return 0;
}

/* ---- The whole ------------------------------------------------------------------------------ */

/* The top graph's names are kept, so they are taken before anything else is named. */
static void reserve_top(struct inliner *in, const Onnx__GraphProto *graph)
{
    for (size_t i = 0; i < graph->n_input; i++)
        mgpu_names_set(in->used, graph->input[i]->name, graph);
    for (size_t i = 0; i < graph->n_initializer; i++)
        mgpu_names_set(in->used, graph->initializer[i]->name, graph);
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            mgpu_names_set(in->used, graph->node[i]->output[k], graph);
}

static void add_inputs(struct inliner *in, struct scope *top, const Onnx__GraphProto *graph)
{
    struct mgpu_onnx_body *body = &in->model->graph;
    body->input = MGPU_NEW_ARRAY(arena_of(in), struct mgpu_onnx_value, graph->n_input);
    for (size_t i = 0; i < graph->n_input; i++) {
        int stored = mgpu_onnx_find_initializer(in->model, graph->input[i]->name);
        if (stored >= 0) {
            in->model->initializer[stored].graph_input = true;
            continue;
        }
        mgpu_onnx_declared(arena_of(in), graph->input[i], &body->input[body->inputs++]);
        define(in, top, graph->input[i]->name);
    }
}

/* What dynamo says of an initializer. */
static void note_said(struct mgpu_onnx_model *model, const Onnx__GraphProto *graph)
{
    for (size_t i = 0; i < graph->n_value_info; i++) {
        const Onnx__ValueInfoProto *v = graph->value_info[i];
        int of = mgpu_onnx_find_initializer(model, v->name);
        for (size_t k = 0; of >= 0 && k < v->n_metadata_props; k++) {
            const char *key = v->metadata_props[k]->key, *value = v->metadata_props[k]->value;
            if (!strcmp(key, MGPU_ONNX_FOLDED_FROM))
                model->initializer[of].folded_from = value;
            if (strcmp(key, "pkg.torch.export.graph_signature.InputSpec.persistent") != 0)
                continue;
            model->initializer[of].listed = true;
            if (strcmp(value, "None") != 0)
                model->initializer[of].persistent = value;
        }
    }
}

static void list_functions(struct inliner *in, const Onnx__ModelProto *proto)
{
    for (size_t i = 0; i < proto->n_functions; i++) {
        const Onnx__FunctionProto *f = proto->functions[i];
        mgpu_names_set(in->functions,
                       mgpu_arena_format(arena_of(in), "%s:%s:%s", mgpu_onnx_domain(f->domain),
                                         f->name, f->overload),
                       f);
    }
}

static void list_all(struct mgpu_onnx_model *model, struct mgpu_onnx_body *body)
{
    for (int i = 0; i < body->nodes; i++) {
        struct mgpu_onnx_node *n = &body->node[i];
        model->all[n->index] = n;
        for (int k = 0; k < n->bodies; k++)
            list_all(model, &n->body[k]);
    }
}

static int inline_model(struct inliner *in, const Onnx__ModelProto *proto)
{
    const Onnx__GraphProto *graph = proto->graph;
    struct mgpu_onnx_model *m = in->model;
    struct scope top = {.path = "", .prefix = "", .flat = mgpu_names_new(m->arena)};
    struct list list = {0};
    reserve_top(in, graph);
    list_functions(in, proto);
    int rc = add_initializers(in, &top, graph);
    if (rc >= 0) {
        add_inputs(in, &top, graph);
        note_said(m, graph);
        rc = add_nodes(in, &top, graph->n_node, graph->node, &list);
    }
    store(in, &m->graph, &list);
    m->graph.outputs = (int)graph->n_output;
    m->graph.output = MGPU_NEW_ARRAY(m->arena, struct mgpu_onnx_value, graph->n_output);
    for (size_t i = 0; i < graph->n_output; i++)
        mgpu_onnx_declared(m->arena, graph->output[i], &m->graph.output[i]);
    m->all = MGPU_NEW_ARRAY(m->arena, struct mgpu_onnx_node *, m->node_total);
    if (rc >= 0)
        list_all(m, &m->graph);
    return rc;
}

int mgpu_onnx_model_new(struct mgpu_onnx_model **out, const struct mgpu_onnx_file *file)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_onnx_model *model = MGPU_NEW(arena, struct mgpu_onnx_model);
    model->arena = arena;
    model->file = file;
    model->producer = mgpu_onnx_producer(file->proto->producer_name);
    model->initializer_names = mgpu_names_new(arena);
    struct inliner in = {
        .model = model,
        .functions = mgpu_names_new(arena),
        .used = mgpu_names_new(arena),
    };
    int rc = inline_model(&in, file->proto);
    *out = rc < 0 ? NULL : model;
    if (rc < 0)
        mgpu_onnx_model_free(model);
    return mgpu_prefix(rc, "%s", file->path);
}

/* The model is made of the file that it borrows from, which nobody else reads any more. */
void mgpu_onnx_model_drop(struct mgpu_onnx_model *model, int initializer)
{
    struct mgpu_onnx_initializer *i = &model->initializer[initializer];
    Onnx__TensorProto *proto = (Onnx__TensorProto *)(uintptr_t)i->proto;
    mgpu_onnx_held_free(&i->held);
    i->array.data = NULL;
    if (!proto)
        return;
    free(proto->raw_data.data);
    proto->raw_data.data = NULL;
}

void mgpu_onnx_model_free(struct mgpu_onnx_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->initializers; i++)
        mgpu_onnx_held_free(&model->initializer[i].held);
    free(model->initializer);
    mgpu_arena_free(model->arena);
}
