/* What the kernels of rnn and of rnn_grad share.
 *
 * What goes over all steps at once is a product in tiles. The steps follow one another in one
 * launch: a block takes a few samples of a direction through all of them, as no sample waits for
 * another, and its threads one unit each, or every THREADS-th. */
#ifndef MGPU_EMIT_RNN_H
#define MGPU_EMIT_RNN_H

#include "runtime/emit/tiles.h"
#include "runtime/ops/rnn.h"

enum mgpu_rnn_operand {
    MGPU_RNN_X,
    MGPU_RNN_W,
    MGPU_RNN_R,
    MGPU_RNN_B,
    MGPU_RNN_LENGTHS,
    MGPU_RNN_H,
    MGPU_RNN_C,
    MGPU_RNN_P,
    MGPU_RNN_Y,
    MGPU_RNN_RESERVE,
    MGPU_RNN_DY,
    MGPU_RNN_DY_H,
    MGPU_RNN_DY_C
};

struct mgpu_rnn_text {
    const struct mgpu_rnn_attrs *attrs;
    long long T, N, I, H, G, D;
    long long width;         /* of the reserve, in units of H */
    int samples, threads;    /* of a block */
    long long blocks;        /* of a direction */
    const char *type, *real; /* in memory, in computation */
    const char *suffix;
    bool lstm, gru, after; /* after: a GRU that resets behind its product */
};

struct mgpu_rnn_text mgpu_rnn_text_of(const struct mgpu_node *node);

bool mgpu_rnn_has(const struct mgpu_writer *w, int input);

/* Declares part `name` of the workspace, `count` numbers at *at, which moves on. w NULL: it only
 * moves on. */
void mgpu_rnn_write_part(struct mgpu_writer *w, const struct mgpu_rnn_text *p, const char *name,
                         int64_t *at, int64_t count);

/* Sets the workspace of that many numbers. */
void mgpu_rnn_set_workspace(struct mgpu_writer *w, int64_t numbers);

/* "x5[...]" as a number, or "0" where the input is absent. */
const char *mgpu_rnn_load(char text[200], const struct mgpu_writer *w,
                          const struct mgpu_rnn_text *p, int input, const char *at);

/* Activation `which` (0 f, 1 g, 2 h) of direction d, or its slope, at an expression. */
void mgpu_rnn_write_activation(struct mgpu_writer *w, const struct mgpu_rnn_text *p, bool slope,
                               int which, const char *x);

/* Opens the kernel that goes through the steps, behind the declarations of parts: `d`, `n0`,
 * and by sample `n[]` (some may be twice the last) and `at[]`, where its states lie. */
void mgpu_rnn_write_block(struct mgpu_writer *w, const struct mgpu_rnn_text *p);

/* Loops: over the units of this thread, `j`; over the block's samples, `s`, or those that there
 * are. */
#define MGPU_RNN_UNITS   "    for (int j = threadIdx.x; j < %lld; j += %d) {\n"
#define MGPU_RNN_SAMPLES "    for (int s = 0; s < %d; s++) {\n"
#define MGPU_RNN_OWN     "    for (int s = 0; s < %d && n0 + s < %lld; s++) {\n"

/* "t < x4[n]" or "1": whether step t is part of sample n's sequence. */
void mgpu_rnn_write_valid(struct mgpu_writer *w, const char *t, const char *n);

/* "1" or "d": whether direction d goes from the end. */
const char *mgpu_rnn_reversed_text(const struct mgpu_rnn_text *p);

/* " + ...": the biases of what X gives gates from `first` on, whose units are j, and of what R
 * gives, unless that is reset; of direction `batch`. */
void mgpu_rnn_write_bias(struct mgpu_writer *w, const struct mgpu_rnn_text *p, long long first);

/* "x7[...]": what gate (0 i, 1 o, 2 f) adds of a cell's state, for unit j of direction d, or "0".
 */
const char *mgpu_rnn_peephole(char text[200], const struct mgpu_writer *w,
                              const struct mgpu_rnn_text *p, int gate);

bool mgpu_rnn_accepts(const struct mgpu_node *node);

#endif
