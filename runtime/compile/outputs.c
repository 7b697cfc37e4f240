/* Backward expressions read what forward stores anyway, so that forward's inputs die early.
 *
 *     y = max(x, 0)       where(0 < x, dy, 0)            becomes where(0 < y, dy, 0)
 *     y = tanh(x)         dy * (1 - tanh(x)^2)           becomes dy * (1 - y^2)
 *
 * y is one that is stored in any case: something other than an expression reads it.
 */
#include "runtime/compile/fuse.h"
#include "runtime/ops/pointwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_stored(const struct mgpu_readers *readers, const bool *lasts,
                      const struct mgpu_value *v)
{
    if (lasts[v->id])
        return true;
    for (int i = 0; i < readers[v->id].count; i++)
        if (!mgpu_expr_of(readers[v->id].node[i]))
            return true;
    return false;
}

static int input_number(const struct mgpu_node *node, const struct mgpu_value *v)
{
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] == v)
            return i;
    return -1;
}

/* ---- Clips ----------------------------------------------------------------------------------- */

/* The other operand of a max or min with a number; -1: it is neither. */
static int clipped(const struct mgpu_expr *e, int k, double *number)
{
    const struct mgpu_expr_op *op = &e->op[k];
    if (op->code != MGPU_X_MAX && op->code != MGPU_X_MIN)
        return -1;
    for (int i = 0; i < 2; i++)
        if (e->op[op->arg[i]].code == MGPU_X_CONST && mgpu_is_float(op->type)) {
            *number = e->op[op->arg[i]].number;
            return op->arg[1 - i];
        }
    return -1;
}

int mgpu_find_clip(const struct mgpu_expr *e, struct mgpu_clip *clip)
{
    int k = e->count - 1;
    double number;
    *clip = (struct mgpu_clip){-INFINITY, INFINITY};
    for (int next; (next = clipped(e, k, &number)) >= 0; k = next)
        if (e->op[k].code == MGPU_X_MAX)
            clip->low = fmax(clip->low, number);
        else
            clip->high = fmin(clip->high, number);
    return k;
}

/* Does the comparison say the same of a value and of its clip? The number must not be beyond an
 * end, and an end itself only where the comparison keeps it apart from what lies inside. */
static bool comparison_survives(const struct mgpu_expr *e, int k, int operand,
                                const struct mgpu_clip *clip)
{
    const struct mgpu_expr_op *op = &e->op[k];
    bool number_first = op->arg[1] == operand;
    const struct mgpu_expr_op *c = &e->op[op->arg[number_first ? 0 : 1]];
    if (c->code != MGPU_X_CONST || !mgpu_is_float(c->type))
        return false;
    bool low_too = (op->code == MGPU_X_LT) == number_first; /* number < x, x <= number */
    return low_too ? c->number >= clip->low && c->number < clip->high
                   : c->number > clip->low && c->number <= clip->high;
}

/* May operation k of `e` be a clip's output where it is now the clip's input? */
static bool clip_serves(const struct mgpu_expr *e, int k, const struct mgpu_clip *clip)
{
    double number;
    if (k == e->count - 1)
        return false;
    for (int i = k + 1; i < e->count; i++) {
        const struct mgpu_expr_op *op = &e->op[i];
        if (op->arg[0] != k && op->arg[1] != k && op->arg[2] != k)
            continue;
        bool compares = op->code == MGPU_X_LT || op->code == MGPU_X_LE;
        bool fine = compares ? comparison_survives(e, i, k, clip)
                             : clipped(e, i, &number) == k && clip_serves(e, i, clip);
        if (!fine)
            return false;
    }
    return true;
}

static void replace_input(struct mgpu_graph *g, struct mgpu_node *node, int which,
                          struct mgpu_value *by)
{
    struct mgpu_value **input =
        mgpu_arena_copy(g->arena, node->input, sizeof *input * (size_t)node->inputs);
    input[which] = by;
    node->input = input;
}

/* Readers of a clip's input that come later read its output. */
static void read_clip(struct mgpu_graph *g, struct mgpu_readers *readers, struct mgpu_node *node)
{
    struct mgpu_clip clip;
    struct mgpu_value *x = node->input[0], *y = node->output[0];
    if (node->inputs != 1)
        return;
    int k = mgpu_find_clip(mgpu_expr_of(node), &clip), last = mgpu_expr_of(node)->count - 1;
    if (mgpu_expr_of(node)->op[k].code != MGPU_X_INPUT || k == last || clip.low >= clip.high)
        return;
    for (int r = 0; r < readers[x->id].count; r++) {
        struct mgpu_node *reader = readers[x->id].node[r];
        const struct mgpu_expr *e = mgpu_expr_of(reader);
        int which = input_number(reader, x);
        k = 0;
        if (!e || reader->id <= node->id || which < 0)
            continue;
        while (k < e->count && !(e->op[k].code == MGPU_X_INPUT && e->op[k].integer == which))
            k++;
        if (k < e->count && clip_serves(e, k, &clip))
            replace_input(g, reader, which, y);
    }
}

