#include "runtime/ops/normalize.h"

#include "runtime/base/status.h"
#include "runtime/graph/step_scalar.h"
#include "runtime/ops/build.h"

static bool same_dims(const struct mgpu_value *a, int rank, const struct mgpu_dim *dims)
{
    bool same = a->rank == rank;
    for (int k = 0; same && k < rank; k++)
        same = a->dims[k].value == dims[k].value;
    return same;
}

/* Input i, where there is one, must have these dims and be floating. */
static int check_input(const struct mgpu_node *node, int i, const char *what, int rank,
                       const struct mgpu_dim *dims)
{
    char text[MGPU_VALUE_TEXT], tx[MGPU_VALUE_TEXT];
    const struct mgpu_value *v = i < node->inputs ? node->input[i] : NULL;
    if (!v || (mgpu_is_float(v->type) && same_dims(v, rank, dims)))
        return 0;
    return mgpu_fail(MGPU_EINVALID, "%s of %s: %s is %s", node->op->name,
                     mgpu_value_text(tx, NULL, node->input[0]), what,
                     mgpu_value_text(text, NULL, v));
}

/* Statistics take no gradient of their own. */
static int check_arriving(const struct mgpu_node *node, struct mgpu_value *const *dy)
{
    for (int i = 1; i < node->outputs; i++)
        if (dy[i])
            return mgpu_fail(MGPU_EUNSUPPORTED, "no gradient passes the statistics of %s",
                             node->op->name);
    return 0;
}

static void saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    (void)node;
    *inputs = 3;  /* x, scale */
    *outputs = 6; /* the statistics */
}

/* dx may overwrite dy: a row or channel is read to its end before, an element just before. */
static int alias_grad(const struct mgpu_node *node, struct mgpu_alias *pairs)
{
    (void)node;
    pairs[0] = (struct mgpu_alias){.input = 1, .output = 0, .view = false};
    return 1;
}

/* Images may stand in any layout; vectors are plain. */
static unsigned layouts_images(const struct mgpu_node *node, int operand)
{
    const struct mgpu_value *v =
        operand < node->inputs ? node->input[operand] : node->output[operand - node->inputs];
    return v && v->rank > 2 ? MGPU_LAYOUT_ANY : MGPU_LAYOUT_PLAIN;
}

/* Sums, squares, and the affine map; twice that backward. */
static struct mgpu_cost cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = 7 * (double)mgpu_value_count(node->input[0]),
                              .bytes = mgpu_operand_bytes(node)};
}

static struct mgpu_cost cost_grad(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = 12 * (double)mgpu_value_count(node->input[0]),
                              .bytes = mgpu_operand_bytes(node)};
}

/* ---- batch_norm ------------------------------------------------------------------------------ */

static const struct mgpu_batch_norm_attrs *batch_attrs(const struct mgpu_node *node)
{
    return node->attrs;
}

static int check_batch(const struct mgpu_node *node)
{
    char text[MGPU_VALUE_TEXT];
    const struct mgpu_value *x = node->input[0];
    if (!mgpu_is_float(x->type) || x->rank < 2)
        return mgpu_fail(MGPU_EINVALID, "batch_norm of %s", mgpu_value_text(text, NULL, x));
    return 0;
}

static int batch_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_batch(node));
    const struct mgpu_value *x = node->input[0], *scale = node->input[1];
    MGPU_TRY(check_input(node, 1, "its scale", 1, &x->dims[1]));
    MGPU_TRY(check_input(node, 2, "its bias", 1, &x->dims[1]));
    MGPU_TRY(check_input(node, 3, "what is added", x->rank, x->dims));
    MGPU_TRY(check_input(node, 4, "its mean", 1, &x->dims[1]));
    MGPU_TRY(check_input(node, 5, "its variance", 1, &x->dims[1]));
    mgpu_shape_like(node, 0, x);
    mgpu_shape_set(node, 1, scale->type, 1, &x->dims[1]);
    mgpu_shape_set(node, 2, scale->type, 1, &x->dims[1]);
    return 0;
}

