#include "partitioner/bounds.h"

#include <math.h>
#include <string.h>

/* Devices that differ only in name count once: representatives of the replica's sets of kinds. With
 * more than 64 sets the bound is left out. */
struct speeds {
    int classes;    /* 0: too many */
    int device[64]; /* one of each class */
    int count[64];
    double total[64]; /* ms of all groups on it */
};

static void find_classes(struct speeds *c, const struct mgpu_replica *r)
{
    c->classes = 0;
    for (int d = 0; d < r->ranks; d++) {
        int k = 0;
        while (k < c->classes && r->kinds[c->device[k]] != r->kinds[d])
            k++;
        if (k == 64) {
            c->classes = 0;
            return;
        }
        if (k == c->classes) {
            c->device[k] = d;
            c->count[k] = 0;
            c->classes++;
        }
        c->count[k]++;
    }
}

static bool on_owner(const struct mgpu_flow_task *t, const struct mgpu_replica *r)
{
    return t->group < 0 || (t->phase == MGPU_PHASE_UPDATE && r->weights_on >= 0);
}

/* Pins name one device, so replicas cannot obey them; their bound does without. */
static int pin_of(const struct mgpu_flow *f, const struct mgpu_replica *r, int group)
{
    return r->replicas > 1 ? -1 : f->pin[group];
}

static double group_ms(const struct mgpu_flow *f, const struct mgpu_replica *r, int group,
                       int device)
{
    double sum = 0;
    for (int k = f->group_first[group]; k < f->group_first[group + 1]; k++)
        if (!on_owner(&f->task[f->group_task[k]], r))
            sum += mgpu_task_ms(f, r, f->group_task[k], device);
    return sum;
}

static void bound_work(struct mgpu_bounds *b, const struct mgpu_flow *f,
                       const struct mgpu_replica *r, struct mgpu_arena *arena)
{
    struct speeds c;
    find_classes(&c, r);
    double speed = 0, *pinned = MGPU_NEW_ARRAY(arena, double, r->topology->devices);
    double *group = MGPU_NEW_ARRAY(arena, double, (size_t)c.classes *(size_t)f->groups);
    b->alone = INFINITY;
    for (int k = 0; k < c.classes; k++) {
        double all = 0;
        c.total[k] = 0;
        for (int g = 0; g < f->groups; g++)
            c.total[k] += group[k * f->groups + g] = group_ms(f, r, g, c.device[k]);
        for (int i = 0; i < f->tasks; i++)
            all += mgpu_task_ms(f, r, i, c.device[k]);
        b->alone = fmin(b->alone, all);
        speed += c.total[k] > 0 ? c.count[k] / c.total[k] : 0;
    }
    b->work = b->group = 0;
    for (int g = 0; g < f->groups; g++) {
        double share = INFINITY, least = INFINITY, ms;
        int pin = pin_of(f, r, g);
        for (int k = 0; k < c.classes; k++) {
            ms = group[k * f->groups + g];
            least = fmin(least, ms);
            share = fmin(share, c.total[k] > 0 ? ms / c.total[k] : 0);
        }
        if (pin >= 0) {
            pinned[pin] += least = group_ms(f, r, g, pin);
            share = pin < r->ranks ? share : 0;
        }
        b->work += speed > 0 ? share / speed : 0;
        b->group = fmax(b->group, least);
    }
    for (int d = 0; d < r->topology->devices; d++)
        b->work = fmax(b->work, pinned[d]);
}

/* ---- The longest path ------------------------------------------------------------------------ */

/* Where a task must run; -1: anywhere. */
static int place_of(const struct mgpu_flow *f, const struct mgpu_replica *r, int position)
{
    const struct mgpu_flow_task *t = &f->task[position];
    return on_owner(t, r) ? r->weights_on : pin_of(f, r, t->group);
}

static double least_ms(const struct mgpu_flow *f, const struct mgpu_replica *r,
                       const struct speeds *c, int position)
{
    int place = place_of(f, r, position);
    if (place >= 0)
        return mgpu_task_ms(f, r, position, place);
    double least = c->classes ? INFINITY : 0;
    for (int k = 0; k < c->classes; k++)
        least = fmin(least, mgpu_task_ms(f, r, position, c->device[k]));
    return least;
}

