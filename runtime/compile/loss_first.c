/* Losses read logits as they were made: a transposition that moves only the classes, the other axes
 * staying in their order, leaves positions and labels as they are. So there is none of the gradient
 * either. */
#include "runtime/compile/rewrite.h"
#include "runtime/graph/graph.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/movement.h"

static bool moves_only(const struct mgpu_transpose_attrs *turn, int rank, int64_t axis)
{
    int64_t last = -1;
    bool ordered = true;
    for (int i = 0; i < rank; i++) {
        ordered = ordered && (i == axis || turn->perm[i] > last);
        last = i == axis ? last : turn->perm[i];
    }
    return ordered;
}

void mgpu_loss_first(struct mgpu_graph *g)
{
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *loss = g->nodes[n];
        if (loss->op != &mgpu_op_cross_entropy)
            continue;
        struct mgpu_cross_entropy_attrs a = *(const struct mgpu_cross_entropy_attrs *)loss->attrs;
        struct mgpu_value *x = loss->input[0];
        const struct mgpu_node *turn = x->kind == MGPU_VALUE_RESULT ? x->producer : NULL;
        if (a.dense || !turn || turn->op != &mgpu_op_transpose ||
            !moves_only(turn->attrs, x->rank, a.axis))
            continue;
        a.axis = ((const struct mgpu_transpose_attrs *)turn->attrs)->perm[a.axis];
        loss->attrs = mgpu_arena_copy(g->arena, &a, sizeof a);
        loss->input[0] = turn->input[0];
    }
}
