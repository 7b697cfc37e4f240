/* Which initializer is which weight: each rule by a model of a few nodes, and the options. */
#include "importer/report.h"
#include "importer/weights.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <json-c/json.h>

static struct mgpu_onnx_file *file;
static struct mgpu_onnx_model *model;
static struct mgpu_weights *weights;

/* ---- Models --------------------------------------------------------------------------------- */

static Onnx__ModelProto *begin(const char *producer)
{
    Onnx__ModelProto *m = build_model(8, 17);
    m->producer_name = build_text(producer);
    build_input(m->graph, "x");
    return m;
}

/* A float tensor: `value` everywhere, or, where `seed` is not 0, different numbers. */
static void tensor(Onnx__ModelProto *m, const char *name, int rank, int64_t a, int64_t b, int seed,
                   float value)
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

static void matrix(Onnx__ModelProto *m, const char *name, int64_t a, int64_t b, int seed)
{
    tensor(m, name, 2, a, b, seed, 0);
}

static Onnx__StringStringEntryProto *entry(const char *key, const char *value)
{
    Onnx__StringStringEntryProto *e = MGPU_NEW(build_arena, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = build_text(key);
    e->value = build_text(value);
    return e;
}

static void note_entry(Onnx__NodeProto *n, const char *key, const char *value)
{
    BUILD_APPEND(n->metadata_props, n->n_metadata_props, entry(key, value));
}

/* A node with a name, and for dynamo the module that made it. */
static void node(Onnx__ModelProto *m, const char *type, const char *inputs, const char *output,
                 const char *name, const char *module)
{
    Onnx__NodeProto *n = build_add(m->graph, type, inputs, output);
    n->name = build_text(name);
    if (!module)
        return;
    note_entry(n, "pkg.torch.onnx.name_scopes",
               mgpu_arena_format(build_arena, "['', '%s', '%s']", module, output));
}

/* Dynamo's optimizer made the last node by these rules. */
static void rewritten(Onnx__ModelProto *m, const char *rules)
{
    note_entry(m->graph->node[m->graph->n_node - 1], "pkg.onnxscript.rewriter.rule_name", rules);
}

static void forget(void)
{
    mgpu_weights_free(weights);
    mgpu_onnx_model_free(model);
    mgpu_onnx_free(file);
    weights = NULL;
    model = NULL;
    file = NULL;
}

static int identify_with(Onnx__ModelProto *m, const struct mgpu_weights_options *options)
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

static void identify(Onnx__ModelProto *m)
{
    static const struct mgpu_weights_options plain;
    CHECK_OK(identify_with(m, &plain));
}

/* ---- Questions ------------------------------------------------------------------------------ */

static const char *role(const char *name)
{
    int i = mgpu_onnx_find_initializer(model, name);
    return i < 0 || !weights ? "missing" : mgpu_weight_role_name(weights->role[i]);
}

#define CHECK_ROLE(name, expected)                                                                 \
    CHECK_(!strcmp(role(name), expected), "'%s' is %s, not %s", name, role(name), expected)

/* The weight that input `input` of the node which makes `output` is. */
static int at(const char *output, int input)
{
    for (int i = 0; i < model->node_total; i++)
        if (!strcmp(model->all[i]->output[0], output))
            return mgpu_weights_of_use(weights, i, input, NULL);
    return -2;
}

static int weights_with(enum mgpu_weight_role wanted)
{
    int n = 0;
    for (int i = 0; i < weights->count; i++)
        n += weights->weight[i].role == wanted;
    return n;
}

static bool noted(const char *part)
{
    for (int i = 0; i < weights->notes; i++)
        if (strstr(weights->line[i], part))
            return true;
    return false;
}

/* ---- Roles ---------------------------------------------------------------------------------- */

/* Counters and statistics are not trained, also where every initializer is a graph input. */
static void check_counters(void)
{
    const struct mgpu_weights_options steps = {.train = (const char *[]){"steps"},
                                               .train_count = 1};
    const struct mgpu_weights_options mean = {.train = (const char *[]){"mean"}, .train_count = 1};
    Onnx__ModelProto *m = begin("hand");
    m->ir_version = 3;
    tensor(m, "W", 2, 2, 3, 0, 1);
    matrix(m, "b", 1, 2, 1);
    ones(m, "scale", 2);
    zeros(m, "shift", 2);
    matrix(m, "mean", 1, 2, 2);
    m->graph->initializer[4]->n_dims = 1;
    m->graph->initializer[4]->dims[0] = 2;
    ones(m, "var", 2);
    Onnx__TensorProto *t = build_tensor("steps", MGPU_INT64, 0, NULL);
    build_raw(t, (const int64_t[]){7}, 8);
    build_initializer(m->graph, t);
    const char *names[] = {"W", "b", "scale", "shift", "mean", "var", "steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        build_input(m->graph, names[i]);
    build_add(m->graph, "Gemm", "x W b", "h");
    build_add(m->graph, "BatchNormalization", "h scale shift mean var", "y");
    identify(m);
    CHECK_ROLE("W", "trained");
    CHECK_ROLE("b", "trained");
    CHECK_ROLE("scale", "trained");
    CHECK_ROLE("shift", "trained");
    CHECK_ROLE("mean", "statistic");
    CHECK_ROLE("var", "statistic");
    CHECK_ROLE("steps", "unused");
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 4 && weights_with(MGPU_ROLE_STATISTIC) == 2);
    CHECK_FAILS(identify_with(NULL, &steps), "'steps' holds int64 numbers");
    CHECK_FAILS(identify_with(NULL, &mean), "'mean' is a running mean or variance");
}

/* Numbers that are no weights, and one that is. */
static void check_numbers(void)
{
    Onnx__ModelProto *m = begin("hand");
    matrix(m, "W", 3, 1, 1);
    tensor(m, "bias", 1, 1, 0, 0, 0.5f);
    tensor(m, "eps", 1, 1, 0, 0, 1e-5f);
    tensor(m, "low", 0, 0, 0, 0, -1);
    tensor(m, "gain", 1, 1, 0, 0, 2);
    tensor(m, "half", 0, 0, 0, 0, 0.5f);
    matrix(m, "seen", 4, 4, 2);
    build_add(m->graph, "MatMul", "x W", "a");
    build_add(m->graph, "Add", "a bias", "b");
    build_add(m->graph, "Clip", "b low", "c");
    build_add(m->graph, "Add", "c eps", "d");
    build_add(m->graph, "Sqrt", "d", "e");
    build_add(m->graph, "Mul", "e gain", "f");
    build_add(m->graph, "Mul", "f half", "y");
    build_add(m->graph, "Shape", "seen", "s");
    identify(m);
    CHECK_ROLE("bias", "trained");
    CHECK_ROLE("gain", "trained");
    CHECK_ROLE("eps", "constant");
    CHECK_ROLE("half", "constant");
    CHECK_ROLE("low", "shape");
    CHECK_ROLE("seen", "shape");
}

/* A scalar is not trained, which is said of one that a module may have named; a pattern that
 * matches it says so too. */
static void check_scalars(void)
{
    const char *pattern[] = {"*", "logit_scale"};
    struct mgpu_weights_options train = {.train = pattern, .train_count = 1};
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "o.weight", 4, 4, 1);
    tensor(m, "logit_scale", 0, 0, 0, 0, 2.6f);
    tensor(m, "val_5", 0, 0, 0, 0, 2);
    tensor(m, "onnx::Mul_7", 0, 0, 0, 0, 3);
    build_add(m->graph, "MatMul", "x o.weight", "a");
    build_add(m->graph, "Mul", "a val_5", "b");
    build_add(m->graph, "Mul", "b onnx::Mul_7", "c");
    build_add(m->graph, "Mul", "c logit_scale", "y");
    identify(m);
    CHECK_ROLE("logit_scale", "constant");
    CHECK(noted("not trained: 'logit_scale' (--train '*' --train 'logit_scale'"));
    CHECK(strstr(weights->note[mgpu_onnx_find_initializer(model, "logit_scale")], "not trained"));
    CHECK(!*weights->note[mgpu_onnx_find_initializer(model, "val_5")]);
    CHECK_OK(identify_with(NULL, &train));
    CHECK_ROLE("logit_scale", "constant");
    CHECK(noted("leaves as they are: 3, for one 'logit_scale'"));
    train.train_count = 2;
    CHECK_OK(identify_with(NULL, &train));
    CHECK_ROLE("logit_scale", "trained");
    CHECK_ROLE("o.weight", "trained");
    CHECK_ROLE("val_5", "constant");
    CHECK(noted("leaves as they are: 2") && !noted("'logit_scale'"));
}

