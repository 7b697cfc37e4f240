/* Ranks that are threads of one process. Memory is shared, so an operation needs no copies in
 * between: when all members have arrived, each works on its own slice of everybody's buffers.
 *
 * Each member has a background thread that runs its operations in order. Waiting is passive (the
 * cores belong to the kernels), and nobody is woken for what concerns others only: that would stop
 * somebody's kernel.
 */
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/comm/comm.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PENDING = 4096, /* operations that may be started and not done */
    PIECE = 4096,   /* elements that are summed and copied while they are in the cache */
};

struct group {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* background threads that run an operation wait for each other */
    int size, references;
    bool aborted;
    char reason[1024];
    struct mgpu_collective **current; /* by member: the operation it has arrived at, or NULL */
    int arrived;
    uint64_t round; /* barriers passed */
};

struct member {
    struct mgpu_comm comm;
    struct group *group;
    pthread_t thread;
    pthread_cond_t started, done; /* the thread waits for operations, its owner for their end */
    bool stop;
    struct mgpu_collective *pending[PENDING];
    uint64_t first, last; /* [first, last) are waiting or running */
};

/* ---- Waiting; the group's lock is held ------------------------------------------------------- */

static int aborted(const struct group *g)
{
    return g->aborted ? mgpu_fail_text(MGPU_EDEVICE, g->reason) : 0;
}

static void stop_group(struct group *g, const char *reason)
{
    if (!g->aborted)
        snprintf(g->reason, sizeof g->reason, "%s", reason);
    g->aborted = true;
    pthread_cond_broadcast(&g->changed);
}

/* All members are here when it returns 0. */
static int barrier(struct group *g)
{
    uint64_t round = g->round;
    if (++g->arrived == g->size) {
        g->arrived = 0;
        g->round++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->round == round && !g->aborted)
        pthread_cond_wait(&g->changed, &g->lock);
    return g->round == round ? aborted(g) : 0;
}

/* ---- What each member does between two barriers; no lock is held ------------------------------
 */

static struct mgpu_collective *of(const struct group *g, int member)
{
    return g->current[member];
}

/* Elements [from, to) of part p, at most PIECE, summed over the members in rank order and written
 * to all that need them. */
#define SUM_PIECE(name, T)                                                                         \
    static void name(const struct group *g, int p, int64_t from, int64_t to, int only)             \
    {                                                                                              \
        T sum[PIECE];                                                                              \
        size_t count = (size_t)(to - from), bytes = count * sizeof *sum;                           \
        bool first = true;                                                                         \
        for (int m = 0; m < g->size; m++) {                                                        \
            const T *x = (const T *)of(g, m)->part[p].data + from;                                 \
            if (!of(g, m)->contributes)                                                            \
                continue;                                                                          \
            if (first)                                                                             \
                memcpy(sum, x, bytes);                                                             \
            else                                                                                   \
                _Pragma("omp simd") for (size_t i = 0; i < count; i++) sum[i] += x[i];             \
            first = false;                                                                         \
        }                                                                                          \
        if (first)                                                                                 \
            memset(sum, 0, bytes);                                                                 \
        for (int m = 0; m < g->size; m++)                                                          \
            if (only < 0 || m == only)                                                             \
                memcpy((T *)of(g, m)->part[p].data + from, sum, bytes);                            \
    }
SUM_PIECE(sum_float, float)
SUM_PIECE(sum_double, double)
SUM_PIECE(sum_int, int64_t)

/* only: the member that gets the sums; -1: all. */
static void sum_slice(const struct group *g, enum mgpu_dtype type, int p, int64_t from, int64_t to,
                      int only)
{
    for (int64_t end; from < to; from = end) {
        end = to - from < PIECE ? to : from + PIECE;
        if (type == MGPU_FLOAT)
            sum_float(g, p, from, end, only);
        else if (type == MGPU_DOUBLE)
            sum_double(g, p, from, end, only);
        else
            sum_int(g, p, from, end, only);
    }
}

