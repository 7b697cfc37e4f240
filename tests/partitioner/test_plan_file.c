/* plan.json: what is written is read back; every damaged or wrong file is one message; a plan is
 * checked against the model that it is used for. */
#include "partitioner/plan_check.h"
#include "runtime/facade/facade.h"
#include "tests/onnx_build.h"
#include "tests/support/make_onnx.h"
#include "tests/test.h"

static const char two_towers[] = "input a float N 4\n"
                                 "input b float N 4\n"
                                 "init W float 4 3 = 0.5\n"
                                 "init V float 6 2 = 0.25\n"
                                 "p = MatMul(a, W) name=\"left\"\n"
                                 "h = Relu(p)\n"
                                 "q = MatMul(b, W) name=\"right\"\n"
                                 "k = Relu(q)\n"
                                 "c = Concat(h, k) axis=1\n"
                                 "y = MatMul(c, V)\n"
                                 "output y float N 2\n";

/* ---- Making ---------------------------------------------------------------------------------- */

static const char *const branch_node[][2] = {{"p", "MatMul"}, {"h", "Relu"},   {"q", "MatMul"},
                                             {"k", "Relu"},   {"c", "Concat"}, {"y", "MatMul"}};
enum { NODES = 6 };

static struct mgpu_plan_file *make_plan(int devices, int replicas, int places)
{
    struct mgpu_plan_file *p = mgpu_plan_file_new();
    const char **name = MGPU_NEW_ARRAY(p->arena, const char *, devices);
    for (int i = 0; i < devices; i++)
        name[i] = mgpu_arena_format(p->arena, "cpu:%d", i);
    mgpu_plan_file_devices(p, devices, name);
    p->model_file = "two.onnx";
    p->sha256 = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    p->batch = 8;
    p->replicas = replicas;
    p->places = places;
    p->strategy = places > 1 ? (replicas > 1 ? "hybrid" : "branch") : "data";
    p->nodes = NODES;
    p->node = MGPU_NEW_ARRAY(p->arena, struct mgpu_plan_node, NODES);
    for (int i = 0; i < NODES; i++)
        p->node[i] = (struct mgpu_plan_node){.output = branch_node[i][0],
                                             .name = i == 0 ? "left" : "",
                                             .type = branch_node[i][1],
                                             .place = places > 1 && (i == 2 || i == 3)};
    p->owners = 2;
    p->owner = MGPU_NEW_ARRAY(p->arena, struct mgpu_plan_owner, 2);
    p->owner[0] = (struct mgpu_plan_owner){"W", places - 1};
    p->owner[1] = (struct mgpu_plan_owner){"V", 0};
    p->bucket_bytes = 4096;
    p->predicted = (struct mgpu_predicted){.step_ms = 1.5,
                                           .speedup = 1.75,
                                           .single_ms = 2.625,
                                           .lower_bound_ms = 1.25,
                                           .parallelism = 1.9,
                                           .bytes_moved = 123456789012,
                                           .memory_bytes = p->predicted.memory_bytes};
    for (int i = 0; i < devices; i++)
        p->predicted.memory_bytes[i] = 1000 + i;
    p->alternatives = 2;
    p->alternative = MGPU_NEW_ARRAY(p->arena, struct mgpu_alternative, 2);
    p->alternative[0] =
        (struct mgpu_alternative){p->strategy, replicas, places, devices,      true,         true,
                                  1.5,         1.75,     1001,   123456789012, "the fastest"};
    p->alternative[1] = (struct mgpu_alternative){.strategy = "stacked", .why = "no \"towers\" é"};
    p->profile = "0123456789abcdef";
    return p;
}

/* ---- There and back -------------------------------------------------------------------------- */

