#include "partitioner/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* fmax without a care for what is no number: this is where the time goes. */
static double later(double a, double b)
{
    return a > b ? a : b;
}

/* ---- Devices --------------------------------------------------------------------------------- */

static const struct mgpu_link *link_between(const struct mgpu_topology *t, int from, int to)
{
    return &t->link[(size_t)from * (size_t)t->devices + (size_t)to];
}

/* Milliseconds a byte when `device` and its counterparts all send to `owner` (or get from it):
 * links of one channel take turns. */
static double crowd(const struct mgpu_replica *r, int device, bool to_owner, double *by_channel)
{
    double worst = 0;
    memset(by_channel, 0, sizeof *by_channel * (size_t)r->channels);
    for (int i = 0; i < r->replicas; i++) {
        int other = device + i * r->ranks;
        if (other == r->weights_on)
            continue;
        const struct mgpu_link *l = to_owner ? link_between(r->topology, other, r->weights_on)
                                             : link_between(r->topology, r->weights_on, other);
        by_channel[l->channel] += 1e3 / l->bytes;
        worst = fmax(worst, by_channel[l->channel]);
    }
    return worst;
}

static void init_owner(struct mgpu_replica *r, struct mgpu_arena *arena)
{
    double *by_channel = MGPU_NEW_ARRAY(arena, double, r->channels);
    r->gather = MGPU_NEW_ARRAY(arena, double, r->ranks);
    r->scatter = MGPU_NEW_ARRAY(arena, double, r->ranks);
    for (int d = 0; d < r->ranks; d++) {
        r->gather[d] = crowd(r, d, true, by_channel);
        r->scatter[d] = crowd(r, d, false, by_channel);
    }
}

static void init_sums(struct mgpu_replica *r, struct mgpu_arena *arena)
{
    int *member = MGPU_NEW_ARRAY(arena, int, r->replicas);
    r->sum = MGPU_NEW_ARRAY(arena, struct mgpu_ring, r->ranks);
    for (int d = 0; d < r->ranks; d++) {
        for (int i = 0; i < r->replicas; i++)
            member[i] = d + i * r->ranks;
        r->sum[d] = mgpu_ring_of(r->topology, member, r->replicas);
    }
}

int mgpu_channels(const struct mgpu_topology *t)
{
    int channels = 0;
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++)
            if (i != k && link_between(t, i, k)->channel >= channels)
                channels = link_between(t, i, k)->channel + 1;
    return channels;
}

void mgpu_replica_init(struct mgpu_replica *r, const struct mgpu_topology *topology, int channels,
                       int replicas, int ranks, int weights_on, struct mgpu_arena *arena)
{
    int n = topology->devices;
    *r = (struct mgpu_replica){.topology = topology,
                               .replicas = replicas,
                               .ranks = ranks,
                               .weights_on = weights_on,
                               .bucket_bytes = 25 << 20,
                               .channels = channels};
    r->kinds = MGPU_NEW_ARRAY(arena, uint64_t, n);
    r->memory = MGPU_NEW_ARRAY(arena, int64_t, n);
    for (int d = 0; d < n; d++)
        r->memory[d] = topology->device[d].memory;
    for (int d = 0; d < n; d++) {
        int first = d < replicas * ranks ? d % ranks : d;
        r->kinds[first] |= UINT64_C(1) << topology->device[d].kind;
        if (r->memory[first] > r->memory[d])
            r->memory[first] = r->memory[d];
    }
    if (weights_on >= 0)
        r->kinds[weights_on] |= UINT64_C(1) << topology->device[weights_on].kind;
    if (replicas > 1 && weights_on >= 0)
        init_owner(r, arena);
    if (replicas > 1)
        init_sums(r, arena);
}

bool mgpu_sums_gradients(const struct mgpu_replica *replica)
{
    return replica->sum && replica->weights_on < 0;
}

double mgpu_task_ms(const struct mgpu_flow *flow, const struct mgpu_replica *replica, int position,
                    int device)
{
    const double *ms = flow->task[position].ms;
    uint64_t kinds = replica->kinds[device];
    if (!kinds) /* a pin to a device of another replica */
        kinds = UINT64_C(1) << replica->topology->device[device].kind;
    double worst = ms[__builtin_ctzll(kinds)];
    for (kinds &= kinds - 1; kinds; kinds &= kinds - 1)
        worst = fmax(worst, ms[__builtin_ctzll(kinds)]);
    return worst;
}

