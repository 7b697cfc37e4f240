/* Models inside models, and biases of two halves: where a Keras file has what the graph has, and
 * what is refused because the graph does not tell. The layouts are those that Keras 3.15 and
 * tf_keras 2.21 load (frameworks.txt). */
#include "exporter/checkpoint.h"
#include "exporter/keras_store.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static char line[256], told[1024];
static const char *model, *store, *legacy, *back;

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

static int convert(const char *out, bool by_order)
{
    const struct mgpu_convert_options o = {.by_order = by_order};
    *told = 0;
    return weights_convert(line, model, out, &o);
}

/* The names in the file, in its order, each with a blank behind it. */
static const char *names_in(const char *path)
{
    static char text[1024];
    struct mgpu_checkpoint *c;
    *text = 0;
    if (mgpu_checkpoint_open(&c, path, false) < 0)
        return mgpu_error();
    for (int i = 0; i < c->count; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s%s ", c->tensor[i].group,
                 *c->tensor[i].name == '/' ? "" : ":", strrchr(c->tensor[i].name, '/') + 1);
    }
    mgpu_checkpoint_close(c);
    return text;
}

#define CHECK_NAMES(path, want) CHECK_(!strcmp(names_in(path), want), "%s", names_in(path))

static void check_back(const char *path)
{
    const struct mgpu_convert_options into = {.model = model};
    CHECK_OK(weights_convert(line, path, back, &into));
    CHECK(weights_differ(back, model, 0) == 0);
}

/* ---- Models inside --------------------------------------------------------------------------- */

/* Four layers of one class in a chain. */
static void make_chain(const char *const *names)
{
    char text[2048] = "producer tf2onnx\ninput h0 float N 4\n";
    for (int i = 0; i < 4; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n,
                 "init %s/ReadVariableOp:0 float 4 4 = normal 0.%d\n"
                 "h%d = MatMul(h%d, %s/ReadVariableOp:0)\n",
                 names[i], i + 1, i + 1, i, names[i]);
    }
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, "output h4 float N 4\n");
    make_onnx_file(model, text);
}

#define CHAIN(...) make_chain((const char *const[]){__VA_ARGS__})

/* As Keras 3 exports it, with a number behind each part, and tf.keras. */
#define CHAIN_3(inner)                                                                             \
    CHAIN("model_1/zz_1/Cast", "model_1/" inner "_1/dense_1/Cast",                                 \
          "model_1/" inner "_1/dense_1_1/Cast", "model_1/aa_1/Cast")
#define CHAIN_2(inner)                                                                             \
    CHAIN("model/zz/MatMul", "model/" inner "/dense/MatMul", "model/" inner "/dense_1/MatMul",     \
          "model/aa/MatMul")

static void test_known(const char *class_name)
{
    char want[256];
    CHECK_OK(convert(store, false));
    snprintf(want, sizeof want,
             "layers/dense0 layers/dense_10 layers/%s/layers/dense0 layers/%s/layers/dense_10 ",
             class_name, class_name);
    CHECK_NAMES(store, want);
    CHECK_(strstr(told, "4 layers have no bias in the graph ('model/zz')"), "%s", told);
    check_back(store);
}

static void test_inside(void)
{
    CHAIN_3("sequential");
    test_known("sequential");
    CHECK_OK(convert(legacy, false));
    CHECK_NAMES(legacy, "zz:kernel:0 sequential:kernel:0 sequential:kernel:0 aa:kernel:0 ");
    CHECK_(strstr(told, "'sequential' is a model inside"), "%s", told);
    check_back(legacy);
    CHAIN_3("functional_5"); /* whatever number it got */
    test_known("functional");
    CHAIN_2("model_3"); /* tf.keras's name of it */
    test_known("functional");
    CHAIN("StatefulPartitionedCall/model_1/zz_1/Cast",
          "StatefulPartitionedCall/model_1/sequential_1/dense_1/Cast",
          "StatefulPartitionedCall/model_1/sequential_1/dense_1_1/Cast",
          "StatefulPartitionedCall/model_1/aa_1/Cast"); /* by way of a SavedModel */
    test_known("sequential");

    CHAIN_3("encoder");
    CHECK_FAILS(convert(store, false), "of which class 'encoder' is");
    CHECK_FAILS(convert(store, true), "give --like FILE");
    CHECK_FAILS(convert(legacy, false), "'encoder' is a model or layer with others inside");
    CHECK_FAILS(convert(legacy, true), "give --like FILE");

    CHAIN_2("encoder"); /* may be the layer's own name */
    CHECK_OK(convert(legacy, false));
    CHECK_NAMES(legacy, "zz:kernel:0 encoder/dense:kernel:0 encoder/dense_1:kernel:0 aa:kernel:0 ");
    CHECK_(strstr(told, "names with '/' ('model/encoder/dense_1')"), "%s", told);
}