static void check_same(const struct mgpu_plan_file *a, const struct mgpu_plan_file *b)
{
    CHECK(!strcmp(a->model_file, b->model_file) && !strcmp(a->sha256, b->sha256));
    CHECK(a->batch == b->batch && a->devices == b->devices && !strcmp(a->strategy, b->strategy));
    CHECK(a->replicas == b->replicas && a->places == b->places && a->nodes == b->nodes);
    for (int i = 0; i < a->devices; i++) {
        CHECK(!strcmp(a->device[i], b->device[i]) && !strcmp(a->label[i], b->label[i]));
        CHECK(a->predicted.memory_bytes[i] == b->predicted.memory_bytes[i]);
    }
    for (int i = 0; i < a->nodes && i < b->nodes; i++)
        CHECK(!strcmp(a->node[i].output, b->node[i].output) &&
              !strcmp(a->node[i].name, b->node[i].name) &&
              !strcmp(a->node[i].type, b->node[i].type) && a->node[i].place == b->node[i].place);
    CHECK(a->owners == b->owners);
    for (int i = 0; i < a->owners && i < b->owners; i++)
        CHECK(!strcmp(a->owner[i].parameter, b->owner[i].parameter) &&
              a->owner[i].place == b->owner[i].place);
    CHECK(a->bucket_bytes == b->bucket_bytes && !strcmp(a->profile, b->profile));
    CHECK_NEAR(b->predicted.step_ms, a->predicted.step_ms, 0);
    CHECK_NEAR(b->predicted.parallelism, a->predicted.parallelism, 0);
    CHECK(a->predicted.bytes_moved == b->predicted.bytes_moved);
    CHECK(a->alternatives == b->alternatives && a->rewrites == b->rewrites);
    CHECK(b->alternative[0].feasible && !b->alternative[1].feasible);
    CHECK(!strcmp(a->alternative[1].why, b->alternative[1].why));
    CHECK(b->alternative[0].bytes_moved == 123456789012);
    CHECK(b->alternative[0].devices == a->alternative[0].devices);
}

static void test_round_trip(int devices, int replicas, int places, const char *second)
{
    struct mgpu_plan_file *a = make_plan(devices, replicas, places), *b = NULL;
    const char *path = build_path("plan.json");
    CHECK_OK(mgpu_plan_file_write(a, path));
    CHECK_OK(mgpu_plan_file_read(&b, path));
    if (b)
        check_same(a, b);
    CHECK(!strcmp(mgpu_plan_file_place(a, places - 1), second));
    mgpu_plan_file_free(a);
    mgpu_plan_file_free(b);
}

/* A device that is listed twice holds two ranks, with two names. */
static void test_twice(void)
{
    struct mgpu_plan_file *p = mgpu_plan_file_new();
    mgpu_plan_file_devices(p, 4, (const char *const[]){"cpu:0", "cpu:0", "cpu:1", "cpu:0"});
    CHECK(!strcmp(p->label[0], "cpu:0") && !strcmp(p->label[1], "cpu:0#1"));
    CHECK(!strcmp(p->label[2], "cpu:1") && !strcmp(p->label[3], "cpu:0#2"));
    mgpu_plan_file_free(p);
}

static void test_rewrites(void)
{
    struct mgpu_plan_file *a = make_plan(2, 1, 2), *b = NULL;
    struct mgpu_plan_rewrite stack = {"stack", 2, (const char *[]){"p", "q"}};
    a->rewrites = 1;
    a->rewrite = &stack;
    CHECK_OK(mgpu_plan_file_write(a, build_path("plan.json")));
    CHECK_OK(mgpu_plan_file_read(&b, build_path("plan.json")));
    CHECK(b && b->rewrites == 1 && !strcmp(b->rewrite[0].kind, "stack") &&
          b->rewrite[0].outputs == 2 && !strcmp(b->rewrite[0].output[1], "q"));
    mgpu_plan_file_free(a);
    mgpu_plan_file_free(b);
}

/* ---- Wrong files ----------------------------------------------------------------------------- */

struct edit {
    const char *from, *to, *message;
};

