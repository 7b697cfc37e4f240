/* Early stop, learning-rate reduction and checkpoint names do what Keras's callbacks do; what the
 * options may be; files that stay; counters that outlive a process. */
#include "runtime/callbacks/csv_log.h"
#include "runtime/callbacks/early_stopping.h"
#include "runtime/callbacks/model_checkpoint.h"
#include "runtime/callbacks/reduce_lr.h"
#include "runtime/callbacks/template.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

enum { EPOCHS = 12 };

struct golden_early {
    const char *text;
    double value[EPOCHS];
    int stop, best; /* epochs; -1: it runs to the end */
};

struct golden_reduce {
    const char *text;
    double value[EPOCHS], lr[EPOCHS];
};

struct golden_save {
    const char *path, *monitor, *mode;
    bool best;
    double value[EPOCHS];
    const char *name[EPOCHS]; /* "": nothing was saved */
};

#include "tests/callbacks/golden_callbacks.h"

static const char *names[] = {"loss", "val_loss", "val_accuracy", "learning_rate"};
static double numbers[4];
static const struct mgpu_logs logs = {4, names, numbers};

static void set_logs(double value)
{
    numbers[0] = numbers[1] = numbers[2] = value;
    numbers[3] = 0.01;
}

/* Saves what `keep` says of one object and restores it into another. */
#define PASS_ON(keep, from, to)                                                                    \
    do {                                                                                           \
        struct mgpu_record record_;                                                                \
        mgpu_record_init(&record_, build_arena);                                                   \
        CHECK_OK(keep(from, &record_));                                                            \
        record_.restores = true;                                                                   \
        CHECK_OK(keep(to, &record_));                                                              \
        mgpu_record_free(&record_);                                                                \
    } while (0)

/* ---- As Keras does --------------------------------------------------------------------------- */

/* In the middle another process goes on from what the first one kept. */
static void test_early_stopping(void)
{
    for (size_t i = 0; i < sizeof early / sizeof *early; i++) {
        struct mgpu_early_stopping a, b, *now = &a;
        int stop = -1;
        CHECK_OK(mgpu_early_stopping_parse(&a, early[i].text, &logs, build_arena));
        CHECK_OK(mgpu_early_stopping_parse(&b, early[i].text, &logs, build_arena));
        for (int k = 0; k < EPOCHS && stop < 0; k++) {
            if (k == (int)(i % EPOCHS)) {
                PASS_ON(mgpu_early_stopping_record, &a, &b);
                now = &b;
            }
            set_logs(early[i].value[k]);
            if (mgpu_early_stopping_epoch(now, k, &logs))
                stop = k;
        }
        CHECK_(stop == early[i].stop && now->best_epoch == early[i].best,
               "%s (row %zu): stops at %d, best %d", early[i].text, i, stop, (int)now->best_epoch);
        CHECK(mgpu_early_stopping_stopped(now) == (stop >= 0));
    }
}

/* Which epochs' weights are the best so far: the first that counts, whatever its value, and each
 * that beats the best (min_delta included). */
