#include "runtime/ops/matmul.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"

#include <stddef.h>

static const struct mgpu_matmul_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

/* Axis of an operand that is summed over, counted from the front. */
static int inner_axis(const struct mgpu_node *node, int operand)
{
    const struct mgpu_matmul_attrs *attrs = attrs_of(node);
    bool first = operand == 0 ? attrs->transpose_a : !attrs->transpose_b;
    return node->input[operand]->rank - (first ? 2 : 1);
}

/* The other one of the last two axes: rows of a, columns of b. */
static int outer_axis(const struct mgpu_node *node, int operand)
{
    return 2 * node->input[operand]->rank - 3 - inner_axis(node, operand);
}

static int mismatch(const struct mgpu_node *node, const char *what)
{
    char a[MGPU_VALUE_TEXT], b[MGPU_VALUE_TEXT];
    return mgpu_fail(MGPU_EINVALID, "matmul of %s%s and %s%s: %s",
                     mgpu_value_text(a, NULL, node->input[0]),
                     attrs_of(node)->transpose_a ? " (transposed)" : "",
                     mgpu_value_text(b, NULL, node->input[1]),
                     attrs_of(node)->transpose_b ? " (transposed)" : "", what);
}

/* Size of batch axis `axis` of a result of rank `rank`. Of two equal sizes the one with a symbol
 * stays: a batch of 1 is not a broadcast axis. */
static int batch_dim(const struct mgpu_node *node, int axis, int rank, struct mgpu_dim *out)
{
    *out = mgpu_dim_const(1);
    for (int i = 0; i < 2; i++) {
        const struct mgpu_value *x = node->input[i];
        int k = axis - (rank - x->rank);
        if (k < 0)
            continue;
        struct mgpu_dim d = x->dims[k];
        if (d.value == out->value ? mgpu_dim_is_const(*out) : out->value == 1)
            *out = d;
        else if (d.value != out->value && d.value != 1)
            return mismatch(node, "their leading axes do not broadcast");
    }
    return 0;
}

static int shape(const struct mgpu_node *node)
{
    const struct mgpu_value *a = node->input[0], *b = node->input[1];
    enum mgpu_dtype type = ((const struct mgpu_matmul_attrs *)node->attrs)->type;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (a->rank < 2 || b->rank < 2)
        return mismatch(node, "both need rank 2 or more");
    if (a->type != b->type || a->type == MGPU_BOOL)
        return mismatch(node, "they must be numbers of one type");
    if (a->dims[inner_axis(node, 0)].value != b->dims[inner_axis(node, 1)].value)
        return mismatch(node, "the sizes that are summed over differ");
    int rank = a->rank > b->rank ? a->rank : b->rank;
    for (int axis = 0; axis < rank - 2; axis++)
        MGPU_TRY(batch_dim(node, axis, rank, &dims[axis]));
    dims[rank - 2] = a->dims[outer_axis(node, 0)];
    dims[rank - 1] = b->dims[outer_axis(node, 1)];
    bool bias = node->op != &mgpu_op_matmul_gelu_grad && node->inputs > 2 && node->input[2];
    if (bias && mgpu_value_count(node->input[2]) != dims[rank - 1].value)
        return mismatch(node, "the bias has another size");
    mgpu_shape_set(node, 0, type ? type : a->type, rank, dims);
    return 0;
}

static int sums_shape(const struct mgpu_node *node)
{
    MGPU_TRY(shape(node));
    const struct mgpu_value *y = node->output[0];
    if (node->input[0]->rank != 2 || node->input[1]->rank != 2)
        return mismatch(node, "sums are of one product");
    mgpu_shape_set(node, 1, y->type, 1, &y->dims[attrs_of(node)->sums == MGPU_SUMS_B]);
    return 0;
}

static int gelu_shape(const struct mgpu_node *node)
{
    MGPU_TRY(shape(node));
    const struct mgpu_value *y = node->output[0];
    mgpu_shape_set(node, 1, y->type, y->rank, y->dims);
    return 0;
}

