/* Names that Keras 3 gives: files that it wrote (make_named.py), of models whose exports call their
 * layers in several ways, and of a second model of the same program. */
#include "exporter/checkpoint.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <string.h>

#define FOLDER "tests/convert/files/named/"

static char line[256], told[1024];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

/* Weights of two files of one layout are compared in their order. */
static int next_weight(const struct mgpu_checkpoint *c, int from)
{
    while (from < c->count && (!c->tensor[from].rank || !mgpu_is_float(c->tensor[from].type)))
        from++;
    return from;
}

static bool same_tensor(const struct mgpu_checkpoint *a, int i, const struct mgpu_checkpoint *b,
                        int k)
{
    struct mgpu_array x, y;
    if (mgpu_checkpoint_load(a, i, &x) < 0)
        return false;
    if (mgpu_checkpoint_load(b, k, &y) < 0) {
        mgpu_array_free(&x);
        return false;
    }
    bool same = x.type == y.type && x.rank == y.rank &&
                !memcmp(x.dims, y.dims, (size_t)x.rank * sizeof *x.dims) &&
                !memcmp(x.data, y.data, (size_t)mgpu_array_count(&x) * mgpu_dtype_size(x.type));
    mgpu_array_free(&x);
    mgpu_array_free(&y);
    return same;
}

static void check_same(const char *got, const char *want, const char *file)
{
    struct mgpu_checkpoint *a, *b;
    CHECK_OK(mgpu_checkpoint_open(&a, got, false));
    CHECK_OK(mgpu_checkpoint_open(&b, want, false));
    int i = next_weight(a, 0), k = next_weight(b, 0);
    for (; i < a->count && k < b->count; i = next_weight(a, i + 1), k = next_weight(b, k + 1))
        CHECK_(same_tensor(a, i, b, k), "%s: %s", file, a->tensor[i].name);
    CHECK(i == a->count && k == b->count);
    mgpu_checkpoint_close(a);
    mgpu_checkpoint_close(b);
}

static void check_file(const char *name, const char *file)
{
    char model[256], want[256], in[256];
    const char *out = tiny_path("out.onnx"), *got = tiny_path("got.npz"),
               *wanted = tiny_path("wanted.npz");
    bool second = !strncmp(file, "second", 6);
    struct mgpu_convert_options o = {.model = model};
    snprintf(model, sizeof model, FOLDER "%s/model.onnx", name);
    snprintf(want, sizeof want, FOLDER "%s/want.onnx", name);
    snprintf(in, sizeof in, FOLDER "%s/%s", name, file);
    if (second)
        CHECK_FAILS(weights_convert(line, in, out, &o), "and so on: --by-order takes them so)");
    o.by_order = second;
    CHECK_OK(weights_convert(line, in, out, &o));
    CHECK_(!second || strstr(line, "counted on: '"), "%s", line);
    const struct mgpu_convert_options none = {0};
    CHECK_OK(weights_convert(line, out, got, &none));
    CHECK_OK(weights_convert(line, want, wanted, &none));
    CHECK_(weights_differ(got, wanted, 0) == 0 && weights_differ(wanted, got, 0) == 0, "%s", in);
}

static void test_files(void)
{
    static const char *const all[] = {
        "towers",   "transposed",  "cells",          "separable",  "mixed",
        "masked",   "no_bias",     "reversible",     "depths",     "spectral",
        "two_ways", "one_channel", "one_channel_1d", "old_layers", "old_attention",
        "old_back", "old_cells",   "old_masked",     "masked_gru", "own"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_file(all[i], "first.h5");
        check_file(all[i], "first.weights.h5");
        if (i < 4) {
            check_file(all[i], "second.h5");
            check_file(all[i], "second.weights.h5");
        }
    }
    check_file("attention", "first.h5");
    check_file("conv_lstm", "first.h5");
    check_file("block", "first.keras");
    check_file("block", "first.weights.h5");
    check_file("frames", "first.h5");
    check_file("old_block", "first.keras");
    check_file("old_block", "first.weights.h5");
}

/* What is written, with a file to follow or without (of ONNX's), is what Keras wrote. */
static void check_written(const char *name, const char *file, const char *like)
{
    char want[256], model[256], followed[256];
    const char *out = tiny_path(file);
    struct mgpu_convert_options o = {.like = like ? followed : NULL};
    snprintf(model, sizeof model, FOLDER "%s/want.onnx", name);
    snprintf(want, sizeof want, FOLDER "%s/%s", name, file);
    snprintf(followed, sizeof followed, FOLDER "%s/%s", name, like ? like : "");
    CHECK_OK(weights_convert(line, model, out, &o));
    check_same(out, want, want);
}

