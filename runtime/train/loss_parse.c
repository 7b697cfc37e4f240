/* --loss: kinds, their other names, and their options. */
#include "runtime/base/nearest.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/train/loss_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A name of a kind, and what its framework takes for granted. The first OWN_NAMES are ours. */
struct kind_name {
    const char *name;
    enum mgpu_loss_kind kind;
    int axis;
    enum mgpu_choice from_logits;
};

#define PLAIN MGPU_AXIS_UNSET, MGPU_UNSET
#define TORCH 1, MGPU_UNSET /* classes on axis 1, logits */
#define KERAS -1, MGPU_NO   /* classes last, probabilities */

static const struct kind_name kind_names[] = {
    {"cross_entropy", MGPU_LOSS_CROSS_ENTROPY, PLAIN},
    {"nll", MGPU_LOSS_NLL, PLAIN},
    {"mse", MGPU_LOSS_MSE, PLAIN},
    {"mae", MGPU_LOSS_MAE, PLAIN},
    {"huber", MGPU_LOSS_HUBER, PLAIN},
    {"bce", MGPU_LOSS_BCE, PLAIN},
    {"bce_logits", MGPU_LOSS_BCE_LOGITS, PLAIN},
    {"hinge", MGPU_LOSS_HINGE, PLAIN},
    {"kl", MGPU_LOSS_KL, PLAIN},
    {"output", MGPU_LOSS_OUTPUT, PLAIN},
    {"CrossEntropyLoss", MGPU_LOSS_CROSS_ENTROPY, TORCH},
    {"categorical_crossentropy", MGPU_LOSS_CROSS_ENTROPY, KERAS},
    {"CategoricalCrossentropy", MGPU_LOSS_CROSS_ENTROPY, KERAS},
    {"sparse_categorical_crossentropy", MGPU_LOSS_CROSS_ENTROPY, KERAS},
    {"SparseCategoricalCrossentropy", MGPU_LOSS_CROSS_ENTROPY, KERAS},
    {"NLLLoss", MGPU_LOSS_NLL, TORCH},
    {"nll_loss", MGPU_LOSS_NLL, TORCH},
    {"MSELoss", MGPU_LOSS_MSE, PLAIN},
    {"mse_loss", MGPU_LOSS_MSE, PLAIN},
    {"mean_squared_error", MGPU_LOSS_MSE, PLAIN},
    {"MeanSquaredError", MGPU_LOSS_MSE, PLAIN},
    {"l1", MGPU_LOSS_MAE, PLAIN},
    {"L1Loss", MGPU_LOSS_MAE, PLAIN},
    {"l1_loss", MGPU_LOSS_MAE, PLAIN},
    {"mean_absolute_error", MGPU_LOSS_MAE, PLAIN},
    {"MeanAbsoluteError", MGPU_LOSS_MAE, PLAIN},
    {"HuberLoss", MGPU_LOSS_HUBER, PLAIN},
    {"huber_loss", MGPU_LOSS_HUBER, PLAIN},
    {"BCELoss", MGPU_LOSS_BCE, PLAIN},
    {"binary_cross_entropy", MGPU_LOSS_BCE, PLAIN},
    {"binary_crossentropy", MGPU_LOSS_BCE, PLAIN},
    {"BinaryCrossentropy", MGPU_LOSS_BCE, PLAIN},
    {"bce_with_logits", MGPU_LOSS_BCE_LOGITS, PLAIN},
    {"BCEWithLogitsLoss", MGPU_LOSS_BCE_LOGITS, PLAIN},
    {"binary_cross_entropy_with_logits", MGPU_LOSS_BCE_LOGITS, PLAIN},
    {"KLDivLoss", MGPU_LOSS_KL, PLAIN},
    {"kl_div", MGPU_LOSS_KL, PLAIN},
    {"KLDivergence", MGPU_LOSS_KL, KERAS},
    {"kl_divergence", MGPU_LOSS_KL, KERAS},
    {"kullback_leibler_divergence", MGPU_LOSS_KL, KERAS},
    {"kld", MGPU_LOSS_KL, KERAS},
};
enum { KIND_NAMES = sizeof kind_names / sizeof *kind_names, OWN_NAMES = MGPU_LOSS_OUTPUT + 1 };

