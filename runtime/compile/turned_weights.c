/* Products read a weight as it is stored: one that is turned for a product alone (an embedding that
 * is the last layer, too) needs no turned copy, and its gradient comes as the weight lies. */
#include "runtime/compile/rewrite.h"
#include "runtime/graph/graph.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"

/* The weight of which the value is the transposed; NULL: of none. */
static struct mgpu_value *turned_weight(const struct mgpu_value *v)
{
    const struct mgpu_node *turn = v->kind == MGPU_VALUE_RESULT ? v->producer : NULL;
    if (!turn || turn->op != &mgpu_op_transpose || v->rank != 2 ||
        turn->input[0]->kind != MGPU_VALUE_PARAMETER)
        return NULL;
    return ((const struct mgpu_transpose_attrs *)turn->attrs)->perm[0] == 1 ? turn->input[0] : NULL;
}

void mgpu_read_weights_turned(struct mgpu_graph *g)
{
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *node = g->nodes[n];
        struct mgpu_value *weight =
            node->op == &mgpu_op_matmul ? turned_weight(node->input[1]) : NULL;
        if (!weight)
            continue;
        struct mgpu_matmul_attrs a = *(const struct mgpu_matmul_attrs *)node->attrs;
        a.transpose_b = !a.transpose_b;
        node->attrs = mgpu_arena_copy(g->arena, &a, sizeof a);
        node->input[1] = weight;
    }
}
