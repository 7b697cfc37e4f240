#include "runtime/ops/accumulate.h"

static int shape(const struct mgpu_node *node)
{
    mgpu_shape_like(node, 0, node->input[0]);
    return 0;
}

/* Linear: each rank adds its own terms. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    (void)node;
    *which = 0;
    out[0] = in[0];
    return in[0].kind == MGPU_SPLIT_MEAN ? MGPU_SPLIT_FULL : MGPU_SPLIT_OK;
}

static struct mgpu_cost cost(const struct mgpu_node *node)
{
    double n = (double)mgpu_value_count(node->output[0]);
    return (struct mgpu_cost){.flops = n, .bytes = 1.5 * mgpu_operand_bytes(node)};
}

const struct mgpu_op mgpu_op_accumulate = {
    .name = "accumulate",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_NO_FOLD | MGPU_OP_GRADIENT_ONLY,
    .shape = shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_any,
    .cost = cost,
    .split = split,
};
