/* The pass that applies a plan: follows how each value is spread over the ranks (op->split) and
 * adds the communication that this asks for. */
#include "runtime/base/status.h"
#include "runtime/compile/plan.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/accumulate.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct pass {
    struct mgpu_graph *g;
    const struct mgpu_plan *plan;
    int pieces;
    bool expanding;

    /* by value id; grown as values are made */
    int known;
    struct mgpu_split *state;
    struct mgpu_value **instead; /* what stands for this value now, NULL: itself */
    struct mgpu_value **whole;   /* its all-reduced version, NULL: none yet */
    int *gradient_of;            /* parameter whose gradient it is, -1: none */

    int64_t tag;
    struct mgpu_value **bucket; /* gradients that are complete and not yet reduced */
    int bucket_count;
    int64_t bucket_bytes;
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
    for (int i = p->known; i < n; i++) {
        p->state[i] = REPLICATED;
        p->instead[i] = p->whole[i] = NULL;
        p->gradient_of[i] = -1;
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

static int batch_axis(const struct mgpu_value *v)
{
    for (int k = 0; k < v->rank; k++)
        if (mgpu_dim_has(v->dims[k], MGPU_BATCH))
            return k;
    return -1;
}

/* ---- Where values come from ------------------------------------------------------------------ */

/* Equal along `axis`: what a rank makes of it at its own size is its part of the whole. */
static bool uniform_along(const struct mgpu_value *v, int axis)
{
    int64_t inner = 1, outer = 1, n = v->dims[axis].value;
    for (int k = 0; k < axis; k++)
        outer *= v->dims[k].value;
    for (int k = axis + 1; k < v->rank; k++)
        inner *= v->dims[k].value;
    size_t row = (size_t)inner * mgpu_dtype_size(v->type);
    const char *data = v->data;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 1; i < n; i++)
            if (memcmp(data + (size_t)(o * n) * row, data + (size_t)(o * n + i) * row, row))
                return false;
    return true;
}

static int source_state(struct pass *p, const struct mgpu_value *v)
{
    int axis = batch_axis(v);
    struct mgpu_split *s = &p->state[v->id];
    *s = axis >= 0 ? mgpu_split_make(MGPU_SPLIT_AXIS, axis, 1) : REPLICATED;
    if (v->kind != MGPU_VALUE_INPUT || axis >= 0)
        return 0;
    if (p->plan->ranks == 1)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "the rows of input '%s' are not samples, so a batch cannot be cut into "
                         "pieces (--accumulate)",
                         v->name);
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "the rows of input '%s' are not samples, so a batch cannot be split over "
                     "%d ranks (--strategy data); use one rank",
                     v->name, p->plan->ranks);
}

static int mixes(struct pass *p, const struct mgpu_node *node, const struct mgpu_value *at)
{
    char text[MGPU_VALUE_TEXT];
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s mixes the samples of a batch (through '%s'), so the batch cannot be %s",
                     mgpu_origin_text(text, &node->origin), at ? at->name : "",
                     p->plan->ranks > 1 ? "split over several ranks with --strategy data; use one "
                                          "rank"
                                        : "cut into pieces (--accumulate)");
}

/* A constant that depends on the batch in another way than by its shape. */
static int check_constants(struct pass *p, const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        if (!v || v->kind != MGPU_VALUE_CONSTANT)
            continue;
        int axis = batch_axis(v);
        if (v->tainted || (axis >= 0 && !uniform_along(v, axis)))
            return mixes(p, node, v);
    }
    return 0;
}

/* ---- Making values whole --------------------------------------------------------------------- */

static void keep(struct pass *p, struct mgpu_node *node)
{
    struct mgpu_graph *g = p->g;
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
}

static int all_reduce(struct pass *p, int count, struct mgpu_value **value, struct mgpu_value **out)
{
    struct mgpu_comm_attrs attrs = {.tag = p->tag++};
    enum mgpu_role role = p->g->origin.role;
    if (p->plan->ranks == 1) {
        memcpy(out, value, sizeof *out * (size_t)count);
        return 0;
    }
    p->g->origin.role = MGPU_COMMUNICATION;
    int rc = mgpu_graph_node(p->g, &mgpu_op_all_reduce, &attrs, count, value, count, out);
    p->g->origin.role = role;
    return rc;
}

