#include "runtime/compile/half.h"

#include "runtime/base/status.h"
#include "runtime/compile/fuse.h"
#include "runtime/ops/build.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/op.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/softmax.h"

#include <stdlib.h>
#include <string.h>

struct halving {
    struct mgpu_graph *g;
    enum mgpu_dtype half;
    bool *halves; /* by node id: it gives the half type */
    /* by value id of the graph as it was */
    bool *may;    /* it could be in the half type */
    bool *wanted; /* somebody takes it so */
    bool *made;   /* it is */
    bool *lasts;
    bool *scores;                       /* a softmax in the half type takes it */
    struct mgpu_value **narrow, **wide; /* casts of it; NULL: none yet */
};

static bool is_float(const struct mgpu_value *v)
{
    return v && v->type == MGPU_FLOAT;
}

static bool input_is_data(const struct mgpu_node *node, int i)
{
    return i >= 32 || !(node->op->float_inputs >> i & 1);
}

static bool output_is_data(const struct mgpu_node *node, int i)
{
    return !(node->op->float_outputs >> i & 1);
}

/* ---- Who gives the half type -----------------------------------------------------------------
 *
 * Forward first, for what stands behind it in forward: what only a loss reads is a float whatever
 * its gradient is. Then the rest. */

static bool is_forward(const struct mgpu_node *node)
{
    return node->origin.role == MGPU_FORWARD;
}

/* Data are floats: values of other types that the model itself has stay as they are. */
static bool has_floats(const struct mgpu_node *node)
{
    bool any = false;
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_value *v = node->input[i];
        if (!v || !input_is_data(node, i) || !mgpu_is_float(v->type))
            continue;
        if (!is_float(v) && !mgpu_expr_of(node))
            return false;
        any = any || is_float(v);
    }
    return any;
}

static bool may_halve(const struct halving *h, const struct mgpu_node *node)
{
    enum mgpu_half_rule rule = node->origin.role == MGPU_UPDATE ? MGPU_HALF_NEVER : node->op->half;
    if (rule < MGPU_HALF_FOLLOWS || !has_floats(node))
        return false;
    if (rule == MGPU_HALF_PRODUCT ||
        (rule == MGPU_HALF_ROWS && node->input[0]->kind == MGPU_VALUE_PARAMETER))
        return true;
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && input_is_data(node, i) && h->may[node->input[i]->id])
            return true;
    return false;
}

static void note_halves(struct halving *h, const struct mgpu_node *node, bool halves)
{
    h->halves[node->id] = halves;
    for (int i = 0; i < node->outputs; i++)
        if (is_float(node->output[i]) && output_is_data(node, i))
            h->may[node->output[i]->id] = halves;
}

/* Products and what somebody takes. */
static bool is_wanted(const struct halving *h, const struct mgpu_node *node)
{
    bool wanted = node->op->half == MGPU_HALF_PRODUCT;
    for (int i = 0; i < node->outputs; i++)
        wanted = wanted || (node->output[i] && h->wanted[node->output[i]->id]);
    return wanted;
}

static void choose(struct halving *h, bool forward)
{
    const struct mgpu_graph *g = h->g;
    for (int n = 0; n < g->node_count; n++)
        if (is_forward(g->nodes[n]) == forward)
            note_halves(h, g->nodes[n], may_halve(h, g->nodes[n]));
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = g->nodes[n];
        if (is_forward(node) != forward)
            continue;
        note_halves(h, node, h->halves[n] && is_wanted(h, node));
        for (int i = 0; i < node->inputs && h->halves[n]; i++)
            if (node->input[i] && input_is_data(node, i))
                h->wanted[node->input[i]->id] = true;
    }
}

