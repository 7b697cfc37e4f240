/* mgpu-partition on models of a kind: what is placed, moved and held of them. Rows 24 to 26 of the
 * collected reports: shared weights, devices of unequal size, shape arithmetic. */
#include "tests/partitioner/partition_tool.h"

/* Statistics of the whole batch are summed in the middle of the step, as are their gradients: at
 * least two sums each, of four channels, by two replicas, whoever has the weights. */
static void test_norm_sums(const char *more)
{
    static const char *const modes[] = {"train", "sync"};
    double ms[2], moved[2];
    make_onnx_file(build_path("norm.onnx"), "producer pytorch\n"
                                            "input x float N 4 6 6\n"
                                            "init q float 1 4 1 1 = 0.5\n"
                                            "init s float 4 = 1\ninit b float 4 = 0\n"
                                            "init m float 4 = 0\ninit v float 4 = 1\n"
                                            "init w float 4 2 = 0.5\n"
                                            "h = Mul(x, q)\n"
                                            "n = BatchNormalization(h, s, b, m, v)\n"
                                            "g = GlobalAveragePool(n)\n"
                                            "f = Flatten(g)\n"
                                            "y = MatMul(f, w)\n"
                                            "output y float N 2\n");
    for (int i = 0; i < 2; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments,
                 "norm.onnx --devices 2xh100-nvlink --batch 8 --strategy data --batch-norm %s "
                 "%s --plan plan.json",
                 modes[i], more);
        CHECK_RUN(arguments);
        struct mgpu_plan_file *p = read_plan("plan.json");
        ms[i] = p ? p->predicted.step_ms : 0;
        moved[i] = p ? (double)p->predicted.bytes_moved : 0;
        mgpu_plan_file_free(p);
    }
    CHECK(ms[1] > ms[0] && moved[1] >= moved[0] + 2 * 4 * 4 * 4);
    unlink(build_path("plan.json"));
}

/* What is counted of an output runs where the output is made: it is no branch. */
static void test_metrics(void)
{
    make_onnx_file(build_path("chain.onnx"), "input x float N 16\n"
                                             "init A float 16 32 = normal 0.1\n"
                                             "init B float 32 4 = normal 0.1\n"
                                             "h = MatMul(x, A)\n"
                                             "y = MatMul(h, B)\n"
                                             "output y float N 4\n");
    CHECK_RUN("chain.onnx --devices 2xcpu --batch 8 --loss cross_entropy --strategy branch "
              "--plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->nodes == 2 && place_of(p, "h") != place_of(p, "y"));
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
}

/* Putting an input's channels in blocks is work of the node that wants them so: no branch. */
static void test_reorders(void)
{
    make_onnx_file(build_path("image.onnx"), "input x float N 16 12 12\n"
                                             "init A float 32 16 3 3 = normal 0.1\n"
                                             "init B float 32 32 3 3 = normal 0.1\n"
                                             "h = Conv(x, A)\n"
                                             "y = Conv(h, B)\n"
                                             "output y float N 32 8 8\n");
    CHECK_RUN("image.onnx --devices 2xcpu --batch 8 --strategy branch --plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && place_of(p, "h") != place_of(p, "y"));
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
}

/* Bytes follow the types: activations of half types take half as much, weights as much as ever. */
static void test_precision(void)
{
    static const char *const precision[] = {"f32", "bf16", "f16"};
    int64_t bytes[3], moved[3];
    make_onnx_file(build_path("wide.onnx"), "input a float N 64\n"
                                            "init V float 64 64 = normal 0.1\n"
                                            "init W float 64 64 = normal 0.1\n"
                                            "p = MatMul(a, V)\n"
                                            "q = Relu(p)\n"
                                            "y = MatMul(q, W)\n"
                                            "output y float N 64\n");
    for (int i = 0; i < 3; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments,
                 "wide.onnx --devices 2xh100-nvlink --batch 4096 --strategy branch "
                 "--pin q=cuda:0 --pin y=cuda:1 --precision %s --plan plan.json",
                 precision[i]);
        CHECK_RUN(arguments);
        struct mgpu_plan_file *p = read_plan("plan.json");
        bytes[i] = p ? p->predicted.memory_bytes[0] : 0;
        moved[i] = p ? p->predicted.bytes_moved : 0;
        mgpu_plan_file_free(p);
    }
    CHECK_(bytes[1] < bytes[0] && bytes[1] > bytes[0] / 2 && bytes[2] == bytes[1],
           "%lld, %lld, %lld bytes", (long long)bytes[0], (long long)bytes[1], (long long)bytes[2]);
    CHECK_(moved[1] == moved[0] / 2 && moved[2] == moved[1], "%lld, %lld moved",
           (long long)moved[0], (long long)moved[1]);
    unlink(build_path("plan.json"));
    CHECK_REFUSED(TWO "--precision bf16", 1, "the kernels of cpu:0 compute in float32");
    CHECK_REFUSED("wide.onnx --devices t4 --batch 64 --precision bf16", 1,
                  "--precision bf16: t4 has compute capability 7.5; products of bfloat16");
    CHECK_REFUSED("wide.onnx --devices v100 --batch 64 --precision tf32", 1, "v100 has compute");
    CHECK_RUN("wide.onnx --devices t4 --batch 64 --precision f16");
    CHECK_(!*err, "%s", err);
    CHECK_RUN(TWO "--precision tf32");
    CHECK_(strstr(err, "only a GPU has TF32; the CPU computes in float32"), "%s", err);
}

static int64_t memory_on(const char *devices)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments,
             "attention.onnx --devices %s --batch 4 --strategy single --plan plan.json", devices);
    CHECK_RUN(arguments);
    struct mgpu_plan_file *p = read_plan("plan.json");
    int64_t bytes = p ? p->predicted.memory_bytes[0] : -1;
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
    return bytes;
}

