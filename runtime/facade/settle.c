/* What a person said, turned into what the parts understand. */
#include "exporter/normalizations.h"
#include "partitioner/plan_file.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/facade/facade.h"

#include <stdlib.h>
#include <string.h>

int mgpu_text_count(const char *const *list)
{
    int n = 0;
    while (list && list[n])
        n++;
    return n;
}

static struct mgpu_texts texts(const char *const *list)
{
    return (struct mgpu_texts){.items = list, .count = mgpu_text_count(list)};
}

int mgpu_settle_word(int *out, const char *option, const char *text, const char *const *words)
{
    int n = mgpu_text_count(words);
    for (*out = 0; *out < n; ++*out)
        if (!strcmp(text, words[*out]))
            return 0;
    return mgpu_prefix(mgpu_unknown_word("value", text, words, n), "%s", option);
}

/* ---- Model ----------------------------------------------------------------------------------- */

/* NAME=REST, split at the last '=' (names may hold '='). */
static int split_pair(struct mgpu_trainer *t, const char *option, const char *text,
                      const char **name, const char **rest)
{
    const char *at = strrchr(text, '=');
    if (!at || at == text)
        return mgpu_fail(MGPU_EUSAGE, "%s: '%s' is not NAME=VALUE", option, text);
    char *copy = mgpu_arena_string(t->arena, text);
    copy[at - text] = 0;
    *name = copy;
    *rest = copy + (at - text) + 1;
    return 0;
}

static int number(const char *option, const char *text, double low, double high, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= low && *out <= high))
        return mgpu_fail(MGPU_EUSAGE, "%s: '%s' is not a number from %g to %g", option, text, low,
                         high);
    return 0;
}

static int settle_bindings(struct mgpu_trainer *t)
{
    int n = mgpu_text_count(t->options.dim);
    struct mgpu_binding *b = MGPU_NEW_ARRAY(t->arena, struct mgpu_binding, n);
    for (int i = 0; i < n; i++) {
        const char *value;
        double v;
        MGPU_TRY(split_pair(t, "--dim", t->options.dim[i], &b[i].name, &value));
        MGPU_TRY(number("--dim", value, 1, 1e15, &v));
        b[i].value = (int64_t)v;
    }
    t->lower.binding = b;
    t->lower.bindings = n;
    return 0;
}

static int settle_dropout(struct mgpu_trainer *t)
{
    int n = mgpu_text_count(t->options.dropout);
    struct mgpu_dropout_rule *r = MGPU_NEW_ARRAY(t->arena, struct mgpu_dropout_rule, n);
    for (int i = 0; i < n; i++) {
        const char *text = t->options.dropout[i], *value = text;
        r[i].fits = MGPU_NEW_ARRAY(t->arena, bool, 1);
        if (strchr(text, '='))
            MGPU_TRY(split_pair(t, "--dropout", text, &r[i].node, &value));
        if (!strcmp(value, "keep"))
            r[i].probability = -1;
        else if (strcmp(value, "off"))
            MGPU_TRY(number("--dropout", value, 0, 0.999999, &r[i].probability));
    }
    t->lower.dropout = r;
    t->lower.dropouts = n;
    return 0;
}

/* [PATTERN=]M */
static int settle_momentum(struct mgpu_trainer *t)
{
    int n = mgpu_text_count(t->options.bn_momentum);
    struct mgpu_momentum_rule *r = MGPU_NEW_ARRAY(t->arena, struct mgpu_momentum_rule, n);
    for (int i = 0; i < n; i++) {
        const char *text = t->options.bn_momentum[i], *value = text;
        r[i].fits = MGPU_NEW(t->arena, bool);
        if (strchr(text, '='))
            MGPU_TRY(split_pair(t, "--bn-momentum", text, &r[i].pattern, &value));
        MGPU_TRY(number("--bn-momentum", value, 0, 1, &r[i].momentum));
    }
    t->lower.momentum = r;
    t->lower.momenta = n;
    t->lower.momentum_unsaid = MGPU_NEW(t->arena, bool);
    return 0;
}

