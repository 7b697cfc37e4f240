/* First placements for the search (place.h). */
#include "partitioner/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Groups up to which the methods that take quadratic time are used. */
enum { FEW = 64, MANY = 1024 };

static void all_on(struct mgpu_place *p, int device)
{
    for (int g = 0; g < p->flow->groups; g++)
        p->trial.device[g] = p->flow->pin[g] >= 0 ? p->flow->pin[g] : device;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* A schedule of the groups' forward work that grows group by group. */
struct list {
    struct mgpu_place *p;
    double *end;         /* by group */
    double *device_free; /* by device */
    int64_t *kept;       /* by device: bytes of parameters */
    bool *used;          /* by device */
    int *seen, scans;    /* by sort of devices: the last scan that met an unused one */
    int *waits;          /* by group: predecessors that are not placed yet */
};

static struct list new_list(struct mgpu_place *p, struct mgpu_arena *arena)
{
    int devices = p->replica->topology->devices, groups = p->flow->groups;
    struct list l = {.p = p};
    l.end = MGPU_NEW_ARRAY(arena, double, groups);
    l.device_free = MGPU_NEW_ARRAY(arena, double, devices);
    l.kept = MGPU_NEW_ARRAY(arena, int64_t, devices);
    l.used = MGPU_NEW_ARRAY(arena, bool, devices);
    l.seen = MGPU_NEW_ARRAY(arena, int, devices);
    l.waits = MGPU_NEW_ARRAY(arena, int, groups);
    for (int g = 0; g < groups; g++) {
        l.waits[g] = p->net.in[g + 1] - p->net.in[g];
        p->trial.device[g] = -1;
    }
    return l;
}

/* When a group could start on a device. */
static double start_on(const struct list *l, int group, int device)
{
    const struct mgpu_net *net = &l->p->net;
    double start = l->device_free[device];
    for (int k = net->in[group]; k < net->in[group + 1]; k++) {
        const struct mgpu_net_edge *e = &net->edge[net->in_list[k]];
        start = fmax(start, l->end[e->from] + mgpu_transfer_ms(l->p->replica->topology,
                                                               l->p->trial.device[e->from], device,
                                                               (double)e->bytes));
    }
    return start;
}

static double forward_on(const struct list *l, int group, int device)
{
    const struct mgpu_flow *f = l->p->flow;
    double ms = 0;
    for (int k = f->group_first[group]; k < f->group_first[group + 1]; k++)
        if (f->task[f->group_task[k]].phase == MGPU_PHASE_FORWARD)
            ms += mgpu_task_ms(f, l->p->replica, f->group_task[k], device);
    return ms;
}

static void put(struct list *l, int group, int device)
{
    const struct mgpu_net *net = &l->p->net;
    l->end[group] = start_on(l, group, device) + forward_on(l, group, device);
    l->device_free[device] = l->end[group];
    l->used[device] = true;
    l->kept[device] += net->bytes[group];
    l->p->trial.device[group] = device;
    for (int k = net->out[group]; k < net->out[group + 1]; k++)
        l->waits[net->edge[k].to]--;
}

/* Unused devices of one sort are alike: only the first is looked at, in a scan from the first. */
static bool worth_trying(struct list *l, int device, int scan)
{
    int *seen = &l->seen[l->p->sort[device]];
    if (l->used[device])
        return true;
    bool first = *seen != scan;
    *seen = scan;
    return first;
}

/* The device on which the group ends (or starts) first, of those with room; -1: none has. */
static int first_device(struct list *l, int group, bool by_start, double *when)
{
    const struct mgpu_replica *r = l->p->replica;
    int best = -1;
    *when = INFINITY;
    l->scans++;
    for (int d = 0; d < r->ranks; d++) {
        if (!worth_trying(l, d, l->scans) || l->device_free[d] >= *when ||
            l->kept[d] + l->p->net.bytes[group] > r->memory[d])
            continue;
        double key = start_on(l, group, d) + (by_start ? 0 : forward_on(l, group, d));
        if (key < *when) {
            *when = key;
            best = d;
        }
    }
    return best;
}

static int emptiest(const struct list *l)
{
    const int64_t *memory = l->p->replica->memory;
    int best = 0;
    for (int d = 1; d < l->p->replica->ranks; d++)
        if (memory[d] - l->kept[d] > memory[best] - l->kept[best])
            best = d;
    return best;
}

static int best_device(struct list *l, int group, bool by_start, double *when)
{
    int pin = l->p->flow->pin[group];
    if (pin >= 0) {
        *when = start_on(l, group, pin);
        return pin;
    }
    int best = first_device(l, group, by_start, when);
    return best >= 0 ? best : emptiest(l);
}

/* HEFT: in the order of the longest path to the end, each group where it ends first. */
static void by_finish(struct mgpu_place *p)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct list l = new_list(p, arena);
    double when;
    for (int i = 0; i < p->flow->groups; i++) {
        int g = p->net.order[i];
        put(&l, g, best_device(&l, g, false, &when));
    }
    mgpu_place_try(p);
    mgpu_arena_free(arena);
}

