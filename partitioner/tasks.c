#include "partitioner/tasks.h"

#include "partitioner/live.h"
#include "partitioner/profile.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/compile/storage.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mgpu_task_build {
    const struct mgpu_graph *g;
    const struct mgpu_topology *topology;
    enum mgpu_rate rate;
    const struct mgpu_profile *profile;
    struct mgpu_task_graph *t;

    /* by node id */
    bool *live;
    bool *sum; /* is_sum() */
    int *into; /* the node whose task does this one's work: itself, or the end of a sum */
    int *task; /* of that task; -1: dead */

    /* by value id */
    int64_t *bytes; /* mgpu_value_bytes() */
    int *uses;      /* by live nodes, and as a gradient or result */
    int *user;      /* first live node that uses it and is no sum, -1 */
    int *gradient;  /* parameter whose gradient it is, -1 */
    bool *stored;   /* a parameter's next value, a result */

    bool *norm; /* by edge: leads to the norm of all gradients */

    struct mgpu_names *group; /* key to its place in name[] */
    const char **name;        /* of the groups, sorted */
    int *param;               /* by the graph's parameter: number in t->param, -1: a state */
};

/* ---- Sums of gradients ----------------------------------------------------------------------- */

/* x0 + x1 + ... of equal shapes in backward: gradients that meet. In which order they meet depends
 * on the order of the nodes in the file, so a chain of them becomes one task. */
static bool is_sum(const struct mgpu_node *node)
{
    if (node->op != &mgpu_op_pointwise || node->origin.role != MGPU_BACKWARD || node->inputs < 2)
        return false;
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
    bool sum = e->count == 2 * node->inputs - 1;
    for (int k = 0; k < e->count; k++)
        sum = sum && (e->op[k].code == MGPU_X_INPUT || e->op[k].code == MGPU_X_ADD);
    for (int i = 0; i < node->inputs; i++)
        sum = sum && mgpu_value_bytes(node->input[i]) == mgpu_value_bytes(node->output[0]);
    return sum;
}

static void find_sums(struct mgpu_task_build *b)
{
    for (int n = 0; n < b->g->node_count; n++)
        b->sum[n] = is_sum(b->g->nodes[n]);
}

static void find_uses(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    memset(b->user, -1, sizeof *b->user * (size_t)g->value_count);
    memset(b->gradient, -1, sizeof *b->gradient * (size_t)g->value_count);
    for (int n = g->node_count - 1; n >= 0; n--)
        for (int i = 0; b->live[n] && i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            if (!v)
                continue;
            b->uses[v->id]++;
            if (!b->sum[n] && g->nodes[n]->origin.role != MGPU_UPDATE)
                b->user[v->id] = n;
        }
    for (int i = 0; i < g->output_count; i++) {
        b->uses[g->outputs[i]->id]++;
        b->stored[g->outputs[i]->id] = true;
    }
    for (int i = 0; i < g->parameter_count; i++) {
        const struct mgpu_parameter *p = &g->parameters[i];
        if (p->next)
            b->stored[p->next->id] = true;
        if (p->gradient) {
            b->uses[p->gradient->id]++;
            b->gradient[p->gradient->id] = i;
        }
    }
}