/* The gradient has the bias in place of the output. */
static bool limits_by_bias(const struct mgpu_node *node)
{
    return node->inputs > 5 && node->input[5] && node->input[5]->rank == 1;
}

static int batch_grad_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_batch(node));
    const struct mgpu_value *x = node->input[0], *scale = node->input[2];
    MGPU_TRY(check_input(node, 1, "the gradient", x->rank, x->dims));
    MGPU_TRY(check_input(node, 2, "its scale", 1, &x->dims[1]));
    MGPU_TRY(check_input(node, 3, "its mean", 1, &x->dims[1]));
    MGPU_TRY(check_input(node, 4, "its variance", 1, &x->dims[1]));
    if (limits_by_bias(node))
        MGPU_TRY(check_input(node, 5, "its bias", 1, &x->dims[1]));
    else
        MGPU_TRY(check_input(node, 5, "its output", x->rank, x->dims));
    mgpu_shape_like(node, 0, x);
    mgpu_shape_set(node, 1, scale->type, 1, &x->dims[1]);
    mgpu_shape_set(node, 2, scale->type, 1, &x->dims[1]);
    return 0;
}

static void batch_saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    saved(node, inputs, outputs);
    *outputs |= batch_attrs(node)->clips; /* y */
}

/* dy where y is within the limits. */
static struct mgpu_value *passed(struct mgpu_graph *g, const struct mgpu_batch_norm_attrs *a,
                                 struct mgpu_value *dy, struct mgpu_value *y)
{
    struct mgpu_value *in[] = {dy, y};
    struct mgpu_expr e;
    mgpu_expr_begin(&e, 2);
    int d = mgpu_expr_input(&e, 0, dy->type), v = mgpu_expr_input(&e, 1, y->type);
    int zero = mgpu_expr_number(&e, dy->type, 0);
    int above = mgpu_expr_2(&e, MGPU_X_LT, mgpu_expr_number(&e, y->type, a->low), v);
    int below = mgpu_expr_2(&e, MGPU_X_LT, v, mgpu_expr_number(&e, y->type, a->high));
    d = mgpu_expr_where(&e, mgpu_expr_2(&e, MGPU_X_AND, above, below), d, zero);
    return mgpu_pointwise(g, mgpu_expr_end(&e, d, g->arena), 2, in);
}

static int batch_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                          struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    MGPU_TRY(check_arriving(node, dy));
    bool clips = batch_attrs(node)->clips;
    struct mgpu_value *out[3];
    struct mgpu_value *in[] = {node->input[0],  dy[0],           node->input[1],
                               node->output[1], node->output[2], node->output[0]};
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_batch_norm_grad, node->attrs, 5 + clips, in, 3, out));
    for (int i = 0; i < 3; i++)
        dx[i] = wanted[i] ? out[i] : NULL;
    if (node->inputs < 4 || !node->input[3] || !wanted[3])
        return 0;
    dx[3] = clips ? passed(g, batch_attrs(node), dy[0], node->output[0]) : dy[0];
    return dx[3] ? 0 : mgpu_build_error();
}

/* Input *which must be spread as `must` is. */
static enum mgpu_split_answer require(const struct mgpu_node *node, const struct mgpu_split *in,
                                      int i, struct mgpu_split must, int *which)
{
    *which = i;
    if (i >= node->inputs || !node->input[i] || mgpu_split_same(in[i], must))
        return MGPU_SPLIT_OK;
    return mgpu_split_is_term(in[i]) ? MGPU_SPLIT_FULL : MGPU_SPLIT_MIXES;
}

/* The statistics of a rank's own samples: the running ones become their mean over the ranks. */
static struct mgpu_split own_statistics(struct mgpu_split x)
{
    bool cut = x.kind == MGPU_SPLIT_AXIS;
    return mgpu_split_make(cut ? MGPU_SPLIT_MEAN : MGPU_SPLIT_REPLICATED, 0, 1);
}

