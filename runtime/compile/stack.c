/* Stacking: nodes of several towers that do the same with the same weights become one node on the
 * towers' batches, joined along the axis that the samples stand on. */
#include "runtime/compile/stack.h"

#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- Groups ---------------------------------------------------------------------------------- */

/* Nodes that become one. */
struct group {
    int count;
    struct mgpu_node **member;
    struct mgpu_value *made[MGPU_MAX_OUTPUTS];
};

/* What a value is part of, once it is. */
struct part {
    const struct group *group;
    int member, output;
};

struct stack {
    struct mgpu_graph *g;
    struct mgpu_stack_view view;
    struct mgpu_arena *arena;
    struct mgpu_names *nodes_of; /* key to its struct key */

    int nodes; /* of the graph as it was */
    struct mgpu_node **node;
    int *maker;           /* by value id: node, -1 */
    struct group **group; /* by node; NULL: it stays */
    int *unit;            /* by node: the first member of its group, else itself */
    bool *begun, *done;   /* by unit */
    struct part *part;    /* by value id */
};

/* What one ONNX node became. */
struct key {
    int count;
    int *node;
};

static struct key *key_of(const struct stack *s, int n)
{
    return mgpu_names_get(s->nodes_of, s->node[n]->origin.output);
}

/* Of the nodes that samples arrive at. */
static void list_keys(struct stack *s)
{
    s->nodes_of = mgpu_names_new(s->arena);
    for (int n = 0; n < s->nodes; n++) {
        if (!mgpu_stack_concerns(&s->view, s->node[n]))
            continue;
        if (!key_of(s, n))
            mgpu_names_set(s->nodes_of, s->node[n]->origin.output, MGPU_NEW(s->arena, struct key));
        key_of(s, n)->count++;
    }
    for (int n = 0; n < s->nodes; n++) {
        struct key *key = mgpu_stack_concerns(&s->view, s->node[n]) ? key_of(s, n) : NULL;
        if (key && !key->node) {
            key->node = MGPU_NEW_ARRAY(s->arena, int, key->count);
            key->count = 0;
        }
        if (key)
            key->node[key->count++] = n;
    }
}

/* Node `i` of each key. */
static int add_group(struct stack *s, const struct mgpu_rewrite *r, struct key *const *key, int i)
{
    struct group *group = MGPU_NEW(s->arena, struct group);
    const struct mgpu_node *first = s->node[key[0]->node[i]];
    group->count = r->outputs;
    group->member = MGPU_NEW_ARRAY(s->arena, struct mgpu_node *, r->outputs);
    for (int k = 0; k < r->outputs; k++) {
        int n = key[k]->node[i];
        const char *why = mgpu_stack_refuses(&s->view, first, s->node[n]);
        if (!why && s->group[n])
            why = "it stands in two rewrites";
        if (why)
            return mgpu_fail(MGPU_EINVALID, "'%s' and '%s' cannot be one call: %s (%s)",
                             r->output[0], r->output[k ? k : 1], why, first->op->name);
        group->member[k] = s->node[n];
        s->group[n] = group;
        s->unit[n] = first->id;
    }
    return 0;
}

static int add_rewrite(struct stack *s, const struct mgpu_rewrite *r)
{
    struct key **key = MGPU_NEW_ARRAY(s->arena, struct key *, r->outputs);
    int missing = 0;
    for (int k = 0; k < r->outputs; k++) {
        key[k] = mgpu_names_get(s->nodes_of, r->output[k]);
        missing += !key[k];
    }
    if (missing == r->outputs)
        return 0;
    for (int k = 0; k < r->outputs; k++)
        if (!key[k] || key[k]->count != (key[0] ? key[0]->count : 0))
            return mgpu_fail(MGPU_EINVALID,
                             "'%s' and '%s' cannot be one call: they are computed differently",
                             r->output[0], r->output[k]);
    for (int i = 0; i < key[0]->count; i++)
        MGPU_TRY(add_group(s, r, key, i));
    return 0;
}

/* ---- Joining and setting apart --------------------------------------------------------------- */

/* `v` with the samples' axis as [outer, rest] where outer is not 1; the samples then are on *axis.
 */
static struct mgpu_value *open_axis(struct mgpu_graph *g, struct mgpu_value *v, struct mgpu_split s,
                                    int *axis)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    *axis = s.axis;
    if (s.outer == 1 || !v)
        return v;
    for (int k = 0; k < v->rank; k++)
        dims[k < s.axis ? k : k + 1] = v->dims[k];
    dims[s.axis] = mgpu_dim_const(s.outer);
    dims[s.axis + 1] = mgpu_dim_div(v->dims[s.axis], dims[s.axis]);
    *axis = s.axis + 1;
    return mgpu_reshape(g, v, v->rank + 1, dims);
}

