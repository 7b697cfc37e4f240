/* The pass that applies a plan: follows how each value is spread over the ranks (op->split) and
 * adds the communication that this asks for. */
#include "runtime/base/status.h"
#include "runtime/compile/batch_facts.h"
#include "runtime/compile/early.h"
#include "runtime/compile/follow.h"
#include "runtime/compile/pass.h"
#include "runtime/graph/alike.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ops/build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct mgpu_split REPLICATED = {.kind = MGPU_SPLIT_REPLICATED, .outer = 1};

/* ---- Where values come from ------------------------------------------------------------------ */

static int source_state(struct mgpu_pass *p, const struct mgpu_value *v)
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

static const char *no_cut(const struct mgpu_pass *p)
{
    return p->plan->replicas > 1 ? "split over several ranks with --strategy data; use one rank"
                                 : "cut into pieces (--accumulate)";
}

static int mixes(struct mgpu_pass *p, const struct mgpu_node *node, const struct mgpu_value *at)
{
    char text[MGPU_VALUE_TEXT];
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s mixes the samples of a batch (through '%s'), so the batch cannot be %s",
                     mgpu_origin_text(text, &node->origin), at ? at->name : "", no_cut(p));
}

static int check_whole(const struct mgpu_pass *p)
{
    char text[MGPU_VALUE_TEXT];
    if (!p->g->whole)
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s depends on the size of the batch, so the batch cannot be %s",
                     mgpu_origin_text(text, p->g->whole), no_cut(p));
}

static int check_constants(struct mgpu_pass *p, const struct mgpu_node *node)
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

/* ---- One node -------------------------------------------------------------------------------- */

static int process(struct mgpu_pass *p, struct mgpu_node *node);
static int settle_gradient(struct mgpu_pass *p, struct mgpu_node *node, struct mgpu_value *v);

/* What the node is now replaces its outputs. Gradients of the pieces add up when all that takes
 * this piece's own has taken it. */
static int stand_in(struct mgpu_pass *p, struct mgpu_node *node, struct mgpu_value **made)
{
    mgpu_pass_grow(p);
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (!v || !made[i])
            continue;
        p->instead[v->id] = made[i];
        struct mgpu_value *now = mgpu_pass_current(p, v);
        p->gradient_of[now->id] = p->gradient_of[v->id];
        if (p->pieces > 1 && p->gradient_of[v->id] >= 0)
            MGPU_TRY(settle_gradient(p, node, now));
    }
    return 0;
}

/* Writes the node as others that can be split, and takes those through the pass. */
static int expand(struct mgpu_pass *p, struct mgpu_node *node)
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
static bool steers(const struct mgpu_pass *p, const struct mgpu_node *node)
{
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i] && p->steers[node->output[i]->id])
            return true;
    return false;
}

static void put_off(struct mgpu_pass *p, struct mgpu_node *node)
{
    p->later = mgpu_grow(p->later, (size_t)p->later_count, sizeof(struct mgpu_node *));
    p->later[p->later_count++] = node;
}

/* Something that it takes was put off. */
static bool waits(const struct mgpu_pass *p, const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && !p->at[node->input[i]->id])
            return true;
    return false;
}

/* Communication in forward makes one piece know the others' ranks, not the other pieces. That is
 * enough for batch norm: its statistics, and the running ones, are those of each piece. */
static int whole_input(struct mgpu_pass *p, struct mgpu_node *node, int which)
{
    char text[MGPU_VALUE_TEXT];
    if (p->pieces > 1 && node->origin.role == MGPU_FORWARD && !p->expanding && steers(p, node))
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "%s needs a sum over the whole batch in the forward pass, which "
                         "--accumulate cuts into pieces",
                         mgpu_origin_text(text, &node->origin));
    p->g->origin = node->origin;
    struct mgpu_value *v = node->input[which];
    MGPU_TRY(mgpu_pass_make_whole(p, v, &node->input[which]));
    if (node->input[which] == v) /* one replica: it is whole already */
        p->state[v->id] = REPLICATED;
    return 0;
}

static int check_output(struct mgpu_pass *p, const struct mgpu_node *node, int i)
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
static int accumulate(struct mgpu_pass *p, int place, struct mgpu_value **v)
{
    struct mgpu_split state = p->state[(*v)->id];
    int before = p->g->node_count;
    struct mgpu_value *sum = mgpu_build1(p->g, &mgpu_op_accumulate, NULL, 1, v);
    if (!sum)
        return mgpu_build_error();
    mgpu_pass_adopt(p, before, place);
    p->instead[(*v)->id] = sum;
    p->state[sum->id] = state;
    *v = sum;
    return 0;
}

