/* What exporters made of weights on their way into the graph, and files of weights have as their
 * framework has it: PyTorch's attention and tied embeddings, what Keras 3 reshapes and folds. */
#include "tests/convert/weights_check.h"
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

static char line[256], told[1024];

static void listen(void *context, const char *text)
{
    (void)context;
    snprintf(told, sizeof told, "%s", text);
}

/* A path in the test's folder. */
static const char *path_of(const char *name)
{
    return build_text(build_path(name));
}

/* The model's weights as a file of that kind, which has the array, and back. */
static void check_both_ways(const char *text, const char *extension, int count, const char *name,
                            const char *shape, const double *want)
{
    char in[64];
    snprintf(in, sizeof in, "both%s", extension);
    const char *model = path_of("both.onnx"), *file = path_of(in), *out = path_of("out.onnx");
    struct mgpu_convert_options none = {0}, into = {.model = model};
    make_onnx_file(model, text);
    CHECK_OK(weights_convert(line, model, file, &none));
    CHECK_(weights_hold(file, name, shape, want), "%s", name);
    CHECK_OK(weights_convert(line, file, out, &into));
    CHECK_(atoi(line) == count, "%s", line);
    CHECK(weights_differ(out, model, 0) == 0);
}

/* ---- PyTorch's attention --------------------------------------------------------------------- */

/* TorchScript turns in_proj_weight and gives it a name of its own; of equal arrays one is left. */
static const char *const in_proj = "producer pytorch\n"
                                   "input x float N 2\n"
                                   "init l.in_proj_bias float 6 = 1 2 3 4 5 6\n"
                                   "init l.out_proj.weight float 2 2 = 1 2 3 4\n"
                                   "init l.out_proj.bias float 2 = 0\n"
                                   "init n.weight float 2 = 3 4\n"
                                   "init onnx::MatMul_9 float 2 6 = 1 2 3 4 5 6 7 8 9 10 11 12\n"
                                   "h = MatMul(x, onnx::MatMul_9) name=\"/l/MatMul\"\n"
                                   "a = Add(l.in_proj_bias, h) name=\"/l/Add\"\n"
                                   "q, k, v = Split(a) axis=1\n"
                                   "s = Mul(q, k)\n"
                                   "p = Softmax(s) name=\"/l/Softmax\"\n"
                                   "t = Mul(p, v)\n"
                                   "o = Gemm(t, l.out_proj.weight, l.out_proj.bias) transB=1 "
                                   "name=\"/l/Gemm\"\n"
                                   "b = Identity(l.out_proj.bias)\n"
                                   "y = LayerNormalization(o, n.weight, b) name=\"/n/Norm\"\n"
                                   "output y float N 2\n";

/* Three inputs of one width: PyTorch has one matrix, of which the export has the thirds. */
static const char *const apart = "producer pytorch\n"
                                 "input x float N 2\n"
                                 "init l.out_proj.weight float 2 2 = 1 2 3 4\n"
                                 "init onnx::MatMul_9 float 2 2 = 31 32 33 34\n"
                                 "init onnx::MatMul_8 float 2 2 = 21 22 23 24\n"
                                 "init onnx::MatMul_7 float 2 2 = 11 12 13 14\n"
                                 "q = MatMul(x, onnx::MatMul_7) name=\"/l/MatMul\"\n"
                                 "k = MatMul(x, onnx::MatMul_8) name=\"/l/MatMul_1\"\n"
                                 "v = MatMul(x, onnx::MatMul_9) name=\"/l/MatMul_2\"\n"
                                 "s = Mul(q, k)\n"
                                 "p = Softmax(s) name=\"/l/Softmax\"\n"
                                 "t = Mul(p, v)\n"
                                 "y = Gemm(t, l.out_proj.weight) transB=1\n"
                                 "output y float N 2\n";

static void check_attention(const char *text, int count, const char *name, const char *shape,
                            const double *want)
{
    check_both_ways(text, ".safetensors", count, name, shape, want);
}

static void test_attention(void)
{
    check_attention(in_proj, 6, "l.in_proj_weight", "[6,2]",
                    (double[]){1, 7, 2, 8, 3, 9, 4, 10, 5, 11, 6, 12});
    check_attention(in_proj, 6, "l.out_proj.bias", "[2]", (double[]){0, 0});
    check_attention(in_proj, 6, "n.bias", "[2]", (double[]){0, 0});
    check_attention(apart, 2, "l.in_proj_weight", "[6,2]",
                    (double[]){11, 13, 12, 14, 21, 23, 22, 24, 31, 33, 32, 34});
}

/* Tied embeddings as dynamo writes them: one initializer, and a turned copy of it. */
static const char *const tied =
    "producer pytorch\n"
    "input x int64 N\n"
    "init out.weight float 8 4 = 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 "
    "17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32\n"
    "init val_2 float 4 8 = 1 5 9 13 17 21 25 29 2 6 10 14 18 22 26 30 "
    "3 7 11 15 19 23 27 31 4 8 12 16 20 24 28 32\n"
    "init h.bias float 4 = 7 8 9 10\n"
    "e = Gather(out.weight, x) name=\"/emb/Gather\"\n"
    "b = Add(e, h.bias) name=\"/h/Add\"\n"
    "y = MatMul(b, val_2) name=\"/out/MatMul\"\n"
    "output y float N 8\n";

