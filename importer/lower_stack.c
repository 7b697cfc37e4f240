/* Values of the rounds of a loop, put together.
 *
 * A loop over the samples of a batch (an EmbeddingBag is exported as one) makes one small value a
 * sample, cut out of something that holds the samples one after the other. As they stand such
 * values are as many as the batch has samples, and their concatenation mixes samples. Here the
 * rounds are followed backwards together: what is the same operator in every round becomes one
 * operator with the samples in front, down to the cuts, which together are the whole. */
#include "importer/lower_sequence.h"

#include "runtime/ops/dims.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/pointwise.h"
#include "runtime/ops/reduce.h"

#include <string.h>

enum { MAX_DEPTH = 200 };

struct stacking {
    struct mgpu_lower *l;
    struct mgpu_dim n; /* rounds */
    int depth;
    struct mgpu_names *done; /* by the first round's value: a value may be read many times */
};

struct stacked {
    struct mgpu_value *const *v;
    struct mgpu_value *y;
};

static struct mgpu_value *stack(struct stacking *s, struct mgpu_value *const *v);

struct mgpu_value *mgpu_lower_move_first(struct mgpu_lower *l, struct mgpu_value *a, int axis)
{
    int perm[MGPU_MAX_RANK];
    for (int i = 0; a && i < a->rank; i++)
        perm[i] = i < axis ? i + 1 : i == axis ? 0 : i;
    return mgpu_transpose(l->g, a, perm);
}

/* The axis to the front. */
static struct mgpu_value *to_front(struct stacking *s, struct mgpu_value *a, int axis)
{
    int perm[MGPU_MAX_RANK];
    for (int i = 0; a && i < a->rank; i++)
        perm[i] = i == 0 ? axis : i - (i <= axis);
    return mgpu_transpose(s->l->g, a, perm);
}

/* ---- Alike in all rounds --------------------------------------------------------------------- */

static bool one_value(const struct stacking *s, struct mgpu_value *const *v)
{
    for (int64_t i = 1; i < s->n.value; i++)
        if (v[i] != v[0])
            return false;
    return true;
}

static bool one_shape(const struct stacking *s, struct mgpu_value *const *v)
{
    for (int64_t i = 1; i < s->n.value; i++)
        if (v[i]->type != v[0]->type || v[i]->rank != v[0]->rank ||
            !mgpu_dims_equal(v[0]->rank, v[i]->dims, v[0]->dims))
            return false;
    return true;
}

static bool all_constant(const struct stacking *s, struct mgpu_value *const *v)
{
    for (int64_t i = 0; i < s->n.value; i++)
        if (v[i]->kind != MGPU_VALUE_CONSTANT)
            return false;
    return true;
}

static bool same_size(struct mgpu_dim a, struct mgpu_dim b)
{
    return a.value == b.value;
}

/* One operator with equal attributes; a slice may start elsewhere. */
static bool one_operator(const struct stacking *s, struct mgpu_value *const *v)
{
    for (int64_t i = 0; i < s->n.value; i++) {
        const struct mgpu_node *a = v[0]->producer, *b = v[i]->producer;
        if (v[i]->kind != MGPU_VALUE_RESULT || a->op != b->op || a->inputs != b->inputs ||
            v[i]->output != 0 || (a->op != &mgpu_op_slice && !mgpu_attrs_same(a, b, same_size)))
            return false;
    }
    return true;
}

/* The number by which `v` divides its producer's first input; 0: it is no such quotient. */
static double divisor(const struct mgpu_value *v)
{
    const struct mgpu_node *node = v->producer;
    if (v->kind != MGPU_VALUE_RESULT || node->op != &mgpu_op_pointwise)
        return 0;
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)node->attrs)->expr;
    const struct mgpu_expr_op *last = &e->op[e->count - 1];
    if (last->code != MGPU_X_DIV || !mgpu_is_float(last->type))
        return 0;
    const struct mgpu_expr_op *above = &e->op[last->arg[0]], *below = &e->op[last->arg[1]];
    if (above->code != MGPU_X_INPUT || above->integer != 0)
        return 0;
    if (below->code != MGPU_X_INPUT)
        return below->code == MGPU_X_CONST ? below->number : 0;
    const struct mgpu_value *d = node->input[below->integer];
    bool known = d->kind == MGPU_VALUE_CONSTANT && mgpu_value_count(d) == 1;
    return known ? mgpu_get_double(d->data, d->type, 0) : 0;
}