/* A weight is one behind views, in the body of an If, and where it is also compared. */
static void check_places(void)
{
    Onnx__ModelProto *m = begin("hand");
    matrix(m, "W", 4, 4, 1);
    matrix(m, "V", 4, 4, 2);
    tensor(m, "P", 1, 2, 0, 3, 0);
    tensor(m, "zero", 0, 0, 0, 0, 0);
    build_input(m->graph, "c");
    build_add(m->graph, "Transpose", "W", "wt");
    build_add(m->graph, "Identity", "wt", "wi");
    build_add(m->graph, "MatMul", "x wi", "a");
    Onnx__GraphProto *yes = build_graph("yes"), *no = build_graph("no");
    build_output(yes, "p");
    build_output(no, "q");
    build_add(yes, "MatMul", "a V", "p");
    build_add(no, "Neg", "a", "q");
    Onnx__NodeProto *n = build_add(m->graph, "If", "c", "b");
    build_graph_attribute(n, "then_branch", yes);
    build_graph_attribute(n, "else_branch", no);
    build_add(m->graph, "Greater", "P zero", "g");
    build_add(m->graph, "Where", "g P zero", "w");
    build_add(m->graph, "Add", "b w", "y");
    identify(m);
    CHECK_ROLE("W", "trained");
    CHECK_ROLE("V", "trained");
    CHECK_ROLE("P", "trained");
    CHECK(at("g", 0) >= 0 && at("g", 0) == at("w", 1));
}

