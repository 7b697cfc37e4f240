/* From the search's numbering (groups, tasks, devices) to the plan's (nodes, places). */
#include "partitioner/planner_private.h"

#include "runtime/base/status.h"
#include "runtime/compile/plan.h"

#include <stdlib.h>
#include <string.h>

/* Devices of the topology as places: those of one replica, then what pins and weights_on use
 * besides. In the plan, such a device is listed once a replica: it serves each with a rank of its
 * own, that with the weights also where it computes for one of them. */
struct places {
    int count;
    int *device;   /* by place: of the topology, in the first replica */
    int *place_of; /* by device of the topology; -1 */
    bool *extra;   /* by place */
    int weights;   /* the place that owns all; -1: each parameter's owner says */
};

struct make {
    struct mgpu_planner *p;
    const struct mgpu_search_result *result;
    const struct mgpu_candidate *chosen;
    struct mgpu_plan_file *plan;
    struct places places;
    int *device; /* by rank of the plan, then those without work: of the topology */
};

/* ---- Places ---------------------------------------------------------------------------------- */

static void add_place(struct places *s, int device, bool extra)
{
    if (s->place_of[device] < 0)
        s->place_of[device] = s->count;
    s->extra[s->count] = extra;
    s->device[s->count++] = device;
}

static void make_places(struct make *m)
{
    const struct mgpu_candidate *c = m->chosen;
    struct mgpu_arena *arena = m->plan->arena;
    struct places *s = &m->places;
    int devices = m->p->planned->topology->devices;
    s->device = MGPU_NEW_ARRAY(arena, int, devices + 1);
    s->place_of = MGPU_NEW_ARRAY(arena, int, devices);
    s->extra = MGPU_NEW_ARRAY(arena, bool, devices + 1);
    s->weights = -1;
    memset(s->place_of, -1, sizeof *s->place_of * (size_t)devices);
    bool *used = MGPU_NEW_ARRAY(arena, bool, devices);
    for (int g = 0; g < c->graph->groups; g++)
        used[c->device[g]] = true;
    for (int i = 0; i < c->graph->params; i++)
        if (c->owner[i] >= 0)
            used[c->owner[i]] = true;
    for (int d = 0; d < (c->replicas == 1 ? devices : c->ranks); d++)
        if (used[d] || c->replicas > 1)
            add_place(s, d, false);
    for (int g = 0; g < c->graph->groups; g++)
        if (s->place_of[c->device[g]] < 0)
            add_place(s, c->device[g], true);
    if (c->replicas > 1 && m->p->weights_on >= 0) {
        s->weights = s->count;
        add_place(s, m->p->weights_on, true);
        return;
    }
    for (int i = 0; i < c->graph->params; i++)
        if (c->owner[i] >= 0 && s->place_of[c->owner[i]] < 0)
            add_place(s, c->owner[i], true);
}

/* The topology's device of a place in a replica. */
static int device_at(const struct make *m, int replica, int place)
{
    const struct places *s = &m->places;
    return s->extra[place] ? s->device[place] : replica * m->chosen->ranks + s->device[place];
}

/* All devices are listed, those that have nothing to do too, unless some stand there for each
 * replica. */
static void list_devices(struct make *m)
{
    const struct mgpu_topology *t = m->p->planned->topology;
    int used = m->chosen->replicas * m->places.count, n = 0;
    int most = used > t->devices ? used : t->devices;
    const char **name = MGPU_NEW_ARRAY(m->plan->arena, const char *, most);
    int *device = m->device = MGPU_NEW_ARRAY(m->plan->arena, int, most);
    for (int r = 0; r < m->chosen->replicas; r++)
        for (int p = 0; p < m->places.count; p++)
            device[n++] = device_at(m, r, p);
    if (m->chosen->replicas == 1) {
        for (int d = 0; d < t->devices; d++)
            if (m->places.place_of[d] < 0)
                device[n++] = d;
    } else {
        for (int d = used; m->places.count == m->chosen->ranks && d < t->devices; d++)
            device[n++] = d;
    }
    for (int i = 0; i < n; i++)
        name[i] = t->device[device[i]].name;
    mgpu_plan_file_devices(m->plan, n, name);
    const int64_t *rank = mgpu_planner_rank_memory(m->p, m->chosen);
    for (int i = 0; i < n; i++)
        m->plan->predicted.memory_bytes[i] =
            rank && i < used ? rank[i] : m->chosen->memory[device[i]];
    m->plan->replicas = m->chosen->replicas;
    m->plan->places = m->places.count;
}

