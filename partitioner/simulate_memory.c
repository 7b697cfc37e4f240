/* The memory of a simulated schedule: who holds what while which task runs. */
#include "partitioner/simulate.h"

#include <string.h>

/* Each device's tasks have slots 0, 1, ... in the order in which they run. delta[] of a device
 * holds by slot how much more (or less) is held from then on. */
struct mgpu_slots {
    const struct mgpu_simulator *s;
    int devices;
    int *slot;  /* by position */
    int *until; /* by tensor: the slot before which it is free where it was made */
    int *first; /* by device: of task[] and delta[] */
    int *task;  /* positions, by device and slot */
    int64_t *delta;
    int *stamp; /* by device */
};

static struct mgpu_slots *new_slots(struct mgpu_simulator *s)
{
    struct mgpu_slots *m = MGPU_NEW(s->arena, struct mgpu_slots);
    int tasks = s->flow->tasks, devices = s->replica->topology->devices;
    *m = (struct mgpu_slots){.s = s, .devices = devices};
    m->slot = MGPU_NEW_ARRAY(s->arena, int, tasks);
    m->until = MGPU_NEW_ARRAY(s->arena, int, s->flow->tensors);
    m->first = MGPU_NEW_ARRAY(s->arena, int, devices + 1);
    m->task = MGPU_NEW_ARRAY(s->arena, int, tasks);
    m->delta = MGPU_NEW_ARRAY(s->arena, int64_t, tasks + devices);
    m->stamp = MGPU_NEW_ARRAY(s->arena, int, devices);
    return m;
}

#define CLEAR(array, n) memset((array), 0, sizeof *(array) * (size_t)(n))

static void fill_slots(struct mgpu_slots *m)
{
    const struct mgpu_flow *f = m->s->flow;
    CLEAR(m->first, m->devices + 1);
    CLEAR(m->delta, f->tasks + m->devices);
    CLEAR(m->stamp, m->devices);
    for (int i = 0; i < f->tasks; i++)
        m->slot[i] = m->first[m->s->at[i] + 1]++;
    for (int d = 0; d < m->devices; d++)
        m->first[d + 1] += m->first[d];
    for (int i = 0; i < f->tasks; i++)
        m->task[m->first[m->s->at[i]] + m->slot[i]] = i;
}

