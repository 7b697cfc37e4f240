/* --data and --val: files opened, what they say of the inputs, and what a step takes of them. */
#include "exporter/normalizations.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <string.h>

static struct mgpu_texts texts(const char *const *list)
{
    return (struct mgpu_texts){.items = list, .count = mgpu_text_count(list)};
}

struct mgpu_texts mgpu_input_names(struct mgpu_trainer *t)
{
    int n = t->model->graph.inputs;
    const char **names = MGPU_NEW_ARRAY(t->arena, const char *, n);
    for (int i = 0; i < n; i++)
        names[i] = t->model->graph.input[i].name;
    return (struct mgpu_texts){.items = names, .count = n};
}

static struct mgpu_feed_options feed_options(struct mgpu_trainer *t, const char *const *data,
                                             bool quiet)
{
    const struct mgpu_options *o = &t->options;
    return (struct mgpu_feed_options){.data = texts(data),
                                      .names = mgpu_input_names(t),
                                      .scale = texts(o->scale),
                                      .normalize = texts(o->normalize),
                                      .batch_axis = texts(o->batch_axis),
                                      .rows = texts(o->rows),
                                      .quiet = quiet};
}

/* Pictures take the input's shape, as far as it or --dim says one. */
static int fit_pictures(const struct mgpu_trainer *t, struct mgpu_feed *feed,
                        const struct mgpu_onnx_value *input)
{
    int64_t dims[MGPU_MAX_RANK];
    if (!feed || input->rank < 0)
        return 0;
    for (int k = 0; k < input->rank; k++) {
        dims[k] = input->dims[k];
        for (int i = 0; i < t->lower.bindings && input->symbols[k]; i++)
            if (!strcmp(t->lower.binding[i].name, input->symbols[k]))
                dims[k] = t->lower.binding[i].value;
    }
    return mgpu_prefix(mgpu_feed_fit(feed, input->name, input->rank, dims), "'%s'", input->name);
}

/* Training's and validation's folders number the classes alike. */
static int settle_classes(const struct mgpu_trainer *t)
{
    const struct mgpu_name_list *a = t->train.feed ? mgpu_feed_classes(t->train.feed) : NULL;
    const struct mgpu_name_list *b = t->val.feed ? mgpu_feed_classes(t->val.feed) : NULL;
    const char *text = "";
    for (int i = 0; a && i < a->count; i++)
        text = mgpu_arena_format(t->arena, "%s %d=%s", text, i, a->items[i]);
    if (a && a->count)
        mgpu_note("%d classes:%s", a->count, text);
    for (int i = 0; a && b && (i < a->count || i < b->count); i++)
        if (i >= a->count || i >= b->count || strcmp(a->items[i], b->items[i]))
            return mgpu_fail(MGPU_EINVALID,
                             "--val: its folders are not the classes of --data: number %d is '%s', "
                             "not '%s'",
                             i, i < b->count ? b->items[i] : "", i < a->count ? a->items[i] : "");
    return 0;
}

/* What the data say of the model's inputs: sizes of symbolic axes, which axis counts samples. */
static int settle_inputs(struct mgpu_trainer *t)
{
    int n = t->model->graph.inputs;
    struct mgpu_lower_input *in = MGPU_NEW_ARRAY(t->arena, struct mgpu_lower_input, n);
    for (int i = 0; i < n; i++) {
        const struct mgpu_onnx_value *declared = &t->model->graph.input[i];
        const struct mgpu_dataset *d = NULL;
        in[i].name = declared->name;
        in[i].batch_axis = 0;
        in[i].rank = -1;
        MGPU_TRY(fit_pictures(t, t->train.feed, declared));
        MGPU_TRY(fit_pictures(t, t->val.feed, declared));
        if (!t->train.feed)
            continue;
        MGPU_TRY(mgpu_feed_dataset(&d, t->train.feed, declared->name));
        if (!d)
            continue;
        int axis = mgpu_feed_axis(t->train.feed, declared->name);
        if (axis > 0 && axis >= d->rank)
            return mgpu_fail(MGPU_EUSAGE, "--batch-axis %s=%d: %s has %d axes", declared->name,
                             axis, d->title, d->rank);
        int64_t rows = mgpu_feed_step_rows(t->train.feed, declared->name);
        in[i].batch_axis = rows ? -1 : axis;
        if (declared->rank >= 0 && declared->rank != d->rank) /* reshaped: no size to learn */
            continue;
        in[i].rank = d->rank;
        memcpy(in[i].dims, d->dims, sizeof in[i].dims);
        if (axis < d->rank)
            in[i].dims[axis] = rows ? rows : 1;
    }
    t->lower.input = in;
    t->lower.inputs = n;
    return 0;
}

