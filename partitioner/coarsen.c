#include "partitioner/coarsen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Clusters are grown in passes over the graph between the clusters so far (`net`). A pass only
 * joins what cannot make a cycle:
 *   - a cluster with its only predecessor, or with its only successor (trees of such joins have one
 *     way in, or one way out);
 *   - clusters that lie equally deep (edges then lead from less to more depth). */
struct coarse {
    const struct mgpu_flow *flow;
    const struct mgpu_replica *replica;
    struct mgpu_arena *arena; /* of one pass */
    struct mgpu_net net;
    int *pin;    /* by cluster; -1 */
    int *parent; /* by cluster: joined into */
    double *ms;  /* by cluster that is a root: its work */
    int64_t *bytes;
    int64_t room;
};

static int root(const struct coarse *c, int cluster)
{
    while (c->parent[cluster] != cluster)
        cluster = c->parent[cluster] = c->parent[c->parent[cluster]];
    return cluster;
}

static bool join(struct coarse *c, int a, int b, double cap)
{
    a = root(c, a);
    b = root(c, b);
    if (a == b || (c->pin[a] >= 0 && c->pin[b] >= 0 && c->pin[a] != c->pin[b]) ||
        c->ms[a] + c->ms[b] > cap || c->bytes[a] + c->bytes[b] > c->room)
        return false;
    if (a > b) {
        int other = a;
        a = b;
        b = other;
    }
    c->parent[b] = a;
    c->ms[a] += c->ms[b];
    c->bytes[a] += c->bytes[b];
    if (c->pin[a] < 0)
        c->pin[a] = c->pin[b];
    return true;
}

/* The least time in which the first two devices exchange so much, there and back. */
static double exchange_ms(const struct coarse *c, int64_t bytes)
{
    const struct mgpu_topology *t = c->replica->topology;
    return c->replica->ranks < 2 ? INFINITY : 2 * mgpu_transfer_ms(t, 0, 1, (double)bytes);
}

static int degree_in(const struct mgpu_net *net, int g)
{
    return net->in[g + 1] - net->in[g];
}

static int degree_out(const struct mgpu_net *net, int g)
{
    return net->out[g + 1] - net->out[g];
}

enum pass { PASS_CHAIN, PASS_COSTLY, PASS_HEAD, PASS_TAIL, PASS_SIBLINGS, PASS_LEVEL };

static bool wanted(const struct coarse *c, enum pass pass, const struct mgpu_net_edge *e)
{
    const struct mgpu_net *net = &c->net;
    bool only_in = degree_in(net, e->to) == 1, only_out = degree_out(net, e->from) == 1;
    if (pass == PASS_CHAIN)
        return only_in && only_out;
    if (pass == PASS_COSTLY)
        return only_in && exchange_ms(c, e->bytes) >= net->total[e->to];
    return pass == PASS_HEAD ? only_in : only_out;
}

/* Joins along edges, in topological order. Returns how many joins. */
static int join_edges(struct coarse *c, enum pass pass, double cap)
{
    int joins = 0;
    for (int i = 0; i < c->net.groups; i++) {
        int g = c->net.order[i];
        for (int k = c->net.out[g]; k < c->net.out[g + 1]; k++)
            if (wanted(c, pass, &c->net.edge[k]))
                joins += join(c, g, c->net.edge[k].to, cap);
    }
    return joins;
}

struct deep {
    int depth, source; /* source: the first predecessor, -1 */
    int cluster;
    double ms;
};

/* Of one depth. */
static int compare_deep(const void *a, const void *b)
{
    const struct deep *x = a, *y = b;
    if (x->source != y->source)
        return x->source - y->source;
    if (x->ms != y->ms)
        return x->ms < y->ms ? -1 : 1;
    return x->cluster - y->cluster;
}

static void fill_depths(const struct mgpu_net *net, int *depth)
{
    for (int i = 0; i < net->groups; i++)
        for (int k = net->out[net->order[i]]; k < net->out[net->order[i] + 1]; k++)
            if (depth[net->edge[k].to] <= depth[net->order[i]])
                depth[net->edge[k].to] = depth[net->order[i]] + 1;
}

/* The clusters by depth, those of one fork beside each other, the lightest first. */
static struct deep *sort_by_depth(const struct coarse *c)
{
    const struct mgpu_net *net = &c->net;
    struct deep *list = MGPU_NEW_ARRAY(c->arena, struct deep, net->groups);
    int *depth = MGPU_NEW_ARRAY(c->arena, int, net->groups);
    int *first = MGPU_NEW_ARRAY(c->arena, int, net->groups + 2); /* by depth: place in the list */
    fill_depths(net, depth);
    for (int g = 0; g < net->groups; g++)
        first[depth[g] + 2]++;
    for (int d = 0; d < net->groups; d++)
        first[d + 2] += first[d + 1];
    for (int g = 0; g < net->groups; g++) {
        int source = degree_in(net, g) ? net->edge[net->in_list[net->in[g]]].from : -1;
        list[first[depth[g] + 1]++] = (struct deep){depth[g], source, g, net->total[g]};
    }
    for (int d = 0; d < net->groups; d++)
        if (first[d + 1] - first[d] > 1)
            qsort(list + first[d], (size_t)(first[d + 1] - first[d]), sizeof *list, compare_deep);
    return list;
}

