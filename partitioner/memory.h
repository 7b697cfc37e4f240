/* Bytes that a device needs for a training step. Never fewer than it will use. */
#ifndef MGPU_PARTITIONER_MEMORY_H
#define MGPU_PARTITIONER_MEMORY_H

#include "partitioner/task.h"
#include "runtime/compile/plan.h"

struct mgpu_memory {
    int64_t weights, gradients, states; /* states: of the optimizer */
    int64_t fixed;                      /* frozen weights, running statistics */
    int64_t activations;                /* and scratch: the most at one time, as placed */
    int64_t samples;                    /* a step's inputs, and results */
    int64_t constants;
    int64_t total;
    int64_t shared; /* of this, what replicas on CPU devices have from the first of them */
    struct mgpu_memory_code {
        int instructions, primitives; /* primitives: those of them that oneDNN makes code for */
        bool products, convolutions;  /* what of the library runs: convolutions or recurrence */
    } code;                           /* of a compilation */
};

/* What rank `rank` of a plan allocates, from its compilation (nothing runs): exact on CPU devices.
 * Takes over `whole`, the graph at the rank's local batch, also on failure. */
int mgpu_memory_compiled(struct mgpu_memory *out, struct mgpu_graph *whole,
                         const struct mgpu_plan *plan, int rank, int pieces, int threads);

/* What device `device` needs when group i runs on place[i] and parameter i is owned by owner[i]
 * (NULL: by the device of its first group), tasks in their order. A tensor lives from its task to
 * its last use, one that is sent or arrives to the end; in-place reuse is not counted on, so it is
 * at least what compilation finds. Gradients of a device's own parameters are stored. Linear. */
struct mgpu_memory mgpu_memory_of_tasks(const struct mgpu_task_graph *tasks, const int *place,
                                        const int *owner, int device);

/* About what a process on CPUs that runs a plan grows by: `buffers` of all ranks, `samples` of
 * a batch as they are read, the model's file, the code of all ranks; beside that some MiB for
 * libraries, threads and kernels, and a share for what allocators lose. The same for the same plan:
 * it is in the plan's file. */
int64_t mgpu_memory_resident(int64_t buffers, int64_t samples, int64_t file,
                             const struct mgpu_memory_code *code);

/* What a process on a GPU needs beside that: the driver's context and NCCL's buffers, and a share
 * for what allocators lose. 0 for CPU kinds. */
int64_t mgpu_memory_overhead(const struct mgpu_device_kind *kind, int64_t total, int devices);

#endif