/* Such a model as the file of weights: both are taken, if they are still each other's transpose. */
static void test_tied_sources(void)
{
    const char *model = path_of("tied.onnx"), *other = path_of("other.onnx"),
               *names = path_of("names.npz"), *out = path_of("out.onnx");
    const struct mgpu_convert_options into = {.model = model, .verify = true},
                                      as_onnx = {.names = "onnx"};
    char text[1024], *at;
    int differ;
    FILE *null = fopen("/dev/null", "w");
    make_onnx_file(model, tied);
    snprintf(text, sizeof text, "%s", tied);
    while ((at = strstr(text, " 32"))) /* in both */
        memcpy(at, " 99", 3);
    make_onnx_file(other, text);
    CHECK_OK(weights_convert(line, other, out, &into));
    CHECK_(!strcmp(line, "3 of 3 tensors\n") && weights_differ(out, other, 0) == 0, "%s", line);
    CHECK_OK(mgpu_weights_compare(other, out, &into, false, null, &differ));
    CHECK(differ == 0);
    CHECK_OK(weights_convert(line, other, names, &as_onnx));
    CHECK_OK(weights_convert(line, names, out, &into));
    CHECK(weights_differ(out, other, 0) == 0);
    memcpy(strstr(text, " 99"), " 98", 3);
    make_onnx_file(other, text);
    CHECK_FAILS(weights_convert(line, other, out, &into),
                "'out.weight' and 'val_2' are one weight in the model, and differ in the file");
    fclose(null);
}

/* Parameters of the model itself: used as they are, turned, and a scalar. */
static const char *const own_parameters = "producer pytorch\n"
                                          "input x float N 2\n"
                                          "init a float 2 2 = 1 2 3 4\n"
                                          "init onnx::MatMul_9 float 2 2 = 5 6 7 8\n"
                                          "init scale float = 3\n"
                                          "h = MatMul(x, a) name=\"/MatMul\"\n"
                                          "k = MatMul(h, onnx::MatMul_9) name=\"/MatMul_1\"\n"
                                          "y = Mul(k, scale) name=\"/Mul\"\n"
                                          "output y float N 2\n";

static void test_torch_names(void)
{
    double table[32];
    for (int i = 0; i < 32; i++)
        table[i] = i + 1;
    check_attention(tied, 3, "emb.weight", "[8,4]", table);
    check_attention(tied, 3, "out.weight", "[8,4]", table);
    test_tied_sources();
    check_attention(own_parameters, 3, "a", "[2,2]", (double[]){1, 2, 3, 4});
    check_attention(own_parameters, 3, "scale", "[]", (double[]){3});
    *told = 0;
    mgpu_set_note(listen, NULL);
    check_attention(own_parameters, 3, "onnx::MatMul_9", "[2,2]", (double[]){5, 6, 7, 8});
    mgpu_set_note(NULL, NULL);
    CHECK_(strstr(told, "does not tell what 'onnx::MatMul_9' is called in PyTorch"), "%s", told);
}

/* ---- Keras 3's own export -------------------------------------------------------------------- */

/* A group normalisation has gamma and beta in groups, [4] in Keras; its class goes into the file's
 * names. */
static const char *const grouped = "producer tf2onnx\n"
                                   "input x float N 3\n"
                                   "init s_1/dense_1/Cast/ReadVariableOp:0 float 3 4 = 0.5\n"
                                   "init s_1/norm_1/Reshape_1:0 float 1 2 2 = 1 2 3 4\n"
                                   "init s_1/norm_1/Reshape_2:0 float 1 2 2 = 5 6 7 8\n"
                                   "init e float = 0.001\n"
                                   "init to int64 3 = 0 2 2\n"
                                   "init back int64 2 = 0 4\n"
                                   "d = MatMul(x, s_1/dense_1/Cast/ReadVariableOp:0) "
                                   "name=\"s_1/dense_1/MatMul\"\n"
                                   "g = Reshape(d, to) name=\"s_1/norm_1/Reshape\"\n"
                                   "m = ReduceMean(g) axes=[2] keepdims=1\n"
                                   "n = Neg(m)\n"
                                   "c = Sub(g, m)\n"
                                   "q = Mul(c, c)\n"
                                   "v = ReduceMean(q) axes=[2] keepdims=1\n"
                                   "w = Add(v, e)\n"
                                   "r = Sqrt(w)\n"
                                   "i = Reciprocal(r)\n"
                                   "f = Mul(i, s_1/norm_1/Reshape_1:0) name=\"s_1/norm_1/mul\"\n"
                                   "a = Mul(n, f)\n"
                                   "b = Add(a, s_1/norm_1/Reshape_2:0) name=\"s_1/norm_1/add_1\"\n"
                                   "h = Mul(g, f)\n"
                                   "z = Add(h, b)\n"
                                   "y = Reshape(z, back) name=\"s_1/norm_1/Reshape_3\"\n"
                                   "output y float N 4\n";

