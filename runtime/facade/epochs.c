/* What happens when epochs end: validation, logs, early stop, learning rate, checkpoints. */
#include "runtime/base/file_name.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <stdlib.h>
#include <string.h>

/* ---- Setting up ------------------------------------------------------------------------------ */

/* Training's numbers, validation's as "val_NAME", the learning rate. */
static void name_logs(struct mgpu_trainer *t)
{
    struct mgpu_epochs *e = &t->epochs;
    int n = mgpu_totals_numbers(t, &t->totals), v = t->val.open ? n : 0;
    e->training = n;
    e->logs.count = n + v + 1;
    e->logs.name = MGPU_NEW_ARRAY(t->arena, const char *, n + v + 1);
    e->logs.value = MGPU_NEW_ARRAY(t->arena, double, n + v + 1);
    e->number = MGPU_NEW_ARRAY(t->arena, struct mgpu_number, n + v);
    for (int i = 0; i < n; i++)
        e->logs.name[i] = t->numbers[i].name;
    for (int i = 0; i < v; i++)
        e->logs.name[n + i] = mgpu_arena_format(t->arena, "val_%s", t->numbers[i].name);
    e->logs.name[n + v] = "learning_rate";
}

/* A full checkpoint is HDF5, whatever it is called; Keras 3 takes .weights.h5 for another layout.
 */
static int check_name(const struct mgpu_options *o)
{
    const char *path = o->checkpoint;
    if (o->weights_only)
        return mgpu_prefix(mgpu_check_save_name(path), "--checkpoint");
    if (mgpu_has_extension(path, ".weights.h5"))
        return mgpu_fail(MGPU_EUSAGE,
                         "--checkpoint %s: .weights.h5 is Keras 3's file of weights alone: name a "
                         "checkpoint to resume from .h5, or give --weights-only",
                         path);
    if (mgpu_has_extension(path, ".h5") || mgpu_has_extension(path, ".hdf5"))
        return 0;
    return mgpu_fail(MGPU_EUSAGE,
                     "--checkpoint %s: a checkpoint to resume from is HDF5: name it .h5, or give "
                     "--weights-only",
                     path);
}

/* The names of which it is known before what they will be: the epoch is in them, or nothing. Others
 * are looked at when they are written. */
static int check_names(struct mgpu_trainer *t)
{
    enum { NAMES_MOST = 10000 };
    struct mgpu_arena *arena = mgpu_arena_new();
    const char *path = t->options.checkpoint, *name;
    int64_t each = mgpu_steps_per_epoch(t), n = (t->total_steps + each - 1) / each;
    int rc = 0;
    if (!mgpu_template_is_known(path))
        n = 0;
    for (int64_t i = 0; rc == 0 && i < n && i < NAMES_MOST; i++) {
        rc = mgpu_template_format(&name, arena, path, t->epoch + i + 1, &t->epochs.logs);
        if (rc == 0)
            rc = mgpu_check_apart(t, name);
    }
    mgpu_arena_free(arena);
    return rc;
}

static int settle_checkpoint(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    struct mgpu_model_checkpoint_options c = {.path = o->checkpoint,
                                              .monitor = o->monitor,
                                              .mode = o->mode,
                                              .save_best = o->save_best,
                                              .weights_only = o->weights_only,
                                              .period = o->period,
                                              .keep = o->keep};
    if (!o->checkpoint &&
        (o->monitor || o->mode || o->save_best || o->weights_only || o->period || o->keep))
        return mgpu_fail(MGPU_EUSAGE,
                         "--monitor, --mode, --save-best, --weights-only, --period and "
                         "--keep belong to --checkpoint");
    if (!o->checkpoint)
        return 0;
    t->epochs.checkpoint = MGPU_NEW(t->arena, struct mgpu_model_checkpoint);
    MGPU_TRY(mgpu_model_checkpoint_init(t->epochs.checkpoint, &c, &t->epochs.logs, t->arena));
    MGPU_TRY(check_name(o));
    MGPU_TRY(mgpu_prefix(mgpu_check_target(o->checkpoint), "--checkpoint"));
    return mgpu_prefix(check_names(t), "--checkpoint");
}

static const char *const log_runs[] = {"train", "validation"};

static int check_logs(const struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    if (o->log_csv) {
        MGPU_TRY(mgpu_prefix(mgpu_check_target(o->log_csv), "--log-csv"));
        MGPU_TRY(mgpu_prefix(mgpu_check_apart(t, o->log_csv), "--log-csv"));
    }
    for (int i = 0; o->tensorboard && i < 1 + t->val.open; i++)
        MGPU_TRY(mgpu_prefix(mgpu_event_file_check(o->tensorboard, log_runs[i]), "--tensorboard"));
    return 0;
}

int mgpu_settle_epochs(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    struct mgpu_epochs *e = &t->epochs;
    e->lr_scale = 1;
    name_logs(t);
    if (o->early_stop) {
        e->stop = MGPU_NEW(t->arena, struct mgpu_early_stopping);
        MGPU_TRY(mgpu_early_stopping_parse(e->stop, o->early_stop, &e->logs, t->arena));
    }
    if (o->reduce_lr) {
        e->reduce = MGPU_NEW(t->arena, struct mgpu_reduce_lr);
        MGPU_TRY(mgpu_reduce_lr_parse(e->reduce, o->reduce_lr, &e->logs, t->arena));
    }
    MGPU_TRY(check_logs(t));
    return settle_checkpoint(t);
}

