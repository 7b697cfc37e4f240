/* Layers that carry a state from step to step (opset 27): a causal convolution, linear attention.
 */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/conv.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/movement.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- CausalConvWithState --------------------------------------------------------------------- */

/* x [N,C,L] behind what came before it: the last `places` of the steps so far, or zeros. */
static struct mgpu_value *behind_past(struct mgpu_lower *l, struct mgpu_value *x,
                                      struct mgpu_value *past, int64_t places)
{
    struct mgpu_pad_attrs attrs = {.mode = MGPU_PAD_CONSTANT, .before = {0, 0, places}};
    if (past)
        return mgpu_concat(l->g, 2, 2, (struct mgpu_value *[]){past, x});
    return places ? mgpu_lower_node(l, &mgpu_op_pad, &attrs, 1, &x) : x;
}

static int lower_causal_conv(struct mgpu_lower *l)
{
    struct mgpu_value *x = mgpu_lower_in(l, 0), *weight = mgpu_lower_in(l, 1);
    struct mgpu_value *bias = mgpu_lower_in(l, 2), *past = mgpu_lower_in(l, 3);
    const char *activation = mgpu_onnx_string(l->model, l->node, "activation", "none");
    bool swish = !strcmp(activation, "silu") || !strcmp(activation, "swish");
    if (!swish && strcmp(activation, "none"))
        return mgpu_fail(MGPU_EINVALID, "activation '%s'", activation);
    if (!x || !weight || x->rank != 3 || weight->rank != 3 || weight->dims[2].value < 1 ||
        (past && past->rank != 3))
        return mgpu_fail(MGPU_EINVALID, "input, weight and state must have rank 3");
    int64_t before = weight->dims[2].value - 1;
    struct mgpu_conv_attrs attrs = {
        .spatial = 1, .group = x->dims[1].value, .stride = {1}, .dilation = {1}};
    struct mgpu_value *all = behind_past(l, x, past, before);
    struct mgpu_value *input[] = {all, weight, bias};
    if (!all)
        return mgpu_build_error();
    struct mgpu_value *y = mgpu_lower_node(l, &mgpu_op_conv, &attrs, bias ? 3 : 2, input);
    if (swish)
        y = mgpu_mul(l->g, y, mgpu_unary(l->g, MGPU_X_SIGMOID, y));
    l->out[1] = mgpu_slice_axis(l->g, all, 2, all->dims[2].value - before, mgpu_dim_const(before));
    return l->out[1] ? mgpu_lower_give(l, y) : mgpu_build_error();
}

/* ---- LinearAttention ------------------------------------------------------------------------- */

/* All in the type of computation; heads apart: [B,heads,T,size]. */
struct linear {
    struct mgpu_value *q, *k, *v, *decay, *beta, *state; /* state [B,heads,dk,dv] */
    int64_t groups, heads, steps;                        /* query heads of a head */
    double scale;
};

enum { MOST_STEPS = 4096 };

/* [B,T,heads*size] as [B,heads,T,size]. NULL stays NULL. */
static struct mgpu_value *heads_of(struct mgpu_lower *l, struct mgpu_value *x, int64_t heads)
{
    if (!x)
        return NULL;
    if (x->rank != 3 || heads < 1 || x->dims[2].value % heads)
        return mgpu_build_fail(MGPU_EINVALID, "%" PRId64 " heads do not fit an input", heads);
    struct mgpu_dim dims[] = {x->dims[0], x->dims[1], mgpu_dim_const(heads),
                              mgpu_dim_const(x->dims[2].value / heads)};
    enum mgpu_dtype type = x->type == MGPU_DOUBLE ? MGPU_DOUBLE : l->options->float_type;
    return mgpu_transpose(l->g, mgpu_reshape(l->g, mgpu_cast(l->g, x, type), 4, dims),
                          (int[]){0, 2, 1, 3});
}

/* Which inputs the rule takes: 4 (decay) and 5 (beta). */
static int check_rule(struct mgpu_lower *l)
{
    const char *rule = mgpu_onnx_string(l->model, l->node, "update_rule", "gated_delta");
    bool gated = !strncmp(rule, "gated", 5), delta = strstr(rule, "delta");
    if (strcmp(rule, "linear") && strcmp(rule, "gated") && strcmp(rule, "delta") &&
        strcmp(rule, "gated_delta"))
        return mgpu_fail(MGPU_EINVALID, "update_rule '%s'", rule);
    if (gated != (mgpu_lower_in(l, 4) != NULL) || delta != (mgpu_lower_in(l, 5) != NULL))
        return mgpu_fail(MGPU_EINVALID, "decay and beta do not fit update_rule '%s'", rule);
    return 0;
}

