#include "runtime/ops/expr.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int arity;
} codes[MGPU_X_CODES] = {
    [MGPU_X_INPUT] = {"input", 0},
    [MGPU_X_CONST] = {"const", 0},
    [MGPU_X_CAST] = {"cast", 1},
    [MGPU_X_NEG] = {"neg", 1},
    [MGPU_X_ABS] = {"abs", 1},
    [MGPU_X_SIGN] = {"sign", 1},
    [MGPU_X_NOT] = {"not", 1},
    [MGPU_X_BITNOT] = {"bitnot", 1},
    [MGPU_X_FLOOR] = {"floor", 1},
    [MGPU_X_CEIL] = {"ceil", 1},
    [MGPU_X_ROUND] = {"round", 1},
    [MGPU_X_RECIPROCAL] = {"reciprocal", 1},
    [MGPU_X_SQRT] = {"sqrt", 1},
    [MGPU_X_EXP] = {"exp", 1},
    [MGPU_X_LOG] = {"log", 1},
    [MGPU_X_LOG1P] = {"log1p", 1},
    [MGPU_X_SIN] = {"sin", 1},
    [MGPU_X_COS] = {"cos", 1},
    [MGPU_X_TAN] = {"tan", 1},
    [MGPU_X_ASIN] = {"asin", 1},
    [MGPU_X_ACOS] = {"acos", 1},
    [MGPU_X_ATAN] = {"atan", 1},
    [MGPU_X_SINH] = {"sinh", 1},
    [MGPU_X_COSH] = {"cosh", 1},
    [MGPU_X_TANH] = {"tanh", 1},
    [MGPU_X_ASINH] = {"asinh", 1},
    [MGPU_X_ACOSH] = {"acosh", 1},
    [MGPU_X_ATANH] = {"atanh", 1},
    [MGPU_X_ERF] = {"erf", 1},
    [MGPU_X_GELU] = {"gelu", 1},
    [MGPU_X_GELU_SLOPE] = {"gelu_slope", 1},
    [MGPU_X_SIGMOID] = {"sigmoid", 1},
    [MGPU_X_SOFTPLUS] = {"softplus", 1},
    [MGPU_X_STOP] = {"stop", 1},
    [MGPU_X_ISNAN] = {"isnan", 1},
    [MGPU_X_ISINF] = {"isinf", 1},
    [MGPU_X_ADD] = {"add", 2},
    [MGPU_X_SUB] = {"sub", 2},
    [MGPU_X_MUL] = {"mul", 2},
    [MGPU_X_DIV] = {"div", 2},
    [MGPU_X_MOD] = {"mod", 2},
    [MGPU_X_FMOD] = {"fmod", 2},
    [MGPU_X_POW] = {"pow", 2},
    [MGPU_X_MIN] = {"min", 2},
    [MGPU_X_MAX] = {"max", 2},
    [MGPU_X_AND] = {"and", 2},
    [MGPU_X_OR] = {"or", 2},
    [MGPU_X_XOR] = {"xor", 2},
    [MGPU_X_SHL] = {"shl", 2},
    [MGPU_X_SHR] = {"shr", 2},
    [MGPU_X_EQ] = {"eq", 2},
    [MGPU_X_LT] = {"lt", 2},
    [MGPU_X_LE] = {"le", 2},
    [MGPU_X_MULZ] = {"mulz", 2},
    [MGPU_X_WHERE] = {"where", 3},
};

int mgpu_expr_arity(enum mgpu_expr_code code)
{
    return codes[code].arity;
}

const char *mgpu_expr_code_name(enum mgpu_expr_code code)
{
    return codes[code].name;
}

void mgpu_expr_begin(struct mgpu_expr *e, int inputs)
{
    e->inputs = inputs;
    e->count = 0;
}

static bool same(const struct mgpu_expr_op *a, const struct mgpu_expr_op *b)
{
    return a->code == b->code && a->type == b->type && !memcmp(a->arg, b->arg, sizeof a->arg) &&
           a->integer == b->integer && !memcmp(&a->number, &b->number, sizeof a->number);
}

static int push(struct mgpu_expr *e, struct mgpu_expr_op op)
{
    for (int i = 0; i < e->count; i++)
        if (same(&e->op[i], &op))
            return i;
    if (e->count == MGPU_EXPR_MAX)
        return -1;
    e->op[e->count] = op;
    return e->count++;
}

static struct mgpu_expr_op make(enum mgpu_expr_code code, enum mgpu_dtype type, int a, int b, int c)
{
    return (struct mgpu_expr_op){.code = code, .type = type, .arg = {a, b, c}};
}

