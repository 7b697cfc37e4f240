/* RNN, GRU and LSTM. */
#include "importer/lower.h"
#include "runtime/base/status.h"
#include "runtime/ops/rnn.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P, INPUTS };

static const struct {
    const char *name;
    int code;
    bool has_alpha, has_beta;
    double alpha, beta;
} activations[] = {
    {"Sigmoid", MGPU_ACT_SIGMOID, false, false, 0, 0},
    {"Tanh", MGPU_ACT_TANH, false, false, 0, 0},
    {"Relu", MGPU_ACT_RELU, false, false, 0, 0},
    {"Affine", MGPU_ACT_AFFINE, true, true, 1, 0},
    {"LeakyRelu", MGPU_ACT_LEAKY_RELU, true, false, 0.01, 0},
    {"ThresholdedRelu", MGPU_ACT_THRESHOLDED_RELU, true, false, 1, 0},
    {"ScaledTanh", MGPU_ACT_SCALED_TANH, true, true, 1, 1},
    {"HardSigmoid", MGPU_ACT_HARD_SIGMOID, true, true, 0.2, 0.5},
    {"Elu", MGPU_ACT_ELU, true, false, 1, 0},
    {"Softsign", MGPU_ACT_SOFTSIGN, false, false, 0, 0},
    {"Softplus", MGPU_ACT_SOFTPLUS, false, false, 0, 0},
};

/* Numbers of activation_alpha or _beta; each activation that has one takes the next. */
struct numbers {
    size_t count, used;
    const float *value;
};

static struct numbers numbers_of(const struct mgpu_lower *l, const char *name)
{
    const Onnx__AttributeProto *a =
        mgpu_onnx_typed(l->node, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS);
    return a ? (struct numbers){a->n_floats, 0, a->floats} : (struct numbers){0};
}

static double next(struct numbers *n, bool has, double otherwise)
{
    return has && n->used < n->count ? (double)n->value[n->used++] : otherwise;
}

static int find_activation(const ProtobufCBinaryData *text)
{
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (strlen(activations[i].name) == text->len &&
            !strncasecmp(activations[i].name, (const char *)text->data, text->len))
            return (int)i;
    return -1;
}

/* f, g, h of each direction: what the file lists, else the operator's own. */
static int read_activations(struct mgpu_lower *l, struct mgpu_rnn_attrs *attrs, int directions)
{
    static const int own[3][3] = {[MGPU_RNN] = {1}, [MGPU_GRU] = {0, 1}, [MGPU_LSTM] = {0, 1, 1}};
    static const int each[3] = {[MGPU_RNN] = 1, [MGPU_GRU] = 2, [MGPU_LSTM] = 3};
    const Onnx__AttributeProto *list =
        mgpu_onnx_typed(l->node, "activations", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS);
    struct numbers alpha = numbers_of(l, "activation_alpha");
    struct numbers beta = numbers_of(l, "activation_beta");
    int count = each[attrs->kind];
    if (list && list->n_strings != (size_t)(count * directions))
        return mgpu_fail(MGPU_EINVALID, "%zu activations, not %d", list->n_strings,
                         count * directions);
    for (int d = 0; d < directions; d++)
        for (int i = 0; i < count; i++) {
            int k = list ? find_activation(&list->strings[d * count + i]) : own[attrs->kind][i];
            if (k < 0)
                return mgpu_fail(MGPU_EUNSUPPORTED, "activation '%.*s' is not supported",
                                 (int)list->strings[d * count + i].len,
                                 (const char *)list->strings[d * count + i].data);
            attrs->activation[3 * d + i] = activations[k].code;
            attrs->alpha[3 * d + i] = next(&alpha, activations[k].has_alpha, activations[k].alpha);
            attrs->beta[3 * d + i] = next(&beta, activations[k].has_beta, activations[k].beta);
        }
    return 0;
}

static int read_attributes(struct mgpu_lower *l, struct mgpu_rnn_attrs *attrs)
{
    static const char *const names[] = {"forward", "reverse", "bidirectional"};
    const char *direction = mgpu_onnx_string(l->model, l->node, "direction", "forward");
    attrs->direction = -1;
    for (int i = 0; i < 3; i++)
        if (!strcmp(direction, names[i]))
            attrs->direction = i;
    if (attrs->direction < 0)
        return mgpu_fail(MGPU_EINVALID, "direction '%s'", direction);
    const struct mgpu_value *r = mgpu_lower_in(l, R);
    attrs->hidden = mgpu_onnx_int(l->node, "hidden_size", r->rank == 3 ? r->dims[2].value : 0);
    attrs->clip = mgpu_onnx_float(l->node, "clip", 0);
    attrs->input_forget = mgpu_onnx_int(l->node, "input_forget", 0);
    attrs->linear_before_reset = mgpu_onnx_int(l->node, "linear_before_reset", 0);
    return read_activations(l, attrs, attrs->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1);
}

/* An initial state of zeros is none: the batch in its shape no longer matters. */
static bool all_zero(const struct mgpu_value *v)
{
    if (!v || v->kind != MGPU_VALUE_CONSTANT)
        return false;
    for (int64_t i = 0, n = mgpu_value_count(v); i < n; i++)
        if (mgpu_get_double(v->data, v->type, i) != 0)
            return false;
    return true;
}

