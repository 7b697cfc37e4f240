/* mgpu-partition: the command line over mgpu.h. Results on stdout, talk on stderr. */
#include "runtime/cli/begin.h"
#include "runtime/cli/partition_args.h"
#include "runtime/cli/reexec.h"
#include "runtime/base/file_name.h"
#include "runtime/base/status.h"
#include "runtime/mgpu.h"

#include <malloc.h>
#include <string.h>
#include <unistd.h>

static void note(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "note: %s\n", text);
}

/* Under --quiet, too. */
static void warn(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "warning: %s\n", text);
}

static int fail(int code)
{
    fprintf(stderr, "mgpu-partition: %s\n", mgpu_error());
    return code == MGPU_EUSAGE ? 2 : 1;
}

/* A line that is written over on a terminal; elsewhere one for each thing that is timed. */
static void show_progress(void *context, const char *what, double share)
{
    static char last[64];
    (void)context;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kmeasuring %s: %.0f %%%s", what, 100 * share,
                share < 1 ? "" : "\n");
    else if (strcmp(last, what) != 0)
        fprintf(stderr, "measuring %s\n", what);
    snprintf(last, sizeof last, "%s", what);
}

/* What is written, and with what. */
struct result {
    const char *path; /* or NULL */
    int (*write)(const struct mgpu_partition *partition, const char *path);
};
enum { RESULTS = 4 };

static void list_results(struct result list[RESULTS], const struct mgpu_partition_command *c)
{
    const char *plan = c->plan && strcmp(c->plan, "-") != 0 ? c->plan : NULL;
    list[0] = (struct result){plan, mgpu_partition_save};
    list[1] = (struct result){c->timeline, mgpu_partition_timeline};
    list[2] = (struct result){c->html, mgpu_partition_html};
    list[3] = (struct result){c->annotate, mgpu_partition_annotate};
}

/* Before anything is measured or planned: all can be written, and takes the place of nothing else.
 */
static int check_results(const struct mgpu_partition_command *c)
{
    struct result list[RESULTS];
    list_results(list, c);
    for (int i = 0; i < RESULTS; i++) {
        if (!list[i].path)
            continue;
        MGPU_TRY(mgpu_check_other_file(list[i].path, c->model, "the model that is read"));
        MGPU_TRY(mgpu_check_other_file(list[i].path, c->options.devices, "the file of --devices"));
        MGPU_TRY(
            mgpu_check_other_file(list[i].path, c->partition.profile, "the file of --profile"));
        for (int k = 0; k < i; k++)
            MGPU_TRY(mgpu_check_other_file(list[i].path, list[k].path, "to be written twice"));
        MGPU_TRY(mgpu_check_target(list[i].path));
    }
    if (!c->partition.measure || !c->partition.profile)
        return 0;
    MGPU_TRY(mgpu_check_other_file(c->partition.profile, c->model, "the model that is read"));
    return mgpu_check_target(c->partition.profile);
}

static int write_results(const struct mgpu_partition *p, const struct mgpu_partition_command *c)
{
    struct result list[RESULTS];
    list_results(list, c);
    for (int i = 0; i < RESULTS; i++) {
        if (!list[i].path)
            continue;
        MGPU_TRY(list[i].write(p, list[i].path));
        if (!c->quiet)
            fprintf(stderr, "saved %s\n", list[i].path);
    }
    return 0;
}

/* The search makes task graphs of some MiB and forgets them again; their pages are not given back
 * each time. What is run here for its time gets them as a training would. */
static void keep_pages(void)
{
    enum { MUCH = 1 << 30, TOP = 64 << 20 };
    mallopt(M_MMAP_THRESHOLD, MUCH);
    mallopt(M_TRIM_THRESHOLD, MUCH);
    mallopt(M_TOP_PAD, TOP);
}

/* Planning for another machine is fine; that the plan is for another one is said. */
static void tell_where(const struct mgpu_partition *p, const struct mgpu_partition_command *c)
{
    bool written = c->plan || c->annotate || c->json;
    if (written && !c->quiet && mgpu_partition_runs_here(p) < 0)
        fprintf(stderr, "note: mgpu-train cannot run this plan here: %s\n", mgpu_error());
}

static int plan(const struct mgpu_partition_command *c)
{
    struct mgpu_partition *p;
    bool print = c->json || (c->plan && !strcmp(c->plan, "-"));
    if (!c->partition.measure)
        keep_pages();
    MGPU_TRY(check_results(c));
    MGPU_TRY(mgpu_partition_new(&p, c->model, &c->options, &c->partition));
    int rc = write_results(p, c);
    if (rc == 0 && (!print || !c->quiet))
        mgpu_partition_table(p, (int)c->top, print ? stderr : stdout);
    if (rc == 0 && print)
        rc = mgpu_partition_print(p, stdout);
    if (rc == 0)
        tell_where(p, c);
    mgpu_partition_free(p);
    return rc;
}

static int job(const struct mgpu_partition_command *c)
{
    if (c->list_ops)
        return mgpu_list_operators(c->json, stdout);
    if (c->list_devices)
        return mgpu_list_devices(c->json, stdout);
    if (c->verify)
        return mgpu_verify(c->model, c->verify, &c->options, &c->partition, c->json, stdout);
    return plan(c);
}

static int show_help(const struct mgpu_partition_command *c)
{
    const char *text = *c->help ? mgpu_help(c->help) : NULL;
    if (*c->help && !text) {
        fprintf(stderr, "mgpu-partition: no help on '%s'; topics: loss, optimizer\n", c->help);
        return 2;
    }
    if (text)
        fputs(text, stdout);
    else
        mgpu_partition_help(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct mgpu_partition_command c = {.options = MGPU_OPTIONS};
    mgpu_program_begin();
    mgpu_reexec_passive(argv);
    int rc = mgpu_partition_parse(&c, argc, argv), status = 0;
    if (rc < 0)
        status = fail(rc);
    else if (c.help)
        status = show_help(&c);
    else if (c.version)
        printf("mgpu-partition %s\n", MGPU_VERSION);
    else {
        mgpu_set_warning(warn, NULL);
        if (!c.quiet) {
            mgpu_set_note(note, NULL);
            c.partition.progress = show_progress;
        }
        rc = job(&c);
        if (fflush(stdout) && rc == 0)
            rc = mgpu_fail(MGPU_EIO, "standard output cannot be written");
        if (rc < 0)
            status = fail(rc);
    }
    mgpu_args_free(mgpu_partition_args, &c);
    return status;
}
