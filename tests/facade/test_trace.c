/* The trace of a step: what each node took, and what its kernel lays out otherwise inside. */
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/product.h"
#include "runtime/facade/facade.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <json-c/json.h>

static const char *const images = "opset 17\ninput x float N 16 9 9\n"
                                  "init w float 32 16 3 3 = normal 0.1\n"
                                  "c = Conv(x, w) strides=[2, 2]\nr = Relu(c)\n"
                                  "p = GlobalAveragePool(r)\ny = Flatten(p)\noutput y float N 32\n";

static const char *const pooled = "opset 17\ninput x float N 16 9 9\n"
                                  "init w float 32 16 3 3 = normal 0.1\n"
                                  "init v float 288 32 = normal 0.1\n"
                                  "c = Conv(x, w)\nr = Relu(c)\n"
                                  "p = MaxPool(r) kernel_shape=[2, 2] strides=[2, 2]\n"
                                  "f = Flatten(p)\ny = MatMul(f, v)\noutput y float N 32\n";

static const char *const rows = "opset 17\ninput x float N 16 4 4\n"
                                "init w float 256 32 = normal 0.1\n"
                                "f = Flatten(x)\ny = MatMul(f, w)\noutput y float N 32\n";

static struct json_object *trace(const char *text, int64_t batch, int64_t size)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result step;
    const char *path = tiny_path("trace.json");
    o.data = tiny_list(tiny_noise("x", 5, 4, (int64_t[]){2 * batch, 16, size, size}),
                       tiny_noise("label", 6, 2, (int64_t[]){2 * batch, 32}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = batch;
    o.devices = "cpu:0";
    o.profile = true;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(text), &o));
    while (t && mgpu_step(t, &step) > 0)
        ;
    CHECK_OK(mgpu_trainer_profile(t, path));
    mgpu_trainer_free(t);
    return json_object_from_file(path);
}

static int count(struct json_object *events, const char *op)
{
    int n = 0;
    for (size_t i = 0; i < json_object_array_length(events); i++)
        n += !strcmp(op, json_object_get_string(
                             json_object_object_get(json_object_array_get_idx(events, i), "name")));
    return n;
}

/* Operands that nodes of the operator lay out otherwise; -1: there is no such node. */
static int reordered(struct json_object *events, const char *op)
{
    int n = -1;
    for (size_t i = 0; i < json_object_array_length(events); i++) {
        struct json_object *e = json_object_array_get_idx(events, i), *args, *list;
        if (strcmp(json_object_get_string(json_object_object_get(e, "name")), op))
            continue;
        args = json_object_object_get(e, "args");
        CHECK(json_object_get_double(json_object_object_get(e, "dur")) > 0);
        n = n < 0 ? 0 : n;
        if (json_object_object_get_ex(args, "reordered", &list))
            n += (int)json_object_array_length(list);
    }
    return n;
}

/* Images lie in blocks, so the kernels want the weight in others. */
static void test_trace(void)
{
    struct json_object *o = trace(images, 4, 9), *events = json_object_object_get(o, "traceEvents");
    CHECK(o && events);
    CHECK(reordered(events, "conv") == (mgpu_cpu_block() > 0));
    CHECK(reordered(events, "conv_grad_weight") == (mgpu_cpu_block() > 0));
    CHECK(reordered(events, "update") == 0);
    json_object_put(o);
}

/* Each reorder is an event: of the input, of what the pool gives to the dense layer, of its
 * gradient. */
static void test_reorders(void)
{
    struct json_object *o = trace(pooled, 4, 9), *events = json_object_object_get(o, "traceEvents");
    CHECK(o && events);
    CHECK(count(events, "reorder") == (mgpu_cpu_block() ? 3 : 0));
    json_object_put(o);
}

/* Both operands of large products are packed. */
static void test_products(void)
{
    struct json_object *o = trace(rows, 32, 4);
    struct json_object *events = json_object_object_get(o, "traceEvents");
    CHECK(o && events);
    CHECK(reordered(events, "matmul") == (mgpu_cpu_has_product() ? 2 * 2 : 0)); /* and backward */
    json_object_put(o);
}

int main(void)
{
    tiny_begin();
    test_trace();
    test_reorders();
    test_products();
    tiny_end();
    return test_end();
}
