/* What is stored between steps: weights, gradients, statistics, optimizer state.
 *
 * They live outside compilations, in flat arrays, one of each kind a rank, so that programs for
 * other batch sizes share them. The order of the trained weights is the order in which their
 * gradients are complete (bucket order), equal on all ranks; a gradient has its weight's offset.
 *
 * A rank's layout is planned once, from every graph that it will run, before anything is allocated.
 * Ranks of one place have the same; a rank stores only what its own graphs use.
 */
#ifndef MGPU_COMPILE_STORE_H
#define MGPU_COMPILE_STORE_H

#include "runtime/graph/graph.h"

/* The memory of a rank. An operand is an offset into one of these. */
enum mgpu_buffer {
    MGPU_BUFFER_WEIGHTS,   /* trained weights */
    MGPU_BUFFER_GRADIENTS, /* by the same offsets, where a program keeps them */
    MGPU_BUFFER_FIXED,     /* frozen and rounded weights, running statistics */
    MGPU_BUFFER_STATES,    /* optimizer state */
    MGPU_BUFFER_SCALARS,   /* the step-scalar buffer */
    MGPU_BUFFER_INPUTS,    /* this step's samples */
    MGPU_BUFFER_RESULTS,   /* outputs of the program */
    MGPU_BUFFER_ARENA,     /* activations and scratch, by lifetime */
    MGPU_BUFFER_CONSTANTS, /* of one program */
    MGPU_BUFFERS
};

struct mgpu_stored {
    const char *name;
    enum mgpu_parameter_role role;
    enum mgpu_dtype type;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    enum mgpu_buffer buffer; /* WEIGHTS, FIXED or STATES */
    int64_t offset, bytes;
};

struct mgpu_store_layout {
    struct mgpu_arena *arena;
    struct mgpu_names *place; /* name to its place in entry[] */
    int count;
    struct mgpu_stored *entry;
    int64_t bytes[MGPU_BUFFERS]; /* of the stored kinds */
    int64_t align;               /* elements: what lies like the weights has their distances */
};

struct mgpu_store_layout *mgpu_store_layout_new(void);
void mgpu_store_layout_free(struct mgpu_store_layout *layout);

/* Adds the parameters that the graph uses and that are not there yet. A parameter that is there
 * with another shape, type or role is an error. */
int mgpu_store_add(struct mgpu_store_layout *layout, const struct mgpu_graph *g);

/* The entry called `name`, or NULL. */
const struct mgpu_stored *mgpu_store_find(const struct mgpu_store_layout *layout, const char *name);

#endif
