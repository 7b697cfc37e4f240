/* Metrics: hand-checked numbers, ignored labels, sample weights, names. */
#include "runtime/graph/fold.h"
#include "runtime/ops/build.h"
#include "runtime/ref/ref.h"
#include "runtime/train/metric.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

struct row {
    const char *loss, *metric;
    int rank; /* of the output; the first axis is the batch */
    int64_t dims[3];
    const double *y;
    enum mgpu_dtype type;
    int label_rank;
    int64_t label_dims[3];
    const double *labels, *weights;
    double sum, count, value;
};

#define D(...)                                                                                     \
    (const double[])                                                                               \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Four samples, three classes: the guesses are 2, 0, 1, 0; behind them 1, 1, 2, 2. */
#define SCORES D(0, 1, 5, 9, 2, 1, -3, 0, -1, 4, 1, 2)
#define NUMBERS                                                                                    \
    .rank = 2, .dims = {4, 3}, .y = SCORES, .type = MGPU_INT64, .label_rank = 1, .label_dims = {4}

static const struct row rows[] = {
    {"cross_entropy", "accuracy", NUMBERS, .labels = D(2, 1, 1, 1), .sum = 2, .count = 4,
     .value = 0.5},
    {"cross_entropy", "accuracy", NUMBERS, .labels = D(2, -100, 1, 1), .sum = 2, .count = 3,
     .value = 2. / 3},
    {"cross_entropy,ignore_index=1", "acc", NUMBERS, .labels = D(2, 1, 1, 0), .sum = 2, .count = 2,
     .value = 1},
    {"cross_entropy", "accuracy", NUMBERS, .labels = D(2, 1, -100, 1), .weights = D(3, 0.5, 7, 1),
     .sum = 3, .count = 4.5, .value = 3 / 4.5},
    {"nll", "top2", NUMBERS, .labels = D(1, 2, 2, 2), .sum = 3, .count = 4, .value = 0.75},
    {"cross_entropy", "top_2", NUMBERS, .labels = D(1, -100, 0, 1), .sum = 1, .count = 3,
     .value = 1. / 3},
    {"cross_entropy", "top5", NUMBERS, .labels = D(1, -100, 0, 1), .sum = 3, .count = 3,
     .value = 1},
    {"cross_entropy", "accuracy", .rank = 2, .dims = {4, 3}, .y = SCORES, .type = MGPU_FLOAT,
     .label_rank = 2, .label_dims = {4, 3}, .labels = D(0, 0, 1, .2, .5, .3, .3, .4, .3, 1, 0, 0),
     .sum = 3, .count = 4, .value = 0.75},
    {"cross_entropy", "accuracy", .rank = 3, .dims = {2, 2, 3},
     .y = D(1, 2, 1, 0, 3, 0, 9, 8, 1, 1, 2, 3), .type = MGPU_INT32, .label_rank = 2,
     .label_dims = {2, 3}, .labels = D(0, 1, 0, 1, 0, 1), .weights = D(1, 10), .sum = 23,
     .count = 33, .value = 23. / 33},
    {"bce", "accuracy", .rank = 2, .dims = {4, 1}, .y = D(0.4, 0.6, 0.9, 0.5), .type = MGPU_UINT8,
     .label_rank = 1, .label_dims = {4}, .labels = D(0, 0, 1, 1), .sum = 2, .count = 4,
     .value = 0.5},
    {"bce_logits", "binary_accuracy", .rank = 2, .dims = {2, 2}, .y = D(0.4, -0.6, 2, 0.1),
     .type = MGPU_FLOAT, .label_rank = 2, .label_dims = {2, 2}, .labels = D(0, 0, 1, 1), .sum = 3,
     .count = 4, .value = 0.75},
    {"hinge", "accuracy", .rank = 1, .dims = {3}, .y = D(0.4, -0.6, 2), .type = MGPU_FLOAT,
     .label_rank = 1, .label_dims = {3}, .labels = D(-1, -1, 1), .sum = 2, .count = 3,
     .value = 2. / 3},
    {"mse", "mae", .rank = 2, .dims = {2, 2}, .y = D(1, 2, 3, 4), .type = MGPU_FLOAT,
     .label_rank = 2, .label_dims = {2, 2}, .labels = D(0, 4, 3, 8), .sum = 7, .count = 4,
     .value = 1.75},
    {"mae", "mse", .rank = 2, .dims = {2, 2}, .y = D(1, 2, 3, 4), .type = MGPU_FLOAT,
     .label_rank = 2, .label_dims = {2, 2}, .labels = D(0, 4, 3, 8), .weights = D(1, 0.5),
     .sum = 13, .count = 3, .value = 13. / 3},
    {"huber", "rmse", .rank = 1, .dims = {4}, .y = D(1, 2, 3, 4), .type = MGPU_FLOAT,
     .label_rank = 1, .label_dims = {4}, .labels = D(0, 4, 3, 6), .sum = 9, .count = 4,
     .value = 1.5},
};

