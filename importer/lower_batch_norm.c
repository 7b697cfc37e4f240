/* BatchNormalization: with the statistics of the batch, or with the stored ones. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/normalize.h"

#include <fnmatch.h>

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
    if (b->in[X]->rank < 1 || b->in[SCALE]->rank != 1 || !b->in[SCALE]->dims[0].value)
        return mgpu_fail(MGPU_EINVALID, "the input has no channels");
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
    return b->in[X] ? 0 : mgpu_build_error();
}

/* How slowly the running statistics follow: what a rule says, what the file says; tf2onnx leaves it
 * out whatever it was, so there it is Keras's default, and ONNX's elsewhere. */
static double momentum(struct mgpu_lower *l)
{
    const struct mgpu_lower_options *o = l->options;
    const struct mgpu_parameter *mean = mgpu_lower_parameter(l, MEAN);
    const struct mgpu_momentum_rule *rule = NULL;
    for (int i = 0; i < o->momenta; i++) {
        const char *pattern = o->momentum[i].pattern;
        if (pattern && (!mean || fnmatch(pattern, mean->name, 0) != 0))
            continue;
        rule = &o->momentum[i];
        *rule->fits = true;
    }
    if (rule)
        return rule->momentum;
    if (l->model->producer != MGPU_PRODUCER_TENSORFLOW || mgpu_onnx_attribute(l->node, "momentum"))
        return mgpu_onnx_float(l->node, "momentum", (double)0.9f);
    if (o->momentum_unsaid)
        *o->momentum_unsaid = true;
    return 0.99;
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

static bool is_fixed(const struct mgpu_parameter *p)
{
    return p && p->role != MGPU_WEIGHT;
}

/* What the module does not have, scale or shift, says nothing. */
static bool trains(struct mgpu_lower *l)
{
    const struct mgpu_parameter *scale, *bias, *mean;
    if (!l->options->training || l->options->norm != MGPU_NORM_DEFAULT)
        return l->options->training && l->options->norm != MGPU_NORM_FROZEN;
    scale = mgpu_lower_parameter(l, SCALE);
    bias = mgpu_lower_parameter(l, BIAS);
    mean = mgpu_lower_parameter(l, MEAN);
    if (!scale && !bias && !(mean && mean->role == MGPU_STATISTIC))
        return file_trains(l);
    return !is_fixed(scale) && !is_fixed(bias);
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

static struct mgpu_value *finish(struct mgpu_lower *l, struct mgpu_expr *e, int result,
                                 struct mgpu_value *const *input)
{
    return mgpu_pointwise(l->g, mgpu_expr_end(e, result, l->g->arena), e->inputs, input);
}

/* scale / sqrt(variance + epsilon). */
static struct mgpu_value *slope(struct mgpu_lower *l, const struct batch_norm *b)
{
    enum mgpu_dtype type = b->in[X]->type;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int v = mgpu_expr_input(&e, 1, type), epsilon = mgpu_expr_number(&e, type, b->epsilon);
    int deviation = mgpu_expr_1(&e, MGPU_X_SQRT, mgpu_expr_2(&e, MGPU_X_ADD, v, epsilon));
    int y = mgpu_expr_2(&e, MGPU_X_DIV, mgpu_expr_input(&e, 0, type), deviation);
    return finish(l, &e, y, (struct mgpu_value *[]){b->in[SCALE], b->in[VARIANCE]});
}

/* x * a + (bias - mean * a), a = slope. */
static struct mgpu_value *with_stored(struct mgpu_lower *l, const struct batch_norm *b)
{
    enum mgpu_dtype type = b->in[X]->type;
    struct mgpu_value *a = slope(l, b);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 3);
    int product =
        mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 1, type), mgpu_expr_input(&e, 2, type));
    int y = mgpu_expr_2(&e, MGPU_X_SUB, mgpu_expr_input(&e, 0, type), product);
    struct mgpu_value *shift =
        finish(l, &e, y, (struct mgpu_value *[]){b->in[BIAS], b->in[MEAN], a});
    mgpu_expr_begin(&e, 3);
    product =
        mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 0, type), mgpu_expr_input(&e, 1, type));
    y = mgpu_expr_2(&e, MGPU_X_ADD, product, mgpu_expr_input(&e, 2, type));
    return finish(l, &e, y,
                  (struct mgpu_value *[]){b->in[X], per_channel(l, a, b->in[X]),
                                          per_channel(l, shift, b->in[X])});
}