static void test_best_weights(void)
{
    static const struct {
        const char *text;
        double value[6];
        const char *best; /* by epoch: x where it is */
        int last;         /* the epoch that is restored */
    } rows[] = {
        {"patience=9,restore_best_weights", {3, 2, 2.5, 2.4, 1, 1}, "xx..x.", 4},
        {"patience=9,restore_best_weights=true", {NAN, NAN, 5, 6, 4, 9}, "x.x.x.", 4},
        {"patience=9,restore_best_weights,start_from_epoch=2", {1, 2, 5, 6, 7, 8}, "..x...", 2},
        {"patience=9,restore_best_weights,min_delta=1", {3, 2.5, 1.5, 1, .2, 1}, "x.x.x.", 4},
        {"patience=9,restore_best_weights,baseline=0", {3, 2, 4, 4, 4, 4}, "xx....", 1},
        {"patience=9,restore_best_weights=false", {3, 2, 1, 1, 1, 1}, "......", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mgpu_early_stopping s;
        CHECK_OK(mgpu_early_stopping_parse(&s, rows[i].text, &logs, build_arena));
        for (int k = 0; k < 6; k++) {
            set_logs(rows[i].value[k]);
            mgpu_early_stopping_epoch(&s, k, &logs);
            bool best = s.restores && s.best_now;
            s.kept |= best;
            CHECK_(best == (rows[i].best[k] == 'x'), "%s, epoch %d", rows[i].text, k);
        }
        CHECK_(s.best_epoch == rows[i].last, "%s: %d", rows[i].text, (int)s.best_epoch);
    }
}

static char noted[512];

static void take_note(void *context, const char *line)
{
    (void)context;
    snprintf(noted, sizeof noted, "%s", line);
}

/* What watches the training's loss for want of another says so; a monitor that was named and is
 * not there is an error. */
static void test_watches(void)
{
    static const char *few[] = {"loss", "learning_rate"};
    const struct mgpu_logs training = {2, few, numbers};
    struct mgpu_early_stopping s;
    struct mgpu_reduce_lr r;
    struct mgpu_model_checkpoint c;
    struct mgpu_model_checkpoint_options o = {.path = "w.h5"};
    mgpu_set_note(take_note, NULL);
    CHECK_OK(mgpu_early_stopping_parse(&s, "patience=1", &training, build_arena));
    CHECK_(!strcmp(noted, "--early-stop watches the loss of training: there are no validation data "
                          "(--val, --val-split)"),
           "%s", noted);
    CHECK_OK(mgpu_reduce_lr_parse(&r, "patience=1", &training, build_arena));
    CHECK(strstr(noted, "--reduce-lr watches the loss of training"));
    *noted = 0;
    CHECK_OK(mgpu_model_checkpoint_init(&c, &o, &training, build_arena));
    CHECK(!*noted);
    o.save_best = true;
    CHECK_OK(mgpu_model_checkpoint_init(&c, &o, &training, build_arena));
    CHECK(strstr(noted, "--save-best watches the loss of training"));
    *noted = 0;
    CHECK_OK(mgpu_early_stopping_parse(&s, "monitor=loss", &training, build_arena));
    CHECK(!*noted);
    mgpu_set_note(NULL, NULL);
    CHECK_FAILS(mgpu_early_stopping_parse(&s, "monitor=val_loss", &training, build_arena),
                "unknown monitor 'val_loss'");
}

static void test_reduce_lr(void)
{
    for (size_t i = 0; i < sizeof reduce / sizeof *reduce; i++) {
        struct mgpu_reduce_lr a, b, *now = &a;
        double lr = 0.01;
        CHECK_OK(mgpu_reduce_lr_parse(&a, reduce[i].text, &logs, build_arena));
        CHECK_OK(mgpu_reduce_lr_parse(&b, reduce[i].text, &logs, build_arena));
        for (int k = 0; k < EPOCHS; k++) {
            if (k == (int)(i % EPOCHS)) {
                PASS_ON(mgpu_reduce_lr_record, &a, &b);
                now = &b;
            }
            set_logs(reduce[i].value[k]);
            lr = mgpu_reduce_lr_epoch(now, &logs, lr);
            CHECK_(fabs(lr - reduce[i].lr[k]) <= 1e-7 * lr, "%s, epoch %d: %.9g, not %.9g",
                   reduce[i].text, k, lr, reduce[i].lr[k]);
        }
    }
}

static int take_name(void *context, const char *path, bool weights_only)
{
    (void)weights_only;
    *(const char **)context = path;
    return 0;
}

static void test_saves(void)
{
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        const struct golden_save *g = &saves[i];
        struct mgpu_model_checkpoint c;
        struct mgpu_model_checkpoint_options o = {
            .path = g->path, .monitor = g->monitor, .mode = g->mode, .save_best = g->best};
        CHECK_OK(mgpu_model_checkpoint_init(&c, &o, &logs, build_arena));
        for (int k = 0; k < EPOCHS; k++) {
            const char *name = "", *saved, *removed;
            struct mgpu_save_sink sink = {take_name, &name};
            set_logs(g->value[k]);
            CHECK_OK(mgpu_model_checkpoint_epoch(&c, k, &logs, &sink, &saved, &removed));
            CHECK_(!strcmp(name, g->name[k]) && !removed, "%s, epoch %d: %s, not %s", g->path, k,
                   name, g->name[k]);
        }
    }
}

