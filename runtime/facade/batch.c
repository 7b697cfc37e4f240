/* One batch through the ranks: cut into pieces and slices, fed, run, summed up. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    struct mgpu_trainer *t;
    const struct mgpu_batch_run *run;
    int pieces;
    bool skips;                /* what is not finite is noted and stops nothing */
    bool names;                /* nothing runs but what led to a stop */
    const char *prefix;        /* of what that says; NULL: none */
    bool begun;                /* it was given to the ranks while the batch before it ran */
    bool follows;              /* it is being given to them then: states are there */
    const struct job *next;    /* given to them while this one runs; NULL: none */
    bool sent[MGPU_MAX_RANKS]; /* the next batch's inputs are on the rank, or it has none there */
    double scalars[MGPU_SCALARS];
};

/* Whether ranks are given a batch first and finish it then: a GPU's are. */
static bool finishes(const struct mgpu_trainer *t)
{
    return mgpu_team_rank(t->team, 0)->engine->ops->finish != NULL;
}

/* Whether the time of each instruction is taken. */
static bool is_timed(const struct mgpu_trainer *t)
{
    bool timed = t->times != NULL;
    for (int i = 0; i < t->compiled_count; i++)
        timed = timed || (t->compiled[i].program[0] && t->compiled[i].program[0]->seconds);
    return timed;
}

/* ---- On each rank ---------------------------------------------------------------------------- */

static void *input_at(const struct mgpu_rank *rank, const struct mgpu_port *port)
{
    return (char *)rank->buffer[MGPU_BUFFER_INPUTS] + port->offset;
}

/* Rows of an input that has no samples: those of this step. */
static int feed_step(struct mgpu_trainer *t, const struct mgpu_batch_run *run, int slot, void *to)
{
    int64_t count = t->step_rows[slot];
    for (int64_t i = 0; i < count; i++)
        t->step_row[i] = run->index * count + i;
    return mgpu_feed_rows(run->source->feed, slot, t->step_row, count, to);
}

static int feed_inputs(struct mgpu_trainer *t, const struct mgpu_batch_run *run,
                       struct mgpu_rank *rank, const struct mgpu_program *p, int64_t first,
                       int64_t count)
{
    for (int i = 0; i < p->inputs; i++) {
        void *to = input_at(rank, &p->input[i]);
        int slot = 0;
        if (mgpu_state_feed(t, run->mode, p->input[i].name, first, count, to))
            continue;
        while (slot < t->wants && strcmp(t->want[slot].name, p->input[i].name))
            slot++;
        if (slot == t->wants)
            return mgpu_fail(MGPU_EINTERNAL, "input '%s' has no data", p->input[i].name);
        if (t->step_rows[slot])
            MGPU_TRY(feed_step(t, run, slot, to));
        else
            MGPU_TRY(mgpu_feed_rows(run->source->feed, slot, run->rows + first, count, to));
    }
    return mgpu_rank_send(rank, p);
}

/* Adds the results of rank 0 dimensions to this rank's sums. */
static void add_results(struct mgpu_trainer *t, const struct mgpu_rank *rank,
                        const struct mgpu_program *p)
{
    double *sum = t->result_sums + rank->rank * MGPU_RESULT_SUMS;
    for (int i = 0; i < p->results; i++) {
        const struct mgpu_port *r = &p->result[i];
        bool counts = r->split.kind != MGPU_SPLIT_REPLICATED || rank->replica == 0;
        if (r->rank == 0 && counts && r->index < MGPU_RESULT_SUMS)
            sum[r->index] +=
                mgpu_get_double((char *)rank->buffer[MGPU_BUFFER_RESULTS] + r->offset, r->type, 0);
    }
}

/* A short batch has no empty pieces. */
static int pieces_of(const struct mgpu_trainer *t, const struct mgpu_batch_run *run)
{
    if (run->mode != MGPU_MODE_TRAIN || run->count < 1)
        return 1;
    return run->count < t->pieces ? (int)run->count : t->pieces;
}

/* A piece of a batch, and the part of it that is a rank's. */
struct piece {
    const struct mgpu_batch_run *run;
    int number;
    int64_t first, count, own_first, own_count;
    struct mgpu_program *program;
};

