#include "partitioner/measure.h"

#include "partitioner/live.h"
#include "partitioner/measure_private.h"
#include "partitioner/signature.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/compile/storage.h"
#include "runtime/graph/step_scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST_STEPS = 3, MOST_STEPS = 32 };

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

struct run {
    const struct mgpu_measure *m;
    struct mgpu_team *team;
    struct mgpu_store_layout *store;
    struct mgpu_graph *graph[MGPU_MAX_RANKS];
    struct mgpu_applied applied[MGPU_MAX_RANKS];
    struct mgpu_program *program[MGPU_MAX_RANKS];
    double *ms; /* of rank 0: MOST_STEPS an instruction */
    int step;   /* -1: not kept */
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
    const struct mgpu_program *p = run->program[rank->rank];
    for (int i = 0; i < run->store->count; i++)
        fill_stored(rank, &run->store->entry[i]);
    for (int i = 0; i < p->inputs; i++) {
        const struct mgpu_port *in = &p->input[i];
        if (mgpu_is_float(in->type))
            fill((char *)rank->buffer[MGPU_BUFFER_INPUTS] + in->offset, in->type,
                 in->bytes / (int64_t)mgpu_dtype_size(in->type), 0, 1);
    }
    double *scalar = rank->buffer[MGPU_BUFFER_SCALARS];
    for (int i = 0; i < MGPU_SCALARS; i++)
        scalar[i] = 1;
    for (int i = MGPU_SCALAR_LOSS; i < MGPU_SCALARS; i++)
        scalar[i] = 1 / (double)p->graph->batch;
    scalar[MGPU_SCALAR_LR_FACTOR] = 0;
    scalar[MGPU_SCALAR_BATCH] = scalar[MGPU_SCALAR_PIECE] = (double)p->graph->batch;
    scalar[MGPU_SCALAR_SAMPLE_BASE] = 0;
}

/* ---- On each rank's thread ------------------------------------------------------------------- */

static int compile_rank(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    struct mgpu_compile_options o = {.backend = &mgpu_backend_cpu,
                                     .store = run->store,
                                     .threads = rank->device.threads,
                                     .exact = run->m->exact};
    struct mgpu_graph *g = run->graph[rank->rank];
    run->graph[rank->rank] = NULL;
    return mgpu_compile(&run->program[rank->rank], g, &run->applied[rank->rank], &o);
}

static int start_rank(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    mgpu_program_bind(run->program[rank->rank], rank->buffer);
    fill_rank(run, rank);
    return 0;
}