/* A sum divided by how many were summed, as the mean that it is; else `v`. */
static struct mgpu_value *as_mean(struct stacking *s, struct mgpu_value *v)
{
    double count = divisor(v);
    struct mgpu_value *sum = count > 0 ? v->producer->input[0] : NULL;
    if (!sum || sum->kind != MGPU_VALUE_RESULT || sum->producer->op != &mgpu_op_reduce ||
        !mgpu_dims_equal(v->rank, v->dims, sum->dims) || sum->rank != v->rank)
        return v;
    const struct mgpu_reduce_attrs *a = sum->producer->attrs;
    struct mgpu_value *x = sum->producer->input[0];
    if (a->kind != MGPU_REDUCE_SUM ||
        count * (double)mgpu_value_count(sum) != (double)mgpu_value_count(x))
        return v;
    return mgpu_reduce(s->l->g, MGPU_REDUCE_MEAN, x, (unsigned)a->axes, a->keep);
}

/* The rounds as one operator each; NULL: they differ. A loop that treats its last round apart
 * (dynamo's EmbeddingBag) may write the same mean in two ways. */
static struct mgpu_value *const *as_one_operator(struct stacking *s, struct mgpu_value *const *v)
{
    if (one_operator(s, v))
        return v;
    struct mgpu_value **mean = MGPU_NEW_ARRAY(s->l->g->arena, struct mgpu_value *, s->n.value);
    for (int64_t k = 0; k < s->n.value; k++)
        if (!(mean[k] = as_mean(s, v[k])))
            return NULL;
    return one_operator(s, mean) ? mean : NULL;
}

/* Input i of the rounds' operators. */
static struct mgpu_value **inputs_of(struct stacking *s, struct mgpu_value *const *v, int i)
{
    struct mgpu_value **in = MGPU_NEW_ARRAY(s->l->g->arena, struct mgpu_value *, s->n.value);
    for (int64_t k = 0; k < s->n.value; k++)
        in[k] = v[k]->producer->input[i];
    return in;
}

/* A size of one round: with one sample in the batch, it may still be counted in batches. */
static struct mgpu_dim own_size(const struct stacking *s, struct mgpu_dim d)
{
    if (d.opaque)
        return mgpu_dim_const(d.value);
    return mgpu_dim_has(d, MGPU_BATCH) ? mgpu_dim_div(d, s->n) : d;
}

/* [n, sizes of v] */
static int stacked_dims(const struct stacking *s, const struct mgpu_value *v, struct mgpu_dim *dims)
{
    dims[0] = s->n;
    for (int i = 0; i < v->rank; i++)
        dims[i + 1] = own_size(s, v->dims[i]);
    return v->rank + 1;
}

/* ---- What the rounds cut out ----------------------------------------------------------------- */

/* x, whose axis holds n equal parts, one a round, as [n, part]. */
static struct mgpu_value *parts_of(struct stacking *s, struct mgpu_value *x, int axis)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_dim part = mgpu_dim_div(x->dims[axis], s->n);
    if (x->rank == MGPU_MAX_RANK || part.value * s->n.value != x->dims[axis].value ||
        mgpu_dim_has(part, MGPU_BATCH))
        return NULL;
    for (int i = 0; i <= x->rank; i++)
        dims[i] = i < axis ? x->dims[i] : i == axis ? s->n : i == axis + 1 ? part : x->dims[i - 1];
    return to_front(s, mgpu_reshape(s->l->g, x, x->rank + 1, dims), axis);
}

static int batch_axis(const struct mgpu_value *v)
{
    int axis = mgpu_dims_batch_axis(v->rank, v->dims);
    return axis >= 0 ? axis : -1;
}

/* Slices of one tensor that cut its samples' axis into n parts, in order. */
static struct mgpu_value *stack_slices(struct stacking *s, struct mgpu_value *const *v)
{
    struct mgpu_value *x = v[0]->producer->input[0];
    int axis = batch_axis(x);
    for (int64_t k = 0; k < s->n.value; k++) {
        const struct mgpu_slice_attrs *a = v[k]->producer->attrs;
        if (v[k]->producer->input[0] != x || axis < 0)
            return NULL;
        for (int i = 0; i < x->rank; i++) {
            int64_t start = i == axis ? k * v[0]->dims[i].value : 0;
            int64_t size = i == axis ? x->dims[i].value / s->n.value : x->dims[i].value;
            if (a->start[i] != start || a->step[i] != 1 || v[k]->dims[i].value != size)
                return NULL;
        }
    }
    return parts_of(s, x, axis);
}

