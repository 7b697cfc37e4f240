/* Normalisations over groups of elements, and Dropout. Batch normalisation: lower_batch_norm.c. */
#include "importer/lower_sequence.h"
#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/dims.h"
#include "runtime/ops/normalize.h"
#include "runtime/ops/pool.h"
#include "runtime/ops/random.h"

#include <inttypes.h>
#include <string.h>

/* ---- Groups --------------------------------------------------------------------------------- */

/* The three outputs of group_norm. */
static int group_norm(struct mgpu_lower *l, struct mgpu_value *x, int axis, double epsilon,
                      bool rms, struct mgpu_value *scale, struct mgpu_value *bias,
                      struct mgpu_value **out)
{
    struct mgpu_group_norm_attrs attrs = {.axis = axis, .epsilon = epsilon, .rms = rms};
    struct mgpu_value *input[] = {x, scale, bias};
    if (!x)
        return mgpu_build_error();
    return mgpu_graph_node(l->g, &mgpu_op_group_norm, &attrs,
                           bias    ? 3
                           : scale ? 2
                                   : 1,
                           input, 3, out);
}

/* [C] as [C,1,1] for x of rank 4. */
static struct mgpu_value *per_channel(struct mgpu_lower *l, struct mgpu_value *v,
                                      const struct mgpu_value *x)
{
    struct mgpu_dim dims[MGPU_MAX_RANK] = {mgpu_dim_const(1)};
    if (!v || v->rank != 1 || x->rank < 2)
        return v ? mgpu_build_fail(MGPU_EINVALID, "scale and bias must be vectors") : NULL;
    dims[0] = v->dims[0];
    for (int i = 1; i < x->rank - 1; i++)
        dims[i] = mgpu_dim_const(1);
    return mgpu_reshape(l->g, mgpu_cast(l->g, v, x->type), x->rank - 1, dims);
}

static struct mgpu_value *scale_and_shift(struct mgpu_lower *l, struct mgpu_value *y,
                                          const struct mgpu_value *x, int scale, int bias)
{
    y = mgpu_mul(l->g, y, per_channel(l, mgpu_lower_in(l, scale), x));
    return mgpu_add(l->g, y, per_channel(l, mgpu_lower_in(l, bias), x));
}

static int lower_instance_norm(struct mgpu_lower *l)
{
    struct mgpu_value *out[3];
    MGPU_TRY(mgpu_lower_need(l, 3));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    double epsilon = mgpu_onnx_float(l->node, "epsilon", 1e-5);
    if (x->rank < 3)
        return mgpu_fail(MGPU_EINVALID, "the input has rank %d, less than 3", x->rank);
    MGPU_TRY(group_norm(l, x, 2, epsilon, false, NULL, NULL, out));
    return mgpu_lower_give(l, scale_and_shift(l, out[0], x, 1, 2));
}

/* x [N,C,...] seen as [N,G,C/G,...]. Opset 18 has a scale for each group, 21 for each channel. */
static int lower_group_norm(struct mgpu_lower *l)
{
    struct mgpu_value *out[3];
    struct mgpu_dim dims[3];
    MGPU_TRY(mgpu_lower_need(l, 3));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    int64_t groups = mgpu_onnx_int(l->node, "num_groups", 0);
    if (x->rank < 2 || groups < 1 || x->dims[1].value % groups)
        return mgpu_fail(MGPU_EINVALID, "%" PRId64 " groups", groups);
    dims[0] = x->dims[0];
    dims[1] = mgpu_dim_const(groups);
    dims[2] = mgpu_dim_div(mgpu_dims_product(x->rank - 1, x->dims + 1), dims[1]);
    struct mgpu_value *grouped = mgpu_reshape(l->g, x, 3, dims);
    MGPU_TRY(group_norm(l, grouped, 2, mgpu_onnx_float(l->node, "epsilon", 1e-5), false, NULL, NULL,
                        out));
    bool by_group = l->node->opset < 21 && mgpu_lower_in(l, 1)->dims[0].value == groups;
    struct mgpu_value *y = by_group ? scale_and_shift(l, out[0], grouped, 1, 2) : out[0];
    y = mgpu_reshape(l->g, y, x->rank, x->dims);
    return mgpu_lower_give(l, by_group ? y : scale_and_shift(l, y, x, 1, 2));
}

