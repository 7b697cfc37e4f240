#include "runtime/ops/rnn.h"

#include "runtime/base/status.h"
#include "runtime/ops/build.h"

#include <stddef.h>

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P, Y, RESERVE, DY, DY_H, DY_C };

static const struct mgpu_rnn_attrs *attrs_of(const struct mgpu_node *node)
{
    return node->attrs;
}

static int64_t gates(const struct mgpu_rnn_attrs *a)
{
    return a->kind == MGPU_RNN ? 1 : a->kind == MGPU_GRU ? 3 : 4;
}

static int64_t directions(const struct mgpu_rnn_attrs *a)
{
    return a->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1;
}

/* The gates; the cell state of an LSTM; what r multiplies with linear_before_reset. */
static int64_t reserve_width(const struct mgpu_rnn_attrs *a)
{
    bool more = a->kind == MGPU_LSTM || (a->kind == MGPU_GRU && a->linear_before_reset);
    return (gates(a) + more) * a->hidden;
}

static const struct mgpu_value *input(const struct mgpu_node *node, int i)
{
    return i < node->inputs ? node->input[i] : NULL;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static int check_attrs(const struct mgpu_rnn_attrs *a)
{
    if (a->kind < MGPU_RNN || a->kind > MGPU_LSTM || a->direction < MGPU_RNN_FORWARD ||
        a->direction > MGPU_RNN_BIDIRECTIONAL)
        return mgpu_fail(MGPU_EINVALID, "rnn: kind %d, direction %d", a->kind, a->direction);
    if (a->hidden < 1 || a->hidden > INT64_C(1) << 30)
        return mgpu_fail(MGPU_EINVALID, "rnn: hidden size %lld", (long long)a->hidden);
    for (int i = 0; i < 6; i++)
        if (a->activation[i] < MGPU_ACT_SIGMOID || a->activation[i] > MGPU_ACT_SOFTPLUS)
            return mgpu_fail(MGPU_EINVALID, "rnn: activation %lld", (long long)a->activation[i]);
    if (!(a->clip >= 0))
        return mgpu_fail(MGPU_EINVALID, "rnn: clip %g", a->clip);
    return 0;
}

/* A present operand must have X's type (sequence_lens: int32) and these sizes. */
static int check_operand(const struct mgpu_node *node, int i, const char *name, int rank, int64_t a,
                         int64_t b, int64_t c)
{
    const struct mgpu_value *v = input(node, i);
    const int64_t dims[] = {a, b, c};
    char text[MGPU_VALUE_TEXT], want[MGPU_SHAPE_TEXT];
    bool fits =
        !v || (v->rank == rank && v->type == (i == LENGTHS ? MGPU_INT32 : node->input[X]->type));
    for (int k = 0; v && k < rank && fits; k++)
        fits = v->dims[k].value == dims[k];
    if (!fits)
        return mgpu_fail(MGPU_EINVALID, "%s: %s is %s, its shape must be %s", node->op->name, name,
                         mgpu_value_text(text, NULL, v), mgpu_shape_text(want, rank, dims));
    return 0;
}

/* The eight inputs that rnn and rnn_grad share. */
static int check_inputs(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = attrs_of(node);
    const struct mgpu_value *x = node->input[X];
    char text[MGPU_VALUE_TEXT];
    MGPU_TRY(check_attrs(a));
    if (x->rank != 3 || !mgpu_is_float(x->type))
        return mgpu_fail(MGPU_EINVALID, "%s: X is %s", node->op->name,
                         mgpu_value_text(text, NULL, x));
    int64_t D = directions(a), G = gates(a), H = a->hidden;
    int64_t N = x->dims[1].value, I = x->dims[2].value;
    MGPU_TRY(check_operand(node, W, "W", 3, D, G * H, I));
    MGPU_TRY(check_operand(node, R, "R", 3, D, G * H, H));
    MGPU_TRY(check_operand(node, B, "B", 2, D, 2 * G * H, 0));
    MGPU_TRY(check_operand(node, LENGTHS, "sequence_lens", 1, N, 0, 0));
    MGPU_TRY(check_operand(node, INITIAL_H, "initial_h", 3, D, N, H));
    MGPU_TRY(check_operand(node, INITIAL_C, "initial_c", 3, D, N, H));
    return check_operand(node, P, "P", 2, D, 3 * H, 0);
}

/* [D, N, size]. */
static void set_state(const struct mgpu_node *node, int output, int64_t size)
{
    const struct mgpu_value *x = node->input[X];
    struct mgpu_dim dims[] = {mgpu_dim_const(directions(attrs_of(node))), x->dims[1],
                              mgpu_dim_const(size)};
    mgpu_shape_set(node, output, x->type, 3, dims);
}

/* [T, D, N, size]. */
static void set_steps(const struct mgpu_node *node, int output, int64_t size)
{
    const struct mgpu_value *x = node->input[X];
    struct mgpu_dim dims[] = {x->dims[0], mgpu_dim_const(directions(attrs_of(node))), x->dims[1],
                              mgpu_dim_const(size)};
    mgpu_shape_set(node, output, x->type, 4, dims);
}

/* Y_c of a layer without cells is empty. */
static int rnn_shape(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = attrs_of(node);
    MGPU_TRY(check_inputs(node));
    set_steps(node, 0, a->hidden);
    set_state(node, 1, a->hidden);
    set_state(node, 2, a->kind == MGPU_LSTM ? a->hidden : 0);
    set_steps(node, 3, reserve_width(a));
    return 0;
}

static int check_steps(const struct mgpu_node *node, int i, const char *name, int64_t size)
{
    const struct mgpu_value *v = input(node, i), *x = node->input[X];
    char text[MGPU_VALUE_TEXT];
    if (v && (v->rank != 4 || v->type != x->type || v->dims[0].value != x->dims[0].value ||
              v->dims[1].value != directions(attrs_of(node)) ||
              v->dims[2].value != x->dims[1].value || v->dims[3].value != size))
        return mgpu_fail(MGPU_EINVALID, "%s: %s is %s", node->op->name, name,
                         mgpu_value_text(text, NULL, v));
    return 0;
}

/* Gradients of absent inputs have the shape that the input would have. */
static int grad_shape(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = attrs_of(node);
    const struct mgpu_value *x = node->input[X];
    int64_t D = directions(a), H = a->hidden, N = x->dims[1].value;
    MGPU_TRY(check_inputs(node));
    if (!input(node, Y) || !input(node, RESERVE))
        return mgpu_fail(MGPU_EINTERNAL, "rnn_grad without Y or the reserve");
    MGPU_TRY(check_steps(node, Y, "Y", H));
    MGPU_TRY(check_steps(node, RESERVE, "the reserve", reserve_width(a)));
    MGPU_TRY(check_steps(node, DY, "the gradient of Y", H));
    MGPU_TRY(check_operand(node, DY_H, "the gradient of Y_h", 3, D, N, H));
    MGPU_TRY(check_operand(node, DY_C, "the gradient of Y_c", 3, D, N, H));
    struct mgpu_dim bias[] = {mgpu_dim_const(D), mgpu_dim_const(2 * gates(a) * H)};
    struct mgpu_dim peepholes[] = {mgpu_dim_const(D), mgpu_dim_const(3 * H)};
    mgpu_shape_like(node, 0, x);
    mgpu_shape_like(node, 1, node->input[W]);
    mgpu_shape_like(node, 2, node->input[R]);
    mgpu_shape_set(node, 3, x->type, 2, bias);
    set_state(node, 4, H);
    set_state(node, 5, H);
    mgpu_shape_set(node, 6, x->type, 2, peepholes);
    return 0;
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* Y_c carries a gradient only where there are cells. */
static int gradient(struct mgpu_graph *g, const struct mgpu_node *node,
                    struct mgpu_value *const *dy, const bool *wanted, struct mgpu_value **dx)
{
    static const int output_of[] = {[X] = 0,        [W] = 1,         [R] = 2,         [B] = 3,
                                    [LENGTHS] = -1, [INITIAL_H] = 4, [INITIAL_C] = 5, [P] = 6};
    struct mgpu_value *in[DY_C + 1] = {NULL}, *out[7];
    if (node->outputs < 4 || !node->output[0] || !node->output[3])
        return mgpu_fail(MGPU_EINTERNAL, "rnn was built without Y or its reserve");
    for (int i = 0; i < node->inputs; i++)
        in[i] = node->input[i];
    in[Y] = node->output[0];
    in[RESERVE] = node->output[3];
    in[DY] = dy[0];
    in[DY_H] = dy[1];
    in[DY_C] = attrs_of(node)->kind == MGPU_LSTM ? dy[2] : NULL;
    MGPU_TRY(mgpu_graph_node(g, &mgpu_op_rnn_grad, node->attrs, DY_C + 1, in, 7, out));
    for (int i = 0; i < node->inputs; i++)
        if (wanted[i] && output_of[i] >= 0)
            dx[i] = out[output_of[i]];
    return 0;
}

static void saved(const struct mgpu_node *node, unsigned *inputs, unsigned *outputs)
{
    mgpu_saved_inputs(node, inputs, outputs);
    *outputs = 1u << 0 | 1u << 3;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* In double: one step of all samples (runtime/ref/rnn_cell.h) and the states. */
static int64_t rnn_workspace(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = attrs_of(node);
    int64_t state = node->input[X]->dims[1].value * a->hidden;
    return (int64_t)sizeof(double) * state * (2 * gates(a) + 5);
}

/* Also gradients of the sums, states, and two more of the states' size for all steps, four for
 * one, and the peepholes' gradient. */
static int64_t grad_workspace(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = attrs_of(node);
    int64_t state = node->input[X]->dims[1].value * a->hidden, T = node->input[X]->dims[0].value;
    return (int64_t)sizeof(double) *
           (state * (2 * gates(a) + 7) + T * state * (gates(a) + 3) + 3 * a->hidden);
}

static double products(const struct mgpu_node *node)
{
    const struct mgpu_rnn_attrs *a = attrs_of(node);
    const struct mgpu_value *x = node->input[X];
    double rows = (double)x->dims[0].value * (double)x->dims[1].value * (double)directions(a);
    double width = (double)(x->dims[2].value + a->hidden);
    return 2 * rows * width * (double)(gates(a) * a->hidden);
}

static struct mgpu_cost rnn_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = products(node), .bytes = mgpu_operand_bytes(node)};
}

/* By the operands and by the weights. */
static struct mgpu_cost grad_cost(const struct mgpu_node *node)
{
    return (struct mgpu_cost){.flops = 2 * products(node), .bytes = mgpu_operand_bytes(node)};
}

/* ---- split ----------------------------------------------------------------------------------- */

/* Where the samples stand in each operand; -1: it has none (weights). */
static const int sample_axis[] = {
    [X] = 1,  [W] = -1, [R] = -1,      [B] = -1, [LENGTHS] = 0, [INITIAL_H] = 1, [INITIAL_C] = 1,
    [P] = -1, [Y] = 2,  [RESERVE] = 2, [DY] = 2, [DY_H] = 1,    [DY_C] = 1};

/* Samples of X decide: split along their axis all operands that have samples must be, and the
 * weights whole. Sums and means are refused. */
static enum mgpu_split_answer split_operands(const struct mgpu_node *node,
                                             const struct mgpu_split *in, int *which)
{
    for (int i = 0; i < node->inputs; i++) {
        if (!node->input[i])
            continue;
        *which = i;
        if (mgpu_split_is_term(in[i]))
            return MGPU_SPLIT_FULL;
        bool samples = in[X].kind == MGPU_SPLIT_AXIS && sample_axis[i] >= 0;
        if ((in[i].kind == MGPU_SPLIT_AXIS) != samples)
            return MGPU_SPLIT_MIXES;
        if (samples && (in[i].axis != sample_axis[i] || in[i].outer != in[X].outer))
            return MGPU_SPLIT_MIXES;
    }
    return MGPU_SPLIT_OK;
}

static enum mgpu_split_answer rnn_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                        struct mgpu_split *out, int *which)
{
    static const int axes[] = {2, 1, 1, 2};
    enum mgpu_split_answer answer = split_operands(node, in, which);
    for (int i = 0; i < node->outputs && answer == MGPU_SPLIT_OK; i++)
        out[i] =
            mgpu_split_make(in[X].kind, in[X].kind == MGPU_SPLIT_AXIS ? axes[i] : 0, in[X].outer);
    return answer;
}

