/* The ranks of a run: one thread each, bound to its device's cores, with its memory and its
 * communicator. The caller gives all of them one job at a time and waits (passively) for the end.
 */
#ifndef MGPU_EXECUTOR_TEAM_H
#define MGPU_EXECUTOR_TEAM_H

#include "runtime/compile/program.h"
#include "runtime/executor/devices.h"

struct mgpu_rank {
    int rank, size;
    int replica, replicas, place, places; /* rank = replica * places + place */
    struct mgpu_rank_device device;
    struct mgpu_comm *
        *comm; /* by group: one a place (NULL where it is no member), then all ranks */
    void *buffer[MGPU_BUFFERS];
    int64_t bytes[MGPU_BUFFERS];
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

/* Gives a rank zeroed buffers of these sizes. Called once, before programs are bound. */
int mgpu_rank_allocate(struct mgpu_rank *rank, const int64_t bytes[MGPU_BUFFERS]);

#endif
