/* The optimizer that --optimizer and --group name, as update nodes. */
#ifndef MGPU_TRAIN_OPTIMIZER_H
#define MGPU_TRAIN_OPTIMIZER_H

#include "runtime/graph/graph.h"
#include "runtime/ops/update.h"

struct mgpu_group { /* --group PATTERN,lr=...,weight_decay=... */
    const char *pattern;
    struct mgpu_update_attrs attrs; /* the optimizer's with these changes */
    int matched;
};

struct mgpu_optimizer {
    struct mgpu_update_attrs attrs;
    int groups;
    struct mgpu_group *group;
    double clip_norm; /* 0: none */
    bool scaled;      /* gradients come multiplied by MGPU_SCALAR_LOSS_SCALE */
};

/* KIND[,name=value...]; unknown kinds and options are MGPU_EUSAGE with the nearest name; an option
 * that the kind does not have is an error. Defaults are those of the style's framework. clip_norm
 * and clip_value: 0 is none. */
int mgpu_optimizer_parse(struct mgpu_optimizer *out, const char *text, double clip_norm,
                         double clip_value);
/* Adds a group; the last that matches a weight counts. The pattern may contain commas and '='
 * (matched names are tried longest first against `names`). */
int mgpu_optimizer_group(struct mgpu_optimizer *optimizer, const char *text,
                         const char *const *names, int name_count, struct mgpu_arena *arena);

/* What an optimizer state starts from. */
struct mgpu_state_start {
    const char *name; /* of the graph's parameter */
    double value;
};

/* Appends update nodes (role MGPU_UPDATE) for every MGPU_WEIGHT with a gradient: sets its ->next,
 * and adds state parameters (role MGPU_STATE, called "weight:state") with theirs. With clip_norm,
 * one global_norm over all gradients and coefficient min(1, clip_norm / (norm + 1e-6)); of scaled
 * gradients the coefficient takes the scale off as well. The list of starts goes to the graph's
 * arena. A group that matches nothing is an error. */
int mgpu_optimizer_build(struct mgpu_graph *g, struct mgpu_optimizer *optimizer,
                         struct mgpu_state_start **starts, int *count);

/* --lr-schedule KIND[,...] and --warmup: what multiplies every learning rate, update by update.
 * After `warmup` updates in which it rises in equal steps to 1, the schedule begins and has the
 * rest of `total` (0: unknown, an error for the kinds that need it). t = 0, 1, ... are its updates,
 * T its last one plus 1; the rules are those of torch.optim.lr_scheduler with one step an update:
 *
 *     constant       1
 *     step           gamma^floor(t / step_size)                              StepLR
 *     exponential    gamma^t                                                 ExponentialLR
 *     linear         1 + (end - 1) * t/T                                     LinearLR from 1
 *     cosine         end + (1 - end) * (1 + cos(pi * t/T)) / 2               CosineAnnealingLR
 *     one_cycle      1/div_factor, up to 1 in pct_start*T updates, down to
 *                    1/(div_factor*final_div_factor), both along a cosine    OneCycleLR
 */
enum mgpu_schedule_kind {
    MGPU_SCHEDULE_CONSTANT,
    MGPU_SCHEDULE_STEP,
    MGPU_SCHEDULE_EXPONENTIAL,
    MGPU_SCHEDULE_LINEAR,
    MGPU_SCHEDULE_COSINE,
    MGPU_SCHEDULE_ONE_CYCLE,
};
struct mgpu_schedule {
    int kind;
    double gamma, end, warmup, pct_start, div_factor, final_div_factor;
    int64_t step_size, total; /* total: T, of the schedule alone */
};
/* `text` NULL: constant. */
int mgpu_schedule_parse(struct mgpu_schedule *out, const char *text, double warmup, int64_t total);
double mgpu_schedule_factor(const struct mgpu_schedule *schedule, int64_t step);

/* Text of --help optimizer: kinds, options, defaults by style, and where the styles differ. */
const char *mgpu_optimizer_help(void);

#endif
