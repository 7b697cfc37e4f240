/* Full checkpoints: a run into a file, and a run that goes on from one. */
#include "importer/graph_digest.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <stdio.h>
#include <string.h>

/* ---- What is kept besides arrays ------------------------------------------------------------- */

/* One line for a list of options. */
static const char *joined(struct mgpu_arena *arena, const char *const *list)
{
    const char *text = "";
    for (int i = 0; list && list[i]; i++)
        text = mgpu_arena_format(arena, "%s%s%s", text, i ? " " : "", list[i]);
    return text;
}

static const char *text_of(struct mgpu_arena *arena, double number)
{
    return mgpu_arena_format(arena, "%.17g", number);
}

/* Settings that change the numbers. They may change at a resume, but not without a word. */
static int record_settings(struct mgpu_trainer *t, struct mgpu_record *r)
{
    const struct mgpu_options *o = &t->options;
    const struct {
        const char *option, *text;
    } settings[] = {
        {"loss", joined(r->arena, o->loss)},
        {"optimizer", o->optimizer},
        {"group", joined(r->arena, o->group)},
        {"lr-schedule", o->lr_schedule ? o->lr_schedule : ""},
        {"warmup", text_of(r->arena, o->warmup)},
        {"clip-norm", text_of(r->arena, o->clip_norm)},
        {"clip-value", text_of(r->arena, o->clip_value)},
        {"dropout", joined(r->arena, o->dropout)},
        {"batch-norm", o->batch_norm ? o->batch_norm : ""},
        {"accumulate", text_of(r->arena, t->pieces)},
        {"sample-weight", o->sample_weight ? o->sample_weight : ""},
        {"precision", o->precision ? o->precision : "f32"},
        {"loss-scale", mgpu_arena_format(r->arena, "every=%lld", (long long)t->scaling.every)},
        {"scale", joined(r->arena, o->scale)},
        {"normalize", joined(r->arena, o->normalize)},
        {"batch-axis", joined(r->arena, o->batch_axis)},
        {"rows", joined(r->arena, o->rows)},
        {"dim", joined(r->arena, o->dim)},
        {"bn-momentum", joined(r->arena, o->bn_momentum)},
        {"bn-variance", o->bn_variance ? o->bn_variance : ""},
        {"freeze", joined(r->arena, o->freeze)},
        {"train", joined(r->arena, o->train)},
        {"tie", joined(r->arena, o->tie)},
        {"untie", joined(r->arena, o->untie)},
        {"deterministic", text_of(r->arena, o->deterministic)},
        {"early-stop", o->early_stop ? o->early_stop : ""},
        {"reduce-lr", o->reduce_lr ? o->reduce_lr : ""},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *text = settings[i].text;
        if (r->restores && !mgpu_record_has(r, settings[i].option))
            continue; /* an older program's checkpoint */
        MGPU_TRY(mgpu_record_text(r, settings[i].option, &text));
        if (strcmp(text, settings[i].text) != 0)
            mgpu_note("--%s is '%s' now; in the run before it was '%s'", settings[i].option,
                      settings[i].text, text);
    }
    return 0;
}

/* What a schedule goes over: with more epochs, it stands elsewhere. */
static int record_schedule(struct mgpu_trainer *t, struct mgpu_record *r)
{
    const char *now = t->options.lr_schedule ? text_of(r->arena, (double)t->total_steps) : "";
    const char *text = now;
    MGPU_TRY(mgpu_record_text(r, "lr-schedule.steps", &text));
    if (*now && *text && strcmp(text, now))
        mgpu_note("--lr-schedule goes over %s updates now, in the run before over %s: the learning "
                  "rate jumps",
                  now, text);
    return 0;
}

