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
    bool skips; /* what is not finite is noted and stops nothing */
    bool names; /* nothing runs but what led to a stop */
    bool not_finite[MGPU_MAX_RANKS];
    double scalars[MGPU_SCALARS];
};

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
static void add_results(struct job *job, struct mgpu_rank *rank, const struct mgpu_program *p)
{
    double *sum = job->t->result_sums + rank->rank * MGPU_RESULT_SUMS;
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

struct meanwhile {
    struct mgpu_trainer *t;
    struct mgpu_rank *rank;
    const struct piece *piece; /* that runs */
};

/* What is wrong with them is said when it is their turn. */
static void send_next(void *context)
{
    const struct meanwhile *m = context;
    const struct mgpu_batch_run *run = m->piece->run;
    struct mgpu_ahead *ahead = &m->t->ahead[m->rank->rank];
    int number = m->piece->number + 1;
    struct piece next;
    if (number == pieces_of(m->t, run)) {
        run = run->next;
        number = 0;
    }
    if (!run || m->t->carries || find_piece(&next, m->t, m->rank, run, number) < 0)
        return;
    if (next.own_count && feed_piece(m->t, m->rank, &next) == 0)
        *ahead = (struct mgpu_ahead){run->step, number};
}

static int send_now(struct mgpu_trainer *t, struct mgpu_rank *rank, const struct piece *piece)
{
    struct mgpu_ahead was = t->ahead[rank->rank];
    if (!piece->own_count)
        return 0;
    t->ahead[rank->rank].step = 0;
    if (was.step && was.step == piece->run->step && was.piece == piece->number)
        return 0;
    return feed_piece(t, rank, piece);
}

/* ---- A piece on a rank ----------------------------------------------------------------------- */

static int run_piece(struct job *job, struct mgpu_rank *rank, int number, bool *contributes)
{
    struct mgpu_trainer *t = job->t;
    const struct mgpu_batch_run *run = job->run;
    struct piece piece;
    MGPU_TRY(find_piece(&piece, t, rank, run, number));
    MGPU_TRY(send_now(t, rank, &piece));
    struct meanwhile meanwhile = {t, rank, &piece};
    struct mgpu_program *p = piece.program;
    int64_t count = piece.own_count;
    *contributes = *contributes || count;
    double scalars[MGPU_SCALARS];
    memcpy(scalars, job->scalars, sizeof scalars);
    double all = (double)piece.count;
    scalars[MGPU_SCALAR_PIECE] = all;
    scalars[MGPU_SCALAR_PIECE_SHARE] = run->count ? all / (double)run->count : 0;
    scalars[MGPU_SCALAR_RANK_SHARE] = all > 0 ? (double)count / all : 0;
    scalars[MGPU_SCALAR_SAMPLE_BASE] = (double)piece.own_first;
    struct mgpu_execution r = {.last_piece = number == job->pieces - 1,
                               .idle = count == 0,
                               .contributes = t->pieces > 1 || *contributes,
                               .losses = run->mode == MGPU_MODE_PREDICT ? 0 : t->losses,
                               .check_gradients = run->update,
                               .not_finite = job->skips ? &job->not_finite[rank->rank] : NULL,
                               .names = job->names,
                               .scalars = scalars,
                               .times = t->times ? t->times[rank->rank] : p->seconds,
                               .meanwhile = send_next,
                               .context = &meanwhile};
    MGPU_TRY(mgpu_rank_execute(rank, p, &r));
    if (job->names)
        return 0;
    p->timed++;
    if (count) {
        add_results(job, rank, p);
        mgpu_state_keep(t, rank, p, piece.own_first, count);
    }
    return run->after ? run->after(t, rank, p, piece.own_first, count, run->context) : 0;
}

/* What a step changes, put aside in case it comes out not finite, and put back: --skip-nonfinite,
 * and float16, whose gradients end a step in the same way on every rank. */
static const enum mgpu_buffer changed[] = {MGPU_BUFFER_WEIGHTS, MGPU_BUFFER_STATES,
                                           MGPU_BUFFER_FIXED};

struct range {
    int64_t offset, bytes;
};

/* What holds the running statistics. */
static struct range statistics_of(const struct mgpu_store_layout *store)
{
    int64_t from = INT64_MAX, to = 0;
    for (int i = 0; i < store->count; i++) {
        const struct mgpu_stored *e = &store->entry[i];
        if (e->role != MGPU_STATISTIC)
            continue;
        from = e->offset < from ? e->offset : from;
        to = e->offset + e->bytes > to ? e->offset + e->bytes : to;
    }
    return to ? (struct range){from, to - from} : (struct range){0, 0};
}

/* Gradients that are not finite are so on all ranks, if all have the same: an engine that holds the
 * updates then leaves only the statistics. */
static struct range kept_range(const struct mgpu_trainer *t, const struct mgpu_rank *rank, int i)
{
    bool held = rank->engine->ops->holds_updates && !t->options.skip_nonfinite && rank->places == 1;
    if (held && changed[i] == MGPU_BUFFER_FIXED)
        return statistics_of(t->store[rank->rank]);
    return (struct range){0, held ? 0 : mgpu_rank_own(rank, changed[i])};
}

int mgpu_keep_allocate(struct mgpu_trainer *t)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < MGPU_KEPT; i++)
            MGPU_TRY(mgpu_alloc(&t->kept[r][i],
                                (uint64_t)kept_range(t, mgpu_team_rank(t->team, r), i).bytes,
                                "a copy of the weights, for steps that are not finite"));
    return 0;
}