/* Two branches: an order that Keras would not notice to be another is never guessed. */
static void make_branches(int right)
{
    char text[1024];
    snprintf(text, sizeof text,
             "producer tf2onnx\ninput x float N 4\n"
             "init model/left/MatMul/ReadVariableOp:0 float 4 2 = normal 1\n"
             "init model/right/MatMul/ReadVariableOp:0 float 4 %d = normal 2\n"
             "a = MatMul(x, model/left/MatMul/ReadVariableOp:0)\n"
             "b = MatMul(x, model/right/MatMul/ReadVariableOp:0)\n"
             "y = Concat(a, b) axis=1\noutput y float N %d\n",
             right, 2 + right);
    make_onnx_file(model, text);
}

static void test_branches(void)
{
    static const char *const what = "lists 'model/left' or 'model/right' first: give --like FILE";
    const char *const files[] = {legacy, store};
    for (int i = 0; i < 2; i++) {
        make_branches(2);
        CHECK_FAILS(convert(files[i], false), what);
        CHECK_FAILS(convert(files[i], true), what);
        make_branches(3);
        CHECK_FAILS(convert(files[i], false), what);
        CHECK_OK(convert(files[i], true));
        CHECK_(strstr(told, "it is written in the graph's order, and Keras refuses"), "%s", told);
    }
}

/* A run that saves both layouts follows a file of each. */
static void test_like(void)
{
    const char *saved = tiny_path("run.h5"), *saved_store = tiny_path("run.weights.h5");
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    CHAIN_3("sequential");
    CHECK_OK(convert(legacy, false));
    CHECK_OK(convert(store, false));
    o.data = tiny_list(tiny_noise("h0", 1, 2, (int64_t[]){6, 4}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 4}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 3;
    o.like = tiny_list(legacy, store, NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_check_save(t, saved));
    CHECK_OK(mgpu_save(t, saved));
    CHECK_OK(mgpu_check_save(t, saved_store));
    CHECK_OK(mgpu_save(t, saved_store));
    const char *named = tiny_path("run.npz");
    *told = 0;
    CHECK_OK(mgpu_check_save(t, named));
    CHECK_(strstr(told, "names and layouts in a .npz are the model's own"), "%s", told);
    *told = 0; /* once is enough */
    CHECK_OK(mgpu_save(t, named));
    CHECK_(!*told, "%s", told);
    mgpu_trainer_free(t);
    CHECK(weights_differ(saved, legacy, 0) == 0 && weights_differ(saved_store, store, 0) == 0);
    o.like = tiny_list(store, NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_FAILS(mgpu_check_save(t, saved), "a file of the same layout must be followed");
    mgpu_trainer_free(t);
}

/* The legacy layout has statistics at the end of a model inside, and what is frozen with them. */
static void test_statistics(void)
{
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2 3 3\n"
                          "init model/model/bn/ReadVariableOp:0 float 2 = 1 2\n"
                          "init model/model/bn/ReadVariableOp_1:0 float 2 = 3 4\n"
                          "init model/model/bn/FusedBatchNormV3/ReadVariableOp:0 float 2 = 5 6\n"
                          "init model/model/bn/FusedBatchNormV3/ReadVariableOp_1:0 float 2 = 7 8\n"
                          "init model/model/conv/Conv2D/ReadVariableOp:0 float 2 2 3 3 = normal 1\n"
                          "a = BatchNormalization(x, model/model/bn/ReadVariableOp:0, "
                          "model/model/bn/ReadVariableOp_1:0, "
                          "model/model/bn/FusedBatchNormV3/ReadVariableOp:0, "
                          "model/model/bn/FusedBatchNormV3/ReadVariableOp_1:0)\n"
                          "y = Conv(a, model/model/conv/Conv2D/ReadVariableOp:0)\n"
                          "output y float N 2 1 1\n");
    CHECK_FAILS(convert(legacy, true), "which of its layers are frozen");
    CHECK_OK(convert(store, false));
    check_back(store);
}

static void test_folded(void)
{
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2 3 3\n"
                          "init model/conv/BiasAdd_weights_fused_bn float 2 2 3 3 = normal 1\n"
                          "init model/conv/BiasAdd_bias_fused_bn float 2 = 1 2\n"
                          "y = Conv(x, model/conv/BiasAdd_weights_fused_bn, "
                          "model/conv/BiasAdd_bias_fused_bn)\noutput y float N 2 1 1\n");
    CHECK_FAILS(convert(store, false),
                "folded a batch normalisation into 'model/conv/BiasAdd_weights");
    CHECK_FAILS(convert(legacy, true), "only safetensors, npz and ONNX take such weights");
    CHECK_OK(convert(tiny_path("folded.npz"), false));
}

