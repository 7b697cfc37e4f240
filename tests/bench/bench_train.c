/* Times training steps of one of the networks of models.h, in this process. `./dev bench` runs it.
 *
 *     OMP_WAIT_POLICY=passive build/bench_train MODEL [OPTION=VALUE...]
 *     build/bench_train machine threads=2        sgemm and memory bandwidth of this machine
 *     build/bench_train write MODEL FOLDER [batch=N]     only the files
 *     build/bench_train lines COMMAND...         steps of another program: a line of its output
 * each
 *
 *     threads=2  devices=cpu:0  batch=  seconds=20 (of timed steps)  steps=1000 (at most)
 *     precision=f32  profile=TRACE.json  exact=1  who=mgpu (a name for the line)
 *
 * Prints one line of NAME=VALUE words: ms of a step (least and median), memory in MiB (of our
 * allocators; resident, above what was resident before the model was read), seconds from the file
 * to the first step, Gflop and GB of a step by the operators' own count, its instructions and those
 * of them that only move activations to another layout, the arena and its lower bound, and the
 * operators that take most.
 */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/ops/reorder.h"
#include "tests/bench/models.h"
#include "tests/cuda/double.h"

#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_STEPS = 1000, SLOWEST = 5 };

struct settings {
    const char *devices, *precision, *profile, *who;
    int threads;
    int64_t batch, steps;
    double seconds;
    bool exact;
};

static void must(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_train: %s\n", mgpu_error());
    exit(EXIT_FAILURE);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double resident_mib(void)
{
    long all, here = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &all, &here) != 2)
        here = 0;
    if (f)
        fclose(f);
    return (double)here * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Sorts; prints the least and the median. */
static void print_times(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
    printf(" ms=%.3f median=%.3f steps=%d", 1e3 * seconds[0], 1e3 * seconds[count / 2], count);
}

/* ---- The operators that take most ------------------------------------------------------------ */

struct share {
    const char *name;
    bool backward;
    double seconds;
};

static int longer_first(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    return x->seconds > y->seconds ? -1 : x->seconds < y->seconds;
}

static int add_instruction(struct share *list, int count, const struct mgpu_instruction *in,
                           double seconds)
{
    int i = 0;
    bool backward = in->node->origin.role == MGPU_BACKWARD;
    while (i < count && (strcmp(list[i].name, in->node->op->name) || list[i].backward != backward))
        i++;
    list[i].name = in->node->op->name;
    list[i].backward = backward;
    list[i].seconds += seconds;
    return i < count ? count : count + 1;
}

static void print_slowest(const struct mgpu_program *p)
{
    struct share *list = mgpu_xcalloc((size_t)p->instructions + 1, sizeof *list);
    double all = 0;
    int count = 0;
    for (int k = 0; k < p->instructions; k++) {
        count = add_instruction(list, count, &p->instruction[k], p->seconds[k]);
        all += p->seconds[k];
    }
    qsort(list, (size_t)count, sizeof *list, longer_first);
    fputs(" slowest=", stdout);
    for (int i = 0; i < count && i < SLOWEST; i++)
        printf("%s%s%s:%.0f%%", i ? "," : "", list[i].name,
               list[i].backward && !strstr(list[i].name, "grad") ? "_backward" : "",
               100 * list[i].seconds / all);
    free(list);
}

/* ---- Training -------------------------------------------------------------------------------- */

static struct mgpu_program *program_of(const struct mgpu_trainer *t, int rank)
{
    for (int i = 0; i < t->compiled_count; i++)
        if (t->compiled[i].mode == MGPU_MODE_TRAIN && t->compiled[i].program[rank])
            return t->compiled[i].program[rank];
    return NULL;
}

static double step(struct mgpu_trainer *t)
{
    struct mgpu_step_result r;
    double start = now();
    int rc = mgpu_step(t, &r);
    must(rc);
    if (rc == 0 || !isfinite(r.loss)) {
        fprintf(stderr, "bench_train: no step was done, or its loss is not finite\n");
        exit(EXIT_FAILURE);
    }
    return now() - start;
}

