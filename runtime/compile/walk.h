/* One run of a program: which of its instructions run, in the order of the list, and what each
 * waits for. Whoever can run instructions gives the functions (executor.c for the CPU, runtime/cuda
 * for GPUs) and walks; nothing here names a device.
 */
#ifndef MGPU_COMPILE_WALK_H
#define MGPU_COMPILE_WALK_H

#include "runtime/compile/program.h"

/* Bytes of the results that are inputs of the next run: offsets in their buffers. */
struct mgpu_carry {
    int64_t result, input, bytes;
};

struct mgpu_execution {
    bool last_piece;      /* run what only the last piece of a batch runs */
    bool later_piece;     /* it is not the first */
    bool idle;            /* this rank has no samples in this piece */
    bool contributes;     /* this rank's stored gradients hold something */
    int losses;           /* the first so many results of the whole graph must be finite */
    bool check_gradients; /* gradients too */
    bool *not_finite;     /* NULL: what is not finite stops before the update; else it is noted here
                           * and the update is done */
    const double *scalars;
    int carries; /* taken from the run before, which has not been finished yet */
    const struct mgpu_carry *carry;
    bool names;    /* nothing runs but what led to a stop (program->stop), to name where it began */
    double *times; /* NULL, or seconds by instruction are added up here: of computing; of
                    * communication, what this rank waited for it */
};

struct mgpu_walk;

struct mgpu_walk_ops {
    /* Instruction k: a kernel; or communication, whose collective.contributes is set. */
    int (*compute)(struct mgpu_walk *walk, int k);
    int (*communicate)(struct mgpu_walk *walk, int k);

    /* Instruction `by` (NULL: the host) goes on when communication k is done. MGPU_LATER: not
     * every rank has come to k yet. */
    int (*wait)(struct mgpu_walk *walk, const struct mgpu_instruction *by, int k);

    /* Before the first update, at the end where there is none: losses and gradients are finite?
     * Of a program whose updates are early before each, `update`, for its gradient and the losses
     * that are known by then; and at the end, NULL, for all losses. */
    int (*check)(struct mgpu_walk *walk, const struct mgpu_instruction *update);
};

enum { MGPU_LATER = 1 };

struct mgpu_walk {
    const struct mgpu_walk_ops *ops;
    void *context; /* of the ops */
    struct mgpu_program *program;
    const struct mgpu_execution *run;
    int next; /* instruction */
    bool updating;
};

/* Goes through the list from where the walk stands: 0 when all has been given to the ops;
 * MGPU_LATER: call again when the other ranks have gone on. */
int mgpu_walk_on(struct mgpu_walk *walk);

/* Whether the instruction is left out of such a run. */
bool mgpu_skipped(const struct mgpu_instruction *in, const struct mgpu_execution *run);

#endif
