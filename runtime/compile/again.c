/* What is made of values that backward has in any case is not kept for it, but computed again
 * there:
 *
 *     z = batch_norm(x), y = conv(z) ... dw = conv_grad_weight(z, dy)              becomes
 *     z = batch_norm(x), y = conv(z) ... z' = batch_norm(x, statistics), dw = ... (z', dy)
 *
 * z' has the bits of z. The normalisation's own gradient reads x and the statistics. That is half
 * of a convolutional network's activations for one pass over the other half. What was added to z
 * (finish.c) is kept anyway, or computed again first. The same for concatenations, most of whose
 * parts are kept, and, for a backend that asks for it, for large layer normalisations and
 * expressions (GELU) whose operands backward reads too.
 */
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/storage.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pointwise.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEAR = 16,       /* nodes: what backward reads so soon is kept */
    LONGEST = 256,   /* nodes, one made of the other */
    SHORT = 4,       /* the same before an expression or layer normalisation */
    LARGE = 1 << 18, /* bytes of one of these that is worth it */
};

struct again {
    struct mgpu_graph *g;
    const struct mgpu_backend *backend;
    bool *lasts, *changed;

    /* by value id */
    int *behind;  /* the first node of backward that reads it or a view of it; INT_MAX: none does */
    int *ahead;   /* the last of forward that does; -1: none */
    bool *needed; /* its memory, under whatever name, is needed otherwise */
    int *may;     /* it can be computed again: how many nodes that takes, one behind the other */
    bool *stays;  /* something else is made of it again */
    struct mgpu_value **made;
};

/* ---- Limits ---------------------------------------------------------------------------------- */

/* Where nothing was added, the gradient needs no z to tell what passed the limits: x, which it
 * reads, and the bias tell. */
static void hold_by_bias(struct mgpu_graph *g, const struct mgpu_backend *backend,
                         struct mgpu_node *grad)
{
    const struct mgpu_value *z = grad->inputs > 5 ? grad->input[5] : NULL;
    const struct mgpu_node *norm = z && z->kind == MGPU_VALUE_RESULT ? z->producer : NULL;
    if (!norm || norm->op != &mgpu_op_batch_norm || z != norm->output[0] || norm->inputs > 3 ||
        norm->input[0] != grad->input[0] || norm->input[1] != grad->input[2] ||
        norm->output[1] != grad->input[3] || norm->output[2] != grad->input[4])
        return;
    struct mgpu_node with = *grad;
    with.input = mgpu_arena_copy(g->arena, grad->input, sizeof *grad->input * 6);
    with.input[5] = norm->input[2];
    if (mgpu_backend_kernel(backend, &with) == mgpu_backend_kernel(backend, grad))
        grad->input = with.input;
}

/* ---- Which ----------------------------------------------------------------------------------- */

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

static void read_by(struct again *a, const struct mgpu_node *node, int id)
{
    bool forward = node->origin.role == MGPU_FORWARD, view = forward && mgpu_is_view(node);
    int of = view ? node->output[0]->id : -1;
    if (node->origin.role == MGPU_BACKWARD)
        a->behind[id] = least(a->behind[id], node->id);
    if (forward)
        a->ahead[id] = most(a->ahead[id], node->id);
    if (!view)
        return;
    a->behind[id] = least(a->behind[id], a->behind[of]);
    a->ahead[id] = most(a->ahead[id], a->ahead[of]);
    a->needed[id] = a->needed[id] || a->needed[of];
}

static void find_readers(struct again *a)
{
    const struct mgpu_graph *g = a->g;
    for (int i = 0; i < g->value_count; i++) {
        a->behind[i] = INT_MAX;
        a->ahead[i] = -1;
        a->needed[i] = a->lasts[i] || a->changed[i];
    }
    for (int n = g->node_count - 1; n >= 0; n--)
        for (int i = 0; i < g->nodes[n]->inputs; i++)
            if (g->nodes[n]->input[i])
                read_by(a, g->nodes[n], g->nodes[n]->input[i]->id);
}

/* There is nothing to gain where its memory is needed otherwise, or until backward. */
static bool is_kept_else(const struct again *a, const struct mgpu_value *v)
{
    int first = a->behind[v->id];
    return a->needed[v->id] || (first < INT_MAX && first - a->ahead[v->id] <= NEAR);
}

/* Backward can have it: it is kept, or computed again. */
static bool is_there(const struct again *a, const struct mgpu_value *v)
{
    return !a->changed[v->id] && (v->kind != MGPU_VALUE_RESULT || a->lasts[v->id] ||
                                  a->may[v->id] || a->stays[v->id] || a->behind[v->id] < INT_MAX);
}

/* What it is computed from; gives how many. */
static int inputs_of(const struct mgpu_node *node, struct mgpu_value **in)
{
    if (in)
        memcpy(in, node->input, sizeof *in * (size_t)node->inputs);
    if (node->op != &mgpu_op_batch_norm)
        return node->inputs;
    for (int i = node->inputs; in && i < 4; i++)
        in[i] = NULL;
    if (in) {
        in[4] = node->output[1];
        in[5] = node->output[2];
    }
    return 6;
}

