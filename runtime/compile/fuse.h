/* Rewrites of one rank's graph that change how often memory is passed over and how long values
 * live, but not what is computed: between the plan pass and the compilation.
 *
 *   settle   constants of one element become numbers of the expression, inputs that an expression
 *            does not read are dropped                                          (simplify.c)
 *   share    nodes that compute the same are one                                (simplify.c)
 *   outputs  backward expressions read what forward stores anyway: relu's mask from relu's output,
 *            the derivative of a sigmoid from the sigmoid                       (outputs.c)
 *   fuse     pointwise nodes are computed inside the expressions that use them  (fuse.c)
 *   finish   sums and limits behind a batch normalisation are part of it, and so is the mask before
 *            its gradient                                                        (finish.c)
 *   again    backward computes the outputs of batch normalisations, and other values that are
 *            cheap to make of what is kept, again                                (again.c)
 *
 * Every expression is computed operation by operation as before, so that a result differs by no
 * more than the folding of constants. What is decided depends on the graph alone: ranks with the
 * same graph get the same. What a plan needs stays: nodes that communicate, memory of its own for
 * what is communicated, and updates apart from what runs for every piece of a batch.
 */
#ifndef MGPU_COMPILE_FUSE_H
#define MGPU_COMPILE_FUSE_H

#include "runtime/backend.h"

/* All of them. Nodes are fused where the backend runs the result with the kernel that ran its
 * parts. Fused nodes keep the origin of the last one; its type names all ("Add+Relu"). */
void mgpu_fuse(struct mgpu_graph *g, const struct mgpu_backend *backend);

/* Backward computes cheap values again (again.c): behind mgpu_fuse. */
int mgpu_compute_again(struct mgpu_graph *g, const struct mgpu_backend *backend);

/* Gradients of biases become nodes of their own, sums of dy: for a backend whose convolutions do
 * not give them. Before all others. */
int mgpu_biases_apart(struct mgpu_graph *g);

/* No concatenation has more than `most` parts: for a backend whose kernels take no more. Before all
 * others, too. */
int mgpu_narrow_concats(struct mgpu_graph *g, int most);

/* ---- The parts ------------------------------------------------------------------------------- */

void mgpu_settle_expressions(struct mgpu_graph *g);
void mgpu_share_equal_nodes(struct mgpu_graph *g);
void mgpu_read_outputs(struct mgpu_graph *g);
void mgpu_finish_norms(struct mgpu_graph *g, const struct mgpu_backend *backend);

/* For a backend whose products and convolutions have ends: what stands behind them is part of them
 * (finish.c). After the layouts are chosen, as which ends there are depends on these. */
void mgpu_finish_products(struct mgpu_graph *g, const struct mgpu_backend *backend);

/* The expression of a pointwise node; NULL: another operator. */
const struct mgpu_expr *mgpu_expr_of(const struct mgpu_node *node);

/* Gives a pointwise node the expression `result` of `e` over `count` inputs, of which only those
 * that are read stay. False, and nothing changed, where result is -1. */
bool mgpu_set_expr(struct mgpu_graph *g, struct mgpu_node *node, struct mgpu_expr *e, int result,
                   int count, struct mgpu_value *const *input);

/* Operation k of `from` built anew in `e`, where its operands are number[]: what they became may
 * simplify it. */
int mgpu_expr_again(struct mgpu_expr *e, const struct mgpu_expr *from, int k, const int *number);

/* Whether two nodes of one operator have equal attributes (sizes by value). */
bool mgpu_same_attrs(const struct mgpu_node *a, const struct mgpu_node *b);

/* min(max(x, low), high), either one alone (the other infinite), in either order. */
struct mgpu_clip {
    double low, high;
};

/* The operation whose clip the result is: the result itself where it is none. */
int mgpu_find_clip(const struct mgpu_expr *e, struct mgpu_clip *clip);

/* Who reads each value, by value id. */
struct mgpu_readers {
    int count;
    struct mgpu_node **node;
};
struct mgpu_readers *mgpu_readers_of(const struct mgpu_graph *g);
void mgpu_readers_free(struct mgpu_readers *readers, const struct mgpu_graph *g);

/* By value id: values that outlive the step's nodes (outputs, gradients, what parameters become).
 */
bool *mgpu_lasting_values(const struct mgpu_graph *g);

/* By value id: communication writes to its memory. */
bool *mgpu_communicated_values(const struct mgpu_graph *g);

#endif