static int read_linear(struct mgpu_lower *l, struct linear *a)
{
    int64_t queries = mgpu_onnx_int(l->node, "q_num_heads", 0);
    const struct mgpu_value *beta = mgpu_lower_in(l, 5);
    a->heads = mgpu_onnx_int(l->node, "kv_num_heads", 0);
    if (queries < 1 || a->heads < 1 || queries % a->heads)
        return mgpu_fail(MGPU_EINVALID, "%" PRId64 " heads of queries for %" PRId64, queries,
                         a->heads);
    MGPU_TRY(check_rule(l));
    a->groups = queries / a->heads;
    a->q = heads_of(l, mgpu_lower_in(l, 0), queries);
    a->k = heads_of(l, mgpu_lower_in(l, 1), a->heads);
    a->v = heads_of(l, mgpu_lower_in(l, 2), a->heads);
    a->decay = heads_of(l, mgpu_lower_in(l, 4), a->heads);
    bool one = beta && beta->rank == 3 && beta->dims[2].value == 1;
    a->beta = heads_of(l, mgpu_lower_in(l, 5), one ? 1 : a->heads);
    if (!a->q || !a->k || !a->v || (mgpu_lower_in(l, 4) && !a->decay) || (beta && !a->beta))
        return mgpu_build_error();
    a->steps = a->q->dims[2].value;
    double size = (double)a->q->dims[3].value, scale = mgpu_onnx_float(l->node, "scale", 0);
    a->scale = scale != 0 ? scale : 1 / sqrt(size);
    if (a->steps < 1 || a->steps > MOST_STEPS)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%" PRId64 " steps", a->steps);
    return 0;
}

/* The state before the first step. */
static struct mgpu_value *first_state(struct mgpu_lower *l, const struct linear *a)
{
    struct mgpu_dim dims[] = {a->q->dims[0], a->k->dims[1], a->k->dims[3], a->v->dims[3]};
    if (mgpu_lower_in(l, 3))
        return mgpu_cast(l->g, mgpu_lower_in(l, 3), a->q->type);
    return mgpu_broadcast(l->g, mgpu_const_double(l->g, a->q->type, 0), 4, dims);
}

/* Step t of [B,heads,T,size]: [B,heads,1,size]. */
static struct mgpu_value *at(struct mgpu_lower *l, struct mgpu_value *x, int64_t t)
{
    return x ? mgpu_slice_axis(l->g, x, 2, t, mgpu_dim_const(1)) : NULL;
}

/* One step: the state forgets, takes the key's outer product with the value (or with what the state
 * does not yet give for the key), and is read by the queries. Gives [B,heads,groups,dv]. */
static struct mgpu_value *step(struct mgpu_lower *l, struct linear *a, int64_t t)
{
    struct mgpu_value *k = at(l, a->k, t), *v = at(l, a->v, t), *q = at(l, a->q, t);
    struct mgpu_dim read[] = {a->q->dims[0], a->k->dims[1], mgpu_dim_const(a->groups),
                              a->q->dims[3]};
    if (a->decay) { /* [B,heads,1,dk] beside [B,heads,dk,dv] */
        struct mgpu_value *g = mgpu_unary(l->g, MGPU_X_EXP, at(l, a->decay, t));
        a->state = mgpu_mul(l->g, a->state, mgpu_transpose(l->g, g, (int[]){0, 1, 3, 2}));
    }
    if (a->beta)
        v = mgpu_mul(l->g, at(l, a->beta, t),
                     mgpu_sub(l->g, v, mgpu_matmul(l->g, k, false, a->state, false)));
    a->state = mgpu_add(l->g, a->state, mgpu_matmul(l->g, k, true, v, false));
    return mgpu_matmul(l->g, mgpu_reshape(l->g, q, 4, read), false, a->state, false);
}

static int lower_linear_attention(struct mgpu_lower *l)
{
    struct linear a = {0};
    MGPU_TRY(read_linear(l, &a));
    a.state = first_state(l, &a);
    struct mgpu_value **y = MGPU_NEW_ARRAY(l->g->arena, struct mgpu_value *, a.steps);
    struct mgpu_dim one = mgpu_dim_const(1), queries = mgpu_dim_const(a.heads * a.groups);
    struct mgpu_dim row[] = {a.q->dims[0], one,
                             mgpu_dim_mul(queries, a.v->dims[3])}; /* [B,1,queries*dv] */
    for (int64_t t = 0; t < a.steps; t++)
        if (!(y[t] = mgpu_reshape(l->g, step(l, &a, t), 3, row)))
            return mgpu_build_error();
    struct mgpu_value *out = mgpu_affine(l->g, mgpu_concat(l->g, 1, (int)a.steps, y), a.scale, 0);
    const struct mgpu_value *past = mgpu_lower_in(l, 3), *given = mgpu_lower_in(l, 0);
    l->out[1] = mgpu_cast(l->g, a.state, past ? past->type : given->type);
    return l->out[1] ? mgpu_lower_give(l, mgpu_cast(l->g, out, given->type)) : mgpu_build_error();
}

const struct mgpu_lowering mgpu_lower_state[] = {
    {"CausalConvWithState", 27, 0, lower_causal_conv},
    {"LinearAttention", 27, 0, lower_linear_attention},
    {0},
};
