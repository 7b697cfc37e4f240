/* Expressions as statements, one an operation. In a formula $0, $1 and $2 are the operands and @ is
 * what tells types apart: the suffix of float's math functions, or i and u for integers. */
#include "runtime/emit/writer.h"

static const char *const float_formula[MGPU_X_CODES] = {
    [MGPU_X_NEG] = "-$0",
    [MGPU_X_ABS] = "fabs@($0)",
    [MGPU_X_SIGN] = "$0 > 0 ? 1 : $0 < 0 ? -1 : $0",
    [MGPU_X_FLOOR] = "floor@($0)",
    [MGPU_X_CEIL] = "ceil@($0)",
    [MGPU_X_ROUND] = "nearbyint@($0)",
    [MGPU_X_RECIPROCAL] = "1 / $0",
    [MGPU_X_SQRT] = "sqrt@($0)",
    [MGPU_X_EXP] = "exp@($0)",
    [MGPU_X_LOG] = "log@($0)",
    [MGPU_X_LOG1P] = "log1p@($0)",
    [MGPU_X_SIN] = "sin@($0)",
    [MGPU_X_COS] = "cos@($0)",
    [MGPU_X_TAN] = "tan@($0)",
    [MGPU_X_ASIN] = "asin@($0)",
    [MGPU_X_ACOS] = "acos@($0)",
    [MGPU_X_ATAN] = "atan@($0)",
    [MGPU_X_SINH] = "sinh@($0)",
    [MGPU_X_COSH] = "cosh@($0)",
    [MGPU_X_TANH] = "tanh@($0)",
    [MGPU_X_ASINH] = "asinh@($0)",
    [MGPU_X_ACOSH] = "acosh@($0)",
    [MGPU_X_ATANH] = "atanh@($0)",
    [MGPU_X_ERF] = "erf@($0)",
    [MGPU_X_GELU] = "gelu@($0)",
    [MGPU_X_GELU_SLOPE] = "gelu_slope@($0)",
    [MGPU_X_SIGMOID] = "sigmoid@($0)",
    [MGPU_X_SOFTPLUS] = "softplus@($0)",
    [MGPU_X_STOP] = "$0",
    [MGPU_X_ISNAN] = "$0 != $0",
    [MGPU_X_ISINF] = "fabs@($0) == INFINITY",
    [MGPU_X_ADD] = "$0 + $1",
    [MGPU_X_SUB] = "$0 - $1",
    [MGPU_X_MUL] = "$0 * $1",
    [MGPU_X_DIV] = "$0 / $1",
    [MGPU_X_MOD] = "modulo@($0, $1)",
    [MGPU_X_FMOD] = "fmod@($0, $1)",
    [MGPU_X_POW] = "pow@($0, $1)",
    [MGPU_X_MIN] = "smaller@($0, $1)",
    [MGPU_X_MAX] = "larger@($0, $1)",
    [MGPU_X_EQ] = "$0 == $1",
    [MGPU_X_LT] = "$0 < $1",
    [MGPU_X_LE] = "$0 <= $1",
    [MGPU_X_MULZ] = "$0 == 0 ? 0 : $0 * $1",
    [MGPU_X_WHERE] = "$0 ? $1 : $2",
};