static bool has_rows(const struct mgpu_pass *p, const struct mgpu_value *v)
{
    const struct mgpu_split *s = &p->state[v->id];
    return s->kind == MGPU_SPLIT_AXIS && s->axis == 0;
}

/* Whether each replica has some rows of the factors, where the weight is. */
static bool takes_factors(const struct mgpu_pass *p, const struct mgpu_node *node,
                          const struct mgpu_value *v, int owner)
{
    return p->by_product[p->gradient_of[v->id]] && p->state[v->id].kind == MGPU_SPLIT_SUM &&
           p->at[v->id] >> owner & 1 && has_rows(p, node->input[0]) && has_rows(p, node->input[1]);
}

/* A gradient goes to its weight's owner. */
static int settle_gradient(struct mgpu_pass *p, struct mgpu_node *node, struct mgpu_value *v)
{
    int owner = p->places.owner[p->gradient_of[v->id]];
    p->g->origin = node->origin;
    if (takes_factors(p, node, v, owner))
        return mgpu_pass_gather_product(p, node, owner);
    if (!(p->at[v->id] >> owner & 1))
        MGPU_TRY(mgpu_pass_transfer(p, v, owner));
    if (p->pieces > 1)
        MGPU_TRY(accumulate(p, owner, &v));
    return p->state[v->id].kind == MGPU_SPLIT_SUM ? mgpu_pass_add_gradient(p, owner, v) : 0;
}

static int settle(struct mgpu_pass *p, struct mgpu_node *node, int place,
                  const struct mgpu_split *out)
{
    mgpu_pass_keep(p, node, place);
    mgpu_pass_grow(p);
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

static bool in_bucket(const struct mgpu_pass *p, const struct mgpu_node *node)
{
    for (int b = 0; b < p->plan->places; b++)
        for (int i = 0; i < node->inputs; i++)
            for (int k = 0; k < p->bucket[b].count; k++)
                if (node->input[i] == p->bucket[b].value[k])
                    return true;
    return false;
}

static void current_inputs(struct mgpu_pass *p, struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        node->input[i] = mgpu_pass_current(p, node->input[i]);
}

/* Running statistics have time until the end of the step, where their sums are one. */
static bool wait_for_whole(struct mgpu_pass *p, struct mgpu_node *node, int which)
{
    struct mgpu_value *v = node->input[which];
    if (p->plan->replicas == 1 || p->expanding || p->whole[v->id] || steers(p, node))
        return false;
    mgpu_pass_want_whole(p, v);
    put_off(p, node);
    return true;
}

static int answer(struct mgpu_pass *p, struct mgpu_node *node, struct mgpu_split *in,
                  struct mgpu_split *out)
{
    int place = mgpu_place_of(&p->places, node);
    for (;;) {
        int which = 0;
        MGPU_TRY(mgpu_pass_bring_inputs(p, node, place));
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
        if (wait_for_whole(p, node, which))
            return 0;
        MGPU_TRY(whole_input(p, node, which));
    }
}

/* One replica and one piece: nothing is split, only placed. */
static bool splits(const struct mgpu_pass *p)
{
    return p->plan->replicas > 1 || p->pieces > 1;
}

static int place_only(struct mgpu_pass *p, struct mgpu_node *node)
{
    int place = mgpu_place_of(&p->places, node);
    MGPU_TRY(mgpu_pass_bring_inputs(p, node, place));
    mgpu_pass_keep(p, node, place);
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (v && p->gradient_of[v->id] >= 0)
            MGPU_TRY(settle_gradient(p, node, v));
    }
    return 0;
}

