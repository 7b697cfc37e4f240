#include "tests/support/make_onnx.h"

#include "runtime/base/array.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the text is being read, and what is being built. */
struct maker {
    struct mgpu_arena *arena;
    const char *at;
    int line;
    Onnx__ModelProto *model;
    Onnx__GraphProto *graph;       /* statements go here */
    Onnx__FunctionProto *function; /* or here */
    int graphs;
    Onnx__GraphProto *named[16]; /* graphs for @name */
};

#define APPEND(m, list, count, item)                                                               \
    do {                                                                                           \
        void **longer_ = MGPU_NEW_ARRAY((m)->arena, void *, (count) + 1);                          \
        if (count)                                                                                 \
            memcpy(longer_, (list), (count) * sizeof *longer_);                                    \
        longer_[(count)++] = (item);                                                               \
        (list) = (void *)longer_;                                                                  \
    } while (0)

/* A protobuf-c message in the arena. */
#define MESSAGE(m, type, init) (init##_in(MGPU_NEW((m)->arena, type)))
#define IN_ARENA(type, init)                                                                       \
    static type *init##_in(type *message)                                                          \
    {                                                                                              \
        init(message);                                                                             \
        return message;                                                                            \
    }

IN_ARENA(Onnx__ModelProto, onnx__model_proto__init)
IN_ARENA(Onnx__GraphProto, onnx__graph_proto__init)
IN_ARENA(Onnx__NodeProto, onnx__node_proto__init)
IN_ARENA(Onnx__TensorProto, onnx__tensor_proto__init)
IN_ARENA(Onnx__AttributeProto, onnx__attribute_proto__init)
IN_ARENA(Onnx__FunctionProto, onnx__function_proto__init)
IN_ARENA(Onnx__OperatorSetIdProto, onnx__operator_set_id_proto__init)
IN_ARENA(Onnx__ValueInfoProto, onnx__value_info_proto__init)
IN_ARENA(Onnx__TypeProto, onnx__type_proto__init)
IN_ARENA(Onnx__TypeProto__Tensor, onnx__type_proto__tensor__init)
IN_ARENA(Onnx__TensorShapeProto, onnx__tensor_shape_proto__init)
IN_ARENA(Onnx__TensorShapeProto__Dimension, onnx__tensor_shape_proto__dimension__init)
IN_ARENA(Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init)

/* ---- Text ----------------------------------------------------------------------------------- */

static void wrong(const struct maker *m, const char *what)
{
    fprintf(stderr, "make_onnx: line %d: %s at '%.20s'\n", m->line, what, m->at);
    abort();
}

static void skip(struct maker *m)
{
    while (*m->at == ' ' || *m->at == '\t')
        m->at++;
}

static bool at_end(struct maker *m)
{
    skip(m);
    return !*m->at || *m->at == '\n';
}

static bool accept(struct maker *m, const char *text)
{
    skip(m);
    if (strncmp(m->at, text, strlen(text)))
        return false;
    m->at += strlen(text);
    return true;
}

static void expect(struct maker *m, const char *text)
{
    if (!accept(m, text))
        wrong(m, text);
}

static bool next_line(struct maker *m)
{
    while (at_end(m) && *m->at) {
        m->at++;
        m->line++;
    }
    return *m->at;
}

/* A name: all up to a blank or one of the stops. */
static char *word(struct maker *m, const char *stops)
{
    skip(m);
    const char *from = m->at;
    while (*m->at && !isspace((unsigned char)*m->at) && !strchr(stops, *m->at))
        m->at++;
    if (m->at == from)
        wrong(m, "a name is missing");
    return mgpu_arena_format(m->arena, "%.*s", (int)(m->at - from), from);
}

static char *quoted(struct maker *m)
{
    expect(m, "\"");
    const char *end = strchr(m->at, '"');
    char *text = mgpu_arena_format(m->arena, "%.*s", (int)(end - m->at), m->at);
    m->at = end + 1;
    return text;
}

static int64_t integer(struct maker *m)
{
    char *end;
    skip(m);
    int64_t value = strtoll(m->at, &end, 10);
    if (end == m->at)
        wrong(m, "a number is missing");
    m->at = end;
    return value;
}

static double real(struct maker *m)
{
    char *end;
    skip(m);
    double value = strtod(m->at, &end);
    if (end == m->at)
        wrong(m, "a number is missing");
    m->at = end;
    return value;
}

