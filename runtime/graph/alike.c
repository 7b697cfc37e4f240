#include "runtime/graph/alike.h"

#include "runtime/ops/op.h"

#include <stdlib.h>
#include <string.h>

/* The nodes that outputs and statistics need, in order. */
struct needed {
    int count;
    struct mgpu_node **node;
    int *number; /* by value id: which result of which node, -1: none of them */
};

static void mark(bool *used, const struct mgpu_value *v)
{
    if (v && v->kind == MGPU_VALUE_RESULT)
        used[v->producer->id] = true;
}

static struct needed find_needed(const struct mgpu_graph *g)
{
    struct needed n = {.node = mgpu_xcalloc((size_t)g->node_count + 1, sizeof *n.node),
                       .number = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *n.number)};
    bool *used = mgpu_xcalloc((size_t)g->node_count + 1, sizeof *used);
    for (int i = 0; i < g->output_count; i++)
        mark(used, g->outputs[i]);
    for (int i = 0; i < g->parameter_count; i++)
        mark(used, g->parameters[i].next);
    for (int k = g->node_count - 1; k >= 0; k--)
        for (int i = 0; used[k] && i < g->nodes[k]->inputs; i++)
            mark(used, g->nodes[k]->input[i]);
    for (int i = 0; i < g->value_count; i++)
        n.number[i] = -1;
    for (int k = 0; k < g->node_count; k++) {
        if (!used[k])
            continue;
        for (int i = 0; i < g->nodes[k]->outputs; i++)
            if (g->nodes[k]->output[i])
                n.number[g->nodes[k]->output[i]->id] = n.count * MGPU_MAX_OUTPUTS + i;
        n.node[n.count++] = g->nodes[k];
    }
    free(used);
    return n;
}

static void free_needed(struct needed *n)
{
    free(n->node);
    free(n->number);
}

/* ---- What is marked -------------------------------------------------------------------------- */

static bool is_marked(const struct mgpu_value *v)
{
    if (!v || v->kind != MGPU_VALUE_CONSTANT)
        return false;
    for (int64_t i = 0, n = v->ints ? mgpu_value_count(v) : 0; i < n; i++)
        if (mgpu_dim_has(v->ints[i], MGPU_BATCH))
            return true;
    return v->tainted;
}

bool mgpu_batch_unsure(const struct mgpu_graph *g)
{
    struct needed n = find_needed(g);
    bool unsure = g->whole != NULL;
    for (int k = 0; k < n.count; k++)
        for (int i = 0; i < n.node[k]->inputs && !unsure; i++)
            unsure = is_marked(n.node[k]->input[i]);
    free_needed(&n);
    return unsure;
}

void mgpu_batch_sure(struct mgpu_graph *g)
{
    g->whole = NULL;
    for (int i = 0; i < g->value_count; i++) {
        g->values[i]->tainted = false;
        g->values[i]->ints = NULL;
    }
}

/* ---- Constants ------------------------------------------------------------------------------- */

int mgpu_batch_axis(const struct mgpu_value *v)
{
    for (int k = 0; k < v->rank; k++)
        if (mgpu_dim_has(v->dims[k], MGPU_BATCH))
            return k;
    return -1;
}

int mgpu_rows_axis(const struct mgpu_value *v, bool single)
{
    for (int k = 0; k < v->rank; k++)
        if (!v->dims[k].opaque && v->dims[k].power[MGPU_BATCH] == 1 &&
            (!single || v->dims[k].factor == 1))
            return k;
    return -1;
}

/* A constant as [outer][samples][sample], in bytes. */
struct rows {
    int64_t outer, samples;
    size_t sample;
};

static struct rows rows_of(const struct mgpu_value *v, int axis, int64_t batch)
{
    struct rows r = {.outer = 1, .samples = 1, .sample = mgpu_dtype_size(v->type)};
    for (int k = 0; k < axis; k++)
        r.outer *= v->dims[k].value;
    for (int k = axis < 0 ? 0 : axis + 1; k < v->rank; k++)
        r.sample *= (size_t)v->dims[k].value;
    if (axis < 0)
        return r;
    int64_t size = v->dims[axis].value;
    r.samples = batch > 0 && size % batch == 0 ? batch : size;
    r.sample *= r.samples ? (size_t)(size / r.samples) : 0;
    return r;
}