/* Keras 3's separable convolution, whose pointwise kernel and the normalisation are one. */
static void test_merged(void)
{
    make_onnx_file(model,
                   "producer tf2onnx\ninput x float N 2 3 3\n"
                   "init model_1/s_1/separable_conv2d/merged_input:0 float 2 2 1 1 = normal 1\n"
                   "init model_1/bn_1/batchnorm/sub:0 float 2 = 1 2\n"
                   "init const_fold_opt__9 float 2 1 1 1 = 1 2\n"
                   "d = Conv(x, const_fold_opt__9) group=2 "
                   "name=\"model_1/s_1/separable_conv2d/depthwise\"\n"
                   "y = Conv(d, model_1/s_1/separable_conv2d/merged_input:0, "
                   "model_1/bn_1/batchnorm/sub:0)\noutput y float N 2 3 3\n");
    CHECK_FAILS(convert(legacy, true), "folded a batch normalisation into");
}

/* What an exporter took away is said where a file has it. */
static void test_reasons(void)
{
    static const char *const norm[] = {"bn", NULL}, *const dense[] = {"dense", NULL};
    static const struct weights_entry norms[] = {{"bn", "bn/gamma:0", 1, {2}, 1},
                                                 {"bn", "bn/beta:0", 1, {2}, 1},
                                                 {"bn", "bn/moving_mean:0", 1, {2}, 1},
                                                 {"bn", "bn/moving_variance:0", 1, {2}, 1}};
    static const struct weights_entry denses[] = {{"dense", "dense/kernel:0", 2, {2, 2}, 1},
                                                  {"dense", "dense/bias:0", 1, {2}, 0}};
    const struct mgpu_convert_options into = {.model = model};
    weights_legacy(legacy, norm, norms, 4); /* into the model of test_folded */
    CHECK_FAILS(weights_convert(line, legacy, back, &into),
                "'bn/gamma:0' [2] has no place: the exporter folded batch normalisations");
    CHECK_(!strstr(mgpu_error(), "training form"), "%s", mgpu_error()); /* Keras has none */
    make_onnx_file(model,
                   "producer tf2onnx\ninput x float N 2\n"
                   "init model/dense/MatMul/ReadVariableOp:0 float 2 2 = 1 2 3 4\n"
                   "y = MatMul(x, model/dense/MatMul/ReadVariableOp:0)\noutput y float N 2\n");
    weights_legacy(legacy, dense, denses, 2);
    CHECK_FAILS(weights_convert(line, legacy, back, &into), "mgpu-train --add-bias");
}

/* A slope that height and width share: Keras's [1,1,C] is the exporter's. */
static void test_slope(void)
{
    const struct mgpu_convert_options none = {0};
    make_onnx_file(model, "producer tf2onnx\ninput x float N 3 3 2\n"
                          "init model/p_re_lu/Neg:0 float 1 1 2 = -1 -2\n"
                          "a = Neg(x)\nb = Relu(a)\n"
                          "c = Mul(b, model/p_re_lu/Neg:0)\nd = Relu(x)\n"
                          "y = Add(c, d)\noutput y float N 3 3 2\n");
    CHECK_OK(weights_convert(line, model, legacy, &none));
    CHECK(weights_hold(legacy, "p_re_lu/alpha:0", "[1,1,2]", (const double[]){1, 2}));
    check_back(legacy);
    CHECK_OK(weights_convert(line, model, store, &none));
    CHECK(weights_hold(store, "/layers/p_re_lu/vars/0", "[1,1,2]", (const double[]){1, 2}));
    check_back(store);
}