/* Whether the number that comes next is a float: it has a point, an exponent, or is inf or nan. */
static bool real_next(struct maker *m)
{
    skip(m);
    for (const char *p = m->at; *p && !strchr(" ,]\n", *p); p++)
        if (strchr(".eina", *p))
            return true;
    return false;
}

static enum mgpu_dtype type_word(struct maker *m)
{
    const char *name = word(m, ">");
    for (int t = 1; t <= MGPU_BFLOAT16; t++)
        if (mgpu_dtype_size((enum mgpu_dtype)t) &&
            !strcmp(name, mgpu_dtype_name((enum mgpu_dtype)t)))
            return (enum mgpu_dtype)t;
    wrong(m, "unknown type");
    return MGPU_UNDEFINED;
}

/* ---- Tensors and declarations -----------------------------------------------------------------
 */

/* About normal: the sum of four uniform numbers; another sequence for each line of the text. */
static void random_numbers(struct maker *m, float *to, int64_t count, double deviation)
{
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)m->line;
    float scale = (float)(deviation * 1.7320508 / 65536);
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = state ^ state >> 29;
        int sum = (int)(bits & 65535) + (int)(bits >> 16 & 65535) + (int)(bits >> 32 & 65535) +
                  (int)(bits >> 48);
        to[i] = scale * (float)(sum - 131070);
    }
}

/* "float 2 3 = 1 2 3 4 5 6", "float 2 3 = normal 0.1". */
static Onnx__TensorProto *tensor(struct maker *m)
{
    Onnx__TensorProto *t = MESSAGE(m, Onnx__TensorProto, onnx__tensor_proto__init);
    enum mgpu_dtype type = type_word(m);
    int64_t dims[MGPU_MAX_RANK], count = 1;
    while (!accept(m, "=")) {
        dims[t->n_dims] = integer(m);
        count *= dims[t->n_dims++];
    }
    t->dims = mgpu_arena_copy(m->arena, dims, t->n_dims * sizeof *dims);
    t->has_data_type = 1;
    t->data_type = (int32_t)type;
    t->has_raw_data = 1;
    t->raw_data.len = (size_t)count * mgpu_dtype_size(type);
    t->raw_data.data = mgpu_arena_alloc(m->arena, t->raw_data.len + 1);
    double value = 0;
    int64_t whole = 0;
    if (accept(m, "normal ")) {
        random_numbers(m, (float *)t->raw_data.data, count, real(m));
        return t;
    }
    for (int64_t i = 0; i < count; i++) {
        bool more = !at_end(m) && *m->at != '>';
        if (more && mgpu_is_float(type))
            value = real(m);
        else if (more)
            whole = integer(m);
        if (mgpu_is_float(type))
            mgpu_set_double(t->raw_data.data, type, i, value);
        else
            mgpu_set_int(t->raw_data.data, type, i, whole);
    }
    return t;
}

/* "x float N 4", or only "x". */
static Onnx__ValueInfoProto *declaration(struct maker *m)
{
    Onnx__ValueInfoProto *v = MESSAGE(m, Onnx__ValueInfoProto, onnx__value_info_proto__init);
    v->name = word(m, "");
    if (at_end(m))
        return v;
    v->type = MESSAGE(m, Onnx__TypeProto, onnx__type_proto__init);
    v->type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    Onnx__TypeProto__Tensor *t = v->type->tensor_type =
        MESSAGE(m, Onnx__TypeProto__Tensor, onnx__type_proto__tensor__init);
    t->has_elem_type = 1;
    t->elem_type = (int32_t)type_word(m);
    t->shape = MESSAGE(m, Onnx__TensorShapeProto, onnx__tensor_shape_proto__init);
    while (!at_end(m)) {
        Onnx__TensorShapeProto__Dimension *d = MESSAGE(m, Onnx__TensorShapeProto__Dimension,
                                                       onnx__tensor_shape_proto__dimension__init);
        if (isdigit((unsigned char)*m->at)) {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            d->dim_value = integer(m);
        } else {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            d->dim_param = word(m, "");
        }
        APPEND(m, t->shape->dim, t->shape->n_dim, d);
    }
    return v;
}

/* ---- Attributes ----------------------------------------------------------------------------- */

