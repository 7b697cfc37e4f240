/* Reports of users about imported graphs, with their values (rows 5, 12, 20a and 21; rows 2, 4, 6
 * and 7 stand in tests/importer), and what mends exports for inference. A gradient G arriving at an
 * output of n elements comes from the mean squared error against Y - n/2 * G. */
#include "runtime/base/memory.h"
#include "runtime/data/dataset.h"
#include "runtime/facade/facade.h"
#include "tests/reports/one_step.h"

static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0"};

/* A model whose y, [1, ...], should be `y`, and the gradients of its weights for G. */
struct row {
    const char *name, *shape, *x, *text; /* shape of y; what x is without its N */
    struct tiny_weight weight[2];
    int count;
    double y[8], g[8], gradient[8];
};

static void check_row(const struct row *k)
{
    char text[1024];
    double label[8], x[8] = {0};
    int64_t dims[MGPU_MAX_RANK];
    int rank = 0, end, gradients = k->weight[0].count + k->weight[1].count;
    for (const char *c = k->shape; sscanf(c, "%ld%n", &dims[rank], &end) == 1; c += end)
        rank++;
    for (int i = 0; i < k->count; i++)
        label[i] = k->y[i] - k->count / 2. * k->g[i];
    snprintf(text, sizeof text, "input x float N %s\n%soutput y\n", k->x, k->text);
    struct mgpu_options o = one_step();
    struct tiny_result r;
    int64_t in[MGPU_MAX_RANK] = {1};
    int in_rank = 1;
    for (const char *c = k->x; sscanf(c, "%ld%n", &in[in_rank], &end) == 1; c += end)
        in_rank++;
    o.data = tiny_list(tiny_data("x", MGPU_DOUBLE, in_rank, in, x),
                       tiny_data("label", MGPU_DOUBLE, rank, dims, label), NULL);
    tiny_train(&r, tiny_model(text), &o, k->weight, 1 + !!k->weight[1].name);
    CHECK_(r.rc >= 0, "%s: %s", k->name, r.error);
    if (r.rc >= 0)
        check_all(r.gradient, k->gradient, gradients, k->name);
}