/* ---- Names ----------------------------------------------------------------------------------- */

static void test_template(void)
{
    static const char *const wrong[][2] = {
        {"{epoch", "'{epoch' is not closed"},
        {"a}b", "closes no field"},
        {"{epohc}", "unknown field '{epohc}' (known: epoch, loss, val_loss,"},
        {"{epoch:.2f}", "formats are like"},
        {"{loss:d}", "formats are like"},
        {"{loss:>8.2f}", "formats are like"},
        {"{loss:200.2f}", "formats are like"},
        {"{loss:.f}", "formats are like"},
        {"{loss!r}", "field '{loss!r}'"},
        {"{epoch:02d}{", "is not closed"},
        {"{}", "field '{}'"},
        {"{loss:%n}", "formats are like"},
    };
    const char *name;
    set_logs(0.125);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_FAILS(mgpu_template_format(&name, build_arena, wrong[i][0], 1, &logs), wrong[i][1]);
    CHECK_OK(mgpu_template_format(&name, build_arena, "{epoch:03d}{{}}-{val_loss}", 7, &logs));
    CHECK_(!strcmp(name, "007{}-0.125"), "%s", name);
    CHECK(!strcmp(mgpu_template_step(build_arena, "d/w-{epoch:02d}-{loss:.2f}.h5", 40),
                  "d/w-step-40.h5"));
    CHECK(!strcmp(mgpu_template_step(build_arena, "d.e/w.h5", 40), "d.e/w-step-40.h5"));
    CHECK(!strcmp(mgpu_template_step(build_arena, "d.e/w", 40), "d.e/w-step-40"));
}

/* A run that stops within an epoch never takes the place of the best or of plain weights. */
static void test_step_name(void)
{
    struct mgpu_model_checkpoint c;
    struct mgpu_model_checkpoint_options o = {.path = "w.h5"};
    CHECK_OK(mgpu_model_checkpoint_init(&c, &o, &logs, build_arena));
    CHECK(!strcmp(mgpu_model_checkpoint_step(&c, 3), "w.h5"));
    c.options.save_best = true;
    CHECK(!strcmp(mgpu_model_checkpoint_step(&c, 3), "w-step-3.h5"));
    c.options = (struct mgpu_model_checkpoint_options){.path = "w.h5", .weights_only = true};
    CHECK(!strcmp(mgpu_model_checkpoint_step(&c, 3), "w-step-3.h5"));
}

/* ---- Files that stay ------------------------------------------------------------------------- */

static int write_file(void *context, const char *path, bool weights_only)
{
    (void)context;
    (void)weights_only;
    build_bytes(path, "x", 1);
    return 0;
}

struct recorded {
    struct mgpu_model_checkpoint *of;
    struct mgpu_record *record;
};

/* A file with what it holds about others. */
static int take_record(void *context, const char *path, bool weights_only)
{
    struct recorded *r = context;
    write_file(NULL, path, weights_only);
    return mgpu_model_checkpoint_record(r->of, r->record);
}

static void test_keep(void)
{
    struct mgpu_model_checkpoint a, b, *now = &a;
    struct mgpu_model_checkpoint_options o = {
        .path = mgpu_arena_format(build_arena, "%s/k-{epoch}", build_folder),
        .period = 2,
        .keep = 2};
    struct mgpu_save_sink sink = {write_file, NULL};
    const char *saved, *removed;
    CHECK_OK(mgpu_model_checkpoint_init(&a, &o, &logs, build_arena));
    CHECK_OK(mgpu_model_checkpoint_init(&b, &o, &logs, build_arena));
    for (int epoch = 0; epoch < 9; epoch++) {
        if (epoch == 5) {
            PASS_ON(mgpu_model_checkpoint_record, &a, &b);
            now = &b;
        }
        CHECK_OK(mgpu_model_checkpoint_epoch(now, epoch, &logs, &sink, &saved, &removed));
        CHECK((saved != NULL) == (epoch % 2 == 1));
        CHECK((removed != NULL) == (epoch == 5 || epoch == 7));
    }
    for (int epoch = 1; epoch <= 9; epoch++) {
        const char *path = mgpu_arena_format(build_arena, "%s/k-%d", build_folder, epoch);
        CHECK_((access(path, F_OK) == 0) == (epoch == 6 || epoch == 8), "%s", path);
        unlink(path);
    }
}

