/* Gathers by a table in which every sample reads its own rows.
 *
 * Exporters number samples and write a sample's place into the indices: mask[n, j] as GatherND of
 * pairs (n, j), as_strided and flattened lookups as Gather of n * length + j. Such a gather looks
 * as if it mixed samples. Where each index of sample n lies in the rows of sample n it is a gather
 * inside each sample, with the place taken off. */
#include "importer/lower.h"
#include "runtime/ops/gather.h"

/* The samples in front of a shape: [N*each, ...]. 0: none, or not in front. */
static int64_t rows_each(const struct mgpu_lower *l, const struct mgpu_value *v)
{
    if (v->rank == 0 || v->dims[0].opaque || v->dims[0].power[MGPU_BATCH] != 1 || l->g->batch <= 0)
        return 0;
    return v->dims[0].value / l->g->batch;
}

/* v, [N*each, ...], as [N, each, ...]; with `each` 1, the second axis only where it is asked for.
 */
static struct mgpu_value *by_sample(struct mgpu_lower *l, struct mgpu_value *v, int64_t each,
                                    bool axis)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    int rank = v->rank + axis;
    if (rank > MGPU_MAX_RANK)
        return NULL;
    dims[0] = mgpu_dim_div(v->dims[0], mgpu_dim_const(each));
    if (axis)
        dims[1] = mgpu_dim_const(each);
    for (int i = 1; i < v->rank; i++)
        dims[i + axis] = v->dims[i];
    return mgpu_reshape(l->g, v, rank, dims);
}

/* Indices [N*rows, ..., depth] with the place taken off their first part: [N, rows, ..., depth], or
 * one less deep where that part says nothing more. NULL: an index leaves its sample. */
static struct mgpu_value *inside(struct mgpu_lower *l, struct mgpu_value *indices, int64_t rows,
                                 int64_t each, bool keep)
{
    int64_t depth = indices->dims[indices->rank - 1].value, count = mgpu_value_count(indices);
    int64_t tuples = count / depth, per = tuples / l->g->batch, left = depth - !keep;
    int64_t *out = MGPU_NEW_ARRAY(l->g->arena, int64_t, tuples * left);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int64_t i = 0; i < tuples; i++) {
        int64_t at = mgpu_get_int(indices->data, indices->type, i * depth);
        at = (at < 0 ? at + each * l->g->batch : at) - i / per * each;
        if (at < 0 || at >= each)
            return NULL;
        for (int64_t k = 0; k < left; k++)
            out[i * left + k] =
                keep && k == 0 ? at
                               : mgpu_get_int(indices->data, indices->type, i * depth + k + !keep);
    }
    dims[0] = mgpu_dim_div(indices->dims[0], mgpu_dim_const(rows));
    dims[1] = mgpu_dim_const(rows);
    for (int i = 1; i < indices->rank; i++)
        dims[i + 1] = indices->dims[i];
    dims[indices->rank] = mgpu_dim_const(left);
    struct mgpu_value *made =
        mgpu_graph_constant(l->g, NULL, MGPU_INT64, indices->rank + 1, dims, out, NULL);
    made->tainted = indices->tainted;
    return made;
}

struct mgpu_value *mgpu_lower_own_rows(struct mgpu_lower *l, struct mgpu_value *x,
                                       struct mgpu_value *indices)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!x || !indices)
        return NULL;
    int64_t each = rows_each(l, x), rows = rows_each(l, indices);
    if (!each || !rows || x->kind == MGPU_VALUE_CONSTANT || indices->kind != MGPU_VALUE_CONSTANT ||
        indices->rank < 2 || indices->rank == MGPU_MAX_RANK ||
        indices->dims[indices->rank - 1].value < 1 || !mgpu_value_count(indices))
        return NULL;
    bool keep = each > 1 || indices->dims[indices->rank - 1].value == 1;
    struct mgpu_value *in = inside(l, indices, rows, each, keep);
    struct mgpu_value *y = in ? by_sample(l, x, each, keep) : NULL;
    if (!y)
        return NULL;
    y = mgpu_gather_nd(l->g, y, in, 1);
    if (!y)
        return NULL;
    dims[0] = indices->dims[0]; /* [N, rows, ...] is [N*rows, ...] again */
    for (int i = 2; i < y->rank; i++)
        dims[i - 1] = y->dims[i];
    return mgpu_reshape(l->g, y, y->rank - 1, dims);
}