static int record_optimizer(struct mgpu_trainer *t, struct mgpu_record *r)
{
    const struct mgpu_update_attrs *a = &t->optimizer.attrs;
    int64_t kind = a->kind, style = a->style;
    const char *text = t->options.optimizer;
    MGPU_TRY(mgpu_record_int(r, "optimizer.kind", &kind));
    MGPU_TRY(mgpu_record_int(r, "optimizer.style", &style));
    MGPU_TRY(mgpu_record_real(r, "optimizer.lr_scale", &t->epochs.lr_scale));
    if (r->restores && t->epochs.lr_scale != 1)
        mgpu_note("the learning rate is %g of --optimizer's, as --reduce-lr left it in the run "
                  "before",
                  t->epochs.lr_scale);
    if (kind == a->kind && style == a->style)
        return 0;
    mgpu_record_text(r, "optimizer", &text);
    return mgpu_fail(MGPU_EINVALID, "it is of another optimizer: --optimizer %s, not %s", text,
                     t->options.optimizer);
}

/* The order of samples is a function of these numbers and of the seed (batches.h). */
static int record_data(struct mgpu_trainer *t, struct mgpu_record *r)
{
    const struct {
        const char *name, *option;
        int64_t value;
    } facts[] = {
        {"samples", "--data: samples for training", t->samples},
        {"batch", "--batch", t->batch},
        {"steps_per_epoch", "--steps-per-epoch: updates in an epoch", mgpu_steps_per_epoch(t)},
        {"shuffle", "--shuffle (1; --no-shuffle is 0)", t->train.batches.order.shuffle},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        int64_t before = facts[i].value;
        MGPU_TRY(mgpu_record_int(r, facts[i].name, &before));
        if (before == facts[i].value)
            continue;
        if (t->batch_in_epoch)
            return mgpu_fail(MGPU_EINVALID,
                             "it stands within an epoch of other data: %s: %lld there, %lld now",
                             facts[i].option, (long long)before, (long long)facts[i].value);
        mgpu_note("%s: %lld now; in the run before %lld", facts[i].option,
                  (long long)facts[i].value, (long long)before);
    }
    return 0;
}

/* -1 where the data cannot be read, which a step will say. */
static int64_t digest_of(struct mgpu_trainer *t, struct mgpu_source *s, int want)
{
    uint32_t sum;
    if (!s->digest) {
        s->digest = MGPU_NEW_ARRAY(t->arena, int64_t, t->wants);
        for (int i = 0; i < t->wants; i++)
            s->digest[i] = mgpu_feed_digest(&sum, s->feed, i) < 0 ? -1 : (int64_t)sum;
    }
    return s->digest[want];
}

/* Data and a graph of the same sizes may be others. */
static int record_digest(struct mgpu_record *r, const char *name, int64_t now, const char *what)
{
    int64_t before = now;
    if (now < 0 || (r->restores && !mgpu_record_has(r, name)))
        return 0; /* an older program's checkpoint */
    MGPU_TRY(mgpu_record_int(r, name, &before));
    if (before != now)
        mgpu_note("%s is not what it was in the run before", what);
    return 0;
}

static int record_contents(struct mgpu_trainer *t, struct mgpu_record *r)
{
    struct mgpu_source *source[] = {&t->train, &t->val};
    static const char *const option[] = {"data", "val"};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < t->wants; i++) {
            if (!source[k]->feed || (k && source[k]->feed == t->train.feed))
                continue; /* --val-split: held out of --data */
            const char *name = mgpu_arena_format(r->arena, "%s.%s", option[k], t->want[i].name);
            const char *what =
                mgpu_arena_format(r->arena, "--%s: what '%s' holds", option[k], t->want[i].name);
            MGPU_TRY(record_digest(r, name, digest_of(t, source[k], i), what));
        }
    return record_digest(r, "graph", mgpu_graph_digest(t->model),
                         mgpu_arena_format(r->arena, "the graph of %s", t->path));
}

/* What the options of these names may be at most, so that sums of them fit. */
static const int64_t EPOCHS_MOST = 1000000000, STEPS_MOST = 1000000000000000;

