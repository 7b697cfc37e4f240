/* Which uses are of one weight: tensors that were stored once for several, and weights that are
 * tied, each rule by a model of a few nodes. */
#include "tests/importer/weight_build.h"

/* ---- Split and shared ----------------------------------------------------------------------- */

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

/* The same, where they are stored as those of a normalisation that has them: dynamo's record of the
 * call tells. */
static void check_recorded(void)
{
    static const struct {
        const char *call;
        bool own; /* of scale and shift, the one that was given */
    } rows[] = {
        {"layer_norm.default](args = (%x, [4, (2, 3)], None, None, 1e-05), kwargs = {})", false},
        {"layer_norm.default](args = (%x, [4], %p_n_weight, None, 1e-05), kwargs = {})", true},
        {"instance_norm.default](args = (%x, None, None, None, None, True), kwargs = {})", false},
        {"_native_batch_norm_legit_no_training.default](args = (%x, None, None), ", false},
        {"layer_norm.default](args = (%x", true},
        {"relu.default](args = (%x, None, None, None, None), kwargs = {})", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Onnx__ModelProto *m = begin("pytorch");
        ones(m, "m.weight", 4);
        node(m, "LayerNormalization", "x m.weight", "p", "", "n");
        note_entry(m->graph->node[0], "pkg.torch.onnx.fx_node",
                   mgpu_arena_format(build_arena,
                                     "%%n : [num_users=1] = "
                                     "call_function[target=torch.ops.aten.%s",
                                     rows[i].call));
        node(m, "LayerNormalization", "p m.weight", "y", "", "m");
        identify(m);
        CHECK_((at("p", 1) >= 0) == rows[i].own && at("y", 1) >= 0, "%s", rows[i].call);
    }
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

int main(void)
{
    build_begin();
    check_merged_statistics();
    check_biases();
    check_identities();
    check_folded();
    check_dynamo();
    check_two_names();
    check_no_affine();
    check_recorded();
    check_lost_biases();
    check_folded_norm();
    check_folded_dense();
    check_tied();
    check_tie_options();
    check_tie_split();
    forget();
    build_end();
    return test_end();
}
