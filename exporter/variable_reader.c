#include "exporter/variable_reader.h"

#include "exporter/keras_layers.h"
#include "exporter/scopes.h"
#include "importer/weight_flow.h"
#include "runtime/base/names.h"

#include <ctype.h>
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

/* What reads it in the body, where the node is a loop. */
static const struct mgpu_onnx_node *inner_reader(const struct mgpu_variables *v,
                                                 const struct mgpu_onnx_node *node, int input)
{
    const char *const *names;
    bool moved;
    if (!is_type(node, "Loop") || !mgpu_weight_flow_onward(node, input, &names))
        return node;
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(v->flow, names[0]);
    return value && value->readers
               ? v->model->all[mgpu_variable_first_use(v, value->reader[0], &moved).node]
               : node;
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

/* tf.keras's layer normalisation may be a batch normalisation that only takes the mean, which the
 * layer scales and shifts behind it. */
static bool is_behind_mean(const struct mgpu_variables *v, const struct mgpu_onnx_node *reader)
{
    static const char *const steps[] = {"Mul", "Add", "Reshape", NULL};
    const struct mgpu_onnx_node *node = reader;
    for (int step = 0; step < STEPS_MOST && node && is_any(node, steps); step++)
        node = node_before(v, node);
    return node && is_type(node, "BatchNormalization") && in_one_layer(node, reader);
}

void mgpu_variable_reader_of(struct mgpu_variable_reader *r, const struct mgpu_variables *v,
                             const struct mgpu_holder *h)
{
    static const char *const recurrent[] = {"LSTM", "GRU", "RNN", NULL};
    const char *name = v->model->initializer[h->initializer].name;
    struct mgpu_use use = mgpu_variable_first_use(v, h->use[0], &r->moved);
    r->node = v->model->all[use.node];
    r->input = use.input;
    r->inner = inner_reader(v, r->node, r->input);
    r->part = -1;
    r->recurrent = is_any(r->node, recurrent) && r->input >= 1 && r->input <= 3;
    r->product = is_type(r->node, "Add") && r->node->inputs == 2 &&
                 product_of(v, r->node->input[1 - (r->input ? 1 : 0)]);
    r->owner = is_any(r->node, products) ? r->node
               : r->product              ? product_of(v, r->node->input[r->input ? 0 : 1])
                                         : NULL;
    if (v->family == MGPU_FAMILY_KERAS) {
        find_mean(r, v);
        r->behind_mean = is_behind_mean(v, r->node);
    }
    r->flat = strstr(name, "/ExpandDims") != NULL;
}

/* ---- Attention whose products have no names -------------------------------------------------- */

/* Towards the inputs, through what moves, scales or masks; *scaled: something of the layer `around`
 * multiplied it. */
static const struct mgpu_onnx_node *product_behind(const struct mgpu_variables *v, const char *name,
                                                   const char *around, bool *scaled)
{
    static const char *const elementwise[] = {"Mul", "Add", NULL};
    for (int step = 0; step < 2 * STEPS_MOST; step++) {
        const struct mgpu_weight_flow_value *value =
            *name ? mgpu_weight_flow_get(v->flow, name) : NULL;
        const struct mgpu_onnx_node *node =
            value && value->node >= 0 ? v->model->all[value->node] : NULL;
        if (!node || is_any(node, products))
            return node;
        if (!is_any(node, moves) && !is_any(node, passes) && !is_any(node, elementwise))
            return NULL;
        *scaled |= is_type(node, "Mul") && !strncmp(node->name, around, strlen(around));
        name = node->input[0];
    }
    return NULL;
}

/* Towards the outputs, through what moves. */
static const struct mgpu_onnx_node *product_ahead(const struct mgpu_variables *v,
                                                  const struct mgpu_onnx_node *node)
{
    for (int step = 0; step < 2 * STEPS_MOST && node; step++) {
        const struct mgpu_weight_flow_value *value =
            node->outputs ? mgpu_weight_flow_get(v->flow, node->output[0]) : NULL;
        const struct mgpu_onnx_node *next = NULL;
        for (int i = 0; value && i < value->readers && !next; i++) {
            const struct mgpu_onnx_node *reader = v->model->all[value->reader[i].node];
            if (is_any(reader, products))
                return reader;
            next = is_any(reader, moves) || is_any(reader, passes) ? reader : NULL;
        }
        node = next;
    }
    return NULL;
}

static void name_product(const struct mgpu_variables *v, struct mgpu_names *owners,
                         const struct mgpu_onnx_node *node, const char *path, const char *part)
{
    const char *key = node ? mgpu_arena_format(v->arena, "#%d", node->index) : NULL;
    if (node && !strchr(node->name, '/') && !mgpu_names_get(owners, key))
        mgpu_names_set(owners, key, mgpu_arena_format(v->arena, "%s/%s", path, part));
}

/* Products around a Softmax: of the scaled queries and the keys in front of it, of what it gives
 * and the values behind it, then the output's. */
static void name_parts(const struct mgpu_variables *v, struct mgpu_names *owners,
                       const struct mgpu_onnx_node *softmax, const char *path)
{
    bool scaled[2] = {false, false}, any = false;
    const struct mgpu_onnx_node *scores = product_behind(v, softmax->input[0], "", &any);
    const struct mgpu_onnx_node *sum = product_ahead(v, softmax), *of[2], *value = NULL;
    if (!scores || !sum || scores->inputs < 2 || sum->inputs < 2)
        return;
    for (int i = 0; i < 2; i++) {
        of[i] = product_behind(v, scores->input[i], path, &scaled[i]);
        const struct mgpu_onnx_node *one = product_behind(v, sum->input[i], path, &any);
        value = one && one != scores ? one : value;
    }
    if (scaled[0] == scaled[1])
        return;
    name_product(v, owners, of[scaled[1]], path, "query");
    name_product(v, owners, of[scaled[0]], path, "key");
    name_product(v, owners, value, path, "value");
    name_product(v, owners, product_ahead(v, sum), path, "attention_output");
}

void mgpu_variable_name_attention(const struct mgpu_variables *v, struct mgpu_names *owners)
{
    static const char softmax[] = "/softmax/Softmax";
    for (int i = 0; i < v->model->node_total; i++) {
        const struct mgpu_onnx_node *node = v->model->all[i];
        if (is_type(node, "Softmax") && mgpu_ends_with(node->name, softmax))
            name_parts(v, owners, node,
                       mgpu_arena_format(v->arena, "%.*s",
                                         (int)(strlen(node->name) - strlen(softmax)), node->name));
    }
}

/* ---- What the names around it tell ----------------------------------------------------------- */

/* Whether it is the operation `op` of the layer. What turns its input is called so, too, with a
 * number behind it: "net/conv/depthwise__12". */
static bool is_operation(const struct mgpu_variables *v, const struct mgpu_onnx_node *node,
                         const char *path, const char *op)
{
    char *name = mgpu_arena_string(v->arena, node->name), *end = name + strlen(name);
    int number;
    while (end > name && isdigit((unsigned char)end[-1]))
        end--;
    if (end - name > 2 && *end && end[-1] == '_' && end[-2] == '_')
        end[-2] = 0;
    struct mgpu_scope s = mgpu_scope_tensorflow(v->arena, name, v->renumbered);
    return !strcmp(s.path, path) && mgpu_keras_numbered(s.op, &number) == strlen(op) &&
           !strncmp(s.op, op, strlen(op));
}

static bool is_depthwise_layer(const char *path)
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    int number;
    size_t n = mgpu_keras_numbered(last, &number);
    return n == strlen("depthwise_conv2d") &&
           (!strncmp(last, "depthwise_conv1d", n) || !strncmp(last, "depthwise_conv2d", n));
}

