/* Devices that cannot train in one step together (runtime/executor/devices.h): those that can are a
 * team, each team is planned by itself, and the fastest plan is taken. */
#include "partitioner/planner_private.h"
#include "runtime/base/status.h"
#include "runtime/executor/devices.h"

#include <stdlib.h>
#include <string.h>

struct team {
    int count, *device;           /* of the topology */
    const char *names;            /* "cuda:0,cuda:0" */
    struct mgpu_planned *planned; /* NULL: not planned */
    const char *why;              /* it was not, if that is to be said */
};

struct teams {
    const struct mgpu_planner_model *model;
    const struct mgpu_planner_options *options;
    const struct mgpu_topology *topology;
    struct mgpu_arena *arena;
    const char **label;
    int count, best; /* best: -1: none is planned */
    struct team *team;
};

/* ---- Who can be together --------------------------------------------------------------------- */

static int check_beside(const struct mgpu_topology *t, int a, int b)
{
    const struct mgpu_topology_device *x = &t->device[a], *y = &t->device[b];
    return mgpu_device_check_beside(x->name, t->kind[x->kind].threads > 0, y->name,
                                    t->kind[y->kind].threads > 0);
}

/* Why a run cannot take all of them: of the first two that are apart. */
static int check_all(const struct teams *s)
{
    return s->count > 1 ? check_beside(s->topology, s->team[1].device[0], s->team[0].device[0]) : 0;
}

static void join(struct teams *s, int device)
{
    int k = 0;
    while (k < s->count && check_beside(s->topology, device, s->team[k].device[0]) < 0)
        k++;
    struct team *team = &s->team[k];
    const char *name = s->topology->device[device].name;
    if (k == s->count) {
        s->count++;
        team->names = name;
        team->device = MGPU_NEW_ARRAY(s->arena, int, s->topology->devices);
    } else {
        team->names = mgpu_arena_format(s->arena, "%s,%s", team->names, name);
    }
    team->device[team->count++] = device;
}

static void make_teams(struct teams *s)
{
    const struct mgpu_topology *t = s->topology;
    const char **name = MGPU_NEW_ARRAY(s->arena, const char *, t->devices);
    s->label = MGPU_NEW_ARRAY(s->arena, const char *, t->devices);
    s->team = MGPU_NEW_ARRAY(s->arena, struct team, t->devices);
    for (int i = 0; i < t->devices; i++)
        name[i] = t->device[i].name;
    for (int i = 0; i < t->devices; i++) {
        s->label[i] = mgpu_device_label(s->arena, name, i);
        join(s, i);
    }
}

/* ---- What a person puts on a device ---------------------------------------------------------- */

/* Whether the device is one of another team. */
static bool is_elsewhere(const struct teams *s, const struct team *team, const char *label)
{
    for (int i = 0; i < team->count; i++)
        if (!strcmp(s->label[team->device[i]], label))
            return false;
    for (int i = 0; i < s->topology->devices; i++)
        if (!strcmp(s->label[i], label))
            return true;
    return false;
}

/* "--weights-on cpu:0", which is not in this team; NULL. */
static const char *wants_another(const struct teams *s, const struct team *team)
{
    const struct mgpu_planner_options *o = s->options;
    const char *option = o->pin_option ? o->pin_option : "--pin";
    for (int i = 0; o->pin && o->pin[i]; i++) {
        const char *is = strrchr(o->pin[i], '=');
        if (is && is_elsewhere(s, team, is + 1))
            return mgpu_arena_format(s->arena, "%s %s", option, o->pin[i]);
    }
    if (o->merge && is_elsewhere(s, team, o->merge))
        return mgpu_arena_format(s->arena, "--merge %s", o->merge);
    if (o->weights_on && is_elsewhere(s, team, o->weights_on))
        return mgpu_arena_format(s->arena, "--weights-on %s", o->weights_on);
    return NULL;
}

/* ---- Planning -------------------------------------------------------------------------------- */

static bool same_devices(const struct teams *s, const struct team *a, const struct team *b)
{
    bool same = a->count == b->count;
    for (int i = 0; i < a->count && same; i++) {
        const struct mgpu_topology_device *x = &s->topology->device[a->device[i]];
        const struct mgpu_topology_device *y = &s->topology->device[b->device[i]];
        same = x->kind == y->kind && x->memory == y->memory;
    }
    return same;
}

/* A GPU like one that was planned for would have the same plan. */
static bool is_planned(const struct teams *s, const struct team *team)
{
    for (const struct team *other = s->team; other < team; other++)
        if (other->planned && same_devices(s, other, team))
            return true;
    return false;
}

static void leave_out(struct teams *s, struct team *team, const char *option)
{
    check_all(s);
    team->why =
        mgpu_arena_format(s->arena, "%s is not on %s; %s", option, team->names, mgpu_error());
    mgpu_note("%s is left out: %s", team->names, team->why);
}