static const struct edit edits[] = {
    {"\"version\": 1", "\"version\": 2", "a plan of version 2; this mgpu reads version 1"},
    {"\"version\": 1", "\"version\": \"1\"", "'version' must be a whole number"},
    {"\"version\": 1", "\"verse\": 1", "'version' is missing"},
    {"\"version\": 1", "\"version\": null", "'version' is null"},
    {"\"version\": 1", "\"version\": 1e300", "'version' must be a whole number"},
    {"\"sha256\": \"0011", "\"sha256\": \"00XY", "must be 64 hexadecimal digits"},
    {"\"batch\": 8", "\"batch\": 0", "'batch' must be a whole number from 1"},
    {"\"batch\": 8", "\"batch\": 8.5", "'batch' must be a whole number"},
    {"[ \"cpu:0\", \"cpu:1\" ]", "[ ]", "'devices' lists 0"},
    {"[ \"cpu:0\", \"cpu:1\" ]", "[ \"cpu:0\", 1 ]", "'devices': entry 1 must be a text"},
    {"[ \"cpu:0\", \"cpu:1\" ]", "[ \"cpu:0\", \"\" ]", "'devices': '' is not the name"},
    {"\"strategy\": \"branch\"", "\"strategy\": \"data\"",
     "'strategy' is 'data', but by their devices the nodes are 'branch'"},
    {"\"strategy\":", "\"stratgey\":", "unknown key 'stratgey'; did you mean 'strategy'?"},
    {"\"sha256\":", "\"sha1\":", "unknown key 'sha1'"},
    {"\"batch\": 8", "\"batch\": 8, \"batch\" : 9",
     "line 4: the key \"batch\" stands twice in one object"},
    {"\"name\": \"left\"", "\"name\": \"left\", \"type\": \"Relu\"",
     "the key \"type\" stands twice"},
    {"\"slice\":", "\"part\":", "nodes[0]: unknown key 'part'"},
    {"\"W\": \"cpu:1\"", "\"W\": \"cpu:0\", \"W\": \"cpu:1\"", "the key \"W\" stands twice"},
    {"\"strategy\": \"branch\"", "\"strategy\": \"brunch\"", "did you mean 'branch'?"},
    {"\"device\": \"cpu:1\"", "\"device\": \"cpu:7\"",
     "nodes[2]: 'device': 'cpu:7' is not one of the devices (cpu:0, cpu:1)"},
    {"\"device\": \"cpu:1\"", "\"device\": \"cpu:0,cpu:1\"", "2 devices, but the first node has 1"},
    {"\"device\": \"cpu:1\"", "\"device\": 1", "nodes[2]: 'device' must be a text"},
    {"\"device\": \"cpu:1\"", "\"device\": null", "nodes[2]: 'device' is null"},
    {"\"slice\": \"all\"", "\"slice\": \"half\"", "nodes[0]: 'slice' is 'half'"},
    {"\"output\": \"q\"", "\"output\": \"p\"", "'p' is placed twice"},
    {"\"W\": \"cpu:1\"", "\"W\": 3", "owners: 'W' must be a text"},
    {"\"W\": \"cpu:1\"", "\"W\": \"gpu:1\"", "owners: 'W': 'gpu:1' is not one of the devices"},
    {"\"bytes\": 4096", "\"bytes\": -4", "buckets[0]: 'bytes' must be a whole number from 1"},
    {"\"step_ms\": 1.5", "\"step_ms\": \"fast\"", "'step_ms' must be a number"},
    {"\"step_ms\": 1.5", "\"step_ms\": -1", "'step_ms' must be a number from 0"},
    {"\"why\": \"the fastest\"", "\"how\": 1", "alternatives[0]: 'why' is missing"},
    {"\"strategy\": \"branch\",\n", "\"strategy\": \"branch\"\n", "object value separator"},
    {"{\n  \"version\"", "[{\n  \"version\"", "the file ends too early"},
};

static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *out = NULL;
    if (!at) {
        CHECK_(false, "the plan has no '%s'", from);
        return mgpu_xstrdup(text);
    }
    if (asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) < 0)
        abort();
    return out;
}

static void read_fails(const char *text, size_t size, const char *message)
{
    struct mgpu_plan_file *p;
    build_bytes(build_path("bad.json"), text, size);
    CHECK_FAILS(mgpu_plan_file_read(&p, build_path("bad.json")), message);
    CHECK(strstr(mgpu_error(), "bad.json"));
}