static bool is_count(int64_t n, int64_t most)
{
    return n >= 0 && n <= most;
}

static int record_position(struct mgpu_trainer *t, struct mgpu_record *r)
{
    MGPU_TRY(mgpu_record_int(r, "step", &t->step));
    MGPU_TRY(mgpu_record_int(r, "updates_before", &t->slots.updates));
    MGPU_TRY(mgpu_record_int(r, "epoch", &t->epoch));
    MGPU_TRY(mgpu_record_int(r, "batch_in_epoch", &t->batch_in_epoch));
    MGPU_TRY(record_data(t, r));
    int64_t updates = t->slots.updates;
    if (!is_count(t->step, STEPS_MOST) || !is_count(t->epoch, EPOCHS_MOST) ||
        !is_count(t->batch_in_epoch, mgpu_steps_per_epoch(t) - 1) || updates < -t->step ||
        updates > STEPS_MOST)
        return mgpu_fail(MGPU_EINVALID, "step %lld, epoch %lld, batch %lld: there is no such place",
                         (long long)t->step, (long long)t->epoch, (long long)t->batch_in_epoch);
    return 0;
}

static int record_sum(struct mgpu_record *r, const char *kind, int i, double *value)
{
    char name[64];
    snprintf(name, sizeof name, "sums.%s.%d", kind, i);
    return mgpu_record_real(r, name, value);
}

/* The means of an epoch that has begun. */
static int record_totals(struct mgpu_trainer *t, struct mgpu_record *r)
{
    const char *names = "";
    for (int i = 0; i < t->epochs.training; i++)
        names = mgpu_arena_format(r->arena, "%s %s", names, t->epochs.logs.name[i]);
    const char *before = names;
    MGPU_TRY(mgpu_record_text(r, "sums", &before));
    if (strcmp(names, before) != 0) {
        mgpu_note("the numbers of this epoch are those of its rest: in the run before they were%s",
                  before);
        return 0;
    }
    MGPU_TRY(mgpu_record_int(r, "sums.samples", &t->totals.samples));
    for (int i = 0; i < t->losses; i++) {
        MGPU_TRY(record_sum(r, "loss", i, &t->totals.loss[i]));
        MGPU_TRY(record_sum(r, "count", i, &t->totals.count[i]));
    }
    for (int i = 0; i < t->metrics; i++) {
        MGPU_TRY(record_sum(r, "metric", i, &t->totals.metric_sum[i]));
        MGPU_TRY(record_sum(r, "metric_count", i, &t->totals.metric_count[i]));
    }
    return 0;
}

static int record_callbacks(struct mgpu_trainer *t, struct mgpu_record *r)
{
    struct mgpu_epochs *e = &t->epochs;
    if (e->stop)
        MGPU_TRY(mgpu_early_stopping_record(e->stop, r));
    if (e->reduce)
        MGPU_TRY(mgpu_reduce_lr_record(e->reduce, r));
    return e->checkpoint ? mgpu_model_checkpoint_record(e->checkpoint, r) : 0;
}

/* What the other numbers are counted from. */
static int record_start(struct mgpu_trainer *t, struct mgpu_record *r)
{
    int64_t *epoch = &t->options.initial_epoch;
    MGPU_TRY(mgpu_record_int(r, "seed", &t->options.seed));
    MGPU_TRY(mgpu_record_int(r, "initial_epoch", epoch));
    return is_count(*epoch, EPOCHS_MOST)
               ? 0
               : mgpu_fail(MGPU_EINVALID, "it began after epoch %lld: there is no such place",
                           (long long)*epoch);
}

static int record_run(struct mgpu_trainer *t, struct mgpu_record *r)
{
    MGPU_TRY(record_start(t, r));
    MGPU_TRY(record_optimizer(t, r));
    MGPU_TRY(record_position(t, r));
    MGPU_TRY(mgpu_scale_record(t, r));
    if (r->restores) /* with another batch, the epochs before had other steps */
        MGPU_TRY(mgpu_settle_total(t));
    MGPU_TRY(record_contents(t, r));
    MGPU_TRY(record_settings(t, r));
    MGPU_TRY(record_schedule(t, r));
    if (t->batch_in_epoch)
        MGPU_TRY(record_totals(t, r));
    return record_callbacks(t, r);
}

