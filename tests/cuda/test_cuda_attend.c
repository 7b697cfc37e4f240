/* Attention in half types on a GPU that there is not (double.h): one node, forward and backward,
 * whose training follows that in floats on the CPU, on one rank and on two. In floats it is
 * products there. The kernels are generated ones; cuDNN's graphs are test_cuda_attention's. */
#include "runtime/facade/facade.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 8, STEPS = 4, WEIGHTS = 16 * 16 };

struct result {
    int nodes; /* of attention and its gradient */
    double loss[STEPS], weight[WEIGHTS];
};

static int count_of(const struct mgpu_program *p)
{
    int count = 0;
    for (int k = 0; k < p->instructions; k++)
        count += !strncmp(p->instruction[k].node->op->name, "attention", strlen("attention"));
    return count;
}

static void train(struct result *r, const char *model, const char *const *data, const char *devices,
                  const char *precision)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    o.data = data;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.5";
    o.batch = SAMPLES;
    o.steps = STEPS;
    o.devices = devices;
    o.strategy = "data";
    o.precision = precision;
    *r = (struct result){0};
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    r->nodes = count_of(t->compiled[0].program[0]);
    while (mgpu_step(t, &s) > 0)
        r->loss[s.step - 1] = s.loss;
    CHECK_OK(mgpu_weight_read(t, "w", r->weight, WEIGHTS));
    mgpu_trainer_free(t);
    CHECK_(!double_complaints(), "%s in %s: %s", devices, precision, double_complaint());
}

static double off(const double *x, const double *y, int count)
{
    double sum = 0, size = 1e-30;
    for (int i = 0; i < count; i++) {
        sum += (x[i] - y[i]) * (x[i] - y[i]);
        size += y[i] * y[i];
    }
    return sqrt(sum / size);
}

static void check(const char *model, const char *const *data)
{
    static const char *const precisions[] = {"bf16", "f16"};
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:0"};
    struct result floats, r;
    train(&floats, model, data, "cpu", "f32");
    CHECK(floats.nodes == 2 && floats.loss[STEPS - 1] < floats.loss[0]);
    for (int p = 0; p < 2; p++)
        for (int d = 0; d < 2; d++) {
            train(&r, model, data, devices[d], precisions[p]);
            CHECK_(r.nodes == 2, "%s: %d nodes", precisions[p], r.nodes);
            double loss = off(r.loss, floats.loss, STEPS);
            double weight = off(r.weight, floats.weight, WEIGHTS);
            CHECK_(loss < 1e-2 && weight < 1e-2, "%s on %s: off by %.1e and %.1e", precisions[p],
                   devices[d], loss, weight);
        }
    train(&r, model, data, "cuda:0", "f32");
    CHECK(r.nodes == 0 && off(r.weight, floats.weight, WEIGHTS) < 1e-4);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    const char *const *data =
        tiny_list(tiny_noise("x", 3, 3, (int64_t[]){SAMPLES, 5, 16}),
                  tiny_noise("seen", 4, 4, (int64_t[]){SAMPLES, 1, 1, 5}),
                  tiny_noise("label", 5, 3, (int64_t[]){SAMPLES, 5, 2}), NULL);
    const char *model = tiny_model(
        "input x float N 5 16\ninput seen float N 1 1 5\ninit w float 16 16 = normal 0.4\n"
        "init v float 16 2 = normal 0.5\ninit heads int64 4 = 0 5 2 8\n"
        "init flat int64 3 = 0 5 16\ninit none float 1 = -0.6\n"
        "lowest = Constant() value_float=-3.4028234663852886e38\n"
        "l = Less(seen, none)\nc = Cast(l) to=1\nm = Mul(c, lowest)\n"
        "q = MatMul(x, w)\nr = Reshape(q, heads)\nt = Transpose(r) perm=[0, 2, 1, 3]\n"
        "k = Transpose(r) perm=[0, 2, 3, 1]\nz = MatMul(t, k)\nh = Add(z, m)\n"
        "p = Softmax(h) axis=-1\no = MatMul(p, t)\nb = Transpose(o) perm=[0, 2, 1, 3]\n"
        "d = Reshape(b, flat)\ny = MatMul(d, v)\noutput y float N 5 2\n");
    check(model, data);
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
