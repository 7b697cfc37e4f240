/* How a framework's array lies in an ONNX initializer, exactly both ways.
 *
 * Every case is one walk: the framework's array is seen as `view`, its axes are taken in the order
 * `perm`, the gates of a recurrent layer in the order `order`, and the elements that come out are
 * `count` ones of the initializer from `at` on. Sources: ONNX's operator texts (Conv, Gemm, LSTM,
 * GRU, BatchNormalization), Keras's and PyTorch's layer documentation. */
#ifndef MGPU_EXPORTER_LAYOUTS_H
#define MGPU_EXPORTER_LAYOUTS_H

#include "runtime/base/array.h"

struct mgpu_weight_layout {
    int rank;
    int64_t view[MGPU_MAX_RANK];
    int perm[MGPU_MAX_RANK];
    int gates;                  /* axis of the view; -1: none */
    const unsigned char *order; /* the initializer's gate i is the framework's gate order[i] */
    bool negate;
    int64_t at, count;
    int64_t before; /* elements of the framework's array in front of those: other initializers' */
    /* Elements behind them that the framework has no variable for: zero coming in; going out they
     * are added (the second bias of an LSTM, which Keras has only one of). */
    int64_t tail;
};

/* Gate orders: ONNX's LSTM is i o f c, its GRU z r h. */
extern const unsigned char mgpu_gates_lstm[4]; /* of i f c o: Keras, PyTorch */
extern const unsigned char mgpu_gates_gru[3];  /* of r z n: PyTorch; Keras's z r h is ONNX's */

/* The same elements in the same order. */
struct mgpu_weight_layout mgpu_weight_layout_same(int rank, const int64_t *dims);
struct mgpu_weight_layout mgpu_weight_layout_permuted(int rank, const int64_t *view,
                                                      const int *perm);

/* What going out did with a tail. */
enum mgpu_tail { MGPU_TAIL_ZERO, MGPU_TAIL_ADDED, MGPU_TAIL_ROUNDED };

/* From the framework's array to the initializer (`to` is all of it), and back. */
void mgpu_weight_layout_in(const struct mgpu_weight_layout *layout, const void *from, void *to,
                           enum mgpu_dtype type);
enum mgpu_tail mgpu_weight_layout_out(const struct mgpu_weight_layout *layout, const void *from,
                                      void *to, enum mgpu_dtype type);

/* [cols,rows] out of [rows,cols]. */
void mgpu_weight_transpose(void *to, const void *from, enum mgpu_dtype type, int64_t rows,
                           int64_t cols);

#endif
