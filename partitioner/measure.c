#include "partitioner/measure.h"

#include "partitioner/live.h"
#include "partitioner/measure_private.h"
#include "partitioner/signature.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/compile/storage.h"
#include "runtime/executor/executor.h"
#include "runtime/graph/step_scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST_STEPS = 3, MOST_STEPS = 500 };

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

double mgpu_now_ms(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

/* A thread's own time does not run while the machine does something else. */
static clockid_t clock_of(const struct mgpu_rank_device *device)
{
    return device->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
}

/* What reading the clock takes. */
static double tick_of(clockid_t clock)
{
    enum { READS = 500 };
    double start = read_clock(clock);
    for (int i = 1; i < READS; i++)
        read_clock(clock);
    return (read_clock(clock) - start) / READS;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

double mgpu_typical_ms(double *ms, int count)
{
    qsort(ms, (size_t)count, sizeof *ms, by_value);
    return ms[count / 4];
}

/* What a rank runs: the whole graph by itself, or its part of a data parallel step. */
enum { ALONE, TOGETHER, KINDS };

struct run {
    const struct mgpu_measure *m;
    struct mgpu_team *team;
    struct mgpu_store_layout *store;
    int kind; /* that is being prepared */
    struct mgpu_graph *graph[MGPU_MAX_RANKS];
    struct mgpu_applied applied[MGPU_MAX_RANKS];
    struct mgpu_program *program[KINDS][MGPU_MAX_RANKS];
    double scalars[MGPU_SCALARS];
    atomic_bool stop, pause; /* of the others, and how many do pause */
    atomic_int pausing;
    int step;                          /* -1: not kept */
    double *node_ms;                   /* of rank 0: MOST_STEPS an instruction */
    double *quiet_ms;                  /* the same while the others pause */
    double step_ms[KINDS][MOST_STEPS]; /* of whole steps, without clocks inside */
};

/* ---- Contents ---------------------------------------------------------------------------------
 * Times hardly depend on values, but for numbers too small to be normal: weights start as training
 * starts them, and no update moves them. */

static double noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 23) - 1;
}

static void fill(void *data, enum mgpu_dtype type, int64_t count, double middle, double width)
{
    uint32_t seed = 1;
    for (int64_t i = 0; i < count; i++)
        mgpu_set_double(data, type, i, middle + width * noise(&seed));
}

static void fill_stored(const struct mgpu_rank *rank, const struct mgpu_stored *e)
{
    char *at = (char *)rank->buffer[e->buffer] + e->offset;
    int64_t count = e->bytes / (int64_t)mgpu_dtype_size(e->type);
    if (!mgpu_is_float(e->type) || e->role == MGPU_STATE)
        return;
    if (e->rank < 2 || e->role == MGPU_STATISTIC)
        fill(at, e->type, count, 1, 0.1);
    else
        fill(at, e->type, count, 0, sqrt(3 * (double)e->dims[0] / (double)count));
}

static void fill_rank(struct run *run, struct mgpu_rank *rank)
{
    const struct mgpu_program *p = run->program[ALONE][rank->rank];
    for (int i = 0; i < run->store->count; i++)
        fill_stored(rank, &run->store->entry[i]);
    for (int i = 0; i < p->inputs; i++) {
        const struct mgpu_port *in = &p->input[i];
        if (mgpu_is_float(in->type))
            fill((char *)rank->buffer[MGPU_BUFFER_INPUTS] + in->offset, in->type,
                 in->bytes / (int64_t)mgpu_dtype_size(in->type), 0, 1);
    }
}

static void set_scalars(struct run *run)
{
    double *scalar = run->scalars, batch = (double)run->program[ALONE][0]->graph->batch;
    for (int i = 0; i < MGPU_SCALARS; i++)
        scalar[i] = i < MGPU_SCALAR_LOSS ? 1 : 1 / batch;
    scalar[MGPU_SCALAR_LR_FACTOR] = 0;
    scalar[MGPU_SCALAR_BATCH] = scalar[MGPU_SCALAR_PIECE] = batch;
    scalar[MGPU_SCALAR_SAMPLE_BASE] = 0;
}

/* ---- Preparing ------------------------------------------------------------------------------- */

static int compile_rank(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    struct mgpu_compile_options o = {.backend = &mgpu_backend_cpu,
                                     .store = run->store,
                                     .threads = rank->device.threads,
                                     .exact = run->m->exact};
    struct mgpu_graph *g = run->graph[rank->rank];
    run->graph[rank->rank] = NULL;
    return mgpu_compile(&run->program[run->kind][rank->rank], g, &run->applied[rank->rank], &o);
}

