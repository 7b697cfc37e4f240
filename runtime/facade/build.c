/* Graphs of each mode, and the programs that a run needs. */
#include "runtime/base/status.h"
#include "runtime/compile/half.h"
#include "runtime/compile/rounded.h"
#include "runtime/compile/rewrite.h"
#include "runtime/facade/facade.h"
#include "runtime/graph/alike.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One graph ------------------------------------------------------------------------------- */

static void set_origin(struct mgpu_graph *g, enum mgpu_role role, const char *type,
                       const char *output)
{
    g->origin =
        (struct mgpu_origin){.path = "", .output = output, .name = "", .type = type, .role = role};
}

/* Losses as results "loss.0" ...; their sum to *total. */
static int add_losses(struct mgpu_graph *g, struct mgpu_trainer *t, struct mgpu_value **total)
{
    char name[32];
    *total = NULL;
    for (int i = 0; i < t->losses; i++) {
        struct mgpu_value *y = mgpu_lowered_value(g, t->loss[i].output), *value;
        set_origin(g, MGPU_FORWARD, "loss", t->loss[i].output);
        MGPU_TRY(mgpu_prefix(mgpu_loss_build(g, &t->loss[i], i, y, &value), "--loss %s",
                             t->loss[i].text));
        *total = *total ? mgpu_add(g, *total, value) : value;
        if (!*total)
            return mgpu_build_error();
        snprintf(name, sizeof name, "loss.%d", i);
        mgpu_graph_output(g, name, value);
    }
    return 0;
}

/* Metrics as results "metric.0.sum", "metric.0.count" ... */
static int add_metrics(struct mgpu_graph *g, struct mgpu_trainer *t)
{
    char name[32];
    for (int i = 0; i < t->metrics; i++) {
        const struct mgpu_loss *loss = &t->loss[t->metric[i].loss];
        struct mgpu_value *sum, *count;
        set_origin(g, MGPU_FORWARD, "metric", loss->output);
        MGPU_TRY(mgpu_prefix(mgpu_metric_build(g, &t->metric[i], loss,
                                               mgpu_lowered_value(g, loss->output), &sum, &count),
                             "--metric %s", t->metric[i].name));
        snprintf(name, sizeof name, "metric.%d.sum", i);
        mgpu_graph_output(g, name, sum);
        snprintf(name, sizeof name, "metric.%d.count", i);
        mgpu_graph_output(g, name, count);
    }
    return 0;
}

static void drop_statistics(struct mgpu_graph *g)
{
    for (int i = 0; i < g->parameter_count; i++)
        g->parameters[i].next = NULL;
}

static int add_update(struct mgpu_graph *g, struct mgpu_trainer *t)
{
    struct mgpu_state_start *starts;
    int count;
    set_origin(g, MGPU_UPDATE, "update", "");
    MGPU_TRY(mgpu_optimizer_build(g, &t->optimizer, &starts, &count));
    if (t->starts)
        return 0;
    t->starts = MGPU_NEW_ARRAY(t->arena, struct mgpu_state_start, count);
    t->start_count = count;
    for (int i = 0; i < count; i++) {
        t->starts[i].name = mgpu_arena_string(t->arena, starts[i].name);
        t->starts[i].value = starts[i].value;
    }
    return 0;
}

static int fill_graph(struct mgpu_graph *g, struct mgpu_trainer *t, enum mgpu_mode mode,
                      const struct mgpu_plan *plan)
{
    struct mgpu_value *total;
    if (mode == MGPU_MODE_PREDICT)
        return 0;
    /* the model's own outputs are no results here; losses find them by name first */
    int outputs = g->output_count;
    MGPU_TRY(add_losses(g, t, &total));
    mgpu_loss_first(g);
    mgpu_read_weights_turned(g);
    if (mode != MGPU_MODE_GRADIENT)
        MGPU_TRY(add_metrics(g, t));
    mgpu_state_outputs(t, g);
    int own = g->output_count - outputs;
    memmove(g->outputs, g->outputs + outputs, sizeof(struct mgpu_value *) * (size_t)own);
    memmove(g->output_names, g->output_names + outputs, sizeof(char *) * (size_t)own);
    g->output_count = own;
    if (mode == MGPU_MODE_EVALUATE)
        return 0;
    if (!total)
        return mgpu_fail(MGPU_EUSAGE, "nothing to train on: give --loss");
    set_origin(g, MGPU_FORWARD, "loss", t->loss[t->losses - 1].output);
    if (t->scaling.on)
        total = mgpu_mul(
            g, total,
            mgpu_cast(g, mgpu_graph_scalar(g, MGPU_SCALAR_LOSS_SCALE, "loss scale"), total->type));
    set_origin(g, MGPU_FORWARD, "", "");
    if (!total)
        return mgpu_build_error();
    MGPU_TRY(mgpu_gradient(g, total, false));
    if (plan)
        MGPU_TRY(mgpu_rewrite_backward(g, plan));
    if (mode == MGPU_MODE_TRAIN)
        return add_update(g, t);
    drop_statistics(g);
    return 0;
}