static void test_written(void)
{
    static const char *const files[] = {"first.h5", "first.weights.h5"};
    for (int i = 0; i < 2; i++) {
        check_written("separable", files[i], NULL);
        check_written("reversible", files[i], NULL);
        check_written("one_channel", files[i], NULL);
        check_written("one_channel_1d", files[i], files[i]);
        check_written("old_layers", files[i], files[i]);
        check_written("depths", files[i], files[i]);
        check_written("spectral", files[i], files[i]);
        check_written("old_attention", files[i], files[i]);
        check_written("old_back", files[i], NULL);
        check_written("old_cells", files[i], files[i]);
        check_written("old_masked", files[i], files[i]);
        check_written("masked_gru", files[i], files[i]);
        check_written("own", files[i], files[i]);
    }
    check_written("cells", "first.h5", "first.keras");
    check_written("block", "first.weights.h5", "first.weights.h5");
    check_written("frames", "first.h5", "first.h5");
    check_written("old_block", "first.weights.h5", "first.weights.h5");
}

/* ---- What is asked for ----------------------------------------------------------------------- */

static void test_asked(void)
{
    const char *h5 = tiny_path("asked.h5"), *store = tiny_path("asked.weights.h5");
    struct mgpu_convert_options o = {0}, like = {.like = FOLDER "no_bias/first.h5"};
    struct mgpu_convert_options order = {.by_order = true};
    CHECK_FAILS(weights_convert(line, FOLDER "towers/model.onnx", h5, &o),
                "does not tell whether Keras lists 'functional/dense_");
    CHECK_FAILS(weights_convert(line, FOLDER "towers/model.onnx", h5, &order),
                "does not tell whether Keras lists 'functional/dense_");
    CHECK_FAILS(weights_convert(line, FOLDER "no_bias/model.onnx", h5, &o),
                "does not tell whether 'sequential/lstm' has a bias");
    CHECK_OK(weights_convert(line, FOLDER "no_bias/want.onnx", h5, &like));
    CHECK(weights_differ(h5, like.like, 0) == 0);
    CHECK_FAILS(weights_convert(line, FOLDER "depths/model.onnx", h5, &order), "stands at several");
    CHECK_FAILS(weights_convert(line, FOLDER "depths/model.onnx", store, &o), "stands at several");
    like.like = FOLDER "spectral/first.keras";
    CHECK_FAILS(weights_convert(line, FOLDER "spectral/model.onnx", h5, &like),
                "does not say where '/layers/spectral_normalization/vars/0' stands");
    make_onnx_file(
        tiny_path("each.onnx"),
        "producer tf2onnx\ninput x float N 2 2\n"
        "init sequential_1/time_distributed_1/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
        "init sequential_1/dense_1/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
        "a = MatMul(x, sequential_1/time_distributed_1/Cast/ReadVariableOp:0)\n"
        "y = MatMul(a, sequential_1/dense_1/Cast/ReadVariableOp:0)\n"
        "output y float N 2 2\n");
    CHECK_FAILS(weights_convert(line, tiny_path("each.onnx"), store, &o),
                "of which class 'sequential/time_distributed' is");
    CHECK_OK(weights_convert(line, tiny_path("each.onnx"), h5, &o));
}

/* Two towers of one shape in a file whose names say nothing. */
static void test_towers(void)
{
    static const char *const layers[] = {"left", "right", NULL};
    static const struct weights_entry entries[] = {{"left", "left/kernel:0", 2, {2, 2}, 1},
                                                   {"right", "right/kernel:0", 2, {2, 2}, 5}};
    const char *model = tiny_path("two.onnx"), *file = tiny_path("two.h5");
    const struct mgpu_convert_options o = {.model = model, .by_order = true};
    static const char *const text =
        "producer tf2onnx\ninput x float N 2\n"
        "init functional_1/dense_1/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
        "init functional_1/dense_1_2/Cast/ReadVariableOp:0 float 2 2 = normal 2\n"
        "b = MatMul(x, functional_1/dense_1_2/Cast/ReadVariableOp:0)\n"
        "a = MatMul(%s, functional_1/dense_1/Cast/ReadVariableOp:0)\n"
        "y = Add(a, b)\noutput y float N 2\n";
    char made[1024];
    snprintf(made, sizeof made, text, "x");
    make_onnx_file(model, made);
    weights_legacy(file, layers, entries, 2);
    CHECK_FAILS(weights_convert(line, file, tiny_path("two.out.onnx"), &o),
                "could be functional/dense_1, functional/dense");
    snprintf(made, sizeof made, text, "b"); /* one behind the other */
    make_onnx_file(model, made);
    CHECK_OK(weights_convert(line, file, tiny_path("two.out.onnx"), &o));
}