/* A run that was killed behind a new file and before the oldest went: the next one removes that. */
static void test_keep_killed(void)
{
    struct mgpu_model_checkpoint a, b;
    struct mgpu_model_checkpoint_options o = {
        .path = mgpu_arena_format(build_arena, "%s/d-{epoch}", build_folder), .keep = 2};
    struct mgpu_save_sink sink = {write_file, NULL};
    const char *saved, *removed;
    CHECK_OK(mgpu_model_checkpoint_init(&a, &o, &logs, build_arena));
    CHECK_OK(mgpu_model_checkpoint_init(&b, &o, &logs, build_arena));
    for (int epoch = 0; epoch < 2; epoch++)
        CHECK_OK(mgpu_model_checkpoint_epoch(&a, epoch, &logs, &sink, &saved, &removed));
    struct mgpu_record record;
    mgpu_record_init(&record, build_arena);
    sink = (struct mgpu_save_sink){take_record, &(struct recorded){&a, &record}};
    CHECK_OK(mgpu_model_checkpoint_epoch(&a, 2, &logs, &sink, &saved, &removed));
    build_bytes(removed, "x", 1); /* it was not removed */
    record.restores = true;
    CHECK_OK(mgpu_model_checkpoint_record(&b, &record));
    mgpu_record_free(&record);
    sink = (struct mgpu_save_sink){write_file, NULL};
    CHECK_OK(mgpu_model_checkpoint_epoch(&b, 3, &logs, &sink, &saved, &removed));
    for (int epoch = 1; epoch <= 4; epoch++) {
        const char *path = mgpu_arena_format(build_arena, "%s/d-%d", build_folder, epoch);
        CHECK_((access(path, F_OK) == 0) == (epoch > 2), "%s", path);
    }
}

/* A record says which files go; what no checkpoint of this run is called stays. */
static void test_keep_foreign(void)
{
    static const struct {
        const char *text, *name;
        bool gives;
    } rows[] = {
        {"d/w-{epoch:02d}-{loss:.2f}.h5", "d/w-03-0.25.h5", true},
        {"d/w-{epoch}.h5", "d/w-3.npz", false},
        {"d/w-{epoch}.h5", "d/v-3.h5", false},
        {"{epoch}.h5", "../3.h5", false},
        {"{epoch}.h5", ".h", false},
        {"a{epoch}a", "a", false},
        {"w.h5", "w.h5", true},
        {"w.h5", "v.h5", false},
    };
    struct mgpu_model_checkpoint a, b;
    struct mgpu_model_checkpoint_options o = {.path = build_text(build_path("precious")),
                                              .keep = 1};
    struct mgpu_save_sink sink = {write_file, NULL};
    const char *saved, *removed, *precious = o.path;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_(mgpu_template_gives(rows[i].text, rows[i].name) == rows[i].gives, "%s, %s",
               rows[i].text, rows[i].name);
    CHECK_OK(mgpu_model_checkpoint_init(&a, &o, &logs, build_arena));
    CHECK_OK(mgpu_model_checkpoint_epoch(&a, 0, &logs, &sink, &saved, &removed));
    o.path = mgpu_arena_format(build_arena, "%s/f-{epoch}", build_folder);
    CHECK_OK(mgpu_model_checkpoint_init(&b, &o, &logs, build_arena));
    mgpu_set_note(take_note, NULL);
    PASS_ON(mgpu_model_checkpoint_record, &a, &b);
    mgpu_set_note(NULL, NULL);
    CHECK_(strstr(noted, "precious of the run before stays"), "%s", noted);
    CHECK_OK(mgpu_model_checkpoint_epoch(&b, 1, &logs, &sink, &saved, &removed));
    CHECK(!removed && access(precious, F_OK) == 0);
    CHECK_OK(mgpu_model_checkpoint_epoch(&b, 2, &logs, &sink, &saved, &removed));
    CHECK(removed && strstr(removed, "/f-2"));
}

/* ---- Options --------------------------------------------------------------------------------- */