/* Whether x may be cut so: not at all, or among the samples of a channel, each rank its own. */
static enum mgpu_split_answer split_x(const struct mgpu_node *node, const struct mgpu_split *in,
                                      int *which)
{
    *which = 0;
    if (mgpu_split_is_term(in[0]))
        return MGPU_SPLIT_FULL;
    bool cut = in[0].kind == MGPU_SPLIT_AXIS;
    return cut && (in[0].axis == 1 || !batch_attrs(node)->per_rank) ? MGPU_SPLIT_MIXES
                                                                    : MGPU_SPLIT_OK;
}

static enum mgpu_split_answer batch_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                          struct mgpu_split *out, int *which)
{
    struct mgpu_split whole = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    const struct mgpu_split must[] = {
        in[0], whole, whole, in[0], own_statistics(in[0]), own_statistics(in[0])};
    enum mgpu_split_answer answer = split_x(node, in, which);
    for (int i = 1; i < 6 && answer == MGPU_SPLIT_OK; i++)
        answer = require(node, in, i, must[i], which);
    out[0] = in[0];
    out[1] = out[2] = own_statistics(in[0]);
    return answer;
}

static enum mgpu_split_answer batch_grad_split(const struct mgpu_node *node,
                                               const struct mgpu_split *in, struct mgpu_split *out,
                                               int *which)
{
    struct mgpu_split whole = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    const struct mgpu_split must[] = {in[0],
                                      in[0],
                                      whole,
                                      own_statistics(in[0]),
                                      own_statistics(in[0]),
                                      limits_by_bias(node) ? whole : in[0]};
    enum mgpu_split_answer answer = split_x(node, in, which);
    for (int i = 1; i < 6 && answer == MGPU_SPLIT_OK; i++)
        answer = require(node, in, i, must[i], which);
    bool cut = in[0].kind == MGPU_SPLIT_AXIS;
    out[0] = in[0];
    out[1] = out[2] = cut ? mgpu_split_make(MGPU_SPLIT_SUM, 0, 1) : whole;
    return answer;
}

/* ---- batch_norm over several ranks: sums over the whole batch -------------------------------- */

/* What the formulas share. Computed in float at least. */
struct whole {
    struct mgpu_graph *g;
    enum mgpu_dtype type;
    int rank;
    unsigned axes;              /* all but the channels' */
    struct mgpu_value *inverse; /* 1 / elements of a channel in the whole batch */
};

/* Elements of a channel in one sample, or a refusal when they do not grow with the batch. */
static int elements_a_sample(const struct mgpu_graph *g, const struct mgpu_value *x, double *out)
{
    struct mgpu_dim n = mgpu_dim_const(1);
    for (int k = 0; k < x->rank; k++)
        if (k != 1)
            n = mgpu_dim_mul(n, x->dims[k]);
    if (n.opaque || n.power[MGPU_BATCH] != 1 || g->batch < 1)
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "batch_norm over ranks: its elements do not grow with the batch");
    *out = (double)(n.value / g->batch);
    return 0;
}

static int begin_whole(struct whole *w, struct mgpu_graph *g, const struct mgpu_value *x)
{
    double each = 0;
    bool is_double = x->type == MGPU_DOUBLE;
    MGPU_TRY(elements_a_sample(g, x, &each));
    *w = (struct whole){.g = g,
                        .type = is_double ? MGPU_DOUBLE : MGPU_FLOAT,
                        .rank = x->rank,
                        .axes = ((1u << x->rank) - 1) & ~2u};
    struct mgpu_value *samples = mgpu_graph_scalar(g, MGPU_SCALAR_PIECE, "samples of the piece");
    struct mgpu_value *count = mgpu_affine(g, samples, each, 0);
    w->inverse = mgpu_cast(g, mgpu_unary(g, MGPU_X_RECIPROCAL, count), w->type);
    return w->inverse ? 0 : mgpu_build_error();
}

