#include "runtime/train/metric.h"

#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/sort.h"
#include "runtime/train/loss_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names ----------------------------------------------------------------------------------- */

static const struct metric_name {
    const char *name;
    enum mgpu_metric_kind kind;
} metric_names[] = {
    {"accuracy", MGPU_METRIC_ACCURACY},
    {"top5", MGPU_METRIC_TOP_K},
    {"mae", MGPU_METRIC_MAE},
    {"mse", MGPU_METRIC_MSE},
    {"rmse", MGPU_METRIC_RMSE},
    {"acc", MGPU_METRIC_ACCURACY},
    {"binary_accuracy", MGPU_METRIC_ACCURACY},
    {"categorical_accuracy", MGPU_METRIC_ACCURACY},
    {"sparse_categorical_accuracy", MGPU_METRIC_ACCURACY},
    {"l1", MGPU_METRIC_MAE},
    {"mean_absolute_error", MGPU_METRIC_MAE},
    {"mean_squared_error", MGPU_METRIC_MSE},
    {"root_mean_squared_error", MGPU_METRIC_RMSE},
};
enum { METRIC_NAMES = sizeof metric_names / sizeof *metric_names };

/* top5, top_5, top10 ... */
static bool read_top_k(const char *name, struct mgpu_metric *out)
{
    if (strncasecmp(name, "top", 3) != 0)
        return false;
    int64_t k;
    const char *digits = name + 3 + (name[3] == '_');
    if (mgpu_text_int(&k, "top", digits, 1, INT32_MAX) < 0)
        return false;
    out->kind = MGPU_METRIC_TOP_K;
    out->k = (int)k;
    return true;
}

static int read_kind(const char *name, struct mgpu_metric *out)
{
    const char *names[METRIC_NAMES];
    if (read_top_k(name, out))
        return 0;
    for (int i = 0; i < METRIC_NAMES; i++) {
        names[i] = metric_names[i].name;
        if (strcasecmp(names[i], name) != 0)
            continue;
        out->kind = metric_names[i].kind;
        return 0;
    }
    return mgpu_unknown_name("metric", name, names, METRIC_NAMES);
}

static const char *plain_name(const struct mgpu_metric *metric, struct mgpu_arena *arena)
{
    if (metric->kind == MGPU_METRIC_TOP_K)
        return mgpu_arena_format(arena, "top%d", metric->k);
    for (int i = 0; i < METRIC_NAMES; i++)
        if (metric_names[i].kind == metric->kind)
            return metric_names[i].name;
    return "";
}

/* ---- which losses a metric fits -------------------------------------------------------------- */

static bool is_binary(const struct mgpu_loss *loss)
{
    return loss->kind == MGPU_LOSS_BCE || loss->kind == MGPU_LOSS_BCE_LOGITS ||
           loss->kind == MGPU_LOSS_HINGE;
}

static bool suits(const struct mgpu_metric *metric, const struct mgpu_loss *loss)
{
    bool classes = mgpu_loss_has_classes(loss->kind);
    if (metric->kind == MGPU_METRIC_ACCURACY)
        return classes || is_binary(loss);
    if (metric->kind == MGPU_METRIC_TOP_K)
        return classes;
    return loss->kind != MGPU_LOSS_OUTPUT && !classes;
}

/* Losses with one output and one label have one metric. */
static bool same_target(const struct mgpu_loss *a, const struct mgpu_loss *b)
{
    return !strcmp(a->output, b->output) && !strcmp(a->label, b->label);
}

/* The outputs and labels that a metric suits. */
static int count_targets(const struct mgpu_metric *metric, const struct mgpu_loss *losses,
                         int count)
{
    int targets = 0;
    for (int i = 0; i < count; i++) {
        bool fresh = suits(metric, &losses[i]);
        for (int k = 0; k < i && fresh; k++)
            fresh = !suits(metric, &losses[k]) || !same_target(&losses[k], &losses[i]);
        targets += fresh;
    }
    return targets;
}

