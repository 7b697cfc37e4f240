/* Core operators that NVIDIA's libraries run: cuDNN's graphs (convolution, attention), its
 * RNNs, and cuBLASLt (matmul).
 *
 *     mgpu_library_open(&l, &options)
 *     if (mgpu_library_accepts(node) && mgpu_library_prepare(&call, l, node) == 0)
 *         mgpu_library_run(call, stream, operands, workspace)     as often as wanted
 *
 * Several threads may prepare calls; one at a time runs them. Running a call allocates nothing when
 * its operands lie where they lay before, does not synchronise, and may be captured. Results are
 * those of the operator's record.
 *
 * Layouts. A value is plain row-major, or channels-last: its `block` is its number of channels
 * (graph.h: [N,C,S...] in blocks of C lies as [N,1,S...,C]). Those of a node's operands that
 * mgpu_library_channels_last names must be all one or all the other; the rest is row-major.
 *
 * Types. Values are float, bfloat16 or float16; sums are taken in float. Statistics and gradients
 * of scales and shifts keep the types that the operator's record gives them.
 *
 * Errors begin with the operator; who calls names the node (mgpu_prefix).
 */
#ifndef MGPU_CUDA_LIBRARY_H
#define MGPU_CUDA_LIBRARY_H

#include "runtime/ops/op.h"

struct mgpu_library;
struct mgpu_library_call;

struct mgpu_library_options {
    /* NULL: the GPU of the calling thread's current context. Else a text of properties (JSON, as
     * tests/cuda/gpus): plans are made for that GPU, and nothing can run. */
    const char *properties;
    int sm;             /* that GPU's compute capability (90 is 9.0), where something is to run */
    bool tf32;          /* products of floats may be rounded to TF32 */
    bool exact;         /* no algorithm with larger rounding (Winograd) */
    bool deterministic; /* none whose result depends on an order of blocks */
    int64_t workspace;  /* no call may want more bytes; 0: no limit */
};

/* MGPU_EDEVICE: a library is missing or does not start, with its words. */
int mgpu_library_open(struct mgpu_library **out, const struct mgpu_library_options *options);
void mgpu_library_close(struct mgpu_library *library);

/* Whether there is code for such a node; a library may still have no engine for its sizes. Of a
 * node that compilation gave an end (runtime/compile/finish.c) the library is asked. */
bool mgpu_library_accepts(struct mgpu_library *library, const struct mgpu_node *node);

/* Whether operand `i` (inputs, then outputs) of a node that is accepted should lie channels-last:
 * images and filters whose products tensor cores take. In strict float cuDNN's engines are made for
 * row-major ones. */
bool mgpu_library_channels_last(const struct mgpu_library *library, const struct mgpu_node *node,
                                int i);

/* Whether products of this type are the tensor cores'. */
bool mgpu_library_tensor_cores(const struct mgpu_library *library, enum mgpu_dtype type);

/* Makes the plans; nodes of equal graphs of cuDNN's share one. MGPU_EUNSUPPORTED: no engine, with
 * the library's words: another kernel must run the node. The node must outlive the call. On a GPU
 * candidates are timed, once for a computation, kind of GPU and version of the libraries: the
 * fastest is remembered on disk (cache.h). */
int mgpu_library_prepare(struct mgpu_library_call **out, struct mgpu_library *library,
                         const struct mgpu_node *node);
void mgpu_library_release(struct mgpu_library_call *call);

/* The node was refused, for the reason of mgpu_error, and runs by a slower kernel: a warning says
 * so of the first such node. */
void mgpu_library_warn(struct mgpu_library *library, const struct mgpu_node *node);

/* Bytes of scratch on the GPU, on a 256-byte boundary. */
int64_t mgpu_library_workspace(const struct mgpu_library_call *call);

/* Submits it. operand[]: addresses on the GPU of inputs, then outputs, NULL where absent.
 * `stream`: CUstream. */
int mgpu_library_run(struct mgpu_library_call *call, void *stream, void *const *operand,
                     void *workspace);

#endif
