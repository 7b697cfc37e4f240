#include "importer/model_parts.h"

#include "runtime/base/status.h"

#include <string.h>

const char *mgpu_onnx_domain(const char *domain)
{
    return strcmp(domain, "ai.onnx") ? domain : "";
}

/* ---- Functions and producers ---------------------------------------------------------------- */

const Onnx__AttributeProto *mgpu_onnx_in_list(size_t count, const Onnx__AttributeProto *const *list,
                                              const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i]->name, name))
            return list[i];
    return NULL;
}

bool mgpu_onnx_declares(const Onnx__FunctionProto *f, const char *name)
{
    for (size_t i = 0; i < f->n_attribute; i++)
        if (!strcmp(f->attribute[i], name))
            return true;
    return mgpu_onnx_in_list(f->n_attribute_proto,
                             (const Onnx__AttributeProto *const *)f->attribute_proto, name) != NULL;
}

enum mgpu_producer mgpu_onnx_producer(const char *name)
{
    if (!strcmp(name, "pytorch"))
        return MGPU_PRODUCER_PYTORCH;
    if (!strcmp(name, "tf2onnx") || !strncmp(name, "keras", 5))
        return MGPU_PRODUCER_TENSORFLOW;
    return MGPU_PRODUCER_OTHER;
}

/* ---- Layers --------------------------------------------------------------------------------- */

/* The last item but one that is not empty of a text like "['', 'enc', 'enc.0', 'linear']": modules
 * from the outside in, then the call that the node is part of. "_empty_nn_module_stack..." stands
 * for no module. */
static const char *last_scope(struct mgpu_arena *arena, const char *text)
{
    const char *scope = "", *item = NULL;
    for (const char *p = strchr(text, '\''); p; p = strchr(p, '\'')) {
        const char *end = strchr(p + 1, '\'');
        if (!end)
            break;
        if (item && *item && strncmp(item, "_empty_", strlen("_empty_")))
            scope = item;
        item = mgpu_arena_format(arena, "%.*s", (int)(end - p - 1), p + 1);
        p = end + 1;
    }
    return scope;
}

/* "/enc/layers.0/linear1/MatMul" was made by "/enc/layers.0/linear1". */
static const char *without_last_part(struct mgpu_arena *arena, const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? mgpu_arena_format(arena, "%.*s", (int)(slash - name), name) : "";
}

/* The last scope of the node's entry `key`; NULL: it has none. */
static const char *scope_of(struct mgpu_arena *arena, const Onnx__NodeProto *proto, const char *key)
{
    for (size_t i = 0; i < proto->n_metadata_props; i++)
        if (!strcmp(proto->metadata_props[i]->key, key))
            return last_scope(arena, proto->metadata_props[i]->value);
    return NULL;
}

const char *mgpu_onnx_module_class(struct mgpu_arena *arena, const struct mgpu_onnx_node *node)
{
    const char *name =
        node->proto ? scope_of(arena, node->proto, "pkg.torch.onnx.class_hierarchy") : NULL;
    return name ? name : "";
}

const char *mgpu_onnx_layer(struct mgpu_arena *arena, const Onnx__NodeProto *proto,
                            const char *outer)
{
    const char *layer = scope_of(arena, proto, "pkg.torch.onnx.name_scopes");
    if (!layer)
        layer = without_last_part(arena, proto->name);
    if (!*outer)
        return layer;
    return *layer ? mgpu_arena_format(arena, "%s/%s", outer, layer) : outer;
}

/* ---- Declarations --------------------------------------------------------------------------- */

static void declared_dim(const Onnx__TensorShapeProto__Dimension *dim, int64_t *size,
                         const char **symbol)
{
    *size = -1;
    *symbol = "";
    if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
        *size = dim->dim_value < 0 ? -1 : dim->dim_value;
        *symbol = dim->dim_value < 0 ? "" : NULL;
    } else if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
        *symbol = dim->dim_param;
}

