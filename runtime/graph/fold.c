#include "runtime/graph/fold.h"

#include "runtime/base/status.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/reduce.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MOST_BYTES = INT64_C(1) << 30;

/* Integers beyond this many are data, not sizes: their monomials are not followed. */
enum { MOST_INTS = 4096 };

static mgpu_fold_fn run_node;

void mgpu_fold_set(mgpu_fold_fn run)
{
    run_node = run;
}

static int compute(struct mgpu_graph *g, struct mgpu_node *node)
{
    const void **in = mgpu_xcalloc((size_t)node->inputs, sizeof *in);
    void *out[MGPU_MAX_OUTPUTS];
    int rc = 0;
    for (int i = 0; i < node->inputs; i++)
        in[i] = node->input[i] ? node->input[i]->data : NULL;
    for (int i = 0; i < node->outputs && rc == 0; i++) {
        struct mgpu_value *v = node->output[i];
        if (mgpu_value_bytes(v) > MOST_BYTES)
            rc = mgpu_fail(MGPU_EINVALID, "a constant of %lld elements is too large",
                           (long long)mgpu_value_count(v));
        else
            v->data = out[i] = mgpu_arena_alloc(g->arena, (size_t)mgpu_value_bytes(v));
    }
    assert(run_node);
    if (rc == 0)
        rc = run_node(node, in, out);
    free(in);
    return rc;
}

static bool has_batch(const struct mgpu_value *v)
{
    for (int i = 0; i < v->rank; i++)
        if (mgpu_dim_has(v->dims[i], MGPU_BATCH))
            return true;
    return false;
}

static bool all_equal(const struct mgpu_value *v)
{
    size_t size = mgpu_dtype_size(v->type);
    for (int64_t i = 1, n = mgpu_value_count(v); i < n; i++)
        if (memcmp(v->data, (const char *)v->data + (size_t)i * size, size))
            return false;
    return true;
}

/* Whether the integers came from sizes: of symbol `symbol`; -1: of any. */
static bool from_sizes(const struct mgpu_value *v, int symbol)
{
    for (int64_t i = 0, n = v->ints ? mgpu_value_count(v) : 0; i < n; i++)
        if (symbol < 0 ? !mgpu_dim_is_const(v->ints[i]) : mgpu_dim_has(v->ints[i], symbol))
            return true;
    return false;
}

static bool moves_data(const struct mgpu_op *op)
{
    return op == &mgpu_op_reshape || op == &mgpu_op_transpose || op == &mgpu_op_expand ||
           op == &mgpu_op_slice || op == &mgpu_op_concat || op == &mgpu_op_gather ||
           op == &mgpu_op_gather_elements || op == &mgpu_op_gather_nd;
}

static struct mgpu_dim element(const struct mgpu_value *v, int64_t i)
{
    if (v->ints)
        return v->ints[i];
    int64_t value = mgpu_get_int(v->data, v->type, i);
    return v->tainted ? mgpu_dim_opaque(value) : mgpu_dim_const(value);
}

static bool is_index_input(const struct mgpu_op *op, int input)
{
    return input == 1 &&
           (op == &mgpu_op_gather || op == &mgpu_op_gather_elements || op == &mgpu_op_gather_nd);
}

/* Where each element of the output came from is found by moving element numbers instead of
 * elements: the node runs once more on 0, 1, 2, ... */
