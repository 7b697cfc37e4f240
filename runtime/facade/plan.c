/* Which plan runs: from a file, from the planner, or plain data parallelism. */
#include "partitioner/annotate.h"
#include "partitioner/plan_check.h"
#include "partitioner/planner.h"
#include "partitioner/topology.h"
#include "runtime/base/file_name.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/facade/facade.h"

#include <stdlib.h>
#include <string.h>

enum choice { AUTO, SINGLE, DATA, BRANCH, HYBRID, STACKED };
static const char *const strategies[] = {"auto",   "single",  "data", "branch",
                                         "hybrid", "stacked", NULL};

static int parse_strategy(enum choice *out, const char *text)
{
    for (int i = 0; strategies[i]; i++)
        if (!strcmp(text, strategies[i])) {
            *out = (enum choice)i;
            return 0;
        }
    return mgpu_prefix(mgpu_unknown_word("value", text, strategies, STACKED + 1), "--strategy");
}

static bool asks_for_places(const struct mgpu_options *o)
{
    return mgpu_text_count(o->place) || o->merge || o->weights_on;
}

/* ---- From a file ----------------------------------------------------------------------------- */

const char *mgpu_plan_device_list(const struct mgpu_plan_file *plan, struct mgpu_arena *arena)
{
    const char *list = "";
    for (int i = 0; i < plan->devices; i++)
        list = mgpu_arena_format(arena, "%s%s%s", list, i ? "," : "", plan->device[i]);
    return list;
}

/* What no machine can run comes before what this one lacks. */
int mgpu_plan_runs_here(const struct mgpu_plan_file *file, const struct mgpu_topology *topology)
{
    struct mgpu_rank_device *devices = NULL;
    struct mgpu_plan *plan;
    bool cpu[2] = {false};
    int count;
    MGPU_TRY(mgpu_plan_from_file(&plan, file));
    int ranks = mgpu_plan_ranks(plan);
    mgpu_plan_free(plan);
    for (int i = 0; i < ranks; i++) {
        int device = mgpu_topology_find(topology, file->device[i]);
        cpu[i > 0] = device >= 0 && topology->kind[topology->device[device].kind].threads > 0;
        MGPU_TRY(mgpu_device_check_beside(file->device[i], cpu[i > 0], file->device[0], cpu[0]));
    }
    int rc = mgpu_devices_parse(&devices, &count, mgpu_plan_device_list(file, file->arena), 0);
    free(devices);
    return rc;
}

/* The command that makes a plan which can run here. */
static const char *other_plan(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    int64_t batch = t->plan_file->batch > 0 ? t->plan_file->batch : t->batch;
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return "mgpu-partition --plan NEW.json";
    fputs("mgpu-partition", to);
    mgpu_write_shell_word(to, t->path);
    fprintf(to, " --devices %s --batch %lld", mgpu_cuda_check(0) == 0 ? "cuda:0" : "cpu:0,cpu:1",
            (long long)batch);
    for (int i = 0; i < mgpu_text_count(o->loss); i++) {
        fputs(" --loss", to);
        mgpu_write_shell_word(to, o->loss[i]);
    }
    fputs(" --plan NEW.json", to);
    fclose(to);
    const char *command = mgpu_arena_string(t->arena, text);
    free(text);
    return command;
}

const char *mgpu_cpu_advice(const struct mgpu_trainer *t)
{
    return t->options.plan ? "make a plan: mgpu-partition --devices cpu" : "type --devices cpu";
}

/* What to do where devices cannot be used: a plan names its own, so that no --devices helps. */
static int advise(struct mgpu_trainer *t, int rc)
{
    if (rc != MGPU_EDEVICE && rc != MGPU_EUNSUPPORTED)
        return rc;
    if (t->options.plan) {
        const char *why = mgpu_arena_string(t->arena, mgpu_error());
        return mgpu_fail(rc, "%s; make a plan for devices that are here: %s", why, other_plan(t));
    }
    if (rc == MGPU_EDEVICE)
        return mgpu_fail(rc, "%s; for the CPU, %s", mgpu_error(), mgpu_cpu_advice(t));
    return mgpu_fail(rc, "%s; name one GPU (several times for several ranks)", mgpu_error());
}

/* Rank r is the plan's device r; devices behind those have nothing to do. What a list of devices
 * cannot be here a plan for another machine may be. */
static int take_plan(struct mgpu_trainer *t, int *ranks)
{
    free(t->devices);
    t->devices = NULL;
    int rc = mgpu_devices_parse(&t->devices, ranks, mgpu_plan_device_list(t->plan_file, t->arena),
                                t->options.threads);
    MGPU_TRY(advise(t, rc == MGPU_EUSAGE ? MGPU_EDEVICE : rc));
    MGPU_TRY(mgpu_plan_from_file(&t->plan, t->plan_file));
    *ranks = mgpu_plan_ranks(t->plan);
    return 0;
}