/* A model of one's own class may list its layers in another order than it runs them. */
static void test_own(void)
{
    static const char *const text = "producer tf2onnx\ninput x float N 2\n"
                                    "init mine_1/%s/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
                                    "init mine_1/%s/Cast/ReadVariableOp:0 float 2 2 = normal 2\n"
                                    "a = MatMul(x, mine_1/%s/Cast/ReadVariableOp:0)\n"
                                    "y = MatMul(a, mine_1/%s/Cast/ReadVariableOp:0)\n"
                                    "output y float N 2\n";
    const char *model = tiny_path("own.onnx"), *h5 = tiny_path("own.h5");
    const struct mgpu_convert_options o = {0};
    char made[1024];
    snprintf(made, sizeof made, text, "dense_1_2", "dense_1", "dense_1_2", "dense_1");
    make_onnx_file(model, made);
    CHECK_FAILS(weights_convert(line, model, h5, &o), "does not tell whether Keras lists");
    snprintf(made, sizeof made, text, "body_1", "head_1", "body_1", "head_1");
    make_onnx_file(model, made);
    CHECK_OK(weights_convert(line, model, h5, &o));
    CHECK_(strstr(told, "'mine' is taken for a model of Keras's own"), "%s", told);
}

/* tanh(x @ w + b) of a layer of one's own is no Dense, though it multiplies and adds. */
static void test_own_layer(void)
{
    static const char *const layers[] = {"pool", "dense", NULL};
    static const struct weights_entry entries[] = {{"pool", "pool/att_bias:0", 1, {2}, 1},
                                                   {"pool", "pool/att_weight:0", 2, {2, 2}, 3},
                                                   {"dense", "dense/kernel:0", 2, {2, 2}, 7}};
    const char *model = tiny_path("pool.onnx"), *file = tiny_path("pool.h5"),
               *out = tiny_path("pool.out.onnx"), *again = tiny_path("pool.again.h5");
    const struct mgpu_convert_options into = {.model = model}, none = {0}, like = {.like = file};
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2\n"
                          "init s_1/pool_1/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
                          "init s_1/pool_1/add/ReadVariableOp:0 float 2 = 1 2\n"
                          "init s_1/dense_1/Cast/ReadVariableOp:0 float 2 2 = normal 2\n"
                          "m = MatMul(x, s_1/pool_1/Cast/ReadVariableOp:0) "
                          "name=\"s_1/pool_1/MatMul\"\n"
                          "a = Add(m, s_1/pool_1/add/ReadVariableOp:0) name=\"s_1/pool_1/add\"\n"
                          "h = Tanh(a)\n"
                          "y = MatMul(h, s_1/dense_1/Cast/ReadVariableOp:0)\noutput y float N 2\n");
    weights_legacy(file, layers, entries, 3);
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_(!strcmp(line, "3 of 3 tensors\n"), "%s", line);
    CHECK_FAILS(weights_convert(line, out, again, &none), "of a class of its own");
    CHECK_FAILS(weights_convert(line, out, tiny_path("pool.weights.h5"), &none),
                "of which class 's/pool' is");
    CHECK_OK(weights_convert(line, out, again, &like));
    CHECK(weights_differ(again, file, 0) == 0);
}

/* A transposed convolution of one dimension, whose kernel got an axis and whose bias lost its name;
 * the exporter cuts borders off between them. */
