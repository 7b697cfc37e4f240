/* mgpu-partition's plans, other results, messages and exit status, and that a failed run writes
 * nothing. */
#include "tests/partitioner/partition_tool.h"

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

/* A call of two nodes is on the device that one of them is pinned to, and on no two. */
static void test_stacked_pins(void)
{
    CHECK_RUN(TWO "--strategy stacked --pin right=cpu:1 --pin k=cpu:1 --plan plan.json");
    struct mgpu_plan_file *p = read_plan("plan.json");
    static const char *const nodes[] = {"p", "q", "h", "k"};
    for (int i = 0; i < 4; i++)
        CHECK(place_of(p, nodes[i]) == place_of(p, "p"));
    CHECK(p && !strcmp(p->device[place_of(p, "p")], "cpu:1"));
    mgpu_plan_file_free(p);
    CHECK_REFUSED(TWO "--strategy stacked --pin left=cpu:1 --pin right=cpu:0", 1,
                  "'p' is pinned to cpu:1, 'q' to cpu:0");
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
    test_stacked_pins();
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

/* A plan for GPUs says so, and whose numbers it has; it is written all the same. */
static void test_elsewhere(void)
{
    static const char says[] = "note: mgpu-train cannot run this plan here: cuda:1 beside cuda:0: ";
    CHECK_RUN("two.onnx --devices 8xh100-nvlink --batch 4096 --strategy data --plan plan.json");
    CHECK_(strstr(err, says) && exists("plan.json"), "%s", err);
    CHECK(
        strstr(out, "GPUs are predicted with the numbers of h100 (67 TFLOP/s in f32, 3350 GB/s)"));
    CHECK_RUN("two.onnx --devices 8xh100-nvlink --batch 4096 --strategy data");
    CHECK_(!strstr(err, "note: mgpu-train"), "%s", err); /* nothing is written */
    CHECK_RUN(TWO "--plan plan.json");
    CHECK_(!strstr(err, "note: mgpu-train"), "%s", err);
    CHECK(!strstr(out, "GPUs are"));
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
    CHECK(strstr(out, "\n  cuda:0 ") || strstr(out, "\n  no GPU: "));
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
    CHECK_REFUSED(TWO "--html no.json --timeline no.json", 2, "no.json is to be written twice");
    CHECK_REFUSED(TWO "--profile prof --plan prof", 2, "prof is the file of --profile");
    CHECK_REFUSED("two.onnx --devices ./rack.json --plan rack.json", 2, "the file of --devices");
    CHECK_REFUSED("two.onnx --devices cpu:0 --measure --profile two.onnx", 2, "the model");
    CHECK_REFUSED("two.onnx --devices cpu:0 --measure --profile none/p.json", 1, "none/p.json");
    CHECK(!strstr(err, "measuring"));
    CHECK_REFUSED(TWO "--plan none/no.json", 1, "none/no.json");
    CHECK_RUN(TWO "--quiet");
    CHECK(!exists("no.json") && !exists("rack.json") && !exists("prof"));
}

int main(void)
{
    tool_begin();
    test_table();
    test_strategies();
    test_weights_on();
    test_stdout();
    test_used();
    test_pins();
    test_pinned_again();
    test_order();
    test_far_away();
    test_elsewhere();
    test_lists();
    test_refused();
    test_targets();
    tool_end();
    return test_end();
}