static int compile_all(struct run *run, int kind)
{
    struct mgpu_plan *plan = mgpu_plan_data(kind == TOGETHER ? run->m->ranks : 1);
    int rc = 0;
    for (int r = 0; r < run->m->ranks && rc == 0; r++) {
        rc = run->m->graph(&run->graph[r], run->m->context);
        if (rc == 0)
            rc =
                mgpu_plan_apply(run->graph[r], plan, kind == TOGETHER ? r : 0, 1, &run->applied[r]);
        if (rc == 0)
            rc = mgpu_store_add(run->store, run->graph[r]);
    }
    mgpu_plan_free(plan);
    run->kind = kind;
    return rc < 0 ? rc : mgpu_team_run(run->team, compile_rank, run);
}

static int bind_rank(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    for (int k = 0; k < KINDS; k++)
        if (run->program[k][rank->rank])
            mgpu_program_bind(run->program[k][rank->rank], rank->buffer);
    memcpy(rank->buffer[MGPU_BUFFER_SCALARS], run->scalars, sizeof run->scalars);
    fill_rank(run, rank);
    return 0;
}

/* Programs for every rank, with memory. */
static int prepare(struct run *run)
{
    int64_t bytes[MGPU_BUFFERS];
    MGPU_TRY(compile_all(run, ALONE));
    if (run->m->together)
        MGPU_TRY(compile_all(run, TOGETHER));
    set_scalars(run);
    memcpy(bytes, run->store->bytes, sizeof bytes);
    for (int k = 0; k < KINDS; k++)
        for (int b = 0; b < MGPU_BUFFERS && run->program[k][0]; b++)
            if (run->program[k][0]->bytes[b] > bytes[b])
                bytes[b] = run->program[k][0]->bytes[b];
    bytes[MGPU_BUFFER_SCALARS] = MGPU_SCALARS * (int64_t)sizeof(double);
    for (int r = 0; r < run->m->ranks; r++)
        MGPU_TRY(mgpu_rank_allocate(mgpu_team_rank(run->team, r), bytes));
    size_t times = (size_t)run->program[ALONE][0]->instructions * MOST_STEPS + 1;
    run->node_ms = mgpu_xcalloc(times, sizeof *run->node_ms);
    run->quiet_ms = mgpu_xcalloc(times, sizeof *run->quiet_ms);
    return mgpu_team_run(run->team, bind_rank, run);
}

/* ---- On each rank's thread ------------------------------------------------------------------- */

/* A step with a clock around each instruction. */
static int clocked_step(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    const struct mgpu_program *p = run->program[ALONE][rank->rank];
    char text[MGPU_VALUE_TEXT];
    double *ms = atomic_load(&run->pause) ? run->quiet_ms : run->node_ms;
    clockid_t clock = clock_of(&rank->device);
    double tick = tick_of(clock), before = read_clock(clock);
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        MGPU_TRY(mgpu_prefix(in->kernel->run(&in->launch), "%s",
                             mgpu_origin_text(text, &in->node->origin)));
        double now = read_clock(clock);
        if (rank->rank == 0 && run->step >= 0)
            ms[k * MOST_STEPS + run->step] = fmax(now - before - tick, 1e-6);
        before = now;
    }
    return 0;
}

static int execute(struct run *run, struct mgpu_rank *rank, int kind)
{
    struct mgpu_execution e = {.last_piece = true, .contributes = true, .scalars = run->scalars};
    return mgpu_execute(run->program[kind][rank->rank], rank->comm, rank->buffer, &e);
}

static int alone_step(struct mgpu_rank *rank, void *context)
{
    return execute(context, rank, ALONE);
}

static int together_step(struct mgpu_rank *rank, void *context)
{
    return execute(context, rank, TOGETHER);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void tell(const struct mgpu_measure *m, const char *what, double share)
{
    if (m->progress)
        m->progress(m->progress_context, what, share);
}

/* Two rounds to warm up, then as many as the time allows. Gives how many were kept. */
static int run_rounds(struct run *run, int (*round)(struct run *run, struct mgpu_rank *rank),
                      struct mgpu_rank *rank)
{
    int steps = LEAST_STEPS;
    for (int i = -2; i < steps; i++) {
        double start = mgpu_now_ms();
        run->step = i < 0 ? -1 : i;
        MGPU_TRY(round(run, rank));
        double fits = run->m->seconds * 1e3 / (mgpu_now_ms() - start);
        if (i == -1 && fits > LEAST_STEPS)
            steps = (int)fmin(MOST_STEPS, fits);
        tell(run->m, "steps", (i + 3) / (double)(steps + 2));
    }
    return steps;
}

static void keep_step(struct run *run, int kind, double start)
{
    if (run->step >= 0)
        run->step_ms[kind][run->step] = mgpu_now_ms() - start;
}

static void sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)(fmod(ms, 1e3) * 1e6)};
    nanosleep(&t, NULL);
}