static int plan_team(struct teams *s, struct team *team)
{
    struct mgpu_planner_options o = *s->options;
    const char *option = wants_another(s, team);
    if (option)
        leave_out(s, team, option);
    if (option || is_planned(s, team))
        return 0;
    o.devices = team->names;
    int rc = mgpu_planner_run_team(&team->planned, s->model, &o);
    if (rc == MGPU_EUSAGE)
        return rc;
    if (rc < 0)
        team->why = mgpu_arena_string(s->arena, mgpu_error());
    return 0;
}

static int plan_all(struct teams *s)
{
    s->best = -1;
    for (int k = 0; k < s->count; k++) {
        struct team *team = &s->team[k];
        MGPU_TRY(plan_team(s, team));
        if (team->planned && (s->best < 0 || team->planned->plan->predicted.step_ms <
                                                 s->team[s->best].planned->plan->predicted.step_ms))
            s->best = k;
    }
    return 0;
}

static int fail_all(const struct teams *s)
{
    int rc = check_all(s);
    const char *together = mgpu_arena_string(s->arena, mgpu_error());
    for (int k = 0; k < s->count; k++)
        if (s->team[k].why && !wants_another(s, &s->team[k]))
            return mgpu_fail(MGPU_EINVALID, "%s; on %s alone: %s", together, s->team[k].names,
                             s->team[k].why);
    return rc;
}

/* ---- The answer ------------------------------------------------------------------------------ */

static struct mgpu_alternative *add(struct mgpu_plan_file *plan)
{
    struct mgpu_alternative *list =
        MGPU_NEW_ARRAY(plan->arena, struct mgpu_alternative, plan->alternatives + 1);
    memcpy(list, plan->alternative, sizeof *list * (size_t)plan->alternatives);
    plan->alternative = list;
    return &list[plan->alternatives++];
}

static void add_team(struct mgpu_plan_file *plan, const struct team *team)
{
    struct mgpu_alternative *a = add(plan);
    *a = (struct mgpu_alternative){.strategy = "single",
                                   .replicas = 1,
                                   .places = team->count,
                                   .devices = team->count,
                                   .why =
                                       mgpu_arena_string(plan->arena, team->why ? team->why : "")};
    if (!team->planned)
        return;
    *a = team->planned->plan->alternative[0];
    a->speedup = plan->predicted.single_ms / a->step_ms;
    a->why = mgpu_arena_format(plan->arena, "on %s it takes %.3g times as long", team->names,
                               a->step_ms / plan->predicted.step_ms);
}

/* All of them at once, which the runtime refuses. */
static void add_all(const struct teams *s, struct mgpu_plan_file *plan)
{
    check_all(s);
    *add(plan) = (struct mgpu_alternative){.strategy = "data",
                                           .replicas = s->topology->devices,
                                           .places = 1,
                                           .devices = s->topology->devices,
                                           .why = mgpu_arena_string(plan->arena, mgpu_error())};
}

static struct mgpu_planned *take_best(struct teams *s)
{
    struct team *best = &s->team[s->best];
    struct mgpu_planned *planned = best->planned;
    struct mgpu_plan_file *plan = planned->plan;
    for (int k = 0; k < s->count; k++)
        if (k != s->best && (s->team[k].planned || s->team[k].why))
            add_team(plan, &s->team[k]);
    add_all(s, plan);
    plan->alternative[0].why = mgpu_arena_format(
        plan->arena, "%s: the fastest of those that can train together", best->names);
    planned->report.topology = mgpu_arena_string(planned->arena, s->topology->text);
    best->planned = NULL;
    return planned;
}

static int run_teams(struct mgpu_planned **out, struct teams *s)
{
    MGPU_TRY(plan_all(s));
    if (s->best < 0)
        return fail_all(s);
    *out = take_best(s);
    if (s->model->devices)
        s->model->devices(s->model->context, !mgpu_topology_all_cpus((*out)->topology));
    return 0;
}

int mgpu_planner_run(struct mgpu_planned **out, const struct mgpu_planner_model *model,
                     const struct mgpu_planner_options *options)
{
    struct mgpu_topology *t;
    struct teams s = {.model = model, .options = options};
    *out = NULL;
    MGPU_TRY(mgpu_topology_parse(&t, options->devices));
    s.topology = t;
    s.arena = mgpu_arena_new();
    int rc = mgpu_planner_may_measure(options, t);
    if (rc == 0 && t->present)
        make_teams(&s);
    if (rc == 0)
        rc = s.count > 1 ? run_teams(out, &s) : mgpu_planner_run_team(out, model, options);
    for (int k = 0; k < s.count; k++)
        mgpu_planned_free(s.team[k].planned);
    mgpu_arena_free(s.arena);
    mgpu_topology_free(t);
    return rc;
}
