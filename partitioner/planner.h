/* From a model to a plan: graphs at the batches that replicas take, tasks, search, report.
 *
 *     struct mgpu_planner_model model = {.path = "net.onnx", .graph = build, .devices = take,
 *                                        .context = trainer,
 *                                        .training = "adam, mse"};
 *     struct mgpu_planner_options options = {.devices = "cpu:0,cpu:1", .batch = 64};
 *     struct mgpu_planned *planned;
 *     MGPU_TRY(mgpu_planner_run(&planned, &model, &options));
 *     MGPU_TRY(mgpu_plan_from_file(&plan, planned->plan));
 *     mgpu_planned_free(planned);
 */
#ifndef MGPU_PARTITIONER_PLANNER_H
#define MGPU_PARTITIONER_PLANNER_H

#include "partitioner/report.h"

struct mgpu_plan;
struct mgpu_plan_file;
struct mgpu_topology;

struct mgpu_planner_model {
    const char *path; /* of the ONNX file, for its hash */
    /* The whole training graph (losses, gradients, updates) at a local batch, with the rewrites of
     * a plan (NULL: none); the caller frees it. */
    int (*graph)(struct mgpu_graph **out, void *context, int64_t batch,
                 const struct mgpu_plan *plan);
    /* Adds to the plan what stacks the model's equal towers; NULL: they are not looked for. */
    int (*towers)(struct mgpu_plan *plan, void *context, int64_t batch);
    /* Told before the first graph is asked for: whether there are GPUs among the devices. NULL: it
     * does not matter. */
    void (*devices)(void *context, bool gpus);
    /* Runs the plan here, as training would, and gives the milliseconds of a step; NULL: it cannot.
     */
    int (*run)(double *ms, void *context, const struct mgpu_plan_file *plan);
    void *context;
    const char *training; /* for the reader: losses and optimizer */
};

struct mgpu_planner_options {
    const char *devices; /* topology.h */
    int64_t batch;
    const char *strategy;   /* "auto" (or NULL), "single", "data", "branch", "hybrid", "stacked" */
    const char *pin_option; /* what messages call pins; NULL: "--pin" */
    const char *const *pin; /* "PATTERN=DEVICE"; ends with NULL; NULL: none */
    const char *merge, *weights_on; /* devices, or NULL */
    int64_t memory;                 /* bytes of each device; 0: as the topology says */
    const char *precision;          /* "f64", "f32" (or NULL), "tf32", "bf16", "f16" */
    const char *profile;            /* file of measured costs, or NULL */
    bool recompute;   /* activations in any case; else only when nothing fits without */
    double search_ms; /* of one core, about; 0: a default */

    bool compile; /* CPU plans are compiled, for their exact memory */

    /* Times this model's operators on the devices, which must be here, and what plans of them are
     * then listed and may be chosen; keeps the times in `profile` when it is given. Progress: what
     * is measured, and the share that is done; may be NULL. */
    bool measure;
    void (*progress)(void *context, const char *what, double share);
    void *progress_context;
};

struct mgpu_planned {
    struct mgpu_arena *arena;
    struct mgpu_plan_file *plan;
    struct mgpu_outline *outline;
    struct mgpu_topology *topology;
    struct mgpu_report report;
};

/* Chooses a plan: never predicted slower than one device or data parallelism where those fit. Of
 * devices here that cannot train together (several GPUs, a GPU and the CPU) those that can are
 * planned by themselves, and the fastest plan is taken; what was left out is told.
 * MGPU_EUSAGE: unknown devices, pins that match nothing. MGPU_EINVALID: no plan fits the memory
 * (needed and available bytes), or none of the strategy that was asked for exists (why). */
int mgpu_planner_run(struct mgpu_planned **out, const struct mgpu_planner_model *model,
                     const struct mgpu_planner_options *options);
void mgpu_planned_free(struct mgpu_planned *planned);

#endif
