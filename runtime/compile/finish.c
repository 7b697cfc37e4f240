/* Nodes with what stands right behind them, and gradients with what stands before:
 *
 *     y = batch_norm(x), z = max(y + more, 0)          one node that writes z
 *     dy = where(0 < z, dz, 0), batch_norm_grad(dy)    one node that reads dz and z
 *     y = matmul(a, b), z = max(y + bias, 0)           one node that writes z
 *     y = conv(x, w, bias), z = max(y, 0)              the same, though y be reordered between
 *     y = matmul(a, b), z = gelu(y + bias)             one node that writes z, and y + bias
 *     dy = matmul(a, b), dx = dy gelu'(x)              one node that reads x
 *     db = reduce(dy), dw = matmul(x, dy)              one node that reads dy once
 *
 * where nothing else reads y or dy of the first six (of GELU, but for the gradient, which then
 * reads y + bias).
 */
#include "runtime/compile/fuse.h"
#include "runtime/compile/storage.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/reduce.h"
#include "runtime/ops/reorder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct finish {
    struct mgpu_graph *g;
    const struct mgpu_backend *backend;
    struct mgpu_readers *readers;
    bool *lasts, *changed;
};

static struct finish begin(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    return (struct finish){.g = g,
                           .backend = backend,
                           .readers = mgpu_readers_of(g),
                           .lasts = mgpu_lasting_values(g),
                           .changed = mgpu_communicated_values(g)};
}

static void end(struct finish *f)
{
    mgpu_readers_free(f->readers, f->g);
    free(f->lasts);
    free(f->changed);
}

static const struct mgpu_batch_norm_attrs *attrs_of(const struct mgpu_node *norm)
{
    return norm->attrs;
}

/* Read by that node alone, and the only thing that comes of v's producer here. */
static bool is_between(const struct finish *f, const struct mgpu_value *v,
                       const struct mgpu_node *reader)
{
    const struct mgpu_readers *r = &f->readers[v->id];
    return !f->lasts[v->id] && !f->changed[v->id] && r->count == 1 && r->node[0] == reader;
}

static bool same_shape(const struct mgpu_value *a, const struct mgpu_value *b)
{
    bool same = a->type == b->type && a->rank == b->rank && a->block == b->block;
    for (int i = 0; same && i < a->rank; i++)
        same = a->dims[i].value == b->dims[i].value;
    return same;
}

/* The type names both nodes. */
static void name_both(const struct finish *f, struct mgpu_node *node, const char *first,
                      const char *second)
{
    node->origin.type = mgpu_arena_format(f->g->arena, "%s+%s", first, second);
}

/* `node` as `with` from now on, where the kernel that runs it now runs it still. */
static bool become(const struct finish *f, struct mgpu_node *node, const struct mgpu_node *with,
                   const char *first, const char *second)
{
    if (mgpu_backend_kernel(f->backend, with) != mgpu_backend_kernel(f->backend, node))
        return false;
    node->attrs = mgpu_arena_copy(f->g->arena, with->attrs, node->op->attrs_size);
    node->inputs = with->inputs;
    node->input =
        mgpu_arena_copy(f->g->arena, with->input, sizeof *with->input * (size_t)with->inputs);
    name_both(f, node, first, second);
    return true;
}