void mgpu_onnx_declared(struct mgpu_arena *arena, const Onnx__ValueInfoProto *proto,
                        struct mgpu_onnx_value *out)
{
    *out = (struct mgpu_onnx_value){.name = mgpu_arena_string(arena, proto->name), .rank = -1};
    const Onnx__TypeProto *type = proto->type;
    if (!type || type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return;
    out->type = (enum mgpu_dtype)type->tensor_type->elem_type;
    const Onnx__TensorShapeProto *shape = type->tensor_type->shape;
    if (!shape)
        return;
    out->rank = (int)shape->n_dim;
    for (size_t i = 0; i < shape->n_dim && i < MGPU_MAX_RANK; i++)
        declared_dim(shape->dim[i], &out->dims[i], &out->symbols[i]);
}

/* ---- Constants ------------------------------------------------------------------------------ */

bool mgpu_onnx_is_constant(const Onnx__AttributeProto *value)
{
    static const char *const names[] = {"value", "value_float", "value_floats", "value_int",
                                        "value_ints"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(value->name, names[i]))
            return i > 0 || value->t;
    return false;
}

struct mgpu_array mgpu_onnx_constant(const Onnx__AttributeProto *value)
{
    bool list = value->name[strlen(value->name) - 1] == 's';
    bool real = !strncmp(value->name, "value_float", strlen("value_float"));
    const void *from = real ? (list ? (const void *)value->floats : &value->f)
                            : (list ? (const void *)value->ints : &value->i);
    return (struct mgpu_array){
        .type = real ? MGPU_FLOAT : MGPU_INT64,
        .rank = list,
        .dims = {list ? (int64_t)(real ? value->n_floats : value->n_ints) : 0},
        .data = (void *)(uintptr_t)from,
    };
}

/* ---- Look-ups ------------------------------------------------------------------------------- */

int mgpu_onnx_find_initializer(const struct mgpu_onnx_model *model, const char *name)
{
    return (int)(intptr_t)mgpu_names_get(model->initializer_names, name) - 1;
}

const Onnx__AttributeProto *mgpu_onnx_attribute(const struct mgpu_onnx_node *node, const char *name)
{
    for (int i = 0; i < node->attributes; i++)
        if (!strcmp(node->attribute[i]->name, name))
            return node->attribute[i];
    return NULL;
}

const Onnx__AttributeProto *mgpu_onnx_typed(const struct mgpu_onnx_node *node, const char *name,
                                            Onnx__AttributeProto__AttributeType type)
{
    const Onnx__AttributeProto *a = mgpu_onnx_attribute(node, name);
    if (!a || !a->has_type || a->type == type)
        return a;
    *node->misread = a;
    return NULL;
}

int mgpu_onnx_check_read(const struct mgpu_onnx_node *node)
{
    static const char *const names[] = {
        "of no type", "a float",         "an int", "a string",       "a tensor",
        "a graph",    "floats",          "ints",   "strings",        "tensors",
        "graphs",     "a sparse tensor", "a type", "sparse tensors", "types",
    };
    const Onnx__AttributeProto *a = node->misread ? *node->misread : NULL;
    bool known = a && a->type > 0 && (size_t)a->type < sizeof names / sizeof *names;
    return a ? mgpu_fail(MGPU_EINVALID, "attribute '%s' is %s, which %s does not take", a->name,
                         names[known ? (int)a->type : 0], node->type)
             : 0;
}

int64_t mgpu_onnx_int(const struct mgpu_onnx_node *node, const char *name, int64_t otherwise)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(node, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    return a ? a->i : otherwise;
}

double mgpu_onnx_float(const struct mgpu_onnx_node *node, const char *name, double otherwise)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(node, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    return a ? (double)a->f : otherwise;
}

bool mgpu_onnx_is_called(const struct mgpu_onnx_node *node, const char *name)
{
    bool called = *name && !strcmp(node->name, name);
    for (int i = 0; i < node->outputs && !called; i++)
        called = *name && !strcmp(node->output[i], name);
    return called;
}

int mgpu_onnx_ints(const struct mgpu_onnx_node *node, const char *name, int64_t *values, int most)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(node, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    if (!a)
        return -1;
    for (size_t i = 0; i < a->n_ints && i < (size_t)most; i++)
        values[i] = a->ints[i];
    return (int)a->n_ints;
}

const char *mgpu_onnx_string(struct mgpu_onnx_model *model, const struct mgpu_onnx_node *node,
                             const char *name, const char *otherwise)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(node, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    if (!a)
        return otherwise;
    return mgpu_arena_format(model->arena, "%.*s", (int)a->s.len,
                             a->s.data ? (const char *)a->s.data : "");
}
