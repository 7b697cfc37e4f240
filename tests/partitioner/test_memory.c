/* Bytes of a device: from compilations, and from tasks, which must not say less. */
#include "partitioner/memory.h"
#include "partitioner/tasks.h"
#include "runtime/compile/program.h"
#include "tests/partitioner/plan_models.h"
#include "tests/test.h"

enum { W = 64 * 128 * 4, C = 128 * 4, V = 256 * 10 * 4 };

static void check_compiled(void)
{
    struct mgpu_memory one, half;
    struct mgpu_plan *single = mgpu_plan_data(1), *data = mgpu_plan_data(2);
    CHECK_OK(mgpu_memory_compiled(&one, plan_graph(plan_two_towers, 8), single, 0, 1, 1));
    CHECK_OK(mgpu_memory_compiled(&half, plan_graph(plan_two_towers, 4), data, 1, 1, 1));
    /* every size here is a multiple of the 64 bytes that places are rounded to */
    CHECK(one.weights == W + C + V && one.gradients == one.weights);
    CHECK(one.states == 2 * one.weights && one.fixed == 0);
    CHECK(one.samples == 2 * 8 * 64 * 4 + 64); /* two inputs, the loss */
    CHECK(one.activations >= 4 * 8 * 128 * 4); /* what backward needs of both towers */
    CHECK(one.total == one.weights + one.gradients + one.states + one.fixed + one.activations +
                           one.samples + one.constants);
    CHECK(half.weights == one.weights && half.samples == 2 * 4 * 64 * 4 + 64);
    CHECK(half.activations < one.activations);
    mgpu_plan_free(single);
    mgpu_plan_free(data);
}

static struct mgpu_task_graph *tasks_of(const char *text, int64_t batch)
{
    struct mgpu_topology *topology;
    struct mgpu_task_graph *t;
    struct mgpu_graph *g = plan_graph(text, batch);
    CHECK_OK(mgpu_optimize(g, &mgpu_backend_cpu));
    CHECK_OK(mgpu_topology_parse(&topology, "2xcpu"));
    CHECK_OK(mgpu_tasks_build(&t, g, topology, MGPU_RATE_F32, NULL));
    mgpu_topology_free(topology);
    mgpu_graph_free(g);
    return t;
}

/* The second tower on place 1, in the plan and in place[]. */
static void place_towers(const struct mgpu_task_graph *t, struct mgpu_plan *plan, int *place)
{
    static const char *const there[] = {"pb", "cb", "hb"};
    for (int i = 0; i < t->tasks; i++)
        for (int k = 0; k < 3; k++)
            if (t->task[i].group >= 0 && !strcmp(t->task[i].key, there[k]))
                place[t->task[i].group] = 1;
    for (int k = 0; k < 3; k++)
        mgpu_plan_place(plan, there[k], 1);
    mgpu_plan_own(plan, "W", 0);
    mgpu_plan_own(plan, "C", 0);
    mgpu_plan_own(plan, "V", 0);
}

static void check_never_under(void)
{
    static const char *const models[] = {plan_two_towers, plan_two_towers_turned, plan_branches};
    struct mgpu_plan *plan = mgpu_plan_data(1);
    for (int i = 0; i < 3; i++)
        for (int64_t batch = 1; batch < 300; batch *= 4) {
            struct mgpu_task_graph *t = tasks_of(models[i], batch);
            struct mgpu_memory got;
            CHECK_OK(mgpu_memory_compiled(&got, plan_graph(models[i], batch), plan, 0, 1, 1));
            int *place = calloc((size_t)t->groups, sizeof *place);
            struct mgpu_memory said = mgpu_memory_of_tasks(t, place, NULL, 0);
            CHECK(said.weights == got.weights && said.states == got.states);
            CHECK_(said.activations >= got.activations, "model %d: %lld for %lld", i,
                   (long long)said.activations, (long long)got.activations);
            CHECK_(batch < 64 || said.total < 2 * got.total, "model %d: %lld for %lld", i,
                   (long long)said.total, (long long)got.total);
            struct mgpu_memory other = mgpu_memory_of_tasks(t, place, NULL, 1);
            CHECK(other.weights == 0 && other.activations == 0);
            free(place);
            mgpu_task_graph_free(t);
        }
    mgpu_plan_free(plan);
}

static void check_places(void)
{
    struct mgpu_task_graph *t = tasks_of(plan_two_towers, 64);
    struct mgpu_plan *plan = mgpu_plan_new(1, 2);
    int *place = calloc((size_t)t->groups, sizeof *place), owner[3] = {0};
    place_towers(t, plan, place);
    struct mgpu_memory got[2], said[2];
    for (int d = 0; d < 2; d++) {
        CHECK_OK(mgpu_memory_compiled(&got[d], plan_graph(plan_two_towers, 64), plan, d, 1, 1));
        said[d] = mgpu_memory_of_tasks(t, place, owner, d);
        CHECK_(said[d].total >= got[d].total, "place %d: %lld for %lld", d,
               (long long)said[d].total, (long long)got[d].total);
        CHECK(said[d].states == got[d].states);
    }
    CHECK(said[0].states == 2 * (W + C + V) && said[1].states == 0);
    CHECK(said[1].weights == W + C && said[1].gradients == W + C);
    CHECK(said[1].activations < said[0].activations);
    free(place);
    mgpu_plan_free(plan);
    mgpu_task_graph_free(t);
}

static void check_overhead(void)
{
    struct mgpu_device_kind cpu = {.threads = 1}, gpu = {.threads = 0};
    CHECK(mgpu_memory_overhead(&cpu, 1000, 2) == 0);
    CHECK(mgpu_memory_overhead(&gpu, 100000, 1) == ((int64_t)512 << 20) + 6000);
    CHECK(mgpu_memory_overhead(&gpu, 100000, 8) == ((int64_t)768 << 20) + 6000);
}

/* What ranks keep of their tasks is in it: graphs of many small nodes are mostly that. */
static void check_resident(void)
{
    const struct mgpu_memory_code little = {.instructions = 10}, large = {.instructions = 12000},
                                  library = {10, 4, true, false};
    int64_t few = mgpu_memory_resident(1 << 20, 1 << 10, 1 << 20, &little);
    int64_t many = mgpu_memory_resident(1 << 20, 1 << 10, 1 << 20, &large);
    CHECK(mgpu_memory_resident(1 << 20, 1 << 10, 1 << 20, &library) > few + (4 << 20));
    CHECK(few > (INT64_C(8) << 20) && many - few > (INT64_C(60) << 20));
}

int main(void)
{
    check_compiled();
    check_never_under();
    check_places();
    check_overhead();
    check_resident();
    return test_end();
}