/* A layer called as an operation's container. The depthwise kernel has lost its name. */
static const char *const apart_2d =
    "producer tf2onnx\n"
    "input x float N 2 3 3\n"
    "init s_1/separable_conv2d_1/separable_conv2d/ReadVariableOp_1:0 float 3 4 1 1 = "
    "1 2 3 4 5 6 7 8 9 10 11 12\n"
    "init s_1/separable_conv2d_1/Squeeze:0 float 3 = 1 2 3\n"
    "init const_fold_opt__9 float 4 1 1 2 = 1 2 3 4 5 6 7 8\n"
    "d = Conv(x, const_fold_opt__9) group=2 "
    "name=\"s_1/separable_conv2d_1/separable_conv2d/depthwise\"\n"
    "y = Conv(d, s_1/separable_conv2d_1/separable_conv2d/ReadVariableOp_1:0, "
    "s_1/separable_conv2d_1/Squeeze:0) name=\"s_1/separable_conv2d_1/BiasAdd\"\n"
    "output y float N 3 3 2\n";

/* In one dimension: two, of which the first has one element. */
static const char *const apart_1d =
    "producer tf2onnx\n"
    "input x float N 2 4\n"
    "init s_1/separable_conv1d_1/ExpandDims_2:0 float 3 4 1 1 = 1 2 3 4 5 6 7 8 9 10 11 12\n"
    "init s_1/dense_1/Cast/ReadVariableOp:0 float 3 2 = 0.5\n"
    "init const_fold_opt__9 float 4 1 1 2 = 1 2 3 4 5 6 7 8\n"
    "init one int64 1 = 2\n"
    "u = Unsqueeze(x, one) name=\"s_1/separable_conv1d_1/ExpandDims\"\n"
    "d = Conv(u, const_fold_opt__9) group=2 "
    "name=\"s_1/separable_conv1d_1/separable_conv2d/depthwise\"\n"
    "p = Conv(d, s_1/separable_conv1d_1/ExpandDims_2:0) "
    "name=\"s_1/separable_conv1d_1/separable_conv2d\"\n"
    "q = Squeeze(p, one) name=\"s_1/separable_conv1d_1/Squeeze\"\n"
    "y = MatMul(q, s_1/dense_1/Cast/ReadVariableOp:0) name=\"s_1/dense_1/MatMul\"\n"
    "output y float N 3 2\n";

/* A normalisation over two axes of three. */
static const char *const two_axes =
    "producer tf2onnx\n"
    "input x float N 2 3\n"
    "init s_1/dense_1/Cast/ReadVariableOp:0 float 3 3 = 0.5\n"
    "init s_1/norm_1/Reshape:0 float 1 2 3 = 1 2 3 4 5 6\n"
    "init s_1/norm_1/Reshape_1:0 float 1 2 3 = 7 8 9 10 11 12\n"
    "d = MatMul(x, s_1/dense_1/Cast/ReadVariableOp:0) name=\"s_1/dense_1/MatMul\"\n"
    "m = Mul(d, s_1/norm_1/Reshape:0) name=\"s_1/norm_1/mul\"\n"
    "y = Add(m, s_1/norm_1/Reshape_1:0) name=\"s_1/norm_1/add\"\n"
    "output y float N 2 3\n";

static void check_keras3(const char *text, const char *name, const char *shape, const double *want)
{
    check_both_ways(text, ".weights.h5", 3, name, shape, want);
}

static void test_keras3(void)
{
    check_keras3(grouped, "/layers/group_normalization/vars/0", "[4]", (double[]){1, 2, 3, 4});
    check_keras3(grouped, "/layers/group_normalization/vars/1", "[4]", (double[]){5, 6, 7, 8});
    check_keras3(apart_2d, "/layers/separable_conv2d/vars/0", "[1,2,2,2]",
                 (double[]){1, 3, 5, 7, 2, 4, 6, 8});
    check_keras3(apart_2d, "/layers/separable_conv2d/vars/1", "[1,1,4,3]",
                 (double[]){1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12});
    check_keras3(apart_1d, "/layers/separable_conv1d/vars/0", "[2,2,2]",
                 (double[]){1, 3, 5, 7, 2, 4, 6, 8});
    check_keras3(apart_1d, "/layers/separable_conv1d/vars/1", "[1,4,3]",
                 (double[]){1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12});
    check_keras3(two_axes, "/layers/layer_normalization/vars/0", "[2,3]",
                 (double[]){1, 2, 3, 4, 5, 6});
    check_keras3(two_axes, "/layers/layer_normalization/vars/1", "[2,3]",
                 (double[]){7, 8, 9, 10, 11, 12});
    check_keras3(apart_2d, "/layers/separable_conv2d/vars/2", "[3]", (double[]){1, 2, 3});
}

int main(void)
{
    build_begin();
    test_attention();
    test_torch_names();
    test_keras3();
    build_end();
    return test_end();
}