void mgpu_variable_reader_in(struct mgpu_variable_reader *r, const struct mgpu_variables *v,
                             const char *path)
{
    static const char *const turns[] = {"Transpose", "Reshape", "Identity", NULL};
    if (v->family != MGPU_FAMILY_KERAS)
        return;
    r->einsum = is_type(r->node, "MatMul") && is_operation(v, r->node, path, "Einsum");
    if (!is_type(r->node, "Conv"))
        return;
    const struct mgpu_onnx_node *node = r->node;
    r->depthwise = is_depthwise_layer(path);
    for (int step = 0; step < STEPS_MOST && node && (node == r->node || is_any(node, turns));
         step++) {
        r->depthwise |= is_operation(v, node, path, "depthwise");
        node = node_before(v, node);
    }
    r->flat |= node && is_type(node, "Unsqueeze") && is_operation(v, node, path, "ExpandDims");
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
    bool shift = r->behind_mean && !strcmp(op, "add");
    return lost || shift || !strncmp(op, "Reshape", 7) ? MGPU_VAR_BETA : MGPU_VAR_OTHER;
}

static enum mgpu_variable_role scaled_role(const struct mgpu_variable_reader *r, const char *op)
{
    bool lost = !*op && r->scaled, scale = r->behind_mean && !strcmp(op, "mul");
    return !strcmp(op, "Neg")                            ? MGPU_VAR_ALPHA
           : lost || scale || !strncmp(op, "Reshape", 7) ? MGPU_VAR_GAMMA
                                                         : MGPU_VAR_OTHER;
}

