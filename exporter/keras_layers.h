/* What Keras calls its layers and their variables. */
#ifndef MGPU_EXPORTER_KERAS_LAYERS_H
#define MGPU_EXPORTER_KERAS_LAYERS_H

#include "runtime/base/memory.h"

#include <stdbool.h>

/* "MaxPooling2D" is "max_pooling2d", "PReLU" is "p_re_lu": Keras's own rule. */
const char *mgpu_keras_snake_case(struct mgpu_arena *arena, const char *class_name);

/* "dense_1" is number 1 of "dense", "dense" is number 0: the length of the name; the number is
 * counted from 0. */
size_t mgpu_keras_numbered(const char *name, int *number);

/* The layers in a MultiHeadAttention: what their groups in a store are called, and themselves. */
enum { MGPU_KERAS_ATTENTION = 4 };
extern const char *const mgpu_keras_attention[MGPU_KERAS_ATTENTION][2];

/* Their number by what the group is called; -1: it is none of them. */
int mgpu_keras_attention_part(const char *group);

/* "lstm_cell", "gru_cell_3": a part of a path that some versions of Keras put in. */
bool mgpu_keras_is_cell(const char *part);

/* "rnn/stacked_rnn_cells_2/lstm_cell_1" becomes "rnn/lstm_cell_1", there being several cells;
 * `cell` is the last '/'. false: nothing stacks it. */
bool mgpu_keras_take_stack(char *path, char *cell);

enum { MGPU_KERAS_VARIABLES = 4 };
/* The names of `count` variables of a layer of this class (in snake case), in the order in which
 * Keras keeps them. "" where `count` does not tell which one it is; false: an unknown class. */
bool mgpu_keras_variables(const char *names[MGPU_KERAS_VARIABLES], const char *class_name,
                          int count);

/* Whether a layer of Keras's own has a variable called so. */
bool mgpu_keras_is_variable(const char *name);

#endif
