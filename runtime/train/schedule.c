#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define KIND(kind) (1u << MGPU_SCHEDULE_##kind)

static const char *const kind_names[] = {"constant", "step",   "exponential",
                                         "linear",   "cosine", "one_cycle"};
enum { KINDS = sizeof kind_names / sizeof *kind_names };
enum { NEED_TOTAL = KIND(LINEAR) | KIND(COSINE) | KIND(ONE_CYCLE) };

#define FIELD(name) offsetof(struct mgpu_schedule, name)
static const struct schedule_option {
    const char *name;
    unsigned kinds;
    size_t offset;
    double low, high;
} options[] = {
    {"step_size", KIND(STEP), FIELD(step_size), 1, 1e15},
    {"gamma", KIND(STEP) | KIND(EXPONENTIAL), FIELD(gamma), 0, INFINITY},
    {"end", KIND(LINEAR) | KIND(COSINE), FIELD(end), 0, INFINITY},
    {"pct_start", KIND(ONE_CYCLE), FIELD(pct_start), 0, 1},
    {"div_factor", KIND(ONE_CYCLE), FIELD(div_factor), 1e-12, INFINITY},
    {"final_div_factor", KIND(ONE_CYCLE), FIELD(final_div_factor), 1e-12, INFINITY},
};
enum { OPTIONS = sizeof options / sizeof *options };

static int set_option(struct mgpu_schedule *s, const struct mgpu_item *item)
{
    const char *names[OPTIONS];
    int count = 0;
    for (int i = 0; i < OPTIONS; i++) {
        const struct schedule_option *o = &options[i];
        if (!(o->kinds & 1u << s->kind))
            continue;
        names[count++] = o->name;
        if (strcmp(o->name, item->name) != 0)
            continue;
        void *field = (char *)s + o->offset;
        if (o->offset == FIELD(step_size))
            return mgpu_text_int(field, o->name, item->value, (int64_t)o->low, (int64_t)o->high);
        return mgpu_text_double(field, o->name, item->value, o->low, o->high);
    }
    return mgpu_unknown_name("option", item->name, names, count);
}

static int set_kind(struct mgpu_schedule *s, const struct mgpu_item *item)
{
    for (int i = 0; i < KINDS; i++)
        if (!item->value && strcmp(item->name, kind_names[i]) == 0) {
            s->kind = i;
            s->gamma = i == MGPU_SCHEDULE_STEP ? 0.1 : NAN;
            return 0;
        }
    return mgpu_unknown_name("schedule", item->name, kind_names, KINDS);
}

/* What has no default, and the number of updates. */
static int check(const struct mgpu_schedule *s, double warmup, int64_t total)
{
    unsigned kind = 1u << s->kind;
    if (kind & KIND(STEP) && !s->step_size)
        return mgpu_fail(MGPU_EUSAGE, "step needs step_size=UPDATES");
    if (kind & KIND(EXPONENTIAL) && isnan(s->gamma))
        return mgpu_fail(MGPU_EUSAGE, "exponential needs gamma=FACTOR (of each update)");
    if (kind & NEED_TOTAL && total <= 0)
        return mgpu_fail(MGPU_EUSAGE, "%s needs an end: give --epochs or --steps",
                         kind_names[s->kind]);
    if (kind & NEED_TOTAL && warmup >= (double)total)
        return mgpu_fail(MGPU_EUSAGE, "a warm-up of %.0f updates leaves none of %lld for it",
                         warmup, (long long)total);
    return 0;
}

static int parse(struct mgpu_schedule *s, const char *text, double warmup, int64_t total,
                 struct mgpu_arena *arena)
{
    struct mgpu_item *items;
    int count;
    mgpu_items_cut(&items, &count, text, NULL, 0, arena);
    MGPU_TRY(set_kind(s, count ? &items[0] : &(struct mgpu_item){.name = ""}));
    for (int i = 1; i < count; i++)
        MGPU_TRY(set_option(s, &items[i]));
    return check(s, warmup, total);
}

int mgpu_schedule_parse(struct mgpu_schedule *out, const char *text, double warmup, int64_t total)
{
    *out = (struct mgpu_schedule){
        .warmup = warmup, .pct_start = 0.3, .div_factor = 25, .final_div_factor = 1e4};
    if (!(warmup >= 0) || warmup != floor(warmup))
        return mgpu_fail(MGPU_EUSAGE, "--warmup %g: a number of updates is wanted", warmup);
    out->total = total - (int64_t)fmin(warmup, (double)total);
    if (!text)
        return 0;
    struct mgpu_arena *arena = mgpu_arena_new();
    int rc = parse(out, text, warmup, total, arena);
    mgpu_arena_free(arena);
    return mgpu_prefix(rc, "--lr-schedule %s", text);
}

/* From a to b along half a cosine. */
static double anneal(double a, double b, double share)
{
    return b + (a - b) * (1 + cos(M_PI * share)) / 2;
}

/* The last update of each phase is counted from 0, hence the -1. */
static double one_cycle(const struct mgpu_schedule *s, double t)
{
    double low = 1 / s->div_factor, end = low / s->final_div_factor;
    double top = s->pct_start * (double)s->total - 1, last = (double)s->total - 1;
    if (t <= top)
        return top > 0 ? anneal(low, 1, t / top) : 1;
    top = fmax(top, 0);
    return last > top ? anneal(1, end, (t - top) / (last - top)) : end;
}

double mgpu_schedule_factor(const struct mgpu_schedule *s, int64_t step)
{
    double t = (double)step - s->warmup, share;
    if (t < 0)
        return ((double)step + 1) / s->warmup;
    if (1u << s->kind & NEED_TOTAL)
        t = fmin(t, (double)s->total);
    share = s->total ? t / (double)s->total : 0;
    switch ((enum mgpu_schedule_kind)s->kind) {
    case MGPU_SCHEDULE_STEP:
        return pow(s->gamma, floor(t / (double)s->step_size));
    case MGPU_SCHEDULE_EXPONENTIAL:
        return pow(s->gamma, t);
    case MGPU_SCHEDULE_LINEAR:
        return 1 + (s->end - 1) * share;
    case MGPU_SCHEDULE_COSINE:
        return anneal(1, s->end, share);
    case MGPU_SCHEDULE_ONE_CYCLE:
        return one_cycle(s, fmin(t, (double)s->total - 1));
    case MGPU_SCHEDULE_CONSTANT:
        break;
    }
    return 1;
}