static int gelu_grad_shape(const struct mgpu_node *node)
{
    MGPU_TRY(shape(node));
    return mgpu_value_count(node->input[2]) == mgpu_value_count(node->output[0])
               ? 0
               : mismatch(node, "what GELU was taken of has another size");
}

/* [..., R, C] as [*, C]. */
static struct mgpu_value *flatten(struct mgpu_graph *g, struct mgpu_value *x)
{
    struct mgpu_dim dims[] = {mgpu_dims_product(x->rank - 1, x->dims), x->dims[x->rank - 1]};
    return mgpu_reshape(g, x, 2, dims);
}

static struct mgpu_value *gradient_a(struct mgpu_graph *g, const struct mgpu_node *node,
                                     struct mgpu_value *dy)
{
    const struct mgpu_matmul_attrs *attrs = attrs_of(node);
    struct mgpu_value *b = node->input[1];
    struct mgpu_value *da = attrs->transpose_a ? mgpu_matmul(g, b, attrs->transpose_b, dy, true)
                                               : mgpu_matmul(g, dy, false, b, !attrs->transpose_b);
    return mgpu_reduce_to(g, da, node->input[0]);
}

/* A weight of rank 2 that multiplies rows of a larger tensor: one product over all rows, instead
 * of one a batch entry and a sum. */
static struct mgpu_value *gradient_b(struct mgpu_graph *g, const struct mgpu_node *node,
                                     struct mgpu_value *dy)
{
    const struct mgpu_matmul_attrs *attrs = attrs_of(node);
    struct mgpu_value *a = node->input[0], *b = node->input[1];
    if (b->rank == 2 && a->rank > 2 && !attrs->transpose_a) {
        a = flatten(g, a);
        dy = flatten(g, dy);
    }
    struct mgpu_value *db = attrs->transpose_b ? mgpu_matmul(g, dy, true, a, attrs->transpose_a)
                                               : mgpu_matmul(g, a, !attrs->transpose_a, dy, false);
    return mgpu_reduce_to(g, db, b);
}

static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    if (node->inputs > 2 || attrs_of(node)->relu)
        return mgpu_gradient_none(g, node, dy, wanted, dx);
    if (wanted[0] && !(dx[0] = gradient_a(g, node, dy[0])))
        return mgpu_build_error();
    if (wanted[1] && !(dx[1] = gradient_b(g, node, dy[0])))
        return mgpu_build_error();
    return 0;
}

static struct mgpu_cost cost(const struct mgpu_node *node)
{
    double k = (double)node->input[0]->dims[inner_axis(node, 0)].value;
    return (struct mgpu_cost){.flops = 2 * k * (double)mgpu_value_count(node->output[0]),
                              .bytes = mgpu_operand_bytes(node)};
}

/* Axis of y that axis `axis` of an operand becomes; -1: it is summed over. */
static int axis_in_output(const struct mgpu_node *node, int operand, int axis)
{
    int rank = node->output[0]->rank;
    if (axis == inner_axis(node, operand))
        return -1;
    if (axis == outer_axis(node, operand))
        return operand == 0 ? rank - 2 : rank - 1;
    return axis + rank - node->input[operand]->rank;
}

/* Whether an operand has one row for all along axis `axis` of y: it may stay whole there. */
static bool broadcast_along(const struct mgpu_node *node, int operand, int axis)
{
    const struct mgpu_value *x = node->input[operand];
    int rank = node->output[0]->rank, k = axis - (rank - x->rank);
    if (axis >= rank - 2) /* rows belong to a alone, columns to b alone */
        return true;
    return k < 0 || (x->dims[k].value == 1 && mgpu_dim_is_const(x->dims[k]));
}

