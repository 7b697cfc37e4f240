/* Shapes of outputs and labels, and what an output comes from. */
#include "runtime/base/status.h"
#include "runtime/graph/alike.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/softmax.h"
#include "runtime/train/loss_private.h"

#include <string.h>

static int refuse(const struct mgpu_graph *g, const struct mgpu_value *y)
{
    char text[MGPU_VALUE_TEXT], lost[MGPU_LOST_TEXT];
    mgpu_lost_batch_text(lost, g, y);
    return mgpu_fail(
        MGPU_EINVALID,
        "output '%s' %s has no axis of samples to compare with labels%s%s (inputs with samples "
        "on another axis than 0 need --batch-axis NAME=K; where a step takes R rows, the label "
        "needs --rows too%s)",
        y->name, mgpu_value_text(text, g, y), *lost ? ": " : "", lost,
        *lost ? "; a file that holds the batch of its export has to be " MGPU_EXPORT_BATCH : "");
}

int mgpu_loss_shape_of(struct mgpu_loss_shape *out, const struct mgpu_graph *g,
                       const struct mgpu_value *y, bool by_step)
{
    char text[MGPU_VALUE_TEXT], origin[MGPU_VALUE_TEXT];
    struct mgpu_dim n = mgpu_dim_symbol(MGPU_BATCH, g->batch);
    int batch = mgpu_rows_axis(y, false);
    if (batch < 0 && by_step && g->batch == 1 && y->rank < MGPU_MAX_RANK) {
        *out = (struct mgpu_loss_shape){.rank = y->rank + 1, .added = true, .dims = {n}};
        memcpy(out->dims + 1, y->dims, sizeof *y->dims * (size_t)y->rank);
        return 0;
    }
    if (batch < 0 && g->whole)
        return mgpu_fail(MGPU_EINVALID,
                         "output '%s' %s has no axis of samples: %s is not the same computation "
                         "for each sample",
                         y->name, mgpu_value_text(text, g, y), mgpu_origin_text(origin, g->whole));
    if (batch < 0)
        return refuse(g, y);
    struct mgpu_dim rows = mgpu_dim_div(y->dims[batch], n);
    bool wide = rows.value > 1 && y->rank < MGPU_MAX_RANK;
    *out = (struct mgpu_loss_shape){.rank = y->rank + wide, .batch = batch};
    for (int k = 0; k < y->rank; k++)
        out->dims[k + (wide && k > batch)] = y->dims[k];
    if (wide) {
        out->dims[batch] = n;
        out->dims[batch + 1] = rows;
    }
    return 0;
}

int mgpu_loss_shape_axis(const struct mgpu_loss_shape *shape, const struct mgpu_value *y, int axis)
{
    return shape->added || axis > shape->batch ? axis + shape->rank - y->rank : axis;
}

void mgpu_loss_shape_drop(struct mgpu_loss_shape *shape, int axis)
{
    for (int k = axis; k + 1 < shape->rank; k++)
        shape->dims[k] = shape->dims[k + 1];
    shape->rank--;
    shape->batch -= axis < shape->batch;
}

unsigned mgpu_loss_all_axes(const struct mgpu_value *v)
{
    return (1u << v->rank) - 1;
}

static bool is_sigmoid(const struct mgpu_node *node)
{
    if (node->op != &mgpu_op_pointwise)
        return false;
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
    return e->count == 2 && e->op[0].code == MGPU_X_INPUT && e->op[1].code == MGPU_X_SIGMOID;
}

static int64_t inner_elements(const struct mgpu_value *v, int axis)
{
    int64_t n = 1;
    for (int k = axis + 1; k < v->rank; k++)
        n *= v->dims[k].value;
    return n;
}

/* The axis of x along which the elements of y's axis lie, when y is x reshaped; -1: none. */
static int axis_before_reshape(const struct mgpu_value *y, int axis, const struct mgpu_value *x)
{
    for (int k = 0; k < x->rank; k++)
        if (x->dims[k].value == y->dims[axis].value &&
            inner_elements(x, k) == inner_elements(y, axis))
            return k;
    return -1;
}

static const struct mgpu_node *activation_before(const struct mgpu_value *y, int axis, bool sigmoid)
{
    const struct mgpu_node *node = y->kind == MGPU_VALUE_RESULT ? y->producer : NULL;
    if (!node)
        return NULL;
    if (sigmoid && is_sigmoid(node))
        return node;
    if (!sigmoid && node->op == &mgpu_op_softmax) {
        const struct mgpu_softmax_attrs *a = node->attrs;
        return a->axis == axis && !a->log ? node : NULL;
    }
    if (node->op == &mgpu_op_transpose) {
        const struct mgpu_transpose_attrs *a = node->attrs;
        return activation_before(node->input[0], sigmoid ? 0 : (int)a->perm[axis], sigmoid);
    }
    if (node->op != &mgpu_op_reshape)
        return NULL;
    int before = sigmoid ? 0 : axis_before_reshape(y, axis, node->input[0]);
    return before < 0 ? NULL : activation_before(node->input[0], before, sigmoid);
}

struct mgpu_value *mgpu_loss_untransposed(struct mgpu_value *y, int *axis)
{
    if (y->kind != MGPU_VALUE_RESULT || y->producer->op != &mgpu_op_transpose)
        return y;
    const struct mgpu_transpose_attrs *a = y->producer->attrs;
    int64_t before = -1;
    for (int k = 0; k < y->rank; k++) {
        if (k == *axis)
            continue;
        if (a->perm[k] < before)
            return y;
        before = a->perm[k];
    }
    *axis = (int)a->perm[*axis];
    return y->producer->input[0];
}

const struct mgpu_node *mgpu_loss_activation(const struct mgpu_value *y, int axis)
{
    return activation_before(y, axis < 0 ? 0 : axis, axis < 0);
}
