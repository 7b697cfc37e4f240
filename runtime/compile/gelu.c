/* The arithmetic of a GELU in tanh's form becomes one operation of an expression, before the
 * gradient is taken: its derivative is one operation then, too. Exporters write the formula in many
 * ways. So it is not its operations that tell, but what they compute: nodes around a tanh that give
 * GELU's values of one of their inputs. */
#include "runtime/backend.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/ops/pointwise.h"

#include <math.h>
#include <string.h>

enum { FAR = 6, POINTS = 32 }; /* nodes between tanh and either end; places where values are held */

/* The values that a node reads and what they are made of, as far as they may be x. */
struct sources {
    int count;
    struct mgpu_value *value[16];
};

static void find_sources(struct sources *s, struct mgpu_node *node, int far)
{
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value *v = node->input[i];
        bool known = v->kind == MGPU_VALUE_CONSTANT || s->count == 16;
        for (int k = 0; k < s->count; k++)
            known = known || s->value[k] == v;
        if (known)
            continue;
        s->value[s->count++] = v;
        if (v->kind == MGPU_VALUE_RESULT && mgpu_expr_of(v->producer) && far > 0)
            find_sources(s, v->producer, far - 1);
    }
}

/* v as operation of `e`, whose only input is x; -1: it is made of others, or of too much. */
static int inlined(struct mgpu_expr *e, const struct mgpu_value *v, const struct mgpu_value *x,
                   int far)
{
    int input[MGPU_MAX_INPUTS];
    if (v == x)
        return mgpu_expr_input(e, 0, MGPU_FLOAT);
    if (v->kind == MGPU_VALUE_CONSTANT && v->type == MGPU_FLOAT && mgpu_value_count(v) == 1)
        return mgpu_expr_number(e, MGPU_FLOAT, mgpu_get_double(v->data, MGPU_FLOAT, 0));
    const struct mgpu_node *node = v->kind == MGPU_VALUE_RESULT ? v->producer : NULL;
    if (!node || !mgpu_expr_of(node) || far < 0)
        return -1;
    for (int i = 0; i < node->inputs; i++) {
        input[i] = inlined(e, node->input[i], x, far - 1);
        if (input[i] < 0)
            return -1;
    }
    return mgpu_expr_append(e, mgpu_expr_of(node), input);
}

/* Whether the operation gives GELU's values, of numbers on either side of 0. */
static bool gives_gelu(struct mgpu_expr *e, int result)
{
    struct mgpu_graph *g = mgpu_graph_new();
    struct mgpu_dim size = mgpu_dim_const(POINTS);
    struct mgpu_value *x = mgpu_graph_input(g, "x", MGPU_FLOAT, 1, &size), *y;
    const struct mgpu_pointwise_attrs attrs = {.expr = mgpu_expr_end(e, result, g->arena)};
    float in[POINTS], out[POINTS];
    for (int i = 0; i < POINTS; i++)
        in[i] = (float)(i - POINTS / 2) * 0.3f + 0.1f;
    bool same = attrs.expr && attrs.expr->op[attrs.expr->count - 1].type == MGPU_FLOAT &&
                mgpu_graph_node(g, &mgpu_op_pointwise, &attrs, 1, &x, 1, &y) == 0 &&
                mgpu_backend_run(&mgpu_backend_ref, y->producer, (const void *[]){in},
                                 (void *[]){out}) == 0;
    for (int i = 0; i < POINTS && same; i++) {
        double v = in[i], t = tanh(0.7978845608028654 * (v + 0.044715 * v * v * v));
        same = fabs(out[i] - v / 2 * (1 + t)) <= 1e-6 * fmax(1, fabs(v));
    }
    mgpu_graph_free(g);
    return same;
}

static bool same_sizes(const struct mgpu_value *a, const struct mgpu_value *b)
{
    bool same = a->rank == b->rank && a->type == b->type;
    for (int i = 0; i < a->rank && same; i++)
        same = a->dims[i].value == b->dims[i].value;
    return same;
}

/* Whether `node` gives GELU of one of the sources; then it does so by that operation. */
static bool becomes_gelu(struct mgpu_graph *g, struct mgpu_node *node, const struct sources *s)
{
    for (int i = 0; i < s->count; i++) {
        struct mgpu_value *x = s->value[i];
        struct mgpu_expr e;
        mgpu_expr_begin(&e, 1);
        int y = same_sizes(x, node->output[0]) ? inlined(&e, node->output[0], x, 2 * FAR) : -1;
        if (y < 0 || !gives_gelu(&e, y))
            continue;
        mgpu_expr_begin(&e, 1);
        y = mgpu_expr_1(&e, MGPU_X_GELU, mgpu_expr_input(&e, 0, MGPU_FLOAT));
        return mgpu_set_expr(g, node, &e, y, 1, &x);
    }
    return false;
}

static bool has_tanh(const struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    for (int k = 0; e && k < e->count; k++)
        if (e->op[k].code == MGPU_X_TANH && e->op[k].type == MGPU_FLOAT)
            return true;
    return false;
}

void mgpu_fuse_gelu(struct mgpu_graph *g)
{
    struct mgpu_readers *readers = mgpu_readers_of(g);
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *node = has_tanh(g->nodes[n]) ? g->nodes[n] : NULL;
        struct sources s = {0};
        if (node)
            find_sources(&s, node, FAR);
        for (int far = 0; node && mgpu_expr_of(node) && far < FAR; far++) {
            const struct mgpu_readers *r = &readers[node->output[0]->id];
            if (becomes_gelu(g, node, &s))
                break;
            node = r->count == 1 ? r->node[0] : NULL;
        }
    }
    mgpu_readers_free(readers, g);
}