/* What is not here changes nothing: floor and its like, stop. */
static const char *const integer_formula[MGPU_X_CODES] = {
    [MGPU_X_NEG] = "(i64)(0 - (u64)$0)",
    [MGPU_X_ABS] = "$0 < 0 ? (i64)(0 - (u64)$0) : $0",
    [MGPU_X_SIGN] = "($0 > 0) - ($0 < 0)",
    [MGPU_X_NOT] = "!$0",
    [MGPU_X_BITNOT] = "~$0",
    [MGPU_X_ADD] = "(i64)((u64)$0 + (u64)$1)",
    [MGPU_X_SUB] = "(i64)((u64)$0 - (u64)$1)",
    [MGPU_X_MUL] = "(i64)((u64)$0 * (u64)$1)",
    [MGPU_X_DIV] = "divide_@($0, $1)",
    [MGPU_X_MOD] = "modulo_@($0, $1)",
    [MGPU_X_FMOD] = "rest_@($0, $1)",
    [MGPU_X_POW] = "power_i($0, $1)",
    [MGPU_X_MIN] = "(@64)$0 < (@64)$1 ? $0 : $1",
    [MGPU_X_MAX] = "(@64)$0 < (@64)$1 ? $1 : $0",
    [MGPU_X_AND] = "$0 & $1",
    [MGPU_X_OR] = "$0 | $1",
    [MGPU_X_XOR] = "$0 ^ $1",
    [MGPU_X_SHL] = "$1 < 0 || $1 > 63 ? 0 : (i64)((u64)$0 << $1)",
    [MGPU_X_SHR] = "$1 < 0 || $1 > 63 ? 0 : (i64)((u64)$0 >> $1)",
    [MGPU_X_EQ] = "$0 == $1",
    [MGPU_X_LT] = "(@64)$0 < (@64)$1",
    [MGPU_X_LE] = "(@64)$0 <= (@64)$1",
    [MGPU_X_MULZ] = "(i64)((u64)$0 * (u64)$1)",
    [MGPU_X_WHERE] = "$0 ? $1 : $2",
};

static void write_formula(struct mgpu_writer *w, const char *formula, const struct mgpu_expr_op *op,
                          const char *suffix)
{
    for (const char *at = formula; *at; at++)
        if (*at == '$')
            mgpu_write(w, "v%d", op->arg[*++at - '0']);
        else if (*at == '@')
            mgpu_write(w, "%s", suffix);
        else
            mgpu_write(w, "%c", *at);
}

/* To an integer type or bool: settle() cuts. From a float it saturates. */
static void write_cast(struct mgpu_writer *w, const struct mgpu_expr_op *op, enum mgpu_dtype from)
{
    int a = op->arg[0];
    if (mgpu_is_float(op->type))
        mgpu_write(w, from == MGPU_UINT64 ? "(u64)v%d" : "v%d", a);
    else if (op->type == MGPU_BOOL)
        mgpu_write(w, "v%d != 0", a);
    else if (mgpu_is_float(from))
        mgpu_write(w, "saturate_%s%s(v%d)", mgpu_dtype_name(op->type),
                   from == MGPU_DOUBLE ? "" : "f", a);
    else
        mgpu_write(w, "v%d", a);
}

static void write_value(struct mgpu_writer *w, const struct mgpu_expr *e, int k,
                        const char *const *input)
{
    const struct mgpu_expr_op *op = &e->op[k];
    int choice = op->code == MGPU_X_WHERE; /* its first operand is a bool */
    enum mgpu_dtype from = op->arg[0] < 0 ? op->type : e->op[op->arg[choice]].type;
    bool is_float = mgpu_is_float(from);
    const char *formula = is_float ? float_formula[op->code] : integer_formula[op->code];
    if (op->code == MGPU_X_INPUT)
        mgpu_write(w, "%s", input[op->integer]);
    else if (op->code == MGPU_X_CONST && is_float)
        mgpu_write_number(w, op->type, op->number);
    else if (op->code == MGPU_X_CONST)
        mgpu_write(w, "(i64)0x%llxULL", (unsigned long long)op->integer);
    else if (op->code == MGPU_X_CAST)
        write_cast(w, op, from);
    else
        write_formula(w, formula ? formula : "$0", op,
                      is_float              ? mgpu_math_suffix(from)
                      : from == MGPU_UINT64 ? "u"
                                            : "i");
}

int mgpu_write_expr(struct mgpu_writer *w, const struct mgpu_expr *e, const char *const *input)
{
    for (int k = 0; k < e->count; k++) {
        mgpu_write(w, "        %s v%d = SETTLE_%s(", mgpu_compute_type(e->op[k].type), k,
                   mgpu_dtype_name(e->op[k].type));
        write_value(w, e, k, input);
        mgpu_write(w, ");\n");
    }
    return e->count - 1;
}