/* Transfers count where both ends are known. */
static double least_transfer(const struct mgpu_replica *r, int from, int to, int64_t bytes)
{
    if (from < 0 || to < 0 || r->replicas > 1)
        return 0;
    return mgpu_transfer_ms(r->topology, from, to, (double)bytes);
}

static double least_host(const struct mgpu_flow *f, const struct mgpu_replica *r)
{
    double least = INFINITY;
    for (int d = 0; d < r->topology->devices; d++)
        if (r->kinds[d])
            least = fmin(least, mgpu_host_of(f, r, d));
    return least;
}

/* When each task can end at the earliest, from the first task on. */
static double bound_path(const struct mgpu_flow *f, const struct mgpu_replica *r, double *end,
                         struct mgpu_arena *arena)
{
    struct speeds c;
    double *ready = MGPU_NEW_ARRAY(arena, double, f->tasks), last = 0;
    find_classes(&c, r);
    for (int i = 0; i < f->tasks; i++) {
        const struct mgpu_flow_task *t = &f->task[i];
        int place = place_of(f, r, i);
        end[i] = ready[i] + least_ms(f, r, &c, i);
        last = fmax(last, end[i]);
        for (int k = t->tensor; k < t->tensor + t->tensors; k++)
            for (int u = f->tensor[k].use; u < f->tensor[k].use + f->tensor[k].uses; u++) {
                int to = f->use[u];
                double ms = least_transfer(r, place, place_of(f, r, to), f->tensor[k].bytes);
                ready[to] = fmax(ready[to], end[i] + ms);
            }
    }
    return last;
}

/* The least time in which one of the replica's groups of counterparts sums so much. Groups that are
 * alike count once. */
static double least_sum(const struct mgpu_replica *r, double bytes)
{
    double least = INFINITY;
    for (int d = 0; d < r->ranks; d++)
        if (!d || r->sum[d].bandwidth != r->sum[d - 1].bandwidth ||
            r->sum[d].machines != r->sum[d - 1].machines ||
            r->sum[d].in_switch != r->sum[d - 1].in_switch)
            least = fmin(least, mgpu_all_reduce_ms(&r->sum[d], bytes));
    return least;
}

/* The path, and the sums that end it. `end` is by position, as early as can be. */
static void bound_sums(struct mgpu_bounds *b, const struct mgpu_flow *f,
                       const struct mgpu_replica *r, const double *end)
{
    double first = INFINITY, bytes = 0;
    b->sums = 0;
    for (int p = 0; mgpu_sums_gradients(r) && p < f->params; p++) {
        double summed = (double)(f->param[p].bytes - f->param[p].product_bytes);
        if (f->param[p].complete < 0 || summed <= 0)
            continue;
        double whole = end[f->param[p].complete];
        first = fmin(first, whole);
        bytes += summed;
        b->sums = fmax(b->sums, whole + least_sum(r, summed));
    }
    if (bytes > 0)
        b->sums = fmax(b->sums, first + least_sum(r, bytes / r->ranks));
}

/* Whether the parameters alone are more than all devices hold. */
static bool too_large(const struct mgpu_flow *f, const struct mgpu_replica *r)
{
    double bytes = 0, room = 0;
    for (int p = 0; p < f->params; p++)
        bytes += (double)f->param[p].bytes * (f->param[p].trained ? 2 : 1) +
                 (double)f->param[p].state_bytes;
    for (int d = 0; d < r->topology->devices; d++)
        room += d < r->ranks || d >= r->ranks * r->replicas ? (double)r->memory[d] : 0;
    return bytes > room;
}

void mgpu_bound(struct mgpu_bounds *b, const struct mgpu_flow *f, const struct mgpu_replica *r)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    double *end = MGPU_NEW_ARRAY(arena, double, f->tasks);
    b->path = bound_path(f, r, end, arena);
    bound_work(b, f, r, arena);
    bound_sums(b, f, r, end);
    b->step = least_host(f, r) + fmax(fmax(b->path, b->sums), fmax(b->work, b->group));
    if (too_large(f, r))
        b->step = INFINITY;
    mgpu_arena_free(arena);
}