/* The options and the kinds that have them, as a bit mask. */
#define KIND(kind) (1u << MGPU_LOSS_##kind)
enum { LABELLED = ~KIND(OUTPUT), CLASSES = KIND(CROSS_ENTROPY) | KIND(NLL) };
static const struct loss_option {
    const char *name;
    unsigned kinds;
} loss_options[] = {
    {"output", ~0u},
    {"weight", ~0u},
    {"label", LABELLED},
    {"reduction", LABELLED},
    {"axis", CLASSES | KIND(KL)},
    {"ignore_index", CLASSES},
    {"class_weights", CLASSES},
    {"label_smoothing", KIND(CROSS_ENTROPY) | KIND(BCE) | KIND(BCE_LOGITS)},
    {"from_logits", KIND(CROSS_ENTROPY) | KIND(BCE) | KIND(KL)},
    {"delta", KIND(HUBER)},
};
enum { LOSS_OPTIONS = sizeof loss_options / sizeof *loss_options };

bool mgpu_loss_has_classes(enum mgpu_loss_kind kind)
{
    return CLASSES & 1u << kind;
}

static int unknown_kind(const char *name)
{
    const char *names[KIND_NAMES];
    for (int i = 0; i < KIND_NAMES; i++)
        names[i] = kind_names[i].name;
    bool near = mgpu_nearest(name, names, KIND_NAMES);
    return mgpu_unknown_name("loss", name, names, near ? KIND_NAMES : OWN_NAMES);
}

static int unknown_option(const struct mgpu_loss *loss, const char *name)
{
    const char *names[LOSS_OPTIONS];
    int count = 0;
    for (int i = 0; i < LOSS_OPTIONS; i++)
        if (loss_options[i].kinds & 1u << loss->kind)
            names[count++] = loss_options[i].name;
    return mgpu_unknown_name("option", name, names, count);
}

static bool has_option(const struct mgpu_loss *loss, const char *name)
{
    for (int i = 0; i < LOSS_OPTIONS; i++)
        if (strcmp(loss_options[i].name, name) == 0)
            return loss_options[i].kinds & 1u << loss->kind;
    return false;
}

static int set_kind(struct mgpu_loss *loss, const char *name)
{
    for (int i = 0; i < KIND_NAMES; i++)
        if (strcasecmp(kind_names[i].name, name) == 0) {
            loss->kind = kind_names[i].kind;
            loss->axis = kind_names[i].axis;
            loss->from_logits = kind_names[i].from_logits;
            return 0;
        }
    return unknown_kind(name);
}

static int set_name(const char **out, const char *what, const char *name, const char *const *known,
                    int count)
{
    bool found = false;
    for (int i = 0; i < count; i++)
        found = found || strcmp(known[i], name) == 0;
    if (!found)
        return mgpu_unknown_name(what, name, known, count);
    *out = name;
    return 0;
}

static int set_reduction(struct mgpu_loss *loss, const char *value)
{
    static const char *const names[] = {"mean", "sum", "batchmean"};
    const char *name = value;
    MGPU_TRY(set_name(&name, "reduction", value, names, 3));
    loss->sum = strcmp(name, "sum") == 0;
    loss->batch_mean = strcmp(name, "batchmean") == 0;
    return 0;
}

