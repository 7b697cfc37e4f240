/* --optimizer and --group. */
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const kind_names[] = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb"};
static const char *const style_names[] = {"torch", "keras2", "keras3"};
enum { KINDS = sizeof kind_names / sizeof *kind_names };
enum { STYLES = sizeof style_names / sizeof *style_names };

/* Defaults: torch.optim of PyTorch 2; tf_keras's optimizers.legacy; Keras 3. PyTorch has no LAMB:
 * beside it stand the constants of the paper's authors (eps 1e-6). */
#define MOMENTS .beta1 = 0.9, .beta2 = 0.999
static const struct mgpu_update_attrs defaults[STYLES][KINDS] = {
    [MGPU_STYLE_TORCH] = {[MGPU_SGD] = {.lr = 1e-3},
                          [MGPU_ADAM] = {.lr = 1e-3, .eps = 1e-8, MOMENTS},
                          [MGPU_ADAMW] = {.lr = 1e-3, .eps = 1e-8, .weight_decay = 1e-2, MOMENTS},
                          [MGPU_RMSPROP] = {.lr = 1e-2, .eps = 1e-8, .rho = 0.99},
                          [MGPU_ADAGRAD] = {.lr = 1e-2, .eps = 1e-10},
                          [MGPU_LAMB] = {.lr = 1e-3, .eps = 1e-6, MOMENTS}},
    [MGPU_STYLE_KERAS2] = {[MGPU_SGD] = {.lr = 1e-2},
                           [MGPU_ADAM] = {.lr = 1e-3, .eps = 1e-7, MOMENTS},
                           [MGPU_ADAMW] = {.lr = 1e-3, .eps = 1e-7, .weight_decay = 4e-3, MOMENTS},
                           [MGPU_RMSPROP] = {.lr = 1e-3, .eps = 1e-7, .rho = 0.9},
                           [MGPU_ADAGRAD] = {.lr = 1e-3,
                                             .eps = 1e-7,
                                             .initial_accumulator_value = 0.1},
                           [MGPU_LAMB] = {.lr = 1e-3, .eps = 1e-7, MOMENTS}},
    [MGPU_STYLE_KERAS3] = {[MGPU_SGD] = {.lr = 1e-2},
                           [MGPU_ADAM] = {.lr = 1e-3, .eps = 1e-7, MOMENTS},
                           [MGPU_ADAMW] = {.lr = 1e-3, .eps = 1e-7, .weight_decay = 4e-3, MOMENTS},
                           [MGPU_RMSPROP] = {.lr = 1e-3, .eps = 1e-7, .rho = 0.9},
                           [MGPU_ADAGRAD] = {.lr = 1e-3,
                                             .eps = 1e-7,
                                             .initial_accumulator_value = 0.1},
                           [MGPU_LAMB] = {.lr = 1e-3, .eps = 1e-7, MOMENTS}},
};

/* The options: which kinds have them, where they go, what they may be. */
#define KIND(kind)  (1u << MGPU_##kind)
#define FIELD(name) offsetof(struct mgpu_update_attrs, name)
enum { ALL = ~0u, BETAS = KIND(ADAM) | KIND(ADAMW) | KIND(LAMB) };
static const double BELOW_ONE = 1 - 1e-12;
static const struct optimizer_option {
    const char *name;
    unsigned kinds;
    size_t offset;
    bool flag;
    double high;
} options[] = {
    {"lr", ALL, FIELD(lr), false, INFINITY},
    {"learning_rate", ALL, FIELD(lr), false, INFINITY},
    {"weight_decay", ALL, FIELD(weight_decay), false, INFINITY},
    {"decay", ALL, FIELD(decay), false, INFINITY},
    {"momentum", KIND(SGD) | KIND(RMSPROP), FIELD(momentum), false, INFINITY},
    {"nesterov", KIND(SGD), FIELD(nesterov), true, 1},
    {"dampening", KIND(SGD), FIELD(dampening), false, INFINITY},
    {"beta1", BETAS, FIELD(beta1), false, BELOW_ONE},
    {"beta2", BETAS, FIELD(beta2), false, BELOW_ONE},
    {"beta_1", BETAS, FIELD(beta1), false, BELOW_ONE},
    {"beta_2", BETAS, FIELD(beta2), false, BELOW_ONE},
    {"eps", ALL & ~KIND(SGD), FIELD(eps), false, INFINITY},
    {"epsilon", ALL & ~KIND(SGD), FIELD(eps), false, INFINITY},
    {"amsgrad", KIND(ADAM) | KIND(ADAMW), FIELD(amsgrad), true, 1},
    {"alpha", KIND(RMSPROP), FIELD(rho), false, BELOW_ONE},
    {"rho", KIND(RMSPROP), FIELD(rho), false, BELOW_ONE},
    {"centered", KIND(RMSPROP), FIELD(centered), true, 1},
    {"lr_decay", KIND(ADAGRAD), FIELD(lr_decay), false, INFINITY},
    {"initial_accumulator_value", KIND(ADAGRAD), FIELD(initial_accumulator_value), false, INFINITY},
};
enum { OPTIONS = sizeof options / sizeof *options };