/* By the kernel that computed it first. */
static bool may_norm(const struct again *a, const struct mgpu_node *norm)
{
    struct mgpu_value *in[6];
    struct mgpu_node with = *norm;
    if (norm->inputs > 4 || !is_there(a, norm->input[0]) ||
        (norm->inputs > 3 && !is_there(a, norm->input[3])))
        return false;
    with.inputs = inputs_of(norm, in);
    with.input = in;
    return mgpu_backend_kernel(a->backend, &with) == mgpu_backend_kernel(a->backend, norm);
}

/* Parts that stay for this must be less than they make. */
static bool may_concat(const struct again *a, const struct mgpu_node *node)
{
    int64_t more = 0;
    for (int i = 0; i < node->inputs; i++) {
        if (a->changed[node->input[i]->id])
            return false;
        more += is_there(a, node->input[i]) ? 0 : mgpu_value_bytes(node->input[i]);
    }
    return 2 * more <= mgpu_value_bytes(node->output[0]);
}

/* It takes no more than one that is kept anyway. */
static bool may_cheap(const struct again *a, const struct mgpu_node *node)
{
    bool all = mgpu_value_bytes(node->output[0]) >= LARGE;
    for (int i = 0; i < node->inputs && all; i++) {
        const struct mgpu_value *v = node->input[i];
        all = !v || (is_there(a, v) && a->may[v->id] < SHORT);
    }
    return all;
}

static bool may_again(const struct again *a, const struct mgpu_node *node)
{
    const struct mgpu_op *op = node->op;
    bool read = a->behind[node->output[0]->id] < INT_MAX;
    if (op == &mgpu_op_batch_norm)
        return may_norm(a, node);
    if (op == &mgpu_op_concat)
        return read && may_concat(a, node);
    if (a->backend->spares && (op == &mgpu_op_pointwise || op == &mgpu_op_group_norm))
        return read && may_cheap(a, node);
    return mgpu_is_view(node) && a->may[node->input[0]->id];
}

static void decide(struct again *a, const struct mgpu_node *node)
{
    const struct mgpu_value *y = node->outputs ? node->output[0] : NULL;
    int before = 0;
    if (!y || node->origin.role != MGPU_FORWARD || is_kept_else(a, y) || !may_again(a, node))
        return;
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i])
            before = most(before, a->may[node->input[i]->id]);
    if (before == LONGEST)
        return;
    a->may[y->id] = before + 1;
    for (int i = 0; node->op == &mgpu_op_concat && i < node->inputs; i++)
        a->stays[node->input[i]->id] = true;
}

/* ---- Where ----------------------------------------------------------------------------------- */

static int make(struct again *a, struct mgpu_value *v, struct mgpu_value **out)
{
    struct mgpu_graph *g = a->g;
    const struct mgpu_node *node = v->producer;
    int n = inputs_of(node, NULL), rc = 0;
    if (!a->made[v->id]) {
        struct mgpu_value *made[MGPU_MAX_OUTPUTS];
        struct mgpu_value **in = mgpu_xcalloc((size_t)n, sizeof(struct mgpu_value *));
        inputs_of(node, in);
        for (int i = 0; i < n && rc == 0; i++)
            if (in[i] && a->may[in[i]->id])
                rc = make(a, in[i], &in[i]);
        g->origin = node->origin;
        g->origin.role = MGPU_RECOMPUTE;
        if (rc == 0)
            rc = mgpu_graph_node(g, node->op, node->attrs, n, in, node->outputs, made);
        free(in);
        MGPU_TRY(rc);
        a->made[v->id] = made[0];
    }
    *out = a->made[v->id];
    return 0;
}

static int append(struct again *a, struct mgpu_node *node)
{
    struct mgpu_graph *g = a->g;
    for (int i = 0; i < node->inputs && node->origin.role == MGPU_BACKWARD; i++)
        if (node->input[i] && a->may[node->input[i]->id])
            MGPU_TRY(make(a, node->input[i], &node->input[i]));
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
    return 0;
}

static int append_all(struct again *a)
{
    struct mgpu_graph *g = a->g;
    struct mgpu_node **node = g->nodes;
    int nodes = g->node_count, rc = 0;
    g->nodes = NULL;
    g->node_count = 0;
    for (int n = 0; n < nodes && rc == 0; n++)
        rc = append(a, node[n]);
    free(node);
    return rc;
}

int mgpu_compute_again(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    size_t values = (size_t)g->value_count + 1;
    struct mgpu_origin before = g->origin;
    for (int n = 0; n < g->node_count; n++)
        if (g->nodes[n]->op == &mgpu_op_batch_norm_grad)
            hold_by_bias(g, backend, g->nodes[n]);
    struct again a = {.g = g,
                      .backend = backend,
                      .lasts = mgpu_lasting_values(g),
                      .changed = mgpu_communicated_values(g),
                      .behind = mgpu_xcalloc(values, sizeof *a.behind),
                      .ahead = mgpu_xcalloc(values, sizeof *a.ahead),
                      .needed = mgpu_xcalloc(values, sizeof *a.needed),
                      .may = mgpu_xcalloc(values, sizeof *a.may),
                      .stays = mgpu_xcalloc(values, sizeof *a.stays),
                      .made = mgpu_xcalloc(values, sizeof *a.made)};
    find_readers(&a);
    for (int n = 0; n < g->node_count; n++)
        decide(&a, g->nodes[n]);
    int rc = append_all(&a);
    g->origin = before;
    free(a.lasts);
    free(a.changed);
    free(a.behind);
    free(a.ahead);
    free(a.needed);
    free(a.may);
    free(a.stays);
    free(a.made);
    return rc;
}
