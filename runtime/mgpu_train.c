/* mgpu-train: the command line over mgpu.h. Results on stdout, talk on stderr. */
#include "runtime/base/file_name.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"
#include "runtime/cli/begin.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/reexec.h"
#include "runtime/cli/train_args.h"
#include "runtime/cli/train_result.h"
#include "runtime/mgpu.h"

#include <signal.h>
#include <stdatomic.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Atomic: each signal may come to another thread. */
static atomic_int interrupted; /* finish the step, save, stop */

enum { SAME_WISH_MS = 1000 };

/* What follows at once is the same wish: timeout and job schedulers signal a process and then its
 * group, terminals a wrapper that passes it on. A later one ends the program at once. */
static void interrupt(int signal_number)
{
    static atomic_llong first; /* milliseconds of the clock; 0: none yet */
    struct timespec clock;
    long long before = 0;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    long long now = clock.tv_sec * 1000LL + clock.tv_nsec / 1000000 + 1;
    if (atomic_compare_exchange_strong(&first, &before, now)) {
        interrupted = signal_number;
    } else if (now - before >= SAME_WISH_MS) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

/* Ctrl-C, the end of the terminal or of the job's time: one that the program's starter wants to be
 * ignored (nohup) stays so. */
static void heed_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (signal(ends[i], interrupt) == SIG_IGN)
            signal(ends[i], SIG_IGN);
}

static void note(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "note: %s\n", text);
}

/* Under --quiet, too: the numbers that come out do not tell it. */
static void warn(void *result, const char *text)
{
    fprintf(stderr, "warning: %s\n", text);
    mgpu_result_warning(result, text);
}

static int fail(int code)
{
    fprintf(stderr, "mgpu-train: %s\n", mgpu_error());
    return code == MGPU_EUSAGE ? 2 : 1;
}

/* Told at once, and in the exit status; the rest of the job goes on. */
static void go_on(struct mgpu_train_result *result, int rc)
{
    if (rc < 0)
        result->failed = fail(rc);
}

/* ---- Talk ------------------------------------------------------------------------------------ */

static void say_start(const struct mgpu_train_command *c, const struct mgpu_facts *f)
{
    const struct mgpu_options *o = &c->options;
    if (c->quiet)
        return;
    fprintf(stderr,
            "%s: %d weights trained (%lld numbers), %d frozen, %d running statistics; %s\n"
            "%s on %s: %d rank%s of %d thread%s%s%s; batch %lld, %lld step%s an epoch\n",
            c->model, f->trained, (long long)f->trained_elements, f->frozen, f->statistics,
            o->optimizer, f->strategy, f->devices, f->ranks, f->ranks == 1 ? "" : "s", f->threads,
            f->threads == 1 ? "" : "s", f->batch_norm ? "; batch norm " : "",
            f->batch_norm ? f->batch_norm : "", (long long)f->batch, (long long)f->steps_per_epoch,
            f->steps_per_epoch == 1 ? "" : "s");
    if (o->resume && f->step < f->total_steps)
        fprintf(stderr, "%s: goes on after step %lld of %lld\n", o->resume, (long long)f->step,
                (long long)f->total_steps);
    else if (o->resume)
        fprintf(stderr,
                "%s: nothing is left to do after step %lld: --epochs and --steps count from the "
                "beginning of the run, more of them go on\n",
                o->resume, (long long)f->step);
}

static void say_list(const char *option, const char *const *list)
{
    for (int i = 0; list && list[i]; i++) {
        fprintf(stderr, " --%s", option);
        mgpu_write_shell_word(stderr, list[i]);
    }
}

/* What to type next: the saved model, on the validation data where there are any. */
static void say_next(const struct mgpu_train_command *c)
{
    const struct mgpu_options *o = &c->options;
    for (int i = 0; !c->quiet && c->save && c->save[i]; i++) {
        if (!mgpu_has_extension(c->save[i], ".onnx"))
            continue;
        fprintf(stderr, "next: %s", program_invocation_name);
        mgpu_write_shell_word(stderr, c->save[i]);
        say_list("data", o->val ? o->val : o->data);
        say_list("scale", o->scale);
        say_list("normalize", o->normalize);
        say_list("batch-axis", o->batch_axis);
        say_list("rows", o->rows);
        say_list("state", o->state);
        say_list("dim", o->dim);
        say_list("loss", o->loss);
        say_list("metric", o->metric);
        fputs(" --evaluate\n", stderr);
        return;
    }
}

