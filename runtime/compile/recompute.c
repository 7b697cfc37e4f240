/* Recomputation: activations that only backward would keep are computed again there, right before
 * they are needed, from values that are kept in any case. What is computed again is cheap:
 * expressions, normalisations, random masks and views.
 *
 *     u = conv(x); v = batch_norm(u); r = max(v, 0)
 *
 * Backward of the normalisation reads u, so v and r need not be kept: both follow from u. Chen, Xu,
 * Zhang and Guestrin 2016 ("Training deep nets with sublinear memory cost") call such nodes cheap.
 */
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/random.h"

#include <stdlib.h>
#include <string.h>

enum {
    LONGEST = 16,     /* nodes that are computed again for one value */
    SMALL_PARTS = 16, /* an input of so small a part of the value may be kept for it */
};

struct recompute {
    struct mgpu_graph *g;
    struct mgpu_names *only; /* keys; NULL: all */
    bool *lasts;

    /* by value id */
    int *readers; /* in forward */
    bool *behind; /* backward reads it, or a view of it */
    int *length;  /* nodes it takes to compute it again; 0: it is not */
    struct mgpu_value **again;
};

static bool is_cheap(const struct recompute *r, const struct mgpu_node *node)
{
    const struct mgpu_op *op = node->op;
    bool own =
        op == &mgpu_op_batch_norm &&
        ((const struct mgpu_batch_norm_attrs *)node->attrs)->per_rank; /* no sum over ranks */
    bool cheap = own || op == &mgpu_op_pointwise || op == &mgpu_op_group_norm ||
                 op == &mgpu_op_random_mask || op == &mgpu_op_reshape || op == &mgpu_op_transpose ||
                 op == &mgpu_op_expand || op == &mgpu_op_slice;
    return cheap && node->origin.role == MGPU_FORWARD &&
           (!r->only || mgpu_names_get(r->only, node->origin.output));
}

static void find_readers(struct recompute *r)
{
    const struct mgpu_graph *g = r->g;
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = g->nodes[n];
        bool view = node->op == &mgpu_op_reshape && r->behind[node->output[0]->id];
        for (int i = 0; i < node->inputs; i++) {
            if (!node->input[i])
                continue;
            int id = node->input[i]->id;
            r->readers[id] += node->origin.role == MGPU_FORWARD;
            r->behind[id] = r->behind[id] || view || node->origin.role == MGPU_BACKWARD;
        }
    }
}

/* How many nodes it takes to have the input of a node in backward: 0 when it is kept anyway; -1
 * when it would have to be kept for this. A value that others read in forward too is the start of
 * another chain: going on from it would compute half the model again. */
static int steps_to(const struct recompute *r, const struct mgpu_value *u, int64_t bytes)
{
    if (!u || u->kind != MGPU_VALUE_RESULT || r->lasts[u->id])
        return 0;
    if (r->length[u->id])
        return r->readers[u->id] == 1 ? r->length[u->id] : -1;
    return r->behind[u->id] || mgpu_value_bytes(u) * SMALL_PARTS <= bytes ? 0 : -1;
}

static void find_lengths(struct recompute *r)
{
    const struct mgpu_graph *g = r->g;
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        int length = is_cheap(r, node) ? 1 : 0;
        for (int i = 0; i < node->inputs && length; i++) {
            int steps = steps_to(r, node->input[i], mgpu_value_bytes(node->output[0]));
            length = steps < 0 ? 0 : length + steps;
        }
        if (length && length <= LONGEST && !r->lasts[node->output[0]->id])
            r->length[node->output[0]->id] = length;
    }
}

/* The value in backward, computed again where it is not kept. */
static int value_again(struct recompute *r, struct mgpu_value *v, struct mgpu_value **out)
{
    struct mgpu_graph *g = r->g;
    *out = v;
    if (!v || !r->length[v->id])
        return 0;
    if (!r->again[v->id]) {
        const struct mgpu_node *node = v->producer;
        struct mgpu_value *made[MGPU_MAX_OUTPUTS];
        struct mgpu_value **in = mgpu_xcalloc((size_t)node->inputs, sizeof(struct mgpu_value *));
        int rc = 0;
        for (int i = 0; i < node->inputs && rc == 0; i++)
            rc = value_again(r, node->input[i], &in[i]);
        g->origin = node->origin;
        g->origin.role = MGPU_RECOMPUTE;
        if (rc == 0)
            rc = mgpu_graph_node(g, node->op, node->attrs, node->inputs, in, node->outputs, made);
        free(in);
        MGPU_TRY(rc);
        r->again[v->id] = made[0];
    }
    *out = r->again[v->id];
    return 0;
}

static int append(struct recompute *r, struct mgpu_node *node)
{
    struct mgpu_graph *g = r->g;
    for (int i = 0; i < node->inputs && node->origin.role == MGPU_BACKWARD; i++)
        MGPU_TRY(value_again(r, node->input[i], &node->input[i]));
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
    return 0;
}

static int append_all(struct recompute *r)
{
    struct mgpu_graph *g = r->g;
    struct mgpu_node **node = g->nodes;
    int nodes = g->node_count, rc = 0;
    g->nodes = NULL;
    g->node_count = 0;
    for (int n = 0; n < nodes && rc == 0; n++)
        rc = append(r, node[n]);
    free(node);
    return rc;
}

static int recompute(struct mgpu_graph *g, const struct mgpu_rewrite *rewrite)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_origin before = g->origin;
    size_t values;
    mgpu_settle_expressions(g);
    mgpu_read_outputs(g); /* else backward would seem to read more than it does */
    values = (size_t)g->value_count + 1;
    struct recompute r = {.g = g,
                          .only = rewrite->outputs ? mgpu_names_new(arena) : NULL,
                          .lasts = mgpu_lasting_values(g),
                          .readers = MGPU_NEW_ARRAY(arena, int, values),
                          .behind = MGPU_NEW_ARRAY(arena, bool, values),
                          .length = MGPU_NEW_ARRAY(arena, int, values),
                          .again = MGPU_NEW_ARRAY(arena, struct mgpu_value *, values)};
    for (int i = 0; i < rewrite->outputs; i++)
        mgpu_names_set(r.only, rewrite->output[i], rewrite);
    find_readers(&r);
    find_lengths(&r);
    int rc = append_all(&r);
    g->origin = before;
    free(r.lasts);
    mgpu_arena_free(arena);
    return rc;
}

int mgpu_rewrite_backward(struct mgpu_graph *g, const struct mgpu_plan *plan)
{
    for (int i = 0; i < plan->rewrites; i++)
        if (!strcmp(plan->rewrite[i].kind, MGPU_REWRITE_RECOMPUTE))
            MGPU_TRY(mgpu_prefix(recompute(g, &plan->rewrite[i]), "rewrites[%d]", i));
    return 0;
}