/* Masks and sinusoidal positions are not learned. */
static void check_tables(void)
{
    Onnx__ModelProto *m = begin("hand");
    matrix(m, "pe", 8, 8, 1);
    matrix(m, "mask", 4, 4, 2);
    matrix(m, "free", 8, 8, 3);
    float *pe = (float *)m->graph->initializer[0]->raw_data.data;
    for (int i = 0; i < 64; i++)
        pe[i] = i % 2 ? cosf((float)(i / 2)) : sinf((float)(i / 2));
    ((float *)m->graph->initializer[1]->raw_data.data)[3] = -INFINITY;
    build_add(m->graph, "Add", "x pe", "a");
    build_add(m->graph, "Add", "a mask", "b");
    build_add(m->graph, "Add", "b free", "y");
    identify(m);
    CHECK_ROLE("pe", "constant");
    CHECK_ROLE("mask", "constant");
    CHECK_ROLE("free", "trained");
    CHECK(noted("'mask' is not trained"));
}

/* What rotary embeddings multiply with: cosines alone and sines alone, whichever axis counts; a
 * table that is no wave in one place may be learned. */
static void check_rotary(void)
{
    enum { ROWS = 12, WIDTH = 6 };
    for (int damaged = 0; damaged < 2; damaged++) {
        Onnx__ModelProto *m = begin("pytorch");
        float table[2][ROWS][WIDTH];
        for (int t = 0; t < ROWS; t++)
            for (int j = 0; j < WIDTH; j++) {
                float angle = (float)t * powf(10000, -(float)(j % 3) / 3);
                table[0][t][j] = cosf(angle);
                table[1][t][j] = sinf(angle);
            }
        table[0][7][2] -= damaged * 0.1f;
        table[1][ROWS - 1][0] -= damaged * 0.1f;
        for (int i = 0; i < 2; i++) {
            const int64_t *dims =
                i ? (const int64_t[]){1, ROWS, 1, WIDTH} : (const int64_t[]){1, 1, ROWS, WIDTH};
            Onnx__TensorProto *t =
                build_tensor(i ? "unsqueeze_3" : "unsqueeze_1", MGPU_FLOAT, 4, dims);
            build_raw(t, table[i], sizeof table[i]);
            build_initializer(m->graph, t);
        }
        build_add(m->graph, "Mul", "x unsqueeze_1", "a");
        build_add(m->graph, "Mul", "x unsqueeze_3", "b");
        build_add(m->graph, "Add", "a b", "y");
        identify(m);
        CHECK_ROLE("unsqueeze_1", damaged ? "trained" : "constant");
        CHECK_ROLE("unsqueeze_3", damaged ? "trained" : "constant");
        CHECK(damaged || noted("'unsqueeze_1' is not trained: positions as sines and cosines"));
    }
}

/* What dynamo's optimizer computed of aranges and numbers in the code is no weight; of what may be
 * a parameter, it may be one. */
static void check_of_code(void)
{
    static const struct {
        const char *from, *role;
    } rows[] = {
        {"['_to_copy', 'arange_1', 'exp', 'mul', 'scalar_tensor_default', 'val_3']", "constant"},
        {"['arange', 'mul', 'slopes']", "trained"},
        {"['embed.weight', 'expand', 'val_1']", "trained"},
        {"['arange", "trained"},
        {"[]", "trained"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Onnx__ModelProto *m = begin("pytorch");
        matrix(m, "mul", 8, 8, 3);
        Onnx__ValueInfoProto *v = build_value("mul");
        BUILD_APPEND(v->metadata_props, v->n_metadata_props,
                     entry("pkg.onnxscript.optimizer.folded_from", rows[i].from));
        BUILD_APPEND(m->graph->value_info, m->graph->n_value_info, v);
        build_add(m->graph, "Mul", "x mul", "y");
        identify(m);
        CHECK_ROLE("mul", rows[i].role);
    }
}

/* The points that affine_grid moves are no weight; with one of them elsewhere they may be. */
static void check_base_grid(void)
{
    static const char *const types[] = {"Mul", "MatMul"};
    for (int moved = 0; moved < 2; moved++)
        for (int type = 0; type < 2; type++) {
            Onnx__ModelProto *m = begin("pytorch");
            float p[6][3];
            for (int i = 0; i < 6; i++) {
                p[i][0] = (float)(i % 3 - 1) * 2 / 3;
                p[i][1] = (float)(i / 3) - 0.5f;
                p[i][2] = 1;
            }
            p[4][0] += (float)moved * 0.1f;
            Onnx__TensorProto *t =
                build_tensor("view_4", MGPU_FLOAT, 3,
                             type ? (const int64_t[]){1, 6, 3} : (const int64_t[]){6, 3, 1});
            build_raw(t, p, sizeof p);
            build_initializer(m->graph, t);
            build_add(m->graph, types[type], "view_4 x", "y");
            identify(m);
            CHECK_ROLE("view_4", moved ? "trained" : "constant");
            CHECK(moved || noted("'view_4' is not trained: coordinates of a regular grid"));
        }
}

/* ---- Split and shared ----------------------------------------------------------------------- */

static Onnx__ModelProto *two_norms(const char *producer, const char *first, const char *second,
                                   bool scopes)
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

/* One tensor is the scale and the variance of two layers. */
static void check_merged_statistics(void)
{
    identify(two_norms("pytorch", "bn1", "bn2", true));
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 5 && weights_with(MGPU_ROLE_STATISTIC) == 4);
    CHECK(at("b", 1) != at("y", 1) && at("b", 4) != at("y", 4) && at("b", 1) != at("b", 4));
    CHECK(weights->weight[at("b", 4)].role == MGPU_ROLE_STATISTIC);
    CHECK(!strcmp(weights->weight[at("b", 1)].name, "one"));
    CHECK(!strcmp(weights->weight[at("y", 1)].name, "one@bn2"));
    CHECK(!strcmp(weights->weight[at("y", 4)].name, "one@bn2.var"));
    CHECK(!weights->weight[at("b", 1)].holder[0].added);
    CHECK(weights->weight[at("y", 1)].holder[0].added);
    CHECK(noted("'one' is stored once for 4 parameters"));
    /* one layer applied twice */
    identify(two_norms("pytorch", "bn", "bn", true));
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 3 && weights_with(MGPU_ROLE_STATISTIC) == 2);
    CHECK(at("b", 1) == at("y", 1) && at("b", 3) == at("y", 3) && at("b", 2) != at("b", 3));
}