/* ---- Training -------------------------------------------------------------------------------- */

static int end_epoch(struct mgpu_trainer *t, struct mgpu_progress *p, int64_t epoch,
                     struct mgpu_train_result *result)
{
    struct mgpu_epoch_result end;
    MGPU_TRY(mgpu_epoch_end(t, &end));
    mgpu_result_numbers(result, end.numbers, end.count);
    mgpu_progress_epoch(p, epoch, end.numbers, end.count);
    if (end.saved)
        mgpu_result_saved(result, end.saved);
    if (end.removed)
        mgpu_result_removed(result, end.removed);
    if (!p->to)
        return 0;
    if (end.lr > 0)
        fprintf(p->to, "learning rate %g from now on (--reduce-lr)\n", end.lr);
    if (end.saved)
        fprintf(p->to, "saved %s\n", end.saved);
    if (end.stops)
        fprintf(p->to, "stopped after epoch %lld (--early-stop)\n", (long long)epoch);
    return 0;
}

static int train(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                 const struct mgpu_facts *f, struct mgpu_train_result *result)
{
    struct mgpu_progress p;
    struct mgpu_step_result step;
    const struct mgpu_number *numbers;
    int rc = 0;
    mgpu_progress_begin(&p, c->quiet ? NULL : stderr, f);
    heed_signals();
    while (!result->stopped &&
           (rc = interrupted ? mgpu_step_begun(t, &step) : mgpu_step(t, &step)) > 0) {
        if (c->log_steps)
            printf("step %lld loss %.9g", (long long)step.step, step.loss);
        if (c->log_steps && step.loss_scale != 1)
            printf(" scale %g", step.loss_scale);
        if (c->log_steps)
            putchar('\n');
        mgpu_result_step(result, &step);
        result->within_epoch = !step.epoch_ends;
        int n = mgpu_epoch_numbers(t, &numbers);
        mgpu_progress_step(&p, &step, numbers, n);
        if (step.epoch_ends || step.step == f->total_steps) {
            int ended = end_epoch(t, &p, step.epoch, result);
            result->stopped = ended < 0; /* a full disk, say: the weights are good */
            go_on(result, ended);
        }
    }
    result->seconds = mgpu_seconds() - p.start;
    return rc < 0 ? rc : 0;
}

static int save_profile(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                        struct mgpu_train_result *result)
{
    MGPU_TRY(mgpu_trainer_profile(t, c->profile));
    mgpu_result_saved(result, c->profile);
    if (!c->quiet)
        fprintf(stderr, "saved %s (open it in https://ui.perfetto.dev)\n", c->profile);
    return 0;
}

static int save_html(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                     struct mgpu_train_result *result)
{
    MGPU_TRY(mgpu_trainer_html(t, c->html));
    mgpu_result_saved(result, c->html);
    if (!c->quiet)
        fprintf(stderr, "saved %s\n", c->html);
    return 0;
}

static int save_model(struct mgpu_trainer *t, const struct mgpu_train_command *c, const char *path,
                      struct mgpu_train_result *result)
{
    MGPU_TRY(mgpu_save(t, path));
    mgpu_result_saved(result, path);
    if (!c->quiet)
        fprintf(stderr, "saved %s\n", path);
    return 0;
}

/* How many words of the command, from `i` on, are an option that says what a run starts from: a
 * checkpoint says that. */
static int words_of_start(const struct mgpu_train_command *c, int i)
{
    static const struct {
        const char *option;
        bool value;
    } starts[] = {{"--resume", true},
                  {"--init", true},
                  {"--map", true},
                  {"--reinit", true},
                  {"--initial-epoch", true},
                  {"--partial", false},
                  {"--skip-mismatch", false},
                  {"--allow-nonfinite", false},
                  {"--optimizer-state", false}};
    for (size_t k = 0; k < sizeof starts / sizeof *starts; k++) {
        size_t n = strlen(starts[k].option);
        if (strncmp(c->argv[i], starts[k].option, n))
            continue;
        if (!c->argv[i][n])
            return 1 + starts[k].value;
        if (c->argv[i][n] == '=')
            return 1;
    }
    return 0;
}

