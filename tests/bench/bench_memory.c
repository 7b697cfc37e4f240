/* What the planner says that a process grows by beside what it does grow by: every model of a
 * folder of cases, on one one-core rank and data parallel on two, with the case's batch.
 *
 *     build/bench_memory FOLDER [CASE...]     from the repository's folder; tests/cases, for
 * example
 *
 * Planning and running are processes of their own. A model that cannot be planned so, or cannot run
 * on made-up data, has no row. The last lines count what is predicted too small, or more than 25 %
 * too large; rows that are have a mark.
 */
#include "partitioner/plan_file.h"
#include "runtime/base/resident.h"
#include "runtime/base/status.h"
#include "runtime/facade/trial.h"

#include <dirent.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
    double counters, predicted, resident; /* bytes: of the ranks as predicted; of the process */
};

struct sums {
    int rows, none, under, over;
    double error;
};

static const char *plan; /* file */
static int64_t before;   /* resident, when the process starts */

/* ---- One process each ------------------------------------------------------------------------ */

static int make_plan(const char *model, const struct mgpu_options *o)
{
    struct mgpu_partition_options none = {0};
    struct mgpu_partition *p;
    MGPU_TRY(mgpu_partition_new(&p, model, o, &none));
    return mgpu_partition_save(p, plan);
}

/* Prints the row's numbers. */
static int run_plan(const char *model, const struct mgpu_options *o)
{
    struct mgpu_trial trial;
    enum { STEPS = 10 };
    double counters = 0;
    MGPU_TRY(mgpu_trial_new(&trial, model, o));
    MGPU_TRY(mgpu_trial_run(&trial, STEPS));
    int64_t resident = mgpu_resident_bytes() - before;
    const struct mgpu_plan_file *file = trial.trainer->plan_file;
    for (int i = 0; i < file->devices; i++)
        counters += (double)file->predicted.memory_bytes[i];
    printf("%.0f %.0f %.0f\n", counters, (double)file->predicted.resident_bytes, (double)resident);
    return 0;
}

/* Sizes that the model leaves open, as its message asks for them, are 16. */
static int with_sizes(int (*job)(const char *model, const struct mgpu_options *o),
                      const char *model, struct mgpu_options *o)
{
    enum { MOST = 4 };
    static char text[MOST][128];
    static const char *dim[MOST + 1];
    static const char ask[] = "give --dim ";
    const char *at;
    int n = 0, rc;
    o->dim = dim;
    while ((rc = job(model, o)) < 0 && n < MOST && (at = strstr(mgpu_error(), ask))) {
        at += strlen(ask);
        snprintf(text[n], sizeof text[n], "%.*s=16", (int)strcspn(at, "="), at);
        dim[n] = text[n];
        n++;
    }
    return rc;
}

/* bench_memory: MODEL BATCH RANKS PLAN plan|run */
static int one_process(char **argv)
{
    struct mgpu_options o = MGPU_OPTIONS;
    bool runs = !strcmp(argv[5], "run"), several = atoi(argv[3]) > 1;
    o.batch = atoll(argv[2]);
    plan = argv[4];
    before = mgpu_resident_bytes();
    if (runs) {
        o.plan = plan;
    } else {
        o.devices = several ? "cpu:0,cpu:1" : "cpu:0";
        o.strategy = several ? "data" : "single";
    }
    int rc = with_sizes(runs ? run_plan : make_plan, argv[1], &o);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", argv[1], mgpu_error());
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* `row` NULL: plans, else runs the plan. */
static bool apart(struct row *row, const char *model, int64_t batch, int ranks)
{
    char command[2048];
    snprintf(command, sizeof command,
             "OMP_WAIT_POLICY=passive exec taskset -c %s build/bench_memory %s %lld %d %s %s",
             ranks == 1 ? "0" : "0,1", model, (long long)batch, ranks, plan, row ? "run" : "plan");
    FILE *from = popen(command, "r");
    bool told = from && (!row || fscanf(from, "%lf %lf %lf", &row->counters, &row->predicted,
                                        &row->resident) == 3);
    return from && pclose(from) == 0 && told;
}

/* ---- The table ------------------------------------------------------------------------------- */

static int64_t batch_of(const char *folder)
{
    char path[1024];
    struct json_object *o, *batch;
    snprintf(path, sizeof path, "%s/case.json", folder);
    o = json_object_from_file(path);
    int64_t n = json_object_object_get_ex(o, "batch", &batch) ? json_object_get_int64(batch) : 0;
    json_object_put(o);
    return n > 0 ? n : 4;
}

static void measure(struct sums *s, const char *folder, const char *name, int ranks)
{
    char model[1024], at[900];
    struct row r = {0};
    snprintf(at, sizeof at, "%s/%s", folder, name);
    snprintf(model, sizeof model, "%s/model.onnx", at);
    int64_t batch = batch_of(at);
    if (access(model, R_OK) < 0)
        return;
    if (!apart(NULL, model, batch, ranks) || !apart(&r, model, batch, ranks)) {
        s->none++;
        return;
    }
    double error = r.predicted / r.resident - 1;
    printf("%-40s %5d %9.2f %9.2f %9.2f %+6.1f %%%s\n", name, ranks, r.counters / 0x1p20,
           r.predicted / 0x1p20, r.resident / 0x1p20, 100 * error,
           error < 0 || error > 0.25 ? " *" : "");
    fflush(stdout);
    s->rows++;
    s->under += error < 0;
    s->over += error > 0.25;
    s->error += error;
}

static int no_dots(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    struct sums s = {0};
    struct dirent **entry = NULL;
    char path[] = "/tmp/mgpu-memory-XXXXXX";
    if (argc == 6 && (!strcmp(argv[5], "plan") || !strcmp(argv[5], "run")))
        return one_process(argv);
    int count = argc > 1 ? scandir(argv[1], &entry, no_dots, alphasort) : -1, file = mkstemp(path);
    plan = path;
    if (count < 0 || file < 0) {
        fputs("bench_memory FOLDER [CASE...]\n", stderr);
        return EXIT_FAILURE;
    }
    close(file);
    printf("%-40s %5s %9s %9s %9s %8s\n", "case", "ranks", "buffers", "predicted", "resident",
           "error");
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int i = 0; i < (argc > 2 ? argc - 2 : count); i++)
            measure(&s, argv[1], argc > 2 ? argv[i + 2] : entry[i]->d_name, ranks);
    for (int i = 0; i < count; i++)
        free(entry[i]);
    free(entry);
    unlink(plan);
    printf("\n%d rows, %d without; mean error %+.1f %%; %d predicted too small, %d more than 25 %% "
           "too large\n",
           s.rows, s.none, s.rows ? 100 * s.error / s.rows : 0, s.under, s.over);
    return EXIT_SUCCESS;
}
