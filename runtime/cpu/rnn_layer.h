/* What the forward and the backward kernel of a recurrent layer share.
 *
 * What goes over all steps at once (the input's part of the gates, the gradients of weights) is one
 * matrix product on all threads. The steps follow one another; there the samples are cut among the
 * threads once for the whole sequence, each with products of its own, so that no thread waits for
 * another before the end. Where a thread would have too few samples, one goes alone and its
 * products take all threads.
 */
#ifndef MGPU_CPU_RNN_LAYER_H
#define MGPU_CPU_RNN_LAYER_H

#include "runtime/cpu/cpu.h"
#include "runtime/cpu/onednn.h"
#include "runtime/cpu/rnn_cell.h"

/* A product over all steps, by our own kernel or (dnn) by oneDNN. */
struct mgpu_cpu_rnn_product {
    struct mgpu_dnn *dnn;
    int64_t m, n, k;
    bool transpose_a, transpose_b;
};

struct mgpu_cpu_rnn {
    enum mgpu_cpu_cell cell;
    int64_t steps, directions, samples, inputs, hidden, gates, width; /* T D N I H G, reserve's */
    bool reverse;
    int team;               /* threads that the samples are cut among */
    struct mgpu_dnn **step; /* one a thread: [n, ...] by R */
    struct mgpu_cpu_rnn_product products[3];
    int threads;                               /* that do them */
    int64_t product_workspace, step_workspace; /* bytes: of any product; of any step[] */
};

/* Whether the layer is one that these kernels know. */
bool mgpu_cpu_rnn_accepts(const struct mgpu_node *node);

/* The sizes; no products yet. */
struct mgpu_cpu_rnn *mgpu_cpu_rnn_new(const struct mgpu_node *node, int threads);
void mgpu_cpu_rnn_free(void *layer);

/* Makes step[]: [n, G*H] by R when `backward`, else [n, H] by R transposed. */
int mgpu_cpu_rnn_make_steps(struct mgpu_cpu_rnn *p, bool backward);

/* Makes products[i]: y [m,n] of a and b, of dense rows; either is stored transposed if asked. */
int mgpu_cpu_rnn_make_product(struct mgpu_cpu_rnn *p, int i, int64_t m, int64_t n, int64_t k,
                              bool transpose_a, bool transpose_b);
int mgpu_cpu_rnn_multiply(const struct mgpu_cpu_rnn *p, int i, const float *a, const float *b,
                          float *y, void *workspace);

/* The samples of a thread. */
struct mgpu_range mgpu_cpu_rnn_samples(const struct mgpu_cpu_rnn *p, int thread);

/* The step that a direction does as its i-th. */
int64_t mgpu_cpu_rnn_time(const struct mgpu_cpu_rnn *p, int64_t direction, int64_t i);

/* Whether step t is part of sample n's sequence; lengths NULL: always. */
bool mgpu_cpu_rnn_valid(const int32_t *lengths, int64_t t, int64_t n);

/* Fails when a sequence length is out of range. */
int mgpu_cpu_rnn_check_lengths(const struct mgpu_cpu_rnn *p, const int32_t *lengths);

/* Takes `count` floats from *scratch, on a cache line of their own. */
float *mgpu_cpu_rnn_take(char **scratch, int64_t count);
int64_t mgpu_cpu_rnn_bytes(int64_t count);

#endif
