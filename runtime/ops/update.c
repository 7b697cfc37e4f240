#include "runtime/ops/update.h"

#include "runtime/base/status.h"

#include <stdio.h>

/* Inputs of update. */
enum { W, G, STEP, LR_FACTOR, COEFFICIENT, STATE };
enum { MOST_STATES = 3 };
_Static_assert(MGPU_UPDATE_FACTOR == STATE + MOST_STATES, "the factor stands behind the states");
_Static_assert(MGPU_UPDATE_ROUNDED == 1 + MOST_STATES, "and the rounded weight");

static const struct mgpu_update_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

/* Keras's holds the learning rate, PyTorch's does not. */
static const char *momentum_name(const struct mgpu_update_attrs *a)
{
    return a->style == MGPU_STYLE_TORCH ? "momentum" : "velocity";
}

static int state_names(const struct mgpu_update_attrs *a, const char *names[MOST_STATES])
{
    int n = 0;
    switch ((enum mgpu_optimizer_kind)a->kind) {
    case MGPU_SGD:
        if (a->momentum != 0)
            names[n++] = momentum_name(a);
        break;
    case MGPU_ADAM:
    case MGPU_ADAMW:
        names[n++] = "exp_avg";
        names[n++] = "exp_avg_sq";
        if (a->amsgrad)
            names[n++] = "max_exp_avg_sq";
        break;
    case MGPU_RMSPROP:
        names[n++] = "square_avg";
        if (a->momentum != 0)
            names[n++] = momentum_name(a);
        if (a->centered)
            names[n++] = "grad_avg";
        break;
    case MGPU_ADAGRAD:
        names[n++] = "sum";
        break;
    case MGPU_LAMB:
        names[n++] = "exp_avg";
        names[n++] = "exp_avg_sq";
        break;
    }
    return n;
}

bool mgpu_is_update(const struct mgpu_node *node)
{
    return node->op == &mgpu_op_update || node->op == &mgpu_op_product_update;
}

bool mgpu_update_is_pointwise(const struct mgpu_node *node)
{
    return attrs_of(node)->kind != MGPU_LAMB;
}

int mgpu_update_states(const struct mgpu_update_attrs *attrs, double start[MOST_STATES])
{
    const char *names[MOST_STATES];
    int count = state_names(attrs, names);
    for (int i = 0; i < count; i++)
        start[i] = attrs->kind == MGPU_ADAGRAD ? attrs->initial_accumulator_value : 0;
    return count;
}

const char *mgpu_update_state_name(const struct mgpu_update_attrs *attrs, int state)
{
    const char *names[MOST_STATES];
    return state >= 0 && state < state_names(attrs, names) ? names[state] : NULL;
}

static int check_scalar(const struct mgpu_node *node, int i, const char *what)
{
    const struct mgpu_value *v = i < node->inputs ? node->input[i] : NULL;
    if (!v || (v->type == MGPU_DOUBLE && v->rank == 0))
        return 0;
    return mgpu_fail(MGPU_EINVALID, "update: %s must be one double", what);
}

static int check_like(const struct mgpu_node *node, int i, const char *what)
{
    char tw[MGPU_VALUE_TEXT], tv[MGPU_VALUE_TEXT];
    const struct mgpu_value *w = node->input[W], *v = i < node->inputs ? node->input[i] : NULL;
    bool same = v && v->type == w->type && v->rank == w->rank;
    for (int k = 0; same && k < w->rank; k++)
        same = v->dims[k].value == w->dims[k].value;
    if (same)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "update of %s: its %s is %s", mgpu_value_text(tw, NULL, w),
                     what, v ? mgpu_value_text(tv, NULL, v) : "missing");
}