/* Where the graph may depend on the size of its batch or on places in it, the same model at another
 * size tells: a part of the batch is held against the whole. */
static void settle_batch(const struct mgpu_trainer *t, const struct mgpu_lower_options *o,
                         struct mgpu_graph *g)
{
    struct mgpu_lower_options other = *o;
    struct mgpu_graph *h;
    if (!mgpu_batch_unsure(g))
        return;
    other.batch = t->batch == g->batch ? g->batch + 1 : t->batch;
    other.unsupported = NULL;
    if (mgpu_lower(&h, t->model, t->weights, &other) < 0)
        return;
    if (mgpu_graphs_alike(g, h))
        mgpu_batch_sure(g);
    mgpu_graph_free(h);
}

static int lower(struct mgpu_graph **out, struct mgpu_trainer *t, enum mgpu_mode mode,
                 int64_t batch)
{
    struct mgpu_lower_options o = t->lower;
    bool training = mode == MGPU_MODE_TRAIN || mode == MGPU_MODE_GRADIENT;
    o.batch = batch;
    o.training = training;
    if (mode == MGPU_MODE_PREDICT) {
        o.wanted = NULL;
        o.wanted_count = 0;
    }
    MGPU_TRY(mgpu_prefix(mgpu_lower(out, t->model, t->weights, &o), "%s", t->path));
    settle_batch(t, &o, *out);
    mgpu_graph_sort(
        *out); /* equal models train and are planned alike, however their file is sorted */
    return 0;
}

int mgpu_find_towers(struct mgpu_plan *plan, struct mgpu_trainer *t, int64_t batch)
{
    struct mgpu_graph *g;
    MGPU_TRY(lower(&g, t, MGPU_MODE_TRAIN, batch));
    mgpu_stack_towers(plan, g);
    mgpu_graph_free(g);
    return 0;
}

static bool on_cpus(const struct mgpu_trainer *t)
{
    bool cpus = t->graphs_for != MGPU_FOR_GPUS, settled = t->graphs_for == MGPU_FOR_DEVICES;
    for (int i = 0; t->devices && i < t->device_count && settled; i++)
        cpus = cpus && t->devices[i].gpu < 0;
    return cpus;
}

/* Attention is one node on CPUs, and in half types on GPUs whose library has it, from compute
 * capability 8.0 on, as bfloat16; elsewhere it is products. */
static int fuse_attention(struct mgpu_graph *g, const struct mgpu_trainer *t)
{
    bool cpus = on_cpus(t), library = !cpus && t->half;
    for (int i = 0; t->devices && i < t->device_count && library; i++)
        library = t->devices[i].gpu < 0 || mgpu_check_precision(&t->devices[i], "bf16") == 0;
    return cpus || library ? mgpu_fuse_attention(g, library) : 0;
}

/* Float16 does not hold every product of a weight and what a channel is multiplied by. On several
 * places the convolution's weights lie where it is, which need not be where its normalisation is.
 */
static bool folds_norms(const struct mgpu_trainer *t, enum mgpu_mode mode,
                        const struct mgpu_plan *plan)
{
    bool infers = mode == MGPU_MODE_PREDICT || mode == MGPU_MODE_EVALUATE;
    return infers && !on_cpus(t) && t->half != MGPU_FLOAT16 && (!plan || plan->places == 1);
}

/* Accumulation, clipping by the norm of all gradients and what may come out as if a step had not
 * been need them all at its end; GPUs update many weights in one launch there. */