static bool is_there(const struct mgpu_metric *list, int count, const struct mgpu_metric *metric,
                     const struct mgpu_loss *losses, int loss)
{
    for (int i = 0; i < count; i++)
        if (list[i].kind == metric->kind && list[i].k == metric->k &&
            same_target(&losses[list[i].loss], &losses[loss]))
            return true;
    return false;
}

static bool name_taken(const struct mgpu_metric *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i].name, name))
            return true;
    return false;
}

/* Adds the metric, unless it is there, for every loss that it suits (of output `output`, unless
 * that is NULL); named after the output too where it suits several. Returns how many it suits. */
static int add(struct mgpu_metric **list, int *count, struct mgpu_metric metric, const char *output,
               const struct mgpu_loss *losses, int loss_count, struct mgpu_arena *arena)
{
    int suited = 0, targets = count_targets(&metric, losses, loss_count);
    const char *plain = plain_name(&metric, arena);
    struct mgpu_metric *all = MGPU_NEW_ARRAY(arena, struct mgpu_metric, *count + targets);
    if (*count)
        memcpy(all, *list, sizeof *all * (size_t)*count);
    *list = all;
    for (int i = 0; i < loss_count; i++) {
        if (!suits(&metric, &losses[i]) || (output && strcmp(losses[i].output, output) != 0))
            continue;
        suited++;
        if (is_there(all, *count, &metric, losses, i))
            continue;
        metric.loss = i;
        metric.name =
            targets > 1 ? mgpu_arena_format(arena, "%s_%s", losses[i].output, plain) : plain;
        if (name_taken(all, *count, metric.name)) /* one output, several labels */
            metric.name = mgpu_arena_format(arena, "%s_%s", losses[i].label, metric.name);
        all[(*count)++] = metric;
    }
    return suited;
}

/* ",output=NAME" behind the kind, NULL when there is none. */
static int read_output(const char **out, const char *text, const struct mgpu_loss *losses,
                       int loss_count, struct mgpu_arena *arena)
{
    static const char *const options[] = {"output"};
    const char **outputs = MGPU_NEW_ARRAY(arena, const char *, loss_count);
    struct mgpu_item *items;
    int count;
    *out = NULL;
    for (int i = 0; i < loss_count; i++)
        outputs[i] = losses[i].output;
    mgpu_items_cut(&items, &count, text, outputs, loss_count, arena);
    for (int i = 0; i < count; i++) {
        bool found = false;
        if (strcmp(items[i].name, "output") != 0 || !items[i].value)
            return mgpu_unknown_name("option", items[i].name, options, 1);
        *out = items[i].value;
        for (int k = 0; k < loss_count; k++)
            found = found || strcmp(outputs[k], *out) == 0;
        if (!found)
            return mgpu_unknown_name("output with a loss", *out, outputs, loss_count);
    }
    return 0;
}

static int parse(struct mgpu_metric **list, int *count, const char *text,
                 const struct mgpu_loss *losses, int loss_count, struct mgpu_arena *arena)
{
    struct mgpu_metric metric = {0};
    char *kind = mgpu_arena_string(arena, text), *comma = strchr(kind, ',');
    const char *output;
    if (comma)
        *comma = '\0';
    MGPU_TRY(read_kind(kind, &metric));
    MGPU_TRY(read_output(&output, comma ? comma + 1 : "", losses, loss_count, arena));
    if (!add(list, count, metric, output, losses, loss_count, arena))
        return mgpu_fail(MGPU_EUSAGE, "it suits none of the losses");
    return 0;
}

int mgpu_metric_parse(struct mgpu_metric **list, int *count, const char *text,
                      const struct mgpu_loss *losses, int loss_count, struct mgpu_arena *arena)
{
    return mgpu_prefix(parse(list, count, text, losses, loss_count, arena), "--metric %s", text);
}

