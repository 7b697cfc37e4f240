/* Comparisons, choices, casts and bits. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/movement.h"
#include "runtime/ops/pointwise.h"

#include <string.h>

static int two(struct mgpu_lower *l, struct mgpu_value **a, struct mgpu_value **b)
{
    *a = mgpu_lower_in(l, 0);
    *b = mgpu_lower_in(l, 1);
    if (!*a || !*b)
        return mgpu_fail(MGPU_EINVALID, "an operand is missing");
    *b = mgpu_lower_spread(l, *a, *b);
    return *b ? 0 : mgpu_build_error();
}

/* `code` of the operands, or of the operands the other way round. */
static int compare(struct mgpu_lower *l, enum mgpu_expr_code code, bool turned)
{
    struct mgpu_value *a, *b;
    MGPU_TRY(two(l, &a, &b));
    return mgpu_lower_give(l, mgpu_binary(l->g, code, turned ? b : a, turned ? a : b));
}

static int lower_equal(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_EQ, false);
}

static int lower_less(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_LT, false);
}

static int lower_greater(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_LT, true);
}

static int lower_less_or_equal(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_LE, false);
}

static int lower_greater_or_equal(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_LE, true);
}

static int lower_and(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_AND, false);
}

static int lower_or(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_OR, false);
}

static int lower_xor(struct mgpu_lower *l)
{
    return compare(l, MGPU_X_XOR, false);
}

static int lower_bit_shift(struct mgpu_lower *l)
{
    const char *direction = mgpu_onnx_string(l->model, l->node, "direction", "");
    if (strcmp(direction, "LEFT") && strcmp(direction, "RIGHT"))
        return mgpu_fail(MGPU_EINVALID, "direction '%s'", direction);
    return compare(l, *direction == 'L' ? MGPU_X_SHL : MGPU_X_SHR, false);
}

static int lower_not(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, mgpu_unary(l->g, MGPU_X_NOT, mgpu_lower_in(l, 0)));
}

static int lower_bitwise_not(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, mgpu_unary(l->g, MGPU_X_BITNOT, mgpu_lower_in(l, 0)));
}

static int lower_is_nan(struct mgpu_lower *l)
{
    return mgpu_lower_give(l, mgpu_unary(l->g, MGPU_X_ISNAN, mgpu_lower_in(l, 0)));
}

static int lower_is_inf(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    bool below = mgpu_onnx_int(l->node, "detect_negative", 1);
    bool above = mgpu_onnx_int(l->node, "detect_positive", 1);
    struct mgpu_expr e;
    if (!x)
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    mgpu_expr_begin(&e, 1);
    int a = mgpu_expr_input(&e, 0, x->type), zero = mgpu_expr_number(&e, x->type, 0);
    int never = mgpu_expr_integer(&e, MGPU_BOOL, 0);
    int y = mgpu_expr_1(&e, MGPU_X_ISINF, a);
    if (!below)
        y = mgpu_expr_where(&e, mgpu_expr_2(&e, MGPU_X_LT, a, zero), never, y);
    if (!above)
        y = mgpu_expr_where(&e, mgpu_expr_2(&e, MGPU_X_LT, zero, a), never, y);
    return mgpu_lower_give(l, mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 1, &x));
}

static int lower_where(struct mgpu_lower *l)
{
    struct mgpu_value *a = mgpu_lower_in(l, 1), *b = mgpu_lower_in(l, 2);
    if (!mgpu_lower_in(l, 0) || !a || !b)
        return mgpu_fail(MGPU_EINVALID, "an operand is missing");
    return mgpu_lower_give(l, mgpu_where(l->g, mgpu_lower_in(l, 0), a, b));
}

/* The names that Cast had for types before opset 6. */
static int64_t named_type(const char *name)
{
    static const struct {
        const char *name;
        enum mgpu_dtype type;
    } types[] = {
        {"FLOAT", MGPU_FLOAT},   {"UINT8", MGPU_UINT8},   {"INT8", MGPU_INT8},
        {"UINT16", MGPU_UINT16}, {"INT16", MGPU_INT16},   {"INT32", MGPU_INT32},
        {"INT64", MGPU_INT64},   {"BOOL", MGPU_BOOL},     {"FLOAT16", MGPU_FLOAT16},
        {"DOUBLE", MGPU_DOUBLE}, {"UINT32", MGPU_UINT32}, {"UINT64", MGPU_UINT64},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, types[i].name))
            return types[i].type;
    return MGPU_UNDEFINED;
}

static int lower_cast(struct mgpu_lower *l)
{
    enum mgpu_dtype type;
    int64_t to = l->node->opset < 6 ? named_type(mgpu_onnx_string(l->model, l->node, "to", ""))
                                    : mgpu_onnx_int(l->node, "to", 0);
    MGPU_TRY(mgpu_lower_type(l, to, &type));
    if (!mgpu_lower_in(l, 0))
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    return mgpu_lower_give(l, mgpu_cast(l->g, mgpu_lower_in(l, 0), type));
}

static int lower_cast_like(struct mgpu_lower *l)
{
    const struct mgpu_value *like = mgpu_lower_in(l, 1);
    if (!mgpu_lower_in(l, 0) || !like)
        return mgpu_fail(MGPU_EINVALID, "an input is missing");
    return mgpu_lower_give(l, mgpu_cast(l->g, mgpu_lower_in(l, 0), like->type));
}

static int lower_bit_cast(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    enum mgpu_dtype type;
    MGPU_TRY(mgpu_lower_type(l, mgpu_onnx_int(l->node, "to", 0), &type));
    if (!x)
        return mgpu_fail(MGPU_EINVALID, "input 0 is missing");
    struct mgpu_bit_cast_attrs attrs = {.type = type};
    return mgpu_lower_give(l, mgpu_lower_node(l, &mgpu_op_bit_cast, &attrs, 1, &x));
}

const struct mgpu_lowering mgpu_lower_logic[] = {
    {"Equal", 1, 0, lower_equal},
    {"Less", 1, 0, lower_less},
    {"Greater", 1, 0, lower_greater},
    {"LessOrEqual", 12, 0, lower_less_or_equal},
    {"GreaterOrEqual", 12, 0, lower_greater_or_equal},
    {"And", 1, 0, lower_and},
    {"Or", 1, 0, lower_or},
    {"Xor", 1, 0, lower_xor},
    {"Not", 1, 0, lower_not},
    {"BitwiseAnd", 18, 0, lower_and},
    {"BitwiseOr", 18, 0, lower_or},
    {"BitwiseXor", 18, 0, lower_xor},
    {"BitwiseNot", 18, 0, lower_bitwise_not},
    {"BitShift", 11, 0, lower_bit_shift},
    {"IsNaN", 9, 0, lower_is_nan},
    {"IsInf", 10, 0, lower_is_inf},
    {"Where", 9, 0, lower_where},
    {"BitCast", 26, 0, lower_bit_cast},
    {"Cast", 1, 0, lower_cast},
    {"CastLike", 15, 0, lower_cast_like},
    {0},
};
