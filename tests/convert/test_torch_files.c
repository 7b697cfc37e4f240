/* Models that PyTorch exported, beside their state_dict: weights are written under its names and in
 * its layouts, and it is read, into the model and into one whose merged tensors were split. */
#include "exporter/checkpoint.h"
#include "tests/convert/weights_check.h"
#include "tests/support/make_onnx.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>

#define FILES "tests/convert/files/torch/"

static char line[256], told[4096];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told + strlen(told), sizeof told - strlen(told), "%s\n", text);
}

static int tensors_of(const char *path)
{
    struct mgpu_checkpoint *c;
    CHECK_OK(mgpu_checkpoint_open(&c, path, false));
    int n = c->count;
    mgpu_checkpoint_close(c);
    return n;
}

/* `note`: a part of what is told, or "" where nothing is. */
static void check_file(const char *name, const char *note)
{
    char model[128], state[128], all[64];
    const char *file = tiny_path("file.safetensors"), *filled = tiny_path("filled.onnx"),
               *again = tiny_path("again.onnx");
    const struct mgpu_convert_options none = {0}, into = {.model = model},
                                      into_it = {.model = filled};
    snprintf(model, sizeof model, FILES "%s.onnx", name);
    snprintf(state, sizeof state, FILES "%s.safetensors", name);
    snprintf(all, sizeof all, "%d of %d tensors\n", tensors_of(state), tensors_of(state));
    *told = 0;
    CHECK_OK(weights_convert(line, model, file, &none));
    CHECK_(*note ? strstr(told, note) != NULL : !*told, "%s: %s", name, told);
    CHECK_(weights_differ(file, state, 0) == 0, "%s", name);
    CHECK_OK(weights_convert(line, state, filled, &into));
    CHECK_(!strcmp(line, all), "%s: %s", name, line);
    CHECK_OK(weights_convert(line, filled, file, &none));
    CHECK_(weights_differ(file, state, 0) == 0, "%s", name);
    CHECK_OK(weights_convert(line, state, again, &into_it));
    CHECK_(weights_differ(again, filled, 0) == 0, "%s", name);
}

/* What an exporter computed of parameters keeps its own name, which is said, and no parameter is
 * taken for it. */
static void check_computed(const char *name, const char *note, const char *refusal)
{
    char model[128], state[128];
    const struct mgpu_convert_options none = {0}, into = {.model = model};
    snprintf(model, sizeof model, FILES "%s.onnx", name);
    snprintf(state, sizeof state, FILES "%s.safetensors", name);
    *told = 0;
    CHECK_OK(weights_convert(line, model, tiny_path("file.safetensors"), &none));
    CHECK_(strstr(told, note), "%s: %s", name, told);
    CHECK(weights_convert(line, state, tiny_path("out.onnx"), &into) < 0);
    CHECK_(strstr(mgpu_error(), refusal), "%s: %s", name, mgpu_error());
}

/* TorchScript's folded layers have no names: they go by the node's, in which a Sequential's own
 * name stands twice; no state_dict takes them, which is said. */
static void test_folded(void)
{
    static const double bias[] = {1, 2}, fc[] = {3, 4};
    const char *model = tiny_path("folded.onnx"), *file = tiny_path("folded.safetensors");
    const struct mgpu_convert_options none = {0};
    make_onnx_file(
        model,
        "producer pytorch\ninput x float N 2 3 3\n"
        "init onnx::Conv_94 float 2 2 1 1 = normal 1\ninit onnx::Conv_95 float 2 = 1 2\n"
        "init onnx::Conv_97 float 2 2 1 1 = normal 2\ninit onnx::Conv_98 float 2 = 5 6\n"
        "init fc.weight float 2 2 1 1 = normal 3\ninit fc.bias float 2 = 3 4\n"
        "a = Conv(x, onnx::Conv_94, onnx::Conv_95) name=\"/layer1/layer1.0/conv1/Conv\"\n"
        "b = Conv(a, onnx::Conv_97, onnx::Conv_98) name=\"/layer1/layer1.0/down/down.1/Conv\"\n"
        "y = Conv(b, fc.weight, fc.bias) name=\"/fc/Conv\"\noutput y float N 2 3 3\n");
    *told = 0;
    CHECK_OK(weights_convert(line, model, file, &none));
    CHECK_(strstr(told, "2 layers hold a folded batch normalisation: no state_dict takes this"),
           "%s", told);
    CHECK(weights_hold(file, "layer1.0.conv1.bias", "[2]", bias));
    CHECK(weights_hold(file, "fc.bias", "[2]", fc));
    CHECK_(tensors_of(file) == 6, "%d", tensors_of(file));
    CHECK(weights_hold(file, "layer1.0.down.1.bias", "[2]", (const double[]){5, 6}));
}

