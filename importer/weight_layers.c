/* What exporters did to whole layers: biases left out, normalisations folded in. */
#include "importer/weight_parts.h"
#include "runtime/base/names.h"

#include <string.h>

static bool is_any(const struct mgpu_onnx_node *node, const char *const *types)
{
    for (int i = 0; types[i] && !*node->domain; i++)
        if (!strcmp(node->type, types[i]))
            return true;
    return false;
}

/* Whether dynamo's optimizer says that one of its rules made the node: "FuseBatchNormIntoConv". */
static bool is_rewritten(const struct mgpu_onnx_node *node, const char *rule)
{
    for (size_t m = 0; node->proto && m < node->proto->n_metadata_props; m++) {
        const Onnx__StringStringEntryProto *e = node->proto->metadata_props[m];
        if (!strcmp(e->key, "pkg.onnxscript.rewriter.rule_name") && strstr(e->value, rule))
            return true;
    }
    return false;
}

/* ---- Layers without a bias ------------------------------------------------------------------ */

/* Whether an input of the node is learned, or counted as a running mean is. */
static bool holds_weight(struct mgpu_identify *in, int node)
{
    for (int i = 0; i < in->model->all[node]->inputs; i++) {
        int root = mgpu_weight_root(in, in->model->all[node]->input[i]);
        if (root < 0)
            continue;
        struct mgpu_use use = {.node = node, .input = i};
        enum mgpu_weight_role role = mgpu_weight_judge(in, root, use).role;
        if (role == MGPU_ROLE_TRAINED || role == MGPU_ROLE_STATISTIC)
            return true;
    }
    return false;
}

/* Whether a weight is added to this value, behind views and factors, or a normalisation of its
 * channels follows, which takes the place of a bias. */
static bool is_shifted(struct mgpu_identify *in, const char *name, int depth)
{
    static const char *const shifts[] = {
        "Add", "Sub", "Sum", "BatchNormalization", "InstanceNormalization", NULL};
    static const char *const factors[] = {"Mul", "Div", NULL};
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(in->flow, name);
    for (int i = 0; value && i < value->readers; i++) {
        int at = value->reader[i].node;
        const struct mgpu_onnx_node *next = in->model->all[at];
        bool on = mgpu_weight_is_view(next, value->reader[i].input) || is_any(next, factors);
        if (on && depth && next->outputs && is_shifted(in, next->output[0], depth - 1))
            return true;
        if (is_any(next, shifts) && holds_weight(in, at))
            return true;
    }
    return false;
}

/* A Gemm of which dynamo's optimizer took a bias of zeros; a convolution into which it folded a
 * normalisation whose shift came out as zeros. */
static bool lost_bias(const struct mgpu_onnx_node *node)
{
    return is_rewritten(node, "RemoveOptionalBiasFromGemm") || is_rewritten(node, "FuseBatchNorm");
}

static bool has_bias(struct mgpu_identify *in, const struct mgpu_onnx_node *node)
{
    if (node->inputs > 2)
        return *node->input[2];
    return !lost_bias(node) && is_shifted(in, mgpu_weight_output(node), 4);
}

static bool is_table(const struct mgpu_identify *in, const struct mgpu_weight *w)
{
    for (int h = 0; h < w->holders; h++)
        for (int u = 0; u < w->holder[h].uses; u++)
            if (!strcmp(in->model->all[w->holder[h].use[u].node]->type, "Gather"))
                return true;
    return false;
}

/* By node: whether its weight is an embedding's table too. */
static bool *find_tied(const struct mgpu_identify *in)
{
    bool *tied = MGPU_NEW_ARRAY(in->arena, bool, in->model->node_total);
    for (int i = 0; i < in->out->count; i++) {
        const struct mgpu_weight *w = &in->out->weight[i];
        for (int h = 0; is_table(in, w) && h < w->holders; h++)
            for (int u = 0; u < w->holder[h].uses; u++)
                if (w->holder[h].use[u].input == 1)
                    tied[w->holder[h].use[u].node] = true;
    }
    return tied;
}

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !*node->domain && !strcmp(node->type, type);
}

/* The layers of the main graph whose weight is a tensor of the file as it is. */
static bool is_layer(const struct mgpu_identify *in, const struct mgpu_onnx_node *node)
{
    bool linear = is_type(node, "MatMul") || is_type(node, "Gemm") || is_type(node, "Conv") ||
                  is_type(node, "ConvTranspose");
    int weight =
        linear && node->inputs > 1 ? mgpu_onnx_find_initializer(in->model, node->input[1]) : -1;
    return weight >= 0 && !*node->path && in->facts[weight].real &&
           !mgpu_weight_flow_gives_shape(in->flow, node->index) &&
           (!is_type(node, "MatMul") || in->model->initializer[weight].array.rank == 2);
}

const char *mgpu_onnx_layer_name(const struct mgpu_onnx_node *node)
{
    return *node->name ? node->name : mgpu_weight_output(node);
}

/* The first few layers of a list, and their weights. */
static const char *named(struct mgpu_identify *in, const int *node, int count)
{
    enum { LISTED = 3 };
    const char *text = "";
    for (int i = 0; i < count && i < LISTED; i++)
        text = mgpu_arena_format(in->arena, "%s%s'%s' (%s)", text, i ? ", " : "",
                                 mgpu_onnx_layer_name(in->model->all[node[i]]),
                                 in->model->all[node[i]]->input[1]);
    return count > LISTED ? mgpu_arena_format(in->arena, "%s and %d more", text, count - LISTED)
                          : text;
}

