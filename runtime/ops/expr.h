/* Pointwise expressions: the one language of all activations, arithmetic, comparisons and casts.
 *
 * An expression is a short list of operations in single assignment: each gives one value that later
 * ones use by number; the last is the result. The same list is interpreted tile by tile on the CPU,
 * differentiated symbolically, and can be printed as C for a GPU. Every operation has a type.
 * Floats are computed in their type (half types as float, rounded when stored); integers as 64 bit
 * and cut to their type after each operation (wrapping); comparisons give bool.
 */
#ifndef MGPU_OPS_EXPR_H
#define MGPU_OPS_EXPR_H

#include "runtime/base/dtype.h"
#include "runtime/base/memory.h"

enum mgpu_expr_code {
    /* no operand */
    MGPU_X_INPUT, /* element of input number `integer` */
    MGPU_X_CONST, /* `number` for float types, `integer` else */
    /* one operand */
    MGPU_X_CAST, /* to `type`; like mgpu_convert */
    MGPU_X_NEG,
    MGPU_X_ABS,
    MGPU_X_SIGN,
    MGPU_X_NOT,    /* bool */
    MGPU_X_BITNOT, /* integers */
    MGPU_X_FLOOR,
    MGPU_X_CEIL,
    MGPU_X_ROUND, /* half to even */
    MGPU_X_RECIPROCAL,
    MGPU_X_SQRT,
    MGPU_X_EXP,
    MGPU_X_LOG,
    MGPU_X_LOG1P,
    MGPU_X_SIN,
    MGPU_X_COS,
    MGPU_X_TAN,
    MGPU_X_ASIN,
    MGPU_X_ACOS,
    MGPU_X_ATAN,
    MGPU_X_SINH,
    MGPU_X_COSH,
    MGPU_X_TANH,
    MGPU_X_ASINH,
    MGPU_X_ACOSH,
    MGPU_X_ATANH,
    MGPU_X_ERF,
    MGPU_X_GELU, /* tanh's form: a/2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3))) (compile/gelu.c) */
    MGPU_X_GELU_SLOPE, /* its derivative; made by gradients, has none itself */
    MGPU_X_SIGMOID,    /* 1/(1+exp(-a)), without overflow */
    MGPU_X_SOFTPLUS,   /* log(1+exp(a)), without overflow */
    MGPU_X_STOP,       /* the same value; its derivative is zero */
    MGPU_X_ISNAN,      /* bool */
    MGPU_X_ISINF,      /* bool, either sign */
    /* two operands of one type */
    MGPU_X_ADD,
    MGPU_X_SUB,
    MGPU_X_MUL,
    MGPU_X_DIV,  /* integers truncate toward zero; x/0 is 0 for integers */
    MGPU_X_MOD,  /* sign of the divisor (Python's) */
    MGPU_X_FMOD, /* sign of the dividend (C's) */
    MGPU_X_POW,
    /* NaN when either is. Equal operands get half the derivative each (as PyTorch); a constant
     * operand gets all of it (relu'(0) = 0, and 0 at the bounds of a clip, as PyTorch's hardtanh).
     */
    MGPU_X_MIN,
    MGPU_X_MAX,
    MGPU_X_AND, /* bool; bitwise on integers */
    MGPU_X_OR,
    MGPU_X_XOR,
    MGPU_X_SHL,
    MGPU_X_SHR,
    MGPU_X_EQ, /* bool */
    MGPU_X_LT, /* bool */
    MGPU_X_LE, /* bool */
    /* a * b, but 0 where a == 0 whatever b is: for gradients, so that a branch that was not chosen
     * sends zero and not 0 * inf */
    MGPU_X_MULZ,
    /* three: bool c ? a : b */
    MGPU_X_WHERE,
    MGPU_X_CODES
};

enum { MGPU_EXPR_MAX = 64 }; /* operations of one expression */

struct mgpu_expr_op {
    enum mgpu_expr_code code;
    enum mgpu_dtype type; /* of the result */
    int arg[3];           /* numbers of earlier operations; -1: none */
    int64_t integer;
    double number;
};

struct mgpu_expr {
    int inputs;
    int count;
    struct mgpu_expr_op op[MGPU_EXPR_MAX]; /* arena copies hold only `count` of them */
};

/* Operands of a code: 0 to 3. Its name for printing: "add". */
int mgpu_expr_arity(enum mgpu_expr_code code);
const char *mgpu_expr_code_name(enum mgpu_expr_code code);

/* ---- Building. Each returns the number of the new operation (equal ones are shared, constants are
 * folded, x*1, x+0 and the like vanish), or -1 when the expression is full; -1 as an operand gives
 * -1, so only the end needs a check. --------------------------------------------------------- */

void mgpu_expr_begin(struct mgpu_expr *e, int inputs);
int mgpu_expr_input(struct mgpu_expr *e, int input, enum mgpu_dtype type);
int mgpu_expr_number(struct mgpu_expr *e, enum mgpu_dtype type, double value);
int mgpu_expr_integer(struct mgpu_expr *e, enum mgpu_dtype type, int64_t value);
int mgpu_expr_cast(struct mgpu_expr *e, enum mgpu_dtype type, int a);
int mgpu_expr_1(struct mgpu_expr *e, enum mgpu_expr_code code, int a);
int mgpu_expr_2(struct mgpu_expr *e, enum mgpu_expr_code code, int a, int b);
int mgpu_expr_where(struct mgpu_expr *e, int condition, int a, int b);

/* Keeps only what `result` needs, makes it the last operation, and copies into the arena.
 * NULL when result is -1. */
const struct mgpu_expr *mgpu_expr_end(struct mgpu_expr *e, int result, struct mgpu_arena *arena);

/* Appends to `e` all operations of `from`, with input i of `from` replaced by operation input[i] of
 * e; gives the number of from's result. */
int mgpu_expr_append(struct mgpu_expr *e, const struct mgpu_expr *from, const int *input);

/* d(result)/d(input k) times operation `dy`, appended to `e`, which must already hold the
 * operations of the expression being differentiated, op [0, result]. Gives the number of the
 * derivative, or -1 when full; *zero is set when the derivative is identically zero. */
int mgpu_expr_derivative(struct mgpu_expr *e, int result, int input, int dy, bool *zero);

/* Text such as "max(x0, 0)", for messages and tests; returns text. */
char *mgpu_expr_text(char *text, size_t size, const struct mgpu_expr *e);

#endif