/* Scale or bias with exactly the normalised dims of x: group_norm spreads nothing. */
static struct mgpu_value *trailing(struct mgpu_lower *l, int i, const struct mgpu_value *x,
                                   int axis)
{
    struct mgpu_value *v = mgpu_lower_in(l, i);
    return mgpu_broadcast(l->g, mgpu_cast(l->g, v, x->type), x->rank - axis, x->dims + axis);
}

/* Mean and 1 / standard deviation of each row, sizes 1 on the normalised axes: in nodes of their
 * own, since no gradient passes those of group_norm. */
static int statistics(struct mgpu_lower *l, struct mgpu_value *x, int axis)
{
    unsigned axes = ((1u << x->rank) - 1) & ~((1u << axis) - 1);
    double epsilon = mgpu_onnx_float(l->node, "epsilon", 1e-5);
    struct mgpu_value *mean = mgpu_reduce(l->g, MGPU_REDUCE_MEAN, x, axes, true);
    struct mgpu_value *d = mgpu_sub(l->g, x, mean);
    struct mgpu_value *v = mgpu_reduce(l->g, MGPU_REDUCE_MEAN, mgpu_mul(l->g, d, d), axes, true);
    v = mgpu_unary(l->g, MGPU_X_SQRT, mgpu_affine(l->g, v, 1, epsilon));
    l->out[1] = mean;
    l->out[2] = mgpu_unary(l->g, MGPU_X_RECIPROCAL, v);
    return l->out[2] ? 0 : mgpu_build_error();
}

static int lower_layer_norm(struct mgpu_lower *l)
{
    struct mgpu_value *out[3];
    int64_t axis;
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", -1), x->rank));
    struct mgpu_value *scale = trailing(l, 1, x, (int)axis);
    struct mgpu_value *bias = mgpu_lower_in(l, 2) ? trailing(l, 2, x, (int)axis) : NULL;
    if (!scale || (mgpu_lower_in(l, 2) && !bias))
        return mgpu_build_error();
    MGPU_TRY(group_norm(l, x, (int)axis, mgpu_onnx_float(l->node, "epsilon", 1e-5), false, scale,
                        bias, out));
    l->out[0] = out[0];
    bool wanted = mgpu_lower_wants(l, 1) || mgpu_lower_wants(l, 2);
    return wanted ? statistics(l, x, (int)axis) : 0;
}

static int lower_rms_norm(struct mgpu_lower *l)
{
    struct mgpu_value *out[3];
    int64_t axis;
    MGPU_TRY(mgpu_lower_need(l, 2));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", -1), x->rank));
    struct mgpu_value *scale = trailing(l, 1, x, (int)axis);
    if (!scale)
        return mgpu_build_error();
    MGPU_TRY(group_norm(l, x, (int)axis, mgpu_onnx_float(l->node, "epsilon", 1e-5), true, scale,
                        NULL, out));
    return mgpu_lower_give(l, out[0]);
}

/* ---- Norms of vectors, windows of channels --------------------------------------------------- */

/* x / |x| along one axis; 0 where the norm is 0. */
static int lower_lp_norm(struct mgpu_lower *l)
{
    int64_t axis, p = mgpu_onnx_int(l->node, "p", 2);
    MGPU_TRY(mgpu_lower_need(l, 1));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    MGPU_TRY(mgpu_lower_axis(&axis, mgpu_onnx_int(l->node, "axis", -1), x->rank));
    if (p != 1 && p != 2)
        return mgpu_fail(MGPU_EINVALID, "p is %" PRId64 ", not 1 or 2", p);
    struct mgpu_value *part = p == 1 ? mgpu_unary(l->g, MGPU_X_ABS, x) : mgpu_mul(l->g, x, x);
    struct mgpu_value *norm = mgpu_reduce(l->g, MGPU_REDUCE_SUM, part, 1u << axis, true);
    if (p == 2)
        norm = mgpu_unary(l->g, MGPU_X_SQRT, norm);
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int a = mgpu_expr_input(&e, 0, x->type), n = mgpu_expr_input(&e, 1, x->type);
    int zero = mgpu_expr_number(&e, x->type, 0);
    int y = mgpu_expr_where(&e, mgpu_expr_2(&e, MGPU_X_EQ, n, zero), zero,
                            mgpu_expr_2(&e, MGPU_X_DIV, a, n));
    return mgpu_lower_give(l, mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 2,
                                             (struct mgpu_value *[]){x, norm}));
}