/* What becomes the argument of such a softmax by arithmetic and movement alone. */
static void find_scores(struct halving *h)
{
    for (int n = h->g->node_count - 1; n >= 0; n--) {
        const struct mgpu_node *node = h->g->nodes[n];
        bool passes =
            mgpu_expr_of(node) || node->op == &mgpu_op_reshape || node->op == &mgpu_op_transpose;
        bool softmax = node->op == &mgpu_op_softmax && h->halves[n];
        if (!softmax && !(passes && is_forward(node) && h->scores[node->output[0]->id]))
            continue;
        for (int i = 0; i < node->inputs; i++)
            h->scores[node->input[i]->id] = true;
    }
}

/* ---- Expressions ----------------------------------------------------------------------------- */

static bool only_chooses(enum mgpu_expr_code code)
{
    switch (code) {
    case MGPU_X_INPUT:
    case MGPU_X_CONST:
    case MGPU_X_NEG:
    case MGPU_X_ABS:
    case MGPU_X_SIGN:
    case MGPU_X_STOP:
    case MGPU_X_MIN:
    case MGPU_X_MAX:
    case MGPU_X_WHERE:
        return true;
    default:
        return false;
    }
}

/* Functions are left out: backward finds theirs by what they take. */
static bool only_rounds(enum mgpu_expr_code code)
{
    return code == MGPU_X_ADD || code == MGPU_X_SUB || code == MGPU_X_MUL || code == MGPU_X_MULZ;
}

static bool holds(enum mgpu_dtype half, double number)
{
    char element[2];
    mgpu_set_double(element, half, 0, number);
    return mgpu_get_double(element, half, 0) == number;
}

/* Whether the expression gives the same where every operation ends in the half type: its numbers
 * have a place there, and what is rounded is only chosen from afterwards. */
static bool may_retype(const struct halving *h, const struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    bool rounded[MGPU_EXPR_MAX];
    for (int k = 0; k < e->count; k++) {
        const struct mgpu_expr_op *op = &e->op[k];
        bool takes_rounded = false, floats = op->type == MGPU_FLOAT;
        for (int i = 0; i < mgpu_expr_arity(op->code); i++)
            takes_rounded = takes_rounded || rounded[op->arg[i]];
        if ((op->code == MGPU_X_INPUT && floats && !h->made[node->input[op->integer]->id]) ||
            (op->code == MGPU_X_CONST && floats && !holds(h->half, op->number)) ||
            (takes_rounded && !only_chooses(op->code)) ||
            (floats && !only_chooses(op->code) && !only_rounds(op->code)))
            return false;
        rounded[k] = takes_rounded || (floats && only_rounds(op->code));
    }
    return true;
}

/* Every operation that is a float's in the half type. */
static int retype(const struct halving *h, const struct mgpu_node *node, struct mgpu_expr *e)
{
    *e = (struct mgpu_expr){.inputs = node->inputs, .count = mgpu_expr_of(node)->count};
    memcpy(e->op, mgpu_expr_of(node)->op, sizeof *e->op * (size_t)e->count);
    for (int k = 0; k < e->count; k++)
        if (e->op[k].type == MGPU_FLOAT)
            e->op[k].type = h->half;
    return e->count - 1;
}

/* No finite number becomes an infinity below: the largest negative float that hides a score would
 * be one, and a softmax of hidden scores alone NaN. */
static int keep_finite(const struct halving *h, struct mgpu_expr *e, int y)
{
    double lowest = h->half == MGPU_FLOAT16 ? -65504 : -0x1.fep127;
    int most = mgpu_expr_2(e, MGPU_X_MAX, y, mgpu_expr_number(e, MGPU_FLOAT, lowest));
    return mgpu_expr_where(e, mgpu_expr_1(e, MGPU_X_ISINF, y), y, most);
}

