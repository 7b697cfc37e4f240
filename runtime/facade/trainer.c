/* The trainer: made, stepped, evaluated, freed. */
#include "partitioner/plan_file.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Making ---------------------------------------------------------------------------------- */

static int settle_length(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    int64_t most = mgpu_batches_count(&t->train.batches);
    if (o->steps_per_epoch > most)
        mgpu_note("--steps-per-epoch %lld: an epoch has %lld", (long long)o->steps_per_epoch,
                  (long long)most);
    if (o->initial_epoch && o->steps <= 0 && o->initial_epoch >= o->epochs)
        return mgpu_fail(MGPU_EUSAGE, "--initial-epoch %lld: --epochs %lld leaves nothing to do",
                         (long long)o->initial_epoch, (long long)o->epochs);
    t->epoch = o->initial_epoch;
    return mgpu_settle_total(t);
}

static int check_trained(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->weights->count; i++)
        if (t->weights->weight[i].role == MGPU_ROLE_TRAINED)
            return 0;
    return mgpu_fail(MGPU_EINVALID, "%s: there is nothing to train: no weight is left", t->path);
}

static void make_numbers(struct mgpu_trainer *t)
{
    t->numbers = MGPU_NEW_ARRAY(t->arena, struct mgpu_number, 1 + t->losses + t->metrics);
    t->number_names = MGPU_NEW_ARRAY(t->arena, char *, t->losses);
    for (int i = 0; i < t->losses; i++) {
        int same = 1; /* losses of one output: loss_y, loss_y_2 ... */
        for (int k = 0; k < i; k++)
            same += !strcmp(t->loss[k].output, t->loss[i].output);
        t->number_names[i] =
            same > 1 ? mgpu_arena_format(t->arena, "loss_%s_%d", t->loss[i].output, same)
                     : mgpu_arena_format(t->arena, "loss_%s", t->loss[i].output);
    }
    t->totals.metric_sum = MGPU_NEW_ARRAY(t->arena, double, t->metrics);
    t->totals.metric_count = MGPU_NEW_ARRAY(t->arena, double, t->metrics);
}

static int set_up(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    bool trains = !o->inference;
    t->pieces = o->accumulate > 1 ? (int)o->accumulate : 1;
    MGPU_TRY(mgpu_settle_model(t));
    if (o->resume)
        MGPU_TRY(mgpu_resume_read(t));
    MGPU_TRY(mgpu_settle_data(t));
    MGPU_TRY(trains ? check_trained(t) : 0);
    MGPU_TRY(mgpu_settle_devices(t));
    MGPU_TRY(mgpu_read_plan(t));
    MGPU_TRY(mgpu_settle_losses(t));
    if (t->pieces > t->batch)
        return mgpu_fail(MGPU_EUSAGE, "--accumulate: a batch of %lld has no %d pieces",
                         (long long)t->batch, t->pieces);
    if (trains)
        MGPU_TRY(mgpu_settle_optimizer(t));
    MGPU_TRY(settle_length(t));
    MGPU_TRY(mgpu_settle_plan(t));
    make_numbers(t);
    if (trains)
        MGPU_TRY(mgpu_settle_epochs(t));
    unsigned modes = 0;
    if (trains)
        modes |= o->check_gradients ? 1u << MGPU_MODE_GRADIENT : 1u << MGPU_MODE_TRAIN;
    if (t->losses && (o->inference || t->val.open))
        modes |= 1u << MGPU_MODE_EVALUATE;
    if (o->predict)
        modes |= 1u << MGPU_MODE_PREDICT;
    MGPU_TRY(mgpu_build_programs(t, modes));
    if (trains && t->epochs.stop && t->epochs.stop->restores)
        MGPU_TRY(mgpu_best_allocate(t));
    MGPU_TRY(o->resume ? mgpu_resume_restore(t) : 0);
    return trains && o->weights_only ? mgpu_check_checkpoint(t) : 0;
}