/* --sample-weight FILE is data under the name sample_weight. */
static int with_sample_weight(struct mgpu_trainer *t)
{
    int n = mgpu_text_count(t->options.data);
    if (!t->options.sample_weight)
        return 0;
    const char **list = MGPU_NEW_ARRAY(t->arena, const char *, n + 2);
    if (n)
        memcpy(list, t->options.data, sizeof *list * (size_t)n);
    list[n] = mgpu_arena_format(t->arena, "sample_weight=%s", t->options.sample_weight);
    t->options.data = list;
    return 0;
}

int mgpu_settle_data(struct mgpu_trainer *t)
{
    MGPU_TRY(with_sample_weight(t));
    if (mgpu_text_count(t->options.data)) {
        struct mgpu_feed_options o = feed_options(t, t->options.data, false);
        MGPU_TRY(mgpu_feed_open(&t->train.feed, &o));
    }
    if (mgpu_text_count(t->options.val)) {
        struct mgpu_feed_options o = feed_options(t, t->options.val, true);
        MGPU_TRY(mgpu_feed_open(&t->val.feed, &o));
    }
    MGPU_TRY(settle_classes(t));
    return settle_inputs(t);
}

/* ---- What a step takes ----------------------------------------------------------------------- */

/* Labels of an output without samples: [1, R, ...], a step being one sample. */
static bool is_step_label(const struct mgpu_value *v, int64_t rows)
{
    return rows && v->rank > 1 && mgpu_dim_has(v->dims[0], MGPU_BATCH);
}

/* The data must fill the input: one row a sample, or as many as --rows says. */
static int check_rows(const struct mgpu_trainer *t, const struct mgpu_value *v, int axis,
                      int64_t rows)
{
    char text[MGPU_VALUE_TEXT];
    bool step_label = is_step_label(v, rows);
    int at = axis + step_label;
    bool samples = at < v->rank && mgpu_dim_has(v->dims[at], MGPU_BATCH);
    bool fills = at < v->rank && v->dims[at].value == (rows ? rows : t->batch);
    if (fills && samples == !rows && (!step_label || v->dims[0].value == 1))
        return 0;
    mgpu_value_text(text, NULL, v);
    if (rows)
        return mgpu_fail(MGPU_EUSAGE, "--rows %s=%lld: a step takes %s of it", v->name,
                         (long long)rows, text);
    if (mgpu_normalizations_is_mean(t->model, v->name))
        return mgpu_fail(MGPU_EINVALID,
                         "'%s' is no data but the mean of a Normalization layer, which the export "
                         "left out: mgpu-convert FILE NEW.onnx --model %s makes a model that has "
                         "it, of a Keras file of the same model",
                         v->name, t->path);
    return mgpu_fail(MGPU_EUSAGE,
                     "'%s' is %s for %lld samples: axis %d does not count them; give --batch-axis "
                     "%s=AXIS, or --rows %s=R when a step takes R rows",
                     v->name, text, (long long)t->batch, axis, v->name, v->name);
}

/* A want for an input of the graph: its shape without the batch axis. */
static int add_want(struct mgpu_trainer *t, const struct mgpu_value *v)
{
    struct mgpu_feed_want *w = &t->want[t->wants];
    bool from_zero, state = mgpu_is_state(t, v->name, &from_zero);
    if (from_zero)
        return 0;
    int axis = t->train.feed ? mgpu_feed_axis(t->train.feed, v->name) : 0;
    int64_t rows = t->train.feed ? mgpu_feed_step_rows(t->train.feed, v->name) : 0;
    *w = (struct mgpu_feed_want){
        .name = mgpu_arena_string(t->arena, v->name), .type = v->type, .first_only = state};
    bool step_label = is_step_label(v, rows);
    for (int k = step_label; k < v->rank; k++)
        if (k != axis + step_label)
            w->dims[w->rank++] = v->dims[k].value;
    t->step_rows[t->wants++] = rows;
    return check_rows(t, v, axis, rows);
}

static int slot_of(const struct mgpu_trainer *t, const char *name)
{
    for (int i = 0; i < t->wants; i++)
        if (!strcmp(t->want[i].name, name))
            return i;
    return -1;
}

static int open_source(struct mgpu_trainer *t, struct mgpu_source *s, int64_t first,
                       int64_t samples, bool shuffle)
{
    struct mgpu_order order = {
        .first = first, .samples = samples, .shuffle = shuffle, .seed = (uint64_t)t->options.seed};
    mgpu_feed_order(s->feed, &order);
    s->slot_of_loss = MGPU_NEW_ARRAY(t->arena, int, t->losses);
    for (int i = 0; i < t->losses; i++)
        s->slot_of_loss[i] = t->loss[i].label ? slot_of(t, t->loss[i].label) : -1;
    s->sample_weight_slot = slot_of(t, "sample_weight");
    MGPU_TRY(mgpu_batches_init(&s->batches, &order, t->batch));
    s->open = true;
    return 0;
}

