/* --skip-nonfinite: a step whose loss or gradient is not finite changes nothing: no weight, no
 * moment, no running statistic, no mean of the epoch; on one rank, several, and in pieces. */
#include "tests/support/tiny.h"
#include "tests/test.h"

enum { SAMPLES = 12, BATCH = 4 };

static const char *const text = "input x float N 2\n"
                                "init w float 2 3 = .5 -.3 .2 .1 .4 -.6\n"
                                "init scale float 3 = 1 .9 1.1\n"
                                "init shift float 3 = .1 .2 .3\n"
                                "init mean float 3 = 0\n"
                                "init var float 3 = 1\n"
                                "h = MatMul(x, w)\n"
                                "y = BatchNormalization(h, scale, shift, mean, var)\n"
                                "output y float N 3\n";
static const struct tiny_weight weights[] = {
    {"w", 6}, {"scale", 3}, {"shift", 3}, {"mean", 3}, {"var", 3}};

/* What is wrong with the second batch; with the loss: its gradient is finite. */
enum bad { LEFT_OUT, NOT_A_NUMBER, LOSS_OVERFLOWS };

static const char *const *data(enum bad bad)
{
    float x[SAMPLES * 2], label[SAMPLES * 3];
    int n = 0, m = 0;
    for (int i = 0; i < SAMPLES; i++) {
        if (bad == LEFT_OUT && i / BATCH == 1)
            continue;
        for (int k = 0; k < 2; k++)
            x[n++] = bad == NOT_A_NUMBER && i == 6 && k == 1
                         ? NAN
                         : (float)((i * 7 + k * 5) % 11) / 5 - 1;
        for (int k = 0; k < 3; k++)
            label[m++] =
                bad == LOSS_OVERFLOWS && i == 6 ? 1e20F : (float)((i * 5 + k * 3) % 7) / 3 - 1;
    }
    return tiny_list(tiny_data("x", MGPU_FLOAT, 2, (int64_t[]){n / 2, 2}, x),
                     tiny_data("label", MGPU_FLOAT, 2, (int64_t[]){m / 3, 3}, label), NULL);
}

static struct mgpu_options options(const char *devices, int64_t pieces)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.1,momentum=0.9";
    o.batch = BATCH;
    o.accumulate = pieces;
    o.shuffle = false;
    o.epochs = 3;
    o.devices = devices;
    o.strategy = "data";
    return o;
}

static void check_skipped(const char *model, struct mgpu_options o, enum bad bad)
{
    struct tiny_result without, with;
    o.data = data(LEFT_OUT);
    tiny_train(&without, model, &o, weights, 5);
    o.data = data(bad);
    o.skip_nonfinite = true;
    tiny_train(&with, model, &o, weights, 5);
    CHECK_(without.rc >= 0 && with.rc >= 0, "%s %s", without.error, with.error);
    CHECK(without.steps == 6 && with.steps == 9 && without.weights == with.weights);
    for (int i = 0; i < with.weights; i++)
        CHECK_(with.weight[i] == without.weight[i], "%s, %d pieces, %s, bad %d: [%d] is %g, not %g",
               o.devices, (int)o.accumulate, o.run_ahead ? "ahead" : "one by one", bad, i,
               with.weight[i], without.weight[i]);
    for (int i = 0; i < 9; i++)
        CHECK(isfinite(with.loss[i]) == (i % 3 != 1));
}

/* A GPU may have the next step before the host sees how this one ended. */
static void test_skipped(const char *model, const char *devices, int64_t pieces)
{
    struct mgpu_options o = options(devices, pieces);
    for (int ahead = 0; ahead < 2; ahead++) {
        o.run_ahead = ahead;
        check_skipped(model, o, NOT_A_NUMBER);
        check_skipped(model, o, LOSS_OVERFLOWS);
    }
}

static void test_means(const char *model)
{
    struct mgpu_options o = options("cpu:0", 1);
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const struct mgpu_number *number;
    double sum = 0;
    int skipped = 0;
    o.data = data(NOT_A_NUMBER);
    o.skip_nonfinite = true;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 0; i < 3; i++) {
        CHECK(mgpu_step(t, &s) == 1);
        skipped += s.skipped;
        sum += s.skipped ? 0 : s.loss;
    }
    CHECK(skipped == 1 && mgpu_epoch_numbers(t, &number) >= 1);
    CHECK_NEAR(number[0].value, sum / 2, 1e-6);
    mgpu_trainer_free(t);
    o.skip_nonfinite = false;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK(mgpu_step(t, &s) == 1);
    CHECK_FAILS(mgpu_step(t, &s), "step 2: 'x', sample 6: the value nan is not finite");
    mgpu_trainer_free(t);
}

int main(void)
{
    tiny_begin();
    const char *model = tiny_model(text);
    test_skipped(model, "cpu:0", 1);
    test_skipped(model, "cpu:0,cpu:1", 1);
    test_skipped(model, "cpu:0,cpu:1,cpu:2", 1);
    test_skipped(model, "cpu:0", 2);
    test_skipped(model, "cpu:0,cpu:1", 2);
    test_means(model);
    tiny_end();
    return test_end();
}