/* tf.keras's group normalisation reshapes gamma and beta when it runs, and subtracts from beta. */
static bool is_regrouped(const struct mgpu_variable_reader *r, const char *op)
{
    return r->moved && !strncmp(op, "Reshape", 7);
}

/* In loops the graph does not tell; TensorFlow's names do. */
static enum mgpu_variable_role looped_role(const char *op, int rank)
{
    if (rank > 2 && !strncmp(op, "split", 5)) /* of a ConvLSTM: kernels are split, too */
        return !op[5] ? MGPU_VAR_KERNEL : MGPU_VAR_RECURRENT;
    if (!strcmp(op, "split_2") || !strcmp(op, "unstack"))
        return MGPU_VAR_BIAS;
    return !strcmp(op, "Cast") || !strcmp(op, "MatMul") ? MGPU_VAR_KERNEL
           : !strcmp(op, "Cast_1") || !strcmp(op, "MatMul_1") || !strcmp(op, "strided_slice")
               ? MGPU_VAR_RECURRENT
           : !strcmp(op, "split") || !strcmp(op, "BiasAdd") ? MGPU_VAR_BIAS
                                                            : MGPU_VAR_OTHER;
}

/* Of one channel it is a plain convolution, which only names tell. */
static bool is_depthwise(const struct mgpu_variable_reader *r, const struct mgpu_array *a)
{
    int64_t groups = mgpu_onnx_int(r->node, "group", 1);
    return is_type(r->node, "Conv") && (groups > 1 || (groups == 1 && r->depthwise)) &&
           a->rank > 2 && a->dims[1] == 1 && a->dims[0] % groups == 0;
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
        return r->input == 2        ? MGPU_VAR_BIAS
               : is_depthwise(r, a) ? MGPU_VAR_DEPTHWISE
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
    if (is_type(node, "Add") || (is_regrouped(r, op) && is_type(node, "Sub")))
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
    if (r->cell && !r->recurrent)
        return "";
    if (r->recurrent)
        return is_type(r->node, "LSTM") ? "lstm" : is_type(r->node, "GRU") ? "gru" : "simple_rnn";
    if (is_type(r->node, "BatchNormalization"))
        return "batch_normalization";
    if (is_type(r->node, "LayerNormalization"))
        return "layer_normalization";
    if (r->grouped || (role == MGPU_VAR_GAMMA && r->moved))
        return "group_normalization";
    if (role == MGPU_VAR_DEPTHWISE)
        return axes == 1 ? "depthwise_conv1d" : "depthwise_conv2d";
    if (role == MGPU_VAR_KERNEL && is_type(r->node, "Conv") && spatial)
        return conv[axes];
    if (role == MGPU_VAR_KERNEL && is_type(r->node, "ConvTranspose") && spatial)
        return back[axes];
    if (role == MGPU_VAR_KERNEL && r->einsum)
        return "einsum_dense";
    return role == MGPU_VAR_KERNEL && !is_type(r->node, "Loop") ? "dense"
           : role == MGPU_VAR_EMBEDDINGS                        ? "embedding"
           : role == MGPU_VAR_ALPHA                             ? "p_re_lu"
           : role == MGPU_VAR_GAMMA                             ? "layer_normalization"
                                                                : "";
}
