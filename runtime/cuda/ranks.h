/* The ranks of one GPU: logical ranks that one thread submits for, into streams of their own.
 *
 * A rank has a stream that computes and one for each of its groups; events order them as the
 * program's list says. What the ranks do in a step is captured as one CUDA graph when it comes for
 * the second time, and launched as such from then on.
 */
#ifndef MGPU_CUDA_RANKS_H
#define MGPU_CUDA_RANKS_H

#include "runtime/cuda/kernels.h"
#include "runtime/engine.h"

#include <pthread.h>

enum mgpu_gpu_state { MGPU_GPU_AHEAD, MGPU_GPU_POSTED, MGPU_GPU_STARTED };

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
};

struct mgpu_gpu_rank {
    struct mgpu_engine engine;
    struct mgpu_gpu_ranks *all;
    int rank, replica, place;
    CUdeviceptr memory, stop;
    void *buffer[MGPU_BUFFERS], *host[MGPU_BUFFERS]; /* on the GPU; as the host sees them */
    int64_t bytes[MGPU_BUFFERS];
    CUstream compute, *communicate;    /* communicate: by group */
    CUevent here, *arrived, *answered; /* of its streams; by group */
    int bounds;
    struct mgpu_gpu_bound **bound;

    /* of the run that goes on */
    struct mgpu_gpu_bound *now;
    const struct mgpu_execution *run;
    struct mgpu_walk walk;
    struct mgpu_gpu_queue queue;
    bool finished;
    int rc; /* of the last run */
    char text[1024];
};

struct mgpu_gpu_graph;

struct mgpu_gpu_ranks {
    struct mgpu_gpu gpu;
    int count, replicas, places, references;
    struct mgpu_gpu_rank *rank;
    bool no_capture; /* something in a step cannot be captured */
    int graphs;
    struct mgpu_gpu_graph *graph;

    /* where the ranks' threads meet */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int arrived;
    uint64_t round;
    bool aborted;
    char reason[1024];
};

/* ---- step.c ---- */

/* One run of every rank's program, given to the GPU and waited for. Each rank's rc is set. */
void mgpu_gpu_step(struct mgpu_gpu_ranks *all);
void mgpu_gpu_graphs_free(struct mgpu_gpu_ranks *all);

/* Tells a test's driver what an instruction touches. */
void mgpu_gpu_touches(const struct mgpu_gpu_rank *rank, CUstream stream,
                      const struct mgpu_cuda_access *access, int count);

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
