/* Measuring what ranks do together. */
#include "partitioner/measure_private.h"
#include "runtime/base/status.h"

#include <math.h>
#include <stdlib.h>

enum { SIZES = 4, REPEATS = 15, LARGEST = 8 << 20 };
static const int64_t sizes[SIZES] = {4 << 10, 128 << 10, 1 << 20, LARGEST};

struct job {
    float *block[MGPU_MAX_RANKS];
    enum mgpu_collective_kind kind;
    int64_t bytes;
    double ms[REPEATS]; /* of rank 0 */
    double checked[MGPU_MAX_RANKS];
};

static int idle(struct mgpu_rank *rank, void *context)
{
    (void)rank;
    (void)context;
    return 0;
}

static int communicate(struct mgpu_rank *rank, void *context)
{
    struct job *job = context;
    atomic_bool done;
    struct mgpu_part part = {job->block[rank->rank], job->bytes / (int64_t)sizeof(float)};
    struct mgpu_collective op = {.kind = job->kind,
                                 .type = MGPU_FLOAT,
                                 .contributes = true,
                                 .parts = 1,
                                 .part = &part,
                                 .outer = 1,
                                 .done = &done};
    bool pair = job->kind == MGPU_COLLECTIVE_SEND;
    if (pair && rank->rank > 1)
        return 0;
    if (pair && rank->rank == 1)
        op.kind = MGPU_COLLECTIVE_RECV;
    op.peer = 1 - rank->rank;
    for (int i = 0; i < REPEATS; i++) {
        double start = mgpu_now_ms();
        MGPU_TRY(mgpu_comm_start(rank->comm[0], &op));
        MGPU_TRY(mgpu_comm_wait(rank->comm[0], &done));
        op.tag++;
        if (rank->rank == 0)
            job->ms[i] = mgpu_now_ms() - start;
    }
    return 0;
}

/* Reads as the executor's check of gradients does. */
static int check(struct mgpu_rank *rank, void *context)
{
    struct job *job = context;
    const float *x = job->block[rank->rank];
    for (int r = 0; r < REPEATS; r++) {
        double start = mgpu_now_ms();
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < LARGEST / (int64_t)sizeof(float); i++)
            sum += 0 * x[i];
        job->checked[rank->rank] = (double)sum;
        if (rank->rank == 0)
            job->ms[r] = mgpu_now_ms() - start;
    }
    return 0;
}

/* ms = base + slope * x by least squares of relative errors; neither is negative. */
static void fit(const double *x, const double *ms, double *base, double *slope)
{
    double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
    for (int i = 0; i < SIZES; i++) {
        double weight = 1 / (ms[i] * ms[i]);
        w += weight;
        wx += weight * x[i];
        wxx += weight * x[i] * x[i];
        wy += weight * ms[i];
        wxy += weight * x[i] * ms[i];
    }
    *slope = fmax((w * wxy - wx * wy) / (w * wxx - wx * wx), 1e-12);
    *base = fmax((wy - *slope * wx) / w, 0);
}

/* factor: bytes that pass the slowest place for each byte of the tensor. */
static int measure_kind(struct job *job, struct mgpu_team *team, enum mgpu_collective_kind kind,
                        double factor, double *base_ms, double *gb_s)
{
    double x[SIZES], ms[SIZES], slope;
    job->kind = kind;
    for (int i = 0; i < SIZES; i++) {
        job->bytes = sizes[i];
        MGPU_TRY(mgpu_team_run(team, communicate, job));
        x[i] = factor * (double)sizes[i];
        ms[i] = mgpu_typical_ms(job->ms, REPEATS);
    }
    fit(x, ms, base_ms, &slope);
    *gb_s = 1 / (slope * 1e6);
    return 0;
}

static int measure_all(struct mgpu_profile_ranks *out, struct job *job, struct mgpu_team *team)
{
    double n = mgpu_team_size(team);
    for (int r = 0; r < mgpu_team_size(team); r++)
        MGPU_TRY(mgpu_alloc((void **)&job->block[r], LARGEST, "a block to communicate"));
    for (int i = 0; i < REPEATS; i++) {
        double start = mgpu_now_ms();
        MGPU_TRY(mgpu_team_run(team, idle, NULL));
        job->ms[i] = mgpu_now_ms() - start;
    }
    out->step_ms = mgpu_typical_ms(job->ms, REPEATS);
    MGPU_TRY(mgpu_team_run(team, check, job));
    out->check_gb_s = LARGEST / (mgpu_typical_ms(job->ms, REPEATS) * 1e6);
    if (n < 2)
        return 0;
    MGPU_TRY(measure_kind(job, team, MGPU_COLLECTIVE_ALL_REDUCE, 2 * (n - 1) / n,
                          &out->all_reduce_ms, &out->all_reduce_gb_s));
    return measure_kind(job, team, MGPU_COLLECTIVE_SEND, 1, &out->copy_ms, &out->copy_gb_s);
}

int mgpu_measure_ranks(struct mgpu_profile_ranks *out, struct mgpu_team *team)
{
    struct job *job = mgpu_xcalloc(1, sizeof *job);
    int rc = measure_all(out, job, team);
    for (int r = 0; r < mgpu_team_size(team); r++)
        mgpu_free(job->block[r]);
    free(job);
    return rc;
}