static const struct row rows[] = {
    {.name = "row 5a, borders count",
     .shape = "1 1 2 2",
     .x = "1 2 2",
     .text = "init P float 1 1 2 2 = 1\ns = Add(x, P)\n"
             "y = AveragePool(s) kernel_shape=[2, 2] pads=[0, 0, 1, 1] count_include_pad=1\n",
     .weight = {{"P", 4}},
     .count = 4,
     .y = {1, .5, .5, .25},
     .g = {1, 1, 1, 1},
     .gradient = {.25, .5, .5, 1}},
    {.name = "row 5a, borders do not count",
     .shape = "1 1 2 2",
     .x = "1 2 2",
     .text = "init P float 1 1 2 2 = 1\ns = Add(x, P)\n"
             "y = AveragePool(s) kernel_shape=[2, 2] pads=[0, 0, 1, 1]\n",
     .weight = {{"P", 4}},
     .count = 4,
     .y = {1, 1, 1, 1},
     .g = {1, 1, 1, 1},
     .gradient = {.25, .75, .75, 2.25}},
    {.name = "row 5b",
     .shape = "1 1 3",
     .x = "1 4",
     .text = "init P float 1 1 4 = 1 2 3 4\ns = Add(x, P)\n"
             "y = AveragePool(s) kernel_shape=[3] strides=[2] pads=[1, 1] ceil_mode=1 "
             "count_include_pad=1\n",
     .weight = {{"P", 4}},
     .count = 3,
     .y = {1, 3, 2},
     .g = {1, 1, 1},
     .gradient = {1. / 3, 2. / 3, 1. / 3, 5. / 6}},
    {.name = "row 12a",
     .shape = "1 3",
     .x = "3",
     .text = "init D float 2 2 = 0 1 2 3\ninit i int64 3 2 = 1 1 1 1 0 0\n"
             "d = GatherND(D, i)\ny = Add(x, d)\n",
     .weight = {{"D", 4}},
     .count = 3,
     .y = {3, 3, 0},
     .g = {1, 1, 1},
     .gradient = {1, 0, 0, 2}},
    {.name = "row 12b",
     .shape = "1 3 2",
     .x = "3 2",
     .text = "init D float 2 2 = 0 1 2 3\ninit i int64 3 = -1 1 1\n"
             "d = Gather(D, i) axis=0\ny = Add(x, d)\n",
     .weight = {{"D", 4}},
     .count = 6,
     .y = {2, 3, 2, 3, 2, 3},
     .g = {1, 1, 1, 1, 1, 1},
     .gradient = {0, 0, 3, 3}},
    {.name = "row 12c",
     .shape = "1 4",
     .x = "4",
     .text = "init D float 4 = 1 2 3 4\ninit i int64 2 = 1 3\ninit u float 2 = 5 6\n"
             "d = ScatterElements(D, i, u) axis=0\ny = Add(x, d)\n",
     .weight = {{"D", 4}, {"u", 2}},
     .count = 4,
     .y = {1, 5, 3, 6},
     .g = {1, 10, 100, 1000},
     .gradient = {1, 0, 100, 0, 10, 1000}},
    {.name = "row 12d",
     .shape = "1 4",
     .x = "4",
     .text = "opset 18\ninit D float 4 = 1 2 3 4\ninit i int64 2 = 1 1\ninit u float 2 = 5 6\n"
             "d = ScatterElements(D, i, u) axis=0 reduction=\"add\"\ny = Add(x, d)\n",
     .weight = {{"D", 4}, {"u", 2}},
     .count = 4,
     .y = {1, 13, 3, 4},
     .g = {1, 10, 100, 1000},
     .gradient = {1, 10, 100, 1000, 10, 10}},
    {.name = "row 12e",
     .shape = "1 2",
     .x = "2",
     .text = "opset 18\ninit D float 1 2 = 1 2\ninit i int64 1 4 = 0 1 1 0\n"
             "init u float 1 4 = 1 2 3 4\n"
             "d = ScatterElements(D, i, u) axis=1 reduction=\"add\"\ny = Add(x, d)\n",
     .weight = {{"D", 2}, {"u", 4}},
     .count = 2,
     .y = {6, 7},
     .g = {1, 10},
     .gradient = {1, 10, 1, 10, 10, 1}},
};

static int predict(struct mgpu_array *y, const char *model, const struct mgpu_options *options)
{
    struct mgpu_options o = *options;
    struct mgpu_trainer *t;
    char spec[256];
    const char *out = tiny_path("predicted.npz");
    o.inference = o.predict = true;
    o.loss = NULL;
    MGPU_TRY(mgpu_trainer_new(&t, model, &o));
    int rc = mgpu_predict(t, out);
    mgpu_trainer_free(t);
    MGPU_TRY(rc);
    snprintf(spec, sizeof spec, "%s:y", out);
    return mgpu_dataset_load(y, spec, 100000);
}

/* ---- Row 5c: "same" padding of a transposed convolution ---------------------------------------
 */

static void test_conv_transpose(void)
{
    static const double first[] = {1, 1, 2, 1, 2, 1};
    struct mgpu_options o = one_step();
    struct mgpu_array y = {0};
    double total = 0;
    o.data =
        tiny_list(tiny_floats("x", "1 1 3 3", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), NULL);
    CHECK_OK(predict(&y,
                     tiny_model("input x float N 1 3 3\ninit W float 1 1 3 3 = 1\n"
                                "y = ConvTranspose(x, W) strides=[2, 2] auto_pad=\"SAME_UPPER\"\n"
                                "output y\n"),
                     &o));
    CHECK(y.data && mgpu_array_count(&y) == 36);
    for (int i = 0; i < 36 && y.data; i++) {
        double v = mgpu_get_double(y.data, y.type, i);
        total += v;
        CHECK(i > 5 || v == first[i]);
    }
    CHECK_NEAR(total, 64, 0);
    mgpu_array_free(&y);
}

