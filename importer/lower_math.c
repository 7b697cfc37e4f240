/* Arithmetic and activations: each is one pointwise expression. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/pointwise.h"

#include <math.h>
#include <string.h>

/* ---- One operand ---------------------------------------------------------------------------- */

/* An expression of x (operation 0 of e); the attributes are the node's. */
typedef int formula(const struct mgpu_lower *l, struct mgpu_expr *e, int x);

static int apply(struct mgpu_lower *l, formula *f)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    struct mgpu_expr e;
    if (!x)
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    mgpu_expr_begin(&e, 1);
    int y = f(l, &e, mgpu_expr_input(&e, 0, x->type));
    return mgpu_lower_give(l, mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &x));
}

/* Formulas that only make sense for floats. */
static int apply_float(struct mgpu_lower *l, formula *f)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    if (x && !mgpu_is_float(x->type))
        return mgpu_fail(MGPU_EINVALID, "%s of %s", l->node->type, mgpu_dtype_name(x->type));
    return apply(l, f);
}

static enum mgpu_dtype type_of(const struct mgpu_expr *e, int x)
{
    return e->op[x].type;
}

static int number(struct mgpu_expr *e, int x, double value)
{
    return mgpu_expr_number(e, type_of(e, x), value);
}

static int op2(struct mgpu_expr *e, enum mgpu_expr_code code, int a, int b)
{
    return mgpu_expr_2(e, code, a, b);
}

static int times(struct mgpu_expr *e, int x, double factor)
{
    return op2(e, MGPU_X_MUL, x, number(e, x, factor));
}

static int plus(struct mgpu_expr *e, int x, double offset)
{
    return op2(e, MGPU_X_ADD, x, number(e, x, offset));
}

/* x > 0 ? a : b; at 0 the gradient is b's, as in PyTorch and TensorFlow. */
static int where_positive(struct mgpu_expr *e, int x, int a, int b)
{
    return mgpu_expr_where(e, op2(e, MGPU_X_LT, number(e, x, 0), x), a, b);
}

static int clamp(struct mgpu_expr *e, int x, double low, double high)
{
    return op2(e, MGPU_X_MIN, op2(e, MGPU_X_MAX, x, number(e, x, low)), number(e, x, high));
}

static double alpha_of(const struct mgpu_lower *l, double otherwise)
{
    return mgpu_onnx_float(l->node, "alpha", otherwise);
}

/* exp(x) - 1 where x is not positive; an argument of 0 elsewhere keeps exp from overflowing. At 0
 * the slope is that of exp. */
static int exp_minus_1(struct mgpu_expr *e, int x)
{
    int below = where_positive(e, x, number(e, x, 0), x);
    return plus(e, mgpu_expr_1(e, MGPU_X_EXP, below), -1);
}

static int relu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    (void)l;
    return op2(e, MGPU_X_MAX, x, number(e, x, 0)); /* keeps NaN, which a choice would hide */
}

static int leaky_relu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    return where_positive(e, x, x, times(e, x, alpha_of(l, 0.01)));
}

static int elu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    return where_positive(e, x, x, times(e, exp_minus_1(e, x), alpha_of(l, 1)));
}

static int selu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    bool old = l->node->opset < 6;
    double alpha = alpha_of(l, old ? 1.6732 : 1.67326319217681884765625);
    double gamma = mgpu_onnx_float(l->node, "gamma", old ? 1.0507 : 1.05070102214813232421875);
    return times(e, where_positive(e, x, x, times(e, exp_minus_1(e, x), alpha)), gamma);
}

static int celu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    double alpha = alpha_of(l, 1);
    return where_positive(e, x, x, times(e, exp_minus_1(e, times(e, x, 1 / alpha)), alpha));
}