/* Joins neighbours of one depth in pairs; `siblings`: only those of one fork that has more branches
 * than there are devices. */
static int join_level(struct coarse *c, bool siblings, double cap)
{
    const struct deep *list = sort_by_depth(c);
    int joins = 0;
    for (int i = 0; i + 1 < c->net.groups; i++) {
        const struct deep *a = &list[i], *b = &list[i + 1];
        if (a->depth != b->depth)
            continue;
        if (siblings && (a->source != b->source || a->source < 0 ||
                         degree_out(&c->net, a->source) <= c->replica->ranks))
            continue;
        if (join(c, a->cluster, b->cluster, cap)) {
            joins++;
            i++;
        }
    }
    return joins;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static void start_pass(struct coarse *c)
{
    int n = c->net.groups;
    c->parent = MGPU_NEW_ARRAY(c->arena, int, n);
    c->ms = MGPU_NEW_ARRAY(c->arena, double, n);
    c->bytes = MGPU_NEW_ARRAY(c->arena, int64_t, n);
    for (int i = 0; i < n; i++) {
        c->parent[i] = i;
        c->ms[i] = c->net.total[i];
        c->bytes[i] = c->net.bytes[i];
    }
}

/* Numbers the roots again and makes the graph between them. */
static void end_pass(struct coarse *c, int *cluster)
{
    int n = c->net.groups, count = 0;
    int *number = MGPU_NEW_ARRAY(c->arena, int, n), *pin = MGPU_NEW_ARRAY(c->arena, int, n);
    for (int i = 0; i < n; i++) { /* a root is the smallest of its cluster */
        if (root(c, i) == i) {
            pin[count] = c->pin[i];
            number[i] = count++;
        } else {
            number[i] = number[root(c, i)];
        }
    }
    for (int g = 0; g < c->flow->groups; g++)
        cluster[g] = number[cluster[g]];
    struct mgpu_net next;
    mgpu_net_join(&next, &c->net, number, count, c->arena);
    c->net = next;
    c->pin = pin;
}

static int run_pass(struct coarse *c, enum pass pass, double cap, int *cluster)
{
    start_pass(c);
    int joins = pass >= PASS_SIBLINGS ? join_level(c, pass == PASS_SIBLINGS, cap)
                                      : join_edges(c, pass, cap);
    if (joins)
        end_pass(c, cluster);
    return joins;
}

/* Larger and larger clusters until there are few enough, or nothing can be joined any more. */
static void shrink(struct coarse *c, int most, int *cluster)
{
    double total = 0;
    for (int g = 0; g < c->net.groups; g++)
        total += c->net.total[g];
    for (double cap = total / most; c->net.groups > most && c->net.order; cap *= 2) {
        int joins = run_pass(c, PASS_SIBLINGS, cap, cluster);
        joins += c->net.groups > most ? run_pass(c, PASS_CHAIN, cap, cluster) : 0;
        if (joins * 8 < c->net.groups) {
            joins += run_pass(c, PASS_HEAD, cap, cluster);
            joins += run_pass(c, PASS_TAIL, cap, cluster);
        }
        if (joins * 8 < c->net.groups && c->net.groups > most)
            joins += run_pass(c, PASS_LEVEL, cap, cluster);
        if (!joins && cap > 2 * total)
            return;
    }
}

int mgpu_cluster(int *cluster, const struct mgpu_flow *flow, const struct mgpu_replica *replica,
                 int most, int64_t room)
{
    struct coarse c = {.flow = flow, .replica = replica, .arena = mgpu_arena_new(), .room = room};
    mgpu_net_init(&c.net, flow, replica, 0, c.arena);
    c.pin = mgpu_arena_copy(c.arena, flow->pin, sizeof *flow->pin * (size_t)flow->groups);
    for (int g = 0; g < flow->groups; g++)
        cluster[g] = g;
    int joins = c.net.order != NULL;
    while (joins && c.net.order)
        joins = run_pass(&c, PASS_CHAIN, INFINITY, cluster) +
                run_pass(&c, PASS_COSTLY, INFINITY, cluster);
    shrink(&c, most, cluster);
    int count = c.net.groups;
    mgpu_arena_free(c.arena);
    return count;
}