static int keep(struct mgpu_trainer *t, struct mgpu_rank *rank)
{
    for (int i = 0; i < MGPU_KEPT; i++) {
        struct range k = kept_range(t, rank, i);
        if (!k.bytes)
            continue;
        MGPU_TRY(mgpu_rank_download(rank, changed[i], k.offset, k.bytes));
        memcpy(t->kept[rank->rank][i], (char *)rank->buffer[changed[i]] + k.offset,
               (size_t)k.bytes);
    }
    return 0;
}

static int put_back(struct mgpu_rank *rank, void *context)
{
    struct mgpu_trainer *t = context;
    for (int i = 0; i < MGPU_KEPT; i++) {
        struct range k = kept_range(t, rank, i);
        if (!k.bytes)
            continue;
        memcpy((char *)rank->buffer[changed[i]] + k.offset, t->kept[rank->rank][i],
               (size_t)k.bytes);
        MGPU_TRY(mgpu_rank_upload(rank, changed[i], k.offset, k.bytes));
    }
    return 0;
}

static int clear_gradients(struct mgpu_rank *rank)
{
    int64_t bytes = rank->bytes[MGPU_BUFFER_GRADIENTS];
    memset(rank->buffer[MGPU_BUFFER_GRADIENTS], 0, (size_t)bytes);
    return mgpu_rank_upload(rank, MGPU_BUFFER_GRADIENTS, 0, bytes);
}

static int run_rank(struct mgpu_rank *rank, void *context)
{
    struct job *job = context;
    bool contributes = false;
    if (job->skips && job->run->update)
        MGPU_TRY(keep(job->t, rank));
    memset(job->t->result_sums + rank->rank * MGPU_RESULT_SUMS, 0,
           sizeof(double) * MGPU_RESULT_SUMS);
    if (job->t->pieces > 1 && job->run->mode == MGPU_MODE_TRAIN)
        MGPU_TRY(clear_gradients(rank));
    for (int m = 0; m < job->pieces; m++)
        MGPU_TRY(run_piece(job, rank, m, &contributes));
    return 0;
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
 * node yet: now no other changes them. */
static int find_reason(struct mgpu_trainer *t, struct job *job)
{
    MGPU_TRY(blame_sample(t, job->run));
    job->names = true;
    if (mgpu_updates_early(t))
        MGPU_TRY(mgpu_team_run(t->team, run_rank, job));
    return MGPU_EINVALID;
}

static void set_scalars(struct mgpu_trainer *t, const struct mgpu_batch_run *run,
                        const double *counts, double *scalars)
{
    scalars[MGPU_SCALAR_STEP] = (double)(t->slots.updates + t->step);
    scalars[MGPU_SCALAR_LR_FACTOR] =
        t->epochs.lr_scale * mgpu_schedule_factor(&t->schedule, t->step);
    scalars[MGPU_SCALAR_LOSS_SCALE] = t->scaling.scale;
    scalars[MGPU_SCALAR_UNSCALE] = 1 / t->scaling.scale;
    scalars[MGPU_SCALAR_BATCH] = (double)run->count;
    scalars[MGPU_SCALAR_KEY] = (double)(t->options.seed & ((INT64_C(1) << 52) - 1));
    for (int i = 0; i < t->losses; i++)
        scalars[MGPU_SCALAR_LOSS + i] = t->loss[i].sum ? 1 : counts[i] > 0 ? 1 / counts[i] : 0;
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
    if (mgpu_team_run(t->team, put_back, t) < 0)
        return MGPU_EINTERNAL;
    bool scales = t->scaling.on && losses_finite(t);
    if (scales && mgpu_scale_down(t))
        return MGPU_SKIPPED;
    if (t->options.skip_nonfinite)
        return MGPU_SKIPPED;
    job->skips = false;
    int rc = mgpu_prefix(mgpu_team_run(t->team, run_rank, job),
                         "in float16%s (bfloat16 ends where float32 does: --precision bf16)",
                         scales ? ", whatever the loss is scaled by" : ", which ends at 65504");
    return rc == MGPU_EINVALID ? find_reason(t, job) : rc;
}

int mgpu_run_batch(struct mgpu_trainer *t, const struct mgpu_batch_run *run, double *losses,
                   double *counts, struct mgpu_totals *totals)
{
    bool predicts = run->mode == MGPU_MODE_PREDICT, failed = false;
    struct job job = {.t = t,
                      .run = run,
                      .pieces = pieces_of(t, run),
                      .skips = t->options.skip_nonfinite || (t->scaling.on && run->update)};
    if (!predicts)
        MGPU_TRY(count_losses(t, run, counts));
    set_scalars(t, run, counts, job.scalars);
    int rc = mgpu_team_run(t->team, run_rank, &job);
    MGPU_TRY(rc == MGPU_EINVALID ? find_reason(t, &job) : rc);
    for (int i = 0; i < t->losses && !predicts; i++)
        losses[i] = result(t, i);
    for (int r = 0; r < mgpu_team_size(t->team) && run->update; r++)
        failed = failed || job.not_finite[r];
    rc = failed ? skip(t, &job) : 0;
    if (rc != 0)
        return rc;
    if (t->scaling.on && run->update)
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
