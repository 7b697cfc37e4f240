/* --loss: PyTorch's and Keras's numbers and gradients, what it counts, and what it refuses. */
#include "runtime/graph/fold.h"
#include "runtime/graph/gradient.h"
#include "runtime/ops/build.h"
#include "runtime/ref/ref.h"
#include "runtime/train/loss.h"
#include "tests/ops/run_graph.h"
#include "tests/test.h"

enum after { AFTER_NONE, AFTER_SIGMOID, AFTER_SOFTMAX, AFTER_LOG_SOFTMAX };

struct golden {
    const char *text;
    enum after after;        /* what stands between x and the output */
    int batch;               /* axis of the samples */
    double near, near_float; /* tolerances in double and float */
    int rank;
    int64_t dims[4];
    const double *x;
    enum mgpu_dtype type; /* of the label data */
    int label_rank;
    int64_t label_dims[4];
    const double *labels, *weights; /* weights: of the samples, or NULL */
    double loss;
    const double *dx;
};

#include "tests/train/golden_losses.h"

static const char *const outputs[] = {"y"};
static const char *const labels[] = {"label"};

/* A model: x, perhaps an activation, y; and one loss on it. */
struct setup {
    struct mgpu_graph *g;
    struct mgpu_value *x, *y, *value, *dx;
    struct mgpu_loss loss;
};

static struct mgpu_value *activate(struct mgpu_graph *g, enum after after, struct mgpu_value *x)
{
    switch (after) {
    case AFTER_SIGMOID:
        return mgpu_unary(g, MGPU_X_SIGMOID, x);
    case AFTER_SOFTMAX:
        return mgpu_softmax(g, x, 1, false);
    case AFTER_LOG_SOFTMAX:
        return mgpu_softmax(g, x, 1, true);
    default:
        return mgpu_copy(g, x);
    }
}

static void start(struct setup *s, enum mgpu_dtype type, int batch, int rank, const int64_t *sizes)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    s->g = mgpu_graph_new();
    s->g->float_type = type;
    s->g->batch = sizes[batch];
    for (int k = 0; k < rank; k++)
        dims[k] = k == batch ? mgpu_dim_symbol(MGPU_BATCH, sizes[k]) : mgpu_dim_const(sizes[k]);
    s->x = mgpu_graph_input(s->g, "x", type, rank, dims);
}

static int parse(struct setup *s, const char *text)
{
    return mgpu_loss_parse(&s->loss, text, outputs, 1, labels, 1, s->g->arena);
}

static int bind_loss(struct setup *s, enum mgpu_dtype type, int rank, const int64_t *dims)
{
    return mgpu_loss_bind(&s->loss, s->g, s->y, type, rank, dims, s->g->arena);
}

static const struct mgpu_value *input(const struct setup *s, const char *name)
{
    for (int i = 0; i < s->g->input_count; i++)
        if (strcmp(s->g->inputs[i]->name, name) == 0)
            return s->g->inputs[i];
    return NULL;
}

static void build_golden(struct setup *s, const struct golden *c, enum mgpu_dtype type)
{
    start(s, type, c->batch, c->rank, c->dims);
    s->y = activate(s->g, c->after, s->x);
    CHECK_OK(parse(s, c->text));
    CHECK_OK(bind_loss(s, c->type, c->label_rank, c->label_dims));
    s->loss.sample_weights = c->weights;
    CHECK_OK(mgpu_loss_build(s->g, &s->loss, 3, s->y, &s->value));
    CHECK(s->value && s->value->rank == 0 && s->value->type == type);
    CHECK_OK(mgpu_gradient_of(s->g, s->value, 1, &s->x, &s->dx));
}

