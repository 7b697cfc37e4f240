/* BatchNormalization: with the statistics of the batch, or with the stored ones. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/normalize.h"

enum { X, SCALE, BIAS, MEAN, VARIANCE, INPUTS };

struct batch_norm {
    struct mgpu_value *in[INPUTS];
    double epsilon, momentum;
};

static int read_node(struct mgpu_lower *l, struct batch_norm *b)
{
    for (int i = 0; i < INPUTS; i++)
        if (!(b->in[i] = mgpu_lower_in(l, i)))
            return mgpu_fail(MGPU_EINVALID, "input %d is missing", i);
    if (l->node->opset < 9 && !mgpu_onnx_int(l->node, "spatial", 1))
        return mgpu_fail(MGPU_EUNSUPPORTED, "spatial=0 is not supported");
    if (b->in[X]->rank < 1)
        return mgpu_fail(MGPU_EINVALID, "the input is a scalar");
    if (b->in[X]->rank == 1) /* one channel */
        b->in[X] = mgpu_reshape(l->g, b->in[X], 2,
                                (struct mgpu_dim[]){b->in[X]->dims[0], mgpu_dim_const(1)});
    for (int i = SCALE; i < INPUTS && b->in[X]; i++) {
        if (b->in[i]->rank != 1 || b->in[i]->dims[0].value != b->in[X]->dims[1].value)
            return mgpu_fail(MGPU_EINVALID, "input %d does not have one element a channel", i);
        b->in[i] = mgpu_cast(l->g, b->in[i], b->in[X]->type);
        if (!b->in[i])
            return mgpu_build_error();
    }
    b->epsilon = mgpu_onnx_float(l->node, "epsilon", 1e-5);
    b->momentum = mgpu_onnx_float(l->node, "momentum", (double)0.9f);
    return b->in[X] ? 0 : mgpu_build_error();
}

/* Whether the file itself asks for the batch's statistics. */
static bool file_trains(const struct mgpu_lower *l)
{
    if (l->node->opset < 7)
        return !mgpu_onnx_int(l->node, "is_test", 0);
    if (l->node->opset < 14)
        return mgpu_lower_wants(l, 1);
    return mgpu_onnx_int(l->node, "training_mode", 0);
}

static bool trains(struct mgpu_lower *l)
{
    const struct mgpu_parameter *scale, *bias;
    if (!l->options->training || l->options->norm != MGPU_NORM_DEFAULT)
        return l->options->training && l->options->norm != MGPU_NORM_FROZEN;
    scale = mgpu_lower_parameter(l, SCALE);
    bool scale_trained = scale && scale->role == MGPU_WEIGHT, scale_stored = scale;
    bias = mgpu_lower_parameter(l, BIAS);
    if (!scale_stored && !bias)
        return file_trains(l);
    return scale_trained && bias && bias->role == MGPU_WEIGHT;
}

/* ---- Stored statistics ---------------------------------------------------------------------- */

static struct mgpu_value *per_channel(struct mgpu_lower *l, struct mgpu_value *v,
                                      const struct mgpu_value *x)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    for (int i = 0; v && i < x->rank - 1; i++)
        dims[i] = i ? mgpu_dim_const(1) : v->dims[0];
    return mgpu_reshape(l->g, v, x->rank - 1, dims);
}

/* x * a + (bias - mean * a) with a = scale / sqrt(variance + epsilon). */
static struct mgpu_value *with_stored(struct mgpu_lower *l, const struct batch_norm *b)
{
    struct mgpu_graph *g = l->g;
    struct mgpu_value *deviation =
        mgpu_unary(g, MGPU_X_SQRT, mgpu_affine(g, b->in[VARIANCE], 1, b->epsilon));
    struct mgpu_value *a = mgpu_div(g, b->in[SCALE], deviation);
    struct mgpu_value *shift = mgpu_sub(g, b->in[BIAS], mgpu_mul(g, b->in[MEAN], a));
    struct mgpu_value *y = mgpu_mul(g, b->in[X], per_channel(l, a, b->in[X]));
    return mgpu_add(g, y, per_channel(l, shift, b->in[X]));
}

/* ---- The batch's statistics ------------------------------------------------------------------ */

