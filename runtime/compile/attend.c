/* Attention as one node: a product of queries and keys, scaled and masked, its softmax, and the
 * product with the values. Nobody keeps the scores then, and heads need no transposition.
 *
 * For GPUs' libraries only what they have engines for becomes one (may_library), and the mask is
 * added: 0 or LOWEST for bools, and no number below LOWEST, beside which scores and the logarithm
 * of their sum still show. A query all of whose keys are hidden so attends to them by their scores.
 */
#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/compile/rewrite.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/build.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/softmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double LOWEST = -65504; /* float16's */
static const double LOW = -1e4;      /* hides a score whether it is added or stands instead */

struct search {
    struct mgpu_graph *g;
    bool library;
    struct mgpu_readers *readers;
    bool *lasts;
    bool *trained; /* by value id: depends on a weight that is trained */
    int known;     /* values that these are about */
};

/* What was found. */
struct match {
    struct mgpu_value *q, *k, *v, *mask, *y;
    double scale, fill;
    bool inside, turned; /* heads of q, k, v lie inside; y is turned so as well */
};

/* An operand and how its axes stand: axis i of [N,H,rows,width] is axis perm[i] of `root`. */
struct operand {
    struct mgpu_value *root;
    int perm[4];
};

static bool *find_trained(const struct mgpu_graph *g)
{
    bool *trained = mgpu_xcalloc((size_t)g->value_count + 1, sizeof *trained);
    for (int i = 0; i < g->parameter_count; i++)
        trained[g->parameters[i].value->id] = g->parameters[i].role == MGPU_WEIGHT;
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; i < g->nodes[n]->inputs; i++)
            for (int k = 0; k < g->nodes[n]->outputs; k++)
                if (g->nodes[n]->input[i] && g->nodes[n]->output[k])
                    trained[g->nodes[n]->output[k]->id] |= trained[g->nodes[n]->input[i]->id];
    return trained;
}

static struct mgpu_node *producer(const struct mgpu_value *v, const struct mgpu_op *op)
{
    return v->kind == MGPU_VALUE_RESULT && v->producer->op == op ? v->producer : NULL;
}

/* The one node that reads v, which nobody else needs; NULL: there are others or none. */
static struct mgpu_node *only_reader(const struct search *s, const struct mgpu_value *v)
{
    return v->id < s->known && !s->lasts[v->id] && s->readers[v->id].count == 1
               ? s->readers[v->id].node[0]
               : NULL;
}

static bool same_shape(const struct mgpu_value *a, const struct mgpu_value *b)
{
    bool same = a->rank == b->rank && a->type == b->type;
    for (int i = 0; same && i < a->rank; i++)
        same = a->dims[i].value == b->dims[i].value;
    return same;
}

/* ---- Pointwise nodes ------------------------------------------------------------------------- */

/* Operation k is a number: written so, or a constant of one element. */
static bool is_number(const struct mgpu_node *node, int k, double *number)
{
    const struct mgpu_expr_op *op = &mgpu_expr_of(node)->op[k];
    *number = op->number;
    if (op->code != MGPU_X_INPUT)
        return op->code == MGPU_X_CONST && mgpu_is_float(op->type);
    const struct mgpu_value *v = node->input[op->integer];
    if (v->kind != MGPU_VALUE_CONSTANT || v->tainted || mgpu_value_count(v) != 1 ||
        !mgpu_is_float(v->type))
        return false;
    *number = mgpu_get_double(v->data, v->type, 0);
    return true;
}

/* The input that operation k is, where it has the shape of the result. */
static struct mgpu_value *whole_input(const struct mgpu_node *node, int k)
{
    const struct mgpu_expr_op *op = &mgpu_expr_of(node)->op[k];
    struct mgpu_value *v = op->code == MGPU_X_INPUT ? node->input[op->integer] : NULL;
    return v && same_shape(v, node->output[0]) ? v : NULL;
}

/* x where the node is x * factor or x / factor. */
static struct mgpu_value *scaled(const struct mgpu_node *node, double *factor)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    const struct mgpu_expr_op *last = &e->op[e->count - 1];
    double number;
    if (last->code != MGPU_X_MUL && last->code != MGPU_X_DIV)
        return NULL;
    bool second = is_number(node, last->arg[1], &number);
    if (!second && (last->code == MGPU_X_DIV || !is_number(node, last->arg[0], &number)))
        return NULL;
    *factor *= last->code == MGPU_X_DIV ? 1 / number : number;
    return whole_input(node, last->arg[!second]);
}