static int settle_words(struct mgpu_trainer *t)
{
    static const char *const norms[] = {"train", "frozen", "sync", NULL};
    static const char *const variances[] = {"unbiased", "population", NULL};
    const struct mgpu_options *o = &t->options;
    int k;
    t->lower.norm = MGPU_NORM_DEFAULT;
    if (o->batch_norm) {
        MGPU_TRY(mgpu_settle_word(&k, "--batch-norm", o->batch_norm, norms));
        t->lower.norm = (enum mgpu_norm_mode)(MGPU_NORM_TRAIN + k);
    }
    if (o->bn_variance) {
        MGPU_TRY(mgpu_settle_word(&k, "--bn-variance", o->bn_variance, variances));
        t->lower.variance = k ? MGPU_VARIANCE_POPULATION : MGPU_VARIANCE_UNBIASED;
    }
    return mgpu_settle_precision(t);
}

/* An initializer, or what may be split off one: "8.weight@10.weight". */
static bool may_be_weight(const struct mgpu_trainer *t, const char *name)
{
    bool found = mgpu_onnx_find_initializer(t->model, name) >= 0;
    for (const char *at = name; !found && (at = strchr(at, '@')); at++)
        found = mgpu_onnx_find_initializer(
                    t->model, mgpu_arena_format(t->arena, "%.*s", (int)(at - name), name)) >= 0;
    return found;
}

/* A=B pairs. Names may hold '=', so every place is tried until both are weights'. */
static int settle_ties(struct mgpu_trainer *t, const char *const (**out)[2], int *count)
{
    int n = mgpu_text_count(t->options.tie);
    const char *(*pairs)[2] = mgpu_arena_alloc(t->arena, sizeof *pairs * (size_t)n);
    for (int i = 0; i < n; i++) {
        char *copy = mgpu_arena_string(t->arena, t->options.tie[i]);
        bool found = false;
        for (char *at = strchr(copy, '='); at && !found; at = strchr(at + 1, '=')) {
            *at = 0;
            found = may_be_weight(t, copy) && may_be_weight(t, at + 1);
            pairs[i][0] = copy;
            pairs[i][1] = at + 1;
            if (!found)
                *at = '=';
        }
        if (!found)
            return mgpu_fail(MGPU_EUSAGE, "--tie: '%s' is not A=B with two weights' names",
                             t->options.tie[i]);
    }
    *out = (const char *const(*)[2])pairs;
    *count = n;
    return 0;
}

int mgpu_settle_model(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    MGPU_TRY(settle_words(t));
    MGPU_TRY(settle_bindings(t));
    MGPU_TRY(settle_dropout(t));
    MGPU_TRY(settle_momentum(t));
    MGPU_TRY(mgpu_onnx_read(&t->file, t->path));
    MGPU_TRY(mgpu_onnx_model_new(&t->model, t->file));
    if (o->classes)
        MGPU_TRY(mgpu_new_head(t));
    if (o->add_bias)
        MGPU_TRY(mgpu_add_biases(t));
    struct mgpu_weights_options w = {.train = o->train,
                                     .train_count = mgpu_text_count(o->train),
                                     .freeze = o->freeze,
                                     .freeze_count = mgpu_text_count(o->freeze),
                                     .untie = o->untie,
                                     .untie_count = mgpu_text_count(o->untie)};
    MGPU_TRY(settle_ties(t, &w.tie, &w.tie_count));
    MGPU_TRY(mgpu_prefix(mgpu_weights_identify(&t->weights, t->model, &w), "%s", t->path));
    for (int i = 0; i < t->weights->notes; i++)
        mgpu_note("%s", t->weights->line[i]);
    MGPU_TRY(mgpu_init_weights(t));
    return mgpu_reinit_check(t);
}

/* ---- Devices --------------------------------------------------------------------------------- */

int mgpu_settle_devices(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    const char *devices = o->devices;
    if (!devices) /* --plan names its own; double precision is for proofs */
        devices = o->plan || t->lower.float_type == MGPU_DOUBLE ? "cpu" : mgpu_cuda_default();
    return mgpu_devices_parse(&t->devices, &t->device_count, devices, o->threads);
}

/* ---- Data ------------------------------------------------------------------------------------ */

static struct mgpu_texts input_names(struct mgpu_trainer *t)
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
                                      .names = input_names(t),
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

/* ---- Losses ---------------------------------------------------------------------------------- */

static void model_outputs(struct mgpu_trainer *t, const char ***names, int *count)
{
    *count = t->model->graph.outputs;
    *names = MGPU_NEW_ARRAY(t->arena, const char *, *count);
    for (int i = 0; i < *count; i++)
        (*names)[i] = t->model->graph.output[i].name;
}