static void run_golden(const struct golden *c, enum mgpu_dtype type, double tolerance)
{
    struct setup s;
    struct mgpu_run run;
    double count;
    build_golden(&s, c, type);
    mgpu_run_init(&run, s.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, s.x, c->x));
    CHECK_OK(mgpu_run_feed(&run, input(&s, "label"), c->labels));
    if (c->weights)
        CHECK_OK(mgpu_run_feed(&run, input(&s, "sample_weight"), c->weights));
    CHECK_OK(mgpu_loss_count(&count, &s.loss, s.g->batch, mgpu_run_data(&run, input(&s, "label")),
                             c->weights, NULL));
    run.scalar[MGPU_SCALAR_LOSS + 3] = 1 / count;
    CHECK_OK(mgpu_run_all(&run));
    double loss = *mgpu_run_doubles(&run, s.value);
    CHECK_(fabs(loss - c->loss) <= tolerance * fmax(1, fabs(c->loss)), "%s: loss %.17g, not %.17g",
           c->text, loss, c->loss);
    const double *dx = mgpu_run_doubles(&run, s.dx);
    for (int64_t i = 0; i < mgpu_value_count(s.x); i++)
        CHECK_(fabs(dx[i] - c->dx[i]) <= tolerance * fmax(1, fabs(c->dx[i])),
               "%s: dx[%d] %.17g, not %.17g", c->text, (int)i, dx[i], c->dx[i]);
    mgpu_run_free(&run);
    mgpu_graph_free(s.g);
}

/* ---- the logits behind an output --------------------------------------------------------------
 */

/* Softmax along the last axis, then moved: y [N,C,H,W] or flattened to [N,C]. */
static void test_through_views(void)
{
    static const int64_t sizes[] = {2, 3, 4}, flat[] = {2, 12};
    static const double x[24] = {90, -90, 5, 1, 0, 60, -60, 7}, hot[24] = {[0] = 1, [5] = 1};
    const int perm[] = {0, 2, 1};
    struct setup s;
    struct mgpu_run run;
    start(&s, MGPU_FLOAT, 0, 3, sizes);
    struct mgpu_dim dims[] = {s.x->dims[0], mgpu_dim_const(12)};
    struct mgpu_value *p = mgpu_unary(s.g, MGPU_X_SIGMOID, s.x);
    s.y = mgpu_reshape(s.g, mgpu_transpose(s.g, p, perm), 2, dims);
    CHECK_OK(parse(&s, "bce,reduction=sum"));
    CHECK_OK(bind_loss(&s, MGPU_FLOAT, 2, flat));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
    mgpu_run_init(&run, s.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, s.x, x));
    CHECK_OK(mgpu_run_feed(&run, input(&s, "label"), hot));
    CHECK_OK(mgpu_run_all(&run));
    /* label 1 at y[0] = x[0] and at y[5] = x[9]; y[4] = x[5]: 60 and not clipped. */
    double want = 0;
    for (int i = 0; i < 24; i++)
        want += log1p(exp(-fabs(x[i]))) + fmax(x[i], 0) - (i == 0 || i == 9 ? x[i] : 0);
    CHECK_NEAR(*mgpu_run_doubles(&run, s.value), want, 1e-6);
    mgpu_run_free(&run);
    mgpu_graph_free(s.g);
}

/* Opsets before 13 flatten around a softmax: [N,C,1,1] to [N,C] and back. */
static void test_through_flat_softmax(void)
{
    static const int64_t sizes[] = {2, 3, 1, 1}, data[] = {20};
    struct setup s;
    struct mgpu_run run;
    start(&s, MGPU_DOUBLE, 0, 4, sizes);
    struct mgpu_value *p = mgpu_softmax(s.g, mgpu_reshape(s.g, s.x, 2, s.x->dims), 1, false);
    s.y = mgpu_reshape(s.g, p, 4, s.x->dims);
    CHECK_OK(parse(&s, "categorical_crossentropy,axis=1,reduction=sum"));
    CHECK_OK(bind_loss(&s, MGPU_UINT8, 1, data));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
    mgpu_run_init(&run, s.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, s.x, (double[]){0, 100, 0, 0, 0, 50}));
    CHECK_OK(mgpu_run_feed(&run, input(&s, "label"), (double[]){0, 1}));
    CHECK_OK(mgpu_run_all(&run));
    CHECK_NEAR(*mgpu_run_doubles(&run, s.value), 150, 1e-12);
    mgpu_run_free(&run);
    mgpu_graph_free(s.g);
}

