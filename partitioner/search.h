/* From task graphs to plans, ranked: one device, data parallelism, branches on devices of their
 * own, both together, and rewrites of the model that the caller offers (towers stacked into one
 * batch). Baselines come first, and the chosen plan is never predicted slower than either; within
 * 2 % of data parallelism it is data parallelism.
 *
 *     struct mgpu_search_request request = {.topology = t, .batch = 64, .tasks = make, .context =
 * m, .weights_on = -1}; struct mgpu_search_result *result; MGPU_TRY(mgpu_search(&result,
 * &request)); use(&result->candidate[0]); mgpu_search_result_free(result);
 *
 * The same request gives the same result, whatever the order of tasks, groups and parameters.
 */
#ifndef MGPU_PARTITIONER_SEARCH_H
#define MGPU_PARTITIONER_SEARCH_H

#include "partitioner/task.h"

struct mgpu_candidate;

struct mgpu_search_request {
    const struct mgpu_topology *topology;
    int devices; /* the first so many compute; others only serve pins and weights_on. 0: all */
    int64_t batch;

    /* The task graph of a variant (0: the model as it is) for a local batch, when `devices` devices
     * work at the same time. Borrowed until the result is freed; the same pointer may be given
     * again. Groups and parameters of one variant have the same numbers in all its graphs; pins are
     * read from each graph. */
    int (*tasks)(void *context, int variant, int64_t batch, int devices,
                 const struct mgpu_task_graph **out);
    void *context;
    int variants;                    /* rewrites, numbered from 1; 0: none */
    const char *const *variant_name; /* [variants]: "stacked" */
    int thrifty; /* a variant that needs less memory, tried in every way when nothing fits; 0: none
                  */

    int weights_on;          /* device that owns and updates all parameters; -1: none */
    const char *inseparable; /* why the batch may not be divided; NULL: it may */
    const char *unstackable; /* why no variant from 1 to `variants` may be; NULL: they may */
    const char *strategy;    /* only this one is chosen (mgpu_tactic_name); NULL: any */
    /* The bytes that each device of the topology needs for a candidate, exactly, in place of the
     * simulation's, which are rather too many; they stand where nothing is changed. NULL: always.
     */
    int (*memory)(void *context, const struct mgpu_candidate *candidate, int64_t *bytes);
    /* Milliseconds of a candidate's step as it was run, in place of the simulation's, for what is
     * listed and may be chosen, and for one device; unchanged: it was not. NULL: never. */
    int (*time)(void *context, const struct mgpu_candidate *candidate, double *ms);
    double budget_ms; /* of searching on one slow core, about; 0: 500 */
    uint64_t seed;
};

enum mgpu_tactic {
    MGPU_TACTIC_SINGLE,
    MGPU_TACTIC_DATA,
    MGPU_TACTIC_BRANCH,
    MGPU_TACTIC_HYBRID,
    MGPU_TACTIC_STACKED, /* a variant, on one device or data parallel */
};
const char *mgpu_tactic_name(enum mgpu_tactic tactic); /* "single", "data", ... */

/* Something that a device does during the step of the first replica. */
enum mgpu_activity {
    MGPU_ACTIVITY_TASK,
    MGPU_ACTIVITY_SEND,      /* of an activation or its gradient */
    MGPU_ACTIVITY_PARAMETER, /* of a parameter's value to a user that does not own it */
    MGPU_ACTIVITY_SUM,       /* of a bucket of gradients, over the replicas */
    MGPU_ACTIVITY_GATHER,    /* of the factors of a gradient, from all replicas */
    MGPU_ACTIVITY_REST       /* a sum over the replicas last in the step: running statistics */
};
struct mgpu_event {
    enum mgpu_activity activity;
    int device, peer; /* a transfer goes from device to peer; else they are equal */
    int task, param;  /* numbers in the graph, or -1: the task that runs or whose output moves */
    int64_t bytes;
    double start_ms, end_ms;
};

struct mgpu_candidate {
    enum mgpu_tactic strategy;
    int variant;
    int replicas, ranks;                 /* replica r has devices [r * ranks, (r+1) * ranks) */
    const struct mgpu_task_graph *graph; /* at the local batch */
    int *device;                         /* by group: of the first replica */
    int *owner;                          /* by parameter: the same */
    int *order; /* all tasks, in the order in which each device runs its own */
    int64_t bucket_bytes;
    bool tried;    /* false: a bound ruled it out; times, memory and placement are not there */
    bool feasible; /* fits the memory and obeys pins and weights_on */
    bool proven;   /* no placement on these ranks is better (in this order of tasks) */
    bool ran;      /* step_ms was measured */
    double step_ms, speedup;    /* over one device */
    double lower_bound_ms, gap; /* of any placement with these replicas; step / bound - 1 */
    int64_t bytes_moved;        /* a step, all replicas */
    int64_t *memory;            /* by device of the topology: the peak; 0: not used */
    const char *why;            /* one sentence: why it lost, or won */
    int events;
    struct mgpu_event *event; /* by start; of the simulation, stretched where the step was run */
};

struct mgpu_search_result {
    struct mgpu_arena *arena;
    int candidates;
    struct mgpu_candidate *candidate; /* [0] is chosen, then by time, then what does not fit */
    double lower_bound_ms;            /* of every plan that was considered */
    double parallelism;               /* all work / longest path: what placement can win at most */
    const char *placement;            /* one sentence on that */
};

/* MGPU_EINVALID when no plan is feasible; the message names the device, what it needs and has, or
 * the pin. Errors of `tasks` are passed on. */
int mgpu_search(struct mgpu_search_result **out, const struct mgpu_search_request *request);
void mgpu_search_result_free(struct mgpu_search_result *result);

#endif
