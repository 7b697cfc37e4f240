/* The check of gradients: a kink of the loss is no wrong gradient. */
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <stdlib.h>

/* Two weights, both checked; gives what was printed. */
static char *check(const char *text, double *worst)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    char *lines;
    size_t size;
    o.data =
        tiny_list(tiny_floats("x", "2 1", 1.0, 2.0), tiny_floats("label", "2 1", 3.0, 5.0), NULL);
    o.loss = tiny_list("mse", NULL);
    o.precision = "f64";
    o.check_gradients = true;
    o.devices = "cpu:0";
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(text), &o));
    FILE *to = open_memstream(&lines, &size);
    CHECK_OK(mgpu_check_gradients(t, 10, to, worst));
    fclose(to);
    mgpu_trainer_free(t);
    return lines;
}

static void test_kink(void)
{
    double worst;
    char *lines = check("input x float N 1\ninit w float 1 1 = 0\ninit b float 1 = 0.5\n"
                        "a = MatMul(x, w)\nr = Relu(a)\ny = Add(r, b)\noutput y float N 1\n",
                        &worst);
    CHECK_(worst < 1e-8, "%g\n%s", worst, lines);
    CHECK_(strstr(lines, "; 1 at a kink of the loss, not counted"), "%s", lines);
    free(lines);
    lines = check("input x float N 1\ninit w float 1 1 = 0.3\ninit b float 1 = 0.5\n"
                  "a = MatMul(x, w)\nr = Exp(a)\ny = Add(r, b)\noutput y float N 1\n",
                  &worst);
    CHECK_(worst < 1e-8 && !strstr(lines, "kink"), "%g\n%s", worst, lines);
    free(lines);
}

int main(void)
{
    tiny_begin();
    test_kink();
    tiny_end();
    return test_end();
}