/* The first slot of a device that starts at `when` or later. */
static int slot_after(const struct mgpu_slots *m, int device, double when)
{
    int low = 0, high = m->first[device + 1] - m->first[device];
    while (low < high) {
        int middle = (low + high) / 2;
        if (m->s->start[m->task[m->first[device] + middle]] >= when)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* `bytes` are held on a device from slot `from` until before slot `to`. */
static void hold(struct mgpu_slots *m, int device, int from, int to, int64_t bytes)
{
    int64_t *delta = m->delta + m->first[device] + device;
    delta[from] += bytes;
    delta[to] -= bytes;
}

/* Where a tensor is used last on the device that made it: the slot after. */
static int last_use(const struct mgpu_slots *m, const struct mgpu_flow_tensor *t)
{
    const struct mgpu_flow *f = m->s->flow;
    int last = m->slot[t->from] + 1;
    for (int k = t->use; k < t->use + t->uses; k++)
        if (m->s->at[f->use[k]] == m->s->at[t->from] && m->slot[f->use[k]] >= last)
            last = m->slot[f->use[k]] + 1;
    return last;
}

/* Activations wait until they are sent; what arrives waits for its last user. */
static void hold_sent(struct mgpu_slots *m)
{
    const struct mgpu_flow *f = m->s->flow;
    for (int i = 0; i < m->s->transfers; i++) {
        const struct mgpu_transfer *t = &m->s->transfer[i];
        if (t->tensor < 0 || t->from == t->to)
            continue;
        const struct mgpu_flow_tensor *tensor = &f->tensor[t->tensor];
        int sent = slot_after(m, t->from, t->end), from = slot_after(m, t->to, t->start), to = from;
        if (m->until[t->tensor] < sent)
            m->until[t->tensor] = sent;
        from -= from > 0;
        for (int k = tensor->use; k < tensor->use + tensor->uses; k++)
            if (m->s->at[f->use[k]] == t->to && m->slot[f->use[k]] >= to)
                to = m->slot[f->use[k]] + 1;
        hold(m, t->to, from, to, tensor->bytes);
    }
}

static void hold_tasks(struct mgpu_slots *m)
{
    const struct mgpu_flow *f = m->s->flow;
    for (int i = 0; i < f->tensors; i++)
        m->until[i] = last_use(m, &f->tensor[i]);
    hold_sent(m);
    for (int i = 0; i < f->tasks; i++) {
        const struct mgpu_flow_task *t = &f->task[i];
        int64_t rest = t->output;
        int last = m->slot[i] + 1;
        for (int k = t->tensor; k < t->tensor + t->tensors; k++) {
            hold(m, m->s->at[i], m->slot[i], m->until[k], f->tensor[k].held);
            rest -= f->tensor[k].held;
            last = m->until[k] > last ? m->until[k] : last;
        }
        hold(m, m->s->at[i], m->slot[i], last, rest);
        hold(m, m->s->at[i], m->slot[i], m->slot[i] + 1, t->scratch);
    }
}

/* Parameters on their owner (with the optimizer's state) and on each other user, with gradients;
 * inputs where forward tasks run. */
static void keep(const struct mgpu_simulator *s, const struct mgpu_assignment *a, int64_t *kept,
                 int *stamp)
{
    const struct mgpu_flow *f = s->flow;
    for (int i = 0; i < f->params; i++) {
        const struct mgpu_flow_param *p = &f->param[i];
        int64_t bytes = p->trained ? 2 * p->bytes : p->bytes;
        int owner = a->owner[i];
        kept[owner] += bytes + p->state_bytes;
        stamp[owner] = i + 1;
        for (int k = p->first; k < p->first + p->groups; k++) {
            int user = a->device[f->param_group[k]];
            kept[user] += stamp[user] == i + 1 ? 0 : bytes;
            stamp[user] = i + 1;
        }
    }
    for (int i = 0; i < f->tasks; i++)
        if (f->task[i].phase == MGPU_PHASE_FORWARD && stamp[s->at[i]] >= 0) {
            kept[s->at[i]] += f->graph->input_bytes;
            stamp[s->at[i]] = -1;
        }
}

/* An owner in another replica than the first also computes, as its counterpart does. */
static void add_counterpart(struct mgpu_simulator *s)
{
    const struct mgpu_replica *r = s->replica;
    if (r->weights_on >= r->ranks && r->weights_on < r->ranks * r->replicas)
        s->peak[r->weights_on] += s->peak[r->weights_on % r->ranks];
}

int64_t mgpu_simulate_memory(struct mgpu_simulator *s, const struct mgpu_assignment *a)
{
    struct mgpu_slots *m = s->slots ? s->slots : (s->slots = new_slots(s));
    int64_t lacking = 0;
    fill_slots(m);
    hold_tasks(m);
    CLEAR(s->peak, m->devices);
    keep(s, a, s->peak, m->stamp);
    for (int d = 0; d < m->devices; d++) {
        int64_t held = 0, most = 0;
        const int64_t *delta = m->delta + m->first[d] + d;
        for (int i = 0; i < m->first[d + 1] - m->first[d]; i++) {
            held += delta[i];
            most = held > most ? held : most;
        }
        s->peak[d] += most;
    }
    add_counterpart(s);
    for (int d = 0; d < m->devices; d++)
        if (s->peak[d] - s->replica->memory[d] > lacking)
            lacking = s->peak[d] - s->replica->memory[d];
    return lacking;
}