/* ---- Values that are computed again ---------------------------------------------------------- */

/* Is operation j of b's expression what operation i of a's is? */
static bool same_value(const struct mgpu_node *a, int i, const struct mgpu_node *b, int j)
{
    const struct mgpu_expr_op *x = &mgpu_expr_of(a)->op[i], *y = &mgpu_expr_of(b)->op[j];
    if (x->code != y->code || x->type != y->type)
        return false;
    if (x->code == MGPU_X_INPUT)
        return a->input[x->integer] == b->input[y->integer];
    if (x->code == MGPU_X_CONST)
        return x->integer == y->integer && !memcmp(&x->number, &y->number, sizeof x->number);
    for (int k = 0; k < mgpu_expr_arity(x->code); k++)
        if (!same_value(a, x->arg[k], b, y->arg[k]))
            return false;
    return true;
}

/* `reader` with its operation k replaced by an input that holds it, in a half type perhaps. */
static void read_instead(struct mgpu_graph *g, struct mgpu_node *reader, int k,
                         struct mgpu_value *v)
{
    const struct mgpu_expr *from = mgpu_expr_of(reader);
    struct mgpu_expr e;
    struct mgpu_value *input[MGPU_MAX_INPUTS];
    int number[MGPU_EXPR_MAX];
    if (reader->inputs == MGPU_MAX_INPUTS)
        return;
    memcpy(input, reader->input, sizeof *input * (size_t)reader->inputs);
    input[reader->inputs] = v;
    mgpu_expr_begin(&e, reader->inputs + 1);
    for (int i = 0; i < from->count; i++)
        number[i] = i == k ? mgpu_expr_cast(&e, from->op[k].type,
                                            mgpu_expr_input(&e, reader->inputs, v->type))
                           : mgpu_expr_again(&e, from, i, number);
    mgpu_set_expr(g, reader, &e, number[from->count - 1], e.inputs, input);
}

/* What the node computes, before it is cut to a half type to be stored. */
static int computed(const struct mgpu_expr *e)
{
    const struct mgpu_expr_op *last = &e->op[e->count - 1];
    bool cut = last->code == MGPU_X_CAST && mgpu_is_float(last->type) &&
               mgpu_dtype_size(last->type) == 2 && e->op[last->arg[0]].type == MGPU_FLOAT;
    return cut ? last->arg[0] : e->count - 1;
}

/* Backward readers of a node's input that compute the node's output again read it instead. */
static void read_result(struct mgpu_graph *g, struct mgpu_readers *readers, struct mgpu_node *node)
{
    struct mgpu_value *x = node->input[0], *y = node->output[0];
    int last = mgpu_expr_of(node)->count - 1, result = computed(mgpu_expr_of(node));
    enum mgpu_expr_code code = mgpu_expr_of(node)->op[result].code;
    if (mgpu_expr_arity(code) == 0 || (code == MGPU_X_CAST && result != last))
        return; /* a copy */
    for (int r = 0; r < readers[x->id].count; r++) {
        struct mgpu_node *reader = readers[x->id].node[r];
        const struct mgpu_expr *e = mgpu_expr_of(reader);
        if (!e || reader->id <= node->id || reader->origin.role != MGPU_BACKWARD ||
            mgpu_value_count(reader->output[0]) != mgpu_value_count(y))
            continue;
        for (int k = e->count - 1; k >= 0; k--)
            if (same_value(node, result, reader, k)) {
                read_instead(g, reader, k, y);
                break;
            }
    }
}

void mgpu_read_outputs(struct mgpu_graph *g)
{
    struct mgpu_readers *readers = mgpu_readers_of(g);
    bool *lasts = mgpu_lasting_values(g);
    for (int n = 0; n < g->node_count; n++) {
        struct mgpu_node *node = g->nodes[n];
        if (!mgpu_expr_of(node) || node->origin.role != MGPU_FORWARD ||
            !is_stored(readers, lasts, node->output[0]))
            continue;
        read_clip(g, readers, node);
        read_result(g, readers, node);
    }
    mgpu_readers_free(readers, g);
    free(lasts);
}
