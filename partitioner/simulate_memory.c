/* The memory of a simulated schedule: who holds what while which task runs. */
#include "partitioner/simulate.h"

#include <string.h>

/* Each device's tasks have slots 0, 1, ... in the order in which they run. delta[] of a device
 * holds by slot how much more (or less) is held from then on. */
struct slots {
    const struct mgpu_simulator *s;
    int devices;
    int *slot;  /* by position */
    int *first; /* by device: of task[] and delta[] */
    int *task;  /* positions, by device and slot */
    int64_t *delta;
};

static void fill_slots(struct slots *m, struct mgpu_arena *arena)
{
    const struct mgpu_flow *f = m->s->flow;
    m->slot = MGPU_NEW_ARRAY(arena, int, f->tasks);
    m->first = MGPU_NEW_ARRAY(arena, int, m->devices + 1);
    m->task = MGPU_NEW_ARRAY(arena, int, f->tasks);
    m->delta = MGPU_NEW_ARRAY(arena, int64_t, f->tasks + m->devices);
    for (int i = 0; i < f->tasks; i++)
        m->slot[i] = m->first[m->s->at[i] + 1]++;
    for (int d = 0; d < m->devices; d++)
        m->first[d + 1] += m->first[d];
    for (int i = 0; i < f->tasks; i++)
        m->task[m->first[m->s->at[i]] + m->slot[i]] = i;
}

/* The first slot of a device that starts at `when` or later. */
static int slot_after(const struct slots *m, int device, double when)
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
static void hold(struct slots *m, int device, int from, int to, int64_t bytes)
{
    int64_t *delta = m->delta + m->first[device] + device;
    delta[from] += bytes;
    delta[to] -= bytes;
}

/* Where a task's output is used last on its own device: the slot after. */
static int last_use(const struct slots *m, int position)
{
    const struct mgpu_flow *f = m->s->flow;
    const struct mgpu_flow_task *t = &f->task[position];
    int last = m->slot[position] + 1;
    for (int i = t->tensor; i < t->tensor + t->tensors; i++)
        for (int k = f->tensor[i].use; k < f->tensor[i].use + f->tensor[i].uses; k++)
            if (m->s->at[f->use[k]] == m->s->at[position] && m->slot[f->use[k]] >= last)
                last = m->slot[f->use[k]] + 1;
    return last;
}

/* Activations wait until they are sent; what arrives waits for its last user. */
static void hold_sent(struct slots *m, int *until)
{
    const struct mgpu_flow *f = m->s->flow;
    for (int i = 0; i < m->s->transfers; i++) {
        const struct mgpu_transfer *t = &m->s->transfer[i];
        if (t->tensor < 0 || t->from == t->to)
            continue;
        const struct mgpu_flow_tensor *tensor = &f->tensor[t->tensor];
        int sent = slot_after(m, t->from, t->end), from = slot_after(m, t->to, t->start), to = from;
        if (until[tensor->from] < sent)
            until[tensor->from] = sent;
        from -= from > 0;
        for (int k = tensor->use; k < tensor->use + tensor->uses; k++)
            if (m->s->at[f->use[k]] == t->to && m->slot[f->use[k]] >= to)
                to = m->slot[f->use[k]] + 1;
        hold(m, t->to, from, to, tensor->bytes);
    }
}

static void hold_tasks(struct slots *m, struct mgpu_arena *arena)
{
    const struct mgpu_flow *f = m->s->flow;
    int *until = MGPU_NEW_ARRAY(arena, int, f->tasks);
    for (int i = 0; i < f->tasks; i++)
        until[i] = last_use(m, i);
    hold_sent(m, until);
    for (int i = 0; i < f->tasks; i++) {
        hold(m, m->s->at[i], m->slot[i], until[i], f->task[i].output);
        hold(m, m->s->at[i], m->slot[i], m->slot[i] + 1, f->task[i].scratch);
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

int64_t mgpu_simulate_memory(struct mgpu_simulator *s, const struct mgpu_assignment *a)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct slots m = {.s = s, .devices = s->replica->topology->devices};
    int *stamp = MGPU_NEW_ARRAY(arena, int, m.devices);
    int64_t lacking = 0;
    fill_slots(&m, arena);
    hold_tasks(&m, arena);
    memset(s->peak, 0, sizeof *s->peak * (size_t)m.devices);
    keep(s, a, s->peak, stamp);
    for (int d = 0; d < m.devices; d++) {
        int64_t held = 0, most = 0;
        const int64_t *delta = m.delta + m.first[d] + d;
        for (int i = 0; i < m.first[d + 1] - m.first[d]; i++) {
            held += delta[i];
            most = held > most ? held : most;
        }
        s->peak[d] += most;
        if (s->peak[d] - s->replica->memory[d] > lacking)
            lacking = s->peak[d] - s->replica->memory[d];
    }
    mgpu_arena_free(arena);
    return lacking;
}