/* Norm with one more input and these limits. */
static bool extend(const struct finish *f, struct mgpu_node *norm, struct mgpu_value *more,
                   const struct mgpu_clip *clip, const char *first, const char *second)
{
    struct mgpu_batch_norm_attrs attrs = *attrs_of(norm);
    struct mgpu_value *input[8];
    struct mgpu_node with = *norm;
    attrs.clips = clip->low > -INFINITY || clip->high < INFINITY;
    attrs.low = attrs.clips ? clip->low : 0;
    attrs.high = attrs.clips ? clip->high : 0;
    memcpy(input, norm->input, sizeof *input * (size_t)norm->inputs);
    input[norm->inputs] = more;
    with.attrs = &attrs;
    with.input = input;
    with.inputs += more != NULL;
    return become(f, norm, &with, first, second);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void read_instead(struct finish *f, const struct mgpu_value *of, struct mgpu_value *v)
{
    struct mgpu_readers *r = &f->readers[of->id], *more = &f->readers[v->id];
    for (int k = 0; k < r->count; k++) {
        struct mgpu_node *node = r->node[k];
        struct mgpu_value **input =
            mgpu_arena_copy(f->g->arena, node->input, sizeof *input * (size_t)node->inputs);
        for (int i = 0; i < node->inputs; i++)
            input[i] = input[i] == of ? v : input[i];
        node->input = input;
    }
    free(more->node);
    *more = *r;
    *r = (struct mgpu_readers){0};
}

/* Whether v is there when norm runs. */
static bool is_before(const struct mgpu_value *v, const struct mgpu_node *norm)
{
    return v->kind != MGPU_VALUE_RESULT || v->producer->id < norm->id;
}

/* y of a norm that nothing stands behind yet. */
static bool ends_norm(const struct finish *f, const struct mgpu_value *y,
                      const struct mgpu_node *reader)
{
    const struct mgpu_node *norm = y->kind == MGPU_VALUE_RESULT ? y->producer : NULL;
    return norm && norm->op == &mgpu_op_batch_norm && y == norm->output[0] && norm->inputs == 3 &&
           !attrs_of(norm)->clips && norm->origin.role == reader->origin.role &&
           is_between(f, y, reader);
}

/* Whether the node is clip(a + b), or clip(a): then it does not add. */
static bool is_end(const struct mgpu_node *node, struct mgpu_clip *clip, bool *adds)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    int k = mgpu_find_clip(e, clip);
    *adds = e->op[k].code == MGPU_X_ADD && node->inputs == 2 && k > 1 &&
            e->op[e->op[k].arg[0]].code == MGPU_X_INPUT &&
            e->op[e->op[k].arg[1]].code == MGPU_X_INPUT;
    return *adds || (e->op[k].code == MGPU_X_INPUT && node->inputs == 1 && k != e->count - 1);
}

/* z = clip(a) or clip(a + b) by `node`, if a norm makes a. Zero must stay zero: so it is behind the
 * last channel where channels lie in blocks. */