/* Classes that a transpose brought to axis 1: the loss reads what was there before. */
static void test_untransposed(void)
{
    static const int64_t sizes[] = {2, 2, 3}, data[] = {2, 2};
    static const double x[12] = {9, 1, 0, 0, 7, 0, 0, 0, 5, 3, 0, 0}, classes[] = {0, 1, 2, 1};
    const int perm[] = {0, 2, 1};
    struct setup s;
    struct mgpu_run run;
    double want = 0;
    start(&s, MGPU_DOUBLE, 0, 3, sizes);
    s.y = mgpu_transpose(s.g, s.x, perm);
    CHECK_OK(parse(&s, "cross_entropy,reduction=sum"));
    CHECK_OK(bind_loss(&s, MGPU_INT64, 2, data));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
    for (int i = 0; i < s.g->node_count; i++)
        for (int k = 0; k < s.g->nodes[i]->inputs; k++)
            CHECK(s.g->nodes[i]->input[k] != s.y);
    mgpu_run_init(&run, s.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, s.x, x));
    CHECK_OK(mgpu_run_feed(&run, input(&s, "label"), classes));
    CHECK_OK(mgpu_run_all(&run));
    for (int i = 0; i < 4; i++) {
        const double *row = x + (ptrdiff_t)3 * i;
        want += log(exp(row[0]) + exp(row[1]) + exp(row[2])) - row[(int)classes[i]];
    }
    CHECK_NEAR(*mgpu_run_doubles(&run, s.value), want, 1e-12);
    mgpu_run_free(&run);
    mgpu_graph_free(s.g);
}

/* ---- other shapes -----------------------------------------------------------------------------
 */

/* y [N*3,2] with labels [N,3]: 3 rows a sample, and the sample's weight for all of them. */
static void test_rows_of_a_sample(void)
{
    static const int64_t data[] = {40, 3};
    static const double w[] = {2, 1}, x[12] = {1, 0, 0, 0, 3, 0, 0, 0, 0, 2, 0, 0};
    static const double class_of[] = {0, 1, 1, 0, 1, -100};
    struct setup s;
    struct mgpu_run run;
    double count;
    start(&s, MGPU_DOUBLE, 0, 2, (int64_t[]){2, 6});
    struct mgpu_dim dims[] = {mgpu_dim_mul(s.x->dims[0], mgpu_dim_const(3)), mgpu_dim_const(2)};
    s.y = mgpu_reshape(s.g, s.x, 2, dims);
    CHECK_OK(parse(&s, "cross_entropy"));
    CHECK_OK(bind_loss(&s, MGPU_INT64, 2, data));
    CHECK(s.loss.label_rank == 2 && s.loss.label_batch_axis == 0 && s.loss.axis == 1);
    s.loss.sample_weights = true;
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
    mgpu_run_init(&run, s.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, s.x, x));
    CHECK_OK(mgpu_run_feed(&run, input(&s, "label"), class_of));
    CHECK_OK(mgpu_run_feed(&run, input(&s, "sample_weight"), w));
    CHECK_OK(mgpu_loss_count(&count, &s.loss, 2, mgpu_run_data(&run, input(&s, "label")), w, NULL));
    CHECK_NEAR(count, 2 * 3 + 2, 0);
    CHECK_OK(mgpu_run_all(&run));
    double want = 2 * (log1p(exp(-1)) + log(2) + log1p(exp(3))) + log(2) + log1p(exp(-2));
    CHECK_NEAR(*mgpu_run_doubles(&run, s.value), want, 1e-12);
    mgpu_run_free(&run);
    mgpu_graph_free(s.g);
}

/* The rows of a label belong to steps of 4 (--rows): y [4,3] has no axis of samples. */
static void test_step_rows(void)
{
    static const int64_t data[] = {15, 4}, bad[] = {0, 2, 3, 1}, rows[] = {7};
    struct setup s;
    struct mgpu_run run;
    double count;
    start(&s, MGPU_DOUBLE, 0, 2, (int64_t[]){4, 3});
    s.x->dims[0] = mgpu_dim_symbol(1, 4);
    s.g->batch = 1;
    s.y = mgpu_copy(s.g, s.x);
    CHECK_OK(parse(&s, "cross_entropy"));
    CHECK_FAILS(bind_loss(&s, MGPU_INT64, 2, data), "no axis of samples");
    s.g->whole = &(struct mgpu_origin){
        .path = "", .output = "h", .name = "rows", .type = "Loop", .role = MGPU_FORWARD};
    CHECK_FAILS(bind_loss(&s, MGPU_INT64, 2, data), "'rows' (Loop)");
    s.g->whole = NULL;
    s.loss.by_step = true;
    CHECK_OK(bind_loss(&s, MGPU_INT64, 2, data));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
    mgpu_run_init(&run, s.g, &mgpu_backend_ref);
    CHECK_OK(mgpu_run_feed(&run, input(&s, "label"), (double[]){0, 2, -100, 1}));
    CHECK_OK(
        mgpu_loss_count(&count, &s.loss, 1, mgpu_run_data(&run, input(&s, "label")), NULL, NULL));
    CHECK(count == 3);
    CHECK_OK(mgpu_run_all(&run));
    CHECK_NEAR(*mgpu_run_doubles(&run, s.value), 3 * log(3), 1e-14);
    CHECK_FAILS(mgpu_loss_count(&count, &s.loss, 1, bad, NULL, rows), "sample 7: 3 is");
    mgpu_run_free(&run);
    mgpu_graph_free(s.g);
}