static int find_piece(struct piece *out, const struct mgpu_trainer *t, const struct mgpu_rank *rank,
                      const struct mgpu_batch_run *run, int number)
{
    int64_t first;
    *out = (struct piece){.run = run, .number = number};
    mgpu_batches_slice(run->count, pieces_of(t, run), number, &out->first, &out->count);
    mgpu_batches_slice(out->count, rank->replicas, rank->replica, &first, &out->own_count);
    out->own_first = out->first + first;
    out->program = mgpu_find_program(t, run->mode, out->own_count, rank->rank);
    if (!out->program)
        return mgpu_fail(MGPU_EINTERNAL, "no program for %lld samples", (long long)out->own_count);
    return 0;
}

static int feed_piece(struct mgpu_trainer *t, struct mgpu_rank *rank, const struct piece *piece)
{
    return feed_inputs(t, piece->run, rank, piece->program, piece->own_first, piece->own_count);
}

/* ---- Inputs ahead of their run --------------------------------------------------------------- */

/* While the piece runs: those of the one after it. False: something is wrong with them, which is
 * said when it is their turn; or there are none. */
static bool send_next(struct mgpu_trainer *t, struct mgpu_rank *rank, const struct piece *piece)
{
    const struct mgpu_batch_run *run = piece->run;
    int number = piece->number + 1;
    struct piece next;
    if (!rank->engine->ops->finish)
        return false;
    if (number == pieces_of(t, run)) {
        run = run->next;
        number = 0;
    }
    if (!run || find_piece(&next, t, rank, run, number) < 0)
        return false;
    if (next.own_count && feed_piece(t, rank, &next) < 0)
        return false;
    if (next.own_count)
        t->ahead[rank->rank] = (struct mgpu_ahead){run->mode, run->step, number};
    return true;
}

static int send_now(struct mgpu_trainer *t, struct mgpu_rank *rank, const struct piece *piece)
{
    struct mgpu_ahead was = t->ahead[rank->rank];
    if (!piece->own_count)
        return 0;
    t->ahead[rank->rank].step = 0;
    if (was.step && was.mode == piece->run->mode && was.step == piece->run->step &&
        was.piece == piece->number)
        return 0;
    return feed_piece(t, rank, piece);
}

/* ---- A piece on a rank ----------------------------------------------------------------------- */

static int begin_piece(const struct job *job, struct mgpu_rank *rank, const struct piece *piece)
{
    struct mgpu_trainer *t = job->t;
    const struct mgpu_batch_run *run = job->run;
    struct mgpu_program *p = piece->program;
    int64_t count = piece->own_count;
    MGPU_TRY(send_now(t, rank, piece));
    int carries = job->follows && count ? mgpu_state_carry(t, rank->rank, p) : 0;
    double scalars[MGPU_SCALARS], all = (double)piece->count;
    memcpy(scalars, job->scalars, sizeof scalars);
    scalars[MGPU_SCALAR_PIECE] = all;
    scalars[MGPU_SCALAR_PIECE_SHARE] = run->count ? all / (double)run->count : 0;
    scalars[MGPU_SCALAR_RANK_SHARE] = all > 0 ? (double)count / all : 0;
    scalars[MGPU_SCALAR_SAMPLE_BASE] = (double)piece->own_first;
    struct mgpu_execution r = {.last_piece = piece->number == job->pieces - 1,
                               .later_piece = piece->number > 0,
                               .idle = count == 0,
                               .contributes = t->pieces > 1 || count > 0,
                               .losses = run->mode == MGPU_MODE_PREDICT ? 0 : t->losses,
                               .check_gradients = run->update,
                               .not_finite = job->skips ? &t->not_finite[rank->rank] : NULL,
                               .names = job->names,
                               .scalars = scalars,
                               .carries = carries,
                               .carry = t->carry[rank->rank],
                               .times = t->times ? t->times[rank->rank] : p->seconds};
    return mgpu_rank_execute(rank, p, &r);
}

static int end_piece(const struct job *job, struct mgpu_rank *rank, const struct piece *piece)
{
    struct mgpu_trainer *t = job->t;
    const struct mgpu_batch_run *run = job->run;
    struct mgpu_program *p = piece->program;
    int64_t first = piece->own_first, count = piece->own_count;
    MGPU_TRY(mgpu_rank_finish(rank));
    p->timed++;
    if (count) {
        add_results(t, rank, p);
        mgpu_state_keep(t, rank, p, first, count);
    }
    return run->after ? run->after(t, rank, p, first, count, run->context) : 0;
}

