#include "importer/onnx_bias.h"

#include "importer/onnx_edit.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **names(const char *a, const char *b)
{
    char **list = mgpu_xcalloc(2, sizeof *list);
    list[0] = mgpu_xstrdup(a);
    list[1] = b ? mgpu_xstrdup(b) : NULL;
    return list;
}

/* y = MatMul(...) becomes "y without bias", and y = Add of that and the bias stands behind it. */
static int add_node(Onnx__GraphProto *g, size_t at, const char *name)
{
    Onnx__NodeProto *node = g->node[at], *add = mgpu_xcalloc(1, sizeof *add);
    char *inner = NULL;
    if (asprintf(&inner, "%s without bias", node->output[0]) < 0)
        return mgpu_fail(MGPU_ENOMEM, "no memory for a name");
    onnx__node_proto__init(add);
    add->op_type = mgpu_xstrdup("Add");
    add->name = mgpu_xstrdup(name);
    add->n_input = 2;
    add->input = names(inner, name);
    add->n_output = 1;
    add->output = names(node->output[0], NULL);
    free(node->output[0]);
    node->output[0] = inner;
    g->node = mgpu_xrealloc(g->node, g->n_node + 1, sizeof(void *));
    memmove(g->node + at + 2, g->node + at + 1, (g->n_node - at - 1) * sizeof(void *));
    g->node[at + 1] = add;
    g->n_node++;
    return 0;
}

static int add_input(Onnx__NodeProto *node, const char *name)
{
    node->input = mgpu_xrealloc(node->input, 3, sizeof(char *));
    if (node->n_input == 3)
        free(node->input[2]); /* it was named "" */
    node->input[2] = mgpu_xstrdup(name);
    node->n_input = 3;
    return 0;
}

int mgpu_onnx_add_bias(struct mgpu_onnx_file *file, const Onnx__NodeProto *node, const char *name,
                       int64_t size)
{
    Onnx__GraphProto *g = file->proto->graph;
    size_t at = 0;
    while (at < g->n_node && g->node[at] != node)
        at++;
    const Onnx__TensorProto *weight =
        at < g->n_node ? mgpu_onnx_edit_stored(g, node->input[1]) : NULL;
    if (!weight)
        return mgpu_fail(MGPU_EUNSUPPORTED, "its weight is no tensor of the main graph");
    if (!mgpu_onnx_edit_stored(g, name))
        mgpu_onnx_edit_add(g, name, weight->data_type, 1, &size);
    MGPU_TRY(strcmp(node->op_type, "MatMul") ? add_input(g->node[at], name)
                                             : add_node(g, at, name));
    mgpu_onnx_edit_done(file);
    return 0;
}
