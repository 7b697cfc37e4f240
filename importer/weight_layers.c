/* What exporters did to whole layers: biases left out, normalisations folded in. */
#include "importer/weight_parts.h"

#include <string.h>

/* ---- Layers without a bias ------------------------------------------------------------------ */

/* Whether a weight is added to a view of this value, or joined with it in another way. */
static bool is_shifted(const struct mgpu_identify *in, const char *name, int depth)
{
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(in->flow, name);
    for (int i = 0; value && i < value->readers; i++) {
        const struct mgpu_onnx_node *next = in->model->all[value->reader[i].node];
        bool view = mgpu_weight_is_view(next, value->reader[i].input);
        if (view && depth && next->outputs && is_shifted(in, next->output[0], depth - 1))
            return true;
        for (int j = 0; j < next->inputs && !view && strcmp(next->type, "MatMul"); j++)
            if (mgpu_weight_root(in, next->input[j]) >= 0)
                return true;
    }
    return false;
}

static bool has_bias(const struct mgpu_identify *in, const struct mgpu_onnx_node *node)
{
    return (node->inputs > 2 && *node->input[2]) || is_shifted(in, mgpu_weight_output(node), 4);
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
           (!is_type(node, "MatMul") || in->model->initializer[weight].array.rank == 2);
}

const char *mgpu_onnx_layer_name(const struct mgpu_onnx_node *node)
{
    return *node->name ? node->name : mgpu_weight_output(node);
}

/* The first few names of a list, quoted. */
static const char *named(struct mgpu_identify *in, const int *node, int count)
{
    enum { LISTED = 3 };
    const char *text = "";
    for (int i = 0; i < count && i < LISTED; i++)
        text = mgpu_arena_format(in->arena, "%s%s'%s'", text, i ? ", " : "",
                                 mgpu_onnx_layer_name(in->model->all[node[i]]));
    return count > LISTED ? mgpu_arena_format(in->arena, "%s and %d more", text, count - LISTED)
                          : text;
}

/* tf2onnx removes the addition of zeros, and with it the biases of a fresh model; PyTorch's newer
 * exporter leaves zeros out of Gemm. */
static void note_biases(struct mgpu_identify *in)
{
    struct mgpu_weights *w = in->out;
    int layers = 0;
    w->bare = MGPU_NEW_ARRAY(in->arena, int, in->model->node_total);
    for (int i = 0; i < in->model->node_total; i++) {
        if (!is_layer(in, in->model->all[i]))
            continue;
        layers++;
        if (!has_bias(in, in->model->all[i]))
            w->bare[w->bares++] = i;
    }
    if (w->bares && in->tensorflow)
        mgpu_weight_note(in, MGPU_LINE_OTHER, -1,
                         mgpu_arena_format(in->arena,
                                           "%d of %d layers have no bias; the exporter removes "
                                           "biases that are all zero (--add-bias adds them): %s",
                                           w->bares, layers, named(in, w->bare, w->bares)),
                         NULL);
}

/* ---- Normalisations folded into convolutions ------------------------------------------------ */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* By the names that exporters give what they made: TorchScript "onnx::Conv_12" for both, dynamo the
 * weight's own name and "_bias", tf2onnx "..._weights_fused_bn" and "..._bias_fused_bn". */
static bool holds_normalisation(const struct mgpu_identify *in, const char *weight,
                                const char *bias)
{
    size_t n = strlen(weight);
    if (in->dynamo)
        return !strncmp(weight, bias, n) && !strcmp(bias + n, "_bias");
    if (in->pytorch)
        return !strncmp(weight, "onnx::Conv", 10) && !strncmp(bias, "onnx::Conv", 10);
    return in->tensorflow && (strstr(bias, "_fused_bn") || ends_with(bias, "/merged_input:0"));
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
        if (ends_with(in->model->initializer[i].name, "/batchnorm/mul:0") ||
            ends_with(in->model->initializer[i].name, "/batchnorm/Rsqrt:0"))
            mark_folded(in, i);
}

static void note_folded(struct mgpu_identify *in)
{
    int *folded = MGPU_NEW_ARRAY(in->arena, int, in->model->node_total), count = 0;
    in->out->folded = MGPU_NEW_ARRAY(in->arena, bool, in->model->initializers);
    mark_factors(in);
    for (int i = 0; i < in->model->node_total; i++) {
        const struct mgpu_onnx_node *node = in->model->all[i];
        if (!is_layer(in, node) || strncmp(node->type, "Conv", 4) || node->inputs < 3 ||
            !holds_normalisation(in, node->input[1], node->input[2]))
            continue;
        folded[count++] = i;
        for (int k = 1; k < 3; k++) {
            int initializer = mgpu_onnx_find_initializer(in->model, node->input[k]);
            if (initializer >= 0)
                mark_folded(in, initializer);
        }
    }
    if (count)
        mgpu_weight_note(in, MGPU_LINE_OTHER, -1,
                         mgpu_arena_format(in->arena,
                                           "%d convolutions have their batch normalisation folded "
                                           "in (exported for inference): they train without it, "
                                           "and their weights are not the framework's: %s",
                                           count, named(in, folded, count)),
                         NULL);
}

void mgpu_weight_layers(struct mgpu_identify *in)
{
    note_biases(in);
    note_folded(in);
}