static void all_reduce(const struct member *m)
{
    const struct mgpu_collective *op = of(m->group, m->comm.rank);
    for (int p = 0; p < op->parts; p++) {
        int64_t begin, end;
        mgpu_comm_slice(op->part[p].count, op->type, m->comm.rank, m->comm.size, &begin, &end);
        sum_slice(m->group, op->type, p, begin, end, op->slice_only ? m->comm.rank : -1);
    }
}

static int64_t contribution(const struct mgpu_collective *op)
{
    return op->contributes ? op->part[0].count : 0;
}

/* out is [outer, total]; member k's part is [outer, own_k]. */
static void all_gather(const struct member *m)
{
    const struct mgpu_collective *op = of(m->group, m->comm.rank);
    size_t size = mgpu_dtype_size(op->type);
    int64_t total = op->out.count / op->outer, start = 0;
    for (int k = 0; k < m->comm.size; k++) {
        const struct mgpu_collective *from = of(m->group, k);
        int64_t own = contribution(from) / op->outer;
        for (int64_t o = 0; o < op->outer; o++)
            memcpy((char *)op->out.data + (size_t)(o * total + start) * size,
                   (const char *)from->part[0].data + (size_t)(o * own) * size, (size_t)own * size);
        start += own;
    }
    for (int64_t o = 0; o < op->outer; o++)
        memset((char *)op->out.data + (size_t)(o * total + start) * size, 0,
               (size_t)(total - start) * size);
}

static void reduce_scatter(const struct member *m)
{
    const struct mgpu_collective *op = of(m->group, m->comm.rank);
    size_t size = mgpu_dtype_size(op->type);
    int64_t n = op->part[0].count, from = n * m->comm.rank / m->comm.size;
    int64_t to = n * (m->comm.rank + 1) / m->comm.size;
    sum_slice(m->group, op->type, 0, from, to, m->comm.rank);
    memcpy(op->out.data, (const char *)op->part[0].data + (size_t)from * size,
           (size_t)(to - from) * size);
}

static void broadcast(const struct member *m)
{
    const struct mgpu_collective *op = of(m->group, m->comm.rank), *root = of(m->group, op->peer);
    if (op != root)
        memcpy(op->part[0].data, root->part[0].data,
               (size_t)op->part[0].count * mgpu_dtype_size(op->type));
}

static int collective(struct member *m, struct mgpu_collective *op)
{
    struct group *g = m->group;
    g->current[m->comm.rank] = op;
    MGPU_TRY(barrier(g));
    for (int k = 0; k < g->size; k++)
        if (of(g, k)->tag != op->tag || of(g, k)->kind != op->kind ||
            of(g, k)->parts != op->parts || of(g, k)->slice_only != op->slice_only)
            return mgpu_fail(MGPU_EINTERNAL, "ranks %d and %d meet in different operations",
                             m->comm.rank, k);
    pthread_mutex_unlock(&g->lock);
    if (op->kind == MGPU_COLLECTIVE_ALL_REDUCE)
        all_reduce(m);
    else if (op->kind == MGPU_COLLECTIVE_ALL_GATHER)
        all_gather(m);
    else if (op->kind == MGPU_COLLECTIVE_REDUCE_SCATTER)
        reduce_scatter(m);
    else
        broadcast(m);
    pthread_mutex_lock(&g->lock);
    int rc = barrier(g);
    g->current[m->comm.rank] = NULL; /* the caller may use it for something else now */
    return rc;
}

/* A sender leaves its operation where the receiver finds it, and waits until it was taken. */
static int point_to_point(struct member *m, struct mgpu_collective *op)
{
    struct group *g = m->group;
    if (op->kind == MGPU_COLLECTIVE_SEND) {
        g->current[m->comm.rank] = op;
        pthread_cond_broadcast(&g->changed);
        while (g->current[m->comm.rank] == op && !g->aborted)
            pthread_cond_wait(&g->changed, &g->lock);
        return g->current[m->comm.rank] == op ? aborted(g) : 0;
    }
    struct mgpu_collective *from;
    while (!(from = g->current[op->peer]) || from->kind != MGPU_COLLECTIVE_SEND ||
           from->tag != op->tag || from->peer != m->comm.rank) {
        MGPU_TRY(aborted(g));
        pthread_cond_wait(&g->changed, &g->lock);
    }
    memcpy(op->part[0].data, from->part[0].data,
           (size_t)op->part[0].count * mgpu_dtype_size(op->type));
    g->current[op->peer] = NULL;
    pthread_cond_broadcast(&g->changed);
    return 0;
}

