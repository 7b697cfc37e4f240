/* What the pass that applies a plan adds: values sent from place to place, sums over the replicas.
 */
#include "runtime/compile/pass.h"
#include "runtime/base/status.h"
#include "runtime/compile/early.h"
#include "runtime/graph/alike.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/movement.h"

#include <stdlib.h>
#include <string.h>

/* ---- Values ---------------------------------------------------------------------------------- */

void mgpu_pass_grow(struct mgpu_pass *p)
{
    int n = p->g->value_count;
    if (n <= p->known)
        return;
    size_t room = (size_t)n;
    p->state = mgpu_xrealloc(p->state, room, sizeof *p->state);
    p->instead = mgpu_xrealloc(p->instead, room, sizeof(struct mgpu_value *));
    p->whole = mgpu_xrealloc(p->whole, room, sizeof(struct mgpu_value *));
    p->gradient_of = mgpu_xrealloc(p->gradient_of, room, sizeof *p->gradient_of);
    p->at = mgpu_xrealloc(p->at, room, sizeof *p->at);
    p->image = mgpu_xrealloc(p->image, room, sizeof *p->image);
    p->here = mgpu_xrealloc(p->here, room, sizeof(struct mgpu_value *));
    for (int i = p->known; i < n; i++) {
        p->state[i] = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
        p->instead[i] = p->whole[i] = NULL;
        p->gradient_of[i] = -1;
        p->image[i] = false;
        p->here[i] = NULL;
        p->at[i] = p->g->values[i]->kind == MGPU_VALUE_RESULT ? 0 : ~UINT64_C(0);
    }
    p->known = n;
}

struct mgpu_value *mgpu_pass_current(struct mgpu_pass *p, struct mgpu_value *v)
{
    mgpu_pass_grow(p);
    while (v && p->instead[v->id])
        v = p->instead[v->id];
    return v;
}

struct mgpu_value *mgpu_pass_local(struct mgpu_pass *p, struct mgpu_value *v)
{
    return v && p->here[v->id] ? p->here[v->id] : v;
}

/* ---- From place to place --------------------------------------------------------------------- */

/* Every rank's pass comes by here in the same order, so that tags agree and no two ranks wait for
 * each other. */
int mgpu_pass_transfer(struct mgpu_pass *p, struct mgpu_value *v, int place)
{
    struct mgpu_graph *g = p->g;
    int from = mgpu_lowest_place(p->at[v->id]), base = p->replica * p->plan->places;
    struct mgpu_comm_attrs attrs = {.group = mgpu_plan_world(p->plan),
                                    .tag = p->tag++,
                                    .type = v->type,
                                    .image = p->image[v->id],
                                    .rank = v->rank,
                                    .dims = v->dims};
    enum mgpu_role role = g->origin.role;
    int rc = 0;
    struct mgpu_value *mine = mgpu_pass_local(p, v), *received;
    g->origin.role = MGPU_COMMUNICATION;
    if (p->place == from) {
        attrs.peer = base + place;
        rc = mgpu_graph_node(g, &mgpu_op_send, &attrs, 1, &mine, 0, NULL);
    } else if (p->place == place) {
        attrs.peer = base + from;
        rc = mgpu_graph_node(g, &mgpu_op_recv, &attrs, 0, NULL, 1, &received);
        mgpu_pass_grow(p);
        if (rc == 0) {
            p->here[v->id] = received;
            p->state[received->id] = p->state[v->id];
            p->image[received->id] = p->image[v->id];
        }
    }
    p->at[v->id] |= UINT64_C(1) << place;
    g->origin.role = role;
    return rc;
}

int mgpu_pass_send_ahead(struct mgpu_pass *p, int old_id)
{
    struct mgpu_value *v = mgpu_pass_current(p, p->g->values[old_id]);
    for (int place = 0; place < p->plan->places && p->plan->places > 1; place++)
        if (p->users[old_id] >> place & 1 && !(p->at[v->id] >> place & 1) && p->at[v->id])
            MGPU_TRY(mgpu_pass_transfer(p, v, place));
    return 0;
}

int mgpu_pass_bring_inputs(struct mgpu_pass *p, const struct mgpu_node *node, int place)
{
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value *v = node->input[i];
        if (v && !(p->at[v->id] >> place & 1))
            MGPU_TRY(mgpu_pass_transfer(p, v, place));
    }
    return 0;
}

/* ---- Making values whole --------------------------------------------------------------------- */

/* Whether an output holds images: its operator says so, or what it was made of does. All ranks say
 * the same. */
