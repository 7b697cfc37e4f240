/* --recompute: the same bits with less memory, on one rank and on several, in pieces, and as part
 * of a plan. */
#include "partitioner/plan_file.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

/* Blocks with a skip, as in a residual network; then a layer of a transformer with dropout. */
/* Whole blocks of channels on every CPU: 8 or 16. */
static const char blocks[] =
    "producer pytorch\n"
    "input x float N 3 8 8\n"
    "init k1 float 16 3 3 3 = normal 0.2\n"
    "init s1 float 16 = 1\n"
    "init b1 float 16 = .1 .2 -.1 .3 0 .1 -.2 .2 .3 -.1 0 .2 .1 -.3 .2 .1\n"
    "init m1 float 16 = 0\n"
    "init v1 float 16 = 1\n"
    "init k2 float 16 16 3 3 = normal 0.2\n"
    "init s2 float 16 = .9 1.1 1 1 1.2 .8 1 1 .7 1 1.3 1 .9 1 1 1.1\n"
    "init b2 float 16 = .05\n"
    "init m2 float 16 = 0.5\n"
    "init v2 float 16 = 2\n"
    "init k3 float 16 16 3 3 = normal 0.2\n"
    "init w4 float 1024 16 = normal 0.05\n"
    "init ls float 16 = 1.5\n"
    "init lb float 16 = .25\n"
    "init ratio float = .25\n"
    "init training bool = 1\n"
    "init w5 float 16 16 = normal 0.2\n"
    "init w6 float 16 3 = normal 0.2\n"
    "c1 = Conv(x, k1) pads=[1, 1, 1, 1]\n"
    "n1 = BatchNormalization(c1, s1, b1, m1, v1)\n"
    "r1 = Relu(n1)\n"
    "c2 = Conv(r1, k2) pads=[1, 1, 1, 1]\n"
    "n2 = BatchNormalization(c2, s2, b2, m2, v2)\n"
    "a2 = Add(n2, r1)\n"
    "r2 = Relu(a2)\n"
    "c3 = Conv(r2, k3) pads=[1, 1, 1, 1]\n"
    "a3 = Add(c3, r2)\n"
    "g3 = Sigmoid(a3)\n"
    "h3 = Mul(a3, g3)\n"
    "f = Flatten(h3)\n"
    "h4 = MatMul(f, w4)\n"
    "l4 = LayerNormalization(h4, ls, lb)\n"
    "t4 = Tanh(l4)\n"
    "d4 = Dropout(t4, ratio, training)\n"
    "h5 = MatMul(d4, w5)\n"
    "e5 = Softplus(h5)\n"
    "y = MatMul(e5, w6)\n"
    "output y float N 3\n";
static const struct tiny_weight weights[] = {
    {"k1", 432}, {"s1", 16}, {"b1", 16}, {"m1", 16}, {"v1", 16}, {"k2", 2304}, {"s2", 16},
    {"b2", 16},  {"m2", 16}, {"v2", 16}, {"ls", 16}, {"lb", 16}, {"w5", 256},  {"w6", 48}};
enum { WEIGHTS = sizeof weights / sizeof *weights };

static struct mgpu_options options(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    int64_t dims[] = {13, 3, 8, 8}, count = 13, label[13];
    for (int64_t i = 0; i < count; i++)
        label[i] = i * 7 % 3;
    o.data = tiny_list(tiny_noise("x", 1, 4, dims),
                       tiny_data("label", MGPU_INT64, 1, &count, label), NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.batch = 5;
    o.epochs = 2;
    o.threads = 1;
    o.optimizer = "adam,lr=0.01";
    o.strategy = "data";
    return o;
}

static void test_bits(void)
{
    static const char *const devices[] = {"cpu:0", "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:0"};
    static struct tiny_result kept, again;
    const char *model = tiny_model(blocks);
    struct mgpu_options o = options();
    for (int i = 0; i < 12; i++) {
        o.devices = devices[i % 3];
        o.precision = i / 3 % 2 ? "f64" : "f32";
        o.accumulate = i < 6 ? 1 : 2;
        o.recompute = false;
        tiny_train(&kept, model, &o, weights, WEIGHTS);
        CHECK_(kept.rc >= 0, "%s", kept.error);
        o.recompute = true;
        tiny_train(&again, model, &o, weights, WEIGHTS);
        CHECK_(again.rc >= 0, "%s", again.error);
        CHECK_(tiny_same(&again, &kept), "%s in %s, %d pieces: off by %g", o.devices, o.precision,
               (int)o.accumulate, tiny_difference(&again, &kept));
    }
}

static struct mgpu_plan_file *plan_of(const char *model, int64_t batch, bool recompute)
{
    struct mgpu_options o = options();
    struct mgpu_partition_options p = {0};
    struct mgpu_partition *made;
    struct mgpu_plan_file *plan = NULL;
    o.devices = "cpu:0";
    o.strategy = "single";
    o.batch = batch;
    o.recompute = recompute;
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    CHECK_OK(mgpu_partition_save(made, tiny_path("plan.json")));
    mgpu_partition_free(made);
    CHECK_OK(mgpu_plan_file_read(&plan, tiny_path("plan.json")));
    return plan;
}

static void test_memory(void)
{
    const char *model = tiny_model(blocks);
    struct mgpu_plan_file *kept = plan_of(model, 256, false), *again = plan_of(model, 256, true);
    int64_t before = kept->predicted.memory_bytes[0], after = again->predicted.memory_bytes[0];
    CHECK_(after < before * 9 / 10, "%lld bytes of %lld", (long long)after, (long long)before);
    mgpu_plan_file_free(kept);
    mgpu_plan_file_free(again);
}

/* A plan says so, for all nodes or for some, and may be edited. */
static void test_plan(void)
{
    static struct tiny_result kept, again;
    const char *model = tiny_model(blocks);
    struct mgpu_options o = options();
    o.devices = "cpu:0";
    tiny_train(&kept, model, &o, weights, WEIGHTS);
    struct mgpu_plan_file *plan = plan_of(model, 5, true);
    CHECK(plan->rewrites == 1 && !strcmp(plan->rewrite[0].kind, "recompute"));
    CHECK(plan->alternative[0].recompute);
    static const char *keys[] = {"n2", "r1"};
    plan->rewrite[0].output = keys;
    o = options();
    o.strategy = NULL;
    o.plan = tiny_path("plan.json");
    for (int count = 0; count <= 2; count++) {
        plan->rewrite[0].outputs = count;
        CHECK_OK(mgpu_plan_file_write(plan, o.plan));
        tiny_train(&again, model, &o, weights, WEIGHTS);
        CHECK_(again.rc >= 0 && tiny_same(&again, &kept), "%s", again.error);
    }
    plan->batch = o.batch;
    o.batch = 0; /* the plan's, then */
    CHECK_OK(mgpu_plan_file_write(plan, o.plan));
    tiny_train(&again, model, &o, weights, WEIGHTS);
    CHECK_(again.rc >= 0 && tiny_same(&again, &kept), "%s", again.error);
    keys[1] = "q";
    CHECK_OK(mgpu_plan_file_write(plan, o.plan));
    tiny_train(&again, model, &o, weights, WEIGHTS);
    CHECK(again.rc < 0 && strstr(again.error, "nothing computes 'q' here"));
    mgpu_plan_file_free(plan);
}

int main(void)
{
    tiny_begin();
    test_bits();
    test_memory();
    test_plan();
    tiny_end();
    return test_end();
}
