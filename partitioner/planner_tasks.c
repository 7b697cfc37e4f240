/* Task graphs for the search: of each variant, at each batch that replicas could take. */
#include "partitioner/planner_private.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/program.h"
#include "runtime/ops/comm.h"

#include <stdlib.h>

/* ---- Sums in the middle of a step ------------------------------------------------------------ */

/* Of an ONNX node: by phase, forward and backward. */
struct mgpu_planner_sums {
    int count[2];
    int64_t bytes[2];
    int first[2]; /* task */
};

static struct mgpu_planner_sums *sums_of(struct mgpu_planner *p, const char *key)
{
    struct mgpu_planner_sums *s = mgpu_names_get(p->sums, key);
    if (!s) {
        s = MGPU_NEW(p->planned->arena, struct mgpu_planner_sums);
        mgpu_names_set(p->sums, mgpu_arena_string(p->planned->arena, key), s);
    }
    return s;
}

/* Those of gradients come with the updates. */
void mgpu_planner_find_sums(struct mgpu_planner *p, const struct mgpu_graph *g)
{
    int phase = 0;
    p->sums = mgpu_names_new(p->planned->arena);
    for (int n = 0; n < g->node_count && g->nodes[n]->origin.role != MGPU_UPDATE; n++) {
        const struct mgpu_node *node = g->nodes[n];
        phase |= node->origin.role == MGPU_BACKWARD;
        if (node->op != &mgpu_op_all_reduce ||
            mgpu_outline_find(p->planned->outline, node->origin.output) < 0)
            continue;
        struct mgpu_planner_sums *s = sums_of(p, node->origin.output);
        s->count[phase]++;
        for (int i = 0; i < node->inputs; i++)
            s->bytes[phase] += mgpu_value_bytes(node->input[i]);
    }
}

/* NULL: the task is of no node that sums in its phase. */
static struct mgpu_planner_sums *sums_of_task(const struct mgpu_planner *p,
                                              const struct mgpu_task *t)
{
    bool may = p->sums && t->key && t->group >= 0 && t->phase < MGPU_PHASE_UPDATE;
    struct mgpu_planner_sums *s = may ? mgpu_names_get(p->sums, t->key) : NULL;
    return s && s->count[t->phase] ? s : NULL;
}

