#include "partitioner/place.h"

#include <math.h>
#include <string.h>

static struct mgpu_assignment new_assignment(const struct mgpu_flow *f, struct mgpu_arena *arena)
{
    return (struct mgpu_assignment){MGPU_NEW_ARRAY(arena, int, f->groups),
                                    MGPU_NEW_ARRAY(arena, int, f->params)};
}

/* Devices of one sort: the number of the first of them. A device that a pin or the weights name is
 * a sort of its own. */
static void sort_devices(struct mgpu_place *p)
{
    const struct mgpu_topology *t = p->replica->topology;
    bool *named = p->named = MGPU_NEW_ARRAY(p->arena, bool, t->devices);
    for (int g = 0; g < p->flow->groups; g++)
        if (p->flow->pin[g] >= 0)
            named[p->flow->pin[g]] = true;
    if (p->replica->weights_on >= 0)
        named[p->replica->weights_on] = true;
    p->sort = MGPU_NEW_ARRAY(p->arena, int, p->replica->ranks);
    p->fresh = MGPU_NEW_ARRAY(p->arena, bool, p->replica->ranks);
    for (int d = 0; d < p->replica->ranks; d++) {
        p->sort[d] = d;
        for (int e = 0; e < d && !named[d] && p->sort[d] == d; e++)
            if (p->sort[e] == e && !named[e] && p->replica->kinds[e] == p->replica->kinds[d] &&
                p->replica->memory[e] == p->replica->memory[d] &&
                t->device[e].node == t->device[d].node)
                p->sort[d] = e;
    }
}

struct mgpu_place *mgpu_place_new(const struct mgpu_flow *flow, const struct mgpu_replica *replica,
                                  double bound, int64_t limit, uint64_t seed)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_place *p = MGPU_NEW(arena, struct mgpu_place);
    *p = (struct mgpu_place){.flow = flow,
                             .replica = replica,
                             .arena = arena,
                             .best_ms = INFINITY,
                             .best_lacking = INT64_MAX,
                             .bound = bound,
                             .limit = limit,
                             .random = seed * 2 + 1};
    p->simulator = mgpu_simulator_new(flow, replica);
    p->trial = new_assignment(flow, arena);
    p->best = new_assignment(flow, arena);
    memcpy(p->trial.device, flow->pin, sizeof(int) * (size_t)flow->groups);
    mgpu_net_init(&p->net, flow, replica, 0, arena);
    sort_devices(p);
    return p;
}

void mgpu_place_free(struct mgpu_place *place)
{
    if (!place)
        return;
    mgpu_simulator_free(place->simulator);
    mgpu_arena_free(place->arena);
}

static void copy(const struct mgpu_flow *f, const struct mgpu_assignment *to,
                 const struct mgpu_assignment *from)
{
    memcpy(to->device, from->device, sizeof(int) * (size_t)f->groups);
    memcpy(to->owner, from->owner, sizeof(int) * (size_t)f->params);
}

static bool on_one_device(const struct mgpu_place *p)
{
    for (int g = 1; g < p->flow->groups; g++)
        if (p->trial.device[g] != p->trial.device[0])
            return false;
    return true;
}

bool mgpu_place_try(struct mgpu_place *p)
{
    mgpu_choose_owners(p->flow, p->replica, &p->trial);
    return mgpu_place_try_owned(p);
}

bool mgpu_place_try_owned(struct mgpu_place *p)
{
    if (p->apart && on_one_device(p))
        return false;
    p->effort += p->flow->size;
    double ms = mgpu_simulate(p->simulator, &p->trial, p->best_lacking ? INFINITY : p->best_ms);
    if (ms == INFINITY)
        return false;
    int64_t lacking = mgpu_simulate_memory(p->simulator, &p->trial);
    if (lacking > p->best_lacking || (lacking == p->best_lacking && ms >= p->best_ms))
        return false;
    p->best_lacking = lacking;
    p->best_ms = ms;
    copy(p->flow, &p->best, &p->trial);
    return true;
}

bool mgpu_place_spent(const struct mgpu_place *p)
{
    return p->effort >= p->limit || (!p->best_lacking && p->best_ms <= p->bound * (1 + 1e-12));
}

void mgpu_place_recall(struct mgpu_place *p)
{
    copy(p->flow, &p->trial, &p->best);
}

int mgpu_place_devices(const struct mgpu_place *p, const int *device, int *list)
{
    int ranks = p->replica->ranks, count = 0;
    memset(list, 0, sizeof(int) * (size_t)ranks);
    for (int g = 0; g < p->flow->groups; g++)
        if (device[g] >= 0 && device[g] < ranks)
            list[device[g]] = 1;
    bool *fresh = p->fresh; /* by sort: its first unused device is listed */
    memset(fresh, 0, sizeof *fresh * (size_t)ranks);
    for (int d = 0; d < ranks; d++) {
        bool used = list[d];
        if (!used && fresh[p->sort[d]])
            continue;
        if (!used)
            fresh[p->sort[d]] = true;
        list[count++] = d;
    }
    return count;
}
