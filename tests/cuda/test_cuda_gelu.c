/* A GELU in tanh's form between two dense layers on a GPU that there is not (double.h): however it
 * is written, it is part of the products, forward and backward, and training follows the CPU's, in
 * floats and in half types, on one rank and on two. Other functions stay what they are. The kernels
 * are generated ones; cuBLASLt's descriptors are test_cuda_matmul's. */
#include "tests/cuda/double.h"
#include "tests/cuda/double_train.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

enum { WIDTH = 12, HIDDEN = 24 };

/* The function as nodes from h to g. */
static const struct {
    const char *name, *nodes;
    bool gelu;
} functions[] = {
    {"as Transformers writes it",
     "a = Pow(h, three)\nb = Mul(a, cubic)\nc = Add(h, b)\nd = Mul(c, root)\ne = Tanh(d)\n"
     "f = Add(e, one)\ni = Mul(h, half)\ng = Mul(i, f)\n",
     true},
    {"by squares, the half last",
     "a = Mul(h, h)\nb = Mul(cubic, a)\nc = Add(one, b)\nd = Mul(h, c)\ni = Mul(root, d)\n"
     "e = Tanh(i)\nf = Add(one, e)\nj = Mul(f, h)\ng = Mul(half, j)\n",
     true},
    {"of ONNX", "g = Gelu(h) approximate=\"tanh\"\n", true},
    {"with another factor",
     "a = Pow(h, three)\nb = Mul(a, cubic)\nc = Add(h, b)\nd = Mul(c, half)\ne = Tanh(d)\n"
     "f = Add(e, one)\ni = Mul(h, half)\ng = Mul(i, f)\n",
     false},
    {"of erf", "g = Gelu(h)\n", false},
    {"a tanh", "g = Tanh(h)\n", false},
};

static void check(int i, const char *const *data)
{
    static const struct {
        const char *devices, *precision;
        double most;
    } runs[] = {{"cuda:0", "f32", 1e-6},         {"cuda:0,cuda:0", "f32", 1e-6},
                {"cuda:0", "bf16", 1e-2},        {"cuda:0", "f16", 1e-2},
                {"cuda:0,cuda:0", "bf16", 1e-2}, {"cuda:0,cuda:0", "f16", 1e-2}};
    struct double_trained floats, r;
    char text[2048];
    snprintf(text, sizeof text,
             "opset 20\ninput x float N 5 %d\ninit w float %d %d = normal 0.4\n"
             "init bias float %d = normal 0.4\ninit v float %d 2 = normal 0.5\n"
             "init one float = 1\ninit half float = 0.5\ninit three float = 3\n"
             "init cubic float = 0.044715\ninit root float = 0.79788456\n"
             "m = MatMul(x, w)\nh = Add(m, bias)\n%sy = MatMul(g, v)\noutput y float N 5 2\n",
             WIDTH, WIDTH, HIDDEN, HIDDEN, HIDDEN, functions[i].nodes);
    const struct double_model m = {tiny_model(text), data, "matmul_gelu", WIDTH * HIDDEN};
    CHECK_OK(double_train(&floats, &m, "cpu", "f32"));
    CHECK(floats.nodes == 0);
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        CHECK_OK(double_train(&r, &m, runs[k].devices, runs[k].precision));
        CHECK_(r.nodes == (functions[i].gelu ? 2 : 0), "GELU %s in %s: %d products",
               functions[i].name, runs[k].precision, r.nodes);
        double weight = double_weight_off(&r, &floats, &m);
        CHECK_(weight < runs[k].most, "GELU %s in %s on %s: off by %.1e", functions[i].name,
               runs[k].precision, runs[k].devices, weight);
    }
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    const char *const *data =
        tiny_list(tiny_noise("x", 3, 3, (int64_t[]){DOUBLE_SAMPLES, 5, WIDTH}),
                  tiny_noise("label", 5, 3, (int64_t[]){DOUBLE_SAMPLES, 5, 2}), NULL);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        check((int)i, data);
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