/* The first task of a node in a phase has them. */
static void set_sums(const struct mgpu_planner *p, struct mgpu_task_graph *g)
{
    struct mgpu_planner_sums *s;
    for (int i = g->tasks - 1; i >= 0; i--)
        if ((s = sums_of_task(p, &g->task[i])))
            s->first[g->task[i].phase] = i;
    for (int i = 0; i < g->tasks; i++) {
        struct mgpu_task *t = &g->task[i];
        s = sums_of_task(p, t);
        if (!s || s->first[t->phase] != i)
            continue;
        t->sums = s->count[t->phase];
        t->sum_bytes = s->bytes[t->phase];
    }
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Whether all nodes that are pinned are still there. */
static bool has_pinned(const struct mgpu_planner *p, const struct mgpu_graph *g)
{
    const struct mgpu_outline *o = p->planned->outline;
    bool *there = mgpu_xcalloc((size_t)o->nodes + 1, sizeof *there), all = true;
    for (int n = 0; n < g->node_count; n++) {
        int node = mgpu_outline_find(o, g->nodes[n]->origin.output);
        if (node >= 0)
            there[node] = true;
    }
    for (int i = 0; i < o->nodes; i++)
        all = all && (there[i] || p->pin[i] < 0);
    free(there);
    return all;
}

/* The nodes that a step runs (blocks of channels are for CPUs); as the model has them where one
 * that is pinned would have become a part of another. Where one device has the weights gradients go
 * there as they are. */
static int build_graph(struct mgpu_planner *p, int variant, int64_t batch, struct mgpu_graph **g)
{
    MGPU_TRY(p->model->graph(g, p->model->context, batch, p->variant[variant]));
    int rc = 0;
    (*g)->updates_early &= p->weights_on < 0;
    if (mgpu_topology_has_cpus(p->planned->topology))
        rc = mgpu_optimize(*g, &mgpu_backend_cpu);
    else
        mgpu_fuse(*g, &mgpu_backend_cpu);
    if (rc == 0 && has_pinned(p, *g))
        return 0;
    mgpu_graph_free(*g);
    MGPU_TRY(rc);
    return p->model->graph(g, p->model->context, batch, p->variant[variant]);
}

/* GPUs have the same nodes whatever the batch, so one graph serves for all. Borrowed. */
static int graph_at(struct mgpu_planner *p, int variant, int64_t batch, struct mgpu_graph **out)
{
    struct mgpu_graph **kept = &p->whole[variant];
    if (*kept && !mgpu_topology_has_cpus(p->planned->topology) &&
        mgpu_graph_set_batch(*kept, batch)) {
        *out = *kept;
        return 0;
    }
    mgpu_graph_free(*kept);
    *kept = NULL;
    p->first[variant] = NULL;
    MGPU_TRY(build_graph(p, variant, batch, kept));
    *out = *kept;
    return 0;
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

static void set_pins(const struct mgpu_planner *p, int variant, struct mgpu_task_graph *t)
{
    const int *pin = variant == MGPU_VARIANT_STACKED ? p->stacked_pin : p->pin;
    for (int i = 0; i < t->tasks; i++) {
        int node = t->task[i].key ? mgpu_outline_find(p->planned->outline, t->task[i].key) : -1;
        if (t->task[i].group >= 0 && node >= 0 && pin[node] >= 0)
            t->pin[t->task[i].group] = pin[node];
    }
}

/* At another batch only costs and sizes differ, mostly. */
static int tasks_of(struct mgpu_planner *p, int variant, const struct mgpu_graph *g,
                    const struct mgpu_topology *now, struct mgpu_task_graph **out)
{
    const struct mgpu_task_graph *first = p->first[variant];
    if (first && mgpu_tasks_same(first)) {
        mgpu_tasks_cost(out, first, now);
        return 0;
    }
    MGPU_TRY(mgpu_tasks_build(out, g, now, p->rate, p->profile));
    set_pins(p, variant, *out);
    set_sums(p, *out);
    p->first[variant] = *out;
    return 0;
}

static int build_tasks(struct mgpu_planner *p, int variant, int64_t batch, int busy,
                       struct mgpu_task_graph **out)
{
    struct mgpu_graph *g;
    const struct mgpu_topology *t = p->planned->topology;
    MGPU_TRY(graph_at(p, variant, batch, &g));
    struct mgpu_topology *now = mgpu_topology_first(t, busy ? busy : 1, busy); /* for its kinds */
    for (int k = 0; k < now->kinds; k++) /* one replica on several devices */
        now->kind[k].in_turns = busy > 1 && batch == p->options->batch;
    int rc = tasks_of(p, variant, g, now, out);
    mgpu_topology_free(now);
    return rc;
}

/* Devices that work at the same time, where times depend on them: cores, and ranks of one GPU. */
static int busy_of(const struct mgpu_topology *t, int devices)
{
    return mgpu_topology_has_cpus(t) || mgpu_topology_shares_gpus(t) ? devices : 0;
}

int mgpu_planner_tasks(void *context, int variant, int64_t batch, int devices,
                       const struct mgpu_task_graph **out)
{
    struct mgpu_planner *p = context;
    int busy = busy_of(p->planned->topology, devices);
    for (int i = 0; i < p->graphs; i++)
        if (p->graph[i].batch == batch && p->graph[i].variant == variant &&
            p->graph[i].busy == busy) {
            *out = p->graph[i].graph;
            return 0;
        }
    struct mgpu_task_graph *graph;
    MGPU_TRY(build_tasks(p, variant, batch, busy, &graph));
    p->graph = mgpu_grow(p->graph, (size_t)p->graphs, sizeof *p->graph);
    p->graph[p->graphs++] = (struct mgpu_planner_graph){batch, variant, busy, graph};
    *out = graph;
    return 0;
}

void mgpu_planner_tasks_free(struct mgpu_planner *p)
{
    for (int i = 0; i < p->graphs; i++)
        mgpu_task_graph_free(p->graph[i].graph);
    for (int v = 0; v < MGPU_VARIANTS; v++)
        mgpu_graph_free(p->whole[v]);
    free(p->graph);
}