/* into[]: of each sum that only another sum uses, that one. */
static void merge_sums(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    for (int n = 0; n < g->node_count; n++)
        b->into[n] = n;
    for (int n = g->node_count - 1; n >= 0; n--)
        for (int i = 0; b->live[n] && b->sum[n] && i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            if (v->kind == MGPU_VALUE_RESULT && b->sum[v->producer->id] && b->uses[v->id] == 1)
                b->into[v->producer->id] = b->into[n];
        }
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Of what the node's group is called; NULL: the group of a parameter. A sum belongs to whoever goes
 * on with it: the node that made the value whose gradient it is. */
static const char *key_of(const struct mgpu_task_build *b, const struct mgpu_node *node)
{
    if (mgpu_is_update(node))
        return NULL;
    if (!b->sum[node->id])
        return node->origin.output;
    int user = b->user[node->output[0]->id];
    if (user < 0 && b->gradient[node->output[0]->id] >= 0)
        return NULL;
    return user >= 0 ? b->g->nodes[user]->origin.output : node->origin.output;
}

static void name_groups(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    struct mgpu_arena *arena = b->t->arena;
    b->name = MGPU_NEW_ARRAY(arena, const char *, g->node_count + 1);
    for (int n = 0; n < g->node_count; n++) {
        const char *key = b->live[n] && b->into[n] == n ? key_of(b, g->nodes[n]) : NULL;
        if (!key || mgpu_names_get(b->group, key))
            continue;
        b->name[b->t->groups] = mgpu_arena_string(arena, key);
        mgpu_names_set(b->group, b->name[b->t->groups], b->name);
        b->t->groups++;
    }
    qsort(b->name, (size_t)b->t->groups, sizeof *b->name, by_name);
    for (int i = 0; i < b->t->groups; i++)
        mgpu_names_set(b->group, b->name[i], &b->name[i]);
    b->t->pin = MGPU_NEW_ARRAY(arena, int, b->t->groups);
    memset(b->t->pin, -1, sizeof *b->t->pin * (size_t)b->t->groups);
}

static int group_called(const struct mgpu_task_build *b, const char *key)
{
    return (int)((const char **)mgpu_names_get(b->group, key) - b->name);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

struct named {
    const char *name;
    int index;
};

static int by_field(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* Weights, frozen weights and statistics, sorted by name. */
static void list_params(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    struct mgpu_task_graph *t = b->t;
    struct named *all = mgpu_xcalloc((size_t)g->parameter_count + 1, sizeof *all);
    for (int i = 0; i < g->parameter_count; i++) {
        b->param[i] = -1;
        if (g->parameters[i].role != MGPU_STATE)
            all[t->params++] = (struct named){g->parameters[i].name, i};
    }
    qsort(all, (size_t)t->params, sizeof *all, by_field);
    t->param = MGPU_NEW_ARRAY(t->arena, struct mgpu_shared, t->params);
    for (int i = 0; i < t->params; i++) {
        const struct mgpu_parameter *p = &g->parameters[all[i].index];
        b->param[all[i].index] = i;
        t->param[i] = (struct mgpu_shared){.name = mgpu_arena_string(t->arena, p->name),
                                           .bytes = mgpu_value_bytes(p->value),
                                           .trained = p->gradient != NULL};
    }
    free(all);
}

struct use {
    int param, group;
};

static int by_use(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    return x->param != y->param ? x->param - y->param : x->group - y->group;
}

/* The parameters that forward and backward read, as (parameter, group). */
static int list_uses(const struct mgpu_task_build *b, struct use *use)
{
    const struct mgpu_graph *g = b->g;
    int count = 0;
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        const char *key = b->live[n] ? key_of(b, node) : NULL;
        for (int i = 0; key && node->origin.role != MGPU_UPDATE && i < node->inputs; i++) {
            const struct mgpu_value *v = node->input[i];
            if (v && v->kind == MGPU_VALUE_PARAMETER && b->param[v->index] >= 0)
                use[count++] = (struct use){b->param[v->index], group_called(b, key)};
        }
    }
    return count;
}

static void find_param_groups(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    size_t most = 1;
    for (int n = 0; n < g->node_count; n++)
        most += (size_t)g->nodes[n]->inputs;
    struct use *use = mgpu_xcalloc(most, sizeof *use);
    int count = list_uses(b, use);
    qsort(use, (size_t)count, sizeof *use, by_use);
    int *group = MGPU_NEW_ARRAY(b->t->arena, int, count);
    for (int i = 0; i < count; i++) {
        struct mgpu_shared *p = &b->t->param[use[i].param];
        if (i && !by_use(&use[i - 1], &use[i]))
            continue;
        *group = use[i].group;
        p->group = p->groups++ ? p->group : group;
        group++;
    }
    free(use);
}

static void add_states(struct mgpu_task_build *b, const struct mgpu_node *update)
{
    int p = b->param[update->input[0]->index];
    for (int i = 1; i < update->inputs; i++) {
        const struct mgpu_value *v = update->input[i];
        if (v && v->kind == MGPU_VALUE_PARAMETER && b->param[v->index] < 0)
            b->t->param[p].state_bytes += mgpu_value_bytes(v);
    }
}

/* An update that makes the gradient itself, of its factors (runtime/compile/early.c). */
static void add_product(struct mgpu_task_build *b, const struct mgpu_node *update)
{
    struct mgpu_shared *p = &b->t->param[b->param[update->input[MGPU_UPDATE_WEIGHT]->index]];
    p->trained = true;
    p->product_bytes = p->bytes;
    p->factor_bytes = mgpu_value_bytes(update->input[MGPU_UPDATE_GRADIENT]) +
                      mgpu_value_bytes(update->input[MGPU_UPDATE_FACTOR]);
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

static double time_of(const struct mgpu_task_build *b, const struct mgpu_device_kind *kind,
                      const struct mgpu_node *node)
{
    double ms = b->profile ? mgpu_profile_ms(b->profile, kind, node) : -1;
    return ms >= 0 ? ms : mgpu_cost_ms(kind, node, b->rate);
}

static void add_times(const struct mgpu_task_build *b, struct mgpu_task *task,
                      const struct mgpu_node *node)
{
    if (mgpu_is_view(node))
        return;
    for (int k = 0; k < b->topology->kinds; k++) {
        const struct mgpu_device_kind *kind = &b->topology->kind[k];
        struct mgpu_device_kind lone = *kind;
        lone.busy = task->beside && lone.busy ? 1 : lone.busy;
        double alone = time_of(b, &lone, node);
        double measured = b->profile ? mgpu_profile_ms(b->profile, kind, node) : -1;
        double beside = measured >= 0 ? measured : alone;
        task->ms[k] += task->beside ? fmin(alone, beside) : alone;
        if (task->beside)
            task->beside[k] += beside;
    }
}

/* Stored or handed out: not an activation. */
static bool is_stored(const struct mgpu_task_build *b, const struct mgpu_value *v)
{
    return b->gradient[v->id] >= 0 || b->stored[v->id];
}

/* Of an activation. Those of different lifetimes leave gaps between them: one part in so many. */
static int64_t kept_bytes(int64_t bytes)
{
    enum { GAPS = 32 };
    return bytes + bytes / GAPS;
}

/* A view counts as a copy: its memory lives on as long as the view's users. */
static int64_t output_bytes(const struct mgpu_task_build *b, const struct mgpu_node *node)
{
    int64_t bytes = 0;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && !is_stored(b, node->output[i]))
            bytes += kept_bytes(b->bytes[node->output[i]->id]);
    return bytes;
}

/* Fast kernels of a CPU may reorder every operand of a product, and keep tiles; the record speaks
 * of the plain algorithm only. */
static int64_t scratch_bytes(const struct mgpu_task_build *b, const struct mgpu_node *node)
{
    enum { TILES = 16 << 10 };
    if (mgpu_is_view(node))
        return 0;
    if (!mgpu_topology_has_cpus(b->topology))
        return node->op->workspace(node);
    enum mgpu_class class = mgpu_class_of(node->op);
    bool product = class == MGPU_CLASS_GEMM || class == MGPU_CLASS_CONV;
    return TILES + node->op->workspace(node) + (product ? (int64_t)mgpu_operand_bytes(node) : 0);
}

static const char *copied(struct mgpu_task_build *b, const char *text)
{
    return mgpu_arena_string(b->t->arena, text ? text : "");
}

/* The parameter that an update or the sum of a weight's gradients is for. */
static int param_of(const struct mgpu_task_build *b, const struct mgpu_node *node)
{
    if (mgpu_is_update(node))
        return b->param[node->input[0]->index];
    return b->param[b->gradient[node->output[0]->id]];
}

static void place_task(struct mgpu_task_build *b, struct mgpu_task *task,
                       const struct mgpu_node *node)
{
    const char *key = key_of(b, node);
    task->param = -1;
    if (key) {
        task->group = group_called(b, key);
        task->key = b->name[task->group];
        return;
    }
    int p = param_of(b, node);
    bool one = b->t->param[p].groups == 1;
    task->group = one ? b->t->param[p].group[0] : -1;
    task->param = one ? -1 : p;
    task->key = one ? b->name[task->group] : b->t->param[p].name;
}

static int phase_of(const struct mgpu_node *node)
{
    return node->origin.role == MGPU_UPDATE    ? MGPU_PHASE_UPDATE
           : node->origin.role == MGPU_FORWARD ? MGPU_PHASE_FORWARD
                                               : MGPU_PHASE_BACKWARD;
}

static void add_task(struct mgpu_task_build *b, int n)
{
    const struct mgpu_node *node = b->g->nodes[n];
    struct mgpu_task *task = &b->t->task[b->task[n]];
    place_task(b, task, node);
    task->phase = phase_of(node);
    task->again = node->origin.role == MGPU_RECOMPUTE;
    task->name = copied(b, node->origin.name);
    task->type = copied(b, node->origin.type);
    task->op_class = mgpu_class_of(node->op);
    if (mgpu_is_update(node))
        add_states(b, node);
    if (node->op == &mgpu_op_product_update)
        add_product(b, node);
}

static void add_tasks(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    struct mgpu_task_graph *t = b->t;
    for (int n = 0; n < g->node_count; n++)
        if (b->live[n] && b->into[n] == n)
            b->task[n] = t->tasks++;
    t->task = MGPU_NEW_ARRAY(t->arena, struct mgpu_task, t->tasks);
    for (int n = 0; n < g->node_count; n++) {
        b->task[n] = b->live[n] ? b->task[b->into[n]] : -1;
        if (b->live[n] && b->into[n] == n)
            add_task(b, n);
    }
}

/* ---- Edges ----------------------------------------------------------------------------------- */

static void add_edges(struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    struct mgpu_task_graph *t = b->t;
    size_t most = 1;
    for (int n = 0; n < g->node_count; n++)
        most += b->live[n] ? (size_t)g->nodes[n]->inputs : 0;
    t->edge = MGPU_NEW_ARRAY(t->arena, struct mgpu_edge, most);
    b->norm = MGPU_NEW_ARRAY(t->arena, bool, most);
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; b->live[n] && i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            if (!v || v->kind != MGPU_VALUE_RESULT || b->task[v->producer->id] == b->task[n])
                continue;
            b->norm[t->edges] = g->nodes[n]->op == &mgpu_op_global_norm;
            t->edge[t->edges++] = (struct mgpu_edge){
                .from = b->task[v->producer->id], .to = b->task[n], .value = v->id};
        }
}

/* ---- Costs, at the graph's batch ------------------------------------------------------------- */

static void allocate_times(const struct mgpu_task_build *b)
{
    struct mgpu_task_graph *t = b->t;
    size_t kinds = (size_t)b->topology->kinds, all = (size_t)t->tasks * kinds;
    double *ms = MGPU_NEW_ARRAY(t->arena, double, 2 * all);
    for (int k = 0; k < b->topology->kinds; k++)
        t->busy = b->topology->kind[k].in_turns ? b->topology->kind[k].busy : t->busy;
    for (size_t i = 0; i < (size_t)t->tasks; i++) {
        t->task[i].ms = ms + i * kinds;
        t->task[i].beside = t->busy ? ms + all + i * kinds : NULL;
    }
}

static void cost_tasks(const struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    allocate_times(b);
    for (int n = 0; n < g->node_count; n++) {
        if (!b->live[n])
            continue;
        struct mgpu_task *task = &b->t->task[b->task[n]];
        add_times(b, task, g->nodes[n]);
        if (b->into[n] != n)
            continue;
        task->output = output_bytes(b, g->nodes[n]);
        task->scratch = scratch_bytes(b, g->nodes[n]);
    }
}

/* Of the norm of all gradients each device sums its own part. */
static void cost_edges(const struct mgpu_task_build *b)
{
    for (int i = 0; i < b->t->edges; i++) {
        struct mgpu_edge *e = &b->t->edge[i];
        e->bytes = b->norm[i] ? (int64_t)sizeof(double) : b->bytes[e->value];
        e->held = is_stored(b, b->g->values[e->value]) ? 0 : kept_bytes(b->bytes[e->value]);
    }
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* What a step does besides its tasks. */
static void add_host(const struct mgpu_task_build *b)
{
    const struct mgpu_graph *g = b->g;
    int64_t gradients = 0;
    for (int i = 0; i < g->input_count; i++)
        b->t->input_bytes += mgpu_value_bytes(g->inputs[i]);
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].role == MGPU_STATISTIC && g->parameters[i].next)
            b->t->rest_bytes += mgpu_value_bytes(g->parameters[i].value);
    for (int i = 0; i < b->t->params; i++)
        gradients +=
            b->t->param[i].trained ? b->t->param[i].bytes - b->t->param[i].product_bytes : 0;
    b->t->host_ms = MGPU_NEW_ARRAY(b->t->arena, double, b->topology->kinds);
    for (int k = 0; k < b->topology->kinds; k++)
        b->t->host_ms[k] =
            mgpu_host_ms(b->profile, &b->topology->kind[k], b->t->input_bytes, gradients);
}