static int gelu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    const char *kind = mgpu_onnx_string(l->model, l->node, "approximate", "none");
    int inner;
    if (!strcmp(kind, "tanh")) {
        int cube = op2(e, MGPU_X_MUL, op2(e, MGPU_X_MUL, x, x), x);
        int sum = op2(e, MGPU_X_ADD, x, times(e, cube, 0.044715));
        inner = mgpu_expr_1(e, MGPU_X_TANH, times(e, sum, sqrt(2 / M_PI)));
    } else
        inner = mgpu_expr_1(e, MGPU_X_ERF, times(e, x, M_SQRT1_2));
    return op2(e, MGPU_X_MUL, times(e, x, 0.5), plus(e, inner, 1));
}

static int hard_sigmoid_of(struct mgpu_expr *e, int x, double alpha, double beta)
{
    return clamp(e, plus(e, times(e, x, alpha), beta), 0, 1);
}

static int hard_sigmoid(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    return hard_sigmoid_of(e, x, alpha_of(l, 0.2), mgpu_onnx_float(l->node, "beta", 0.5));
}

static int hard_swish(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    (void)l;
    return op2(e, MGPU_X_MUL, x, hard_sigmoid_of(e, x, 1.0 / 6, 0.5));
}

static int mish(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    (void)l;
    int soft = mgpu_expr_1(e, MGPU_X_SOFTPLUS, x);
    return op2(e, MGPU_X_MUL, x, mgpu_expr_1(e, MGPU_X_TANH, soft));
}

static int softsign(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    (void)l;
    return op2(e, MGPU_X_DIV, x, plus(e, mgpu_expr_1(e, MGPU_X_ABS, x), 1));
}

static int thresholded_relu(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    int above = op2(e, MGPU_X_LT, number(e, x, alpha_of(l, 1)), x);
    return mgpu_expr_where(e, above, x, number(e, x, 0));
}

static int swish(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    int gate = mgpu_expr_1(e, MGPU_X_SIGMOID, times(e, x, alpha_of(l, 1)));
    return op2(e, MGPU_X_MUL, x, gate);
}

static int shrink(const struct mgpu_lower *l, struct mgpu_expr *e, int x)
{
    double lambda = mgpu_onnx_float(l->node, "lambd", 0.5);
    double bias = mgpu_onnx_float(l->node, "bias", 0);
    int low = op2(e, MGPU_X_LT, x, number(e, x, -lambda));
    int high = op2(e, MGPU_X_LT, number(e, x, lambda), x);
    int rest = mgpu_expr_where(e, high, plus(e, x, -bias), number(e, x, 0));
    return mgpu_expr_where(e, low, plus(e, x, bias), rest);
}

#define FORMULA(name, f, run)                                                                      \
    static int name(struct mgpu_lower *l)                                                          \
    {                                                                                              \
        return run(l, f);                                                                          \
    }

FORMULA(lower_relu, relu, apply)
FORMULA(lower_leaky_relu, leaky_relu, apply_float)
FORMULA(lower_elu, elu, apply_float)
FORMULA(lower_selu, selu, apply_float)
FORMULA(lower_celu, celu, apply_float)
FORMULA(lower_gelu, gelu, apply_float)
FORMULA(lower_hard_sigmoid, hard_sigmoid, apply_float)
FORMULA(lower_hard_swish, hard_swish, apply_float)
FORMULA(lower_mish, mish, apply_float)
FORMULA(lower_softsign, softsign, apply_float)
FORMULA(lower_thresholded_relu, thresholded_relu, apply_float)
FORMULA(lower_swish, swish, apply_float)
FORMULA(lower_shrink, shrink, apply)