/* ---- The plan -------------------------------------------------------------------------------- */

static void place_nodes(struct make *m)
{
    const struct mgpu_outline *o = m->p->planned->outline;
    const struct mgpu_task_graph *g = m->chosen->graph;
    struct mgpu_plan_file *plan = m->plan;
    /* of what is not computed here any more (the parts of an attention) */
    int rest = g->groups ? m->places.place_of[m->chosen->device[0]] : 0;
    plan->nodes = o->nodes;
    plan->node = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_node, o->nodes);
    for (int i = 0; i < o->nodes; i++)
        plan->node[i] =
            (struct mgpu_plan_node){.output = mgpu_arena_string(plan->arena, o->node[i].output),
                                    .name = mgpu_arena_string(plan->arena, o->node[i].name),
                                    .type = mgpu_arena_string(plan->arena, o->node[i].type),
                                    .place = rest};
    bool *placed = MGPU_NEW_ARRAY(plan->arena, bool, o->nodes);
    bool *needed = MGPU_NEW_ARRAY(plan->arena, bool, o->nodes);
    for (int i = 0; i < g->tasks; i++) {
        const struct mgpu_task *t = &g->task[i];
        int node = t->key ? mgpu_outline_find(o, t->key) : -1;
        if (node >= 0 && t->group >= 0) {
            plan->node[node].place = m->places.place_of[m->chosen->device[t->group]];
            placed[node] = true;
        }
    }
    /* what became a part of others is where the first of them is, what none needs where it comes
     * from */
    for (int i = o->edges - 1; i >= 0; i--) {
        needed[o->edge[i].from] = true;
        if (!placed[o->edge[i].from])
            plan->node[o->edge[i].from].place = plan->node[o->edge[i].to].place;
    }
    for (int i = 0; i < o->edges; i++)
        if (!placed[o->edge[i].to] && !needed[o->edge[i].to])
            plan->node[o->edge[i].to].place = plan->node[o->edge[i].from].place;
}

static void set_owners(struct make *m)
{
    const struct mgpu_task_graph *g = m->chosen->graph;
    struct mgpu_plan_file *plan = m->plan;
    plan->owner = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_owner, g->params);
    for (int i = 0; i < g->params; i++)
        if (g->param[i].trained && m->chosen->owner[i] >= 0)
            plan->owner[plan->owners++] = (struct mgpu_plan_owner){
                .parameter = mgpu_arena_string(plan->arena, g->param[i].name),
                .place = m->places.weights >= 0 ? m->places.weights
                                                : m->places.place_of[m->chosen->owner[i]]};
}

static void set_rewrites(struct make *m)
{
    struct mgpu_plan_file *plan = m->plan;
    const struct mgpu_plan *variant = m->p->variant[m->chosen->variant];
    plan->rewrites = variant ? variant->rewrites : 0;
    plan->rewrite = MGPU_NEW_ARRAY(plan->arena, struct mgpu_plan_rewrite, plan->rewrites);
    for (int i = 0; i < plan->rewrites; i++) {
        const struct mgpu_rewrite *from = &variant->rewrite[i];
        plan->rewrite[i] = (struct mgpu_plan_rewrite){
            .kind = mgpu_arena_string(plan->arena, from->kind),
            .outputs = from->outputs,
            .output = MGPU_NEW_ARRAY(plan->arena, const char *, from->outputs)};
        for (int k = 0; k < from->outputs; k++)
            plan->rewrite[i].output[k] = mgpu_arena_string(plan->arena, from->output[k]);
    }
}

static void make_plan(struct make *m)
{
    make_places(m);
    list_devices(m);
    place_nodes(m);
    set_owners(m);
    set_rewrites(m);
    m->plan->bucket_bytes = m->chosen->replicas > 1 ? m->chosen->bucket_bytes : 0;
}

struct mgpu_plan_file *mgpu_planner_plan(struct mgpu_planner *planner,
                                         const struct mgpu_candidate *candidate, int **device)
{
    struct make m = {.p = planner, .chosen = candidate, .plan = mgpu_plan_file_new()};
    make_plan(&m);
    *device = m.device;
    return m.plan;
}