void mgpu_metric_default(struct mgpu_metric **list, int *count, const struct mgpu_loss *losses,
                         int loss_count, struct mgpu_arena *arena)
{
    struct mgpu_metric metric = {.kind = MGPU_METRIC_ACCURACY};
    int classes = 0;
    for (int i = 0; i < loss_count; i++)
        classes += mgpu_loss_has_classes(losses[i].kind);
    for (int i = 0; i < loss_count && classes; i++)
        if (mgpu_loss_has_classes(losses[i].kind))
            add(list, count, metric, losses[i].output, losses, loss_count, arena);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* What one metric is made from. */
struct build {
    struct mgpu_graph *g;
    const struct mgpu_metric *metric;
    const struct mgpu_loss *loss;
    struct mgpu_value *y, *label;
};

/* A double of 1 for each element of v: a sum of them counts what a rank has. */
static struct mgpu_value *ones(struct mgpu_graph *g, struct mgpu_value *v)
{
    struct mgpu_expr e;
    if (!v)
        return NULL;
    mgpu_expr_begin(&e, 1);
    int x = mgpu_expr_input(&e, 0, v->type), zero = mgpu_expr_number(&e, v->type, 0);
    if (!mgpu_is_float(v->type))
        zero = mgpu_expr_integer(&e, v->type, 0);
    int low = mgpu_expr_2(&e, MGPU_X_LE, x, zero), high = mgpu_expr_1(&e, MGPU_X_NOT, low);
    int one = mgpu_expr_cast(&e, MGPU_DOUBLE, mgpu_expr_2(&e, MGPU_X_OR, low, high));
    return mgpu_pointwise(g, mgpu_expr_end(&e, one, g->arena), 1, &v);
}

static struct mgpu_value *equal(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b)
{
    return mgpu_cast(g, mgpu_binary(g, MGPU_X_EQ, a, b), MGPU_DOUBLE);
}

/* The class of every position. */
static struct mgpu_value *wanted_class(const struct build *b)
{
    return b->loss->dense && b->label
               ? mgpu_arg_reduce(b->g, b->label, b->loss->axis, false, false, false)
               : b->label;
}

/* Whether the wanted class is among the k largest. */
static struct mgpu_value *among_top(const struct build *b)
{
    struct mgpu_value *out[2], *wanted = wanted_class(b);
    int axis = b->loss->axis, k = b->metric->k;
    int64_t classes = b->y->dims[axis].value;
    struct mgpu_topk_attrs attrs = {.axis = axis, .k = k < classes ? k : classes};
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int rc = mgpu_graph_node(b->g, &mgpu_op_topk, &attrs, 1, &b->y, 2, out);
    if (rc < 0)
        return mgpu_build_fail(rc, "%s", mgpu_error());
    memcpy(dims, b->y->dims, sizeof dims);
    dims[axis] = mgpu_dim_const(1);
    struct mgpu_value *column = wanted ? mgpu_reshape(b->g, wanted, b->y->rank, dims) : NULL;
    return mgpu_reduce(b->g, MGPU_REDUCE_SUM, equal(b->g, out[1], column), 1u << axis, false);
}

static struct mgpu_value *class_hit(const struct build *b)
{
    if (b->metric->kind == MGPU_METRIC_TOP_K)
        return among_top(b);
    int axis = b->loss->axis;
    struct mgpu_value *y = mgpu_loss_untransposed(b->y, &axis);
    struct mgpu_value *guess = mgpu_arg_reduce(b->g, y, axis, false, false, false);
    return equal(b->g, guess, wanted_class(b));
}

/* Are output and label on the same side? Probabilities part at 0.5, logits and hinge at 0. */
static struct mgpu_value *binary_hit(const struct build *b)
{
    bool probabilities = b->loss->kind == MGPU_LOSS_BCE && b->loss->from_logits != MGPU_YES;
    bool hinge = b->loss->kind == MGPU_LOSS_HINGE;
    struct mgpu_value *in[] = {b->y, b->label};
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int y = mgpu_expr_input(&e, 0, b->y->type), t = mgpu_expr_input(&e, 1, b->label->type);
    int cut_y = mgpu_expr_number(&e, b->y->type, probabilities ? 0.5 : 0);
    int cut_t = mgpu_expr_number(&e, b->label->type, hinge ? 0 : 0.5);
    int guess = mgpu_expr_2(&e, MGPU_X_LT, cut_y, y), wanted = mgpu_expr_2(&e, MGPU_X_LT, cut_t, t);
    int same = mgpu_expr_1(&e, MGPU_X_NOT, mgpu_expr_2(&e, MGPU_X_XOR, guess, wanted));
    int hit = mgpu_expr_cast(&e, MGPU_DOUBLE, same);
    return mgpu_pointwise(b->g, mgpu_expr_end(&e, hit, b->g->arena), 2, in);
}

/* |y - label| or its square. */
static struct mgpu_value *distance(const struct build *b)
{
    struct mgpu_value *d =
        mgpu_sub(b->g, mgpu_cast(b->g, b->y, MGPU_DOUBLE), mgpu_cast(b->g, b->label, MGPU_DOUBLE));
    return b->metric->kind == MGPU_METRIC_MAE ? mgpu_unary(b->g, MGPU_X_ABS, d)
                                              : mgpu_mul(b->g, d, d);
}

static bool by_class(const struct build *b)
{
    return mgpu_loss_has_classes(b->loss->kind) &&
           (b->metric->kind == MGPU_METRIC_ACCURACY || b->metric->kind == MGPU_METRIC_TOP_K);
}

/* 1 for what counts, 0 for an ignored label. */
static struct mgpu_value *counted(const struct build *b, struct mgpu_value *each)
{
    if (b->loss->label_type != MGPU_INT64 || !b->loss->ignore)
        return ones(b->g, each);
    struct mgpu_value *ignored =
        mgpu_graph_constant(b->g, NULL, MGPU_INT64, 0, NULL, &b->loss->ignore_index, NULL);
    return mgpu_affine(b->g, equal(b->g, b->label, ignored), -1, 1);
}

static struct mgpu_value *total(struct mgpu_graph *g, struct mgpu_value *v)
{
    return v ? mgpu_reduce(g, MGPU_REDUCE_SUM, v, mgpu_loss_all_axes(v), false) : NULL;
}

static int build(const struct build *b, struct mgpu_value **sum, struct mgpu_value **count)
{
    if (!b->label)
        return mgpu_build_error();
    struct mgpu_value *each = by_class(b)                               ? class_hit(b)
                              : b->metric->kind == MGPU_METRIC_ACCURACY ? binary_hit(b)
                                                                        : distance(b);
    struct mgpu_value *share = counted(b, each);
    if (b->loss->sample_weights) {
        struct mgpu_value *weights = mgpu_loss_weights(b->g, b->loss, b->y);
        share = mgpu_mul(b->g, share, mgpu_cast(b->g, weights, MGPU_DOUBLE));
    }
    *sum = total(b->g, mgpu_mul(b->g, each, share));
    *count = total(b->g, share);
    return *sum && *count ? 0 : mgpu_build_error();
}

int mgpu_metric_build(struct mgpu_graph *g, const struct mgpu_metric *metric,
                      const struct mgpu_loss *loss, struct mgpu_value *y, struct mgpu_value **sum,
                      struct mgpu_value **count)
{
    struct mgpu_origin before = g->origin;
    /* it runs where the output is made */
    const char *at = y->producer ? y->producer->origin.output : loss->output;
    g->origin = (struct mgpu_origin){
        .path = "", .output = at, .name = metric->name, .type = "metric", .role = MGPU_FORWARD};
    struct build b = {g, metric, loss, y, mgpu_loss_label(g, loss, y)};
    int rc = build(&b, sum, count);
    g->origin = before;
    return rc;
}

double mgpu_metric_value(const struct mgpu_metric *metric, double sum, double count)
{
    double mean = count > 0 ? sum / count : NAN;
    return metric->kind == MGPU_METRIC_RMSE ? sqrt(mean) : mean;
}