/* Equal biases of two layers, of one layer that is applied twice, and both at once. */
static void check_biases(void)
{
    Onnx__ModelProto *m = begin("tf2onnx");
    matrix(m, "a/ReadVariableOp:0", 4, 4, 1);
    matrix(m, "b/ReadVariableOp:0", 4, 4, 2);
    tensor(m, "bias", 1, 4, 0, 0, 0.1f);
    node(m, "MatMul", "x a/ReadVariableOp:0", "p", "m/a/MatMul", NULL);
    node(m, "Add", "p bias", "q", "m/a/BiasAdd", NULL);
    node(m, "MatMul", "q a/ReadVariableOp:0", "r", "m/a_2/MatMul", NULL);
    node(m, "Add", "r bias", "s", "m/a_2/BiasAdd", NULL);
    node(m, "MatMul", "s b/ReadVariableOp:0", "t", "m/b/MatMul", NULL);
    node(m, "Add", "t bias", "y", "m/b/BiasAdd", NULL);
    identify(m);
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 4);
    CHECK(at("q", 1) == at("s", 1) && at("q", 1) != at("y", 1));
    CHECK(at("p", 1) == at("r", 1));
}

/* TorchScript: the Identity's name is the lost parameter's; without it two uses are one. */
static void check_identities(void)
{
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "l.0.weight", 4, 4, 1);
    zeros(m, "l.0.bias", 4);
    build_add(m->graph, "Identity", "l.0.weight", "l.1.weight");
    build_add(m->graph, "Identity", "l.0.bias", "l.1.bias");
    node(m, "Gemm", "x l.0.weight l.0.bias", "a", "/l.0/Gemm", NULL);
    node(m, "Gemm", "a l.1.weight l.1.bias", "b", "/l.1/Gemm", NULL);
    node(m, "Gemm", "b l.0.weight l.0.bias", "y", "/l.0_1/Gemm", NULL);
    identify(m);
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 4);
    CHECK(at("a", 1) == at("y", 1) && at("a", 2) == at("y", 2));
    CHECK(at("a", 1) != at("b", 1) && at("a", 2) != at("b", 2));
    CHECK(!strcmp(weights->weight[at("b", 1)].name, "l.0.weight@l.1.weight"));
    CHECK(at("l.1.weight", 0) == at("b", 1) && at("l.1.bias", 0) == at("b", 2));
}

/* TorchScript's folded tensors have no name: the layer tells copies from calls. */
static void check_folded(void)
{
    static const char *const second[] = {"/enc/l_1/MatMul", "/enc/m/MatMul"};
    for (int copies = 0; copies < 2; copies++) {
        Onnx__ModelProto *m = begin("pytorch");
        matrix(m, "onnx::MatMul_7", 4, 4, 1);
        build_add(m->graph, "Identity", "onnx::MatMul_7", "onnx::MatMul_9");
        node(m, "MatMul", "x onnx::MatMul_7", "a", "/enc/l/MatMul", NULL);
        node(m, "MatMul", "a onnx::MatMul_9", "y", second[copies], NULL);
        identify(m);
        CHECK((at("a", 1) != at("y", 1)) == copies);
    }
    /* "l_1" is a module of its own, not the second call of "l" */
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "onnx::MatMul_7", 4, 4, 1);
    tensor(m, "enc.l_1.bias", 1, 4, 0, 5, 0);
    node(m, "MatMul", "x onnx::MatMul_7", "a", "/enc/l/MatMul", NULL);
    node(m, "MatMul", "a onnx::MatMul_7", "b", "/enc/l_1/MatMul", NULL);
    node(m, "Add", "enc.l_1.bias b", "y", "/enc/l_1/Add", NULL);
    identify(m);
    CHECK(at("a", 1) != at("b", 1));
}