/* Lets the others pause, or go on; then they are at any place of their step. */
static void pause_others(struct run *run, bool pause)
{
    static const double POLL_MS = 0.02, GOLDEN = 0.618034;
    double whole, step = run->step > 0 ? run->step_ms[ALONE][run->step - 1] : 0;
    atomic_store(&run->pause, pause);
    while (atomic_load(&run->pausing) != (pause ? run->m->ranks - 1 : 0) &&
           !atomic_load(&run->stop))
        sleep_ms(POLL_MS);
    if (!pause)
        sleep_ms(step * modf(GOLDEN * run->step, &whole));
}

/* Rank 0's round, at its own pace: beside the others, and its nodes without them too. */
static int own_round(struct run *run, struct mgpu_rank *rank)
{
    if (run->m->ranks > 1) {
        pause_others(run, true);
        MGPU_TRY(clocked_step(rank, run));
        pause_others(run, false);
    }
    double start = mgpu_now_ms();
    MGPU_TRY(alone_step(rank, run));
    keep_step(run, ALONE, start);
    return clocked_step(rank, run);
}

static int other_step(struct mgpu_rank *rank, struct run *run)
{
    if (!atomic_load(&run->pause))
        return alone_step(rank, run);
    atomic_fetch_add(&run->pausing, 1);
    while (atomic_load(&run->pause) && !atomic_load(&run->stop))
        sleep_ms(0.02);
    atomic_fetch_sub(&run->pausing, 1);
    return 0;
}

/* Branches: what the others do meanwhile is something else. They run the same steps, but nobody
 * waits for anybody. */
static int own_pace(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    if (rank->rank == 0) {
        int steps = run_rounds(run, own_round, rank);
        atomic_store(&run->stop, true);
        run->step = steps;
        return steps < 0 ? steps : 0;
    }
    int rc = 0;
    while (rc == 0 && !atomic_load(&run->stop))
        rc = other_step(rank, run);
    atomic_store(&run->stop, true);
    return rc;
}

/* Parts of one batch: all ranks do the same at the same time; without communication, and with it.
 */
static int common_round(struct run *run, struct mgpu_rank *unused)
{
    static const mgpu_job job[KINDS] = {alone_step, together_step};
    (void)unused;
    for (int k = 0; k < KINDS; k++) {
        double start = mgpu_now_ms();
        MGPU_TRY(mgpu_team_run(run->team, job[k], run));
        keep_step(run, k, start);
    }
    return mgpu_team_run(run->team, clocked_step, run);
}

static int run_steps(struct run *run)
{
    if (run->m->together)
        return run_rounds(run, common_round, NULL);
    MGPU_TRY(mgpu_team_run(run->team, own_pace, run));
    return run->step;
}

/* ---- What they tell -------------------------------------------------------------------------- */

struct mean {
    const struct mgpu_node *node;
    double sum, quiet; /* quiet: while the others paused; 0: they did not */
    int count;
};

/* What a node takes of a step: all of them together take `whole`, so what is between them and the
 * wait for the slowest rank is in it. Where the others paused in between, it is so much more than
 * alone as it was then: what else the machine does changes from minute to minute. */
static double time_of(const struct mgpu_profile *profile, const struct run *run,
                      const struct mean *m, double whole)
{
    struct mgpu_device_kind kind = {.threads = run->m->device[0].threads, .busy = 1};
    double alone = m->quiet > 0 ? mgpu_profile_ms(profile, &kind, m->node) : -1;
    return alone >= 0 ? alone * m->sum / m->quiet : whole * m->sum / m->count;
}

/* Nodes that are alike get their mean: one finds its operands in the cache, another does not. */
static void keep_times(struct mgpu_profile *profile, struct run *run, int steps, double whole)
{
    const struct mgpu_program *p = run->program[ALONE][0];
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_names *names = mgpu_names_new(arena);
    struct mean *mean = MGPU_NEW_ARRAY(arena, struct mean, p->instructions);
    double all = 0;
    int means = 0;
    for (int k = 0; k < p->instructions; k++) {
        char text[MGPU_SIGNATURE_TEXT];
        mgpu_node_signature(text, p->instruction[k].node);
        struct mean *m = mgpu_names_get(names, text);
        if (!m) {
            m = &mean[means++];
            m->node = p->instruction[k].node;
            mgpu_names_set(names, mgpu_arena_string(arena, text), m);
        }
        double ms = mgpu_typical_ms(run->node_ms + k * MOST_STEPS, steps);
        m->sum += ms;
        m->quiet += mgpu_typical_ms(run->quiet_ms + k * MOST_STEPS, steps);
        m->count++;
        all += ms;
    }
    for (int i = 0; i < means; i++)
        mgpu_profile_set(profile, run->m->device[0].threads, run->m->ranks, mean[i].node,
                         time_of(profile, run, &mean[i], whole / all));
    mgpu_arena_free(arena);
}

