/* CUDA C of core operators: the text of the kernels that run a node, made from the node.
 *
 * Shapes stand in the text as numbers, so a text runs one node's shapes and the compiler sees them.
 * The text is in the common part of CUDA C++ and C: with mgpu_emit_prelude(true) before it NVRTC
 * compiles it, with mgpu_emit_prelude(false) a C compiler, for a machine without a GPU.
 *
 * A node takes one or more launches, one after the other. Launch k is function NAME_k; each takes a
 * pointer for every operand that is there (inputs, then outputs), then the workspace if there is
 * one. Results do not depend on the order in which blocks and threads run. An output may overwrite
 * an input where the operator's `alias` says so. What `ref` refuses while it runs (a label that is
 * no class, an index out of range) gives results that are not numbers: a kernel cannot stop the
 * step.
 */
#ifndef MGPU_EMIT_EMIT_H
#define MGPU_EMIT_EMIT_H

#include "runtime/ops/op.h"

enum { MGPU_EMIT_LAUNCHES = 40 };

struct mgpu_emit_launch {
    int64_t blocks; /* below 2^31 */
    int threads;    /* of a block: a multiple of 32, at most 1024 */
    bool together;  /* the threads of a block wait for one another */
};

struct mgpu_emitted {
    char *text;
    int parameters; /* pointers that each function takes */
    int launches;   /* 0: there is nothing to do */
    struct mgpu_emit_launch launch[MGPU_EMIT_LAUNCHES];
    int64_t workspace; /* bytes */
};

/* Whether there are kernels for the operator called so, and for the node. */
bool mgpu_emit_knows(const char *op);
bool mgpu_emit_accepts(const struct mgpu_node *node);

/* Whether there are kernels for the node with its images channels-last: in blocks of all channels
 * (graph.h). Then block[i] is what operand i (inputs, then outputs) must have. */
bool mgpu_emit_channels_last(const struct mgpu_node *node, int *block);

/* Makes the kernels of a node that is accepted, as functions NAME_0, NAME_1 ...; free with
 * mgpu_emitted_free. `stops`: each function takes one pointer more, to a u32, and does nothing
 * where that is not zero. */
void mgpu_emit(struct mgpu_emitted *out, const struct mgpu_node *node, const char *name,
               bool stops);

/* Kernels that belong to no node, as NAME_0. The first adds `members` arrays of float, double or
 * int64, in order, and writes the sum to all of them: a pointer each. The second takes an array of
 * float or double and a u32, which it makes 1 where an element is not finite. The third copies
 * `words` of 4 bytes, from its second pointer to its first, unless the u32 at its third is 0. */
void mgpu_emit_sum(struct mgpu_emitted *out, enum mgpu_dtype type, int members, int64_t count,
                   const char *name);
void mgpu_emit_finite(struct mgpu_emitted *out, enum mgpu_dtype type, int64_t count,
                      const char *name);
void mgpu_emit_put_back(struct mgpu_emitted *out, int64_t words, const char *name);
void mgpu_emitted_free(struct mgpu_emitted *emitted);

/* What stands before the kernels: for NVRTC, or for a C compiler (prelude_host.cu says what the
 * caller must do). */
const char *mgpu_emit_prelude(bool device);

#endif