/* ---- Into a file ----------------------------------------------------------------------------- */

/* Every weight, under the names of its holders. */
static int take_weights(const struct mgpu_trainer *t, struct mgpu_array_list *out)
{
    for (int i = 0; i < t->weights->count; i++)
        for (int h = 0; h < t->weights->weight[i].holders; h++) {
            struct mgpu_named_array *a = mgpu_array_list_add(out, mgpu_holder_name(t, i, h));
            MGPU_TRY(mgpu_holder_array(&a->array, t, i, h));
        }
    return 0;
}

typedef void *place_of(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e);

/* The optimizer's states, or all others, each once, whichever rank has it. */
static int take_stored(const struct mgpu_trainer *t, struct mgpu_array_list *out, bool states,
                       place_of *place)
{
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < t->store[r]->count; i++) {
            const struct mgpu_stored *e = &t->store[r]->entry[i];
            int first;
            if (e->role == MGPU_ROUNDED || (e->role == MGPU_STATE) != states ||
                (mgpu_find_stored(t, e->name, &first), first != r))
                continue;
            struct mgpu_array *a = &mgpu_array_list_add(out, e->name)->array;
            MGPU_TRY(mgpu_array_init(a, e->type, e->rank, e->dims, e->name));
            MGPU_TRY(mgpu_stored_fetch(t, r, e));
            memcpy(a->data, place(t, r, e), (size_t)e->bytes);
        }
    return 0;
}

static int take_all(struct mgpu_trainer *t, struct mgpu_run_state *c)
{
    MGPU_TRY(mgpu_check_finite(t));
    MGPU_TRY(take_weights(t, &c->list[MGPU_RUN_WEIGHT]));
    MGPU_TRY(take_stored(t, &c->list[MGPU_RUN_STATE], true, mgpu_stored_at));
    if (t->epochs.stop && t->epochs.stop->kept)
        MGPU_TRY(take_stored(t, &c->list[MGPU_RUN_BEST], false, mgpu_best_at));
    MGPU_TRY(mgpu_state_take(t, &c->list[MGPU_RUN_CARRIED]));
    c->updates = t->slots.updates + t->step;
    return record_run(t, &c->record);
}

int mgpu_save_checkpoint(struct mgpu_trainer *t, const char *path)
{
    struct mgpu_run_state c;
    mgpu_run_state_init(&c);
    int rc = mgpu_prefix(take_all(t, &c), "%s", path);
    if (rc == 0)
        rc = mgpu_run_state_write(&c, path);
    mgpu_run_state_free(&c);
    if (rc == 0) {
        t->epochs.full = mgpu_arena_string(t->arena, path);
        t->epochs.full_step = t->step;
    }
    return rc;
}

/* ---- Out of a file --------------------------------------------------------------------------- */

static bool same_shape(const struct mgpu_array *a, int rank, const int64_t *dims)
{
    return a->rank == rank && !memcmp(a->dims, dims, sizeof *dims * (size_t)rank);
}

static int check_holder(const struct mgpu_trainer *t, int weight, int holder)
{
    char there[MGPU_SHAPE_TEXT], here[MGPU_SHAPE_TEXT];
    const struct mgpu_run_state *c = &t->resume;
    const struct mgpu_holder *h = &t->weights->weight[weight].holder[holder];
    const struct mgpu_array *own = &t->model->initializer[h->initializer].array;
    const char *name = mgpu_holder_name(t, weight, holder);
    const struct mgpu_array *a = mgpu_array_list_find(&c->list[MGPU_RUN_WEIGHT], name);
    if (!a && t->weights->weight[weight].role == MGPU_ROLE_CONSTANT)
        return 0;
    if (!a)
        return mgpu_fail(MGPU_EINVALID, "it is of another model: it has no '%s'", name);
    if (same_shape(a, own->rank, own->dims))
        return 0;
    return mgpu_fail(MGPU_EINVALID, "it is of another model: '%s' is %s there and %s in %s", name,
                     mgpu_shape_text(there, a->rank, a->dims),
                     mgpu_shape_text(here, own->rank, own->dims), t->path);
}