/* What a sum takes beside its bytes, in a step: there the threads that communicate have slept, and
 * the ranks do not come at the same time. They meet twice, for a copy once. In a long step it is
 * little, and cannot be told from the step's own differences. */
static void settle_sums(struct mgpu_profile_ranks *ranks, struct run *run, int steps)
{
    static const double LEAST_MS = 0.01, MOST_MS = 1, LONG_MS = 20;
    const struct mgpu_program *p = run->program[TOGETHER][0];
    double more[MOST_STEPS], n = run->m->ranks, bytes = 0;
    int sums = 0;
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        sums += in->queue == MGPU_QUEUE_COMMUNICATION;
        for (int i = 0; i < in->inputs && in->queue == MGPU_QUEUE_COMMUNICATION; i++)
            bytes += (double)in->operand[i].bytes;
    }
    for (int i = 0; i < steps; i++)
        more[i] = run->step_ms[TOGETHER][i] - run->step_ms[ALONE][i];
    qsort(more, (size_t)steps, sizeof *more, by_value);
    double moving = 2 * (n - 1) / n * bytes / (ranks->all_reduce_gb_s * 1e6);
    if (!sums || run->step_ms[ALONE][0] > LONG_MS)
        return;
    ranks->all_reduce_ms = fmin(fmax((more[steps / 2] - moving) / sums, LEAST_MS), MOST_MS);
    ranks->copy_ms = fmax(ranks->copy_ms, ranks->all_reduce_ms / 2);
}

static int measure_steps(struct mgpu_profile *profile, struct run *run,
                         struct mgpu_profile_ranks *ranks)
{
    MGPU_TRY(prepare(run));
    int steps = run_steps(run);
    MGPU_TRY(steps);
    if (run->m->together)
        settle_sums(ranks, run, steps);
    mgpu_profile_set_ranks(profile, ranks);
    double whole = mgpu_typical_ms(run->step_ms[ALONE], steps);
    if (run->m->together)
        whole = fmax(whole - ranks->step_ms, 1e-3);
    keep_times(profile, run, steps, whole);
    return 0;
}

/* Whether it has the time of every node that a step would run. */
static int knows_all(bool *all, const struct mgpu_profile *profile,
                     const struct mgpu_device_kind *kind, const struct mgpu_measure *m)
{
    struct mgpu_graph *g;
    MGPU_TRY(m->graph(&g, m->context));
    int rc = mgpu_optimize(g, &mgpu_backend_cpu);
    bool *live = mgpu_xcalloc((size_t)g->node_count + 1, sizeof *live);
    mgpu_find_live(g, live);
    *all = true;
    for (int i = 0; i < g->node_count && *all; i++)
        *all = !live[i] || mgpu_is_view(g->nodes[i]) ||
               mgpu_profile_ms(profile, kind, g->nodes[i]) >= 0;
    free(live);
    mgpu_graph_free(g);
    return rc;
}

static int measure(struct mgpu_profile *profile, struct run *run)
{
    const struct mgpu_measure *m = run->m;
    struct mgpu_profile_ranks ranks = {.threads = m->device[0].threads, .ranks = m->ranks};
    struct mgpu_device_kind kind = {.threads = ranks.threads, .busy = ranks.ranks};
    const struct mgpu_profile_ranks *there = mgpu_profile_ranks(profile, ranks.threads, m->ranks);
    bool known;
    if (there) {
        ranks = *there;
    } else {
        tell(m, "communication", 0);
        MGPU_TRY(mgpu_measure_ranks(&ranks, run->team));
        mgpu_profile_set_ranks(profile, &ranks);
    }
    MGPU_TRY(knows_all(&known, profile, &kind, m));
    return known ? 0 : measure_steps(profile, run, &ranks);
}

static void free_run(struct run *run)
{
    for (int r = 0; r < run->m->ranks; r++) {
        mgpu_graph_free(run->graph[r]);
        for (int k = 0; k < KINDS; k++)
            mgpu_program_free(run->program[k][r]);
    }
    free(run->node_ms);
    free(run->quiet_ms);
    mgpu_team_free(run->team);
    mgpu_store_layout_free(run->store);
}

int mgpu_measure(struct mgpu_profile *profile, const struct mgpu_measure *m)
{
    struct run run = {.m = m, .store = mgpu_store_layout_new()};
    int rc = mgpu_team_new(&run.team, m->device, m->ranks, 1);
    if (rc == 0)
        rc = measure(profile, &run);
    free_run(&run);
    return rc;
}