/* dynamo's LSTM with proj_size=1 of two: no LSTM of ONNX. */
static void test_projection(void)
{
    const struct mgpu_convert_options none = {0};
    const char *model = tiny_model("producer pytorch\ninput x float 3 N 2\n"
                                   "init w float 1 4 2 = .5\ninit r float 1 4 1 = .25\n"
                                   "init b float 1 8 = .1\n"
                                   "init h float 1 1 1 = 0\ninit c float 1 1 2 = 0\n"
                                   "y = LSTM(x, w, r, b, -, h, c) hidden_size=1\n"
                                   "output y float 3 1 N 1\n");
    CHECK(weights_convert(line, model, tiny_path("file.safetensors"), &none) < 0);
    CHECK_(strstr(mgpu_error(), "no LSTM with proj_size"), "%s", mgpu_error());
}

/* The export of a compiled model has the wrapper's names itself: such a model, too, is taken as a
 * file of weights, what --verify reads among them. */
static void test_compiled(void)
{
    const char *model = tiny_path("compiled.onnx"), *file = tiny_path("plain.safetensors");
    const char *out = tiny_path("out.onnx");
    const struct mgpu_convert_options none = {0}, into = {.model = model, .verify = true};
    struct mgpu_arena *arena = mgpu_arena_new();
    static const char *const wrappers[] = {"_orig_mod.", "module.", "module._orig_mod."};
    for (int i = 0; i < 3; i++) {
        make_onnx_file(model, mgpu_arena_format(arena,
                                                "producer pytorch\ninput x float N 2\n"
                                                "init %sa.weight float 2 2 = 1 2 3 4\n"
                                                "init %sa.bias float 2 = 5 6\n"
                                                "init %sb.bias float 2 = 7 8\n"
                                                "h = Gemm(x, %sa.weight, %sa.bias) transB=1\n"
                                                "y = Add(h, %sb.bias)\noutput y float N 2\n",
                                                wrappers[i], wrappers[i], wrappers[i], wrappers[i],
                                                wrappers[i], wrappers[i]));
        CHECK_OK(weights_convert(line, model, file, &none));
        CHECK_OK(weights_convert(line, file, out, &into));
        CHECK_OK(weights_convert(line, model, out, &into));
        CHECK_(!strncmp(line, "3 of 3 tensors", 14), "%s", line);
    }
    mgpu_arena_free(arena);
}

/* A fresh normalisation without scale and shift, which dynamo stores as its statistics: these keep
 * their names, and what is no parameter is none. */
static void test_no_affine(void)
{
    const char *model = tiny_path("affine.onnx"), *file = tiny_path("affine.safetensors");
    const char *out = tiny_path("out.onnx");
    const struct mgpu_convert_options none = {0}, into = {.model = model, .verify = true};
    make_onnx_file(model, "producer pytorch\ninput x float N 2\n"
                          "init fc.weight float 2 2 = 1 2 3 4\n"
                          "init n.running_mean float 2 = 0\ninit n.running_var float 2 = 1\n"
                          "h = BatchNormalization(x, n.running_var, n.running_mean, "
                          "n.running_mean, n.running_var) scopes=\"['', 'n', 'norm']\"\n"
                          "y = Gemm(h, fc.weight) transB=1 scopes=\"['', 'fc', 'linear']\"\n"
                          "output y float N 2\n");
    CHECK_OK(weights_convert(line, model, file, &none));
    CHECK_(tensors_of(file) == 3, "%d", tensors_of(file));
    CHECK(weights_hold(file, "n.running_var", "[2]", (const double[]){1, 1}));
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_OK(weights_convert(line, out, file, &none));
    CHECK_(tensors_of(file) == 3, "%d", tensors_of(file));
}

