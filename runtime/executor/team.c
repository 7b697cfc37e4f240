#include "runtime/executor/team.h"

#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/executor/executor.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct worker {
    struct mgpu_rank rank;
    struct mgpu_team *team;
    pthread_t thread;
    bool started;
    int rc;
    char text[4096];
};

struct mgpu_team {
    int size;
    struct worker *worker;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t jobs; /* given so far */
    int running;
    bool stop;
    mgpu_job job;
    void *context;
    int first_failed;        /* rank, -1: none */
    struct mgpu_comm **comm; /* of all ranks */
};

static void bind_to_cores(const struct mgpu_rank_device *device)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < device->cores; i++)
        CPU_SET(device->core[i], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* a hint: failing is no error */
}

static void finish(struct worker *w, int rc)
{
    struct mgpu_team *team = w->team;
    w->rc = rc;
    if (rc < 0) {
        snprintf(w->text, sizeof w->text, "%s", mgpu_error());
        if (team->first_failed < 0)
            team->first_failed = w->rank.rank;
        for (int g = 0; g <= w->rank.places; g++)
            if (w->rank.comm[g])
                mgpu_comm_abort(w->rank.comm[g], w->text);
        if (w->rank.engine->ops->abort)
            w->rank.engine->ops->abort(w->rank.engine, w->text);
    }
    if (--team->running == 0)
        pthread_cond_broadcast(&team->changed);
}

static void *work(void *context)
{
    struct worker *w = context;
    struct mgpu_team *team = w->team;
    uint64_t done = 0;
    bind_to_cores(&w->rank.device);
    omp_set_num_threads(w->rank.device.threads);
    omp_set_dynamic(0); /* kernels count on the threads that they ask for */
    pthread_mutex_lock(&team->lock);
    for (;;) {
        while (team->jobs == done && !team->stop)
            pthread_cond_wait(&team->changed, &team->lock);
        if (team->jobs == done)
            break;
        done++;
        pthread_mutex_unlock(&team->lock);
        int rc = team->job(&w->rank, team->context);
        pthread_mutex_lock(&team->lock);
        finish(w, rc);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

/* Communicators of a team: members[rank * groups + group]. */
static int make_groups(struct mgpu_comm **members, int replicas, int places)
{
    struct mgpu_comm *group[MGPU_MAX_RANKS];
    int groups = places + 1, ranks = replicas * places;
    for (int p = 0; p < places; p++) {
        MGPU_TRY(mgpu_comm_threads(group, replicas));
        for (int r = 0; r < replicas; r++)
            members[(r * places + p) * groups + p] = group[r];
    }
    if (places == 1)
        return 0;
    MGPU_TRY(mgpu_comm_threads(group, ranks));
    for (int r = 0; r < ranks; r++)
        members[r * groups + places] = group[r];
    return 0;
}

/* A rank's own on the CPU; the ranks of a GPU belong together. */
static int make_engines(struct mgpu_team *team, const struct mgpu_rank_device *devices,
                        int replicas, int places)
{
    struct mgpu_engine *engine[MGPU_MAX_RANKS];
    bool gpu = devices[0].gpu >= 0;
    for (int i = 0; i < team->size; i++)
        MGPU_TRY(
            mgpu_device_check_beside(devices[i].name, devices[i].gpu < 0, devices[0].name, !gpu));
    if (gpu)
        MGPU_TRY(mgpu_cuda_engines(engine, devices[0].gpu, devices[0].tf32, replicas, places));
    for (int i = 0; i < team->size; i++)
        team->worker[i].rank.engine = gpu ? engine[i] : mgpu_cpu_engine(team->worker[i].rank.comm);
    return 0;
}

static int start(struct worker *w)
{
    if (pthread_create(&w->thread, NULL, work, w))
        return mgpu_fail(MGPU_EDEVICE, "the system gives no thread for rank %d", w->rank.rank);
    w->started = true;
    return 0;
}

int mgpu_team_new(struct mgpu_team **out, const struct mgpu_rank_device *devices, int replicas,
                  int places)
{
    int count = replicas * places, groups = places + 1;
    struct mgpu_team *team = mgpu_xcalloc(1, sizeof *team);
    *out = NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->changed, NULL);
    team->worker = mgpu_xcalloc((size_t)count, sizeof *team->worker);
    team->comm = mgpu_xcalloc((size_t)(count * groups), sizeof(struct mgpu_comm *));
    team->size = count;
    for (int i = 0; i < count; i++) {
        team->worker[i].team = team;
        team->worker[i].rank = (struct mgpu_rank){.rank = i,
                                                  .size = count,
                                                  .replica = i / places,
                                                  .replicas = replicas,
                                                  .place = i % places,
                                                  .places = places,
                                                  .device = devices[i],
                                                  .comm = team->comm + i * groups};
    }
    int rc = make_engines(team, devices, replicas, places);
    if (rc == 0)
        rc = make_groups(team->comm, replicas, places);
    for (int i = 0; i < count && rc == 0; i++)
        rc = start(&team->worker[i]);
    if (rc < 0)
        mgpu_team_free(team);
    else
        *out = team;
    return rc;
}

void mgpu_team_free(struct mgpu_team *team)
{
    if (!team)
        return;
    pthread_mutex_lock(&team->lock);
    team->stop = true;
    pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->lock);
    for (int i = 0; i < team->size; i++) {
        struct worker *w = &team->worker[i];
        if (w->started)
            pthread_join(w->thread, NULL);
        for (int g = 0; g <= w->rank.places; g++)
            mgpu_comm_free(w->rank.comm[g]);
        if (w->rank.engine)
            w->rank.engine->ops->free(w->rank.engine);
    }
    pthread_cond_destroy(&team->changed);
    pthread_mutex_destroy(&team->lock);
    free(team->comm);
    free(team->worker);
    free(team);
}