static struct mgpu_value *channel_sum(const struct whole *w, struct mgpu_value *x)
{
    return mgpu_reduce(w->g, MGPU_REDUCE_SUM, x, w->axes, false);
}

static struct mgpu_value *channel_mean(const struct whole *w, struct mgpu_value *x)
{
    return mgpu_mul(w->g, channel_sum(w, x), w->inverse);
}

/* A vector over channels as [C,1,...], so that it broadcasts to x. */
static struct mgpu_value *column(const struct whole *w, struct mgpu_value *v)
{
    struct mgpu_dim dims[MGPU_MAX_RANK];
    if (!v)
        return NULL;
    dims[0] = v->dims[0];
    for (int k = 1; k < w->rank - 1; k++)
        dims[k] = mgpu_dim_const(1);
    return mgpu_reshape(w->g, v, w->rank - 1, dims);
}

static struct mgpu_value *inverse_deviation(const struct whole *w, struct mgpu_value *variance,
                                            double epsilon)
{
    struct mgpu_value *v = mgpu_affine(w->g, variance, 1, epsilon);
    return mgpu_unary(w->g, MGPU_X_RECIPROCAL, mgpu_unary(w->g, MGPU_X_SQRT, v));
}

/* mean = sum(x)/n; variance = sum((x-mean)^2)/n, in two passes: exact, and for slices of any size.
 */
/* y with what is added, within the limits. */
static struct mgpu_value *finished(struct mgpu_graph *g, const struct mgpu_node *node,
                                   struct mgpu_value *y)
{
    const struct mgpu_batch_norm_attrs *a = batch_attrs(node);
    if (node->inputs > 3 && node->input[3])
        y = mgpu_add(g, y, node->input[3]);
    if (!a->clips)
        return y;
    y = mgpu_binary(g, MGPU_X_MAX, y, mgpu_const_double(g, y->type, a->low));
    return mgpu_binary(g, MGPU_X_MIN, y, mgpu_const_double(g, y->type, a->high));
}

static int batch_expand(struct mgpu_graph *g, const struct mgpu_node *node, struct mgpu_value **out)
{
    struct whole w;
    MGPU_TRY(begin_whole(&w, g, node->input[0]));
    struct mgpu_value *x = mgpu_cast(g, node->input[0], w.type);
    struct mgpu_value *scale = mgpu_cast(g, node->input[1], w.type);
    struct mgpu_value *bias = mgpu_cast(g, node->input[2], w.type);
    bool given = node->inputs > 4;
    struct mgpu_value *mean = given ? mgpu_cast(g, node->input[4], w.type) : channel_mean(&w, x);
    struct mgpu_value *centred = mgpu_sub(g, x, column(&w, mean));
    struct mgpu_value *variance = given ? mgpu_cast(g, node->input[5], w.type)
                                        : channel_mean(&w, mgpu_mul(g, centred, centred));
    struct mgpu_value *inverse = inverse_deviation(&w, variance, batch_attrs(node)->epsilon);
    struct mgpu_value *y = mgpu_mul(g, centred, column(&w, mgpu_mul(g, inverse, scale)));
    y = mgpu_cast(g, mgpu_add(g, y, column(&w, bias)), node->input[0]->type);
    out[0] = finished(g, node, y);
    out[1] = mgpu_cast(g, mean, node->input[1]->type);
    out[2] = mgpu_cast(g, variance, node->input[1]->type);
    return out[0] && out[1] && out[2] ? 0 : mgpu_build_error();
}

/* With z = (x-mean)/deviation: dbias = sum(dy), dscale = sum(dy*z),
 * dx = scale/deviation * (dy - dbias/n - z*dscale/n). */
