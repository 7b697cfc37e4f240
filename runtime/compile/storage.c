#include "runtime/compile/storage.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"
#include "runtime/ops/comm.h"
#include "runtime/ops/update.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

/* The view pairs of a node; an all-reduce of any number of values works in place. */
static int view_input(const struct mgpu_node *node, int output)
{
    if (node->op == &mgpu_op_all_reduce)
        return output;
    struct mgpu_alias pairs[MGPU_MAX_OUTPUTS];
    int n = node->op->alias(node, pairs);
    for (int i = 0; i < n; i++)
        if (pairs[i].view && pairs[i].output == output)
            return pairs[i].input;
    return -1;
}

bool mgpu_is_view(const struct mgpu_node *node)
{
    return !(node->op->flags & MGPU_OP_COMMUNICATION) && view_input(node, 0) >= 0;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

const struct mgpu_value *mgpu_root_value(const struct mgpu_value *v)
{
    int i;
    while (v->kind == MGPU_VALUE_RESULT && (i = view_input(v->producer, v->output)) >= 0)
        v = v->producer->input[i];
    return v;
}

static bool claim(bool *claimed, const struct mgpu_value *v)
{
    const struct mgpu_value *root = mgpu_root_value(v);
    if (root->kind != MGPU_VALUE_RESULT || claimed[root->id] ||
        mgpu_value_bytes(root) != mgpu_value_bytes(v))
        return false;
    claimed[root->id] = true;
    return true;
}

/* by parameter: the last node that reads its old value, of those from `from` on. */
static void find_reads(const struct mgpu_graph *g, int from, int *last)
{
    for (int n = from; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            const struct mgpu_value *root = v ? mgpu_root_value(v) : NULL;
            if (root && root->kind == MGPU_VALUE_PARAMETER)
                last[root->index] = n;
        }
}

static int separate(struct mgpu_graph *g, bool **claimed, struct mgpu_value **v, bool must)
{
    if (!must && claim(*claimed, *v))
        return 0;
    g->unfolded = true; /* a constant that is an output is copied there */
    *v = mgpu_copy(g, *v);
    g->unfolded = false;
    if (!*v)
        return mgpu_build_error();
    *claimed = mgpu_xrealloc(*claimed, (size_t)g->value_count, sizeof **claimed);
    (*claimed)[(*v)->id] = true;
    return 0;
}

int mgpu_storage_separate(struct mgpu_graph *g)
{
    bool *claimed = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *claimed);
    int rc = 0;
    g->origin.role = MGPU_UPDATE;
    for (int i = 0; i < g->parameter_count && rc == 0; i++)
        if (g->parameters[i].gradient)
            rc = separate(g, &claimed, &g->parameters[i].gradient, false);
    g->origin.role = MGPU_FORWARD;
    int *read = mgpu_xcalloc((size_t)g->parameter_count + 1, sizeof *read), nodes = g->node_count;
    find_reads(g, 0, read);
    for (int i = 0; i < g->parameter_count && rc == 0; i++) {
        struct mgpu_parameter *p = &g->parameters[i];
        const struct mgpu_value *root = p->next ? mgpu_root_value(p->next) : NULL;
        bool late = root && root->kind == MGPU_VALUE_RESULT && read[i] > root->producer->id;
        if (p->next)
            rc = separate(g, &claimed, &p->next, late);
        find_reads(g, nodes, read); /* a copy reads too */
        nodes = g->node_count;
    }
    free(read);
    for (int i = 0; i < g->output_count && rc == 0; i++)
        rc = separate(g, &claimed, &g->outputs[i], false);
    free(claimed);
    return rc;
}

/* ---- Pins ------------------------------------------------------------------------------------ */

static void pin(struct mgpu_storage *s, const struct mgpu_value *v, enum mgpu_buffer buffer,
                int64_t offset)
{
    struct mgpu_home *h = &s->home[s->root[v->id]];
    h->pinned = true;
    h->buffer = buffer;
    h->offset = offset;
}