/* Tied embeddings that dynamo stores once: a state_dict has both names, and both are taken. */
static void test_shared(void)
{
    const char *model = tiny_path("tied.onnx"), *file = tiny_path("tied.safetensors");
    const char *out = tiny_path("out.onnx");
    const struct mgpu_convert_options none = {0}, into = {.model = model, .verify = true};
    static const double table[] = {1, 2, 3, 4, 5, 6};
    make_onnx_file(model, "producer pytorch\ninput x int64 N\n"
                          "init out.weight float 3 2 = 1 2 3 4 5 6\n"
                          "a = Gather(out.weight, x) scopes=\"['', 'emb', 'embedding']\" "
                          "classes=\"['m.Net', 'torch.nn.modules.sparse.Embedding', 'aten']\"\n"
                          "y = Gemm(a, out.weight) transB=1 scopes=\"['', 'out', 'linear']\" "
                          "classes=\"['m.Net', 'torch.nn.modules.linear.Linear', 'aten']\"\n"
                          "z = MatMul(y, out.weight) scopes=\"['', 'own', 'matmul']\" "
                          "classes=\"['m.Net', 'm.Own', 'aten']\"\noutput z float N 2\n");
    CHECK_OK(weights_convert(line, model, file, &none));
    CHECK_(tensors_of(file) == 2, "%d", tensors_of(file));
    CHECK(weights_hold(file, "emb.weight", "[3,2]", table));
    CHECK(weights_hold(file, "out.weight", "[3,2]", table));
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK(weights_differ(out, model, 0) == 0);
}

/* A learned scalar is a weight of a file, and one of ONNX read back; a run takes it, too. */
static void test_constants(void)
{
    const char *model = tiny_path("scalar.onnx"), *file = tiny_path("scalar.safetensors");
    const char *out = tiny_path("out.onnx"), *other = tiny_path("other.onnx");
    const struct mgpu_convert_options none = {0}, into = {.model = model, .verify = true};
    static const char *const text = "producer pytorch\ninput x float N 2\n"
                                    "init fc.weight float 2 2 = 1 2 3 4\n"
                                    "init scale float = %s\n"
                                    "a = Mul(x, scale) scopes=\"['', 'mul']\"\n"
                                    "y = Gemm(a, fc.weight) transB=1 "
                                    "scopes=\"['', 'fc', 'linear']\"\noutput y float N 2\n";
    char filled[512];
    snprintf(filled, sizeof filled, text, "1.25");
    make_onnx_file(model, filled);
    snprintf(filled, sizeof filled, text, "2.5");
    make_onnx_file(other, filled);
    CHECK_OK(weights_convert(line, other, file, &none));
    CHECK_(tensors_of(file) == 2, "%d", tensors_of(file));
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_OK(weights_convert(line, out, file, &none));
    CHECK(weights_hold(file, "scale", "[]", (const double[]){2.5}));
    struct mgpu_options o = MGPU_OPTIONS;
    static const char *const names[] = {"fc.weight", NULL};
    double first;
    o.init = file;
    CHECK_OK(weights_start(other, &o, names, &first));
    CHECK_OK(weights_start(model, &o, names, &first));
}

/* What TorchScript numbers and no tensor fits it computed, which is said with the way out; where
 * several fit, none is proposed as the one. */
