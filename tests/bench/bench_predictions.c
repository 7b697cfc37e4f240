/* What mgpu-partition predicts beside what is measured: steps and memory of six models on one and
 * two one-core ranks, single, stacked, data parallel and branch-wise.
 *
 *     build/bench_predictions [MODEL...]        from the repository's folder, on a quiet machine
 *
 * A plan is made (--measure, which times the operators and then runs the plan) and run at once
 * (--verify), each in a process of its own that is bound to as many cores as the plan has ranks.
 * All strategies of a model take turns in this, ROUNDS times, with the operators' times of the
 * first; each round runs the plan anew for its prediction. The row is the pair whose error is the
 * middle one: the machine's speed changes from minute to minute, for both of a pair alike. A minute
 * or two a model. The last lines say what the table shows: errors of the step times, whether the
 * strategy that is predicted to be the fastest is (by the least times of all rounds), and memory.
 */
#include "tests/bench/models.h"
#include "tests/support/make_onnx.h"

#include <json-c/json.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TEXT = 16 << 10, MODELS = 6, STRATEGIES = 4, ROUNDS = 5 };
static const char *const strategies[STRATEGIES] = {"single", "stacked", "data", "branch"};
static const char *const names[MODELS] = {"fmnist",    "resnet20",    "lstm2",
                                          "inception", "multi-heads", "two-towers"};

struct row {
    bool there;                 /* false: the model has no such plan */
    double predicted, measured; /* ms */
    double least_predicted, least_measured;
    double memory, counters; /* bytes of all ranks */
    double grown, resident;  /* bytes that the process grew by: predicted, measured */
};

struct sums {
    int rows, over;       /* steps; more than 15 % off */
    double error, worst;  /* of the times, as shares */
    int models, first;    /* the fastest is predicted to be, or is within 5 % */
    int under, too_large; /* memory against our counters, and of the process */
};

static char folder[] = "/tmp/mgpu-predictions-XXXXXX";

/* ---- Models ---------------------------------------------------------------------------------- */

struct text {
    char at[MOST_TEXT];
    size_t used;
};

static void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    t->used += (size_t)vsnprintf(t->at + t->used, sizeof t->at - t->used, format, args);
    va_end(args);
}

static void conv(struct text *t, const char *y, const char *x, int in, int out, int size)
{
    add(t, "init w%s float %d %d %d %d = normal 0.1\ninit b%s float %d = 0.01\n", y, out, in, size,
        size, y, out);
    add(t, "c%s = Conv(%s, w%s, b%s) pads=[%d, %d, %d, %d]\n%s = Relu(c%s)\n", y, x, y, y, size / 2,
        size / 2, size / 2, size / 2, y, y);
}

/* Two blocks of four branches. */
static void inception(struct text *t)
{
    add(t, "producer pytorch\ninput x float N 3 32 32\n");
    conv(t, "s", "x", 3, 32, 3);
    for (int i = 0; i < 2; i++) {
        const char *in = i ? "m0" : "s";
        int channels = i ? 96 : 32;
        char y[3][8];
        for (int k = 0; k < 3; k++)
            snprintf(y[k], sizeof y[k], "%c%d", "pqr"[k], i);
        conv(t, y[0], in, channels, 24, 1);
        conv(t, y[1], in, channels, 24, 3);
        conv(t, y[2], in, channels, 24, 5);
        add(t, "a%d = AveragePool(%s) kernel_shape=[3, 3] pads=[1, 1, 1, 1]\n", i, in);
        char pooled[8], last[8];
        snprintf(pooled, sizeof pooled, "a%d", i);
        snprintf(last, sizeof last, "t%d", i);
        conv(t, last, pooled, channels, 24, 1);
        add(t, "m%d = Concat(%s, %s, %s, %s) axis=1\n", i, y[0], y[1], y[2], last);
    }
    add(t, "g = GlobalAveragePool(m1)\nf = Flatten(g)\ninit wf float 96 10 = normal 0.1\n"
           "y = MatMul(f, wf)\noutput y float N 10\n");
}