/* x where the node is x + mask, or x where the mask is true and a number elsewhere. */
static struct mgpu_value *masked(const struct mgpu_node *node, struct match *m)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    const struct mgpu_expr_op *last = &e->op[e->count - 1];
    bool adds = last->code == MGPU_X_ADD;
    if ((!adds && last->code != MGPU_X_WHERE) ||
        (!adds && !is_number(node, last->arg[2], &m->fill)))
        return NULL;
    struct mgpu_value *x = whole_input(node, last->arg[adds ? 0 : 1]);
    int at = x || !adds ? last->arg[adds] : last->arg[0];
    const struct mgpu_expr_op *mask = &e->op[at];
    x = x || !adds ? x : whole_input(node, last->arg[1]);
    if (mask->code != MGPU_X_INPUT || (mask->type != MGPU_BOOL) != adds)
        return NULL;
    m->mask = node->input[mask->integer];
    return x;
}

/* ---- The pattern ----------------------------------------------------------------------------- */

/* From the argument of softmax back to the product that the scores are. */
static struct mgpu_node *find_product(const struct search *s, struct mgpu_value *scores,
                                      struct match *m)
{
    while (only_reader(s, scores) && !producer(scores, &mgpu_op_matmul)) {
        const struct mgpu_node *node = producer(scores, &mgpu_op_pointwise);
        struct mgpu_value *x = node ? scaled(node, &m->scale) : NULL;
        if (!x && (!node || m->mask || m->scale != 1)) /* one mask, behind the scaling */
            return NULL;
        scores = x ? x : masked(node, m);
        if (!scores)
            return NULL;
    }
    return only_reader(s, scores) ? producer(scores, &mgpu_op_matmul) : NULL;
}

/* Back through transpositions, and multiplications by a number where `scale` is given. */
static struct operand find_root(struct mgpu_value *v, bool turned, double *scale)
{
    struct operand o = {v, {0, 1, turned ? 3 : 2, turned ? 2 : 3}};
    for (;;) {
        const struct mgpu_node *turn = producer(o.root, &mgpu_op_transpose);
        const struct mgpu_node *node = producer(o.root, &mgpu_op_pointwise);
        struct mgpu_value *x = node && scale ? scaled(node, scale) : NULL;
        for (int i = 0; turn && i < 4; i++)
            o.perm[i] = (int)((const struct mgpu_transpose_attrs *)turn->attrs)->perm[o.perm[i]];
        if (!turn && !x)
            return o;
        o.root = turn ? turn->input[0] : x;
    }
}

static const int inside[] = {0, 2, 1, 3};

static bool is_inside(const struct operand *o)
{
    return !memcmp(o->perm, inside, sizeof inside);
}

/* Products of [N,H,..] with [N,H,..] without broadcasting. */
static bool is_by_head(const struct mgpu_node *node)
{
    const struct mgpu_value *a = node->input[0], *b = node->input[1];
    return a->rank == 4 && b->rank == 4 && mgpu_is_float(a->type) &&
           !((const struct mgpu_matmul_attrs *)node->attrs)->transpose_a &&
           a->dims[0].value == b->dims[0].value && a->dims[1].value == b->dims[1].value;
}

static bool turns_second(const struct mgpu_node *product)
{
    return ((const struct mgpu_matmul_attrs *)product->attrs)->transpose_b;
}

/* Operands as the node wants them: heads inside where all have them so, else as they were. */
static void take_operands(const struct search *s, struct match *m, const struct mgpu_node *scores,
                          const struct mgpu_node *sum)
{
    struct operand q = find_root(scores->input[0], false, &m->scale);
    struct operand k = find_root(scores->input[1], !turns_second(scores), &m->scale);
    struct operand v = find_root(sum->input[1], turns_second(sum), NULL);
    m->inside = is_inside(&q) && is_inside(&k) && is_inside(&v);
    m->q = m->inside ? q.root : mgpu_transpose(s->g, q.root, q.perm);
    m->k = m->inside ? k.root : mgpu_transpose(s->g, k.root, k.perm);
    m->v = m->inside ? v.root : mgpu_transpose(s->g, v.root, v.perm);
}

/* What the node's result stands for: that of the last product, or of the transposition that alone
 * reads it. */
