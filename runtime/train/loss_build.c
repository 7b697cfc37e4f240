/* The nodes of a loss. */
#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/movement.h"
#include "runtime/train/loss_private.h"

#include <string.h>

static const double CLIP = 1e-7; /* Keras's epsilon */

/* An input that is there already, or a new one; MGPU_EINVALID when it is there as something else.
 */
static struct mgpu_value *find_or_add(struct mgpu_graph *g, const char *name, enum mgpu_dtype type,
                                      int rank, const struct mgpu_dim *dims)
{
    char ta[MGPU_VALUE_TEXT], tb[MGPU_VALUE_TEXT];
    for (int i = 0; i < g->input_count; i++) {
        struct mgpu_value *v = g->inputs[i], wanted = {.type = type, .rank = rank};
        if (strcmp(v->name, name) != 0)
            continue;
        bool same = v->type == type && v->rank == rank;
        for (int k = 0; k < rank; k++) {
            wanted.dims[k] = dims[k];
            same = same && v->dims[k].value == dims[k].value;
        }
        return same ? v
                    : mgpu_build_fail(MGPU_EINVALID, "label '%s' is wanted as %s and as %s", name,
                                      mgpu_value_text(ta, g, v), mgpu_value_text(tb, g, &wanted));
    }
    return mgpu_graph_input(g, name, type, rank, dims);
}

struct mgpu_value *mgpu_loss_label(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                   struct mgpu_value *y)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    memcpy(dims, loss->label_dims, sizeof dims);
    dims[loss->label_batch_axis] = mgpu_dim_symbol(MGPU_BATCH, g->batch);
    struct mgpu_value *label =
        find_or_add(g, loss->label, loss->label_type, loss->label_rank, dims);
    int rank = 0;
    for (int k = 0; k < y->rank; k++)
        if (k != loss->axis || loss->label_type != MGPU_INT64)
            dims[rank++] = y->dims[k];
    return label ? mgpu_reshape(g, label, rank, dims) : NULL;
}

/* [N] broadcast to y's shape with the samples on an axis of their own, then to y's. */
struct mgpu_value *mgpu_loss_weights(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                     struct mgpu_value *y)
{
    struct mgpu_dim n = mgpu_dim_symbol(MGPU_BATCH, g->batch), dims[MGPU_MAX_RANK];
    struct mgpu_loss_shape shape;
    int rank = 0, axis = mgpu_loss_has_classes(loss->kind) ? loss->axis : -1;
    if (!loss->sample_weights)
        return NULL;
    int rc = mgpu_loss_shape_of(&shape, g, y, loss->by_step);
    if (rc < 0)
        return mgpu_build_fail(rc, "%s", mgpu_error());
    if (axis >= 0)
        mgpu_loss_shape_drop(&shape, mgpu_loss_shape_axis(&shape, y, axis));
    struct mgpu_value *w = find_or_add(g, "sample_weight", g->float_type, 1, &n);
    for (int k = 0; k < shape.rank; k++)
        dims[k] = k == shape.batch ? n : mgpu_dim_const(1);
    w = w ? mgpu_reshape(g, w, shape.rank, dims) : NULL;
    w = w ? mgpu_broadcast(g, w, shape.rank, shape.dims) : NULL;
    for (int k = 0; k < y->rank; k++)
        if (k != axis)
            dims[rank++] = y->dims[k];
    return w ? mgpu_reshape(g, w, rank, dims) : NULL;
}

/* What went into the activation, brought to y's shape by what stands between the two. */
static struct mgpu_value *through(struct mgpu_graph *g, const struct mgpu_value *y,
                                  const struct mgpu_node *activation)
{
    const struct mgpu_node *node = y->producer;
    if (node == activation)
        return node->input[0];
    struct mgpu_value *x = through(g, node->input[0], activation);
    if (!x)
        return NULL;
    if (node->op == &mgpu_op_reshape)
        return mgpu_reshape(g, x, y->rank, y->dims);
    const struct mgpu_transpose_attrs *a = node->attrs;
    int perm[MGPU_MAX_RANK];
    for (int k = 0; k < y->rank; k++)
        perm[k] = (int)a->perm[k];
    return mgpu_transpose(g, x, perm);
}

