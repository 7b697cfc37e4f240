/* A run that stops and goes on gives the numbers of one that did not: row 32 of the collected
 * reports (a step count, moments, a schedule or an order of samples that start afresh). What a run
 * cannot go on from is refused, naming what differs. */
#include "exporter/run_state.h"
#include "tests/onnx_build.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <sys/stat.h>

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

static double difference(const struct mgpu_named_array *a, const struct mgpu_array_list *list)
{
    const struct mgpu_array *b = mgpu_array_list_find(list, a->name);
    double worst = b ? 0 : INFINITY;
    for (int64_t i = 0; b && i < mgpu_array_count(b); i++)
        worst = fmax(worst, fabs(mgpu_get_double(a->array.data, a->array.type, i) -
                                 mgpu_get_double(b->data, b->type, i)));
    return worst;
}

static const char *const lists[MGPU_RUN_LISTS] = {"weight.", "state.", "carried.", "best."};

static bool same_field(const struct mgpu_field *a, const struct mgpu_field *b, double limit)
{
    if (a->kind != b->kind || strcmp(a->name, b->name) != 0)
        return false;
    for (int i = 0; i < MGPU_RUN_LISTS; i++)
        if (!strncmp(a->name, lists[i], strlen(lists[i])))
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
    CHECK(a.record.count == b.record.count);
    for (int k = 0; k < MGPU_RUN_LISTS; k++) {
        CHECK(a.list[k].count == b.list[k].count);
        for (int i = 0; i < a.list[k].count; i++)
            worst = fmax(worst, difference(&a.list[k].item[i], &b.list[k]));
    }
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

static void check_weights(const char *one, const char *other)
{
    struct mgpu_run_state a, b;
    mgpu_run_state_init(&a);
    mgpu_run_state_init(&b);
    CHECK_OK(mgpu_run_state_read(&a, one));
    CHECK_OK(mgpu_run_state_read(&b, other));
    for (int i = 0; i < a.list[MGPU_RUN_WEIGHT].count; i++)
        CHECK(difference(&a.list[MGPU_RUN_WEIGHT].item[i], &b.list[MGPU_RUN_WEIGHT]) == 0);
    mgpu_run_state_free(&a);
    mgpu_run_state_free(&b);
}

static char noted[4096];

static void take_note(void *context, const char *line)
{
    (void)context;
    size_t used = strlen(noted);
    snprintf(noted + used, sizeof noted - used, "%s\n", line);
}

/* At its end a run has the weights of its best epoch, to the bit: also when it was resumed after
 * every epoch. */
static void test_best_weights(void)
{
    struct mgpu_options o = plain();
    double losses[64] = {0};
    int best = 0;
    const char *at, *end = build_path("whole.h5"), *end2 = build_path("parts.h5");
    o.steps = 0;
    o.epochs = 9;
    o.optimizer = "adam,lr=0.1";
    o.early_stop = "monitor=loss,patience=9,min_delta=0.05,restore_best_weights";
    *noted = 0;
    mgpu_set_note(take_note, NULL);
    run(model, &o, losses, end);
    mgpu_set_note(NULL, NULL);
    at = strstr(noted, "the weights are those of epoch ");
    CHECK_(at && sscanf(at, "the weights are those of epoch %d again", &best) == 1 && best > 1,
           "%s", noted);
    o.early_stop = NULL;
    o.epochs = best;
    run(model, &o, losses, file);
    check_weights(end, file);
    o.early_stop = "monitor=loss,patience=9,min_delta=0.05,restore_best_weights";
    for (int epoch = 1; epoch <= 9; epoch++) {
        struct mgpu_trainer *t;
        struct mgpu_step_result s;
        struct mgpu_epoch_result e;
        o.epochs = epoch;
        CHECK_OK(mgpu_trainer_new(&t, model, &o));
        for (bool ends = false; !ends && mgpu_step(t, &s) > 0; ends = s.epoch_ends)
            if (s.epoch_ends)
                CHECK_OK(mgpu_epoch_end(t, &e));
        CHECK(epoch < 9 || mgpu_step(t, &s) == 0);
        CHECK_OK(mgpu_save_checkpoint(t, end2));
        mgpu_trainer_free(t);
        o.resume = end2;
    }
    check_weights(end2, file);
}

#define RECURRENT                                                                                  \
    "input x float N 3\n"                                                                          \
    "input h0 float N 2\n"                                                                         \
    "init w float 3 2 = .5 -.3 .2 .1 .4 -.6\n"                                                     \
    "init u float 2 2 = .3 -.2 .1 .4\n"                                                            \
    "a = MatMul(x, w)\n"                                                                           \
    "b = MatMul(h0, u)\n"                                                                          \
    "c = Add(a, b)\n"                                                                              \
    "h = Tanh(c)\n"                                                                                \
    "output h float N 2\n"

/* --state goes on where it was: every step's loss is that of the run that was not stopped. */
static void test_carried(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    const char *recurrent = tiny_model(RECURRENT);
    double whole[12], parts[12];
    o.data = tiny_list(tiny_noise("x", 3, 2, (int64_t[]){16, 3}),
                       tiny_noise("h0", 4, 2, (int64_t[]){16, 2}),
                       tiny_noise("label", 5, 2, (int64_t[]){16, 2}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.state = tiny_list("h0=h", NULL);
    o.batch = 4;
    o.steps = 12;
    o.devices = "cpu:0";
    run(recurrent, &o, whole, build_path("whole.h5"));
    for (int stop = 1; stop < 12; stop += 3) {
        o.steps = stop;
        o.resume = NULL;
        run(recurrent, &o, parts, file);
        o.steps = 12;
        o.resume = file;
        run(recurrent, &o, parts, build_path("parts.h5"));
        check_losses("with --state", parts, whole, 12, 0);
        check_same("with --state", build_path("whole.h5"), build_path("parts.h5"), 0);
    }
    struct mgpu_trainer *t;
    *noted = 0;
    o.state = NULL;
    o.shuffle = false;
    mgpu_set_note(take_note, NULL);
    CHECK_OK(mgpu_trainer_new(&t, recurrent, &o));
    mgpu_set_note(NULL, NULL);
    mgpu_trainer_free(t);
    CHECK_(strstr(noted, "the run before carried h0 from batch to batch"), "%s", noted);
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

/* With another batch the epochs that are left have other steps; their number stays. */
static void test_other_batch(void)
{
    struct mgpu_options o = plain();
    struct mgpu_trainer *t;
    struct mgpu_facts f;
    struct mgpu_step_result s;
    double losses[64];
    int steps = 0;
    o.steps = 0;
    o.epochs = 3;
    run(model, &o, losses, file); /* 7 steps each */
    o.epochs = 5;
    o.batch = 10;
    o.resume = file;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    mgpu_trainer_facts(t, &f);
    CHECK(f.step == 21 && f.total_steps == 25 && f.epochs == 5);
    for (s.epoch = 0; mgpu_step(t, &s) > 0; steps++)
        CHECK(s.epoch == 4 + steps / 2);
    CHECK(steps == 4 && s.epoch == 5);
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
    refused(model, &o, "it has no 'b2:max_exp_avg_sq'");
    o = plain();
    o.resume = file;
    o.freeze = tiny_list("w1", NULL);
    refused(model, &o, "it has 'w1:");
    o.freeze = NULL;
    o.batch = 4;
    refused(model, &o, "it stands within an epoch of other data: --batch: 3 there, 4 now");
    o.batch = 3;
    o.shuffle = false;
    refused(model, &o, "--shuffle (1; --no-shuffle is 0): 1 there, 0 now");
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
    refused(model, &o, "no checkpoint of a run, it has no training_state (--init takes");
    o.resume = model;
    refused(model, &o, "no checkpoint of a run, which is HDF5");
    o.resume = build_path("pipe.h5");
    CHECK(mkfifo(o.resume, 0600) == 0);
    refused(model, &o, "pipe.h5: not a regular file");
    o.resume = build_path("nothing.h5");
    refused(model, &o, "nothing.h5: No such file or directory");
}

/* ---- Words ----------------------------------------------------------------------------------- */

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
    o.scale = tiny_list("x=2", NULL);
    o.reduce_lr = "patience=1";
    mgpu_set_note(take_note, NULL);
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    mgpu_set_note(NULL, NULL);
    mgpu_trainer_free(t);
    CHECK_(strstr(noted, "--optimizer is 'adam,lr=0.5' now; in the run before it was "
                         "'adam,lr=0.01,decay=0.1'\n"),
           "%s", noted);
    CHECK(strstr(noted, "--clip-norm is '2' now; in the run before it was '0'\n"));
    CHECK(strstr(noted, "--batch: 4 now; in the run before 3\n"));
    CHECK(strstr(noted, "--scale is 'x=2' now; in the run before it was ''\n"));
    CHECK(strstr(noted, "--reduce-lr is 'patience=1' now; in the run before it was ''\n"));
    CHECK(strstr(noted, "--seed 9: the seed stays 5"));
}

/* As a program wrote it that kept nothing of data and graph. */
static void forget_contents(const char *path)
{
    struct mgpu_run_state s;
    struct mgpu_record *r = &s.record;
    int kept = 0;
    mgpu_run_state_init(&s);
    CHECK_OK(mgpu_run_state_read(&s, path));
    for (int i = 0; i < r->count; i++)
        if (strncmp(r->field[i].name, "data.", 5) && strncmp(r->field[i].name, "val.", 4) &&
            strcmp(r->field[i].name, "graph"))
            r->field[kept++] = r->field[i];
    CHECK_(kept == r->count - 5, "%d of %d", kept, r->count); /* two arrays twice, and a graph */
    r->count = kept;
    CHECK_OK(mgpu_run_state_write(&s, path));
    mgpu_run_state_free(&s);
}

static const char *notes_of(const char *path, const struct mgpu_options *o)
{
    struct mgpu_trainer *t;
    *noted = 0;
    mgpu_set_note(take_note, NULL);
    CHECK_OK(mgpu_trainer_new(&t, path, o));
    mgpu_set_note(NULL, NULL);
    mgpu_trainer_free(t);
    return noted;
}

/* Other data of the same sizes, and another graph of the same weights; in an old checkpoint nothing
 * tells of them. */
static void test_contents(void)
{
    struct mgpu_options o = plain(), other;
    const char *tanh = tiny_model("input x float N 4\n" W1 W2 B2 NORM "h = MatMul(x, w1)\n"
                                  "n = BatchNormalization(h, scale, shift, mean, var)\n"
                                  "r = Tanh(n)\ny = Gemm(r, w2, b2)\noutput y float N 3\n");
    const char *saved = build_path("saved.onnx");
    struct mgpu_trainer *t;
    double losses[16];
    o.steps = 5;
    run(model, &o, losses, file);
    o.resume = file;
    o.steps = 10;
    other = o;
    other.data = tiny_list(tiny_noise("x", 9, 2, (int64_t[]){SAMPLES, 4}), o.data[1], NULL);
    CHECK_(!strstr(notes_of(model, &o), "is not what it was"), "%s", noted);
    CHECK_(!strstr(notes_of(tiny_model(reordered), &o), "is not what it was"), "%s", noted);
    CHECK_OK(mgpu_trainer_new(&t, model, &o)); /* its own file, in the form for inference */
    CHECK_OK(mgpu_save(t, saved));
    mgpu_trainer_free(t);
    CHECK_(!strstr(notes_of(saved, &o), "is not what it was"), "%s", noted);
    CHECK_(strstr(notes_of(model, &other), "--data: what 'x' holds is not what it was in the run"),
           "%s", noted);
    CHECK_(!strstr(noted, "label' holds") && !strstr(noted, "graph"), "%s", noted);
    CHECK_(strstr(notes_of(tanh, &o), " is not what it was in the run before") &&
               strstr(noted, "the graph of "),
           "%s", noted);
    other.val = other.data;
    CHECK_(strstr(notes_of(model, &other), "--val: what 'x' holds"), "%s", noted);
    forget_contents(file);
    CHECK_(!strstr(notes_of(tanh, &other), "is not what it was"), "%s", noted);
}

int main(void)
{
    tiny_begin();
    build_begin();
    model = tiny_model(text);
    file = mgpu_arena_format(build_arena, "%s/run.h5", build_folder);
    test_every_step();
    test_callbacks();
    test_best_weights();
    test_carried();
    test_reordered();
    test_ranks();
    test_initial_epoch();
    test_other_batch();
    test_refused();
    test_broken();
    test_notes();
    test_contents();
    build_end();
    tiny_end();
    return test_end();
}