/* The names that --data gives. */
static void data_names(struct mgpu_trainer *t, const char ***names, int *count)
{
    int n = mgpu_text_count(t->options.data);
    *names = MGPU_NEW_ARRAY(t->arena, const char *, n);
    *count = 0;
    struct mgpu_texts inputs = input_names(t);
    for (int i = 0; i < n; i++) {
        const char *file = mgpu_feed_file_of(t->options.data[i], &inputs);
        if (!file)
            continue;
        char *name = mgpu_arena_string(t->arena, t->options.data[i]);
        name[file - 1 - t->options.data[i]] = 0;
        (*names)[(*count)++] = name;
    }
}

int mgpu_parse_losses(struct mgpu_trainer *t)
{
    const char **outputs, **labels;
    int output_count, label_count, n = mgpu_text_count(t->options.loss);
    model_outputs(t, &outputs, &output_count);
    data_names(t, &labels, &label_count);
    if (n > MGPU_MAX_LOSSES)
        return mgpu_fail(MGPU_EUSAGE, "--loss: more than %d losses", MGPU_MAX_LOSSES);
    t->loss = MGPU_NEW_ARRAY(t->arena, struct mgpu_loss, n);
    t->losses = n;
    for (int i = 0; i < n; i++) {
        MGPU_TRY(mgpu_loss_parse(&t->loss[i], t->options.loss[i], outputs, output_count, labels,
                                 label_count, t->arena));
        if (!t->loss[i].output && output_count == 1)
            t->loss[i].output = outputs[0];
        if (!t->loss[i].output)
            return mgpu_fail(MGPU_EUSAGE,
                             "--loss %s: the model has %d outputs; name one with output=NAME",
                             t->options.loss[i], output_count);
        if (!t->loss[i].label && t->loss[i].kind != MGPU_LOSS_OUTPUT)
            t->loss[i].label = "label";
    }
    return 0;
}

/* The outputs that the losses look at. */
static void want_outputs(struct mgpu_trainer *t)
{
    const char **wanted = MGPU_NEW_ARRAY(t->arena, const char *, t->losses + t->carries);
    int n = 0;
    for (int i = 0; i < t->losses; i++) {
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen = seen || !strcmp(wanted[k], t->loss[i].output);
        if (!seen)
            wanted[n++] = t->loss[i].output;
    }
    for (int i = 0; i < t->carries && t->losses; i++) /* else all outputs are wanted */
        if (!t->carried[i].from_zero)
            wanted[n++] = t->carried[i].output;
    t->lower.wanted = n ? wanted : NULL;
    t->lower.wanted_count = n;
}

/* An output in which other rows go before samples ([T*N, C]) does not pair with labels by sample.
 */
static int check_order(const struct mgpu_graph *g, const struct mgpu_value *y,
                       const struct mgpu_loss *loss)
{
    char text[MGPU_VALUE_TEXT];
    struct mgpu_split split;
    if (!mgpu_plan_follow(g, y, &split) || split.kind != MGPU_SPLIT_AXIS || split.outer == 1)
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "--loss %s: in output '%s' %s the samples are not the slowest part of axis "
                     "%d, so labels cannot be matched to them; take the loss before the reshape",
                     loss->text, loss->output, mgpu_value_text(text, g, y), split.axis);
}

static int bind_loss(struct mgpu_trainer *t, struct mgpu_graph *g, int i)
{
    struct mgpu_loss *loss = &t->loss[i];
    struct mgpu_value *y = mgpu_lowered_value(g, loss->output);
    const struct mgpu_dataset *d = NULL;
    if (!y)
        return mgpu_fail(MGPU_EUSAGE, "--loss %s: the model has no output '%s'", loss->text,
                         loss->output);
    if (t->planning)
        return mgpu_loss_bind_made(loss, g, y, t->arena);
    if (loss->kind != MGPU_LOSS_OUTPUT) {
        MGPU_TRY(check_order(g, y, loss));
        if (t->train.feed)
            MGPU_TRY(mgpu_feed_dataset(&d, t->train.feed, loss->label));
        if (!d)
            return mgpu_fail(MGPU_EUSAGE, "--loss %s: no data for its label; give --data %s=FILE",
                             loss->text, loss->label);
    }
    loss->sample_weights = t->options.sample_weight != NULL;
    int64_t rows = d ? mgpu_feed_step_rows(t->train.feed, loss->label) : 0;
    if (rows && d->rank < MGPU_MAX_RANK && d->rank > 0) { /* [steps * R, ...] as [steps, R, ...] */
        int64_t dims[MGPU_MAX_RANK] = {d->dims[0] / rows, rows};
        memcpy(dims + 2, d->dims + 1, sizeof *dims * (size_t)(d->rank - 1));
        loss->by_step = true;
        return mgpu_loss_bind(loss, g, y, d->type, d->rank + 1, dims, t->arena);
    }
    return mgpu_loss_bind(loss, g, y, d ? d->type : MGPU_UNDEFINED, d ? d->rank : 0,
                          d ? d->dims : NULL, t->arena);
}

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