/* dynamo merges up to 1024 elements: above, and between a table and a matrix, a tensor is tied. */
static void check_dynamo(void)
{
    for (int size = 8; size <= 40; size += 32)
        for (int tied = 0; tied < 2; tied++) {
            Onnx__ModelProto *m = begin("pytorch");
            float values[1600];
            for (int i = 0; i < 1600; i++)
                values[i] = cosf((float)i);
            Onnx__TensorProto *t = build_tensor("w", MGPU_FLOAT, 2, (const int64_t[]){size, size});
            build_raw(t, values, (size_t)(size * size) * sizeof *values);
            build_initializer(m->graph, t);
            node(m, tied ? "Gather" : "MatMul", tied ? "w x" : "x w", "a", "n1", "first");
            node(m, "MatMul", "a w", "y", "n2", "second");
            identify(m);
            CHECK((at("a", tied ? 0 : 1) == at("y", 1)) == (tied || size == 40));
        }
}

/* dynamo, a module under two names: a matrix too large to be merged tells that it is one, and that
 * its bias is one, too; of small ones each is split, and the one that has the name keeps it. */
static void check_two_names(void)
{
    for (int value = 0; value < 2; value++)
        for (int large = 0; large < 2; large++) {
            int n = large ? 40 : 4;
            Onnx__ModelProto *m = begin("pytorch");
            matrix(m, "b.weight", n, n, 1);
            tensor(m, "b.bias", 1, n, 0, value ? 3 : 0, 0);
            node(m, "Gemm", "x b.weight b.bias", "p", "", "a");
            node(m, "Gemm", "p b.weight b.bias", "y", "", "b");
            identify(m);
            CHECK(weights_with(MGPU_ROLE_TRAINED) == (large ? 2 : 4));
            CHECK((at("p", 1) == at("y", 1)) == large && (at("p", 2) == at("y", 2)) == large);
            CHECK_(!strcmp(weights->weight[at("y", 2)].name, "b.bias"), "%s",
                   weights->weight[at("y", 2)].name);
            CHECK(large || !strcmp(weights->weight[at("p", 2)].name, "b.bias@a"));
        }
    /* fresh copies have matrices of their own */
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "a.weight", 40, 40, 1);
    matrix(m, "b.weight", 40, 40, 1);
    zeros(m, "a.bias", 40);
    node(m, "Gemm", "x a.weight a.bias", "p", "", "a");
    node(m, "Gemm", "p b.weight a.bias", "y", "", "b");
    identify(m);
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 4);
}

/* dynamo, a fresh normalisation without scale and shift: the constants are stored as statistics,
 * which are none of its parameters. */
static void check_no_affine(void)
{
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "l.weight", 4, 4, 1);
    zeros(m, "n.running_mean", 4);
    ones(m, "n.running_var", 4);
    node(m, "BatchNormalization", "x n.running_var n.running_mean n.running_mean n.running_var",
         "p", "", "n");
    node(m, "MatMul", "p l.weight", "y", "", "l");
    identify(m);
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 1 && weights_with(MGPU_ROLE_STATISTIC) == 2);
    CHECK(at("p", 1) < 0 && at("p", 2) < 0 && at("p", 3) >= 0 && at("p", 4) >= 0);
}

static bool lost(const char *name, bool *bare)
{
    *bare = false;
    for (int i = 0; i < weights->bares; i++)
        if (!strcmp(mgpu_onnx_layer_name(model->all[weights->bare[i]]), name)) {
            *bare = true;
            return weights->lost[i];
        }
    return false;
}

/* Dynamo says of which Gemm it took a bias, and keeps those of MatMul; bounds behind a layer and an
 * addition far behind it are none. */
static void check_lost_biases(void)
{
    bool bare;
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "p.weight", 4, 4, 1);
    matrix(m, "val_1", 4, 4, 2);
    tensor(m, "val_2", 0, 0, 0, 0, 6);
    tensor(m, "q.weight", 2, 4, 4, 3, 0);
    tensor(m, "q.bias", 1, 4, 0, 4, 0);
    tensor(m, "pos", 1, 4, 0, 5, 0);
    node(m, "Gemm", "x p.weight", "a", "p", "p");
    rewritten(m, "RemoveOptionalBiasFromGemm");
    node(m, "Add", "a pos", "b", "", NULL);
    node(m, "Clip", "b val_2", "c", "", NULL);
    node(m, "MatMul", "c q.weight", "d", "q", "q");
    node(m, "Add", "d q.bias", "e", "", NULL);
    node(m, "MatMul", "e val_1", "f", "head", "o");
    node(m, "Clip", "f val_2", "y", "", NULL);
    identify(m);
    CHECK(lost("p", &bare) && bare);
    CHECK(!lost("q", &bare) && !bare);
    CHECK(!lost("head", &bare) && bare);
    CHECK(noted("1 of 3 layers have no bias") && noted("'p' (p.weight)"));
    /* a table that is the head's weight too */
    m = begin("hand");
    matrix(m, "emb", 8, 8, 1);
    node(m, "Gather", "emb x", "a", "", NULL);
    node(m, "MatMul", "a emb", "y", "head", NULL);
    identify(m);
    CHECK(!lost("head", &bare) && bare);
}