static struct mgpu_value *times_share(struct pass *p, struct mgpu_value *v)
{
    struct mgpu_graph *g = p->g;
    struct mgpu_value *share = mgpu_graph_scalar(g, MGPU_SCALAR_RANK_SHARE, "rank share");
    return mgpu_mul(g, v, mgpu_cast(g, share, v->type));
}

/* The sum over the ranks of `v`; made once. */
static int make_whole(struct pass *p, struct mgpu_value *v, struct mgpu_value **out)
{
    grow(p);
    if (!p->whole[v->id]) {
        struct mgpu_value *term = v;
        if (p->state[v->id].kind == MGPU_SPLIT_MEAN)
            term = times_share(p, v);
        else if (p->plan->ranks > 1) /* reduced in place, and others may need the term */
            term = mgpu_copy(p->g, v);
        if (!term)
            return mgpu_build_error();
        struct mgpu_value *whole;
        MGPU_TRY(all_reduce(p, 1, &term, &whole));
        grow(p);
        if (whole != v)
            p->state[whole->id] = REPLICATED;
        p->whole[v->id] = whole;
    }
    *out = p->whole[v->id];
    return 0;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

static int close_bucket(struct pass *p)
{
    int n = p->bucket_count;
    if (!n)
        return 0;
    struct mgpu_origin before = p->g->origin;
    p->g->origin.type = "bucket";
    p->g->origin.name = "";
    p->g->origin.output = p->bucket[0]->name;
    struct mgpu_value **out = mgpu_xcalloc((size_t)n, sizeof(struct mgpu_value *));
    int rc = all_reduce(p, n, p->bucket, out);
    p->g->origin = before;
    grow(p);
    for (int i = 0; i < n && rc == 0; i++) {
        p->state[out[i]->id] = REPLICATED;
        if (out[i] != p->bucket[i])
            p->instead[p->bucket[i]->id] = out[i];
    }
    p->bucket_count = 0;
    p->bucket_bytes = 0;
    free(out);
    return rc;
}

static int add_gradient(struct pass *p, struct mgpu_value *v)
{
    if (p->bucket_count && p->bucket[0]->type != v->type)
        MGPU_TRY(close_bucket(p));
    p->bucket = mgpu_grow(p->bucket, (size_t)p->bucket_count, sizeof(struct mgpu_value *));
    p->bucket[p->bucket_count++] = v;
    p->bucket_bytes += mgpu_value_bytes(v);
    return p->bucket_bytes >= p->plan->bucket_bytes ? close_bucket(p) : 0;
}

/* ---- One node -------------------------------------------------------------------------------- */

static int process(struct pass *p, struct mgpu_node *node);

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
    grow(p);
    for (int i = 0; i < node->outputs && rc == 0; i++)
        if (node->output[i] && out[i])
            p->instead[node->output[i]->id] = out[i];
    return rc;
}

/* Communication in forward makes one piece know the others' ranks, not the other pieces. */
static int whole_input(struct pass *p, struct mgpu_node *node, int which)
{
    char text[MGPU_VALUE_TEXT];
    if (p->pieces > 1 && node->origin.role == MGPU_FORWARD && !p->expanding)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "%s needs a sum over the whole batch in the forward pass, which "
                         "--accumulate cuts into pieces",
                         mgpu_origin_text(text, &node->origin));
    p->g->origin = node->origin;
    struct mgpu_value *v = node->input[which];
    MGPU_TRY(make_whole(p, v, &node->input[which]));
    if (node->input[which] == v) /* one rank: it is whole already */
        p->state[v->id] = REPLICATED;
    return 0;
}

static int check_output(struct pass *p, const struct mgpu_node *node, int i)
{
    const struct mgpu_value *v = node->output[i];
    const struct mgpu_split *s = &p->state[v->id];
    int axis = batch_axis(v);
    if (s->kind == MGPU_SPLIT_REPLICATED && axis >= 0)
        return mixes(p, node, v);
    if (s->kind == MGPU_SPLIT_AXIS && !mgpu_dim_has(v->dims[s->axis], MGPU_BATCH))
        return mgpu_fail(MGPU_EINTERNAL, "%s: split along axis %d, which has no samples",
                         node->op->name, s->axis);
    return 0;
}

