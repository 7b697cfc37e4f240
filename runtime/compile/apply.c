/* The pass that applies a plan: follows how each value is spread over the ranks (op->split) and
 * adds the communication that this asks for. */
#include "runtime/base/status.h"
#include "runtime/compile/batch_facts.h"
#include "runtime/compile/follow.h"
#include "runtime/compile/places.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Gradients that are complete and not yet reduced over the replicas. */
struct bucket {
    struct mgpu_value **value;
    int count;
    int64_t bytes;
};

struct pass {
    struct mgpu_graph *g;
    const struct mgpu_plan *plan;
    int pieces;
    bool expanding;
    struct mgpu_places places;
    int replica, place; /* of the rank that the graph is made for */
    int old_values;     /* values of the whole graph, before the pass made more */
    uint64_t *users;    /* by id of those: the places that need it */
    bool *steers;       /* by id of those: an output or a gradient depends on it */

    /* by value id; grown as values are made */
    int known;
    struct mgpu_split *state;
    struct mgpu_value **instead; /* what stands for this value now, NULL: itself */
    struct mgpu_value **whole;   /* its all-reduced version, NULL: none yet */
    int *gradient_of;            /* parameter whose gradient it is, -1: none */
    uint64_t *at;                /* the places where it is, as bits */
    struct mgpu_value **here;    /* what was received in its stead on this rank, or NULL */

    int64_t tag;
    struct bucket *bucket; /* by place */
};

static const struct mgpu_split REPLICATED = {.kind = MGPU_SPLIT_REPLICATED, .outer = 1};

static void grow(struct pass *p)
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
    p->here = mgpu_xrealloc(p->here, room, sizeof(struct mgpu_value *));
    for (int i = p->known; i < n; i++) {
        p->state[i] = REPLICATED;
        p->instead[i] = p->whole[i] = NULL;
        p->gradient_of[i] = -1;
        p->here[i] = NULL;
        p->at[i] = p->g->values[i]->kind == MGPU_VALUE_RESULT ? 0 : ~UINT64_C(0);
    }
    p->known = n;
}

static struct mgpu_value *current(struct pass *p, struct mgpu_value *v)
{
    grow(p);
    while (v && p->instead[v->id])
        v = p->instead[v->id];
    return v;
}

/* ---- Where values come from ------------------------------------------------------------------ */

static int source_state(struct pass *p, const struct mgpu_value *v)
{
    int axis = mgpu_batch_axis(v);
    struct mgpu_split *s = &p->state[v->id];
    *s = axis >= 0 ? mgpu_split_make(MGPU_SPLIT_AXIS, axis, 1) : REPLICATED;
    int owner = v->kind == MGPU_VALUE_PARAMETER ? p->places.owner[v->index] : -1;
    if (owner >= 0)
        p->at[v->id] = UINT64_C(1) << owner;
    if (v->kind != MGPU_VALUE_INPUT || axis >= 0)
        return 0;
    if (p->plan->replicas > 1)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "the rows of input '%s' are not samples, so a batch cannot be split over "
                         "%d ranks (--strategy data); use one rank",
                         v->name, p->plan->replicas);
    if (p->pieces > 1)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "the rows of input '%s' are not samples, so a batch cannot be cut into "
                         "pieces (--accumulate)",
                         v->name);
    return 0;
}

static const char *no_cut(const struct pass *p)
{
    return p->plan->replicas > 1 ? "split over several ranks with --strategy data; use one rank"
                                 : "cut into pieces (--accumulate)";
}

static int mixes(struct pass *p, const struct mgpu_node *node, const struct mgpu_value *at)
{
    char text[MGPU_VALUE_TEXT];
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s mixes the samples of a batch (through '%s'), so the batch cannot be %s",
                     mgpu_origin_text(text, &node->origin), at ? at->name : "", no_cut(p));
}

