#include "tests/partitioner/brute_force.h"

#include <math.h>

/* Counts: the next number of so many digits; false: they are all 0 again. */
static bool next(int *digit, int count, int base)
{
    for (int i = 0; i < count; i++) {
        digit[i] = (digit[i] + 1) % base;
        if (digit[i])
            return true;
    }
    return false;
}

/* Whether each open parameter is owned where it is used; sets the owners. */
static bool owned_by_users(const struct mgpu_flow *f, const struct mgpu_assignment *a,
                           const int *open, int opens, const int *owner)
{
    bool all = true;
    for (int i = 0; i < opens; i++) {
        const struct mgpu_flow_param *param = &f->param[open[i]];
        bool user = false;
        for (int k = 0; k < param->groups; k++)
            user |= a->device[f->param_group[param->first + k]] == owner[i];
        all &= user;
        a->owner[open[i]] = owner[i];
    }
    return all;
}

static double best_owners(struct mgpu_simulator *s, struct mgpu_assignment *a, double best)
{
    const struct mgpu_flow *f = s->flow;
    int open[8], opens = 0, owner[8] = {0};
    mgpu_choose_owners(f, s->replica, a);
    for (int i = 0; i < f->params; i++)
        if (mgpu_owner_open(f, s->replica, i, a->device))
            open[opens++] = i;
    do {
        bool users = owned_by_users(f, a, open, opens, owner);
        double ms = users ? mgpu_simulate(s, a, INFINITY) : INFINITY;
        if (ms < best && !mgpu_simulate_memory(s, a))
            best = ms;
    } while (next(owner, opens, s->replica->ranks));
    return best;
}

static bool obeys(const struct mgpu_flow *f, const int *device)
{
    for (int g = 0; g < f->groups; g++)
        if (f->pin[g] >= 0 && f->pin[g] != device[g])
            return false;
    return true;
}

double test_brute_force(const struct mgpu_flow *flow, const struct mgpu_replica *replica)
{
    struct mgpu_simulator *s = mgpu_simulator_new(flow, replica);
    struct mgpu_assignment a = {MGPU_NEW_ARRAY(s->arena, int, flow->groups),
                                MGPU_NEW_ARRAY(s->arena, int, flow->params)};
    double best = INFINITY;
    do
        best = obeys(flow, a.device) ? best_owners(s, &a, best) : best;
    while (next(a.device, flow->groups, replica->ranks));
    mgpu_simulator_free(s);
    return best;
}
