/* Branch and bound over all placements (place.h).
 *
 * Groups are placed in the flow's order. A branch is cut when the simulation with the rest unplaced
 * (a lower bound of everything below it, simulate.h) is no better than the best, when the rest does
 * not fit into the time that the best leaves on the devices, or when parameters do not fit. Of
 * devices that may be exchanged without changing anything only the first unused one is tried.
 */
#include "partitioner/place.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Parameters whose owners are enumerated. */
enum { OPEN = 4 };

struct exact {
    struct mgpu_place *p;
    int devices, *device, *renamed; /* in play; working memory by channel */
    int twin[MGPU_EXACT_DEVICES];   /* the first device that may be exchanged with it */
    double ms[MGPU_EXACT_GROUPS][MGPU_EXACT_DEVICES];             /* of group on device */
    double load[MGPU_EXACT_DEVICES], rest[MGPU_EXACT_GROUPS + 1]; /* rest: least ms of [g, end) */
    int64_t kept[MGPU_EXACT_DEVICES], bytes[MGPU_EXACT_GROUPS];
    int users[MGPU_EXACT_DEVICES]; /* groups on it */
};

/* ---- Symmetry -------------------------------------------------------------------------------- */

static int swapped(int device, int a, int b)
{
    return device == a ? b : device == b ? a : device;
}

static bool same_group(const struct mgpu_ring *a, const struct mgpu_ring *b)
{
    return a->devices == b->devices && a->machines == b->machines && a->bandwidth == b->bandwidth &&
           a->in_switch == b->in_switch;
}

/* The devices in play: the replica's, and those that pins and weights name. */
static int in_play(const struct mgpu_place *p, int *list)
{
    int count = 0;
    for (int d = 0; d < p->replica->topology->devices; d++) {
        bool named = d < p->replica->ranks || d == p->replica->weights_on;
        for (int g = 0; g < p->flow->groups && !named; g++)
            named = p->flow->pin[g] == d;
        if (named)
            list[count++] = d;
    }
    return count;
}

/* Whether links look the same after exchanging two devices, channels renamed where needed. */
static bool same_links(const struct exact *x, int a, int b)
{
    const struct mgpu_topology *t = x->p->replica->topology;
    memset(x->renamed, -1, sizeof(int) * (size_t)x->p->replica->channels);
    for (int i = 0; i < x->devices; i++)
        for (int k = 0; k < x->devices; k++) {
            if (i == k)
                continue;
            int from = x->device[i], to = x->device[k];
            const struct mgpu_link *l = &t->link[(size_t)from * (size_t)t->devices + (size_t)to];
            from = swapped(from, a, b);
            to = swapped(to, a, b);
            const struct mgpu_link *m = &t->link[(size_t)from * (size_t)t->devices + (size_t)to];
            if (l->bytes != m->bytes || l->latency_ms != m->latency_ms)
                return false;
            if (x->renamed[l->channel] < 0)
                x->renamed[l->channel] = m->channel;
            if (x->renamed[l->channel] != m->channel)
                return false;
        }
    return true;
}

static bool exchangeable(const struct exact *x, int a, int b)
{
    const struct mgpu_replica *r = x->p->replica;
    for (int g = 0; g < x->p->flow->groups; g++)
        if (x->p->flow->pin[g] == a || x->p->flow->pin[g] == b)
            return false;
    if (r->kinds[a] != r->kinds[b] || r->memory[a] != r->memory[b] || r->weights_on == a ||
        r->weights_on == b)
        return false;
    if (r->sum && !same_group(&r->sum[a], &r->sum[b]))
        return false;
    if (r->gather && (r->gather[a] != r->gather[b] || r->scatter[a] != r->scatter[b]))
        return false;
    return same_links(x, a, b);
}

static void find_twins(struct exact *x)
{
    struct mgpu_place *p = x->p;
    x->renamed = MGPU_NEW_ARRAY(p->arena, int, p->replica->channels);
    x->device = MGPU_NEW_ARRAY(p->arena, int, p->replica->topology->devices);
    x->devices = in_play(p, x->device);
    for (int d = 0; d < p->replica->ranks; d++) {
        x->twin[d] = d;
        for (int e = 0; e < d && x->twin[d] == d; e++)
            if (x->twin[e] == e && exchangeable(x, e, d))
                x->twin[d] = e;
    }
}

/* ---- The tree -------------------------------------------------------------------------------- */