static void finish_forward(struct finish *f, struct mgpu_node *node)
{
    struct mgpu_value *z = node->output[0];
    struct mgpu_clip clip;
    bool adds;
    if (!is_end(node, &clip, &adds) || clip.low > 0 || clip.high < 0 || f->lasts[z->id] ||
        f->changed[z->id])
        return;
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_value *y = node->input[i], *more = adds ? node->input[1 - i] : NULL;
        if (!same_shape(y, z) || !ends_norm(f, y, node) ||
            (more &&
             (!same_shape(more, z) || f->changed[more->id] || !is_before(more, y->producer))))
            continue;
        if (!extend(f, y->producer, more, &clip, y->producer->origin.type, node->origin.type))
            continue;
        read_instead(f, z, y);
        return;
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* What `v` is a clip of, as far as that makes no difference for v < limit (upper) or limit < v. */
static const struct mgpu_expr_op *unclipped(const struct mgpu_expr *e, const struct mgpu_expr_op *v,
                                            double limit, bool upper)
{
    while (v->code == MGPU_X_MAX || v->code == MGPU_X_MIN) {
        const struct mgpu_expr_op *a = &e->op[v->arg[0]], *b = &e->op[v->arg[1]];
        const struct mgpu_expr_op *c = a->code == MGPU_X_CONST ? a : b;
        bool same = v->code == MGPU_X_MAX ? c->number < limit || (!upper && c->number == limit)
                                          : c->number > limit || (upper && c->number == limit);
        if (c->code != MGPU_X_CONST || !same)
            break;
        v = c == a ? b : a;
    }
    return v;
}

/* Operation k is low < y, y < high, or both. y: number of the input, -1 before it is known. */
static bool find_limits(const struct mgpu_expr *e, int k, struct mgpu_clip *clip, int *y)
{
    const struct mgpu_expr_op *op = &e->op[k];
    if (op->code == MGPU_X_AND)
        return find_limits(e, op->arg[0], clip, y) && find_limits(e, op->arg[1], clip, y);
    if (op->code != MGPU_X_LT)
        return false;
    const struct mgpu_expr_op *a = &e->op[op->arg[0]], *b = &e->op[op->arg[1]];
    bool upper = b->code == MGPU_X_CONST;
    double limit = upper ? b->number : a->number;
    const struct mgpu_expr_op *value = unclipped(e, upper ? a : b, limit, upper);
    if ((!upper && a->code != MGPU_X_CONST) || value->code != MGPU_X_INPUT ||
        !mgpu_is_float(value->type) || (*y >= 0 && *y != value->integer))
        return false;
    *y = (int)value->integer;
    clip->low = upper ? clip->low : fmax(clip->low, limit);
    clip->high = upper ? fmin(clip->high, limit) : clip->high;
    return true;
}

/* The result is dy where the limits hold, else 0: numbers of the two inputs. */
static bool find_mask(const struct mgpu_expr *e, struct mgpu_clip *clip, int *dy, int *y)
{
    int k = e->count - 1;
    *clip = (struct mgpu_clip){-INFINITY, INFINITY};
    *y = -1;
    for (; e->op[k].code == MGPU_X_WHERE; k = e->op[k].arg[1]) {
        const struct mgpu_expr_op *otherwise = &e->op[e->op[k].arg[2]];
        if (otherwise->code != MGPU_X_CONST || otherwise->number != 0 ||
            !find_limits(e, e->op[k].arg[0], clip, y))
            return false;
    }
    *dy = (int)e->op[k].integer;
    return e->op[k].code == MGPU_X_INPUT && *y >= 0 && *y != *dy;
}

static void finish_backward(struct finish *f, struct mgpu_node *norm)
{
    struct mgpu_value *dy = norm->input[1];
    struct mgpu_node *mask = dy->kind == MGPU_VALUE_RESULT ? dy->producer : NULL;
    struct mgpu_clip clip;
    int from, y;
    if (!mask || !mgpu_expr_of(mask) || norm->inputs != 5 || !is_between(f, dy, norm) ||
        mask->origin.role != norm->origin.role || !find_mask(mgpu_expr_of(mask), &clip, &from, &y))
        return;
    struct mgpu_value *dz = mask->input[from], *z = mask->input[y];
    if (!same_shape(dz, dy) || !same_shape(z, dy) || f->changed[dz->id] || f->changed[z->id] ||
        !extend(f, norm, z, &clip, mask->origin.type, norm->origin.type))
        return;
    norm->input[1] = dz;
}

/* ---- Products and convolutions --------------------------------------------------------------- */

/* The product or convolution that y is the whole result of; NULL: none, or not so. */
static struct mgpu_node *ends_product(const struct finish *f, const struct mgpu_value *y,
                                      const struct mgpu_node *reader)
{
    struct mgpu_node *node = y->kind == MGPU_VALUE_RESULT ? y->producer : NULL;
    bool product =
        node && (node->op == &mgpu_op_conv || (node->op == &mgpu_op_matmul && node->inputs == 2));
    return product && node->origin.role == reader->origin.role && is_between(f, y, reader) ? node
                                                                                           : NULL;
}

/* The same where the product's result lies otherwise than the reader wants it. */
static struct mgpu_node *ends_reordered(const struct finish *f, const struct mgpu_value *y,
                                        const struct mgpu_node *reader)
{
    const struct mgpu_node *reorder = y->kind == MGPU_VALUE_RESULT ? y->producer : NULL;
    return reorder && reorder->op == &mgpu_op_reorder && is_between(f, y, reader)
               ? ends_product(f, reorder->input[0], reorder)
               : NULL;
}

/* Whether b is a number for each column of y. */
static bool is_bias(const struct finish *f, const struct mgpu_value *b, const struct mgpu_value *y)
{
    return b->rank > 0 && b->type == y->type && !f->changed[b->id] &&
           mgpu_value_count(b) == b->dims[b->rank - 1].value &&
           b->dims[b->rank - 1].value == y->dims[y->rank - 1].value;
}

/* Nobody makes a node that is one of these already. */
static bool extend_product(const struct finish *f, struct mgpu_node *product,
                           struct mgpu_value *bias, bool relu, const char *second)
{
    union {
        struct mgpu_matmul_attrs matmul;
        struct mgpu_conv_attrs conv;
    } attrs;
    struct mgpu_value *input[3];
    struct mgpu_node with = *product;
    memcpy(&attrs, product->attrs, product->op->attrs_size);
    *(product->op == &mgpu_op_conv ? &attrs.conv.relu : &attrs.matmul.relu) = relu;
    memcpy(input, product->input, sizeof *input * (size_t)product->inputs);
    if (bias)
        input[with.inputs++] = bias;
    with.attrs = &attrs;
    with.input = input;
    return become(f, product, &with, product->origin.type, second);
}

/* ---- GELU ------------------------------------------------------------------------------------ */

static int without_casts(const struct mgpu_expr *e, int k)
{
    while (e->op[k].code == MGPU_X_CAST)
        k = e->op[k].arg[0];
    return k;
}

/* Whether operation k is an input, or the sum of two; their numbers, -1: no second one. */
static bool find_sum(const struct mgpu_expr *e, int k, int input[2])
{
    const struct mgpu_expr_op *op = &e->op[without_casts(e, k)];
    bool adds = op->code == MGPU_X_ADD;
    input[1] = -1;
    for (int i = 0; i <= adds; i++) {
        const struct mgpu_expr_op *x = adds ? &e->op[without_casts(e, op->arg[i])] : op;
        if (x->code != MGPU_X_INPUT)
            return false;
        input[i] = (int)x->integer;
    }
    return true;
}

/* What GELU is taken of: `y`, or y + bias. */
struct gelu_of {
    struct mgpu_value *y, *bias;
};

/* By `node`, if its result is gelu, or dy gelu' (number of the input dy, else -1), and y a value
 * of the result's shape. */
static bool find_gelu(const struct mgpu_node *node, struct gelu_of *of, int *dy)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    int k = without_casts(e, e->count - 1), input[2];
    *dy = -1;
    if (e->op[k].code == MGPU_X_MUL &&
        e->op[without_casts(e, e->op[k].arg[0])].code == MGPU_X_INPUT) {
        *dy = (int)e->op[without_casts(e, e->op[k].arg[0])].integer;
        k = without_casts(e, e->op[k].arg[1]);
    }
    if (e->op[k].code != (*dy < 0 ? MGPU_X_GELU : MGPU_X_GELU_SLOPE) ||
        !find_sum(e, e->op[k].arg[0], input))
        return false;
    int y = same_shape(node->input[input[0]], node->output[0]) ? 0 : 1;
    of->y = input[y] < 0 ? NULL : node->input[input[y]];
    of->bias = input[1 - y] < 0 ? NULL : node->input[input[1 - y]];
    return of->y && same_shape(of->y, node->output[0]) &&
           (*dy < 0 || same_shape(node->input[*dy], node->output[0]));
}

