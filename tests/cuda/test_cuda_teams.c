/* GPUs beside each other and beside the CPU: what is listed, what the planner takes of them, which
 * is what training takes, and plans for devices that are not here. On GPUs that there are not
 * (double.h). */
#include "partitioner/plan_file.h"
#include "runtime/executor/devices.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <cuda.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

static const char *model;
static char notes[4096];

static void keep_notes(void *context, const char *text)
{
    (void)context;
    size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", text);
}

static struct mgpu_options options(const char *devices)
{
    struct mgpu_options o = MGPU_OPTIONS;
    int64_t in[] = {64, 6}, out[] = {64, 3};
    o.data = tiny_list(tiny_noise("a", 1, 2, in), tiny_noise("b", 2, 2, in),
                       tiny_noise("label", 3, 2, out), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 32;
    o.steps = 2;
    o.devices = devices;
    return o;
}

/* ---- What is listed -------------------------------------------------------------------------- */

static char *listed(bool json)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    CHECK_OK(mgpu_list_devices(json, to));
    fclose(to);
    return text;
}

static void check_listed(const char *part)
{
    char *text = listed(false);
    CHECK_(strstr(text, part), "no '%s' in %.600s", part, text);
    free(text);
}

static const char *text_in(struct json_object *o, const char *key)
{
    const char *text = json_object_get_string(json_object_object_get(o, key));
    return text ? text : "";
}

static void test_list(void)
{
    double_begin(2, INT64_C(3) << 30);
    check_listed("  cuda:1    double 1, compute capability 9.0, 3.0 GiB (3.0 free); plans take the "
                 "numbers of h100, the most alike\n");
    char *text = listed(true);
    struct json_object *o = json_tokener_parse(text), *here = json_object_object_get(o, "here");
    struct json_object *gpu = json_object_array_get_idx(here, 2);
    CHECK(json_object_array_length(here) == 3 && !strcmp(text_in(gpu, "name"), "cuda:1"));
    CHECK(!strcmp(text_in(gpu, "gpu"), "double 1") && !*text_in(gpu, "unusable"));
    CHECK(!strcmp(text_in(gpu, "compute_capability"), "9.0"));
    CHECK(!strcmp(text_in(gpu, "free_bytes"), "3221225472"));
    CHECK(atoi(text_in(o, "driver_cuda")) == CUDA_VERSION / 1000 && !*text_in(o, "no_gpu"));
    json_object_put(o);
    free(text);
    double_busy(true);
    check_listed("cannot be used: taking the GPU into use (cuDevicePrimaryCtxRetain) failed: ");
    double_busy(false);
    double_driver_version(1000 * (CUDA_VERSION / 1000 - 1));
    check_listed("no GPU: the NVIDIA driver is too old: it runs CUDA ");
    double_driver_version(CUDA_VERSION);
    double_begin(0, 0);
    check_listed("no GPU: there is an NVIDIA driver but no GPU (nvidia-smi");
}

/* ---- What is planned is what trains ---------------------------------------------------------- */

static struct mgpu_plan_file *planned(struct mgpu_options *o,
                                      const struct mgpu_partition_options *p)
{
    struct mgpu_partition *made = NULL;
    struct mgpu_plan_file *plan = NULL;
    CHECK_OK(mgpu_partition_new(&made, model, o, p));
    CHECK(made && mgpu_partition_save(made, tiny_path("plan.json")) == 0);
    CHECK_OK(made ? mgpu_partition_runs_here(made) : 0);
    CHECK_OK(mgpu_plan_file_read(&plan, tiny_path("plan.json")));
    mgpu_partition_free(made);
    return plan;
}

static const struct mgpu_alternative *refused(const struct mgpu_plan_file *p, const char *why)
{
    for (int i = 0; p && i < p->alternatives; i++)
        if (!p->alternative[i].feasible && strstr(p->alternative[i].why, why))
            return &p->alternative[i];
    return NULL;
}

/* A large batch is for the GPU, and what it takes there is what it takes where it is alone. */
static void test_planned(void)
{
    static const char *const lists[] = {"cpu:0,cuda:0", "cuda:0,cpu:0", "cuda:0,cuda:1",
                                        "cpu:0,cpu:1,cuda:0"};
    static const char *const pairs[] = {"cuda:0 beside cpu:0: ", "cpu:0 beside cuda:0: ",
                                        "cuda:1 beside cuda:0: ", "cuda:0 beside cpu:0: "};
    struct mgpu_partition_options p = {0};
    struct mgpu_options o = options("cuda:0");
    o.batch = 1 << 18;
    struct mgpu_plan_file *alone = planned(&o, &p);
    for (size_t i = 0; alone && i < sizeof lists / sizeof *lists; i++) {
        o.devices = lists[i];
        struct mgpu_plan_file *plan = planned(&o, &p);
        CHECK_(plan && plan->devices == 1 && !strcmp(plan->device[0], "cuda:0"), "%s", lists[i]);
        CHECK(plan && plan->predicted.step_ms == alone->predicted.step_ms);
        CHECK(plan && strstr(plan->alternative[0].why, "cuda:0: the fastest of those that can"));
        CHECK_(refused(plan, pairs[i]), "%s", lists[i]);
        mgpu_plan_file_free(plan);
    }
    mgpu_plan_file_free(alone);
}