double mgpu_host_of(const struct mgpu_flow *flow, const struct mgpu_replica *replica, int device)
{
    double worst = 0;
    for (uint64_t kinds = replica->kinds[device]; kinds && flow->graph->host_ms; kinds &= kinds - 1)
        worst = fmax(worst, flow->graph->host_ms[__builtin_ctzll(kinds)]);
    return worst;
}

/* ---- Owners ---------------------------------------------------------------------------------- */

static double group_ms(const struct mgpu_flow *f, const struct mgpu_replica *r, int group,
                       int device)
{
    double sum = 0;
    for (int k = f->group_first[group]; k < f->group_first[group + 1]; k++)
        sum += mgpu_task_ms(f, r, f->group_task[k], device);
    return sum;
}

static int busiest_user(const struct mgpu_flow *f, const struct mgpu_replica *r,
                        const struct mgpu_flow_param *p, const int *device)
{
    const int *user = f->param_group + p->first;
    int best = p->groups ? device[user[0]] : 0;
    double most = -1;
    for (int i = 0; i < p->groups; i++) {
        double work = 0;
        for (int k = 0; k < p->groups; k++)
            if (device[user[k]] < 0)
                return -1;
            else if (device[user[k]] == device[user[i]])
                work += group_ms(f, r, user[k], device[user[k]]);
        if (work > most) {
            most = work;
            best = device[user[i]];
        }
    }
    return best;
}

static bool together(const struct mgpu_flow *f, const struct mgpu_flow_param *p, const int *device)
{
    for (int i = 1; i < p->groups; i++)
        if (device[f->param_group[p->first + i]] != device[f->param_group[p->first]])
            return false;
    return true;
}

bool mgpu_owner_open(const struct mgpu_flow *f, const struct mgpu_replica *r, int param,
                     const int *device)
{
    const struct mgpu_flow_param *p = &f->param[param];
    return r->weights_on < 0 && p->home < 0 && !together(f, p, device);
}

void mgpu_choose_owners(const struct mgpu_flow *f, const struct mgpu_replica *r,
                        const struct mgpu_assignment *a)
{
    for (int i = 0; i < f->params; i++) {
        const struct mgpu_flow_param *p = &f->param[i];
        if (r->weights_on >= 0)
            a->owner[i] = r->weights_on;
        else if (p->home >= 0)
            a->owner[i] = a->device[p->home];
        else if (together(f, p, a->device))
            a->owner[i] = p->groups ? a->device[f->param_group[p->first]] : 0;
        else
            a->owner[i] = busiest_user(f, r, p, a->device);
    }
}

/* ---- The step -------------------------------------------------------------------------------- */

struct mgpu_simulator_state {
    double *ready;       /* by position: when its inputs are there */
    double *group_ready; /* by group: when its parameters are there */
    double *device_free, *sum_free, *channel_free;
    double *sum_ms;       /* by device */
    double *bucket_ready; /* by device: of the open bucket */
    int64_t *bucket_bytes;
    int *bucket;     /* by device: last parameter of the open bucket, -1: none */
    int *next;       /* by parameter: the one before it in its bucket */
    int *pending;    /* by device: parameters whose gradients are still to be summed */
    int *sent;       /* by device: stamp of the last thing sent to it */
    double *arrival; /* and when it arrives */
    int stamp;
    bool sums;     /* gradients are summed over replicas */
    double *least; /* by position: ms on its best device */
    double *host;  /* by device: ms before its first task */
    double *slow;  /* by device: how much longer tasks take beside sums */
    double *copy;  /* by device: the part of it that copies what arrives */
};

static double interference(const struct mgpu_replica *r, int device)
{
    double worst = 1;
    for (uint64_t kinds = r->kinds[device]; kinds; kinds &= kinds - 1)
        worst = later(worst, r->topology->kind[__builtin_ctzll(kinds)].interference);
    return worst;
}

/* Of a CPU device one core, of a GPU nothing; of a device and its counterparts the most. */
static double copying(const struct mgpu_replica *r, int device)
{
    double most = 0;
    for (uint64_t kinds = r->kinds[device]; kinds; kinds &= kinds - 1) {
        int threads = r->topology->kind[__builtin_ctzll(kinds)].threads;
        most = later(most, threads ? 1.0 / threads : 0);
    }
    return most;
}

