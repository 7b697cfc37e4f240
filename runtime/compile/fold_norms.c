/* Normalisation with stored statistics as part of the convolution before it:
 *
 *     y = conv(x, w, b), z = y a + s, r = max(z, 0)     r = max(conv(x, w a, b a + s), 0)
 *
 * a and s are numbers of each channel that come of weights and statistics alone. The weights are
 * multiplied anew for every batch: the next may find others, and they are fewer than what is saved,
 * a pass that reads y and one that writes z. Where something is added to z, or it is the argument
 * of more than a limit, that pass has other things to do and stays.
 */
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/compile/storage.h"
#include "runtime/ops/build.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/pointwise.h"

#include <math.h>
#include <stdlib.h>

struct folding {
    struct mgpu_graph *g;
    struct mgpu_readers *readers;
    bool *lasts;
    bool *stored; /* by value id: it comes of what is stored alone */
};

/* y a + s, by `norm`. */
struct match {
    struct mgpu_node *norm, *conv;
    struct mgpu_value *a, *s;
};

static bool *find_stored(const struct mgpu_graph *g)
{
    bool *stored = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *stored);
    for (int i = 0; i < g->value_count; i++)
        stored[i] =
            g->values[i]->kind == MGPU_VALUE_PARAMETER || g->values[i]->kind == MGPU_VALUE_CONSTANT;
    for (int n = 0; n < g->node_count; n++) {
        const struct mgpu_node *node = g->nodes[n];
        bool all = mgpu_expr_of(node) || mgpu_is_view(node);
        for (int i = 0; i < node->inputs && all; i++)
            all = stored[node->input[i]->id];
        if (all)
            stored[node->output[0]->id] = true;
    }
    return stored;
}

/* A number for each channel of y: [C,1,...]. */
static bool is_per_channel(const struct folding *f, const struct mgpu_value *v,
                           const struct mgpu_value *y)
{
    return f->stored[v->id] && v->type == y->type && v->rank == y->rank - 1 &&
           v->dims[0].value == y->dims[1].value && mgpu_value_count(v) == v->dims[0].value;
}

/* The convolution whose result v is, for `reader` alone. */
static struct mgpu_node *conv_of(const struct folding *f, const struct mgpu_value *v)
{
    struct mgpu_node *conv = v->kind == MGPU_VALUE_RESULT ? v->producer : NULL;
    return conv && conv->op == &mgpu_op_conv && f->readers[v->id].count == 1 && !f->lasts[v->id] &&
                   f->stored[conv->input[1]->id] && conv->input[1]->type == v->type
               ? conv
               : NULL;
}

static bool find(const struct folding *f, struct mgpu_node *node, struct match *m)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    const struct mgpu_expr_op *sum = &e->op[e->count - 1], *product;
    if (node->inputs != 3 || e->count != 5 || sum->code != MGPU_X_ADD)
        return false;
    for (int i = 0; i < 4; i++) {
        const struct mgpu_expr_op *s = &e->op[sum->arg[i / 2]];
        product = &e->op[sum->arg[1 - i / 2]];
        if (s->code != MGPU_X_INPUT || product->code != MGPU_X_MUL)
            continue;
        const struct mgpu_expr_op *y = &e->op[product->arg[i % 2]],
                                  *a = &e->op[product->arg[1 - i % 2]];
        if (y->code != MGPU_X_INPUT || a->code != MGPU_X_INPUT)
            continue;
        const struct mgpu_value *v = node->input[y->integer];
        *m = (struct match){node, conv_of(f, v), node->input[a->integer], node->input[s->integer]};
        if (m->conv && is_per_channel(f, m->a, v) && is_per_channel(f, m->s, v))
            return true;
    }
    return false;
}

/* Whether the node is max(x, 0) alone, with no other limit behind it. */
static bool is_relu(const struct folding *f, const struct mgpu_node *node)
{
    const struct mgpu_readers *r = &f->readers[node->output[0]->id];
    struct mgpu_clip clip;
    if (!mgpu_only_limits(node) || (r->count == 1 && mgpu_only_limits(r->node[0])))
        return false;
    mgpu_find_clip(mgpu_expr_of(node), &clip);
    return clip.low == 0 && clip.high == INFINITY;
}