/* Outputs that there are not are empty. */
static int shape_outputs(const struct mgpu_node *node)
{
    const struct mgpu_value *w = node->input[W];
    const char *names[MOST_STATES];
    struct mgpu_dim none = mgpu_dim_const(0);
    int states = state_names(attrs_of(node), names);
    if (w->type != MGPU_FLOAT && w->type != MGPU_DOUBLE)
        return mgpu_fail(MGPU_EUNSUPPORTED, "update of a weight in %s", mgpu_dtype_name(w->type));
    MGPU_TRY(check_scalar(node, STEP, "the step"));
    MGPU_TRY(check_scalar(node, LR_FACTOR, "the rate's factor"));
    MGPU_TRY(check_scalar(node, COEFFICIENT, "the gradient's coefficient"));
    for (int i = 0; i < states; i++)
        MGPU_TRY(check_like(node, STATE + i, names[i]));
    mgpu_shape_like(node, 0, w);
    for (int i = 0; i < MOST_STATES; i++)
        if (i < states)
            mgpu_shape_like(node, 1 + i, w);
        else
            mgpu_shape_set(node, 1 + i, w->type, 1, &none);
    if (attrs_of(node)->rounded)
        mgpu_shape_set(node, MGPU_UPDATE_ROUNDED, attrs_of(node)->rounded, w->rank, w->dims);
    else
        mgpu_shape_set(node, MGPU_UPDATE_ROUNDED, w->type, 1, &none);
    return 0;
}

static int shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_like(node, G, "gradient"));
    return shape_outputs(node);
}

static bool rows_fit(const struct mgpu_node *node)
{
    const struct mgpu_value *w = node->input[W], *rows, *indices;
    if (node->inputs <= MGPU_UPDATE_ROWS)
        return true;
    rows = node->input[MGPU_UPDATE_ROWS];
    indices = node->inputs > MGPU_UPDATE_INDICES ? node->input[MGPU_UPDATE_INDICES] : NULL;
    return rows && indices && rows->type == w->type && rows->rank > 0 &&
           rows->dims[rows->rank - 1].value == w->dims[1].value &&
           (indices->type == MGPU_INT32 || indices->type == MGPU_INT64) &&
           mgpu_value_count(rows) == mgpu_value_count(indices) * w->dims[1].value;
}

static int shape_product(const struct mgpu_node *node)
{
    char text[MGPU_VALUE_TEXT];
    const struct mgpu_value *w = node->input[W], *a = node->input[G];
    const struct mgpu_value *b =
        node->inputs > MGPU_UPDATE_FACTOR ? node->input[MGPU_UPDATE_FACTOR] : NULL;
    if (!mgpu_update_is_pointwise(node))
        return mgpu_fail(MGPU_EUNSUPPORTED, "product_update: lamb needs the whole gradient");
    if (w->rank != 2 || a->rank != 2 || a->type != w->type || !b || b->rank != 2 ||
        b->type != w->type || a->dims[0].value != b->dims[0].value ||
        a->dims[1].value != w->dims[0].value || b->dims[1].value != w->dims[1].value)
        return mgpu_fail(MGPU_EINVALID,
                         "product_update of %s: no product of its factors is like it",
                         mgpu_value_text(text, NULL, w));
    if (!rows_fit(node))
        return mgpu_fail(MGPU_EINVALID,
                         "product_update of %s: its rows or their indices do not fit",
                         mgpu_value_text(text, NULL, w));
    return shape_outputs(node);
}

static int alias(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    double start[MOST_STATES];
    int states = mgpu_update_states(attrs_of(node), start);
    pairs[0] = (struct mgpu_alias){.input = W, .output = 0, .view = false};
    for (int i = 0; i < states; i++)
        pairs[1 + i] = (struct mgpu_alias){.input = STATE + i, .output = 1 + i, .view = false};
    return 1 + states;
}

static struct mgpu_cost cost(const struct mgpu_node *node)
{
    static const double flops[] = {
        [MGPU_SGD] = 6,      [MGPU_ADAM] = 14,   [MGPU_ADAMW] = 14,
        [MGPU_RMSPROP] = 12, [MGPU_ADAGRAD] = 8, [MGPU_LAMB] = 22,
    };
    return (struct mgpu_cost){.flops = flops[attrs_of(node)->kind] *
                                       (double)mgpu_value_count(node->input[W]),
                              .bytes = mgpu_operand_bytes(node)};
}

