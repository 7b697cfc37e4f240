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
    int rc = 0;
    MGPU_TRY(mgpu_plan_from_file(&plan, file));
    int64_t *rank = MGPU_NEW_ARRAY(p->planned->arena, int64_t, plan->replicas * plan->places);
    struct mgpu_planner_code code = {.memory = bytes, .rank = rank};
    memset(bytes, 0, sizeof *bytes * (size_t)p->planned->topology->devices);
    for (int place = 0; place < plan->places && rc == 0; place++) {
        struct mgpu_memory one = {0};
        rc = compiled_memory(p, plan, place, device[place], &one);
        for (int r = 0; r < plan->replicas; r++) {
            int k = r * plan->places + place;
            rank[k] = one.total - (r ? one.shared : 0);
            bytes[device[k]] += rank[k];
        }
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

static const struct mgpu_planner_code *code_of(const struct mgpu_planner *p,
                                               const struct mgpu_candidate *c)
{
    for (int i = 0; i < p->codes; i++)
        if (p->code[i].memory == c->memory)
            return &p->code[i];
    return NULL;
}

const int64_t *mgpu_planner_rank_memory(const struct mgpu_planner *p,
                                        const struct mgpu_candidate *c)
{
    const struct mgpu_planner_code *code = code_of(p, c);
    return code ? code->rank : NULL;
}

int64_t mgpu_planner_resident(const struct mgpu_planner *p, const struct mgpu_candidate *c)
{
    int64_t buffers = 0;
    struct stat file;
    const struct mgpu_planner_code *code = code_of(p, c);
    if (!code || stat(p->model->path, &file) < 0)
        return 0;
    for (int d = 0; d < p->planned->topology->devices; d++)
        buffers += c->memory[d];
    return mgpu_memory_resident(buffers, c->replicas * c->graph->input_bytes, file.st_size,
                                &code->code);
}
