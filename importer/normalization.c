#include "importer/normalization.h"

#include "runtime/base/names.h"

#include <string.h>

static bool is_type(const struct mgpu_onnx_node *node, const char *type)
{
    return !*node->domain && !strcmp(node->type, type);
}

/* TensorFlow calls a constant that "net/norm/Sub" has for its second operand "net/norm/Sub/y". */
static bool takes_mean_off(const struct mgpu_onnx_node *node)
{
    static const char *const ends[] = {"/Sub/y:0", "/sub/y:0", "/Sub/y", "/sub/y"};
    bool operand = false;
    for (int i = 0; i < 4 && node->inputs == 2; i++)
        operand |= mgpu_ends_with(node->input[1], ends[i]);
    return operand && is_type(node, "Sub") && node->outputs == 1;
}

const struct mgpu_onnx_node *mgpu_normalization(const struct mgpu_onnx_model *model,
                                                const struct mgpu_weight_flow *flow,
                                                const struct mgpu_onnx_node *node)
{
    bool begins = model->producer == MGPU_PRODUCER_TENSORFLOW && takes_mean_off(node);
    const struct mgpu_weight_flow_value *value =
        begins ? mgpu_weight_flow_get(flow, node->output[0]) : NULL;
    for (int i = 0; value && i < value->readers; i++) {
        const struct mgpu_onnx_node *end = model->all[value->reader[i].node];
        if ((is_type(end, "Mul") || is_type(end, "Div")) && end->inputs == 2 &&
            value->reader[i].input == 0 && mgpu_ends_with(end->name, "/truediv") &&
            !strcmp(end->layer, node->layer))
            return end;
    }
    return NULL;
}

int mgpu_onnx_find_input(const struct mgpu_onnx_model *model, const char *name)
{
    for (int i = 0; i < model->graph.inputs; i++)
        if (!strcmp(model->graph.input[i].name, name))
            return i;
    return -1;
}
