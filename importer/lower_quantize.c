/* Integers that stand for real numbers, x = (q - zero point) * scale, of 8 to 32 bits. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/dims.h"

#include <inttypes.h>

/* What a scale or zero point (input i) is for each element of x: one for all, one for each place on
 * an axis, or one for each block of places there. NULL when it is absent. */
static struct mgpu_value *for_elements(struct mgpu_lower *l, int i, const struct mgpu_value *x)
{
    struct mgpu_value *v = mgpu_lower_in(l, i);
    int64_t axis, block = mgpu_onnx_int(l->node, "block_size", 0);
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!v || mgpu_value_count(v) == 1)
        return mgpu_lower_scalar(l, v);
    if (mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", 1), x->rank) < 0)
        return mgpu_build_fail(MGPU_EINVALID, "%s", mgpu_error());
    if (v->rank == 1 && !block) {
        for (int k = 0; k < x->rank; k++)
            dims[k] = k == axis ? x->dims[k] : mgpu_dim_const(1);
        return mgpu_reshape(l->g, v, x->rank, dims);
    }
    if (v->rank != x->rank || block < 1 || x->rank == MGPU_MAX_RANK ||
        v->dims[axis].value * block != x->dims[axis].value)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "blocks of %" PRId64 " do not fit", block);
    for (int k = 0; k <= v->rank; k++)
        dims[k] = k <= axis ? v->dims[k] : k == axis + 1 ? mgpu_dim_const(1) : v->dims[k - 1];
    v = mgpu_reshape(l->g, v, x->rank + 1, dims);
    dims[axis + 1] = mgpu_dim_const(block);
    return mgpu_reshape(l->g, mgpu_broadcast(l->g, v, x->rank + 1, dims), x->rank, x->dims);
}

static void range_of(enum mgpu_dtype type, double *low, double *high)
{
    int bits = 8 * (int)mgpu_dtype_size(type);
    bool sign = mgpu_is_signed(type);
    *low = sign ? -(double)(INT64_C(1) << (bits - 1)) : 0;
    *high = (double)(INT64_C(1) << (bits - sign)) - 1;
}

static bool holds(enum mgpu_dtype type)
{
    return mgpu_is_integer(type) && mgpu_dtype_size(type) <= 4;
}

/* (x - zero) * scale in scale's type; zero NULL: 0. */
static struct mgpu_value *real(struct mgpu_lower *l, struct mgpu_value *x, struct mgpu_value *scale,
                               struct mgpu_value *zero)
{
    if (!x || !scale)
        return NULL;
    struct mgpu_value *q = x;
    if (zero) /* 33 bits */
        q = mgpu_sub(l->g, mgpu_cast(l->g, x, MGPU_INT64), mgpu_cast(l->g, zero, MGPU_INT64));
    return mgpu_mul(l->g, mgpu_cast(l->g, q, scale->type), scale);
}

/* round(x / scale) + zero, cut to the type. */
static struct mgpu_value *quantized(struct mgpu_lower *l, struct mgpu_value *x,
                                    struct mgpu_value *scale, struct mgpu_value *zero,
                                    enum mgpu_dtype type)
{
    double low, high;
    struct mgpu_expr e;
    if (!x || !scale)
        return NULL;
    struct mgpu_value *input[] = {x, scale, zero};
    range_of(type, &low, &high);
    mgpu_expr_begin(&e, zero ? 3 : 2);
    enum mgpu_dtype real = scale->type == MGPU_DOUBLE ? MGPU_DOUBLE : MGPU_FLOAT;
    int v = mgpu_expr_2(&e, MGPU_X_DIV, mgpu_expr_cast(&e, real, mgpu_expr_input(&e, 0, x->type)),
                        mgpu_expr_cast(&e, real, mgpu_expr_input(&e, 1, scale->type)));
    v = mgpu_expr_cast(&e, MGPU_DOUBLE, mgpu_expr_1(&e, MGPU_X_ROUND, v));
    if (zero)
        v = mgpu_expr_2(&e, MGPU_X_ADD, v,
                        mgpu_expr_cast(&e, MGPU_DOUBLE, mgpu_expr_input(&e, 2, zero->type)));
    v = mgpu_expr_2(&e, MGPU_X_MAX, v, mgpu_expr_number(&e, MGPU_DOUBLE, low));
    v = mgpu_expr_2(&e, MGPU_X_MIN, v, mgpu_expr_number(&e, MGPU_DOUBLE, high));
    v = mgpu_expr_cast(&e, type, v);
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, v, l->g->arena), zero ? 3 : 2, input);
}