/* The logits behind y, or NULL where y is not taken through them. */
static const struct mgpu_node *activation_of(const struct mgpu_loss *loss,
                                             const struct mgpu_value *y)
{
    bool sigmoid = loss->kind == MGPU_LOSS_BCE;
    if (loss->from_logits == MGPU_YES || (!sigmoid && loss->kind != MGPU_LOSS_CROSS_ENTROPY))
        return NULL;
    return mgpu_loss_activation(y, sigmoid ? -1 : loss->axis);
}

/* weight, times 1 / (what the whole batch counts) unless the loss is a sum. */
static struct mgpu_value *normaliser(struct mgpu_graph *g, const struct mgpu_loss *loss, int index)
{
    if (loss->sum)
        return mgpu_const_double(g, MGPU_DOUBLE, loss->weight);
    struct mgpu_value *scalar =
        mgpu_graph_scalar(g, MGPU_SCALAR_LOSS + index, "1 / what the loss counts");
    return mgpu_affine(g, scalar, loss->weight, 0);
}

/* ---- losses over classes -------------------------------------------------------------------- */

static enum mgpu_cross_entropy_form form_of(const struct mgpu_loss *loss, bool logits)
{
    if (loss->kind == MGPU_LOSS_NLL)
        return MGPU_FORM_LOG_PROBABILITIES;
    return logits || loss->from_logits != MGPU_NO ? MGPU_FORM_LOGITS : MGPU_FORM_PROBABILITIES;
}

static struct mgpu_value *class_weights(struct mgpu_graph *g, const struct mgpu_loss *loss)
{
    struct mgpu_dim classes = mgpu_dim_const(loss->classes);
    return loss->class_weights
               ? mgpu_graph_constant(g, NULL, MGPU_DOUBLE, 1, &classes, loss->class_weights, NULL)
               : NULL;
}

static struct mgpu_value *cross_entropy(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                        struct mgpu_value *y, struct mgpu_value *factor)
{
    const struct mgpu_node *softmax = activation_of(loss, y);
    int axis = loss->axis;
    struct mgpu_value *x = softmax       ? through(g, y, softmax)
                           : loss->dense ? y
                                         : mgpu_loss_untransposed(y, &axis);
    struct mgpu_cross_entropy_attrs attrs = {
        .axis = axis,
        .form = (int)form_of(loss, softmax),
        .dense = loss->dense,
        .ignore = loss->ignore,
        .ignore_index = loss->ignore ? loss->ignore_index : 0,
        .label_smoothing = loss->label_smoothing,
    };
    struct mgpu_value *weights = mgpu_loss_weights(g, loss, y);
    struct mgpu_value *in[] = {x, mgpu_loss_label(g, loss, y), class_weights(g, loss), weights,
                               factor};
    if (loss->sample_weights && !weights)
        return NULL;
    return mgpu_cast(g, mgpu_build1(g, &mgpu_op_cross_entropy, &attrs, 5, in), g->float_type);
}

/* ---- losses over elements ------------------------------------------------------------------- */

/* An expression being written: x is the output, t the label. */
struct term {
    struct mgpu_expr e;
    enum mgpu_dtype type;
    int x, t;
};

static int number(struct term *s, double value)
{
    return mgpu_expr_number(&s->e, s->type, value);
}

static int op1(struct term *s, enum mgpu_expr_code code, int a)
{
    return mgpu_expr_1(&s->e, code, a);
}

static int op2(struct term *s, enum mgpu_expr_code code, int a, int b)
{
    return mgpu_expr_2(&s->e, code, a, b);
}