/* SUM or MEAN when that is what every arriving gradient is and all else is whole: the map from
 * them is linear. REPLICATED: no. */
static enum mgpu_split_kind common_term(const struct mgpu_node *node, const struct mgpu_split *in)
{
    enum mgpu_split_kind kind = MGPU_SPLIT_REPLICATED;
    for (int i = DY; i < node->inputs; i++)
        if (node->input[i] && mgpu_split_is_term(in[i]))
            kind = in[i].kind;
    for (int i = 0; i < node->inputs; i++)
        if (node->input[i] && in[i].kind != (i >= DY ? kind : MGPU_SPLIT_REPLICATED))
            return MGPU_SPLIT_REPLICATED;
    return kind;
}

/* Gradients of the weights are terms: each rank has added up its own samples. */
static enum mgpu_split_answer grad_split(const struct mgpu_node *node, const struct mgpu_split *in,
                                         struct mgpu_split *out, int *which)
{
    static const int axes[] = {1, -1, -1, -1, 1, 1, -1};
    enum mgpu_split_kind weights = common_term(node, in);
    if (weights == MGPU_SPLIT_REPLICATED) {
        enum mgpu_split_answer answer = split_operands(node, in, which);
        if (answer != MGPU_SPLIT_OK)
            return answer;
        if (in[X].kind == MGPU_SPLIT_AXIS)
            weights = MGPU_SPLIT_SUM;
    }
    for (int i = 0; i < node->outputs; i++)
        out[i] = in[X].kind == MGPU_SPLIT_AXIS && axes[i] >= 0
                     ? mgpu_split_make(MGPU_SPLIT_AXIS, axes[i], in[X].outer)
                     : mgpu_split_make(weights, 0, 1);
    return MGPU_SPLIT_OK;
}