static void set_predicted(struct make *m)
{
    const struct mgpu_candidate *c = m->chosen;
    struct mgpu_predicted *p = &m->plan->predicted;
    p->step_ms = c->step_ms;
    p->speedup = c->speedup;
    p->single_ms = c->step_ms * c->speedup;
    p->lower_bound_ms = m->result->lower_bound_ms;
    p->parallelism = m->result->parallelism;
    p->bytes_moved = c->bytes_moved;
    p->resident_bytes = mgpu_planner_resident(m->p, c);
}

static int64_t most_memory(const struct make *m, const struct mgpu_candidate *c)
{
    int64_t most = 0;
    for (int d = 0; c->memory && d < m->p->planned->topology->devices; d++)
        most = c->memory[d] > most ? c->memory[d] : most;
    return most;
}

/* The devices that have something to do, in all and of a replica. What was not tried would have all
 * of those that it may have. */
static void count_devices(const struct make *m, const struct mgpu_candidate *c,
                          struct mgpu_alternative *a)
{
    int used = 0;
    for (int d = 0; c->memory && d < m->p->planned->topology->devices; d++)
        used += c->memory[d] > 0;
    a->devices = used ? used : c->replicas * c->ranks;
    bool besides =
        a->devices % c->replicas != 0; /* of all replicas: the one that has the weights */
    a->places = besides ? c->ranks : a->devices / c->replicas;
}

static void list_alternatives(struct make *m)
{
    const struct mgpu_search_result *r = m->result;
    struct mgpu_plan_file *plan = m->plan;
    plan->alternatives = r->candidates;
    plan->alternative = MGPU_NEW_ARRAY(plan->arena, struct mgpu_alternative, r->candidates);
    for (int i = 0; i < r->candidates; i++) {
        const struct mgpu_candidate *c = &r->candidate[i];
        struct mgpu_alternative *a = &plan->alternative[i];
        *a = (struct mgpu_alternative){.strategy = mgpu_tactic_name(c->strategy),
                                       .replicas = c->replicas,
                                       .feasible = c->tried && c->feasible,
                                       .recompute = m->p->options->recompute ||
                                                    c->variant == MGPU_VARIANT_THRIFTY,
                                       .why = mgpu_arena_string(plan->arena, c->why ? c->why : "")};
        count_devices(m, c, a);
        if (!a->feasible)
            continue;
        a->step_ms = c->step_ms;
        a->speedup = c->speedup;
        a->memory_bytes = most_memory(m, c);
        a->bytes_moved = c->bytes_moved;
    }
}

void mgpu_planner_describe(const struct mgpu_planner *p, const struct mgpu_candidate *c,
                           struct mgpu_plan_file *plan)
{
    const char *slash = strrchr(p->model->path, '/');
    plan->model_file = mgpu_arena_string(plan->arena, slash ? slash + 1 : p->model->path);
    plan->sha256 = mgpu_arena_string(plan->arena, p->sha);
    plan->batch = p->options->batch;
    plan->strategy = mgpu_tactic_name(c->strategy);
}

static void name_profile(struct make *m)
{
    char hash[MGPU_PROFILE_HASH];
    if (!m->p->profile)
        return;
    mgpu_profile_hash(m->p->profile, hash);
    m->plan->profile = mgpu_arena_string(m->plan->arena, hash);
}

/* ---- The timeline ---------------------------------------------------------------------------- */

static const char *task_label(struct mgpu_arena *arena, const struct mgpu_task *t)
{
    const char *type = t->type && *t->type ? t->type : "task";
    return t->key && *t->key ? mgpu_arena_format(arena, "%s %s", type, t->key) : type;
}

static void span_of_task(const struct make *m, const struct mgpu_event *e, struct mgpu_span *s)
{
    static const char *const phases[] = {"forward", "backward", "update"};
    const struct mgpu_task *t = &m->chosen->graph->task[e->task];
    s->what = phases[t->phase];
    s->key = t->key ? mgpu_arena_string(m->p->planned->arena, t->key) : "";
    s->label = task_label(m->p->planned->arena, t);
}