static void allocate(struct mgpu_task_build *b, struct mgpu_arena *arena)
{
    size_t nodes = (size_t)b->g->node_count + 1, values = (size_t)b->g->value_count + 1;
    b->live = MGPU_NEW_ARRAY(arena, bool, nodes);
    b->sum = MGPU_NEW_ARRAY(arena, bool, nodes);
    b->into = MGPU_NEW_ARRAY(arena, int, nodes);
    b->task = MGPU_NEW_ARRAY(arena, int, nodes);
    b->bytes = MGPU_NEW_ARRAY(arena, int64_t, values);
    b->uses = MGPU_NEW_ARRAY(arena, int, values);
    b->user = MGPU_NEW_ARRAY(arena, int, values);
    b->gradient = MGPU_NEW_ARRAY(arena, int, values);
    b->stored = MGPU_NEW_ARRAY(arena, bool, values);
    b->param = MGPU_NEW_ARRAY(arena, int, (size_t)b->g->parameter_count + 1);
    b->group = mgpu_names_new(arena);
}

static void cost(const struct mgpu_task_build *b)
{
    for (int i = 0; i < b->g->value_count; i++)
        b->bytes[i] = mgpu_value_bytes(b->g->values[i]);
    cost_tasks(b);
    cost_edges(b);
    add_host(b);
}