int mgpu_expr_input(struct mgpu_expr *e, int input, enum mgpu_dtype type)
{
    struct mgpu_expr_op op = make(MGPU_X_INPUT, type, -1, -1, -1);
    op.integer = input;
    return push(e, op);
}

int mgpu_expr_number(struct mgpu_expr *e, enum mgpu_dtype type, double value)
{
    if (!mgpu_is_float(type))
        return mgpu_expr_integer(e, type, (int64_t)value);
    struct mgpu_expr_op op = make(MGPU_X_CONST, type, -1, -1, -1);
    op.number = type == MGPU_DOUBLE ? value : (double)(float)value;
    return push(e, op);
}

int mgpu_expr_integer(struct mgpu_expr *e, enum mgpu_dtype type, int64_t value)
{
    if (mgpu_is_float(type))
        return mgpu_expr_number(e, type, (double)value);
    struct mgpu_expr_op op = make(MGPU_X_CONST, type, -1, -1, -1);
    op.integer = value;
    return push(e, op);
}

int mgpu_expr_cast(struct mgpu_expr *e, enum mgpu_dtype type, int a)
{
    if (a < 0)
        return -1;
    const struct mgpu_expr_op *from = &e->op[a];
    if (from->type == type)
        return a;
    if (from->code == MGPU_X_CONST && (type == MGPU_FLOAT || type == MGPU_DOUBLE))
        return mgpu_expr_number(e, type,
                                mgpu_is_float(from->type) ? from->number : (double)from->integer);
    return push(e, make(MGPU_X_CAST, type, a, -1, -1));
}

int mgpu_expr_1(struct mgpu_expr *e, enum mgpu_expr_code code, int a)
{
    assert(codes[code].arity == 1 && code != MGPU_X_CAST);
    if (a < 0)
        return -1;
    bool gives_bool = code == MGPU_X_ISNAN || code == MGPU_X_ISINF || code == MGPU_X_NOT;
    const struct mgpu_expr_op *x = &e->op[a];
    if (code == MGPU_X_NEG && x->code == MGPU_X_NEG)
        return x->arg[0];
    if (code == MGPU_X_NEG && x->code == MGPU_X_CONST && mgpu_is_float(x->type))
        return mgpu_expr_number(e, x->type, -x->number);
    return push(e, make(code, gives_bool ? MGPU_BOOL : x->type, a, -1, -1));
}

static bool is_number(const struct mgpu_expr *e, int a, double value)
{
    const struct mgpu_expr_op *op = &e->op[a];
    if (op->code != MGPU_X_CONST)
        return false;
    return mgpu_is_float(op->type) ? op->number == value : (double)op->integer == value;
}

static int fold_float(struct mgpu_expr *e, enum mgpu_expr_code code, int a, int b)
{
    double x = e->op[a].number, y = e->op[b].number;
    enum mgpu_dtype type = e->op[a].type;
    switch (code) {
    case MGPU_X_ADD:
        return mgpu_expr_number(e, type, x + y);
    case MGPU_X_SUB:
        return mgpu_expr_number(e, type, x - y);
    case MGPU_X_MUL:
        return mgpu_expr_number(e, type, x * y);
    case MGPU_X_DIV:
        return mgpu_expr_number(e, type, x / y);
    default:
        return -2;
    }
}

/* What is there already, or -2: a new operation is needed. */
static int simplify(struct mgpu_expr *e, enum mgpu_expr_code code, int a, int b)
{
    bool ca = e->op[a].code == MGPU_X_CONST, cb = e->op[b].code == MGPU_X_CONST;
    if (ca && cb && (e->op[a].type == MGPU_FLOAT || e->op[a].type == MGPU_DOUBLE))
        return fold_float(e, code, a, b);
    if ((code == MGPU_X_ADD && is_number(e, a, 0)) ||
        ((code == MGPU_X_MUL || code == MGPU_X_MULZ) && is_number(e, a, 1)))
        return b;
    if (((code == MGPU_X_ADD || code == MGPU_X_SUB) && is_number(e, b, 0)) ||
        ((code == MGPU_X_MUL || code == MGPU_X_MULZ || code == MGPU_X_DIV) && is_number(e, b, 1)))
        return a;
    if (code == MGPU_X_POW && is_number(e, b, 2)) /* no logarithm of the base: exact, any sign */
        return mgpu_expr_2(e, MGPU_X_MUL, a, a);
    if (code == MGPU_X_POW && is_number(e, b, 1))
        return a;
    if (code == MGPU_X_POW && is_number(e, b, 0.5))
        return mgpu_expr_1(e, MGPU_X_SQRT, a);
    return -2;
}