/* Whether the rounds' numbers are 0, 1, 2 ... */
static bool counts_up(const struct stacking *s, struct mgpu_value *const *v)
{
    for (int64_t k = 0; k < s->n.value; k++)
        if (mgpu_value_count(v[k]) != 1 || mgpu_get_int(v[k]->data, v[k]->type, 0) != k)
            return false;
    return true;
}

/* Rows of one table by the rounds' indices; or round k takes row k of the samples. */
static struct mgpu_value *stack_gathers(struct stacking *s, struct mgpu_value *const *v)
{
    struct mgpu_value *x = v[0]->producer->input[0], **index = inputs_of(s, v, 1);
    int axis = (int)((const struct mgpu_gather_attrs *)v[0]->producer->attrs)->axis;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!one_value(s, inputs_of(s, v, 0)))
        return NULL;
    if (batch_axis(x) < 0)
        return to_front(s, mgpu_gather(s->l->g, x, stack(s, index), axis), axis);
    if (batch_axis(x) != axis || !all_constant(s, index) || !counts_up(s, index))
        return NULL;
    struct mgpu_value *rows = parts_of(s, x, axis);
    if (!rows || rows->dims[axis + 1].value != 1)
        return NULL;
    int rank = stacked_dims(s, v[0], dims);
    return mgpu_reshape(s->l->g, rows, rank, dims);
}

/* ---- Operators ------------------------------------------------------------------------------- */

/* An operand that broadcasts: the same in all rounds as it is, else with ones behind the n. */
static struct mgpu_value *operand(struct stacking *s, struct mgpu_value *const *v, int rank)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    bool one = s->n.value > 1 ? one_value(s, v) : v[0]->kind != MGPU_VALUE_RESULT;
    if (one && batch_axis(v[0]) < 0)
        return v[0];
    struct mgpu_value *y = stack(s, v);
    if (!y)
        return NULL;
    int extra = rank + 1 - y->rank;
    dims[0] = y->dims[0];
    for (int i = 1; i <= rank; i++)
        dims[i] = i <= extra ? mgpu_dim_const(1) : y->dims[i - extra];
    return mgpu_reshape(s->l->g, y, rank + 1, dims);
}

static struct mgpu_value *stack_operands(struct stacking *s, struct mgpu_value *const *v)
{
    const struct mgpu_node *node = v[0]->producer;
    struct mgpu_value *in[MGPU_MAX_INPUTS], *y;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; i < node->inputs; i++)
        if (!(in[i] = operand(s, inputs_of(s, v, i), v[0]->rank)))
            return NULL;
    y = mgpu_build1(s->l->g, node->op, node->attrs, node->inputs, in);
    if (!y || y->rank > v[0]->rank)
        return y;
    int rank = stacked_dims(s, v[0], dims); /* no operand differs from round to round */
    return mgpu_broadcast(s->l->g, y, rank, dims);
}

static struct mgpu_value *stack_moved(struct stacking *s, struct mgpu_value *const *v)
{
    const struct mgpu_node *node = v[0]->producer;
    struct mgpu_value *x = stack(s, inputs_of(s, v, 0));
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!x)
        return NULL;
    if (node->op == &mgpu_op_reduce) {
        const struct mgpu_reduce_attrs *a = node->attrs;
        return mgpu_reduce(s->l->g, (enum mgpu_reduce_kind)a->kind, x, (unsigned)a->axes << 1,
                           a->keep);
    }
    int perm[MGPU_MAX_RANK] = {0}, rank = stacked_dims(s, v[0], dims);
    if (node->op == &mgpu_op_reshape)
        return mgpu_reshape(s->l->g, x, rank, dims);
    for (int i = 1; i < rank; i++)
        perm[i] = 1 + (int)((const struct mgpu_transpose_attrs *)node->attrs)->perm[i - 1];
    return mgpu_transpose(s->l->g, x, perm);
}

