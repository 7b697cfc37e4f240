/* Optimizer steps and what they need.
 *
 *     update(w, g, step, lr_factor, coefficient?, state0?, state1?, state2?)
 *         -> w', state0'?, state1'?, state2'?, rounded?      (each may overwrite its input)
 *
 * step and lr_factor are step scalars (double, rank 0); coefficient (double, rank 0) multiplies the
 * gradient first (clipping by norm). Computed element by element in w's type, hyper-parameters in
 * double. What each kind and style computes stands beside its kernel, with its source; styles are
 * torch, keras2 and keras3. `rounded` is w' in the type attrs.rounded, where there is one
 * (runtime/compile/rounded.h).
 *
 *     product_update(w, a, step, lr_factor, coefficient?, state0?, state1?, state2?, b,
 *                    rows?, indices?) -> as update
 *
 * takes the gradient as the product a^T b of a [K,M] and b [K,N]; w is [M,N], the kind pointwise.
 * With rows [...,N] and indices [...] (gather.h) row i of these is added to the product's row
 * indices[i]: of an embedding that is the last layer, too. Compilation makes it of an update whose
 * gradient would take much memory (runtime/compile/early.c): it is computed piece by piece. Only
 * the kernel sees it: where it is not finite the kernel fails with MGPU_EINVALID.
 *
 *     global_norm(g0, g1, ...) -> double, rank 0: sqrt(sum of squares of all elements), summed in
 *         double in a fixed order. Variadic.
 */
#ifndef MGPU_OPS_UPDATE_H
#define MGPU_OPS_UPDATE_H

#include "runtime/ops/op.h"

enum mgpu_optimizer_kind {
    MGPU_SGD,
    MGPU_ADAM,
    MGPU_ADAMW,
    MGPU_RMSPROP,
    MGPU_ADAGRAD,
    MGPU_LAMB,
};
enum mgpu_optimizer_style { MGPU_STYLE_TORCH, MGPU_STYLE_KERAS2, MGPU_STYLE_KERAS3 };

struct mgpu_update_attrs {
    int kind, style;
    double lr, weight_decay, momentum, dampening, beta1, beta2, eps, rho, decay, lr_decay,
        initial_accumulator_value, clip_value; /* clip_value: 0 = none */
    bool nesterov, amsgrad, centered;
    enum mgpu_dtype rounded; /* 0: none */
};

/* Of its inputs. */
enum {
    MGPU_UPDATE_WEIGHT,
    MGPU_UPDATE_GRADIENT,
    MGPU_UPDATE_FACTOR = 8,
    MGPU_UPDATE_ROWS,
    MGPU_UPDATE_INDICES
};
/* Of its outputs. */
enum { MGPU_UPDATE_ROUNDED = 4 };

bool mgpu_is_update(const struct mgpu_node *node);

/* Whether an element depends on no other (LAMB's trust ratio is a whole weight's). */
bool mgpu_update_is_pointwise(const struct mgpu_node *node);

/* How many state tensors (each of w's shape) the kind needs with these attributes, and the value
 * that each starts from. LAMB's trust ratio needs none. */
int mgpu_update_states(const struct mgpu_update_attrs *attrs, double start[3]);
/* Their names for checkpoints: "momentum", "exp_avg" ... */
const char *mgpu_update_state_name(const struct mgpu_update_attrs *attrs, int state);

extern const struct mgpu_op mgpu_op_update, mgpu_op_product_update, mgpu_op_global_norm;

#endif
