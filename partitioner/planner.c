#include "partitioner/planner_private.h"

#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/compile/program.h"
#include "runtime/executor/devices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const strategies[] = {"auto", "single", "data", "branch", "hybrid", "stacked"};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

/* ---- What was asked for ---------------------------------------------------------------------- */

static int settle_words(struct mgpu_planner *p)
{
    static const char *const precisions[] = {"f64", "f32", "tf32", "bf16", "f16"};
    static const enum mgpu_rate rates[] = {MGPU_RATE_F64, MGPU_RATE_F32, MGPU_RATE_TF32,
                                           MGPU_RATE_HALF, MGPU_RATE_HALF};
    const char *precision = p->options->precision ? p->options->precision : "f32";
    const char *strategy = p->options->strategy ? p->options->strategy : "auto";
    int k = 0;
    while (k < 5 && strcmp(precision, precisions[k]))
        k++;
    if (k == 5)
        return mgpu_unknown_name("precision", precision, precisions, 5);
    p->rate = rates[k];
    for (k = 0; k < STRATEGIES; k++)
        if (!strcmp(strategy, strategies[k]))
            return 0;
    return mgpu_unknown_name("strategy", strategy, strategies, STRATEGIES);
}

static void label_devices(struct mgpu_planner *p)
{
    const struct mgpu_topology *t = p->planned->topology;
    struct mgpu_arena *arena = p->planned->arena;
    const char **name = MGPU_NEW_ARRAY(arena, const char *, t->devices);
    p->label = MGPU_NEW_ARRAY(arena, const char *, t->devices);
    for (int i = 0; i < t->devices; i++) {
        name[i] = t->device[i].name;
        p->label[i] = mgpu_device_label(arena, name, i);
    }
}

static int settle_weights(struct mgpu_planner *p)
{
    const char *name = p->options->weights_on;
    p->weights_on = -1;
    for (int i = 0; name && i < p->planned->topology->devices; i++)
        if (!strcmp(p->label[i], name))
            p->weights_on = i;
    return !name || p->weights_on >= 0
               ? 0
               : mgpu_fail(MGPU_EUSAGE, "--weights-on: '%s' is not one of the devices (%s, ...)",
                           name, p->label[0]);
}

static int check_precision(const struct mgpu_planner *p)
{
    const struct mgpu_topology *t = p->planned->topology;
    for (int i = 0; p->options->precision && i < t->devices; i++) {
        const struct mgpu_device_kind *kind = &t->kind[t->device[i].kind];
        const char *name = kind->threads ? p->label[i] : kind->name;
        MGPU_TRY(
            mgpu_device_check_precision(name, kind->threads > 0, kind->sm, p->options->precision));
    }
    return 0;
}

/* Of a kind that a GPU here is not, or not quite. */
static void tell_likeness(const struct mgpu_device_kind *kind)
{
    if (kind->scaled)
        mgpu_note("the GPU '%s' is not quite the %s of the table: its costs are scaled by what its "
                  "driver says, to %.4g TFLOP/s in float32 and %.4g GB/s of memory; for others, "
                  "plan for a topology file",
                  kind->stands_for, kind->name, kind->flops[MGPU_RATE_F32] / 1e12,
                  kind->bytes / 1e9);
    else
        mgpu_note("no table has the GPU '%s': its costs are those of %s, whose memory is about as "
                  "fast; for those of another, plan for its name (mgpu-partition --devices KIND) "
                  "or for a topology file (--list-devices has the kinds)",
                  kind->stands_for, kind->name);
}

static int settle_devices(struct mgpu_planner *p)
{
    const struct mgpu_planner_options *o = p->options;
    MGPU_TRY(mgpu_topology_parse(&p->planned->topology, o->devices));
    struct mgpu_topology *t = p->planned->topology;
    mgpu_topology_sort(t);
    if (p->model->devices)
        p->model->devices(p->model->context, !mgpu_topology_all_cpus(t));
    for (int i = 0; o->memory && i < t->devices; i++)
        t->device[i].memory = o->memory;
    for (int k = 0; k < t->kinds; k++) /* a run reads its devices more than once; this, once */
        if (t->kind[k].stands_for)
            tell_likeness(&t->kind[k]);
    label_devices(p);
    MGPU_TRY(check_precision(p));
    return settle_weights(p);
}