/* Whether those who read y are `node` and nodes that take the derivative of the same. */
static bool only_for_gelu(const struct finish *f, const struct gelu_of *of,
                          const struct mgpu_node *node)
{
    const struct mgpu_readers *r = &f->readers[of->y->id];
    struct gelu_of other;
    int dy;
    for (int k = 0; k < r->count; k++)
        if (r->node[k] != node &&
            (!mgpu_expr_of(r->node[k]) || !find_gelu(r->node[k], &other, &dy) || dy < 0 ||
             r->node[k]->input[dy] == of->y || other.y != of->y || other.bias != of->bias))
            return false;
    return !f->lasts[of->y->id] && !f->changed[of->y->id];
}

/* The node reads `kept` in the sum's stead. */
static void read_kept(struct finish *f, struct mgpu_node *node, struct mgpu_value *kept, int dy)
{
    const struct mgpu_expr *from = mgpu_expr_of(node);
    enum mgpu_dtype type = from->op[from->count - 1].type,
                    inner = type == MGPU_DOUBLE ? MGPU_DOUBLE : MGPU_FLOAT;
    struct mgpu_value *input[] = {node->input[dy], kept};
    struct mgpu_expr e;
    int x[2];
    mgpu_expr_begin(&e, 2);
    for (int i = 0; i < 2; i++)
        x[i] = mgpu_expr_cast(&e, inner, mgpu_expr_input(&e, i, input[i]->type));
    int slope = mgpu_expr_1(&e, MGPU_X_GELU_SLOPE, x[1]);
    int y = mgpu_expr_cast(&e, type, mgpu_expr_2(&e, MGPU_X_MUL, x[0], slope));
    mgpu_set_expr(f->g, node, &e, y, 2, input);
}

/* `product` becomes `with`, where kernels of the same kind run that. */
static bool replace(const struct finish *f, struct mgpu_node *product, const struct mgpu_node *with,
                    const char *second)
{
    const struct mgpu_kernel *now = mgpu_backend_kernel(f->backend, product),
                             *then = mgpu_backend_kernel(f->backend, with);
    if (!now || !then || strcmp(now->name, then->name))
        return false;
    size_t each = sizeof(struct mgpu_value *);
    *product = *with;
    product->input = mgpu_arena_copy(f->g->arena, with->input, each * (size_t)with->inputs);
    product->output = mgpu_arena_copy(f->g->arena, with->output, each * (size_t)with->outputs);
    for (int i = 0; i < with->outputs; i++)
        if (product->output[i]) {
            product->output[i]->producer = product;
            product->output[i]->output = i;
        }
    name_both(f, product, product->origin.type, second);
    return true;
}

