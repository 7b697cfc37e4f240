/* One step of a recurrent layer in plain C: what the forward and the backward kernel share.
 *
 * Formulas: ONNX operator texts RNN, GRU and LSTM. `clip` bounds what enters the activations of the
 * gates; the cell state of an LSTM is not clipped (as in ONNX Runtime). All state is double; N is
 * the number of samples, H the hidden size, G the number of gates.
 */
#ifndef MGPU_REF_RNN_CELL_H
#define MGPU_REF_RNN_CELL_H

#include "runtime/ops/rnn.h"
#include "runtime/ref/gemm.h"

struct mgpu_rnn_layer {
    const struct mgpu_rnn_attrs *attrs;
    int64_t steps, directions, samples, inputs, hidden, gates; /* T, D, N, I, H, G */
    const struct mgpu_tensor *x, *w, *r;
    const struct mgpu_tensor *bias, *lengths, *initial_h, *initial_c, *peephole; /* NULL: absent */
};

/* What one step of all samples computes. */
struct mgpu_rnn_cell {
    double *sum, *gate; /* [N,G*H]: what enters the activations, and what leaves them */
    double *part;       /* GRU [N,H]: what R of the candidate multiplies (r .* h), or, with
                         * linear_before_reset, what r multiplies (h R + Rb) */
    double *h, *c;      /* [N,H]: the new state */
};

/* Carves a cell from *scratch and moves that on. */
void mgpu_rnn_cell_carve(const struct mgpu_rnn_layer *layer, double **scratch,
                         struct mgpu_rnn_cell *cell);

/* Input `i`, or NULL when it is absent. */
const struct mgpu_tensor *mgpu_rnn_input(const struct mgpu_launch *launch, int i);

/* From the inputs that rnn and rnn_grad have in common; checks sequence_lens. */
int mgpu_rnn_layer_of(const struct mgpu_launch *launch, struct mgpu_rnn_layer *layer);

bool mgpu_rnn_reversed(const struct mgpu_rnn_layer *layer, int64_t direction);

/* Whether step t is part of sample n's sequence. */
bool mgpu_rnn_valid(const struct mgpu_rnn_layer *layer, int64_t t, int64_t n);

/* Derivative of activation `which` (0 f, 1 g, 2 h) at `sum`, clip included. */
double mgpu_rnn_slope(const struct mgpu_rnn_layer *layer, int64_t direction, int which, double sum);

/* The h of an LSTM, at a cell state: no clip. */
double mgpu_rnn_cell_output(const struct mgpu_rnn_layer *layer, int64_t direction, double c);
double mgpu_rnn_cell_slope(const struct mgpu_rnn_layer *layer, int64_t direction, double c);

/* Step t from states h and c [N,H] (c: LSTM only). Samples whose sequence has ended are computed
 * like the others; the caller drops them. */
void mgpu_rnn_step(const struct mgpu_rnn_layer *layer, int64_t direction, int64_t t,
                   const double *h, const double *c, const struct mgpu_rnn_cell *cell);

/* Rows of gates [first, first + count) of w or r of a direction, as [count * H, width]. */
struct mgpu_matrix mgpu_rnn_weights(const struct mgpu_rnn_layer *layer, const struct mgpu_tensor *w,
                                    int64_t direction, int64_t first);
struct mgpu_matrix mgpu_rnn_doubles(double *data, int64_t row);
struct mgpu_matrix mgpu_rnn_transposed(struct mgpu_matrix m);

int mgpu_ref_rnn_grad(const struct mgpu_launch *launch);

#endif