static int process(struct mgpu_pass *p, struct mgpu_node *node)
{
    current_inputs(p, node);
    p->g->origin = node->origin;
    if (!splits(p))
        return place_only(p, node);
    if (waits(p, node)) {
        put_off(p, node);
        return 0;
    }
    if (node->origin.role == MGPU_UPDATE && in_bucket(p, node)) {
        MGPU_TRY(mgpu_pass_close_buckets(p));
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

static int finish_value(struct mgpu_pass *p, struct mgpu_value **v, bool must_be_whole)
{
    *v = mgpu_pass_current(p, *v);
    enum mgpu_split_kind kind = p->state[(*v)->id].kind;
    struct mgpu_value *whole;
    if (kind == MGPU_SPLIT_REPLICATED || (kind != MGPU_SPLIT_MEAN && !must_be_whole))
        return 0;
    if (kind == MGPU_SPLIT_AXIS && splits(p))
        return mgpu_fail(MGPU_EINTERNAL, "'%s' would differ between ranks", (*v)->name);
    MGPU_TRY(mgpu_pass_make_whole(p, *v, &whole));
    *v = whole;
    return 0;
}

/* The value on this rank, or NULL where another place has it. */
static struct mgpu_value *if_here(struct mgpu_pass *p, struct mgpu_value *v)
{
    return p->at[v->id] >> p->place & 1 ? mgpu_pass_local(p, v) : NULL;
}

static int finish_parameters(struct mgpu_pass *p)
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

static int finish_outputs(struct mgpu_pass *p, struct mgpu_applied *applied)
{
    struct mgpu_graph *g = p->g;
    int kept = 0;
    for (int i = 0; i < g->output_count; i++) {
        struct mgpu_value *v = g->outputs[i];
        MGPU_TRY(finish_value(p, &v, false));
        if (mgpu_lowest_place(p->at[v->id]) != p->place)
            continue;
        applied->index[kept] = i;
        applied->output[kept] = splits(p) ? p->state[v->id] : REPLICATED;
        g->output_names[kept] = g->output_names[i];
        g->outputs[kept++] = mgpu_pass_local(p, v);
    }
    g->output_count = applied->outputs = kept;
    return 0;
}

static int take(struct mgpu_pass *p, struct mgpu_node *node)
{
    MGPU_TRY(process(p, node));
    for (int k = 0; k < node->outputs; k++)
        if (node->output[k])
            MGPU_TRY(mgpu_pass_send_ahead(p, node->output[k]->id));
    return 0;
}

static int walk(struct mgpu_pass *p)
{
    struct mgpu_graph *g = p->g;
    if (splits(p))
        MGPU_TRY(check_whole(p));
    mgpu_pass_grow(p);
    p->steers = mgpu_find_steering(g);
    p->by_product = mgpu_find_products(g);
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
        rc = mgpu_pass_send_ahead(p, g->parameters[i].value->id);
    for (int i = 0; i < count && rc == 0; i++)
        rc = take(p, nodes[i]);
    free(nodes);
    return rc;
}

/* What was put off, round by round, and outputs that are means. */
static int finish_rest(struct mgpu_pass *p)
{
    struct mgpu_graph *g = p->g;
    for (int i = 0; i < g->output_count; i++) {
        struct mgpu_value *v = mgpu_pass_current(p, g->outputs[i]);
        if (p->state[v->id].kind == MGPU_SPLIT_MEAN)
            mgpu_pass_want_whole(p, v);
    }
    do {
        for (int i = 0; i < g->parameter_count; i++) {
            struct mgpu_value *v = mgpu_pass_current(p, g->parameters[i].next);
            if (v && mgpu_split_is_term(p->state[v->id]))
                mgpu_pass_want_whole(p, v);
        }
        MGPU_TRY(mgpu_pass_sum_wanted(p));
        int count = p->later_count, rc = 0;
        struct mgpu_node **nodes = p->later;
        p->later = NULL;
        p->later_count = 0;
        for (int i = 0; i < count && rc == 0; i++)
            rc = take(p, nodes[i]);
        free(nodes);
        MGPU_TRY(rc);
    } while (p->later_count);
    return 0;
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

static void free_pass(struct mgpu_pass *p)
{
    for (int i = 0; i < p->plan->places; i++)
        free(p->bucket[i].value);
    free(p->bucket);
    free(p->state);
    free(p->instead);
    free(p->whole);
    free(p->gradient_of);
    free(p->at);
    free(p->image);
    free(p->here);
    free(p->users);
    free(p->steers);
    free(p->by_product);
    free(p->wanted);
    free(p->later);
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
    struct mgpu_pass p = {.g = g,
                          .plan = plan,
                          .pieces = pieces,
                          .replica = rank / plan->places,
                          .place = rank % plan->places};
    mgpu_places_init(&p.places, g, plan);
    p.bucket = mgpu_xcalloc((size_t)plan->places, sizeof *p.bucket);
    int rc = walk(&p);
    if (rc == 0)
        rc = mgpu_pass_close_buckets(&p);
    if (rc == 0)
        rc = finish_rest(&p);
    if (rc == 0)
        rc = finish_parameters(&p);
    if (rc == 0)
        rc = finish_outputs(&p, applied);
    g->origin = before;
    free_pass(&p);
    return rc;
}