/* CPUs run attention as one node that keeps no scores, whatever the devices are called. */
static void test_kinds(void)
{
    make_onnx_file(build_path("attention.onnx"), "input x float N 2 32 8\n"
                                                 "init W float 8 8 = normal 0.5\n"
                                                 "q = MatMul(x, W)\n"
                                                 "k = Transpose(x) perm=[0, 1, 3, 2]\n"
                                                 "s = MatMul(q, k)\n"
                                                 "p = Softmax(s) axis=-1\n"
                                                 "y = MatMul(p, x)\n"
                                                 "output y float N 2 32 8\n");
    int64_t here = memory_on("cpu:0,cpu:1"), any = memory_on("2xcpu");
    CHECK_(any == here, "%lld, %lld", (long long)any, (long long)here);
    CHECK_RUN("attention.onnx --devices 2xcpu --batch 4 --strategy single --weights-on cpu:0 "
              "--plan plan.json");
    mgpu_plan_file_free(read_plan("plan.json")); /* its parts are where it is */
    unlink(build_path("plan.json"));
}

/* 24: a weight of the first and the last node has one owner; apart, its copy and its gradient are
 * counted. */
static void test_shared_weight(void)
{
    make_onnx_file(build_path("tied.onnx"), "input ids int64 N 8\n"
                                            "init E float 1000 256 = 0.01\n"
                                            "init A float 256 256 = 0.01\n"
                                            "init B float 256 256 = 0.02\n"
                                            "init C float 256 256 = 0.03\n"
                                            "init D float 256 256 = 0.04\n"
                                            "x = Gather(E, ids)\n"
                                            "h1 = MatMul(x, A)\n"
                                            "h2 = MatMul(h1, B)\n"
                                            "h3 = MatMul(h2, C)\n"
                                            "h4 = MatMul(h3, D)\n"
                                            "T = Transpose(E) perm=[1, 0]\n"
                                            "y = MatMul(h4, T)\n"
                                            "output y float N 8 1000\n");
    CHECK_RUN("tied.onnx --devices 2xcpu --batch 4 --strategy branch --pin x=cpu:0 --pin T=cpu:0 "
              "--pin y=cpu:0 --pin 'h[1-4]=cpu:1' --plan together.json");
    CHECK_RUN("tied.onnx --devices 2xcpu --batch 4 --strategy branch --pin x=cpu:0 "
              "--pin 'h[1-4]=cpu:1' --pin T=cpu:1 --pin y=cpu:1 --plan apart.json");
    struct mgpu_plan_file *a = read_plan("together.json"), *b = read_plan("apart.json");
    int owners = 0;
    for (int i = 0; b && i < b->owners; i++)
        owners += !strcmp(b->owner[i].parameter, "E");
    CHECK(owners == 1 && a && a->owners == 5);
    int64_t rows = 4 * 8 * 256 * 4, value = 1024000;
    CHECK(a && a->predicted.bytes_moved == 4 * rows); /* x and h4, and their gradients */
    CHECK(b && b->predicted.bytes_moved == 2 * rows + 2 * value); /* x, E, and their gradients */
    mgpu_plan_file_free(a);
    mgpu_plan_file_free(b);
}

