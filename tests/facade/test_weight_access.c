/* Weights and gradients by name: in, out, tied in either layout, and what is refused. */
#include "tests/support/tiny.h"
#include "tests/test.h"

/* y = (x W) V, where V is W transposed: one parameter. u is used by nothing. */
static const char *const tied = "input x float N 3\n"
                                "init W float 3 2 = 1 2 3 4 5 6\n"
                                "init V float 2 3 = 1 3 5 2 4 6\n"
                                "init c float 3 = .5 .5 .25\n"
                                "init u float 2 = 7 8\n"
                                "h = MatMul(x, W)\n"
                                "a = MatMul(h, V)\n"
                                "y = Add(a, c)\n"
                                "output y float N 3\n";

static struct mgpu_trainer *start(const char *devices)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    o.data = tiny_list(tiny_noise("x", 1, 2, (int64_t[]){6, 3}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 3}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.01";
    o.freeze = tiny_list("c", NULL);
    o.tie = tiny_list("W=V", NULL);
    o.batch = 3;
    o.precision = "f64";
    o.devices = devices;
    o.gradients = true;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(tied), &o));
    return t;
}

static void check_transposed(const double *w, const double *v)
{
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            CHECK_NEAR(v[k * 3 + i], w[i * 2 + k], 0);
}

static void test_read(void)
{
    static const double want[] = {1, 2, 3, 4, 5, 6};
    struct mgpu_trainer *t = start("cpu:0");
    struct mgpu_step_result s;
    double w[6], v[6], c[3], u[2], g[6], gv[6], after[6];
    CHECK_OK(mgpu_weight_read(t, "W", w, 6));
    CHECK_OK(mgpu_weight_read(t, "V", v, 6));
    CHECK(memcmp(w, want, sizeof want) == 0);
    check_transposed(w, v);
    CHECK_OK(mgpu_weight_read(t, "c", c, 3));
    CHECK(c[0] == .5 && c[2] == .25);
    CHECK(mgpu_step(t, &s) == 1);
    CHECK_OK(mgpu_gradient_read(t, "W", g, 6));
    CHECK_OK(mgpu_gradient_read(t, "V", gv, 6));
    check_transposed(g, gv);
    CHECK_OK(mgpu_weight_read(t, "W", after, 6));
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(after[i], w[i] - 0.01 * g[i], 1e-14);
    CHECK_FAILS(mgpu_gradient_read(t, "c", c, 3), "not trained");
    CHECK_FAILS(mgpu_weight_read(t, "nothing", w, 6), "'nothing'");
    CHECK_FAILS(mgpu_weight_read(t, "W", w, 5), "6 elements, not 5");
    if (mgpu_weight_read(t, "u", u, 2) == 0) /* as it is in the file */
        CHECK(u[0] == 7 && u[1] == 8);
    mgpu_trainer_free(t);
}

/* One step from these weights, written under the other name. */
static void step_from(const double *v, const char *devices, double *after)
{
    struct mgpu_trainer *t = start(devices);
    struct mgpu_step_result s;
    double w[6], back[6];
    CHECK_OK(mgpu_weight_write(t, "V", v, 6));
    CHECK_OK(mgpu_weight_read(t, "V", back, 6));
    CHECK_OK(mgpu_weight_read(t, "W", w, 6));
    CHECK(memcmp(back, v, sizeof back) == 0);
    check_transposed(w, back);
    CHECK(mgpu_step(t, &s) == 1);
    CHECK_OK(mgpu_weight_read(t, "W", after, 6));
    CHECK(fabs(after[0] - w[0]) > 1e-6);
    mgpu_trainer_free(t);
}

/* Writing reaches every rank. */
static void test_write(void)
{
    static const double other[] = {.1, .2, .3, .4, .5, .6};
    double one[6], two[6];
    step_from(other, "cpu:0", one);
    step_from(other, "cpu:0,cpu:1", two);
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(two[i], one[i], 1e-14);
}

int main(void)
{
    tiny_begin();
    test_read();
    test_write();
    tiny_end();
    return test_end();
}