static void test_wrong_files(void)
{
    size_t size;
    struct mgpu_plan_file *p = make_plan(2, 1, 2);
    p->alternative[1].why = ""; /* cut inside a letter it would not be JSON */
    CHECK_OK(mgpu_plan_file_write(p, build_path("plan.json")));
    char *text = (char *)build_load(build_path("plan.json"), &size);
    text[size] = 0;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *bad = replaced(text, edits[i].from, edits[i].to);
        read_fails(bad, strlen(bad), edits[i].message);
        free(bad);
    }
    for (size_t n = 0; n + 2 < size; n++) /* cut anywhere before the last brace */
        read_fails(text, n, "the file ends too early");
    read_fails("[]", 2, "must hold one object");
    struct mgpu_plan_file *none;
    CHECK_FAILS(mgpu_plan_file_read(&none, build_path("none.json")), "No such file");
    free(text);
    mgpu_plan_file_free(p);
}

/* A plan's text with `from` changed is refused. */
static void edits_fail(struct mgpu_plan_file *p, const struct edit *wrong, size_t count)
{
    size_t size;
    CHECK_OK(mgpu_plan_file_write(p, build_path("plan.json")));
    char *text = (char *)build_load(build_path("plan.json"), &size);
    text[size] = 0;
    for (size_t i = 0; i < count; i++) {
        char *bad = replaced(text, wrong[i].from, wrong[i].to);
        read_fails(bad, strlen(bad), wrong[i].message);
        free(bad);
    }
    free(text);
}

/* Replicas lie a fixed distance apart. */
static void test_replicas(void)
{
    struct mgpu_plan_file *p = make_plan(4, 2, 2);
    static const struct edit wrong[] = {
        {"\"device\": \"cpu:1,cpu:3\"", "\"device\": \"cpu:1,cpu:2\"", "must lie 2 devices apart"},
        {"\"device\": \"cpu:1,cpu:3\"", "\"device\": \"cpu:1\"", "1 device, but the first node"},
        {"\"device\": \"cpu:0,cpu:2\"", "\"device\": \"cpu:2,cpu:0\"", "in their order"},
        {"\"device\": \"cpu:0,cpu:2\"", "\"device\": \"cpu:0,cpu:3\"",
         "2 parts of a node that lie 3 devices apart take 6 devices; 'devices' lists 4"},
        {"\"device\": \"cpu:0,cpu:2\"", "\"device\": \"cpu:0,cpu:2,cpu:3\"",
         "equally far apart in 'devices': 'cpu:2' lies 2 behind 'cpu:0', 'cpu:3' 1 behind 'cpu:2'"},
        {"\"device\": \"cpu:0,cpu:2\"", "\"device\": \"cpu:0,cpu:0\"", "in their order, each once"},
        {"\"device\": \"cpu:1,cpu:3\"", "\"device\": \"cpu:1,cpu:1\"", "must lie 2 devices apart"},
        {"\"slice\": \"batch\"", "\"slice\": \"all\"", "each takes its part"},
    };
    edits_fail(p, wrong, sizeof wrong / sizeof *wrong);
    mgpu_plan_file_free(p);
}

/* A plan reads the same whether all devices of a place are named or some are left out. */
static void test_left_out(void)
{
    static const struct edit same[] = {
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,cpu:5,cpu:7,cpu:9,cpu:11", NULL},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,cpu:5,...,cpu:9,cpu:11", NULL},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,...,cpu:5,cpu:7,...,cpu:11", NULL},
    };
    static const struct edit wrong[] = {
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,...,cpu:10", "goes on at the distance"},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,...,cpu:3", "goes on at the distance"},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:3,cpu:1,...,cpu:11", "goes on at the distance"},
        {"cpu:1,cpu:3,...,cpu:11", "...,cpu:11", "goes on at the distance"},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,...,cpu:11", "but the first node has 6"},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,...", "'...' is not one of the devices"},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:1,cpu:3,...,...,cpu:11", "'...' is not one of"},
        {"cpu:1,cpu:3,...,cpu:11", "cpu:0,...,cpu:11,cpu:0,...,cpu:11", "names a device twice"},
        {"[ \"cpu:0\"", "[ \"...\"", "'...' is not the name of a device"},
    };
    size_t size;
    struct mgpu_plan_file *p = make_plan(12, 6, 2), *q;
    CHECK_OK(mgpu_plan_file_write(p, build_path("plan.json")));
    char *text = (char *)build_load(build_path("plan.json"), &size);
    text[size] = 0;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char *other = replaced(text, same[i].from, same[i].to);
        build_bytes(build_path("same.json"), other, strlen(other));
        CHECK_OK(mgpu_plan_file_read(&q, build_path("same.json")));
        if (q)
            check_same(p, q);
        mgpu_plan_file_free(q);
        free(other);
    }
    free(text);
    edits_fail(p, wrong, sizeof wrong / sizeof *wrong);
    mgpu_plan_file_free(p);
}