static int check_whole(const struct pass *p)
{
    char text[MGPU_VALUE_TEXT];
    if (!p->g->whole)
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s depends on the size of the batch, so the batch cannot be %s",
                     mgpu_origin_text(text, p->g->whole), no_cut(p));
}

static int check_constants(struct pass *p, const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        if (!v || v->kind != MGPU_VALUE_CONSTANT)
            continue;
        if (mgpu_mixes_samples(p->g, v))
            return mixes(p, node, v);
    }
    return 0;
}

/* ---- From place to place --------------------------------------------------------------------- */

/* What stands for `v` on this rank. */
static struct mgpu_value *local(struct pass *p, struct mgpu_value *v)
{
    return v && p->here[v->id] ? p->here[v->id] : v;
}

static int lowest(uint64_t places)
{
    int i = 0;
    while (!(places >> i & 1))
        i++;
    return i;
}

/* Makes `v` known at `place`: a pair of nodes, one on each of the two ranks. Every rank's pass
 * comes by here in the same order, so that tags agree and no two ranks wait for each other. */
static int transfer(struct pass *p, struct mgpu_value *v, int place)
{
    struct mgpu_graph *g = p->g;
    int from = lowest(p->at[v->id]), base = p->replica * p->plan->places;
    struct mgpu_comm_attrs attrs = {.group = mgpu_plan_world(p->plan),
                                    .tag = p->tag++,
                                    .type = v->type,
                                    .rank = v->rank,
                                    .dims = v->dims};
    enum mgpu_role role = g->origin.role;
    int rc = 0;
    struct mgpu_value *mine = local(p, v), *received;
    g->origin.role = MGPU_COMMUNICATION;
    if (p->place == from) {
        attrs.peer = base + place;
        rc = mgpu_graph_node(g, &mgpu_op_send, &attrs, 1, &mine, 0, NULL);
    } else if (p->place == place) {
        attrs.peer = base + from;
        rc = mgpu_graph_node(g, &mgpu_op_recv, &attrs, 0, NULL, 1, &received);
        grow(p);
        if (rc == 0) {
            p->here[v->id] = received;
            p->state[received->id] = p->state[v->id];
        }
    }
    p->at[v->id] |= UINT64_C(1) << place;
    g->origin.role = role;
    return rc;
}

/* Sends a value to everybody who will need it, as soon as it is there. */
static int send_ahead(struct pass *p, int old_id)
{
    struct mgpu_value *v = current(p, p->g->values[old_id]);
    for (int place = 0; place < p->plan->places && p->plan->places > 1; place++)
        if (p->users[old_id] >> place & 1 && !(p->at[v->id] >> place & 1) && p->at[v->id])
            MGPU_TRY(transfer(p, v, place));
    return 0;
}

static int bring_inputs(struct pass *p, const struct mgpu_node *node, int place)
{
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value *v = node->input[i];
        if (v && !(p->at[v->id] >> place & 1))
            MGPU_TRY(transfer(p, v, place));
    }
    return 0;
}

/* ---- Making values whole --------------------------------------------------------------------- */

/* The node goes to the rank's list where it runs there, with what stands for its inputs here. */
static void keep(struct pass *p, struct mgpu_node *node, int place)
{
    struct mgpu_graph *g = p->g;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i])
            p->at[node->output[i]->id] = UINT64_C(1) << place;
    if (place != p->place)
        return;
    for (int i = 0; i < node->inputs; i++)
        node->input[i] = local(p, node->input[i]);
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
}

/* Nodes that the pass itself made since there were `before`: they run at `place`. */
static void adopt(struct pass *p, int before, int place)
{
    int made = p->g->node_count - before;
    struct mgpu_node **node = mgpu_xcalloc((size_t)made, sizeof(struct mgpu_node *));
    if (made)
        memcpy(node, p->g->nodes + before, sizeof *node * (size_t)made);
    p->g->node_count = before;
    grow(p);
    for (int i = 0; i < made; i++)
        keep(p, node[i], place);
    free(node);
}

