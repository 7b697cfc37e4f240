/* oneDNN 2.6 (C API), as the kernels of this folder use it: one primitive made ready for operands
 * that lie outside in a layout of our choosing, whatever layout the primitive prefers inside.
 *
 * Where both layouts agree the primitive works on the operand itself; where they differ the operand
 * is reordered on the way in or out, through the kernel's workspace. Scratchpads lie in the
 * workspace too, so running allocates nothing of ours. oneDNN types stop in this folder.
 */
#ifndef MGPU_CPU_ONEDNN_H
#define MGPU_CPU_ONEDNN_H

#include "runtime/base/status.h"
#include "runtime/ops/op.h"

#include <dnnl.h>

/* An operand of a primitive: which argument it is and how it lies outside. */
struct mgpu_dnn_operand {
    int arg; /* DNNL_ARG_SRC ... */
    bool output;
    dnnl_memory_desc_t outside;
};

/* A primitive ready to run. Used by one thread at a time. */
struct mgpu_dnn;

/* Makes the primitive of a oneDNN operation descriptor (dnnl_convolution_desc_t ...); `forward` is
 * the forward operation's descriptor where a backward one needs it as a hint, else NULL. `alone`:
 * it is made for the calling thread alone, not for its OpenMP team; so it will run. */
int mgpu_dnn_new(struct mgpu_dnn **out, const_dnnl_op_desc_t operation,
                 const_dnnl_op_desc_t forward, int count, const struct mgpu_dnn_operand *operands,
                 bool alone);

/* From one layout to another: operands from, to. */
int mgpu_dnn_reorder(struct mgpu_dnn **out, const dnnl_memory_desc_t *from,
                     const dnnl_memory_desc_t *to, bool alone);

/* Whether oneDNN has code for the operation that is not its plain reference; then layouts[i] is the
 * one that it takes argument args[i] in. */
bool mgpu_dnn_prefers(const_dnnl_op_desc_t operation, const_dnnl_op_desc_t forward, int count,
                      const int *args, dnnl_memory_desc_t *layouts);

/* Whether the node is done sooner than another thread is woken. */
bool mgpu_dnn_small(const struct mgpu_node *node);

void mgpu_dnn_free(struct mgpu_dnn *dnn);

/* Bytes of workspace that running needs. */
int64_t mgpu_dnn_workspace(const struct mgpu_dnn *dnn);

/* Operands that each run brings into another layout, as bits: inputs in their order, outputs from
 * bit `inputs` on. */
unsigned mgpu_dnn_reordered(const struct mgpu_dnn *dnn, int inputs);

/* The name of the implementation that oneDNN picked ("brgconv:avx512_core"). */
const char *mgpu_dnn_name(const struct mgpu_dnn *dnn);

/* Brings operand i, an input, into the layout inside, for the runs that follow on this workspace
 * and have NULL as data[i]. An operand that needs no reordering is remembered. */
int mgpu_dnn_load(struct mgpu_dnn *dnn, int i, void *data, void *workspace);

/* Runs it on data[i] of operand i, on the calling thread and its OpenMP team. */
int mgpu_dnn_run(struct mgpu_dnn *dnn, void *const *data, void *workspace);

/* y [m,n] = a [m,k] b [k,n] of dense rows: operands a, b, y. Either is stored transposed if asked.
 * `pack` leaves b's layout inside to oneDNN: for a b that is loaded once and used often. */
int mgpu_dnn_product(struct mgpu_dnn **out, int64_t m, int64_t n, int64_t k, bool transpose_a,
                     bool transpose_b, bool pack, bool alone);

/* release and workspace of a kernel whose whole state is one such primitive. */
void mgpu_dnn_release_state(void *state);
int64_t mgpu_dnn_state_workspace(const struct mgpu_node *node, int threads, const void *state);

/* Descriptors of float tensors: row-major; by strides in elements; by oneDNN's name of
 * the layout (dnnl_format_tag_any: left to the primitive). */
dnnl_memory_desc_t mgpu_dnn_plain(int rank, const int64_t *dims);
dnnl_memory_desc_t mgpu_dnn_strided(int rank, const int64_t *dims, const int64_t *strides);
dnnl_memory_desc_t mgpu_dnn_tagged(int rank, const int64_t *dims, dnnl_format_tag_t tag);

/* Of a [N,C,S...] whose channels lie in blocks of 8 or 16; 0: row-major. */
dnnl_memory_desc_t mgpu_dnn_blocked(int rank, const int64_t *dims, int block);

/* 0, or an error that says what oneDNN refused. */
int mgpu_dnn_check(dnnl_status_t status, const char *what);

#endif