static int lower_quantize(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *x = mgpu_lower_in(l, 0), *zero = mgpu_lower_in(l, 2);
    int64_t asked = mgpu_onnx_int(l->node, "output_dtype", 0);
    enum mgpu_dtype type = zero ? zero->type : asked ? (enum mgpu_dtype)asked : MGPU_UINT8;
    if (!holds(type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "results of %s are not supported",
                         mgpu_dtype_name(type));
    zero = for_elements(l, 2, x);
    if (mgpu_lower_in(l, 2) && !zero)
        return mgpu_build_error();
    return mgpu_lower_give(l, quantized(l, x, for_elements(l, 1, x), zero, type));
}

static int lower_dequantize(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *x = mgpu_lower_in(l, 0), *zero = for_elements(l, 2, x);
    if (!holds(x->type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "operands of %s are not supported",
                         mgpu_dtype_name(x->type));
    if (mgpu_lower_in(l, 2) && !zero)
        return mgpu_build_error();
    return mgpu_lower_give(l, real(l, x, for_elements(l, 1, x), zero));
}

/* To uint8, by the range of all elements, which is made to hold 0. */
static int lower_dynamic_quantize(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 1));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    if (!mgpu_is_float(x->type))
        return mgpu_fail(MGPU_EINVALID, "%s of %s", l->node->type, mgpu_dtype_name(x->type));
    unsigned all = (1u << x->rank) - 1;
    struct mgpu_value *null = mgpu_const_double(l->g, x->type, 0);
    struct mgpu_value *low = mgpu_reduce(l->g, MGPU_REDUCE_MIN, x, all, false);
    struct mgpu_value *high = mgpu_reduce(l->g, MGPU_REDUCE_MAX, x, all, false);
    low = mgpu_binary(l->g, MGPU_X_MIN, low, null);
    high = mgpu_binary(l->g, MGPU_X_MAX, high, null);
    struct mgpu_value *scale = mgpu_affine(l->g, mgpu_sub(l->g, high, low), 1.0 / 255, 0);
    struct mgpu_value *zero = quantized(l, mgpu_affine(l->g, low, -1, 0), scale, NULL, MGPU_UINT8);
    l->out[1] = scale;
    l->out[2] = zero;
    return mgpu_lower_give(l, quantized(l, x, scale, zero, MGPU_UINT8));
}

/* How the zero points or scales of a list stand beside their operand. */
enum list { ROWS, COLUMNS, KERNELS };

/* One for all, or a list with an element for each row, column or kernel of x. */
static struct mgpu_value *beside(struct mgpu_lower *l, struct mgpu_value *v,
                                 const struct mgpu_value *x, enum list list)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!v || mgpu_value_count(v) == 1)
        return mgpu_lower_scalar(l, v);
    if (v->rank != 1 || list == COLUMNS)
        return v;
    int rank = list == ROWS ? 2 : x->rank;
    for (int i = 0; i < rank; i++)
        dims[i] = i ? mgpu_dim_const(1) : v->dims[0];
    return mgpu_reshape(l->g, v, rank, dims);
}

/* Operand i less its zero point (input `zero`; absent: 0), as int32. */
static struct mgpu_value *centred(struct mgpu_lower *l, int i, int zero, enum list list)
{
    struct mgpu_value *x = mgpu_cast(l->g, mgpu_lower_in(l, i), MGPU_INT32);
    struct mgpu_value *z = mgpu_cast(l->g, mgpu_lower_in(l, zero), MGPU_INT32);
    return mgpu_lower_in(l, zero) ? mgpu_sub(l->g, x, beside(l, z, x, list)) : x;
}

/* A product of vectors, matrices or stacks of them. */
static struct mgpu_value *product(struct mgpu_lower *l, struct mgpu_value *a, struct mgpu_value *b)
{
    if (!a || !b)
        return NULL;
    if (a->rank < 2 || b->rank < 2)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "products of vectors are not supported");
    return mgpu_matmul(l->g, a, false, b, false);
}

