/* Rewrites of a plan: the whole graph computes the same with other nodes, on whatever ranks.
 *
 *   stack      {"kind": "stack", "outputs": ["a", "b"]}: the nodes that make 'a' and 'b' (of equal
 *              towers that share their weights) are one call on the batches of both, one behind the
 *              other; before the gradient is taken                      (stack.c, stack_find.c)
 *   recompute  {"kind": "recompute", "outputs": []}: cheap activations (of these nodes; of none:
 *              of all) are computed again in backward instead of kept          (recompute.c)
 *
 * What is made keeps the origins: the call that of the first node, its parts those of the nodes
 * whose outputs they are. Plans and pins place them like any other node.
 */
#ifndef MGPU_COMPILE_REWRITE_H
#define MGPU_COMPILE_REWRITE_H

#include "runtime/compile/plan.h"

/* Applies the plan's rewrites to a forward graph (without losses). One whose nodes are all missing
 * (another mode does not need them) is left out. MGPU_EINVALID names what cannot be stacked. */
int mgpu_rewrite_forward(struct mgpu_graph *g, const struct mgpu_plan *plan);

/* The same for the graph with its gradient. */
int mgpu_rewrite_backward(struct mgpu_graph *g, const struct mgpu_plan *plan);

/* Of no plan, for every forward graph: max pools go before relu and its kin (pool_first.c). */
void mgpu_pool_first(struct mgpu_graph *g);

/* Whether the node only limits what it gets: behind a max pool, the file may have it before. */
bool mgpu_only_limits(const struct mgpu_node *node);

/* The same, of a graph with its losses and without their gradient: cross entropies go before a
 * transposition that brings the classes to another axis (loss_first.c). */
void mgpu_loss_first(struct mgpu_graph *g);

/* The same: products take weights as they are stored, not a turned copy (turned_weights.c). */
void mgpu_read_weights_turned(struct mgpu_graph *g);

/* Of no plan: products, masks and softmax that make up attention are one node of that operator,
 * which the last of them names; `library`: as GPUs' libraries take it (attend.c). */
int mgpu_fuse_attention(struct mgpu_graph *g, bool library);

/* Of no plan, for GPUs: the arithmetic of a GELU in tanh's form is the one operation that products
 * there have behind them (gelu.c). */
void mgpu_fuse_gelu(struct mgpu_graph *g);

/* The same, of a graph without a gradient: convolutions take the normalisation with stored
 * statistics behind them into their weights, where that saves a pass (fold_norms.c). */
int mgpu_fold_norms(struct mgpu_graph *g);

/* Adds to the plan what stacks the equal towers of a forward graph: nodes of the same weights, and
 * behind them nodes without weights that take only those. `g` is changed (equal nodes become one).
 * Linear in its nodes, but for the levels that towers are compared at. */
void mgpu_stack_towers(struct mgpu_plan *plan, struct mgpu_graph *g);

#endif
