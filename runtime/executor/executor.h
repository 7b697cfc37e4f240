/* Running a program on a rank: a loop over its instructions. Names no backend. */
#ifndef MGPU_EXECUTOR_EXECUTOR_H
#define MGPU_EXECUTOR_EXECUTOR_H

#include "runtime/compile/program.h"

struct mgpu_execution {
    bool last_piece;      /* run what only the last piece of a batch runs */
    bool idle;            /* this rank has no samples in this piece */
    bool contributes;     /* this rank's stored gradients hold something */
    int losses;           /* the first so many results of the whole graph must be finite */
    bool check_gradients; /* gradients too */
    bool *not_finite;     /* NULL: what is not finite stops before the update; else it is noted here
                           * and the update is done */
    const double *scalars;
    double *times; /* NULL, or seconds by instruction are added up here: of computing; of
                    * communication, what this rank waited for it */
};

/* Runs the list once. Comes back when everything is done, communication too. Errors name the node.
 * A loss or gradient that is not finite stops before the first update and
 * names the first node with a value that is not finite. `comm`: the rank's communicators, by group
 * (mgpu_plan_world). */
int mgpu_execute(struct mgpu_program *program, struct mgpu_comm *const *comm,
                 void *const buffer[MGPU_BUFFERS], const struct mgpu_execution *run);

#endif