static const char *const outputs[] = {"y", "z"};
static const char *const labels[] = {"label"};

static void feed(struct mgpu_run *run, const char *name, const double *contents)
{
    for (int i = 0; contents && i < run->graph->input_count; i++)
        if (strcmp(run->graph->inputs[i]->name, name) == 0)
            CHECK_OK(mgpu_run_feed(run, run->graph->inputs[i], contents));
}

static void run_row(const struct row *r, enum mgpu_dtype type)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim dims[3];
    struct mgpu_metric *list = NULL;
    struct mgpu_value *sum = NULL, *count = NULL;
    struct mgpu_loss loss;
    struct mgpu_run run;
    int metrics = 0;
    g->float_type = type;
    g->batch = r->dims[0];
    for (int k = 0; k < r->rank; k++)
        dims[k] = k ? mgpu_dim_const(r->dims[k]) : mgpu_dim_symbol(MGPU_BATCH, r->dims[k]);
    struct mgpu_value *y = mgpu_graph_input(g, "y", type, r->rank, dims);
    CHECK_OK(mgpu_loss_parse(&loss, r->loss, outputs, 1, labels, 1, g->arena));
    CHECK_OK(mgpu_loss_bind(&loss, g, y, r->type, r->label_rank, r->label_dims, g->arena));
    loss.sample_weights = r->weights;
    CHECK_OK(mgpu_metric_parse(&list, &metrics, r->metric, &loss, 1, g->arena));
    CHECK(metrics == 1 && list[0].loss == 0);
    CHECK_OK(mgpu_metric_build(g, &list[0], &loss, y, &sum, &count));
    CHECK(sum->type == MGPU_DOUBLE && sum->rank == 0 && count->type == MGPU_DOUBLE);
    CHECK(count->rank == 0 && count->kind == MGPU_VALUE_RESULT);
    mgpu_run_init(&run, g, &mgpu_backend_ref);
    feed(&run, "y", r->y);
    feed(&run, "label", r->labels);
    feed(&run, "sample_weight", r->weights);
    CHECK_OK(mgpu_run_all(&run));
    double s = *mgpu_run_doubles(&run, sum), c = *mgpu_run_doubles(&run, count);
    CHECK_(s == r->sum && c == r->count, "%s of %s: %g / %g", r->metric, r->loss, s, c);
    CHECK_NEAR(mgpu_metric_value(&list[0], s, c), r->value, 1e-15);
    mgpu_run_free(&run);
    mgpu_graph_free(g);
}

/* Losses as they are after binding, for names. */
static struct mgpu_loss a_loss(enum mgpu_loss_kind kind, const char *output)
{
    return (struct mgpu_loss){.kind = kind, .output = output, .label = "label", .text = "x"};
}

static void test_names(void)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_loss l[] = {a_loss(MGPU_LOSS_CROSS_ENTROPY, "head,1"), a_loss(MGPU_LOSS_MSE, "b"),
                            a_loss(MGPU_LOSS_NLL, "c"), a_loss(MGPU_LOSS_OUTPUT, "d")};
    struct mgpu_metric *list = NULL;
    int n = 0;
    mgpu_metric_default(&list, &n, l, 4, arena);
    CHECK(n == 2 && strcmp(list[0].name, "head,1_accuracy") == 0 && list[0].loss == 0);
    CHECK(n == 2 && strcmp(list[1].name, "c_accuracy") == 0 && list[1].loss == 2);
    CHECK_OK(mgpu_metric_parse(&list, &n, "mae", l, 4, arena));
    CHECK(n == 3 && strcmp(list[2].name, "mae") == 0 && list[2].loss == 1);
    CHECK_OK(mgpu_metric_parse(&list, &n, "top3,output=head,1", l, 4, arena));
    CHECK(n == 4 && strcmp(list[3].name, "head,1_top3") == 0 && list[3].k == 3);
    CHECK(mgpu_metric_parse(&list, &n, "accurcy", l, 4, arena) == MGPU_EUSAGE);
    CHECK(strstr(mgpu_error(), "did you mean 'accuracy'?"));
    CHECK_FAILS(mgpu_metric_parse(&list, &n, "mae,output=c", l, 4, arena), "suits none");
    CHECK_FAILS(mgpu_metric_parse(&list, &n, "mae,output=e", l, 4, arena), "unknown output");
    CHECK_FAILS(mgpu_metric_parse(&list, &n, "mae,axis=1", l, 4, arena), "unknown option 'axis'");
    n = 0;
    mgpu_metric_default(&list, &n, l + 1, 1, arena);
    CHECK(n == 0);
    mgpu_metric_default(&list, &n, l, 2, arena);
    CHECK(n == 1 && strcmp(list[0].name, "accuracy") == 0);
    mgpu_arena_free(arena);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        run_row(&rows[i], MGPU_FLOAT);
        run_row(&rows[i], MGPU_DOUBLE);
    }
    test_names();
    return test_end();
}
