/* What the files behind library.h share. */
#ifndef MGPU_CUDA_LIBRARY_PRIVATE_H
#define MGPU_CUDA_LIBRARY_PRIVATE_H

#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/library.h"

#include <pthread.h>
#include <stdatomic.h>

struct mgpu_cudnn_shared; /* cudnn_call.c */

struct mgpu_library {
    pthread_mutex_t lock; /* preparing uses the handles and the list */
    struct mgpu_library_options options;
    struct mgpu_cudnn dnn;
    struct mgpu_cudnn_shared *shared; /* plans of the calls that there are */
    struct mgpu_cuda_driver driver;   /* only for running */
    struct mgpu_cuda_lt lt;
    cublasLtHandle_t lt_handle; /* NULL: nothing can run */
    CUmodule module;
    CUfunction mover;   /* of moves.h; NULL: nobody wanted it yet */
    atomic_bool warned; /* that nodes run by other kernels */
};

struct mgpu_library_call {
    struct mgpu_library *library;
    const struct mgpu_node *node;
    const struct mgpu_library_family *family;
    void *state;
    int64_t workspace; /* bytes */
};

/* Operators that one library runs in one way. */
struct mgpu_library_family {
    bool (*accepts)(const struct mgpu_node *node);
    bool (*is_image)(const struct mgpu_node *node, int i); /* or a filter; NULL: none is */
    bool (*has_end)(const struct mgpu_node *node); /* attributes of finish.c's; NULL: none has */
    int (*ask)(struct mgpu_library_call *call); /* only whether there is an engine; makes state */
    int (*prepare)(struct mgpu_library_call *call); /* state and workspace */
    void (*release)(struct mgpu_library_call *call);
    int (*run)(struct mgpu_library_call *call, void *stream, void *const *operand, void *workspace);

    /* Choices: in words, all of what is computed; how many candidates there are at most; making the
     * call use one, or with -1 what the library expects most of. NULL: there is no choice. */
    const char *(*words)(struct mgpu_library_call *call);
    int (*candidates)(struct mgpu_library_call *call);
    int (*choose)(struct mgpu_library_call *call, int candidate);
};

extern const struct mgpu_library_family mgpu_library_cudnn, mgpu_library_rnn, mgpu_library_matmul;

/* ---- library_tune.c ---- */

/* Makes the call use its fastest candidate: the one that is remembered, or else each is run on
 * memory of its own. Where nothing can be remembered the library's own choice stays, so that every
 * run of a program makes the same. */
int mgpu_library_tune(struct mgpu_library_call *call);

/* The candidate that was the fastest for such a computation, on such a GPU; -1: nobody knows. */
int mgpu_library_remembered(const struct mgpu_library *library, const char *words);

/* Operand i of a node (inputs, then outputs); NULL: absent. */
const struct mgpu_value *mgpu_library_operand(const struct mgpu_node *node, int i);

#endif