static const char *const kinds[] = {"RNN", "GRU", "LSTM", NULL};
static const char *const direction_names[] = {"forward", "reverse", "bidirectional", NULL};

#define FIELD(what, field)                                                                         \
    .name = #field, .kind = MGPU_ATTR_##what, .offset = offsetof(struct mgpu_rnn_attrs, field)

static const struct mgpu_attr attrs[] = {
    {FIELD(ENUM, kind), .names = kinds},
    {FIELD(ENUM, direction), .names = direction_names},
    {FIELD(INT, hidden)},
    {FIELD(INTS, activation), .length = 6},
    {FIELD(FLOATS, alpha), .length = 6},
    {FIELD(FLOATS, beta), .length = 6},
    {FIELD(FLOAT, clip)},
    {FIELD(BOOL, input_forget)},
    {FIELD(BOOL, linear_before_reset)},
    {.name = NULL},
};

const struct mgpu_op mgpu_op_rnn = {
    .name = "rnn",
    .min_inputs = 3,
    .max_inputs = 8,
    .outputs = 4,
    .attrs_size = sizeof(struct mgpu_rnn_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .shape = rnn_shape,
    .gradient = gradient,
    .saved = saved,
    .alias = mgpu_alias_none,
    .workspace = rnn_workspace,
    .layouts = mgpu_layouts_plain,
    .cost = rnn_cost,
    .split = rnn_split,
};

const struct mgpu_op mgpu_op_rnn_grad = {
    .name = "rnn_grad",
    .min_inputs = 3,
    .max_inputs = 13,
    .outputs = 7,
    .flags = MGPU_OP_GRADIENT_ONLY,
    .attrs_size = sizeof(struct mgpu_rnn_attrs),
    .attrs = attrs,
    .half = MGPU_HALF_PRODUCT,
    .shape = grad_shape,
    .gradient = mgpu_gradient_none,
    .saved = mgpu_saved_nothing,
    .alias = mgpu_alias_none,
    .workspace = grad_workspace,
    .layouts = mgpu_layouts_plain,
    .cost = grad_cost,
    .split = grad_split,
};