/* 25: the large layer fits only on the larger device, and not with all of the others. */
static void test_unequal_devices(void)
{
    static const char devices[] =
        "{\"version\": 1, \"kinds\": [{\"name\": \"k\", \"like\": \"t4\", \"memory_gib\": 1}],\n"
        "\"devices\": [{\"name\": \"small\", \"kind\": \"k\", \"machine\": 0, \"memory_gib\": "
        "0.001953125},\n {\"name\": \"large\", \"kind\": \"k\", \"machine\": 0, \"memory_gib\": "
        "0.0068359375}],\n\"inside\": {\"gb_s\": 10, \"latency_us\": 5}}\n";
    build_bytes(build_path("unequal.json"), devices, strlen(devices));
    make_onnx_file(build_path("large.onnx"), "input x float N 256\n"
                                             "init A float 256 256 = 0.01\n"
                                             "init B float 256 256 = 0.02\n"
                                             "init C float 256 256 = 0.03\n"
                                             "init D float 256 3072 = 0.04\n"
                                             "a = MatMul(x, A)\n"
                                             "b = MatMul(a, B)\n"
                                             "c = MatMul(b, C)\n"
                                             "y = MatMul(c, D)\n"
                                             "output y float N 3072\n");
    CHECK_RUN("large.onnx --devices unequal.json --batch 1 --optimizer sgd --plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    int small = (place_of(p, "a") == 0) + (place_of(p, "b") == 0) + (place_of(p, "c") == 0);
    CHECK(place_of(p, "y") == 1 && small >= 2);
    CHECK(p && p->predicted.memory_bytes[0] <= 2 << 20 && p->predicted.memory_bytes[1] <= 7 << 20);
    CHECK(p && p->predicted.memory_bytes[1] >= 6 << 20); /* the layer and its gradient */
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
    CHECK_REFUSED("large.onnx --devices unequal.json --batch 1 --optimizer adam --plan no.json", 1,
                  "bytes");
    CHECK(strstr(err, "large") && !exists("no.json"));
}

/* Recomputation is the way out when nothing fits, and no other. The activations are smaller than
 * those that backward computes again in any case (runtime/compile/again.c). */
static void test_recompute(void)
{
    char model[2048] = "input x float N 64\ninit W float 64 64 = 0.01\na0 = MatMul(x, W)\n";
    size_t n = strlen(model);
    for (int i = 1; i <= 12; i++)
        n += (size_t)snprintf(model + n, sizeof model - n,
                              "init W%d float 64 64 = 0.0%d\nb%d = Softplus(a%d)\n"
                              "a%d = MatMul(b%d, W%d)\n",
                              i, i, i, i - 1, i, i, i);
    snprintf(model + n, sizeof model - n, "y = Softplus(a12)\noutput y float N 64\n");
    make_onnx_file(build_path("deep.onnx"), model);
    const char *const roomy = "deep.onnx --devices cpu:0 --batch 1000 --memory 100MB --plan p.json";
    CHECK_RUN(roomy);
    struct mgpu_plan_file *p = read_plan("p.json");
    CHECK(p && !p->rewrites && !p->alternative[0].recompute);
    int64_t needed = p ? p->predicted.memory_bytes[0] : 0;
    mgpu_plan_file_free(p);
    char arguments[256];
    snprintf(arguments, sizeof arguments,
             "deep.onnx --devices cpu:0 --batch 1000 --memory %lld --plan p.json",
             (long long)needed * 9 / 10);
    CHECK_RUN(arguments);
    CHECK(strstr(out, "single, recompute") && strstr(out, "nothing fits without recomputing"));
    p = read_plan("p.json");
    CHECK(p && p->rewrites == 1 && p->predicted.memory_bytes[0] <= needed * 9 / 10);
    mgpu_plan_file_free(p);
    unlink(build_path("p.json"));
    CHECK_REFUSED("deep.onnx --devices cpu:0 --batch 1000 --memory 1MB --plan no.json", 1,
                  "cpu:0 is too small");
}

/* 26: shape arithmetic is no work: it is neither placed nor moved. */
static void test_shape_arithmetic(const char *name, const char *model)
{
    char arguments[512];
    make_onnx_file(build_path(name), model);
    snprintf(arguments, sizeof arguments,
             "%s --devices 2xcpu --batch 4 --strategy single --plan plan.json", name);
    CHECK_RUN(arguments);
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->nodes == 2 && node_of(p, "r") && node_of(p, "y"));
    CHECK(p && p->predicted.bytes_moved == 0);
    mgpu_plan_file_free(p);
    snprintf(arguments, sizeof arguments, "%s --devices 2xcpu --batch 4 --pin s=cpu:1", name);
    CHECK_REFUSED(arguments, 2, "no node that devices compute is called 's'");
    unlink(build_path("plan.json"));
}