/* Floats inside, whatever the inputs are. */
static int surround(const struct halving *h, const struct mgpu_node *node, bool halves,
                    struct mgpu_expr *e)
{
    int map[MGPU_MAX_INPUTS];
    mgpu_expr_begin(e, node->inputs);
    for (int i = 0; i < node->inputs; i++) {
        map[i] = mgpu_expr_input(e, i, node->input[i]->type);
        if (h->made[node->input[i]->id])
            map[i] = mgpu_expr_cast(e, MGPU_FLOAT, map[i]);
    }
    int y = mgpu_expr_append(e, mgpu_expr_of(node), map);
    if (!halves || y < 0 || e->op[y].type != MGPU_FLOAT) /* a comparison stays what it is */
        return y;
    if (h->scores[node->output[0]->id])
        y = keep_finite(h, e, y);
    return mgpu_expr_cast(e, h->half, y);
}

/* The bias that the node adds to the columns of a product, which then is part of it (finish.c):
 * number of the input; -1: it is another node. */
static int bias_of(const struct halving *h, const struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    const struct mgpu_value *y = node->output[0];
    if (node->inputs != 2 || e->count != 3 || e->op[2].code != MGPU_X_ADD || y->rank == 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        const struct mgpu_value *product = node->input[1 - i], *b = node->input[i];
        int64_t columns = y->dims[y->rank - 1].value;
        if (h->made[product->id] && product->producer->op == &mgpu_op_matmul && is_float(b) &&
            b->kind == MGPU_VALUE_PARAMETER && b->rank > 0 && mgpu_value_count(b) == columns &&
            b->dims[b->rank - 1].value == columns)
            return i;
    }
    return -1;
}

/* The expression of inputs as they are stored now. False: it would be too long. */
static bool settle_expr(const struct halving *h, struct mgpu_node *node, bool halves, bool retypes)
{
    struct mgpu_expr e;
    int y = retypes ? retype(h, node, &e) : surround(h, node, halves, &e);
    struct mgpu_pointwise_attrs attrs = {.expr = mgpu_expr_end(&e, y, h->g->arena)};
    if (!attrs.expr)
        return false;
    node->attrs = mgpu_arena_copy(h->g->arena, &attrs, sizeof attrs);
    node->output[0]->type = attrs.expr->op[attrs.expr->count - 1].type;
    return true;
}

/* ---- All nodes ------------------------------------------------------------------------------- */

/* The value in one of the two types. */
static int as(struct halving *h, struct mgpu_value **v, enum mgpu_dtype type)
{
    struct mgpu_value **cast = type == MGPU_FLOAT ? &h->wide[(*v)->id] : &h->narrow[(*v)->id];
    if ((*v)->type == type)
        return 0;
    if (!*cast)
        *cast = mgpu_cast(h->g, *v, type);
    if (!*cast)
        return mgpu_build_error();
    *v = *cast;
    return 0;
}

static int settle_inputs(struct halving *h, struct mgpu_node *node, bool halves)
{
    bool takes = node->op->half == MGPU_HALF_TAKES;
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value **v = &node->input[i];
        bool data = input_is_data(node, i);
        if (!*v || !(is_float(*v) || h->made[(*v)->id]) || (takes && data))
            continue;
        MGPU_TRY(as(h, v, halves && data ? h->half : MGPU_FLOAT));
    }
    return 0;
}

/* Sums of half types give floats, and so do products that are gradients of weights, where their
 * attributes can say so. */
static void give_floats(struct halving *h, struct mgpu_node *node)
{
    bool sum = node->op->half == MGPU_HALF_TAKES && h->made[node->input[0]->id];
    bool gradient = h->halves[node->id] && node->outputs && node->output[0] &&
                    node->op->half == MGPU_HALF_PRODUCT && h->lasts[node->output[0]->id];
    if (!sum && !gradient)
        return;
    for (const struct mgpu_attr *a = node->op->attrs; a->name; a++)
        if (a->kind == MGPU_ATTR_TYPE) {
            char *attrs = mgpu_arena_copy(h->g->arena, node->attrs, node->op->attrs_size);
            *(enum mgpu_dtype *)(attrs + a->offset) = MGPU_FLOAT;
            node->attrs = attrs;
        }
}