int mgpu_expr_2(struct mgpu_expr *e, enum mgpu_expr_code code, int a, int b)
{
    assert(codes[code].arity == 2);
    if (a < 0 || b < 0)
        return -1;
    assert(e->op[a].type == e->op[b].type);
    int old = simplify(e, code, a, b);
    if (old != -2)
        return old;
    bool compares = code == MGPU_X_EQ || code == MGPU_X_LT || code == MGPU_X_LE;
    return push(e, make(code, compares ? MGPU_BOOL : e->op[a].type, a, b, -1));
}

int mgpu_expr_where(struct mgpu_expr *e, int condition, int a, int b)
{
    if (condition < 0 || a < 0 || b < 0)
        return -1;
    assert(e->op[condition].type == MGPU_BOOL && e->op[a].type == e->op[b].type);
    return a == b ? a : push(e, make(MGPU_X_WHERE, e->op[a].type, condition, a, b));
}

const struct mgpu_expr *mgpu_expr_end(struct mgpu_expr *e, int result, struct mgpu_arena *arena)
{
    if (result < 0)
        return NULL;
    bool used[MGPU_EXPR_MAX] = {false};
    int number[MGPU_EXPR_MAX], count = 0;
    used[result] = true;
    for (int i = result; i >= 0; i--)
        for (int k = 0; used[i] && k < 3; k++)
            if (e->op[i].arg[k] >= 0)
                used[e->op[i].arg[k]] = true;
    for (int i = 0; i <= result; i++)
        if (used[i])
            number[i] = count++;
    size_t size = sizeof *e - sizeof e->op + (size_t)count * sizeof *e->op;
    struct mgpu_expr *out = mgpu_arena_alloc(arena, size);
    out->inputs = e->inputs;
    out->count = count;
    for (int i = 0; i <= result; i++) {
        if (!used[i])
            continue;
        struct mgpu_expr_op op = e->op[i];
        for (int k = 0; k < 3; k++)
            op.arg[k] = op.arg[k] < 0 ? -1 : number[op.arg[k]];
        out->op[number[i]] = op;
    }
    return out;
}

int mgpu_expr_append(struct mgpu_expr *e, const struct mgpu_expr *from, const int *input)
{
    int number[MGPU_EXPR_MAX];
    for (int i = 0; i < from->count; i++) {
        struct mgpu_expr_op op = from->op[i];
        for (int k = 0; k < 3; k++)
            op.arg[k] = op.arg[k] < 0 ? -1 : number[op.arg[k]];
        number[i] = op.code == MGPU_X_INPUT ? input[op.integer] : push(e, op);
        if (number[i] < 0)
            return -1;
    }
    return number[from->count - 1];
}

/* ---- Derivatives ----------------------------------------------------------------------------- */

static int num(struct mgpu_expr *e, int like, double value)
{
    return like < 0 ? -1 : mgpu_expr_number(e, e->op[like].type, value);
}

static int mulz(struct mgpu_expr *e, int g, int factor)
{
    return mgpu_expr_2(e, MGPU_X_MULZ, g, factor);
}

static int mul(struct mgpu_expr *e, int a, int b)
{
    return mgpu_expr_2(e, MGPU_X_MUL, a, b);
}

static int neg(struct mgpu_expr *e, int a)
{
    return mgpu_expr_1(e, MGPU_X_NEG, a);
}

static int recip(struct mgpu_expr *e, int a)
{
    return mgpu_expr_1(e, MGPU_X_RECIPROCAL, a);
}

/* plus + sign * a^2 */
static int square_and(struct mgpu_expr *e, double plus, double sign, int a)
{
    int square = mul(e, a, a);
    int code = sign < 0 ? MGPU_X_SUB : MGPU_X_ADD;
    return mgpu_expr_2(e, (enum mgpu_expr_code)code, num(e, a, plus), square);
}

static int sqrt_recip(struct mgpu_expr *e, int a)
{
    return recip(e, mgpu_expr_1(e, MGPU_X_SQRT, a));
}