static void test_transposed(void)
{
    static const char *const layers[] = {"conv1d_transpose", NULL};
    static const struct weights_entry entries[] = {
        {"conv1d_transpose", "conv1d_transpose/kernel:0", 2, {2, 2}, 1},
        {"conv1d_transpose", "conv1d_transpose/bias:0", 1, {2}, 5}};
    const char *model = tiny_path("back.onnx"), *file = tiny_path("back.h5"),
               *again = tiny_path("again.h5"), *out = tiny_path("back.out.onnx");
    const struct mgpu_convert_options into = {.model = model}, none = {0};
    make_onnx_file(
        model,
        "producer tf2onnx\ninput x float N 2 1 3\n"
        "init s_1/conv1d_transpose_1/conv_transpose/ExpandDims_1:0 float 2 2 1 1 = normal 1\n"
        "init const_fold_opt__3 float 1 2 1 = 3 4\n"
        "init at int64 1 = 0\ninit to int64 1 = 3\ninit axis int64 1 = 3\n"
        "init one int64 1 = 2\ninit none int64 8 = 0\n"
        "c = ConvTranspose(x, s_1/conv1d_transpose_1/conv_transpose/ExpandDims_1:0) "
        "name=\"s_1/conv1d_transpose_1/conv_transpose\"\n"
        "s = Slice(c, at, to, axis)\np = Pad(s, none)\nq = Squeeze(p, one)\n"
        "y = Add(q, const_fold_opt__3) name=\"s_1/conv1d_transpose_1/BiasAdd\"\n"
        "output y float N 2 3\n");
    weights_legacy(file, layers, entries, 2);
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_(!strcmp(line, "2 of 2 tensors\n"), "%s", line);
    CHECK_OK(weights_convert(line, out, again, &none));
    CHECK(weights_hold(again, "conv1d_transpose/bias:0", "[2]", (const double[]){5, 6}));
    CHECK(
        weights_hold(again, "conv1d_transpose/kernel:0", "[1,2,2]", (const double[]){1, 2, 3, 4}));
}

/* ---- Normalization --------------------------------------------------------------------------- */

#define NORM "tests/convert/files/named/normalization/"
#define MEAN "sequential_1/normalization_1/Sub/y:0"

/* tf2onnx makes an input of the mean, and a constant of the variance. */
static void test_normalization(void)
{
    const char *out = tiny_path("norm.onnx"), *h5 = tiny_path("norm.h5"),
               *again = tiny_path("again.onnx");
    const struct mgpu_convert_options none = {0}, into = {.model = NORM "model.onnx"},
                                      like = {.like = NORM "first.h5"},
                                      into_new = {.model = tiny_path("norm.onnx"), .verify = true};
    CHECK_FAILS(weights_convert(line, NORM "model.onnx", h5, &none),
                "'sequential/normalization' are constants of the graph");
    CHECK_OK(weights_convert(line, NORM "first.weights.h5", out, &into));
    CHECK_(strstr(line, "7 of 7 tensors"), "%s", line);
    CHECK_(strstr(told, "the mean of 1 Normalization layer out"), "%s", told);
    CHECK(weights_hold(out, MEAN, "[1,3]", (const double[]){1.5, 4, 7}));
    CHECK_OK(weights_convert(line, NORM "first.h5", again, &into_new));
    CHECK(weights_differ(again, out, 0) == 0);
    CHECK_OK(weights_convert(line, out, h5, &like));
    CHECK(weights_differ(h5, NORM "first.h5", 0) == 0);
}

/* The other way round: what was divided by is multiplied by, and the mean is added. */
static void test_inverted(void)
{
    static const char folder[] = FOLDER "inverted/";
    const char *out = tiny_path("inverted.onnx"), *again = tiny_path("inverted.h5");
    char model[256], file[256];
    snprintf(model, sizeof model, "%smodel.onnx", folder);
    snprintf(file, sizeof file, "%sfirst.h5", folder);
    const struct mgpu_convert_options into = {.model = model}, like = {.like = file};
    struct mgpu_checkpoint *c;
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_(strstr(line, "7 of 7 tensors"), "%s", line);
    CHECK(weights_hold(out, "sequential_1/normalization_1/Add/x:0", "[1,3]",
                       (const double[]){1.5, 4, 7}));
    CHECK_OK(mgpu_checkpoint_open(&c, out, false));
    CHECK_(c->weights == 4, "%d", c->weights);
    mgpu_checkpoint_close(c);
    CHECK_OK(weights_convert(line, out, again, &like));
    CHECK(weights_differ(again, file, 0) == 0);
}

/* Mean and variance that were given, not adapted, are no variables: the architecture has them. */
static void test_given(void)
{
    const char *out = tiny_path("given.onnx");
    const struct mgpu_convert_options into = {.model = FOLDER "given/model.onnx"};
    CHECK_OK(weights_convert(line, FOLDER "given/first.keras", out, &into));
    CHECK_(strstr(line, "4 of 4 tensors"), "%s", line);
    CHECK(weights_hold(out, MEAN, "[1,3]", (const double[]){1, 2, 3}));
}