static void append(struct mgpu_graph *g, struct mgpu_node *node)
{
    g->nodes = mgpu_grow(g->nodes, (size_t)g->node_count, sizeof *g->nodes);
    node->id = g->node_count;
    g->nodes[g->node_count++] = node;
}

/* What lasts is a float at once: gradients are reduced as soon as they are there. */
static int note_outputs(struct halving *h, const struct mgpu_node *node)
{
    for (int i = 0; i < node->outputs; i++) {
        struct mgpu_value *v = node->output[i];
        if (!v || !h->may[v->id] || v->type != h->half)
            continue;
        h->made[v->id] = true;
        if (h->lasts[v->id])
            MGPU_TRY(as(h, &v, MGPU_FLOAT));
    }
    return 0;
}

static int settle(struct halving *h, struct mgpu_node *node)
{
    bool halves = h->halves[node->id];
    h->g->origin = node->origin;
    if (node->inputs)
        node->input =
            mgpu_arena_copy(h->g->arena, node->input, sizeof *node->input * (size_t)node->inputs);
    bool pointwise = mgpu_expr_of(node) != NULL;
    bool retypes = pointwise && halves && !h->scores[node->output[0]->id];
    int bias = retypes ? bias_of(h, node) : -1;
    retypes = retypes && (bias >= 0 || may_retype(h, node));
    if (bias >= 0)
        MGPU_TRY(as(h, &node->input[bias], h->half));
    if (!pointwise || !settle_expr(h, node, halves, retypes))
        MGPU_TRY(settle_inputs(h, node, halves && !pointwise));
    give_floats(h, node);
    append(h->g, node);
    if (!pointwise)
        MGPU_TRY(node->op->shape(node));
    return note_outputs(h, node);
}

static int settle_all(struct halving *h)
{
    struct mgpu_graph *g = h->g;
    struct mgpu_node **nodes = g->nodes;
    struct mgpu_origin origin = g->origin;
    int count = g->node_count, rc = 0;
    g->nodes = NULL;
    g->node_count = 0;
    for (int n = 0; n < count && rc == 0; n++)
        rc = settle(h, nodes[n]);
    free(nodes);
    g->origin = origin;
    return rc;
}

/* Of what lasts, the cast that was made with it. */
static struct mgpu_value *lasting(const struct halving *h, struct mgpu_value *v)
{
    return v && h->made[v->id] ? h->wide[v->id] : v;
}

static void read_floats(const struct halving *h)
{
    struct mgpu_graph *g = h->g;
    for (int i = 0; i < g->output_count; i++)
        g->outputs[i] = lasting(h, g->outputs[i]);
    for (int i = 0; i < g->parameter_count; i++) {
        struct mgpu_parameter *p = &g->parameters[i];
        p->gradient = lasting(h, p->gradient);
        p->next = lasting(h, p->next);
    }
}

int mgpu_use_half(struct mgpu_graph *g, enum mgpu_dtype half)
{
    MGPU_TRY(mgpu_biases_apart(g));
    size_t values = (size_t)g->value_count + 1;
    bool *flags = mgpu_xcalloc(5 * values + (size_t)g->node_count, sizeof *flags);
    struct mgpu_value **casts = mgpu_xcalloc(2 * values, sizeof(struct mgpu_value *));
    struct halving h = {.g = g,
                        .half = half,
                        .may = flags,
                        .wanted = flags + values,
                        .made = flags + 2 * values,
                        .scores = flags + 3 * values,
                        .halves = flags + 4 * values,
                        .lasts = mgpu_lasting_values(g),
                        .narrow = casts,
                        .wide = casts + values};
    choose(&h, true);
    choose(&h, false);
    find_scores(&h);
    int rc = settle_all(&h);
    if (rc == 0)
        read_floats(&h);
    free(h.lasts);
    free(casts);
    free(flags);
    return rc;
}
