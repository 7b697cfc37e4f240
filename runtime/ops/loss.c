#include "runtime/ops/loss.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

/* Inputs, in both operators. */
enum { X, LABELS, CLASS_WEIGHTS, SAMPLE_WEIGHTS, NORMALISER, DLOSS };

static const struct mgpu_cross_entropy_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

static const struct mgpu_value *input(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : NULL;
}

/* Is v's shape x's, or x's without the axis of the classes? */
static bool fits(const struct mgpu_value *v, const struct mgpu_value *x, int axis, bool positions)
{
    if (v->rank != x->rank - positions)
        return false;
    for (int k = 0, j = 0; k < x->rank; k++)
        if (!(positions && k == axis) && v->dims[j++].value != x->dims[k].value)
            return false;
    return true;
}

static int check_input(const struct mgpu_node *node, int i, const char *what, bool ok)
{
    char text[MGPU_VALUE_TEXT], tx[MGPU_VALUE_TEXT];
    if (ok)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "%s %s do not fit %s with classes on axis %lld", what,
                     mgpu_value_text(text, NULL, input(node, i)),
                     mgpu_value_text(tx, NULL, node->input[X]), (long long)attrs_of(node)->axis);
}

static int check_labels(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[X], *v = node->input[LABELS];
    bool dense = attrs_of(node)->dense;
    bool type = dense ? mgpu_is_float(v->type) : v->type == MGPU_INT64;
    return check_input(node, LABELS, "labels",
                       type && fits(v, x, (int)attrs_of(node)->axis, !dense));
}

static int check_scalar(const struct mgpu_node *node, int i, const char *what)
{
    const struct mgpu_value *v = input(node, i);
    if (v && v->type == MGPU_DOUBLE && v->rank == 0)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "cross_entropy needs %s: one double", what);
}

static int check(const struct mgpu_node *node)
{
    const struct mgpu_value *x = node->input[X];
    const struct mgpu_value *cw = input(node, CLASS_WEIGHTS), *sw = input(node, SAMPLE_WEIGHTS);
    int64_t axis = attrs_of(node)->axis;
    if (!mgpu_is_float(x->type))
        return mgpu_fail(MGPU_EINVALID, "cross_entropy of %s", mgpu_dtype_name(x->type));
    if (axis < 0 || axis >= x->rank)
        return mgpu_fail(MGPU_EINVALID, "cross_entropy: no axis %lld in a tensor of rank %d",
                         (long long)axis, x->rank);
    MGPU_TRY(check_labels(node));
    MGPU_TRY(check_input(node, CLASS_WEIGHTS, "class weights",
                         !cw || (mgpu_is_float(cw->type) && cw->rank == 1 &&
                                 cw->dims[0].value == x->dims[axis].value)));
    MGPU_TRY(check_input(node, SAMPLE_WEIGHTS, "sample weights",
                         !sw || (mgpu_is_float(sw->type) && fits(sw, x, (int)axis, true))));
    return check_scalar(node, NORMALISER, "a normaliser");
}

static int shape(const struct mgpu_node *node)
{
    MGPU_TRY(check(node));
    mgpu_shape_set(node, 0, MGPU_DOUBLE, 0, NULL);
    return 0;
}

static int shape_grad(const struct mgpu_node *node)
{
    MGPU_TRY(check(node));
    MGPU_TRY(check_scalar(node, DLOSS, "the loss's gradient"));
    mgpu_shape_like(node, 0, node->input[X]);
    return 0;
}

/* By x alone: labels and weights are data. */
static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    static const char *const names[] = {"x", "labels", "class weights", "sample weights",
                                        "the normaliser"};
    for (int i = 1; i < node->inputs; i++)
        if (wanted[i])
            return mgpu_fail(MGPU_EUNSUPPORTED, "cross_entropy has no gradient by %s", names[i]);
    struct mgpu_value *in[DLOSS + 1] = {[DLOSS] = dy[0]};
    for (int i = 0; i < node->inputs; i++)
        in[i] = node->input[i];
    if (wanted[X] &&
        !(dx[X] = mgpu_build1(g, &mgpu_op_cross_entropy_grad, node->attrs, DLOSS + 1, in)))
        return mgpu_build_error();
    return 0;
}

/* As softmax, and one product and sum a class. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = 7 * (double)mgpu_value_count(node->input[X]),
                              .bytes = mgpu_operand_bytes(node)};
}

/* The split that labels or sample weights must have beside x's. */
static struct mgpu_split beside(const struct mgpu_node *node, int i, struct mgpu_split x)
{
    bool positions = i == SAMPLE_WEIGHTS || (i == LABELS && !attrs_of(node)->dense);
    if (x.kind == MGPU_SPLIT_AXIS && positions && x.axis > attrs_of(node)->axis)
        x.axis--;
    return x;
}

/* Positions are independent and the loss is their sum: a rank's is a term. */
static enum mgpu_split_answer split(const struct mgpu_node *node, const struct mgpu_split *in,
                                    struct mgpu_split *out, int *which)
{
    struct mgpu_split whole = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    for (int i = 0; i < node->inputs; i++) {
        *which = i;
        if (mgpu_split_is_term(in[i]))
            return MGPU_SPLIT_FULL;
        bool by_position = i == X || i == LABELS || i == SAMPLE_WEIGHTS;
        struct mgpu_split must = by_position ? beside(node, i, in[X]) : whole;
        if (node->input[i] && !mgpu_split_same(in[i], must))
            return MGPU_SPLIT_MIXES;
    }
    *which = X;
    bool cut = in[X].kind == MGPU_SPLIT_AXIS;
    if (cut && in[X].axis == attrs_of(node)->axis)
        return MGPU_SPLIT_MIXES;
    bool loss = node->op == &mgpu_op_cross_entropy;
    out[0] = loss && cut ? mgpu_split_make(MGPU_SPLIT_SUM, 0, 1) : loss ? whole : in[X];
    return MGPU_SPLIT_OK;
}

static const char *const forms[] = {"logits", "log_probabilities", "probabilities", NULL};

#define FIELD(name) offsetof(struct mgpu_cross_entropy_attrs, name)
static const struct mgpu_attr attrs[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = FIELD(axis)},
    {.name = "form", .kind = MGPU_ATTR_ENUM, .offset = FIELD(form), .names = forms},
    {.name = "dense", .kind = MGPU_ATTR_BOOL, .offset = FIELD(dense)},
    {.name = "ignore", .kind = MGPU_ATTR_BOOL, .offset = FIELD(ignore)},
    {.name = "ignore_index", .kind = MGPU_ATTR_INT, .offset = FIELD(ignore_index)},
    {.name = "label_smoothing", .kind = MGPU_ATTR_FLOAT, .offset = FIELD(label_smoothing)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_cross_entropy = {
    .name = "cross_entropy",
    .min_inputs = 2,
    .max_inputs = 5,
    .outputs = 1,
    .attrs_size = sizeof(struct mgpu_cross_entropy_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_TAKES,
    .float_inputs = ~1u,
    .shape = shape,
    .gradient = gradient,
    .saved = mgpu_saved_inputs,
    .alias = mgpu_alias_none,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};

const struct mgpu_op mgpu_op_cross_entropy_grad = {
    .name = "cross_entropy_grad",
    .min_inputs = 2,
    .max_inputs = 6,
    .outputs = 1,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_cross_entropy_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_FOLLOWS,
    .float_inputs = ~1u,
    .shape = shape_grad,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_in_place, /* a lane of x is read before its gradient is written */
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = split,
};