/* z = gelu(y + bias) by `node`: the product writes z, and y becomes the sum, where its derivative
 * is taken. */
static void finish_gelu(struct finish *f, struct mgpu_node *node)
{
    struct gelu_of of;
    int dy;
    if (!find_gelu(node, &of, &dy) || dy >= 0 || f->changed[node->output[0]->id])
        return;
    struct mgpu_node *product = of.y->kind == MGPU_VALUE_RESULT ? of.y->producer : NULL;
    if (!product || product->op != &mgpu_op_matmul || product->inputs != 2 ||
        product->origin.role != node->origin.role || !only_for_gelu(f, &of, node) ||
        (of.bias && (!is_bias(f, of.bias, of.y) || !is_before(of.bias, product))))
        return;
    struct mgpu_readers *r = &f->readers[of.y->id];
    struct mgpu_value *input[] = {product->input[0], product->input[1], of.bias};
    struct mgpu_value *output[] = {node->output[0], r->count > 1 ? of.y : NULL};
    struct mgpu_node with = *product;
    with.op = &mgpu_op_matmul_gelu;
    with.inputs = of.bias ? 3 : 2;
    with.input = input;
    with.outputs = 2;
    with.output = output;
    if (!replace(f, product, &with, node->origin.type))
        return;
    for (int k = 0; k < r->count; k++)
        if (r->node[k] != node && find_gelu(r->node[k], &of, &dy))
            read_kept(f, r->node[k], of.y, dy);
}

/* dx = dy gelu'(x) by `node`: the product that makes dy reads x. */
static void finish_gelu_grad(struct finish *f, struct mgpu_node *node)
{
    struct gelu_of of;
    int dy;
    if (!find_gelu(node, &of, &dy) || dy < 0 || of.bias || f->changed[of.y->id] ||
        f->changed[node->output[0]->id])
        return;
    struct mgpu_node *product = ends_product(f, node->input[dy], node);
    if (!product || product->op != &mgpu_op_matmul || !is_before(of.y, product))
        return;
    struct mgpu_value *input[] = {product->input[0], product->input[1], of.y};
    struct mgpu_node with = *product;
    with.op = &mgpu_op_matmul_gelu_grad;
    with.inputs = 3;
    with.input = input;
    with.output = &node->output[0];
    replace(f, product, &with, node->origin.type);
}

/* z = y + bias, max(y + bias, 0) or max(y, 0) by `node`, if a product makes y; a convolution has
 * its bias already, and its result may be reordered to be y: then that of max(y, 0) is. */
static void finish_product(struct finish *f, struct mgpu_node *node)
{
    struct mgpu_value *z = node->output[0];
    struct mgpu_clip clip;
    bool adds;
    if (!is_end(node, &clip, &adds) || clip.high < INFINITY || f->lasts[z->id] || f->changed[z->id])
        return;
    bool relu = clip.low == 0;
    for (int i = 0; i < node->inputs && (relu || clip.low == -INFINITY); i++) {
        struct mgpu_value *y = node->input[i], *bias = adds ? node->input[1 - i] : NULL;
        struct mgpu_node *product = same_shape(y, z) ? ends_product(f, y, node) : NULL;
        if (!product && same_shape(y, z))
            product = ends_reordered(f, y, node);
        if (!product || (bias && (product->op == &mgpu_op_conv || !is_bias(f, bias, y) ||
                                  !is_before(bias, product))))
            continue;
        if (!extend_product(f, product, bias, relu, node->origin.type))
            continue;
        read_instead(f, z, y);
        return;
    }
}

/* ---- Sums of what a product reads ------------------------------------------------------------ */

static const struct mgpu_value *memory_of(const struct mgpu_value *v)
{
    while (v->kind == MGPU_VALUE_RESULT && mgpu_is_view(v->producer))
        v = v->producer->input[0];
    return v;
}