/* Times of two machines in one profile would be compared. */
static int check_machine(const struct mgpu_planner *p, const char *path)
{
    const char *here = mgpu_machine_name(p->planned->arena);
    const char *there = mgpu_profile_machine(p->profile);
    if (!strcmp(here, there))
        return 0;
    if (p->options->measure)
        return mgpu_fail(MGPU_EUSAGE,
                         "%s was measured on another machine (%s; this is %s): --measure needs a "
                         "file of its own",
                         path, there, here);
    mgpu_note("%s was measured on another machine (%s; this is %s)", path, there, here);
    return 0;
}

static int settle_profile(struct mgpu_planner *p)
{
    const char *path = p->options->profile;
    if (path && !(p->options->measure && access(path, F_OK) < 0 && errno == ENOENT)) {
        MGPU_TRY(mgpu_profile_read(&p->profile, path));
        MGPU_TRY(check_machine(p, path));
    }
    if (p->options->measure)
        MGPU_TRY(mgpu_planner_measure(p));
    if (p->profile && !mgpu_profile_links(p->profile, p->planned->topology))
        mgpu_note("the profile does not know the links between these devices");
    return 0;
}

static int settle_pins(struct mgpu_planner *p)
{
    struct mgpu_pins pins = {.option = p->options->pin_option ? p->options->pin_option : "--pin",
                             .pin = p->options->pin,
                             .merge = p->options->merge,
                             .devices = p->planned->topology->devices,
                             .device = p->label};
    p->pin = MGPU_NEW_ARRAY(p->planned->arena, int, p->planned->outline->nodes);
    return mgpu_pins_apply(p->pin, p->planned->outline, &pins);
}

/* ---- The model ------------------------------------------------------------------------------- */

/* Whether the batch may be divided is found out by doing it; takes over the graph. */
static void divide(struct mgpu_planner *p, struct mgpu_graph *g)
{
    struct mgpu_applied applied;
    struct mgpu_plan *plan = mgpu_plan_data(2);
    if (mgpu_plan_apply(g, plan, 0, 1, &applied) < 0)
        p->inseparable = mgpu_arena_string(p->planned->arena, mgpu_error());
    else
        mgpu_planner_find_sums(p, g);
    mgpu_plan_free(plan);
    mgpu_graph_free(g);
}

/* The nodes, and what dividing the batch takes. A batch of one would look uniform. */
static int settle_model(struct mgpu_planner *p)
{
    struct mgpu_graph *g;
    int64_t batch = p->options->batch;
    MGPU_TRY(p->model->graph(&g, p->model->context, batch, NULL));
    p->planned->outline = mgpu_outline_new(g);
    if (batch < 2) {
        mgpu_graph_free(g);
        MGPU_TRY(p->model->graph(&g, p->model->context, 2, NULL));
    }
    divide(p, g);
    return 0;
}

/* What is stacked into one call is on one device: pins that name two forbid it, and one that names
 * one is the call's, whichever of its nodes that is called after. */
static void stack_pins(struct mgpu_planner *p, const struct mgpu_rewrite *r)
{
    int *pin = p->stacked_pin, first = -1;
    for (int i = 0; i < r->outputs; i++) {
        int node = mgpu_outline_find(p->planned->outline, r->output[i]);
        if (node < 0 || pin[node] < 0)
            continue;
        if (first >= 0 && pin[first] != pin[node])
            p->unstackable =
                mgpu_arena_format(p->planned->arena, "'%s' is pinned to %s, '%s' to %s",
                                  p->planned->outline->node[first].output, p->label[pin[first]],
                                  p->planned->outline->node[node].output, p->label[pin[node]]);
        first = node;
    }
    for (int i = 0; i < r->outputs && first >= 0 && !p->unstackable; i++) {
        int node = mgpu_outline_find(p->planned->outline, r->output[i]);
        if (node >= 0)
            pin[node] = pin[first];
    }
}