/* The derivative of a unary operation y = f(a), times g; -2 when it is identically zero. */
static int unary(struct mgpu_expr *e, enum mgpu_expr_code code, int a, int y, int g)
{
    switch (code) {
    case MGPU_X_NEG:
        return neg(e, g);
    case MGPU_X_ABS:
        return mul(e, g, mgpu_expr_1(e, MGPU_X_SIGN, a));
    case MGPU_X_RECIPROCAL:
        return mulz(e, g, neg(e, mul(e, y, y)));
    case MGPU_X_SQRT:
        return mulz(e, g, mgpu_expr_2(e, MGPU_X_DIV, num(e, a, 0.5), y));
    case MGPU_X_EXP:
        return mulz(e, g, y);
    case MGPU_X_LOG:
        return mulz(e, g, recip(e, a));
    case MGPU_X_LOG1P:
        return mulz(e, g, recip(e, mgpu_expr_2(e, MGPU_X_ADD, num(e, a, 1), a)));
    case MGPU_X_SIN:
        return mul(e, g, mgpu_expr_1(e, MGPU_X_COS, a));
    case MGPU_X_COS:
        return neg(e, mul(e, g, mgpu_expr_1(e, MGPU_X_SIN, a)));
    case MGPU_X_TAN:
        return mulz(e, g, square_and(e, 1, 1, y));
    case MGPU_X_ASIN:
        return mulz(e, g, sqrt_recip(e, square_and(e, 1, -1, a)));
    case MGPU_X_ACOS:
        return neg(e, mulz(e, g, sqrt_recip(e, square_and(e, 1, -1, a))));
    case MGPU_X_ATAN:
        return mul(e, g, recip(e, square_and(e, 1, 1, a)));
    case MGPU_X_SINH:
        return mulz(e, g, mgpu_expr_1(e, MGPU_X_COSH, a));
    case MGPU_X_COSH:
        return mulz(e, g, mgpu_expr_1(e, MGPU_X_SINH, a));
    case MGPU_X_TANH:
        return mul(e, g, square_and(e, 1, -1, y));
    case MGPU_X_ASINH:
        return mul(e, g, sqrt_recip(e, square_and(e, 1, 1, a)));
    case MGPU_X_ACOSH:
        return mulz(e, g, sqrt_recip(e, square_and(e, -1, 1, a)));
    case MGPU_X_ATANH:
        return mulz(e, g, recip(e, square_and(e, 1, -1, a)));
    case MGPU_X_ERF: { /* 2/sqrt(pi) exp(-a^2) */
        int bell = mgpu_expr_1(e, MGPU_X_EXP, neg(e, mul(e, a, a)));
        return mul(e, g, mul(e, num(e, a, 1.1283791670955126), bell));
    }
    case MGPU_X_GELU:
        return mul(e, g, mgpu_expr_1(e, MGPU_X_GELU_SLOPE, a));
    case MGPU_X_SIGMOID:
        return mul(e, g, mul(e, y, mgpu_expr_2(e, MGPU_X_SUB, num(e, y, 1), y)));
    case MGPU_X_SOFTPLUS:
        return mul(e, g, mgpu_expr_1(e, MGPU_X_SIGMOID, a));
    default: /* steps: sign, floor, ceil, round; stop */
        return -2;
    }
}

static int choose(struct mgpu_expr *e, int condition, int g, bool when)
{
    int zero = num(e, g, 0);
    return mgpu_expr_where(e, condition, when ? g : zero, when ? zero : g);
}

/* The operand that was chosen gets g; of equal ones each half, but a constant all. */
static int extremum(struct mgpu_expr *e, enum mgpu_expr_code code, const int *arg, int side, int g)
{
    int self = arg[side], other = arg[1 - side];
    int won = code == MGPU_X_MAX ? mgpu_expr_2(e, MGPU_X_LT, other, self)
                                 : mgpu_expr_2(e, MGPU_X_LT, self, other);
    if (e->op[other].code == MGPU_X_CONST)
        return choose(e, won, g, true);
    int tie = choose(e, mgpu_expr_2(e, MGPU_X_EQ, self, other), mul(e, g, num(e, g, 0.5)), true);
    return mgpu_expr_where(e, won, g, tie);
}

static int power(struct mgpu_expr *e, const int *arg, int side, int y, int g)
{
    int a = arg[0], b = arg[1];
    if (side == 0) {
        int less = mgpu_expr_2(e, MGPU_X_SUB, b, num(e, b, 1));
        return mulz(e, g, mul(e, b, mgpu_expr_2(e, MGPU_X_POW, a, less)));
    }
    int at_zero = mgpu_expr_2(e, MGPU_X_EQ, a, num(e, a, 0));
    int slope = mul(e, y, mgpu_expr_1(e, MGPU_X_LOG, a));
    return mulz(e, g, mgpu_expr_where(e, at_zero, num(e, a, 0), slope));
}

