/* Training written as nodes (ai.onnx.preview.training). An update's outputs are each one pointwise
 * expression of the rate R, the number of updates T, a tensor X, its gradient G and its states. */
#include "importer/lower_walk.h"

#include "runtime/base/status.h"
#include "runtime/graph/gradient.h"

#include <string.h>

enum { R, T, X, G, STATE, MOST_INPUTS = 6 };

/* The operands of one tensor's update as operations of e, all of X's type. */
struct update {
    const struct mgpu_lower *l;
    struct mgpu_expr e;
    enum mgpu_dtype type;
    int in[MOST_INPUTS];
};

static double attribute(const struct update *u, const char *name, double otherwise)
{
    return mgpu_onnx_float(u->l->node, name, otherwise);
}

static int op(struct update *u, enum mgpu_expr_code code, int a, int b)
{
    return mgpu_expr_2(&u->e, code, a, b);
}

static int number(struct update *u, double value)
{
    return mgpu_expr_number(&u->e, u->type, value);
}

/* a * x + b * y */
static int blend(struct update *u, double a, int x, double b, int y)
{
    return op(u, MGPU_X_ADD, op(u, MGPU_X_MUL, number(u, a), x),
              op(u, MGPU_X_MUL, number(u, b), y));
}

/* The gradient with that of norm_coefficient/2 * |X|^2. */
static int regularized(struct update *u)
{
    return blend(u, attribute(u, "norm_coefficient", 0), u->in[X], 1, u->in[G]);
}

static int step(struct update *u, int rate, int direction)
{
    return op(u, MGPU_X_SUB, u->in[X], op(u, MGPU_X_MUL, rate, direction));
}

/* Whether T > 0. */
static int started(struct update *u)
{
    return op(u, MGPU_X_LT, number(u, 0), u->in[T]);
}

static int root(struct update *u, int h)
{
    return op(u, MGPU_X_ADD, mgpu_expr_1(&u->e, MGPU_X_SQRT, h),
              number(u, attribute(u, "epsilon", 1e-6)));
}

/* result[0] is X's operation, result[1..] are those of the states. */
typedef void rule(struct update *u, int *result);

static void adagrad(struct update *u, int *result)
{
    int g = regularized(u), h = op(u, MGPU_X_ADD, u->in[STATE], op(u, MGPU_X_MUL, g, g));
    double decay = attribute(u, "decay_factor", 0);
    int rate = op(u, MGPU_X_DIV, u->in[R], blend(u, decay, u->in[T], 1, number(u, 1)));
    result[0] = step(u, rate, op(u, MGPU_X_DIV, g, root(u, h)));
    result[1] = h;
}

static void momentum(struct update *u, int *result)
{
    double alpha = attribute(u, "alpha", 0);
    bool nesterov = !strcmp(mgpu_onnx_string(u->l->model, u->l->node, "mode", ""), "nesterov");
    int g = regularized(u), beta = number(u, attribute(u, "beta", 0));
    int factor = mgpu_expr_where(&u->e, started(u), beta, number(u, 1));
    int v = op(u, MGPU_X_ADD, op(u, MGPU_X_MUL, number(u, alpha), u->in[STATE]),
               op(u, MGPU_X_MUL, factor, g));
    result[0] = step(u, u->in[R], nesterov ? blend(u, 1, g, alpha, v) : v);
    result[1] = v;
}

static void adam(struct update *u, int *result)
{
    double alpha = attribute(u, "alpha", (double)0.9f), beta = attribute(u, "beta", (double)0.999f);
    int g = regularized(u), one = number(u, 1);
    int v = blend(u, alpha, u->in[STATE], 1 - alpha, g);
    int h = blend(u, beta, u->in[STATE + 1], 1 - beta, op(u, MGPU_X_MUL, g, g));
    int first = op(u, MGPU_X_SUB, one, op(u, MGPU_X_POW, number(u, alpha), u->in[T]));
    int second = op(u, MGPU_X_SUB, one, op(u, MGPU_X_POW, number(u, beta), u->in[T]));
    int corrected = op(u, MGPU_X_MUL, u->in[R], mgpu_expr_1(&u->e, MGPU_X_SQRT, second));
    corrected = op(u, MGPU_X_DIV, corrected, first);
    int rate = mgpu_expr_where(&u->e, started(u), corrected, u->in[R]);
    int x = step(u, rate, op(u, MGPU_X_DIV, v, root(u, h)));
    double post = attribute(u, "norm_coefficient_post", 0);
    result[0] = op(u, MGPU_X_MUL, number(u, 1 - post), x);
    result[1] = v;
    result[2] = h;
}