static bool holds_images(const struct mgpu_pass *p, const struct mgpu_node *node, int i)
{
    const struct mgpu_value *y = node->output[i];
    bool follows = node->op->layouts == mgpu_layouts_any || node->op == &mgpu_op_concat ||
                   node->op == &mgpu_op_slice;
    bool image = !follows && node->op->layouts(node, node->inputs + i) & MGPU_LAYOUT_BLOCKED;
    for (int k = 0; k < node->inputs && follows; k++)
        image = image ||
                (node->input[k] && node->input[k]->rank == y->rank && p->image[node->input[k]->id]);
    return image && y->rank > 2 && mgpu_batch_axis(y) == 0;
}

void mgpu_pass_keep(struct mgpu_pass *p, struct mgpu_node *node, int place)
{
    struct mgpu_graph *g = p->g;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i]) {
            p->at[node->output[i]->id] = UINT64_C(1) << place;
            p->image[node->output[i]->id] = holds_images(p, node, i);
        }
    if (place != p->place)
        return;
    for (int i = 0; i < node->inputs; i++)
        node->input[i] = mgpu_pass_local(p, node->input[i]);
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
}

void mgpu_pass_adopt(struct mgpu_pass *p, int before, int place)
{
    int made = p->g->node_count - before;
    struct mgpu_node **node = mgpu_xcalloc((size_t)made, sizeof(struct mgpu_node *));
    if (made)
        memcpy(node, p->g->nodes + before, sizeof *node * (size_t)made);
    p->g->node_count = before;
    mgpu_pass_grow(p);
    for (int i = 0; i < made; i++)
        mgpu_pass_keep(p, node[i], place);
    free(node);
}

/* Sums over the replicas, in place. */
static int all_reduce(struct mgpu_pass *p, int place, int count, struct mgpu_value **value,
                      struct mgpu_value **out)
{
    struct mgpu_comm_attrs attrs = {.group = place, .tag = p->tag++};
    enum mgpu_role role = p->g->origin.role;
    int before = p->g->node_count;
    if (p->plan->replicas == 1) {
        memcpy(out, value, sizeof *out * (size_t)count);
        return 0;
    }
    p->g->origin.role = MGPU_COMMUNICATION;
    int rc = mgpu_graph_node(p->g, &mgpu_op_all_reduce, &attrs, count, value, count, out);
    p->g->origin.role = role;
    mgpu_pass_adopt(p, before, place);
    return rc;
}

/* What is summed to make `v` whole: a mean counts by its samples; a term is copied, as it is summed
 * in place and others may need it as it is. */
static int term_of(struct mgpu_pass *p, int place, struct mgpu_value *v, struct mgpu_value **out)
{
    struct mgpu_graph *g = p->g;
    int before = g->node_count;
    *out = v;
    if (p->state[v->id].kind == MGPU_SPLIT_MEAN) {
        struct mgpu_value *share = mgpu_graph_scalar(g, MGPU_SCALAR_RANK_SHARE, "rank share");
        *out = mgpu_mul(g, v, mgpu_cast(g, share, v->type));
    } else if (p->plan->replicas > 1) {
        *out = mgpu_copy(g, v);
    }
    mgpu_pass_adopt(p, before, place);
    return *out ? 0 : mgpu_build_error();
}

int mgpu_pass_make_whole(struct mgpu_pass *p, struct mgpu_value *v, struct mgpu_value **out)
{
    mgpu_pass_grow(p);
    if (!p->whole[v->id]) {
        int place = mgpu_lowest_place(p->at[v->id]);
        struct mgpu_value *term, *whole;
        MGPU_TRY(term_of(p, place, v, &term));
        MGPU_TRY(all_reduce(p, place, 1, &term, &whole));
        mgpu_pass_grow(p);
        p->whole[v->id] = whole;
    }
    *out = p->whole[v->id];
    return 0;
}

/* ---- Factors of gradients -------------------------------------------------------------------- */

/* The rows of all replicas, one replica's behind the other's. */
static int all_gather(struct mgpu_pass *p, int place, struct mgpu_value *v, struct mgpu_value **out)
{
    struct mgpu_graph *g = p->g;
    struct mgpu_dim *dims = mgpu_arena_copy(g->arena, v->dims, sizeof *dims * (size_t)v->rank);
    struct mgpu_comm_attrs attrs = {
        .group = place, .tag = p->tag++, .type = v->type, .rank = v->rank, .dims = dims};
    enum mgpu_role role = g->origin.role;
    int before = g->node_count;
    dims[0] = mgpu_dim_const(mgpu_rows_in_all(g, dims[0]));
    g->origin.role = MGPU_COMMUNICATION;
    int rc = mgpu_graph_node(g, &mgpu_op_all_gather, &attrs, 1, &v, 1, out);
    g->origin.role = role;
    mgpu_pass_adopt(p, before, place);
    return rc;
}

