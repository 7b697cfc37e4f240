/* A run that stops and goes on gives the numbers of one that did not: row 32 of the collected
 * reports (a step count, moments, a schedule or an order of samples that start afresh). What a run
 * cannot go on from is refused, naming what differs. */
#include "exporter/run_state.h"
#include "tests/onnx_build.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

/* Weights of different shapes, a dropout, batch statistics. */
#define NODES                                                                                      \
    "ratio = Constant() value_float=0.4\n"                                                         \
    "yes = Constant() value_int=1\n"                                                               \
    "train = Cast(yes) to=9\n"                                                                     \
    "h = MatMul(x, w1)\n"                                                                          \
    "n = BatchNormalization(h, scale, shift, mean, var)\n"                                         \
    "r = Relu(n)\n"                                                                                \
    "d = Dropout(r, ratio, train)\n"                                                               \
    "y = Gemm(d, w2, b2)\n"                                                                        \
    "output y float N 3\n"
#define W1 "init w1 float 4 5 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5 .3 -.3 .6 .2 -.5 .1 .4 .8\n"
#define W2 "init w2 float 5 3 = .5 -.3 .2 .1 .4 -.6 -.2 .3 .7 .2 -.1 .5 .3 -.3 .6\n"
#define B2 "init b2 float 3 = .25 -.5 .75\n"
#define NORM                                                                                       \
    "init scale float 5 = 1 .9 1.1 1.2 .8\n"                                                       \
    "init shift float 5 = .5 .4 .3 .2 .1\n"                                                        \
    "init mean float 5 = 0\n"                                                                      \
    "init var float 5 = 1\n"
static const char *const text = "input x float N 4\n" W1 W2 B2 NORM NODES;
static const char *const reordered = "input x float N 4\n" NORM B2 W2 W1 NODES;

static const char *model, *file;

enum { SAMPLES = 20 };

static struct mgpu_options plain(void)
{
    static int64_t label[SAMPLES], n = SAMPLES;
    static const char *const *data, *const *val;
    struct mgpu_options o = MGPU_OPTIONS;
    for (int i = 0; i < SAMPLES; i++)
        label[i] = i * 7 % 3;
    if (!data) {
        data = tiny_list(tiny_noise("x", 7, 2, (int64_t[]){SAMPLES, 4}),
                         tiny_data("label", MGPU_INT64, 1, &n, label), NULL);
        val = tiny_list(tiny_noise("x", 8, 2, (int64_t[]){SAMPLES, 4}), data[1], NULL);
    }
    o.data = data;
    o.val = val;
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "adam,lr=0.01,decay=0.1";
    o.batch = 3;
    o.steps = 10;
    o.seed = 5;
    o.devices = "cpu:0";
    return o;
}

/* Up to the last step, epochs' ends too; then everything goes to `to`. */
static void run(const char *path, const struct mgpu_options *o, double *losses, const char *to)
{
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    struct mgpu_epoch_result e;
    int rc;
    CHECK_OK(mgpu_trainer_new(&t, path, o));
    while (t && (rc = mgpu_step(t, &s)) > 0) {
        losses[s.step - 1] = s.loss;
        if (s.epoch_ends)
            CHECK_OK(mgpu_epoch_end(t, &e));
    }
    if (t)
        CHECK_OK(mgpu_save_checkpoint(t, to));
    mgpu_trainer_free(t);
}

static double difference(const struct mgpu_named_array *a, const struct mgpu_named_array *list,
                         int count)
{
    double worst = INFINITY;
    for (int k = 0; k < count; k++) {
        if (strcmp(a->name, list[k].name) != 0)
            continue;
        worst = 0;
        for (int64_t i = 0; i < mgpu_array_count(&a->array); i++)
            worst = fmax(worst, fabs(mgpu_get_double(a->array.data, a->array.type, i) -
                                     mgpu_get_double(list[k].array.data, a->array.type, i)));
    }
    return worst;
}

