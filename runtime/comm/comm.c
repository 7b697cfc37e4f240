#include "runtime/comm/comm.h"

#include <stddef.h>

int mgpu_comm_start(struct mgpu_comm *comm, struct mgpu_collective *op)
{
    return comm->ops->start(comm, op);
}

int mgpu_comm_wait(struct mgpu_comm *comm, atomic_bool *done)
{
    return comm->ops->wait(comm, done);
}

void mgpu_comm_abort(struct mgpu_comm *comm, const char *reason)
{
    comm->ops->abort(comm, reason);
}

void mgpu_comm_free(struct mgpu_comm *comm)
{
    if (comm)
        comm->ops->free(comm);
}
