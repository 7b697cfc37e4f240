/* Pointwise expressions, interpreted: one operation at a time over a tile of elements. */
#include "runtime/ops/pointwise.h"
#include "runtime/ref/ref.h"

#include <math.h>
#include <string.h>

enum { TILE = 64 };

/* The values of one operation over the tile, in the class its type is computed in. */
union lane {
    float f[TILE];
    double d[TILE];
    int64_t i[TILE];
};

static bool single(enum mgpu_dtype type)
{
    return mgpu_is_float(type) && type != MGPU_DOUBLE;
}

/* ---- Loading and storing --------------------------------------------------------------------- */

static void load_element(union lane *to, int at, const struct mgpu_tensor *x, int64_t index)
{
    if (x->type == MGPU_FLOAT)
        to->f[at] = ((const float *)x->data)[index];
    else if (x->type == MGPU_DOUBLE)
        to->d[at] = ((const double *)x->data)[index];
    else if (single(x->type))
        to->f[at] = (float)mgpu_get_double(x->data, x->type, index);
    else
        to->i[at] = mgpu_get_int(x->data, x->type, index);
}

/* Elements [flat, flat + n) of the output's space, from an input that broadcasts to it. */
static void load(union lane *to, const struct mgpu_tensor *x, const struct mgpu_tensor *y,
                 int64_t flat, int n)
{
    int64_t at[MGPU_MAX_RANK], stride[MGPU_MAX_RANK], index = 0, own = 1;
    int shift = y->rank - x->rank;
    for (int k = y->rank - 1; k >= 0; k--) {
        at[k] = flat % y->dims[k];
        flat /= y->dims[k];
        int64_t size = k >= shift ? x->dims[k - shift] : 1;
        stride[k] = size == 1 ? 0 : own;
        own *= size;
        index += at[k] * stride[k];
    }
    for (int i = 0; i < n; i++) {
        load_element(to, i, x, index);
        for (int k = y->rank - 1; k >= 0; k--) {
            index += stride[k];
            if (++at[k] < y->dims[k])
                break;
            index -= stride[k] * y->dims[k];
            at[k] = 0;
        }
    }
}

static void store(const struct mgpu_tensor *y, int64_t flat, int n, const union lane *from)
{
    for (int i = 0; i < n; i++)
        if (y->type == MGPU_FLOAT)
            ((float *)y->data)[flat + i] = from->f[i];
        else if (y->type == MGPU_DOUBLE)
            ((double *)y->data)[flat + i] = from->d[i];
        else if (single(y->type))
            mgpu_set_double(y->data, y->type, flat + i, (double)from->f[i]);
        else
            mgpu_set_int(y->data, y->type, flat + i, from->i[i]);
}

/* ---- One operation --------------------------------------------------------------------------- */

/* Cuts an integer to its type and rounds a half float, so that each operation ends in its type. */
static void settle(union lane *v, enum mgpu_dtype type, int n)
{
    char element[8];
    if (type == MGPU_FLOAT || type == MGPU_DOUBLE || type == MGPU_INT64 || type == MGPU_UINT64)
        return;
    for (int i = 0; i < n; i++)
        if (single(type)) {
            mgpu_set_double(element, type, 0, (double)v->f[i]);
            v->f[i] = (float)mgpu_get_double(element, type, 0);
        } else {
            mgpu_set_int(element, type, 0, v->i[i]);
            v->i[i] = mgpu_get_int(element, type, 0);
        }
}

static void cast(union lane *to, enum mgpu_dtype type, const union lane *from, enum mgpu_dtype old,
                 int n)
{
    for (int i = 0; i < n; i++) {
        if (mgpu_is_float(old)) {
            double v = single(old) ? (double)from->f[i] : from->d[i];
            if (single(type))
                to->f[i] = (float)v;
            else if (type == MGPU_DOUBLE)
                to->d[i] = v;
            else {
                char element[8];
                mgpu_set_double(element, type, 0, v);
                to->i[i] = mgpu_get_int(element, type, 0);
            }
        } else if (mgpu_is_float(type)) {
            double v = old == MGPU_UINT64 ? (double)(uint64_t)from->i[i] : (double)from->i[i];
            if (single(type))
                to->f[i] = old == MGPU_UINT64 ? (float)(uint64_t)from->i[i] : (float)from->i[i];
            else
                to->d[i] = v;
        } else {
            to->i[i] = from->i[i];
        }
    }
}

static double sigmoid(double x)
{
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* sqrt(2/pi) (x + 0.044715 x^3), whose derivative is the same with three times that factor. */
static double gelu_tanh(double x)
{
    return tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x));
}

double mgpu_ref_gelu(double x)
{
    return x / 2 * (1 + gelu_tanh(x));
}

double mgpu_ref_gelu_slope(double x)
{
    double t = gelu_tanh(x);
    return (1 + t + x * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * x * x)) / 2;
}