static int follow_movement(struct mgpu_graph *g, struct mgpu_node *node)
{
    struct mgpu_value *y = node->output[0];
    enum mgpu_dtype type = y->type;
    int64_t total = 0, count = mgpu_value_count(y);
    if (!mgpu_is_integer(type) || mgpu_dtype_size(type) < 4)
        return 0;
    const void **in = mgpu_xcalloc((size_t)node->inputs, sizeof *in);
    struct mgpu_dim *dims = NULL;
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value *v = node->input[i];
        in[i] = v->data;
        if (is_index_input(node->op, i))
            continue;
        int64_t n = mgpu_value_count(v);
        void *numbers = mgpu_arena_alloc(g->arena, (size_t)mgpu_value_bytes(v));
        dims = mgpu_xrealloc(dims, (size_t)(total + n) + 1, sizeof *dims);
        for (int64_t k = 0; k < n; k++, total++) {
            mgpu_set_int(numbers, type, k, total);
            dims[total] = element(v, k);
        }
        in[i] = numbers;
    }
    void *moved = mgpu_arena_alloc(g->arena, (size_t)mgpu_value_bytes(y));
    void *out[MGPU_MAX_OUTPUTS] = {moved};
    int rc = run_node(node, in, out);
    if (rc == 0) {
        struct mgpu_dim *ints = MGPU_NEW_ARRAY(g->arena, struct mgpu_dim, count);
        for (int64_t k = 0; k < count; k++)
            ints[k] = dims[mgpu_get_int(moved, type, k)];
        y->ints = ints;
    }
    free(dims);
    free(in);
    return rc;
}

/* A size, whatever the batch is, against a negative number: how PyTorch looks for a -1 in a shape.
 */
static bool size_and_negative(struct mgpu_dim a, struct mgpu_dim b)
{
    return !a.opaque && !mgpu_dim_is_const(a) && a.factor >= 0 && mgpu_dim_is_const(b) &&
           b.value < 0;
}

/* A size that is at least 1, whatever the batch is, against 1 or less. */
static bool size_and_one(struct mgpu_dim a, struct mgpu_dim b)
{
    return !a.opaque && a.factor >= 1 && mgpu_dim_is_const(b) && b.value <= 1;
}

static struct mgpu_dim lost(const struct mgpu_expr_op *op, const struct mgpu_dim *value,
                            int64_t result)
{
    struct mgpu_dim d = mgpu_dim_const(result);
    for (int k = 0; k < 3; k++)
        if (op->arg[k] >= 0)
            d = mgpu_dim_lost(result, d, value[op->arg[k]]);
    return d;
}

/* The value of one expression operation over monomials, element by element. Comparisons and the
 * rest lose the monomial: opaque. */
static struct mgpu_dim evaluate(const struct mgpu_expr_op *op, const struct mgpu_dim *value,
                                int64_t result)
{
    struct mgpu_dim a = op->arg[0] >= 0 ? value[op->arg[0]] : mgpu_dim_const(0);
    struct mgpu_dim b = op->arg[1] >= 0 ? value[op->arg[1]] : mgpu_dim_const(0);
    switch (op->code) {
    case MGPU_X_CAST:
        return a;
    case MGPU_X_NEG:
        return mgpu_dim_neg(a);
    case MGPU_X_ADD:
        return mgpu_dim_add(a, b);
    case MGPU_X_SUB:
        return mgpu_dim_add(a, mgpu_dim_neg(b));
    case MGPU_X_MUL:
        return mgpu_dim_mul(a, b);
    case MGPU_X_DIV:
        return b.value ? mgpu_dim_div(a, b) : lost(op, value, result);
    case MGPU_X_WHERE: /* a size that is chosen: only the choice between equals is followed */
        return mgpu_dim_is_const(a) ? value[op->arg[a.value ? 1 : 2]] : lost(op, value, result);
    case MGPU_X_EQ:
        if (size_and_negative(a, b) || size_and_negative(b, a))
            return mgpu_dim_const(0);
        return mgpu_dim_is_const(a) && mgpu_dim_is_const(b) ? mgpu_dim_const(a.value == b.value)
                                                            : lost(op, value, result);
    case MGPU_X_MAX: /* sizes that broadcast */
        if (mgpu_dim_same(a, b) || size_and_one(a, b))
            return a;
        if (size_and_one(b, a))
            return b;
        /* fall through */
    default:
        return lost(op, value, result);
    }
}

/* Element `flat` of y, as an index into an input that broadcasts to y. */
static int64_t broadcast_index(const struct mgpu_value *y, const struct mgpu_value *x, int64_t flat)
{
    int64_t index = 0, stride = 1;
    for (int a = y->rank - 1, b = x->rank - 1; b >= 0; a--, b--) {
        int64_t at = flat % y->dims[a].value;
        flat /= y->dims[a].value;
        if (x->dims[b].value != 1)
            index += at * stride;
        stride *= x->dims[b].value;
    }
    return index;
}