static bool same_field(const struct mgpu_field *a, const struct mgpu_field *b, double limit)
{
    if (a->kind != b->kind || strcmp(a->name, b->name) != 0)
        return false;
    if (!strncmp(a->name, "weight.", 7) || !strncmp(a->name, "state.", 6))
        return true; /* which array is which: the order is the model's */
    if (a->kind == MGPU_FIELD_TEXT)
        return !strcmp(a->text, b->text);
    return a->kind == MGPU_FIELD_INT ? a->integer == b->integer
                                     : a->real == b->real || fabs(a->real - b->real) <= limit;
}

/* Weights, moments, step count, everything else: equal, or as near as `limit`. */
static void check_same(const char *what, const char *one, const char *other, double limit)
{
    struct mgpu_run_state a, b;
    double worst = 0;
    mgpu_run_state_init(&a);
    mgpu_run_state_init(&b);
    CHECK_OK(mgpu_run_state_read(&a, one));
    CHECK_OK(mgpu_run_state_read(&b, other));
    CHECK(a.weights == b.weights && a.states == b.states && a.record.count == b.record.count);
    CHECK(a.weights == 7 && a.states == 10);
    for (int i = 0; i < a.weights; i++)
        worst = fmax(worst, difference(&a.weight[i], b.weight, b.weights));
    for (int i = 0; i < a.states; i++)
        worst = fmax(worst, difference(&a.state[i], b.state, b.states));
    CHECK_(worst <= limit, "%s: differs by %.3g", what, worst);
    for (int i = 0; i < a.record.count && i < b.record.count; i++)
        CHECK_(same_field(&a.record.field[i], &b.record.field[i], limit), "%s: %s", what,
               a.record.field[i].name);
    mgpu_run_state_free(&a);
    mgpu_run_state_free(&b);
}

static void check_losses(const char *what, const double *a, const double *b, int count,
                         double limit)
{
    for (int i = 0; i < count; i++)
        CHECK_(fabs(a[i] - b[i]) <= limit, "%s, step %d: loss %.17g, not %.17g", what, i + 1, a[i],
               b[i]);
}

/* ---- Goes on --------------------------------------------------------------------------------- */

/* Row 32: at once, and from every step. */
static void test_every_step(void)
{
    struct mgpu_options o = plain();
    double whole[10], parts[10];
    const char *end = build_path("whole.h5"), *end2 = build_path("parts.h5");
    run(model, &o, whole, end);
    for (int stop = 1; stop < 10; stop++) {
        o = plain();
        o.steps = stop;
        run(model, &o, parts, file);
        o.steps = 10;
        o.seed = 0; /* the file's counts */
        o.resume = file;
        run(model, &o, parts, end2);
        check_losses("resumed", parts, whole, 10, 0);
        check_same("resumed", end, end2, 0);
    }
}

/* A schedule, a smaller learning rate after a plateau, an early stop: resumed after every epoch. */
static void test_callbacks(void)
{
    struct mgpu_options o = plain();
    double whole[64] = {0}, parts[64] = {0};
    const char *end = build_path("whole.h5"), *end2 = build_path("parts.h5");
    o.steps = 0;
    o.epochs = 9;
    o.optimizer = "adam,lr=0.1";
    o.lr_schedule = "step,step_size=10,gamma=0.9";
    o.reduce_lr = "monitor=val_loss,patience=1,factor=0.5,min_delta=0.05";
    o.early_stop = "monitor=val_loss,patience=5,min_delta=0.1";
    run(model, &o, whole, end);
    CHECK_(whole[41] != 0 && whole[62] == 0, "the run is to stop early, but not at once");
    for (int epoch = 1; epoch <= 9; epoch++) {
        o.epochs = epoch;
        run(model, &o, parts, end2);
        o.resume = end2;
    }
    check_losses("epoch by epoch", parts, whole, 63, 0);
    check_same("epoch by epoch", end, end2, 0);
}