/* ---- Against the model ----------------------------------------------------------------------- */

static struct mgpu_outline *outline_of(const char *model)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t = NULL;
    struct mgpu_graph *g = NULL;
    struct mgpu_outline *outline = NULL;
    o.batch = 8;
    make_onnx_file(build_path("two.onnx"), model);
    CHECK_OK(mgpu_trainer_planning(&t, build_path("two.onnx"), &o));
    if (t)
        CHECK_OK(mgpu_build_graph(&g, t, MGPU_MODE_TRAIN, 8, NULL));
    if (g)
        outline = mgpu_outline_new(g);
    mgpu_graph_free(g);
    mgpu_trainer_free(t);
    return outline;
}

static char notes[4096];
static void take_note(void *context, const char *text)
{
    (void)context;
    snprintf(notes, sizeof notes, "%s", text);
}

static void test_model(void)
{
    struct mgpu_outline *o = outline_of(two_towers);
    struct mgpu_plan_file *p = make_plan(2, 1, 2);
    const char *other = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    if (!o)
        return;
    CHECK(o->nodes == NODES && mgpu_outline_find(o, "k") == 3 && mgpu_outline_find(o, "x") < 0);
    CHECK(o->node[1].from == 0 && o->node[3].from == 1 && o->node[4].from == MGPU_FROM_SEVERAL);
    CHECK(o->edges == 5 && o->node[4].edges == 2 && o->edge[o->node[4].first_edge].bytes == 8 * 12);
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", p->sha256));
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", other)); /* other weights */
    CHECK(strstr(notes, "its nodes are the same"));

    p->node[0].name = "renamed"; /* only for the reader */
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", p->sha256));
    p->node[2].type = "Gemm";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "'q' is Gemm in the plan, MatMul");
    CHECK_FAILS(mgpu_plan_check(p, o, "this.onnx", other),
                "a plan for another model: for two.onnx (sha256 001122334455...), not for "
                "this.onnx (ff1122334455...); the first node that differs: 'q' is Gemm");
    p->node[2].type = "MatMul";
    p->node[3].output = "kk";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256),
                "'k' (Relu) has no device; the plan has 'kk', which nothing computes");
    p->node[3].output = "k";
    p->owner[0].parameter = "U";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "the model has no weight 'U'");
    p->owner[0].parameter = "W";
    mgpu_plan_file_free(p);
    mgpu_outline_free(o);
}

/* A plan may name nodes that these losses do not need; it may not lack any. */
static void test_part(void)
{
    struct mgpu_outline *o = outline_of("input a float N 4\n"
                                        "init W float 4 3 = 0.5\n"
                                        "p = MatMul(a, W)\n"
                                        "h = Relu(p)\n"
                                        "output h float N 3\n");
    struct mgpu_plan_file *p = make_plan(2, 1, 2);
    if (!o)
        return;
    p->owners = 1; /* W */
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", p->sha256));
    p->nodes = 1;
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "'h' (Relu) has no device");
    mgpu_plan_file_free(p);
    mgpu_outline_free(o);
}

static void test_circles(void)
{
    struct mgpu_outline *o = outline_of(two_towers);
    struct mgpu_plan_file *p = make_plan(2, 1, 2);
    if (!o)
        return;
    struct mgpu_plan_node relu = p->node[1];
    p->node[1] = p->node[0];
    p->node[0] = relu;
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256),
                "a circle: 'h' stands before 'p', which it needs");
    p->node[0] = p->node[1];
    p->node[1] = relu;
    struct mgpu_plan_rewrite stack = {"stack", 2, (const char *[]){"p", "q"}};
    p->rewrites = 1;
    p->rewrite = &stack;
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", p->sha256));
    stack.output[1] = "y";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256),
                "rewrites[0]: a circle: 'y' needs 'p'");
    stack.output[1] = "c";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "'p' is MatMul, 'c' is Concat");
    stack.output[1] = "p";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "'p' stands twice");
    stack.kind = "fold";
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "'fold' is not known");
    mgpu_plan_file_free(p);
    mgpu_outline_free(o);
}