static bool unbiased(const struct mgpu_lower *l, const struct mgpu_value *x)
{
    if (l->options->variance != MGPU_VARIANCE_DEFAULT)
        return l->options->variance == MGPU_VARIANCE_UNBIASED;
    return l->model->producer == MGPU_PRODUCER_PYTORCH ||
           (l->model->producer == MGPU_PRODUCER_TENSORFLOW && x->rank == 4);
}

/* variance * n / (n - 1), n elements a channel (1 gives a factor of 1). With statistics of the
 * whole batch n is the whole batch's, which only the step knows. */
static struct mgpu_value *correct(struct mgpu_lower *l, struct mgpu_value *variance,
                                  const struct mgpu_value *x)
{
    struct mgpu_dim n = mgpu_dim_mul(x->dims[0], mgpu_dims_product(x->rank - 2, x->dims + 2));
    bool whole = l->options->norm == MGPU_NORM_SYNC && !n.opaque && n.power[MGPU_BATCH] == 1;
    double count = (double)n.value;
    if (!whole)
        return mgpu_affine(l->g, variance, count > 1 ? count / (count - 1) : 1, 0);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    double rest = count / (double)l->g->batch;
    int v = mgpu_expr_input(&e, 0, variance->type), one = mgpu_expr_number(&e, MGPU_DOUBLE, 1);
    int all = mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 1, MGPU_DOUBLE),
                          mgpu_expr_number(&e, MGPU_DOUBLE, rest));
    int less = mgpu_expr_2(&e, MGPU_X_MAX, mgpu_expr_2(&e, MGPU_X_SUB, all, one), one);
    int factor = mgpu_expr_cast(&e, variance->type, mgpu_expr_2(&e, MGPU_X_DIV, all, less));
    int y = mgpu_expr_2(&e, MGPU_X_MUL, v, factor);
    struct mgpu_value *piece = mgpu_graph_scalar(l->g, MGPU_SCALAR_PIECE, "piece");
    return mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 2,
                          (struct mgpu_value *[]){variance, piece});
}

/* What the running statistic behind input i becomes: momentum * old + (1 - momentum) * new. A layer
 * that runs twice in a step moves it twice. */
static struct mgpu_value *run(struct mgpu_lower *l, const struct batch_norm *b, int i,
                              struct mgpu_value *fresh)
{
    struct mgpu_parameter *p = mgpu_lower_parameter(l, i);
    bool moves = p && p->role == MGPU_STATISTIC;
    struct mgpu_value *old = moves && p->next ? p->next : b->in[i];
    struct mgpu_value *next = mgpu_add(l->g, mgpu_affine(l->g, old, b->momentum, 0),
                                       mgpu_affine(l->g, fresh, 1 - b->momentum, 0));
    if (moves && next)
        p->next = mgpu_cast(l->g, next, p->value->type);
    return next;
}

static int with_batch(struct mgpu_lower *l, const struct batch_norm *b)
{
    struct mgpu_value *out[3];
    struct mgpu_batch_norm_attrs attrs = {
        .epsilon = b->epsilon,
        .per_rank = l->options->norm != MGPU_NORM_SYNC,
    };
    MGPU_TRY(mgpu_graph_node(l->g, &mgpu_op_batch_norm, &attrs, 3, b->in, 3, out));
    struct mgpu_value *variance = unbiased(l, b->in[X]) ? correct(l, out[2], b->in[X]) : out[2];
    l->out[0] = out[0];
    l->out[1] = run(l, b, MEAN, out[1]);
    l->out[2] = run(l, b, VARIANCE, variance);
    l->out[3] = out[1];
    l->out[4] = out[2];
    return l->out[1] && l->out[2] ? 0 : mgpu_build_error();
}

int mgpu_lower_batch_norm(struct mgpu_lower *l)
{
    struct batch_norm b;
    MGPU_TRY(read_node(l, &b));
    if (trains(l))
        MGPU_TRY(with_batch(l, &b));
    else {
        MGPU_TRY(mgpu_lower_give(l, with_stored(l, &b)));
        l->out[1] = l->out[3] = b.in[MEAN];
        l->out[2] = l->out[4] = b.in[VARIANCE];
    }
    const struct mgpu_value *x = mgpu_lower_in(l, X);
    return mgpu_lower_give(l, mgpu_reshape(l->g, l->out[0], x->rank, x->dims));
}