/* An embedding that is the last layer's kernel, turned: in Keras one layer with one variable. */
static void test_reversible(void)
{
    char text[2048], table[256] = "", turned[256] = "";
    for (int i = 0; i < 32; i++) {
        snprintf(table + strlen(table), sizeof table - strlen(table), " %d", i);
        snprintf(turned + strlen(turned), sizeof turned - strlen(turned), " %d",
                 i % 16 * 2 + i / 16);
    }
    snprintf(text, sizeof text,
             "producer tf2onnx\ninput x int64 N 2\n"
             "init functional_1/reversible_embedding_1/GatherV2/ReadVariableOp:0 float 16 2 =%s\n"
             "init functional_1/reversible_embedding_3/transpose:0 float 2 16 =%s\n"
             "init functional_1/dense_1/Cast/ReadVariableOp:0 float 2 2 = 7 8 9 10\n"
             "a = Gather(functional_1/reversible_embedding_1/GatherV2/ReadVariableOp:0, x)\n"
             "b = MatMul(a, functional_1/dense_1/Cast/ReadVariableOp:0)\n"
             "y = MatMul(b, functional_1/reversible_embedding_3/transpose:0)\n"
             "output y float N 2 16\n",
             table, turned);
    make_onnx_file(model, text);
    CHECK_OK(convert(legacy, false));
    CHECK_NAMES(legacy, "reversible_embedding:embeddings:0 dense:kernel:0 ");
    check_back(legacy);
    CHECK_OK(convert(store, false));
    CHECK_NAMES(store, "layers/dense0 layers/reversible_embedding0 ");
    check_back(store);
}

/* A shift that the exporter turned, whose name is gone: [1,C,1] of Keras's [C]. */
static void test_shift(void)
{
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2 3\n"
                          "init s_1/layer_normalization_1/Reshape:0 float 1 2 1 = 1 2\n"
                          "init const_fold_opt__7 float 1 2 1 = 3 4\n"
                          "m = ReduceMean(x) axes=[1] "
                          "name=\"s_1/layer_normalization_1/moments/mean\"\n"
                          "n = Neg(m) name=\"s_1/layer_normalization_1/Neg\"\n"
                          "s = Mul(n, s_1/layer_normalization_1/Reshape:0) "
                          "name=\"s_1/layer_normalization_1/mul_1\"\n"
                          "a = Add(s, const_fold_opt__7) "
                          "name=\"s_1/layer_normalization_1/add_1\"\n"
                          "b = Mul(x, s_1/layer_normalization_1/Reshape:0) "
                          "name=\"s_1/layer_normalization_1/mul_2\"\n"
                          "y = Add(b, a) name=\"s_1/layer_normalization_1/add_2\"\n"
                          "output y float N 2 3\n");
    CHECK_OK(convert(store, false));
    CHECK_NAMES(store, "layers/layer_normalization0 layers/layer_normalization1 ");
    CHECK(weights_hold(store, "/layers/layer_normalization/vars/1", "[2]", (const double[]){3, 4}));
    check_back(store);
    CHECK_OK(convert(legacy, false));
    check_back(legacy);
}

/* einsum's kernel of three axes, which the exporter made a matrix. */
static void test_joined(void)
{
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2\n"
                          "init s_1/einsum_dense_1/Reshape:0 float 2 6 = normal 1\n"
                          "y = MatMul(x, s_1/einsum_dense_1/Reshape:0) "
                          "name=\"s_1/einsum_dense_1/MatMul\"\noutput y float N 6\n");
    CHECK_FAILS(convert(legacy, false), "of what shape 's_1/einsum_dense_1/Reshape:0' is in Keras");
}

