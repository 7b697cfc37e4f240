#include "importer/onnx_head.h"

#include "importer/onnx_edit.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 100 };

struct edit {
    struct mgpu_onnx_file *file;
    Onnx__GraphProto *g;
    const char *output;
    int64_t classes, before;
    Onnx__NodeProto *layer, *add; /* add: of the bias, or NULL */
    char **weight, **bias;        /* the inputs that name them; bias NULL: none */
};

static const char *name_of(const Onnx__NodeProto *node)
{
    return *node->name || !node->n_output ? node->name : node->output[0];
}

static int refuse(const struct edit *e, const Onnx__NodeProto *node, const char *why)
{
    return mgpu_fail(MGPU_EUNSUPPORTED, "output '%s': node '%s' (%s) %s", e->output, name_of(node),
                     node->op_type, why);
}

static bool is_one_of(const char *type, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(type, *list))
            return true;
    return false;
}

/* ---- Around a value ---------------------------------------------------------------------------
 */

static Onnx__NodeProto *maker(const struct edit *e, const char *name)
{
    for (size_t i = 0; i < e->g->n_node; i++)
        for (size_t k = 0; k < e->g->node[i]->n_output; k++)
            if (!strcmp(e->g->node[i]->output[k], name))
                return e->g->node[i];
    return NULL;
}

static bool body_reads(const Onnx__GraphProto *body, const char *name);

static bool reads(const Onnx__NodeProto *node, const char *name)
{
    bool found = false;
    for (size_t k = 0; k < node->n_input && !found; k++)
        found = !strcmp(node->input[k], name);
    for (size_t i = 0; i < node->n_attribute && !found; i++) {
        found = node->attribute[i]->g && body_reads(node->attribute[i]->g, name);
        for (size_t k = 0; k < node->attribute[i]->n_graphs && !found; k++)
            found = body_reads(node->attribute[i]->graphs[k], name);
    }
    return found;
}

static bool body_reads(const Onnx__GraphProto *body, const char *name)
{
    for (size_t i = 0; i < body->n_node; i++)
        if (reads(body->node[i], name))
            return true;
    for (size_t i = 0; i < body->n_output; i++)
        if (!strcmp(body->output[i]->name, name))
            return true;
    return false;
}

/* Whether somebody but this node reads it. */
static bool is_shared(const struct edit *e, const Onnx__NodeProto *reader, const char *name)
{
    for (size_t i = 0; i < e->g->n_node; i++)
        if (e->g->node[i] != reader && reads(e->g->node[i], name))
            return true;
    for (size_t i = 0; i < e->g->n_output; i++)
        if (!strcmp(e->g->output[i]->name, name))
            return true;
    return false;
}

/* ---- Between the layer and the output ---------------------------------------------------------
 */

/* Nodes that take whatever number of classes comes. */
static bool is_neutral(const Onnx__NodeProto *node)
{
    static const char *const types[] = {
        "Identity",    "Cast",    "Dropout",       "Softmax",    "LogSoftmax", "Sigmoid",
        "HardSigmoid", "Tanh",    "Relu",          "LeakyRelu",  "Elu",        "Selu",
        "Softplus",    "Clip",    "Flatten",       "Squeeze",    "Unsqueeze",  "Transpose",
        "AveragePool", "MaxPool", "GlobalMaxPool", "ReduceMean", "ReduceMax",  "GlobalAveragePool",
        "Reshape",     "Resize",  "Upsample",      NULL};
    return !*node->domain && node->n_input && is_one_of(node->op_type, types);
}

/* Only read further on: results that do not count classes. */
static bool is_end(const Onnx__NodeProto *node)
{
    static const char *const types[] = {"ArgMax", "ArgMin", "TopK", NULL};
    return is_one_of(node->op_type, types);
}

/* Reshape and Resize may write sizes: they must not be those of the classes. */
static int check_sizes(const struct edit *e, const Onnx__NodeProto *node)
{
    static const char *const sized[] = {"Reshape", "Resize", "Upsample", NULL};
    for (size_t i = 1; i < node->n_input && is_one_of(node->op_type, sized); i++) {
        const Onnx__TensorProto *t = mgpu_onnx_edit_stored(e->g, node->input[i]);
        struct mgpu_array a;
        bool holds = false;
        if (!*node->input[i])
            continue;
        if (!t)
            return refuse(e, node, "computes its sizes: whether from the classes cannot be told");
        MGPU_TRY(mgpu_onnx_tensor_read(e->file, t, &a));
        for (int64_t k = 0; k < mgpu_array_count(&a) && !mgpu_is_float(a.type); k++)
            holds = holds || mgpu_get_int(a.data, a.type, k) == e->before;
        mgpu_array_free(&a);
        if (holds)
            return refuse(e, node, "has the number of classes among its sizes");
    }
    return 0;
}