/* ONNX operators that are one operation of an expression. */
static const struct {
    const char *type;
    enum mgpu_expr_code code;
    bool any; /* integers too */
} plain[] = {
    {"Abs", MGPU_X_ABS, true},
    {"Neg", MGPU_X_NEG, true},
    {"Sign", MGPU_X_SIGN, true},
    {"Floor", MGPU_X_FLOOR, false},
    {"Ceil", MGPU_X_CEIL, false},
    {"Round", MGPU_X_ROUND, false},
    {"Sqrt", MGPU_X_SQRT, false},
    {"Reciprocal", MGPU_X_RECIPROCAL, false},
    {"Exp", MGPU_X_EXP, false},
    {"Log", MGPU_X_LOG, false},
    {"Sin", MGPU_X_SIN, false},
    {"Cos", MGPU_X_COS, false},
    {"Tan", MGPU_X_TAN, false},
    {"Asin", MGPU_X_ASIN, false},
    {"Acos", MGPU_X_ACOS, false},
    {"Atan", MGPU_X_ATAN, false},
    {"Sinh", MGPU_X_SINH, false},
    {"Cosh", MGPU_X_COSH, false},
    {"Tanh", MGPU_X_TANH, false},
    {"Asinh", MGPU_X_ASINH, false},
    {"Acosh", MGPU_X_ACOSH, false},
    {"Atanh", MGPU_X_ATANH, false},
    {"Erf", MGPU_X_ERF, false},
    {"Sigmoid", MGPU_X_SIGMOID, false},
    {"Softplus", MGPU_X_SOFTPLUS, false},
};

static int lower_plain(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    size_t i = 0;
    while (strcmp(plain[i].type, l->node->type))
        i++;
    if (!x || (!plain[i].any && !mgpu_is_float(x->type)))
        return mgpu_fail(MGPU_EINVALID, "%s of %s", l->node->type,
                         x ? mgpu_dtype_name(x->type) : "nothing");
    return mgpu_lower_give(l, mgpu_unary(l->g, plain[i].code, x));
}

/* ---- Two operands --------------------------------------------------------------------------- */

static int binary(struct mgpu_lower *l, enum mgpu_expr_code code)
{
    struct mgpu_value *a = mgpu_lower_in(l, 0), *b = mgpu_lower_in(l, 1);
    if (!a || !b)
        return mgpu_fail(MGPU_EINVALID, "an operand is missing");
    return mgpu_lower_give(l, mgpu_binary(l->g, code, a, mgpu_lower_spread(l, a, b)));
}

static int lower_add(struct mgpu_lower *l)
{
    return binary(l, MGPU_X_ADD);
}

static int lower_sub(struct mgpu_lower *l)
{
    return binary(l, MGPU_X_SUB);
}

static int lower_mul(struct mgpu_lower *l)
{
    return binary(l, MGPU_X_MUL);
}

static int lower_div(struct mgpu_lower *l)
{
    return binary(l, MGPU_X_DIV);
}

static int lower_mod(struct mgpu_lower *l)
{
    const struct mgpu_value *a = mgpu_lower_in(l, 0);
    bool fmod = mgpu_onnx_int(l->node, "fmod", 0);
    if (a && mgpu_is_float(a->type) && !fmod)
        return mgpu_fail(MGPU_EINVALID, "Mod of %s needs fmod=1", mgpu_dtype_name(a->type));
    return binary(l, fmod ? MGPU_X_FMOD : MGPU_X_MOD);
}

/* A small whole exponent as products: exact, and for any sign of the base. */
static int power(struct mgpu_expr *e, int x, int64_t exponent)
{
    int y = -1;
    for (int square = x; exponent; exponent /= 2, square = op2(e, MGPU_X_MUL, square, square))
        if (exponent % 2)
            y = y < 0 ? square : op2(e, MGPU_X_MUL, y, square);
    return y;
}

static struct mgpu_value *constant_power(struct mgpu_lower *l, struct mgpu_value *x, double p)
{
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, x->type), y;
    bool whole = p == floor(p) && fabs(p) <= 16;
    if (p == 0)
        y = number(&e, a, 1);
    else if (whole && (p > 0 || mgpu_is_float(x->type))) {
        y = power(&e, a, (int64_t)fabs(p));
        y = p < 0 ? mgpu_expr_1(&e, MGPU_X_RECIPROCAL, y) : y;
    } else if (fabs(p) == 0.5 && mgpu_is_float(x->type)) {
        y = mgpu_expr_1(&e, MGPU_X_SQRT, a);
        y = p < 0 ? mgpu_expr_1(&e, MGPU_X_RECIPROCAL, y) : y;
    } else
        y = op2(&e, MGPU_X_POW, a, number(&e, a, p));
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &x);
}

