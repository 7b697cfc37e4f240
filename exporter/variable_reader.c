#include "exporter/variable_reader.h"

#include "exporter/scopes.h"
#include "importer/weight_flow.h"

#include <string.h>

/* ---- What reads a weight --------------------------------------------------------------------- */

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !*node->domain && !strcmp(node->type, type);
}

static bool is_any(const struct mgpu_onnx_node *node, const char *const *types)
{
    for (int i = 0; types[i]; i++)
        if (is_type(node, types[i]))
            return true;
    return false;
}

static const char *const moves[] = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", NULL};
static const char *const passes[] = {"Identity", "Cast", NULL};
static const char *const products[] = {"MatMul", "Gemm", "Conv", "ConvTranspose", NULL};

enum { STEPS_MOST = 8 };

/* Follows views to the first node that computes with the weight. */
struct mgpu_use mgpu_variable_first_use(const struct mgpu_variables *v, struct mgpu_use use,
                                        bool *moved)
{
    *moved = false;
    for (int step = 0; step < STEPS_MOST; step++) {
        const struct mgpu_onnx_node *node = v->model->all[use.node];
        bool moving = is_any(node, moves);
        if (use.input || !node->outputs || (!moving && !is_any(node, passes)))
            break;
        const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(v->flow, node->output[0]);
        if (!value || !value->readers)
            break;
        *moved |= moving;
        use = value->reader[0];
    }
    return use;
}

/* The product whose result, perhaps moved, this value is; NULL: none. Of a transposed convolution
 * the exporter cuts the borders off, or adds some. */
static const struct mgpu_onnx_node *product_of(const struct mgpu_variables *v, const char *name)
{
    bool cut = false;
    for (int step = 0; step < STEPS_MOST; step++) {
        const struct mgpu_weight_flow_value *value =
            *name ? mgpu_weight_flow_get(v->flow, name) : NULL;
        if (!value || value->node < 0)
            return NULL;
        const struct mgpu_onnx_node *node = v->model->all[value->node];
        if (is_any(node, products))
            return !cut || is_type(node, "ConvTranspose") ? node : NULL;
        bool borders = is_type(node, "Slice") || is_type(node, "Pad");
        if (!node->inputs || (!is_any(node, moves) && !is_any(node, passes) && !borders))
            return NULL;
        cut |= borders;
        name = node->input[0];
    }
    return NULL;
}

/* The node that computes the first of the inputs that is no constant; NULL: none does. */
static const struct mgpu_onnx_node *node_before(const struct mgpu_variables *v,
                                                const struct mgpu_onnx_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        const struct mgpu_weight_flow_value *value =
            *node->input[i] ? mgpu_weight_flow_get(v->flow, node->input[i]) : NULL;
        if (value && value->node >= 0)
            return v->model->all[value->node];
    }
    return NULL;
}

/* Whether one layer has both: "net/norm/mul" and "net/norm/Reshape". */
static bool in_one_layer(const struct mgpu_onnx_node *node, const struct mgpu_onnx_node *outer)
{
    const char *slash = strrchr(outer->name, '/');
    return slash && !strncmp(node->name, outer->name, (size_t)(slash - outer->name) + 1);
}

/* Whether the reader scales or shifts, in a layer that takes the mean itself. Keras's group
 * normalisation first reshapes what it takes the mean of. */
static void find_mean(struct mgpu_variable_reader *r, const struct mgpu_variables *v)
{
    static const char *const steps[] = {
        "Mul", "Add", "Sub", "Neg", "Sqrt", "Reciprocal", "ReduceMean", "GlobalAveragePool", NULL};
    const struct mgpu_onnx_node *node = r->node;
    bool mean = false;
    for (int step = 0; step < STEPS_MOST && node && is_any(node, steps); step++) {
        if (is_type(node, "ReduceMean") || is_type(node, "GlobalAveragePool")) {
            mean = true;
            r->scaled |= in_one_layer(node, r->node);
        }
        node = node_before(v, node);
    }
    r->grouped = mean && node && is_type(node, "Reshape") && in_one_layer(r->node, node);
}

