/* Small graphs for the tests of rewrites, and whether a rewrite keeps their numbers. */
#ifndef MGPU_TESTS_COMPILE_REWRITES_H
#define MGPU_TESTS_COMPILE_REWRITES_H

#include "runtime/backend.h"
#include "runtime/graph/graph.h"

/* An empty graph that computes in `type`. */
struct mgpu_graph *rewrite_graph(enum mgpu_dtype type);

/* Inputs [rows,columns] and [3,2,5]; a weight [rows,columns]. */
struct mgpu_value *rewrite_matrix(struct mgpu_graph *g, const char *name, int64_t rows,
                                  int64_t columns);
struct mgpu_value *rewrite_image(struct mgpu_graph *g, const char *name);
struct mgpu_value *rewrite_weight(struct mgpu_graph *g, const char *name, int64_t rows,
                                  int64_t columns);

/* max(x, 0), and the least of that and 0.5, each as one expression. */
struct mgpu_value *rewrite_relu(struct mgpu_graph *g, struct mgpu_value *x);
struct mgpu_value *rewrite_clip(struct mgpu_graph *g, struct mgpu_value *x);

/* Nodes of an operator. */
int rewrite_count(const struct mgpu_graph *g, const struct mgpu_op *op);

/* The graph's outputs and gradients, one after the other, at inputs and parameters that are always
 * the same: how many, at most REWRITE_MOST. */
enum { REWRITE_MOST = 4096 };
int rewrite_evaluate(const struct mgpu_graph *g, double *to);

/* Rewrites the graph for `ref`. MGPU_EINVALID: its outputs and gradients are not what they were. */
typedef void rewrite_of_graph(struct mgpu_graph *g, const struct mgpu_backend *backend);
int rewrite_checked(struct mgpu_graph *g, rewrite_of_graph *rewrite);

#endif