int mgpu_trainer_new(struct mgpu_trainer **out, const char *model,
                     const struct mgpu_options *options)
{
    *out = NULL;
    mgpu_fold_set(mgpu_ref_fold);
    struct mgpu_trainer *t = mgpu_xcalloc(1, sizeof *t);
    t->arena = mgpu_arena_new();
    t->options = *options;
    t->path = mgpu_arena_string(t->arena, model);
    int rc = set_up(t);
    if (rc < 0)
        mgpu_trainer_free(t);
    else
        *out = t;
    return rc;
}

static void free_source(struct mgpu_source *s)
{
    if (s->open)
        mgpu_batches_free(&s->batches);
}

void mgpu_trainer_free(struct mgpu_trainer *t)
{
    if (!t)
        return;
    mgpu_epochs_free(t);
    mgpu_array_list_free(&t->slots.list);
    if (t->resume.arena)
        mgpu_run_state_free(&t->resume);
    for (int i = 0; i < t->compiled_count; i++)
        for (int r = 0; r < MGPU_MAX_RANKS; r++)
            mgpu_program_free(t->compiled[i].program[r]);
    free(t->compiled);
    mgpu_team_free(t->team);
    mgpu_plan_free(t->plan);
    mgpu_plan_file_free(t->plan_file);
    for (int r = 0; r < MGPU_MAX_RANKS; r++)
        mgpu_store_layout_free(t->store[r]);
    free_source(&t->train);
    free_source(&t->val);
    if (t->val.feed != t->train.feed)
        mgpu_feed_close(t->val.feed);
    mgpu_feed_close(t->train.feed);
    for (int i = 0; t->labels && i < t->losses; i++)
        mgpu_free(t->labels[i]);
    free(t->labels);
    mgpu_state_free(t);
    mgpu_free(t->rows);
    mgpu_free(t->next_rows);
    mgpu_free(t->step_row);
    mgpu_free(t->sample_weights);
    free(t->result_sums);
    for (int r = 0; r < MGPU_MAX_RANKS; r++)
        for (int i = 0; i < MGPU_KEPT; i++)
            mgpu_free(t->kept[r][i]);
    mgpu_best_free(t);
    free(t->devices);
    mgpu_weights_free(t->weights);
    mgpu_onnx_model_free(t->model);
    mgpu_onnx_free(t->file);
    mgpu_arena_free(t->arena);
    free(t);
}

/* ---- Training -------------------------------------------------------------------------------- */

static void begin_epoch(struct mgpu_trainer *t)
{
    mgpu_batches_epoch(&t->train.batches, t->epoch);
    mgpu_totals_clear(&t->totals, t->metrics);
}

/* The batch after this one, unless the run ends with it, or validation comes first. Its inputs may
 * be sent ahead, where they do not depend on what this one computes. */
static const struct mgpu_batch_run *next_batch(struct mgpu_trainer *t, struct mgpu_batch_run *next)
{
    int64_t index = t->batch_in_epoch + 1;
    bool ends = index == mgpu_steps_per_epoch(t);
    if (t->step + 1 == t->total_steps || (ends && t->val.open))
        return NULL;
    *next = (struct mgpu_batch_run){.mode = MGPU_MODE_TRAIN,
                                    .source = &t->train,
                                    .rows = t->next_rows,
                                    .index = ends ? 0 : index,
                                    .update = true,
                                    .step = t->step + 2,
                                    .waits = ends};
    if (ends)
        mgpu_batches_epoch(&t->train.batches, t->epoch + 1);
    next->count = mgpu_batches_rows(&t->train.batches, next->index, t->next_rows);
    return next;
}

