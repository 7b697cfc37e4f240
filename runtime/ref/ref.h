/* The `ref` backend: every core operator in plain, obvious C, for float, double and every ONNX type
 * of the operator. It folds constants, checks gradients (in double), judges the fast kernels and is
 * their fallback. One file a family; each ends in its table of kernels.
 */
#ifndef MGPU_REF_REF_H
#define MGPU_REF_REF_H

#include "runtime/backend.h"

extern const struct mgpu_kernel mgpu_ref_pointwise[];
extern const struct mgpu_kernel mgpu_ref_movement[];
extern const struct mgpu_kernel mgpu_ref_reorder[];
extern const struct mgpu_kernel mgpu_ref_gather[];
extern const struct mgpu_kernel mgpu_ref_reduce[];
extern const struct mgpu_kernel mgpu_ref_sort[];
extern const struct mgpu_kernel mgpu_ref_random[];
extern const struct mgpu_kernel mgpu_ref_matmul[];
extern const struct mgpu_kernel mgpu_ref_det[];
extern const struct mgpu_kernel mgpu_ref_conv[];
extern const struct mgpu_kernel mgpu_ref_pool[];
extern const struct mgpu_kernel mgpu_ref_normalize[];
extern const struct mgpu_kernel mgpu_ref_softmax[];
extern const struct mgpu_kernel mgpu_ref_attention[];
extern const struct mgpu_kernel mgpu_ref_loss[];
extern const struct mgpu_kernel mgpu_ref_rnn[];
extern const struct mgpu_kernel mgpu_ref_resize[];
extern const struct mgpu_kernel mgpu_ref_grid_sample[];
extern const struct mgpu_kernel mgpu_ref_update[];
extern const struct mgpu_kernel mgpu_ref_accumulate[];

/* mgpu_fold_fn (runtime/graph/fold.h) by this backend. */
int mgpu_ref_fold(const struct mgpu_node *node, const void *const *in, void *const *out);

/* GELU in tanh's form and its derivative (expr.h). */
double mgpu_ref_gelu(double x);
double mgpu_ref_gelu_slope(double x);

/* Elements of a tensor. */
int64_t mgpu_tensor_count(const struct mgpu_tensor *t);

/* Row-major strides in elements. */
void mgpu_tensor_strides(const struct mgpu_tensor *t, int64_t strides[MGPU_MAX_RANK]);

/* cross_entropy and its gradient: fails when a class number is out of range, naming the sample. */
int mgpu_ref_check_labels(const struct mgpu_launch *launch);

#endif
