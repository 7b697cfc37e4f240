/* An evaluation in the middle of an epoch changes nothing of the training around it, be it on
 * validation data or refused for want of them. */
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>

static const char *const model = "input x float N 3\n"
                                 "init W float 3 2 = normal 1\n"
                                 "y = MatMul(x, W)\n"
                                 "output y float N 2\n";

enum { STEPS = 12 }; /* three epochs of four */

static void train(double loss[STEPS], bool evaluates, const char *const *val)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    const struct mgpu_number *numbers;
    o.data = tiny_list(tiny_noise("x", 1, 2, (int64_t[]){16, 3}),
                       tiny_noise("label", 2, 2, (int64_t[]){16, 2}), NULL);
    o.val = val;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.1";
    o.batch = 4;
    o.epochs = 3;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(model), &o));
    for (int i = 0; i < STEPS; i++) {
        struct mgpu_step_result s = {0};
        CHECK(mgpu_step(t, &s) == 1);
        loss[i] = s.loss;
        if (evaluates && val)
            CHECK(mgpu_evaluate(t, &numbers) == 1 && isfinite(numbers[0].value));
        else if (evaluates)
            CHECK_FAILS(mgpu_evaluate(t, &numbers), "nothing to evaluate on: give --val");
    }
    mgpu_trainer_free(t);
}

int main(void)
{
    double want[STEPS], got[STEPS];
    tiny_begin();
    const char *const *val = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){6, 3}),
                                       tiny_noise("label", 4, 2, (int64_t[]){6, 2}), NULL);
    train(want, false, NULL);
    for (int k = 0; k < 2; k++) {
        train(got, true, k ? val : NULL);
        for (int i = 0; i < STEPS; i++)
            CHECK_(got[i] == want[i], "step %d: %.9g, not %.9g", i + 1, got[i], want[i]);
    }
    tiny_end();
    return test_end();
}