static int take_step(struct mgpu_trainer *t, struct mgpu_step_result *result, bool goes_on)
{
    double losses[MGPU_MAX_LOSSES], counts[MGPU_MAX_LOSSES];
    struct mgpu_batch_run next;
    int64_t n = mgpu_batches_rows(&t->train.batches, t->batch_in_epoch, t->rows);
    struct mgpu_batch_run run = {.mode = MGPU_MODE_TRAIN,
                                 .source = &t->train,
                                 .rows = t->rows,
                                 .count = n,
                                 .index = t->batch_in_epoch,
                                 .update = true,
                                 .step = t->step + 1,
                                 .next = goes_on ? next_batch(t, &next) : NULL};
    int rc = mgpu_prefix(mgpu_run_batch(t, &run, losses, counts, &t->totals), "step %lld",
                         (long long)t->step + 1);
    MGPU_TRY(rc);
    if (rc == MGPU_SKIPPED)
        t->slots.updates--; /* the optimizer counts what it did */
    *result = (struct mgpu_step_result){.step = ++t->step,
                                        .epoch = t->epoch + 1,
                                        .samples = n,
                                        .skipped = rc == MGPU_SKIPPED,
                                        .loss_scale = t->scaling.used};
    for (int i = 0; i < t->losses; i++)
        result->loss += losses[i];
    mgpu_history_add(&t->history, result->loss);
    if (++t->batch_in_epoch == mgpu_steps_per_epoch(t)) {
        result->epoch_ends = true;
        t->batch_in_epoch = 0;
        t->epoch++;
    }
    return 1;
}

int mgpu_step(struct mgpu_trainer *t, struct mgpu_step_result *result)
{
    if (t->step >= t->total_steps || t->epochs.stopped)
        return mgpu_best_restore(t);
    MGPU_TRY(mgpu_open_logs(t));
    if (t->batch_in_epoch == 0)
        begin_epoch(t);
    return take_step(t, result, true);
}

int mgpu_step_begun(struct mgpu_trainer *t, struct mgpu_step_result *result)
{
    return t->begun.step ? take_step(t, result, false) : 0;
}

int mgpu_check_settled(const struct mgpu_trainer *t)
{
    return t->begun.step ? mgpu_fail(MGPU_EUSAGE, "step %lld has begun: call mgpu_step_begun first",
                                     (long long)t->begun.step)
                         : 0;
}

int mgpu_epoch_numbers(struct mgpu_trainer *t, const struct mgpu_number **numbers)
{
    *numbers = t->numbers;
    return mgpu_totals_numbers(t, &t->totals);
}

/* ---- Evaluation ------------------------------------------------------------------------------ */

/* All batches of a source in inference form. */
static int evaluate_source(struct mgpu_trainer *t, struct mgpu_source *source,
                           struct mgpu_totals *totals)
{
    double losses[MGPU_MAX_LOSSES], counts[MGPU_MAX_LOSSES];
    MGPU_TRY(mgpu_check_settled(t));
    mgpu_batches_epoch(&source->batches, 0);
    MGPU_TRY(mgpu_state_start(t, source, MGPU_MODE_EVALUATE));
    for (int64_t i = 0; i < mgpu_batches_count(&source->batches); i++) {
        struct mgpu_batch_run next, run = {.mode = MGPU_MODE_EVALUATE, .source = source};
        mgpu_batch_of(t, i, &run, &next);
        MGPU_TRY(mgpu_prefix(mgpu_run_batch(t, &run, losses, counts, totals), "%s",
                             source == &t->val ? "validation" : "evaluation"));
    }
    return 0;
}

int mgpu_evaluate(struct mgpu_trainer *t, const struct mgpu_number **numbers)
{
    struct mgpu_totals totals = {0};
    if (!t->losses)
        return mgpu_fail(MGPU_EUSAGE, "nothing to evaluate: give --loss");
    if (!t->val.open && !t->options.inference)
        return mgpu_fail(MGPU_EUSAGE, "%s: nothing to evaluate on: give --val", t->path);
    totals.metric_sum = mgpu_xcalloc((size_t)t->metrics, sizeof(double));
    totals.metric_count = mgpu_xcalloc((size_t)t->metrics, sizeof(double));
    int rc = evaluate_source(t, t->val.open ? &t->val : &t->train, &totals);
    if (rc == 0) {
        *numbers = t->numbers;
        rc = mgpu_totals_numbers(t, &totals);
    }
    free(totals.metric_sum);
    free(totals.metric_count);
    return rc;
}

bool mgpu_has_validation(const struct mgpu_trainer *t)
{
    return t->val.open;
}

/* ---- Facts ----------------------------------------------------------------------------------- */