/* Sums over the replicas, in place. */
static int all_reduce(struct pass *p, int place, int count, struct mgpu_value **value,
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
    adopt(p, before, place);
    return rc;
}

/* What is summed to make `v` whole: a mean counts by its samples; a term is copied, as it is summed
 * in place and others may need it as it is. */
static int term_of(struct pass *p, int place, struct mgpu_value *v, struct mgpu_value **out)
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
    adopt(p, before, place);
    return *out ? 0 : mgpu_build_error();
}

/* The sum over the replicas of `v`; made once. */
static int make_whole(struct pass *p, struct mgpu_value *v, struct mgpu_value **out)
{
    grow(p);
    if (!p->whole[v->id]) {
        int place = lowest(p->at[v->id]);
        struct mgpu_value *term, *whole;
        MGPU_TRY(term_of(p, place, v, &term));
        MGPU_TRY(all_reduce(p, place, 1, &term, &whole));
        grow(p);
        if (whole != v)
            p->state[whole->id] = REPLICATED;
        p->whole[v->id] = whole;
    }
    *out = p->whole[v->id];
    return 0;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

static int close_bucket(struct pass *p, int place)
{
    struct bucket *b = &p->bucket[place];
    int n = b->count;
    if (!n)
        return 0;
    struct mgpu_origin before = p->g->origin;
    p->g->origin =
        (struct mgpu_origin){.path = "", .output = b->value[0]->name, .name = "", .type = "bucket"};
    struct mgpu_value **out = mgpu_xcalloc((size_t)n, sizeof(struct mgpu_value *));
    int rc = all_reduce(p, place, n, b->value, out);
    p->g->origin = before;
    grow(p);
    for (int i = 0; i < n && rc == 0; i++) {
        p->state[out[i]->id] = REPLICATED;
        if (out[i] != b->value[i])
            p->instead[b->value[i]->id] = out[i];
    }
    b->count = 0;
    b->bytes = 0;
    free(out);
    return rc;
}

static int close_buckets(struct pass *p)
{
    for (int place = 0; place < p->plan->places; place++)
        MGPU_TRY(close_bucket(p, place));
    return 0;
}

static int add_gradient(struct pass *p, int place, struct mgpu_value *v)
{
    struct bucket *b = &p->bucket[place];
    if (b->count && b->value[0]->type != v->type)
        MGPU_TRY(close_bucket(p, place));
    b->value = mgpu_grow(b->value, (size_t)b->count, sizeof(struct mgpu_value *));
    b->value[b->count++] = v;
    b->bytes += mgpu_value_bytes(v);
    return b->bytes >= p->plan->bucket_bytes ? close_bucket(p, place) : 0;
}

/* ---- One node -------------------------------------------------------------------------------- */

static int process(struct pass *p, struct mgpu_node *node);
static int settle_gradient(struct pass *p, struct mgpu_node *node, struct mgpu_value *v);

/* What the node is now replaces its outputs. Gradients of the pieces add up when all that takes
 * this piece's own has taken it. */
static int stand_in(struct pass *p, struct mgpu_node *node, struct mgpu_value **made)
{
    grow(p);
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (!v || !made[i])
            continue;
        p->instead[v->id] = made[i];
        struct mgpu_value *now = current(p, v);
        p->gradient_of[now->id] = p->gradient_of[v->id];
        if (p->pieces > 1 && p->gradient_of[v->id] >= 0)
            MGPU_TRY(settle_gradient(p, node, now));
    }
    return 0;
}