/* The input of an Add that is a stored tensor; -1: none. */
static int stored_operand(const struct edit *e, const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_input && !strcmp(node->op_type, "Add"); i++)
        if (mgpu_onnx_edit_stored(e->g, node->input[i]))
            return (int)i;
    return -1;
}

/* From the output back to the layer. */
static int find_layer(struct edit *e)
{
    static const char *const layers[] = {"Gemm", "MatMul", "Conv", NULL};
    const char *name = e->output;
    for (int step = 0; step < MOST_STEPS; step++) {
        Onnx__NodeProto *node = maker(e, name);
        if (!node)
            return mgpu_fail(MGPU_EUNSUPPORTED, "output '%s': no layer makes it", e->output);
        int bias = stored_operand(e, node);
        if (!*node->domain && node->n_input > 1 && is_one_of(node->op_type, layers)) {
            e->layer = node;
            e->weight = &node->input[1];
            if (node->n_input > 2 && *node->input[2])
                e->bias = &node->input[2];
            return 0;
        }
        if (bias >= 0 && node->n_input == 2 && !e->add) {
            e->add = node;
            name = node->input[!bias];
        } else if (is_neutral(node)) {
            name = node->input[0];
        } else {
            return refuse(e, node, "stands between it and the layer that makes the classes");
        }
    }
    return mgpu_fail(MGPU_EUNSUPPORTED, "output '%s': its last layer is too far", e->output);
}

/* ---- The tensors ------------------------------------------------------------------------------
 */

/* The tensor behind Transposes, Identities and Casts; *turned: read the other way round. */
static int find_weight(struct edit *e, Onnx__TensorProto **tensor, bool *turned)
{
    static const char *const moves[] = {"Identity", "Cast", "Transpose", NULL};
    const Onnx__NodeProto *reader = e->layer, *node;
    *turned = false;
    while ((node = maker(e, *e->weight)) && node->n_input == 1 && is_one_of(node->op_type, moves)) {
        if (is_shared(e, reader, *e->weight))
            return refuse(e, e->layer, "shares its weight with another layer");
        *turned = *turned != !strcmp(node->op_type, "Transpose");
        reader = node;
        e->weight = (char **)&node->input[0];
    }
    *tensor = mgpu_onnx_edit_stored(e->g, *e->weight);
    if (!*tensor || !mgpu_is_float((enum mgpu_dtype)(*tensor)->data_type))
        return refuse(e, e->layer, "has no weight that is a stored tensor of floats");
    return 0;
}

static int64_t group_of(const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_attribute; i++)
        if (!strcmp(node->attribute[i]->name, "group"))
            return node->attribute[i]->i;
    return 1;
}

static bool is_turned(const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_attribute; i++)
        if (!strcmp(node->attribute[i]->name, "transB"))
            return node->attribute[i]->i != 0;
    return false;
}

/* The axis of the weight that counts classes. */
static int class_axis(const struct edit *e, const Onnx__TensorProto *t, bool turned, int *axis)
{
    bool conv = !strcmp(e->layer->op_type, "Conv");
    if (conv ? t->n_dims < 3 || turned || group_of(e->layer) != 1 : t->n_dims != 2)
        return refuse(e, e->layer, "is not a dense layer or an ungrouped convolution");
    *axis = conv ? 0 : 1;
    if (!conv && turned != is_turned(e->layer))
        *axis = 0;
    return 0;
}

static bool is_initializer(const struct edit *e, const char *name)
{
    for (size_t i = 0; i < e->g->n_initializer; i++)
        if (!strcmp(e->g->initializer[i]->name, name))
            return true;
    return false;
}

/* The input gets a tensor of its own where others read this one too, or where it is a Constant's,
 * which would not be trained. */
