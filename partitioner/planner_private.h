/* What the files of the planner share. */
#ifndef MGPU_PARTITIONER_PLANNER_PRIVATE_H
#define MGPU_PARTITIONER_PLANNER_PRIVATE_H

#include "partitioner/memory.h"
#include "partitioner/pins.h"
#include "partitioner/plan_check.h"
#include "partitioner/planner.h"
#include "partitioner/profile.h"
#include "partitioner/search.h"
#include "partitioner/tasks.h"

/* The model as it is, its towers stacked, and what is tried when nothing fits. */
enum mgpu_planner_variant {
    MGPU_VARIANT_PLAIN,
    MGPU_VARIANT_STACKED,
    MGPU_VARIANT_THRIFTY,
    MGPU_VARIANTS
};

/* Task graphs, kept: the search asks for the same ones again. */
struct mgpu_planner_graph {
    int64_t batch;
    int variant;
    int busy; /* devices that work at the same time; 0: it does not matter */
    struct mgpu_task_graph *graph;
};

/* What the ranks of a candidate that was compiled run. */
struct mgpu_planner_code {
    const int64_t *memory; /* the candidate's */
    const int64_t *rank;   /* bytes by rank of its plan; several may be on one device */
    struct mgpu_memory_code code;
};

struct mgpu_planner {
    const struct mgpu_planner_model *model;
    const struct mgpu_planner_options *options;
    struct mgpu_planned *planned;
    enum mgpu_rate rate;
    char sha[MGPU_SHA256_TEXT];               /* of the model's file */
    struct mgpu_profile *profile;             /* or NULL */
    struct mgpu_plan *variant[MGPU_VARIANTS]; /* their rewrites; NULL: there is no such */
    const char **label;                       /* what a person calls the devices (plan_file.h) */
    int *pin;                                 /* by node of the outline: device, -1: free */
    int *stacked_pin;                         /* the same where towers are stacked */
    int weights_on;                           /* device, -1 */
    const char *inseparable;                  /* why the batch may not be divided, or NULL */
    const char *unstackable;                  /* why its towers may not be stacked, or NULL */
    struct mgpu_names *sums;                  /* key to struct mgpu_planner_sums */
    struct mgpu_graph *whole[MGPU_VARIANTS];  /* that tasks were made of, or NULL */
    const struct mgpu_task_graph *first[MGPU_VARIANTS]; /* those that were built of it, or NULL */
    int graphs;
    struct mgpu_planner_graph *graph;
    int codes;
    struct mgpu_planner_code *code;
};

/* The search's `tasks`; `context` is the planner. */
int mgpu_planner_tasks(void *context, int variant, int64_t batch, int devices,
                       const struct mgpu_task_graph **out);
void mgpu_planner_tasks_free(struct mgpu_planner *planner);

/* Keeps what the ranks of a data parallel step sum in the middle of it: `g` is a rank's graph. */
void mgpu_planner_find_sums(struct mgpu_planner *planner, const struct mgpu_graph *g);

/* Whether the devices are what --measure can time, where that is asked for. */
int mgpu_planner_may_measure(const struct mgpu_planner_options *options,
                             const struct mgpu_topology *topology);

/* mgpu_planner_run for devices that can train in one step together, or that are not here. */
int mgpu_planner_run_team(struct mgpu_planned **out, const struct mgpu_planner_model *model,
                          const struct mgpu_planner_options *options);

/* Times the operators at the batches that single, branch-wise and data parallel steps have. */
int mgpu_planner_measure(struct mgpu_planner *planner);

/* The plan of a candidate, without predictions; (*device)[rank] is of the topology, in the plan's
 * arena. */
struct mgpu_plan_file *mgpu_planner_plan(struct mgpu_planner *planner,
                                         const struct mgpu_candidate *candidate, int **device);

/* The search's `memory`: candidates on CPUs are compiled; `context` is the planner. */
int mgpu_planner_memory(void *context, const struct mgpu_candidate *candidate, int64_t *bytes);

/* Bytes by rank of the candidate's plan; NULL: it was not compiled. */
const int64_t *mgpu_planner_rank_memory(const struct mgpu_planner *planner,
                                        const struct mgpu_candidate *candidate);

/* The plan's model, batch and strategy: with them it can be run. */
void mgpu_planner_describe(const struct mgpu_planner *planner,
                           const struct mgpu_candidate *candidate, struct mgpu_plan_file *plan);

/* The search's `time`: from the profile, or the candidate is run; `context` is the planner. */
int mgpu_planner_time(void *context, const struct mgpu_candidate *candidate, double *ms);

/* What a process that runs the candidate here grows by; 0: not known. */
int64_t mgpu_planner_resident(const struct mgpu_planner *planner,
                              const struct mgpu_candidate *candidate);

/* The result as a plan and a report. */
void mgpu_planner_report(struct mgpu_planner *planner, const struct mgpu_search_result *result);

#endif
