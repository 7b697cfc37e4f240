/* The ranks of one GPU: logical ranks that one thread submits for, into streams of their own.
 *
 * A rank has a stream that computes, one for each of its groups, and one in which inputs come up;
 * events order them as the program's list says. What the ranks do in a step is captured as one CUDA
 * graph when it comes for the second time, and launched as such from then on.
 *
 * What moves at every step has two pinned buffers. Inputs: the host writes one while the other goes
 * up, to a place of their own on the GPU; the run that wants them copies them from there to where
 * kernels read. So those of the next run go up while this one computes. Scalars and results: two
 * runs may have been given to the GPU, and the second waits there when the host reads what the
 * first one has brought.
 *
 * `stop`, a word of the first rank's, is raised by what is not finite on any of them: the ranks
 * look one after the other, and their updates come when all have looked. It stays raised in later
 * pieces of the batch, and in a run that was given before this one was finished. Running statistics
 * change before that is known: they are kept, and put back.
 */
#ifndef MGPU_CUDA_RANKS_H
#define MGPU_CUDA_RANKS_H

#include "runtime/cuda/kernels.h"
#include "runtime/engine.h"

#include <pthread.h>

enum { MGPU_GPU_RUNS = 2 }; /* that may be unfinished */

enum mgpu_gpu_state { MGPU_GPU_AHEAD, MGPU_GPU_POSTED, MGPU_GPU_STARTED };

/* Updates of neighbours in one pass. */
struct mgpu_gpu_pass {
    const struct mgpu_instruction *lead; /* whose arrays lie first */
    int at;                              /* the instruction in whose place it runs */
    int64_t count;                       /* elements, from the first to the last */
    struct mgpu_gpu_kernel kernel;
};

/* Times on the GPU: what ended at event i belongs to instruction of[i]; event 0 is the beginning.
 */
struct mgpu_gpu_marks {
    int count, events;
    CUevent *event;
    int *of;
};

/* A program that is ready to run on a rank. */
struct mgpu_gpu_bound {
    struct mgpu_program *program;
    CUdeviceptr constants;
    int events, sums;
    CUevent *event;              /* by event of the program */
    enum mgpu_gpu_state *state;  /* by instruction: communication in the run that goes on */
    struct mgpu_gpu_kernel *sum; /* of all parts that are summed, one after the other */
    int *first_sum;              /* by instruction: where its parts begin */
    struct mgpu_gpu_kernel finite_loss, finite_gradients;
    int passes;
    struct mgpu_gpu_pass *pass, **pass_of; /* pass_of: by instruction, NULL where it runs alone */
};

struct mgpu_gpu_rank {
    struct mgpu_engine engine;
    struct mgpu_gpu_ranks *all;
    int rank, replica, place;
    CUdeviceptr memory;
    void *buffer[MGPU_BUFFERS], *host[MGPU_BUFFERS]; /* on the GPU; as the host sees them */
    int64_t bytes[MGPU_BUFFERS];
    CUstream compute, *communicate;    /* communicate: by group */
    CUevent here, *arrived, *answered; /* of its streams; by group */
    CUevent looked;                    /* at what is not finite */
    CUstream copy;
    void *pinned[MGPU_BUFFERS][MGPU_GPU_RUNS]; /* inputs, results, scalars; one is host[] */
    int writes;                                /* inputs: which of the two */
    CUdeviceptr ahead;                         /* where they come up to */
    int64_t input_bytes;                       /* that were sent last */
    CUevent sent, taken;                       /* they are there; they are where kernels read */
    int64_t statistics, statistics_bytes;      /* where they lie in MGPU_BUFFER_FIXED */
    CUdeviceptr kept;                          /* as they were before the batch */
    struct mgpu_gpu_kernel put_back;
    int bounds;
    struct mgpu_gpu_bound **bound;

    int64_t given, finished; /* runs so far; each uses pinned memory and an event of its number */
    struct mgpu_execution of[MGPU_GPU_RUNS];

    /* of the run that is given, or finished */
    struct mgpu_gpu_bound *now;
    const struct mgpu_execution *run;
    struct mgpu_walk walk;
    struct mgpu_gpu_queue queue;
    struct mgpu_gpu_marks *marks; /* NULL: nobody asked for times */
    bool walked, checked;
    int rc; /* of submitting it */
    char text[1024];
};

struct mgpu_gpu_graph;

struct mgpu_gpu_ranks {
    struct mgpu_gpu gpu;
    int count, replicas, places, references;
    struct mgpu_gpu_rank *rank;
    CUdeviceptr stop;
    bool no_capture; /* something in a step cannot be captured */
    bool capturing;
    CUevent done[MGPU_GPU_RUNS];
    int graphs;
    struct mgpu_gpu_graph **graph;

    /* where the ranks' threads meet */
    pthread_mutex_t lock; /* who submits steps, or work in their place, has it */
    pthread_cond_t changed;
    int arrived;
    uint64_t round;
    bool aborted;
    char reason[1024];
};

/* ---- step.c ---- */

/* One run of every rank's program, given to the GPU. Each rank's rc is set. */
void mgpu_gpu_submit_step(struct mgpu_gpu_ranks *all);
/* Waits for the first that is not finished, and looks at what a rank has of it. */
int mgpu_gpu_finish(struct mgpu_gpu_rank *rank);
/* Computes again, looking at every value, to name the node where one is not finite (0: it is not
 * on this rank). Nothing else runs, nor does another rank's meanwhile. */
int mgpu_gpu_name_first(struct mgpu_gpu_rank *rank);
/* When all that was given is over. */
void mgpu_gpu_graphs_free(struct mgpu_gpu_ranks *all);

/* Tells a test's driver what an instruction touches. */
void mgpu_gpu_touches(const struct mgpu_gpu_rank *rank, CUstream stream,
                      const struct mgpu_cuda_access *access, int count);

/* ---- passes.c: updates of neighbours ---- */

/* Finds those of a program and emits their kernels, into the batch. */
void mgpu_gpu_find_passes(struct mgpu_gpu_bound *bound, struct mgpu_gpu_batch *batch);
int mgpu_gpu_run_pass(struct mgpu_gpu_rank *rank, const struct mgpu_gpu_pass *pass);
void mgpu_gpu_free_passes(struct mgpu_gpu_bound *bound);

/* ---- marks.c: times ---- */

/* Begins the marks of a run: what runs in the rank's stream from now on. */
int mgpu_gpu_begin_marks(struct mgpu_gpu_rank *rank);
/* What ran in the stream since the last mark belongs to instruction k, -1: to none; without marks
 * nothing. */
int mgpu_gpu_mark(struct mgpu_gpu_rank *rank, int k);
/* Adds the times of a run that is done to those that it asked for. */
int mgpu_gpu_add_times(struct mgpu_gpu_rank *rank);
void mgpu_gpu_free_marks(const struct mgpu_gpu *gpu, struct mgpu_gpu_marks *marks);

/* ---- collective.c: communication between the ranks of a GPU ---- */

/* The members of a group: [0, count) are ranks[i]. */
int mgpu_gpu_members(const struct mgpu_gpu_ranks *all, int group,
                     struct mgpu_gpu_rank *members[MGPU_MAX_RANKS]);

/* Communication k of a rank's program may begin. What all its members have posted is submitted. */
int mgpu_gpu_post(struct mgpu_gpu_rank *rank, int k);

/* Emits the kernels of a program that sum, into the batch. */
void mgpu_gpu_emit_sums(const struct mgpu_gpu_ranks *all, struct mgpu_gpu_bound *bound,
                        struct mgpu_gpu_batch *batch);

#endif
