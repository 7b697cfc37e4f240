/* --state on a GPU that there is not (double.h): a step that begins before the one in front of it
 * is finished finds its states there, with the same numbers bit by bit. */
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>

enum { SAMPLES = 14, BATCH = 4, EPOCHS = 3, WIDTH = 4, HIDDEN = 3, OUT = 2 };

/* [outer, N, inner]: the states of both directions, as recurrent layers have them. */
static const char *const text = "input x float N 4\ninput h float 2 N 3\n"
                                "init w float 4 3 = normal .5\ninit r float 2 3 3 = normal .5\n"
                                "init v float 3 2 = normal .5\ninit axis int64 1 = 0\n"
                                "a = MatMul(x, w)\nb = MatMul(h, r)\nc = Add(a, b)\ng = Tanh(c)\n"
                                "s = ReduceMean(g, axis) keepdims=0\ny = MatMul(s, v)\n"
                                "output y float N 2\n";
static const struct tiny_weight weights[] = {{"w", 12}, {"r", 18}, {"v", 6}};

static struct mgpu_options options(bool bad)
{
    struct mgpu_options o = MGPU_OPTIONS;
    float x[SAMPLES * WIDTH];
    for (int i = 0; i < SAMPLES * WIDTH; i++)
        x[i] = bad && i == BATCH * WIDTH ? NAN : (float)(i * 7 % 13) / 6 - 1;
    o.data = tiny_list(tiny_data("x", MGPU_FLOAT, 2, (int64_t[]){SAMPLES, WIDTH}, x),
                       tiny_noise("h", 3, 3, (int64_t[]){2, SAMPLES, HIDDEN}),
                       tiny_noise("label", 5, 2, (int64_t[]){SAMPLES, OUT}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "adam,lr=0.05";
    o.batch = BATCH;
    o.epochs = EPOCHS;
    o.shuffle = false;
    o.state = tiny_list("h=g", NULL);
    o.batch_axis = tiny_list("h=1", NULL);
    o.skip_nonfinite = bad;
    return o;
}

static void test_same(const char *model, const char *devices, int pieces, bool bad)
{
    struct tiny_result cpu, behind, ahead;
    struct mgpu_options o = options(bad);
    o.accumulate = pieces;
    o.devices = "cpu:0";
    tiny_train(&cpu, model, &o, weights, 3);
    o.devices = devices;
    tiny_train(&behind, model, &o, weights, 3);
    o.run_ahead = true;
    tiny_train(&ahead, model, &o, weights, 3);
    CHECK_(ahead.rc >= 0 && ahead.steps == 12, "%d steps, %s", ahead.steps, ahead.error);
    for (int i = 0; i < ahead.weights; i++)
        CHECK_(ahead.weight[i] == behind.weight[i] && fabs(ahead.weight[i] - cpu.weight[i]) < 1e-4,
               "%s, %d pieces: %g, not %g or %g", devices, pieces, ahead.weight[i],
               behind.weight[i], cpu.weight[i]);
    for (int i = 0; i < ahead.steps; i++)
        CHECK(isfinite(ahead.loss[i]) ? ahead.loss[i] == behind.loss[i] : bad && i % 4 == 1);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* But for a batch of another size, whose rows lie elsewhere, and pieces, which have their own. */
static void test_begun(const char *model, int pieces)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct mgpu_options o = options(false);
    o.devices = "cuda:0";
    o.accumulate = pieces;
    o.run_ahead = true;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    for (int i = 1; i <= 4 && t; i++) {
        CHECK(mgpu_step(t, &s) == 1);
        CHECK(t->begun.step == (i < 3 && pieces == 1 ? i + 1 : 0));
    }
    mgpu_trainer_free(t);
}

int main(void)
{
    if (double_skipped())
        return 77;
    tiny_begin();
    double_begin(1, INT64_C(1) << 30);
    const char *model = tiny_model(text);
    for (int pieces = 1; pieces <= 2; pieces++) {
        test_same(model, "cuda:0", pieces, false);
        test_same(model, "cuda:0,cuda:0", pieces, false);
        test_begun(model, pieces);
    }
    test_same(model, "cuda:0", 1, true);
    test_same(model, "cuda:0,cuda:0", 1, true);
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    tiny_end();
    return test_end();
}