/* What a step changes, put aside in case it comes out not finite, and put back, where the engine
 * does not see to that. */
static const enum mgpu_buffer changed[] = {MGPU_BUFFER_WEIGHTS, MGPU_BUFFER_STATES,
                                           MGPU_BUFFER_FIXED};

static int64_t kept_bytes(const struct mgpu_rank *rank, int i)
{
    return rank->engine->ops->undoes ? 0 : mgpu_rank_own(rank, changed[i]);
}

int mgpu_keep_allocate(struct mgpu_trainer *t)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < MGPU_KEPT; i++)
            MGPU_TRY(mgpu_alloc(&t->kept[r][i], (uint64_t)kept_bytes(mgpu_team_rank(t->team, r), i),
                                "a copy of the weights, for steps that are not finite"));
    return 0;
}

static void keep(struct mgpu_trainer *t, struct mgpu_rank *rank)
{
    for (int i = 0; i < MGPU_KEPT; i++)
        if (kept_bytes(rank, i))
            memcpy(t->kept[rank->rank][i], rank->buffer[changed[i]], (size_t)kept_bytes(rank, i));
}

static int put_back(struct mgpu_rank *rank, void *context)
{
    const struct mgpu_trainer *t = context;
    for (int i = 0; i < MGPU_KEPT; i++)
        if (kept_bytes(rank, i))
            memcpy(rank->buffer[changed[i]], t->kept[rank->rank][i], (size_t)kept_bytes(rank, i));
    return 0;
}

/* Before the first piece. */
static int prepare_rank(const struct job *job, struct mgpu_rank *rank)
{
    if (job->skips && job->run->update)
        keep(job->t, rank);
    if (job->t->pieces > 1 && job->run->mode == MGPU_MODE_TRAIN)
        MGPU_TRY(mgpu_rank_clear(rank, MGPU_BUFFER_GRADIENTS));
    return 0;
}

static int run_rank(struct mgpu_rank *rank, void *context)
{
    const struct job *job = context;
    struct mgpu_trainer *t = job->t;
    struct piece piece;
    MGPU_TRY(prepare_rank(job, rank));
    for (int m = 0; m < job->pieces; m++) {
        MGPU_TRY(find_piece(&piece, t, rank, job->run, m));
        MGPU_TRY(begin_piece(job, rank, &piece));
        if (job->names)
            continue;
        if (!t->carries)
            send_next(t, rank, &piece);
        MGPU_TRY(end_piece(job, rank, &piece));
    }
    return 0;
}

/* ---- Two pieces on the ranks -----------------------------------------------------------------
 *
 * With options.run_ahead the next piece, of this batch or of the next one, is on the GPU, behind
 * this one, before the host reads this one's loss: so the GPU waits for nobody between two steps.
 * What is not finite in one stops the updates of the other there, too. */

/* Whether a piece may begin before the host has read what came of the one before it. */
static bool runs_ahead(const struct mgpu_trainer *t)
{
    return t->options.run_ahead && finishes(t) && !is_timed(t);
}

/* Whether the next step may, too: nothing of it depends on how this one ends, but for what the GPU
 * itself sees to. */
static bool may_begin_next(const struct mgpu_trainer *t, const struct mgpu_batch_run *run)
{
    return runs_ahead(t) && run->next && !run->next->waits && !t->options.gradients &&
           !mgpu_scale_grows(&t->scaling) && mgpu_state_follows(t, run->count, run->next->count);
}

static int begin_first(const struct job *job, struct mgpu_rank *rank)
{
    struct piece piece;
    MGPU_TRY(prepare_rank(job, rank));
    MGPU_TRY(find_piece(&piece, job->t, rank, job->run, 0));
    return begin_piece(job, rank, &piece);
}

/* All pieces have begun then, and all but the last are over. */
static int begin_rank(struct mgpu_rank *rank, void *context)
{
    struct job *job = context;
    struct piece piece, next;
    if (!job->begun)
        MGPU_TRY(begin_first(job, rank));
    MGPU_TRY(find_piece(&piece, job->t, rank, job->run, 0));
    for (int m = 1; m < job->pieces; m++) {
        MGPU_TRY(find_piece(&next, job->t, rank, job->run, m));
        MGPU_TRY(begin_piece(job, rank, &next));
        MGPU_TRY(end_piece(job, rank, &piece));
        piece = next;
    }
    job->sent[rank->rank] =
        (!job->t->carries || may_begin_next(job->t, job->run)) && send_next(job->t, rank, &piece);
    return 0;
}