static int own_tensor(struct edit *e, const Onnx__NodeProto *reader, char **input,
                      Onnx__TensorProto **tensor, int rank, const int64_t *dims)
{
    char *name = NULL;
    if (!is_shared(e, reader, *input) && is_initializer(e, *input)) {
        mgpu_onnx_edit_resize(*tensor, rank, dims);
        return 0;
    }
    if (e->file->proto->ir_version <= 3)
        return refuse(
            e, reader,
            "reads a tensor that is another layer's too, or a Constant's, in a file of IR "
            "version 3");
    for (int i = 1; !name || mgpu_onnx_has_name(e->file, name); i++) {
        free(name);
        if (asprintf(&name, i > 1 ? "%s.head%d" : "%s.head", *input, i) < 0)
            return mgpu_fail(MGPU_ENOMEM, "no memory for a name");
    }
    *tensor = mgpu_onnx_edit_add(e->g, name, (*tensor)->data_type, rank, dims);
    free(*input);
    *input = name;
    return 0;
}

static Onnx__NodeProto *reader_of(const struct edit *e, char *const *input)
{
    for (size_t i = 0; i < e->g->n_node; i++)
        for (size_t k = 0; k < e->g->node[i]->n_input; k++)
            if (&e->g->node[i]->input[k] == input)
                return e->g->node[i];
    return NULL;
}

/* A bias has the classes on one axis, and ones around them. */
static int new_bias(struct edit *e, Onnx__TensorProto **tensor, int *axis)
{
    int64_t dims[MGPU_MAX_RANK], count = 1;
    Onnx__TensorProto *t = *tensor = mgpu_onnx_edit_stored(e->g, *e->bias);
    Onnx__NodeProto *reader = reader_of(e, e->bias);
    if (!t || t->n_dims > MGPU_MAX_RANK || !mgpu_is_float((enum mgpu_dtype)t->data_type))
        return refuse(e, reader, "has no bias that is a stored tensor of floats");
    *axis = -1;
    for (size_t i = 0; i < t->n_dims; i++) {
        dims[i] = t->dims[i];
        count *= dims[i];
        *axis = dims[i] == e->before ? (int)i : *axis;
    }
    if (count != e->before || *axis < 0)
        return refuse(e, reader, "adds something that has not one element a class");
    dims[*axis] = e->classes;
    return own_tensor(e, reader, e->bias, tensor, (int)t->n_dims, dims);
}

/* ---- Declared shapes --------------------------------------------------------------------------
 */

/* The axis that has as many elements as there were classes; -1: none, -2: several may be it. */
static int declared_axis(const struct edit *e, const Onnx__ValueInfoProto *info)
{
    const Onnx__TensorShapeProto *shape =
        info->type && info->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
            ? info->type->tensor_type->shape
            : NULL;
    int axis = -1;
    for (size_t i = 0; shape && i < shape->n_dim; i++)
        if (shape->dim[i]->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
            shape->dim[i]->dim_value == e->before)
            axis = axis == -1 ? (int)i : -2;
    return axis;
}

static void declare(const struct edit *e, Onnx__ValueInfoProto *info, int axis)
{
    if (axis >= 0)
        info->type->tensor_type->shape->dim[axis]->dim_value = e->classes;
}

/* A declared shape within the graph is only a hint: one that cannot be mended goes. */
static void mend_hint(const struct edit *e, const char *name)
{
    for (size_t i = 0; i < e->g->n_value_info; i++) {
        Onnx__ValueInfoProto *info = e->g->value_info[i];
        if (strcmp(info->name, name))
            continue;
        int axis = declared_axis(e, info);
        declare(e, info, axis);
        if (axis != -2)
            return;
        onnx__value_info_proto__free_unpacked(info, NULL);
        e->g->n_value_info--;
        memmove(e->g->value_info + i, e->g->value_info + i + 1,
                (e->g->n_value_info - i) * sizeof(void *));
        return;
    }
}

static int mend_output(const struct edit *e, const char *name)
{
    for (size_t i = 0; i < e->g->n_output; i++) {
        if (strcmp(e->g->output[i]->name, name))
            continue;
        int axis = declared_axis(e, e->g->output[i]);
        if (axis == -2)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "output '%s': which of its axes counts classes cannot be told", name);
        declare(e, e->g->output[i], axis);
    }
    return 0;
}

