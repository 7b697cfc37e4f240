/* Normalisations.
 *
 *     batch_norm(x [N,C,...], scale [C], bias [C]) -> y, mean [C], variance [C]
 *         Training form: statistics of this batch over all axes but 1; the variance is the
 *         population's (divides by n). y = (x - mean) / sqrt(variance + epsilon) * scale + bias:
 *         Ioffe and Szegedy 2015, section 3. The inference form is no node of its own: the importer
 *         writes it as pointwise.
 *     batch_norm_grad(x, dy, scale, mean, variance) -> dx, dscale, dbias
 *     What compilation makes of them, never the gradient (runtime/compile/finish.c):
 *     batch_norm(x, scale, bias, more) adds `more`, of x's shape, to y; with `clips`, y then is cut
 *     to [low, high]. batch_norm_grad(x, dy, scale, mean, variance, y) with `clips` takes dy for 0
 *     where not low < y < high; given the bias [C] instead of y, it finds y itself, if nothing was
 *     added. batch_norm(x, scale, bias, more?, mean, variance) gives the y that came with these
 *     statistics once more (runtime/compile/again.c).
 *
 *     group_norm(x, scale?, bias?) -> y, mean [G], inv_std [G]
 *         x is seen as [G, n] with G = product of the first `axis` dims; each row is normalised.
 *         Layer norm: axis = the first normalised axis, scale and bias have the shape of x's dims
 *         from axis on. Instance norm is axis 2 and group norm a reshape before it; their scale and
 *         bias are pointwise nodes of the importer. rms: no mean is taken off (mean is 0).
 *     group_norm_grad(x, dy, scale?, mean?, inv_std) -> dx, dscale, dbias
 *         mean is absent with rms; dscale and dbias have the shape of x's dims from axis on.
 *
 * The statistics take no gradient of their own (running ones do not train). Over an empty batch the
 * statistics are 0; over one element the variance is.
 *
 * Over several ranks: group_norm treats samples apart. batch_norm mixes them, and op->expand writes
 * it as sums over the whole batch (synchronised batch norm); with per_rank its statistics are a
 * mean over the ranks, which is what the running ones take.
 */
#ifndef MGPU_OPS_NORMALIZE_H
#define MGPU_OPS_NORMALIZE_H

#include "runtime/ops/op.h"

struct mgpu_batch_norm_attrs {
    double epsilon;
    /* Statistics of each rank's own samples (the frameworks' default) instead of the whole batch's:
     * set by the importer from --batch-norm; split then answers OK. */
    bool per_rank;
    bool clips;
    double low, high;
};

struct mgpu_group_norm_attrs {
    int64_t axis;
    double epsilon;
    bool rms;
};

extern const struct mgpu_op mgpu_op_batch_norm, mgpu_op_batch_norm_grad, mgpu_op_group_norm,
    mgpu_op_group_norm_grad;

#endif
