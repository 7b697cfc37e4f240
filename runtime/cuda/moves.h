/* Many copies between places of a GPU's memory in one launch: each of rows that lie apart, where a
 * copy for each part would cost a launch for each.
 *
 *     struct mgpu_moves m = {0};
 *     mgpu_moves_add(&m, (struct mgpu_move){.to = y, .from = x, .width = bytes});     and so on
 *     mgpu_moves_run(mover, &driver, &m, stream)
 *
 * Moves of a list may run in any order: none may touch what another writes. */
#ifndef MGPU_CUDA_MOVES_H
#define MGPU_CUDA_MOVES_H

#include "runtime/cuda/api.h"

/* `blocks` of `rows` of `width` bytes each; 0 is 1. Row r of block b begins at
 * to + b * to_block + r * to_row, and so on; distances are bytes and may be negative. The kernel
 * has the same structure (moves.c). */
struct mgpu_move {
    void *to;
    const void *from; /* NULL: `value` is written, in 4 bytes */
    int64_t to_row, from_row, to_block, from_block;
    int64_t width, rows, blocks;
    uint32_t value;
    uint32_t unit; /* bytes that a thread moves at a time; mgpu_moves_add finds it */
};

enum { MGPU_MOST_MOVES = 40 }; /* a kernel's parameters have 4 KiB at most */

struct mgpu_moves {
    int32_t count, share; /* share: blocks of threads for each move; mgpu_moves_run finds it */
    struct mgpu_move move[MGPU_MOST_MOVES];
};

/* Everything must lie on a boundary of 2 bytes. Without bytes it adds nothing. */
void mgpu_moves_add(struct mgpu_moves *moves, struct mgpu_move move);

/* The kernel for the current context's GPU of compute capability `sm`; unload the module last. */
int mgpu_moves_load(CUmodule *module, CUfunction *mover, const struct mgpu_cuda_driver *driver,
                    int sm);

/* Submits all moves as one launch, or as none where there are none. */
int mgpu_moves_run(CUfunction mover, const struct mgpu_cuda_driver *driver,
                   struct mgpu_moves *moves, CUstream stream);

/* The kernel's text, of function `move`, whose only parameter is a struct mgpu_moves. */
extern const char mgpu_moves_text[];

#endif
