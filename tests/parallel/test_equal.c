/* N ranks equal one rank, through the facade: uneven and missing samples, ignored labels, weights
 * of classes and samples, accumulation, clipping, several losses, losses inside the graph, dropout.
 * In double to 1e-10, in float to 1e-5; the same bits in two runs, and with --deterministic the
 * same bits on any devices.
 *
 *     build/test_equal [dropout]      that part alone
 */
#include "runtime/base/memory.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0", "cpu:0-3"};

/* ---- Models ---------------------------------------------------------------------------------- */

static const char *const mlp = "producer pytorch\n"
                               "input x float N 5\n"
                               "init w1 float 5 4 = .3 -.2 .5 .1 -.4 .2 .6 -.1 .2 .4 -.3 .7 -.5 "
                               ".1 .2 .3 .6 -.6 .4 .2\n"
                               "init b1 float 4 = .1 -.1 .2 .3\n"
                               "init w2 float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\n"
                               "init b2 float 3 = .1 .2 -.1\n"
                               "a = MatMul(x, w1)\n"
                               "b = Add(a, b1)\n"
                               "h = Tanh(b)\n"
                               "c = MatMul(h, w2)\n"
                               "y = Add(c, b2)\n"
                               "output y float N 3\n";
static const struct tiny_weight mlp_weights[] = {{"w1", 20}, {"b1", 4}, {"w2", 12}, {"b2", 3}};

static const char *const two_heads =
    "input x float N 5\n"
    "init w1 float 5 4 = .3 -.2 .5 .1 -.4 .2 .6 -.1 .2 .4 -.3 .7 -.5 .1 .2 .3 .6 -.6 .4 .2\n"
    "init w2 float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\n"
    "init w3 float 4 2 = .2 .3 -.4 .5 .6 -.7 .1 .2\n"
    "a = MatMul(x, w1)\n"
    "h = Tanh(a)\n"
    "kind = MatMul(h, w2)\n"
    "value = MatMul(h, w3)\n"
    "output kind float N 3\n"
    "output value float N 2\n";
static const struct tiny_weight head_weights[] = {{"w1", 20}, {"w2", 12}, {"w3", 8}};

/* mean(|h|^2) + mean over the samples of (y - target)^2: two means over the batch. */
static const char *const inside =
    "input x float N 5\n"
    "input target float N 3\n"
    "init w1 float 5 3 = .3 -.2 .5 .1 -.4 .2 .6 -.1 .2 .4 -.3 .7 -.5 .1 .2\n"
    "init b1 float 3 = .1 .2 -.1\n"
    "a = MatMul(x, w1)\n"
    "y = Add(a, b1)\n"
    "d = Sub(y, target)\n"
    "e = Mul(d, d)\n"
    "m = ReduceMean(e) keepdims=0\n"
    "s = Mul(y, y)\n"
    "p = ReduceMean(s) keepdims=0\n"
    "loss = Add(m, p)\n"
    "output loss float\n";
static const struct tiny_weight inside_weights[] = {{"w1", 15}, {"b1", 3}};

static const char *const convolution =
    "producer pytorch\n"
    "input x float N 2 5 5\n"
    "init k float 4 2 3 3 = .2 -.1 .3 .4 -.2 .1 .5 -.3 .2 .1 .2 -.4 .3 .1 -.1 .2 .4 -.3 "
    ".1 .3 -.2 .2 .4 -.1 .3 .1 .2 -.3 .2 .1 .4 -.2 .3 .2 -.1 .1 .2 -.3 .1 .4 .2 -.2 .1 .3 .3 -.4 "
    ".2 .1 -.1 .2 .3 -.2 .4 .1 .2 -.1 .1 .3 -.2 .2 .1 .3 -.3 .1 .2 .4 -.1 .2 .3 -.2 .1 .2\n"
    "init scale float 4 = 1 .9 1.1 1.2\n"
    "init shift float 4 = 1.5 1.2 1.4 1.3\n"
    "init mean float 4 = 0\n"
    "init var float 4 = 1\n"
    "init w float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\n"
    "a = Conv(x, k) pads=[1, 1, 1, 1]\n"
    "b = BatchNormalization(a, scale, shift, mean, var)\n"
    "r = Relu(b)\n"
    "g = GlobalAveragePool(r)\n"
    "f = Flatten(g)\n"
    "y = MatMul(f, w)\n"
    "output y float N 3\n";