int mgpu_tasks_build(struct mgpu_task_graph **out, const struct mgpu_graph *whole,
                     const struct mgpu_topology *topology, enum mgpu_rate rate,
                     const struct mgpu_profile *profile)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_task_graph *t = MGPU_NEW(arena, struct mgpu_task_graph);
    struct mgpu_task_build *b = MGPU_NEW(arena, struct mgpu_task_build);
    *b = (struct mgpu_task_build){
        .g = whole, .topology = topology, .rate = rate, .profile = profile, .t = t};
    *t = (struct mgpu_task_graph){.arena = arena, .build = b, .batch = whole->batch};
    allocate(b, arena);
    mgpu_find_live(whole, b->live);
    find_sums(b);
    find_uses(b);
    merge_sums(b);
    name_groups(b);
    list_params(b);
    find_param_groups(b);
    add_tasks(b);
    add_edges(b);
    cost(b);
    *out = t;
    return 0;
}

bool mgpu_tasks_same(const struct mgpu_task_graph *tasks)
{
    const struct mgpu_graph *g = tasks->build->g;
    for (int n = 0; n < g->node_count; n++)
        if (is_sum(g->nodes[n]) != tasks->build->sum[n])
            return false;
    return true;
}

void mgpu_tasks_cost(struct mgpu_task_graph **out, const struct mgpu_task_graph *from,
                     const struct mgpu_topology *topology)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_task_graph *t = mgpu_arena_copy(arena, from, sizeof *from);
    struct mgpu_task_build b = *from->build;
    b.topology = topology;
    b.t = t;
    t->arena = arena;
    t->build = NULL;
    t->batch = b.g->batch;
    t->task = mgpu_arena_copy(arena, from->task, sizeof *from->task * (size_t)from->tasks);
    t->edge = mgpu_arena_copy(arena, from->edge, sizeof *from->edge * (size_t)from->edges);
    t->busy = 0;
    t->input_bytes = t->rest_bytes = 0;
    cost(&b);
    *out = t;
}

void mgpu_task_graph_free(struct mgpu_task_graph *tasks)
{
    if (tasks)
        mgpu_arena_free(tasks->arena);
}