static int find_name(int *out, const char *what, const char *name, const char *const *names,
                     int count)
{
    for (*out = 0; *out < count; ++*out)
        if (strcasecmp(names[*out], name) == 0)
            return 0;
    return mgpu_unknown_name(what, name, names, count);
}

/* Unknown options; one that other kinds have is named as such. */
static int bad_option(int kind, const char *name)
{
    const char *names[OPTIONS + 1] = {"style"};
    int count = 1;
    for (int i = 0; i < OPTIONS; i++) {
        if (options[i].kinds & 1u << kind)
            names[count++] = options[i].name;
        else if (strcmp(options[i].name, name) == 0)
            return mgpu_fail(MGPU_EUSAGE, "%s has no option '%s'", kind_names[kind], name);
    }
    return mgpu_unknown_name("option", name, names, count);
}

static int set_option(struct mgpu_update_attrs *attrs, const struct mgpu_item *item)
{
    for (int i = 0; i < OPTIONS; i++) {
        const struct optimizer_option *o = &options[i];
        if (strcmp(o->name, item->name) != 0 || !(o->kinds & 1u << attrs->kind))
            continue;
        void *field = (char *)attrs + o->offset;
        return o->flag ? mgpu_text_bool(field, o->name, item->value)
                       : mgpu_text_double(field, o->name, item->value, 0, o->high);
    }
    return bad_option(attrs->kind, item->name);
}

static bool is_style(const struct mgpu_item *item)
{
    return strcmp(item->name, "style") == 0;
}

/* The style comes first, since the defaults depend on it. */
static int set_style(struct mgpu_update_attrs *attrs, int kind, const struct mgpu_item *items,
                     int count)
{
    int style = MGPU_STYLE_TORCH;
    for (int i = 0; i < count; i++)
        if (is_style(&items[i]))
            MGPU_TRY(find_name(&style, "style", items[i].value ? items[i].value : "", style_names,
                               STYLES));
    *attrs = defaults[style][kind];
    attrs->kind = kind;
    attrs->style = style;
    return 0;
}

/* torch.optim.SGD refuses this too. */
static int check(const struct mgpu_update_attrs *a)
{
    if (a->nesterov && (a->momentum <= 0 || a->dampening != 0))
        return mgpu_fail(MGPU_EUSAGE, "nesterov needs a momentum, and no dampening");
    if (a->dampening != 0 && a->style != MGPU_STYLE_TORCH)
        return mgpu_fail(MGPU_EUSAGE, "Keras has no dampening");
    return 0;
}

static int parse(struct mgpu_optimizer *out, const char *text, struct mgpu_arena *arena)
{
    struct mgpu_item *items;
    int count, kind;
    mgpu_items_cut(&items, &count, text, NULL, 0, arena);
    const char *name = count && !items[0].value ? items[0].name : text;
    MGPU_TRY(find_name(&kind, "optimizer", name, kind_names, KINDS));
    MGPU_TRY(set_style(&out->attrs, kind, items + 1, count - 1));
    for (int i = 1; i < count; i++)
        if (!is_style(&items[i]))
            MGPU_TRY(set_option(&out->attrs, &items[i]));
    return check(&out->attrs);
}

int mgpu_optimizer_parse(struct mgpu_optimizer *out, const char *text, double clip_norm,
                         double clip_value)
{
    *out = (struct mgpu_optimizer){.clip_norm = clip_norm};
    struct mgpu_arena *arena = mgpu_arena_new();
    int rc = parse(out, text, arena);
    mgpu_arena_free(arena);
    out->attrs.clip_value = clip_value;
    return mgpu_prefix(rc, "--optimizer %s", text);
}

/* Does an option come behind this comma? There a pattern ends. */
static bool begins_options(const char *comma)
{
    for (int i = 0; i < OPTIONS; i++) {
        size_t n = strlen(options[i].name);
        if (strncmp(comma + 1, options[i].name, n) != 0)
            continue;
        char end = comma[1 + n];
        if (end == '=' || (options[i].flag && (end == ',' || !end)))
            return true;
    }
    return false;
}

/* How long the pattern is at the start of a group. */
static size_t pattern_length(const char *text, const char *const *names, int count)
{
    size_t name = mgpu_longest_name(text, names, count, ",");
    if (name)
        return name;
    for (const char *comma = strchr(text, ','); comma; comma = strchr(comma + 1, ','))
        if (begins_options(comma))
            return (size_t)(comma - text);
    return strcspn(text, ",");
}