static void print_work(const struct mgpu_trainer *t)
{
    double flops = 0, bytes = 0;
    int reorders = 0;
    for (int r = 0; r < mgpu_team_size(t->team); r++) {
        const struct mgpu_program *p = program_of(t, r);
        for (int k = 0; p && k < p->instructions; k++) {
            const struct mgpu_node *node = p->instruction[k].node;
            struct mgpu_cost cost = node->op->cost(node);
            flops += cost.flops;
            bytes += cost.bytes;
        }
    }
    const struct mgpu_program *p = program_of(t, 0);
    for (int k = 0; k < p->instructions; k++)
        reorders += p->instruction[k].node->op == &mgpu_op_reorder;
    printf(" gflop=%.3f gb=%.3f instructions=%d reorders=%d arena=%.1f bound=%.1f", 1e-9 * flops,
           1e-9 * bytes, p->instructions, reorders, (double)p->bytes[MGPU_BUFFER_ARENA] / (1 << 20),
           (double)p->arena_lower_bound / (1 << 20));
}

static void time_steps(struct mgpu_trainer *t, const struct settings *s)
{
    double seconds[MOST_STEPS], start;
    int count = 0;
    step(t); /* the first two touch memory */
    step(t);
    start = now();
    while (count < s->steps && count < MOST_STEPS && (count < 3 || now() - start < s->seconds))
        seconds[count++] = step(t);
    print_times(seconds, count);
}

static void profile(struct mgpu_trainer *t, const struct settings *s)
{
    mgpu_profile_begin(t);
    for (int r = 0; r < mgpu_team_size(t->team); r++)
        program_of(t, r)->timed = 0;
    for (int i = 0; i < 3; i++)
        step(t);
    print_slowest(program_of(t, 0));
    if (s->profile)
        must(mgpu_trainer_profile(t, s->profile));
}

static void set_options(struct mgpu_options *o, const struct bench_model *m,
                        const struct settings *s, const char *folder, char text[][1000])
{
    static const char *data[4], *loss[] = {"cross_entropy", NULL};
    for (int i = 0; i < m->inputs; i++) {
        snprintf(text[i], 1000, "%s=%s/%s.%s.npy", m->input[i].name, folder, m->name,
                 m->input[i].name);
        data[i] = text[i];
    }
    o->data = data;
    o->loss = loss;
    o->optimizer = m->optimizer;
    o->batch = s->batch;
    o->threads = s->threads;
    o->devices = s->devices;
    o->precision = s->precision;
    o->steps = MOST_STEPS + 10;
    o->exact = s->exact;
}

static void train(const struct bench_model *m, const struct settings *s, const char *folder)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_facts facts;
    struct rusage usage;
    char path[1000], text[4][1000];
    double before = resident_mib(), start = now();
    snprintf(path, sizeof path, "%s/%s.onnx", folder, m->name);
    set_options(&o, m, s, folder, text);
    must(mgpu_trainer_new(&t, path, &o));
    printf("model=%s who=%s batch=%lld threads=%d devices=%s precision=%s", m->name, s->who,
           (long long)s->batch, s->threads, s->devices, s->precision);
    double ready = now() - start;
    time_steps(t, s);
    getrusage(RUSAGE_SELF, &usage);
    mgpu_trainer_facts(t, &facts);
    printf(" load=%.2f ours=%.1f resident=%.1f", ready, (double)facts.peak_memory_bytes / (1 << 20),
           (double)usage.ru_maxrss / 1024 - before);
    print_work(t);
    fflush(stdout); /* what follows may end the program */
    profile(t, s);
    putchar('\n');
    mgpu_trainer_free(t);
}

/* The files come from a child, so that its memory is not ours. */
static void write_files(const struct bench_model *m, int64_t batch, const char *folder)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bench_model_write(m, batch, folder);
        _exit(EXIT_SUCCESS);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "bench_train: cannot write %s to %s\n", m->name, folder);
        exit(EXIT_FAILURE);
    }
}

static void remove_files(const struct bench_model *m, const char *folder)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/%s.onnx", folder, m->name);
    unlink(path);
    for (int i = 0; i < m->inputs; i++) {
        snprintf(path, sizeof path, "%s/%s.%s.npy", folder, m->name, m->input[i].name);
        unlink(path);
    }
    rmdir(folder);
}

/* ---- The machine ----------------------------------------------------------------------------- */

static double sgemm_gflops(void)
{
    enum { N = 2048 };
    float *a = mgpu_xcalloc(3 * N * N, sizeof *a);
    double best = INFINITY;
    for (int i = 0; i < 3 * N * N; i++)
        a[i] = (float)(i % 7);
    for (int i = 0; i < 8; i++) {
        double start = now();
        dnnl_sgemm('N', 'N', N, N, N, 1, a, N, a + N * N, N, 0, a + 2 * N * N, N);
        best = fmin(best, now() - start);
    }
    free(a);
    return 2e-9 * N * N * (double)N / best;
}