/* (x - mean) / (standard deviation + 1e-9), over the listed axes. */
static int lower_mean_variance(struct mgpu_lower *l)
{
    unsigned axes;
    MGPU_TRY(mgpu_lower_need(l, 1));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    MGPU_TRY(mgpu_lower_axes(l, -1, x->rank, 1u | 4u | 8u, &axes));
    if (axes >> x->rank)
        return mgpu_fail(MGPU_EINVALID, "axes do not fit rank %d", x->rank);
    struct mgpu_value *d = mgpu_sub(l->g, x, mgpu_reduce(l->g, MGPU_REDUCE_MEAN, x, axes, true));
    struct mgpu_value *v = mgpu_reduce(l->g, MGPU_REDUCE_MEAN, mgpu_mul(l->g, d, d), axes, true);
    v = mgpu_affine(l->g, mgpu_unary(l->g, MGPU_X_SQRT, v), 1, 1e-9);
    return mgpu_lower_give(l, mgpu_div(l->g, d, v));
}

/* y = x / (bias + alpha * mean of x^2 over `size` channels around)^beta; the mean counts zeros
 * outside. It is an average pool over the channels of [N,1,C,rest]. */
static int lower_lrn(struct mgpu_lower *l)
{
    int64_t size = mgpu_onnx_int(l->node, "size", 0);
    MGPU_TRY(mgpu_lower_need(l, 1));
    struct mgpu_value *x = mgpu_lower_in(l, 0);
    if (x->rank < 2 || size < 1 || size > INT32_MAX)
        return mgpu_fail(MGPU_EINVALID, "size %" PRId64 " for rank %d", size, x->rank);
    struct mgpu_dim dims[] = {x->dims[0], mgpu_dim_const(1), x->dims[1],
                              mgpu_dims_product(x->rank - 2, x->dims + 2)};
    struct mgpu_pool_attrs attrs = {
        .spatial = 2,
        .kernel = {size, 1},
        .stride = {1, 1},
        .dilation = {1, 1},
        .before = {(size - 1) / 2},
        .after = {size / 2},
        .in = {dims[2].value, dims[3].value},
        .out = {dims[2].value, dims[3].value},
        .count_include_pad = true,
    };
    struct mgpu_value *s = mgpu_reshape(l->g, mgpu_mul(l->g, x, x), 4, dims);
    s = mgpu_reshape(l->g, mgpu_lower_node(l, &mgpu_op_average_pool, &attrs, 1, &s), x->rank,
                     x->dims);
    if (!s)
        return mgpu_build_error();
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int a = mgpu_expr_input(&e, 0, x->type), m = mgpu_expr_input(&e, 1, x->type);
    double alpha = mgpu_onnx_float(l->node, "alpha", 1e-4);
    double beta = mgpu_onnx_float(l->node, "beta", 0.75);
    double bias = mgpu_onnx_float(l->node, "bias", 1);
    m = mgpu_expr_2(&e, MGPU_X_MUL, m, mgpu_expr_number(&e, x->type, alpha));
    m = mgpu_expr_2(&e, MGPU_X_ADD, m, mgpu_expr_number(&e, x->type, bias));
    m = mgpu_expr_2(&e, MGPU_X_POW, m, mgpu_expr_number(&e, x->type, beta));
    int y = mgpu_expr_2(&e, MGPU_X_DIV, a, m);
    return mgpu_lower_give(l, mgpu_pointwise(l->g, mgpu_expr_end(&e, y, l->g->arena), 2,
                                             (struct mgpu_value *[]){x, s}));
}

/* ---- Dropout -------------------------------------------------------------------------------- */

/* Whether the file asks for a mask in training. Before opset 7 by is_test; opsets 7 to 11 have no
 * mode (exporters leave the node out of inference models); then by an input. */
static int file_drops(struct mgpu_lower *l, bool *drops)
{
    int64_t mode = 0;
    if (l->node->opset < 7)
        *drops = !mgpu_onnx_int(l->node, "is_test", 0);
    else if (l->node->opset < 12)
        *drops = true;
    else if (mgpu_lower_in(l, 2)) {
        MGPU_TRY(mgpu_lower_int(l, 2, &mode, NULL));
        *drops = mode;
    } else
        *drops = false;
    return 0;
}

static int file_ratio(struct mgpu_lower *l, double *ratio)
{
    *ratio = mgpu_onnx_float(l->node, "ratio", 0.5);
    return mgpu_lower_in(l, 1) ? mgpu_lower_doubles(l, 1, ratio, 1) : 0;
}