static enum mgpu_split_answer split_one(const struct mgpu_node *node, const struct mgpu_split *in,
                                        int operand, struct mgpu_split *out, int *which)
{
    int axis = axis_in_output(node, operand, in[operand].axis);
    *which = operand;
    if (axis < 0)
        return MGPU_SPLIT_MIXES;
    *which = 1 - operand;
    if (!broadcast_along(node, 1 - operand, axis))
        return MGPU_SPLIT_MIXES;
    out[0] = mgpu_split_make(MGPU_SPLIT_AXIS, axis, in[operand].outer);
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer split_both(const struct mgpu_node *node, const struct mgpu_split *in,
                                         struct mgpu_split *out, int *which)
{
    int a = axis_in_output(node, 0, in[0].axis), b = axis_in_output(node, 1, in[1].axis);
    *which = 1;
    if (a != b || in[0].outer != in[1].outer)
        return MGPU_SPLIT_MIXES;
    out[0] = a < 0 ? mgpu_split_make(MGPU_SPLIT_SUM, 0, 1)
                   : mgpu_split_make(MGPU_SPLIT_AXIS, a, in[0].outer);
    return MGPU_SPLIT_OK;
}

/* A product is linear in each factor: a sum or mean passes when the other factor is whole. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    enum mgpu_split_kind a = in[0].kind, b = in[1].kind;
    bool term_a = mgpu_split_is_term(in[0]), term_b = mgpu_split_is_term(in[1]);
    if (a == MGPU_SPLIT_AXIS && b == MGPU_SPLIT_AXIS)
        return split_both(node, in, out, which);
    *which = term_a ? 0 : 1;
    if ((term_a && b != MGPU_SPLIT_REPLICATED) || (term_b && a != MGPU_SPLIT_REPLICATED))
        return MGPU_SPLIT_FULL;
    if (a == MGPU_SPLIT_AXIS || b == MGPU_SPLIT_AXIS)
        return split_one(node, in, a == MGPU_SPLIT_AXIS ? 0 : 1, out, which);
    out[0] = mgpu_split_make(term_a ? a : b, 0, 1);
    return MGPU_SPLIT_OK;
}

static const char *const sums[] = {"a", "b", NULL};

#define FIELD(field, which)                                                                        \
    .name = #field, .kind = MGPU_ATTR_##which, .offset = offsetof(struct mgpu_matmul_attrs, field)

static const struct mgpu_attr attrs[] = {
    {FIELD(transpose_a, BOOL)}, {FIELD(transpose_b, BOOL)},         {FIELD(type, TYPE)},
    {FIELD(relu, BOOL)},        {FIELD(sums, ENUM), .names = sums}, {.name = NULL},
};

const struct mgpu_op mgpu_op_matmul = {
    .name = "matmul",
    .min_inputs = 2,
    .max_inputs = 3,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_matmul_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .shape = shape,
    .gradient = gradient,
    .saved = mgpu_saved_inputs,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

/* Made after the plan: nobody asks how they split. */
#define MADE_LATE(most_inputs, least_inputs, results, sizes)                                       \
    .min_inputs = least_inputs, .max_inputs = most_inputs, .outputs = results,                     \
    .flags = MGPU_OP_GRADIENT_ONLY, .attrs_size = sizeof(struct mgpu_matmul_attrs),                \
    .attrs = attrs, .shape = sizes, .gradient = mgpu_gradient_none, .saved = mgpu_saved_nothing,   \
    .alias = mgpu_alias_none, .workspace = mgpu_workspace_none, .layouts = mgpu_layouts_plain,     \
    .cost = cost, .split = mgpu_split_replicated

const struct mgpu_op mgpu_op_matmul_sums = {.name = "matmul_sums", MADE_LATE(2, 2, 2, sums_shape)};
const struct mgpu_op mgpu_op_matmul_gelu = {.name = "matmul_gelu", MADE_LATE(3, 2, 2, gelu_shape)};
const struct mgpu_op mgpu_op_matmul_gelu_grad = {.name = "matmul_gelu_grad",
                                                 MADE_LATE(3, 3, 1, gelu_grad_shape)};
