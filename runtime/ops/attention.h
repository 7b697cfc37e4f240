/* Attention: Vaswani et al. 2017, section 3.2.1.
 *
 *     attention(q [N,H,T,D], k [N,H,S,D], v [N,H,S,E], mask?) -> y [N,H,T,E], statistics [N,H,T,2]
 *
 *     s = scale * q k' + mask          mask of floats
 *     s = mask ? scale * q k' : fill   mask of bools
 *     y = softmax(s) v                 along the keys
 *
 * With `heads_inside` q, k, v and y are [N,T,H,D] and so on. The mask broadcasts to [N,H,T,S]; it
 * takes no gradient. The statistics are, for each query, the largest s and the sum of exp(s -
 * largest): with them the gradient computes the probabilities again, so that nobody keeps T x S
 * numbers. They take no gradient of their own. With `log_sums` they are one number [N,H,T,1], the
 * logarithm of the sum of exp(s), as cuDNN has it: where all keys of a query are hidden by numbers
 * so low that no score shows beside them, it does not tell how many there are. In half types they
 * are floats.
 *
 *     attention_grad(q, k, v, mask?, y, statistics, dy) -> dq, dk, dv
 *
 *     p = exp(s - largest) / sum, or exp(s - log of the sum)
 *     ds = p * (dy v' - sum over E of dy * y), 0 where fill stands
 *     dq = scale * ds k,  dk = scale * ds' q,  dv = p' dy
 */
#ifndef MGPU_OPS_ATTENTION_H
#define MGPU_OPS_ATTENTION_H

#include "runtime/ops/op.h"

struct mgpu_attention_attrs {
    bool heads_inside, log_sums;
    double scale, fill;
};

extern const struct mgpu_op mgpu_op_attention, mgpu_op_attention_grad;

/* Sizes of a node of either, and how its operands lie. */
struct mgpu_attention {
    int64_t samples, heads, queries, keys, width, out; /* N H T S D E */
    int64_t mask[4]; /* steps of the mask along [N,H,T,S]; 0: broadcast */
};
struct mgpu_attention mgpu_attention_of(const struct mgpu_node *node);

/* Of a [N,H,T,D] or [N,T,H,D] with `count` rows a head of `width` elements: where the first row of
 * a head lies, and how far rows are apart. */
int64_t mgpu_attention_at(const struct mgpu_node *node, int64_t sample, int64_t head, int64_t count,
                          int64_t width);
int64_t mgpu_attention_step(const struct mgpu_node *node, int64_t width);

#endif