static int mul(struct term *s, int a, int b)
{
    return op2(s, MGPU_X_MUL, a, b);
}

static int sub(struct term *s, int a, int b)
{
    return op2(s, MGPU_X_SUB, a, b);
}

/* d^2/2 where |d| <= delta, else delta * (|d| - delta/2) (torch.nn.HuberLoss, keras Huber). */
static int huber(struct term *s, double delta)
{
    int d = sub(s, s->x, s->t), far = op1(s, MGPU_X_ABS, d);
    int inside = mul(s, number(s, 0.5), mul(s, d, d));
    int outside = mul(s, number(s, delta), sub(s, far, number(s, delta / 2)));
    return mgpu_expr_where(&s->e, op2(s, MGPU_X_LE, far, number(s, delta)), inside, outside);
}

/* t*softplus(-x) + (1-t)*softplus(x): exact where one of the two is tiny. */
static int bce_logits(struct term *s)
{
    int no = op1(s, MGPU_X_SOFTPLUS, s->x);
    int yes = op1(s, MGPU_X_SOFTPLUS, op1(s, MGPU_X_NEG, s->x));
    return op2(s, MGPU_X_ADD, mul(s, s->t, yes), mul(s, sub(s, number(s, 1), s->t), no));
}

static int clip(struct term *s, int a, double low, double high)
{
    return op2(s, MGPU_X_MIN, op2(s, MGPU_X_MAX, a, number(s, low)), number(s, high));
}

static int bce(struct term *s)
{
    int p = clip(s, s->x, CLIP, 1 - CLIP), q = sub(s, number(s, 1), p);
    int yes = mul(s, s->t, op1(s, MGPU_X_LOG, p));
    int no = mul(s, sub(s, number(s, 1), s->t), op1(s, MGPU_X_LOG, q));
    return op1(s, MGPU_X_NEG, op2(s, MGPU_X_ADD, yes, no));
}

/* Label 0 stands for -1. */
static int hinge(struct term *s)
{
    int zero = op2(s, MGPU_X_EQ, s->t, number(s, 0));
    int t = mgpu_expr_where(&s->e, zero, number(s, -1), s->t);
    return op2(s, MGPU_X_MAX, sub(s, number(s, 1), mul(s, t, s->x)), number(s, 0));
}

/* t * (log t - x), 0 where t is 0 (torch.nn.KLDivLoss). */
static int kl(struct term *s)
{
    int value = mul(s, s->t, sub(s, op1(s, MGPU_X_LOG, s->t), s->x));
    int some = op2(s, MGPU_X_LT, number(s, 0), s->t);
    return mgpu_expr_where(&s->e, some, value, number(s, 0));
}

/* t * log(t / p), both clipped to [1e-7, 1] (keras KLDivergence). */
static int kl_probabilities(struct term *s)
{
    int t = clip(s, s->t, CLIP, 1), p = clip(s, s->x, CLIP, 1);
    return mul(s, t, op1(s, MGPU_X_LOG, op2(s, MGPU_X_DIV, t, p)));
}

static int write_term(struct term *s, const struct mgpu_loss *loss, bool logits)
{
    double smooth = loss->label_smoothing;
    if (smooth > 0)
        s->t = op2(s, MGPU_X_ADD, mul(s, s->t, number(s, 1 - smooth)), number(s, smooth / 2));
    int d = sub(s, s->x, s->t);
    switch (loss->kind) {
    case MGPU_LOSS_MSE:
        return mul(s, d, d);
    case MGPU_LOSS_MAE:
        return op1(s, MGPU_X_ABS, d);
    case MGPU_LOSS_HUBER:
        return huber(s, loss->delta);
    case MGPU_LOSS_BCE:
    case MGPU_LOSS_BCE_LOGITS:
        return logits ? bce_logits(s) : bce(s);
    case MGPU_LOSS_HINGE:
        return hinge(s);
    case MGPU_LOSS_KL:
        return loss->from_logits == MGPU_NO ? kl_probabilities(s) : kl(s);
    default:
        return -1;
    }
}

