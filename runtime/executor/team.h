/* The ranks of a run: one thread each, bound to its device's cores, with its memory and its
 * communicator. The caller gives all of them one job at a time and waits (passively) for the end.
 */
#ifndef MGPU_EXECUTOR_TEAM_H
#define MGPU_EXECUTOR_TEAM_H

#include "runtime/engine.h"
#include "runtime/executor/devices.h"

struct mgpu_rank {
    int rank, size;
    int replica, replicas, place, places; /* rank = replica * places + place */
    struct mgpu_rank_device device;
    struct mgpu_comm *
        *comm; /* by group: one a place (NULL where it is no member), then all ranks */
    struct mgpu_engine *engine;
    void *buffer[MGPU_BUFFERS]; /* as the host sees them (engine.h) */
    int64_t bytes[MGPU_BUFFERS];
    const struct mgpu_rank *lender; /* whose weights and optimizer state these are; NULL: its own */
};

struct mgpu_team;

/* `replicas` x `places` ranks on as many devices. */
int mgpu_team_new(struct mgpu_team **out, const struct mgpu_rank_device *devices, int replicas,
                  int places);
void mgpu_team_free(struct mgpu_team *team);

int mgpu_team_size(const struct mgpu_team *team);
struct mgpu_rank *mgpu_team_rank(struct mgpu_team *team, int rank);

/* Runs job(rank, context) on every rank's thread at once. When one fails the communicators are
 * aborted, so that the others stop too; the error is that of the rank that failed first, prefixed
 * with its name when there are several. */
typedef int (*mgpu_job)(struct mgpu_rank *rank, void *context);
int mgpu_team_run(struct mgpu_team *team, mgpu_job job, void *context);

/* What the rank's engine does (engine.h). Of a lender, which has its memory already, weights and
 * optimizer state are taken. */
int mgpu_rank_allocate(struct mgpu_rank *rank, const int64_t bytes[MGPU_BUFFERS]);
int mgpu_rank_bind(struct mgpu_rank *rank, struct mgpu_program *program);
int mgpu_rank_send(struct mgpu_rank *rank, const struct mgpu_program *program);
int mgpu_rank_execute(struct mgpu_rank *rank, struct mgpu_program *program,
                      const struct mgpu_execution *run);
int mgpu_rank_finish(struct mgpu_rank *rank);
int mgpu_rank_clear(struct mgpu_rank *rank, enum mgpu_buffer buffer);
int mgpu_rank_upload(struct mgpu_rank *rank, enum mgpu_buffer buffer, int64_t offset,
                     int64_t bytes);
int mgpu_rank_download(struct mgpu_rank *rank, enum mgpu_buffer buffer, int64_t offset,
                       int64_t bytes);

/* Bytes of a buffer that is the rank's own; 0: a lender's. */
int64_t mgpu_rank_own(const struct mgpu_rank *rank, enum mgpu_buffer buffer);

#endif