static void test_index_out_of_range(void)
{
    struct mgpu_options o = one_step();
    struct tiny_result r;
    const int64_t one = 1, bad[] = {7};
    o.data = tiny_list(tiny_data("i", MGPU_INT64, 1, &one, bad),
                       tiny_floats("label", "1 2", 0.0, 0.0), NULL);
    tiny_train(&r,
               tiny_model("input i int64 N\ninit D float 2 2 = 0 1 2 3\ny = Gather(D, i)\n"
                          "output y float N 2\n"),
               &o, NULL, 0);
    CHECK_(r.rc < 0 && strchr(r.error, '7'), "%s", r.error);
}

/* ---- Row 20a: a batch of 2 in two Reshapes ----------------------------------------------------
 */

static void test_baked_pair(void)
{
    const char *model = tiny_model("input x float N 4\n"
                                   "init in int64 3 = 2 2 2\ninit out int64 2 = 2 4\n"
                                   "init w float 4 1 = 1 2 3 4\ninit b float 1 = 0\n"
                                   "a = Reshape(x, in)\nt = Transpose(a) perm=[0, 2, 1]\n"
                                   "c = Reshape(t, out)\ny = Gemm(c, w, b)\noutput y float N 1\n");
    for (int64_t n = 1; n <= 4; n++)
        for (int d = 0; d < 2; d++) {
            double x[16];
            struct mgpu_options o = one_step();
            struct mgpu_array y = {0};
            for (int i = 0; i < 16; i++)
                x[i] = i;
            o.data = tiny_list(tiny_data("x", MGPU_DOUBLE, 2, (int64_t[]){n, 4}, x), NULL);
            o.batch = n;
            o.devices = devices[d];
            CHECK_OK(predict(&y, model, &o));
            CHECK(y.data && mgpu_array_count(&y) == n);
            for (int64_t i = 0; i < n && y.data; i++) /* x0 + 2 x2 + 3 x1 + 4 x3 */
                CHECK_NEAR(mgpu_get_double(y.data, y.type, i), 40. * (double)i + 19, 1e-6);
            mgpu_array_free(&y);
        }
}

/* ---- Row 21: recurrent models with states -----------------------------------------------------
 */

#define LSTM                                                                                       \
    "input x float N 2 1\ninit W float 1 4 1 = .5 -.3 .7 .2\ninit R float 1 4 1 = .1 .4 -.6 .3\n"  \
    "init B float 1 8 = .1 .2 .3 .4 0 0 0 0\ninit last int64 = -1\ninit one int64 1 = 1\n"         \
    "t = Transpose(x) perm=[1, 0, 2]\n"
#define GIVEN "-, h, - = LSTM(t, W, R, B, -, s, s) hidden_size=1\n"
#define FREE  "-, h, - = LSTM(t, W, R, B) hidden_size=1 name=\"cell\"\n"
#define GIVES "first = Constant() value_ints=[0]\ny = Squeeze(h, first)\noutput y float N 1\n"

static const struct tiny_weight cell[] = {{"W", 4}, {"R", 4}, {"B", 8}};

static struct mgpu_options sequences(int64_t n)
{
    struct mgpu_options o = one_step();
    o.data = tiny_list(tiny_noise("x", 3, 3, (int64_t[]){n, 2, 1}),
                       tiny_noise("label", 4, 2, (int64_t[]){n, 1}), NULL);
    o.precision = "f64";
    return o;
}

static void test_states(void)
{
    struct mgpu_options o = sequences(3);
    struct tiny_result none, zeros, half;
    tiny_train(&none, tiny_model(LSTM FREE GIVES), &o, WEIGHTS(cell));
    for (int d = 0; d < 3; d++) {
        o.devices = devices[d];
        tiny_train(&zeros, tiny_model(LSTM "init s float 1 1 1 = 0\n" GIVEN GIVES), &o,
                   WEIGHTS(cell));
        CHECK(tiny_difference(&zeros, &none) < 1e-10);
        tiny_train(&half, tiny_model(LSTM "init s float 1 1 1 = 0.5\n" GIVEN GIVES), &o, NULL, 0);
        CHECK_(half.rc < 0 && strstr(half.error, "LSTM"), "%s", half.error);
    }
}

