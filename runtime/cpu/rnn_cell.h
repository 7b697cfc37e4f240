/* The cells of RNN, GRU (linear before reset) and LSTM with their usual activations: one sample at
 * one step, H units, float. Formulas: ONNX operator texts. Gates lie as in ONNX (GRU z r h, LSTM
 * i o f c) and so does the reserve (runtime/ops/rnn.h).
 */
#ifndef MGPU_CPU_RNN_CELL_H
#define MGPU_CPU_RNN_CELL_H

#include "runtime/ops/rnn.h"

enum mgpu_cpu_cell { MGPU_CELL_TANH, MGPU_CELL_RELU, MGPU_CELL_GRU, MGPU_CELL_LSTM };

/* s [G*H]: what the input sends to the gates; u [G*H]: what the state sends; bias [G*H] of both,
 * but for the GRU's candidate, whose recurrent bias is part_bias [H]. Overwrites h [H] and c [H]
 * (LSTM) and fills the reserve's row. */
void mgpu_cpu_cell_forward(enum mgpu_cpu_cell cell, int64_t hidden, const float *s, const float *u,
                           const float *bias, const float *part_bias, float *h, float *c,
                           float *reserve);

/* From the gradient of the new state in dh and dc [H]: the gradients ds of s and du of u (the same
 * but for the GRU); leaves in dh and dc what reaches the old state without passing R. */
void mgpu_cpu_cell_backward(enum mgpu_cpu_cell cell, int64_t hidden, const float *reserve,
                            const float *old_h, const float *old_c, float *dh, float *dc, float *ds,
                            float *du);

#endif