static ProtobufCBinaryData bytes(char *text)
{
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

static void numbers(struct maker *m, Onnx__AttributeProto *a)
{
    int64_t ints[64];
    float floats[64];
    ProtobufCBinaryData *strings = MGPU_NEW_ARRAY(m->arena, ProtobufCBinaryData, 64);
    a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
    for (skip(m); !accept(m, "]"); accept(m, ",")) {
        skip(m);
        if (*m->at == '"') {
            a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS;
            strings[a->n_strings++] = bytes(quoted(m));
        } else if (real_next(m)) {
            a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS;
            floats[a->n_floats++] = (float)real(m);
        } else
            ints[a->n_ints++] = integer(m);
    }
    a->strings = strings;
    a->ints = mgpu_arena_copy(m->arena, ints, a->n_ints * sizeof *ints);
    a->floats = mgpu_arena_copy(m->arena, floats, a->n_floats * sizeof *floats);
}

static void reference(struct maker *m, Onnx__AttributeProto *a)
{
    static const struct {
        const char *name;
        Onnx__AttributeProto__AttributeType type;
    } types[] = {
        {"float", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT},
        {"int", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT},
        {"floats", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS},
        {"ints", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS},
        {"string", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING},
        {"tensor", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR},
    };
    a->ref_attr_name = word(m, ":");
    expect(m, ":");
    const char *type = word(m, "");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i].name))
            a->type = types[i].type;
}

static Onnx__GraphProto *graph_called(struct maker *m, const char *name)
{
    for (int i = 0; i < m->graphs; i++)
        if (!strcmp(m->named[i]->name, name))
            return m->named[i];
    wrong(m, "unknown graph");
    return NULL;
}

/* The value after "name=". */
static Onnx__AttributeProto *attribute(struct maker *m, char *name)
{
    Onnx__AttributeProto *a = MESSAGE(m, Onnx__AttributeProto, onnx__attribute_proto__init);
    a->name = name;
    a->has_type = 1;
    if (accept(m, "["))
        numbers(m, a);
    else if (accept(m, "@")) {
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH;
        a->g = graph_called(m, word(m, ""));
    } else if (accept(m, "<")) {
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
        a->t = tensor(m);
        expect(m, ">");
    } else if (accept(m, "$"))
        reference(m, a);
    else if (*m->at == '"') {
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
        a->has_s = 1;
        a->s = bytes(quoted(m));
    } else if (real_next(m)) {
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
        a->has_f = 1;
        a->f = (float)real(m);
    } else {
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        a->has_i = 1;
        a->i = integer(m);
    }
    return a;
}

static void set_entry(struct maker *m, Onnx__NodeProto *n, const char *key)
{
    Onnx__StringStringEntryProto *e =
        MESSAGE(m, Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init);
    e->key = mgpu_arena_string(m->arena, key);
    e->value = quoted(m);
    APPEND(m, n->metadata_props, n->n_metadata_props, e);
}

/* ---- Statements ----------------------------------------------------------------------------- */

static void list(struct maker *m, char ***names, size_t *count, const char *stops)
{
    while (!at_end(m) && !strchr(stops, *m->at)) {
        char *name = word(m, ", )=");
        APPEND(m, *names, *count, strcmp(name, "-") ? name : mgpu_arena_string(m->arena, ""));
        accept(m, ",");
    }
}

static void node(struct maker *m)
{
    Onnx__NodeProto *n = MESSAGE(m, Onnx__NodeProto, onnx__node_proto__init);
    list(m, &n->output, &n->n_output, "=");
    expect(m, "=");
    n->op_type = word(m, "(");
    char *dot = strrchr(n->op_type, '.');
    if (dot) {
        *dot = 0;
        n->domain = n->op_type;
        n->op_type = dot + 1;
    }
    expect(m, "(");
    list(m, &n->input, &n->n_input, ")");
    expect(m, ")");
    while (!at_end(m)) {
        char *name = word(m, "=");
        expect(m, "=");
        if (!strcmp(name, "name"))
            n->name = quoted(m);
        else if (!strcmp(name, "scopes"))
            set_entry(m, n, "pkg.torch.onnx.name_scopes");
        else if (!strcmp(name, "classes"))
            set_entry(m, n, "pkg.torch.onnx.class_hierarchy");
        else
            APPEND(m, n->attribute, n->n_attribute, attribute(m, name));
    }
    if (m->function)
        APPEND(m, m->function->node, m->function->n_node, n);
    else
        APPEND(m, m->graph->node, m->graph->n_node, n);
}