/* The state follows its place in the batch; the tail of 2 goes on from places 0 and 1. */
static void test_carried_state(void)
{
    struct mgpu_options o = sequences(10);
    struct tiny_result one, many, fresh;
    const char *model = tiny_model(LSTM FREE GIVES);
    o.batch = 4;
    o.steps = 6;
    tiny_train(&fresh, model, &o, WEIGHTS(cell));
    o.state = tiny_list("cell", NULL);
    tiny_train(&one, model, &o, WEIGHTS(cell));
    CHECK_(one.rc >= 0, "%s", one.error);
    CHECK(one.loss[0] == fresh.loss[0] && one.loss[1] != fresh.loss[1]);
    for (int d = 1; d < 3; d++) {
        o.devices = devices[d];
        tiny_train(&many, model, &o, WEIGHTS(cell));
        CHECK(tiny_difference(&many, &one) < 1e-10);
    }
    o.state = tiny_list("other", NULL);
    tiny_train(&many, model, &o, NULL, 0);
    CHECK_(many.rc < 0 && strstr(many.error, "--state other"), "%s", many.error);
}

/* s' = s + x of each place: exact sums. */
static void test_running_sum(void)
{
    struct mgpu_options o = one_step();
    struct tiny_result r;
    static const struct tiny_weight weight[] = {{"w", 1}};
    const char *model = tiny_model("input x float N 1\ninput s float N 1\ninit w float 1 = 1\n"
                                   "next = Add(s, x)\ny = Mul(next, w)\noutput y float N 1\n"
                                   "output next float N 1\n");
    o.optimizer = "sgd,lr=0";
    o.loss = tiny_list("mse,output=y", NULL);
    o.data = tiny_list(tiny_floats("x", "5 1", 1.0, 2.0, 3.0, 4.0, 5.0),
                       tiny_floats("s", "2 1", 10.0, 20.0),
                       tiny_floats("label", "5 1", 0.0, 0.0, 0.0, 0.0, 0.0), NULL);
    o.state = tiny_list("s=next", NULL);
    o.batch = 2;
    o.steps = 4;
    for (int d = 0; d < 3; d++) {
        o.devices = devices[d];
        tiny_train(&r, model, &o, WEIGHTS(weight));
        CHECK_(r.rc >= 0, "%s", r.error);
        CHECK_NEAR(r.loss[0], (11 * 11 + 22 * 22) / 2., 1e-3);
        CHECK_NEAR(r.loss[1], (14 * 14 + 26 * 26) / 2., 1e-3);
        CHECK_NEAR(r.loss[2], 19 * 19, 1e-3); /* place 1 rests */
        CHECK_NEAR(r.loss[3], (20 * 20 + 28 * 28) / 2., 1e-3);
    }
    o.state = tiny_list("x=next", NULL);
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0, "data for every sample are no state's start");
}

/* ---- Exports for inference --------------------------------------------------------------------
 */

/* A bias that the exporter removed is there again, trained, and in the file. */
static void test_added_bias(void)
{
    static const struct tiny_weight weights[] = {{"w", 2}, {"dense.bias", 2}};
    const char *model = tiny_model("input x float N 1\ninit w float 1 2 = 1 2\n"
                                   "y = MatMul(x, w) name=\"dense\"\noutput y float N 2\n");
    struct mgpu_options o = one_step();
    struct tiny_result r;
    o.add_bias = "den*";
    o.data = tiny_list(tiny_floats("x", "1 1", 3.0), tiny_floats("label", "1 2", 2.0, 6.0), NULL);
    tiny_train(&r, model, &o, WEIGHTS(weights));
    CHECK_(r.rc >= 0, "%s", r.error);
    check_all(r.gradient, (double[]){3, 0, 1, 0}, 4, "dw, db"); /* y = 3, 6 */
    o.add_bias = "conv*";
    tiny_train(&r, model, &o, NULL, 0);
    CHECK_(r.rc < 0 &&
               strstr(r.error, "no layer without a bias is called conv*; there are: 'dense' (w)"),
           "%s", r.error);
}