static void span_of_transfer(const struct make *m, const struct mgpu_event *e, struct mgpu_span *s)
{
    struct mgpu_arena *arena = m->p->planned->arena;
    const struct mgpu_task_graph *g = m->chosen->graph;
    const char *peer = m->p->planned->topology->device[e->peer].name;
    s->lane = MGPU_LANE_COMMUNICATION;
    s->key = "";
    if (e->activity >= MGPU_ACTIVITY_SUM) {
        s->what = s->label = e->activity == MGPU_ACTIVITY_GATHER ? "all-gather" : "all-reduce";
        return;
    }
    s->what = "send";
    if (e->param >= 0) {
        s->key = mgpu_arena_string(arena, g->param[e->param].name);
        s->label = mgpu_arena_format(arena, "%s to %s", s->key, peer);
    } else {
        s->key = e->task >= 0 && g->task[e->task].key
                     ? mgpu_arena_string(arena, g->task[e->task].key)
                     : "";
        s->label = mgpu_arena_format(arena, "%s to %s", s->key, peer);
    }
}

static void list_spans(struct make *m)
{
    struct mgpu_planned *planned = m->p->planned;
    const struct mgpu_candidate *c = m->chosen;
    struct mgpu_span *span = MGPU_NEW_ARRAY(planned->arena, struct mgpu_span, c->events);
    int n = 0;
    for (int i = 0; i < c->events; i++) {
        const struct mgpu_event *e = &c->event[i];
        if (m->places.place_of[e->device] < 0 || e->end_ms <= e->start_ms)
            continue;
        struct mgpu_span *s = &span[n++];
        *s = (struct mgpu_span){.device = m->places.place_of[e->device],
                                .start_ms = e->start_ms,
                                .ms = e->end_ms - e->start_ms,
                                .bytes = e->bytes};
        if (e->activity == MGPU_ACTIVITY_TASK)
            span_of_task(m, e, s);
        else
            span_of_transfer(m, e, s);
    }
    planned->report.span = span;
    planned->report.spans = n;
}

/* Whose numbers GPUs are predicted with. */
static const char *costs_text(const struct mgpu_planner *p)
{
    const struct mgpu_topology *t = p->planned->topology;
    const char *text = "";
    for (int k = 0; k < t->kinds; k++)
        if (!t->kind[k].threads)
            text = mgpu_arena_format(p->planned->arena, "%s%s %s (%.4g TFLOP/s in f32, %.4g GB/s)",
                                     text, *text ? "," : "GPUs are predicted with the numbers of",
                                     t->kind[k].name, t->kind[k].flops[MGPU_RATE_F32] * 1e-12,
                                     t->kind[k].bytes * 1e-9);
    return text;
}

/* What one device with all weights saves the others, and what it costs. */
static const char *weights_text(const struct mgpu_planner *p, const struct mgpu_candidate *c)
{
    char states[MGPU_UNIT_TEXT], moved[MGPU_UNIT_TEXT];
    int64_t bytes = 0;
    if (p->weights_on < 0)
        return "";
    for (int i = 0; i < c->graph->params; i++)
        bytes += c->graph->param[i].state_bytes;
    return mgpu_arena_format(
        p->planned->arena,
        "weights on %s: %s of optimizer state are only there, not on each device "
        "that computes; %s are moved a step",
        p->label[p->weights_on], mgpu_bytes_text(states, bytes),
        mgpu_bytes_text(moved, c->bytes_moved));
}

void mgpu_planner_report(struct mgpu_planner *p, const struct mgpu_search_result *result)
{
    struct make m = {
        .p = p, .result = result, .chosen = &result->candidate[0], .plan = mgpu_plan_file_new()};
    struct mgpu_planned *planned = p->planned;
    planned->plan = m.plan;
    mgpu_planner_describe(p, m.chosen, m.plan);
    name_profile(&m);
    make_plan(&m);
    set_predicted(&m);
    list_alternatives(&m);
    list_spans(&m);
    planned->report.plan = planned->plan;
    planned->report.outline = planned->outline;
    planned->report.topology = planned->topology->text;
    planned->report.training = mgpu_arena_string(planned->arena, p->model->training);
    planned->report.placement =
        mgpu_arena_string(planned->arena, result->placement ? result->placement : "");
    planned->report.costs = costs_text(p);
    planned->report.weights = weights_text(p, m.chosen);
}