/* Neither is trained; a file with others is another model's. */
static void test_constants(void)
{
    static const char *const layers[] = {"normalization", "dense", NULL};
    static const struct weights_entry entries[] = {
        {"normalization", "normalization/mean:0", 1, {2}, 1},
        {"normalization", "normalization/variance:0", 1, {2}, 4},
        {"dense", "dense/kernel:0", 2, {2, 2}, 5}};
    const char *model = tiny_path("constants.onnx"), *file = tiny_path("constants.h5");
    const struct mgpu_convert_options o = {.model = model};
    static const char *const text =
        "producer tf2onnx\ninput x float N 2\n"
        "init s_1/normalization_1/Sub/y:0 float 1 2 = 1 2\n"
        "init ConstantFolding/s_1/normalization_1/truediv_recip:0 float 1 2 = .5 %s\n"
        "init s_1/dense_1/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
        "h = Relu(x)\n"
        "d = Sub(h, s_1/normalization_1/Sub/y:0) name=\"s_1/normalization_1/Sub\"\n"
        "n = Mul(d, ConstantFolding/s_1/normalization_1/truediv_recip:0) "
        "name=\"s_1/normalization_1/truediv\"\n"
        "y = MatMul(n, s_1/dense_1/Cast/ReadVariableOp:0)\noutput y float N 2\n";
    char made[1024];
    struct mgpu_checkpoint *c;
    snprintf(made, sizeof made, text, ".4472136");
    make_onnx_file(model, made);
    CHECK_OK(mgpu_checkpoint_open(&c, model, false));
    CHECK_(c->weights == 1, "%d", c->weights);
    mgpu_checkpoint_close(c);
    weights_legacy(file, layers, entries, 3);
    CHECK_OK(weights_convert(line, file, tiny_path("constants.out.onnx"), &o));
    CHECK_(!strcmp(line, "3 of 3 tensors\n"), "%s", line);
    snprintf(made, sizeof made, text, ".4473");
    make_onnx_file(model, made);
    CHECK_FAILS(weights_convert(line, file, tiny_path("constants.out.onnx"), &o),
                "'normalization/variance:0' [2] is not what the model has");
}

/* A layer that is used twice has its mean once. */
static void test_mean_twice(void)
{
    static const char *const layers[] = {"normalization", "dense", NULL};
    static const struct weights_entry entries[] = {
        {"normalization", "normalization/mean:0", 1, {2}, 3},
        {"normalization", "normalization/variance:0", 1, {2}, 4},
        {"dense", "dense/kernel:0", 2, {2, 2}, 5}};
    const char *model = tiny_path("twice.onnx"), *file = tiny_path("twice.h5"),
               *out = tiny_path("twice.out.onnx");
    const struct mgpu_convert_options o = {.model = model};
    make_onnx_file(model, "producer tf2onnx\ninput x float N 2\n"
                          "input s_1/normalization_1/Sub/y:0 float 1 2\n"
                          "init r float 1 2 = .5 .4472136\n"
                          "init s_1/dense_1/Cast/ReadVariableOp:0 float 2 2 = normal 1\n"
                          "d = Sub(x, s_1/normalization_1/Sub/y:0) "
                          "name=\"s_1/normalization_1/Sub\"\n"
                          "n = Mul(d, r) name=\"s_1/normalization_1/truediv\"\n"
                          "h = MatMul(n, s_1/dense_1/Cast/ReadVariableOp:0)\n"
                          "e = Sub(h, s_1/normalization_1/Sub/y:0) "
                          "name=\"s_1/normalization_1/Sub\"\n"
                          "y = Mul(e, r) name=\"s_1/normalization_1/truediv\"\n"
                          "output y float N 2\n");
    weights_legacy(file, layers, entries, 3);
    CHECK_OK(weights_convert(line, file, out, &o));
    CHECK(weights_hold(out, "s_1/normalization_1/Sub/y:0", "[1,2]", (const double[]){3, 4}));
}

/* Nobody has data for the mean. */
static void test_lost_mean(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    o.data = tiny_list(tiny_noise("keras_tensor", 1, 2, (int64_t[]){6, 3}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 2}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 3;
    CHECK_FAILS(mgpu_trainer_new(&t, NORM "model.onnx", &o),
                "'" MEAN "' is no data but the mean of a Normalization layer");
    mgpu_trainer_free(t);
}

int main(void)
{
    tiny_begin();
    mgpu_set_note(listen, NULL);
    test_files();
    test_written();
    test_normalization();
    test_inverted();
    test_given();
    test_constants();
    test_mean_twice();
    test_lost_mean();
    test_asked();
    test_towers();
    test_own();
    test_own_layer();
    test_transposed();
    tiny_end();
    return test_end();
}
