/* A plan run on data of one batch that are made up, again and again: --verify, --measure. */
#ifndef MGPU_FACADE_TRIAL_H
#define MGPU_FACADE_TRIAL_H

#include "runtime/facade/facade.h"
#include "runtime/facade/made_data.h"

struct mgpu_trial {
    struct mgpu_arena *arena;
    struct mgpu_made_data data;
    struct mgpu_trainer *trainer;
    int steps; /* that were timed */
};

/* A trainer for options->plan and options->batch, with the planner's losses where none are given.
 * Freed also after an error. */
int mgpu_trial_new(struct mgpu_trial *trial, const char *model, const struct mgpu_options *options);
void mgpu_trial_free(struct mgpu_trial *trial);

/* Milliseconds of a step: the lower quartile of those of 0.6 s (at least eight) after some to warm
 * up. What else the machine does makes some longer and none shorter. Predictions and what they
 * are compared with are taken in this one way. */
int mgpu_trial_time(struct mgpu_trial *trial, double *ms);

/* So many steps; a few thousand at most. */
int mgpu_trial_run(struct mgpu_trial *trial, int steps);

struct mgpu_plan_file;
/* The planner's `run` (planner.h); `context` is a trainer that plans. */
int mgpu_trial_of_plan(double *ms, void *context, const struct mgpu_plan_file *plan);

#endif
