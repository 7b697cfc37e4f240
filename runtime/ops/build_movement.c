/* Builders of the movement operators. What would change nothing is not appended; "nothing" includes
 * the monomials, because a size of 1 and a batch that happens to be 1 are not the same. */
#include "runtime/ops/build.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/movement.h"

struct mgpu_value *mgpu_reshape(struct mgpu_graph *g, struct mgpu_value *a, int rank,
                                const struct mgpu_dim *dims)
{
    if (!a || (a->rank == rank && mgpu_dims_same(rank, a->dims, dims)))
        return a;
    if (rank < 0 || rank > MGPU_MAX_RANK)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "rank %d is more than %d", rank, MGPU_MAX_RANK);
    struct mgpu_shape_attrs attrs = {.rank = rank, .dims = mgpu_dims_copy(g, rank, dims)};
    return mgpu_build1(g, &mgpu_op_reshape, &attrs, 1, &a);
}

struct mgpu_value *mgpu_transpose(struct mgpu_graph *g, struct mgpu_value *a, const int *perm)
{
    struct mgpu_transpose_attrs attrs = {{0}};
    bool identity = true;
    for (int i = 0; a && i < a->rank; i++) {
        attrs.perm[i] = perm[i];
        identity = identity && perm[i] == i;
    }
    return !a || identity ? a : mgpu_build1(g, &mgpu_op_transpose, &attrs, 1, &a);
}

struct mgpu_value *mgpu_broadcast(struct mgpu_graph *g, struct mgpu_value *a, int rank,
                                  const struct mgpu_dim *dims)
{
    if (!a || (a->rank == rank && mgpu_dims_same(rank, a->dims, dims)))
        return a;
    if (rank < 0 || rank > MGPU_MAX_RANK)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "rank %d is more than %d", rank, MGPU_MAX_RANK);
    struct mgpu_shape_attrs attrs = {.rank = rank, .dims = mgpu_dims_copy(g, rank, dims)};
    return mgpu_build1(g, &mgpu_op_expand, &attrs, 1, &a);
}

struct mgpu_value *mgpu_slice(struct mgpu_graph *g, struct mgpu_value *a, const int64_t *start,
                              const int64_t *step, const struct mgpu_dim *size)
{
    struct mgpu_slice_attrs attrs = {.size = NULL};
    bool whole = true;
    for (int i = 0; a && i < a->rank; i++) {
        attrs.start[i] = start[i];
        attrs.step[i] = step[i];
        whole = whole && start[i] == 0 && step[i] == 1 && mgpu_dim_same(size[i], a->dims[i]);
    }
    if (!a || whole)
        return a;
    attrs.size = mgpu_dims_copy(g, a->rank, size);
    return mgpu_build1(g, &mgpu_op_slice, &attrs, 1, &a);
}

struct mgpu_value *mgpu_slice_axis(struct mgpu_graph *g, struct mgpu_value *a, int axis,
                                   int64_t start, struct mgpu_dim size)
{
    int64_t starts[MGPU_MAX_RANK] = {0}, steps[MGPU_MAX_RANK];
    struct mgpu_dim sizes[MGPU_MAX_RANK];
    if (!a)
        return NULL;
    if (axis < 0 || axis >= a->rank)
        return mgpu_build_fail(MGPU_EINVALID, "slice of axis %d of a tensor of rank %d", axis,
                               a->rank);
    for (int i = 0; i < a->rank; i++) {
        steps[i] = 1;
        sizes[i] = a->dims[i];
    }
    starts[axis] = start;
    sizes[axis] = size;
    return mgpu_slice(g, a, starts, steps, sizes);
}

struct mgpu_value *mgpu_concat(struct mgpu_graph *g, int axis, int count,
                               struct mgpu_value *const *parts)
{
    struct mgpu_concat_attrs attrs = {.axis = axis};
    for (int i = 0; i < count; i++)
        if (!parts[i])
            return NULL;
    return count == 1 ? parts[0] : mgpu_build1(g, &mgpu_op_concat, &attrs, count, parts);
}
