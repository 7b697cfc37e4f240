/* The whole search of a placement (place.h). */
#include "partitioner/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Clusters of the coarse problem, and the tasks up to which the fine one is improved too. */
enum { CLUSTERS = 300, FINE_TASKS = 2000 };

static bool small(const struct mgpu_place *p)
{
    return p->flow->groups <= MGPU_EXACT_GROUPS && p->replica->ranks <= MGPU_EXACT_DEVICES;
}

/* Start, then exact where that is possible, else local search. */
static bool search_here(struct mgpu_place *p)
{
    mgpu_place_start(p);
    if (small(p) && mgpu_place_exact(p))
        return true;
    mgpu_place_improve(p);
    return false;
}

/* What a cluster may hold, where everything does not fit one device; else any amount. */
static int64_t cluster_room(const struct mgpu_place *p)
{
    double all = 0, least = INFINITY;
    for (int g = 0; g < p->flow->groups; g++)
        all += (double)p->net.bytes[g];
    for (int d = 0; d < p->replica->ranks; d++)
        least = fmin(least, (double)p->replica->memory[d]);
    return all > 0.8 * least ? (int64_t)(least / 8) : INT64_MAX;
}

/* Searches among clusters and brings the best back. */
static void search_coarse(struct mgpu_place *p)
{
    const struct mgpu_topology *t = p->replica->topology;
    const struct mgpu_flow *f = p->flow;
    int *cluster = MGPU_NEW_ARRAY(p->arena, int, f->groups);
    int clusters = mgpu_cluster(cluster, f, p->replica, CLUSTERS, cluster_room(p));
    struct mgpu_task_graph *graph =
        clusters < f->groups ? mgpu_coarse_graph(f, cluster, clusters) : NULL;
    struct mgpu_flow *coarse;
    if (!graph || mgpu_flow_new(&coarse, graph, f->kinds, t->device[0].kind, t->devices) < 0) {
        if (graph)
            mgpu_arena_free(graph->arena);
        return;
    }
    struct mgpu_place *q = mgpu_place_new(coarse, p->replica, p->bound, p->limit / 2, p->random);
    q->apart = p->apart;
    search_here(q);
    p->effort += q->effort;
    for (int g = 0; g < f->groups && q->best_lacking < INT64_MAX; g++)
        p->trial.device[g] = q->best.device[coarse->group_at[cluster[g]]];
    if (q->best_lacking < INT64_MAX)
        mgpu_place_try(p);
    mgpu_place_free(q);
    mgpu_flow_free(coarse);
    mgpu_arena_free(graph->arena);
}

/* ---- Owners ---------------------------------------------------------------------------------- */

/* Owners tried in all, so that a large graph with many of them stays cheap. */
enum { OWNERS = 256 };

static bool try_owner(struct mgpu_place *p, int param, int owner)
{
    int before = p->trial.owner[param];
    p->trial.owner[param] = owner;
    p->effort += p->flow->size;
    double ms = mgpu_simulate(p->simulator, &p->trial, p->best_ms);
    if (ms < p->best_ms && mgpu_simulate_memory(p->simulator, &p->trial) <= p->best_lacking) {
        p->best_ms = ms;
        p->best.owner[param] = owner;
        return true;
    }
    p->trial.owner[param] = before;
    return false;
}

/* Tries other owners for the parameters that several devices of the best use and that have no home;
 * best.owner changes where that helps. */
static void improve_owners(struct mgpu_place *p)
{
    const struct mgpu_flow *f = p->flow;
    int tried = 0;
    if (p->best_lacking == INT64_MAX)
        return;
    mgpu_place_recall(p);
    for (int i = 0; p->replica->weights_on < 0 && i < f->params; i++) {
        const struct mgpu_flow_param *param = &f->param[i];
        for (int k = param->first; param->home < 0 && k < param->first + param->groups; k++) {
            int user = p->trial.device[f->param_group[k]];
            if (user != p->trial.owner[i] && tried++ < OWNERS)
                try_owner(p, i, user);
        }
    }
}

/* ---- The whole search ------------------------------------------------------------------------ */

bool mgpu_place_search(struct mgpu_place *p, const int *first)
{
    if (first) {
        memcpy(p->trial.device, first, sizeof(int) * (size_t)p->flow->groups);
        mgpu_place_try(p);
    }
    bool proven = false;
    if (small(p)) {
        proven = search_here(p);
    } else {
        search_coarse(p);
        mgpu_place_start(p);
        if (p->flow->tasks <= FINE_TASKS)
            mgpu_place_improve(p);
    }
    improve_owners(p);
    return proven;
}
