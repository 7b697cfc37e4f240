/* mgpu-partition --verify and --measure: plans are run here, and times and memory are beside what
 * was predicted. */
#include "tests/partitioner/partition_tool.h"

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

int main(void)
{
    tool_begin();
    test_verify();
    test_verify_weights();
    test_measure();
    tool_end();
    return test_end();
}