/* Whether the convolution's input got an axis of one element from the layer itself; a depthwise
 * kernel that got one, too, has lost its name. */
static bool is_flat(const struct mgpu_variables *v, const struct mgpu_onnx_node *reader)
{
    static const char *const turns[] = {"Transpose", "Identity", NULL};
    const struct mgpu_onnx_node *node = is_type(reader, "Conv") ? node_before(v, reader) : NULL;
    for (int step = 0; step < STEPS_MOST && node && is_any(node, turns); step++)
        node = node_before(v, node);
    const char *scope =
        node && is_type(node, "Unsqueeze") ? strstr(node->name, "/ExpandDims") : NULL;
    return scope && !strncmp(node->name, reader->name, (size_t)(scope - node->name) + 1);
}

void mgpu_variable_reader_of(struct mgpu_variable_reader *r, const struct mgpu_variables *v,
                             const struct mgpu_holder *h)
{
    static const char *const recurrent[] = {"LSTM", "GRU", "RNN", NULL};
    const char *name = v->model->initializer[h->initializer].name;
    struct mgpu_use use = mgpu_variable_first_use(v, h->use[0], &r->moved);
    r->node = v->model->all[use.node];
    r->input = use.input;
    r->recurrent = is_any(r->node, recurrent) && r->input >= 1 && r->input <= 3;
    r->product = is_type(r->node, "Add") && r->node->inputs == 2 &&
                 product_of(v, r->node->input[1 - (r->input ? 1 : 0)]);
    r->owner = is_any(r->node, products) ? r->node
               : r->product              ? product_of(v, r->node->input[r->input ? 0 : 1])
                                         : NULL;
    if (v->family == MGPU_FAMILY_KERAS)
        find_mean(r, v);
    r->flat =
        strstr(name, "/ExpandDims") || (v->family == MGPU_FAMILY_KERAS && is_flat(v, r->node));
}

/* ---- Roles ----------------------------------------------------------------------------------- */

static enum mgpu_variable_role norm_role(int input)
{
    static const enum mgpu_variable_role roles[] = {MGPU_VAR_OTHER, MGPU_VAR_GAMMA, MGPU_VAR_BETA,
                                                    MGPU_VAR_MEAN, MGPU_VAR_VARIANCE};
    return input < 5 ? roles[input] : MGPU_VAR_OTHER;
}

static enum mgpu_variable_role added_role(const struct mgpu_variable_reader *r, const char *op)
{
    if (r->product || !strncmp(op, "BiasAdd", 7) || !strcmp(op, "bias"))
        return MGPU_VAR_BIAS;
    bool lost = !*op && r->scaled; /* an exporter turned it, and its name is gone */
    return lost || !strncmp(op, "Reshape", 7) ? MGPU_VAR_BETA : MGPU_VAR_OTHER;
}

static enum mgpu_variable_role scaled_role(const struct mgpu_variable_reader *r, const char *op)
{
    bool lost = !*op && r->scaled;
    return !strcmp(op, "Neg")                   ? MGPU_VAR_ALPHA
           : lost || !strncmp(op, "Reshape", 7) ? MGPU_VAR_GAMMA
                                                : MGPU_VAR_OTHER;
}

/* In loops the graph does not tell; TensorFlow's names do. */
static enum mgpu_variable_role looped_role(const char *op, int rank)
{
    if (rank > 2 && !strncmp(op, "split", 5)) /* of a ConvLSTM: kernels are split, too */
        return !op[5] ? MGPU_VAR_KERNEL : MGPU_VAR_RECURRENT;
    if (!strcmp(op, "split_2"))
        return MGPU_VAR_BIAS;
    return !strcmp(op, "Cast") || !strcmp(op, "MatMul")       ? MGPU_VAR_KERNEL
           : !strcmp(op, "Cast_1") || !strcmp(op, "MatMul_1") ? MGPU_VAR_RECURRENT
           : !strcmp(op, "split") || !strcmp(op, "BiasAdd")   ? MGPU_VAR_BIAS
                                                              : MGPU_VAR_OTHER;
}

