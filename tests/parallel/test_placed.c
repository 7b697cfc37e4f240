/* Placements as a person asks for them give one rank's numbers: towers by --place, what joins them
 * by --merge, master weights by --weights-on, a weight of the first and the last layer apart, and
 * the plan that annotations of the model hold. Batches of 5 of 13 samples, so the last is
 * smaller. */
#include "partitioner/plan_file.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static const char tied[] = "ir 9\n"
                           "input a float N 6\n"
                           "init E float 6 3 = normal 0.5\n"
                           "init A float 3 3 = normal 0.5\n"
                           "x = MatMul(a, E)\n"
                           "h = MatMul(x, A)\n"
                           "T = Transpose(E) perm=[1, 0]\n"
                           "y = MatMul(h, T)\n"
                           "output y float N 6\n";
static const struct tiny_weight tied_weights[] = {{"E", 18}, {"A", 9}};

/* Images that are concatenated, pooled and convolved on either rank: channels lie in blocks. */
static const char images[] = "ir 9\n"
                             "input x float N 3 6 6\n"
                             "init U float 16 3 3 3 = normal 0.3\n"
                             "init V float 16 16 3 3 = normal 0.2\n"
                             "init W float 16 32 1 1 = normal 0.2\n"
                             "p = Conv(x, U) pads=[1, 1, 1, 1]\n"
                             "q = Relu(p)\n"
                             "r = Conv(q, V) pads=[1, 1, 1, 1]\n"
                             "s = AveragePool(q) kernel_shape=[3, 3] pads=[1, 1, 1, 1]\n"
                             "t = Concat(r, s) axis=1\n"
                             "u = Conv(t, W)\n"
                             "y = GlobalAveragePool(u)\n"
                             "output y float N 16 1 1\n";
static const struct tiny_weight image_weights[] = {{"U", 432}, {"V", 2304}, {"W", 512}};

static struct mgpu_options options(const char *const *data)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = data;
    o.precision = "f64";
    o.exact = true;
    o.batch = 5;
    o.epochs = 2;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "adam,lr=0.1";
    return o;
}

static void check(const char *model, struct mgpu_options o, const struct tiny_weight *w,
                  const struct mgpu_options *placed)
{
    static struct tiny_result one, many;
    o.devices = "cpu:0";
    tiny_train(&one, model, &o, w, 2);
    CHECK_(one.rc >= 0, "%s", one.error);
    tiny_train(&many, model, placed, w, 2);
    CHECK_(many.rc >= 0 && tiny_difference(&many, &one) <= 1e-10, "off by %g %s",
           tiny_difference(&many, &one), many.error);
}

static struct mgpu_options tower_options(void)
{
    int64_t in[] = {13, 6}, out[] = {13, 3};
    return options(tiny_list(tiny_noise("a", 1, 2, in), tiny_noise("b", 2, 2, in),
                             tiny_noise("label", 3, 2, out), NULL));
}

static void test_towers(void)
{
    const char *model = tiny_model(tiny_towers);
    struct mgpu_options o = tower_options(), by;
    by = o;
    by.devices = "cpu:0,cpu:1";
    by.place = tiny_list("input:a=cpu:0", "input:b=cpu:1", NULL);
    check(model, o, tiny_tower_weights, &by);
    by.merge = "cpu:1";
    check(model, o, tiny_tower_weights, &by);
    by.weights_on = "cpu:0";
    check(model, o, tiny_tower_weights, &by);
    by.place = NULL;
    by.merge = NULL;
    by.strategy = "data";
    check(model, o, tiny_tower_weights, &by);
    by.weights_on = "cpu:1";
    check(model, o, tiny_tower_weights, &by);
    by.devices = "cpu:0,cpu:1,cpu:2,cpu:3";
    by.strategy = "hybrid";
    check(model, o, tiny_tower_weights, &by);
}

/* The first and the last layer's weight is one, wherever the two are. */
static void test_tied(void)
{
    const char *model = tiny_model(tied);
    int64_t in[] = {13, 6};
    struct mgpu_options o =
        options(tiny_list(tiny_noise("a", 1, 2, in), tiny_noise("label", 3, 2, in), NULL));
    struct mgpu_options by = o;
    by.devices = "cpu:0,cpu:1";
    by.place = tiny_list("x=cpu:0", "h=cpu:1", "T=cpu:1", "y=cpu:1", NULL);
    check(model, o, tied_weights, &by);
    by.place = tiny_list("x=cpu:0", "h=cpu:1", "T=cpu:0", "y=cpu:0", NULL);
    check(model, o, tied_weights, &by);
}

/* In float32, whose kernels take blocks; each way to cut it. */
static void test_images(void)
{
    static struct tiny_result one, many;
    static const char *const names[] = {"p", "q", "r", "s", "t", "u", "y"};
    const char *model = tiny_model(images), *place[8] = {NULL};
    int64_t in[] = {13, 3, 6, 6}, out[] = {13, 16, 1, 1};
    struct mgpu_options o =
        options(tiny_list(tiny_noise("x", 1, 4, in), tiny_noise("label", 2, 4, out), NULL));
    o.precision = NULL;
    o.optimizer = "sgd,lr=0.1";
    tiny_train(&one, model, &o, image_weights, 3);
    CHECK_(one.rc >= 0, "%s", one.error);
    o.devices = "cpu:0,cpu:1";
    o.place = place;
    for (int cut = 0; cut < 7; cut++) {
        char text[7][16];
        for (int i = 0; i < 7; i++) {
            snprintf(text[i], sizeof text[i], "%s=cpu:%d", names[i], i == cut || i == cut + 2);
            place[i] = text[i];
        }
        tiny_train(&many, model, &o, image_weights, 3);
        CHECK_(many.rc >= 0 && tiny_difference(&many, &one) <= 1e-5, "off by %g %s",
               tiny_difference(&many, &one), many.error);
    }
}

/* A model that carries its plan. */
static void test_annotated(void)
{
    static const char *const strategies[] = {"branch", "data"};
    const char *model = tiny_model(tiny_towers);
    for (int i = 0; i < 2; i++) {
        struct mgpu_options o = tower_options(), by = MGPU_OPTIONS;
        struct mgpu_partition_options p = {
            .pin = i ? NULL : tiny_list("input:a=cpu:0", "input:b=cpu:1", NULL)};
        struct mgpu_partition *made = NULL;
        by.devices = "cpu:0,cpu:1";
        by.batch = 5;
        by.strategy = strategies[i];
        CHECK_OK(mgpu_partition_new(&made, model, &by, &p));
        if (made)
            CHECK_OK(mgpu_partition_annotate(made, tiny_path("annotated.onnx")));
        mgpu_partition_free(made);
        by = o;
        by.plan = tiny_path("annotated.onnx");
        check(tiny_path("annotated.onnx"), o, tiny_tower_weights, &by);
    }
}

int main(void)
{
    tiny_begin();
    test_towers();
    test_tied();
    test_images();
    test_annotated();
    tiny_end();
    return test_end();
}