/* A weight of the file that the model has not. */
static int name_extra(const struct mgpu_trainer *t)
{
    for (int k = 0; k < t->resume.list[MGPU_RUN_WEIGHT].count; k++) {
        bool known = false;
        for (int i = 0; i < t->weights->count; i++)
            for (int h = 0; h < t->weights->weight[i].holders; h++)
                known = known || !strcmp(t->resume.list[MGPU_RUN_WEIGHT].item[k].name,
                                         mgpu_holder_name(t, i, h));
        if (!known)
            return mgpu_fail(MGPU_EINVALID, "it is of another model: %s has no '%s'", t->path,
                             t->resume.list[MGPU_RUN_WEIGHT].item[k].name);
    }
    return 0;
}

static int check_model(const struct mgpu_trainer *t)
{
    int count = 0;
    for (int i = 0; i < t->weights->count; i++)
        for (int h = 0; h < t->weights->weight[i].holders; h++, count++)
            MGPU_TRY(check_holder(t, i, h));
    return count == t->resume.list[MGPU_RUN_WEIGHT].count ? 0 : name_extra(t);
}

/* Before anything is computed of them. */
static int restore_constants(struct mgpu_trainer *t)
{
    struct mgpu_weights *w = t->weights;
    if (!w->given)
        w->given = MGPU_NEW_ARRAY(w->arena, struct mgpu_array, w->count + 1);
    for (int i = 0; i < w->count; i++) {
        const struct mgpu_array *own = mgpu_weight_contents(w, t->model, i);
        const struct mgpu_array *there =
            w->weight[i].role == MGPU_ROLE_CONSTANT
                ? mgpu_array_list_find(&t->resume.list[MGPU_RUN_WEIGHT], mgpu_holder_name(t, i, 0))
                : NULL;
        if (!there)
            continue;
        MGPU_TRY(mgpu_array_init(&w->given[i], own->type, own->rank, own->dims, w->weight[i].name));
        mgpu_convert(w->given[i].data, own->type, there->data, there->type,
                     mgpu_array_count(there));
    }
    mgpu_weights_put_constants(w, t->model);
    return 0;
}

int mgpu_resume_read(struct mgpu_trainer *t)
{
    const char *path = t->options.resume;
    int64_t asked = t->options.seed;
    if (t->options.initial_epoch)
        return mgpu_fail(MGPU_EUSAGE, "--initial-epoch: --resume knows which epoch comes next");
    if (t->options.init || mgpu_text_count(t->options.reinit))
        return mgpu_fail(MGPU_EUSAGE,
                         "--resume takes all weights from the checkpoint: no --init or --reinit");
    mgpu_run_state_init(&t->resume);
    MGPU_TRY(mgpu_prefix(mgpu_run_state_read(&t->resume, path), "--resume"));
    MGPU_TRY(mgpu_prefix(check_model(t), "--resume %s", path));
    MGPU_TRY(restore_constants(t));
    MGPU_TRY(mgpu_prefix(record_start(t, &t->resume.record), "--resume %s", path));
    if (asked && asked != t->options.seed)
        mgpu_note("--seed %lld: the seed stays %lld, that of %s", (long long)asked,
                  (long long)t->options.seed, path);
    return 0;
}