/* Tasks' times on their best device. Neighbours are mostly of one kind and looked at once. */
static void fill_least(const struct mgpu_flow *f, const struct mgpu_replica *r, double *least)
{
    for (int i = 0; i < f->tasks; i++)
        least[i] = INFINITY;
    for (int d = 0, last = -1; d < r->topology->devices; d++) {
        if (!r->kinds[d] || (last >= 0 && r->kinds[d] == r->kinds[last]))
            continue;
        last = d;
        for (int i = 0; i < f->tasks; i++)
            least[i] = fmin(least[i], mgpu_task_ms(f, r, i, d));
    }
}

struct mgpu_simulator *mgpu_simulator_new(const struct mgpu_flow *flow,
                                          const struct mgpu_replica *replica)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_simulator *s = MGPU_NEW(arena, struct mgpu_simulator);
    struct mgpu_simulator_state *st = MGPU_NEW(arena, struct mgpu_simulator_state);
    int devices = replica->topology->devices;
    *s = (struct mgpu_simulator){.flow = flow, .replica = replica, .arena = arena, .state = st};
    s->start = MGPU_NEW_ARRAY(arena, double, flow->tasks);
    s->end = MGPU_NEW_ARRAY(arena, double, flow->tasks);
    s->stretch = MGPU_NEW_ARRAY(arena, double, flow->tasks);
    for (int i = 0; i < flow->tasks; i++)
        s->stretch[i] = 1;
    s->whole = MGPU_NEW_ARRAY(arena, double, flow->params);
    s->at = MGPU_NEW_ARRAY(arena, int, flow->tasks);
    s->peak = MGPU_NEW_ARRAY(arena, int64_t, devices);
    st->ready = MGPU_NEW_ARRAY(arena, double, flow->tasks);
    st->group_ready = MGPU_NEW_ARRAY(arena, double, flow->groups);
    st->device_free = MGPU_NEW_ARRAY(arena, double, devices);
    st->sum_free = MGPU_NEW_ARRAY(arena, double, devices);
    st->sum_ms = MGPU_NEW_ARRAY(arena, double, devices);
    st->channel_free = MGPU_NEW_ARRAY(arena, double, replica->channels);
    st->bucket_ready = MGPU_NEW_ARRAY(arena, double, devices);
    st->bucket_bytes = MGPU_NEW_ARRAY(arena, int64_t, devices);
    st->bucket = MGPU_NEW_ARRAY(arena, int, devices);
    st->next = MGPU_NEW_ARRAY(arena, int, flow->params);
    st->pending = MGPU_NEW_ARRAY(arena, int, devices);
    st->sent = MGPU_NEW_ARRAY(arena, int, devices);
    st->arrival = MGPU_NEW_ARRAY(arena, double, devices);
    st->least = MGPU_NEW_ARRAY(arena, double, flow->tasks);
    st->host = MGPU_NEW_ARRAY(arena, double, devices);
    st->slow = MGPU_NEW_ARRAY(arena, double, devices);
    st->copy = MGPU_NEW_ARRAY(arena, double, devices);
    fill_least(flow, replica, st->least);
    s->host_ms = devices ? INFINITY : 0;
    for (int d = 0; d < devices; d++) {
        st->host[d] = mgpu_host_of(flow, replica, d);
        st->slow[d] = interference(replica, d);
        st->copy[d] = copying(replica, d);
        if (replica->kinds[d])
            s->host_ms = fmin(s->host_ms, st->host[d]);
    }
    for (int d = 0; replica->sum && flow->graph->rest_bytes && d < replica->ranks; d++)
        s->rest_ms = later(s->rest_ms,
                           mgpu_all_reduce_ms(&replica->sum[d], (double)flow->graph->rest_bytes));
    return s;
}

void mgpu_simulator_free(struct mgpu_simulator *simulator)
{
    if (!simulator)
        return;
    free(simulator->transfer);
    mgpu_arena_free(simulator->arena);
}

static void add_transfer(struct mgpu_simulator *s, struct mgpu_transfer transfer)
{
    if (s->transfers == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->transfer = mgpu_xrealloc(s->transfer, (size_t)s->room, sizeof *s->transfer);
    }
    s->transfer[s->transfers++] = transfer;
}

#define CLEAR(array, n) memset((array), 0, sizeof *(array) * (size_t)(n))