/* a[i] = b[i] + 3 c[i]: three passes, counted as the STREAM benchmark's triad counts them. */
static double triad_gb(void)
{
    enum { N = 1 << 24 };
    float *a = mgpu_xcalloc((size_t)3 * N, sizeof *a), *b = a + N, *c = b + N;
    double best = INFINITY;
    for (int i = 0; i < 12; i++) {
        double start = now();
#pragma omp parallel for simd schedule(static)
        for (int k = 0; k < N; k++)
            a[k] = b[k] + 3 * c[k];
        best = fmin(best, now() - start);
    }
    free(a);
    return 12e-9 * N / best;
}

static void machine(int threads)
{
    omp_set_num_threads(threads);
    printf("model=machine who=mgpu threads=%d sgemm=%.1f triad=%.2f\n", threads, sgemm_gflops(),
           triad_gb());
}

/* ---- Another program ------------------------------------------------------------------------- */

/* Time between the lines "step ..." that a program prints. */
static void time_lines(char **command)
{
    int ends[2];
    char line[4096];
    double seconds[MOST_STEPS], last = 0;
    int count = 0, seen = 0;
    if (pipe(ends))
        exit(EXIT_FAILURE);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execvp(*command, command);
        _exit(127);
    }
    close(ends[1]);
    FILE *from = fdopen(ends[0], "r");
    while (from && fgets(line, sizeof line, from)) {
        double t = now();
        if (!strncmp(line, "step ", 5) && ++seen > 2 && count < MOST_STEPS)
            seconds[count++] = t - last;
        last = t;
    }
    struct rusage usage;
    int status;
    if (wait4(child, &status, 0, &usage) != child || status || !count)
        exit(EXIT_FAILURE);
    print_times(seconds, count);
    printf(" resident=%.1f\n", (double)usage.ru_maxrss / 1024);
}

/* ---- The command line ------------------------------------------------------------------------ */

static const char *option(const char *argument, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(argument, name, n) && argument[n] == '=' ? argument + n + 1 : NULL;
}

static void read_option(struct settings *s, const char *argument)
{
    const char *v;
    if ((v = option(argument, "threads")))
        s->threads = atoi(v);
    else if ((v = option(argument, "devices")))
        s->devices = v;
    else if ((v = option(argument, "precision")))
        s->precision = v;
    else if ((v = option(argument, "profile")))
        s->profile = v;
    else if ((v = option(argument, "who")))
        s->who = v;
    else if ((v = option(argument, "batch")))
        s->batch = atoll(v);
    else if ((v = option(argument, "steps")))
        s->steps = atoll(v);
    else if ((v = option(argument, "seconds")))
        s->seconds = atof(v);
    else if ((v = option(argument, "exact")))
        s->exact = atoi(v);
    else {
        fprintf(stderr, "bench_train: what is '%s'?\n", argument);
        exit(2);
    }
}

static int bench(const struct bench_model *m, int argc, char **argv)
{
    struct settings s = {.who = "mgpu",
                         .devices = "cpu:0",
                         .precision = "f32",
                         .threads = 2,
                         .batch = m->batch,
                         .steps = MOST_STEPS,
                         .seconds = 20};
    char folder[] = "/tmp/mgpu-bench-XXXXXX";
    for (int i = 2; i < argc; i++)
        read_option(&s, argv[i]);
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    write_files(m, s.batch, folder);
    train(m, &s, folder);
    remove_files(m, folder);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    double_wanted();
    const struct bench_model *m =
        bench_model_find(strcmp(what, "write") || argc < 4 ? what : argv[2]);
    if (!strcmp(what, "lines") && argc > 2)
        time_lines(argv + 2);
    else if (!strcmp(what, "machine"))
        machine(argc > 2 && option(argv[2], "threads") ? atoi(option(argv[2], "threads")) : 2);
    else if (!strcmp(what, "write") && m) {
        const char *batch = argc > 4 ? option(argv[4], "batch") : NULL;
        write_files(m, batch ? atoll(batch) : m->batch, argv[3]);
    } else if (m)
        return bench(m, argc, argv);
    else {
        fprintf(stderr, "usage: bench_train MODEL [OPTION=VALUE...], models:");
        for (m = bench_models; m->name; m++)
            fprintf(stderr, " %s", m->name);
        fputc('\n', stderr);
        return 2;
    }
    return EXIT_SUCCESS;
}
