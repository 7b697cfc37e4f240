/* Updates within backward give the bits of updates at the end of the step, on one rank, several and
 * with branches on different ranks, and take less memory. What is not finite stops the run before
 * it comes into a weight. */
#include "runtime/cpu/product.h"
#include "runtime/facade/facade.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

enum { SAMPLES = 13, BATCH = 5 };

static const char *const image = "input x float N 2 5 5\n"
                                 "init k float 8 2 3 3 = normal 0.3\n"
                                 "init kb float 8 = .1\n"
                                 "init scale float 8 = 1\n"
                                 "init shift float 8 = .1\n"
                                 "init mean float 8 = 0\n"
                                 "init var float 8 = 1\n"
                                 "init w float 72 6 = normal 0.3\n"
                                 "init b float 6 = .2\n"
                                 "init t float 6 6 = normal 0.4\n"
                                 "c = Conv(x, k, kb)\n"
                                 "n = BatchNormalization(c, scale, shift, mean, var)\n"
                                 "r = Relu(n)\n"
                                 "f = Flatten(r)\n"
                                 "h = Gemm(f, w, b)\n"
                                 "a = Tanh(h)\n"
                                 "i = MatMul(a, t)\n"
                                 "j = Tanh(i)\n"
                                 "y = MatMul(j, t)\n"
                                 "output y float N 6\n";
static const struct tiny_weight image_weights[] = {{"k", 144},   {"kb", 8},   {"scale", 8},
                                                   {"shift", 8}, {"w", 432},  {"b", 6},
                                                   {"t", 36},    {"mean", 8}, {"var", 8}};

static const char *const optimizers[] = {"sgd,lr=0.01", "sgd,lr=0.002,momentum=0.9,nesterov",
                                         "adam,lr=0.01", "adamw,lr=0.01,weight_decay=0.1",
                                         "lamb,lr=0.01"};

static struct mgpu_options options(const char *const *data, const char *devices)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = data;
    o.loss = tiny_list("mse", NULL);
    o.batch = BATCH;
    o.epochs = 3;
    o.devices = devices;
    o.strategy = "data";
    return o;
}

static struct mgpu_options image_options(const char *devices)
{
    return options(tiny_list(tiny_noise("x", 1, 4, (int64_t[]){SAMPLES, 2, 5, 5}),
                             tiny_noise("label", 2, 2, (int64_t[]){SAMPLES, 6}), NULL),
                   devices);
}

static void check_same(const char *model, struct mgpu_options o, const struct tiny_weight *weights,
                       int count)
{
    struct tiny_result early, late, kept;
    tiny_train(&early, model, &o, weights, count);
    o.gradients = true;
    tiny_train(&kept, model, &o, weights, count);
    o.gradients = false;
    o.skip_nonfinite = true;
    tiny_train(&late, model, &o, weights, count);
    CHECK_(early.rc >= 0 && late.rc >= 0, "%s %s", early.error, late.error);
    CHECK_(tiny_same(&early, &late) && tiny_same(&early, &kept), "%s on %s: off by %g", o.optimizer,
           o.devices, tiny_difference(&early, &late));
}

static void test_image(void)
{
    static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:2,cpu:0"};
    const char *model = tiny_model(image);
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
            struct mgpu_options o = image_options(devices[d]);
            o.optimizer = optimizers[i];
            o.batch_norm = i % 2 ? "sync" : "train";
            check_same(model, o, image_weights, 9);
        }
}

