/* Plans for a model without data: what mgpu-partition does. */
#include "partitioner/annotate.h"
#include "partitioner/planner.h"
#include "partitioner/topology.h"
#include "runtime/base/names.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/facade/trial.h"
#include "runtime/graph/alike.h"
#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"

#include <stdlib.h>
#include <string.h>

struct mgpu_partition {
    struct mgpu_trainer *trainer; /* without data and ranks */
    struct mgpu_planned *planned;
};

/* ---- What is trained ------------------------------------------------------------------------- */

/* The mean square of every output that holds floats by sample. */
static int losses_of(struct mgpu_trainer *t, const struct mgpu_graph *g)
{
    const struct mgpu_onnx_body *graph = &t->model->graph;
    const char **loss = MGPU_NEW_ARRAY(t->arena, const char *, graph->outputs + 1);
    int n = 0;
    for (int i = 0; i < graph->outputs && n < MGPU_MAX_LOSSES; i++) {
        const struct mgpu_value *v = mgpu_lowered_value(g, graph->output[i].name);
        if (v && mgpu_is_float(v->type) && mgpu_batch_axis(v) >= 0)
            loss[n++] = mgpu_arena_format(t->arena, "mse:%s:label_%d", graph->output[i].name, i);
    }
    if (!n)
        return mgpu_fail(MGPU_EUSAGE, "no output holds numbers by sample: give --loss");
    t->options.loss = loss;
    return 0;
}

static int default_losses(struct mgpu_trainer *t)
{
    struct mgpu_graph *g = NULL;
    if (mgpu_text_count(t->options.loss))
        return 0;
    t->lower.batch = t->options.batch;
    t->lower.training = true;
    MGPU_TRY(mgpu_prefix(mgpu_lower(&g, t->model, t->weights, &t->lower), "%s", t->path));
    int rc = mgpu_prefix(losses_of(t, g), "%s", t->path);
    mgpu_graph_free(g);
    return rc;
}

/* "adam, mse on 'y' and 'z', f32" */
static const char *training_text(const struct mgpu_trainer *t, const char *precision)
{
    const char *text = mgpu_arena_string(t->arena, t->options.optimizer);
    for (int i = 0; i < t->losses; i++)
        text = mgpu_arena_format(t->arena, "%s, %.*s on '%s'", text,
                                 (int)strcspn(t->loss[i].text, ",:"), t->loss[i].text,
                                 t->loss[i].output);
    return mgpu_arena_format(t->arena, "%s, %s", text, precision);
}

static int settle(struct mgpu_trainer *t)
{
    MGPU_TRY(mgpu_settle_model(t));
    MGPU_TRY(mgpu_settle_data(t));
    MGPU_TRY(default_losses(t));
    MGPU_TRY(mgpu_settle_losses(t));
    return mgpu_settle_optimizer(t);
}

/* A trainer that only builds graphs. */
int mgpu_trainer_planning(struct mgpu_trainer **out, const char *model,
                          const struct mgpu_options *options)
{
    mgpu_fold_set(mgpu_ref_fold);
    struct mgpu_trainer *t = mgpu_xcalloc(1, sizeof *t);
    t->arena = mgpu_arena_new();
    t->options = *options;
    t->options.batch = options->batch > 0 ? options->batch : 32;
    t->path = mgpu_arena_string(t->arena, model);
    t->planning = true;
    t->pieces = 1;
    int rc = settle(t);
    if (rc < 0)
        mgpu_trainer_free(t);
    else
        *out = t;
    return rc;
}

static int build(struct mgpu_graph **out, void *context, int64_t batch,
                 const struct mgpu_plan *plan)
{
    return mgpu_build_typed(out, context, MGPU_MODE_TRAIN, batch, plan);
}

static int towers(struct mgpu_plan *plan, void *context, int64_t batch)
{
    return mgpu_find_towers(plan, context, batch);
}

/* Graphs depend on it (build.c). */
static void take_devices(void *context, bool gpus)
{
    struct mgpu_trainer *t = context;
    t->graphs_for = gpus ? MGPU_FOR_GPUS : MGPU_FOR_CPUS;
}

void mgpu_planner_model_of(struct mgpu_planner_model *out, struct mgpu_trainer *t,
                           const char *precision)
{
    *out = (struct mgpu_planner_model){.path = t->path,
                                       .graph = build,
                                       .towers = towers,
                                       .devices = take_devices,
                                       .run = mgpu_trial_of_plan,
                                       .context = t,
                                       .training = training_text(t, precision)};
}