static const struct tiny_weight conv_weights[] = {{"k", 72},   {"scale", 4}, {"shift", 4},
                                                  {"mean", 4}, {"var", 4},   {"w", 12}};

static const char *const dropping =
    "input x float N 5\n"
    "init w1 float 5 4 = .3 -.2 .5 .1 -.4 .2 .6 -.1 .2 .4 -.3 .7 -.5 .1 .2 .3 .6 -.6 .4 .2\n"
    "init w2 float 4 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5\n"
    "init ratio float = .4\n"
    "init training bool = 1\n"
    "a = MatMul(x, w1)\n"
    "h = Dropout(a, ratio, training)\n"
    "y = MatMul(h, w2)\n"
    "output y float N 3\n";
static const struct tiny_weight drop_weights[] = {{"w1", 20}, {"w2", 12}};

/* ---- Data ------------------------------------------------------------------------------------ */

static const char *noise(const char *name, unsigned seed, int64_t samples, int64_t width)
{
    return tiny_noise(name, seed, 2, (int64_t[]){samples, width});
}

/* Class numbers 0, 1, 2, ...; every third is `ignored`. */
static const char *classes(const char *name, int64_t samples, int64_t ignored)
{
    int64_t label[64];
    for (int64_t i = 0; i < samples; i++)
        label[i] = i % 3 == 1 ? ignored : i * 7 % 3;
    return tiny_data(name, MGPU_INT64, 1, &samples, label);
}

static struct mgpu_options plain(int64_t batch)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.batch = batch;
    o.epochs = 2;
    o.seed = 5;
    o.exact = true;
    o.optimizer = "sgd,lr=0.3,momentum=0.9";
    o.strategy = "data";
    return o;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static void run_on(struct tiny_result *out, const char *model, struct mgpu_options o, int ranks,
                   const char *precision, const struct tiny_weight *w, int count)
{
    o.devices = devices[ranks - 1];
    o.precision = precision;
    tiny_train(out, model, &o, w, count);
    CHECK_(out->rc >= 0, "%d ranks: %s", ranks, out->error);
}

/* 1 to 4 ranks equal one, in both precisions; gives the result of one rank in double. */
static struct tiny_result check(const char *what, const char *model, const struct mgpu_options *o,
                                const struct tiny_weight *w, int count)
{
    static const char *const precisions[] = {"f32", "f64"};
    static const double limits[] = {1e-5, 1e-10};
    static struct tiny_result one, many, again;
    for (int p = 0; p < 2; p++) {
        run_on(&one, model, *o, 1, precisions[p], w, count);
        CHECK(one.steps > 0 && isfinite(one.loss[one.steps - 1]));
        for (int ranks = 2; ranks <= 4; ranks++) {
            run_on(&many, model, *o, ranks, precisions[p], w, count);
            double off = tiny_difference(&many, &one);
            CHECK_(off <= limits[p], "%s: %d ranks in %s are off by %g", what, ranks, precisions[p],
                   off);
        }
        run_on(&again, model, *o, 4, precisions[p], w, count);
        CHECK_(tiny_same(&again, &many), "%s: two runs differ in %s", what, precisions[p]);
    }
    return one;
}

#define WEIGHTS(list) list, (int)(sizeof(list) / sizeof *(list))

static const char *class_weight_loss(const char *more)
{
    static char text[512];
    const char *file = strchr(tiny_floats("", "3", .5, 2.0, 1.25), '=') + 1;
    snprintf(text, sizeof text, "cross_entropy,class_weights=%s%s", file, more);
    return text;
}