static int batch_grad_expand(struct mgpu_graph *g, const struct mgpu_node *node,
                             struct mgpu_value **out)
{
    struct whole w;
    MGPU_TRY(begin_whole(&w, g, node->input[0]));
    struct mgpu_value *in[5];
    for (int i = 0; i < 5; i++)
        in[i] = mgpu_cast(g, node->input[i], w.type);
    struct mgpu_value *dy = in[1];
    struct mgpu_value *inverse = inverse_deviation(&w, in[4], batch_attrs(node)->epsilon);
    struct mgpu_value *centred = mgpu_sub(g, in[0], column(&w, in[3]));
    struct mgpu_value *z = mgpu_mul(g, centred, column(&w, inverse));
    if (limits_by_bias(node))
        dy = passed(g, batch_attrs(node), dy,
                    mgpu_add(g, mgpu_mul(g, z, column(&w, in[2])),
                             column(&w, mgpu_cast(g, node->input[5], w.type))));
    else if (batch_attrs(node)->clips)
        dy = passed(g, batch_attrs(node), dy, node->input[5]);
    struct mgpu_value *dbias = channel_sum(&w, dy), *dscale = channel_sum(&w, mgpu_mul(g, dy, z));
    struct mgpu_value *mean = column(&w, mgpu_mul(g, dbias, w.inverse));
    struct mgpu_value *slope = column(&w, mgpu_mul(g, dscale, w.inverse));
    struct mgpu_value *rest = mgpu_sub(g, mgpu_sub(g, dy, mean), mgpu_mul(g, z, slope));
    struct mgpu_value *dx = mgpu_mul(g, rest, column(&w, mgpu_mul(g, inverse, in[2])));
    out[0] = mgpu_cast(g, dx, node->input[0]->type);
    out[1] = mgpu_cast(g, dscale, node->input[2]->type);
    out[2] = mgpu_cast(g, dbias, node->input[2]->type);
    return out[0] && out[1] && out[2] ? 0 : mgpu_build_error();
}

/* ---- group_norm ------------------------------------------------------------------------------ */

static const struct mgpu_group_norm_attrs *group_attrs(const struct mgpu_node *node)
{
    return node->attrs;
}

static int check_group(const struct mgpu_node *node)
{
    char text[MGPU_VALUE_TEXT];
    const struct mgpu_value *x = node->input[0];
    int64_t axis = group_attrs(node)->axis;
    if (!mgpu_is_float(x->type) || axis < 0 || axis >= x->rank)
        return mgpu_fail(MGPU_EINVALID, "group_norm of %s from axis %lld on",
                         mgpu_value_text(text, NULL, x), (long long)axis);
    return 0;
}

/* G: how many rows are normalised. */
static struct mgpu_dim group_rows(const struct mgpu_node *node)
{
    struct mgpu_dim rows = mgpu_dim_const(1);
    for (int k = 0; k < group_attrs(node)->axis; k++)
        rows = mgpu_dim_mul(rows, node->input[0]->dims[k]);
    return rows;
}

/* Statistics of half types are kept in float. */
static enum mgpu_dtype statistics_type(const struct mgpu_value *x)
{
    return x->type == MGPU_DOUBLE ? MGPU_DOUBLE : MGPU_FLOAT;
}

static int group_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_group(node));
    const struct mgpu_value *x = node->input[0];
    int axis = (int)group_attrs(node)->axis;
    struct mgpu_dim rows = group_rows(node);
    MGPU_TRY(check_input(node, 1, "its scale", x->rank - axis, x->dims + axis));
    MGPU_TRY(check_input(node, 2, "its bias", x->rank - axis, x->dims + axis));
    mgpu_shape_like(node, 0, x);
    mgpu_shape_set(node, 1, statistics_type(x), 1, &rows);
    mgpu_shape_set(node, 2, statistics_type(x), 1, &rows);
    return 0;
}