/* The graph's own loss: one number, or one a sample; times the piece's share. */
static void test_output(void)
{
    for (int per_sample = 0; per_sample < 2; per_sample++) {
        struct setup s;
        struct mgpu_run run;
        double count;
        start(&s, MGPU_FLOAT, 0, 1, (int64_t[]){4});
        s.y = per_sample ? mgpu_copy(s.g, s.x) : mgpu_reduce(s.g, MGPU_REDUCE_MEAN, s.x, 1, false);
        CHECK_OK(parse(&s, "output,output=y,weight=3"));
        CHECK_OK(bind_loss(&s, MGPU_UNDEFINED, 0, NULL));
        CHECK(s.loss.label == NULL && s.loss.label_rank == 0);
        CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
        CHECK(s.g->input_count == 1);
        CHECK_OK(mgpu_loss_count(&count, &s.loss, 4, NULL, NULL, NULL));
        CHECK(count == 4);
        mgpu_run_init(&run, s.g, &mgpu_backend_ref);
        run.scalar[MGPU_SCALAR_PIECE_SHARE] = 0.5;
        CHECK_OK(mgpu_run_feed(&run, s.x, (double[]){1, 2, 3, 6}));
        CHECK_OK(mgpu_run_all(&run));
        CHECK_NEAR(*mgpu_run_doubles(&run, s.value), 3 * 0.5 * 3, 1e-6);
        mgpu_run_free(&run);
        mgpu_graph_free(s.g);
    }
}

/* Two losses on one label share the input; a label may be the model's own input. */
static void test_shared_labels(void)
{
    static const int64_t data[] = {30, 3};
    static const char *const known[] = {"label", "x"};
    struct setup s;
    start(&s, MGPU_FLOAT, 0, 2, (int64_t[]){2, 3});
    s.y = mgpu_copy(s.g, s.x);
    CHECK_OK(parse(&s, "mse"));
    CHECK_OK(bind_loss(&s, MGPU_FLOAT, 2, data));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 0, s.y, &s.value));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 1, s.y, &s.value));
    CHECK(s.g->input_count == 2);
    CHECK_OK(mgpu_loss_parse(&s.loss, "mse,label=x", outputs, 1, known, 2, s.g->arena));
    CHECK_OK(bind_loss(&s, MGPU_FLOAT, 2, data));
    CHECK_OK(mgpu_loss_build(s.g, &s.loss, 2, s.y, &s.value));
    CHECK(s.g->input_count == 2);
    CHECK_OK(parse(&s, "cross_entropy"));
    CHECK_OK(bind_loss(&s, MGPU_INT32, 1, data));
    CHECK_FAILS(mgpu_loss_build(s.g, &s.loss, 3, s.y, &s.value),
                "label 'label' is wanted as float[N,3] and as int64[N]");
    mgpu_graph_free(s.g);
}

/* ---- parsing ----------------------------------------------------------------------------------
 */