static void reset(struct mgpu_simulator *s)
{
    struct mgpu_simulator_state *st = s->state;
    int devices = s->replica->topology->devices;
    CLEAR(st->ready, s->flow->tasks);
    CLEAR(st->group_ready, s->flow->groups);
    CLEAR(st->sum_free, devices);
    CLEAR(st->sum_ms, devices);
    CLEAR(st->channel_free, s->replica->channels);
    CLEAR(st->bucket_ready, devices);
    CLEAR(st->bucket_bytes, devices);
    CLEAR(st->pending, devices);
    CLEAR(st->sent, devices);
    st->stamp = 0;
    memset(st->bucket, -1, sizeof(int) * (size_t)devices);
    for (int d = 0; d < devices; d++)
        st->device_free[d] = st->host[d];
    s->transfers = 0;
    s->moved = 0;
}

/* Whether a weight or its gradient has to move: also where replicas share one owner that is among
 * them; then the link of its counterpart counts. */
static bool weight_crosses(const struct mgpu_replica *r, int from, int to)
{
    return from != to || (r->gather && to == r->weights_on && to < r->ranks);
}

/* Sends something from one device to another when it is there at `when`; returns the arrival. */
static double send(struct mgpu_simulator *s, struct mgpu_transfer what, double when)
{
    const struct mgpu_replica *r = s->replica;
    struct mgpu_simulator_state *st = s->state;
    const struct mgpu_link *l =
        link_between(r->topology, what.from == what.to ? what.from + r->ranks : what.from, what.to);
    double ms = (double)what.bytes * 1e3 / l->bytes;
    if (r->gather && what.to == r->weights_on && what.from < r->ranks)
        ms = (double)what.bytes * r->gather[what.from];
    if (r->scatter && what.from == r->weights_on && what.to < r->ranks)
        ms = (double)what.bytes * r->scatter[what.to];
    double *free_at = &st->channel_free[l->channel];
    double start = later(when, *free_at);
    *free_at = start + ms;
    st->device_free[what.to] += ms * st->copy[what.to];
    what.start = start;
    what.end = start + ms + l->latency_ms;
    add_transfer(s, what);
    s->moved += what.bytes * r->replicas;
    return what.end;
}

/* Sends the trained parameters to the users that do not own them. */
static void send_parameters(struct mgpu_simulator *s, const struct mgpu_assignment *a)
{
    const struct mgpu_flow *f = s->flow;
    struct mgpu_simulator_state *st = s->state;
    for (int i = 0; i < f->params; i++) {
        const struct mgpu_flow_param *p = &f->param[i];
        int stamp = ++st->stamp;
        for (int k = p->first; p->trained && a->owner[i] >= 0 && k < p->first + p->groups; k++) {
            int group = f->param_group[k], to = a->device[group];
            if (to < 0 || !weight_crosses(s->replica, a->owner[i], to))
                continue;
            if (st->sent[to] != stamp) {
                st->sent[to] = stamp;
                st->arrival[to] =
                    send(s, (struct mgpu_transfer){-1, i, a->owner[i], to, p->bytes, 0, 0, 0}, 0);
            }
            st->group_ready[group] = later(st->group_ready[group], st->arrival[to]);
        }
    }
}

/* With unplaced groups there are no sums: which gradients share a bucket is not known. */
static void count_pending(struct mgpu_simulator *s, const struct mgpu_assignment *a)
{
    const struct mgpu_flow *f = s->flow;
    s->state->sums = mgpu_sums_gradients(s->replica);
    for (int i = 0; mgpu_sums_gradients(s->replica) && i < f->params; i++) {
        if (f->param[i].complete >= 0 && a->owner[i] >= 0)
            s->state->pending[a->owner[i]]++;
        s->state->sums &= a->owner[i] >= 0;
    }
}

/* What a device and its counterparts do together when all have come so far, after what they did
 * before; returns its end. */
static double communicate(struct mgpu_simulator *s, struct mgpu_transfer what, double ready,
                          double ms)
{
    struct mgpu_simulator_state *st = s->state;
    what.start = later(st->sum_free[what.from], ready);
    what.end = st->sum_free[what.from] = what.start + ms;
    st->sum_ms[what.from] += ms;
    add_transfer(s, what);
    return what.end;
}

static void hold_updates(struct mgpu_simulator *s, int param, double until)
{
    const struct mgpu_flow *f = s->flow;
    const struct mgpu_flow_param *p = &f->param[param];
    for (int k = p->update; k < p->update + p->updates; k++) {
        double *ready = &s->state->ready[f->param_update[k]];
        *ready = later(*ready, until);
    }
}