int mgpu_open_logs(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    struct mgpu_epochs *e = &t->epochs;
    if (e->logs_open)
        return 0;
    e->logs_open = true;
    if (o->log_csv)
        MGPU_TRY(mgpu_prefix(
            mgpu_csv_log_open(&e->csv, o->log_csv, &e->logs, o->resume != NULL, t->epoch),
            "--log-csv"));
    for (int i = 0; o->tensorboard && i < 1 + t->val.open; i++)
        MGPU_TRY(
            mgpu_prefix(mgpu_event_file_open(&e->events[i], o->tensorboard, log_runs[i], t->epoch),
                        "--tensorboard"));
    return 0;
}

void mgpu_epochs_free(struct mgpu_trainer *t)
{
    free(t->epochs.row);
    mgpu_csv_log_close(t->epochs.csv);
    for (int i = 0; i < 2; i++)
        mgpu_event_file_close(t->epochs.events[i]);
}

/* ---- An epoch's end -------------------------------------------------------------------------- */

static double learning_rate(const struct mgpu_trainer *t)
{
    return t->optimizer.attrs.lr * t->epochs.lr_scale * mgpu_schedule_factor(&t->schedule, t->step);
}

static int take_numbers(struct mgpu_trainer *t)
{
    struct mgpu_epochs *e = &t->epochs;
    const struct mgpu_number *numbers;
    int n = mgpu_epoch_numbers(t, &numbers);
    for (int i = 0; i < n; i++)
        e->logs.value[i] = numbers[i].value;
    if (t->val.open) {
        MGPU_TRY(mgpu_evaluate(t, &numbers));
        for (int i = 0; i < n; i++)
            e->logs.value[n + i] = numbers[i].value;
    }
    e->logs.value[e->logs.count - 1] = learning_rate(t);
    for (int i = 0; i < e->logs.count - 1; i++)
        e->number[i] = (struct mgpu_number){.name = e->logs.name[i], .value = e->logs.value[i]};
    return 0;
}

/* Keras's tags: epoch_loss for training and validation alike, in a folder for each. */
static int write_events(struct mgpu_trainer *t, int64_t epoch)
{
    struct mgpu_epochs *e = &t->epochs;
    char tag[1024];
    for (int i = 0; i < e->logs.count && e->events[0]; i++) {
        bool validation = i >= e->training && i < e->logs.count - 1;
        const char *name = e->logs.name[i - (validation ? e->training : 0)];
        snprintf(tag, sizeof tag, "epoch_%s", name);
        MGPU_TRY(mgpu_event_file_scalar(e->events[validation], tag, epoch, e->logs.value[i]));
    }
    return 0;
}

static int write_logs(struct mgpu_trainer *t, int64_t epoch)
{
    if (t->epochs.csv)
        MGPU_TRY(mgpu_csv_log_epoch(t->epochs.csv, epoch, &t->epochs.logs));
    return write_events(t, epoch);
}

static void keep_row(struct mgpu_trainer *t, int64_t epoch)
{
    struct mgpu_epochs *e = &t->epochs;
    size_t size = sizeof(double) * (size_t)e->logs.count;
    e->row = mgpu_grow(e->row, (size_t)e->rows, sizeof *e->row);
    e->row[e->rows++] = (struct mgpu_epoch_row){
        .epoch = epoch + 1, .value = mgpu_arena_copy(t->arena, e->logs.value, size)};
}

static int steer(struct mgpu_trainer *t, int64_t epoch, struct mgpu_epoch_result *result)
{
    struct mgpu_epochs *e = &t->epochs;
    double lr = t->optimizer.attrs.lr, now = lr * e->lr_scale;
    if (e->stop)
        e->stopped = mgpu_early_stopping_epoch(e->stop, epoch, &e->logs);
    if (e->stop && e->stop->restores && e->stop->best_now)
        MGPU_TRY(mgpu_best_keep(t));
    result->stops = e->stopped;
    if (!e->reduce)
        return 0;
    double next = mgpu_reduce_lr_epoch(e->reduce, &e->logs, now);
    if (next == now)
        return 0;
    e->lr_scale = next / lr;
    result->lr = next;
    return 0;
}

static int save(void *context, const char *path, bool weights_only)
{
    struct mgpu_trainer *t = context;
    MGPU_TRY(mgpu_prefix(mgpu_check_apart(t, path), "--checkpoint"));
    return weights_only ? mgpu_save(t, path) : mgpu_save_checkpoint(t, path);
}

int mgpu_epoch_end(struct mgpu_trainer *t, struct mgpu_epoch_result *result)
{
    struct mgpu_epochs *e = &t->epochs;
    bool whole = t->batch_in_epoch == 0;
    int64_t epoch = t->epoch - whole;
    *result = (struct mgpu_epoch_result){.numbers = e->number, .count = e->logs.count - 1};
    e->unfinished = true;
    MGPU_TRY(take_numbers(t));
    keep_row(t, epoch);
    if (whole)
        MGPU_TRY(steer(t, epoch, result));
    e->unfinished = false;
    MGPU_TRY(write_logs(t, epoch));
    if (!whole || !e->checkpoint)
        return 0;
    struct mgpu_save_sink sink = {.save = save, .context = t};
    int rc = mgpu_model_checkpoint_epoch(e->checkpoint, epoch, &e->logs, &sink, &result->saved,
                                         &result->removed);
    e->unfinished = rc < 0;
    return rc;
}

int mgpu_stop_checkpoint(struct mgpu_trainer *t, const char **path)
{
    struct mgpu_epochs *e = &t->epochs;
    *path = NULL;
    if (!e->checkpoint || t->step == 0 || e->best_again || e->unfinished)
        return 0;
    if (!e->full || e->full_step != t->step) {
        const char *name = mgpu_model_checkpoint_step(e->checkpoint, t->step);
        while (mgpu_check_apart(t, name) < 0) /* a file that this run began with */
            name = mgpu_template_step(t->arena, name, t->step);
        MGPU_TRY(mgpu_save_checkpoint(t, name));
    }
    *path = e->full;
    return 0;
}
