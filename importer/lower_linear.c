/* Products of matrices. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/det.h"
#include "runtime/ops/dims.h"

#include <inttypes.h>
#include <string.h>

static int two(struct mgpu_lower *l, struct mgpu_value **a, struct mgpu_value **b)
{
    *a = mgpu_lower_in(l, 0);
    *b = mgpu_lower_in(l, 1);
    return *a && *b ? 0 : mgpu_fail(MGPU_EINVALID, "an operand is missing");
}

/* A vector becomes a row on the left and a column on the right; that axis goes again after. */
static int lower_matmul(struct mgpu_lower *l)
{
    struct mgpu_value *a, *b;
    struct mgpu_dim dims[MGPU_MAX_RANK];
    MGPU_TRY(two(l, &a, &b));
    bool row = a->rank == 1, column = b->rank == 1;
    if (row)
        a = mgpu_reshape(l->g, a, 2, (struct mgpu_dim[]){mgpu_dim_const(1), a->dims[0]});
    if (column)
        b = mgpu_reshape(l->g, b, 2, (struct mgpu_dim[]){b->dims[0], mgpu_dim_const(1)});
    struct mgpu_value *y = mgpu_matmul(l->g, a, false, b, false);
    if (!y || !(row || column))
        return mgpu_lower_give(l, y);
    int rank = 0;
    for (int i = 0; i < y->rank; i++)
        if (!(row && i == y->rank - 2) && !(column && i == y->rank - 1))
            dims[rank++] = y->dims[i];
    return mgpu_lower_give(l, mgpu_reshape(l->g, y, rank, dims));
}

static int lower_gemm(struct mgpu_lower *l)
{
    struct mgpu_value *a, *b, *c = mgpu_lower_in(l, 2);
    MGPU_TRY(two(l, &a, &b));
    struct mgpu_value *y = mgpu_matmul(l->g, a, mgpu_onnx_int(l->node, "transA", 0), b,
                                       mgpu_onnx_int(l->node, "transB", 0));
    y = mgpu_affine(l->g, y, mgpu_onnx_float(l->node, "alpha", 1), 0);
    if (c)
        y = mgpu_add(l->g, y, mgpu_affine(l->g, c, mgpu_onnx_float(l->node, "beta", 1), 0));
    return mgpu_lower_give(l, y);
}

static int lower_det(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    if (!x)
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_det, NULL, 1, &x));
}

const struct mgpu_lowering mgpu_lower_linear[] = {
    {"MatMul", 1, 0, lower_matmul},
    {"Gemm", 1, 0, lower_gemm},
    {"Einsum", 12, 0, mgpu_lower_einsum},
    {"Det", 11, 0, lower_det},
    {0},
};
