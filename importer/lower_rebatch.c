/* Files that were exported with a fixed batch, trained with another one.
 *
 * The example's batch size stands as a number in shapes, and as the length of constants that were
 * made for it. Where a value that has the batch is seen as a shape of plain numbers, the place of
 * the batch in that shape follows from the order of the elements; where a constant meets the batch
 * it has to have one row a sample, and if these are equal, one stands for all. What cannot be told
 * so is refused where it does not fit. */
#include "importer/lower_walk.h"

#include "runtime/graph/alike.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/movement.h"

#include <string.h>

static void tell(struct mgpu_lower *l)
{
    if (!l->walk->rebatched++)
        l->walk->rebatched_at = l->node;
}

/* The sizes that the shape had for the example: its batch in place of this one, 0 and -1 filled in.
 * False: they are not plain numbers. */
static bool example_sizes(const struct mgpu_value *x, bool zero, int64_t example, int rank,
                          const int64_t *sizes, const struct mgpu_dim *dims, int64_t *out)
{
    int batch = mgpu_dims_batch_axis(x->rank, x->dims), open = -1;
    int64_t known = 1, total = example;
    for (int i = 0; i < x->rank; i++)
        total *= i == batch ? x->dims[i].factor : x->dims[i].value;
    for (int i = 0; i < rank; i++) {
        bool copied = sizes[i] == 0 && !zero, open_here = sizes[i] == -1;
        if ((copied || open_here) ? !example || (copied && i >= x->rank)
                                  : sizes[i] < 1 || !mgpu_dim_is_const(dims[i]))
            return false;
        out[i] = !copied ? sizes[i] : i == batch ? example * x->dims[i].factor : x->dims[i].value;
        if (open_here)
            open = i;
        else if (__builtin_mul_overflow(known, out[i], &known))
            return false;
    }
    if (open >= 0)
        out[open] = known ? total / known : 0;
    return true;
}

/* The axis of the shape that holds the samples in the order that x has them in; -1: none. */
static int samples_axis(const struct mgpu_value *x, int64_t example, int rank, const int64_t *sizes)
{
    int batch = mgpu_dims_batch_axis(x->rank, x->dims), found = -1;
    int64_t outer = mgpu_dims_product(batch, x->dims).value, before = 1;
    for (int i = 0; i < rank; before *= sizes[i++])
        if (before == outer && sizes[i] % example == 0 && (found < 0 || i == batch))
            found = i;
    return found;
}

void mgpu_rebatch_shape(struct mgpu_lower *l, const struct mgpu_value *x, bool zero, int rank,
                        const int64_t *sizes, struct mgpu_dim *dims)
{
    int batch = mgpu_dims_batch_axis(x->rank, x->dims);
    int64_t example = l->walk->example, was[MGPU_MAX_RANK], total = 1, each = 1;
    if (batch < 0 || !mgpu_value_count(x) ||
        !example_sizes(x, zero, example, rank, sizes, dims, was))
        return;
    for (int i = 0; i < x->rank; i++)
        each *= i == batch ? x->dims[i].value / l->g->batch : x->dims[i].value;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(total, was[i], &total))
            return;
    if (total <= 0 || total % each || (example && total / each != example))
        return;
    int axis = samples_axis(x, total / each, rank, was);
    if (axis < 0)
        return;
    for (int i = 0; i < rank; i++)
        dims[i] = mgpu_dim_const(was[i]);
    l->walk->example = total / each;
    dims[axis] = mgpu_dim_mul(mgpu_dim_symbol(MGPU_BATCH, l->g->batch),
                              mgpu_dim_const(was[axis] / l->walk->example));
    tell(l);
}