/* A stored tensor may be declared as well: up to IR 3 among the inputs, by PyTorch's newer exporter
 * among the hints. */
static void mend_stored(const struct edit *e, const char *name, int axis)
{
    for (size_t i = 0; i < e->g->n_input; i++)
        if (!strcmp(e->g->input[i]->name, name) && declared_axis(e, e->g->input[i]) != -1)
            declare(e, e->g->input[i], axis);
    for (size_t i = 0; i < e->g->n_value_info; i++)
        if (!strcmp(e->g->value_info[i]->name, name) && declared_axis(e, e->g->value_info[i]) != -1)
            declare(e, e->g->value_info[i], axis);
}

/* All that is made of the layer's result, forward: checked first, then mended. */
static int follow(struct edit *e, const char *name, bool mend, int depth)
{
    if (depth == MOST_STEPS)
        return mgpu_fail(MGPU_EUNSUPPORTED, "output '%s': its last layer is too far", e->output);
    if (mend) {
        mend_hint(e, name);
        MGPU_TRY(mend_output(e, name));
    }
    for (size_t i = 0; i < e->g->n_node; i++) {
        Onnx__NodeProto *node = e->g->node[i];
        if (!reads(node, name) || is_end(node))
            continue;
        if (node != e->add && !(is_neutral(node) && !strcmp(node->input[0], name)))
            return refuse(e, node, "reads what the last layer makes");
        MGPU_TRY(check_sizes(e, node));
        for (size_t k = 0; k < node->n_output; k++)
            MGPU_TRY(follow(e, node->output[k], mend, depth + 1));
    }
    return 0;
}

/* ---- The whole --------------------------------------------------------------------------------
 */

static struct mgpu_array array_of(const Onnx__TensorProto *t)
{
    struct mgpu_array a = {
        .type = (enum mgpu_dtype)t->data_type, .rank = (int)t->n_dims, .data = t->raw_data.data};
    for (size_t i = 0; i < t->n_dims; i++)
        a.dims[i] = t->dims[i];
    return a;
}

static int new_tensors(struct edit *e, struct mgpu_onnx_head *head)
{
    int64_t dims[MGPU_MAX_RANK], count = 1;
    Onnx__TensorProto *t, *bias = NULL;
    bool turned;
    int axis = 0, bias_axis = 0;
    MGPU_TRY(find_weight(e, &t, &turned));
    MGPU_TRY(class_axis(e, t, turned, &axis));
    e->before = t->dims[axis];
    if (!e->bias && e->add)
        e->bias = &e->add->input[stored_operand(e, e->add)];
    else if (e->add)
        return refuse(e, e->add, "adds to the classes what is no bias");
    MGPU_TRY(follow(e, e->layer->output[0], false, 0));
    if (e->bias)
        MGPU_TRY(new_bias(e, &bias, &bias_axis));
    for (const Onnx__NodeProto *n = maker(e, e->layer->input[1]); n;
         n = n->n_input ? maker(e, n->input[0]) : NULL) /* as find_weight went */
        mend_hint(e, n->output[0]);
    MGPU_TRY(follow(e, e->layer->output[0], true, 0));
    for (size_t i = 0; i < t->n_dims; i++) {
        dims[i] = (int)i == axis ? e->classes : t->dims[i];
        count *= dims[i];
    }
    MGPU_TRY(own_tensor(e, reader_of(e, e->weight), e->weight, &t, (int)t->n_dims, dims));
    mend_stored(e, *e->weight, axis);
    *head = (struct mgpu_onnx_head){.layer = name_of(e->layer),
                                    .weight_name = *e->weight,
                                    .bias_name = bias ? *e->bias : NULL,
                                    .weight = array_of(t),
                                    .before = e->before,
                                    .inputs = count / e->classes};
    if (bias) {
        head->bias = array_of(bias);
        mend_stored(e, *e->bias, bias_axis);
    }
    return 0;
}

int mgpu_onnx_new_head(struct mgpu_onnx_file *file, const char *output, int64_t classes,
                       struct mgpu_onnx_head *head)
{
    struct edit e = {.file = file, .g = file->proto->graph, .output = output, .classes = classes};
    MGPU_TRY(find_layer(&e));
    MGPU_TRY(new_tensors(&e, head));
    mgpu_onnx_edit_done(file);
    return 0;
}
