#include "runtime/comm/comm.h"

#include <stddef.h>

void mgpu_comm_slice(int64_t count, enum mgpu_dtype type, int rank, int size, int64_t *begin,
                     int64_t *end)
{
    enum { LINE = 64 };
    int64_t line = LINE / (int64_t)mgpu_dtype_size(type), lines = (count + line - 1) / line;
    *begin = lines * rank / size * line;
    *end = lines * (rank + 1) / size * line;
    *begin = *begin < count ? *begin : count;
    *end = *end < count ? *end : count;
}

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