/* The file's ratio (0 when it drops nothing), or what the user says instead. */
static int ratio_of(struct mgpu_lower *l, double *ratio)
{
    bool drops;
    const struct mgpu_lower_options *o = l->options;
    MGPU_TRY(file_drops(l, &drops));
    MGPU_TRY(file_ratio(l, ratio));
    *ratio = drops ? *ratio : 0;
    for (int i = 0; i < o->dropouts; i++) {
        const char *node = o->dropout[i].node;
        bool here = !node || !strcmp(node, l->node->name) || !strcmp(node, l->node->output[0]);
        if (here && o->dropout[i].fits)
            *o->dropout[i].fits = true;
        if (here && o->dropout[i].probability >= 0)
            *ratio = o->dropout[i].probability;
        else if (here) {
            MGPU_TRY(file_ratio(l, ratio));
            *ratio = drops ? *ratio : 0;
        }
    }
    if (!(*ratio >= 0 && *ratio < 1))
        return mgpu_fail(MGPU_EINVALID, "dropout ratio %g is not in [0, 1)", *ratio);
    return 0;
}

static struct mgpu_value *random_mask(struct mgpu_lower *l, const struct mgpu_value *x, double p)
{
    struct mgpu_random_attrs attrs = {
        .probability = p,
        .salt = l->node->index,
        .type = x->type,
        .rank = x->rank,
        .dims = mgpu_dims_copy(l->g, x->rank, x->dims),
    };
    struct mgpu_value *input[] = {
        mgpu_graph_scalar(l->g, MGPU_SCALAR_KEY, "key"),
        mgpu_graph_scalar(l->g, MGPU_SCALAR_STEP, "step"),
        mgpu_graph_scalar(l->g, MGPU_SCALAR_SAMPLE_BASE, "sample base"),
    };
    return mgpu_lower_node(l, &mgpu_op_random_mask, &attrs, 3, input);
}

int mgpu_lower_put_back_dropout(struct mgpu_lower *l)
{
    const struct mgpu_lower_options *o = l->options;
    for (int i = 0; i < o->dropouts && o->training && strcmp(l->node->type, "Dropout"); i++) {
        const struct mgpu_dropout_rule *r = &o->dropout[i];
        struct mgpu_value *x = l->out[0], *mask;
        if (!r->node || !mgpu_onnx_is_called(l->node, r->node))
            continue;
        if (!x || mgpu_as_sequence(x) || !mgpu_is_float(x->type))
            return mgpu_fail(MGPU_EUNSUPPORTED, "--dropout: its output is no tensor of floats");
        if (r->fits)
            *r->fits = true;
        if (r->probability <= 0)
            continue;
        if (!(r->probability < 1))
            return mgpu_fail(MGPU_EINVALID, "dropout ratio %g is not in [0, 1)", r->probability);
        if (!(mask = random_mask(l, x, r->probability)) || !(l->out[0] = mgpu_mul(l->g, x, mask)))
            return mgpu_build_error();
    }
    return 0;
}

static int lower_dropout(struct mgpu_lower *l)
{
    double p = 0;
    MGPU_TRY(mgpu_lower_need(l, 1));
    struct mgpu_value *x = mgpu_lower_in(l, 0), *mask = NULL;
    if (l->options->training)
        MGPU_TRY(ratio_of(l, &p));
    if (p > 0 && !(mask = random_mask(l, x, p)))
        return mgpu_build_error();
    MGPU_TRY(mgpu_lower_give(l, mask ? mgpu_mul(l->g, x, mask) : x));
    if (!mgpu_lower_wants(l, 1))
        return 0;
    struct mgpu_value *one = mgpu_const_double(l->g, MGPU_BOOL, 1);
    l->out[1] =
        mask ? mgpu_cast(l->g, mask, MGPU_BOOL) : mgpu_broadcast(l->g, one, x->rank, x->dims);
    if (l->node->opset < 10)
        l->out[1] = mgpu_cast(l->g, l->out[1], x->type);
    return l->out[1] ? 0 : mgpu_build_error();
}

const struct mgpu_lowering mgpu_lower_normalize[] = {
    {"BatchNormalization", 1, 0, mgpu_lower_batch_norm},
    {"InstanceNormalization", 1, 0, lower_instance_norm},
    {"GroupNormalization", 18, 0, lower_group_norm},
    {"LayerNormalization", 17, 0, lower_layer_norm},
    {"RMSNormalization", 23, 0, lower_rms_norm},
    {"LpNormalization", 1, 0, lower_lp_norm},
    {"MeanVarianceNormalization", 9, 0, lower_mean_variance},
    {"LRN", 1, 0, lower_lrn},
    {"Dropout", 1, 0, lower_dropout},
    {0},
};