/* Sums over all axes but the last of what the product sums over too, in memory as it is. */
static bool sums_operand(const struct mgpu_node *reduce, const struct mgpu_value *v)
{
    const struct mgpu_reduce_attrs *a = reduce->attrs;
    const struct mgpu_value *x = reduce->input[0];
    return a->kind == MGPU_REDUCE_SUM && a->axes == (INT64_C(1) << (x->rank - 1)) - 1 &&
           memory_of(x) == memory_of(v) && mgpu_value_count(x) == mgpu_value_count(v) &&
           x->dims[x->rank - 1].value == v->dims[1].value && x->type == v->type;
}

/* Whether v is there before `node`, or is a view of what is. */
static bool is_before_or_view(const struct mgpu_value *v, const struct mgpu_node *node)
{
    return is_before(v, node) ||
           (mgpu_is_view(v->producer) && is_before_or_view(v->producer->input[0], node));
}

static bool may_come_before(const struct mgpu_node *product, const struct mgpu_node *node)
{
    return product->id < node->id || (is_before_or_view(product->input[0], node) &&
                                      is_before_or_view(product->input[1], node));
}

/* Puts what stands behind `at`, and the views that it reads, before it. */
static void move_before(struct mgpu_graph *g, struct mgpu_node *node, const struct mgpu_node *at)
{
    for (int i = 0; i < node->inputs; i++)
        if (!is_before(node->input[i], at))
            move_before(g, node->input[i]->producer, at);
    int to = at->id;
    for (int n = node->id; n > to; n--) {
        g->nodes[n] = g->nodes[n - 1];
        g->nodes[n]->id = n;
    }
    g->nodes[to] = node;
    node->id = to;
}

/* The product gives the sums from now on, where kernels of the same kind run it then. */
static bool take_sums(struct finish *f, struct mgpu_node *product, struct mgpu_node *reduce,
                      enum mgpu_matmul_sums which)
{
    struct mgpu_matmul_attrs attrs = *(const struct mgpu_matmul_attrs *)product->attrs;
    struct mgpu_value *output[] = {product->output[0], reduce->output[0]};
    struct mgpu_node with = *product;
    attrs.sums = which;
    with.op = &mgpu_op_matmul_sums;
    with.attrs = &attrs;
    with.outputs = 2;
    with.output = output;
    if (!replace(f, product, &with, reduce->origin.type))
        return false;
    product->attrs = mgpu_arena_copy(f->g->arena, &attrs, sizeof attrs);
    if (product->id > reduce->id)
        move_before(f->g, product, reduce);
    return true;
}

static bool finish_sums(struct finish *f, struct mgpu_node *product, struct mgpu_node *reduce)
{
    const struct mgpu_matmul_attrs *a = product->attrs;
    struct mgpu_value *sums = reduce->output[0];
    if (product->op != &mgpu_op_matmul || product->inputs > 2 || a->relu ||
        product->origin.role != reduce->origin.role || product->output[0]->rank != 2 ||
        sums->type != product->output[0]->type || f->changed[product->input[0]->id] ||
        f->changed[product->input[1]->id] || !may_come_before(product, reduce))
        return false;
    return (a->transpose_a && sums_operand(reduce, product->input[0]) &&
            take_sums(f, product, reduce, MGPU_SUMS_A)) ||
           (!a->transpose_b && sums_operand(reduce, product->input[1]) &&
            take_sums(f, product, reduce, MGPU_SUMS_B));
}

static void find_product(struct finish *f, struct mgpu_node *reduce)
{
    bool found = reduce->output[0]->producer != reduce;
    for (int n = 0; n < f->g->node_count && !found; n++)
        found = finish_sums(f, f->g->nodes[n], reduce);
}

void mgpu_finish_products(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    struct finish f = begin(g, backend);
    for (int n = 0; n < g->node_count; n++)
        if (mgpu_expr_of(g->nodes[n])) {
            finish_product(&f, g->nodes[n]);
            finish_gelu(&f, g->nodes[n]);
            finish_gelu_grad(&f, g->nodes[n]);
        } else if (g->nodes[n]->op == &mgpu_op_reduce)
            find_product(&f, g->nodes[n]);
    end(&f);
    mgpu_graph_prune(g);
}

void mgpu_finish_norms(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    struct finish f = begin(g, backend);
    for (int n = 0; n < g->node_count; n++)
        if (mgpu_expr_of(g->nodes[n]))
            finish_forward(&f, g->nodes[n]);
        else if (g->nodes[n]->op == &mgpu_op_batch_norm_grad)
            finish_backward(&f, g->nodes[n]);
    end(&f);
}