/* Between batch-first [N,D,H] or [N,T,I] and the operator's [D,N,H] or [T,N,I]. */
static struct mgpu_value *turn(struct mgpu_lower *l, struct mgpu_value *v)
{
    return v && v->rank == 3 ? mgpu_transpose(l->g, v, (int[]){1, 0, 2}) : v;
}

static int read_inputs(struct mgpu_lower *l, bool batch_first, struct mgpu_value **in)
{
    for (int i = 0; i < INPUTS; i++)
        in[i] = mgpu_lower_in(l, i);
    if (!in[X] || !in[W] || !in[R])
        return mgpu_fail(MGPU_EINVALID, "an input is missing");
    for (int i = INITIAL_H; i <= INITIAL_C; i++)
        if (all_zero(in[i]))
            in[i] = NULL;
    for (int i = X; i <= INITIAL_C && batch_first; i++)
        if (in[i] && (i == X || i >= INITIAL_H) && !(in[i] = turn(l, in[i])))
            return mgpu_build_error();
    if (in[LENGTHS] && !(in[LENGTHS] = mgpu_cast(l->g, in[LENGTHS], MGPU_INT32)))
        return mgpu_build_error();
    return 0;
}

/* ---- States that go on from batch to batch --------------------------------------------------- */

static const char *const states[] = {"h", "c"};

/* The name by which the node is asked for; NULL: it is not. */
static const char *stateful_name(const struct mgpu_lower *l)
{
    for (int i = 0; i < l->options->statefuls; i++)
        if (mgpu_onnx_is_called(l->node, l->options->stateful[i]))
            return l->options->stateful[i];
    return NULL;
}

/* The initial states become inputs of the graph. */
static int take_states(struct mgpu_lower *l, const char *name, const struct mgpu_rnn_attrs *attrs,
                       struct mgpu_value **in)
{
    int directions = attrs->direction == MGPU_RNN_BIDIRECTIONAL ? 2 : 1;
    if (in[X]->rank != 3)
        return mgpu_fail(MGPU_EINVALID, "its input has rank %d, not 3", in[X]->rank);
    struct mgpu_dim dims[3] = {mgpu_dim_const(directions), in[X]->dims[1],
                               mgpu_dim_const(attrs->hidden)};
    for (int i = 0; i < (attrs->kind == MGPU_LSTM ? 2 : 1); i++) {
        if (in[INITIAL_H + i])
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "--state %s: its initial state is not zero, and no input", name);
        in[INITIAL_H + i] = mgpu_graph_input(
            l->g, mgpu_arena_format(l->g->arena, "%s.%s", name, states[i]), in[X]->type, 3, dims);
    }
    return 0;
}

/* The last ones become outputs. */
static void give_states(struct mgpu_lower *l, const char *name, struct mgpu_value *const *out,
                        int count)
{
    for (int i = 0; i < count; i++)
        mgpu_graph_output(l->g, mgpu_arena_format(l->g->arena, "%s.%s.last", name, states[i]),
                          out[1 + i]);
}

static int lower(struct mgpu_lower *l, int kind)
{
    const char *stateful = stateful_name(l);
    struct mgpu_value *in[INPUTS], *out[4];
    struct mgpu_rnn_attrs attrs = {.kind = kind};
    bool batch_first = mgpu_onnx_int(l->node, "layout", 0);
    int inputs = INPUTS;
    MGPU_TRY(read_inputs(l, batch_first, in));
    MGPU_TRY(read_attributes(l, &attrs));
    if (stateful)
        MGPU_TRY(take_states(l, stateful, &attrs, in));
    while (inputs > B && !in[inputs - 1])
        inputs--;
    MGPU_TRY(mgpu_graph_node(l->g, &mgpu_op_rnn, &attrs, inputs, in, 4, out));
    for (int i = 0; i < (kind == MGPU_LSTM ? 3 : 2); i++)
        l->out[i] = out[i];
    if (stateful)
        give_states(l, stateful, out, kind == MGPU_LSTM ? 2 : 1);
    if (!batch_first)
        return 0;
    l->out[0] = mgpu_transpose(l->g, l->out[0], (int[]){2, 0, 1, 3}); /* [N,T,D,H] */
    l->out[1] = turn(l, l->out[1]);
    l->out[2] = turn(l, l->out[2]);
    return l->out[0] && l->out[1] && (kind != MGPU_LSTM || l->out[2]) ? 0 : mgpu_build_error();
}

static int lower_rnn(struct mgpu_lower *l)
{
    return lower(l, MGPU_RNN);
}

static int lower_gru(struct mgpu_lower *l)
{
    return lower(l, MGPU_GRU);
}

static int lower_lstm(struct mgpu_lower *l)
{
    return lower(l, MGPU_LSTM);
}

const struct mgpu_lowering mgpu_lower_rnn[] = {
    {"RNN", 1, 0, lower_rnn},
    {"GRU", 1, 0, lower_gru},
    {"LSTM", 1, 0, lower_lstm},
    {0},
};