static int step_rank(struct mgpu_rank *rank, void *context)
{
    struct run *run = context;
    const struct mgpu_program *p = run->program[rank->rank];
    char text[MGPU_VALUE_TEXT];
    clockid_t clock = clock_of(&rank->device);
    double tick = tick_of(clock), before = read_clock(clock);
    for (int k = 0; k < p->instructions; k++) {
        const struct mgpu_instruction *in = &p->instruction[k];
        MGPU_TRY(mgpu_prefix(in->kernel->run(&in->launch), "%s",
                             mgpu_origin_text(text, &in->node->origin)));
        double now = read_clock(clock);
        if (rank->rank == 0 && run->step >= 0)
            run->ms[k * MOST_STEPS + run->step] = fmax(now - before - tick, 1e-6);
        before = now;
    }
    return 0;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

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

static void tell(const struct mgpu_measure *m, const char *what, double share)
{
    if (m->progress)
        m->progress(m->progress_context, what, share);
}

/* Graphs on every rank, compiled, with memory. */
static int prepare(struct run *run)
{
    struct mgpu_plan *one = mgpu_plan_data(1);
    int64_t bytes[MGPU_BUFFERS];
    int rc = 0;
    for (int r = 0; r < run->m->ranks && rc == 0; r++) {
        rc = run->m->graph(&run->graph[r], run->m->context);
        if (rc == 0)
            rc = mgpu_plan_apply(run->graph[r], one, 0, 1, &run->applied[r]);
        if (rc == 0)
            rc = mgpu_store_add(run->store, run->graph[r]);
    }
    mgpu_plan_free(one);
    MGPU_TRY(rc);
    MGPU_TRY(mgpu_team_run(run->team, compile_rank, run));
    memcpy(bytes, run->store->bytes, sizeof bytes);
    for (int b = 0; b < MGPU_BUFFERS; b++)
        if (run->program[0]->bytes[b] > bytes[b])
            bytes[b] = run->program[0]->bytes[b];
    bytes[MGPU_BUFFER_SCALARS] = MGPU_SCALARS * (int64_t)sizeof(double);
    for (int r = 0; r < run->m->ranks; r++)
        MGPU_TRY(mgpu_rank_allocate(mgpu_team_rank(run->team, r), bytes));
    return mgpu_team_run(run->team, start_rank, run);
}

/* Steps: two to warm up, then as many as the time allows. Gives how many were kept. */
static int run_steps(struct run *run)
{
    double one = 0;
    int steps = LEAST_STEPS;
    run->ms = mgpu_xcalloc((size_t)run->program[0]->instructions * MOST_STEPS + 1, sizeof *run->ms);
    for (int i = -2; i < steps; i++) {
        double start = mgpu_now_ms();
        run->step = i < 0 ? -1 : i;
        MGPU_TRY(mgpu_team_run(run->team, step_rank, run));
        one = mgpu_now_ms() - start;
        if (i == -1 && run->m->seconds * 1e3 / one > LEAST_STEPS)
            steps = (int)fmin(MOST_STEPS, run->m->seconds * 1e3 / one);
        tell(run->m, "steps", (i + 3) / (double)(steps + 2));
    }
    return steps;
}

struct mean {
    const struct mgpu_node *node;
    double sum;
    int count;
};

/* Nodes that are alike get their mean: one finds its operands in the cache, another does not. */
static void keep_times(struct mgpu_profile *profile, struct run *run, int steps)
{
    const struct mgpu_program *p = run->program[0];
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_names *names = mgpu_names_new(arena);
    struct mean *mean = MGPU_NEW_ARRAY(arena, struct mean, p->instructions);
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
        m->sum += mgpu_typical_ms(run->ms + k * MOST_STEPS, steps);
        m->count++;
    }
    for (int i = 0; i < means; i++)
        mgpu_profile_set(profile, run->m->device[0].threads, run->m->ranks, mean[i].node,
                         mean[i].sum / mean[i].count);
    mgpu_arena_free(arena);
}

static int measure_nodes(struct mgpu_profile *profile, struct run *run)
{
    struct mgpu_device_kind kind = {.threads = run->m->device[0].threads, .busy = run->m->ranks};
    bool known;
    MGPU_TRY(knows_all(&known, profile, &kind, run->m));
    if (known)
        return 0;
    MGPU_TRY(prepare(run));
    int steps = run_steps(run);
    MGPU_TRY(steps);
    keep_times(profile, run, steps);
    return 0;
}

static int measure(struct mgpu_profile *profile, struct run *run)
{
    const struct mgpu_measure *m = run->m;
    struct mgpu_profile_ranks ranks = {.threads = m->device[0].threads, .ranks = m->ranks};
    if (!mgpu_profile_ranks(profile, ranks.threads, ranks.ranks)) {
        tell(m, "communication", 0);
        MGPU_TRY(mgpu_measure_ranks(&ranks, run->team));
        mgpu_profile_set_ranks(profile, &ranks);
    }
    return measure_nodes(profile, run);
}

int mgpu_measure(struct mgpu_profile *profile, const struct mgpu_measure *m)
{
    struct run run = {.m = m, .store = mgpu_store_layout_new()};
    int rc = mgpu_team_new(&run.team, m->device, m->ranks, 1);
    if (rc == 0)
        rc = measure(profile, &run);
    for (int r = 0; r < m->ranks; r++) {
        mgpu_graph_free(run.graph[r]);
        mgpu_program_free(run.program[r]);
    }
    free(run.ms);
    mgpu_team_free(run.team);
    mgpu_store_layout_free(run.store);
    return rc;
}