/* Stacked towers, when there are any that can be. */
static int settle_towers(struct mgpu_planner *p)
{
    struct mgpu_plan **towers = &p->variant[MGPU_VARIANT_STACKED];
    struct mgpu_graph *g = NULL;
    if (!p->model->towers)
        return 0;
    *towers = mgpu_plan_new(1, 1);
    MGPU_TRY(p->model->towers(*towers, p->model->context, p->options->batch));
    if ((*towers)->rewrites &&
        p->model->graph(&g, p->model->context, p->options->batch, *towers) == 0) {
        mgpu_graph_free(g);
        p->stacked_pin = mgpu_arena_copy(p->planned->arena, p->pin,
                                         sizeof *p->pin * (size_t)p->planned->outline->nodes);
        for (int i = 0; i < (*towers)->rewrites; i++)
            stack_pins(p, &(*towers)->rewrite[i]);
        return 0;
    }
    mgpu_plan_free(*towers);
    *towers = NULL;
    return 0;
}

static int settle_variants(struct mgpu_planner *p)
{
    MGPU_TRY(settle_towers(p));
    struct mgpu_plan *stacked = p->variant[MGPU_VARIANT_STACKED], *thrifty = mgpu_plan_new(1, 1);
    mgpu_plan_rewrite(thrifty, MGPU_REWRITE_RECOMPUTE, 0, NULL);
    if (p->options->recompute && stacked)
        mgpu_plan_rewrite(stacked, MGPU_REWRITE_RECOMPUTE, 0, NULL);
    p->variant[p->options->recompute ? MGPU_VARIANT_PLAIN : MGPU_VARIANT_THRIFTY] = thrifty;
    return 0;
}

/* ---- The run --------------------------------------------------------------------------------- */

static int search(struct mgpu_planner *p)
{
    const struct mgpu_planner_options *o = p->options;
    struct mgpu_search_result *result;
    bool any = !o->strategy || !strcmp(o->strategy, "auto");
    struct mgpu_search_request request = {
        .topology = p->planned->topology,
        .batch = o->batch,
        .tasks = mgpu_planner_tasks,
        .context = p,
        .variants = p->variant[MGPU_VARIANT_STACKED] ? 1 : 0,
        .thrifty = p->variant[MGPU_VARIANT_THRIFTY] ? MGPU_VARIANT_THRIFTY : 0,
        .weights_on = p->weights_on,
        .inseparable = p->inseparable,
        .unstackable = p->unstackable,
        .strategy = any ? NULL : o->strategy,
        .memory = o->compile ? mgpu_planner_memory : NULL,
        .time = p->profile ? mgpu_planner_time : NULL,
        .budget_ms = o->search_ms};
    MGPU_TRY(mgpu_sha256_file(p->sha, p->model->path));
    MGPU_TRY(mgpu_search(&result, &request));
    int rc = o->measure && o->profile ? mgpu_profile_write(p->profile, o->profile) : 0;
    if (rc == 0)
        mgpu_planner_report(p, result);
    mgpu_search_result_free(result);
    return rc;
}

static int run(struct mgpu_planner *p)
{
    MGPU_TRY(settle_words(p));
    MGPU_TRY(settle_devices(p));
    MGPU_TRY(settle_model(p));
    MGPU_TRY(settle_pins(p));
    MGPU_TRY(settle_variants(p));
    MGPU_TRY(settle_profile(p));
    return mgpu_prefix(search(p), "%s", p->model->path);
}

int mgpu_planner_run_team(struct mgpu_planned **out, const struct mgpu_planner_model *model,
                          const struct mgpu_planner_options *options)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_planner p = {
        .model = model, .options = options, .planned = MGPU_NEW(arena, struct mgpu_planned)};
    *out = NULL;
    p.planned->arena = arena;
    int rc = run(&p);
    mgpu_planner_tasks_free(&p);
    free(p.code);
    for (int v = 0; v < MGPU_VARIANTS; v++)
        mgpu_plan_free(p.variant[v]);
    mgpu_profile_free(p.profile);
    if (rc < 0)
        mgpu_planned_free(p.planned);
    else
        *out = p.planned;
    return rc;
}

void mgpu_planned_free(struct mgpu_planned *planned)
{
    if (!planned)
        return;
    mgpu_plan_file_free(planned->plan);
    mgpu_outline_free(planned->outline);
    mgpu_topology_free(planned->topology);
    mgpu_arena_free(planned->arena);
}
