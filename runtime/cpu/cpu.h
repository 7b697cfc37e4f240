/* The `cpu` backend: fast float kernels over plain row-major operands, and over images whose
 * channels lie in blocks (blocks.h), several threads a rank.
 *
 * Convolutions go through oneDNN, products through its kernel or our own; the rest are loops
 * written so that the compiler turns them into vector code (simd.h). Each file ends in its table of
 * kernels; what a kernel does not accept falls to `ref`. Kernels give the same bits for the same
 * shapes and the same thread count.
 */
#ifndef MGPU_CPU_CPU_H
#define MGPU_CPU_CPU_H

#include "runtime/ref/ref.h"

extern const struct mgpu_kernel mgpu_cpu_conv[];
extern const struct mgpu_kernel mgpu_cpu_reorder[];
extern const struct mgpu_kernel mgpu_cpu_packed[];
extern const struct mgpu_kernel mgpu_cpu_matmul[];
extern const struct mgpu_kernel mgpu_cpu_attention[];
extern const struct mgpu_kernel mgpu_cpu_pointwise[];
extern const struct mgpu_kernel mgpu_cpu_reduce[];
extern const struct mgpu_kernel mgpu_cpu_transpose[];
extern const struct mgpu_kernel mgpu_cpu_pool[];
extern const struct mgpu_kernel mgpu_cpu_softmax[];
extern const struct mgpu_kernel mgpu_cpu_loss[];
extern const struct mgpu_kernel mgpu_cpu_batch_norm[];
extern const struct mgpu_kernel mgpu_cpu_group_norm[];
extern const struct mgpu_kernel mgpu_cpu_rnn[];
extern const struct mgpu_kernel mgpu_cpu_rnn_grad[];
extern const struct mgpu_kernel mgpu_cpu_update[];

/* For operands in blocks, as are those of reorder, pointwise and conv. */
extern const struct mgpu_kernel mgpu_cpu_pool_blocks[];
extern const struct mgpu_kernel mgpu_cpu_batch_norm_blocks[];
extern const struct mgpu_kernel mgpu_cpu_channel_blocks[];
extern const struct mgpu_kernel mgpu_cpu_conv_few[];
extern const struct mgpu_kernel mgpu_cpu_winograd[];

/* What mgpu_backend's `reordered` says of convolutions, and of products: those that are packed. */
unsigned mgpu_cpu_conv_reordered(const struct mgpu_node *node, const struct mgpu_kernel *kernel,
                                 const void *state);
unsigned mgpu_cpu_product_reordered(const struct mgpu_kernel *kernel);

/* Every operand that is there is float, and none is empty. */
bool mgpu_cpu_all_float(const struct mgpu_node *node);

/* How many of `threads` are worth waking for work on about `elements` elements. */
int mgpu_cpu_team(int threads, int64_t elements);

/* Part `part` of `parts` of [0, count). */
struct mgpu_range {
    int64_t begin, end;
};
struct mgpu_range mgpu_cpu_part(int64_t count, int part, int parts);

/* Outputs of more elements than caches keep until they are read are written past them: a line that
 * is written is not read before, which is a third of what memory does for a copy, and what caches
 * hold stays there. Not where output 0 takes the place of an input. */
bool mgpu_cpu_is_beyond(int64_t elements);
bool mgpu_cpu_in_place(const struct mgpu_launch *l);
void mgpu_cpu_write_past(float *to, const float *from, int64_t n);
void mgpu_cpu_end_past(void); /* by each thread that wrote, before others may read */

#endif