/* A normalisation that dynamo folded into a convolution leaves no bias where its shift is zero. */
static void check_folded_norm(void)
{
    bool bare;
    Onnx__ModelProto *m = begin("pytorch");
    Onnx__TensorProto *t = build_tensor("c.weight", MGPU_FLOAT, 3, (const int64_t[]){2, 1, 2});
    build_raw(t, (const float[]){1, 2, 3, 4}, 16);
    build_initializer(m->graph, t);
    tensor(m, "val_1", 0, 0, 0, 0, 6);
    node(m, "Conv", "x c.weight", "getitem", "node_Conv_27", "b");
    rewritten(m, "RemoveOptionalBiasFromConv, FuseBatchNormIntoConv");
    node(m, "Clip", "getitem val_1", "y", "", NULL);
    identify(m);
    CHECK(noted("normalisation folded in") && noted("'node_Conv_27' (c.weight)"));
    CHECK(weights->folded[mgpu_onnx_find_initializer(model, "c.weight")]);
    CHECK(lost("node_Conv_27", &bare) && bare);
}

/* Into a dense layer, which keeps its own names. */
static void check_folded_dense(void)
{
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "l.weight", 2, 2, 1);
    tensor(m, "l.bias", 1, 2, 0, 2, 0);
    node(m, "Gemm", "x l.weight l.bias", "getitem", "node_Gemm_8", "b");
    rewritten(m, "FuseBatchNormIntoGemm");
    node(m, "Relu", "getitem", "y", "", NULL);
    identify(m);
    CHECK(noted("normalisation folded in") && noted("'node_Gemm_8' (l.weight)"));
    CHECK(weights->folded[mgpu_onnx_find_initializer(model, "l.weight")]);
    CHECK(weights->folded[mgpu_onnx_find_initializer(model, "l.bias")]);
}

/* ---- Tied ----------------------------------------------------------------------------------- */

static Onnx__ModelProto *table_and_head(void)
{
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "emb.weight", 8, 5, 1);
    matrix(m, "onnx::MatMul_3", 5, 8, 2);
    const float *table = (const float *)m->graph->initializer[0]->raw_data.data;
    float *head = (float *)m->graph->initializer[1]->raw_data.data;
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 5; j++)
            head[j * 8 + i] = table[i * 5 + j];
    node(m, "Gather", "emb.weight x", "a", "/emb/Gather", NULL);
    node(m, "MatMul", "a onnx::MatMul_3", "y", "/head/MatMul", NULL);
    return m;
}

static void check_tied(void)
{
    const struct mgpu_weights_options apart = {.untie = (const char *[]){"onnx::MatMul_3"},
                                               .untie_count = 1};
    static const char *const pair[][2] = {{"onnx::MatMul_3", "emb.weight"}};
    const struct mgpu_weights_options again = {
        .untie = (const char *[]){"emb.weight"}, .untie_count = 1, .tie = pair, .tie_count = 1};
    int holder = -1;
    identify(table_and_head());
    CHECK(weights->count == 1 && weights->weight[0].holders == 2);
    CHECK(weights->weight[0].holder[0].copy == MGPU_COPY_SAME);
    CHECK(weights->weight[0].holder[1].copy == MGPU_COPY_TRANSPOSED);
    CHECK(mgpu_weights_of_use(weights, 1, 1, &holder) == 0 && holder == 1);
    CHECK(noted("each other's transpose"));
    CHECK_OK(identify_with(NULL, &apart));
    CHECK(weights->count == 2 && at("a", 0) != at("y", 1));
    CHECK(weights->weight[at("y", 1)].holder[0].copy == MGPU_COPY_SAME);
    CHECK_OK(identify_with(NULL, &again));
    CHECK(weights->count == 1 && weights->weight[0].holders == 2);
    CHECK(weights->weight[0].holder[0].copy != weights->weight[0].holder[1].copy);
}

