/* One row of the operator harness made into numbers and graphs (used by op_check.c, split_check.c).
 */
#ifndef MGPU_TESTS_OP_CASE_H
#define MGPU_TESTS_OP_CASE_H

#include "tests/ops/op_check.h"
#include "tests/ops/run_graph.h"

/* The node with inputs for one batch size, then its gradient. */
struct op_case {
    struct mgpu_graph *graph;
    struct mgpu_value *in[MGPU_MAX_INPUTS];
    struct mgpu_node *node;
    bool has_gradient;                       /* dy and dx are filled in */
    struct mgpu_value *dy[MGPU_MAX_OUTPUTS]; /* inputs of the graph; NULL: none arrives */
    struct mgpu_value *dx[MGPU_MAX_INPUTS];  /* NULL: zero, or not wanted */
};

/* The numbers of a row at its whole batch; all can be written as float. */
struct op_numbers {
    int64_t batch;
    double *in[MGPU_MAX_INPUTS];
    double *dy[MGPU_MAX_OUTPUTS];
};

/* N of a row: 1 when nothing carries it. */
int64_t op_case_batch(const struct mgpu_check *check);

/* Whether the batch can be cut at all: something carries it. */
bool op_case_has_batch(const struct mgpu_check *check);

/* Whether input i is asked for its gradient. */
bool op_case_wanted(const struct mgpu_check *check, int i);

/* Builds the graph with `type` as the float type. On failure the case is empty. */
int op_case_build(struct op_case *c, const struct mgpu_check *check, enum mgpu_dtype type,
                  int64_t batch);
void op_case_free(struct op_case *c);

/* Draws the numbers; `whole` is the case at the whole batch. */
void op_numbers_init(struct op_numbers *n, const struct mgpu_check *check,
                     const struct op_case *whole);
void op_numbers_free(struct op_numbers *n);

/* Feeds all inputs and gradients of a whole case. */
int op_numbers_feed(const struct op_numbers *n, struct mgpu_run *run, const struct op_case *whole);

/* A number in [0, 1) that follows from *seed, which moves on. */
double op_random(uint64_t *seed);

/* The largest |a[i] - b[i]|, and the largest |b[i]|. A NaN in one of them only is infinite. */
double op_distance(const double *a, const double *b, int64_t count);
double op_largest(const double *b, int64_t count);

#endif