/* The derivative of y = f(arg[0], arg[1]) by arg[side], times g. */
static int binary(struct mgpu_expr *e, enum mgpu_expr_code code, const int *arg, int side, int y,
                  int g)
{
    int a = arg[0], b = arg[1];
    switch (code) {
    case MGPU_X_ADD:
        return g;
    case MGPU_X_SUB:
        return side ? neg(e, g) : g;
    case MGPU_X_MUL:
    case MGPU_X_MULZ: {
        int other = side ? a : b;
        return e->op[other].code == MGPU_X_CONST ? mul(e, g, other) : mulz(e, g, other);
    }
    case MGPU_X_DIV:
        return side ? mulz(e, g, neg(e, mgpu_expr_2(e, MGPU_X_DIV, y, b)))
                    : mulz(e, g, recip(e, b));
    case MGPU_X_MOD:
    case MGPU_X_FMOD: { /* a = q b + y */
        int q = mgpu_expr_2(e, MGPU_X_DIV, mgpu_expr_2(e, MGPU_X_SUB, a, y), b);
        return side ? neg(e, mul(e, g, q)) : g;
    }
    case MGPU_X_POW:
        return power(e, arg, side, y, g);
    case MGPU_X_MIN:
    case MGPU_X_MAX:
        return extremum(e, code, arg, side, g);
    default:
        return -2;
    }
}

static int one(struct mgpu_expr *e, int op, int side, int g)
{
    struct mgpu_expr_op o = e->op[op];
    int arity = codes[o.code].arity;
    if (o.code == MGPU_X_CAST)
        return mgpu_is_float(e->op[o.arg[0]].type) ? mgpu_expr_cast(e, e->op[o.arg[0]].type, g)
                                                   : -2;
    if (o.code == MGPU_X_WHERE)
        return side == 0 ? -2 : choose(e, o.arg[0], g, side == 1);
    return arity == 1 ? unary(e, o.code, o.arg[0], op, g) : binary(e, o.code, o.arg, side, op, g);
}

int mgpu_expr_derivative(struct mgpu_expr *e, int result, int input, int dy, bool *zero)
{
    bool depends[MGPU_EXPR_MAX] = {false};
    int adjoint[MGPU_EXPR_MAX];
    *zero = true;
    if (result < 0 || dy < 0)
        return -1;
    for (int i = 0; i <= result; i++) {
        adjoint[i] = -2;
        depends[i] = e->op[i].code == MGPU_X_INPUT && e->op[i].integer == input;
        for (int k = 0; k < 3; k++)
            if (e->op[i].arg[k] >= 0 && depends[e->op[i].arg[k]])
                depends[i] = mgpu_is_float(e->op[i].type);
    }
    adjoint[result] = dy;
    int found = -2;
    for (int i = result; i >= 0; i--) {
        if (adjoint[i] == -2 || !depends[i])
            continue;
        if (e->op[i].code == MGPU_X_INPUT) {
            found = adjoint[i];
            continue;
        }
        for (int k = 0; k < codes[e->op[i].code].arity; k++) {
            int arg = e->op[i].arg[k];
            int d = depends[arg] ? one(e, i, k, adjoint[i]) : -2;
            if (d == -1)
                return -1;
            if (d >= 0)
                adjoint[arg] = adjoint[arg] == -2 ? d : mgpu_expr_2(e, MGPU_X_ADD, adjoint[arg], d);
            if (adjoint[arg] == -1)
                return -1;
        }
    }
    *zero = found == -2;
    return *zero ? mgpu_expr_number(e, e->op[dy].type, 0) : found;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static size_t text_of(char *text, size_t size, const struct mgpu_expr *e, int i)
{
    const struct mgpu_expr_op *op = &e->op[i];
    if (op->code == MGPU_X_INPUT)
        return (size_t)snprintf(text, size, "x%" PRId64, op->integer);
    if (op->code == MGPU_X_CONST)
        return (size_t)(mgpu_is_float(op->type) ? snprintf(text, size, "%g", op->number)
                                                : snprintf(text, size, "%" PRId64, op->integer));
    size_t used = (size_t)snprintf(text, size, "%s(",
                                   op->code == MGPU_X_CAST ? mgpu_dtype_name(op->type)
                                                           : codes[op->code].name);
    for (int k = 0; k < codes[op->code].arity; k++) {
        if (k)
            used += (size_t)snprintf(text + (used < size ? used : size),
                                     used < size ? size - used : 0, ", ");
        used += text_of(text + (used < size ? used : size), used < size ? size - used : 0, e,
                        op->arg[k]);
    }
    return used +
           (size_t)snprintf(text + (used < size ? used : size), used < size ? size - used : 0, ")");
}

char *mgpu_expr_text(char *text, size_t size, const struct mgpu_expr *e)
{
    text_of(text, size, e, e->count - 1);
    return text;
}