/* Whether nothing is left of the pass over y. */
static bool pays(const struct folding *f, const struct match *m)
{
    const struct mgpu_value *z = m->norm->output[0], *w = m->conv->input[1];
    const struct mgpu_readers *r = &f->readers[z->id];
    for (int i = 0; i < r->count; i++)
        if (mgpu_expr_of(r->node[i]) && (r->count > 1 || !is_relu(f, r->node[i])))
            return false;
    return 2 * mgpu_value_count(w) <= mgpu_value_count(z);
}

/* The numbers as [C,1,...] of that rank: what lies as [C] itself where that is what is wanted. */
static struct mgpu_value *shaped(struct mgpu_graph *g, struct mgpu_value *v, int rank)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    while (v->rank > 1 && v->kind == MGPU_VALUE_RESULT && mgpu_is_view(v->producer))
        v = v->producer->input[0];
    for (int i = 0; i < rank; i++)
        dims[i] = i ? mgpu_dim_const(1) : v->dims[0];
    return mgpu_reshape(g, v, rank, dims);
}

static bool is_made_of_channels(const struct mgpu_value *v)
{
    const struct mgpu_node *node = v->kind == MGPU_VALUE_RESULT ? v->producer : NULL;
    bool made = node && mgpu_expr_of(node) && node->inputs < MGPU_MAX_INPUTS;
    for (int i = 0; made && i < node->inputs; i++)
        made = node->input[i]->rank == 1 && node->input[i]->dims[0].value == v->dims[0].value;
    return made;
}

/* w a, of numbers a [C]. What computes a is computed inside, so that both are one node. */
static struct mgpu_value *scaled_weight(struct mgpu_graph *g, struct mgpu_value *w,
                                        struct mgpu_value *a)
{
    struct mgpu_value *input[MGPU_MAX_INPUTS] = {w};
    struct mgpu_expr e;
    int map[MGPU_MAX_INPUTS];
    if (!a || !is_made_of_channels(a))
        return mgpu_mul(g, w, a ? shaped(g, a, w->rank) : NULL);
    const struct mgpu_node *node = a->producer;
    mgpu_expr_begin(&e, 1 + node->inputs);
    for (int i = 0; i < node->inputs; i++) {
        input[1 + i] = shaped(g, node->input[i], w->rank);
        map[i] = mgpu_expr_input(&e, 1 + i, node->input[i]->type);
    }
    int y = mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 0, w->type),
                        mgpu_expr_append(&e, mgpu_expr_of(node), map));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 1 + node->inputs, input);
}

static int fold(const struct folding *f, const struct match *m)
{
    struct mgpu_graph *g = f->g;
    const struct mgpu_node *conv = m->conv;
    struct mgpu_value *bias = conv->inputs > 2 ? conv->input[2] : NULL, *z;
    struct mgpu_value *a = shaped(g, m->a, 1), *s = shaped(g, m->s, 1);
    struct mgpu_value *input[] = {conv->input[0], scaled_weight(g, conv->input[1], a),
                                  bias ? mgpu_add(g, mgpu_mul(g, bias, a), s) : s};
    if (!input[1] || !input[2])
        return mgpu_build_error();
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_conv, conv->attrs, 3, input, 1, &z));
    mgpu_graph_give(m->norm->output[0], z);
    return 0;
}

int mgpu_fold_norms(struct mgpu_graph *g)
{
    struct folding f = {g, mgpu_readers_of(g), mgpu_lasting_values(g), find_stored(g)};
    struct mgpu_origin origin = g->origin;
    int nodes = g->node_count, values = g->value_count, rc = 0;
    for (int n = 0; n < nodes && rc == 0; n++) {
        struct match m;
        if (!mgpu_expr_of(g->nodes[n]) || !find(&f, g->nodes[n], &m) || !pays(&f, &m))
            continue;
        g->origin = m.norm->origin;
        rc = fold(&f, &m);
    }
    g->origin = origin;
    for (int i = 0; i < values; i++)
        free(f.readers[i].node);
    free(f.readers);
    free(f.lasts);
    free(f.stored);
    if (rc == 0 && g->node_count > nodes)
        mgpu_graph_sort(g);
    return rc;
}