/* Writes the node as others that can be split, and takes those through the pass. */
static int expand(struct pass *p, struct mgpu_node *node)
{
    struct mgpu_graph *g = p->g;
    struct mgpu_value *out[MGPU_MAX_OUTPUTS] = {NULL};
    int before = g->node_count;
    g->origin = node->origin;
    MGPU_TRY(node->op->expand(g, node, out));
    int made = g->node_count - before;
    struct mgpu_node **nodes = mgpu_xcalloc((size_t)made, sizeof(struct mgpu_node *));
    if (made)
        memcpy(nodes, g->nodes + before, sizeof *nodes * (size_t)made);
    g->node_count = before;
    bool outside = p->expanding;
    p->expanding = true;
    int rc = 0;
    for (int i = 0; i < made && rc == 0; i++)
        rc = process(p, nodes[i]);
    p->expanding = outside;
    free(nodes);
    return rc < 0 ? rc : stand_in(p, node, out);
}

/* Whether the node's outputs lead to an output or a gradient, and not to a running statistic only.
 */
static bool steers(const struct pass *p, const struct mgpu_node *node)
{
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && p->steers[node->output[i]->id])
            return true;
    return false;
}

/* Communication in forward makes one piece know the others' ranks, not the other pieces. That is
 * enough for batch norm: its statistics, and the running ones, are those of each piece. */
static int whole_input(struct pass *p, struct mgpu_node *node, int which)
{
    char text[MGPU_VALUE_TEXT];
    if (p->pieces > 1 && node->origin.role == MGPU_FORWARD && !p->expanding && steers(p, node))
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "%s needs a sum over the whole batch in the forward pass, which "
                         "--accumulate cuts into pieces",
                         mgpu_origin_text(text, &node->origin));
    p->g->origin = node->origin;
    struct mgpu_value *v = node->input[which];
    MGPU_TRY(make_whole(p, v, &node->input[which]));
    if (node->input[which] == v) /* one replica: it is whole already */
        p->state[v->id] = REPLICATED;
    return 0;
}

static int check_output(struct pass *p, const struct mgpu_node *node, int i)
{
    const struct mgpu_value *v = node->output[i];
    const struct mgpu_split *s = &p->state[v->id];
    int axis = mgpu_batch_axis(v);
    if (s->kind == MGPU_SPLIT_REPLICATED && axis >= 0)
        return mixes(p, node, v);
    if (s->kind == MGPU_SPLIT_AXIS && !mgpu_dim_has(v->dims[s->axis], MGPU_BATCH))
        return mgpu_fail(MGPU_EINTERNAL, "%s: split along axis %d, which has no samples",
                         node->op->name, s->axis);
    return 0;
}

/* Pieces of a batch add up in the stored gradient. */
static int accumulate(struct pass *p, int place, struct mgpu_value **v)
{
    struct mgpu_split state = p->state[(*v)->id];
    int before = p->g->node_count;
    struct mgpu_value *sum = mgpu_build1(p->g, &mgpu_op_accumulate, NULL, 1, v);
    if (!sum)
        return mgpu_build_error();
    adopt(p, before, place);
    p->instead[(*v)->id] = sum;
    p->state[sum->id] = state;
    *v = sum;
    return 0;
}

/* A gradient goes to its weight's owner. */
static int settle_gradient(struct pass *p, struct mgpu_node *node, struct mgpu_value *v)
{
    int owner = p->places.owner[p->gradient_of[v->id]];
    p->g->origin = node->origin;
    if (!(p->at[v->id] >> owner & 1))
        MGPU_TRY(transfer(p, v, owner));
    if (p->pieces > 1)
        MGPU_TRY(accumulate(p, owner, &v));
    return p->state[v->id].kind == MGPU_SPLIT_SUM ? add_gradient(p, owner, v) : 0;
}

static int settle(struct pass *p, struct mgpu_node *node, int place, const struct mgpu_split *out)
{
    keep(p, node, place);
    grow(p);
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (!v)
            continue;
        p->state[v->id] = out[i];
        MGPU_TRY(check_output(p, node, i));
    }
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (v && p->gradient_of[v->id] >= 0)
            MGPU_TRY(settle_gradient(p, node, v));
    }
    return 0;
}