/* ---- The batch's statistics ------------------------------------------------------------------ */

static bool unbiased(const struct mgpu_lower *l, const struct mgpu_value *x)
{
    if (l->options->variance != MGPU_VARIANCE_DEFAULT)
        return l->options->variance == MGPU_VARIANCE_UNBIASED;
    return l->model->producer == MGPU_PRODUCER_PYTORCH ||
           (l->model->producer == MGPU_PRODUCER_TENSORFLOW && x->rank == 4);
}

/* n / (n - 1) for the n elements of a channel, as a number of `type` (1 for one element). With
 * statistics of the whole batch n is the whole batch's: input 2 of e has its samples. */
static int correction(const struct mgpu_lower *l, const struct mgpu_value *x, struct mgpu_expr *e,
                      bool whole)
{
    double count = (double)(mgpu_value_count(x) / x->dims[1].value);
    if (!whole)
        return mgpu_expr_number(e, x->type, count > 1 ? count / (count - 1) : 1);
    int one = mgpu_expr_number(e, MGPU_DOUBLE, 1);
    int all = mgpu_expr_2(e, MGPU_X_MUL, mgpu_expr_input(e, 2, MGPU_DOUBLE),
                          mgpu_expr_number(e, MGPU_DOUBLE, count / (double)l->g->batch));
    int less = mgpu_expr_2(e, MGPU_X_MAX, mgpu_expr_2(e, MGPU_X_SUB, all, one), one);
    return mgpu_expr_cast(e, x->type, mgpu_expr_2(e, MGPU_X_DIV, all, less));
}

static bool counts_all(const struct mgpu_lower *l, const struct mgpu_value *x)
{
    struct mgpu_dim n = mgpu_dim_mul(x->dims[0], mgpu_dims_product(x->rank - 2, x->dims + 2));
    return l->options->norm == MGPU_NORM_SYNC && !n.opaque && n.power[MGPU_BATCH] == 1;
}

/* What the running statistic behind input i becomes: momentum * old + (1 - momentum) * new, the new
 * variance corrected where the framework does so. A layer that runs twice in a step moves it twice.
 */
static struct mgpu_value *run(struct mgpu_lower *l, const struct batch_norm *b, int i,
                              struct mgpu_value *fresh)
{
    struct mgpu_parameter *p = mgpu_lower_parameter(l, i);
    bool moves = p && p->role == MGPU_STATISTIC, corrects = i == VARIANCE && unbiased(l, b->in[X]);
    bool whole = corrects && counts_all(l, b->in[X]);
    enum mgpu_dtype type = b->in[X]->type;
    struct mgpu_expr e;
    mgpu_expr_begin(&e, whole ? 3 : 2);
    int old = mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 0, type),
                          mgpu_expr_number(&e, type, b->momentum));
    int factor = mgpu_expr_number(&e, type, 1 - b->momentum);
    if (corrects)
        factor = mgpu_expr_2(&e, MGPU_X_MUL, factor, correction(l, b->in[X], &e, whole));
    int new = mgpu_expr_2(&e, MGPU_X_MUL, mgpu_expr_input(&e, 1, type), factor);
    struct mgpu_value *before = moves && p->next ? mgpu_cast(l->g, p->next, type) : b->in[i];
    struct mgpu_value *input[3] = {before, fresh};
    if (whole)
        input[2] = mgpu_graph_scalar(l->g, MGPU_SCALAR_PIECE, "piece");
    struct mgpu_value *next = finish(l, &e, mgpu_expr_2(&e, MGPU_X_ADD, old, new), input);
    if (moves && next)
        p->next = mgpu_cast(l->g, next, p->value->type);
    return next;
}

static int with_batch(struct mgpu_lower *l, struct batch_norm *b)
{
    b->momentum = momentum(l);
    struct mgpu_value *out[3];
    struct mgpu_batch_norm_attrs attrs = {
        .epsilon = b->epsilon,
        .per_rank = l->options->norm != MGPU_NORM_SYNC,
    };
    MGPU_TRY(mgpu_graph_node(l->g, &mgpu_op_batch_norm, &attrs, 3, b->in, 3, out));
    l->out[0] = out[0];
    l->out[1] = run(l, b, MEAN, out[1]);
    l->out[2] = run(l, b, VARIANCE, out[2]);
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