/* Groups that are called as what holds them: a cell, tf_keras's attention. */
static void test_groups(void)
{
    static const char *const names[] = {"layers/rnn/cell/vars/0", "layers/rnn/cell/vars/1",
                                        "layers/rnn/cell/vars/2",
                                        "layers/multi_head_attention/_key_dense/vars/0",
                                        "layers/multi_head_attention/_key_dense/vars/1"};
    static const char *const leaves[] = {"kernel", "bias", "kernel", "recurrent_kernel", "bias"};
    struct mgpu_array_list list = {0};
    struct mgpu_checkpoint *c;
    for (int i = 0; i < 5; i++)
        CHECK_OK(mgpu_array_init(&mgpu_array_list_add(&list, names[i])->array, MGPU_FLOAT, 2,
                                 (int64_t[]){3, 3}, names[i]));
    CHECK_OK(mgpu_keras_store_write(store, list.item, list.count));
    mgpu_array_list_free(&list);
    CHECK_OK(mgpu_checkpoint_open(&c, store, false));
    for (int i = 0; i < 5; i++)
        CHECK_(!strcmp(c->tensor[i].leaf, leaves[i]), "%s: %s", c->tensor[i].name,
               c->tensor[i].leaf);
    mgpu_checkpoint_close(c);
}

/* A run has let go of what the file holds of its weights when it looks whether a bias is zero. */
static void test_trained_lstm(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    make_onnx_file(model, "producer tf2onnx\ninput x float N 3 1\n"
                          "init W__1 float 1 4 1 = 1 2 3 4\ninit R__1 float 1 4 1 = 5 6 7 8\n"
                          "init B__1 float 1 8 = 1 2 3 4 0 0 0 0\ninit axis int64 1 = 0\n"
                          "s = Transpose(x) perm=[1, 0, 2]\n"
                          "all, last = LSTM(s, W__1, R__1, B__1) hidden_size=1\n"
                          "y = Squeeze(last, axis)\noutput y float N 1\n");
    o.data = tiny_list(tiny_noise("x", 1, 3, (int64_t[]){6, 3, 1}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 1}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 3;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_check_save(t, store));
    CHECK_OK(mgpu_save(t, store));
    CHECK_NAMES(store, "layers/lstm/cell0 layers/lstm/cell1 layers/lstm/cell2 ");
    mgpu_trainer_free(t);
}

/* What a file has no place for is told before training: here Keras's LSTM without a bias, of which
 * the exporter made zeros, in what is saved at the end and after epochs. */