/* A plan.json, or the ONNX file that a plan was written into as annotations. */
static int read_file(struct mgpu_trainer *t, const char *path)
{
    struct mgpu_onnx_file *file;
    if (!mgpu_has_extension(path, ".onnx"))
        return mgpu_plan_file_read(&t->plan_file, path);
    MGPU_TRY(mgpu_onnx_read(&file, path));
    int rc = mgpu_annotate_read(&t->plan_file, file);
    mgpu_onnx_free(file);
    return rc == 0 && !t->plan_file
               ? mgpu_fail(MGPU_EINVALID, "%s: no node says on which device it runs", path)
               : rc;
}

int mgpu_read_plan(struct mgpu_trainer *t)
{
    int64_t batch = t->options.batch;
    if (!t->options.plan)
        return 0;
    MGPU_TRY(mgpu_prefix(read_file(t, t->options.plan), "--plan"));
    if (batch > 0 && t->plan_file->batch > 0 && batch != t->plan_file->batch)
        mgpu_note("--plan %s: made for a batch of %lld, and run with one of %lld", t->options.plan,
                  (long long)t->plan_file->batch, (long long)batch);
    return 0;
}

static int check_file(struct mgpu_trainer *t)
{
    struct mgpu_graph *g;
    char hash[MGPU_SHA256_TEXT];
    enum mgpu_mode mode = !t->options.inference ? MGPU_MODE_TRAIN
                          : t->losses           ? MGPU_MODE_EVALUATE
                                                : MGPU_MODE_PREDICT;
    MGPU_TRY(mgpu_sha256_file(hash, t->path));
    if (!*t->plan_file->sha256) /* annotations: they stand in a model of their own */
        t->plan_file->sha256 = mgpu_arena_string(t->plan_file->arena, hash);
    MGPU_TRY(mgpu_build_graph(&g, t, mode, t->batch, NULL));
    struct mgpu_outline *outline = mgpu_outline_new(g);
    mgpu_graph_free(g);
    int rc = mgpu_plan_check(t->plan_file, outline, t->path, hash);
    mgpu_outline_free(outline);
    return rc;
}

const char *mgpu_step_rows_input(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->wants; i++)
        if (t->step_rows[i])
            return t->want[i].name;
    return NULL;
}

/* The rows of a step stay together: one rank unless the person asked for several. */
static int keep_step_whole(const struct mgpu_trainer *t, bool asked, int *ranks)
{
    const char *input = mgpu_step_rows_input(t);
    if (!input || (*ranks == 1 && !t->options.deterministic))
        return 0;
    if (asked)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "the rows of '%s' belong to their step (--rows), so there are no samples "
                         "to split over ranks; give one device and no --strategy",
                         input);
    mgpu_note("one rank (%s): the rows of '%s' belong to their step (--rows), so there are no "
              "samples to split",
              t->devices[0].name, input);
    *ranks = 1;
    return 0;
}

/* A plan says itself which devices it is for. */
static void tell_devices(const struct mgpu_trainer *t)
{
    const struct mgpu_plan_file *plan = t->plan_file;
    for (int i = 0; t->options.devices && i < plan->devices; i++)
        if (strcmp(t->devices[i].name, plan->device[i])) {
            mgpu_note("--devices %s is not looked at: the plan is for %s", t->options.devices,
                      mgpu_plan_device_list(plan, plan->arena));
            return;
        }
}

static int from_file(struct mgpu_trainer *t, int *ranks)
{
    const struct mgpu_options *o = &t->options;
    if (asks_for_places(o))
        return mgpu_fail(MGPU_EUSAGE, "--plan says where everything runs; --place, --merge and "
                                      "--weights-on are for the planner");
    if (o->deterministic || (o->strategy && strcmp(o->strategy, "auto")))
        return mgpu_fail(MGPU_EUSAGE, "--plan says how the devices are used: no --strategy or "
                                      "--deterministic beside it");
    MGPU_TRY(mgpu_prefix(check_file(t), "--plan %s", o->plan));
    if (o->devices && t->device_count != t->plan_file->devices)
        return mgpu_fail(MGPU_EUSAGE,
                         "--plan %s: is for %d devices, --devices names %d; leave "
                         "--devices out, the plan has its own",
                         o->plan, t->plan_file->devices, t->device_count);
    tell_devices(t);
    MGPU_TRY(mgpu_prefix(take_plan(t, ranks), "--plan %s", o->plan));
    return t->plan->replicas > 1 ? keep_step_whole(t, true, ranks) : 0;
}

