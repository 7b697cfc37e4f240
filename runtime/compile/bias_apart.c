/* Gradients of biases as nodes of their own: dw, dbias = conv_grad_weight(x, dy) becomes
 * dw = conv_grad_weight(x, dy), dbias = reduce(dy). */
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/reduce.h"

#include <stdlib.h>

/* The sum over all axes of dy but the channels gives the node's second output from now on. */
static int set_apart(struct mgpu_graph *g, struct mgpu_node *node, struct mgpu_node **sum)
{
    struct mgpu_value *dy = node->input[1], *dbias = node->output[1], *y;
    const struct mgpu_reduce_attrs attrs = {.kind = MGPU_REDUCE_SUM,
                                            .axes = ((INT64_C(1) << dy->rank) - 1) & ~INT64_C(2)};
    g->origin = node->origin;
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_reduce, &attrs, 1, &dy, 1, &y));
    *sum = y->producer;
    (*sum)->output[0] = dbias;
    dbias->producer = *sum;
    dbias->output = 0;
    node->outputs = 1;
    return 0;
}

int mgpu_biases_apart(struct mgpu_graph *g)
{
    int nodes = g->node_count, count = 0, rc = 0;
    struct mgpu_node **order = mgpu_xcalloc(2 * (size_t)nodes + 1, sizeof *order);
    struct mgpu_origin origin = g->origin;
    for (int n = 0; n < nodes && rc == 0; n++) {
        struct mgpu_node *node = order[count++] = g->nodes[n];
        if (node->op == &mgpu_op_conv_grad_weight && node->outputs > 1 && node->output[1])
            rc = set_apart(g, node, &order[count++]);
    }
    g->origin = origin;
    for (int n = 0; n < count && rc == 0; n++) {
        g->nodes[n] = order[n];
        g->nodes[n]->id = n;
    }
    free(order);
    return rc;
}
