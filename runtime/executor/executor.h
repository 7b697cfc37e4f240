/* Running a program on a rank of the CPU: its instructions one after the other. */
#ifndef MGPU_EXECUTOR_EXECUTOR_H
#define MGPU_EXECUTOR_EXECUTOR_H

#include "runtime/engine.h"

/* Runs the list once. Comes back when everything is done, communication too. Errors name the node.
 * What is not finite: as engine.h says. `comm`: the rank's communicators, by group
 * (mgpu_plan_world). */
int mgpu_execute(struct mgpu_program *program, struct mgpu_comm *const *comm,
                 void *const buffer[MGPU_BUFFERS], const struct mgpu_execution *run);

/* The engine of a rank of the CPU with these communicators; they outlive it. */
struct mgpu_engine *mgpu_cpu_engine(struct mgpu_comm *const *comm);

#endif
