/* Records of det and cofactor. */
#include "runtime/ops/det.h"

#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

static int check(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0];
    char text[MGPU_VALUE_TEXT];
    if (!mgpu_is_float(x->type) || x->rank < 2 ||
        x->dims[x->rank - 1].value != x->dims[x->rank - 2].value)
        return mgpu_fail(MGPU_EINVALID, "%s of %s: not square matrices", node->op->name,
                         mgpu_value_text(text, NULL, x));
    return 0;
}

static int det_shape(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0];
    MGPU_TRY(check(node));
    mgpu_shape_set(node, 0, x->type, x->rank - 2, x->dims);
    return 0;
}

static int cofactor_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check(node));
    mgpu_shape_like(node, 0, node->input[0]);
    return 0;
}

static int det_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                        struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_value *x = node->input[0];
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!wanted[0] || !dy[0])
        return 0;
    for (int i = 0; i < x->rank; i++)
        dims[i] = i < x->rank - 2 ? x->dims[i] : mgpu_dim_const(1);
    dx[0] = mgpu_mul(g, mgpu_build1(g, &mgpu_op_cofactor, NULL, 1, &x),
                     mgpu_reshape(g, dy[0], x->rank, dims));
    return dx[0] ? 0 : mgpu_build_error();
}

/* Elimination: n^3 * 2/3. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[0];
    double n = (double)x->dims[x->rank - 1].value;
    return (struct mgpu_cost){.flops = (double)mgpu_value_count(x) * n * 2 / 3,
                              .bytes = mgpu_operand_bytes(node)};
}

/* Matrices are apart. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    if (mgpu_split_is_term(in[0]))
        return mgpu_split_no(which, 0, MGPU_SPLIT_FULL);
    if (in[0].kind == MGPU_SPLIT_AXIS && in[0].axis >= node->input[0]->rank - 2)
        return mgpu_split_no(which, 0, MGPU_SPLIT_MIXES);
    out[0] = in[0];
    return MGPU_SPLIT_OK;
}

const struct mgpu_op mgpu_op_det = {
    .name = "det",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .shape = det_shape,
    .gradient = det_gradient,
    .saved = mgpu_saved_inputs,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

const struct mgpu_op mgpu_op_cofactor = {
    .name = "cofactor",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .shape = cofactor_shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};
