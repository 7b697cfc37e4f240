#include "runtime/compile/rounded.h"

#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rounding {
    struct mgpu_graph *g;
    enum mgpu_dtype half;
    bool trains;
    const struct mgpu_store_layout *stored;
    int parameters;             /* before */
    bool *updated;              /* by parameter */
    struct mgpu_value **of;     /* by parameter: its rounded one; NULL: none */
    struct mgpu_value **became; /* by value id; NULL: it stays */
};

/* "WEIGHT:rounded"; the caller frees it. */
static char *name_of(const char *weight)
{
    char *name;
    if (asprintf(&name, "%s:rounded", weight) < 0)
        abort(); /* no memory for metadata */
    return name;
}

const struct mgpu_stored *mgpu_rounded_of(const struct mgpu_store_layout *layout,
                                          const char *weight)
{
    char *name = name_of(weight);
    const struct mgpu_stored *e = mgpu_store_find(layout, name);
    free(name);
    return e;
}

static void add_rounded(struct rounding *r, int parameter)
{
    const struct mgpu_value *w = r->g->parameters[parameter].value;
    char *name = name_of(w->name);
    r->of[parameter] = mgpu_graph_parameter(r->g, name, MGPU_ROUNDED, r->half, w->rank, w->dims);
    r->g->parameters[r->of[parameter]->index].rounds = r->g->parameters[parameter].value;
    free(name);
}

/* Whether what is stored of it stays right: its updates write it, or nothing changes it. */
static bool may_keep(const struct rounding *r, const struct mgpu_value *w)
{
    const struct mgpu_parameter *p = &r->g->parameters[w->index];
    return r->updated[w->index] || p->role == MGPU_FROZEN ||
           (p->role == MGPU_WEIGHT && !r->trains) ||
           (r->stored && mgpu_rounded_of(r->stored, w->name));
}

/* Whether the node rounds such a weight and does nothing else. */
static bool rounds_weight(const struct rounding *r, const struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    const struct mgpu_value *w = node->inputs == 1 ? node->input[0] : NULL;
    if (!e || !w || w->kind != MGPU_VALUE_PARAMETER || w->type != MGPU_FLOAT || e->count != 2)
        return false;
    return may_keep(r, w) && e->op[1].code == MGPU_X_CAST && e->op[1].type == r->half;
}

static bool updates_weight(const struct mgpu_node *node)
{
    return node->op == &mgpu_op_update &&
           node->input[MGPU_UPDATE_WEIGHT]->kind == MGPU_VALUE_PARAMETER;
}

/* In the order of the weights: the rounded ones lie like them (store.c). */
static bool add_all(struct rounding *r)
{
    const struct mgpu_graph *g = r->g;
    bool *wanted = mgpu_xcalloc((size_t)r->parameters + 1, sizeof *wanted), any = false;
    for (int n = 0; n < g->node_count; n++)
        if (updates_weight(g->nodes[n]))
            r->updated[g->nodes[n]->input[MGPU_UPDATE_WEIGHT]->index] = true;
    for (int n = 0; n < g->node_count; n++)
        if (rounds_weight(r, g->nodes[n]))
            any = wanted[g->nodes[n]->input[0]->index] = true;
    for (int i = 0; i < r->parameters && any; i++)
        if (wanted[i] || r->updated[i])
            add_rounded(r, i);
    free(wanted);
    return any;
}

/* The same update in its place, which gives the rounded weight as well. */
static int extend_update(struct rounding *r, int n)
{
    struct mgpu_graph *g = r->g;
    const struct mgpu_node *node = g->nodes[n];
    struct mgpu_value *out[MGPU_UPDATE_ROUNDED + 1];
    struct mgpu_update_attrs attrs = *(const struct mgpu_update_attrs *)node->attrs;
    const struct mgpu_value *w = node->input[MGPU_UPDATE_WEIGHT];
    attrs.rounded = r->half;
    g->origin = node->origin;
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_update, &attrs, node->inputs, node->input,
                             MGPU_UPDATE_ROUNDED + 1, out));
    for (int i = 0; i < node->outputs; i++)
        if (node->output[i])
            r->became[node->output[i]->id] = out[i];
    g->parameters[r->of[w->index]->index].next = out[MGPU_UPDATE_ROUNDED];
    g->nodes[n] = g->nodes[--g->node_count];
    g->nodes[n]->id = n;
    return 0;
}

static struct mgpu_value *now(const struct rounding *r, int values, struct mgpu_value *v)
{
    return v && v->id < values && r->became[v->id] ? r->became[v->id] : v;
}

static void replace(const struct rounding *r, int values)
{
    struct mgpu_graph *g = r->g;
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *node = g->nodes[n];
        if (node->inputs)
            node->input =
                mgpu_arena_copy(g->arena, node->input, sizeof *node->input * (size_t)node->inputs);
        for (int i = 0; i < node->inputs; i++)
            node->input[i] = now(r, values, node->input[i]);
    }
    for (int i = 0; i < g->parameter_count; i++)
        g->parameters[i].next = now(r, values, g->parameters[i].next);
    for (int i = 0; i < g->output_count; i++)
        g->outputs[i] = now(r, values, g->outputs[i]);
}

int mgpu_store_rounded(struct mgpu_graph *g, enum mgpu_dtype half, bool trains,
                       const struct mgpu_store_layout *stored)
{
    struct mgpu_origin origin = g->origin;
    struct rounding r = {
        .g = g, .half = half, .trains = trains, .stored = stored, .parameters = g->parameter_count};
    int values = g->value_count, rc = 0;
    r.updated = mgpu_xcalloc((size_t)r.parameters + 1, sizeof *r.updated);
    r.of = mgpu_xcalloc((size_t)r.parameters + 1, sizeof *r.of);
    r.became = mgpu_xcalloc((size_t)values + 1, sizeof *r.became);
    bool any = add_all(&r);
    for (int n = 0; n < g->node_count && any && rc == 0; n++) {
        const struct mgpu_node *node = g->nodes[n];
        if (rounds_weight(&r, node))
            r.became[node->output[0]->id] = r.of[node->input[0]->index];
        else if (updates_weight(node))
            rc = extend_update(&r, n);
    }
    if (any && rc == 0) {
        replace(&r, values);
        mgpu_graph_prune(g);
    }
    g->origin = origin;
    free(r.updated);
    free(r.of);
    free(r.became);
    return rc;
}
