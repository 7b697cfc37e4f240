/* Communicators: groups of ranks that exchange tensors.
 *
 * A communicator is one member's view of a group. Operations are started in the order of their
 * tags, the same on every member, and never block the caller: they run in the background, in order,
 * and set an event when done. A member with weight zero (a rank without samples) takes part without
 * contributing: its memory is only written.
 *
 * Transports fill struct mgpu_comm_ops: threads of one process (comm_threads.c) now; shared memory
 * between processes, NCCL and MPI are others of the same shape.
 */
#ifndef MGPU_COMM_COMM_H
#define MGPU_COMM_COMM_H

#include "runtime/base/dtype.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum mgpu_collective_kind {
    MGPU_COLLECTIVE_ALL_REDUCE,     /* parts[] summed over the members, in place; or of each its own
                                     * slice, if that is all that it needs */
    MGPU_COLLECTIVE_ALL_GATHER,     /* parts[0] of each member, joined in rank order in `out`;
                                     * zeros stand behind the last where that holds more */
    MGPU_COLLECTIVE_REDUCE_SCATTER, /* parts[0] summed; member i keeps slice i in `out` */
    MGPU_COLLECTIVE_BROADCAST,      /* parts[0] of member `peer`, to parts[0] of all */
    MGPU_COLLECTIVE_SEND,           /* parts[0] to `peer` */
    MGPU_COLLECTIVE_RECV,           /* parts[0] from `peer` */
};

struct mgpu_part {
    void *data;
    int64_t count; /* elements */
};

/* One started operation. The caller keeps it unchanged until its event is set; it may be reused
 * step after step. */
struct mgpu_collective {
    enum mgpu_collective_kind kind;
    enum mgpu_dtype type; /* float, double, int64 for sums; any for movement */
    int64_t tag;
    int peer;
    bool contributes; /* false: weight zero */
    bool slice_only;  /* all-reduce: what is outside mgpu_comm_slice may be left as it is */
    int parts;
    const struct mgpu_part *part;
    /* gather and scatter: `out` holds [outer, sum of member counts / outer] (gather: or more); each
     * member's part is [outer, own]. outer is the product of the dims before the joined axis. */
    struct mgpu_part out;
    int64_t outer;
    atomic_bool *done; /* the event: cleared by start, set when complete */
};

/* Elements [*begin, *end) of `count` that member `rank` of `size` sums: whole cache lines. */
void mgpu_comm_slice(int64_t count, enum mgpu_dtype type, int rank, int size, int64_t *begin,
                     int64_t *end);

struct mgpu_comm;

struct mgpu_comm_ops {
    int (*start)(struct mgpu_comm *comm, struct mgpu_collective *op);
    int (*wait)(struct mgpu_comm *comm, atomic_bool *done);
    void (*abort)(struct mgpu_comm *comm, const char *reason);
    void (*free)(struct mgpu_comm *comm);
};

struct mgpu_comm {
    const struct mgpu_comm_ops *ops;
    int rank, size; /* in the group */
};

/* Starts `op`; it runs after what was started before it on this communicator. Never waits. */
int mgpu_comm_start(struct mgpu_comm *comm, struct mgpu_collective *op);

/* Sleeps until *done, or until the group was aborted: then MGPU_EDEVICE with the reason. */
int mgpu_comm_wait(struct mgpu_comm *comm, atomic_bool *done);

/* Stops every member: all waits, now and later, fail with this reason (the first one given). */
void mgpu_comm_abort(struct mgpu_comm *comm, const char *reason);

void mgpu_comm_free(struct mgpu_comm *comm);

/* A group of `size` threads of this process: fills members[0..size). Each is used by one thread at
 * a time and freed apart. */
int mgpu_comm_threads(struct mgpu_comm **members, int size);

#endif