static void check_unnamed(void)
{
    static const char text[] = "producer pytorch\ninput x float N 4 4\n"
                               "init onnx::MatMul_8 float 4 4 = normal 1\n"
                               "init onnx::MatMul_9 float 4 4 = normal 2\n"
                               "init onnx::Add_7 float 1 2 4 = normal 3\n"
                               "a = MatMul(x, onnx::MatMul_8) name=\"/MatMul\"\n"
                               "b = MatMul(a, onnx::MatMul_9) name=\"/MatMul_1\"\n"
                               "c = %s\n"
                               "output c float\n";
    const char *model = tiny_path("unnamed.onnx"), *file = tiny_path("unnamed.safetensors");
    const struct mgpu_convert_options none = {0}, into = {.model = model};
    char filled[1024];
    make_onnx_file(file, "producer pytorch\ninput x float N 4\ninit p float 4 4 = normal 4\n"
                         "init q float 4 4 = normal 5\na = MatMul(x, p)\nb = MatMul(a, q)\n"
                         "output b float\n");
    CHECK_OK(weights_convert(line, file, tiny_path("pq.safetensors"), &none));
    snprintf(filled, sizeof filled, text, "Relu(b)");
    make_onnx_file(model, filled);
    CHECK(weights_convert(line, tiny_path("pq.safetensors"), tiny_path("out.onnx"), &into) < 0);
    CHECK_(strstr(mgpu_error(), "it may be 'p' or 'q', which --map has to say"), "%s",
           mgpu_error());
    snprintf(filled, sizeof filled, text, "Add(b, onnx::Add_7) name=\"/Add\"");
    make_onnx_file(model, filled);
    CHECK(weights_convert(line, tiny_path("pq.safetensors"), tiny_path("out.onnx"), &into) < 0);
    CHECK_(strstr(mgpu_error(), "'onnx::Add_7' [1,2,4] of the model is not in it (the exporter "
                                "computed it of parameters)") &&
               strstr(mgpu_error(), "do_constant_folding=False, leaves the model's own)"),
           "%s", mgpu_error());
}

/* The class token of the export's batch, trained with another: after two steps as PyTorch has it,
 * on one rank and on two. */