static const char *row(const struct mgpu_value *v, const struct rows *r, int64_t o, int64_t sample)
{
    return (const char *)v->data + (size_t)(o * r->samples + sample) * r->sample;
}

bool mgpu_same_for_samples(const struct mgpu_value *v, int axis, int64_t batch)
{
    struct rows r = rows_of(v, axis, batch);
    for (int64_t o = 0; o < r.outer; o++)
        for (int64_t i = 1; i < r.samples; i++)
            if (memcmp(row(v, &r, o, 0), row(v, &r, o, i), r.sample))
                return false;
    return true;
}

static bool same_dim(struct mgpu_dim a, struct mgpu_dim b)
{
    if (a.opaque || b.opaque || mgpu_dim_is_const(a) || mgpu_dim_is_const(b))
        return mgpu_dim_same(a, b);
    return a.factor == b.factor && !memcmp(a.power, b.power, sizeof a.power);
}

static bool same_shape(const struct mgpu_value *a, const struct mgpu_value *b)
{
    bool same = a->type == b->type && a->rank == b->rank;
    for (int k = 0; same && k < a->rank; k++)
        same = same_dim(a->dims[k], b->dims[k]);
    return same;
}

static bool same_constant(const struct mgpu_graph *g, const struct mgpu_value *a,
                          const struct mgpu_graph *h, const struct mgpu_value *b)
{
    int axis = mgpu_batch_axis(a);
    struct rows r = rows_of(a, axis, g->batch), q = rows_of(b, axis, h->batch);
    if (!same_shape(a, b) || r.sample != q.sample || !mgpu_same_for_samples(a, axis, g->batch) ||
        !mgpu_same_for_samples(b, axis, h->batch))
        return false;
    for (int64_t o = 0; o < r.outer && r.samples && q.samples; o++)
        if (memcmp(row(a, &r, o, 0), row(b, &q, o, 0), r.sample))
            return false;
    return true;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

struct pair {
    const struct mgpu_graph *g, *h;
    struct needed a, b;
};

static bool same_value(const struct pair *p, const struct mgpu_value *a, const struct mgpu_value *b)
{
    if (!a || !b)
        return a == b;
    if (a->kind != b->kind)
        return false;
    if (a->kind == MGPU_VALUE_CONSTANT)
        return same_constant(p->g, a, p->h, b);
    if (a->kind == MGPU_VALUE_RESULT)
        return p->a.number[a->id] == p->b.number[b->id];
    return !strcmp(a->name, b->name);
}

static bool same_node(const struct pair *p, const struct mgpu_node *a, const struct mgpu_node *b)
{
    if (a->op != b->op || a->inputs != b->inputs || a->outputs != b->outputs ||
        !mgpu_attrs_same(a, b, same_dim))
        return false;
    for (int i = 0; i < a->inputs; i++)
        if (!same_value(p, a->input[i], b->input[i]))
            return false;
    for (int i = 0; i < a->outputs; i++)
        if (!a->output[i] != !b->output[i] ||
            (a->output[i] && !same_shape(a->output[i], b->output[i])))
            return false;
    return true;
}

bool mgpu_graphs_alike(const struct mgpu_graph *g, const struct mgpu_graph *h)
{
    struct pair p = {.g = g, .h = h, .a = find_needed(g), .b = find_needed(h)};
    bool same = p.a.count == p.b.count && g->output_count == h->output_count;
    for (int k = 0; same && k < p.a.count; k++)
        same = same_node(&p, p.a.node[k], p.b.node[k]);
    for (int i = 0; same && i < g->output_count; i++)
        same = same_value(&p, g->outputs[i], h->outputs[i]);
    same = same && g->parameter_count == h->parameter_count;
    for (int i = 0; same && i < g->parameter_count; i++)
        same = same_value(&p, g->parameters[i].next, h->parameters[i].next);
    free_needed(&p.a);
    free_needed(&p.b);
    return same;
}