static struct mgpu_cost cost_product(const struct mgpu_node *node)
{
    struct mgpu_cost c = cost(node);
    c.flops += 2 * (double)node->input[G]->dims[0].value * (double)mgpu_value_count(node->input[W]);
    return c;
}

static const char *const kinds[] = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", NULL};
static const char *const styles[] = {"torch", "keras2", "keras3", NULL};

#define FIELD(name) offsetof(struct mgpu_update_attrs, name)
static const struct mgpu_attr attrs[] = {
    {.name = "kind", .kind = MGPU_ATTR_ENUM, .offset = FIELD(kind), .names = kinds},
    {.name = "style", .kind = MGPU_ATTR_ENUM, .offset = FIELD(style), .names = styles},
    {.name = "lr", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(lr)},
    {.name = "weight_decay", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(weight_decay)},
    {.name = "momentum", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(momentum)},
    {.name = "dampening", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(dampening)},
    {.name = "beta1", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(beta1)},
    {.name = "beta2", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(beta2)},
    {.name = "eps", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(eps)},
    {.name = "rho", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(rho)},
    {.name = "decay", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(decay)},
    {.name = "lr_decay", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(lr_decay)},
    {.name = "initial_accumulator_value",
     .kind = MGPU_ATTR_FLOAT,
     .offset = FIELD(initial_accumulator_value)},
    {.name = "clip_value", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(clip_value)},
    {.name = "nesterov", .kind = MGPU_ATTR_BOOL, .offset = FIELD(nesterov)},
    {.name = "amsgrad", .kind = MGPU_ATTR_BOOL, .offset = FIELD(amsgrad)},
    {.name = "centered", .kind = MGPU_ATTR_BOOL, .offset = FIELD(centered)},
    {.name = "rounded", .kind = MGPU_ATTR_TYPE, .offset = FIELD(rounded)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_update = {
    .name = "update",
    .min_inputs = LR_FACTOR + 1,
    .max_inputs = STATE + MOST_STATES,
    .outputs = MGPU_UPDATE_ROUNDED + 1,
    .flags = MGPU_OP_NO_FOLD | MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_update_attrs),
    .attrs = attrs,
    .shape = shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = alias,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_any,
    .cost = cost,
    .split = mgpu_split_replicated,
};

const struct mgpu_op mgpu_op_product_update = {
    .name = "product_update",
    .min_inputs = LR_FACTOR + 1,
    .max_inputs = MGPU_UPDATE_INDICES + 1,
    .outputs = MGPU_UPDATE_ROUNDED + 1,
    .flags = MGPU_OP_NO_FOLD | MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_update_attrs),
    .attrs = attrs,
    .shape = shape_product,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = alias,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost_product,
    .split = mgpu_split_replicated,
};

static int shape_norm(const struct mgpu_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (!node->input[i] || !mgpu_is_float(node->input[i]->type))
            return mgpu_fail(MGPU_EINVALID, "global_norm: input %d is not floating", i);
    mgpu_shape_set(node, 0, MGPU_DOUBLE, 0, NULL);
    return 0;
}

static struct mgpu_cost cost_norm(const struct mgpu_node *node)
{
    struct mgpu_cost c = {.bytes = mgpu_operand_bytes(node)};
    for (int i = 0; i < node->inputs; i++)
        c.flops += 2 * (double)mgpu_value_count(node->input[i]);
    return c;
}

const struct mgpu_op mgpu_op_global_norm = {
    .name = "global_norm",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .flags = MGPU_OP_VARIADIC | MGPU_OP_GRADIENT_ONLY,
    .shape = shape_norm,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_any,
    .cost = cost_norm,
    .split = mgpu_split_replicated,
};
