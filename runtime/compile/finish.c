/* Batch normalisation with what stands right behind it, and its gradient with what stands before:
 *
 *     y = batch_norm(x), z = max(y + more, 0)          one node that writes z
 *     dy = where(0 < z, dz, 0), batch_norm_grad(dy)    one node that reads dz and z
 *
 * where nothing else reads y or dy.
 */
#include "runtime/compile/fuse.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pointwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct finish {
    struct mgpu_graph *g;
    const struct mgpu_backend *backend;
    struct mgpu_readers *readers;
    bool *lasts, *changed;
};

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
    bool same = a->type == b->type && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++)
        same = a->dims[i].value == b->dims[i].value;
    return same;
}

/* Norm with one more input and these limits, where the kernel that runs it now runs it still. The
 * type names both nodes. */
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
    if (mgpu_backend_kernel(f->backend, &with) != mgpu_backend_kernel(f->backend, norm))
        return false;
    norm->attrs = mgpu_arena_copy(f->g->arena, &attrs, sizeof attrs);
    norm->inputs = with.inputs;
    norm->input = mgpu_arena_copy(f->g->arena, input, sizeof *input * (size_t)with.inputs);
    norm->origin.type = mgpu_arena_format(f->g->arena, "%s+%s", first, second);
    return true;
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

/* z = clip(a) or clip(a + b) by `node`, if a norm makes a. Zero must stay zero: so it is behind the
 * last channel where channels lie in blocks. */
static void finish_forward(struct finish *f, struct mgpu_node *node)
{
    const struct mgpu_expr *e = mgpu_expr_of(node);
    struct mgpu_value *z = node->output[0];
    struct mgpu_clip clip;
    int k = mgpu_find_clip(e, &clip);
    bool adds = e->op[k].code == MGPU_X_ADD && node->inputs == 2 && k > 1 &&
                e->op[e->op[k].arg[0]].code == MGPU_X_INPUT &&
                e->op[e->op[k].arg[1]].code == MGPU_X_INPUT;
    bool clips = e->op[k].code == MGPU_X_INPUT && node->inputs == 1 && k != e->count - 1;
    if ((!adds && !clips) || clip.low > 0 || clip.high < 0 || f->lasts[z->id] || f->changed[z->id])
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

void mgpu_finish_norms(struct mgpu_graph *g, const struct mgpu_backend *backend)
{
    struct finish f = {.g = g,
                       .backend = backend,
                       .readers = mgpu_readers_of(g),
                       .lasts = mgpu_lasting_values(g),
                       .changed = mgpu_communicated_values(g)};
    for (int n = 0; n < g->node_count; n++)
        if (mgpu_expr_of(g->nodes[n]))
            finish_forward(&f, g->nodes[n]);
        else if (g->nodes[n]->op == &mgpu_op_batch_norm_grad)
            finish_backward(&f, g->nodes[n]);
    mgpu_readers_free(f.readers, g);
    free(f.lasts);
    free(f.changed);
}
