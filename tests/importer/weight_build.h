/* Models of a few nodes whose weights are identified, for tests of the importer's rules. */
#ifndef MGPU_TESTS_IMPORTER_WEIGHT_BUILD_H
#define MGPU_TESTS_IMPORTER_WEIGHT_BUILD_H

#include "importer/weights.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

/* Of the model that was identified last. */
static struct mgpu_onnx_file *file;
static struct mgpu_onnx_model *model;
static struct mgpu_weights *weights;

/* ---- Models --------------------------------------------------------------------------------- */

static inline Onnx__ModelProto *begin(const char *producer)
{
    Onnx__ModelProto *m = build_model(8, 17);
    m->producer_name = build_text(producer);
    build_input(m->graph, "x");
    return m;
}

/* A float tensor: `value` everywhere, or, where `seed` is not 0, different numbers. */
static inline void tensor(Onnx__ModelProto *m, const char *name, int rank, int64_t a, int64_t b,
                          int seed, float value)
{
    int64_t dims[] = {a, b}, count = rank == 2 ? a * b : rank == 1 ? a : 1;
    float values[2048];
    for (int64_t i = 0; i < count; i++)
        values[i] = seed ? sinf((float)(seed * 1000 + i)) : value;
    Onnx__TensorProto *t = build_tensor(name, MGPU_FLOAT, (size_t)rank, dims);
    build_raw(t, values, (size_t)count * sizeof *values);
    build_initializer(m->graph, t);
}

#define ones(m, name, n)  tensor(m, name, 1, n, 0, 0, 1)
#define zeros(m, name, n) tensor(m, name, 1, n, 0, 0, 0)

static inline void matrix(Onnx__ModelProto *m, const char *name, int64_t a, int64_t b, int seed)
{
    tensor(m, name, 2, a, b, seed, 0);
}

static inline Onnx__StringStringEntryProto *entry(const char *key, const char *value)
{
    Onnx__StringStringEntryProto *e = MGPU_NEW(build_arena, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = build_text(key);
    e->value = build_text(value);
    return e;
}

static inline void note_entry(Onnx__NodeProto *n, const char *key, const char *value)
{
    BUILD_APPEND(n->metadata_props, n->n_metadata_props, entry(key, value));
}

/* A node with a name, and for dynamo the module that made it. */
static inline void node(Onnx__ModelProto *m, const char *type, const char *inputs,
                        const char *output, const char *name, const char *module)
{
    Onnx__NodeProto *n = build_add(m->graph, type, inputs, output);
    n->name = build_text(name);
    if (!module)
        return;
    note_entry(n, "pkg.torch.onnx.name_scopes",
               mgpu_arena_format(build_arena, "['', '%s', '%s']", module, output));
}

/* Dynamo's optimizer made the last node by these rules. */
static inline void rewritten(Onnx__ModelProto *m, const char *rules)
{
    note_entry(m->graph->node[m->graph->n_node - 1], "pkg.onnxscript.rewriter.rule_name", rules);
}

static inline void forget(void)
{
    mgpu_weights_free(weights);
    mgpu_onnx_model_free(model);
    mgpu_onnx_free(file);
    weights = NULL;
    model = NULL;
    file = NULL;
}

static inline int identify_with(Onnx__ModelProto *m, const struct mgpu_weights_options *options)
{
    forget();
    if (m) {
        if (!m->graph->n_output)
            build_output(m->graph, "y");
        build_save(m, build_path("m.onnx"));
    }
    MGPU_TRY(mgpu_onnx_read(&file, build_path("m.onnx")));
    MGPU_TRY(mgpu_onnx_model_new(&model, file));
    return mgpu_weights_identify(&weights, model, options);
}

static inline void identify(Onnx__ModelProto *m)
{
    static const struct mgpu_weights_options plain;
    CHECK_OK(identify_with(m, &plain));
}

static inline Onnx__ModelProto *two_norms(const char *producer, const char *first,
                                          const char *second, bool scopes)
{
    Onnx__ModelProto *m = begin(producer);
    matrix(m, "W", 4, 4, 1);
    ones(m, "one", 4);
    zeros(m, "zero", 4);
    node(m, "MatMul", "x W", "a", "", scopes ? "in" : NULL);
    node(m, "BatchNormalization", "a one zero zero one", "b", scopes ? "n1" : first,
         scopes ? first : NULL);
    node(m, "BatchNormalization", "b one zero zero one", "y", scopes ? "n2" : second,
         scopes ? second : NULL);
    return m;
}

/* ---- Questions ------------------------------------------------------------------------------ */

static inline const char *role(const char *name)
{
    int i = mgpu_onnx_find_initializer(model, name);
    return i < 0 || !weights ? "missing" : mgpu_weight_role_name(weights->role[i]);
}

#define CHECK_ROLE(name, expected)                                                                 \
    CHECK_(!strcmp(role(name), expected), "'%s' is %s, not %s", name, role(name), expected)

/* The weight that input `input` of the node which makes `output` is. */
static inline int at(const char *output, int input)
{
    for (int i = 0; i < model->node_total; i++)
        if (!strcmp(model->all[i]->output[0], output))
            return mgpu_weights_of_use(weights, i, input, NULL);
    return -2;
}

static inline int weights_with(enum mgpu_weight_role wanted)
{
    int n = 0;
    for (int i = 0; i < weights->count; i++)
        n += weights->weight[i].role == wanted;
    return n;
}

static inline bool noted(const char *part)
{
    for (int i = 0; i < weights->notes; i++)
        if (strstr(weights->line[i], part))
            return true;
    return false;
}

#endif