static int end_rank(struct mgpu_rank *rank, void *context)
{
    const struct job *job = context;
    struct piece piece;
    if (job->next)
        MGPU_TRY(begin_first(job->next, rank));
    MGPU_TRY(find_piece(&piece, job->t, rank, job->run, job->pieces - 1));
    return end_piece(job, rank, &piece);
}

/* Whatever came of it. */
static int finish_rank(struct mgpu_rank *rank, void *context)
{
    (void)context;
    mgpu_rank_finish(rank);
    return 0;
}

/* The piece that has begun comes to nothing: the one before it failed. */
static void drop_begun(struct mgpu_trainer *t)
{
    mgpu_team_run(t->team, finish_rank, NULL);
    t->begun.step = 0;
}

/* ---- The whole batch ------------------------------------------------------------------------- */

static int check_weights(const double *weights, const int64_t *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(weights[i] >= 0 && isfinite(weights[i])))
            return mgpu_fail(MGPU_EINVALID,
                             "--sample-weight: the weight of sample %lld is %g; weights are finite "
                             "and not negative",
                             (long long)rows[i], weights[i]);
    return 0;
}

static int count_losses(struct mgpu_trainer *t, const struct mgpu_batch_run *run, double *counts)
{
    struct mgpu_source *s = run->source;
    if (s->sample_weight_slot >= 0 && t->losses) {
        /* the slot holds the graph's float type; doubles are wanted here */
        MGPU_TRY(mgpu_feed_rows(s->feed, s->sample_weight_slot, run->rows, run->count,
                                t->sample_weights));
        if (t->lower.float_type == MGPU_FLOAT)
            for (int64_t i = run->count - 1; i >= 0; i--)
                t->sample_weights[i] = (double)((float *)t->sample_weights)[i];
        MGPU_TRY(check_weights(t->sample_weights, run->rows, run->count));
    }
    for (int i = 0; i < t->losses; i++) {
        int slot = s->slot_of_loss[i];
        const int64_t *rows = run->rows;
        if (slot >= 0 && t->step_rows[slot])
            MGPU_TRY(feed_step(t, run, slot, t->labels[i]));
        else if (slot >= 0)
            MGPU_TRY(mgpu_feed_rows(s->feed, slot, rows, run->count, t->labels[i]));
        MGPU_TRY(mgpu_loss_count(&counts[i], &t->loss[i], run->count, t->labels[i],
                                 s->sample_weight_slot >= 0 ? t->sample_weights : NULL, rows));
    }
    return 0;
}

static int check_samples(struct mgpu_trainer *t, const struct mgpu_batch_run *run, int slot,
                         int64_t elements, void *sample)
{
    const struct mgpu_feed_want *want = &t->want[slot];
    for (int64_t i = 0; i < run->count; i++) {
        MGPU_TRY(mgpu_feed_rows(run->source->feed, slot, &run->rows[i], 1, sample));
        for (int64_t e = 0; e < elements; e++) {
            double value = mgpu_get_double(sample, want->type, e);
            if (!isfinite(value))
                return mgpu_fail(MGPU_EINVALID, "'%s', sample %lld: the value %g is not finite",
                                 want->name, (long long)run->rows[i], value);
        }
    }
    return 0;
}

static int blame_sample(struct mgpu_trainer *t, const struct mgpu_batch_run *run)
{
    for (int slot = 0; slot < t->wants; slot++) {
        const struct mgpu_feed_want *want = &t->want[slot];
        int64_t elements = 1;
        void *sample;
        for (int k = 0; k < want->rank; k++)
            elements *= want->dims[k];
        if (t->step_rows[slot] || want->first_only || !mgpu_is_float(want->type))
            continue;
        MGPU_TRY(mgpu_alloc(&sample, (uint64_t)elements * mgpu_dtype_size(want->type), "a sample"));
        int rc = check_samples(t, run, slot, elements, sample);
        mgpu_free(sample);
        MGPU_TRY(rc);
    }
    return 0;
}

/* When a step failed for its values: a sample that is not finite is the better reason, whichever
 * rank and node met it first. Ranks that change weights within backward have not looked for the
 * node yet: now no other changes them. Nor have those that began the next step meanwhile. */
