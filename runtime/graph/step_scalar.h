/* The step-scalar buffer: what changes from step to step, in one array of doubles that kernels read
 * (never C arguments, so that a recorded step can be replayed). A graph refers to field i by
 * mgpu_graph_scalar(g, i, name), a rank-0 double.
 */
#ifndef MGPU_GRAPH_STEP_SCALAR_H
#define MGPU_GRAPH_STEP_SCALAR_H

enum mgpu_step_scalar {
    MGPU_SCALAR_STEP,        /* updates done before this one: 0 at the first */
    MGPU_SCALAR_LR_FACTOR,   /* schedule and warm-up: multiplies every learning rate */
    MGPU_SCALAR_BATCH,       /* samples of the whole batch, all ranks and pieces */
    MGPU_SCALAR_PIECE,       /* samples of this piece of the batch, all ranks (--accumulate) */
    MGPU_SCALAR_PIECE_SHARE, /* PIECE / BATCH */
    MGPU_SCALAR_RANK_SHARE,  /* this rank's samples of the piece / PIECE */
    MGPU_SCALAR_KEY,         /* random key of the run (below 2^53) */
    MGPU_SCALAR_SAMPLE_BASE, /* place in the whole batch of this rank's first sample of the piece */
    MGPU_SCALAR_LOSS_SCALE, /* what gradients are multiplied by (float16), a power of two; else 1 */
    MGPU_SCALAR_UNSCALE,    /* 1 / LOSS_SCALE */
    MGPU_SCALAR_LOSS,       /* 1 / (what loss i counts over the whole batch); one field a loss */
    MGPU_MAX_LOSSES = 16,
    MGPU_SCALARS = MGPU_SCALAR_LOSS + MGPU_MAX_LOSSES
};

#endif