/* Sums the open bucket of a device with its counterparts'; the updates wait for that. */
static void close_bucket(struct mgpu_simulator *s, int device)
{
    struct mgpu_simulator_state *st = s->state;
    struct mgpu_transfer sum = {
        .tensor = -1, .param = -1, .from = device, .to = device, .bytes = st->bucket_bytes[device]};
    double ms = mgpu_all_reduce_ms(&s->replica->sum[device], (double)sum.bytes);
    double end = communicate(s, sum, st->bucket_ready[device], ms);
    for (int p = st->bucket[device]; p >= 0; p = st->next[p])
        hold_updates(s, p, end);
    s->moved += 2 * (s->replica->replicas - 1) * st->bucket_bytes[device];
    st->bucket[device] = -1;
    st->bucket_bytes[device] = 0;
    st->bucket_ready[device] = 0;
}

static bool is_summed(const struct mgpu_flow_param *p)
{
    return !p->factor_bytes || p->bytes > p->product_bytes;
}

/* Of the replicas in all. There are two factors. */
static double gather_ms(const struct mgpu_replica *r, const struct mgpu_flow_param *p, int device)
{
    double all = (double)p->factor_bytes * r->replicas;
    return p->factor_bytes ? 2 * mgpu_all_gather_ms(&r->sum[device], all / 2) : 0;
}

/* Every replica gets the factors of all. */
static void gather(struct mgpu_simulator *s, int device, int p)
{
    const struct mgpu_flow_param *param = &s->flow->param[p];
    int64_t all = s->replica->replicas * param->factor_bytes;
    struct mgpu_transfer what = {
        .tensor = -1, .param = -1, .from = device, .to = device, .bytes = all, .gathers = true};
    double ms = gather_ms(s->replica, param, device);
    hold_updates(s, p, communicate(s, what, s->whole[p], ms));
    s->moved += (s->replica->replicas - 1) * all;
}

/* The gradient of parameter `p` is whole on its owner, or its factors are there. */
static void complete(struct mgpu_simulator *s, const struct mgpu_assignment *a, int p)
{
    const struct mgpu_flow_param *param = &s->flow->param[p];
    struct mgpu_simulator_state *st = s->state;
    int owner = a->owner[p];
    if (!s->state->sums)
        return;
    double whole = param->updates ? 0 : s->end[param->complete];
    for (int k = param->update; k < param->update + param->updates; k++)
        whole = later(whole, st->ready[s->flow->param_update[k]]);
    s->whole[p] = whole;
    if (param->factor_bytes)
        gather(s, owner, p);
    if (is_summed(param)) {
        st->bucket_ready[owner] = later(st->bucket_ready[owner], whole);
        st->bucket_bytes[owner] += param->bytes - param->product_bytes;
        st->next[p] = st->bucket[owner];
        st->bucket[owner] = p;
    }
    bool last = !--st->pending[owner];
    if (st->bucket[owner] >= 0 && (last || st->bucket_bytes[owner] >= s->replica->bucket_bytes))
        close_bucket(s, owner);
}

static int device_of(const struct mgpu_simulator *s, const struct mgpu_assignment *a, int position)
{
    const struct mgpu_flow_task *t = &s->flow->task[position];
    if (s->replica->weights_on >= 0 && (t->phase == MGPU_PHASE_UPDATE || t->group < 0))
        return s->replica->weights_on;
    return t->group < 0 ? a->owner[t->param] : a->device[t->group];
}

/* Whether what task `from` made has to move to the device of its user. */
static bool crosses(const struct mgpu_simulator *s, int from, int user)
{
    int at = s->at[from], to = s->at[user];
    if (at < 0 || to < 0 || at == to)
        return at == to && s->replica->gather && s->flow->task[user].phase == MGPU_PHASE_UPDATE &&
               s->flow->task[from].phase != MGPU_PHASE_UPDATE && weight_crosses(s->replica, at, to);
    return true;
}

/* What task `from` made becomes ready for its users. */
static void deliver(struct mgpu_simulator *s, int from)
{
    const struct mgpu_flow *f = s->flow;
    struct mgpu_simulator_state *st = s->state;
    const struct mgpu_flow_task *task = &f->task[from];
    for (int i = task->tensor; i < task->tensor + task->tensors; i++) {
        const struct mgpu_flow_tensor *t = &f->tensor[i];
        int stamp = ++st->stamp;
        for (int k = t->use; k < t->use + t->uses; k++) {
            int to = s->at[f->use[k]];
            double there = s->end[from];
            if (crosses(s, from, f->use[k])) {
                if (st->sent[to] != stamp)
                    st->arrival[to] =
                        send(s, (struct mgpu_transfer){i, -1, s->at[from], to, t->bytes, 0, 0, 0},
                             there);
                st->sent[to] = stamp;
                there = st->arrival[to];
            }
            st->ready[f->use[k]] = later(st->ready[f->use[k]], there);
        }
    }
}