static void follow_pointwise(struct mgpu_graph *g, struct mgpu_node *node)
{
    struct mgpu_value *y = node->output[0];
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
    int64_t n = mgpu_value_count(y);
    struct mgpu_dim *ints = MGPU_NEW_ARRAY(g->arena, struct mgpu_dim, n);
    struct mgpu_dim value[MGPU_EXPR_MAX];
    for (int64_t i = 0; i < n; i++) {
        int64_t result = mgpu_get_int(y->data, y->type, i);
        for (int k = 0; k < e->count; k++) {
            const struct mgpu_expr_op *op = &e->op[k];
            if (op->code == MGPU_X_INPUT) {
                const struct mgpu_value *x = node->input[op->integer];
                value[k] = element(x, broadcast_index(y, x, i));
            } else if (op->code == MGPU_X_CONST) {
                value[k] =
                    mgpu_dim_const(mgpu_is_float(op->type) ? (int64_t)op->number : op->integer);
            } else {
                value[k] = evaluate(op, value, k == e->count - 1 ? result : 0);
            }
        }
        ints[i] = value[e->count - 1];
        if (ints[i].value != result)
            ints[i] = mgpu_dim_lost(result, ints[i], ints[i]);
    }
    y->ints = ints;
}

static void follow_product(struct mgpu_graph *g, struct mgpu_node *node)
{
    struct mgpu_value *x = node->input[0], *y = node->output[0];
    struct mgpu_dim *all = MGPU_NEW(g->arena, struct mgpu_dim);
    *all = mgpu_dim_const(1);
    for (int64_t i = 0, n = mgpu_value_count(x); i < n; i++)
        *all = mgpu_dim_mul(*all, element(x, i));
    y->ints = all;
}

static bool is_product(const struct mgpu_node *node)
{
    if (node->op != &mgpu_op_reduce || mgpu_value_count(node->output[0]) != 1)
        return false;
    return ((const struct mgpu_reduce_attrs *)node->attrs)->kind == MGPU_REDUCE_PROD;
}

/* Gives the output its monomials, or marks it as tainted where they cannot be followed. Movement of
 * equal elements stays clean: it says no more than the shape does. */
static int follow(struct mgpu_graph *g, struct mgpu_node *node)
{
    bool depends = false, batch = false, cut = false, tainted = false;
    struct mgpu_value *y = node->output[0];
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *x = node->input[i];
        depends = depends || (x && from_sizes(x, -1));
        batch = batch || (x && from_sizes(x, MGPU_BATCH));
        tainted = tainted || (x && x->tainted);
        cut = cut || (x && has_batch(x) && !has_batch(y));
    }
    depends = depends || tainted;
    batch = batch || tainted;
    if (tainted || (cut && !(moves_data(node->op) && all_equal(y)))) /* the sum of N ones */
        y->tainted = true;
    if (!depends)
        return 0;
    bool small = node->outputs == 1 && mgpu_value_count(y) <= MOST_INTS;
    bool integer = mgpu_is_integer(y->type) || y->type == MGPU_BOOL;
    if (small && integer && moves_data(node->op))
        return follow_movement(g, node);
    if (small && integer && node->op == &mgpu_op_pointwise)
        follow_pointwise(g, node);
    else if (small && integer && is_product(node))
        follow_product(g, node);
    else
        for (int i = 0; i < node->outputs; i++)
            node->output[i]->tainted = node->output[i]->tainted || batch;
    return 0;
}

int mgpu_fold(struct mgpu_graph *g, struct mgpu_node *node)
{
    MGPU_TRY(compute(g, node));
    for (int i = 0; i < node->outputs; i++) {
        node->output[i]->kind = MGPU_VALUE_CONSTANT;
        node->output[i]->producer = NULL;
    }
    return follow(g, node);
}
