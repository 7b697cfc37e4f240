/* mgpu-partition as a person runs it: results, messages, exit status, and that a failed run writes
 * nothing. Rows 24 to 26 of the collected reports: shared weights, devices of unequal size, shape
 * arithmetic. */
#include "partitioner/plan_file.h"
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

#include <json-c/json.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { TEXT = 1 << 18 };
static char out[TEXT], err[TEXT];
static const char *folder_of_tool;

static void take(char *into, const char *path)
{
    size_t size;
    char *text = (char *)build_load(path, &size);
    snprintf(into, TEXT, "%.*s", (int)size, text ? text : "");
    free(text);
}

/* Runs the tool in the test's folder; its exit status. */
static int run(const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "cd %s && %s/mgpu-partition %s >out 2>err", build_folder,
             folder_of_tool, arguments);
    int status = system(command);
    take(out, build_path("out"));
    take(err, build_path("err"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool exists(const char *name)
{
    return access(build_path(name), F_OK) == 0;
}

#define CHECK_RUN(arguments)                                                                       \
    do {                                                                                           \
        int status_ = run(arguments);                                                              \
        CHECK_(status_ == 0, "exit %d of '%s': %s", status_, arguments, err);                      \
    } while (0)

/* Fails with this status and one line that holds `part`. */
#define CHECK_REFUSED(arguments, expected, part)                                                   \
    do {                                                                                           \
        int status_ = run(arguments);                                                              \
        const char *line_ = strstr(err, "mgpu-partition: ");                                       \
        CHECK_(status_ == (expected) && line_ && strstr(line_, part) &&                            \
                   strchr(line_, '\n') == line_ + strlen(line_) - 1,                               \
               "exit %d of '%s': %s", status_, arguments, err);                                    \
        CHECK(!*out);                                                                              \
    } while (0)

static struct mgpu_plan_file *read_plan(const char *name)
{
    struct mgpu_plan_file *p = NULL;
    CHECK_OK(mgpu_plan_file_read(&p, build_path(name)));
    return p;
}

static const struct mgpu_plan_node *node_of(const struct mgpu_plan_file *p, const char *output)
{
    for (int i = 0; p && i < p->nodes; i++)
        if (!strcmp(p->node[i].output, output))
            return &p->node[i];
    return NULL;
}

static int place_of(const struct mgpu_plan_file *p, const char *output)
{
    const struct mgpu_plan_node *n = node_of(p, output);
    return n ? n->place : -1;
}

/* ---- Models ---------------------------------------------------------------------------------- */

static const char two_towers[] = "input a float N 64\n"
                                 "input b float N 64\n"
                                 "init W float 64 256 = 0.5\n"
                                 "init V float 512 8 = 0.25\n"
                                 "p = MatMul(a, W) name=\"left\"\n"
                                 "h = Tanh(p)\n"
                                 "q = MatMul(b, W) name=\"right\"\n"
                                 "k = Tanh(q)\n"
                                 "c = Concat(h, k) axis=1\n"
                                 "y = MatMul(c, V)\n"
                                 "output y float N 8\n";

/* The same with other numbers of nodes in another order. */
static const char turned[] = "input b float N 64\n"
                             "input a float N 64\n"
                             "init V float 512 8 = 0.25\n"
                             "init W float 64 256 = 0.5\n"
                             "q = MatMul(b, W) name=\"right\"\n"
                             "p = MatMul(a, W) name=\"left\"\n"
                             "k = Tanh(q)\n"
                             "h = Tanh(p)\n"
                             "c = Concat(h, k) axis=1\n"
                             "y = MatMul(c, V)\n"
                             "output y float N 8\n";

static void make_models(void)
{
    make_onnx_file(build_path("two.onnx"), two_towers);
    make_onnx_file(build_path("turned.onnx"), turned);
}

#define TWO "two.onnx --devices 2xcpu --batch 64 "

/* ---- Plans ----------------------------------------------------------------------------------- */

static void test_table(void)
{
    CHECK_RUN(TWO "--plan plan.json");
    CHECK(strstr(out, "single") && strstr(out, "data") && strstr(out, "branch"));
    CHECK(strstr(out, "speed-up") && strstr(out, "placement"));
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->nodes == 6 && p->devices == 2 && p->batch == 64 && p->alternatives >= 2);
    for (int i = 0; p && i < p->alternatives; i++) {
        const struct mgpu_alternative *a = &p->alternative[i];
        CHECK(*a->why);
        if (!strcmp(a->strategy, "single") || !strcmp(a->strategy, "data"))
            CHECK(p->predicted.step_ms <= a->step_ms); /* never slower than the baselines */
    }
    CHECK(p && p->predicted.lower_bound_ms > 0 &&
          p->predicted.lower_bound_ms <= p->predicted.step_ms);
    mgpu_plan_file_free(p);
    CHECK(unlink(build_path("plan.json")) == 0);
}

/* A strategy that was asked for is planned, whatever is faster. */
static void test_strategies(void)
{
    static const char *const strategies[] = {"single", "data", "branch", "stacked"};
    for (int i = 0; i < 4; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, TWO "--plan plan.json --strategy %s", strategies[i]);
        CHECK_RUN(arguments);
        struct mgpu_plan_file *p = read_plan("plan.json");
        CHECK(p && !strcmp(p->strategy, strategies[i]) && p->rewrites == (i == 3 ? 2 : 0));
        mgpu_plan_file_free(p);
    }
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

/* The weights of all replicas are on the device that was named, also where it is one of them. */
static void test_weights_on(void)
{
    CHECK_RUN(TWO "--strategy data --weights-on cpu:0 --plan plan.json");
    CHECK(strstr(out, "of optimizer state are only there"));
    CHECK(strstr(out, "cpu:0#1,cpu:0#2: 2 weights; "));
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->devices == 4 && p->replicas == 2 && p->places == 2 &&
          !strcmp(p->device[2], "cpu:1"));
    for (int i = 0; p && i < p->owners; i++)
        for (int r = 0; r < 2; r++)
            CHECK(!strcmp(p->device[r * p->places + p->owner[i].place], "cpu:0"));
    for (int i = 0; p && i < p->nodes; i++)
        CHECK(p->node[i].place == 0);
    mgpu_plan_file_free(p);
    CHECK_RUN(TWO "--strategy single --weights-on cpu:0 --plan plan.json");
    mgpu_plan_file_free(read_plan("plan.json")); /* it may compute on the other */
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

static double number_in(struct json_object *o, const char *a, const char *b, const char *c)
{
    const char *const keys[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (keys[i] && !json_object_object_get_ex(o, keys[i], &o))
            return -1;
    return json_object_get_double(o);
}

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

/* A plan is run here: all is measured, and memory is never more than was predicted. */
static void test_verify(void)
{
    CHECK_RUN("two.onnx --batch 64 --devices cpu:0,cpu:1 --pin input:a=cpu:0 --pin input:b=cpu:1 "
              "--plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK_RUN("two.onnx --verify plan.json --json");
    CHECK_REFUSED("two.onnx --verify plan.json --batch 32", 2, "predicts a batch of 64");
    CHECK_RUN("two.onnx --verify plan.json --batch 64 --json");
    struct json_object *o = json_tokener_parse(out);
    CHECK(o != NULL);
    CHECK_NEAR(number_in(o, "step_ms", "predicted", NULL), p ? p->predicted.step_ms : 0, 1e-9);
    CHECK(number_in(o, "step_ms", "measured", NULL) > 0 && number_in(o, "steps", NULL, NULL) >= 10);
    CHECK(number_in(o, "class_ms", "matmul", "measured") > 0);
    CHECK(number_in(o, "class_ms", "matmul", "predicted") > 0);
    CHECK(number_in(o, "class_ms", "communication", "predicted") > 0);
    for (int i = 0; p && i < 2; i++) {
        double bytes = number_in(o, "memory_bytes", p->label[i], "measured");
        double predicted = (double)p->predicted.memory_bytes[i];
        CHECK(bytes > 0 && bytes <= predicted && predicted <= 1.01 * bytes);
    }
    double process = p ? (double)p->predicted.resident_bytes : 0;
    CHECK(p && process > (double)(p->predicted.memory_bytes[0] + p->predicted.memory_bytes[1]));
    CHECK_NEAR(number_in(o, "resident_bytes", "predicted", NULL), process, 0.5);
    CHECK(number_in(o, "resident_bytes", "measured", NULL) > 0);
    json_object_put(o);
    mgpu_plan_file_free(p);
    CHECK_RUN("two.onnx --verify plan.json");
    CHECK(strstr(out, "matmul") && strstr(out, "cpu:1") && strstr(out, "predicted"));
    make_onnx_file(build_path("other.onnx"), "input a float N 64\n"
                                             "init W float 64 8 = 0.5\n"
                                             "y = MatMul(a, W)\n"
                                             "output y float N 8\n");
    CHECK_REFUSED("other.onnx --verify plan.json", 1, "a plan for another model: for two.onnx");
    unlink(build_path("plan.json"));
}

/* Each replica has a rank of its own on the device that has the weights: what each of them needs is
 * predicted, though one device has them all. */
static void test_verify_weights(void)
{
    CHECK_RUN("two.onnx --batch 64 --devices cpu:0,cpu:1 --strategy data --weights-on cpu:0 "
              "--plan plan.json --annotate annotated.onnx");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->replicas == 2 && p->places == 2);
    CHECK(p && p->alternative[0].devices == 2);
    CHECK_RUN("two.onnx --verify plan.json --json");
    struct json_object *o = json_tokener_parse(out);
    for (int i = 0; p && o && i < 4; i++)
        CHECK_NEAR(number_in(o, "memory_bytes", p->label[i], "measured"),
                   (double)p->predicted.memory_bytes[i], 0.5);
    json_object_put(o);
    mgpu_plan_file_free(p);
    CHECK_REFUSED("two.onnx --verify annotated.onnx", 2, "holds no predictions");
    unlink(build_path("plan.json"));
    unlink(build_path("annotated.onnx"));
}

/* By how many ranks nodes that see `shape` were measured at a time. */
static int measured_with(struct json_object *profile, int ranks, const char *shape)
{
    struct json_object *nodes, *value;
    int count = 0;
    json_object_object_get_ex(profile, "nodes", &nodes);
    for (size_t i = 0; i < json_object_array_length(nodes); i++) {
        struct json_object *node = json_object_array_get_idx(nodes, i);
        json_object_object_get_ex(node, "node", &value);
        bool fits = strstr(json_object_get_string(value), shape);
        json_object_object_get_ex(node, "busy", &value);
        count += fits && json_object_get_int(value) == ranks;
    }
    return count;
}

static double step_of(const char *path)
{
    struct json_object *o = json_object_from_file(build_path(path));
    double ms = number_in(o, "predicted", "step_ms", NULL);
    json_object_put(o);
    return ms;
}

/* What branches lose to each other is measured where there are no towers to stack, too. Plans are
 * run, and the profile has their times for those who plan later. */
static void test_measure(void)
{
    make_onnx_file(build_path("one.onnx"), "input a float N 64\n"
                                           "init W float 64 8 = 0.5\n"
                                           "y = MatMul(a, W)\n"
                                           "output y float N 8\n");
    CHECK_RUN("one.onnx --batch 6 --devices cpu:0,cpu:1 --measure --profile profile.json "
              "--plan plan.json");
    struct json_object *profile = json_object_from_file(build_path("profile.json"));
    CHECK(profile != NULL);
    if (profile) {
        int alone = measured_with(profile, 1, "float[6,64]");
        CHECK(alone > 0 && measured_with(profile, 2, "float[6,64]") == alone);
        CHECK(measured_with(profile, 2, "float[3,64]") > 0);
        struct json_object *plans;
        CHECK(json_object_object_get_ex(profile, "plans", &plans) &&
              json_object_array_length(plans) >= 2);
    }
    CHECK_RUN("one.onnx --batch 6 --devices cpu:0,cpu:1 --profile profile.json --plan again.json");
    CHECK(step_of("plan.json") > 0 && step_of("plan.json") == step_of("again.json"));
    if (profile) {
        json_object_object_add(profile, "machine", json_object_new_string("Abacus, 1 cores"));
        CHECK(json_object_to_file(build_path("profile.json"), profile) == 0);
    }
    json_object_put(profile);
    CHECK_REFUSED("one.onnx --batch 6 --devices cpu:0,cpu:1 --measure --profile profile.json", 2,
                  "another machine (Abacus, 1 cores; this is ");
    CHECK_RUN("one.onnx --batch 6 --devices cpu:0,cpu:1 --profile profile.json");
    unlink(build_path("profile.json"));
    unlink(build_path("plan.json"));
    unlink(build_path("again.json"));
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

/* The plan on stdout is the file; the table then goes to stderr. */
static void test_stdout(void)
{
    CHECK_RUN(TWO "--plan plan.json --quiet");
    CHECK(!*err);
    take(err, build_path("plan.json"));
    char *file = mgpu_xstrdup(err);
    CHECK_RUN(TWO "--plan");
    CHECK(!strcmp(out, file) && strstr(err, "speed-up"));
    CHECK_RUN(TWO "--json --quiet");
    CHECK(!strcmp(out, file) && !*err);
    struct json_object *o = json_tokener_parse(out);
    CHECK(o != NULL);
    json_object_put(o);
    free(file);
    unlink(build_path("plan.json"));
}

/* Of eight devices three are used, and so many are told. */
static void test_used(void)
{
    CHECK_RUN("two.onnx --batch 64 --devices 8xh100-nvlink --pin input:a=cuda:5 "
              "--pin input:b=cuda:6 --merge cuda:7 --plan plan.json");
    CHECK(strstr(out, "* branch on 3: "));
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->places == 3 && p->alternative[0].places == 3 && p->alternative[0].devices == 3);
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
}

static void test_pins(void)
{
    CHECK_RUN(TWO "--pin input:a=cpu:1 --pin input:b=cpu:0 --merge cpu:1 --plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && !strcmp(p->strategy, "branch"));
    CHECK(place_of(p, "p") == 1 && place_of(p, "h") == 1);
    CHECK(place_of(p, "q") == 0 && place_of(p, "k") == 0);
    CHECK(place_of(p, "c") == 1 && place_of(p, "y") == 1);
    CHECK(p && p->owners == 2); /* the shared weight is one, on one device */
    mgpu_plan_file_free(p);
    CHECK_RUN(TWO "--pin 'left=cpu:1' --pin '[qk]=cpu:0' --plan plan.json"); /* names, globs */
    p = read_plan("plan.json");
    CHECK(place_of(p, "p") == 1 && place_of(p, "q") == 0 && place_of(p, "k") == 0);
    mgpu_plan_file_free(p);
    CHECK_RUN("two.onnx --devices cpu:0,cpu:0 --batch 64 --pin left=cpu:0#1 --pin right=cpu:0 "
              "--merge cpu:0#1 --weights-on cpu:0#1 --plan plan.json");
    p = read_plan("plan.json");
    CHECK(place_of(p, "p") == 1 && place_of(p, "q") == 0 && place_of(p, "y") == 1);
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
}

/* Pinning everything to the chosen plan gives that plan and its time. */
static void test_pinned_again(void)
{
    char arguments[1024] = TWO "--plan again.json";
    size_t n = strlen(arguments);
    CHECK_RUN(TWO "--strategy branch --pin p=cpu:0 --pin q=cpu:1 --plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json"), *again;
    for (int i = 0; p && i < p->nodes; i++)
        n += (size_t)snprintf(arguments + n, sizeof arguments - n, " --pin %s=cpu:%d",
                              p->node[i].output, p->node[i].place);
    CHECK_RUN(arguments);
    again = read_plan("again.json");
    CHECK_NEAR(again ? again->predicted.step_ms : 0, p ? p->predicted.step_ms : 1, 1e-5);
    mgpu_plan_file_free(p);
    mgpu_plan_file_free(again);
    unlink(build_path("plan.json"));
    unlink(build_path("again.json"));
}

static void test_order(void)
{
    CHECK_RUN(TWO "--strategy branch --pin p=cpu:0 --pin q=cpu:1 --plan plan.json");
    CHECK_RUN("turned.onnx --devices 2xcpu --batch 64 --strategy branch --pin p=cpu:0 "
              "--pin q=cpu:1 --plan turned.json");
    struct mgpu_plan_file *a = read_plan("plan.json"), *b = read_plan("turned.json");
    for (int i = 0; a && b && i < a->nodes; i++)
        CHECK(place_of(b, a->node[i].output) == a->node[i].place);
    CHECK_NEAR(a ? a->predicted.step_ms : 0, b ? b->predicted.step_ms : 1, 0);
    mgpu_plan_file_free(a);
    mgpu_plan_file_free(b);
    unlink(build_path("plan.json"));
    unlink(build_path("turned.json"));
}

static void test_far_away(void)
{
    CHECK_RUN("two.onnx --devices 8xh100-nvlink --batch 512 --plan plan.json --timeline t.json "
              "--html p.html --annotate a.onnx");
    struct mgpu_plan_file *p = read_plan("plan.json");
    CHECK(p && p->devices == 8 && !strcmp(p->device[7], "cuda:7"));
    CHECK(exists("t.json") && exists("p.html") && exists("a.onnx"));
    mgpu_plan_file_free(p);
    unlink(build_path("plan.json"));
}

static void test_lists(void)
{
    CHECK_RUN("--list-ops");
    CHECK(strstr(out, "\nconv ") && strstr(out, "\nall_reduce ") && strstr(out, "gradient"));
    CHECK(strstr(out, "\nConvTranspose ") && strstr(out, "\nai.onnx.preview.training.Adam "));
    CHECK_RUN("--list-ops --json");
    struct json_object *ops = json_tokener_parse(out);
    CHECK(ops && json_object_object_get_ex(ops, "operators", NULL));
    json_object_put(ops);
    CHECK_RUN("--list-devices");
    CHECK(strstr(out, "h100") && strstr(out, "here ("));
    CHECK_RUN("--list-devices --json");
    struct json_object *o = json_tokener_parse(out);
    CHECK(o && json_object_object_get_ex(o, "known", NULL));
    json_object_put(o);
    CHECK_RUN("--help");
    CHECK(strstr(out, "--weights-on DEVICE") && strstr(out, "usage: mgpu-partition"));
    CHECK_RUN("--version");
    CHECK(!strncmp(out, "mgpu-partition ", 15));
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static void test_refused(void)
{
    CHECK_REFUSED("", 2, "which model?");
    CHECK_REFUSED("two.onnx", 2, "which devices?");
    CHECK_REFUSED("two.onnx --devices 8xh1000 --batch 8", 2, "h1000");
    CHECK_REFUSED("none.onnx --devices 2xcpu", 1, "none.onnx");
    CHECK_REFUSED(TWO "--plann x", 2, "did you mean '--plan'?");
    CHECK_REFUSED(TWO "--pin hh=cpu:0 --plan no.json", 2,
                  "no node that devices compute is called 'hh'");
    CHECK_REFUSED(TWO "--pin lift=cpu:0 --plan no.json", 2, "did you mean 'left'?");
    CHECK_REFUSED(TWO "--pin input:d=cpu:0 --plan no.json", 2, "the model has no input 'd'");
    CHECK_REFUSED(TWO "--pin p=cpu:9 --plan no.json", 2, "'cpu:9' is not one of the devices");
    CHECK_REFUSED(TWO "--pin p=cpu:0#1 --plan no.json", 2, "'cpu:0#1' is not one of the devices");
    CHECK_REFUSED(TWO "--pin p --plan no.json", 2, "not PATTERN=DEVICE");
    CHECK_REFUSED(TWO "--pin p=cpu:0 --pin left=cpu:1 --plan no.json", 2, "is pinned to cpu:0");
    CHECK_REFUSED(TWO "--merge gpu:0 --plan no.json", 2, "'gpu:0' is not one of the devices");
    CHECK_REFUSED(TWO "--weights-on cpu:2 --plan no.json", 2, "--weights-on: 'cpu:2'");
    CHECK_REFUSED(TWO "--memory 3XB --plan no.json", 2, "'3XB' is not a size");
    CHECK_REFUSED(TWO "--strategy brunch --plan no.json", 2, "brunch");
    CHECK_REFUSED(TWO "--precision f8 --plan no.json", 2, "f8");
    CHECK_REFUSED(TWO "--loss mse,output=z --plan no.json", 2, "z");
    CHECK_REFUSED(TWO "--profile none.json --plan no.json", 1, "none.json");
    CHECK_REFUSED(TWO "--strategy single --pin p=cpu:0 --pin q=cpu:1 --plan no.json", 1,
                  "is pinned to");
    make_onnx_file(build_path("line.onnx"), "input x float N 4\ninit W float 4 4 = .5\n"
                                            "y = MatMul(x, W)\noutput y float N 4\n");
    CHECK_REFUSED("line.onnx --devices 2xcpu --batch 4 --strategy stacked", 1, "no equal towers");
    CHECK_REFUSED(TWO "--strategy hybrid", 1, "4 devices or more, and there are 2");
    CHECK_REFUSED("two.onnx --devices 1xcpu --batch 64 --strategy data", 1, "there is 1");
    CHECK_REFUSED("two.onnx --devices 4xcpu --batch 64 --strategy hybrid --pin p=cpu:0", 1,
                  "'p' is pinned to cpu:0");
    CHECK_REFUSED("two.onnx --devices 8xh100-nvlink --measure", 2, "are not here");
    CHECK_REFUSED("two.onnx --verify plan.json --html x", 2, "--verify");
    CHECK(!exists("no.json"));
}

/* What is written takes the place of nothing that is read, nor of another result; nothing is
 * planned or timed for a place where nothing can be written. */
static void test_targets(void)
{
    CHECK(symlink("two.onnx", build_path("link.onnx")) == 0);
    CHECK_REFUSED(TWO "--plan two.onnx", 2, "two.onnx is the model that is read");
    CHECK_REFUSED(TWO "--annotate ./link.onnx", 2, "link.onnx is the model that is read");
    CHECK_REFUSED(TWO "--html no.json --timeline no.json", 2, "no.json is written already");
    CHECK_REFUSED(TWO "--profile prof --plan prof", 2, "prof is the file of --profile");
    CHECK_REFUSED("two.onnx --devices ./rack.json --plan rack.json", 1, "rack.json");
    CHECK_REFUSED("two.onnx --devices rack.json --plan rack.json", 2, "the file of --devices");
    CHECK_REFUSED("two.onnx --devices cpu:0 --measure --profile two.onnx", 2, "the model");
    CHECK_REFUSED("two.onnx --devices cpu:0 --measure --profile none/p.json", 1, "none/p.json");
    CHECK(!strstr(err, "measuring"));
    CHECK_REFUSED(TWO "--plan none/no.json", 1, "none/no.json");
    CHECK_RUN(TWO "--quiet");
    CHECK(!exists("no.json") && !exists("rack.json") && !exists("prof"));
}

/* ---- Rows of the reports --------------------------------------------------------------------- */

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
    char path[4096];
    folder_of_tool = realpath(getenv("MGPU_BUILD") ? getenv("MGPU_BUILD") : "build", path);
    if (!folder_of_tool)
        return EXIT_FAILURE;
    build_begin();
    make_models();
    test_table();
    test_strategies();
    test_metrics();
    test_weights_on();
    test_reorders();
    test_norm_sums("");
    test_norm_sums("--weights-on cuda:0");
    test_norm_sums("--weights-on cuda:1");
    test_verify();
    test_verify_weights();
    test_measure();
    test_precision();
    test_kinds();
    test_stdout();
    test_pins();
    test_used();
    test_pinned_again();
    test_order();
    test_far_away();
    test_lists();
    test_refused();
    test_targets();
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
    build_end();
    return test_end();
}
