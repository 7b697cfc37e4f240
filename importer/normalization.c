#include "importer/normalization.h"

#include "runtime/base/names.h"

#include <string.h>

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !*node->domain && !strcmp(node->type, type);
}

static bool ends_with_any(const char *name, const char *const *ends)
{
    bool found = false;
    for (int i = 0; ends[i]; i++)
        found |= mgpu_ends_with(name, ends[i]);
    return found;
}

/* TensorFlow calls a constant that "net/norm/Sub" has for its second operand "net/norm/Sub/y". */
static bool takes_mean_off(const struct mgpu_onnx_node *node)
{
    static const char *const ends[] = {"/Sub/y:0", "/sub/y:0", "/Sub/y", "/sub/y", NULL};
    return is_type(node, "Sub") && node->inputs == 2 && node->outputs == 1 &&
           ends_with_any(node->input[1], ends);
}

static bool adds_mean(const struct mgpu_onnx_node *node)
{
    static const char *const ends[] = {"/Add/x:0", "/add/x:0", "/Add/x", "/add/x", NULL};
    return is_type(node, "Add") && node->inputs == 2 && node->outputs == 1 &&
           ends_with_any(node->input[0], ends);
}

static bool in_one_layer(const struct mgpu_onnx_node *a, const struct mgpu_onnx_node *b)
{
    return !strcmp(a->layer, b->layer);
}

/* What divides behind it; NULL: nothing does. */
static const struct mgpu_onnx_node *divider(const struct mgpu_onnx_model *model,
                                            const struct mgpu_weight_flow *flow,
                                            const struct mgpu_onnx_node *node)
{
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(flow, node->output[0]);
    for (int i = 0; value && i < value->readers; i++) {
        const struct mgpu_onnx_node *end = model->all[value->reader[i].node];
        if ((is_type(end, "Mul") || is_type(end, "Div")) && end->inputs == 2 &&
            value->reader[i].input == 0 && mgpu_ends_with(end->name, "/truediv") &&
            in_one_layer(end, node))
            return end;
    }
    return NULL;
}

/* What multiplies by a deviation before it, at its second operand; NULL: nothing does. */
static const struct mgpu_onnx_node *multiplier(const struct mgpu_onnx_model *model,
                                               const struct mgpu_weight_flow *flow,
                                               const struct mgpu_onnx_node *node)
{
    static const char *const ends[] = {"/Maximum:0", "/Maximum", NULL};
    const struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(flow, node->input[1]);
    const struct mgpu_onnx_node *before =
        value && value->node >= 0 ? model->all[value->node] : NULL;
    return before && is_type(before, "Mul") && before->inputs == 2 && before->outputs == 1 &&
                   in_one_layer(before, node) && ends_with_any(before->input[1], ends)
               ? before
               : NULL;
}

bool mgpu_normalization(struct mgpu_normalization *out, const struct mgpu_onnx_model *model,
                        const struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node)
{
    bool inverted = adds_mean(node);
    if (model->producer != MGPU_PRODUCER_TENSORFLOW || (!inverted && !takes_mean_off(node)))
        return false;
    *out = (struct mgpu_normalization){.shift = node,
                                       .scale = inverted ? multiplier(model, flow, node)
                                                         : divider(model, flow, node),
                                       .mean = inverted ? 0 : 1,
                                       .deviation = 1,
                                       .inverted = inverted};
    return out->scale != NULL;
}

bool mgpu_normalization_has(const struct mgpu_onnx_model *model,
                            const struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node,
                            int input)
{
    struct mgpu_normalization n;
    if (mgpu_normalization(&n, model, flow, node))
        return input == n.mean;
    const struct mgpu_weight_flow_value *before =
        node->inputs && *node->input[0] ? mgpu_weight_flow_get(flow, node->input[0]) : NULL;
    if (before && before->node >= 0 &&
        mgpu_normalization(&n, model, flow, model->all[before->node]) && n.scale == node)
        return input == n.deviation;
    const struct mgpu_weight_flow_value *behind =
        node->outputs ? mgpu_weight_flow_get(flow, node->output[0]) : NULL;
    for (int i = 0; behind && i < behind->readers; i++)
        if (mgpu_normalization(&n, model, flow, model->all[behind->reader[i].node]) &&
            n.scale == node)
            return input == n.deviation;
    return false;
}

int mgpu_onnx_find_input(const struct mgpu_onnx_model *model, const char *name)
{
    for (int i = 0; i < model->graph.inputs; i++)
        if (!strcmp(model->graph.input[i].name, name))
            return i;
    return -1;
}
