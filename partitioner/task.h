/* The planner's view of a training step: tasks with costs, edges with bytes, groups that stay
 * together.
 *
 * tasks.c makes it from a whole graph (forward, backward, update) at one local batch, with costs
 * from the operators' records or a measured profile. Search, simulation and bounds know only this
 * page, so they can be proven on random graphs.
 */
#ifndef MGPU_PARTITIONER_TASK_H
#define MGPU_PARTITIONER_TASK_H

#include "partitioner/topology.h"
#include "runtime/base/memory.h"

#include <stdbool.h>
#include <stdint.h>

/* A unit of work that runs on one device: one core node, or several coarsened into one. */
struct mgpu_task {
    int group;      /* tasks of a group run on the same device: a forward node with its backward
                     * and the update of weights that only it uses; -1: runs at the owner of
                     * `param` (sums or updates a parameter that several groups use) */
    int param;      /* where group is -1: of the parameters */
    int phase;      /* enum mgpu_phase */
    bool again;     /* computes an activation again, as late as it can */
    double *ms;     /* by device kind of the topology (mgpu_topology.kind) */
    double *beside; /* the same while all other devices work (contention.c); NULL: they are no
                     * hindrance */
    int64_t output; /* bytes of activations that it makes; not of parameters' gradients, which are
                     * stored. They live to the last user: each value to its own, as far as edges
                     * say what they hold */
    int sums;       /* that the replicas make before anybody goes on with its output (statistics of
                     * the whole batch), and their bytes in all */
    int64_t sum_bytes;
    int64_t scratch; /* bytes of workspace while it runs, rather too many than too few */
    const char *key; /* of the forward node: its first ONNX output */
    const char *name, *type;
    int op_class; /* enum mgpu_class (cost.h), for reports */
};

enum mgpu_phase { MGPU_PHASE_FORWARD, MGPU_PHASE_BACKWARD, MGPU_PHASE_UPDATE };

struct mgpu_edge { /* task `to` needs `bytes` of what task `from` made */
    int from, to;
    int64_t bytes;
    int value; /* equal numbers are the same tensor: sent once to a device however many need it */
    int64_t held; /* bytes of from's output that it is; 0: not said, or stored */
};

struct mgpu_shared { /* a parameter */
    const char *name;
    int64_t bytes, state_bytes; /* of the value; of the optimizer's state */
    bool trained;
    int64_t product_bytes; /* of the value: whose gradient replicas do not sum, as all of them have
                            * its factors; a replica's own factors are so many bytes */
    int64_t factor_bytes;
    int groups; /* that use it; several: sent to users each step, gradients back, unless together */
    int *group;
};

struct mgpu_task_graph {
    struct mgpu_arena *arena;
    struct mgpu_task_build *build; /* how it came about (tasks.c), or NULL */
    int64_t batch;                 /* local batch that the costs are for */
    int busy; /* devices that work while tasks take beside[]; 0 where that is NULL */
    int tasks;
    struct mgpu_task *task; /* in an order in which they can run */
    int edges;
    struct mgpu_edge *edge;
    int groups;
    int *pin; /* by group: device that it must run on, -1: free */
    int params;
    struct mgpu_shared *param;
    int64_t input_bytes;
    int64_t rest_bytes; /* summed over the replicas last, together: running statistics */
    double *host_ms;    /* by device kind: of a step besides its tasks (starting ranks, feeding) */
};

#endif