static bool in_bucket(const struct pass *p, const struct mgpu_node *node)
{
    for (int b = 0; b < p->plan->places; b++)
        for (int i = 0; i < node->inputs; i++)
            for (int k = 0; k < p->bucket[b].count; k++)
                if (node->input[i] == p->bucket[b].value[k])
                    return true;
    return false;
}

static void current_inputs(struct pass *p, struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        node->input[i] = current(p, node->input[i]);
}

static int answer(struct pass *p, struct mgpu_node *node, struct mgpu_split *in,
                  struct mgpu_split *out)
{
    int place = mgpu_place_of(&p->places, node);
    for (;;) {
        int which = 0;
        MGPU_TRY(bring_inputs(p, node, place));
        for (int i = 0; i < node->inputs; i++)
            in[i] = node->input[i] ? p->state[node->input[i]->id] : REPLICATED;
        mgpu_follow_constants(node, in);
        enum mgpu_split_answer a = node->op->split(node, in, out, &which);
        if (a == MGPU_SPLIT_OK)
            return settle(p, node, place, out);
        if (a == MGPU_SPLIT_MIXES && node->op->expand)
            return expand(p, node);
        if (a == MGPU_SPLIT_MIXES)
            return mixes(p, node, node->input[which]);
        MGPU_TRY(whole_input(p, node, which));
    }
}

/* One replica and one piece: nothing is split, only placed. */
static bool splits(const struct pass *p)
{
    return p->plan->replicas > 1 || p->pieces > 1;
}

static int place_only(struct pass *p, struct mgpu_node *node)
{
    int place = mgpu_place_of(&p->places, node);
    MGPU_TRY(bring_inputs(p, node, place));
    keep(p, node, place);
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (v && p->gradient_of[v->id] >= 0)
            MGPU_TRY(settle_gradient(p, node, v));
    }
    return 0;
}

static int process(struct pass *p, struct mgpu_node *node)
{
    current_inputs(p, node);
    p->g->origin = node->origin;
    if (!splits(p))
        return place_only(p, node);
    if (node->origin.role == MGPU_UPDATE && in_bucket(p, node)) {
        MGPU_TRY(close_buckets(p));
        current_inputs(p, node);
    }
    MGPU_TRY(check_constants(p, node));
    size_t n = (size_t)(node->inputs + node->outputs) + 1;
    struct mgpu_split *s = mgpu_xcalloc(n, sizeof *s);
    int rc = answer(p, node, s, s + node->inputs);
    free(s);
    return rc;
}

/* ---- The whole graph ------------------------------------------------------------------------- */

static int finish_value(struct pass *p, struct mgpu_value **v, bool must_be_whole)
{
    *v = current(p, *v);
    enum mgpu_split_kind kind = p->state[(*v)->id].kind;
    struct mgpu_value *whole;
    if (kind == MGPU_SPLIT_REPLICATED || (kind != MGPU_SPLIT_MEAN && !must_be_whole))
        return 0;
    if (kind == MGPU_SPLIT_AXIS && splits(p))
        return mgpu_fail(MGPU_EINTERNAL, "'%s' would differ between ranks", (*v)->name);
    MGPU_TRY(make_whole(p, *v, &whole));
    *v = whole;
    return 0;
}

/* The value on this rank, or NULL where another place has it. */
static struct mgpu_value *if_here(struct pass *p, struct mgpu_value *v)
{
    return p->at[v->id] >> p->place & 1 ? local(p, v) : NULL;
}

static int finish_parameters(struct pass *p)
{
    struct mgpu_graph *g = p->g;
    for (int i = 0; i < g->parameter_count; i++) {
        struct mgpu_parameter *q = &g->parameters[i];
        bool here = p->places.owner[i] == p->place;
        if (q->gradient) {
            MGPU_TRY(finish_value(p, &q->gradient, splits(p)));
            q->gradient = here ? if_here(p, q->gradient) : NULL;
        }
        if (q->next) {
            MGPU_TRY(finish_value(p, &q->next, splits(p)));
            q->next = here ? if_here(p, q->next) : NULL;
        }
    }
    return 0;
}