/* dscale and dbias have the shape that scale has or would have. */
static int group_grad_shape(const struct mgpu_node *node)
{
    MGPU_TRY(check_group(node));
    const struct mgpu_value *x = node->input[0], *scale = node->inputs > 2 ? node->input[2] : NULL;
    int axis = (int)group_attrs(node)->axis;
    struct mgpu_dim rows = group_rows(node);
    if (node->inputs < 5 || !node->input[4] || (!group_attrs(node)->rms && !node->input[3]))
        return mgpu_fail(MGPU_EINVALID, "group_norm_grad without the row's statistics");
    MGPU_TRY(check_input(node, 1, "the gradient", x->rank, x->dims));
    MGPU_TRY(check_input(node, 2, "its scale", x->rank - axis, x->dims + axis));
    MGPU_TRY(check_input(node, 3, "its mean", 1, &rows));
    MGPU_TRY(check_input(node, 4, "its deviation", 1, &rows));
    mgpu_shape_like(node, 0, x);
    for (int i = 1; i < 3; i++)
        mgpu_shape_set(node, i, scale ? scale->type : x->type, x->rank - axis, x->dims + axis);
    return 0;
}

static int group_gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                          struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    MGPU_TRY(check_arriving(node, dy));
    struct mgpu_value *out[3], *mean = group_attrs(node)->rms ? NULL : node->output[1];
    struct mgpu_value *scale = node->inputs > 1 ? node->input[1] : NULL;
    struct mgpu_value *in[] = {node->input[0], dy[0], scale, mean, node->output[2]};
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_group_norm_grad, node->attrs, 5, in, 3, out));
    for (int i = 0; i < node->inputs; i++)
        dx[i] = wanted[i] ? out[i] : NULL;
    return 0;
}

/* How the rows' statistics are spread when x is: its axes before `axis` became one. */
static struct mgpu_split rows_split(const struct mgpu_node *node, struct mgpu_split x)
{
    if (x.kind != MGPU_SPLIT_AXIS)
        return x;
    int64_t outer = x.outer;
    for (int k = 0; k < x.axis; k++)
        outer *= node->input[0]->dims[k].value;
    return mgpu_split_make(MGPU_SPLIT_AXIS, 0, outer);
}

static enum mgpu_split_answer group_split_x(const struct mgpu_node *node,
                                            const struct mgpu_split *in, int *which)
{
    *which = 0;
    if (mgpu_split_is_term(in[0]))
        return MGPU_SPLIT_FULL;
    bool cut = in[0].kind == MGPU_SPLIT_AXIS;
    return cut && in[0].axis >= group_attrs(node)->axis ? MGPU_SPLIT_MIXES : MGPU_SPLIT_OK;
}

static enum mgpu_split_answer group_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                          struct mgpu_split *out, int *which)
{
    struct mgpu_split whole = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    enum mgpu_split_answer answer = group_split_x(node, in, which);
    for (int i = 1; i < node->inputs && answer == MGPU_SPLIT_OK; i++)
        answer = require(node, in, i, whole, which);
    out[0] = in[0];
    out[1] = out[2] = rows_split(node, in[0]);
    return answer;
}

static enum mgpu_split_answer group_grad_split(const struct mgpu_node *node,
                                               const struct mgpu_split *in, struct mgpu_split *out,
                                               int *which)
{
    struct mgpu_split whole = mgpu_split_make(MGPU_SPLIT_REPLICATED, 0, 1);
    struct mgpu_split rows = rows_split(node, in[0]);
    const struct mgpu_split must[] = {in[0], in[0], whole, rows, rows};
    enum mgpu_split_answer answer = group_split_x(node, in, which);
    for (int i = 1; i < node->inputs && answer == MGPU_SPLIT_OK; i++)
        answer = require(node, in, i, must[i], which);
    bool cut = in[0].kind == MGPU_SPLIT_AXIS;
    out[0] = in[0];
    out[1] = out[2] = cut ? mgpu_split_make(MGPU_SPLIT_SUM, 0, 1) : whole;
    return answer;
}

/* ---- Records --------------------------------------------------------------------------------- */