static struct mgpu_value *close_axis(struct mgpu_graph *g, struct mgpu_value *v,
                                     struct mgpu_split s)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (s.outer == 1 || !v)
        return v;
    for (int k = 0; k < v->rank; k++)
        dims[k <= s.axis ? k : k - 1] = v->dims[k];
    dims[s.axis] = mgpu_dim_mul(v->dims[s.axis], v->dims[s.axis + 1]);
    return mgpu_reshape(g, v, v->rank - 1, dims);
}

/* The whole that the inputs are parts of in this order, or NULL. */
static struct mgpu_value *whole_of(const struct stack *s, const struct group *q, int input)
{
    const struct part *first = &s->part[q->member[0]->input[input]->id];
    for (int k = 0; k < q->count; k++) {
        const struct part *p = &s->part[q->member[k]->input[input]->id];
        if (!p->group || p->group != first->group || p->member != k || p->output != first->output)
            return NULL;
    }
    return first->group->count == q->count ? first->group->made[first->output] : NULL;
}

static struct mgpu_value *join(struct stack *s, const struct group *q, int input)
{
    struct mgpu_graph *g = s->g;
    struct mgpu_split split = s->view.follow.split[q->member[0]->input[input]->id];
    struct mgpu_value *whole = whole_of(s, q, input);
    int axis = 0;
    if (whole)
        return whole;
    struct mgpu_value **part = MGPU_NEW_ARRAY(s->arena, struct mgpu_value *, q->count);
    for (int k = 0; k < q->count; k++) {
        part[k] = open_axis(g, q->member[k]->input[input], split, &axis);
        if (!part[k])
            return NULL;
    }
    return close_axis(g, mgpu_concat(g, axis, q->count, part), split);
}

/* `v` is from now on what `made` is. */
static void take_over(struct mgpu_value *v, const struct mgpu_value *made)
{
    struct mgpu_node *node = made->producer;
    assert(node && node->output[0] == made);
    node->output[0] = v;
    v->producer = node;
    v->output = 0;
}

/* Member k's part of output i. */
static int set_apart(struct stack *s, const struct group *q, int i, int k)
{
    struct mgpu_graph *g = s->g;
    struct mgpu_value *v = q->member[k]->output[i];
    struct mgpu_split split = s->view.follow.split[v->id];
    int axis;
    g->origin = q->member[k]->origin;
    struct mgpu_value *all = open_axis(g, q->made[i], split, &axis);
    if (!all)
        return mgpu_build_error();
    struct mgpu_dim size = mgpu_dim_div(v->dims[split.axis], mgpu_dim_const(split.outer));
    struct mgpu_value *mine = mgpu_slice_axis(g, all, axis, k * size.value, size);
    mine = close_axis(g, mine, split);
    if (!mine)
        return mgpu_build_error();
    take_over(v, mine);
    s->part[v->id] = (struct part){q, k, i};
    return 0;
}

/* The attributes with every size of the batch `count` times as large. */
static const void *widened(struct stack *s, const struct mgpu_node *node, int count)
{
    if (!node->attrs || !node->op->attrs)
        return node->attrs;
    char *attrs = mgpu_arena_copy(s->arena, node->attrs, node->op->attrs_size);
    for (const struct mgpu_attr *f = node->op->attrs; f->name; f++) {
        if (f->kind != MGPU_ATTR_DIMS)
            continue;
        int rank = mgpu_attr_rank(node);
        const struct mgpu_dim **dims = (const struct mgpu_dim **)(attrs + f->offset);
        struct mgpu_dim *wide = mgpu_arena_copy(s->g->arena, *dims, sizeof *wide * (size_t)rank);
        for (int k = 0; k < rank; k++)
            if (mgpu_dim_has(wide[k], MGPU_BATCH))
                wide[k] = mgpu_dim_mul(wide[k], mgpu_dim_const(count));
        *dims = wide;
    }
    return attrs;
}

static int check_made(const struct stack *s, const struct group *q)
{
    for (int i = 0; i < q->member[0]->outputs; i++) {
        const struct mgpu_value *v = q->member[0]->output[i], *made = q->made[i];
        for (int k = 0; v && k < v->rank; k++) {
            int64_t times = k == s->view.follow.split[v->id].axis ? q->count : 1;
            if (made->rank != v->rank || made->dims[k].value != times * v->dims[k].value)
                return mgpu_fail(MGPU_EINVALID,
                                 "'%s' and '%s' cannot be one call: its size is not known (%s)",
                                 q->member[0]->origin.output, q->member[1]->origin.output,
                                 q->member[0]->op->name);
        }
    }
    return 0;
}

