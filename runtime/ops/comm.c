#include "runtime/ops/comm.h"

#include "runtime/base/status.h"

#include <stddef.h>

static const struct mgpu_comm_attrs *of(const struct mgpu_node *node)
{
    return node->attrs;
}

static int shape_like_inputs(const struct mgpu_node *node)
{
    if (node->outputs != node->inputs)
        return mgpu_fail(MGPU_EINTERNAL, "%s has %d inputs and %d outputs", node->op->name,
                         node->inputs, node->outputs);
    for (int i = 0; i < node->inputs; i++) {
        if (node->input[i]->type != node->input[0]->type)
            return mgpu_fail(MGPU_EINTERNAL, "%s of %s and %s", node->op->name,
                             mgpu_dtype_name(node->input[0]->type),
                             mgpu_dtype_name(node->input[i]->type));
        mgpu_shape_like(node, i, node->input[i]);
    }
    return 0;
}

static int shape_given(const struct mgpu_node *node)
{
    enum mgpu_dtype type = node->inputs ? node->input[0]->type : (enum mgpu_dtype)of(node)->type;
    mgpu_shape_set(node, 0, type, (int)of(node)->rank, of(node)->dims);
    return 0;
}

static int shape_none(const struct mgpu_node *node)
{
    return node->outputs ? mgpu_fail(MGPU_EINTERNAL, "%s has no output", node->op->name) : 0;
}

/* What the plan pass knows when it makes the node: sums become whole, parts become whole. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    (void)in;
    (void)which;
    for (int i = 0; i < node->outputs; i++)
        out[i] = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer split_scatter(const struct mgpu_node *node,
                                            const struct mgpu_split *in, struct mgpu_split *out,
                                            int *which)
{
    (void)in;
    (void)which;
    out[0] = mgpu_split_make(MGPU_SPLIT_AXIS, (int)of(node)->axis, 1);
    return MGPU_SPLIT_OK;
}

static const struct mgpu_attr attrs[] = {
    {.name = "group", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_comm_attrs, group)},
    {.name = "tag", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_comm_attrs, tag)},
    {.name = "peer", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_comm_attrs, peer)},
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_comm_attrs, axis)},
    {.name = "type", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_comm_attrs, type)},
    {.name = "image", .kind = MGPU_ATTR_BOOL, .offset = offsetof(struct mgpu_comm_attrs, image)},
    {.name = "rank", .kind = MGPU_ATTR_INT, .offset = offsetof(struct mgpu_comm_attrs, rank)},
    {.name = "dims", .kind = MGPU_ATTR_DIMS, .offset = offsetof(struct mgpu_comm_attrs, dims)},
    {.name = NULL},
};

/* Every record here: made by plans, after the gradient was taken, so it has none of its own. */
#define COMMUNICATION(op_name, least, most, gives, more, shape_rule, alias_rule, split_rule)       \
    {                                                                                              \
        .name = op_name, .min_inputs = least, .max_inputs = most, .outputs = gives,                \
        .flags = MGPU_OP_NO_FOLD | MGPU_OP_COMMUNICATION | MGPU_OP_GRADIENT_ONLY | more,           \
        .attrs_size = sizeof(struct mgpu_comm_attrs), .attrs = attrs, .shape = shape_rule,         \
        .gradient = mgpu_gradient_none, .saved = mgpu_saved_nothing, .alias = alias_rule,          \
        .workspace = mgpu_workspace_none, .layouts = mgpu_layouts_any, .cost = mgpu_cost_move,     \
        .split = split_rule,                                                                       \
    }

/* In place: output i is input i (runtime/compile/program.c knows, for any number of them). */
const struct mgpu_op mgpu_op_all_reduce = COMMUNICATION("all_reduce", 1, 1, 1, MGPU_OP_VARIADIC,
                                                        shape_like_inputs, mgpu_alias_view, split);
const struct mgpu_op mgpu_op_broadcast =
    COMMUNICATION("broadcast", 1, 1, 1, 0, shape_like_inputs, mgpu_alias_view, split);
const struct mgpu_op mgpu_op_all_gather =
    COMMUNICATION("all_gather", 1, 1, 1, 0, shape_given, mgpu_alias_none, split);
const struct mgpu_op mgpu_op_reduce_scatter =
    COMMUNICATION("reduce_scatter", 1, 1, 1, 0, shape_given, mgpu_alias_none, split_scatter);
const struct mgpu_op mgpu_op_send =
    COMMUNICATION("send", 1, 1, 0, 0, shape_none, mgpu_alias_none, split);
const struct mgpu_op mgpu_op_recv =
    COMMUNICATION("recv", 0, 0, 1, 0, shape_given, mgpu_alias_none, split);
