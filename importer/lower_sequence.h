/* Sequences and optionals, which exist only while a model is lowered: every sequence is a list of
 * values that is known, every optional is its value or nothing. */
#ifndef MGPU_IMPORTER_LOWER_SEQUENCE_H
#define MGPU_IMPORTER_LOWER_SEQUENCE_H

#include "importer/lower.h"

/* Stands where a value stands, in in[] and out[] of Identity, Loop, If and the operators of
 * sequences and optionals; the others get tensors only. */
struct mgpu_sequence {
    struct mgpu_value value; /* its type is MGPU_UNDEFINED, which no tensor has */
    bool absent;             /* an optional without a value */
    struct mgpu_dim size;    /* how many: may grow with the batch */
    struct mgpu_value **item;
};

/* The sequence that a value is; NULL: a tensor. */
struct mgpu_sequence *mgpu_as_sequence(struct mgpu_value *value);

/* One of `size` places, to be filled. */
struct mgpu_sequence *mgpu_sequence_new(struct mgpu_lower *l, struct mgpu_dim size);

/* `count` values of one shape side by side on a new first axis of size `count`. Where their number
 * grows with the batch they are one computation a sample, and it is put together again: [N, ...]
 * that can be split. Where it cannot be, the graph is marked (mgpu_graph_whole). */
struct mgpu_value *mgpu_lower_stack(struct mgpu_lower *l, struct mgpu_dim count,
                                    struct mgpu_value *const *value);

/* [count, ...] with the first axis moved to `axis`. */
struct mgpu_value *mgpu_lower_move_first(struct mgpu_lower *l, struct mgpu_value *a, int axis);

#endif
