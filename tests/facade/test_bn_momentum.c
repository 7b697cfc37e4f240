/* --bn-momentum: running = M * running + (1 - M) * batch, layer by layer. */
#include "tests/support/tiny.h"
#include "tests/test.h"

/* Both layers see batch means of 2 and 4; variances (n - 1) of 2 and 8, (n) of 1 and 4. */
static const char *const text = "input x float N 2\n"
                                "init s float 2 = 1\n"
                                "init b float 2 = .5\n"
                                "init one/mean float 2 = 1\n"
                                "init one/var float 2 = 3\n"
                                "init two/mean float 2 = 1\n"
                                "init two/var float 2 = 3\n"
                                "init t float 2 = 1.5\n"
                                "init c float 2 = .25\n"
                                "u = BatchNormalization(x, s, b, one/mean, one/var)\n"
                                "v = BatchNormalization(x, t, c, two/mean, two/var) momentum=0.75\n"
                                "y = Add(u, v)\n"
                                "output y float N 2\n";

static struct mgpu_options options(const char *const *momentum)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_floats("x", "2 2", 1.0, 2.0, 3.0, 6.0),
                       tiny_floats("label", "2 2", 0.0, 0.0, 0.0, 0.0), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0";
    o.bn_variance = "population";
    o.bn_momentum = momentum;
    return o;
}

static void check(const char *model, const char *const *momentum, double one, double two)
{
    static const struct tiny_weight weights[] = {
        {"one/mean", 2}, {"one/var", 2}, {"two/mean", 2}, {"two/var", 2}};
    static const double mean[] = {2, 4}, variance[] = {1, 4};
    struct mgpu_options o = options(momentum);
    struct tiny_result r;
    tiny_train(&r, model, &o, weights, 4);
    CHECK_(r.rc >= 0, "%s", r.error);
    for (int i = 0; i < 2; i++) {
        CHECK_NEAR(r.weight[i], one * 1 + (1 - one) * mean[i], 1e-6);
        CHECK_NEAR(r.weight[2 + i], one * 3 + (1 - one) * variance[i], 1e-6);
        CHECK_NEAR(r.weight[4 + i], two * 1 + (1 - two) * mean[i], 1e-6);
        CHECK_NEAR(r.weight[6 + i], two * 3 + (1 - two) * variance[i], 1e-6);
    }
}

int main(void)
{
    tiny_begin();
    const char *model = tiny_model(text);
    struct mgpu_options o = options(tiny_list("three/*=0.5", NULL));
    struct mgpu_trainer *t;
    check(model, NULL, 0.9, 0.75);
    check(model, tiny_list("0.99", NULL), 0.99, 0.99);
    check(model, tiny_list("0.99", "two*=0.5", NULL), 0.99, 0.5);
    check(model, tiny_list("one/mean=0", NULL), 0, 0.75);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "no running mean that moves is called so");
    o.bn_momentum = tiny_list("1.5", NULL);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "--bn-momentum: '1.5' is not a number");
    tiny_end();
    return test_end();
}
