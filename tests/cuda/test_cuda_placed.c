/* Branches on two ranks of a GPU: values and gradients are sent from one to the other. The numbers
 * are those of one CPU rank, in orders that the events allow; waits that are left out are found out
 * (double.h). */
#include "partitioner/plan_file.h"
#include "partitioner/topology.h"
#include "runtime/base/memory.h"
#include "tests/cuda/double.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct mgpu_options options(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    int64_t in[] = {13, 6}, out[] = {13, 3};
    o.data = tiny_list(tiny_noise("a", 1, 2, in), tiny_noise("b", 2, 2, in),
                       tiny_noise("label", 3, 2, out), NULL);
    o.precision = "f64";
    o.exact = true;
    o.batch = 5;
    o.epochs = 2;
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "adam,lr=0.1";
    return o;
}

/* The text with each `from` as `to`. */
static char *replaced(const char *text, const char *from, const char *to)
{
    char *out;
    size_t size;
    FILE *file = open_memstream(&out, &size);
    for (const char *at; file && (at = strstr(text, from)); text = at + strlen(from))
        fprintf(file, "%.*s%s", (int)(at - text), text, to);
    if (!file)
        abort();
    fputs(text, file);
    fclose(file);
    return out;
}

/* The same plan on two ranks of a GPU. */
static void move_to_gpu(const char *path)
{
    struct json_object *plan = json_object_from_file(path), *devices = json_object_new_array();
    for (int i = 0; i < 2; i++)
        json_object_array_add(devices, json_object_new_string("cuda:0"));
    char *second = replaced(json_object_to_json_string(plan), "cpu:1", "cuda:0#1");
    char *both = replaced(second, "cpu:0", "cuda:0");
    json_object_put(plan);
    plan = json_tokener_parse(both);
    json_object_object_add(plan, "devices", devices);
    json_object_to_file(path, plan);
    json_object_put(plan);
    free(second);
    free(both);
}

static const char *plan(const char *model, const char *merge, const char *weights_on)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_partition_options p = {.pin = tiny_list("input:a=cpu:0", "input:b=cpu:1", NULL),
                                       .merge = merge,
                                       .weights_on = weights_on};
    struct mgpu_partition *made = NULL;
    const char *path = tiny_path("plan.json");
    o.devices = "cpu:0,cpu:1";
    o.batch = 5;
    o.strategy = "branch";
    o.optimizer = "adam,lr=0.1";
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    if (made)
        CHECK_OK(mgpu_partition_save(made, path));
    mgpu_partition_free(made);
    move_to_gpu(path);
    return path;
}

static void check(const char *model, const char *merge, const char *weights_on)
{
    static struct tiny_result one, two;
    struct mgpu_options o = options();
    o.devices = "cpu:0";
    tiny_train(&one, model, &o, tiny_tower_weights, 2);
    o.devices = NULL;
    o.plan = plan(model, merge, weights_on);
    for (int ahead = 0; ahead < 2; ahead++) {
        o.run_ahead = ahead;
        tiny_train(&two, model, &o, tiny_tower_weights, 2);
        CHECK_(two.rc >= 0 && tiny_difference(&two, &one) <= 1e-10, "off by %g %s",
               tiny_difference(&two, &one), two.error);
    }
    CHECK_(!double_complaints(), "%s", double_complaint());
    double_forget();
}

/* A loss that one rank alone computes is not finite, its gradient is: no rank changes anything. */
static void check_skipped(const char *model, const char *weights_on)
{
    static struct tiny_result one, two;
    struct mgpu_options o = options();
    double label[13 * 3] = {[7] = 1e200};
    const char *a = o.data[0], *b = o.data[1];
    o.data = tiny_list(a, b, tiny_data("label", MGPU_DOUBLE, 2, (int64_t[]){13, 3}, label), NULL);
    o.shuffle = false;
    o.skip_nonfinite = true;
    o.devices = "cpu:0";
    tiny_train(&one, model, &o, tiny_tower_weights, 2);
    o.devices = NULL;
    o.plan = plan(model, "cpu:1", weights_on);
    for (int ahead = 0; ahead < 2; ahead++) {
        o.run_ahead = ahead;
        tiny_train(&two, model, &o, tiny_tower_weights, 2);
        CHECK_(two.rc >= 0 && isinf(two.loss[0]) && isfinite(two.loss[1]), "%g %g %s", two.loss[0],
               two.loss[1], two.error);
        for (int i = 0; i < one.weights; i++)
            CHECK_(fabs(two.weight[i] - one.weight[i]) <= 1e-10, "%g, not %g", two.weight[i],
                   one.weight[i]);
    }
    CHECK_(!double_complaints(), "%s", double_complaint());
    double_forget();
}

/* The planner knows what the GPU is most like, that its ranks share it, and what to call them. */
static void test_planned(const char *model)
{
    static struct tiny_result one, two;
    struct mgpu_options o = options();
    struct mgpu_topology *t, *alone;
    o.devices = "cpu:0";
    tiny_train(&one, model, &o, tiny_tower_weights, 2);
    o.devices = "cuda:0,cuda:0";
    o.strategy = "branch";
    o.place = tiny_list("input:a=cuda:0", "input:b=cuda:0#1", NULL);
    o.merge = "cuda:0#1";
    tiny_train(&two, model, &o, tiny_tower_weights, 2);
    CHECK_(two.rc >= 0 && tiny_difference(&two, &one) <= 1e-10, "off by %g %s",
           tiny_difference(&two, &one), two.error);
    CHECK_OK(mgpu_topology_parse(&t, o.devices));
    alone = mgpu_topology_first(t, 1, 1);
    CHECK(!mgpu_topology_all_cpus(t) && t->kinds == 1 && !strcmp(t->kind[0].name, "h100"));
    CHECK(t->kind[0].ranks == 2 && alone->kind[0].ranks == 1);
    CHECK(t->device[0].memory == INT64_C(1) << 29 && t->link[1].bytes > 1e12);
    mgpu_topology_free(alone);
    mgpu_topology_free(t);
}