/* The command that goes on from a checkpoint: this one, with another --resume. */
static void say_resume(const struct mgpu_train_command *c, const char *path)
{
    fprintf(stderr, "to go on: %s --resume", program_invocation_name);
    mgpu_write_shell_word(stderr, path);
    bool options = true;
    for (int i = 1; i < c->argc; i++) {
        options = options && strcmp(c->argv[i], "--");
        int words = options ? words_of_start(c, i) : 0;
        if (words)
            i += words - 1;
        else
            mgpu_write_shell_word(stderr, c->argv[i]);
    }
    fputc('\n', stderr);
}

/* A run that stops before its end, or within an epoch. */
static int save_stopped(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                        struct mgpu_train_result *result)
{
    const char *path;
    MGPU_TRY(mgpu_stop_checkpoint(t, &path));
    if (!path)
        return 0;
    mgpu_result_saved(result, path);
    if (c->quiet)
        return 0;
    fprintf(stderr, "saved %s\n", path);
    if (interrupted || result->stopped)
        say_resume(c, path);
    return 0;
}

/* ---- The jobs -------------------------------------------------------------------------------- */

static int evaluate(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                    struct mgpu_train_result *result)
{
    const struct mgpu_number *numbers;
    int n = mgpu_evaluate(t, &numbers);
    MGPU_TRY(n);
    mgpu_result_numbers(result, numbers, n);
    for (int i = 0; i < n && !c->json; i++)
        printf("%s %.9g\n", numbers[i].name, numbers[i].value);
    return 0;
}

static int predict(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                   struct mgpu_train_result *result)
{
    MGPU_TRY(mgpu_predict(t, c->predict));
    mgpu_result_saved(result, c->predict);
    if (!c->quiet)
        fprintf(stderr, "saved %s\n", c->predict);
    return 0;
}

static int check_gradients(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                           struct mgpu_train_result *result)
{
    double worst;
    MGPU_TRY(mgpu_check_gradients(t, c->check_gradients, c->json ? stderr : stdout, &worst));
    mgpu_result_numbers(result,
                        &(struct mgpu_number){.name = "gradient_difference", .value = worst}, 1);
    return worst <= MGPU_GRADIENT_TOLERANCE
               ? 0
               : mgpu_fail(MGPU_EINVALID,
                           "a gradient differs from the difference quotient by %.2e of "
                           "the largest",
                           worst);
}

/* Each file for itself: one that cannot be written takes no other with it. Gives how many of
 * --save failed. */
static int save_all(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                    struct mgpu_train_result *result)
{
    int failed = 0;
    for (int i = 0; c->save && c->save[i]; i++) {
        int rc = save_model(t, c, c->save[i], result);
        failed += rc < 0;
        go_on(result, rc);
    }
    if (interrupted || result->stopped || result->within_epoch)
        go_on(result, save_stopped(t, c, result));
    if (c->profile)
        go_on(result, save_profile(t, c, result));
    if (c->html)
        go_on(result, save_html(t, c, result));
    return failed;
}

static int train_and_save(struct mgpu_trainer *t, const struct mgpu_train_command *c,
                          const struct mgpu_facts *f, struct mgpu_train_result *result)
{
    say_start(c, f);
    MGPU_TRY(train(t, c, f, result));
    if (result->skipped && !c->quiet)
        fprintf(stderr,
                "%lld of %lld steps changed nothing: their loss or gradient is not finite\n",
                (long long)result->skipped, (long long)result->steps);
    int failed = save_all(t, c, result);
    if (interrupted || result->stopped)
        return mgpu_fail(MGPU_EINVALID, "%s after step %lld of %lld%s%s",
                         result->stopped ? "stopped" : "interrupted", (long long)result->steps,
                         (long long)f->total_steps,
                         c->save && !failed ? "; the weights so far are saved" : "",
                         c->options.checkpoint ? "" : "; with --checkpoint it could be resumed");
    if (!failed)
        say_next(c);
    return 0;
}

