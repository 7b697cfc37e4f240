#include "runtime/compile/layout.h"

#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/build.h"
#include "runtime/ops/reorder.h"

#include <stdlib.h>
#include <string.h>

/* A node that may have blocks. */
struct wish {
    bool blocked;   /* as decided so far */
    bool fixed;     /* the rank at the other end has it so */
    int *block;     /* of its operands, inputs first, when it is */
    int64_t hidden; /* elements that it reorders inside when it is not */
};

struct layouts {
    struct mgpu_graph *g;
    struct wish *wish; /* by node id; block NULL: always plain */
    struct mgpu_readers *readers;
    bool *lasts;
};

static struct mgpu_value *operand(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : node->output[i - node->inputs];
}

/* ---- What it costs --------------------------------------------------------------------------- */

/* What an operand has when the node is as decided. */
static int block_of(const struct layouts *l, const struct mgpu_node *node, int i)
{
    const struct wish *w = &l->wish[node->id];
    return w->blocked ? w->block[i] : 0;
}

static int64_t sample_elements(const struct mgpu_value *v)
{
    int64_t n = 1;
    for (int i = 1; i < v->rank; i++)
        n *= v->dims[i].value;
    return n;
}

static bool reads_as(const struct layouts *l, const struct mgpu_node *node,
                     const struct mgpu_value *v, int block)
{
    bool all = true;
    for (int i = 0; i < node->inputs; i++)
        all = all && (node->input[i] != v || block_of(l, node, i) == block);
    return all;
}

/* Elements to reorder because somebody wants v otherwise than its producer gives it. */
static int64_t value_cost(const struct layouts *l, const struct mgpu_value *v)
{
    const struct mgpu_readers *r = &l->readers[v->id];
    int block = v->producer ? block_of(l, v->producer, v->producer->inputs + v->output) : 0;
    bool agree = !(l->lasts[v->id] && block);
    for (int i = 0; i < r->count && agree; i++)
        agree = reads_as(l, r->node[i], v, block);
    return agree ? 0 : sample_elements(v);
}

/* Of a node and of all that it touches. */
static int64_t node_cost(const struct layouts *l, const struct mgpu_node *node)
{
    const struct wish *w = &l->wish[node->id];
    int64_t cost = w->blocked ? 0 : w->hidden;
    for (int i = 0; i < node->inputs + node->outputs; i++) {
        const struct mgpu_value *v = operand(node, i);
        bool again = false;
        for (int k = 0; k < i; k++)
            again = again || operand(node, k) == v;
        cost += v && !again ? value_cost(l, v) : 0;
    }
    return cost;
}

/* ---- Deciding -------------------------------------------------------------------------------- */

static void ask(struct layouts *l, const struct mgpu_backend *backend)
{
    for (int n = 0; n < l->g->node_count; n++) {
        const struct mgpu_node *node = l->g->nodes[n];
        struct wish *w = &l->wish[n];
        w->block = mgpu_xcalloc((size_t)(node->inputs + node->outputs) + 1, sizeof *w->block);
        w->blocked = backend->blocks(node, w->block, &w->hidden);
        w->fixed = node->op->flags & MGPU_OP_COMMUNICATION;
        if (w->blocked)
            continue;
        free(w->block);
        w->block = NULL;
    }
}

/* Whether the other choice is better; plain is, at the same cost. */
static bool turn(struct layouts *l, const struct mgpu_node *node)
{
    struct wish *w = &l->wish[node->id];
    int64_t before = node_cost(l, node);
    w->blocked = !w->blocked;
    int64_t after = node_cost(l, node);
    if (after < before || (after == before && !w->blocked))
        return true;
    w->blocked = !w->blocked;
    return false;
}

/* From all blocked, node by node while the cost falls: each turn lowers it, or keeps it with one
 * blocked node less. */
static void decide(struct layouts *l)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (int n = 0; n < l->g->node_count; n++)
            changed = (l->wish[n].block && !l->wish[n].fixed && turn(l, l->g->nodes[n])) || changed;
    }
}

/* ---- Nodes that are blocked for one another ---------------------------------------------------
 */

struct group {
    int count, *node; /* by id */
    bool *has;        /* by node id: it is in a group that was looked at */
    int values, *value;
    bool *touches; /* by value id: in value[] */
};

static void join(struct group *p, const struct mgpu_node *node)
{
    if (p->has[node->id])
        return;
    p->has[node->id] = true;
    p->node[p->count++] = node->id;
}

/* All that read or write v in blocks. */
static void join_around(const struct layouts *l, struct group *p, const struct mgpu_value *v)
{
    const struct mgpu_readers *r = &l->readers[v->id];
    if (!p->touches[v->id])
        p->value[p->values++] = v->id;
    p->touches[v->id] = true;
    if (v->producer && block_of(l, v->producer, v->producer->inputs + v->output))
        join(p, v->producer);
    for (int k = 0; k < r->count; k++)
        for (int i = 0; i < r->node[k]->inputs; i++)
            if (r->node[k]->input[i] == v && block_of(l, r->node[k], i))
                join(p, r->node[k]);
}

static void find_group(const struct layouts *l, struct group *p, const struct mgpu_node *first)
{
    for (int i = 0; i < p->values; i++)
        p->touches[p->value[i]] = false;
    p->count = p->values = 0;
    join(p, first);
    for (int k = 0; k < p->count; k++) {
        const struct mgpu_node *node = l->g->nodes[p->node[k]];
        for (int i = 0; i < node->inputs + node->outputs; i++)
            if (operand(node, i) && block_of(l, node, i))
                join_around(l, p, operand(node, i));
    }
}