static void fill_costs(struct exact *x)
{
    const struct mgpu_flow *f = x->p->flow;
    for (int i = 0; i < f->tasks; i++) {
        const struct mgpu_flow_task *t = &f->task[i];
        bool moves = t->phase == MGPU_PHASE_UPDATE && x->p->replica->weights_on >= 0;
        for (int d = 0; t->group >= 0 && !moves && d < x->p->replica->ranks; d++)
            x->ms[t->group][d] += mgpu_task_ms(f, x->p->replica, i, d);
    }
    for (int g = f->groups - 1; g >= 0; g--) {
        double least = f->pin[g] >= 0 ? 0 : INFINITY;
        for (int d = 0; f->pin[g] < 0 && d < x->p->replica->ranks; d++)
            least = fmin(least, x->ms[g][d]);
        x->rest[g] = x->rest[g + 1] + least;
    }
    for (int i = 0; i < f->params; i++) /* the least that the group brings to its device */
        if (f->param[i].groups == 1)
            x->bytes[f->param_group[f->param[i].first]] +=
                f->param[i].bytes * (f->param[i].trained ? 2 : 1) +
                (x->p->replica->weights_on < 0 ? f->param[i].state_bytes : 0);
}

/* Puts a group on a device (sign 1) or takes it away (-1). */
static void put(struct exact *x, int group, int device, int sign)
{
    x->p->trial.device[group] = sign > 0 ? device : -1;
    if (device >= x->p->replica->ranks)
        return;
    x->load[device] += sign * x->ms[group][device];
    x->kept[device] += sign * x->bytes[group];
    x->users[device] += sign;
}

/* Whether nothing below this node can be better than the best. */
static bool hopeless(struct exact *x, int next)
{
    struct mgpu_place *p = x->p;
    if (p->best_lacking)
        return false;
    double room = 0;
    for (int d = 0; d < p->replica->ranks; d++) {
        if (x->kept[d] > p->replica->memory[d])
            return true;
        room += fmax(0, p->best_ms - x->load[d]);
    }
    if (x->rest[next] > room * (1 + 1e-9))
        return true;
    mgpu_choose_owners(p->flow, p->replica, &p->trial);
    for (int i = 0; i < p->flow->params; i++)
        if (mgpu_owner_open(p->flow, p->replica, i, p->trial.device))
            p->trial.owner[i] = -1;
    p->effort += p->flow->size;
    return mgpu_simulate(p->simulator, &p->trial, p->best_ms) == INFINITY;
}

/* A device is the first unused one of those that look the same. */
static bool first_unused(const struct exact *x, int device)
{
    for (int e = 0; e < device && !x->users[device]; e++)
        if (x->twin[e] == x->twin[device] && !x->users[e])
            return false;
    return true;
}

/* Tries a complete placement with all owners of the parameters from `param` on; beyond `OPEN` open
 * ones with those that follow from the placement. */
static void try_owners(struct exact *x, int param, int open)
{
    struct mgpu_place *p = x->p;
    const struct mgpu_flow *f = p->flow;
    while (param < f->params && !mgpu_owner_open(f, p->replica, param, p->trial.device))
        param++;
    if (param == f->params || open == OPEN) {
        mgpu_place_try_owned(p);
        return;
    }
    const int *user = f->param_group + f->param[param].first;
    int before = p->trial.owner[param];
    for (int i = 0; i < f->param[param].groups; i++) {
        bool known = false;
        for (int k = 0; k < i; k++)
            known |= p->trial.device[user[k]] == p->trial.device[user[i]];
        p->trial.owner[param] = p->trial.device[user[i]];
        if (!known)
            try_owners(x, param + 1, open + 1);
    }
    p->trial.owner[param] = before;
}

static void branch(struct exact *x, int group)
{
    struct mgpu_place *p = x->p;
    if (group == p->flow->groups) {
        mgpu_choose_owners(p->flow, p->replica, &p->trial);
        try_owners(x, 0, 0);
        return;
    }
    if (p->flow->pin[group] >= 0) { /* placed from the start */
        branch(x, group + 1);
        return;
    }
    for (int d = 0; d < p->replica->ranks && !mgpu_place_spent(p); d++) {
        if (!first_unused(x, d))
            continue;
        put(x, group, d, 1);
        if (!hopeless(x, group + 1))
            branch(x, group + 1);
        put(x, group, d, -1);
    }
}

bool mgpu_place_exact(struct mgpu_place *p)
{
    assert(p->flow->groups <= MGPU_EXACT_GROUPS && p->replica->ranks <= MGPU_EXACT_DEVICES);
    struct exact *x = MGPU_NEW(p->arena, struct exact);
    x->p = p;
    find_twins(x);
    fill_costs(x);
    for (int g = 0; g < p->flow->groups; g++)
        p->trial.device[g] = -1;
    for (int g = 0; g < p->flow->groups; g++)
        if (p->flow->pin[g] >= 0)
            put(x, g, p->flow->pin[g], 1);
    branch(x, 0);
    return p->effort < p->limit;
}
