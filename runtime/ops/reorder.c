#include "runtime/ops/reorder.h"

#include "runtime/base/status.h"

#include <stddef.h>

static int shape(const struct mgpu_node *node)
{
    const struct mgpu_reorder_attrs *a = node->attrs;
    if (a->block < 0 || (a->block && node->input[0]->rank < 2))
        return mgpu_fail(MGPU_EINVALID, "blocks of %lld channels over %d axes", (long long)a->block,
                         node->input[0]->rank);
    mgpu_shape_like(node, 0, node->input[0]);
    node->output[0]->block = (int)a->block;
    return 0;
}

/* Element by element; who holds which is not its business. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    (void)node;
    *which = 0;
    out[0] = in[0];
    return MGPU_SPLIT_OK;
}

static const struct mgpu_attr attrs[] = {
    {.name = "block", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_reorder_attrs, block)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_reorder = {
    .name = "reorder",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_NO_FOLD | MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_reorder_attrs),
    .attrs = attrs,
    .shape = shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_any,
    .cost = mgpu_cost_move,
    .split = split,
};