bool mgpu_updates_early(const struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    return on_cpus(t) && t->pieces == 1 && !t->scaling.on && t->optimizer.clip_norm <= 0 &&
           !o->skip_nonfinite && !o->gradients;
}

int mgpu_build_graph(struct mgpu_graph **out, struct mgpu_trainer *t, enum mgpu_mode mode,
                     int64_t batch, const struct mgpu_plan *plan)
{
    MGPU_TRY(lower(out, t, mode, batch));
    int rc = plan ? mgpu_rewrite_forward(*out, plan) : 0;
    mgpu_pool_first(*out);
    if (rc == 0)
        rc = fuse_attention(*out, t);
    if (rc == 0 && !on_cpus(t))
        mgpu_fuse_gelu(*out);
    if (rc == 0 && folds_norms(t, mode, plan))
        rc = mgpu_fold_norms(*out);
    if (rc == 0)
        rc = fill_graph(*out, t, mode, plan);
    (*out)->updates_early = mode == MGPU_MODE_TRAIN && mgpu_updates_early(t);
    (*out)->step_samples = t->batch;
    rc = mgpu_prefix(rc, "%s", t->path);
    if (rc < 0) {
        mgpu_graph_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- Programs -------------------------------------------------------------------------------- */

struct mgpu_program *mgpu_find_program(const struct mgpu_trainer *t, enum mgpu_mode mode,
                                       int64_t batch, int rank)
{
    for (int i = 0; i < t->compiled_count; i++)
        if (t->compiled[i].mode == mode && t->compiled[i].batch == (batch ? batch : 1))
            return t->compiled[i].program[rank];
    return NULL;
}

int mgpu_build_typed(struct mgpu_graph **out, struct mgpu_trainer *t, enum mgpu_mode mode,
                     int64_t batch, const struct mgpu_plan *plan)
{
    MGPU_TRY(mgpu_build_graph(out, t, mode, batch, plan));
    int rc = t->half ? mgpu_prefix(mgpu_use_half(*out, t->half), "%s", t->path) : 0;
    if (rc < 0) {
        mgpu_graph_free(*out);
        *out = NULL;
    }
    return rc;
}

/* The graphs that wait to be compiled, one a rank. */
struct job {
    struct mgpu_trainer *t;
    struct mgpu_compiled *compiled;
    struct mgpu_graph *graph[MGPU_MAX_RANKS];
    struct mgpu_applied applied[MGPU_MAX_RANKS];
};

/* On the rank's own thread: kernels are prepared for its number of threads. */
static int compile_rank(struct mgpu_rank *rank, void *context)
{
    struct job *job = context;
    int r = rank->rank;
    if (!job->graph[r])
        return 0;
    struct mgpu_compile_options o = {.backend = rank->engine->ops->backend,
                                     .store = job->t->store[r],
                                     .threads = rank->device.threads,
                                     .exact = job->t->options.exact};
    struct mgpu_graph *g = job->graph[r];
    MGPU_TRY(rank->engine->ops->enter(rank->engine));
    job->graph[r] = NULL;
    int rc = mgpu_compile(&job->compiled->program[r], g, &job->applied[r], &o);
    return rc == MGPU_EUNSUPPORTED && rank->device.gpu >= 0
               ? mgpu_prefix(rc, "%s cannot train it (for the CPU, %s)", rank->device.name,
                             mgpu_cpu_advice(job->t))
               : rc;
}

static int compile_batch(struct mgpu_trainer *t, enum mgpu_mode mode, int64_t batch,
                         const bool *needs)
{
    struct job job = {.t = t};
    int ranks = mgpu_team_size(t->team), rc = 0;
    t->compiled = mgpu_grow(t->compiled, (size_t)t->compiled_count, sizeof *t->compiled);
    job.compiled = &t->compiled[t->compiled_count++];
    *job.compiled = (struct mgpu_compiled){.mode = mode, .batch = batch};
    int pieces = mode == MGPU_MODE_TRAIN ? t->pieces : 1;
    for (int r = 0; r < ranks && rc == 0; r++) {
        if (!needs[r])
            continue;
        rc = mgpu_build_typed(&job.graph[r], t, mode, batch, t->plan);
        if (rc == 0)
            rc = mgpu_prefix(mgpu_plan_apply(job.graph[r], t->plan, r, pieces, &job.applied[r]),
                             "%s", t->path);
        if (rc == 0 && t->half)
            rc = mgpu_store_rounded(job.graph[r], t->half, !t->options.inference, t->store[r]);
        if (rc == 0)
            rc = mgpu_store_add(t->store[r], job.graph[r]);
    }
    if (rc == 0)
        rc = mgpu_prefix(mgpu_team_run(t->team, compile_rank, &job), "%s", t->path);
    for (int r = 0; r < ranks; r++)
        mgpu_graph_free(job.graph[r]);
    return rc;
}

/* Which local sizes a batch of `size` samples makes on which ranks. */
struct sizes {
    int count;
    int64_t size[64];
    bool needs[64][MGPU_MAX_RANKS];
};

static int add_size(struct sizes *s, int64_t size, int rank)
{
    int i = 0;
    size = size ? size : 1; /* a rank without samples runs the idle part of a program for one */
    while (i < s->count && s->size[i] != size)
        i++;
    if (i == 64)
        return mgpu_fail(MGPU_EINTERNAL, "too many batch sizes");
    if (i == s->count)
        s->size[s->count++] = size;
    s->needs[i][rank] = true;
    return 0;
}

static int add_batch(struct sizes *s, const struct mgpu_trainer *t, int64_t batch, int pieces)
{
    int ranks = mgpu_team_size(t->team), places = t->plan->places;
    if (pieces > batch)
        pieces = (int)batch;
    for (int m = 0; m < pieces && batch > 0; m++) {
        int64_t first, piece, count;
        mgpu_batches_slice(batch, pieces, m, &first, &piece);
        for (int r = 0; r < ranks; r++) {
            mgpu_batches_slice(piece, ranks / places, r / places, &first, &count);
            MGPU_TRY(add_size(s, count, r));
        }
    }
    return 0;
}

static int add_source(struct sizes *s, const struct mgpu_trainer *t, int64_t samples, int pieces)
{
    if (samples >= t->batch)
        MGPU_TRY(add_batch(s, t, t->batch, pieces));
    return add_batch(s, t, samples % t->batch, pieces);
}

static int compile_mode(struct mgpu_trainer *t, enum mgpu_mode mode)
{
    struct sizes s = {0};
    bool training = mode == MGPU_MODE_TRAIN;
    if (training || !t->val.open || t->options.inference || mode == MGPU_MODE_GRADIENT)
        MGPU_TRY(add_source(&s, t, t->samples, training ? t->pieces : 1));
    if (!training && t->val.open)
        MGPU_TRY(add_source(&s, t, t->val_samples, 1));
    for (int i = 0; i < s.count; i++)
        MGPU_TRY(compile_batch(t, mode, s.size[i], s.needs[i]));
    return 0;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Replicas are threads of this process: one copy of the weights serves all, where it is one memory
 * and all programs allow it. */
static bool may_share(const struct mgpu_trainer *t)
{
    bool share = t->plan->replicas > 1;
    for (int r = 0; r < mgpu_team_size(t->team); r++) {
        const struct mgpu_rank *rank = mgpu_team_rank(t->team, r);
        const struct mgpu_rank *first = mgpu_team_rank(t->team, rank->place);
        share = share && rank->engine->ops->borrow && rank->engine->ops == first->engine->ops;
        for (int i = 0; i < t->compiled_count && share; i++)
            share = !t->compiled[i].program[r] || mgpu_program_may_share(t->compiled[i].program[r]);
    }
    return share;
}

static int bind_rank(struct mgpu_trainer *t, struct mgpu_rank *rank, bool share)
{
    for (int i = 0; i < t->compiled_count; i++) {
        struct mgpu_program *p = t->compiled[i].program[rank->rank];
        if (p)
            MGPU_TRY(mgpu_rank_bind(rank, p));
        if (p && share)
            mgpu_program_cut(p, rank->replica, rank->replicas);
    }
    return 0;
}

const char *mgpu_memory_text(char to[MGPU_MEMORY_TEXT], const int64_t bytes[MGPU_BUFFERS])
{
    snprintf(to, MGPU_MEMORY_TEXT,
             "weights %.1f MiB, gradients that are kept %.1f, optimizer state %.1f, frozen and "
             "statistics %.1f, activations and other gradients %.1f, inputs and results %.1f",
             (double)bytes[MGPU_BUFFER_WEIGHTS] / 0x1p20,
             (double)bytes[MGPU_BUFFER_GRADIENTS] / 0x1p20,
             (double)bytes[MGPU_BUFFER_STATES] / 0x1p20, (double)bytes[MGPU_BUFFER_FIXED] / 0x1p20,
             (double)bytes[MGPU_BUFFER_ARENA] / 0x1p20,
             (double)(bytes[MGPU_BUFFER_INPUTS] + bytes[MGPU_BUFFER_RESULTS]) / 0x1p20);
    return to;
}

/* Says what the memory is for, and what takes less. */
static int too_little_memory(const struct mgpu_trainer *t, const struct mgpu_rank *rank)
{
    char why[1024], memory[MGPU_MEMORY_TEXT];
    bool trains = !t->options.inference, cpu = rank->device.gpu >= 0 && !t->half;
    snprintf(why, sizeof why, "%s", mgpu_error());
    return mgpu_fail(MGPU_ENOMEM, "%s (%s); try a smaller --batch%s%s%s%s", why,
                     mgpu_memory_text(memory, rank->bytes), trains ? ", --accumulate M" : "",
                     trains && !t->options.recompute ? ", --recompute" : "",
                     cpu ? "; or for the CPU, " : "", cpu ? mgpu_cpu_advice(t) : "");
}

static int allocate_rank(struct mgpu_trainer *t, int r, bool share)
{
    int64_t bytes[MGPU_BUFFERS];
    struct mgpu_rank *rank = mgpu_team_rank(t->team, r);
    rank->lender = share && rank->replica > 0 ? mgpu_team_rank(t->team, rank->place) : NULL;
    memcpy(bytes, t->store[r]->bytes, sizeof bytes);
    bytes[MGPU_BUFFER_SCALARS] = MGPU_SCALARS * (int64_t)sizeof(double);
    for (int i = 0; i < t->compiled_count; i++)
        for (int b = 0; t->compiled[i].program[r] && b < MGPU_BUFFERS; b++)
            if (t->compiled[i].program[r]->bytes[b] > bytes[b])
                bytes[b] = t->compiled[i].program[r]->bytes[b];
    int rc = mgpu_rank_allocate(rank, bytes);
    if (rc == 0)
        rc = bind_rank(t, rank, share);
    return rc == MGPU_ENOMEM ? too_little_memory(t, rank) : rc;
}

/* The whole batch on no rank: finds constants that depend on a sample's place, which a rank's part
 * alone might not show (a part of one sample looks uniform). */
static int check_whole(struct mgpu_trainer *t, enum mgpu_mode mode)
{
    struct mgpu_graph *g;
    struct mgpu_applied applied;
    if (t->plan->replicas == 1 && t->pieces == 1)
        return 0;
    MGPU_TRY(mgpu_build_typed(&g, t, mode, t->batch > 1 ? t->batch : 2, t->plan));
    int rc = mgpu_prefix(
        mgpu_plan_apply(g, t->plan, 0, mode == MGPU_MODE_TRAIN ? t->pieces : 1, &applied), "%s",
        t->path);
    mgpu_graph_free(g);
    return rc;
}

int mgpu_build_programs(struct mgpu_trainer *t, unsigned modes)
{
    int ranks = mgpu_team_size(t->team);
    for (int r = 0; r < ranks; r++)
        t->store[r] = mgpu_store_layout_new();
    for (int mode = MGPU_MODE_TRAIN; mode <= MGPU_MODE_GRADIENT; mode++)
        if (modes & 1u << mode) {
            MGPU_TRY(check_whole(t, (enum mgpu_mode)mode));
            MGPU_TRY(compile_mode(t, (enum mgpu_mode)mode));
        }
    bool share = may_share(t);
    for (int r = 0; r < ranks; r++)
        MGPU_TRY(allocate_rank(t, r, share));
    if ((t->options.skip_nonfinite || t->scaling.on) && modes & 1u << MGPU_MODE_TRAIN)
        MGPU_TRY(mgpu_keep_allocate(t));
    if (t->options.profile)
        mgpu_profile_begin(t);
    return mgpu_fill_store(t);
}