static void check_tie_options(void)
{
    static const char *const ab[][2] = {{"A", "B"}}, *const ac[][2] = {{"A", "C"}},
                             *const no[][2] = {{"A", "Bee"}};
    struct mgpu_weights_options o = {.tie = ab, .tie_count = 1};
    Onnx__ModelProto *m = begin("hand");
    matrix(m, "A", 2, 2, 1);
    matrix(m, "B", 2, 2, 1);
    matrix(m, "C", 2, 3, 1);
    matrix(m, "D", 2, 2, 4);
    build_add(m->graph, "MatMul", "x A", "a");
    build_add(m->graph, "MatMul", "a B", "b");
    build_add(m->graph, "MatMul", "b D", "d");
    build_add(m->graph, "MatMul", "d A", "e");
    build_add(m->graph, "MatMul", "e C", "y");
    identify(m);
    CHECK(at("a", 1) != at("b", 1)); /* four equal numbers may be chance */
    CHECK_OK(identify_with(NULL, &o));
    CHECK(at("a", 1) == at("b", 1) && at("a", 1) == at("e", 1));
    o.tie = ac;
    CHECK_FAILS(identify_with(NULL, &o), "'A' (float [2,2]) and 'C' (float [2,3])");
    o.tie = no;
    CHECK_FAILS(identify_with(NULL, &o), "the nearest name is 'B'");
    static const char *const ad[][2] = {{"A", "D"}};
    o.tie = ad;
    CHECK_FAILS(identify_with(NULL, &o), "'A' and 'D' hold different values");
    o = (struct mgpu_weights_options){.untie = (const char *[]){"A"}, .untie_count = 1};
    CHECK_OK(identify_with(NULL, &o));
    CHECK(at("a", 1) != at("e", 1));
    o.untie = (const char *[]){"D"};
    CHECK_FAILS(identify_with(NULL, &o), "tied with nothing");
}

/* Two of three that were split, by the names that are told, in either order. */
static void check_tie_split(void)
{
    static const char *const pairs[][2] = {
        {"b.w", "b.w@c"}, {"b.w@c", "b.w"}, {"b.w@a", "b.w@c"}, {"b.w@a", "b.w@d"}, {"b.w", "b.w"}};
    for (int i = 0; i < 5; i++) {
        struct mgpu_weights_options o = {.tie = &pairs[i], .tie_count = 1};
        Onnx__ModelProto *m = begin("pytorch");
        matrix(m, "b.w", 4, 4, 1);
        node(m, "MatMul", "x b.w", "p", "", "a");
        node(m, "MatMul", "p b.w", "q", "", "b");
        node(m, "MatMul", "q b.w", "y", "", "c");
        if (i == 3) {
            CHECK_FAILS(identify_with(m, &o), "b.w@d");
            continue;
        }
        CHECK_OK(identify_with(m, &o));
        CHECK((at("q", 1) == at("y", 1)) == (i != 2));
        CHECK((at("p", 1) == at("y", 1)) == (i == 2 || i == 4));
        CHECK_(!strcmp(weights->weight[at("q", 1)].name, "b.w"), "%s",
               weights->weight[at("q", 1)].name);
    }
}

/* ---- Chosen --------------------------------------------------------------------------------- */

static void check_patterns(void)
{
    const char *pattern[1] = {"enc*"};
    struct mgpu_weights_options freeze = {.freeze = pattern, .freeze_count = 1},
                                train = {.train = pattern, .train_count = 1};
    Onnx__ModelProto *m = begin("hand");
    matrix(m, "enc/a.w", 2, 2, 1);
    matrix(m, "head.w", 2, 2, 2);
    tensor(m, "scale", 0, 0, 0, 0, 2);
    build_add(m->graph, "MatMul", "x enc/a.w", "a");
    build_add(m->graph, "MatMul", "a head.w", "b");
    build_add(m->graph, "Mul", "b scale", "y");
    build_save(m, build_path("m.onnx"));
    identify(m);
    CHECK_OK(identify_with(NULL, &freeze));
    CHECK_ROLE("enc/a.w", "frozen");
    CHECK_ROLE("head.w", "trained");
    CHECK_OK(identify_with(NULL, &train));
    CHECK_ROLE("enc/a.w", "trained");
    CHECK_ROLE("head.w", "frozen");
    pattern[0] = "*";
    CHECK_OK(identify_with(NULL, &train));
    CHECK_ROLE("head.w", "trained");
    CHECK_ROLE("scale", "constant");
    pattern[0] = "scale";
    CHECK_OK(identify_with(NULL, &train));
    CHECK_ROLE("scale", "trained");
    CHECK(at("y", 1) >= 0);
    pattern[0] = "haed.w";
    CHECK_FAILS(identify_with(NULL, &freeze), "the nearest name is 'head.w'");
    CHECK_FAILS(identify_with(NULL, &train), "--train haed.w matches no initializer");
}

/* A pattern for a merged tensor means all its parts, one for a part that part alone. */
static void check_merged_patterns(void)
{
    const char *pattern[1] = {"one"};
    struct mgpu_weights_options freeze = {.freeze = pattern, .freeze_count = 1};
    identify(two_norms("pytorch", "bn1", "bn2", true));
    CHECK_OK(identify_with(NULL, &freeze));
    CHECK(weights_with(MGPU_ROLE_FROZEN) == 2 && weights_with(MGPU_ROLE_TRAINED) == 3);
    CHECK(weights_with(MGPU_ROLE_STATISTIC) == 4);
    pattern[0] = "bn2*";
    CHECK_OK(identify_with(NULL, &freeze));
    CHECK(weights->weight[at("y", 1)].role == MGPU_ROLE_FROZEN);
    CHECK(weights->weight[at("b", 1)].role == MGPU_ROLE_TRAINED);
}