/* Result `which` for tensor k of n, by the rule. */
static struct mgpu_value *updated(struct mgpu_lower *l, rule *f, int states, int k, int n,
                                  int which)
{
    struct mgpu_value *input[MOST_INPUTS] = {mgpu_lower_in(l, R), mgpu_lower_in(l, T)};
    struct update u = {.l = l};
    int result[MOST_INPUTS], inputs = STATE + states;
    for (int i = X; i < inputs; i++)
        input[i] = mgpu_lower_in(l, X + (i - X) * n + k);
    for (int i = 0; i < inputs; i++)
        if (!input[i])
            return mgpu_build_fail(MGPU_EINVALID, "an input is missing");
    u.type = input[X]->type;
    if (!mgpu_is_float(u.type))
        return mgpu_build_fail(MGPU_EINVALID, "%s of %s", l->node->type, mgpu_dtype_name(u.type));
    mgpu_expr_begin(&u.e, inputs);
    for (int i = 0; i < inputs; i++) {
        int in = mgpu_expr_input(&u.e, i, input[i]->type);
        u.in[i] = mgpu_expr_cast(&u.e, u.type, in);
    }
    f(&u, result);
    return mgpu_pointwise(l->g, mgpu_expr_end(&u.e, result[which], l->g->arena), inputs, input);
}

/* Inputs R, T, then X, G and each state of n tensors; outputs X and each state of all. */
static int update(struct mgpu_lower *l, rule *f, int states)
{
    int kinds = 2 + states, n = (l->node->inputs - 2) / kinds;
    if (n < 1 || l->node->inputs != 2 + n * kinds ||
        n * (1 + states) > (int)(sizeof l->out / sizeof *l->out))
        return mgpu_fail(MGPU_EUNSUPPORTED, "%d inputs", l->node->inputs);
    for (int which = 0; which <= states; which++)
        for (int k = 0; k < n; k++) {
            int i = which * n + k;
            if (mgpu_lower_wants(l, i) && !(l->out[i] = updated(l, f, states, k, n, which)))
                return mgpu_build_error();
        }
    return 0;
}

static int lower_adagrad(struct mgpu_lower *l)
{
    return update(l, adagrad, 1);
}

static int lower_momentum(struct mgpu_lower *l)
{
    return update(l, momentum, 1);
}

static int lower_adam(struct mgpu_lower *l)
{
    return update(l, adam, 2);
}

/* ---- Gradient ------------------------------------------------------------------------------- */

/* The value that the i-th name in `xs` means: it must be input i, and move. */
static int by_name(struct mgpu_lower *l, const Onnx__AttributeProto *xs, int i,
                   struct mgpu_value **out)
{
    const char *name =
        mgpu_arena_format(l->walk->arena, "%.*s", (int)xs->strings[i].len, xs->strings[i].data);
    *out = mgpu_lower_in(l, i);
    if (!*out || *out != mgpu_names_get(l->walk->values, name))
        return mgpu_fail(MGPU_EUNSUPPORTED, "input %d is not the value called '%s'", i, name);
    if ((*out)->kind == MGPU_VALUE_CONSTANT || !mgpu_is_float((*out)->type))
        return mgpu_fail(MGPU_EUNSUPPORTED, "'%s' is a constant or no floating number", name);
    return 0;
}

/* The gradient of the sum of y by each of xs. */
static int lower_gradient(struct mgpu_lower *l)
{
    enum { MOST = sizeof l->out / sizeof *l->out };
    const Onnx__AttributeProto *xs =
        mgpu_onnx_typed(l->node, "xs", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS);
    struct mgpu_value *x[MOST], *dx[MOST];
    struct mgpu_value *y =
        mgpu_names_get(l->walk->values, mgpu_onnx_string(l->model, l->node, "y", ""));
    if (!y || y->kind != MGPU_VALUE_RESULT || !mgpu_is_float(y->type) || !xs ||
        xs->n_strings > MOST || (int)xs->n_strings > l->node->inputs)
        return mgpu_fail(MGPU_EUNSUPPORTED, "its attributes do not name computed values");
    for (int i = 0; i < (int)xs->n_strings; i++)
        MGPU_TRY(by_name(l, xs, i, &x[i]));
    y = mgpu_reduce(l->g, MGPU_REDUCE_SUM, y, (1u << y->rank) - 1, false);
    if (!y)
        return mgpu_build_error();
    MGPU_TRY(mgpu_gradient_of(l->g, y, (int)xs->n_strings, x, dx));
    for (int i = 0; i < (int)xs->n_strings; i++) {
        struct mgpu_value *zero = mgpu_const_double(l->g, x[i]->type, 0);
        l->out[i] = dx[i] ? dx[i] : mgpu_broadcast(l->g, zero, x[i]->rank, x[i]->dims);
        if (!l->out[i])
            return mgpu_build_error();
    }
    return 0;
}

const struct mgpu_lowering mgpu_lower_training[] = {
    {"ai.onnx.preview.training.Adagrad", 1, 0, lower_adagrad},
    {"ai.onnx.preview.training.Momentum", 1, 0, lower_momentum},
    {"ai.onnx.preview.training.Adam", 1, 0, lower_adam},
    {"ai.onnx.preview.training.Gradient", 1, 0, lower_gradient},
    {0},
};