static int make_group(struct stack *s, struct group *q)
{
    struct mgpu_graph *g = s->g;
    const struct mgpu_node *first = q->member[0];
    struct mgpu_value **in = MGPU_NEW_ARRAY(s->arena, struct mgpu_value *, first->inputs);
    g->origin = first->origin;
    for (int i = 0; i < first->inputs; i++) {
        struct mgpu_value *v = first->input[i];
        bool samples = v && s->view.follow.split[v->id].kind == MGPU_SPLIT_AXIS;
        in[i] = samples ? join(s, q, i) : v;
        if (v && !in[i])
            return mgpu_build_error();
    }
    MGPU_TRY(mgpu_graph_node(g, first->op, widened(s, first, q->count), first->inputs, in,
                             first->outputs, q->made));
    MGPU_TRY(check_made(s, q));
    for (int i = 0; i < first->outputs; i++)
        for (int k = 0; first->output[i] && k < q->count; k++)
            MGPU_TRY(set_apart(s, q, i, k));
    return 0;
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* A unit that this one needs and that is not there yet; -1: none. */
static int missing_of(const struct stack *s, int unit)
{
    const struct group *q = s->group[unit];
    for (int k = 0; k < (q ? q->count : 1); k++) {
        const struct mgpu_node *node = q ? q->member[k] : s->node[unit];
        for (int i = 0; i < node->inputs; i++) {
            int n = node->input[i] ? s->maker[node->input[i]->id] : -1;
            if (n >= 0 && !s->done[s->unit[n]])
                return s->unit[n];
        }
    }
    return -1;
}

static int append(struct stack *s, int unit)
{
    struct mgpu_graph *g = s->g;
    struct mgpu_node *node = s->node[unit];
    s->done[unit] = true;
    if (s->group[unit])
        return make_group(s, s->group[unit]);
    node->id = g->node_count;
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    g->nodes[g->node_count++] = node;
    return 0;
}

/* The unit, and before it what it needs. */
static int append_with_needs(struct stack *s, int unit, int *waiting)
{
    int count = 0;
    waiting[count++] = unit;
    s->begun[unit] = true;
    while (count) {
        int now = waiting[count - 1], need = missing_of(s, now);
        if (need < 0) {
            MGPU_TRY(append(s, now));
            count--;
            continue;
        }
        if (s->begun[need])
            return mgpu_fail(MGPU_EINVALID,
                             "a circle: stacked, '%s' and '%s' would need each other",
                             s->node[now]->origin.output, s->node[need]->origin.output);
        s->begun[need] = true;
        waiting[count++] = need;
    }
    return 0;
}

static int append_all(struct stack *s)
{
    int *waiting = MGPU_NEW_ARRAY(s->arena, int, s->nodes + 1), rc = 0;
    s->g->nodes = NULL;
    s->g->node_count = 0;
    for (int n = 0; n < s->nodes && rc == 0; n++)
        if (!s->done[s->unit[n]])
            rc = append_with_needs(s, s->unit[n], waiting);
    free(s->node);
    return rc;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static void start(struct stack *s)
{
    struct mgpu_graph *g = s->g;
    size_t nodes = (size_t)g->node_count + 1;
    s->nodes = g->node_count;
    s->node = g->nodes;
    s->maker = MGPU_NEW_ARRAY(s->arena, int, g->value_count);
    s->part = MGPU_NEW_ARRAY(s->arena, struct part, g->value_count);
    s->group = MGPU_NEW_ARRAY(s->arena, struct group *, nodes);
    s->unit = MGPU_NEW_ARRAY(s->arena, int, nodes);
    s->begun = MGPU_NEW_ARRAY(s->arena, bool, nodes);
    s->done = MGPU_NEW_ARRAY(s->arena, bool, nodes);
    for (int i = 0; i < g->value_count; i++)
        s->maker[i] = g->values[i]->kind == MGPU_VALUE_RESULT ? g->values[i]->producer->id : -1;
    for (int n = 0; n < s->nodes; n++)
        s->unit[n] = n;
}

static bool is_stack(const struct mgpu_rewrite *r)
{
    return !strcmp(r->kind, MGPU_REWRITE_STACK);
}

int mgpu_rewrite_forward(struct mgpu_graph *g, const struct mgpu_plan *plan)
{
    struct stack s = {.g = g};
    struct mgpu_origin before = g->origin;
    int rc = 0, stacks = 0;
    for (int i = 0; i < plan->rewrites; i++)
        stacks += is_stack(&plan->rewrite[i]);
    if (!stacks)
        return 0;
    mgpu_share_equal_nodes(g);
    s.arena = mgpu_arena_new();
    mgpu_stack_view_init(&s.view, g);
    start(&s);
    list_keys(&s);
    for (int i = 0; i < plan->rewrites && rc == 0; i++)
        if (is_stack(&plan->rewrite[i]))
            rc = mgpu_prefix(add_rewrite(&s, &plan->rewrite[i]), "rewrites[%d]", i);
    if (rc == 0)
        rc = append_all(&s);
    g->origin = before;
    mgpu_stack_view_free(&s.view);
    mgpu_arena_free(s.arena);
    return rc;
}