/* One file would take the place of the other. */
static int check_apart(const struct mgpu_train_command *c)
{
    static const char what[] = "to be written twice";
    const char *others[] = {c->options.checkpoint, c->options.log_csv, c->profile, c->html};
    for (int i = 0; c->save && c->save[i]; i++) {
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            MGPU_TRY(mgpu_check_other_file(c->save[i], others[k], what));
        for (int k = 0; k < i; k++)
            MGPU_TRY(mgpu_check_other_file(c->save[i], c->save[k], what));
    }
    return 0;
}

static int check_targets(struct mgpu_trainer *t, const struct mgpu_train_command *c)
{
    const char *others[] = {c->predict, c->profile, c->html};
    for (int i = 0; c->save && c->save[i]; i++)
        MGPU_TRY(mgpu_check_save(t, c->save[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        MGPU_TRY(others[i] ? mgpu_check_apart(t, others[i]) : 0);
    return 0;
}

static int job(const struct mgpu_train_command *c, struct mgpu_train_result *result)
{
    struct mgpu_trainer *t;
    struct mgpu_facts facts;
    if (c->report)
        return mgpu_report(c->model, &c->options, c->json, stdout);
    signal(SIGPIPE,
           SIG_IGN); /* of talk that nobody reads (tee got the Ctrl-C, too) only that is lost */
    MGPU_TRY(check_apart(c));
    for (int i = 0; c->save && c->save[i]; i++)
        MGPU_TRY(mgpu_check_target(c->save[i]));
    if (c->profile)
        MGPU_TRY(mgpu_check_target(c->profile));
    if (c->html)
        MGPU_TRY(mgpu_check_target(c->html));
    MGPU_TRY(mgpu_trainer_new(&t, c->model, &c->options));
    mgpu_trainer_facts(t, &facts);
    int rc = check_targets(t, c);
    if (rc == 0)
        rc = c->dry_run           ? mgpu_trainer_describe(t, stdout)
             : c->evaluate        ? evaluate(t, c, result)
             : c->predict         ? predict(t, c, result)
             : c->check_gradients ? check_gradients(t, c, result)
                                  : train_and_save(t, c, &facts, result);
    for (int i = 0; rc == 0 && c->dry_run && c->save && c->save[i]; i++)
        printf("would save %s\n", c->save[i]);
    mgpu_trainer_facts(t, &facts);
    result->peak_memory_bytes = facts.peak_memory_bytes;
    mgpu_trainer_free(t);
    return rc;
}

static int show_help(const struct mgpu_train_command *c)
{
    const char *text = *c->help ? mgpu_help(c->help) : NULL;
    if (*c->help && !text) {
        fprintf(stderr, "mgpu-train: no help on '%s'; topics: loss, optimizer\n", c->help);
        return 2;
    }
    if (text)
        fputs(text, stdout);
    else
        mgpu_train_help(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct mgpu_train_command c = {.options = MGPU_OPTIONS};
    c.options.run_ahead = true;
    struct mgpu_train_result result = {0};
    mgpu_program_begin();
    mgpu_reexec_passive(argv);
    int rc = mgpu_train_parse(&c, argc, argv), status = 0;
    if (rc < 0)
        status = fail(rc);
    else if (c.help)
        status = show_help(&c);
    else if (c.version)
        printf("mgpu-train %s\n", MGPU_VERSION);
    else {
        mgpu_set_warning(warn, &result);
        if (!c.quiet)
            mgpu_set_note(note, NULL);
        rc = job(&c, &result);
        result.interrupted = interrupted;
        if ((rc >= 0 || interrupted || result.stopped) && c.json && !c.report)
            mgpu_result_print(&result, stdout);
        status = rc < 0 ? fail(rc) : result.failed;
    }
    if ((fflush(stdout) || ferror(stdout)) && status == 0)
        status = fail(mgpu_fail(MGPU_EIO, "standard output cannot be written"));
    mgpu_result_free(&result);
    mgpu_args_free(mgpu_train_table, &c);
    return status;
}