/* When a task that starts on device `at` ends; unplaced: on its best. While sums run, tasks take
 * `slow` times as long. */
static double end_of(const struct mgpu_simulator *s, int position, int at, double start)
{
    const struct mgpu_simulator_state *st = s->state;
    if (at < 0)
        return start + st->least[position];
    double ms = mgpu_task_ms(s->flow, s->replica, position, at) * s->stretch[position];
    double beside = st->sum_free[at] - start;
    if (beside <= 0)
        return start + ms;
    double slow = st->slow[at];
    return ms * slow <= beside ? start + ms * slow : start + ms + beside - beside / slow;
}

/* What the replicas sum before anybody goes on with the task's output. */
static void sum_output(struct mgpu_simulator *s, int position, int at)
{
    const struct mgpu_flow_task *t = &s->flow->task[position];
    struct mgpu_transfer sum = {
        .tensor = -1, .param = -1, .from = at, .to = at, .bytes = t->sum_bytes};
    double ms = t->sums * mgpu_all_reduce_ms(&s->replica->sum[at], (double)t->sum_bytes / t->sums);
    s->end[position] = communicate(s, sum, s->end[position], ms);
    s->moved += 2 * (s->replica->replicas - 1) * t->sum_bytes;
}

static void run_task(struct mgpu_simulator *s, int position)
{
    struct mgpu_simulator_state *st = s->state;
    int group = s->flow->task[position].group, at = s->at[position];
    double start = st->ready[position];
    if (group >= 0)
        start = later(start, st->group_ready[group]);
    start = later(start, at >= 0 ? st->device_free[at] : s->host_ms);
    s->start[position] = start;
    s->end[position] = end_of(s, position, at, start);
    if (at >= 0 && s->replica->sum && s->flow->task[position].sums)
        sum_output(s, position, at);
    if (at >= 0)
        st->device_free[at] = s->end[position];
}

/* When everything is done; also what sums cost beyond the tasks. */
static double finish(struct mgpu_simulator *s)
{
    struct mgpu_simulator_state *st = s->state;
    const struct mgpu_flow *f = s->flow;
    double done = 0, backward = 0;
    for (int i = 0; i < f->tasks; i++) {
        done = later(done, s->end[i]);
        if (f->task[i].phase != MGPU_PHASE_UPDATE)
            backward = later(backward, s->end[i]);
    }
    s->all_reduce = s->exposed = 0;
    for (int d = 0; d < s->replica->topology->devices; d++) {
        if (st->device_free[d] > st->host[d])
            done = later(done, st->device_free[d]);
        done = later(done, st->sum_free[d]);
        s->all_reduce = later(s->all_reduce, st->sum_ms[d]);
        s->exposed = later(s->exposed, st->sum_free[d] - backward);
    }
    return done + s->rest_ms;
}

double mgpu_simulate(struct mgpu_simulator *s, const struct mgpu_assignment *a, double stop)
{
    const struct mgpu_flow *f = s->flow;
    reset(s);
    count_pending(s, a);
    send_parameters(s, a);
    for (int i = 0; i < f->tasks; i++)
        s->at[i] = device_of(s, a, i);
    for (int i = 0, next = 0; i < f->tasks; i++) {
        run_task(s, i);
        if (s->end[i] >= stop)
            return INFINITY;
        deliver(s, i);
        for (; next < f->completions && f->param[f->completion[next]].complete == i; next++)
            complete(s, a, f->completion[next]);
    }
    double done = finish(s);
    return done >= stop ? INFINITY : done;
}

double mgpu_sums_end(const struct mgpu_simulator *s, int64_t bucket_bytes)
{
    const struct mgpu_flow *f = s->flow;
    double end = 0, ready = 0;
    int64_t bytes = 0;
    for (int i = 0; i < f->completions; i++) {
        int p = f->completion[i];
        ready = later(ready, s->whole[p]);
        if (f->param[p].factor_bytes)
            end = later(end, s->whole[p]) + gather_ms(s->replica, &f->param[p], 0);
        bytes += f->param[p].bytes - f->param[p].product_bytes;
        if (!bytes || (bytes < bucket_bytes && i + 1 < f->completions))
            continue;
        end = later(end, ready) + mgpu_all_reduce_ms(&s->replica->sum[0], (double)bytes);
        bytes = 0;
    }
    return end;
}