/* What is predicted for these devices. */
static struct mgpu_plan_file *predicted(const char *model, const char *devices)
{
    struct mgpu_options o = options();
    struct mgpu_partition_options p = {0};
    struct mgpu_partition *made = NULL;
    struct mgpu_plan_file *plan = NULL;
    const char *path = tiny_path("predicted.json");
    o.devices = devices;
    o.batch = 1 << 16;
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    CHECK(made && mgpu_partition_save(made, path) == 0);
    CHECK_OK(mgpu_plan_file_read(&plan, path));
    mgpu_partition_free(made);
    return plan;
}

/* Ranks of one GPU take turns: no plan for several is faster than one alone. */
static void test_shared(const char *model)
{
    static const char *const devices[] = {"cuda:0,cuda:0", "cuda:0,cuda:0,cuda:0,cuda:0"};
    struct mgpu_plan_file *one = predicted(model, "cuda:0");
    for (size_t i = 0; one && i < sizeof devices / sizeof *devices; i++) {
        struct mgpu_plan_file *p = predicted(model, devices[i]);
        CHECK(p && !strcmp(p->strategy, "single") && p->alternatives > 1);
        for (int k = 0; p && k < p->alternatives; k++) {
            const struct mgpu_alternative *a = &p->alternative[k];
            CHECK_(!a->feasible || a->step_ms >= one->predicted.step_ms * (1 - 1e-9),
                   "%s on %d: %g ms", a->strategy, a->devices, a->step_ms);
        }
        mgpu_plan_file_free(p);
    }
    mgpu_plan_file_free(one);
}

static int likenesses;
static const char *likeness;

static void listen(void *context, const char *text)
{
    (void)context;
    likenesses += strstr(text, likeness) && strstr(text, "h100");
}

/* A GPU of another name or of other numbers than the table's is costed by it, which is said once.
 */
static void check_likeness(const char *model, const char *name, const char *said)
{
    struct mgpu_options o = options();
    struct mgpu_partition_options p = {0};
    struct mgpu_partition *made;
    o.devices = "cuda:0,cuda:0";
    likenesses = 0;
    likeness = said;
    double_name(name);
    mgpu_set_note(listen, NULL);
    CHECK_OK(mgpu_partition_new(&made, model, &o, &p));
    mgpu_set_note(NULL, NULL);
    mgpu_partition_free(made);
    double_name(NULL);
    CHECK_(likenesses == 1, "'%s' is said %d times", said, likenesses);
}

static void test_likeness(const char *model)
{
    check_likeness(model, NULL, "no table has the GPU 'double 0'");
    check_likeness(model, "NVIDIA H100 80GB HBM3 MIG 1g.1gb",
                   "the GPU 'NVIDIA H100 80GB HBM3 MIG 1g.1gb' is not quite the h100 of the table: "
                   "its costs are scaled by what its driver says, to 67 TFLOP/s in float32 and "
                   "41.88 GB/s of memory");
}

static void count_progress(void *context, const char *what, double share)
{
    (void)what, (void)share;
    ++*(int *)context;
}

/* What runs on a GPU is not measured, whatever is beside it; nor is anything else, then. */
static void test_not_measured(const char *model)
{
    static const char *const devices[] = {"cuda:0", "cuda:0,cuda:0", "cuda:0,cpu", "cpu:0,cuda:0"};
    struct mgpu_options o = options();
    int begun = 0;
    struct mgpu_partition_options p = {
        .measure = true, .progress = count_progress, .progress_context = &begun};
    struct mgpu_partition *made;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        o.devices = devices[i];
        CHECK_FAILS(mgpu_partition_new(&made, model, &o, &p), "only ranks on the CPU are measured");
        CHECK(strstr(mgpu_error(), devices[i]) && !begun);
    }
}

/* The second step, captured, without one of its waits (-1: with all). */
static int step_without(const char *model, int wait, double *loss, bool *found)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s = {0};
    struct mgpu_options o = options();
    o.plan = tiny_path("plan.json");
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK(mgpu_step(t, &s) == 1);
    double_forget();
    int first = double_count().waits;
    double_drop_wait(wait >= 0 ? first + wait : -1);
    CHECK(mgpu_step(t, &s) == 1);
    double_drop_wait(-1);
    *found = double_complaints() > 0 || s.loss != *loss;
    if (wait < 0)
        *loss = s.loss;
    mgpu_trainer_free(t);
    return double_count().waits - first;
}

static void test_dropped_events(const char *model)
{
    double loss = 0;
    bool found;
    int count = 0, waits = step_without(model, -1, &loss, &found);
    for (int i = 0; i < waits; i++) {
        step_without(model, i, &loss, &found);
        count += found;
    }
    printf("%d of %d waits are found out when they are missing\n", count, waits);
    CHECK(count >= 8);
    double_forget();
}

int main(void)
{
    if (double_skipped())
        return 77;
    tiny_begin();
    double_begin(1, INT64_C(1) << 30);
    const char *model = tiny_model(tiny_towers);
    check(model, NULL, NULL);
    check(model, "cpu:1", NULL);
    check(model, "cpu:1", "cpu:0");
    check_skipped(model, NULL);
    check_skipped(model, "cpu:0");
    test_planned(model);
    test_shared(model);
    test_likeness(model);
    test_not_measured(model);
    test_dropped_events(model);
    double_end();
    CHECK_(!double_complaints(), "%s", double_complaint());
    tiny_end();
    return test_end();
}
