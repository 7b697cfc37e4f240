/* Small ONNX models for tests, built from protobuf-c's structs in an arena, and a folder to put
 * them in. */
#ifndef MGPU_TEST_ONNX_BUILD_H
#define MGPU_TEST_ONNX_BUILD_H

#include "importer/onnx.pb-c.h"
#include "runtime/base/memory.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct mgpu_arena *build_arena; /* of all that is built */
static char build_folder[] = "/tmp/mgpu-test-XXXXXX";

#define BUILD_APPEND(list, count, item)                                                            \
    do {                                                                                           \
        void **longer_ = MGPU_NEW_ARRAY(build_arena, void *, (count) + 1);                         \
        if (count)                                                                                 \
            memcpy(longer_, (list), (count) * sizeof *longer_);                                    \
        longer_[(count)++] = (item);                                                               \
        (list) = (void *)longer_;                                                                  \
    } while (0)

static inline char *build_text(const char *text)
{
    return mgpu_arena_string(build_arena, text);
}

/* A path in the test's folder, in one of four buffers. */
static inline const char *build_path(const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", build_folder, name);
    return path;
}

static inline void build_begin(void)
{
    build_arena = mgpu_arena_new();
    if (!mkdtemp(build_folder))
        abort();
}

static inline void build_remove(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char *path;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (asprintf(&path, "%s/%s", folder, e->d_name) < 0)
            abort();
        if (unlink(path) < 0)
            build_remove(path);
        free(path);
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
}

static inline void build_end(void)
{
    mgpu_arena_free(build_arena);
    build_remove(build_folder);
}

static inline void build_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, size, f) != size)
        abort();
    fclose(f);
}

/* A whole file; free() it. */
static inline uint8_t *build_load(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    *size = 0;
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(*size + 1);
    if (fread(bytes, 1, *size, f) != *size)
        abort();
    fclose(f);
    return bytes;
}

static inline void build_save(const Onnx__ModelProto *model, const char *path)
{
    size_t size = onnx__model_proto__get_packed_size(model);
    uint8_t *bytes = malloc(size + 1);
    onnx__model_proto__pack(model, bytes);
    build_bytes(path, bytes, size);
    free(bytes);
}

static inline Onnx__OperatorSetIdProto *build_opset(const char *domain, int64_t version)
{
    Onnx__OperatorSetIdProto *o = MGPU_NEW(build_arena, Onnx__OperatorSetIdProto);
    onnx__operator_set_id_proto__init(o);
    o->domain = build_text(domain);
    o->has_version = 1;
    o->version = version;
    return o;
}

static inline Onnx__GraphProto *build_graph(const char *name)
{
    Onnx__GraphProto *g = MGPU_NEW(build_arena, Onnx__GraphProto);
    onnx__graph_proto__init(g);
    g->name = build_text(name);
    return g;
}

static inline Onnx__ModelProto *build_model(int64_t ir, int64_t opset)
{
    Onnx__ModelProto *m = MGPU_NEW(build_arena, Onnx__ModelProto);
    onnx__model_proto__init(m);
    m->has_ir_version = 1;
    m->ir_version = ir;
    m->graph = build_graph("g");
    BUILD_APPEND(m->opset_import, m->n_opset_import, build_opset("", opset));
    return m;
}

static inline Onnx__ValueInfoProto *build_value(const char *name)
{
    Onnx__ValueInfoProto *v = MGPU_NEW(build_arena, Onnx__ValueInfoProto);
    onnx__value_info_proto__init(v);
    v->name = build_text(name);
    return v;
}

static inline void build_input(Onnx__GraphProto *g, const char *name)
{
    BUILD_APPEND(g->input, g->n_input, build_value(name));
}

static inline void build_output(Onnx__GraphProto *g, const char *name)
{
    BUILD_APPEND(g->output, g->n_output, build_value(name));
}

/* `names` separated by one blank; an absent one is "-". */
static inline void build_names(char ***list, size_t *count, const char *names)
{
    char *rest, *text = build_text(names);
    for (char *name; (name = strtok_r(text, " ", &rest)); text = NULL)
        BUILD_APPEND(*list, *count, strcmp(name, "-") ? name : build_text(""));
}

static inline Onnx__NodeProto *build_node(const char *type, const char *inputs, const char *outputs)
{
    Onnx__NodeProto *n = MGPU_NEW(build_arena, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->op_type = build_text(type);
    build_names(&n->input, &n->n_input, inputs);
    build_names(&n->output, &n->n_output, outputs);
    return n;
}

static inline Onnx__NodeProto *build_add(Onnx__GraphProto *g, const char *type, const char *inputs,
                                         const char *outputs)
{
    Onnx__NodeProto *n = build_node(type, inputs, outputs);
    BUILD_APPEND(g->node, g->n_node, n);
    return n;
}

static inline Onnx__AttributeProto *build_attribute(Onnx__NodeProto *n, const char *name,
                                                    Onnx__AttributeProto__AttributeType type)
{
    Onnx__AttributeProto *a = MGPU_NEW(build_arena, Onnx__AttributeProto);
    onnx__attribute_proto__init(a);
    a->name = build_text(name);
    a->has_type = 1;
    a->type = type;
    BUILD_APPEND(n->attribute, n->n_attribute, a);
    return a;
}

static inline void build_int(Onnx__NodeProto *n, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = build_attribute(n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    a->has_i = 1;
    a->i = value;
}

static inline void build_graph_attribute(Onnx__NodeProto *n, const char *name, Onnx__GraphProto *g)
{
    build_attribute(n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)->g = g;
}

/* A tensor without data. */
static inline Onnx__TensorProto *build_tensor(const char *name, int type, size_t rank,
                                              const int64_t *dims)
{
    Onnx__TensorProto *t = MGPU_NEW(build_arena, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    if (*name)
        t->name = build_text(name);
    t->has_data_type = 1;
    t->data_type = type;
    t->n_dims = rank;
    t->dims = mgpu_arena_copy(build_arena, dims, rank * sizeof *dims);
    return t;
}

static inline void build_raw(Onnx__TensorProto *t, const void *bytes, size_t size)
{
    t->has_raw_data = 1;
    t->raw_data.len = size;
    t->raw_data.data = mgpu_arena_copy(build_arena, bytes, size);
}

static inline void build_initializer(Onnx__GraphProto *g, Onnx__TensorProto *t)
{
    BUILD_APPEND(g->initializer, g->n_initializer, t);
}

static inline Onnx__TensorProto *build_floats(const char *name, size_t count, const float *values)
{
    Onnx__TensorProto *t = build_tensor(name, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, 1,
                                        (const int64_t[]){(int64_t)count});
    build_raw(t, values, count * sizeof *values);
    return t;
}

static inline Onnx__NodeProto *build_constant(Onnx__TensorProto *t, const char *output)
{
    Onnx__NodeProto *n = build_node("Constant", "", output);
    build_attribute(n, "value", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR)->t = t;
    return n;
}

static inline void build_external(Onnx__TensorProto *t, const char *key, const char *value)
{
    Onnx__StringStringEntryProto *e = MGPU_NEW(build_arena, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = build_text(key);
    e->value = build_text(value);
    BUILD_APPEND(t->external_data, t->n_external_data, e);
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
}

/* x -> Mul by w [2] -> y. */
static inline Onnx__ModelProto *build_scale(Onnx__TensorProto *w)
{
    Onnx__ModelProto *m = build_model(8, 17);
    build_input(m->graph, "x");
    build_initializer(m->graph, w);
    build_add(m->graph, "Mul", "x w", "y");
    build_output(m->graph, "y");
    return m;
}

#endif
