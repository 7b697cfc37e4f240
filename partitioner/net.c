/* The graph between groups (coarsen.h). */
#include "partitioner/coarsen.h"

#include <stdlib.h>
#include <string.h>

static int compare_edge(const void *a, const void *b)
{
    const struct mgpu_net_edge *x = a, *y = b;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

static void merge_edges(struct mgpu_net *net, int count)
{
    qsort(net->edge, (size_t)count, sizeof *net->edge, compare_edge);
    for (int i = 0; i < count; i++) {
        struct mgpu_net_edge *last = net->edges ? &net->edge[net->edges - 1] : NULL;
        if (last && !compare_edge(last, &net->edge[i]))
            last->bytes += net->edge[i].bytes;
        else
            net->edge[net->edges++] = net->edge[i];
    }
}

/* One edge for each pair of groups, with the sum of its tensors (each once a group). */
static void fill_edges(struct mgpu_net *net, const struct mgpu_flow *f, struct mgpu_arena *arena)
{
    int uses = 0, count = 0;
    for (int i = 0; i < f->tensors; i++)
        uses += f->tensor[i].uses;
    net->edge = MGPU_NEW_ARRAY(arena, struct mgpu_net_edge, uses);
    int *seen = MGPU_NEW_ARRAY(arena, int, f->groups);
    for (int i = 0; i < f->tensors; i++) {
        const struct mgpu_flow_tensor *t = &f->tensor[i];
        const struct mgpu_flow_task *from = &f->task[t->from];
        for (int k = t->use; k < t->use + t->uses; k++) {
            const struct mgpu_flow_task *to = &f->task[f->use[k]];
            if (from->phase != MGPU_PHASE_FORWARD || to->phase != MGPU_PHASE_FORWARD ||
                from->group < 0 || to->group < 0 || from->group == to->group ||
                seen[to->group] == i + 1)
                continue;
            seen[to->group] = i + 1;
            net->edge[count++] = (struct mgpu_net_edge){from->group, to->group, t->bytes};
        }
    }
    merge_edges(net, count);
}

static void index_edges(struct mgpu_net *net, struct mgpu_arena *arena)
{
    int n = net->groups;
    net->out = MGPU_NEW_ARRAY(arena, int, n + 1);
    net->in = MGPU_NEW_ARRAY(arena, int, n + 2);
    net->in_list = MGPU_NEW_ARRAY(arena, int, net->edges);
    for (int i = 0; i < net->edges; i++) {
        net->out[net->edge[i].from + 1]++;
        net->in[net->edge[i].to + 2]++;
    }
    for (int g = 0; g < n; g++) {
        net->out[g + 1] += net->out[g];
        net->in[g + 2] += net->in[g + 1];
    }
    for (int i = 0; i < net->edges; i++)
        net->in_list[net->in[net->edge[i].to + 1]++] = i;
}

static void sort_groups(struct mgpu_net *net, struct mgpu_arena *arena)
{
    int n = net->groups, head = 0, tail = 0;
    int *waits = MGPU_NEW_ARRAY(arena, int, n);
    net->order = MGPU_NEW_ARRAY(arena, int, n);
    for (int g = 0; g < n; g++)
        if (!(waits[g] = net->in[g + 1] - net->in[g]))
            net->order[tail++] = g;
    for (; head < tail; head++)
        for (int k = net->out[net->order[head]]; k < net->out[net->order[head] + 1]; k++)
            if (!--waits[net->edge[k].to])
                net->order[tail++] = net->edge[k].to;
    if (tail < n)
        net->order = NULL;
}

void mgpu_net_init(struct mgpu_net *net, const struct mgpu_flow *f,
                   const struct mgpu_replica *replica, int device, struct mgpu_arena *arena)
{
    *net = (struct mgpu_net){.groups = f->groups};
    net->forward = MGPU_NEW_ARRAY(arena, double, f->groups);
    net->total = MGPU_NEW_ARRAY(arena, double, f->groups);
    net->bytes = MGPU_NEW_ARRAY(arena, int64_t, f->groups);
    for (int i = 0; i < f->tasks; i++) {
        int g = f->task[i].group;
        if (g < 0)
            continue;
        double ms = mgpu_task_ms(f, replica, i, device);
        net->total[g] += ms;
        if (f->task[i].phase != MGPU_PHASE_FORWARD)
            continue;
        net->forward[g] += ms;
        net->bytes[g] += f->task[i].output;
    }
    for (int p = 0; p < f->params; p++) {
        const struct mgpu_flow_param *param = &f->param[p];
        int64_t bytes = param->bytes * (param->trained ? 2 : 1) + param->state_bytes;
        for (int k = param->first; k < param->first + param->groups; k++)
            net->bytes[f->param_group[k]] += bytes / param->groups;
    }
    fill_edges(net, f, arena);
    index_edges(net, arena);
    sort_groups(net, arena);
}

void mgpu_net_join(struct mgpu_net *out, const struct mgpu_net *net, const int *cluster,
                   int clusters, struct mgpu_arena *arena)
{
    *out = (struct mgpu_net){.groups = clusters};
    out->forward = MGPU_NEW_ARRAY(arena, double, clusters);
    out->total = MGPU_NEW_ARRAY(arena, double, clusters);
    out->bytes = MGPU_NEW_ARRAY(arena, int64_t, clusters);
    for (int g = 0; g < net->groups; g++) {
        out->forward[cluster[g]] += net->forward[g];
        out->total[cluster[g]] += net->total[g];
        out->bytes[cluster[g]] += net->bytes[g];
    }
    int count = 0;
    out->edge = MGPU_NEW_ARRAY(arena, struct mgpu_net_edge, net->edges);
    for (int i = 0; i < net->edges; i++) {
        const struct mgpu_net_edge *e = &net->edge[i];
        if (cluster[e->from] != cluster[e->to])
            out->edge[count++] = (struct mgpu_net_edge){cluster[e->from], cluster[e->to], e->bytes};
    }
    merge_edges(out, count);
    index_edges(out, arena);
    sort_groups(out, arena);
}