/* 26 b: what is made of a weight stays with it. */
static void test_sliced_weight(void)
{
    make_onnx_file(build_path("sliced.onnx"), "input x float N 64\n"
                                              "init W float 64 256 = 0.01\n"
                                              "init z int64 1 = 0\n"
                                              "init h int64 1 = 32\n"
                                              "init e int64 1 = 64\n"
                                              "a = Slice(W, z, h)\n"
                                              "b = Slice(W, h, e)\n"
                                              "w = Concat(b, a) axis=0\n"
                                              "y = MatMul(x, w)\n"
                                              "output y float N 256\n");
    CHECK_RUN("sliced.onnx --devices 2xcpu --batch 4 --strategy single --plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->predicted.bytes_moved == 0 && place_of(p, "w") == place_of(p, "y"));
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
}

int main(void)
{
    tool_begin();
    test_metrics();
    test_reorders();
    test_norm_sums("");
    test_norm_sums("--weights-on cuda:0");
    test_norm_sums("--weights-on cuda:1");
    test_precision();
    test_kinds();
    test_shared_weight();
    test_unequal_devices();
    test_recompute();
    test_shape_arithmetic("shape.onnx", "input x float N 2 3 4\n"
                                        "init zero int64 = 0\n"
                                        "init axes int64 1 = 0\n"
                                        "init rest int64 1 = -1\n"
                                        "init W float 24 1 = 0.1\n"
                                        "s = Shape(x)\n"
                                        "g = Gather(s, zero)\n"
                                        "u = Unsqueeze(g, axes)\n"
                                        "t = Concat(u, rest) axis=0\n"
                                        "r = Reshape(x, t)\n"
                                        "y = MatMul(r, W)\n"
                                        "output y float N 1\n");
    test_shape_arithmetic("slice.onnx", "opset 21\n"
                                        "ir 10\n"
                                        "input x float N 2 3 4\n"
                                        "init rest int64 1 = -1\n"
                                        "init W float 24 1 = 0.1\n"
                                        "s = Shape(x) start=0 end=1\n"
                                        "t = Concat(s, rest) axis=0\n"
                                        "r = Reshape(x, t)\n"
                                        "y = MatMul(r, W)\n"
                                        "output y float N 1\n");
    test_sliced_weight();
    tool_end();
    return test_end();
}