static bool is_depthwise(const struct mgpu_onnx_node *node, const struct mgpu_array *a)
{
    return is_type(node, "Conv") && mgpu_onnx_int(node, "group", 1) > 1 && a->rank > 2 &&
           a->dims[1] == 1 && a->dims[0] % mgpu_onnx_int(node, "group", 1) == 0;
}

enum mgpu_variable_role mgpu_variable_role_of(const struct mgpu_variable_reader *r,
                                              const struct mgpu_array *a, const char *op)
{
    static const char *const norms[] = {"BatchNormalization", "LayerNormalization",
                                        "GroupNormalization", "InstanceNormalization",
                                        "RMSNormalization",   NULL};
    const struct mgpu_onnx_node *node = r->node;
    if (is_any(node, norms))
        return norm_role(r->input);
    if (r->cell && !r->recurrent)
        return !*op && a->rank == 2 ? MGPU_VAR_RECURRENT : looped_role(op, a->rank);
    if (is_any(node, products))
        return r->input == 2           ? MGPU_VAR_BIAS
               : is_depthwise(node, a) ? MGPU_VAR_DEPTHWISE
                                       : MGPU_VAR_KERNEL;
    if (r->recurrent)
        return r->input == 1   ? MGPU_VAR_KERNEL
               : r->input == 2 ? MGPU_VAR_RECURRENT
               : r->input == 3 ? MGPU_VAR_BIAS
                               : MGPU_VAR_OTHER;
    if (is_type(node, "Gather") && r->input == 0)
        return MGPU_VAR_EMBEDDINGS;
    if (is_type(node, "PRelu"))
        return MGPU_VAR_ALPHA;
    if (!strcmp(op, "gamma") || !strcmp(op, "beta"))
        return *op == 'g' ? MGPU_VAR_GAMMA : MGPU_VAR_BETA;
    if (is_type(node, "Add"))
        return added_role(r, op);
    return is_type(node, "Mul") ? scaled_role(r, op) : looped_role(op, a->rank);
}

const char *mgpu_variable_class_of(const struct mgpu_variable_reader *r, const struct mgpu_array *a,
                                   enum mgpu_variable_role role)
{
    static const char *const conv[] = {"", "conv1d", "conv2d", "conv3d"};
    static const char *const back[] = {"", "conv1d_transpose", "conv2d_transpose",
                                       "conv3d_transpose"};
    int axes = a->rank - 2 - r->flat;
    bool spatial = axes >= 1 && axes <= 3;
    if (r->recurrent)
        return is_type(r->node, "LSTM") ? "lstm" : is_type(r->node, "GRU") ? "gru" : "simple_rnn";
    if (is_type(r->node, "BatchNormalization"))
        return "batch_normalization";
    if (is_type(r->node, "LayerNormalization"))
        return "layer_normalization";
    if (r->grouped)
        return "group_normalization";
    if (role == MGPU_VAR_DEPTHWISE)
        return axes == 1 ? "depthwise_conv1d" : "depthwise_conv2d";
    if (role == MGPU_VAR_KERNEL && is_type(r->node, "Conv") && spatial)
        return conv[axes];
    if (role == MGPU_VAR_KERNEL && is_type(r->node, "ConvTranspose") && spatial)
        return back[axes];
    return role == MGPU_VAR_KERNEL && !is_type(r->node, "Loop") ? "dense"
           : role == MGPU_VAR_EMBEDDINGS                        ? "embedding"
           : role == MGPU_VAR_ALPHA                             ? "p_re_lu"
           : role == MGPU_VAR_GAMMA                             ? "layer_normalization"
                                                                : "";
}