/* ETF: of the groups that can run, the one that can start first, there. */
static void by_start(struct mgpu_place *p)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct list l = new_list(p, arena);
    for (int placed = 0; placed < p->flow->groups; placed++) {
        int group = -1, device = 0;
        double first = INFINITY;
        for (int i = 0; i < p->flow->groups; i++) {
            int g = p->net.order[i];
            if (p->trial.device[g] >= 0 || l.waits[g])
                continue;
            double when;
            int d = best_device(&l, g, true, &when);
            if (group < 0 || when < first) {
                group = g;
                device = d;
                first = when;
            }
        }
        put(&l, group, device);
    }
    mgpu_place_try(p);
    mgpu_arena_free(arena);
}

struct load {
    double ms;
    int group;
};

static int compare_load(const void *a, const void *b)
{
    const struct load *x = a, *y = b;
    if (x->ms != y->ms)
        return x->ms > y->ms ? -1 : 1;
    return x->group - y->group;
}

/* The longest group first, to the device with the least work: right for independent branches. */
static void by_load(struct mgpu_place *p)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    int groups = p->flow->groups;
    struct load *list = MGPU_NEW_ARRAY(arena, struct load, groups);
    double *load = MGPU_NEW_ARRAY(arena, double, p->replica->topology->devices);
    for (int g = 0; g < groups; g++)
        list[g] = (struct load){p->net.total[g], g};
    qsort(list, (size_t)groups, sizeof *list, compare_load);
    for (int i = 0; i < groups; i++) {
        int g = list[i].group, best = 0;
        for (int d = 1; d < p->replica->ranks; d++)
            if (load[d] < load[best])
                best = d;
        if (p->flow->pin[g] >= 0)
            best = p->flow->pin[g];
        load[best] += list[i].ms;
        p->trial.device[g] = best;
    }
    mgpu_place_try(p);
    mgpu_arena_free(arena);
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Cuts of the groups in order into one piece a device, devices in their order (any may be left
 * out): least[d][i] is the least time of groups [0, i) on devices up to d, communication included;
 * from[d][i] is where the last piece begins, -1: device d is left out. O(groups^2 devices). */
struct cut {
    struct mgpu_place *p;
    int groups, devices;
    double *least;
    int *from;
    double *work;    /* groups [0, i) on the device in question */
    int64_t *bytes;  /* of their parameters */
    int64_t *across; /* bytes that cross the cut before i, there and back */
};

static void measure_cuts(struct cut *c)
{
    const struct mgpu_net *net = &c->p->net;
    int *at = mgpu_xcalloc((size_t)c->groups, sizeof *at);
    for (int i = 0; i < c->groups; i++) {
        at[net->order[i]] = i;
        c->bytes[i + 1] = c->bytes[i] + net->bytes[net->order[i]];
    }
    for (int i = 0; i < net->edges; i++) {
        c->across[at[net->edge[i].from] + 1] += 2 * net->edge[i].bytes;
        c->across[at[net->edge[i].to] + 1] -= 2 * net->edge[i].bytes;
    }
    for (int i = 0; i < c->groups; i++)
        c->across[i + 1] += c->across[i];
    free(at);
}