static void check_class_token(void)
{
    static const double want[] = {0.6485741,  0.264978,   0.06036623, 0.6203467,
                                  -0.4725294, -0.1863975, -1.517033,  0.3596448};
    struct tiny_weight cls = {"cls", 8};
    float x[8 * 32];
    int64_t label[8];
    for (int i = 0; i < 8 * 32; i++)
        x[i] = (float)(i * 7 % 11 - 5) / 5;
    for (int i = 0; i < 8; i++)
        label[i] = i % 3;
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_data("x", MGPU_FLOAT, 3, (const int64_t[]){8, 4, 8}, x),
                       tiny_data("label", MGPU_INT64, 1, (const int64_t[]){8}, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "sgd,lr=0.25";
    o.batch = 4;
    o.epochs = 1;
    o.shuffle = false;
    for (int ranks = 1; ranks <= 2; ranks++) {
        struct tiny_result r;
        o.devices = ranks == 2 ? "cpu:0,cpu:1" : "cpu:0";
        o.strategy = ranks == 2 ? "data" : "single";
        tiny_train(&r, FILES "class_token_dy.onnx", &o, &cls, 1);
        CHECK_(r.rc == 0 && r.steps == 2, "%s", r.error);
        for (int i = 0; i < 8; i++)
            CHECK_(fabs(r.weight[i] - want[i]) < 1e-6, "%d ranks: %.9g", ranks, r.weight[i]);
    }
}

/* --like has what the graph lost, a buffer and a parameter that forward does not use: with them
 * load_state_dict is served. A bias that the graph lacks is no such thing. */
static void test_beside(void)
{
    static const char *const text = "producer pytorch\ninput x float N 2\n"
                                    "init fc.weight float 2 2 = %s\n%s"
                                    "h = Gemm(x, fc.weight%s) transB=1 "
                                    "scopes=\"['', 'fc', 'linear']\"\ny = Add(h, h)%s\n"
                                    "output y float N 2\n";
    const char *model = tiny_path("part.onnx"), *all = tiny_path("all.onnx");
    const char *state = tiny_path("state.safetensors"), *file = tiny_path("file.safetensors");
    const struct mgpu_convert_options none = {0}, like = {.like = state};
    char filled[1024];
    snprintf(filled, sizeof filled, text, "1 2 3 4", "", "", "");
    make_onnx_file(model, filled);
    snprintf(filled, sizeof filled, text, "5 6 7 8", "init old.weight float 2 2 = 9 8 7 6\n", "",
             "\nz = MatMul(h, old.weight)");
    make_onnx_file(all, filled);
    CHECK_OK(weights_convert(line, all, state, &none));
    *told = 0;
    CHECK_OK(weights_convert(line, model, file, &like));
    CHECK_(strstr(told, "'old.weight' is as ") && strstr(told, "the graph has nothing of it"), "%s",
           told);
    CHECK_(tensors_of(file) == 2, "%d", tensors_of(file));
    CHECK(weights_hold(file, "fc.weight", "[2,2]", (const double[]){1, 2, 3, 4}));
    CHECK(weights_hold(file, "old.weight", "[2,2]", (const double[]){9, 8, 7, 6}));
    snprintf(filled, sizeof filled, text, "5 6 7 8", "init fc.bias float 2 = 1 2\n", ", fc.bias",
             "");
    make_onnx_file(all, filled);
    CHECK_OK(weights_convert(line, all, state, &none));
    CHECK(weights_convert(line, model, file, &like) < 0);
    CHECK_(strstr(mgpu_error(), "its layer has no bias") && !strstr(mgpu_error(), "--partial"),
           "%s", mgpu_error());
}

/* TorchScript stores tied weights once: the second name is a state_dict's, too, and --like has it.
 */
static void test_second_name(void)
{
    static const char *const text = "producer pytorch\ninput x float N 2\n"
                                    "init l.weight float 2 2 = 1 2 3 4\n%s"
                                    "h = Gemm(x, l.weight) transB=1 name=\"/l/Gemm\"\n"
                                    "y = Gemm(h, %s) transB=1 name=\"/l2/Gemm\"\n"
                                    "output y float N 2\n";
    const char *model = tiny_path("tied.onnx"), *apart = tiny_path("apart.onnx");
    const char *state = tiny_path("state.safetensors"), *file = tiny_path("file.safetensors");
    const struct mgpu_convert_options none = {0}, like = {.like = state};
    char filled[1024];
    snprintf(filled, sizeof filled, text, "", "l.weight");
    make_onnx_file(model, filled);
    snprintf(filled, sizeof filled, text, "init l2.weight float 2 2 = 1 2 3 4\n", "l2.weight");
    make_onnx_file(apart, filled);
    *told = 0;
    CHECK_OK(weights_convert(line, apart, state, &none));
    CHECK_(!*told, "%s", told);
    CHECK_OK(weights_convert(line, model, file, &none));
    CHECK_(strstr(told, "'l.weight' is read in '/l2', too"), "%s", told);
    CHECK_OK(weights_convert(line, model, file, &like));
    CHECK(weights_differ(file, state, 0) == 0);
    CHECK(weights_hold(file, "l2.weight", "[2,2]", (const double[]){1, 2, 3, 4}));
}

int main(void)
{
    tiny_begin();
    mgpu_set_note(listen, NULL);
    check_file("three_inputs_ts", ""); /* fresh: biases of zero are stored once */
    check_file("three_inputs_dy", "");
    check_file("widths_bias_ts", "");
    check_file("widths_ts", "taken for PyTorch's MultiheadAttention");
    check_file("no_bias_ts", "taken for PyTorch's MultiheadAttention");
    check_file("no_affine_layer_dy",
               ""); /* fresh: the ones of three normalisations, of which one */
    check_file("no_affine_group_dy", ""); /* has no scale of its own, are stored once */
    check_file("class_token_dy", "of 'pos.weight' the export has [5,8]");
    check_file("class_token_one_dy", "'expand' [1,1,8] repeats 'cls' [1,1,8]");
    check_computed(
        "positions_dy", "of 'pos.weight' the export has [5,8]",
        "the model wants [5,8] ('embedding', of which the exporter kept what the example "
        "needed) (torch.onnx.export with optimize=False");
    check_class_token();
    check_unnamed();
    check_file("group_norm_ts", "'1.weight' and 1 more are the names of the modules");
    check_file("group_norm_dy", "");
    check_computed("products_ts", "what 'onnx::MatMul_8' and 1 more are called in PyTorch",
                   "--map would say 'p -> onnx::MatMul_8'");
    check_computed("products_dy", "'mul' is no parameter of the model: the exporter computed it",
                   "the exporter computed it of parameters");
    test_folded();
    test_projection();
    test_compiled();
    test_no_affine();
    test_shared();
    test_constants();
    test_beside();
    test_second_name();
    tiny_end();
    return test_end();
}