static void test_reordered(void)
{
    struct mgpu_options o = plain();
    double whole[10], parts[10];
    const char *other = tiny_model(reordered), *end = build_path("whole.h5"),
               *end2 = build_path("parts.h5");
    run(model, &o, whole, end);
    o.steps = 5;
    run(model, &o, parts, file);
    o.steps = 10;
    o.resume = file;
    run(other, &o, parts, end2);
    check_losses("reordered", parts, whole, 10, 0);
    check_same("reordered", end, end2, 0);
}

/* On another number of ranks, and with nodes on different devices. */
static void test_ranks(void)
{
    static const struct {
        const char *before, *after, *place_before, *place_after;
    } rows[] = {
        {"cpu:0", "cpu:0,cpu:1", NULL, NULL},
        {"cpu:0,cpu:1", "cpu:0", NULL, NULL},
        {"cpu:0,cpu:1,cpu:2", "cpu:0,cpu:1", NULL, NULL},
        {"cpu:0", "cpu:0,cpu:1", NULL, "y=cpu:1"},
        {"cpu:0,cpu:1", "cpu:0", "y=cpu:1", NULL},
        {"cpu:0,cpu:1", "cpu:0,cpu:1", "y=cpu:1", "h=cpu:1"},
    };
    double whole[10], parts[10];
    struct mgpu_options o = plain();
    o.batch_norm = "sync";
    const char *end = build_path("whole.h5"), *end2 = build_path("parts.h5");
    run(model, &o, whole, end);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mgpu_options a = o;
        a.devices = rows[i].before;
        a.strategy = rows[i].place_before ? "branch" : "data";
        a.place = rows[i].place_before ? tiny_list(rows[i].place_before, NULL) : NULL;
        a.steps = 5;
        run(model, &a, parts, file);
        a.devices = rows[i].after;
        a.strategy = rows[i].place_after ? "branch" : "data";
        a.place = rows[i].place_after ? tiny_list(rows[i].place_after, NULL) : NULL;
        a.steps = 10;
        a.resume = file;
        run(model, &a, parts, end2);
        check_losses(rows[i].after, parts, whole, 10, 1e-6);
        check_same(rows[i].after, end, end2, 1e-6);
    }
}

/* What --initial-epoch counted as done stays so, and --epochs is the total. */
static void test_initial_epoch(void)
{
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    struct mgpu_facts f;
    double losses[64];
    o.steps = 0;
    o.epochs = 3;
    o.initial_epoch = 2;
    run(model, &o, losses, file);
    o.initial_epoch = 0;
    o.epochs = 4;
    o.resume = file;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    mgpu_trainer_facts(t, &f);
    CHECK(f.step == 7 && f.total_steps == 14 && f.epochs == 4);
    mgpu_trainer_free(t);
}

/* ---- Does not go on -------------------------------------------------------------------------- */

static void refused(const char *path, const struct mgpu_options *o, const char *part)
{
    struct mgpu_trainer *t;
    CHECK_FAILS(mgpu_trainer_new(&t, path, o), part);
    mgpu_trainer_free(t);
}

