/* rnn: ONNX's RNN, GRU and LSTM with layout 0.
 *
 *     rnn(X [T,N,I], W [D,G*H,I], R [D,G*H,H], B [D,2*G*H]?, sequence_lens int32 [N]?,
 *         initial_h [D,N,H]?, initial_c [D,N,H]?, P [D,3*H]?)
 *         -> Y [T,D,N,H], Y_h [D,N,H], Y_c [D,N,H] (LSTM), reserve (what backward needs)
 *
 * G = 1, 3 (z r h), 4 (i o f c). D = 2 when bidirectional. Formulas: ONNX operator text (RNN, GRU,
 * LSTM). Steps past a sample's sequence length leave the state and give zeros in Y.
 *
 *     rnn_grad(X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?, Y, reserve, dY?, dY_h?,
 *              dY_c?) -> dX, dW, dR, dB?, d initial_h?, d initial_c?, dP?
 *
 * `reserve` is [T, D, N, reserve_width]: the gates after their activations, for LSTM the cell state
 * too, for GRU what linear_before_reset multiplies.
 */
#ifndef MGPU_OPS_RNN_H
#define MGPU_OPS_RNN_H

#include "runtime/ops/op.h"

enum mgpu_rnn_kind { MGPU_RNN, MGPU_GRU, MGPU_LSTM };
enum mgpu_rnn_direction { MGPU_RNN_FORWARD, MGPU_RNN_REVERSE, MGPU_RNN_BIDIRECTIONAL };
enum mgpu_rnn_activation {
    MGPU_ACT_SIGMOID,
    MGPU_ACT_TANH,
    MGPU_ACT_RELU,
    MGPU_ACT_AFFINE,
    MGPU_ACT_LEAKY_RELU,
    MGPU_ACT_THRESHOLDED_RELU,
    MGPU_ACT_SCALED_TANH,
    MGPU_ACT_HARD_SIGMOID,
    MGPU_ACT_ELU,
    MGPU_ACT_SOFTSIGN,
    MGPU_ACT_SOFTPLUS,
};

struct mgpu_rnn_attrs {
    int kind, direction;
    int64_t hidden;
    /* f, g, h of the forward direction, then of the reverse one (GRU uses f and g, RNN f) */
    int64_t activation[6];
    double alpha[6], beta[6];
    double clip; /* 0: none */
    bool input_forget, linear_before_reset;
};

extern const struct mgpu_op mgpu_op_rnn, mgpu_op_rnn_grad;

#endif
