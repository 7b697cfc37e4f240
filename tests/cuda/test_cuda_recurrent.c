/* Recurrent layers that cuDNN has not, on a GPU that there is not (double.h): their kernels are
 * generated, and training is that of CPU ranks to 1e-10, on one rank and on two. */
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <string.h>

enum { SAMPLES = 8, STEPS = 3, T = 4, WIDTH = 3 };

/* A layer, whose last states are added up over directions. */
#define MODEL(directions, rows, layer)                                                             \
    "input x float N 4 3\ninput lengths int32 N\n"                                                 \
    "init w float " directions " " rows " 3 = normal 0.5\n"                                        \
    "init r float " directions " " rows " 5 = normal 0.5\n"                                        \
    "init b float " directions " 40 = normal 0.5\ninit p float " directions " 15 = normal 0.5\n"   \
    "init v float 5 2 = normal 0.5\ninit axis int64 1 = 1\nt = Transpose(x) perm=[1, 0, 2]\n"      \
    "-, h = " layer " hidden_size=5\nk = Transpose(h) perm=[1, 0, 2]\n"                            \
    "s = ReduceSum(k, axis) keepdims=0\ny = MatMul(s, v)\noutput y float N 2\n"

static const struct layer {
    const char *name, *text;
    int w;
} layers[] = {
    {"a GRU that resets before its product", MODEL("1", "15", "GRU(t, w, r)"), 45},
    {"a GRU of several lengths, both ways",
     MODEL("2", "15", "GRU(t, w, r, -, lengths) direction=\"bidirectional\" linear_before_reset=1"),
     90},
    {"an LSTM of several lengths from the end",
     MODEL("1", "20", "LSTM(t, w, r, b, lengths) direction=\"reverse\""), 60},
    {"an LSTM with peepholes and a clip", MODEL("1", "20", "LSTM(t, w, r, b, -, -, -, p) clip=0.5"),
     60},
    {"an LSTM with coupled gates", MODEL("1", "20", "LSTM(t, w, r, b) input_forget=1"), 60},
    {"an LSTM with hard sigmoids",
     MODEL("1", "20", "LSTM(t, w, r, b) activations=[\"HardSigmoid\", \"Tanh\", \"Tanh\"]"), 60},
    {"an RNN of softsigns", MODEL("1", "5", "RNN(t, w, r) activations=[\"Softsign\"]"), 15},
};

static int generated_of(const struct mgpu_program *p)
{
    int count = 0;
    for (int k = 0; k < p->instructions; k++)
        count += !strncmp(p->instruction[k].node->op->name, "rnn", 3) &&
                 !strcmp(p->instruction[k].kernel->name, "generated");
    return count;
}

static struct mgpu_options options(const struct layer *layer, const char *devices)
{
    static const int32_t lengths[SAMPLES] = {4, 1, 3, 0, 2, 4, 4, 3};
    struct mgpu_options o = MGPU_OPTIONS;
    bool several = strstr(layer->text, ", lengths") != NULL;
    o.data = tiny_list(
        tiny_noise("x", 3, 3, (int64_t[]){SAMPLES, T, WIDTH}),
        tiny_noise("label", 5, 2, (int64_t[]){SAMPLES, 2}),
        several ? tiny_data("lengths", MGPU_INT32, 1, (int64_t[]){SAMPLES}, lengths) : NULL, NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.5";
    o.batch = SAMPLES;
    o.steps = STEPS;
    o.precision = "f64";
    o.devices = devices;
    return o;
}

static void check_kernels(const struct layer *layer, const char *model)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = options(layer, "cuda:0");
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    int count = t ? generated_of(t->compiled[0].program[0]) : 0;
    CHECK_(count == 2, "%s: %d generated kernels", layer->name, count);
    mgpu_trainer_free(t);
}

static void check_layer(const struct layer *layer)
{
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:0"};
    const struct tiny_weight weights[] = {{"w", layer->w}, {"v", 10}};
    const char *model = tiny_model(layer->text);
    struct tiny_result want, got;
    struct mgpu_options o = options(layer, "cpu:0");
    tiny_train(&want, model, &o, weights, 2);
    CHECK_(want.rc >= 0 && want.loss[STEPS - 1] < want.loss[0], "%s: %s", layer->name, want.error);
    for (int i = 0; i < 2; i++) {
        o.devices = devices[i];
        tiny_train(&got, model, &o, weights, 2);
        double off = tiny_difference(&got, &want);
        CHECK_(off < 1e-10, "%s on %s: off by %.1e, %s", layer->name, devices[i], off, got.error);
        CHECK_(!double_complaints(), "%s: %s", layer->name, double_complaint());
    }
    check_kernels(layer, model);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        check_layer(&layers[i]);
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