/* Whether the rows along an axis, one for each sample of the example, are the same. */
static bool repeats(const struct mgpu_lower *l, const struct mgpu_value *v, int axis)
{
    if (v->kind == MGPU_VALUE_CONSTANT)
        return mgpu_same_for_samples(v, axis, l->walk->example);
    if (v->kind != MGPU_VALUE_RESULT || v->producer->op != &mgpu_op_expand)
        return false;
    const struct mgpu_value *from = v->producer->input[0];
    int at = axis - (v->rank - from->rank);
    return at < 0 || from->dims[at].value == 1;
}

struct mgpu_value *mgpu_rebatch_rows(struct mgpu_lower *l, struct mgpu_value *v, int axis)
{
    if (l->walk->example < 2 || axis < 0 || v->dims[axis].value != l->walk->example ||
        !mgpu_dim_is_const(v->dims[axis]) || !repeats(l, v, axis))
        return v;
    tell(l);
    return mgpu_slice_axis(l->g, v, axis, 0, mgpu_dim_const(1));
}

/* ---- Operands -------------------------------------------------------------------------------- */

static bool is_one_of(const char *type, const char *const *types)
{
    for (; *types; types++)
        if (!strcmp(type, *types))
            return true;
    return false;
}

/* Where the batch is among the operands, counted from the last axis; 0: nowhere. */
static int batch_from_end(const struct mgpu_lower *l, int count, struct mgpu_dim *size)
{
    for (int i = 0; i < count; i++) {
        const struct mgpu_value *v = l->in[i];
        int axis = v ? mgpu_dims_batch_axis(v->rank, v->dims) : -1;
        if (axis < 0 || v->dims[axis].factor != 1)
            continue;
        *size = v->dims[axis];
        return v->rank - axis;
    }
    return 0;
}

static struct mgpu_value *spread(struct mgpu_lower *l, struct mgpu_value *v, int axis,
                                 struct mgpu_dim size)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; v && i < v->rank; i++)
        dims[i] = i == axis ? size : v->dims[i];
    return v ? mgpu_broadcast(l->g, v, v->rank, dims) : NULL;
}

/* Of a file that was exported with one sample: a row that is joined to those of samples along
 * another axis (a class token) fits no other batch unless each has it. */
static bool is_one_row(struct mgpu_lower *l, const struct mgpu_value *v, int axis)
{
    int64_t along = mgpu_onnx_int(l->node, "axis", 0);
    bool one = l->walk->example == 1 && v && axis >= 0 && v->dims[axis].value == 1 &&
               mgpu_dims_batch_axis(v->rank, v->dims) < 0 &&
               axis != (along < 0 ? along + v->rank : along);
    if (one)
        tell(l);
    return one;
}

int mgpu_rebatch_operands(struct mgpu_lower *l)
{
    static const char *const types[] = {"Add",
                                        "Sub",
                                        "Mul",
                                        "Div",
                                        "Pow",
                                        "Max",
                                        "Min",
                                        "Sum",
                                        "Mean",
                                        "Where",
                                        "And",
                                        "Or",
                                        "Equal",
                                        "Less",
                                        "LessOrEqual",
                                        "Greater",
                                        "GreaterOrEqual",
                                        "Concat",
                                        NULL};
    int most = (int)(sizeof l->in / sizeof *l->in);
    int count = l->node->inputs < most ? l->node->inputs : most;
    bool joins = !strcmp(l->node->type, "Concat");
    struct mgpu_dim size;
    int from_end;
    if (l->walk->example < (joins ? 1 : 2) || !is_one_of(l->node->type, types) ||
        !(from_end = batch_from_end(l, count, &size)))
        return 0;
    for (int i = 0; i < count; i++) {
        struct mgpu_value *v = l->in[i];
        int axis = v ? v->rank - from_end : -1;
        struct mgpu_value *one = v ? mgpu_rebatch_rows(l, v, axis) : NULL;
        if (one != v || (joins && is_one_row(l, v, axis)))
            l->in[i] = joins ? spread(l, one, axis, size) : one;
        if (v && !l->in[i])
            return mgpu_build_error();
    }
    return 0;
}