/* With one, and with two replicas of the two places. */
static void test_towers(void)
{
    const char *model = tiny_model(tiny_towers);
    struct mgpu_options o =
        options(tiny_list(tiny_noise("a", 1, 2, (int64_t[]){SAMPLES, 6}),
                          tiny_noise("b", 2, 2, (int64_t[]){SAMPLES, 6}),
                          tiny_noise("label", 3, 2, (int64_t[]){SAMPLES, 3}), NULL),
                "cpu:0,cpu:1");
    o.optimizer = "adam,lr=0.01";
    check_same(model, o, tiny_tower_weights, 2);
    o.strategy = NULL;
    o.place = tiny_list("input:a=cpu:0", "input:b=cpu:1", NULL);
    check_same(model, o, tiny_tower_weights, 2);
    o.merge = "cpu:1";
    o.weights_on = "cpu:1";
    check_same(model, o, tiny_tower_weights, 2);
    o.place = NULL;
    o.merge = o.weights_on = NULL;
    o.strategy = "hybrid";
    o.devices = "cpu:0,cpu:1,cpu:2,cpu:3";
    check_same(model, o, tiny_tower_weights, 2);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Eight dense layers, one behind the other: bytes that they take beside weights and state. */
static int64_t memory_of(const char *devices, bool gradients)
{
    const char *model =
        tiny_model("input x float N 64\n"
                   "init a float 64 64 = normal 0.1\ninit b float 64 64 = normal 0.1\n"
                   "init c float 64 64 = normal 0.1\ninit d float 64 64 = normal 0.1\n"
                   "p = MatMul(x, a)\nq = MatMul(p, b)\nr = MatMul(q, c)\n"
                   "y = MatMul(r, d)\noutput y float N 64\n");
    struct mgpu_options o = options(tiny_list(tiny_noise("x", 1, 2, (int64_t[]){4, 64}),
                                              tiny_noise("label", 2, 2, (int64_t[]){4, 64}), NULL),
                                    devices);
    struct mgpu_trainer *t;
    double g[64 * 64];
    o.gradients = gradients;
    o.batch = 4;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    const struct mgpu_rank *last = mgpu_team_rank(t->team, mgpu_team_size(t->team) - 1);
    int64_t bytes = last->bytes[MGPU_BUFFER_GRADIENTS] + last->bytes[MGPU_BUFFER_ARENA];
    CHECK((last->bytes[MGPU_BUFFER_GRADIENTS] > 0) == gradients);
    CHECK((last->lender != NULL) == (last->replicas > 1));
    if (!gradients)
        CHECK_FAILS(mgpu_gradient_read(t, "a", g, 64 * 64), "options.gradients keeps it");
    mgpu_trainer_free(t);
    return bytes;
}

static void test_memory(void)
{
    enum { WEIGHT = 64 * 64 * 4 };
    CHECK(memory_of("cpu:0", true) > 4 * WEIGHT && memory_of("cpu:0", false) < 2 * WEIGHT);
    CHECK(memory_of("cpu:0,cpu:1", true) > 4 * WEIGHT);
}

/* ---- Products -------------------------------------------------------------------------------- */

enum { IN = 700, OUT = 520 };

static const char *const ranks_of[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:2,cpu:0"};

/* Fills w[] and gives the bytes that the rank with the most takes for gradients and activations. */
static int64_t train_product(const char *model, const struct mgpu_options *o, double *w)
{
    struct mgpu_step_result s;
    struct mgpu_trainer *t;
    int64_t most = 0;
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    for (int r = 0; r < mgpu_team_size(t->team); r++) {
        const int64_t *b = mgpu_team_rank(t->team, r)->bytes;
        int64_t bytes = b[MGPU_BUFFER_GRADIENTS] + b[MGPU_BUFFER_ARENA];
        most = bytes > most ? bytes : most;
    }
    while (mgpu_step(t, &s) > 0)
        ;
    CHECK_OK(mgpu_weight_read(t, "w", w, IN * OUT));
    mgpu_trainer_free(t);
    return most;
}

static double most_off(const double *a, const double *b)
{
    double off = 0;
    for (int k = 0; k < IN * OUT; k++)
        off = fmax(off, fabs(a[k] - b[k]));
    return off;
}

static struct mgpu_options product_options(const char *devices)
{
    return options(tiny_list(tiny_noise("x", 1, 2, (int64_t[]){SAMPLES, IN}),
                             tiny_noise("label", 2, 2, (int64_t[]){SAMPLES, 3}), NULL),
                   devices);
}

static const char *product_model(void)
{
    return tiny_model("input x float N 700\n"
                      "init w float 700 520 = normal 0.05\n"
                      "init b float 520 = .1\n"
                      "init c float 520 3 = normal 0.1\n"
                      "h = Gemm(x, w, b)\nr = Tanh(h)\ny = MatMul(r, c)\n"
                      "output y float N 3\n");
}

/* A dense layer of few samples never has its whole gradient, on no rank. */
static void test_product(void)
{
    static double w[2][IN * OUT];
    const char *model = product_model();
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
            struct mgpu_options o = product_options(ranks_of[d]);
            int64_t bytes[2];
            o.optimizer = optimizers[i];
            for (int late = 0; late < 2; late++) {
                o.gradients = late;
                bytes[late] = train_product(model, &o, w[late]);
            }
            double off = most_off(w[0], w[1]);
            CHECK_(off <= 1e-5, "%s on %s: off by %g", o.optimizer, o.devices, off);
            CHECK(bytes[1] > IN * OUT * 4);
            CHECK(i == 4 || bytes[0] < IN * OUT); /* lamb needs it */
        }
}

/* 13 samples in batches of 5: parts of 2 and 3, of 1 and 2, and ranks without any. */
static void test_product_on_ranks(void)
{
    static double one[IN * OUT], many[IN * OUT];
    const char *model = product_model();
    for (int adam = 0; adam < 2; adam++)
        for (int d = 0; d < 3; d++) {
            struct mgpu_options o = product_options(ranks_of[d]);
            o.optimizer = adam ? "adam,lr=0.01" : "sgd,lr=0.001,momentum=0.9";
            o.precision = "f64";
            train_product(model, &o, d ? many : one);
            double off = d ? most_off(many, one) : 0;
            CHECK_(off <= 1e-10, "%s on %s: off by %g", o.optimizer, o.devices, off);
        }
}

/* Two towers on two places, each with two replicas; then with all weights on the first place. */
static void test_product_on_places(void)
{
    static double one[IN * OUT], many[IN * OUT];
    const char *model = tiny_model("input x float N 700\n"
                                   "input z float N 700\n"
                                   "init w float 700 520 = normal 0.05\n"
                                   "init v float 700 520 = normal 0.05\n"
                                   "init c float 1040 3 = normal 0.1\n"
                                   "h = MatMul(x, w)\nr = Tanh(h)\n"
                                   "i = MatMul(z, v)\ns = Tanh(i)\n"
                                   "j = Concat(r, s) axis=1\ny = MatMul(j, c)\n"
                                   "output y float N 3\n");
    static const char *const list[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:2,cpu:3"};
    static const char *const strategy[] = {NULL, "branch", "hybrid"};
    for (int k = 0; k < 4; k++) {
        int d = k < 3 ? k : 1;
        struct mgpu_options o =
            options(tiny_list(tiny_noise("x", 1, 2, (int64_t[]){SAMPLES, IN}),
                              tiny_noise("z", 3, 2, (int64_t[]){SAMPLES, IN}),
                              tiny_noise("label", 2, 2, (int64_t[]){SAMPLES, 3}), NULL),
                    list[d]);
        o.strategy = k < 3 ? strategy[k] : NULL;
        o.place = k < 3 ? NULL : tiny_list("input:x=cpu:0", "input:z=cpu:1", NULL);
        o.weights_on = k < 3 ? NULL : "cpu:0";
        o.optimizer = "adam,lr=0.01";
        o.precision = "f64";
        train_product(model, &o, k ? many : one);
        double off = k ? most_off(many, one) : 0;
        CHECK_(off <= 1e-10, "on %s: off by %g", o.devices, off);
    }
}

/* ---- An embedding that is the last layer, too ------------------------------------------------ */

enum { WORDS = 10923, WIDTH = 768, TOKENS = 4 };

static void train_words(const char *model, const struct mgpu_options *o, double *w, int64_t *bytes)
{
    struct mgpu_step_result s;
    struct mgpu_trainer *t;
    CHECK_OK(mgpu_trainer_new(&t, model, o));
    const int64_t *b = mgpu_team_rank(t->team, 0)->bytes;
    *bytes = b[MGPU_BUFFER_GRADIENTS] + b[MGPU_BUFFER_ARENA];
    while (mgpu_step(t, &s) > 0)
        ;
    CHECK_OK(mgpu_weight_read(t, "words", w, (int64_t)WORDS * WIDTH));
    mgpu_trainer_free(t);
}

/* Its gradient is the product's, and what comes back to the words that are read; one is twice, one
 * by its place from the end. */
static void test_words(void)
{
    enum { COUNT = WORDS * WIDTH };
    const int64_t ids[4 * TOKENS] = {0, 7, 7, -1, 3, 5, 72, 900, 10922, 8, 1, 0, 71, 4000, 2, 7};
    const char *model = tiny_model("input x int64 N 4\n"
                                   "init words float 10923 768 = normal 0.02\n"
                                   "init m float 768 768 = normal 0.05\n"
                                   "e = Gather(words, x) axis=0\nh = MatMul(e, m)\n"
                                   "t = Transpose(words) perm=[1, 0]\ny = MatMul(h, t)\n"
                                   "output y float N 4 10923\n");
    double *w = mgpu_xcalloc(2 * COUNT, sizeof *w), off = 0;
    int64_t bytes[2];
    for (int adam = 0; adam < 2; adam++) {
        struct mgpu_options o =
            options(tiny_list(tiny_data("x", MGPU_INT64, 2, (int64_t[]){4, TOKENS}, ids),
                              tiny_noise("label", 2, 3, (int64_t[]){4, TOKENS, WORDS}), NULL),
                    "cpu:0");
        o.optimizer = adam ? "adam,lr=0.01,eps=0.01" : "sgd,lr=1,momentum=0.9";
        o.batch = 4;
        o.epochs = 2;
        for (int kept = 0; kept < 2; kept++) {
            o.gradients = kept;
            train_words(model, &o, w + kept * COUNT, &bytes[kept]);
        }
        off = 0;
        for (int k = 0; k < COUNT; k++)
            off = fmax(off, fabs(w[k] - w[COUNT + k]));
        CHECK_(off <= 1e-5, "%s: off by %g", o.optimizer, off);
        CHECK(bytes[1] > COUNT * 4);
        CHECK(bytes[0] < COUNT || !mgpu_cpu_has_product());
    }
    free(w);
}

/* ---- What is not finite ---------------------------------------------------------------------- */

/* The loss is finite, the gradient of v is not: it is multiplied by 1e20 twice. c, whose gradient
 * is complete before, has changed by then. */
static const char *const steep = "input x float N 2\n"
                                 "init v float 2 = 1e-38 1e-38\n"
                                 "init c float 2 = 1 1\n"
                                 "init large float 2 = 1e20 1e20\n"
                                 "f = Mul(x, v)\n"
                                 "g = Mul(f, large)\n"
                                 "h = Mul(g, large)\n"
                                 "y = Mul(h, c)\n"
                                 "output y float N 2\n";

static void check_stop(const char *model, const char *label, const char *devices, const char *says)
{
    struct mgpu_options o = options(
        tiny_list(tiny_floats("x", "4 2", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), label, NULL),
        devices);
    struct mgpu_step_result s;
    struct mgpu_trainer *t;
    o.loss = tiny_list("mae", NULL);
    o.freeze = tiny_list("large", NULL);
    o.batch = 4;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_FAILS(mgpu_step(t, &s), says);
    CHECK(strstr(mgpu_error(), "step 1: ") == mgpu_error());
    mgpu_trainer_free(t);
}

/* The product alone overflows: 1e20 of x times 1e20 that comes back from c. */
static void test_product_stops(const char *devices)
{
    static float x[4 * 700];
    struct mgpu_options o;
    struct mgpu_step_result s;
    struct mgpu_trainer *t;
    const char *model = tiny_model("input x float N 700\n"
                                   "init w float 700 520 = 0\n"
                                   "init c float 520 1 = 1e20\n"
                                   "h = MatMul(x, w)\ny = MatMul(h, c)\n"
                                   "output y float N 1\n");
    for (int i = 0; i < 4 * 700; i++)
        x[i] = 1e20F;
    o = options(tiny_list(tiny_data("x", MGPU_FLOAT, 2, (int64_t[]){4, 700}, x),
                          tiny_floats("label", "4 1", 1.0, 1.0, 1.0, 1.0), NULL),
                devices);
    o.loss = tiny_list("mae", NULL);
    o.freeze = tiny_list("c", NULL);
    o.batch = 4;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_FAILS(mgpu_step(t, &s), "the gradient of 'w' is not finite");
    mgpu_trainer_free(t);
}

/* On two ranks both gradients are in one sum, and no update stands before it. */
static void test_stops(void)
{
    const char *fair = tiny_floats("label", "4 2", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    const char *huge = tiny_floats("label", "4 2", 3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38);
    const char *model = tiny_model(steep);
    check_stop(
        model, fair, "cpu:0",
        "the gradient of 'v' is not finite; computed again with the weights that had changed "
        "by then, the first value that is not is the gradient of ");
    check_stop(model, fair, "cpu:0,cpu:1", "the gradient of 'v' is not finite; ");
    check_stop(model, huge, "cpu:0", "the loss is not finite; the first value that is not is ");
    check_stop(model, huge, "cpu:0,cpu:1", "the loss is not finite; the first value that is not ");
}

int main(void)
{
    tiny_begin();
    test_image();
    test_towers();
    test_memory();
    test_product();
    test_product_on_ranks();
    test_product_on_places();
    test_words();
    for (int d = 0; d < 2; d++)
        test_product_stops(ranks_of[d]);
    test_stops();
    tiny_end();
    return test_end();
}