static void test_before(void)
{
    static const char *const layers[] = {"lstm", NULL};
    static const struct weights_entry weights[] = {
        {"lstm", "lstm/lstm_cell/kernel:0", 2, {2, 4}, 1},
        {"lstm", "lstm/lstm_cell/recurrent_kernel:0", 2, {1, 4}, 1}};
    const char *saved = tiny_path("l.h5");
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    make_onnx_file(model, "producer tf2onnx\ninput x float N 3 2\n"
                          "init W__1 float 1 4 2 = normal 1\ninit R__1 float 1 4 1 = 5 6 7 8\n"
                          "init B__1 float 1 8 = 0\ninit axis int64 1 = 0\n"
                          "s = Transpose(x) perm=[1, 0, 2]\n"
                          "all, last = LSTM(s, W__1, R__1, B__1) hidden_size=1\n"
                          "y = Squeeze(last, axis)\noutput y float N 1\n");
    weights_legacy(legacy, layers, weights, 2);
    o.data = tiny_list(tiny_noise("x", 1, 3, (int64_t[]){6, 3, 2}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 1}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 3;
    o.like = tiny_list(legacy, NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_FAILS(mgpu_check_save(t, saved), "'B__1' is trained, and");
    mgpu_trainer_free(t);
    o.checkpoint = tiny_path("l-{epoch}.h5");
    o.weights_only = true;
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "has no bias: train with --freeze 'B__1'");
    o.freeze = tiny_list("B__1", NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_check_save(t, saved));
    CHECK_OK(mgpu_save(t, saved));
    mgpu_trainer_free(t);
}

/* PyTorch's attention without biases: two products under one name are no Dense. */
static void test_two_kernels(void)
{
    make_onnx_file(model,
                   "producer pytorch\ninput x float N 2\n"
                   "init onnx::MatMul_9 float 2 6 = 1 2 3 4 5 6 7 8 9 10 11 12\n"
                   "init onnx::MatMul_8 float 2 2 = 1 2 3 4\n"
                   "h = MatMul(x, onnx::MatMul_9) name=\"/at/MatMul\"\n"
                   "q, k, v = Split(h) axis=1\ns = Mul(q, k)\n"
                   "p = Softmax(s) name=\"/at/Softmax\"\nt = Mul(p, v)\n"
                   "y = MatMul(t, onnx::MatMul_8) name=\"/at/MatMul_1\"\noutput y float N 2\n");
    CHECK_FAILS(convert(store, false), "of which class 'at' is, the graph does not tell");
}

/* ---- Two halves of a bias -------------------------------------------------------------------- */

/* Gates of ONNX: i o f c. One unit, so that each number is a gate's. */
static void make_lstm(const char *path, const char *bias)
{
    char text[1024];
    snprintf(text, sizeof text,
             "producer pytorch\ninput x float 3 N 1\n"
             "init onnx::LSTM_1 float 1 4 1 = 1 2 3 4\n"
             "init onnx::LSTM_2 float 1 4 1 = 5 6 7 8\n"
             "init onnx::LSTM_3 float 1 8 = %s\n"
             "y = LSTM(x, onnx::LSTM_1, onnx::LSTM_2, onnx::LSTM_3) hidden_size=1 "
             "name=\"/lstm/LSTM\"\noutput y float 3 1 N 1\n",
             bias);
    make_onnx_file(path, text);
}

static void check_tensor(const char *path, const char *name, double a, double b, double c, double d)
{
    struct mgpu_checkpoint *f;
    struct mgpu_array got = {0};
    CHECK_OK(mgpu_checkpoint_open(&f, path, false));
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->tensor[i].name, name))
            CHECK_OK(mgpu_checkpoint_load(f, i, &got));
    const float *v = got.data;
    CHECK_(v && v[0] == (float)a && v[1] == (float)b && v[2] == (float)c && v[3] == (float)d, "%s",
           name);
    mgpu_array_free(&got);
    mgpu_checkpoint_close(f);
}

static void test_halves(void)
{
    const struct mgpu_convert_options into = {.model = tiny_path("blank.onnx")};
    const char *torch = tiny_path("lstm.safetensors");
    make_lstm(into.model, ".25");
    make_lstm(model, "1 2 3 4 10 20 30 40");
    CHECK_OK(convert(torch, false)); /* i f g o, two biases */
    check_tensor(torch, "lstm.weight_ih_l0", 1, 3, 4, 2);
    check_tensor(torch, "lstm.weight_hh_l0", 5, 7, 8, 6);
    check_tensor(torch, "lstm.bias_ih_l0", 1, 3, 4, 2);
    check_tensor(torch, "lstm.bias_hh_l0", 10, 30, 40, 20);
    CHECK_OK(weights_convert(line, torch, back, &into));
    CHECK(weights_differ(back, model, 0) == 0);

    const struct mgpu_convert_options checked = {.verify = true}; /* the sum is what is meant */
    CHECK_OK(weights_convert(line, model, store, &checked));
    CHECK_OK(convert(store, false)); /* i f c o, one */
    check_tensor(store, "/layers/lstm/cell/vars/2", 11, 33, 44, 22);
    CHECK_(strstr(told, "1 recurrent bias") && strstr(told, "exact"), "%s", told);
    CHECK_OK(weights_convert(line, store, back, &into));
    make_lstm(model, "11 22 33 44 0 0 0 0");
    CHECK(weights_differ(back, model, 0) == 0);

    make_lstm(model, "1 2 3 4 1e-9 20 30 40");
    CHECK_OK(convert(store, false));
    CHECK_(strstr(told, "rounded"), "%s", told);
}

int main(void)
{
    tiny_begin();
    mgpu_set_note(listen, NULL);
    model = tiny_path("model.onnx");
    store = tiny_path("out.weights.h5");
    legacy = tiny_path("out.h5");
    back = tiny_path("back.onnx");
    test_inside();
    test_branches();
    test_like();
    test_statistics();
    test_folded();
    test_reasons();
    test_merged();
    test_slope();
    test_reversible();
    test_shift();
    test_joined();
    test_groups();
    test_trained_lstm();
    test_before();
    test_two_kernels();
    test_halves();
    tiny_end();
    return test_end();
}
