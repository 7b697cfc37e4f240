/* One training step on devices and links, as it would run.
 *
 * Each device runs its tasks in the order of the flow, each as soon as its inputs are there; a
 * tensor goes once to each device that needs it, and the transfers of one channel take turns. What
 * arrives at a CPU device one of its cores copies, which does nothing else meanwhile. The
 * parameters that several devices use start at their owner and are sent to the others. With several
 * replicas the gradients of a device are summed with those of its counterparts, in buckets, one
 * after the other beside the backward tasks (or their factors are gathered, where that is said);
 * with r_k the time at which bucket k is whole and a_j what bucket j takes, the sums end at
 * max_k(r_k + sum_{j>=k} a_j).
 *
 * All of it is sums and maxima of durations in an order that durations do not change: a step never
 * gets longer because a device or a link got faster. What is left out only shortens it, so a
 * simulation with unplaced groups (device -1: they run at once on their best device, and
 * communicate for nothing) is a lower bound of all its completions.
 */
#ifndef MGPU_PARTITIONER_SIMULATE_H
#define MGPU_PARTITIONER_SIMULATE_H

#include "partitioner/flow.h"

/* The devices of a step: replica r runs on [r*ranks, (r+1)*ranks) of the topology. Devices beyond
 * replicas*ranks are reached only by pins and weights_on. */
struct mgpu_replica {
    const struct mgpu_topology *topology;
    int replicas, ranks;
    int weights_on;           /* device that owns and updates all parameters; -1: none */
    int64_t bucket_bytes;     /* a bucket of gradients is closed when it holds this many */
    uint64_t *kinds;          /* by device of the first replica: kinds of it and its counterparts */
    int64_t *memory;          /* the least of theirs */
    struct mgpu_ring *sum;    /* by rank: it and its counterparts; NULL: it has none */
    double *gather, *scatter; /* by device: ms a byte to and from weights_on, by all replicas */
    int channels;
};

/* One more than the largest channel of the topology's links. */
int mgpu_channels(const struct mgpu_topology *topology);

/* `channels` from mgpu_channels; memory comes from `arena`. Topologies have at most 64 kinds. */
void mgpu_replica_init(struct mgpu_replica *replica, const struct mgpu_topology *topology,
                       int channels, int replicas, int ranks, int weights_on,
                       struct mgpu_arena *arena);

/* Whether the gradients are summed by all replicas: not where one device has the weights. */
bool mgpu_sums_gradients(const struct mgpu_replica *replica);

/* Milliseconds of task `position` on a device. */
double mgpu_task_ms(const struct mgpu_flow *flow, const struct mgpu_replica *replica, int position,
                    int device);

/* Milliseconds of a step on a device besides its tasks. */
double mgpu_host_of(const struct mgpu_flow *flow, const struct mgpu_replica *replica, int device);

struct mgpu_assignment { /* in the flow's numbering */
    int *device;         /* by group; -1: not placed */
    int *owner;          /* by parameter; -1: not known */
};

/* The owners that follow from where groups run: weights_on; the device of the parameter's home;
 * else of its users the one with the most work, the first where equal. */
void mgpu_choose_owners(const struct mgpu_flow *flow, const struct mgpu_replica *replica,
                        const struct mgpu_assignment *assignment);

/* Whether any of several devices may own a parameter: it has no home, weights_on says nothing, and
 * its users are not all on one device. */
bool mgpu_owner_open(const struct mgpu_flow *flow, const struct mgpu_replica *replica, int param,
                     const int *device);

/* A transfer or a sum that the simulation made. */
struct mgpu_transfer {
    int tensor, param; /* what moves: one of them, else -1; both -1: a sum of gradients */
    int from, to;      /* of a sum: the device, twice */
    int64_t bytes;
    double start, end; /* ms */
    bool gathers;      /* factors, in place of a sum */
};

struct mgpu_simulator {
    const struct mgpu_flow *flow;
    const struct mgpu_replica *replica;
    struct mgpu_arena *arena;
    double host_ms;      /* of a step besides its tasks, on the device where it is least */
    double rest_ms;      /* of sums over the replicas at the end, beside those of gradients */
    double *start, *end; /* by position */
    double *stretch;     /* by position: how many times as long as alone its task takes */
    double *whole;       /* by parameter: when its gradient is, with several replicas */
    int *at;             /* by position: the device that ran it */
    int transfers, room; /* room: for so many */
    struct mgpu_transfer *transfer;
    int64_t *peak;              /* by device: bytes, after mgpu_simulate_memory */
    int64_t moved;              /* bytes over links, by all replicas */
    double all_reduce, exposed; /* ms of the busiest device's sums; not hidden behind tasks */
    struct mgpu_simulator_state *state;
    struct mgpu_slots *slots; /* of simulate_memory.c */
};

struct mgpu_simulator *mgpu_simulator_new(const struct mgpu_flow *flow,
                                          const struct mgpu_replica *replica);
void mgpu_simulator_free(struct mgpu_simulator *simulator);

/* The step's milliseconds; INFINITY as soon as they reach `stop`. */
double mgpu_simulate(struct mgpu_simulator *simulator, const struct mgpu_assignment *assignment,
                     double stop);

/* The same with what tasks lose to those that run on other devices at the same time, where that was
 * measured (mgpu_task.beside). A task i that takes a alone takes b beside what the others do on an
 * average: it loses d_i = b/a - 1. Whoever loses much needs much of what is shared (bandwidth of
 * the memory and of the shared cache), so he also makes others lose: beside task j it loses d_i d_j
 * / d, d being the average of d_j. Tasks' times and who they meet depend on each other, so both are
 * brought to agree in some rounds. Search and bounds go by times alone, which are no longer. */
double mgpu_simulate_contended(struct mgpu_simulator *simulator,
                               const struct mgpu_assignment *assignment);

/* After a simulation of replicas of one rank: when the last sum would end with buckets of so many
 * bytes, max_k(r_k + sum_{j>=k} a_j), were the tasks not held up. */
double mgpu_sums_end(const struct mgpu_simulator *simulator, int64_t bucket_bytes);

/* After a complete simulation: fills peak[] (parameters, gradients and optimizer state where they
 * are kept, inputs, and what the schedule holds at a time) and returns the bytes that the fullest
 * device lacks, 0 when all fit. */
int64_t mgpu_simulate_memory(struct mgpu_simulator *simulator,
                             const struct mgpu_assignment *assignment);

#endif
