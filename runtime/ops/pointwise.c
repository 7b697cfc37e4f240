#include "runtime/ops/pointwise.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

#include <string.h>

static const struct mgpu_expr *expr_of(const struct mgpu_node *node)
{
    return ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
}

/* numpy's rule for one axis. A size that is 1 only because the batch is 1 must not be taken for a
 * broadcast axis: between equal sizes the one with a symbol stays. */
static int broadcast_dim(struct mgpu_dim *out, struct mgpu_dim a, struct mgpu_dim b)
{
    if (a.value == b.value)
        *out = mgpu_dim_is_const(a) ? b : a;
    else if (a.value == 1)
        *out = b;
    else if (b.value == 1)
        *out = a;
    else
        return -1;
    return 0;
}

static int shape(const struct mgpu_node *node)
{
    int rank = 0;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    char ta[MGPU_VALUE_TEXT], tb[MGPU_VALUE_TEXT];
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i]->rank > rank)
            rank = node->input[i]->rank;
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(1);
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *x = node->input[i];
        int shift = rank - x->rank;
        for (int k = 0; k < x->rank; k++)
            if (broadcast_dim(&dims[shift + k], dims[shift + k], x->dims[k]) < 0)
                return mgpu_fail(MGPU_EINVALID, "shapes %s and %s do not broadcast",
                                 mgpu_value_text(ta, NULL, node->input[0]),
                                 mgpu_value_text(tb, NULL, x));
    }
    const struct mgpu_expr *e = expr_of(node);
    mgpu_shape_set(node, 0, e->op[e->count - 1].type, rank, dims);
    return 0;
}

int mgpu_expr_pack(struct mgpu_expr *e, int count, struct mgpu_value *const *input,
                   struct mgpu_value **packed)
{
    int number[MGPU_MAX_INPUTS], n = 0;
    for (int i = 0; i < count; i++)
        number[i] = -1;
    for (int k = 0; k < e->count; k++) {
        struct mgpu_expr_op *op = &e->op[k];
        if (op->code != MGPU_X_INPUT)
            continue;
        if (number[op->integer] < 0) {
            packed[n] = input[op->integer];
            number[op->integer] = n++;
        }
        op->integer = number[op->integer];
    }
    if (n == 0)
        packed[n++] = input[0];
    return n;
}

/* The expression of the inputs that it reads, and of no others: what is spread otherwise over ranks
 * would have to be made whole. An input itself where it is just that. */
static struct mgpu_value *pointwise_of(struct mgpu_graph *g, struct mgpu_expr *e, int count,
                                       struct mgpu_value *const *input)
{
    struct mgpu_value *packed[MGPU_MAX_INPUTS];
    e->inputs = mgpu_expr_pack(e, count, input, packed);
    return e->op[e->count - 1].code == MGPU_X_INPUT ? packed[0]
                                                    : mgpu_pointwise(g, e, e->inputs, packed);
}

static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    struct mgpu_value *input[MGPU_MAX_INPUTS];
    const struct mgpu_expr *from = expr_of(node);
    int map[MGPU_MAX_INPUTS], n = node->inputs;
    memcpy(input, node->input, sizeof *input * (size_t)n);
    input[n] = dy[0];
    for (int i = 0; i < n; i++) {
        if (!wanted[i])
            continue;
        struct mgpu_expr e;
        bool zero;
        mgpu_expr_begin(&e, n + 1);
        for (int k = 0; k < n; k++)
            map[k] = mgpu_expr_input(&e, k, node->input[k]->type);
        int y = mgpu_expr_append(&e, from, map);
        int seed = mgpu_expr_input(&e, n, dy[0]->type);
        int result = mgpu_expr_derivative(&e, y, i, seed, &zero);
        struct mgpu_expr *d = (struct mgpu_expr *)mgpu_expr_end(&e, result, g->arena);
        if (!d)
            return mgpu_fail(MGPU_EUNSUPPORTED, "an expression is too long to differentiate");
        if (zero)
            continue;
        dx[i] = mgpu_reduce_to(g, pointwise_of(g, d, n + 1, input), node->input[i]);
        if (!dx[i])
            return mgpu_build_error();
    }
    return 0;
}

static struct mgpu_cost cost(const struct mgpu_node *node)
{
    struct mgpu_cost c = {.bytes = mgpu_operand_bytes(node)};
    const struct mgpu_expr *e = expr_of(node);
    for (int i = 0; i < e->count; i++)
        if (mgpu_expr_arity(e->op[i].code))
            c.flops += (double)mgpu_value_count(node->output[0]);
    return c;
}

