/* A GELU in tanh's form between two dense layers on a GPU that there is not (double.h): however it
 * is written, it is part of the products, forward and backward, and training follows the CPU's, in
 * floats and in half types, on one rank and on two. Other functions stay what they are. The kernels
 * are generated ones; cuBLASLt's descriptors are test_cuda_matmul's. */
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 8, STEPS = 4, WIDTH = 12, HIDDEN = 24, WEIGHTS = WIDTH * HIDDEN };

struct result {
    int ends; /* nodes of products with GELU or its derivative */
    double weight[WEIGHTS];
};

static void train(struct result *r, const char *model, const char *const *data, const char *devices,
                  const char *precision)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    o.data = data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.5";
    o.batch = SAMPLES;
    o.steps = STEPS;
    o.devices = devices;
    o.strategy = "data";
    o.precision = precision;
    *r = (struct result){0};
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    const struct mgpu_program *p = t->compiled[0].program[0];
    for (int k = 0; k < p->instructions; k++)
        r->ends += !strncmp(p->instruction[k].node->op->name, "matmul_gelu", strlen("matmul_gelu"));
    while (mgpu_step(t, &s) > 0)
        ;
    CHECK_OK(mgpu_weight_read(t, "w", r->weight, WEIGHTS));
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s in %s: %s", devices, precision, double_complaint());
}

static double off(const struct result *x, const struct result *y)
{
    double sum = 0, size = 1e-30;
    for (int i = 0; i < WEIGHTS; i++) {
        sum += (x->weight[i] - y->weight[i]) * (x->weight[i] - y->weight[i]);
        size += y->weight[i] * y->weight[i];
    }
    return sqrt(sum / size);
}

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
    struct result floats, r;
    char text[2048];
    snprintf(text, sizeof text,
             "opset 20\ninput x float N 5 %d\ninit w float %d %d = normal 0.4\n"
             "init bias float %d = normal 0.4\ninit v float %d 2 = normal 0.5\n"
             "init one float = 1\ninit half float = 0.5\ninit three float = 3\n"
             "init cubic float = 0.044715\ninit root float = 0.79788456\n"
             "m = MatMul(x, w)\nh = Add(m, bias)\n%sy = MatMul(g, v)\noutput y float N 5 2\n",
             WIDTH, WIDTH, HIDDEN, HIDDEN, HIDDEN, functions[i].nodes);
    const char *model = tiny_model(text);
    train(&floats, model, data, "cpu", "f32");
    CHECK(floats.ends == 0);
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        train(&r, model, data, runs[k].devices, runs[k].precision);
        CHECK_(r.ends == (functions[i].gelu ? 2 : 0), "GELU %s in %s: %d products",
               functions[i].name, runs[k].precision, r.ends);
        CHECK_(off(&r, &floats) < runs[k].most, "GELU %s in %s on %s: off by %.1e",
               functions[i].name, runs[k].precision, runs[k].devices, off(&r, &floats));
    }
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    const char *const *data =
        tiny_list(tiny_noise("x", 3, 3, (int64_t[]){SAMPLES, 5, WIDTH}),
                  tiny_noise("label", 5, 3, (int64_t[]){SAMPLES, 5, 2}), NULL);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        check((int)i, data);
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