static int restore_from(const struct mgpu_array *a, const struct mgpu_stored *e, void *to)
{
    char there[MGPU_SHAPE_TEXT], here[MGPU_SHAPE_TEXT];
    if (!a)
        return mgpu_fail(MGPU_EINVALID, "it has no '%s': its run did not train that weight so",
                         e->name);
    if (a->type != e->type || !same_shape(a, e->rank, e->dims))
        return mgpu_fail(MGPU_EINVALID, "'%s' is %s %s there and %s %s now", e->name,
                         mgpu_dtype_name(a->type), mgpu_shape_text(there, a->rank, a->dims),
                         mgpu_dtype_name(e->type), mgpu_shape_text(here, e->rank, e->dims));
    memcpy(to, a->data, (size_t)e->bytes);
    return 0;
}

static const struct mgpu_array *weight_there(const struct mgpu_trainer *t, const char *name)
{
    for (int i = 0; i < t->weights->count; i++)
        if (!strcmp(t->weights->weight[i].name, name))
            return mgpu_array_list_find(&t->resume.list[MGPU_RUN_WEIGHT],
                                        mgpu_holder_name(t, i, 0));
    return NULL;
}

static int restore_entry(const struct mgpu_trainer *t, int rank, const struct mgpu_stored *e)
{
    const struct mgpu_run_state *c = &t->resume;
    bool state = e->role == MGPU_STATE;
    if (e->role == MGPU_ROUNDED) /* goes with its weight */
        return 0;
    MGPU_TRY(restore_from(state ? mgpu_array_list_find(&c->list[MGPU_RUN_STATE], e->name)
                                : weight_there(t, e->name),
                          e, mgpu_stored_at(t, rank, e)));
    MGPU_TRY(mgpu_stored_put(t, rank, e));
    if (state || !t->epochs.stop || !t->epochs.stop->restores || !c->list[MGPU_RUN_BEST].count)
        return 0;
    return restore_from(mgpu_array_list_find(&c->list[MGPU_RUN_BEST], e->name), e,
                        mgpu_best_at(t, rank, e));
}

/* A state of the file that no rank has. */
static int check_states(const struct mgpu_trainer *t)
{
    int rank;
    for (int i = 0; i < t->resume.list[MGPU_RUN_STATE].count; i++)
        if (!mgpu_find_stored(t, t->resume.list[MGPU_RUN_STATE].item[i].name, &rank))
            return mgpu_fail(MGPU_EINVALID, "it has '%s': this run does not train that weight so",
                             t->resume.list[MGPU_RUN_STATE].item[i].name);
    return 0;
}

static void restore_best(struct mgpu_trainer *t)
{
    struct mgpu_early_stopping *stop = t->epochs.stop;
    if (!stop)
        return;
    stop->kept = stop->kept && stop->restores && t->resume.list[MGPU_RUN_BEST].count > 0;
    if (stop->restores && !stop->kept && t->epoch > 0)
        mgpu_note("restore_best_weights: the weights of the epochs before this are not known: the "
                  "best are those of an epoch from now on");
}

static int restore_all(struct mgpu_trainer *t)
{
    MGPU_TRY(record_run(t, &t->resume.record));
    MGPU_TRY(check_states(t));
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        for (int i = 0; i < t->store[r]->count; i++)
            MGPU_TRY(restore_entry(t, r, &t->store[r]->entry[i]));
    restore_best(t);
    MGPU_TRY(mgpu_state_restore(t, &t->resume.list[MGPU_RUN_CARRIED]));
    if (t->batch_in_epoch)
        mgpu_batches_epoch(&t->train.batches, t->epoch);
    return 0;
}

int mgpu_resume_restore(struct mgpu_trainer *t)
{
    MGPU_TRY(mgpu_prefix(restore_all(t), "--resume %s", t->options.resume));
    mgpu_run_state_free(&t->resume);
    t->epochs.full = t->options.resume;
    t->epochs.full_step = t->step;
    t->epochs.stopped = t->epochs.stop && mgpu_early_stopping_stopped(t->epochs.stop);
    return 0;
}