/* An input may be overwritten when it has the output's type and shape. */
static int alias(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    const struct mgpu_value *y = node->output[0];
    int count = 0;
    for (int i = 0; i < node->inputs && count < MGPU_MAX_OUTPUTS; i++) {
        const struct mgpu_value *x = node->input[i];
        if (x->type == y->type && mgpu_value_count(x) == mgpu_value_count(y))
            pairs[count++] = (struct mgpu_alias){.input = i, .output = 0, .view = false};
    }
    return count;
}

/* Is the expression linear in the inputs marked, taken together: f(sum of terms) = sum of f(terms)
 * when the other inputs are the same everywhere? */
static bool linear_in(const struct mgpu_expr *e, const bool *term)
{
    bool depends[MGPU_EXPR_MAX];
    for (int i = 0; i < e->count; i++) {
        const struct mgpu_expr_op *op = &e->op[i];
        bool a = op->arg[0] >= 0 && depends[op->arg[0]], b = op->arg[1] >= 0 && depends[op->arg[1]];
        bool c = op->arg[2] >= 0 && depends[op->arg[2]];
        depends[i] = op->code == MGPU_X_INPUT ? term[op->integer] : a || b || c;
        if (!depends[i] || op->code == MGPU_X_INPUT)
            continue;
        bool fine = op->code == MGPU_X_NEG || op->code == MGPU_X_STOP ||
                    (op->code == MGPU_X_CAST && mgpu_is_float(op->type)) ||
                    ((op->code == MGPU_X_ADD || op->code == MGPU_X_SUB) && a && b) ||
                    ((op->code == MGPU_X_MUL || op->code == MGPU_X_MULZ) && a != b) ||
                    (op->code == MGPU_X_DIV && a && !b) ||
                    (op->code == MGPU_X_WHERE && !a && b && c);
        if (!fine)
            return false;
    }
    return depends[e->count - 1];
}

static enum mgpu_split_answer split_sums(const struct mgpu_node *node, const struct mgpu_split *in,
                                         struct mgpu_split *out, int *which)
{
    bool term[MGPU_MAX_INPUTS];
    for (int i = 0; i < node->inputs; i++)
        term[i] = in[i].kind == MGPU_SPLIT_SUM;
    if (!linear_in(expr_of(node), term))
        return MGPU_SPLIT_FULL;
    for (int i = 0; i < node->inputs; i++)
        if (in[i].kind == MGPU_SPLIT_AXIS) {
            *which = i;
            return MGPU_SPLIT_MIXES;
        }
    out[0] = mgpu_split_make(MGPU_SPLIT_SUM, 0, 1);
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    int rank = node->output[0]->rank, sums = -1, found = -1;
    out[0] = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    for (int i = 0; i < node->inputs; i++) {
        *which = i;
        if (in[i].kind == MGPU_SPLIT_MEAN)
            return MGPU_SPLIT_FULL;
        if (in[i].kind == MGPU_SPLIT_SUM)
            sums = i;
        if (in[i].kind != MGPU_SPLIT_AXIS)
            continue;
        int axis = in[i].axis + rank - node->input[i]->rank;
        if (found >= 0 && (axis != out[0].axis || in[i].outer != out[0].outer))
            return MGPU_SPLIT_MIXES;
        out[0] = mgpu_split_make(MGPU_SPLIT_AXIS, axis, in[i].outer);
        found = i;
    }
    for (int i = 0; i < node->inputs && found >= 0; i++) {
        int axis = out[0].axis - (rank - node->input[i]->rank);
        if (in[i].kind == MGPU_SPLIT_REPLICATED && axis >= 0 &&
            node->input[i]->dims[axis].value != 1) {
            *which = i; /* whole rows meet a part of the rows */
            return MGPU_SPLIT_MIXES;
        }
    }
    if (sums < 0)
        return MGPU_SPLIT_OK;
    *which = sums;
    return found >= 0 ? MGPU_SPLIT_FULL : split_sums(node, in, out, which);
}

static const struct mgpu_attr attrs[] = {
    {.name = "expr", .kind = MGPU_ATTR_EXPR, .offset = 0},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_pointwise = {
    .name = "pointwise",
    .min_inputs = 1,
    .max_inputs = MGPU_MAX_INPUTS,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_pointwise_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .shape = shape,
    .gradient = gradient,
    .saved = mgpu_saved_inputs,
    .alias = alias,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_any,
    .cost = cost,
    .split = split,
};