#define BATCH(name) offsetof(struct mgpu_batch_norm_attrs, name)
static const struct mgpu_attr batch_table[] = {
    {.name = "epsilon", .kind = MGPU_ATTR_FLOAT, .offset = BATCH(epsilon)},
    {.name = "per_rank", .kind = MGPU_ATTR_BOOL, .offset = BATCH(per_rank)},
    {.name = "clips", .kind = MGPU_ATTR_BOOL, .offset = BATCH(clips)},
    {.name = "low", .kind = MGPU_ATTR_FLOAT, .offset = BATCH(low)},
    {.name = "high", .kind = MGPU_ATTR_FLOAT, .offset = BATCH(high)},
    {.name = NULL},
};

#define GROUP(name) offsetof(struct mgpu_group_norm_attrs, name)
static const struct mgpu_attr group_table[] = {
    {.name = "axis", .kind = MGPU_ATTR_INT, .offset = GROUP(axis)},
    {.name = "epsilon", .kind = MGPU_ATTR_FLOAT, .offset = GROUP(epsilon)},
    {.name = "rms", .kind = MGPU_ATTR_BOOL, .offset = GROUP(rms)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_batch_norm = {
    .name = "batch_norm",
    .min_inputs = 3,
    .max_inputs = 6,
    .outputs = 3,
    .attrs_size = sizeof(struct mgpu_batch_norm_attrs),
    .attrs = batch_table,
    .half = MGPU_HALF_FOLLOWS,
    .float_inputs = 1u << 1 | 1u << 2 | 1u << 4 | 1u << 5,
    .float_outputs = 1u << 1 | 1u << 2,
    .shape = batch_shape,
    .gradient = batch_gradient,
    .saved = batch_saved,
    .alias = mgpu_alias_in_place,
    .workspace = mgpu_workspace_none,
    .layouts = layouts_images,
    .cost = cost,
    .split = batch_split,
    .expand = batch_expand,
};

const struct mgpu_op mgpu_op_batch_norm_grad = {
    .name = "batch_norm_grad",
    .min_inputs = 5,
    .max_inputs = 6,
    .outputs = 3,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_batch_norm_attrs),
    .attrs = batch_table,
    .half = MGPU_HALF_FOLLOWS,
    .float_inputs = 1u << 2 | 1u << 3 | 1u << 4,
    .float_outputs = 1u << 1 | 1u << 2,
    .shape = batch_grad_shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = alias_grad,
    .workspace = mgpu_workspace_none,
    .layouts = layouts_images,
    .cost = cost_grad,
    .split = batch_grad_split,
    .expand = batch_grad_expand,
};

const struct mgpu_op mgpu_op_group_norm = {
    .name = "group_norm",
    .min_inputs = 1,
    .max_inputs = 3,
    .outputs = 3,
    .attrs_size = sizeof(struct mgpu_group_norm_attrs),
    .attrs = group_table,
    .half = MGPU_HALF_FOLLOWS,
    .float_inputs = 1u << 1 | 1u << 2,
    .float_outputs = 1u << 1 | 1u << 2,
    .shape = group_shape,
    .gradient = group_gradient,
    .saved = saved,
    .alias = mgpu_alias_in_place,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost,
    .split = group_split,
};

const struct mgpu_op mgpu_op_group_norm_grad = {
    .name = "group_norm_grad",
    .min_inputs = 2,
    .max_inputs = 5,
    .outputs = 3,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_group_norm_attrs),
    .attrs = group_table,
    .half = MGPU_HALF_FOLLOWS,
    .float_inputs = 1u << 2 | 1u << 3 | 1u << 4,
    .float_outputs = 1u << 1 | 1u << 2,
    .shape = group_grad_shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = alias_grad,
    .workspace = mgpu_workspace_none,
    .layouts = mgpu_layouts_plain,
    .cost = cost_grad,
    .split = group_grad_split,
};