/* Samples for validation of --val-split; the last ones. */
static int hold_out(const struct mgpu_trainer *t, int64_t *count)
{
    double part = t->options.val_split;
    *count = (int64_t)(part * (double)t->samples);
    if (part > 0 && t->val.feed)
        return mgpu_fail(MGPU_EUSAGE, "--val and --val-split exclude each other");
    if (part > 0 && *count == 0)
        return mgpu_fail(MGPU_EUSAGE, "--val-split %g of %lld samples holds out none", part,
                         (long long)t->samples);
    return 0;
}

static int settle_sources(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    if (!t->train.feed)
        return mgpu_fail(MGPU_EUSAGE, "no data: give --data NAME=FILE for each input%s",
                         t->losses ? " and label" : "");
    MGPU_TRY(mgpu_feed_bind(t->train.feed, t->want, t->wants, t->batch));
    t->samples = mgpu_feed_samples(t->train.feed);
    int64_t held_out;
    MGPU_TRY(hold_out(t, &held_out));
    bool shuffle = o->shuffle && !o->inference;
    if (t->carries && shuffle) {
        mgpu_note("samples are not shuffled: a state belongs to its place in the batch (--state)");
        shuffle = false;
    }
    for (int i = 0; i < t->wants; i++)
        if (t->step_rows[i] && shuffle) {
            mgpu_note("samples are not shuffled: the rows of '%s' belong to their step",
                      t->want[i].name);
            shuffle = false;
        }
    if (t->val.feed) {
        MGPU_TRY(mgpu_prefix(mgpu_feed_bind(t->val.feed, t->want, t->wants, t->batch), "--val"));
        t->val_samples = mgpu_feed_samples(t->val.feed);
        MGPU_TRY(open_source(t, &t->val, 0, t->val_samples, false));
    } else if (held_out > 0) {
        t->samples -= held_out;
        t->val_samples = held_out;
        t->val.feed = t->train.feed;
        MGPU_TRY(open_source(t, &t->val, t->samples, held_out, false));
    }
    return open_source(t, &t->train, 0, t->samples, shuffle);
}

static int numbers_for(void *out, int64_t count, const char *what)
{
    return mgpu_alloc(out, (uint64_t)count * 8, what);
}

/* Elements of a loss's labels in the largest batch. */
static int64_t label_elements(const struct mgpu_trainer *t, const struct mgpu_loss *loss,
                              int64_t largest)
{
    int64_t n = 1;
    for (int k = 0; k < loss->label_rank; k++)
        n *= mgpu_dim_has(loss->label_dims[k], MGPU_BATCH) && loss->label_dims[k].value == t->batch
                 ? largest
                 : loss->label_dims[k].value;
    return n;
}

/* For the largest batch that there is: the last one, when --batch is more than all samples. */
static int host_buffers(struct mgpu_trainer *t)
{
    int64_t samples = t->samples > t->val_samples ? t->samples : t->val_samples, most = 1;
    int64_t largest = samples < t->batch ? samples : t->batch;
    for (int i = 0; i < t->wants; i++)
        most = t->step_rows[i] > most ? t->step_rows[i] : most;
    MGPU_TRY(numbers_for(&t->rows, largest, "sample numbers of a batch (--batch)"));
    MGPU_TRY(numbers_for(&t->next_rows, largest, "sample numbers of a batch (--batch)"));
    MGPU_TRY(numbers_for(&t->sample_weights, largest, "sample weights of a batch (--batch)"));
    MGPU_TRY(numbers_for(&t->step_row, most, "rows of a step (--rows)"));
    t->labels = mgpu_xcalloc((size_t)t->losses, sizeof(void *));
    for (int i = 0; i < t->losses; i++)
        MGPU_TRY(numbers_for(&t->labels[i], label_elements(t, &t->loss[i], largest),
                             "labels of a batch (--batch)"));
    return 0;
}

int mgpu_bind_data(struct mgpu_trainer *t)
{
    struct mgpu_graph *g = NULL;
    int rc = 0;
    MGPU_TRY(mgpu_build_graph(&g, t, t->losses ? MGPU_MODE_EVALUATE : MGPU_MODE_PREDICT, t->batch,
                              NULL));
    t->want = MGPU_NEW_ARRAY(t->arena, struct mgpu_feed_want, g->input_count);
    t->step_rows = MGPU_NEW_ARRAY(t->arena, int64_t, g->input_count);
    for (int i = 0; i < g->input_count && rc == 0; i++)
        rc = add_want(t, g->inputs[i]);
    if (rc == 0)
        rc = mgpu_state_bind(t, g);
    mgpu_graph_free(g);
    MGPU_TRY(rc);
    MGPU_TRY(settle_sources(t));
    MGPU_TRY(host_buffers(t));
    int64_t samples = t->samples > t->val_samples ? t->samples : t->val_samples;
    MGPU_TRY(mgpu_state_allocate(t, samples < t->batch ? samples : t->batch));
    return mgpu_state_start(t, &t->train, MGPU_MODE_TRAIN);
}