/* ---- Options --------------------------------------------------------------------------------- */

/* "16GiB", "500 MB", "1e9". */
static int parse_bytes(int64_t *out, const char *text)
{
    static const char *const units[] = {"", "B", "k", "M", "G", "T"};
    static const double thousands[] = {1, 1, 1e3, 1e6, 1e9, 1e12};
    static const double binary[] = {1, 1, 0x1p10, 0x1p20, 0x1p30, 0x1p40};
    char *end;
    double x = strtod(text, &end);
    end += strspn(end, " ");
    for (int u = 0; u < 6 && end != text; u++) {
        size_t n = strlen(units[u]);
        const char *rest = end + n;
        if (strncasecmp(end, units[u], n) != 0)
            continue;
        bool plain = !*rest || (u > 1 && !strcasecmp(rest, "B"));
        double bytes = x * (plain ? thousands[u] : binary[u]);
        if ((plain || (u > 1 && !strcasecmp(rest, "iB"))) && bytes >= 1 && bytes < 0x1p60) {
            *out = (int64_t)bytes;
            return 0;
        }
    }
    return mgpu_fail(MGPU_EUSAGE, "--memory: '%s' is not a size (16GiB, 500MB)", text);
}

static int planner_options(struct mgpu_planner_options *out, const struct mgpu_options *o,
                           const struct mgpu_partition_options *p)
{
    *out = (struct mgpu_planner_options){.devices = o->devices,
                                         .batch = o->batch > 0 ? o->batch : 32,
                                         .strategy = o->strategy,
                                         .pin = p->pin,
                                         .merge = p->merge,
                                         .weights_on = p->weights_on,
                                         .precision = o->precision,
                                         .profile = p->profile,
                                         .recompute = o->recompute,
                                         .compile = true,
                                         .measure = p->measure,
                                         .progress = p->progress,
                                         .progress_context = p->progress_context};
    return p->memory ? parse_bytes(&out->memory, p->memory) : 0;
}

/* ---- The public side ------------------------------------------------------------------------- */

int mgpu_partition_new(struct mgpu_partition **out, const char *model,
                       const struct mgpu_options *options,
                       const struct mgpu_partition_options *partition)
{
    struct mgpu_planner_options o;
    *out = NULL;
    MGPU_TRY(planner_options(&o, options, partition));
    struct mgpu_partition *p = mgpu_xcalloc(1, sizeof *p);
    int rc = mgpu_trainer_planning(&p->trainer, model, options);
    if (rc == 0) {
        struct mgpu_planner_model m;
        mgpu_planner_model_of(&m, p->trainer, options->precision ? options->precision : "f32");
        rc = mgpu_planner_run(&p->planned, &m, &o);
    }
    if (rc == 0)
        mgpu_warn_tf32(o.precision, mgpu_topology_has_cpus(p->planned->topology), "the CPU");
    if (rc < 0)
        mgpu_partition_free(p);
    else
        *out = p;
    return rc;
}

void mgpu_partition_free(struct mgpu_partition *p)
{
    if (!p)
        return;
    mgpu_planned_free(p->planned);
    mgpu_trainer_free(p->trainer);
    free(p);
}

void mgpu_partition_table(const struct mgpu_partition *p, int top, FILE *to)
{
    mgpu_report_table(&p->planned->report, top, to);
}

int mgpu_partition_print(const struct mgpu_partition *p, FILE *to)
{
    return mgpu_plan_file_print(p->planned->plan, to);
}

int mgpu_partition_save(const struct mgpu_partition *p, const char *path)
{
    return mgpu_plan_file_write(p->planned->plan, path);
}

int mgpu_partition_runs_here(const struct mgpu_partition *p)
{
    return mgpu_plan_runs_here(p->planned->plan, p->planned->topology);
}

int mgpu_partition_timeline(const struct mgpu_partition *p, const char *path)
{
    return mgpu_report_timeline(&p->planned->report, path);
}

int mgpu_partition_html(const struct mgpu_partition *p, const char *path)
{
    return mgpu_report_html(&p->planned->report, path);
}

int mgpu_partition_annotate(const struct mgpu_partition *p, const char *path)
{
    struct mgpu_graph *g;
    MGPU_TRY(build(&g, p->trainer, p->planned->plan->batch, NULL));
    int rc = mgpu_annotate(p->trainer->file, p->planned->plan, g, path);
    mgpu_graph_free(g);
    return rc;
}