static double group_on(const struct cut *c, int group, int device)
{
    const struct mgpu_flow *f = c->p->flow;
    double ms = 0;
    for (int k = f->group_first[group]; k < f->group_first[group + 1]; k++)
        ms += mgpu_task_ms(f, c->p->replica, f->group_task[k], device);
    return ms;
}

static void extend(struct cut *c, int d)
{
    const struct mgpu_replica *r = c->p->replica;
    int n = c->groups;
    double *now = c->least + (size_t)d * (size_t)(n + 1), *before = d ? now - (n + 1) : NULL;
    int *from = c->from + (size_t)d * (size_t)(n + 1);
    for (int i = 0; i < n; i++)
        c->work[i + 1] = c->work[i] + group_on(c, c->p->net.order[i], d);
    for (int i = 0; i <= n; i++) {
        now[i] = before ? before[i] : i ? INFINITY : 0;
        from[i] = -1;
        for (int j = i - 1; j >= 0 && c->bytes[i] - c->bytes[j] <= r->memory[d]; j--) {
            double ms = (before ? before[j] : j ? INFINITY : 0) + c->work[i] - c->work[j];
            if (j && d)
                ms += mgpu_transfer_ms(r->topology, d - 1, d, (double)c->across[j]);
            if (ms < now[i]) {
                now[i] = ms;
                from[i] = j;
            }
        }
    }
}

/* For chains that one device cannot hold; `room` leaves so much of each device to activations. */
static void by_pieces(struct mgpu_place *p)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    int n = p->flow->groups, devices = p->replica->ranks < 64 ? p->replica->ranks : 64;
    size_t cells = (size_t)(n + 1) * (size_t)devices;
    struct cut c = {.p = p, .groups = n, .devices = devices};
    c.least = MGPU_NEW_ARRAY(arena, double, cells);
    c.from = MGPU_NEW_ARRAY(arena, int, cells);
    c.work = MGPU_NEW_ARRAY(arena, double, n + 1);
    c.bytes = MGPU_NEW_ARRAY(arena, int64_t, n + 1);
    c.across = MGPU_NEW_ARRAY(arena, int64_t, n + 2);
    measure_cuts(&c);
    for (int d = 0; d < devices; d++)
        extend(&c, d);
    for (int d = devices - 1, i = n; d >= 0; d--) {
        int j = c.from[(size_t)d * (size_t)(n + 1) + (size_t)i];
        for (int k = j; j >= 0 && k < i; k++)
            p->trial.device[p->net.order[k]] = d;
        i = j >= 0 ? j : i;
        if (!d && i) /* does not fit: the rest stays on the first */
            for (int k = 0; k < i; k++)
                p->trial.device[p->net.order[k]] = 0;
    }
    for (int g = 0; g < n; g++)
        if (p->flow->pin[g] >= 0)
            p->trial.device[g] = p->flow->pin[g];
    mgpu_place_try(p);
    mgpu_arena_free(arena);
}

/* Everything on one device, once for each kind and size, and on devices that pins or weights name.
 */
static void all_on_each(struct mgpu_place *p)
{
    const struct mgpu_replica *r = p->replica;
    int *sort = mgpu_xcalloc((size_t)p->replica->topology->devices, sizeof *sort);
    memset(p->trial.device, -1, sizeof(int) * (size_t)p->flow->groups);
    int sorts = mgpu_place_devices(p, p->trial.device, sort);
    for (int i = 0; i < sorts; i++) {
        int k = 0;
        while (r->kinds[sort[k]] != r->kinds[sort[i]] || r->memory[sort[k]] != r->memory[sort[i]])
            k++;
        if (k < i && !p->named[sort[i]])
            continue;
        all_on(p, sort[i]);
        mgpu_place_try(p);
    }
    free(sort);
}

void mgpu_place_start(struct mgpu_place *p)
{
    all_on_each(p);
    if (p->replica->ranks < 2)
        return;
    by_load(p);
    if (!p->net.order)
        return;
    by_finish(p);
    if (p->flow->groups <= FEW)
        by_start(p);
    if (p->best_lacking && p->flow->groups <= MANY)
        by_pieces(p);
}