static int64_t take(int64_t *bytes, int64_t size)
{
    int64_t at = *bytes;
    *bytes += (size + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static void pin_sources(struct mgpu_storage *s, const struct mgpu_graph *g,
                        const struct mgpu_store_layout *store, int64_t bytes[MGPU_BUFFERS])
{
    for (int i = 0; i < g->value_count; i++) {
        const struct mgpu_value *v = g->values[i];
        if (v->kind == MGPU_VALUE_INPUT)
            pin(s, v, MGPU_BUFFER_INPUTS, take(&bytes[MGPU_BUFFER_INPUTS], mgpu_value_bytes(v)));
        else if (v->kind == MGPU_VALUE_SCALAR)
            pin(s, v, MGPU_BUFFER_SCALARS, v->index * (int64_t)sizeof(double));
        else if (v->kind == MGPU_VALUE_PARAMETER) {
            const struct mgpu_stored *e = mgpu_store_find(store, v->name);
            if (e) /* none: another rank's */
                pin(s, v, e->buffer, e->offset);
        }
    }
}

static void pin_results(struct mgpu_storage *s, const struct mgpu_graph *g,
                        const struct mgpu_store_layout *store, int64_t bytes[MGPU_BUFFERS])
{
    for (int i = 0; i < g->parameter_count; i++) {
        const struct mgpu_parameter *p = &g->parameters[i];
        const struct mgpu_stored *e = mgpu_store_find(store, p->name);
        if (!e)
            continue;
        if (p->gradient)
            pin(s, p->gradient, MGPU_BUFFER_GRADIENTS, e->offset);
        if (p->next)
            pin(s, p->next, e->buffer, e->offset);
    }
    for (int i = 0; i < g->output_count; i++)
        pin(s, g->outputs[i], MGPU_BUFFER_RESULTS,
            take(&bytes[MGPU_BUFFER_RESULTS], mgpu_value_bytes(g->outputs[i])));
}

/* Constants that some live node reads. */
static void pin_constants(struct mgpu_storage *s, const struct mgpu_graph *g, const bool *live,
                          int64_t bytes[MGPU_BUFFERS])
{
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; live[n] && i < g->nodes[n]->inputs; i++) {
            const struct mgpu_value *v = g->nodes[n]->input[i];
            if (v && v->kind == MGPU_VALUE_CONSTANT && !s->home[s->root[v->id]].pinned)
                pin(s, v, MGPU_BUFFER_CONSTANTS,
                    take(&bytes[MGPU_BUFFER_CONSTANTS], mgpu_value_bytes(v)));
        }
}

/* ---- Lifetimes and in place ------------------------------------------------------------------ */

static void touch(struct mgpu_storage *s, const struct mgpu_value *v, int n)
{
    struct mgpu_home *h = &s->home[s->root[v->id]];
    if (h->first < 0)
        h->first = n;
    if (n > h->last)
        h->last = n;
}

/* Communication runs beside later nodes: what it touches lives to the end. Only an update ends the
 * life of a gradient, which it waits for on every rank, one without samples too. */
static void find_lifetimes(struct mgpu_storage *s, const struct mgpu_graph *g, const bool *live)
{
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        int until = node->op->flags & MGPU_OP_COMMUNICATION ? g->node_count : n;
        for (int i = 0; live[n] && i < node->inputs; i++)
            if (node->input[i]) {
                touch(s, node->input[i], n);
                touch(s, node->input[i], until);
            }
        for (int i = 0; live[n] && i < node->outputs; i++)
            if (node->output[i]) {
                touch(s, node->output[i], n);
                touch(s, node->output[i], until);
            }
        if (live[n] && node->op == &mgpu_op_update)
            s->home[s->root[node->input[MGPU_UPDATE_GRADIENT]->id]].last = n;
    }
}

/* The values of each root as a list: first[root], next[value] ...; -1: its end. */
struct members {
    int *first, *next;
};

static void list_members(struct members *m, const struct mgpu_storage *s)
{
    m->first = mgpu_xcalloc((size_t)s->values + 1, sizeof *m->first);
    m->next = mgpu_xcalloc((size_t)s->values + 1, sizeof *m->next);
    for (int i = 0; i < s->values; i++)
        m->first[i] = -1;
    for (int i = s->values - 1; i >= 0; i--) {
        m->next[i] = m->first[s->root[i]];
        m->first[s->root[i]] = i;
    }
}

/* `from` has few values: those of one node's output. */
static void merge(struct mgpu_storage *s, struct members *m, int from, int into)
{
    int last = -1;
    for (int i = m->first[from]; i >= 0; i = m->next[i]) {
        s->root[i] = into;
        last = i;
    }
    m->next[last] = m->first[into];
    m->first[into] = m->first[from];
    m->first[from] = -1;
    if (s->home[from].last > s->home[into].last)
        s->home[into].last = s->home[from].last;
}

/* Lets outputs overwrite an input that dies at their node. */
static void share_in_place(struct mgpu_storage *s, const struct mgpu_graph *g, const bool *live)
{
    struct members members;
    list_members(&members, s);
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        struct mgpu_alias pairs[MGPU_MAX_OUTPUTS];
        int count = live[n] ? node->op->alias(node, pairs) : 0;
        for (int k = 0; k < count; k++) {
            if (pairs[k].view || !node->output[pairs[k].output] || !node->input[pairs[k].input])
                continue;
            int x = s->root[node->input[pairs[k].input]->id];
            int y = s->root[node->output[pairs[k].output]->id];
            struct mgpu_home *hx = &s->home[x], *hy = &s->home[y];
            if (x == y || hx->pinned || hy->pinned || hx->last != n || hy->first != n ||
                hx->bytes != hy->bytes)
                continue;
            merge(s, &members, y, x);
        }
    }
    free(members.first);
    free(members.next);
}

void mgpu_storage_assign(struct mgpu_storage *s, const struct mgpu_graph *g, const bool *live,
                         const struct mgpu_store_layout *store, int64_t bytes[MGPU_BUFFERS])
{
    s->values = g->value_count;
    s->root = mgpu_xcalloc((size_t)s->values, sizeof *s->root);
    s->home = mgpu_xcalloc((size_t)s->values, sizeof *s->home);
    for (int i = 0; i < s->values; i++) {
        s->root[i] = mgpu_root_value(g->values[i])->id;
        s->home[i] = (struct mgpu_home){
            .buffer = MGPU_BUFFER_ARENA, .first = -1, .bytes = mgpu_value_bytes(g->values[i])};
    }
    pin_sources(s, g, store, bytes);
    pin_results(s, g, store, bytes);
    pin_constants(s, g, live, bytes);
    find_lifetimes(s, g, live);
    share_in_place(s, g, live);
}

void mgpu_storage_free(struct mgpu_storage *s)
{
    free(s->root);
    free(s->home);
}