static void check_trains_on(const char *devices, const char *strategy, const char *on)
{
    struct mgpu_trainer *t;
    struct mgpu_facts facts;
    struct mgpu_step_result step;
    struct mgpu_options o = options(devices);
    o.strategy = strategy;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    if (!t)
        return;
    mgpu_trainer_facts(t, &facts);
    CHECK_(!strcmp(facts.devices, on), "%s, not %s", facts.devices, on);
    CHECK(mgpu_step(t, &step) == 1);
    mgpu_trainer_free(t);
}

/* A step this small is predicted to be faster on the CPU, whichever is named first. */
static void test_trained(void)
{
    check_trains_on("cuda:0,cpu:0", NULL, "cpu:0");
    check_trains_on("cuda:0,cpu:0", "single", "cpu:0");
    check_trains_on("cuda:1,cuda:0", NULL, "cuda:1");
}

/* What nobody can run is refused by both, in the same words. */
static void test_refused(void)
{
    struct mgpu_trainer *t;
    struct mgpu_partition *made;
    struct mgpu_partition_options p = {0};
    struct mgpu_options o = options("cuda:0,cpu:0");
    static const char words[] =
        "cpu:0 beside cuda:0: ranks on several GPUs, or on GPUs and the CPU";
    o.strategy = "data";
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), words);
    CHECK(strstr(mgpu_error(), "; name one GPU"));
    CHECK_FAILS(mgpu_partition_new(&made, model, &o, &p), words);
    CHECK(strstr(mgpu_error(), "; on cuda:0 alone: ") &&
          strstr(mgpu_error(), ": strategy 'data' is for 2 devices or more"));
    o.strategy = NULL;
    p.pin = o.place = tiny_list("input:a=cuda:0", "input:b=cpu:0", NULL);
    CHECK_FAILS(mgpu_partition_new(&made, model, &o, &p), words);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), words);
}

/* Weights on the CPU leave only it; the GPU is said to be left out. */
static void test_left_out(void)
{
    struct mgpu_options o = options("cuda:0,cpu:0");
    struct mgpu_partition_options p = {.weights_on = "cpu:0"};
    *notes = 0;
    mgpu_set_note(keep_notes, NULL);
    struct mgpu_plan_file *plan = planned(&o, &p);
    mgpu_set_note(NULL, NULL);
    CHECK(plan && !strcmp(plan->device[0], "cpu:0"));
    CHECK_(strstr(notes, "cuda:0 is left out: --weights-on cpu:0 is not on cuda:0; cpu:0 beside"),
           "%s", notes);
    CHECK(refused(plan, "--weights-on cpu:0 is not on cuda:0"));
    mgpu_plan_file_free(plan);
}

/* ---- Plans for devices that are not here ----------------------------------------------------- */

static void check_elsewhere(const char *devices, const char *cannot, const char *run)
{
    struct mgpu_trainer *t;
    struct mgpu_partition *made = NULL;
    struct mgpu_partition_options p = {0};
    struct mgpu_options o = options(devices);
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    CHECK_OK(made ? mgpu_partition_save(made, tiny_path("plan.json")) : -1);
    if (made)
        CHECK_FAILS(mgpu_partition_runs_here(made), cannot);
    mgpu_partition_free(made);
    o.devices = NULL;
    o.plan = tiny_path("plan.json");
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), run);
    CHECK_(strstr(mgpu_error(), "; make a plan for devices that are here: mgpu-partition ") &&
               strstr(mgpu_error(), " --devices cuda:0 --batch 32 --loss 'mse' --plan NEW.json") &&
               !strstr(mgpu_error(), "type --devices"),
           "%s", mgpu_error());
}

static void test_elsewhere(void)
{
    const char *path = tiny_path("two.json");
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("{\"version\": 1, \"devices\": [{\"name\": \"old\", \"kind\": \"a100\"}]}",
                     f) >= 0);
    fclose(f);
    double_begin(1, INT64_C(1) << 30);
    check_elsewhere(path, "'old' is no device here", "'old' is no device here");
    double_begin(1, INT64_C(1) << 30);
    struct mgpu_options o = options("2xh100");
    struct mgpu_partition_options p = {0};
    struct mgpu_partition *made = NULL;
    struct mgpu_trainer *t;
    o.strategy = "data";
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    CHECK(made && mgpu_partition_save(made, tiny_path("plan.json")) == 0);
    CHECK_FAILS(mgpu_partition_runs_here(made), "cuda:1 beside cuda:0: ranks on several GPUs");
    mgpu_partition_free(made);
    o.devices = o.strategy = NULL;
    o.plan = tiny_path("plan.json");
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "cuda:1 cannot be used: there is no GPU 1");
    CHECK(strstr(mgpu_error(), "here: mgpu-partition ") && !strstr(mgpu_error(), "type --devices"));
    double_begin(2, INT64_C(1) << 30);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "cuda:1 beside cuda:0: ranks on several GPUs");
    CHECK(strstr(mgpu_error(), "here: mgpu-partition ") && !strstr(mgpu_error(), "name one GPU"));
}

int main(void)
{
    if (double_skipped())
        return 77;
    tiny_begin();
    model = tiny_model(tiny_towers);
    test_list();
    double_begin(2, INT64_C(1) << 30);
    test_planned();
    test_trained();
    test_refused();
    test_left_out();
    test_elsewhere();
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    tiny_end();
    return test_end();
}