/* The whole graph once, for the inputs that losses and outputs really need. */
static int bind_data(struct mgpu_trainer *t)
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

/* After the model was lowered: a rule that fits nothing changes nothing. */
static int check_dropout(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->lower.dropouts && t->lower.training; i++) {
        const struct mgpu_dropout_rule *r = &t->lower.dropout[i];
        if (!*r->fits && r->node)
            return mgpu_fail(MGPU_EUSAGE, "--dropout %s: there is no node '%s'",
                             t->options.dropout[i], r->node);
        if (!*r->fits && r->probability)
            mgpu_note("--dropout %s: the model has no Dropout nodes (an export for inference "
                      "leaves them out)",
                      t->options.dropout[i]);
    }
    return 0;
}

/* Likewise. tf2onnx leaves Keras's momentum out. */
static int check_momentum(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->lower.momenta && t->lower.training; i++)
        if (!*t->lower.momentum[i].fits)
            return mgpu_fail(MGPU_EUSAGE,
                             "--bn-momentum %s: no running mean that moves is called so",
                             t->options.bn_momentum[i]);
    if (*t->lower.momentum_unsaid)
        mgpu_note("the file does not say the momentum of its batch normalisations; it is taken as "
                  "0.99, Keras's default (--bn-momentum)");
    return 0;
}

static void note(void *context, const char *text)
{
    (void)context;
    mgpu_note("%s", text);
}

static int64_t batch_of(const struct mgpu_trainer *t)
{
    int64_t planned = t->plan_file ? t->plan_file->batch : 0;
    return t->options.batch > 0 ? t->options.batch : planned > 0 ? planned : 32;
}

int mgpu_settle_losses(struct mgpu_trainer *t)
{
    struct mgpu_graph *g = NULL;
    t->batch = batch_of(t);
    if (!t->options.inference && !mgpu_text_count(t->options.loss))
        return mgpu_fail(MGPU_EUSAGE,
                         "training needs a loss: --loss cross_entropy, mse, bce_logits "
                         "... (--help loss lists them)");
    MGPU_TRY(mgpu_parse_losses(t));
    MGPU_TRY(mgpu_state_parse(t));
    want_outputs(t);
    t->lower.batch = t->batch;
    t->lower.training = !t->options.inference;
    struct mgpu_lower_options noting = t->lower;
    noting.note = note;
    MGPU_TRY(mgpu_prefix(mgpu_lower(&g, t->model, t->weights, &noting), "%s", t->path));
    int rc = 0;
    for (int i = 0; i < t->losses && rc == 0; i++)
        rc = bind_loss(t, g, i);
    mgpu_graph_free(g);
    MGPU_TRY(rc);
    MGPU_TRY(mgpu_check_classes(t));
    MGPU_TRY(check_dropout(t));
    MGPU_TRY(check_momentum(t));
    int metrics = mgpu_text_count(t->options.metric);
    for (int i = 0; i < metrics; i++)
        MGPU_TRY(mgpu_metric_parse(&t->metric, &t->metrics, t->options.metric[i], t->loss,
                                   t->losses, t->arena));
    if (!metrics)
        mgpu_metric_default(&t->metric, &t->metrics, t->loss, t->losses, t->arena);
    if (t->losses + 2 * t->metrics > MGPU_RESULT_SUMS)
        return mgpu_fail(MGPU_EUSAGE, "--metric: too many");
    return t->planning ? 0 : bind_data(t);
}