static void test_names(void)
{
    static const char *const out[] = {"Identity", "Identity:0", "a,b", "logits"};
    static const char *const known[] = {"label", "lab:el,x", "kind"};
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_loss l;
    CHECK_OK(mgpu_loss_parse(&l, "mse:Identity:0:lab:el,x,weight=0.5", out, 4, known, 3, arena));
    CHECK(strcmp(l.output, "Identity:0") == 0 && strcmp(l.label, "lab:el,x") == 0);
    CHECK(l.kind == MGPU_LOSS_MSE && l.weight == 0.5);
    CHECK_OK(mgpu_loss_parse(&l, "l1:Identity:kind", out, 4, known, 3, arena));
    CHECK(l.kind == MGPU_LOSS_MAE && strcmp(l.output, "Identity") == 0);
    CHECK_OK(mgpu_loss_parse(&l, "bce,output=a,b,label=lab:el,x", out, 4, known, 3, arena));
    CHECK(strcmp(l.output, "a,b") == 0 && strcmp(l.label, "lab:el,x") == 0);
    CHECK_OK(mgpu_loss_parse(&l, "BCEWithLogitsLoss,output=logits", out, 4, known, 3, arena));
    CHECK(l.kind == MGPU_LOSS_BCE_LOGITS && strcmp(l.label, "label") == 0);
    CHECK_FAILS(mgpu_loss_parse(&l, "mse", out, 4, known, 3, arena), "which of the model's 4");
    CHECK_FAILS(mgpu_loss_parse(&l, "mse,output=logit", out, 4, known, 3, arena),
                "unknown output 'logit'; did you mean 'logits'?");
    CHECK_OK(mgpu_loss_parse(&l, "mse:logits:in:file,weight=2", out, 4, known, 3, arena));
    CHECK(strcmp(l.label, "in:file") == 0 && l.weight == 2);
    mgpu_arena_free(arena);
}

static void test_bad_text(void)
{
    static const char *const rows[][2] = {
        {"crossentropy", "unknown loss 'crossentropy'; did you mean 'cross_entropy'?"},
        {"", "unknown loss ''"},
        {"mse,axis=1", "unknown option 'axis'"},
        {"mse,wieght=2", "unknown option 'wieght'; did you mean 'weight'?"},
        {"mse,weight=abc", "weight: 'abc' is not a number"},
        {"mse,weight", "weight needs a value"},
        {"cross_entropy,ignore_index=1.5", "ignore_index: '1.5' is not a whole number"},
        {"cross_entropy,label_smoothing=1.5", "label_smoothing: 1.5 is more than 1"},
        {"cross_entropy,reduction=none", "unknown reduction 'none'"},
        {"bce_logits,from_logits=1", "unknown option 'from_logits'"},
        {"output,label=label", "unknown option 'label'"},
        {"output:y:z", "':z' is too much"},
    };
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_loss l;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK(mgpu_loss_parse(&l, rows[i][0], outputs, 1, labels, 1, arena) == MGPU_EUSAGE);
        CHECK_(strstr(mgpu_error(), rows[i][1]), "%s gave: %s", rows[i][0], mgpu_error());
    }
    mgpu_arena_free(arena);
}

/* ---- labels that do not fit --------------------------------------------------------------------
 */

struct misfit {
    const char *text;
    int rank;
    int64_t dims[4]; /* of y; the first is the batch */
    enum mgpu_dtype type;
    int label_rank;
    int64_t label_dims[4];
    const char *message;
};

static const struct misfit misfits[] = {
    {"cross_entropy", 2, {4, 5}, MGPU_FLOAT, 2, {100, 4}, "4 columns, but 5 classes"},
    {"cross_entropy", 2, {4, 5}, MGPU_INT64, 2, {100, 7}, "7 columns, but 5 classes"},
    {"cross_entropy",
     2,
     {4, 5},
     MGPU_INT64,
     2,
     {100, 7},
     "label 'label' int64[100,7] does not fit output 'y' float[N,5]"},
    {"cross_entropy", 3, {4, 6, 6}, MGPU_INT64, 2, {100, 6}, "say axis=K"},
    {"cross_entropy", 3, {4, 6, 5}, MGPU_FLOAT, 3, {100, 6, 5}, "which axis holds the classes"},
    {"cross_entropy", 3, {4, 6, 5}, MGPU_INT64, 2, {100, 7}, "does not fit"},
    {"cross_entropy,axis=2", 3, {4, 6, 5}, MGPU_INT64, 2, {100, 5}, "does not fit"},
    {"cross_entropy,axis=0", 2, {4, 5}, MGPU_INT64, 1, {100}, "axis=0: output 'y'"},
    {"cross_entropy,axis=2", 2, {4, 5}, MGPU_INT64, 1, {100}, "no such axis"},
    {"cross_entropy", 2, {4, 1}, MGPU_INT64, 1, {100}, "did you mean 'bce_logits'?"},
    {"cross_entropy,class_weights=tests/train/class_weights_4.npy",
     2,
     {4, 5},
     MGPU_INT64,
     1,
     {100},
     "class weights [4], but 5 classes"},
    {"cross_entropy,class_weights=no/such.npy", 2, {4, 5}, MGPU_INT64, 1, {100}, "no/such.npy"},
    {"mse", 2, {4, 5}, MGPU_FLOAT, 1, {100}, "float[100] does not fit output 'y' float[N,5]"},
    {"bce", 2, {4, 2}, MGPU_FLOAT, 2, {100, 1}, "float[100,1] does not fit output 'y' float[N,2]"},
};