static double modulo(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double unary(enum mgpu_expr_code code, double a)
{
    switch (code) {
    case MGPU_X_NEG:
        return -a;
    case MGPU_X_ABS:
        return fabs(a);
    case MGPU_X_SIGN:
        return a > 0 ? 1 : a < 0 ? -1 : a;
    case MGPU_X_FLOOR:
        return floor(a);
    case MGPU_X_CEIL:
        return ceil(a);
    case MGPU_X_ROUND:
        return nearbyint(a);
    case MGPU_X_RECIPROCAL:
        return 1 / a;
    case MGPU_X_SQRT:
        return sqrt(a);
    case MGPU_X_EXP:
        return exp(a);
    case MGPU_X_LOG:
        return log(a);
    case MGPU_X_LOG1P:
        return log1p(a);
    case MGPU_X_SIN:
        return sin(a);
    case MGPU_X_COS:
        return cos(a);
    case MGPU_X_TAN:
        return tan(a);
    case MGPU_X_ASIN:
        return asin(a);
    case MGPU_X_ACOS:
        return acos(a);
    case MGPU_X_ATAN:
        return atan(a);
    case MGPU_X_SINH:
        return sinh(a);
    case MGPU_X_COSH:
        return cosh(a);
    case MGPU_X_TANH:
        return tanh(a);
    case MGPU_X_ASINH:
        return asinh(a);
    case MGPU_X_ACOSH:
        return acosh(a);
    case MGPU_X_ATANH:
        return atanh(a);
    case MGPU_X_ERF:
        return erf(a);
    case MGPU_X_GELU:
        return mgpu_ref_gelu(a);
    case MGPU_X_GELU_SLOPE:
        return mgpu_ref_gelu_slope(a);
    case MGPU_X_SIGMOID:
        return sigmoid(a);
    case MGPU_X_SOFTPLUS:
        return softplus(a);
    default: /* stop */
        return a;
    }
}

static double binary(enum mgpu_expr_code code, double a, double b)
{
    switch (code) {
    case MGPU_X_ADD:
        return a + b;
    case MGPU_X_SUB:
        return a - b;
    case MGPU_X_MUL:
        return a * b;
    case MGPU_X_DIV:
        return a / b;
    case MGPU_X_MOD:
        return modulo(a, b);
    case MGPU_X_FMOD:
        return fmod(a, b);
    case MGPU_X_POW:
        return pow(a, b);
    case MGPU_X_MIN:
        return a != a || a < b ? a : b;
    case MGPU_X_MAX:
        return a != a || a > b ? a : b;
    default: /* mulz */
        return a == 0 ? 0 : a * b;
    }
}

static int64_t power(int64_t a, int64_t b)
{
    uint64_t result = 1, base = (uint64_t)a;
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (; b; b >>= 1, base *= base)
        if (b & 1)
            result *= base;
    return (int64_t)result;
}

static int64_t int_unary(enum mgpu_expr_code code, int64_t a)
{
    switch (code) {
    case MGPU_X_NEG:
        return (int64_t)(0 - (uint64_t)a);
    case MGPU_X_ABS:
        return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
    case MGPU_X_SIGN:
        return (a > 0) - (a < 0);
    case MGPU_X_NOT:
        return !a;
    case MGPU_X_BITNOT:
        return ~a;
    default: /* floor and the like, stop */
        return a;
    }
}

static int64_t divide(int64_t a, int64_t b, bool is_unsigned)
{
    if (b == 0)
        return 0;
    if (is_unsigned)
        return (int64_t)((uint64_t)a / (uint64_t)b);
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static int64_t rest(int64_t a, int64_t b, bool is_unsigned, bool sign_of_divisor)
{
    if (b == 0 || b == -1)
        return 0;
    if (is_unsigned)
        return (int64_t)((uint64_t)a % (uint64_t)b);
    int64_t r = a % b;
    return sign_of_divisor && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static int64_t int_binary(enum mgpu_expr_code code, enum mgpu_dtype type, int64_t a, int64_t b)
{
    bool u = type == MGPU_UINT64;
    bool less = u ? (uint64_t)a < (uint64_t)b : a < b;
    switch (code) {
    case MGPU_X_ADD:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case MGPU_X_SUB:
        return (int64_t)((uint64_t)a - (uint64_t)b);
    case MGPU_X_MUL:
    case MGPU_X_MULZ:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case MGPU_X_DIV:
        return divide(a, b, u);
    case MGPU_X_MOD:
    case MGPU_X_FMOD:
        return rest(a, b, u, code == MGPU_X_MOD);
    case MGPU_X_POW:
        return power(a, b);
    case MGPU_X_MIN:
        return less ? a : b;
    case MGPU_X_MAX:
        return less ? b : a;
    case MGPU_X_AND:
        return a & b;
    case MGPU_X_OR:
        return a | b;
    case MGPU_X_XOR:
        return a ^ b;
    case MGPU_X_SHL:
        return b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a << b);
    case MGPU_X_SHR:
        return b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a >> b);
    case MGPU_X_EQ:
        return a == b;
    case MGPU_X_LT:
        return less;
    default: /* le */
        return less || a == b;
    }
}

static int64_t compare(enum mgpu_expr_code code, double a, double b)
{
    return code == MGPU_X_EQ ? a == b : code == MGPU_X_LT ? a < b : a <= b;
}

static bool compares(enum mgpu_expr_code code)
{
    return code == MGPU_X_EQ || code == MGPU_X_LT || code == MGPU_X_LE;
}

static void constant(union lane *to, const struct mgpu_expr_op *op, int n)
{
    for (int i = 0; i < n; i++)
        if (single(op->type))
            to->f[i] = (float)op->number;
        else if (op->type == MGPU_DOUBLE)
            to->d[i] = op->number;
        else
            to->i[i] = op->integer;
}

static void test_float(union lane *to, enum mgpu_expr_code code, const union lane *a,
                       enum mgpu_dtype type, int n)
{
    for (int i = 0; i < n; i++) {
        double v = single(type) ? (double)a->f[i] : a->d[i];
        to->i[i] = code == MGPU_X_ISNAN ? isnan(v) != 0 : isinf(v) != 0;
    }
}

static void select_lane(union lane *to, enum mgpu_dtype type, const union lane *c,
                        const union lane *a, const union lane *b, int n)
{
    for (int i = 0; i < n; i++)
        if (single(type))
            to->f[i] = c->i[i] ? a->f[i] : b->f[i];
        else
            to->i[i] = c->i[i] ? a->i[i] : b->i[i]; /* doubles too: the bits move */
}

static void arithmetic(union lane *to, const struct mgpu_expr_op *op, enum mgpu_dtype type,
                       const union lane *a, const union lane *b, int n)
{
    enum mgpu_expr_code code = op->code;
    bool two = mgpu_expr_arity(code) == 2;
    for (int i = 0; i < n; i++)
        if (!mgpu_is_float(type))
            to->i[i] = two ? int_binary(code, type, a->i[i], b->i[i]) : int_unary(code, a->i[i]);
        else if (compares(code))
            to->i[i] = single(type) ? compare(code, (double)a->f[i], (double)b->f[i])
                                    : compare(code, a->d[i], b->d[i]);
        else if (single(type))
            to->f[i] = (float)(two ? binary(code, (double)a->f[i], (double)b->f[i])
                                   : unary(code, (double)a->f[i]));
        else
            to->d[i] = two ? binary(code, a->d[i], b->d[i]) : unary(code, a->d[i]);
}

static void apply(const struct mgpu_expr *e, int k, union lane *lane, int n)
{
    const struct mgpu_expr_op *op = &e->op[k];
    const union lane *a = op->arg[0] >= 0 ? &lane[op->arg[0]] : NULL;
    const union lane *b = op->arg[1] >= 0 ? &lane[op->arg[1]] : NULL;
    enum mgpu_dtype type = op->arg[0] >= 0 ? e->op[op->arg[0]].type : op->type;
    if (op->code == MGPU_X_CONST)
        constant(&lane[k], op, n);
    else if (op->code == MGPU_X_CAST)
        cast(&lane[k], op->type, a, type, n);
    else if (op->code == MGPU_X_ISNAN || op->code == MGPU_X_ISINF)
        test_float(&lane[k], op->code, a, type, n);
    else if (op->code == MGPU_X_WHERE)
        select_lane(&lane[k], op->type, a, b, &lane[op->arg[2]], n);
    else
        arithmetic(&lane[k], op, type, a, b, n);
    settle(&lane[k], op->type, n);
}

static void run_tile(const struct mgpu_launch *l, const struct mgpu_expr *e, int64_t flat, int n)
{
    union lane lane[MGPU_EXPR_MAX];
    for (int k = 0; k < e->count; k++)
        if (e->op[k].code == MGPU_X_INPUT)
            load(&lane[k], &l->in[e->op[k].integer], &l->out[0], flat, n);
        else
            apply(e, k, lane, n);
    store(&l->out[0], flat, n, &lane[e->count - 1]);
}

static int run(const struct mgpu_launch *l)
{
    const struct mgpu_expr *e = ((const struct mgpu_pointwise_attrs *)l->node->attrs)->expr;
    int64_t count = mgpu_tensor_count(&l->out[0]), tiles = (count + TILE - 1) / TILE;
#pragma omp parallel for schedule(static) if (count > 4096)
    for (int64_t t = 0; t < tiles; t++) {
        int64_t left = count - t * TILE;
        run_tile(l, e, t * TILE, left < TILE ? (int)left : TILE);
    }
    return 0;
}

const struct mgpu_kernel mgpu_ref_pointwise[] = {
    {.op = "pointwise", .name = "ref", .run = run},
    {.op = NULL},
};