int mgpu_team_size(const struct mgpu_team *team)
{
    return team->size;
}

struct mgpu_rank *mgpu_team_rank(struct mgpu_team *team, int rank)
{
    return &team->worker[rank].rank;
}

static int of_rank(const struct mgpu_rank *rank, int rc)
{
    return mgpu_prefix(rc, "rank %d (%s)", rank->rank, rank->device.name);
}

int mgpu_team_run(struct mgpu_team *team, mgpu_job job, void *context)
{
    pthread_mutex_lock(&team->lock);
    team->job = job;
    team->context = context;
    team->first_failed = -1;
    team->running = team->size;
    team->jobs++;
    pthread_cond_broadcast(&team->changed);
    while (team->running)
        pthread_cond_wait(&team->changed, &team->lock);
    int failed = team->first_failed;
    pthread_mutex_unlock(&team->lock);
    if (failed < 0)
        return 0;
    const struct worker *w = &team->worker[failed];
    mgpu_fail_text(w->rc, w->text);
    /* Of one rank alone it is said where the fault is its device's. */
    return team->size == 1 && w->rc != MGPU_EDEVICE ? w->rc : of_rank(&w->rank, w->rc);
}

int64_t mgpu_rank_own(const struct mgpu_rank *rank, enum mgpu_buffer buffer)
{
    bool lent = rank->lender && (buffer == MGPU_BUFFER_WEIGHTS || buffer == MGPU_BUFFER_STATES);
    return lent ? 0 : rank->bytes[buffer];
}

int mgpu_rank_allocate(struct mgpu_rank *rank, const int64_t bytes[MGPU_BUFFERS])
{
    int64_t own[MGPU_BUFFERS];
    const struct mgpu_engine_ops *ops = rank->engine->ops;
    memcpy(rank->bytes, bytes, sizeof rank->bytes);
    for (int b = 0; b < MGPU_BUFFERS; b++)
        own[b] = mgpu_rank_own(rank, (enum mgpu_buffer)b);
    MGPU_TRY(of_rank(rank, ops->allocate(rank->engine, own, rank->buffer)));
    if (rank->lender)
        ops->borrow(rank->engine, rank->lender->engine, rank->buffer);
    return 0;
}

int mgpu_rank_bind(struct mgpu_rank *rank, struct mgpu_program *program)
{
    return of_rank(rank, rank->engine->ops->bind(rank->engine, program));
}

int mgpu_rank_send(struct mgpu_rank *rank, const struct mgpu_program *program)
{
    const struct mgpu_engine_ops *ops = rank->engine->ops;
    void **host = &rank->buffer[MGPU_BUFFER_INPUTS];
    return ops->send ? ops->send(rank->engine, program, host) : 0;
}

int mgpu_rank_execute(struct mgpu_rank *rank, struct mgpu_program *program,
                      const struct mgpu_execution *run)
{
    return rank->engine->ops->execute(rank->engine, program, run);
}

int mgpu_rank_finish(struct mgpu_rank *rank)
{
    const struct mgpu_engine_ops *ops = rank->engine->ops;
    return ops->finish ? ops->finish(rank->engine, &rank->buffer[MGPU_BUFFER_RESULTS]) : 0;
}

int mgpu_rank_clear(struct mgpu_rank *rank, enum mgpu_buffer buffer)
{
    const struct mgpu_engine_ops *ops = rank->engine->ops;
    if (ops->clear)
        return ops->clear(rank->engine, buffer);
    memset(rank->buffer[buffer], 0, (size_t)rank->bytes[buffer]);
    return 0;
}

int mgpu_rank_upload(struct mgpu_rank *rank, enum mgpu_buffer buffer, int64_t offset, int64_t bytes)
{
    const struct mgpu_engine_ops *ops = rank->engine->ops;
    return ops->upload ? of_rank(rank, ops->upload(rank->engine, buffer, offset, bytes)) : 0;
}

int mgpu_rank_download(struct mgpu_rank *rank, enum mgpu_buffer buffer, int64_t offset,
                       int64_t bytes)
{
    const struct mgpu_engine_ops *ops = rank->engine->ops;
    return ops->download ? of_rank(rank, ops->download(rank->engine, buffer, offset, bytes)) : 0;
}