static int parse_group(struct mgpu_group *group, const char *text, const char *const *names,
                       int name_count, struct mgpu_arena *arena)
{
    struct mgpu_item *items;
    int count;
    size_t n = pattern_length(text, names, name_count);
    char *pattern = mgpu_arena_string(arena, text);
    pattern[n] = '\0';
    group->pattern = pattern;
    mgpu_items_cut(&items, &count, text[n] ? text + n + 1 : "", NULL, 0, arena);
    if (!n || !count)
        return mgpu_fail(MGPU_EUSAGE, "a pattern and what it changes are wanted: PATTERN,lr=...");
    for (int i = 0; i < count; i++)
        MGPU_TRY(set_option(&group->attrs, &items[i]));
    return check(&group->attrs);
}

int mgpu_optimizer_group(struct mgpu_optimizer *optimizer, const char *text,
                         const char *const *names, int name_count, struct mgpu_arena *arena)
{
    struct mgpu_group group = {.attrs = optimizer->attrs};
    MGPU_TRY(mgpu_prefix(parse_group(&group, text, names, name_count, arena), "--group %s", text));
    struct mgpu_group *all = MGPU_NEW_ARRAY(arena, struct mgpu_group, optimizer->groups + 1);
    if (optimizer->groups)
        memcpy(all, optimizer->group, sizeof *all * (size_t)optimizer->groups);
    all[optimizer->groups++] = group;
    optimizer->group = all;
    return 0;
}

const char *mgpu_optimizer_help(void)
{
    return "\
--optimizer KIND[,name=value...]      default: adam\n\
\n\
  all       lr, weight_decay, decay (the rate is lr/(1 + decay*t)), style=torch|keras2|keras3\n\
  sgd       momentum, nesterov, dampening\n\
  adam      beta1, beta2, eps, amsgrad\n\
  adamw     the same, with decoupled weight decay\n\
  rmsprop   rho (alpha), eps, momentum, centered\n\
  adagrad   eps, lr_decay, initial_accumulator_value\n\
  lamb      beta1, beta2, eps\n\
\n\
Defaults            torch (default)             keras2                      keras3\n\
  sgd               lr 1e-3                     lr 1e-2                     lr 1e-2\n\
  adam              lr 1e-3, eps 1e-8           lr 1e-3, eps 1e-7           as keras2\n\
  adamw             ... weight_decay 1e-2       ... weight_decay 4e-3       as keras2\n\
  rmsprop           lr 1e-2, rho .99, eps 1e-8  lr 1e-3, rho .9, eps 1e-7   as keras2\n\
  adagrad           lr 1e-2, eps 1e-10          lr 1e-3, eps 1e-7, initial  as keras2\n\
                                                accumulator .1\n\
  lamb              lr 1e-3, eps 1e-6           lr 1e-3, eps 1e-7           as keras2\n\
beta1 .9 and beta2 .999 everywhere.\n\
\n\
Where the styles differ (t = 0 at the first update, lr_t the rate of update t):\n\
  weight decay      torch: added to the gradient, but for adamw. keras: w -= lr_t*weight_decay*w\n\
                    first, in every kind.\n\
  sgd, momentum     torch: m = momentum*m + (1-dampening)*g (m = g at first); w -= lr_t*m.\n\
                    keras: m = momentum*m - lr_t*g; w += m: the rate is inside the velocity.\n\
  adam, adamw       torch: w -= lr_t/(1-beta1^(t+1)) * m/(sqrt(v/(1-beta2^(t+1))) + eps).\n\
                    keras: w -= lr_t*sqrt(1-beta2^(t+1))/(1-beta1^(t+1)) * m/(sqrt(v) + eps): eps\n\
                    is not scaled with the correction.\n\
  rmsprop           torch: w -= lr_t*g/(sqrt(v) + eps), momentum outside the rate.\n\
                    keras2: the same without momentum; with it, as keras3.\n\
                    keras3: w -= lr_t*g/sqrt(v + eps): eps is inside the root, and the rate inside\n\
                    the momentum.\n\
  adagrad           torch and keras2: g/(sqrt(v) + eps). keras3: g/sqrt(v + eps).\n\
\n\
--group PATTERN,lr=...,weight_decay=...   other values for the weights whose names match the\n\
                  pattern (repeat; the last that matches counts): --group '*bias*,weight_decay=0'\n\
--clip-norm X     scales all gradients so that their norm together is at most X\n\
--clip-value X    cuts every element of the gradients to [-X, X]\n\
\n\
--lr-schedule KIND[,name=value...]        the rules of PyTorch's lr_scheduler, one step an update\n\
  cosine          from lr to end*lr over all updates (end=0)\n\
  linear          from lr to end*lr over all updates (end=0)\n\
  step            times gamma every step_size updates (gamma=0.1)\n\
  exponential     times gamma every update\n\
  one_cycle       from lr/div_factor up to lr in pct_start of all updates, then down to\n\
                  lr/div_factor/final_div_factor (pct_start=0.3, div_factor=25,\n\
                  final_div_factor=1e4); the momentum is not cycled\n\
--warmup N        N updates before that in which the rate rises in equal steps to lr\n";
}