static void take_result(const struct search *s, struct match *m, const struct mgpu_node *sum)
{
    struct operand y = {sum->output[0], {0, 1, 2, 3}};
    const struct mgpu_node *next = only_reader(s, y.root);
    if (m->inside && next && next->op == &mgpu_op_transpose)
        for (int i = 0; i < 4; i++)
            y.perm[i] = (int)((const struct mgpu_transpose_attrs *)next->attrs)->perm[i];
    m->turned = is_inside(&y);
    m->y = m->turned ? next->output[0] : y.root;
}

/* Heads that cuDNN's engines take, forward and backward, from compute capability 8.0 on. */
static bool may_library(const struct match *m, const struct mgpu_node *scores,
                        const struct mgpu_node *sum)
{
    bool hides = !m->mask || m->mask->type != MGPU_BOOL || m->fill <= LOW;
    int64_t width = scores->input[0]->dims[3].value, out = sum->output[0]->dims[3].value;
    return hides && width % 8 == 0 && out % 8 == 0 && width <= 128 && out <= 128;
}

static bool find(const struct search *s, const struct mgpu_node *softmax, struct match *m)
{
    const struct mgpu_softmax_attrs *a = softmax->attrs;
    struct mgpu_value *p = softmax->output[0];
    struct mgpu_node *sum = only_reader(s, p), *scores;
    *m = (struct match){.scale = 1};
    if (a->log || a->axis != 3 || p->rank != 4 || !sum || sum->op != &mgpu_op_matmul ||
        sum->input[0] != p || sum->input[1] == p || !is_by_head(sum))
        return false;
    scores = find_product(s, softmax->input[0], m);
    if (!scores || !is_by_head(scores) || (s->library && !may_library(m, scores, sum)) ||
        (m->mask && m->mask->id >= s->known) || (m->mask && s->trained[m->mask->id]))
        return false;
    take_operands(s, m, scores, sum);
    take_result(s, m, sum);
    return m->q && m->k && m->v;
}

/* The mask as numbers that are added to the scores. */
static struct mgpu_value *added(const struct search *s, const struct match *m)
{
    enum mgpu_dtype type = m->q->type;
    struct mgpu_value *lowest = mgpu_const_double(s->g, type, LOWEST);
    if (m->mask->type != MGPU_BOOL)
        return mgpu_binary(s->g, MGPU_X_MAX, m->mask, lowest);
    return mgpu_where(s->g, m->mask, mgpu_const_double(s->g, type, 0),
                      mgpu_const_double(s->g, type, fmax(m->fill, LOWEST)));
}

static int fuse(const struct search *s, const struct match *m)
{
    struct mgpu_attention_attrs attrs = {.heads_inside = m->inside,
                                         .log_sums = s->library,
                                         .scale = m->scale,
                                         .fill = s->library ? 0 : m->fill};
    struct mgpu_value *mask = s->library && m->mask ? added(s, m) : m->mask;
    struct mgpu_value *in[] = {m->q, m->k, m->v, mask}, *out[2];
    if (m->mask && !mask)
        return mgpu_build_error();
    MGPU_TRY(mgpu_graph_node(s->g, &mgpu_op_attention, &attrs, m->mask ? 4 : 3, in, 2, out));
    struct mgpu_value *y = m->inside && !m->turned ? mgpu_transpose(s->g, out[0], inside) : out[0];
    if (!y)
        return mgpu_build_error();
    mgpu_graph_give(m->y, y);
    return 0;
}

int mgpu_fuse_attention(struct mgpu_graph *g, bool library)
{
    struct search s = {
        g, library, mgpu_readers_of(g), mgpu_lasting_values(g), find_trained(g), g->value_count};
    struct mgpu_origin origin = g->origin;
    int nodes = g->node_count, rc = 0;
    for (int n = 0; n < nodes && rc == 0; n++) {
        struct match m;
        if (g->nodes[n]->op != &mgpu_op_softmax || !only_reader(&s, g->nodes[n]->output[0]))
            continue;
        g->origin = only_reader(&s, g->nodes[n]->output[0])->origin;
        if (find(&s, g->nodes[n], &m))
            rc = fuse(&s, &m);
    }
    g->origin = origin;
    for (int i = 0; i < s.known; i++)
        free(s.readers[i].node);
    free(s.readers);
    free(s.lasts);
    free(s.trained);
    if (rc == 0 && g->node_count > nodes)
        mgpu_graph_sort(g);
    return rc;
}
