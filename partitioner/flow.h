/* A task graph made ready for planning: put in one order and indexed.
 *
 * The order does not depend on how tasks, groups and parameters were numbered or called: forward,
 * then backward, then update; in each the longest path to the end first (a task that only feeds the
 * update comes as soon as it can), updates as gradients come; ties by structure, and only then by
 * key. Devices run their tasks in this order and channels move tensors in it, so a step's time
 * never grows when something gets faster. Everything here is numbered by position in the order;
 * `*_of` leads back.
 */
#ifndef MGPU_PARTITIONER_FLOW_H
#define MGPU_PARTITIONER_FLOW_H

#include "partitioner/task.h"

struct mgpu_flow_task {
    int group, param; /* as in mgpu_task, in this numbering */
    int phase;
    int64_t output, scratch;
    int sums;
    int64_t sum_bytes;
    const double *ms;     /* by device kind */
    const double *beside; /* the same, or NULL */
    int tensor, tensors;  /* first of its tensors, and how many */
    int gate, gates;      /* UPDATE: the parameters whose gradients must be whole before it runs */
};

struct mgpu_flow_tensor { /* what a task sends to others, once a device */
    int from;
    int64_t bytes, held;
    int use, uses; /* positions of the tasks that take it, rising */
};

struct mgpu_flow_param {
    int64_t bytes, state_bytes;
    int64_t product_bytes, factor_bytes; /* as in mgpu_shared */
    bool trained;
    int home; /* group whose device owns it, for its update stands there; -1: it has tasks of its
               * own (group -1) and may be owned by any device */
    int first, groups;   /* of param_group: who uses it, rising */
    int update, updates; /* of param_update: tasks that wait for its gradient */
    int complete;        /* position after which its gradient is whole; -1: none */
};

struct mgpu_flow {
    struct mgpu_arena *arena;
    const struct mgpu_task_graph *graph;
    int kinds, tasks, groups, params, tensors;
    int size; /* tasks and uses of tensors: what a simulation costs */
    struct mgpu_flow_task *task;
    struct mgpu_flow_tensor *tensor;
    struct mgpu_flow_param *param;
    int *use;          /* of tensors */
    int *gate;         /* of tasks: parameters */
    int *param_group;  /* of parameters: groups */
    int *param_update; /* of parameters: tasks */
    int *completion;   /* parameters in the order in which their gradients are whole */
    int completions;
    int *pin;                           /* by group */
    int *group_task, *group_first;      /* group g has group_task[group_first[g] .. [g+1]) */
    int *task_of, *group_of, *param_of; /* position to number in graph */
    int *task_at, *group_at, *param_at; /* number in graph to position */
};

/* Checks the graph (order, ranges, pins below `devices`, costs finite and not negative) and indexes
 * it. `kind` is the device kind whose times make the order. Free with mgpu_flow_free; the graph is
 * borrowed. MGPU_EINVALID names the fault. */
int mgpu_flow_new(struct mgpu_flow **out, const struct mgpu_task_graph *graph, int kinds, int kind,
                  int devices);
void mgpu_flow_free(struct mgpu_flow *flow);

#endif