/* The one number that all elements of a constant are. */
static bool one_number(const struct mgpu_value *v, double *number_out)
{
    if (v->kind != MGPU_VALUE_CONSTANT || v->ints || v->tainted || mgpu_value_count(v) != 1)
        return false;
    *number_out = mgpu_get_double(v->data, v->type, 0);
    return true;
}

static int lower_pow(struct mgpu_lower *l)
{
    struct mgpu_value *a = mgpu_lower_in(l, 0), *b = mgpu_lower_in(l, 1);
    double p;
    if (!a || !b)
        return mgpu_fail(MGPU_EINVALID, "an operand is missing");
    b = mgpu_lower_spread(l, a, b);
    if (!b)
        return mgpu_build_error();
    if (one_number(b, &p) && b->rank <= a->rank)
        return mgpu_lower_give(l, constant_power(l, a, p));
    /* the result has the base's type; an exponent of a wider float is not cut to an integer */
    bool wide = mgpu_is_float(b->type) && !mgpu_is_float(a->type);
    struct mgpu_value *base = wide ? mgpu_cast(l->g, a, b->type) : a;
    struct mgpu_value *exponent = wide ? b : mgpu_cast(l->g, b, a->type);
    struct mgpu_value *y = mgpu_binary(l->g, MGPU_X_POW, base, exponent);
    return mgpu_lower_give(l, mgpu_cast(l->g, y, a->type));
}

static int lower_prelu(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0), *slope = mgpu_lower_in(l, 1);
    struct mgpu_expr e;
    if (!x || !slope)
        return mgpu_fail(MGPU_EINVALID, "an operand is missing");
    if (l->node->opset < 7 && slope->rank == 1 && x->rank > 2) { /* one slope a channel */
        struct mgpu_dim dims[MGPU_MAX_RANK] = {slope->dims[0]};
        for (int i = 1; i < x->rank - 1; i++)
            dims[i] = mgpu_dim_const(1);
        slope = mgpu_reshape(l->g, slope, x->rank - 1, dims);
    }
    if (!slope)
        return mgpu_build_error();
    if (slope->type != x->type)
        return mgpu_fail(MGPU_EINVALID, "the slope's type is not the input's");
    mgpu_expr_begin(&e, 2);
    int a = mgpu_expr_input(&e, 0, x->type);
    int y = where_positive(&e, a, a, op2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 1, x->type), a));
    return mgpu_lower_give(l, mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 2,
                                             (struct mgpu_value *[]){x, slope}));
}

/* swish(a) * b */
static int lower_swiglu(struct mgpu_lower *l)
{
    struct mgpu_value *a = mgpu_lower_in(l, 0), *b = mgpu_lower_in(l, 1);
    if (!a || !b || !mgpu_is_float(a->type) || a->type != b->type)
        return mgpu_fail(MGPU_EINVALID, "the operands are not two floats of one type");
    MGPU_TRY(apply_float(l, swish));
    return mgpu_lower_give(l, mgpu_mul(l->g, l->out[0], b));
}

/* ---- Any number of operands ----------------------------------------------------------------- */

static struct mgpu_value *all(struct mgpu_lower *l, enum mgpu_expr_code code)
{
    struct mgpu_value *y = mgpu_lower_in(l, 0);
    for (int i = 1; i < l->node->inputs; i++)
        y = mgpu_binary(l->g, code, y, mgpu_lower_in(l, i));
    return y ? y : mgpu_build_fail(MGPU_EINVALID, "an operand is missing");
}

static int lower_sum(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, all(l, MGPU_X_ADD));
}

static int lower_mean(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, mgpu_affine(l->g, all(l, MGPU_X_ADD), 1.0 / l->node->inputs, 0));
}

static int lower_max(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, all(l, MGPU_X_MAX));
}