/* An image and a sequence. */
static void two_towers(struct text *t)
{
    add(t, "producer pytorch\ninput x float N 3 32 32\ninput s float N 64 64\n");
    conv(t, "p", "x", 3, 32, 3);
    add(t, "q = MaxPool(p) kernel_shape=[2, 2] strides=[2, 2]\n");
    conv(t, "r", "q", 32, 64, 3);
    add(t, "g = GlobalAveragePool(r)\nf = Flatten(g)\n"
           "init zero int64 1 = 0\ninit W float 1 256 64 = normal 0.1\n"
           "init R float 1 256 64 = normal 0.1\nu = Transpose(s) perm=[1, 0, 2]\n"
           "-, h = LSTM(u, W, R) hidden_size=64\nl = Squeeze(h, zero)\n"
           "c = Concat(f, l) axis=1\ninit wy float 128 10 = normal 0.1\n"
           "y = MatMul(c, wy)\noutput y float N 10\n");
}

/* The file of a model; its batch. */
static int64_t write_model(char path[256], const char *name)
{
    static struct text t;
    const struct bench_model *known = bench_model_find(name);
    t.used = 0;
    snprintf(path, 256, "%s/%s.onnx", folder, name);
    if (known)
        bench_model_write(known, 1, folder);
    else if (!strcmp(name, "multi-heads"))
        snprintf(path, 256, "tests/cases/torch-multi-head-outputs/model.onnx");
    else if (!strcmp(name, "inception"))
        inception(&t);
    else
        two_towers(&t);
    if (t.used)
        make_onnx_file(path, t.at);
    return !strcmp(name, "inception") ? 16 : !strcmp(name, "resnet20") ? 32 : 64;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* Runs mgpu-partition on so many cores; its stdout goes to `out`. */
static bool run(int cores, const char *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool run(int cores, const char *out, const char *format, ...)
{
    char arguments[1024], command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    snprintf(command, sizeof command,
             "OMP_WAIT_POLICY=passive taskset -c %s build/mgpu-partition %s >%s 2>%s/err",
             cores == 1 ? "0" : "0,1", arguments, out, folder);
    return system(command) == 0;
}

static double number(struct json_object *o, const char *a, const char *b)
{
    struct json_object *v = o;
    if (!json_object_object_get_ex(v, a, &v) || (b && !json_object_object_get_ex(v, b, &v)))
        return 0;
    return json_object_get_double(v);
}

static void read_result(struct row *r, const char *path)
{
    struct json_object *o = json_object_from_file(path), *memory;
    if (!o)
        return;
    r->there = true;
    r->predicted = number(o, "step_ms", "predicted");
    r->measured = number(o, "step_ms", "measured");
    r->grown = number(o, "resident_bytes", "predicted");
    r->resident = number(o, "resident_bytes", "measured");
    if (json_object_object_get_ex(o, "memory_bytes", &memory)) {
        json_object_object_foreach(memory, rank, both)
        {
            (void)rank;
            r->memory += number(both, "predicted", NULL);
            r->counters += number(both, "measured", NULL);
        }
    }
    json_object_put(o);
}

/* Plans that were run are run again, operators are not. */
static void forget_plans(const char *profile)
{
    struct json_object *o = json_object_from_file(profile);
    if (!o)
        return;
    json_object_object_del(o, "plans");
    json_object_to_file(profile, o);
    json_object_put(o);
}

/* One round: predicted, then measured. */
static void measure(struct row *r, const char *model, int64_t batch, int cores, const char *name)
{
    char plan[256], profile[256], out[256];
    snprintf(plan, sizeof plan, "%s/plan.json", folder);
    snprintf(profile, sizeof profile, "%s/profile%d.json", folder, cores);
    snprintf(out, sizeof out, "%s/out", folder);
    const char *devices = cores == 1 ? "cpu:0" : "cpu:0,cpu:1";
    forget_plans(profile);
    if (run(cores, "/dev/null",
            "%s --devices %s --batch %lld --measure --profile %s --strategy %s --plan %s", model,
            devices, (long long)batch, profile, name, plan) &&
        run(cores, out, "%s --verify %s --profile %s --json", model, plan, profile))
        read_result(r, out);
}

/* ---- The table ------------------------------------------------------------------------------- */

static void print_row(const char *model, const char *strategy, int ranks, const struct row *r)
{
    printf("%-12s %-8s %5d %10.3f %10.3f %+7.1f %% %9.2f %9.2f %+6.1f %% %9.1f %8.1f %+6.1f %%\n",
           model, strategy, ranks, r->predicted, r->measured,
           100 * (r->predicted / r->measured - 1), r->memory / 0x1p20, r->counters / 0x1p20,
           100 * (r->memory / r->counters - 1), r->grown / 0x1p20, r->resident / 0x1p20,
           100 * (r->grown / r->resident - 1));
    fflush(stdout);
}

static void add_row(struct sums *s, const struct row *r)
{
    double error = fabs(r->predicted / r->measured - 1);
    s->rows++;
    s->error += error;
    s->over += error > 0.15;
    s->worst = fmax(s->worst, error);
    s->under += (r->memory < r->counters) + (r->grown < r->resident);
    s->too_large += (r->memory > 1.25 * r->counters) + (r->grown > 1.25 * r->resident);
}

static int ranks_of(int strategy)
{
    return strategy < 2 ? 1 : 2;
}

static int by_error(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double ex = x->predicted / x->measured, ey = y->predicted / y->measured;
    return (ex > ey) - (ex < ey);
}

/* The pair in the middle; memory is the same in all. */
static struct row middle(struct row round[ROUNDS])
{
    double predicted = INFINITY, measured = INFINITY;
    for (int k = 0; k < ROUNDS; k++) {
        predicted = fmin(predicted, round[k].predicted);
        measured = fmin(measured, round[k].measured);
    }
    qsort(round, ROUNDS, sizeof *round, by_error);
    struct row row = round[ROUNDS / 2];
    row.least_predicted = predicted;
    row.least_measured = measured;
    return row;
}

/* The rows of a model, one a strategy. */
static void measure_all(struct row *row, const char *path, int64_t batch)
{
    struct row round[STRATEGIES][ROUNDS] = {0};
    char command[256];
    snprintf(command, sizeof command, "rm -f %s/profile*.json", folder);
    if (system(command))
        exit(EXIT_FAILURE);
    for (int k = 0; k < ROUNDS; k++)
        for (int i = 0; i < STRATEGIES; i++)
            if (k == 0 || round[i][k - 1].there)
                measure(&round[i][k], path, batch, ranks_of(i), strategies[i]);
    for (int i = 0; i < STRATEGIES; i++)
        row[i] = round[i][ROUNDS - 1].there ? middle(round[i]) : (struct row){0};
}

static void run_model(struct sums *s, const char *name)
{
    char path[256];
    int64_t batch = write_model(path, name);
    double least = INFINITY, predicted = INFINITY, taken = INFINITY;
    struct row row[STRATEGIES];
    measure_all(row, path, batch);
    for (int i = 0; i < STRATEGIES; i++) {
        if (!row[i].there)
            continue;
        print_row(name, strategies[i], ranks_of(i), &row[i]);
        add_row(s, &row[i]);
        least = fmin(least, row[i].least_measured);
        if (row[i].least_predicted < predicted) {
            predicted = row[i].least_predicted;
            taken = row[i].least_measured;
        }
    }
    s->models++;
    s->first += taken <= 1.05 * least;
}

int main(int argc, char **argv)
{
    struct sums s = {0};
    if (!mkdtemp(folder) || access("build/mgpu-partition", X_OK)) {
        fputs("bench_predictions: run it from the repository's folder, after a build\n", stderr);
        return EXIT_FAILURE;
    }
    printf("%-12s %-8s %5s %10s %10s %9s %9s %9s %8s %9s %8s %8s\n", "model", "strategy", "ranks",
           "predicted", "ms a step", "error", "predicted", "MiB", "error", "predicted", "resident",
           "error");
    for (int i = 0; i < (argc > 1 ? argc - 1 : MODELS); i++)
        run_model(&s, argc > 1 ? argv[i + 1] : names[i]);
    printf("\nsteps: mean error %.1f %%, worst %.1f %%, %d of %d more than 15 %% off\n"
           "the strategy predicted to be the fastest is, or is within 5 %%: %d of %d models\n"
           "memory: %d of %d predicted too small, %d more than 25 %% too large\n",
           100 * s.error / s.rows, 100 * s.worst, s.over, s.rows, s.first, s.models, s.under,
           2 * s.rows, s.too_large);
    char command[256];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) ? EXIT_FAILURE : EXIT_SUCCESS;
}
