#include "importer/weight_flow.h"

#include <stdlib.h>
#include <string.h>

struct mgpu_weight_flow {
    struct mgpu_arena *arena;
    struct mgpu_names *names;
    bool *computes; /* by node: not only its shape is used */
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

/* ---- What is computed with ------------------------------------------------------------------- */

struct marking {
    struct mgpu_weight_flow *flow;
    const struct mgpu_onnx_node **left; /* marked, but not yet what they read */
    int count;
};

static void mark(struct marking *m, const struct mgpu_onnx_node *node)
{
    if (m->flow->computes[node->index])
        return;
    m->flow->computes[node->index] = true;
    m->left[m->count++] = node;
}

static void mark_read(struct marking *m, const struct mgpu_onnx_model *model,
                      const struct mgpu_onnx_node *node)
{
    for (int b = 0; b < node->bodies; b++)
        for (int i = 0; i < node->body[b].nodes; i++)
            mark(m, &node->body[b].node[i]);
    for (int i = 0; i < node->inputs && strcmp(node->type, "Shape"); i++) {
        const struct mgpu_weight_flow_value *value =
            *node->input[i] ? mgpu_weight_flow_get(m->flow, node->input[i]) : NULL;
        if (value && value->node >= 0)
            mark(m, model->all[value->node]);
    }
}

/* A result of the graph, or one that nobody reads. */
static bool is_end(const struct mgpu_weight_flow *flow, const struct mgpu_onnx_node *node)
{
    bool read = false;
    for (int i = 0; i < node->outputs; i++) {
        const struct mgpu_weight_flow_value *value =
            *node->output[i] ? mgpu_weight_flow_get(flow, node->output[i]) : NULL;
        if (value && value->leaves)
            return true;
        read |= value && value->readers;
    }
    return !read;
}

static void find_computing(struct mgpu_weight_flow *flow, const struct mgpu_onnx_model *model)
{
    struct marking m = {flow, mgpu_xcalloc((size_t)model->node_total + 1, sizeof *m.left), 0};
    flow->computes = MGPU_NEW_ARRAY(flow->arena, bool, model->node_total);
    for (int i = 0; i < model->graph.nodes; i++)
        if (is_end(flow, &model->graph.node[i]))
            mark(&m, &model->graph.node[i]);
    while (m.count)
        mark_read(&m, model, m.left[--m.count]);
    free(m.left);
}

bool mgpu_weight_flow_gives_shape(const struct mgpu_weight_flow *flow, int node)
{
    return !flow->computes[node];
}

/* ---- All of it ------------------------------------------------------------------------------- */

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
    find_computing(flow, model);
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
