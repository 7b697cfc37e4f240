/* --loss and --metric: parsed, and bound to the model's outputs and the labels. */
#include "partitioner/plan_file.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <string.h>

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
    struct mgpu_texts inputs = mgpu_input_names(t);
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
    MGPU_TRY(mgpu_check_rules(t));
    int metrics = mgpu_text_count(t->options.metric);
    for (int i = 0; i < metrics; i++)
        MGPU_TRY(mgpu_metric_parse(&t->metric, &t->metrics, t->options.metric[i], t->loss,
                                   t->losses, t->arena));
    if (!metrics)
        mgpu_metric_default(&t->metric, &t->metrics, t->loss, t->losses, t->arena);
    if (t->losses + 2 * t->metrics > MGPU_RESULT_SUMS)
        return mgpu_fail(MGPU_EUSAGE, "--metric: too many");
    return t->planning ? 0 : mgpu_bind_data(t);
}