/* ---- The background thread ------------------------------------------------------------------- */

static void *work(void *context)
{
    struct member *m = context;
    struct group *g = m->group;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (m->first == m->last && !m->stop)
            pthread_cond_wait(&m->started, &g->lock);
        if (m->first == m->last)
            break;
        struct mgpu_collective *op = m->pending[m->first % PENDING];
        bool pair = op->kind == MGPU_COLLECTIVE_SEND || op->kind == MGPU_COLLECTIVE_RECV;
        int rc = g->aborted ? aborted(g) : pair ? point_to_point(m, op) : collective(m, op);
        if (rc < 0)
            stop_group(g, mgpu_error());
        m->first++;
        atomic_store(op->done, true);
        pthread_cond_signal(&m->done);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static int start(struct mgpu_comm *comm, struct mgpu_collective *op)
{
    struct member *m = (struct member *)comm;
    atomic_store(op->done, false);
    pthread_mutex_lock(&m->group->lock);
    assert(m->last - m->first < PENDING);
    m->pending[m->last++ % PENDING] = op;
    pthread_cond_signal(&m->started);
    pthread_mutex_unlock(&m->group->lock);
    return 0;
}

static int wait_done(struct mgpu_comm *comm, atomic_bool *done)
{
    struct member *m = (struct member *)comm;
    struct group *g = m->group;
    pthread_mutex_lock(&g->lock);
    while (!atomic_load(done))
        pthread_cond_wait(&m->done, &g->lock);
    int rc = aborted(g);
    pthread_mutex_unlock(&g->lock);
    return rc;
}

static void abort_group(struct mgpu_comm *comm, const char *reason)
{
    struct group *g = ((struct member *)comm)->group;
    pthread_mutex_lock(&g->lock);
    stop_group(g, reason);
    pthread_mutex_unlock(&g->lock);
}

static void free_one(struct member *m)
{
    pthread_cond_destroy(&m->started);
    pthread_cond_destroy(&m->done);
    free(m);
}

static void free_member(struct mgpu_comm *comm)
{
    struct member *m = (struct member *)comm;
    struct group *g = m->group;
    pthread_mutex_lock(&g->lock);
    m->stop = true;
    pthread_cond_signal(&m->started);
    pthread_mutex_unlock(&g->lock);
    pthread_join(m->thread, NULL);
    pthread_mutex_lock(&g->lock);
    int left = --g->references;
    pthread_mutex_unlock(&g->lock);
    free_one(m);
    if (left)
        return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->current);
    free(g);
}

static const struct mgpu_comm_ops ops = {
    .start = start, .wait = wait_done, .abort = abort_group, .free = free_member};

int mgpu_comm_threads(struct mgpu_comm **members, int size)
{
    struct group *g = mgpu_xcalloc(1, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->size = g->references = size;
    g->current = mgpu_xcalloc((size_t)size, sizeof(struct mgpu_collective *));
    for (int i = 0; i < size; i++) {
        struct member *m = mgpu_xcalloc(1, sizeof *m);
        m->comm = (struct mgpu_comm){.ops = &ops, .rank = i, .size = size};
        m->group = g;
        pthread_cond_init(&m->started, NULL);
        pthread_cond_init(&m->done, NULL);
        members[i] = &m->comm;
        if (pthread_create(&m->thread, NULL, work, m)) {
            pthread_mutex_lock(&g->lock);
            g->references = i;
            stop_group(g, "no thread for a rank");
            pthread_mutex_unlock(&g->lock);
            free_one(m);
            if (i == 0) {
                free(g->current);
                free(g);
            }
            for (int k = 0; k < i; k++)
                free_member(members[k]);
            return mgpu_fail(MGPU_EDEVICE, "the system gives no thread for rank %d", i);
        }
    }
    return 0;
}