/* Whether the layer had no bias in the framework either. Dynamo keeps the biases of what it writes
 * as MatMul, and says where it took that of a Gemm. */
static bool never_had_bias(const struct mgpu_identify *in, int node, bool tied)
{
    const struct mgpu_onnx_node *layer = in->model->all[node];
    return !lost_bias(layer) && ((in->dynamo && is_type(layer, "MatMul")) || tied);
}

/* tf2onnx removes the addition of zeros, and with it the biases of a fresh model; PyTorch's newer
 * exporter leaves zeros out of Gemm. */
static void note_biases(struct mgpu_identify *in)
{
    struct mgpu_weights *w = in->out;
    const bool *tied = find_tied(in);
    int layers = 0, told = 0, *tell = MGPU_NEW_ARRAY(in->arena, int, in->model->node_total);
    w->bare = MGPU_NEW_ARRAY(in->arena, int, in->model->node_total);
    w->lost = MGPU_NEW_ARRAY(in->arena, bool, in->model->node_total);
    for (int i = 0; i < in->model->node_total; i++) {
        if (!is_layer(in, in->model->all[i]))
            continue;
        layers++;
        if (has_bias(in, in->model->all[i]))
            continue;
        w->lost[w->bares] = !never_had_bias(in, i, tied[i]);
        if (in->tensorflow ? w->lost[w->bares] : lost_bias(in->model->all[i]))
            tell[told++] = i;
        w->bare[w->bares++] = i;
    }
    if (told)
        mgpu_weight_note(in, MGPU_LINE_OTHER, -1,
                         mgpu_arena_format(in->arena,
                                           "%d of %d layers have no bias; the exporter removes "
                                           "biases that are all zero (--add-bias adds them): %s",
                                           told, layers, named(in, tell, told)),
                         NULL);
}

/* ---- Normalisations folded into layers ------------------------------------------------------- */

/* By what dynamo's optimizer says of the node, or by the names that exporters give what they made:
 * TorchScript "onnx::Conv_12" for both, dynamo the weight's own name and "_bias", tf2onnx
 * "..._weights_fused_bn" and "..._bias_fused_bn". */
static bool holds_normalisation(const struct mgpu_identify *in, const char *weight,
                                const char *bias)
{
    size_t n = strlen(weight);
    if (in->dynamo)
        return !strncmp(weight, bias, n) && !strcmp(bias + n, "_bias");
    if (in->pytorch)
        return !strncmp(weight, "onnx::Conv", 10) && !strncmp(bias, "onnx::Conv", 10);
    return in->tensorflow &&
           (strstr(bias, "_fused_bn") || mgpu_ends_with(bias, "/merged_input:0") ||
            mgpu_ends_with(bias, "/batchnorm/sub:0"));
}

static bool is_fused(const struct mgpu_identify *in, const struct mgpu_onnx_node *node)
{
    return !strncmp(node->type, "Conv", 4) && node->inputs > 2 && *node->input[2] &&
           holds_normalisation(in, node->input[1], node->input[2]);
}

static void mark_folded(struct mgpu_identify *in, int initializer)
{
    in->out->folded[initializer] = true;
    mgpu_weight_note(in, MGPU_LINE_OTHER, initializer, NULL,
                     "a batch normalisation is folded into it");
}

/* Keras 3: the factor that scale and variance make. */
static void mark_factors(struct mgpu_identify *in)
{
    for (int i = 0; i < in->model->initializers && in->tensorflow; i++)
        if (mgpu_ends_with(in->model->initializer[i].name, "/batchnorm/mul:0") ||
            mgpu_ends_with(in->model->initializer[i].name, "/batchnorm/Rsqrt:0"))
            mark_folded(in, i);
}

static void note_folded(struct mgpu_identify *in)
{
    int *folded = MGPU_NEW_ARRAY(in->arena, int, in->model->node_total), count = 0;
    in->out->folded = MGPU_NEW_ARRAY(in->arena, bool, in->model->initializers);
    mark_factors(in);
    for (int i = 0; i < in->model->node_total; i++) {
        const struct mgpu_onnx_node *node = in->model->all[i];
        if (!is_layer(in, node) || !(is_rewritten(node, "FuseBatchNorm") || is_fused(in, node)))
            continue;
        folded[count++] = i;
        for (int k = 1; k < node->inputs && k < 3; k++) {
            int initializer = mgpu_onnx_find_initializer(in->model, node->input[k]);
            if (initializer >= 0)
                mark_folded(in, initializer);
        }
    }
    if (count)
        mgpu_weight_note(in, MGPU_LINE_OTHER, -1,
                         mgpu_arena_format(in->arena,
                                           "%d layer%s a batch normalisation folded in by the "
                                           "exporter: trained without it, with weights that are "
                                           "not the framework's%s: %s",
                                           count, count == 1 ? " has" : "s have",
                                           in->pytorch ? MGPU_WEIGHT_UNFOLDED : "",
                                           named(in, folded, count)),
                         NULL);
}

void mgpu_weight_layers(struct mgpu_identify *in)
{
    note_biases(in);
    note_folded(in);
}
