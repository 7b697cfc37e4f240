/* What a person said, turned into what the parts understand. */
#include "importer/onnx_repeat.h"
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
    MGPU_TRY(mgpu_onnx_unrepeat(t->file, true));
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

int mgpu_check_rules(const struct mgpu_trainer *t)
{
    MGPU_TRY(check_dropout(t));
    return check_momentum(t);
}

/* ---- Devices --------------------------------------------------------------------------------- */

int mgpu_settle_devices(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    const char *devices = o->devices;
    if (!devices) /* --plan names its own; double precision is for proofs */
        devices = o->plan || t->lower.float_type == MGPU_DOUBLE ? "cpu" : mgpu_cuda_default();
    return mgpu_devices_option(&t->devices, &t->device_count, devices, o->threads);
}

/* ---- Optimizer and length -------------------------------------------------------------------- */

int mgpu_settle_optimizer(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    int n = 0, groups = mgpu_text_count(o->group);
    const char **names = MGPU_NEW_ARRAY(t->arena, const char *, t->weights->count);
    for (int i = 0; i < t->weights->count; i++)
        if (t->weights->weight[i].role != MGPU_ROLE_CONSTANT)
            names[n++] = t->weights->weight[i].name;
    MGPU_TRY(mgpu_optimizer_parse(&t->optimizer, o->optimizer, o->clip_norm, o->clip_value));
    t->optimizer.scaled = t->scaling.on;
    for (int i = 0; i < groups; i++)
        MGPU_TRY(mgpu_optimizer_group(&t->optimizer, o->group[i], names, n, t->arena));
    return 0;
}

int64_t mgpu_steps_per_epoch(const struct mgpu_trainer *t)
{
    int64_t all = mgpu_batches_count(&t->train.batches);
    int64_t asked = t->options.steps_per_epoch;
    return asked > 0 && asked < all ? asked : all;
}

int mgpu_settle_total(struct mgpu_trainer *t)
{
    const struct mgpu_options *o = &t->options;
    int64_t each = mgpu_steps_per_epoch(t), left = (o->epochs - t->epoch) * each;
    t->total_steps = o->steps > 0 ? o->steps : t->step - t->batch_in_epoch + left;
    return mgpu_schedule_parse(&t->schedule, o->lr_schedule, o->warmup, t->total_steps);
}