static void test_misfits(void)
{
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        const struct misfit *m = &misfits[i];
        struct setup s;
        start(&s, MGPU_FLOAT, 0, m->rank, m->dims);
        s.y = mgpu_copy(s.g, s.x);
        CHECK_OK(parse(&s, m->text));
        CHECK_FAILS(bind_loss(&s, m->type, m->label_rank, m->label_dims), m->message);
        mgpu_graph_free(s.g);
    }
}

static void test_no_samples(void)
{
    struct setup s;
    start(&s, MGPU_FLOAT, 0, 2, (int64_t[]){4, 4});
    s.y = mgpu_reduce(s.g, MGPU_REDUCE_SUM, s.x, 3, false);
    CHECK_OK(parse(&s, "mse"));
    CHECK_FAILS(bind_loss(&s, MGPU_FLOAT, 1, (int64_t[]){100}), "no axis of samples");
    s.x->dims[1] = s.x->dims[0];
    s.y = mgpu_copy(s.g, s.x);
    CHECK_OK(parse(&s, "cross_entropy"));
    CHECK_FAILS(bind_loss(&s, MGPU_INT64, 1, (int64_t[]){100}), "as many classes as samples");
    mgpu_graph_free(s.g);
}

/* A label outside the classes: its sample and value; the same types and shapes otherwise. */
static void test_label_range(void)
{
    static const int64_t good[] = {0, 3, 4, 1}, high[] = {0, 3, 5, 1}, low[] = {0, 3, 4, -1};
    static const int64_t ignored[] = {0, -100, 4, 1}, rows[] = {17, 4, 99, 2};
    struct setup s;
    double count;
    start(&s, MGPU_FLOAT, 0, 2, (int64_t[]){4, 5});
    s.y = mgpu_copy(s.g, s.x);
    for (int rank = 1; rank <= 2; rank++) {
        CHECK_OK(parse(&s, "cross_entropy"));
        CHECK_OK(bind_loss(&s, rank == 1 ? MGPU_UINT8 : MGPU_FLOAT, rank, (int64_t[]){100, 1}));
        CHECK(s.loss.label_type == MGPU_INT64 && s.loss.label_rank == 1 && !s.loss.dense);
        CHECK_OK(mgpu_loss_count(&count, &s.loss, 4, good, NULL, NULL));
        CHECK(count == 4);
        CHECK_OK(mgpu_loss_count(&count, &s.loss, 4, ignored, NULL, NULL));
        CHECK(count == 3);
        CHECK_FAILS(mgpu_loss_count(&count, &s.loss, 4, high, NULL, NULL),
                    "sample 2: 5 is not one of the classes 0 to 4");
        CHECK_FAILS(mgpu_loss_count(&count, &s.loss, 4, high, NULL, rows), "sample 99: 5 is");
        CHECK_FAILS(mgpu_loss_count(&count, &s.loss, 4, low, NULL, rows), "sample 2: -1 is");
    }
    CHECK_OK(parse(&s, "cross_entropy,ignore_index=4"));
    CHECK_OK(bind_loss(&s, MGPU_INT64, 1, (int64_t[]){100}));
    CHECK_FAILS(mgpu_loss_count(&count, &s.loss, 4, ignored, NULL, NULL), "sample 1: -100 is");
    mgpu_graph_free(s.g);
}

int main(void)
{
    mgpu_fold_set(mgpu_ref_fold);
    for (const struct golden *c = golden; c->text; c++) {
        run_golden(c, MGPU_DOUBLE, c->near);
        run_golden(c, MGPU_FLOAT, c->near_float);
    }
    test_through_views();
    test_through_flat_softmax();
    test_untransposed();
    test_rows_of_a_sample();
    test_step_rows();
    test_output();
    test_shared_labels();
    test_names();
    test_bad_text();
    test_misfits();
    test_no_samples();
    test_label_range();
    return test_end();
}
