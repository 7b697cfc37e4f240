/* Which nodes have kernels for channels in blocks (graph.h), and what those kernels share. */
#ifndef MGPU_CPU_BLOCKS_H
#define MGPU_CPU_BLOCKS_H

#include "runtime/cpu/cpu.h"

enum { MGPU_MOST_BLOCK = 16 };

/* Channels in a block on this machine: the widest that oneDNN convolves with its own code, 16 or 8.
 * 0: none. */
int mgpu_cpu_block(void);

/* mgpu_backend's `blocks`. */
bool mgpu_cpu_blocks(const struct mgpu_node *node, int *block, int64_t *hidden);

/* The same for convolutions: what oneDNN asks for. */
bool mgpu_cpu_conv_blocks(const struct mgpu_node *node, int *block, int64_t *hidden);

/* Whether conv_few.c computes this gradient: it wants x plain. */
bool mgpu_cpu_few_channels(const struct mgpu_node *node);

/* A tensor in blocks as samples of `blocks` planes of `places` times `block` elements. */
struct mgpu_planes {
    int64_t samples, channels, blocks, places;
    int block;
};
struct mgpu_planes mgpu_planes_of(const struct mgpu_tensor *t);

/* Sums over the places of a block of channels, times `factor`, to `block` numbers: of the planes
 * first, first + step ... */
void mgpu_sum_planes(const struct mgpu_tensor *x, int64_t first, int64_t planes, int64_t step,
                     double factor, float *to);

/* Zeroes the lanes behind the last channel. */
void mgpu_clear_padding(const struct mgpu_tensor *t);

#endif