/* 13 samples in batches of 5: slices of 2 and 1, then a batch of 3 on up to 4 ranks. */
static void test_labels(void)
{
    const char *model = tiny_model(mlp);
    struct mgpu_options o = plain(5);
    o.data = tiny_list(noise("x", 1, 13, 5), classes("label", 13, -100), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    check("ignored labels", model, &o, WEIGHTS(mlp_weights));
    o.loss = tiny_list(class_weight_loss(",label_smoothing=0.1"), NULL);
    o.clip_norm = 0.1;
    check("class weights and clipping by norm", model, &o, WEIGHTS(mlp_weights));
    o.clip_norm = 0;
    o.clip_value = 0.02;
    o.optimizer = "adam,lr=0.01,weight_decay=0.1";
    check("clipping by value", model, &o, WEIGHTS(mlp_weights));
    o.data = tiny_list(noise("x", 1, 13, 5), classes("label", 13, 2), NULL);
    o.loss = tiny_list(class_weight_loss(",ignore_index=2,reduction=sum"), NULL);
    check("a sum, not a mean", model, &o, WEIGHTS(mlp_weights));
}

/* A batch without any counted label changes nothing. */
static void test_nothing_counts(void)
{
    int64_t label[] = {0, 1, 2, 1, -100, -100}, n = 6;
    struct mgpu_options o = plain(4);
    o.shuffle = false;
    o.epochs = 1;
    o.optimizer = "sgd,lr=0.3";
    o.data = tiny_list(noise("x", 1, 6, 5), tiny_data("label", MGPU_INT64, 1, &n, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    struct tiny_result two = check("no label counts", tiny_model(mlp), &o, WEIGHTS(mlp_weights));
    CHECK(two.steps == 2 && two.loss[1] == 0);
    o.steps = 1;
    struct tiny_result one = check("all labels count", tiny_model(mlp), &o, WEIGHTS(mlp_weights));
    CHECK(memcmp(one.weight, two.weight, sizeof one.weight) == 0);
}

static void test_sample_weights(void)
{
    struct mgpu_options o = plain(6);
    o.data = tiny_list(noise("x", 1, 13, 5), noise("label", 2, 13, 3), NULL);
    o.sample_weight = strchr(tiny_floats("", "13", 1.0, 0.5, 2.0, 0.0, 1.5, 1.0, 3.0, 0.25, 1.0,
                                         1.0, 0.0, 2.0, 4.0),
                             '=') +
                      1;
    o.loss = tiny_list("mse", NULL);
    check("sample weights", tiny_model(mlp), &o, WEIGHTS(mlp_weights));
    o.data = tiny_list(noise("x", 1, 13, 5), classes("label", 13, -100), NULL);
    o.loss = tiny_list(class_weight_loss(""), NULL);
    check("sample and class weights", tiny_model(mlp), &o, WEIGHTS(mlp_weights));
}

static void test_two_losses(void)
{
    struct mgpu_options o = plain(7);
    o.data = tiny_list(noise("x", 3, 17, 5), classes("k", 17, -100), noise("v", 4, 17, 2), NULL);
    o.loss = tiny_list("cross_entropy,output=kind,label=k",
                       "huber,output=value,label=v,weight=0.3,"
                       "delta=0.5",
                       NULL);
    o.clip_norm = 0.5;
    check("two losses", tiny_model(two_heads), &o, WEIGHTS(head_weights));
}

static void test_loss_inside(void)
{
    struct mgpu_options o = plain(6);
    o.data = tiny_list(noise("x", 5, 13, 5), noise("target", 6, 13, 3), NULL);
    o.loss = tiny_list("output", NULL);
    check("a loss inside the graph", tiny_model(inside), &o, WEIGHTS(inside_weights));
    o.accumulate = 4;
    o.shuffle = false;
    struct tiny_result pieces = check("a loss inside the graph, in pieces", tiny_model(inside), &o,
                                      WEIGHTS(inside_weights));
    o.accumulate = 1;
    struct tiny_result whole =
        check("a loss inside the graph, at once", tiny_model(inside), &o, WEIGHTS(inside_weights));
    CHECK(tiny_difference(&pieces, &whole) <= 1e-10);
}

/* Pieces that do not divide: 7 in 3, then the last 2 in 3. */
static void test_accumulation(void)
{
    struct mgpu_options o = plain(7);
    o.data = tiny_list(noise("x", 1, 16, 5), classes("label", 16, -100), NULL);
    o.loss = tiny_list(class_weight_loss(""), NULL);
    o.clip_norm = 0.1;
    struct tiny_result whole = check("at once", tiny_model(mlp), &o, WEIGHTS(mlp_weights));
    for (int m = 2; m <= 7; m++) {
        o.accumulate = m;
        struct tiny_result pieces = check("pieces", tiny_model(mlp), &o, WEIGHTS(mlp_weights));
        CHECK_(tiny_difference(&pieces, &whole) <= 1e-10, "%d pieces are off by %g", m,
               tiny_difference(&pieces, &whole));
    }
}

/* Synchronised statistics are exact for uneven slices too. */
static void test_batch_norm(void)
{
    struct mgpu_options o = plain(7);
    o.data = tiny_list(tiny_noise("x", 7, 4, (int64_t[]){16, 2, 5, 5}), classes("label", 16, -100),
                       NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "sgd,lr=0.05,momentum=0.9";
    o.batch_norm = "sync";
    struct tiny_result synced =
        check("synchronised batch norm", tiny_model(convolution), &o, WEIGHTS(conv_weights));
    o.batch_norm = "train";
    struct tiny_result one;
    run_on(&one, tiny_model(convolution), o, 1, "f64", WEIGHTS(conv_weights));
    CHECK(tiny_difference(&synced, &one) <= 1e-10); /* on one rank the two are the same */
    o.batch_norm = "frozen";
    check("frozen batch norm", tiny_model(convolution), &o, WEIGHTS(conv_weights));
}

/* Four samples twice: 8 of [2,5,5]. */
static const char *doubled(const char *name)
{
    float x[8 * 50];
    for (int i = 0; i < 400; i++)
        x[i] = (float)sin(1 + 3 * (i % 200));
    return tiny_data(name, MGPU_FLOAT, 4, (int64_t[]){8, 2, 5, 5}, x);
}

/* Two pieces of the same samples have the statistics of the batch, so they train like it. The
 * running ones move once a piece: from 0 and 1, with the variance of n elements times n/(n-1). */
static void check_pieces(const struct tiny_result *pieces, const struct tiny_result *whole)
{
    enum { MEAN = 80, VARIANCE = 84, AFTER = 88 };
    CHECK_NEAR(pieces->loss[0], whole->loss[0], 1e-10);
    for (int i = 0; i < whole->weights; i++)
        if (i < MEAN || i >= AFTER)
            CHECK_NEAR(pieces->weight[i], whole->weight[i], 1e-10);
    for (int i = 0; i < 4; i++) {
        double v = (whole->weight[VARIANCE + i] - .9) * 199 / 200 * 100 / 99;
        CHECK_NEAR(pieces->weight[MEAN + i], 1.9 * whole->weight[MEAN + i], 1e-10);
        CHECK_NEAR(pieces->weight[VARIANCE + i], .9 * (.9 + v) + v, 1e-7);
    }
}

/* The statistics are those of each piece: of all ranks (sync), or of one. */
static void test_batch_norm_in_pieces(void)
{
    static const char *const modes[] = {"train", "sync"};
    struct mgpu_options o = plain(8);
    int64_t label[] = {0, 2, 1, 1, 0, 2, 1, 1}, eight = 8;
    struct tiny_result whole, pieces;
    o.data = tiny_list(doubled("x"), tiny_data("label", MGPU_INT64, 1, &eight, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.steps = 1;
    o.shuffle = false;
    run_on(&whole, tiny_model(convolution), o, 1, "f64", WEIGHTS(conv_weights));
    o.accumulate = 2;
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int mode = ranks > 1; mode < 2; mode++) {
            o.batch_norm = modes[mode];
            run_on(&pieces, tiny_model(convolution), o, ranks, "f64", WEIGHTS(conv_weights));
            check_pieces(&pieces, &whole);
        }
    o.batch_norm = "train"; /* each rank's own, in pieces */
    run_on(&pieces, tiny_model(convolution), o, 2, "f64", WEIGHTS(conv_weights));
}

/* Masks belong to samples, not to ranks or pieces. */
static void test_dropout(void)
{
    struct mgpu_options o = plain(6);
    o.data = tiny_list(noise("x", 1, 13, 5), noise("label", 2, 13, 3), NULL);
    o.loss = tiny_list("mse", NULL);
    struct tiny_result kept = check("dropout", tiny_model(dropping), &o, WEIGHTS(drop_weights));
    o.accumulate = 4;
    struct tiny_result pieces =
        check("dropout in pieces", tiny_model(dropping), &o, WEIGHTS(drop_weights));
    CHECK(tiny_difference(&pieces, &kept) <= 1e-10);
    o.accumulate = 1;
    o.seed = 6;
    struct tiny_result other =
        check("another seed", tiny_model(dropping), &o, WEIGHTS(drop_weights));
    CHECK(tiny_difference(&other, &kept) > 1e-3);
    o.shuffle = false;
    o.dropout = tiny_list("off", NULL);
    struct tiny_result off = check("no dropout", tiny_model(dropping), &o, WEIGHTS(drop_weights));
    o.dropout = tiny_list("0", NULL);
    struct tiny_result zero =
        check("dropout of nothing", tiny_model(dropping), &o, WEIGHTS(drop_weights));
    CHECK(tiny_difference(&off, &zero) <= 1e-12);
}

/* Four logical ranks on one device and on two: the same bits. */
static void test_deterministic(void)
{
    static const char *const lists[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0-3"};
    static struct tiny_result first, other;
    struct mgpu_options o = plain(7);
    o.data = tiny_list(tiny_noise("x", 7, 4, (int64_t[]){16, 2, 5, 5}), classes("label", 16, -100),
                       NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.deterministic = 4;
    for (int sync = 0; sync < 2; sync++)
        for (int i = 0; i < 3; i++) {
            o.batch_norm = sync ? "sync" : "train";
            o.devices = lists[i];
            tiny_train(i ? &other : &first, tiny_model(convolution), &o, WEIGHTS(conv_weights));
            CHECK_(i == 0 || tiny_same(&other, &first), "%s differs: %s", lists[i], other.error);
        }
    CHECK(first.rc >= 0 && first.steps == 6);
}

/* ---- Reports 16 and 18 ----------------------------------------------------------------------- */

static const char *const line = "input x float N 1\n"
                                "init w float 1 1 = 1\n"
                                "y = MatMul(x, w)\n"
                                "output y float N 1\n";
static const struct tiny_weight line_weight[] = {{"w", 1}};

/* y = w*x on 1, 2, 3: the mean over the samples, whatever their places. */
static void test_unequal_shards(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct tiny_result r;
    o.data = tiny_list(tiny_floats("x", "3 1", 1.0, 2.0, 3.0),
                       tiny_floats("label", "3 1", 0.0, 0.0, 0.0), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=1";
    o.batch = 3;
    o.gradients = true;
    for (int ranks = 1; ranks <= 4; ranks++) {
        o.devices = devices[ranks - 1];
        tiny_train(&r, tiny_model(line), &o, WEIGHTS(line_weight));
        CHECK_NEAR(r.loss[0], 14.0 / 3, 1e-6);
        CHECK_NEAR(r.gradient[0], 28.0 / 3, 1e-6);
        CHECK_NEAR(r.weight[0], 1 - 28.0 / 3, 1e-6);
    }
}

/* The mean of an epoch weighs a short last batch by its samples: (4 * 1 + 1 * 9) / 5 at lr 0. */
static void test_short_batch(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_floats("x", "5 1", 1.0, 1.0, 1.0, 1.0, 3.0),
                       tiny_floats("label", "5 1", 0.0, 0.0, 0.0, 0.0, 0.0), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 4;
    o.shuffle = false;
    for (int ranks = 1; ranks <= 4; ranks++) {
        struct mgpu_trainer *t;
        struct mgpu_step_result s;
        const struct mgpu_number *numbers;
        double w;
        o.devices = devices[ranks - 1];
        o.optimizer = "sgd,lr=0.01";
        CHECK_OK(mgpu_trainer_new(&t, tiny_model(line), &o));
        CHECK(mgpu_step(t, &s) == 1 && !s.epoch_ends);
        CHECK_OK(mgpu_weight_read(t, "w", &w, 1));
        CHECK_NEAR(w, 0.98, 1e-6);
        CHECK(mgpu_step(t, &s) == 1 && s.epoch_ends && s.samples == 1);
        CHECK_OK(mgpu_weight_read(t, "w", &w, 1));
        CHECK_NEAR(w, 0.8036, 1e-6);
        CHECK(mgpu_step(t, &s) == 0);
        mgpu_trainer_free(t);
        o.optimizer = "sgd,lr=0";
        CHECK_OK(mgpu_trainer_new(&t, tiny_model(line), &o));
        while (mgpu_step(t, &s) > 0)
            continue;
        CHECK(mgpu_epoch_numbers(t, &numbers) > 0);
        CHECK_NEAR(numbers[0].value, 13.0 / 5, 1e-6);
        mgpu_trainer_free(t);
    }
}

/* Fewer samples than ranks, with a convolution and batch statistics in front: everything stays
 * finite, and evaluation and prediction work for one sample. */
static void test_one_sample(void)
{
    int64_t image[] = {1, 2, 5, 5};
    const char *x = tiny_noise("x", 9, 4, image), *y = classes("label", 1, 0);
    for (int ranks = 1; ranks <= 4; ranks++) {
        struct mgpu_options o = plain(4);
        struct tiny_result r;
        o.data = tiny_list(x, y, NULL);
        o.loss = tiny_list("cross_entropy", NULL);
        o.batch_norm = "sync";
        o.devices = devices[ranks - 1];
        tiny_train(&r, tiny_model(convolution), &o, WEIGHTS(conv_weights));
        CHECK_(r.rc >= 0 && r.steps == 2, "%d ranks: %s", ranks, r.error);
        for (int i = 0; i < r.weights; i++)
            CHECK(isfinite(r.weight[i]));
        struct mgpu_trainer *t;
        const struct mgpu_number *numbers;
        o.inference = true;
        o.predict = true;
        CHECK_OK(mgpu_trainer_new(&t, tiny_model(convolution), &o));
        CHECK_OK(mgpu_evaluate(t, &numbers));
        CHECK(isfinite(numbers[0].value));
        CHECK_OK(mgpu_predict(t, tiny_path("one.npz")));
        mgpu_trainer_free(t);
    }
}

static void test_all(void)
{
    test_labels();
    test_nothing_counts();
    test_sample_weights();
    test_two_losses();
    test_loss_inside();
    test_accumulation();
    test_batch_norm();
    test_batch_norm_in_pieces();
    test_dropout();
    test_deterministic();
    test_unequal_shards();
    test_short_batch();
    test_one_sample();
}

int main(int count, char **part)
{
    tiny_begin();
    if (count > 1 && !strcmp(part[1], "dropout"))
        test_dropout();
    else
        test_all();
    tiny_end();
    return test_end();
}
