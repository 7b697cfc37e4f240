/* Attention in half types on a GPU that there is not (double.h): one node, forward and backward,
 * whose training follows that in floats on the CPU, on one rank and on two. In floats it is
 * products there. The kernels are generated ones; cuDNN's graphs are test_cuda_attention's. */
#include "tests/cuda/double.h"
#include "tests/cuda/double_train.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static void check(const struct double_model *m)
{
    static const char *const precisions[] = {"bf16", "f16"};
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:0"};
    struct double_trained floats, r;
    CHECK_OK(double_train(&floats, m, "cpu", "f32"));
    CHECK(floats.nodes == 2 && floats.loss[DOUBLE_STEPS - 1] < floats.loss[0]);
    for (int p = 0; p < 2; p++)
        for (int d = 0; d < 2; d++) {
            CHECK_OK(double_train(&r, m, devices[d], precisions[p]));
            CHECK_(r.nodes == 2, "%s: %d nodes", precisions[p], r.nodes);
            double loss = double_loss_off(&r, &floats), weight = double_weight_off(&r, &floats, m);
            CHECK_(loss < 1e-2 && weight < 1e-2, "%s on %s: off by %.1e and %.1e", precisions[p],
                   devices[d], loss, weight);
        }
    CHECK_OK(double_train(&r, m, "cuda:0", "f32"));
    CHECK(r.nodes == 0 && double_weight_off(&r, &floats, m) < 1e-4);
}

int main(void)
{
    if (double_skipped())
        return 77;
    double_begin(1, INT64_C(1) << 30);
    tiny_begin();
    const char *const *data =
        tiny_list(tiny_noise("x", 3, 3, (int64_t[]){DOUBLE_SAMPLES, 5, 16}),
                  tiny_noise("seen", 4, 4, (int64_t[]){DOUBLE_SAMPLES, 1, 1, 5}),
                  tiny_noise("label", 5, 3, (int64_t[]){DOUBLE_SAMPLES, 5, 2}), NULL);
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
    check(&(struct double_model){model, data, "attention", 16 * 16});
    tiny_end();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    return test_end();
}