/* The graph has a max pool before what limits it, the file behind: both orders are right, wherever
 * the nodes run. */
static void test_either_order(void)
{
    struct mgpu_outline *o = outline_of("input x float N 1 8 8\n"
                                        "init W float 2 1 3 3 = 0.5\n"
                                        "c = Conv(x, W)\n"
                                        "r = Relu(c)\n"
                                        "l = Relu(r)\n"
                                        "y = MaxPool(l) kernel_shape=[2,2] strides=[2,2]\n"
                                        "output y float N 2 3 3\n");
    static const char *const file[][2] = {
        {"c", "Conv"}, {"r", "Relu"}, {"l", "Relu"}, {"y", "MaxPool"}};
    struct mgpu_plan_file *p = make_plan(2, 1, 2);
    if (!o)
        return;
    CHECK(o->nodes == 4 && !strcmp(o->node[1].output, "y"));
    p->owners = 0;
    p->nodes = 4;
    for (int i = 0; i < 4; i++)
        p->node[i] = (struct mgpu_plan_node){file[i][0], "", file[i][1], i % 2};
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", p->sha256));
    for (int i = 0; i < o->nodes; i++)
        p->node[i] = (struct mgpu_plan_node){o->node[i].output, "", o->node[i].type, i % 2};
    CHECK_OK(mgpu_plan_check(p, o, "two.onnx", p->sha256));
    struct mgpu_plan_node conv = p->node[0];
    p->node[0] = p->node[1];
    p->node[1] = conv;
    CHECK_FAILS(mgpu_plan_check(p, o, "two.onnx", p->sha256), "'y' stands before 'c'");
    mgpu_plan_file_free(p);
    mgpu_outline_free(o);
}

/* ---- For the runtime, and the hash ----------------------------------------------------------- */

static void test_runtime(void)
{
    struct mgpu_plan *plan;
    struct mgpu_plan_file *p = make_plan(4, 2, 2);
    CHECK_OK(mgpu_plan_from_file(&plan, p));
    mgpu_plan_file_free(p);
    CHECK(plan->replicas == 2 && plan->places == 2 && plan->placements == NODES);
    CHECK(plan->strategy == MGPU_STRATEGY_HYBRID && plan->bucket_bytes == 4096);
    CHECK(!strcmp(plan->placement[2].output, "q") && plan->placement[2].place == 1);
    CHECK(plan->owners == 2 && plan->owner[0].place == 1);
    mgpu_plan_free(plan);
    p = make_plan(128, 128, 1);
    CHECK_FAILS(mgpu_plan_from_file(&plan, p), "128 devices: at most 64");
    mgpu_plan_file_free(p);
}

static void test_hash(void)
{
    char text[MGPU_SHA256_TEXT]; /* FIPS 180-2, appendix B.1 */
    build_bytes(build_path("abc"), "abc", 3);
    CHECK_OK(mgpu_sha256_file(text, build_path("abc")));
    CHECK(!strcmp(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    CHECK_FAILS(mgpu_sha256_file(text, build_path("none")), "No such file");
}

int main(void)
{
    build_begin();
    mgpu_set_note(take_note, NULL);
    test_round_trip(2, 1, 2, "cpu:1");
    test_round_trip(4, 4, 1, "all");
    test_round_trip(4, 2, 2, "cpu:1,cpu:3");
    test_round_trip(5, 2, 2, "cpu:1,cpu:3");
    test_round_trip(8, 4, 2, "cpu:1,cpu:3,cpu:5,cpu:7");
    test_round_trip(11, 5, 2, "cpu:1,cpu:3,...,cpu:9");
    test_round_trip(1024, 512, 2, "cpu:1,cpu:3,...,cpu:1023");
    test_twice();
    test_rewrites();
    test_wrong_files();
    test_replicas();
    test_left_out();
    test_model();
    test_part();
    test_circles();
    test_either_order();
    test_runtime();
    test_hash();
    build_end();
    return test_end();
}