static int set_number(struct mgpu_loss *loss, const char *name, const char *value)
{
    bool flag;
    int64_t number;
    if (strcmp(name, "weight") == 0)
        return mgpu_text_double(&loss->weight, name, value, -INFINITY, INFINITY);
    if (strcmp(name, "label_smoothing") == 0)
        return mgpu_text_double(&loss->label_smoothing, name, value, 0, 1);
    if (strcmp(name, "delta") == 0)
        return mgpu_text_double(&loss->delta, name, value, 1e-30, INFINITY);
    if (strcmp(name, "ignore_index") == 0)
        return mgpu_text_int(&loss->ignore_index, name, value, INT64_MIN, INT64_MAX);
    if (strcmp(name, "axis") == 0) {
        MGPU_TRY(mgpu_text_int(&number, name, value, -MGPU_MAX_RANK, MGPU_MAX_RANK - 1));
        loss->axis = (int)number;
        return 0;
    }
    MGPU_TRY(mgpu_text_bool(&flag, name, value)); /* from_logits */
    loss->from_logits = flag ? MGPU_YES : MGPU_NO;
    return 0;
}

/* The names that a loss may use. */
struct known {
    const char *const *outputs, *const *labels;
    int output_count, label_count;
};

static int set_option(struct mgpu_loss *loss, const struct mgpu_item *item,
                      const struct known *known)
{
    const char *name = item->name;
    if (!has_option(loss, name))
        return unknown_option(loss, name);
    if (!item->value && strcmp(name, "from_logits") != 0)
        return mgpu_fail(MGPU_EUSAGE, "%s needs a value: %s=...", name, name);
    if (strcmp(name, "output") == 0)
        return set_name(&loss->output, "output", item->value, known->outputs, known->output_count);
    if (strcmp(name, "reduction") == 0)
        return set_reduction(loss, item->value);
    if (strcmp(name, "label") == 0)
        loss->label = item->value;
    else if (strcmp(name, "class_weights") == 0)
        loss->class_weights_file = item->value;
    else
        return set_number(loss, name, item->value);
    return 0;
}

/* ":NAME" at *at, copied into the arena: the longest of `names`, else up to the comma; *at moves
 * behind it. */
static const char *short_name(const char **at, const char *const *names, int count,
                              struct mgpu_arena *arena)
{
    size_t n = mgpu_longest_name(*at + 1, names, count, ":,");
    char *name = mgpu_arena_string(arena, *at + 1);
    name[n ? n : strcspn(name, ",")] = '\0';
    *at += 1 + strlen(name);
    return name;
}

/* KIND or KIND:OUTPUT or KIND:OUTPUT:LABEL; *at moves to the comma or the end. */
static int parse_head(struct mgpu_loss *loss, const char **at, const struct known *known,
                      struct mgpu_arena *arena)
{
    char *kind = mgpu_arena_string(arena, *at);
    kind[strcspn(kind, ":,")] = '\0';
    *at += strlen(kind);
    MGPU_TRY(set_kind(loss, kind));
    if (**at == ':')
        MGPU_TRY(set_name(&loss->output, "output",
                          short_name(at, known->outputs, known->output_count, arena),
                          known->outputs, known->output_count));
    if (**at == ':' && loss->kind != MGPU_LOSS_OUTPUT)
        loss->label = short_name(at, known->labels, known->label_count, arena);
    if (**at && **at != ',')
        return mgpu_fail(MGPU_EUSAGE, "'%s' is too much", *at);
    return 0;
}

static int parse_options(struct mgpu_loss *loss, const char *text, const struct known *known,
                         struct mgpu_arena *arena)
{
    int names = known->output_count + known->label_count, count;
    const char **whole = MGPU_NEW_ARRAY(arena, const char *, names + 1);
    for (int i = 0; i < names; i++)
        whole[i] =
            i < known->output_count ? known->outputs[i] : known->labels[i - known->output_count];
    struct mgpu_item *items;
    mgpu_items_cut(&items, &count, text, whole, names, arena);
    for (int i = 0; i < count; i++)
        MGPU_TRY(set_option(loss, &items[i], known));
    return 0;
}