int mgpu_pass_gather_product(struct mgpu_pass *p, const struct mgpu_node *product, int place)
{
    struct mgpu_graph *g = p->g;
    struct mgpu_value *factor[2], *whole;
    for (int i = 0; i < 2; i++)
        MGPU_TRY(all_gather(p, place, product->input[i], &factor[i]));
    int before = g->node_count;
    MGPU_TRY(mgpu_graph_node(g, product->op, product->attrs, 2, factor, 1, &whole));
    mgpu_pass_adopt(p, before, place);
    p->state[whole->id] = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    p->instead[product->output[0]->id] = whole;
    return 0;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

static int close_bucket(struct mgpu_pass *p, int place)
{
    struct mgpu_bucket *b = &p->bucket[place];
    int n = b->count;
    if (!n)
        return 0;
    struct mgpu_origin before = p->g->origin;
    p->g->origin =
        (struct mgpu_origin){.path = "", .output = b->value[0]->name, .name = "", .type = "bucket"};
    struct mgpu_value **out = mgpu_xcalloc((size_t)n, sizeof(struct mgpu_value *));
    int rc = all_reduce(p, place, n, b->value, out);
    p->g->origin = before;
    mgpu_pass_grow(p);
    for (int i = 0; i < n && rc == 0; i++) {
        p->state[out[i]->id] = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
        if (out[i] != b->value[i])
            p->instead[b->value[i]->id] = out[i];
    }
    b->count = 0;
    b->bytes = 0;
    free(out);
    return rc;
}

int mgpu_pass_close_buckets(struct mgpu_pass *p)
{
    for (int place = 0; place < p->plan->places; place++)
        MGPU_TRY(close_bucket(p, place));
    return 0;
}

int mgpu_pass_add_gradient(struct mgpu_pass *p, int place, struct mgpu_value *v)
{
    struct mgpu_bucket *b = &p->bucket[place];
    if (b->count && b->value[0]->type != v->type)
        MGPU_TRY(close_bucket(p, place));
    b->value = mgpu_grow(b->value, (size_t)b->count, sizeof(struct mgpu_value *));
    b->value[b->count++] = v;
    b->bytes += mgpu_value_bytes(v);
    return b->bytes >= p->plan->bucket_bytes ? close_bucket(p, place) : 0;
}

/* ---- Together ------------------------------------------------------------------------------ */

void mgpu_pass_want_whole(struct mgpu_pass *p, struct mgpu_value *v)
{
    p->wanted = mgpu_grow(p->wanted, (size_t)p->wanted_count, sizeof(struct mgpu_value *));
    p->wanted[p->wanted_count++] = v;
}

/* Those of one place and type, in one operation: what it costs is waiting for each other. */
static int sum_together(struct mgpu_pass *p, int place, enum mgpu_dtype type)
{
    size_t most = (size_t)p->wanted_count + 1;
    struct mgpu_value **term = mgpu_xcalloc(3 * most, sizeof(struct mgpu_value *));
    struct mgpu_value **whole = term + most, **part = whole + most;
    int n = 0, rc = 0;
    for (int i = 0; i < p->wanted_count && rc == 0; i++) {
        struct mgpu_value *v = p->wanted[i];
        if (v->type != type || p->whole[v->id] || mgpu_lowest_place(p->at[v->id]) != place)
            continue;
        rc = term_of(p, place, v, &term[n]);
        mgpu_pass_grow(p);
        part[n] = v;
        p->whole[v->id] = term[n++]; /* so that it is not taken twice */
    }
    if (rc == 0 && n)
        rc = all_reduce(p, place, n, term, whole);
    mgpu_pass_grow(p);
    for (int i = 0; i < n && rc == 0; i++)
        p->whole[part[i]->id] = whole[i];
    free(term);
    return rc;
}

int mgpu_pass_sum_wanted(struct mgpu_pass *p)
{
    for (int place = 0; place < p->plan->places; place++)
        for (int i = 0; i < p->wanted_count; i++) {
            const struct mgpu_value *v = p->wanted[i];
            if (!p->whole[v->id] && mgpu_lowest_place(p->at[v->id]) == place)
                MGPU_TRY(sum_together(p, place, v->type));
        }
    p->wanted_count = 0;
    return 0;
}