static int finish_outputs(struct pass *p, struct mgpu_applied *applied)
{
    struct mgpu_graph *g = p->g;
    int kept = 0;
    for (int i = 0; i < g->output_count; i++) {
        struct mgpu_value *v = g->outputs[i];
        MGPU_TRY(finish_value(p, &v, false));
        if (lowest(p->at[v->id]) != p->place)
            continue;
        applied->index[kept] = i;
        applied->output[kept] = splits(p) ? p->state[v->id] : REPLICATED;
        g->output_names[kept] = g->output_names[i];
        g->outputs[kept++] = local(p, v);
    }
    g->output_count = applied->outputs = kept;
    return 0;
}

static int walk(struct pass *p)
{
    struct mgpu_graph *g = p->g;
    if (splits(p))
        MGPU_TRY(check_whole(p));
    grow(p);
    p->old_values = g->value_count;
    p->steers = mgpu_find_steering(g);
    p->users = mgpu_places_users(&p->places);
    for (int i = 0; i < g->value_count; i++)
        if (g->values[i]->kind != MGPU_VALUE_RESULT)
            MGPU_TRY(source_state(p, g->values[i]));
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].gradient)
            p->gradient_of[g->parameters[i].gradient->id] = i;
    int count = g->node_count;
    struct mgpu_node **nodes = g->nodes;
    g->nodes = NULL;
    g->node_count = 0;
    int rc = 0;
    for (int i = 0; i < g->parameter_count && rc == 0; i++)
        rc = send_ahead(p, g->parameters[i].value->id);
    for (int i = 0; i < count && rc == 0; i++) {
        rc = process(p, nodes[i]);
        for (int k = 0; k < nodes[i]->outputs && rc == 0; k++)
            if (nodes[i]->output[k])
                rc = send_ahead(p, nodes[i]->output[k]->id);
    }
    free(nodes);
    return rc;
}

static int identity(struct mgpu_graph *g, struct mgpu_applied *applied)
{
    applied->outputs = g->output_count;
    for (int i = 0; i < g->output_count; i++) {
        applied->index[i] = i;
        applied->output[i] = REPLICATED;
    }
    return 0;
}

static void free_pass(struct pass *p)
{
    for (int i = 0; i < p->plan->places; i++)
        free(p->bucket[i].value);
    free(p->bucket);
    free(p->state);
    free(p->instead);
    free(p->whole);
    free(p->gradient_of);
    free(p->at);
    free(p->here);
    free(p->users);
    free(p->steers);
    mgpu_places_free(&p->places);
}

int mgpu_plan_apply(struct mgpu_graph *g, const struct mgpu_plan *plan, int rank, int pieces,
                    struct mgpu_applied *applied)
{
    assert(rank >= 0 && rank < mgpu_plan_ranks(plan));
    mgpu_graph_prune(g); /* so that what is sent is needed where it goes */
    applied->output = MGPU_NEW_ARRAY(g->arena, struct mgpu_split, g->output_count);
    applied->index = MGPU_NEW_ARRAY(g->arena, int, g->output_count);
    if (mgpu_plan_ranks(plan) == 1 && pieces == 1)
        return identity(g, applied);
    struct mgpu_origin before = g->origin;
    struct pass p = {.g = g,
                     .plan = plan,
                     .pieces = pieces,
                     .replica = rank / plan->places,
                     .place = rank % plan->places};
    mgpu_places_init(&p.places, g, plan);
    p.bucket = mgpu_xcalloc((size_t)plan->places, sizeof *p.bucket);
    int rc = walk(&p);
    if (rc == 0)
        rc = close_buckets(&p);
    if (rc == 0)
        rc = finish_parameters(&p);
    if (rc == 0)
        rc = finish_outputs(&p, applied);
    g->origin = before;
    free_pass(&p);
    return rc;
}
