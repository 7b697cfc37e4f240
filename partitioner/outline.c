#include "partitioner/outline.h"

#include "runtime/compile/rewrite.h"
#include "runtime/ops/pool.h"

#include <stdlib.h>
#include <string.h>

static int node_of(const struct mgpu_outline *o, const struct mgpu_node *n)
{
    return mgpu_outline_find(o, n->origin.output);
}

static bool is_forward(const struct mgpu_node *n)
{
    return n->origin.role == MGPU_FORWARD && *n->origin.output;
}

/* Not what a loss appended to the node of its output. */
static bool is_own(const struct mgpu_outline *o, int node, const struct mgpu_node *n)
{
    return !strcmp(o->node[node].type, n->origin.type);
}

static int join(int a, int b)
{
    return a == MGPU_FROM_NONE ? b : b == MGPU_FROM_NONE || a == b ? a : MGPU_FROM_SEVERAL;
}

static void add_nodes(struct mgpu_outline *o, const struct mgpu_graph *g)
{
    o->node = MGPU_NEW_ARRAY(o->arena, struct mgpu_outline_node, g->node_count);
    for (int i = 0; i < g->node_count; i++) {
        const struct mgpu_node *n = g->nodes[i];
        if (!is_forward(n) || node_of(o, n) >= 0)
            continue;
        struct mgpu_outline_node *to = &o->node[o->nodes++];
        to->output = mgpu_arena_string(o->arena, n->origin.output);
        to->name = mgpu_arena_string(o->arena, n->origin.name);
        to->type = mgpu_arena_string(o->arena, n->origin.type);
        to->from = MGPU_FROM_NONE;
        mgpu_names_set(o->index, to->output, to);
    }
}

/* from[]: by value, which inputs it is reached from. */
static void add_origins(struct mgpu_outline *o, const struct mgpu_graph *g, int *from)
{
    for (int i = 0; i < g->value_count; i++)
        from[i] = MGPU_FROM_NONE;
    for (int i = 0; i < g->input_count; i++)
        from[g->inputs[i]->id] = i;
    for (int i = 0; i < g->node_count; i++) {
        const struct mgpu_node *n = g->nodes[i];
        int all = MGPU_FROM_NONE, node = node_of(o, n);
        for (int k = 0; k < n->inputs; k++)
            if (n->input[k])
                all = join(all, from[n->input[k]->id]);
        for (int k = 0; k < n->outputs; k++)
            if (n->output[k])
                from[n->output[k]->id] = all;
        if (is_forward(n) && is_own(o, node, n))
            o->node[node].from = join(o->node[node].from, all);
    }
}

static int by_place(const void *a, const void *b)
{
    const struct mgpu_outline_edge *x = a, *y = b;
    return x->to != y->to ? (x->to > y->to) - (x->to < y->to)
                          : (x->from > y->from) - (x->from < y->from);
}

static void append(struct mgpu_outline_edge **list, int *count, struct mgpu_outline_edge edge)
{
    *list = mgpu_grow(*list, (size_t)*count, sizeof **list);
    (*list)[(*count)++] = edge;
}

/* Every use of a value made by another node, once for each node that uses it. */
static void find_edges(const struct mgpu_outline *o, const struct mgpu_graph *g, const int *inputs,
                       struct mgpu_outline_edge **list, int *count)
{
    int *last_user = MGPU_NEW_ARRAY(o->arena, int, g->value_count);
    for (int i = 0; i < g->node_count; i++) {
        const struct mgpu_node *n = g->nodes[i];
        int to = node_of(o, n);
        if (!is_forward(n) || !is_own(o, to, n))
            continue;
        for (int k = 0; k < n->inputs; k++) {
            const struct mgpu_value *v = n->input[k];
            if (!v || v->kind != MGPU_VALUE_RESULT || !is_forward(v->producer))
                continue;
            int from = node_of(o, v->producer);
            if (from >= to || last_user[v->id] == to + 1) /* its own, or entangled */
                continue;
            last_user[v->id] = to + 1;
            append(list, count,
                   (struct mgpu_outline_edge){.from = from,
                                              .to = to,
                                              .bytes = mgpu_value_bytes(v),
                                              .samples = inputs[v->id] != MGPU_FROM_NONE,
                                              .either = v->producer->op == &mgpu_op_max_pool &&
                                                        mgpu_only_limits(n)});
        }
    }
}

/* inputs[]: by value, as in add_origins. */
static void add_edges(struct mgpu_outline *o, const struct mgpu_graph *g, const int *inputs)
{
    struct mgpu_outline_edge *list = NULL;
    int count = 0;
    find_edges(o, g, inputs, &list, &count);
    if (count)
        qsort(list, (size_t)count, sizeof *list, by_place);
    o->edge = MGPU_NEW_ARRAY(o->arena, struct mgpu_outline_edge, count);
    for (int i = 0; i < count; i++) {
        struct mgpu_outline_edge *last = o->edges ? &o->edge[o->edges - 1] : NULL;
        if (last && last->to == list[i].to && last->from == list[i].from) {
            last->bytes += list[i].bytes;
            last->samples = last->samples || list[i].samples;
            last->either = last->either && list[i].either;
            continue;
        }
        struct mgpu_outline_node *to = &o->node[list[i].to];
        if (!to->edges++)
            to->first_edge = o->edges;
        o->edge[o->edges++] = list[i];
    }
    free(list);
}

struct mgpu_outline *mgpu_outline_new(const struct mgpu_graph *g)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_outline *o = MGPU_NEW(arena, struct mgpu_outline);
    o->arena = arena;
    o->index = mgpu_names_new(arena);
    o->inputs = g->input_count;
    o->input = MGPU_NEW_ARRAY(arena, const char *, g->input_count);
    for (int i = 0; i < g->input_count; i++)
        o->input[i] = mgpu_arena_string(arena, g->inputs[i]->name);
    o->weight = MGPU_NEW_ARRAY(arena, const char *, g->parameter_count);
    for (int i = 0; i < g->parameter_count; i++)
        if (g->parameters[i].role == MGPU_WEIGHT)
            o->weight[o->weights++] = mgpu_arena_string(arena, g->parameters[i].name);
    add_nodes(o, g);
    int *from = MGPU_NEW_ARRAY(arena, int, g->value_count);
    add_origins(o, g, from);
    add_edges(o, g, from);
    return o;
}

void mgpu_outline_free(struct mgpu_outline *o)
{
    if (o)
        mgpu_arena_free(o->arena);
}

int mgpu_outline_find(const struct mgpu_outline *o, const char *output)
{
    const struct mgpu_outline_node *n = mgpu_names_get(o->index, output);
    return n ? (int)(n - o->node) : -1;
}
