/* Nodes of more inputs than a kernel takes operands train on a GPU that there is not (double.h). */
#include "runtime/ops/op.h"
#include "tests/cuda/double.h"
#include "tests/cuda/double_train.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <string.h>

enum { SAMPLES = 12 };

static const char *const two = "cuda:0,cuda:0";

/* More weights than a kernel takes operands, clipped by the norm of all. */
static void test_many_weights(void)
{
    enum { LAYERS = 2 * MGPU_MAX_INPUTS + 1, LINE = 100 };
    char text[LAYERS * LINE] = "input x float N 4\n";
    struct tiny_result got, cpu;
    const struct tiny_weight ends[] = {{"w0", 16}, {"w32", 16}};
    struct mgpu_options o = double_options(SAMPLES, "cpu:0");
    size_t n = strlen(text);
    for (int i = 0; i < LAYERS; i++)
        n += (size_t)snprintf(text + n, LINE,
                              "init w%d float 4 4 = 1 0 0 .2 .1 1 0 0 0 .3 1 0 0 0 "
                              "-.2 1\nh%d = MatMul(%s%.0d, w%d)\n",
                              i, i + 1, i ? "h" : "x", i, i);
    snprintf(text + n, LINE, "output h%d float N 4\n", LAYERS);
    const char *deep = tiny_model(text);
    o.optimizer = "sgd,lr=0.1";
    o.clip_norm = 0.05;
    tiny_train(&cpu, deep, &o, ends, 2);
    o.devices = two;
    tiny_train(&got, deep, &o, ends, 2);
    CHECK_(tiny_difference(&got, &cpu) < 1e-5, "off by %.1e (%s)", tiny_difference(&got, &cpu),
           got.error);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

/* A concatenation of more parts than a kernel takes operands. */
static void test_many_parts(void)
{
    enum { PARTS = 2 * MGPU_MAX_INPUTS + 3, LINE = 60 };
    char text[PARTS * LINE] = "input x float N 4\ninit a float 4 1 = .1 .2 .3 .4\n"
                              "h0 = MatMul(x, a)\n",
                      parts[PARTS * 16] = "h0";
    struct tiny_result got, cpu;
    const struct tiny_weight a = {"a", 4};
    struct mgpu_options o = double_options(SAMPLES, "cpu:0");
    for (int i = 1; i < PARTS; i++) {
        snprintf(text + strlen(text), LINE, "h%d = Tanh(h%d)\n", i, i - 1);
        snprintf(parts + strlen(parts), 16, ", h%d", i);
    }
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, "y = Concat(%s) axis=1\noutput y float N %d\n", parts,
             PARTS);
    const char *wide = tiny_model(text);
    tiny_train(&cpu, wide, &o, &a, 1);
    o.devices = two;
    tiny_train(&got, wide, &o, &a, 1);
    CHECK_(tiny_difference(&got, &cpu) < 1e-5, "off by %.1e (%s)", tiny_difference(&got, &cpu),
           got.error);
    CHECK_(!double_complaints(), "%s", double_complaint());
}

int main(void)
{
    if (double_skipped())
        return 77;
    tiny_begin();
    double_begin(1, INT64_C(1) << 30);
    test_many_weights();
    test_many_parts();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    tiny_end();
    return test_end();
}