/* What the elements are taken from: the logits where they are wanted, in the graph's type. */
static struct mgpu_value *source(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                 struct mgpu_value *y, bool *logits)
{
    const struct mgpu_node *sigmoid = activation_of(loss, y);
    *logits = sigmoid || loss->kind == MGPU_LOSS_BCE_LOGITS || loss->from_logits == MGPU_YES;
    struct mgpu_value *x = mgpu_cast(g, sigmoid ? through(g, y, sigmoid) : y, g->float_type);
    bool log_softmax = loss->kind == MGPU_LOSS_KL && loss->from_logits == MGPU_YES;
    return log_softmax ? mgpu_softmax(g, x, loss->axis, true) : x;
}

static struct mgpu_value *element_loss(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                       struct mgpu_value *y, struct mgpu_value *factor)
{
    bool logits;
    struct term s = {.type = g->float_type};
    struct mgpu_value *weights = mgpu_loss_weights(g, loss, y);
    struct mgpu_value *in[3] = {source(g, loss, y, &logits), mgpu_loss_label(g, loss, y), weights};
    int inputs = loss->sample_weights ? 3 : 2;
    mgpu_expr_begin(&s.e, inputs);
    s.x = mgpu_expr_input(&s.e, 0, s.type);
    s.t = mgpu_expr_input(&s.e, 1, s.type);
    int result = write_term(&s, loss, logits);
    if (inputs == 3)
        result = mul(&s, result, mgpu_expr_input(&s.e, 2, s.type));
    struct mgpu_value *each = mgpu_pointwise(g, mgpu_expr_end(&s.e, result, g->arena), inputs, in);
    if (!each)
        return NULL;
    struct mgpu_value *sum = mgpu_reduce(g, MGPU_REDUCE_SUM, each, mgpu_loss_all_axes(each), false);
    return mgpu_mul(g, sum, mgpu_cast(g, factor, g->float_type));
}

/* ---- the graph's own loss -------------------------------------------------------------------- */

static struct mgpu_value *graph_loss(struct mgpu_graph *g, const struct mgpu_loss *loss,
                                     struct mgpu_value *y)
{
    if (loss->sample_weights)
        return mgpu_build_fail(MGPU_EUSAGE, "sample weights do not reach a loss that the graph "
                                            "computes; feed them to the graph");
    struct mgpu_value *x = mgpu_cast(g, y, g->float_type);
    struct mgpu_value *mean = mgpu_reduce(g, MGPU_REDUCE_MEAN, x, mgpu_loss_all_axes(y), false);
    struct mgpu_value *share =
        mgpu_graph_scalar(g, MGPU_SCALAR_PIECE_SHARE, "the piece's share of the batch");
    return mgpu_mul(g, mean, mgpu_cast(g, mgpu_affine(g, share, loss->weight, 0), g->float_type));
}

int mgpu_loss_build(struct mgpu_graph *g, const struct mgpu_loss *loss, int index,
                    struct mgpu_value *y, struct mgpu_value **value)
{
    struct mgpu_origin before = g->origin;
    /* it runs where the output is made */
    const char *at = y->producer ? y->producer->origin.output : loss->output;
    g->origin = (struct mgpu_origin){
        .path = "", .output = at, .name = loss->text, .type = "loss", .role = MGPU_FORWARD};
    if (loss->kind == MGPU_LOSS_OUTPUT)
        *value = graph_loss(g, loss, y);
    else if (mgpu_loss_has_classes(loss->kind))
        *value = cross_entropy(g, loss, y, normaliser(g, loss, index));
    else
        *value = element_loss(g, loss, y, normaliser(g, loss, index));
    g->origin = before;
    return *value ? 0 : mgpu_build_error();
}
