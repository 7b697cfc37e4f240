/* The memory of CPU plans is known exactly: the plan is compiled, and nothing of it runs. */
#include "partitioner/plan_check.h"
#include "partitioner/planner_private.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int compiled_memory(struct mgpu_planner *p, const struct mgpu_plan *plan, int place,
                           int device, struct mgpu_memory *out)
{
    struct mgpu_graph *g;
    const struct mgpu_topology *t = p->planned->topology;
    int64_t batch = (p->options->batch + plan->replicas - 1) / plan->replicas;
    MGPU_TRY(p->model->graph(&g, p->model->context, batch, plan));
    return mgpu_memory_compiled(out, g, plan, place, 1, t->kind[t->device[device].kind].threads);
}

/* The same place of another replica needs as much, but for what they share. */
static int plan_bytes(struct mgpu_planner *p, const struct mgpu_plan_file *file, const int *device,
                      int64_t *bytes)
{
    struct mgpu_plan *plan;
    struct mgpu_planner_code code = {.memory = bytes};
    int rc = 0;
    MGPU_TRY(mgpu_plan_from_file(&plan, file));
    memset(bytes, 0, sizeof *bytes * (size_t)p->planned->topology->devices);
    for (int place = 0; place < plan->places && rc == 0; place++) {
        struct mgpu_memory one = {0};
        rc = compiled_memory(p, plan, place, device[place], &one);
        for (int r = 0; r < plan->replicas; r++)
            bytes[device[r * plan->places + place]] += one.total - (r ? one.shared : 0);
        code.code.instructions += plan->replicas * one.code.instructions;
        code.code.primitives += plan->replicas * one.code.primitives;
        code.code.products |= one.code.products;
        code.code.convolutions |= one.code.convolutions;
    }
    mgpu_plan_free(plan);
    p->code = mgpu_grow(p->code, (size_t)p->codes, sizeof *p->code);
    p->code[p->codes++] = code;
    return rc;
}

int mgpu_planner_memory(void *context, const struct mgpu_candidate *c, int64_t *bytes)
{
    struct mgpu_planner *p = context;
    int *device;
    if (!mgpu_topology_all_cpus(p->planned->topology))
        return 0;
    struct mgpu_plan_file *file = mgpu_planner_plan(p, c, &device);
    int rc =
        file->replicas * file->places > MGPU_MAX_RANKS ? 0 : plan_bytes(p, file, device, bytes);
    mgpu_plan_file_free(file);
    return rc;
}

int64_t mgpu_planner_resident(const struct mgpu_planner *p, const struct mgpu_candidate *c)
{
    int64_t buffers = 0;
    struct stat file;
    int i = 0;
    while (i < p->codes && p->code[i].memory != c->memory)
        i++;
    if (i == p->codes || stat(p->model->path, &file) < 0)
        return 0;
    for (int d = 0; d < p->planned->topology->devices; d++)
        buffers += c->memory[d];
    return mgpu_memory_resident(buffers, c->replicas * c->graph->input_bytes, file.st_size,
                                &p->code[i].code);
}
