#include "importer/weight_flow.h"

#include <string.h>

struct mgpu_weight_flow {
    struct mgpu_arena *arena;
    struct mgpu_names *names;
    int stamp;
};

struct mgpu_weight_flow_value *mgpu_weight_flow_get(const struct mgpu_weight_flow *flow,
                                                    const char *name)
{
    return mgpu_names_get(flow->names, name);
}

int mgpu_weight_flow_stamp(struct mgpu_weight_flow *flow)
{
    return ++flow->stamp;
}

static struct mgpu_weight_flow_value *add(struct mgpu_weight_flow *flow, const char *name)
{
    struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(flow, name);
    if (value)
        return value;
    value = MGPU_NEW(flow->arena, struct mgpu_weight_flow_value);
    *value = (struct mgpu_weight_flow_value){.name = name, .node = -1};
    mgpu_names_set(flow->names, name, value);
    return value;
}

/* First round: counts the readers. */
static void count_node(struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (*node->input[i])
            add(flow, node->input[i])->readers++;
    for (int i = 0; i < node->outputs; i++)
        if (*node->output[i])
            add(flow, node->output[i])->node = node->index;
}

/* Second round: lists them. */
static void list_node(struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        struct mgpu_weight_flow_value *value = mgpu_weight_flow_get(flow, node->input[i]);
        if (!value)
            continue;
        if (!value->reader) {
            value->reader = MGPU_NEW_ARRAY(flow->arena, struct mgpu_use, value->readers);
            value->readers = 0;
        }
        value->reader[value->readers++] = (struct mgpu_use){node->index, i};
    }
}

/* Output j of a body is output j of an If or Scan; a Loop's body gives its condition first, and
 * takes what it carries again as input j + 1 (after the round and the condition). */
static void join_body(struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node,
                      const struct mgpu_onnx_body *body)
{
    bool loop = !strcmp(node->type, "Loop");
    for (int i = 0; i < body->inputs; i++)
        add(flow, body->input[i].name)->formal = true;
    for (int j = loop; j < body->outputs; j++) {
        struct mgpu_weight_flow_value *value = add(flow, body->output[j].name);
        if (j - loop < node->outputs)
            value->becomes[0] = node->output[j - loop];
        if (loop && j + 1 < body->inputs)
            value->becomes[1] = body->input[j + 1].name;
    }
}

struct mgpu_weight_flow *mgpu_weight_flow_new(struct mgpu_arena *arena,
                                              const struct mgpu_onnx_model *model)
{
    struct mgpu_weight_flow *flow = MGPU_NEW(arena, struct mgpu_weight_flow);
    *flow = (struct mgpu_weight_flow){.arena = arena, .names = mgpu_names_new(arena)};
    for (int i = 0; i < model->node_total; i++)
        count_node(flow, model->all[i]);
    for (int i = 0; i < model->node_total; i++) {
        list_node(flow, model->all[i]);
        for (int b = 0; b < model->all[i]->bodies; b++)
            join_body(flow, model->all[i], &model->all[i]->body[b]);
    }
    for (int i = 0; i < model->graph.outputs; i++)
        add(flow, model->graph.output[i].name)->leaves = true;
    return flow;
}

int mgpu_weight_flow_onward(const struct mgpu_onnx_node *node, int input, const char *const **names)
{
    if (!node->bodies) {
        *names = node->output;
        return node->outputs;
    }
    /* An old Scan has an input before those of its body. */
    const struct mgpu_onnx_body *body = &node->body[0];
    int formal = input + body->inputs - node->inputs;
    *names = formal >= 0 && formal < body->inputs ? (const char *const *)&body->input[formal].name
                                                  : NULL;
    return *names ? 1 : 0;
}