static int lower_min(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, all(l, MGPU_X_MIN));
}

/* Bounds are attributes before opset 11, inputs after. Low above high gives high. */
static struct mgpu_value *bound(struct mgpu_lower *l, struct mgpu_value *x, const char *name, int i,
                                enum mgpu_expr_code code)
{
    const Onnx__AttributeProto *a = mgpu_onnx_attribute(l->node, name);
    struct mgpu_value *limit = mgpu_lower_in(l, i);
    if (a)
        limit = mgpu_const_double(l->g, x->type, mgpu_onnx_float(l->node, name, 0));
    if (!limit)
        return x;
    double value;
    limit = mgpu_lower_scalar(l, limit);
    if (!limit || limit->type != x->type || !one_number(limit, &value) || !mgpu_is_float(x->type))
        return mgpu_binary(l->g, code, x, limit);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int y = op2(&e, code, mgpu_expr_input(&e, 0, x->type), mgpu_expr_number(&e, x->type, value));
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &x);
}

static int lower_clip(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    if (!x)
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    x = bound(l, x, "min", 1, MGPU_X_MAX);
    return mgpu_lower_give(l, x ? bound(l, x, "max", 2, MGPU_X_MIN) : NULL);
}

const struct mgpu_lowering mgpu_lower_math[] = {
    {"Abs", 1, 0, lower_plain},
    {"Neg", 1, 0, lower_plain},
    {"Sign", 9, 0, lower_plain},
    {"Floor", 1, 0, lower_plain},
    {"Ceil", 1, 0, lower_plain},
    {"Round", 11, 0, lower_plain},
    {"Sqrt", 1, 0, lower_plain},
    {"Reciprocal", 1, 0, lower_plain},
    {"Exp", 1, 0, lower_plain},
    {"Log", 1, 0, lower_plain},
    {"Sin", 7, 0, lower_plain},
    {"Cos", 7, 0, lower_plain},
    {"Tan", 7, 0, lower_plain},
    {"Asin", 7, 0, lower_plain},
    {"Acos", 7, 0, lower_plain},
    {"Atan", 7, 0, lower_plain},
    {"Sinh", 9, 0, lower_plain},
    {"Cosh", 9, 0, lower_plain},
    {"Tanh", 1, 0, lower_plain},
    {"Asinh", 9, 0, lower_plain},
    {"Acosh", 9, 0, lower_plain},
    {"Atanh", 9, 0, lower_plain},
    {"Erf", 9, 0, lower_plain},
    {"Sigmoid", 1, 0, lower_plain},
    {"Softplus", 1, 0, lower_plain},
    {"Relu", 1, 0, lower_relu},
    {"LeakyRelu", 1, 0, lower_leaky_relu},
    {"PRelu", 1, 0, lower_prelu},
    {"Elu", 1, 0, lower_elu},
    {"Selu", 1, 0, lower_selu},
    {"Celu", 12, 0, lower_celu},
    {"Gelu", 20, 0, lower_gelu},
    {"HardSigmoid", 1, 0, lower_hard_sigmoid},
    {"HardSwish", 14, 0, lower_hard_swish},
    {"Mish", 18, 0, lower_mish},
    {"Softsign", 1, 0, lower_softsign},
    {"ThresholdedRelu", 1, 0, lower_thresholded_relu},
    {"Swish", 24, 0, lower_swish},
    {"SwiGLU", 28, 0, lower_swiglu},
    {"Shrink", 9, 0, lower_shrink},
    {"Add", 1, 0, lower_add},
    {"Sub", 1, 0, lower_sub},
    {"Mul", 1, 0, lower_mul},
    {"Div", 1, 0, lower_div},
    {"Mod", 10, 0, lower_mod},
    {"Pow", 1, 0, lower_pow},
    {"Sum", 1, 0, lower_sum},
    {"Mean", 1, 0, lower_mean},
    {"Max", 1, 0, lower_max},
    {"Min", 1, 0, lower_min},
    {"Clip", 1, 0, lower_clip},
    {0},
};