static int lower_matmul_integer(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    return mgpu_lower_give(l, product(l, centred(l, 0, 2, ROWS), centred(l, 1, 3, COLUMNS)));
}

/* Sums of products as y's integers (scale and zero point: inputs 6 and 7), the scales of the
 * operands being inputs 1 and 4. */
static int requantized(struct mgpu_lower *l, struct mgpu_value *sums, struct mgpu_value *a,
                       struct mgpu_value *b)
{
    enum mgpu_dtype type = mgpu_lower_in(l, 7)->type;
    if (!holds(type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "results of %s are not supported",
                         mgpu_dtype_name(type));
    if (!sums || !a || !b)
        return mgpu_build_error();
    struct mgpu_value *y = mgpu_mul(l->g, mgpu_cast(l->g, sums, a->type), mgpu_mul(l->g, a, b));
    return mgpu_lower_give(l, quantized(l, y, mgpu_lower_scalar(l, mgpu_lower_in(l, 6)),
                                        mgpu_lower_scalar(l, mgpu_lower_in(l, 7)), type));
}

static int lower_qlinear_matmul(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 8));
    struct mgpu_value *a = mgpu_lower_in(l, 0), *b = mgpu_lower_in(l, 3);
    struct mgpu_value *sums = product(l, centred(l, 0, 2, ROWS), centred(l, 3, 5, COLUMNS));
    return requantized(l, sums, beside(l, mgpu_lower_in(l, 1), a, ROWS),
                       beside(l, mgpu_lower_in(l, 4), b, COLUMNS));
}

/* A convolution of integers, in double: its sums are exact. */
static int convolution(struct mgpu_lower *l, int w, int x_zero, int w_zero)
{
    struct mgpu_value *x = mgpu_cast(l->g, centred(l, 0, x_zero, COLUMNS), MGPU_DOUBLE);
    struct mgpu_value *weight = mgpu_cast(l->g, centred(l, w, w_zero, KERNELS), MGPU_DOUBLE);
    if (!x || !weight)
        return mgpu_build_error();
    MGPU_TRY(mgpu_lower_convolution(l, x, weight, NULL));
    return mgpu_lower_give(l, mgpu_cast(l->g, l->out[0], MGPU_INT32));
}

static int lower_conv_integer(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 2));
    return convolution(l, 1, 2, 3);
}

/* [M] as [M,1,1]: beside the channels of [N,M,S,S]. */
static struct mgpu_value *per_channel(struct mgpu_lower *l, struct mgpu_value *v, int rank)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!v || mgpu_value_count(v) == 1)
        return mgpu_lower_scalar(l, v);
    for (int i = 0; i < rank - 1; i++)
        dims[i] = i ? mgpu_dim_const(1) : v->dims[0];
    return mgpu_reshape(l->g, v, rank - 1, dims);
}

static int lower_qlinear_conv(struct mgpu_lower *l)
{
    MGPU_TRY(mgpu_lower_need(l, 8));
    int rank = mgpu_lower_in(l, 0)->rank;
    struct mgpu_value *bias = mgpu_lower_in(l, 8);
    MGPU_TRY(convolution(l, 3, 2, 5));
    if (bias)
        l->out[0] = mgpu_add(l->g, l->out[0], per_channel(l, bias, rank));
    return requantized(l, l->out[0], mgpu_lower_scalar(l, mgpu_lower_in(l, 1)),
                       per_channel(l, mgpu_lower_in(l, 4), rank));
}

const struct mgpu_lowering mgpu_lower_quantize[] = {
    {"QuantizeLinear", 10, 0, lower_quantize},
    {"DequantizeLinear", 10, 0, lower_dequantize},
    {"DynamicQuantizeLinear", 11, 0, lower_dynamic_quantize},
    {"MatMulInteger", 10, 0, lower_matmul_integer},
    {"QLinearMatMul", 10, 0, lower_qlinear_matmul},
    {"ConvInteger", 10, 0, lower_conv_integer},
    {"QLinearConv", 10, 0, lower_qlinear_conv},
    {0},
};
