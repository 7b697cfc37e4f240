/* Determinants of square matrices, [..., n, n].
 *
 *     det(x) -> y [...]
 *     cofactor(x) -> y [..., n, n]: y_ij = (-1)^(i+j) times the determinant without row i and
 *                                   column j, so that d det(x) / d x_ij = y_ij, singular or not
 */
#ifndef MGPU_OPS_DET_H
#define MGPU_OPS_DET_H

#include "runtime/ops/op.h"

extern const struct mgpu_op mgpu_op_det, mgpu_op_cofactor;

#endif