static void count_weights(const struct mgpu_trainer *t, struct mgpu_facts *f)
{
    for (int i = 0; i < t->weights->count; i++) {
        const struct mgpu_weight *w = &t->weights->weight[i];
        if (w->role == MGPU_ROLE_TRAINED) {
            f->trained++;
            f->trained_elements +=
                mgpu_array_count(&t->model->initializer[w->holder[0].initializer].array);
        }
        f->frozen += w->role == MGPU_ROLE_FROZEN;
        f->statistics += w->role == MGPU_ROLE_STATISTIC;
    }
}

/* How running statistics are taken, when some are. */
static const char *batch_norm(const struct mgpu_trainer *t)
{
    bool moves = false;
    for (int i = 0; i < t->compiled_count && t->compiled[i].mode == MGPU_MODE_TRAIN; i++) {
        const struct mgpu_program *p = t->compiled[i].program[0];
        for (int k = 0; p && k < p->graph->parameter_count; k++)
            moves = moves || (p->graph->parameters[k].role == MGPU_STATISTIC &&
                              p->graph->parameters[k].next);
    }
    if (!moves)
        return NULL;
    bool ranks = t->plan->replicas > 1 && t->lower.norm != MGPU_NORM_SYNC;
    if (t->pieces > 1)
        return ranks ? "by each rank's own samples of a piece (--batch-norm sync: all)"
                     : "by each piece of the batch";
    return t->lower.norm == MGPU_NORM_SYNC ? "over the whole batch (sync)"
           : ranks                         ? "by each rank's own samples (--batch-norm sync: all)"
                                           : "by the batch";
}

static const char *rank_devices(const struct mgpu_trainer *t)
{
    const char *list = "";
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        list = mgpu_arena_format(t->arena, "%s%s%s", list, r ? "," : "",
                                 mgpu_team_rank(t->team, r)->device.name);
    return list;
}

/* Epochs that there will have been in the end, begun ones too. */
static int64_t epochs(const struct mgpu_trainer *t)
{
    int64_t each = mgpu_steps_per_epoch(t), left = t->total_steps - t->step;
    return t->epoch + (t->batch_in_epoch + (left > 0 ? left : 0) + each - 1) / each;
}

void mgpu_trainer_facts(const struct mgpu_trainer *t, struct mgpu_facts *f)
{
    *f = (struct mgpu_facts){.samples = t->samples,
                             .val_samples = t->val_samples,
                             .batch = t->batch,
                             .steps_per_epoch = mgpu_steps_per_epoch(t),
                             .total_steps = t->total_steps,
                             .step = t->step,
                             .epochs = epochs(t),
                             .ranks = mgpu_team_size(t->team),
                             .threads = t->devices[0].threads,
                             .memory_bytes = mgpu_alloc_bytes(),
                             .peak_memory_bytes = mgpu_alloc_peak(),
                             .devices = rank_devices(t),
                             .strategy = t->plan_file ? t->plan_file->strategy
                                                      : mgpu_strategy_name(t->plan->strategy),
                             .batch_norm = batch_norm(t)};
    count_weights(t, f);
}

int mgpu_trainer_describe(struct mgpu_trainer *t, FILE *to)
{
    struct mgpu_facts f;
    char memory[MGPU_MEMORY_TEXT];
    mgpu_trainer_facts(t, &f);
    fprintf(to, "plan: %s, %d rank%s of %d thread%s\n", f.strategy, f.ranks,
            f.ranks == 1 ? "" : "s", f.threads, f.threads == 1 ? "" : "s");
    for (int r = 0; r < f.ranks; r++) {
        const struct mgpu_rank *rank = mgpu_team_rank(t->team, r);
        fprintf(to, "rank %d (%s)%s: %s\n", r, rank->device.name,
                rank->lender ? " with the weights and state of the first" : "",
                mgpu_memory_text(memory, rank->bytes));
    }
    fprintf(to,
            "%d weights trained (%lld elements), %d frozen, %d running statistics\n"
            "%lld samples, batches of %lld, %lld steps\n",
            f.trained, (long long)f.trained_elements, f.frozen, f.statistics, (long long)f.samples,
            (long long)f.batch, (long long)f.total_steps);
    return 0;
}