static void test_options(void)
{
    struct mgpu_early_stopping s;
    struct mgpu_reduce_lr r;
    struct mgpu_monitor m;
    CHECK_FAILS(mgpu_early_stopping_parse(&s, "monitor=val_los", &logs, build_arena),
                "--early-stop monitor=val_los: unknown monitor 'val_los'");
    CHECK_FAILS(mgpu_early_stopping_parse(&s, "patiense=3", &logs, build_arena),
                "unknown option 'patiense'");
    CHECK_FAILS(mgpu_early_stopping_parse(&s, "patience=-1", &logs, build_arena), "patience");
    CHECK_FAILS(mgpu_reduce_lr_parse(&r, "factor=1", &logs, build_arena), "factor");
    CHECK_FAILS(mgpu_reduce_lr_parse(&r, "mode=up", &logs, build_arena), "unknown mode 'up'");
    CHECK_OK(mgpu_monitor_init(&m, NULL, NULL, &logs, "--x"));
    CHECK(!strcmp(m.name, "val_loss") && !m.max);
    CHECK_OK(mgpu_monitor_init(&m, "val_accuracy", "auto", &logs, "--x"));
    CHECK(m.max);
}

/* Watching something else, a callback begins afresh. */
static void test_other_monitor(void)
{
    struct mgpu_early_stopping a, b;
    CHECK_OK(mgpu_early_stopping_parse(&a, "monitor=val_loss,patience=1", &logs, build_arena));
    CHECK_OK(mgpu_early_stopping_parse(&b, "monitor=loss,patience=1", &logs, build_arena));
    set_logs(0.25);
    mgpu_early_stopping_epoch(&a, 0, &logs);
    PASS_ON(mgpu_early_stopping_record, &a, &b);
    CHECK(isinf(b.monitor.best) && b.wait == 0);
}

/* ---- The log --------------------------------------------------------------------------------- */

static void check_log(const char *path, const char *want)
{
    size_t size;
    char *text = (char *)build_load(path, &size);
    CHECK_(size == strlen(want) && !memcmp(text, want, size), "%.*s", (int)size, text);
    free(text);
}

static void log_epochs(const char *path, bool resume, int from, int to)
{
    struct mgpu_csv_log *log;
    CHECK_OK(mgpu_csv_log_open(&log, path, &logs, resume, from));
    for (int epoch = from; log && epoch < to; epoch++) {
        set_logs(epoch + 0.5);
        CHECK_OK(mgpu_csv_log_epoch(log, epoch, &logs));
    }
    mgpu_csv_log_close(log);
}

#define HEADER "epoch,learning_rate,loss,val_accuracy,val_loss\n"

static void test_csv(void)
{
    const char *path = build_path("log.csv");
    struct mgpu_csv_log *log;
    log_epochs(path, false, 0, 2);
    check_log(path, HEADER "0,0.01,0.5,0.5,0.5\n1,0.01,1.5,1.5,1.5\n");
    log_epochs(path, true, 1, 3); /* what was logged after the checkpoint goes */
    check_log(path, HEADER "0,0.01,0.5,0.5,0.5\n1,0.01,1.5,1.5,1.5\n2,0.01,2.5,2.5,2.5\n");
    build_bytes(path, HEADER "0,0.01,0.5,0.5,0.5\n1,0.0", strlen(HEADER) + 24); /* killed */
    log_epochs(path, true, 3, 3);
    check_log(path, HEADER "0,0.01,0.5,0.5,0.5\n");
    build_bytes(path, "epoch,loss\n", 11);
    CHECK_FAILS(mgpu_csv_log_open(&log, path, &logs, true, 1), "its columns are not those");
    check_log(path, "epoch,loss\n");
    CHECK_FAILS(mgpu_csv_log_open(&log, build_path("no/log.csv"), &logs, false, 0),
                "No such file or directory");
    log_epochs(build_path("new.csv"), true, 4, 4);
    check_log(build_path("new.csv"), HEADER);
}

int main(void)
{
    build_begin();
    test_early_stopping();
    test_best_weights();
    test_watches();
    test_reduce_lr();
    test_saves();
    test_template();
    test_step_name();
    test_keep();
    test_keep_killed();
    test_keep_foreign();
    test_options();
    test_other_monitor();
    test_csv();
    build_end();
    return test_end();
}