static int settle_names(struct mgpu_loss *loss, const struct known *known)
{
    if (!loss->output && known->output_count != 1)
        return mgpu_fail(MGPU_EUSAGE, "which of the model's %d outputs? say output=%s",
                         known->output_count, known->output_count ? known->outputs[0] : "...");
    if (!loss->output)
        loss->output = known->outputs[0];
    if (!loss->label && loss->kind != MGPU_LOSS_OUTPUT)
        loss->label = "label";
    return 0;
}

static int parse(struct mgpu_loss *loss, const struct known *known, struct mgpu_arena *arena)
{
    const char *at = loss->text;
    MGPU_TRY(parse_head(loss, &at, known, arena));
    if (*at)
        MGPU_TRY(parse_options(loss, at + 1, known, arena));
    return settle_names(loss, known);
}

int mgpu_loss_parse(struct mgpu_loss *out, const char *text, const char *const *outputs,
                    int output_count, const char *const *labels, int label_count,
                    struct mgpu_arena *arena)
{
    const struct known known = {outputs, labels, output_count, label_count};
    *out = (struct mgpu_loss){.text = mgpu_arena_string(arena, text),
                              .weight = 1,
                              .axis = MGPU_AXIS_UNSET,
                              .from_logits = MGPU_UNSET,
                              .ignore_index = -100,
                              .delta = 1};
    return mgpu_prefix(parse(out, &known, arena), "--loss %s", text);
}

const char *mgpu_loss_help(void)
{
    return "\
--loss KIND[,output=NAME][,label=NAME][,weight=W][,OPTION=VALUE...]     (one for each output)\n\
--loss KIND:OUTPUT:LABEL                                                short for the same\n\
\n\
Kinds (and the names that PyTorch and Keras give them):\n\
  cross_entropy  classes: labels are class numbers or distributions, by type and shape.\n\
                 The output is logits; where it comes from Softmax, the logits before that are\n\
                 used, as Keras does. categorical_crossentropy and its sparse form take an output\n\
                 that does not come from Softmax for probabilities, clipped to [1e-7, 1-1e-7].\n\
  nll            classes: the output is log-probabilities\n\
  mse            (y - label)^2\n\
  mae            |y - label|                                 also: l1\n\
  huber          d^2/2 where |d| <= delta, else delta*(|d| - delta/2)\n\
  bce            binary cross entropy of probabilities (through the logits where the output comes\n\
                 from Sigmoid, else clipped to [1e-7, 1-1e-7])\n\
  bce_logits     binary cross entropy of logits             also: bce_with_logits\n\
  hinge          max(0, 1 - label*y), labels -1 and 1, or 0 and 1\n\
  kl             label*(log(label) - y), y being log-probabilities; mean over all elements, as\n\
                 PyTorch's KLDivLoss. kl_divergence is Keras's: y being probabilities, summed over\n\
                 the classes.\n\
  output         the graph computes the loss: its output (the mean of it, when it has elements)\n\
\n\
A loss is the mean over everything that counts in the whole batch, whatever the rank count: all\n\
elements; or all labels that are not ignored, by class weight and sample weight.\n\
\n\
Options:\n\
  output=NAME            output of the model (default: the only one)\n\
  label=NAME             data that are the labels (default: label)\n\
  weight=W               factor of this loss in the sum of all losses\n\
  axis=K                 axis of the classes (default: the one that the label lacks)\n\
  ignore_index=I         class number that does not count (default -100)\n\
  label_smoothing=S      cross_entropy: (1-S)*label + S/classes; bce: (1-S)*label + S/2\n\
  class_weights=FILE     one weight a class\n\
  from_logits=1|0        cross_entropy, bce, kl: the output is logits, or is probabilities\n\
  delta=D                huber (default 1)\n\
  reduction=mean|sum|batchmean   batchmean divides by the number of samples\n\
--sample-weight FILE     one weight a sample; counts in the mean\n\
\n\
--metric KIND[,output=NAME]   accuracy (default for losses over classes), top5 (topK),\n\
                              mae, mse, rmse\n";
}
