#include "runtime/facade/trial.h"

#include "partitioner/plan_file.h"
#include "runtime/base/option_text.h"
#include "runtime/base/notes.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 3, LEAST_STEPS = 8, MOST_STEPS = 5000 };
static const double WARM_UP_MS = 200, MS = 600;

/* ---- Steps ----------------------------------------------------------------------------------- */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int step(struct mgpu_trial *trial, double *ms)
{
    struct mgpu_step_result result;
    double start = now_ms();
    int rc = mgpu_step(trial->trainer, &result);
    *ms = now_ms() - start;
    return rc == 0 ? mgpu_fail(MGPU_EINTERNAL, "no step is left") : rc;
}

/* Until the clock, the caches and the pages are as they stay; *last: of the last step. */
static int warm_up(struct mgpu_trial *trial, double *last)
{
    double start = now_ms();
    for (int i = 0; i < MOST_STEPS && (i < WARM_UP || now_ms() - start < WARM_UP_MS); i++)
        MGPU_TRY(step(trial, last));
    return 0;
}

int mgpu_trial_time(struct mgpu_trial *trial, double *typical)
{
    double ms[MOST_STEPS], last = 0;
    MGPU_TRY(warm_up(trial, &last));
    double fits = MS / (last > 0 ? last : 1);
    trial->steps = fits < LEAST_STEPS ? LEAST_STEPS : fits > MOST_STEPS ? MOST_STEPS : (int)fits;
    for (int i = 0; i < trial->steps; i++)
        MGPU_TRY(step(trial, &ms[i]));
    qsort(ms, (size_t)trial->steps, sizeof *ms, by_value);
    *typical = ms[trial->steps / 4];
    return 0;
}

int mgpu_trial_run(struct mgpu_trial *trial, int steps)
{
    double ms;
    for (int i = 0; i < steps; i++)
        MGPU_TRY(step(trial, &ms));
    return 0;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static int make_data(struct mgpu_trial *trial, struct mgpu_trainer *planning, int64_t batch)
{
    struct mgpu_graph *g;
    MGPU_TRY(mgpu_build_graph(&g, planning, MGPU_MODE_TRAIN, batch, NULL));
    int rc = mgpu_made_data_new(&trial->data, g);
    mgpu_graph_free(g);
    return rc;
}

/* Data and losses of options that have none. */
static int settle_options(struct mgpu_trial *trial, const char *model, struct mgpu_options *o)
{
    struct mgpu_trainer *planning;
    MGPU_TRY(mgpu_trainer_planning(&planning, model, o));
    const char *const *given = planning->options.loss;
    int losses = mgpu_text_count(given);
    const char **loss = MGPU_NEW_ARRAY(trial->arena, const char *, losses + 1);
    for (int i = 0; i < losses; i++)
        loss[i] = mgpu_arena_string(trial->arena, given[i]);
    int rc = make_data(trial, planning, o->batch);
    mgpu_trainer_free(planning);
    o->data = trial->data.data;
    o->batch_axis = trial->data.batch_axis;
    o->rows = trial->data.rows;
    o->loss = loss;
    o->shuffle = false;
    o->epochs = 3 * MOST_STEPS + 1;
    return rc;
}

int mgpu_trial_new(struct mgpu_trial *trial, const char *model, const struct mgpu_options *options)
{
    struct mgpu_options o = *options;
    *trial = (struct mgpu_trial){.arena = mgpu_arena_new()};
    MGPU_TRY(settle_options(trial, model, &o));
    return mgpu_trainer_new(&trial->trainer, model, &o);
}

void mgpu_trial_free(struct mgpu_trial *trial)
{
    if (!trial->arena)
        return;
    mgpu_trainer_free(trial->trainer);
    mgpu_made_data_free(&trial->data);
    mgpu_arena_free(trial->arena);
}

/* ---- Plans that are in no file --------------------------------------------------------------- */

static int print_plan(const struct mgpu_plan_file *plan, int fd)
{
    FILE *to = fdopen(dup(fd), "w");
    if (!to)
        return mgpu_fail(MGPU_EIO, "a plan to run: %s", strerror(errno));
    int rc = mgpu_plan_file_print(plan, to);
    fclose(to);
    return rc;
}

static int run_file(double *ms, const struct mgpu_trainer *planning, int64_t batch, int fd)
{
    struct mgpu_trial trial;
    char path[64];
    struct mgpu_options o = planning->options;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    o.plan = path;
    o.batch = batch;
    o.devices = o.strategy = NULL;
    int rc = mgpu_trial_new(&trial, planning->path, &o);
    if (rc == 0)
        rc = mgpu_trial_time(&trial, ms);
    mgpu_trial_free(&trial);
    return rc;
}

int mgpu_trial_of_plan(double *ms, void *context, const struct mgpu_plan_file *plan)
{
    int fd = memfd_create("plan", MFD_CLOEXEC);
    if (fd < 0)
        return mgpu_fail(MGPU_EIO, "a plan to run: %s", strerror(errno));
    int rc = print_plan(plan, fd);
    mgpu_drop_notes(true); /* the planner's trainer has said them */
    if (rc == 0)
        rc = run_file(ms, context, plan->batch, fd);
    mgpu_drop_notes(false);
    close(fd);
    return rc;
}
