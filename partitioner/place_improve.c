/* Local search (place.h). */
#include "partitioner/place.h"

#include <math.h>
#include <stdlib.h>

/* Kicks in vain after which the search ends; and 8 for each group. */
enum { IDLE = 200 };

static uint64_t next_random(struct mgpu_place *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return p->random;
}

/* Tries the group on the other devices. The trial is the best again afterwards. */
static bool move(struct mgpu_place *p, int group, int *candidate)
{
    bool better = false;
    int count = mgpu_place_devices(p, p->trial.device, candidate);
    for (int i = 0; i < count && !mgpu_place_spent(p); i++) {
        int now = p->best.device[group];
        if (candidate[i] == now)
            continue;
        p->trial.device[group] = candidate[i];
        if (mgpu_place_try(p))
            better = true;
        else
            p->trial.device[group] = now;
    }
    return better;
}

static bool move_all(struct mgpu_place *p, int *candidate)
{
    bool better = false;
    for (int g = 0; g < p->flow->groups && !mgpu_place_spent(p); g++)
        if (p->flow->pin[g] < 0)
            better |= move(p, g, candidate);
    return better;
}

/* Exchanges the devices of two groups that differ. */
static bool swap_all(struct mgpu_place *p)
{
    bool better = false;
    int *device = p->trial.device;
    for (int a = 0; a < p->flow->groups; a++)
        for (int b = a + 1; b < p->flow->groups && !mgpu_place_spent(p); b++) {
            if (p->flow->pin[a] >= 0 || p->flow->pin[b] >= 0 || device[a] == device[b])
                continue;
            int first = device[a], second = device[b];
            device[a] = second;
            device[b] = first;
            if (mgpu_place_try(p)) {
                better = true;
                continue;
            }
            device[a] = first;
            device[b] = second;
        }
    return better;
}

/* Moves two groups of one device that exchange something to another device together. */
static bool move_pairs(struct mgpu_place *p, int *candidate)
{
    bool better = false;
    int *device = p->trial.device;
    for (int i = 0; i < p->net.edges && !mgpu_place_spent(p); i++) {
        int a = p->net.edge[i].from, b = p->net.edge[i].to, now = device[a];
        if (now != device[b] || p->flow->pin[a] >= 0 || p->flow->pin[b] >= 0)
            continue;
        int count = mgpu_place_devices(p, device, candidate);
        for (int k = 0; k < count && !mgpu_place_spent(p); k++) {
            device[a] = device[b] = candidate[k];
            if (candidate[k] != now && mgpu_place_try(p)) {
                better = true;
                break;
            }
            device[a] = device[b] = now;
        }
    }
    return better;
}

static void descend(struct mgpu_place *p, int *candidate)
{
    bool better = true;
    while (better && !mgpu_place_spent(p)) {
        better = move_all(p, candidate);
        if (!better && p->flow->groups <= 64)
            better = swap_all(p) || move_pairs(p, candidate);
    }
}

/* Puts a few groups that follow each other on one device, at random. */
static bool kick(struct mgpu_place *p, int *candidate)
{
    int count = mgpu_place_devices(p, p->trial.device, candidate);
    int to = candidate[next_random(p) % (uint64_t)count];
    int at = (int)(next_random(p) % (uint64_t)p->flow->groups);
    for (int n = 2 + (int)(next_random(p) % 3); n > 0 && at >= 0; n--) {
        if (p->flow->pin[at] < 0)
            p->trial.device[at] = to;
        int outs = p->net.out[at + 1] - p->net.out[at];
        at = outs ? p->net.edge[p->net.out[at] + (int)(next_random(p) % (uint64_t)outs)].to : -1;
    }
    return mgpu_place_try(p);
}

void mgpu_place_improve(struct mgpu_place *p)
{
    if (p->replica->ranks < 2 || !p->flow->groups || p->best_lacking == INT64_MAX)
        return;
    int *candidate = mgpu_xcalloc((size_t)p->replica->ranks, sizeof *candidate);
    mgpu_place_recall(p);
    descend(p, candidate);
    for (int idle = 0; !mgpu_place_spent(p) && idle < IDLE + 8 * p->flow->groups; idle++) {
        if (kick(p, candidate)) {
            descend(p, candidate);
            idle = 0;
        }
        mgpu_place_recall(p);
    }
    free(candidate);
}
