#include "tests/partitioner/search_model.h"

#include "tests/partitioner/random_tasks.h"

#include <math.h>
#include <string.h>

static struct mgpu_task_graph *shrunk(const struct search_model *m, const struct mgpu_task_graph *g,
                                      int64_t batch)
{
    double part = (double)batch / BATCH;
    struct mgpu_task_graph *to = test_scaled(g, m->kinds, 1);
    to->batch = batch;
    to->edge = mgpu_arena_copy(to->arena, g->edge, sizeof *g->edge * (size_t)g->edges);
    for (int i = 0; i < to->tasks; i++) {
        to->task[i].output = (int64_t)ceil((double)g->task[i].output * part);
        for (int k = 0; k < m->kinds && to->task[i].phase != MGPU_PHASE_UPDATE; k++)
            to->task[i].ms[k] *= m->launch + (1 - m->launch) * part;
    }
    for (int i = 0; i < to->edges; i++)
        if (to->task[to->edge[i].to].phase != MGPU_PHASE_UPDATE &&
            to->task[to->edge[i].to].group >= 0)
            to->edge[i].bytes = (int64_t)ceil((double)g->edge[i].bytes * part);
    return to;
}

int search_tasks(void *context, int variant, int64_t batch, int devices,
                 const struct mgpu_task_graph **out)
{
    struct search_model *m = context;
    (void)devices;
    if (!m->at[variant][batch])
        m->at[variant][batch] = shrunk(m, variant ? m->variant : m->whole, batch);
    *out = m->at[variant][batch];
    return 0;
}

void search_forget(struct search_model *m)
{
    for (int v = 0; v < 2; v++)
        for (int b = 0; b <= BATCH; b++)
            if (m->at[v][b])
                test_graph_free(m->at[v][b]);
    memset(m->at, 0, sizeof m->at);
}

struct mgpu_search_request search_request(struct search_model *m, const struct mgpu_topology *t)
{
    return (struct mgpu_search_request){.topology = t,
                                        .batch = BATCH,
                                        .tasks = search_tasks,
                                        .context = m,
                                        .weights_on = -1,
                                        .seed = 1};
}

const struct mgpu_candidate *search_find(const struct mgpu_search_result *r,
                                         enum mgpu_tactic tactic)
{
    for (int i = 0; i < r->candidates; i++)
        if (r->candidate[i].strategy == tactic)
            return &r->candidate[i];
    return NULL;
}

double search_best(const struct mgpu_search_result *r)
{
    double best = INFINITY;
    for (int i = 0; i < r->candidates; i++)
        if (r->candidate[i].feasible)
            best = fmin(best, r->candidate[i].step_ms);
    return best;
}