/* Pieces of a batch add up in the stored gradient. */
static int accumulate(struct pass *p, struct mgpu_value **v)
{
    struct mgpu_split state = p->state[(*v)->id];
    struct mgpu_value *sum = mgpu_build1(p->g, &mgpu_op_accumulate, NULL, 1, v);
    if (!sum)
        return mgpu_build_error();
    grow(p);
    p->instead[(*v)->id] = sum;
    p->state[sum->id] = state;
    *v = sum;
    return 0;
}

static int settle_gradient(struct pass *p, struct mgpu_node *node, struct mgpu_value *v)
{
    p->g->origin = node->origin;
    if (p->pieces > 1)
        MGPU_TRY(accumulate(p, &v));
    return p->state[v->id].kind == MGPU_SPLIT_SUM ? add_gradient(p, v) : 0;
}

static int settle(struct pass *p, struct mgpu_node *node, const struct mgpu_split *out)
{
    keep(p, node);
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
    for (int i = 0; i < node->inputs; i++)
        for (int k = 0; k < p->bucket_count; k++)
            if (node->input[i] == p->bucket[k])
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
    for (;;) {
        int which = 0;
        for (int i = 0; i < node->inputs; i++)
            in[i] = node->input[i] ? p->state[node->input[i]->id] : REPLICATED;
        enum mgpu_split_answer a = node->op->split(node, in, out, &which);
        if (a == MGPU_SPLIT_OK)
            return settle(p, node, out);
        if (a == MGPU_SPLIT_MIXES && node->op->expand)
            return expand(p, node);
        if (a == MGPU_SPLIT_MIXES)
            return mixes(p, node, node->input[which]);
        MGPU_TRY(whole_input(p, node, which));
    }
}

static int process(struct pass *p, struct mgpu_node *node)
{
    current_inputs(p, node);
    if (node->origin.role == MGPU_UPDATE && in_bucket(p, node)) {
        MGPU_TRY(close_bucket(p));
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
    if (kind == MGPU_SPLIT_AXIS)
        return mgpu_fail(MGPU_EINTERNAL, "'%s' would differ between ranks", (*v)->name);
    MGPU_TRY(make_whole(p, *v, &whole));
    *v = whole;
    return 0;
}

static int finish(struct pass *p, struct mgpu_applied *applied)
{
    struct mgpu_graph *g = p->g;
    MGPU_TRY(close_bucket(p));
    for (int i = 0; i < g->parameter_count; i++) {
        struct mgpu_parameter *q = &g->parameters[i];
        if (q->gradient)
            MGPU_TRY(finish_value(p, &q->gradient, true));
        if (q->next)
            MGPU_TRY(finish_value(p, &q->next, true));
    }
    for (int i = 0; i < g->output_count; i++) {
        MGPU_TRY(finish_value(p, &g->outputs[i], false));
        applied->output[i] = p->state[g->outputs[i]->id];
    }
    return 0;
}

static int walk(struct pass *p)
{
    struct mgpu_graph *g = p->g;
    grow(p);
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
    for (int i = 0; i < count && rc == 0; i++)
        rc = process(p, nodes[i]);
    free(nodes);
    return rc;
}

int mgpu_plan_apply(struct mgpu_graph *g, const struct mgpu_plan *plan, int rank, int pieces,
                    struct mgpu_applied *applied)
{
    assert(rank >= 0 && rank < plan->ranks);
    applied->output = MGPU_NEW_ARRAY(g->arena, struct mgpu_split, g->output_count);
    for (int i = 0; i < g->output_count; i++)
        applied->output[i] = REPLICATED;
    if (plan->ranks == 1 && pieces == 1)
        return 0;
    struct mgpu_origin before = g->origin;
    struct pass p = {.g = g, .plan = plan, .pieces = pieces};
    int rc = walk(&p);
    if (rc == 0)
        rc = finish(&p, applied);
    g->origin = before;
    free(p.state);
    free(p.instead);
    free(p.whole);
    free(p.gradient_of);
    free(p.bucket);
    return rc;
}