/* ---- From the planner ------------------------------------------------------------------------ */

/* What was chosen and why, in one line. */
static void note_choice(const struct mgpu_plan_file *plan)
{
    const char *why = plan->alternatives ? plan->alternative[0].why : "";
    mgpu_note("plan: %s, predicted %.3g ms a step (%.2fx one device)%s%s", plan->strategy,
              plan->predicted.step_ms, plan->predicted.speedup, why && *why ? ": " : "",
              why ? why : "");
    if (plan->devices > 1 && plan->replicas * plan->places == 1 &&
        !strncmp(plan->device[0], "cpu", 3))
        mgpu_note("one rank with the threads of %s alone; --devices cpu gives it all cores",
                  plan->device[0]);
}

static int from_planner(struct mgpu_trainer *t, enum choice choice, int *ranks)
{
    const struct mgpu_options *o = &t->options;
    struct mgpu_planned *planned;
    struct mgpu_planner_model model;
    struct mgpu_planner_options options = {.devices = o->devices ? o->devices : t->devices[0].name,
                                           .batch = t->batch,
                                           .strategy = strategies[choice],
                                           .pin_option = "--place",
                                           .pin = o->place,
                                           .merge = o->merge,
                                           .weights_on = o->weights_on,
                                           .precision = o->precision,
                                           .recompute = o->recompute};
    mgpu_planner_model_of(&model, t, o->precision ? o->precision : "f32");
    MGPU_TRY(mgpu_planner_run(&planned, &model, &options));
    t->graphs_for = MGPU_FOR_DEVICES;
    note_choice(planned->plan);
    t->plan_file = planned->plan;
    planned->plan = NULL;
    mgpu_planned_free(planned);
    return take_plan(t, ranks);
}

/* ---- The choice ------------------------------------------------------------------------------ */

static bool are_together(const struct mgpu_trainer *t)
{
    bool together = true;
    const struct mgpu_rank_device *d = t->devices;
    for (int i = 1; i < t->device_count; i++)
        together = together &&
                   mgpu_device_check_beside(d[i].name, d[i].gpu < 0, d[0].name, d[0].gpu < 0) == 0;
    return together;
}

static int choose(struct mgpu_trainer *t, int *ranks)
{
    const struct mgpu_options *o = &t->options;
    enum choice choice = AUTO;
    MGPU_TRY(parse_strategy(&choice, o->strategy ? o->strategy : "auto"));
    if (o->plan)
        return from_file(t, ranks);
    bool placed = choice >= BRANCH || asks_for_places(o);
    bool together = are_together(t);
    if (choice == SINGLE && *ranks > 1 && together && !placed)
        mgpu_note("--strategy single: only %s of the %d devices is used", t->devices[0].name,
                  *ranks);
    if (choice == SINGLE)
        *ranks = 1;
    if (o->deterministic && placed)
        return mgpu_fail(MGPU_EUSAGE,
                         "--deterministic is data parallel: no --strategy branch, "
                         "hybrid or stacked, --place, --merge or --weights-on beside it");
    MGPU_TRY(keep_step_whole(t, choice != AUTO || placed || o->deterministic, ranks));
    if (o->deterministic)
        MGPU_TRY(mgpu_devices_multiplex(&t->devices, ranks, o->deterministic));
    bool plans = placed || (choice == AUTO && *ranks > 1 && t->pieces == 1) ||
                 (choice == SINGLE && !together);
    if (plans && !o->inference && !o->deterministic)
        return from_planner(t, choice, ranks);
    t->plan = mgpu_plan_data(*ranks);
    return 0;
}

static void add_recompute(struct mgpu_plan *plan)
{
    for (int i = 0; i < plan->rewrites; i++)
        if (!strcmp(plan->rewrite[i].kind, MGPU_REWRITE_RECOMPUTE))
            return;
    mgpu_plan_rewrite(plan, MGPU_REWRITE_RECOMPUTE, 0, NULL);
}

int mgpu_settle_plan(struct mgpu_trainer *t)
{
    int ranks = t->device_count;
    MGPU_TRY(choose(t, &ranks));
    if (t->options.recompute)
        add_recompute(t->plan);
    MGPU_TRY(mgpu_settle_precision_devices(t, mgpu_plan_ranks(t->plan)));
    MGPU_TRY(advise(t, mgpu_team_new(&t->team, t->devices, t->plan->replicas, t->plan->places)));
    t->device_count = ranks;
    t->result_sums = mgpu_xcalloc((size_t)ranks * MGPU_RESULT_SUMS, sizeof *t->result_sums);
    return 0;
}
