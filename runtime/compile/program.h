/* A program: one rank's graph at one batch size, compiled to a list of instructions.
 *
 * An instruction is a kernel with operands (buffer, offset, type, dims, read or written), the queue
 * it runs in, the events it waits for and the one it sets. One queue computes; each group of ranks
 * that communicate has another. A queue runs in order, and only events order two of them.
 * mgpu_program_check replays the list and fails on two conflicting accesses without an order.
 *
 * Several programs share a rank's stored weights (store.h). The arena, inputs and results are
 * shared too: programs run one after another.
 */
#ifndef MGPU_COMPILE_PROGRAM_H
#define MGPU_COMPILE_PROGRAM_H

#include "runtime/backend.h"
#include "runtime/comm/comm.h"
#include "runtime/compile/plan.h"
#include "runtime/compile/store.h"

struct mgpu_operand {
    enum mgpu_buffer buffer;
    int64_t offset, bytes;
    bool read, write;
};

enum { MGPU_QUEUE_COMPUTE, MGPU_QUEUE_COMMUNICATION };

struct mgpu_instruction {
    const struct mgpu_node *node;
    const struct mgpu_kernel *kernel; /* NULL: communication */
    void *state;
    int inputs, outputs;
    int operands;                 /* inputs, outputs, then the workspace when there is one */
    struct mgpu_operand *operand; /* absent ones have bytes -1 */
    struct mgpu_launch launch;    /* pointers are set by mgpu_program_bind */
    struct mgpu_tensor *tensor;

    int queue;
    int waits;
    int *wait;  /* events */
    int signal; /* event, -1: none */

    bool last_piece; /* only in the last piece of a batch: gradients' all-reduce, updates */
    bool gradients;  /* an all-reduce of gradients */
    int group;       /* communication: which of the communicators of the rank */
    bool when_idle;  /* runs on a rank that has no samples in this step */

    struct mgpu_collective collective; /* communication */
    struct mgpu_part *part;
};

/* An input or a result of the program. */
struct mgpu_port {
    const char *name;
    enum mgpu_dtype type;
    int rank;
    int64_t dims[MGPU_MAX_RANK];
    int64_t offset, bytes;
    struct mgpu_split split; /* results: how it is spread over the replicas */
    int index;               /* results: which output of the whole graph it is */
};

struct mgpu_program {
    struct mgpu_arena *arena;
    struct mgpu_graph *graph; /* owned */
    int instructions;
    struct mgpu_instruction *instruction;
    int events;
    atomic_bool *done; /* by event: communication that is complete */
    int *setter;       /* by event: the instruction that sets it; -1: none */
    int64_t *gradient; /* by the graph's parameter: offset among the gradients, -1: none */
    int inputs;
    struct mgpu_port *input;
    int results;
    struct mgpu_port *result;
    int64_t bytes[MGPU_BUFFERS]; /* ARENA, INPUTS, RESULTS, CONSTANTS; GRADIENTS if it keeps them */
    bool early;                  /* updates stand within backward (early.h) */
    struct {
        char what[MGPU_VALUE_TEXT]; /* was not finite, so that an early program stopped; "": none */
        int at;                     /* before this instruction */
    } stop;
    int64_t arena_lower_bound; /* most bytes alive at once */
    void *constants;
    double *seconds; /* by instruction, summed over `timed` runs; NULL: nobody asked */
    int64_t timed;
};

struct mgpu_compile_options {
    const struct mgpu_backend *backend;
    const struct mgpu_store_layout *store;
    int threads;
    bool exact;
};

/* What compiling first does to a graph: other nodes, that compute the same in less time (fuse.h,
 * layout.h). These are what a step runs, so the planner costs them. */
int mgpu_optimize(struct mgpu_graph *g, const struct mgpu_backend *backend);

/* Compiles the graph (after mgpu_plan_apply) and takes it over, also on failure. */
int mgpu_compile(struct mgpu_program **out, struct mgpu_graph *g,
                 const struct mgpu_applied *applied, const struct mgpu_compile_options *options);
void mgpu_program_free(struct mgpu_program *program);

/* Points every operand into a rank's buffers, which must be as large as the program says. The
 * program has its own constants where buffer[MGPU_BUFFER_CONSTANTS] is NULL. */
void mgpu_program_bind(struct mgpu_program *program, void *const buffer[MGPU_BUFFERS]);

/* Whether replicas may share the memory of their weights and optimizer state (share.c): only
 * updates write there, element by element, and once the gradient is summed nobody else reads. */
bool mgpu_program_may_share(const struct mgpu_program *program);

/* Leaves of the updates of a bound program the elements of part `part`, of `parts` ranks that
 * share, and of the sums of gradients what these need. */
void mgpu_program_cut(struct mgpu_program *program, int part, int parts);

/* The order checker: MGPU_EINTERNAL naming the first two instructions that touch the same bytes,
 * one of them writing, without an order between them. */
int mgpu_program_check(const struct mgpu_program *program);

/* Places `count` blocks so that no two that live at the same time overlap: offset[i] for bytes[i]
 * alive in instructions [first[i], last[i]]. Gives the size of the whole; *lower_bound is the most
 * that is alive at once. */
int64_t mgpu_place_blocks(int count, const int64_t *bytes, const int *first, const int *last,
                          int64_t *offset, int64_t *lower_bound);

#endif
