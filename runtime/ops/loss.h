/* cross_entropy: the loss of a classification, summed over what counts times a normaliser.
 *
 *     cross_entropy(x, labels, class_weights [C]?, sample_weights?, normaliser)
 *         -> loss (one double)
 *
 *     loss = normaliser * sum over positions p of w(p) * l(p)
 *     l(p) = -sum over c of q(p,c) * log_prob(p,c)
 *
 * Classes stand on `axis` of x. Labels are class numbers (int64, x's shape without the axis) or
 * distributions (float, x's shape; `dense`). q is the label's distribution smoothed by
 * `label_smoothing`: q(c) = (1-s)*q0(c) + s/C. PyTorch weighs class by class:
 * l(p) = -sum_c class_weight(c) q(p,c) log_prob(p,c); class weights of class-number labels without
 * smoothing reduce to w(label). Positions whose label is `ignore_index` count nothing.
 * sample_weights have the shape of the positions. The normaliser is a double of rank 0: 1 / (what
 * counts in the whole batch), a step scalar, so a rank's loss is a term of the whole loss.
 *
 * `form`: x are logits (log_prob = log softmax, computed stably), log-probabilities (nll), or
 * probabilities p (Keras where the logits cannot be seen: p is divided by its sum over the axis
 * when `dense`, clipped to [1e-7, 1 - 1e-7], then log; a clipped element has gradient zero).
 *
 *     cross_entropy_grad(x, labels, class_weights?, sample_weights?, normaliser, dloss) -> dx
 *
 * A label outside 0..C-1 that is not ignore_index fails with its position and value.
 */
#ifndef MGPU_OPS_LOSS_H
#define MGPU_OPS_LOSS_H

#include "runtime/ops/op.h"

enum mgpu_cross_entropy_form {
    MGPU_FORM_LOGITS,
    MGPU_FORM_LOG_PROBABILITIES,
    MGPU_FORM_PROBABILITIES,
};

struct mgpu_cross_entropy_attrs {
    int64_t axis;
    int form;
    bool dense;
    bool ignore; /* whether ignore_index is in force */
    int64_t ignore_index;
    double label_smoothing;
};

extern const struct mgpu_op mgpu_op_cross_entropy, mgpu_op_cross_entropy_grad;

#endif
