/* Which initializer is a weight, which a statistic or a constant: each rule by a model of a few
 * nodes, the patterns that choose, and the report. */
#include "importer/report.h"
#include "tests/importer/weight_build.h"

#include <json-c/json.h>

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

static bool is_held(const char *name)
{
    for (int i = 0; i < weights->count; i++)
        if (!strcmp(weights->weight[i].name, name))
            return true;
    return false;
}

/* Bounds that dynamo's optimizer gave a Clip are no scalars of the model's; its own may be. */
static void check_bounds(void)
{
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "l.weight", 4, 4, 1);
    tensor(m, "h_min", 0, 0, 0, 0, -3);
    tensor(m, "h_max", 0, 0, 0, 0, 3);
    tensor(m, "gain_max", 0, 0, 0, 0, 3);
    node(m, "MatMul", "x l.weight", "h", "", "l");
    node(m, "Clip", "h h_min h_max", "c", "", "");
    node(m, "Mul", "c gain_max", "y", "", "");
    identify(m);
    CHECK(is_held("l.weight") && is_held("gain_max") && !is_held("h_min") && !is_held("h_max"));
    CHECK(noted("gain_max") && !noted("h_max"));
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

/* What dynamo lists as a buffer is not trained, nor what spectral norm keeps beside a weight; a
 * number of the code that it lists as nothing is in no file of weights. */
static void check_buffers(void)
{
    static const char key[] = "pkg.torch.export.graph_signature.InputSpec.persistent";
    static const char *const said[][2] = {
        {"l.weight_orig", "None"}, {"pe", "True"}, {"table", "False"}, {"gain", "None"}};
    Onnx__ModelProto *m = begin("pytorch");
    matrix(m, "l.weight_orig", 8, 8, 1);
    matrix(m, "pe", 8, 8, 2);
    matrix(m, "table", 8, 8, 3);
    matrix(m, "l.weight_u", 1, 8, 4);
    tensor(m, "gain", 0, 0, 0, 0, 2);
    tensor(m, "max_val", 0, 0, 0, 0, 6);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        Onnx__ValueInfoProto *v = build_value(said[i][0]);
        BUILD_APPEND(v->metadata_props, v->n_metadata_props, entry(key, said[i][1]));
        BUILD_APPEND(m->graph->value_info, m->graph->n_value_info, v);
    }
    node(m, "MatMul", "x l.weight_orig", "a", "", "l");
    node(m, "Add", "a pe", "b", "", "m");
    node(m, "Mul", "b table", "c", "", "m");
    node(m, "Mul", "c l.weight_u", "d", "", "l");
    node(m, "Mul", "d gain", "e", "", "m");
    node(m, "Mul", "e max_val", "y", "", "m");
    identify(m);
    CHECK(weights_with(MGPU_ROLE_TRAINED) == 1);
    CHECK_ROLE("pe", "constant");
    CHECK_ROLE("l.weight_u", "constant");
    CHECK(is_held("pe") && is_held("gain") && !is_held("table") && !is_held("max_val"));
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
    check_bounds();
    check_of_code();
    check_buffers();
    check_base_grid();
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
