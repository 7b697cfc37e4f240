/* The order of a file's nodes changes no plan: models of frameworks, their nodes shuffled into
 * other orders in which they can run, are planned alike. */
#include "partitioner/planner.h"
#include "runtime/facade/facade.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

enum { SHUFFLES = 3 };

static const char *const models[] = {
    "torch-siamese-linear-ts", "torch-multi-head-outputs",
    "torch-mlp-inputs",        "torch-loss-mix",
    "torch-tied-ts",           "torch-spatial-transformer-ts",
    "keras-multi-io",          "keras-fashion-mnist-cnn",
    "torch-frozen-backbone",
};

/* ---- Shuffling ------------------------------------------------------------------------------- */

/* Whether the node, or a graph inside it, reads what `other` makes. */
static bool reads(const Onnx__NodeProto *node, const Onnx__NodeProto *other)
{
    for (size_t i = 0; i < node->n_input; i++)
        for (size_t k = 0; k < other->n_output; k++)
            if (*node->input[i] && !strcmp(node->input[i], other->output[k]))
                return true;
    for (size_t i = 0; i < node->n_attribute; i++)
        for (size_t k = 0; node->attribute[i]->g && k < node->attribute[i]->g->n_node; k++)
            if (reads(node->attribute[i]->g->node[k], other))
                return true;
    return false;
}

static bool waits(Onnx__NodeProto **node, size_t count, const Onnx__NodeProto *for_others)
{
    for (size_t i = 0; i < count; i++)
        if (node[i] && reads(for_others, node[i]))
            return true;
    return false;
}

/* Another order in which the nodes can run: whichever does not wait, at random. */
static void shuffle(Onnx__GraphProto *g, uint32_t seed)
{
    size_t n = g->n_node;
    Onnx__NodeProto **left = MGPU_NEW_ARRAY(build_arena, Onnx__NodeProto *, n);
    memcpy(left, g->node, n * sizeof *left);
    for (size_t done = 0; done < n;) {
        seed = seed * 1664525u + 1013904223u;
        size_t k = (seed >> 8) % n;
        if (!left[k] || waits(left, n, left[k]))
            continue;
        g->node[done++] = left[k];
        left[k] = NULL;
    }
}

/* ---- Planning -------------------------------------------------------------------------------- */

static int build(struct mgpu_graph **out, void *trainer, int64_t batch,
                 const struct mgpu_plan *plan)
{
    return mgpu_build_graph(out, trainer, MGPU_MODE_TRAIN, batch, plan);
}

static int towers(struct mgpu_plan *plan, void *trainer, int64_t batch)
{
    return mgpu_find_towers(plan, trainer, batch);
}

static struct mgpu_planned *plan(const char *path, const char *devices, const char *strategy)
{
    struct mgpu_options options = MGPU_OPTIONS;
    struct mgpu_planned *planned = NULL;
    struct mgpu_trainer *t = NULL;
    options.batch = 16;
    CHECK_OK(mgpu_trainer_planning(&t, path, &options));
    if (!t)
        return NULL;
    struct mgpu_planner_model m = {
        .path = path, .graph = build, .towers = towers, .context = t, .training = ""};
    struct mgpu_planner_options o = {.devices = devices, .batch = 16, .strategy = strategy};
    mgpu_planner_run(&planned, &m, &o);
    mgpu_trainer_free(t);
    return planned;
}

static int place_of(const struct mgpu_plan_file *p, const char *output)
{
    for (int i = 0; i < p->nodes; i++)
        if (!strcmp(p->node[i].output, output))
            return p->node[i].place;
    return -1;
}

static void compare(const char *name, const struct mgpu_plan_file *a,
                    const struct mgpu_plan_file *b)
{
    CHECK_(!strcmp(a->strategy, b->strategy) && a->replicas == b->replicas &&
               a->places == b->places,
           "%s: %s, then %s", name, a->strategy, b->strategy);
    CHECK_(a->predicted.step_ms == b->predicted.step_ms &&
               a->predicted.lower_bound_ms == b->predicted.lower_bound_ms &&
               a->predicted.bytes_moved == b->predicted.bytes_moved,
           "%s (%s): %.17g ms, then %.17g", name, a->strategy, a->predicted.step_ms,
           b->predicted.step_ms);
    for (int i = 0; i < a->devices; i++)
        CHECK_(a->predicted.memory_bytes[i] == b->predicted.memory_bytes[i], "%s: memory", name);
    CHECK(a->nodes == b->nodes && a->owners == b->owners && a->alternatives == b->alternatives);
    for (int i = 0; i < a->nodes; i++)
        CHECK_(place_of(b, a->node[i].output) == a->node[i].place, "%s: '%s' is elsewhere", name,
               a->node[i].output);
    for (int i = 0; i < a->alternatives && i < b->alternatives; i++)
        CHECK_(!strcmp(a->alternative[i].why, b->alternative[i].why), "%s: %s; %s", name,
               a->alternative[i].why, b->alternative[i].why);
}

static void test_model(const char *name, const char *devices, const char *strategy)
{
    char path[256];
    struct mgpu_onnx_file *file = NULL;
    snprintf(path, sizeof path, "tests/cases/%s/model.onnx", name);
    struct mgpu_planned *first = plan(path, devices, strategy), *again;
    CHECK_OK(mgpu_onnx_read(&file, path));
    for (uint32_t seed = 1; first && file && seed <= SHUFFLES; seed++) {
        shuffle(file->proto->graph, seed);
        build_save(file->proto, build_path("shuffled.onnx"));
        again = plan(build_path("shuffled.onnx"), devices, strategy);
        CHECK_(again, "%s, shuffled: %s", name, mgpu_error());
        if (again)
            compare(name, first->plan, again->plan);
        mgpu_planned_free(again);
    }
    CHECK_(first || strategy, "%s: %s", name, mgpu_error());
    mgpu_planned_free(first);
    mgpu_onnx_free(file);
}

int main(void)
{
    build_begin();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        test_model(models[i], "4xh100-nvlink", NULL);
        test_model(models[i], "2xcpu", "branch");
    }
    build_end();
    return test_end();
}
