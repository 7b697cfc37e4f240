/* A backend: what can run core operators on one kind of device.
 *
 * A backend is a table of kernels. A kernel runs one operator for the nodes that it accepts. When a
 * node is compiled, the kernels of its rank's backend are asked in table order; `ref` accepts
 * everything and is asked last. A kernel is prepared once per instruction (shapes are known then)
 * and runs many times; running allocates nothing.
 */
#ifndef MGPU_BACKEND_H
#define MGPU_BACKEND_H

#include "runtime/ops/op.h"

/* An operand as a kernel sees it: plain row-major elements, or channels in blocks (graph.h). NULL
 * data: the operand is absent. */
struct mgpu_tensor {
    void *data;
    enum mgpu_dtype type;
    int rank;
    int block; /* 0: plain, always so for the kernels of backend->tables */
    int64_t dims[MGPU_MAX_RANK];
};

struct mgpu_launch {
    const struct mgpu_node *node; /* op and attrs; shapes stand in in[] and out[] */
    int inputs, outputs;
    const struct mgpu_tensor *in, *out;
    void *workspace; /* kernel->workspace bytes, 64-byte aligned */
    void *state;     /* what prepare made */
    int threads;     /* threads this rank may use (OpenMP: already set for the calling thread) */
    void *queue;     /* where it is submitted to (runtime/cuda/kernels.h); NULL: it runs at once */
};

struct mgpu_kernel {
    const char *op;   /* the operator's name */
    const char *name; /* "ref", "onednn" ...: for profiles */

    /* Whether it can run this node. NULL: any. */
    bool (*accepts)(const struct mgpu_node *node);

    /* Makes what running needs (primitives, tables) for `threads` threads. NULL: nothing. `exact`
     * forbids algorithms with larger rounding (Winograd). MGPU_EUNSUPPORTED: it cannot run this one
     * after all; the next kernel that accepts the node does. */
    int (*prepare)(const struct mgpu_node *node, int threads, bool exact, void **state);
    void (*release)(void *state);

    /* Bytes of scratch; NULL: none. Called after prepare. */
    int64_t (*workspace)(const struct mgpu_node *node, int threads, const void *state);

    int (*run)(const struct mgpu_launch *launch);
};

struct mgpu_backend {
    const char *name;  /* "ref", "cpu" */
    bool biases_apart; /* no kernel of it gives conv_grad_weight's second output */
    int most_parts;    /* of a concatenation that its kernels take; 0: any number */
    bool ends;         /* its kernels of matmul and conv know what compilation makes of these */
    bool spares;       /* memory, for a pass over an expression (runtime/compile/again.c) */

    /* NULL-terminated lists of tables, each ended by a NULL op: for nodes whose operands are all
     * plain, and for those that have operands in blocks. */
    const struct mgpu_kernel *const *tables, *const *blocked;

    /* Kernels of algorithms with larger rounding (Winograd), for either; NULL: none. Not for
     * --exact. */
    const struct mgpu_kernel *const *inexact;

    /* Whether a kernel of `blocked` can run the node; then block[i] is what operand i (inputs, then
     * outputs) must have, and *hidden the elements that a plain kernel reorders on the way in and
     * out. It depends on the sizes of one sample, not on how many there are; that of what ranks
     * send each other on its type and sizes alone. NULL: never. */
    bool (*blocks)(const struct mgpu_node *node, int *block, int64_t *hidden);

    /* Operands (inputs, then outputs) that a kernel of it brings into another layout each time it
     * runs, as bits; what prepare made is in `state`. NULL: none that it knows of. */
    unsigned (*reordered)(const struct mgpu_node *node, const struct mgpu_kernel *kernel,
                          const void *state);
};

extern const struct mgpu_backend mgpu_backend_ref;
extern const struct mgpu_backend mgpu_backend_cpu; /* fast kernels, then ref's */

/* The tensor of a value whose elements are at `data`; v NULL: absent. */
void mgpu_tensor_of(struct mgpu_tensor *t, const struct mgpu_value *v, void *data);

/* The first kernel of the backend that accepts the node, or NULL; the second asks the inexact ones
 * first. */
const struct mgpu_kernel *mgpu_backend_kernel(const struct mgpu_backend *backend,
                                              const struct mgpu_node *node);
const struct mgpu_kernel *mgpu_backend_fastest(const struct mgpu_backend *backend,
                                               const struct mgpu_node *node);

/* The next one behind `kernel` that accepts the node, or NULL. */
const struct mgpu_kernel *mgpu_backend_next(const struct mgpu_backend *backend,
                                            const struct mgpu_node *node,
                                            const struct mgpu_kernel *kernel);

/* Runs one node at once on host buffers, preparing and releasing: folding, tests. data of absent
 * operands is NULL. */
int mgpu_backend_run(const struct mgpu_backend *backend, const struct mgpu_node *node,
                     const void *const *in, void *const *out);

#endif
