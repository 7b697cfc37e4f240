/* How long collectives take: NCCL's model. */
#include "partitioner/topology.h"

#include <math.h>
#include <stdlib.h>

/* An all-reduce inside a switch starts in this time (NVLS). */
static const double SWITCH_MS = 25e-3;

/* A tree reaches this share of a ring's bandwidth. */
static const double TREE_SHARE = 0.92;

/* Rings through several machines meet stragglers: NCCL's factor on Simple's latency. */
static const double MANY_MACHINES = 1.4;

double mgpu_transfer_ms(const struct mgpu_topology *t, int from, int to, double bytes)
{
    if (from == to)
        return 0;
    const struct mgpu_link *l = &t->link[(size_t)from * (size_t)t->devices + (size_t)to];
    return l->latency_ms + bytes / l->bytes * 1e3;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Counts the machines and the least and the most members of one. */
static int count_machines(int count, int *machine, int *least, int *most)
{
    int machines = 0;
    qsort(machine, (size_t)count, sizeof *machine, by_number);
    *least = count;
    *most = 0;
    for (int i = 0, from = 0; i < count; i++) {
        if (i + 1 < count && machine[i + 1] == machine[i])
            continue;
        int members = i + 1 - from;
        *least = members < *least ? members : *least;
        *most = members > *most ? members : *most;
        machines++;
        from = i + 1;
    }
    return machines;
}

/* The slowest link around the ring, where a topology file made one slower than the fabric. */
static double slowest(const struct mgpu_topology *t, const int *device, int count)
{
    double least = INFINITY;
    for (int i = 0; i < count; i++) {
        int from = device ? device[i] : i, next = (i + 1) % count;
        int to = device ? device[next] : next;
        const struct mgpu_link *l = &t->link[(size_t)from * (size_t)t->devices + (size_t)to];
        if (t->device[from].node == t->device[to].node && l->bytes < least)
            least = l->bytes;
    }
    return least;
}

struct mgpu_ring mgpu_ring_of(const struct mgpu_topology *t, const int *device, int count)
{
    const struct mgpu_fabric *f = &t->fabric;
    struct mgpu_ring g = {.fabric = f, .devices = count, .machines = 1, .bandwidth = INFINITY};
    int least, most, *machine = mgpu_xcalloc((size_t)count, sizeof *machine);
    for (int i = 0; i < count; i++)
        machine[i] = t->device[device ? device[i] : i].node;
    g.machines = count_machines(count, machine, &least, &most);
    free(machine);
    if (most > 1)
        g.bandwidth = fmin(f->ring, slowest(t, device, count));
    if (g.machines > 1)
        g.bandwidth = fmin(g.bandwidth, f->adapter * (least < f->adapters ? least : f->adapters));
    g.in_switch = g.machines == 1 && count > 2 && f->in_switch > 0;
    return g;
}

/* ---- Times ----------------------------------------------------------------------------------- */

/* `rounds` of n-1 steps, each to the next device; each crosses to the next machine in some. */
static double ring_ms(const struct mgpu_ring *g, int protocol, double rounds, double bytes)
{
    const struct mgpu_fabric *f = g->fabric;
    double n = g->devices, outside = g->machines > 1 ? rounds * (g->machines - 1) : 0;
    double hops = (rounds * (n - 1) - outside) * f->inside_ms[protocol];
    double latency = f->base_ms[protocol] + hops + outside * f->ring_ms[protocol];
    if (g->machines > 1 && protocol == MGPU_PROTOCOLS - 1)
        latency *= MANY_MACHINES;
    return latency + rounds * (n - 1) / n * bytes / (g->bandwidth * f->share[protocol]) * 1e3;
}

static double tree_ms(const struct mgpu_ring *g, int protocol, double bytes)
{
    const struct mgpu_fabric *f = g->fabric;
    double inside = (double)g->devices / g->machines - 1;
    double outside = ceil(log2(g->machines));
    double latency = f->base_ms[protocol] +
                     2 * (inside * f->inside_ms[protocol] + outside * f->tree_ms[protocol]);
    return latency + 2 * bytes / (TREE_SHARE * g->bandwidth * f->share[protocol]) * 1e3;
}

double mgpu_all_reduce_ms(const struct mgpu_ring *g, double bytes)
{
    double best = INFINITY, n = g->devices;
    if (g->devices < 2)
        return 0;
    for (int p = 0; p < MGPU_PROTOCOLS; p++)
        if (g->fabric->share[p] > 0)
            best = fmin(best, fmin(ring_ms(g, p, 2, bytes), tree_ms(g, p, bytes)));
    if (g->in_switch)
        best = fmin(best, SWITCH_MS + 2 * (n - 1) / n * bytes / g->fabric->in_switch * 1e3);
    return best;
}

double mgpu_all_gather_ms(const struct mgpu_ring *g, double bytes)
{
    double best = INFINITY;
    if (g->devices < 2)
        return 0;
    for (int p = 0; p < MGPU_PROTOCOLS; p++)
        if (g->fabric->share[p] > 0)
            best = fmin(best, ring_ms(g, p, 1, bytes));
    return best;
}
