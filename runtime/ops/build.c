#include "runtime/ops/build.h"

#include "runtime/base/status.h"
#include "runtime/ops/matmul.h"
#include "runtime/ops/pointwise.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local int error_code = MGPU_EINTERNAL;

int mgpu_build_error(void)
{
    return error_code;
}

struct mgpu_value *mgpu_build_fail(int code, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_code = mgpu_fail_text(code, text);
    return NULL;
}

struct mgpu_value *mgpu_build1(struct mgpu_graph *g, const struct mgpu_op *op, const void *attrs,
                               int inputs, struct mgpu_value *const *input)
{
    struct mgpu_value *out[MGPU_MAX_OUTPUTS];
    for (int i = 0; i < op->min_inputs && i < inputs; i++)
        if (!input[i])
            return NULL;
    int rc = mgpu_graph_node(g, op, attrs, inputs, input, op->outputs, out);
    if (rc < 0) {
        error_code = rc;
        return NULL;
    }
    return out[0];
}

struct mgpu_value *mgpu_pointwise(struct mgpu_graph *g, const struct mgpu_expr *expr, int inputs,
                                  struct mgpu_value *const *input)
{
    if (!expr)
        return mgpu_build_fail(MGPU_EUNSUPPORTED, "an expression has more than %d operations",
                               MGPU_EXPR_MAX);
    for (int i = 0; i < inputs; i++)
        if (!input[i])
            return NULL;
    struct mgpu_pointwise_attrs attrs = {.expr = expr};
    return mgpu_build1(g, &mgpu_op_pointwise, &attrs, inputs, input);
}

struct mgpu_value *mgpu_unary(struct mgpu_graph *g, enum mgpu_expr_code code, struct mgpu_value *a)
{
    if (!a)
        return NULL;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int y = mgpu_expr_1(&e, code, mgpu_expr_input(&e, 0, a->type));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 1, &a);
}

struct mgpu_value *mgpu_binary(struct mgpu_graph *g, enum mgpu_expr_code code, struct mgpu_value *a,
                               struct mgpu_value *b)
{
    if (!a || !b)
        return NULL;
    if (a->type != b->type)
        return mgpu_build_fail(MGPU_EINVALID, "%s of %s and %s", mgpu_expr_code_name(code),
                               mgpu_dtype_name(a->type), mgpu_dtype_name(b->type));
    struct mgpu_expr e;
    struct mgpu_value *input[] = {a, b};
    int inputs = a == b ? 1 : 2;
    mgpu_expr_begin(&e, inputs);
    int x = mgpu_expr_input(&e, 0, a->type);
    int y = mgpu_expr_2(&e, code, x, a == b ? x : mgpu_expr_input(&e, 1, b->type));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), inputs, input);
}

struct mgpu_value *mgpu_add(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b)
{
    return mgpu_binary(g, MGPU_X_ADD, a, b);
}

struct mgpu_value *mgpu_sub(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b)
{
    return mgpu_binary(g, MGPU_X_SUB, a, b);
}

struct mgpu_value *mgpu_mul(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b)
{
    return mgpu_binary(g, MGPU_X_MUL, a, b);
}

struct mgpu_value *mgpu_div(struct mgpu_graph *g, struct mgpu_value *a, struct mgpu_value *b)
{
    return mgpu_binary(g, MGPU_X_DIV, a, b);
}

struct mgpu_value *mgpu_where(struct mgpu_graph *g, struct mgpu_value *condition,
                              struct mgpu_value *a, struct mgpu_value *b)
{
    if (!condition || !a || !b)
        return NULL;
    if (condition->type != MGPU_BOOL || a->type != b->type)
        return mgpu_build_fail(MGPU_EINVALID, "where of %s, %s and %s",
                               mgpu_dtype_name(condition->type), mgpu_dtype_name(a->type),
                               mgpu_dtype_name(b->type));
    struct mgpu_expr e;
    struct mgpu_value *input[] = {condition, a, b};
    mgpu_expr_begin(&e, 3);
    int c = mgpu_expr_input(&e, 0, MGPU_BOOL), x = mgpu_expr_input(&e, 1, a->type);
    int y = mgpu_expr_where(&e, c, x, mgpu_expr_input(&e, 2, b->type));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 3, input);
}

struct mgpu_value *mgpu_cast(struct mgpu_graph *g, struct mgpu_value *a, enum mgpu_dtype type)
{
    if (!a || a->type == type)
        return a;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int y = mgpu_expr_cast(&e, type, mgpu_expr_input(&e, 0, a->type));
    return mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 1, &a);
}

struct mgpu_value *mgpu_copy(struct mgpu_graph *g, struct mgpu_value *a)
{
    if (!a)
        return NULL;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int x = mgpu_expr_input(&e, 0, a->type);
    return mgpu_pointwise(g, mgpu_expr_end(&e, x, g->arena), 1, &a);
}

struct mgpu_value *mgpu_affine(struct mgpu_graph *g, struct mgpu_value *a, double factor,
                               double offset)
{
    if (!a)
        return NULL;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 1);
    int x = mgpu_expr_input(&e, 0, a->type);
    int y = mgpu_expr_2(&e, MGPU_X_MUL, x, mgpu_expr_number(&e, a->type, factor));
    y = mgpu_expr_2(&e, MGPU_X_ADD, y, mgpu_expr_number(&e, a->type, offset));
    return y == x ? a : mgpu_pointwise(g, mgpu_expr_end(&e, y, g->arena), 1, &a);
}

struct mgpu_value *mgpu_const_double(struct mgpu_graph *g, enum mgpu_dtype type, double value)
{
    char element[8];
    mgpu_set_double(element, type, 0, value);
    return mgpu_graph_constant(g, NULL, type, 0, NULL, element, NULL);
}

struct mgpu_value *mgpu_const_ints(struct mgpu_graph *g, int count, const int64_t *values)
{
    struct mgpu_dim n = mgpu_dim_const(count);
    return mgpu_graph_constant(g, NULL, MGPU_INT64, 1, &n, values, NULL);
}

struct mgpu_value *mgpu_const_dims(struct mgpu_graph *g, int count, const struct mgpu_dim *dims)
{
    int64_t values[MGPU_MAX_RANK];
    for (int i = 0; i < count; i++)
        values[i] = dims[i].value;
    struct mgpu_dim n = mgpu_dim_const(count);
    return mgpu_graph_constant(g, NULL, MGPU_INT64, 1, &n, values, dims);
}

struct mgpu_value *mgpu_matmul(struct mgpu_graph *g, struct mgpu_value *a, bool transpose_a,
                               struct mgpu_value *b, bool transpose_b)
{
    struct mgpu_matmul_attrs attrs = {.transpose_a = transpose_a, .transpose_b = transpose_b};
    struct mgpu_value *input[] = {a, b};
    return mgpu_build1(g, &mgpu_op_matmul, &attrs, 2, input);
}
