/* Normalisation with stored statistics behind a convolution, on a GPU that there is not (double.h):
 * evaluation and predictions have it in the convolution's weights, with the weights and statistics
 * of that moment, and give what the CPU gives. What is added to, limited twice, read twice or of
 * weights larger than the images stays a pass of its own; training keeps all. */
#include "runtime/facade/facade.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/pointwise.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 12, BATCH = 4, EPOCHS = 2, NO_BIAS = 2 /* of the cases */ };

static const char *const *data;

/* Convolution 1 and 2 from x, its normalisation, and `nodes`, which make r of it. */
static const char *model_of(const char *nodes)
{
    char text[2048];
    snprintf(text, sizeof text,
             "input x float N 3 6 6\n"
             "init w float 6 3 3 3 = normal 0.4\ninit b float 6 = .3 -.2 .1 .5 -.4 .2\n"
             "init scale float 6 = 1 .9 1.1 1 -.8 1.2\ninit shift float 6 = .1 .2 .3 -.1 -.2 -.3\n"
             "init mean float 6 = .5\ninit var float 6 = 2\n"
             "init v float 6 3 3 3 = normal 0.5\ninit u float 6 1 1 1 = normal 0.5\n"
             "init zero float = 0\ninit six float = 0.6\n"
             "%sp = GlobalAveragePool(r)\ny = Flatten(p)\noutput y float N 6\n",
             nodes);
    return tiny_model(text);
}

#define CONV "c = Conv(x, w, b) pads=[1, 1, 1, 1]\n"
#define NORM "n = BatchNormalization(c, scale, shift, mean, var) epsilon=0.01\n"

static const struct {
    const char *name, *nodes;
    int folded; /* convolutions that have a bias then, of which so many end in relu */
    int relus;
    int passes; /* pointwise nodes over images that are left */
} cases[] = {
    {"relu", CONV NORM "r = Relu(n)\n", 1, 1, 0},
    {"nothing", CONV NORM "r = Identity(n)\n", 1, 0, 0},
    {"no bias", "c = Conv(x, w) pads=[1, 1, 1, 1]\n" NORM "r = Relu(n)\n", 1, 1, 0},
    {"of groups",
     CONV "m = Relu(c)\nd = Conv(m, u) group=6\n"
          "n = BatchNormalization(d, scale, shift, mean, var)\nr = Relu(n)\n",
     2, 2, 0},
    {"added to", CONV NORM "k = Conv(x, v) pads=[1, 1, 1, 1]\ns = Add(n, k)\nr = Relu(s)\n", 1, 0,
     1},
    {"limited twice", CONV NORM "r = Clip(n, zero, six)\n", 1, 0, 1},
    {"another function", CONV NORM "r = Tanh(n)\n", 1, 0, 1},
    {"read twice", CONV NORM "s = Relu(n)\nt = Tanh(n)\nr = Add(s, t)\n", 1, 0, 1},
    {"read before", CONV NORM "s = Relu(n)\nr = Add(s, c)\n", 1, 0, 1},
    {"small images", "c = Conv(x, w) strides=[3, 3]\n" NORM "r = Relu(n)\n", 0, 0, 1},
};

static bool is_image(const struct mgpu_value *v)
{
    return v->rank == 4 && v->dims[0].power[MGPU_BATCH] == 1 && v->dims[2].value > 1;
}

/* Of the program that evaluates a whole batch. In float16 nothing is folded, and in half types
 * images are cast. */
static void check_program(const struct mgpu_trainer *t, int k, const char *precision)
{
    int folded = 0, relus = 0, passes = 0;
    const struct mgpu_program *p = mgpu_find_program(t, MGPU_MODE_EVALUATE, BATCH, 0);
    for (int i = 0; i < p->instructions; i++) {
        const struct mgpu_node *node = p->instruction[i].node;
        if (node->op == &mgpu_op_conv) {
            folded += node->inputs > 2;
            relus += ((const struct mgpu_conv_attrs *)node->attrs)->relu;
        }
        passes += node->op == &mgpu_op_pointwise && is_image(node->output[0]);
    }
    bool folds = !precision || strcmp(precision, "f16") != 0;
    CHECK_(folded == (folds ? cases[k].folded : 0), "%s in %s: %d with a bias", cases[k].name,
           precision, folded);
    if (!precision)
        CHECK_(relus == cases[k].relus && passes == cases[k].passes, "%s: %d with relu, %d passes",
               cases[k].name, relus, passes);
}

/* The loss of an evaluation after each epoch, and of a run that evaluates alone. */
static void run(double loss[EPOCHS + 1], int k, const char *devices, const char *precision)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const struct mgpu_number *numbers;
    const char *model = model_of(cases[k].nodes);
    o.data = o.val = data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.1";
    o.batch = BATCH;
    o.shuffle = false;
    o.devices = devices;
    o.strategy = "data";
    o.precision = precision;
    o.epochs = EPOCHS;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    if (!strcmp(devices, "cuda:0"))
        check_program(t, k, precision);
    for (int e = 0; e < EPOCHS; e++) {
        for (int i = 0; i < SAMPLES / BATCH; i++)
            CHECK(mgpu_step(t, &s) == 1);
        CHECK_OK(mgpu_evaluate(t, &numbers));
        loss[e] = numbers[0].value;
    }
    mgpu_trainer_free(t);
    o.inference = true;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_evaluate(t, &numbers));
    loss[EPOCHS] = numbers[0].value;
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s on %s: %s", cases[k].name, devices, double_complaint());
}

static void compare(int k, const char *cpus, const char *devices, const char *precision,
                    double limit)
{
    double want[EPOCHS + 1], got[EPOCHS + 1];
    run(want, k, cpus, NULL);
    run(got, k, devices, precision);
    for (int e = 0; e <= EPOCHS; e++)
        CHECK_(fabs(got[e] - want[e]) <= limit * fabs(want[e]), "%s on %s in %s: %.8g, not %.8g",
               cases[k].name, devices, precision, got[e], want[e]);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    data = tiny_list(tiny_noise("x", 3, 4, (int64_t[]){SAMPLES, 3, 6, 6}),
                     tiny_noise("label", 5, 2, (int64_t[]){SAMPLES, 6}), NULL);
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        compare(k, "cpu:0", "cuda:0", NULL, 1e-5);
    compare(NO_BIAS, "cpu:0,cpu:1", "cuda:0,cuda:0", NULL, 1e-5);
    compare(NO_BIAS, "cpu:0", "cuda:0", "bf16", 2e-2);
    compare(NO_BIAS, "cpu:0", "cuda:0", "f16", 4e-3);
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