static void opset(struct maker *m)
{
    Onnx__OperatorSetIdProto *o =
        MESSAGE(m, Onnx__OperatorSetIdProto, onnx__operator_set_id_proto__init);
    skip(m);
    o->domain = isdigit((unsigned char)*m->at) ? mgpu_arena_string(m->arena, "") : word(m, "");
    o->has_version = 1;
    o->version = integer(m);
    if (m->function)
        APPEND(m, m->function->opset_import, m->function->n_opset_import, o);
    else
        APPEND(m, m->model->opset_import, m->model->n_opset_import, o);
}

static void statements(struct maker *m);

static void graph(struct maker *m)
{
    Onnx__GraphProto *outer = m->graph;
    m->graph = MESSAGE(m, Onnx__GraphProto, onnx__graph_proto__init);
    m->graph->name = word(m, "{");
    expect(m, "{");
    statements(m);
    m->named[m->graphs++] = m->graph;
    m->graph = outer;
}

static void function(struct maker *m)
{
    Onnx__FunctionProto *f = MESSAGE(m, Onnx__FunctionProto, onnx__function_proto__init);
    f->domain = word(m, "");
    f->name = word(m, "(");
    expect(m, "(");
    list(m, &f->input, &f->n_input, ")");
    expect(m, ")");
    while (!accept(m, "->")) {
        char *name = word(m, "=");
        if (accept(m, "="))
            APPEND(m, f->attribute_proto, f->n_attribute_proto, attribute(m, name));
        else
            APPEND(m, f->attribute, f->n_attribute, name);
    }
    list(m, &f->output, &f->n_output, "{");
    expect(m, "{");
    m->function = f;
    statements(m);
    m->function = NULL;
    APPEND(m, m->model->functions, m->model->n_functions, f);
}

static void initializer(struct maker *m)
{
    char *name = word(m, "");
    Onnx__TensorProto *t = tensor(m);
    t->name = name;
    APPEND(m, m->graph->initializer, m->graph->n_initializer, t);
}

static void statement(struct maker *m)
{
    if (accept(m, "ir "))
        m->model->ir_version = integer(m);
    else if (accept(m, "opset "))
        opset(m);
    else if (accept(m, "producer "))
        m->model->producer_name = word(m, "");
    else if (accept(m, "input "))
        APPEND(m, m->graph->input, m->graph->n_input, declaration(m));
    else if (accept(m, "output "))
        APPEND(m, m->graph->output, m->graph->n_output, declaration(m));
    else if (accept(m, "init "))
        initializer(m);
    else if (accept(m, "graph "))
        graph(m);
    else if (accept(m, "function "))
        function(m);
    else
        node(m);
}

/* All up to the end of the text or of the block. */
static void statements(struct maker *m)
{
    while (next_line(m) && !accept(m, "}")) {
        statement(m);
        if (!at_end(m))
            wrong(m, "the end of the line is missing");
    }
}

Onnx__ModelProto *make_onnx(struct mgpu_arena *arena, const char *text)
{
    struct maker m = {.arena = arena, .at = text, .line = 1};
    m.model = MESSAGE(&m, Onnx__ModelProto, onnx__model_proto__init);
    m.graph = m.model->graph = MESSAGE(&m, Onnx__GraphProto, onnx__graph_proto__init);
    m.graph->name = mgpu_arena_string(arena, "g");
    m.model->has_ir_version = 1;
    m.model->ir_version = 8;
    statements(&m);
    bool main_set = false;
    for (size_t i = 0; i < m.model->n_opset_import; i++)
        main_set = main_set || !*m.model->opset_import[i]->domain;
    if (!main_set) {
        m.at = "17";
        opset(&m);
    }
    return m.model;
}

void make_onnx_file(const char *path, const char *text)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    const Onnx__ModelProto *model = make_onnx(arena, text);
    size_t size = onnx__model_proto__get_packed_size(model);
    uint8_t *packed = mgpu_xcalloc(size + 1, 1);
    onnx__model_proto__pack(model, packed);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(packed, 1, size, f) != size || fclose(f)) {
        perror(path);
        abort();
    }
    free(packed);
    mgpu_arena_free(arena);
}