/* Numbers in a Constant node are not trained unless they are named. */
static void check_constant_nodes(void)
{
    const char *pattern[1] = {"k"};
    struct mgpu_weights_options train = {.train = pattern, .train_count = 1};
    Onnx__ModelProto *m = begin("hand");
    Onnx__NodeProto *n = build_constant(build_floats("", 2, (const float[]){1, 2}), "k");
    BUILD_APPEND(m->graph->node, m->graph->n_node, n);
    build_add(m->graph, "Mul", "x k", "y");
    identify(m);
    CHECK_ROLE("k", "constant");
    CHECK(weights->count == 0);
    CHECK_OK(identify_with(NULL, &train));
    CHECK_ROLE("k", "trained");
    CHECK(at("y", 1) == 0);
}

/* Nodes that no operator's rules allow are walked past. */
static void check_odd_nodes(void)
{
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "W", 4, 4, 1);
    tensor(m, "one", 1, 1, 0, 0, 1);
    build_add(m->graph, "Identity", "W", "");
    build_add(m->graph, "Mul", "one one one", "a");
    build_add(m->graph, "MatMul", "x a W", "b");
    build_add(m->graph, "Sub", "b", "c");
    build_add(m->graph, "Sub", "c W", "");
    build_add(m->graph, "Loop", "W one one W", "d");
    build_add(m->graph, "MatMul", "W", "y");
    identify(m);
    CHECK_ROLE("W", "trained");
}

/* TensorFlow's LSTM has one bias: the zeros of the other stay, unless B is named. */
static void check_unowned(void)
{
    const char *pattern[1] = {"B*"};
    struct mgpu_weights_options train = {.train = pattern, .train_count = 1};
    for (int tensorflow = 0; tensorflow < 2; tensorflow++) {
        Onnx__ModelProto *m = begin(tensorflow ? "tf2onnx" : "hand");
        int64_t dims[] = {1, 8, 3};
        float w[24] = {1, 2, 3}, b[16] = {1, 2};
        Onnx__TensorProto *t = build_tensor("W", MGPU_FLOAT, 3, dims);
        build_raw(t, w, sizeof w);
        build_initializer(m->graph, t);
        t = build_tensor("R", MGPU_FLOAT, 3, (int64_t[]){1, 8, 2});
        build_raw(t, w, 64);
        build_initializer(m->graph, t);
        t = build_tensor("B", MGPU_FLOAT, 2, (int64_t[]){1, 16});
        build_raw(t, b, sizeof b);
        build_initializer(m->graph, t);
        build_int(build_add(m->graph, "LSTM", "x W R B", "y"), "hidden_size", 2);
        identify(m);
        CHECK(weights->weight[at("y", 3)].frozen_from == (tensorflow ? 8 : -1));
        CHECK(weights->weight[at("y", 1)].frozen_from == -1);
        CHECK_OK(identify_with(NULL, &train));
        CHECK(weights->weight[at("y", 3)].frozen_from == -1);
    }
}

/* ---- --report ------------------------------------------------------------------------------- */

static const char *text_of(struct json_object *o, const char *key)
{
    return json_object_get_string(json_object_object_get(o, key));
}

static void check_report(void)
{
    static const char *const unsupported[] = {"node 'z' (Foo)"};
    identify(two_norms("pytorch", "bn1", "bn2", true));
    struct json_object *report = mgpu_weights_report_json(model, weights, unsupported, 1);
    struct json_object *list = json_object_object_get(report, "initializers");
    struct json_object *one = json_object_array_get_idx(list, 1);
    CHECK(json_object_array_length(list) == 3);
    CHECK(!strcmp(text_of(one, "name"), "one") && !strcmp(text_of(one, "role"), "trained"));
    CHECK(!strcmp(text_of(one, "type"), "float"));
    CHECK(!strcmp(json_object_to_json_string_ext(json_object_object_get(one, "shape"), 0), "[4]"));
    CHECK(json_object_array_length(json_object_object_get(one, "uses")) == 4);
    CHECK(json_object_array_length(json_object_object_get(one, "weights")) == 4);
    CHECK(strstr(text_of(one, "note"), "split into 4"));
    CHECK(json_object_array_length(json_object_object_get(report, "unsupported")) == 1);
    json_object_put(report);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    mgpu_weights_report_text(out, model, weights, unsupported, 1);
    fclose(out);
    CHECK(strstr(text, "one   trained    [4]"));
    CHECK(strstr(text, "5 trained (32 elements), 0 frozen (0 elements), 4 statistic"));
    CHECK(strstr(text, "Not supported:\n  node 'z' (Foo)"));
    free(text);
}

int main(void)
{
    build_begin();
    check_counters();
    check_numbers();
    check_scalars();
    check_places();
    check_tables();
    check_rotary();
    check_of_code();
    check_base_grid();
    check_merged_statistics();
    check_biases();
    check_identities();
    check_folded();
    check_dynamo();
    check_two_names();
    check_no_affine();
    check_lost_biases();
    check_folded_norm();
    check_folded_dense();
    check_tied();
    check_tie_options();
    check_tie_split();
    check_patterns();
    check_merged_patterns();
    check_constant_nodes();
    check_unowned();
    check_odd_nodes();
    check_report();
    forget();
    build_end();
    return test_end();
}