static int find_reason(struct mgpu_trainer *t, struct job *job)
{
    MGPU_TRY(blame_sample(t, job->run));
    job->names = true;
    int rc = mgpu_updates_early(t) || finishes(t) ? mgpu_team_run(t->team, run_rank, job) : 0;
    if (rc == 0)
        rc = MGPU_EINVALID; /* and the text is still that of the step */
    return job->prefix ? mgpu_prefix(rc, "%s", job->prefix) : rc;
}

/* done: steps before it. */
static void set_scalars(const struct mgpu_trainer *t, const struct mgpu_batch_run *run,
                        int64_t done, const double *counts, double *scalars)
{
    scalars[MGPU_SCALAR_STEP] = (double)(t->slots.updates + done);
    scalars[MGPU_SCALAR_LR_FACTOR] = t->epochs.lr_scale * mgpu_schedule_factor(&t->schedule, done);
    scalars[MGPU_SCALAR_LOSS_SCALE] = t->scaling.scale;
    scalars[MGPU_SCALAR_UNSCALE] = 1 / t->scaling.scale;
    scalars[MGPU_SCALAR_BATCH] = (double)run->count;
    scalars[MGPU_SCALAR_KEY] = (double)(t->options.seed & ((INT64_C(1) << 52) - 1));
    for (int i = 0; i < t->losses; i++)
        scalars[MGPU_SCALAR_LOSS + i] = t->loss[i].sum ? 1 : counts[i] > 0 ? 1 / counts[i] : 0;
}

/* Of the batch before. */
static void clear_results(struct mgpu_trainer *t)
{
    size_t sums = (size_t)mgpu_team_size(t->team) * MGPU_RESULT_SUMS;
    memset(t->result_sums, 0, sizeof *t->result_sums * sums);
    memset(t->not_finite, 0, sizeof t->not_finite);
}

static double result(const struct mgpu_trainer *t, int i)
{
    double sum = 0;
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        sum += t->result_sums[r * MGPU_RESULT_SUMS + i];
    return sum;
}

static bool losses_finite(const struct mgpu_trainer *t)
{
    bool finite = true;
    for (int i = 0; i < t->losses; i++)
        finite = finite && isfinite(result(t, i));
    return finite;
}

/* A step that came out not finite never was. A loss that is not says nothing of its scale: the step
 * is taken again, to stop where that begins, unless --skip-nonfinite; and so it is where no scale
 * is left. */
static int skip(struct mgpu_trainer *t, struct job *job)
{
    drop_begun(t);
    if (mgpu_team_run(t->team, put_back, t) < 0)
        return MGPU_EINTERNAL;
    bool scales = t->scaling.on && losses_finite(t);
    if (scales && mgpu_scale_down(t))
        return MGPU_SKIPPED;
    if (t->options.skip_nonfinite)
        return MGPU_SKIPPED;
    job->skips = false;
    job->prefix = scales
                      ? "in float16, with the loss scaled by less than 2^-23, which is not halved "
                        "again (bfloat16 ends where float32 does: --precision bf16)"
                      : "in float16, which ends at 65504 (bfloat16 ends where float32 does: "
                        "--precision bf16)";
    clear_results(t);
    int rc = mgpu_team_run(t->team, run_rank, job);
    return rc == MGPU_EINVALID ? find_reason(t, job) : rc;
}

/* What is wrong with the next step's labels is said when it is its turn. */
static bool prepare_next(struct mgpu_trainer *t, struct job *next)
{
    double *counts = t->begun.counts;
    bool predicts = next->run->mode == MGPU_MODE_PREDICT;
    if (!predicts && count_losses(t, next->run, counts) < 0)
        return false;
    set_scalars(t, next->run, t->step + next->run->update, counts, next->scalars);
    return true;
}

static int run_two(struct mgpu_trainer *t, struct job *job)
{
    bool both = may_begin_next(t, job->run);
    struct job next = {.t = t, .run = job->run->next, .skips = job->skips, .follows = true};
    next.pieces = both ? pieces_of(t, next.run) : 0;
    MGPU_TRY(mgpu_team_run(t->team, begin_rank, job));
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        both = both && job->sent[r];
    if (both && prepare_next(t, &next)) {
        job->next = &next;
        t->begun.mode = next.run->mode;
        t->begun.step = next.run->step;
    }
    return mgpu_team_run(t->team, end_rank, job);
}