static void test_refused(void)
{
    struct mgpu_options o = plain();
    double losses[10];
    o.steps = 5;
    run(model, &o, losses, file);
    o.resume = file;
    refused(tiny_model("input x float N 4\n" W1 NORM
                       "init w2 float 5 4 = .5\ninit b2 float 4 = .5\n" NODES),
            &o, "it is of another model: 'w2' is [5,3] there and [5,4] in ");
    refused(tiny_model("input x float N 4\n" W1 W2 NORM "init bias float 3 = 1 2 3\n"
                       "h = MatMul(x, w1)\n"
                       "n = BatchNormalization(h, scale, shift, mean, var)\n"
                       "y = Gemm(n, w2, bias)\n"
                       "output y float N 3\n"),
            &o, "it is of another model: it has no 'bias'");
    refused(tiny_model("input x float N 4\n" W1 W2 NORM "h = MatMul(x, w1)\n"
                       "n = BatchNormalization(h, scale, shift, mean, var)\n"
                       "y = Gemm(n, w2)\n"
                       "output y float N 3\n"),
            &o, "has no 'b2'");
    o.optimizer = "sgd,lr=0.01,momentum=0.9";
    refused(model, &o, "it is of another optimizer: --optimizer adam,lr=0.01,decay=0.1, not sgd");
    o.optimizer = "adam,style=keras3";
    refused(model, &o, "it is of another optimizer");
    o.optimizer = "adam,amsgrad";
    refused(model, &o, "it has no 'w");
    o = plain();
    o.resume = file;
    o.freeze = tiny_list("w1", NULL);
    refused(model, &o, "it has 'w1:");
    o.freeze = NULL;
    o.batch = 4;
    refused(model, &o, "it stands within an epoch of other data: batch: 3 there, 4 now");
    o.batch = 3;
    o.shuffle = false;
    refused(model, &o, "shuffle: 1 there, 0 now");
    o.shuffle = true;
    o.precision = "f64";
    refused(model, &o, "float [");
    o.precision = "f32";
    o.initial_epoch = 1;
    refused(model, &o, "--initial-epoch");
}

/* Weights alone are no run; neither is a file that was cut, at any length. */
static void test_broken(void)
{
    struct mgpu_options o = plain();
    struct mgpu_run_state c;
    struct mgpu_trainer *t;
    double losses[10];
    size_t size;
    run(model, &o, losses, file);
    uint8_t *bytes = build_load(file, &size);
    const char *cut = build_path("cut.h5");
    for (size_t n = 0; n < size; n += 97) {
        build_bytes(cut, bytes, n);
        mgpu_run_state_init(&c);
        CHECK_FAILS(mgpu_run_state_read(&c, cut), "cut.h5");
        mgpu_run_state_free(&c);
    }
    free(bytes);
    o.resume = cut;
    refused(model, &o, "cut.h5: not a readable HDF5 file: truncated file");
    o.resume = NULL;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    CHECK_OK(mgpu_save(t, file));
    mgpu_trainer_free(t);
    o.resume = file;
    refused(model, &o, "this is no checkpoint of a run");
    o.resume = build_path("nothing.h5");
    refused(model, &o, "nothing.h5: not a readable HDF5 file");
}

/* ---- Words ----------------------------------------------------------------------------------- */

static char noted[4096];

static void take_note(void *context, const char *line)
{
    (void)context;
    size_t used = strlen(noted);
    snprintf(noted + used, sizeof noted - used, "%s\n", line);
}

/* What changes the numbers may change, but not without a word. */
static void test_notes(void)
{
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    double losses[16];
    o.steps = 7; /* an epoch */
    run(model, &o, losses, file);
    o.resume = file;
    o.optimizer = "adam,lr=0.5";
    o.batch = 4;
    o.clip_norm = 2;
    o.seed = 9;
    mgpu_set_note(take_note, NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    mgpu_set_note(NULL, NULL);
    mgpu_trainer_free(t);
    CHECK_(strstr(noted, "--optimizer is 'adam,lr=0.5' now; in the run before it was "
                         "'adam,lr=0.01,decay=0.1'\n"),
           "%s", noted);
    CHECK(strstr(noted, "--clip-norm is '2' now; in the run before it was '0'\n"));
    CHECK(strstr(noted, "batch: 4 now; in the run before 3\n"));
    CHECK(strstr(noted, "--seed 9: the seed stays 5"));
}

int main(void)
{
    tiny_begin();
    build_begin();
    model = tiny_model(text);
    file = mgpu_arena_format(build_arena, "%s/run.h5", build_folder);
    test_every_step();
    test_callbacks();
    test_reordered();
    test_ranks();
    test_initial_epoch();
    test_refused();
    test_broken();
    test_notes();
    build_end();
    tiny_end();
    return test_end();
}