static int64_t group_cost(const struct layouts *l, const struct group *p)
{
    int64_t cost = 0;
    for (int k = 0; k < p->count; k++) {
        const struct wish *w = &l->wish[p->node[k]];
        cost += w->blocked ? 0 : w->hidden;
    }
    for (int i = 0; i < p->values; i++)
        cost += value_cost(l, l->g->values[p->value[i]]);
    return cost;
}

/* What none of them would change alone: plain where they cost no more so, and no other rank has
 * it in blocks. */
static void decide_group(struct layouts *l, struct group *p, const struct mgpu_node *first)
{
    find_group(l, p, first);
    for (int k = 0; k < p->count; k++)
        if (l->wish[p->node[k]].fixed)
            return;
    int64_t blocked = group_cost(l, p);
    for (int k = 0; k < p->count; k++)
        l->wish[p->node[k]].blocked = false;
    bool plain = group_cost(l, p) <= blocked;
    for (int k = 0; k < p->count; k++)
        l->wish[p->node[k]].blocked = !plain;
}

static void decide_groups(struct layouts *l)
{
    size_t nodes = (size_t)l->g->node_count + 1, values = (size_t)l->g->value_count + 1;
    struct group p = {.node = mgpu_xcalloc(nodes, sizeof *p.node),
                      .has = mgpu_xcalloc(nodes, sizeof *p.has),
                      .value = mgpu_xcalloc(values, sizeof *p.value),
                      .touches = mgpu_xcalloc(values, sizeof *p.touches)};
    for (int n = 0; n < l->g->node_count; n++)
        if (l->wish[n].blocked && !p.has[n])
            decide_group(l, &p, l->g->nodes[n]);
    free(p.node);
    free(p.has);
    free(p.value);
    free(p.touches);
}

/* ---- Reorders -------------------------------------------------------------------------------- */

struct rewrite {
    struct layouts *l;
    struct mgpu_value **other; /* by value id: the value in its other layout, when there is one */
    struct mgpu_node **order;  /* the nodes in their new order */
    int count;
};

/* v with `block`; a reorder is placed now, where there is none yet. It runs whenever v's producer
 * does, and is work of its, or of the user where there is none. */
static struct mgpu_value *laid(struct rewrite *r, struct mgpu_value *v, int block,
                               const struct mgpu_node *user)
{
    struct mgpu_graph *g = r->l->g;
    const struct mgpu_reorder_attrs attrs = {block};
    if (!v || v->block == block)
        return v;
    if (r->other[v->id])
        return r->other[v->id];
    struct mgpu_value *y;
    g->origin = v->producer ? v->producer->origin
                : user      ? user->origin
                            : (struct mgpu_origin){"", v->name, "", "", MGPU_FORWARD};
    if (!v->producer)
        g->origin.role = MGPU_FORWARD;
    int rc = mgpu_graph_node(g, &mgpu_op_reorder, &attrs, 1, &v, 1, &y);
    if (rc < 0)
        return mgpu_build_fail(rc, "%s", mgpu_error());
    r->order[r->count++] = y->producer;
    return r->other[v->id] = y;
}

static int place(struct rewrite *r, struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value *x = node->input[i];
        node->input[i] = laid(r, x, block_of(r->l, node, i), node);
        if (x && !node->input[i])
            return mgpu_build_error();
    }
    r->order[r->count++] = node;
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i]) {
            struct mgpu_value *y = node->output[i];
            y->block = block_of(r->l, node, node->inputs + i);
            if (r->l->lasts[y->id] && !laid(r, y, 0, NULL))
                return mgpu_build_error();
        }
    return 0;
}

/* What outlives the step is plain; the reorders are there. */
static int leave_plain(struct rewrite *r, struct mgpu_value **v)
{
    if (*v && !(*v = laid(r, *v, 0, NULL)))
        return mgpu_build_error();
    return 0;
}

static int leave_all_plain(struct rewrite *r)
{
    struct mgpu_graph *g = r->l->g;
    for (int i = 0; i < g->parameter_count; i++) {
        MGPU_TRY(leave_plain(r, &g->parameters[i].gradient));
        MGPU_TRY(leave_plain(r, &g->parameters[i].next));
    }
    for (int i = 0; i < g->output_count; i++)
        MGPU_TRY(leave_plain(r, &g->outputs[i]));
    return 0;
}

static int rewrite(struct layouts *l)
{
    struct mgpu_graph *g = l->g;
    int nodes = g->node_count, most = nodes + g->value_count, rc = 0; /* a reorder a value */
    struct rewrite r = {.l = l,
                        .other = mgpu_xcalloc((size_t)g->value_count + 1, sizeof(void *)),
                        .order = mgpu_xcalloc((size_t)most + 1, sizeof(void *))};
    struct mgpu_origin origin = g->origin;
    for (int n = 0; n < nodes && rc == 0; n++)
        rc = place(&r, g->nodes[n]);
    rc = rc < 0 ? rc : leave_all_plain(&r);
    g->origin = origin;
    for (int n = 0; n < r.count && rc == 0; n++) {
        g->nodes[n] = r.order[n];
        g->nodes[n]->id = n;
    }
    free(r.other);
    free(r.order);
    return rc;
}

int mgpu_choose_layouts(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    if (!backend->blocks)
        return 0;
    int nodes = g->node_count;
    struct layouts l = {.g = g,
                        .wish = mgpu_xcalloc((size_t)nodes + 1, sizeof *l.wish),
                        .readers = mgpu_readers_of(g),
                        .lasts = mgpu_lasting_values(g)};
    ask(&l, backend);
    decide(&l);
    decide_groups(&l);
    mgpu_readers_free(l.readers, g);
    int rc = rewrite(&l);
    for (int n = 0; n < nodes; n++)
        free(l.wish[n].block);
    free(l.wish);
    free(l.lasts);
    return rc;
}