int mgpu_run_batch(struct mgpu_trainer *t, const struct mgpu_batch_run *run, double *losses,
                   double *counts, struct mgpu_totals *totals)
{
    bool predicts = run->mode == MGPU_MODE_PREDICT, failed = false, update = run->update;
    struct job job = {.t = t,
                      .run = run,
                      .pieces = pieces_of(t, run),
                      .skips = t->options.skip_nonfinite || (t->scaling.on && update),
                      .begun = t->begun.step == run->step && t->begun.mode == run->mode};
    if (job.begun)
        memcpy(counts, t->begun.counts, sizeof *counts * (size_t)t->losses);
    else if (!predicts)
        MGPU_TRY(count_losses(t, run, counts));
    t->begun.step = 0;
    set_scalars(t, run, t->step, counts, job.scalars);
    clear_results(t);
    int rc = job.begun || runs_ahead(t) ? run_two(t, &job) : mgpu_team_run(t->team, run_rank, &job);
    if (rc < 0)
        drop_begun(t);
    MGPU_TRY(rc == MGPU_EINVALID ? find_reason(t, &job) : rc);
    for (int i = 0; i < t->losses && !predicts; i++)
        losses[i] = result(t, i);
    for (int r = 0; r < mgpu_team_size(t->team) && update; r++)
        failed = failed || t->not_finite[r];
    rc = failed ? skip(t, &job) : 0;
    if (rc != 0)
        return rc;
    if (t->scaling.on && update)
        mgpu_scale_up(t);
    mgpu_state_advance(t, run->mode, run->count);
    for (int i = 0; i < t->losses && !predicts; i++) {
        totals->loss[i] += t->loss[i].sum ? losses[i] : losses[i] * counts[i];
        totals->count[i] += t->loss[i].sum ? 1 : counts[i];
    }
    for (int i = 0; i < t->metrics && !predicts && run->mode != MGPU_MODE_GRADIENT; i++) {
        totals->metric_sum[i] += result(t, t->losses + 2 * i);
        totals->metric_count[i] += result(t, t->losses + 2 * i + 1);
    }
    totals->samples += run->count;
    return 0;
}

void mgpu_batch_of(struct mgpu_trainer *t, int64_t i, struct mgpu_batch_run *run,
                   struct mgpu_batch_run *next)
{
    struct mgpu_batches *b = &run->source->batches;
    run->rows = t->rows;
    run->count = mgpu_batches_rows(b, i, t->rows);
    run->index = i;
    run->step = i + 1;
    run->next = i + 1 < mgpu_batches_count(b) ? next : NULL;
    *next = *run;
    next->rows = t->next_rows;
    next->count = run->next ? mgpu_batches_rows(b, i + 1, t->next_rows) : 0;
    next->index++;
    next->step++;
    next->next = NULL;
}

void mgpu_totals_clear(struct mgpu_totals *totals, int metrics)
{
    double *sum = totals->metric_sum, *count = totals->metric_count;
    memset(totals, 0, sizeof *totals);
    totals->metric_sum = sum;
    totals->metric_count = count;
    if (metrics) {
        memset(sum, 0, sizeof *sum * (size_t)metrics);
        memset(count, 0, sizeof *count * (size_t)metrics);
    }
}

int mgpu_totals_numbers(struct mgpu_trainer *t, const struct mgpu_totals *totals)
{
    int n = 0;
    double whole = 0;
    t->numbers[n++] = (struct mgpu_number){.name = "loss"};
    for (int i = 0; i < t->losses; i++) {
        double none = totals->samples ? 0 : NAN; /* every step was skipped: nothing is known */
        double mean = totals->count[i] > 0 ? totals->loss[i] / totals->count[i] : none;
        whole += mean;
        if (t->losses > 1)
            t->numbers[n++] = (struct mgpu_number){.name = t->number_names[i], .value = mean};
    }
    t->numbers[0].value = whole;
    for (int i = 0; i < t->metrics; i++)
        t->numbers[n++] =
            (struct mgpu_number){.name = t->metric[i].name,
                                 .value = mgpu_metric_value(&t->metric[i], totals->metric_sum[i],
                                                            totals->metric_count[i])};
    return n;
}