static struct mgpu_value *stack_constants(struct stacking *s, struct mgpu_value *const *v)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int rank = stacked_dims(s, v[0], dims);
    return mgpu_reshape(s->l->g, mgpu_concat(s->l->g, 0, (int)s->n.value, v), rank, dims);
}

static struct mgpu_value *stack_operators(struct stacking *s, struct mgpu_value *const *v)
{
    const struct mgpu_op *op = v[0]->producer->op;
    if (op == &mgpu_op_slice)
        return stack_slices(s, v);
    if (op == &mgpu_op_gather)
        return stack_gathers(s, v);
    if (op == &mgpu_op_pointwise || op == &mgpu_op_matmul)
        return stack_operands(s, v);
    if (op == &mgpu_op_reduce || op == &mgpu_op_reshape || op == &mgpu_op_transpose)
        return stack_moved(s, v);
    return NULL;
}

static struct mgpu_value *stack_new(struct stacking *s, struct mgpu_value *const *v)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    struct mgpu_value *const *alike, *y = NULL;
    if (s->depth == MAX_DEPTH || v[0]->rank == MGPU_MAX_RANK || !one_shape(s, v))
        return NULL;
    s->depth++;
    int rank = stacked_dims(s, v[0], dims), axis = batch_axis(v[0]);
    if (s->n.value == 1 && axis >= 0) /* all of a batch of one sample */
        y = parts_of(s, v[0], axis);
    else if (all_constant(s, v) && v[0]->rank > 0)
        y = stack_constants(s, v);
    else if ((alike = as_one_operator(s, v)))
        y = stack_operators(s, alike);
    if (!y && one_value(s, v) && axis < 0 && v[0]->kind != MGPU_VALUE_CONSTANT)
        y = mgpu_broadcast(s->l->g, v[0], rank, dims);
    s->depth--;
    return y;
}

/* [n, ...] of the rounds' values; NULL: they cannot be put together. */
static struct mgpu_value *stack(struct stacking *s, struct mgpu_value *const *v)
{
    struct mgpu_arena *arena = s->l->g->arena;
    const char *key = mgpu_arena_format(arena, "%p", (void *)v[0]);
    size_t size = sizeof *v * (size_t)s->n.value;
    struct stacked *known = mgpu_names_get(s->done, key);
    if (known && !memcmp(known->v, v, size))
        return known->y;
    struct stacked *fresh = MGPU_NEW(arena, struct stacked);
    fresh->v = mgpu_arena_copy(arena, v, size);
    fresh->y = stack_new(s, v);
    mgpu_names_set(s->done, key, fresh);
    return fresh->y;
}

/* ---- The entry ------------------------------------------------------------------------------- */

static struct mgpu_value *side_by_side(struct mgpu_lower *l, struct mgpu_dim count,
                                       struct mgpu_value *const *value)
{
    struct mgpu_dim dims[MGPU_MAX_RANK] = {mgpu_dim_const(1)};
    struct mgpu_value **row = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, count.value);
    for (int64_t k = 0; k < count.value; k++) {
        for (int i = 0; i < value[k]->rank && value[k]->rank < MGPU_MAX_RANK; i++)
            dims[i + 1] = value[k]->dims[i];
        if (!(row[k] = mgpu_reshape(l->g, value[k], value[k]->rank + 1, dims)))
            return NULL;
    }
    return mgpu_concat(l->g, 0, (int)count.value, row);
}

struct mgpu_value *mgpu_lower_stack(struct mgpu_lower *l, struct mgpu_dim count,
                                    struct mgpu_value *const *value)
{
    struct stacking s = {.l = l, .n = count, .done = mgpu_names_new(l->g->arena)};
    if (count.value == 0)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "no round is made, so the shape is not known");
    if (!mgpu_dim_has(count, MGPU_BATCH))
        return side_by_side(l, count, value);
    /* Where only a condition ends the loop: as many rounds as samples are taken for one each; the
     * cuts have to agree. */
    if (count.opaque && count.value == l->g->batch)
        s.n = mgpu_dim_symbol(MGPU_BATCH, count.value);
    struct mgpu_value *y = s.n.opaque ? NULL : stack(&s, value);
    if (y)
        return y;
    mgpu_graph_whole(l->g);
    return side_by_side(l, count, value);
}