/* Dropout behind a node that has none: with p, what is left is scaled up. */
static void test_dropout_put_back(void)
{
    static const struct tiny_weight weight[] = {{"w", 64}};
    const char *model = tiny_model("input x float N 64\ninit w float 64 = 1\n"
                                   "h = Mul(x, w) name=\"layer\"\ny = Identity(h)\n"
                                   "output y float N 64\n");
    struct mgpu_options o = one_step();
    struct tiny_result r;
    double ones[64], zeros[64] = {0};
    int dropped = 0;
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    o.data = tiny_list(tiny_data("x", MGPU_DOUBLE, 2, (int64_t[]){1, 64}, ones),
                       tiny_data("label", MGPU_DOUBLE, 2, (int64_t[]){1, 64}, zeros), NULL);
    o.dropout = tiny_list("layer=0.5", NULL);
    tiny_train(&r, model, &o, WEIGHTS(weight));
    CHECK_(r.rc >= 0, "%s", r.error);
    for (int i = 0; i < 64 && r.rc >= 0; i++) { /* y = 2 where it is kept: dy = 4/64, dw = 8/64 */
        dropped += r.gradient[i] == 0;
        CHECK(r.gradient[i] == 0 || fabs(r.gradient[i] - 0.125) < 1e-6);
    }
    CHECK(dropped > 10 && dropped < 54);
}

/* Random starts: by the seed, the same on every rank, of the size that the layer asks for. */
static void test_reinit(void)
{
    static const struct tiny_weight weights[] = {{"w", 4000}, {"b", 4}};
    const char *model = tiny_model("input x float N 1000\ninit w float 1000 4 = 3\n"
                                   "init b float 4 = 5\ny = Gemm(x, w, b)\n"
                                   "output y float N 4\n");
    static struct tiny_result one, three, other;
    struct mgpu_options o = one_step();
    double square = 0;
    o.data = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){3, 1000}),
                       tiny_noise("label", 4, 2, (int64_t[]){3, 4}), NULL);
    o.optimizer = "sgd,lr=0";
    o.reinit = tiny_list("w=he", "b", NULL);
    tiny_train(&one, model, &o, WEIGHTS(weights));
    CHECK_(one.rc >= 0, "%s", one.error);
    for (int i = 0; i < 4000; i++)
        square += one.weight[i] * one.weight[i];
    CHECK(fabs(sqrt(square / 4000) / sqrt(2. / 1000) - 1) < 0.05);
    for (int i = 4000; i < 4004; i++)
        CHECK_NEAR(one.weight[i], 0, 0);
    o.devices = devices[2];
    tiny_train(&three, model, &o, WEIGHTS(weights));
    CHECK(!memcmp(one.weight, three.weight, 4000 * sizeof *one.weight));
    o.seed = 7;
    tiny_train(&other, model, &o, WEIGHTS(weights));
    CHECK(memcmp(one.weight, other.weight, 4000 * sizeof *one.weight));
    o.reinit = tiny_list("v=glorot", NULL);
    tiny_train(&other, model, &o, NULL, 0);
    CHECK_(other.rc < 0 && strstr(other.error, "--reinit v=glorot"), "%s", other.error);
}

int main(void)
{
    tiny_begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
    test_conv_transpose();
    test_index_out_of_range();
    test_baked_pair();
    test_states();
    test_carried_state();
    test_running_sum();
    test_added_bias();
    test_dropout_put_back();
    test_reinit();
    tiny_end();
    return test_end();
}
