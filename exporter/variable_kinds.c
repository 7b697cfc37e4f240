#include "exporter/variable_kinds.h"

#include "exporter/keras_layers.h"
#include "exporter/scopes.h"

#include <string.h>

/* A pointwise convolution under the name of a depthwise one is a separable convolution's. */
static void join_separable(struct mgpu_variables *v)
{
    for (int i = 0; i + 1 < v->count; i++) {
        struct mgpu_variable *kernel = &v->variable[i], *depthwise = &v->variable[i + 1];
        if (kernel->layer != depthwise->layer || kernel->role != MGPU_VAR_KERNEL ||
            depthwise->role != MGPU_VAR_DEPTHWISE)
            continue;
        kernel->role = MGPU_VAR_POINTWISE;
        kernel->leaf = "pointwise_kernel";
        struct mgpu_variable other = *kernel;
        *kernel = *depthwise;
        *depthwise = other;
        const char *class_name = v->layer[other.layer].class_name;
        v->layer[other.layer].class_name =
            !strcmp(class_name, "depthwise_conv1d") ? "separable_conv1d" : "separable_conv2d";
    }
}

/* Keras's attention has four layers, whose places in it are their classes in a store. */
static void name_attention(struct mgpu_variables *v)
{
    for (int last = 0; last < v->layers; last++) {
        const char *path = v->layer[last].path, *slash = strrchr(path, '/');
        size_t n = slash ? (size_t)(slash - path) + 1 : 0;
        if (!slash || strcmp(slash + 1, mgpu_keras_attention[MGPU_KERAS_ATTENTION - 1][1]))
            continue;
        for (int i = 0; i < v->layers; i++)
            for (int k = 0; k < MGPU_KERAS_ATTENTION && !strncmp(v->layer[i].path, path, n); k++)
                if (!strcmp(v->layer[i].path + n, mgpu_keras_attention[k][1]))
                    v->layer[i].class_name = mgpu_keras_attention[k][0];
    }
}

static const char *op_of(const struct mgpu_variables *v, int variable)
{
    return mgpu_scope_tensorflow(v->arena, v->variable[variable].own, v->renumbered).op;
}

/* Of a layer of one's own nothing tells what its variables are: they are as the graph has them. */
static void take_name(struct mgpu_variables *v, int variable)
{
    struct mgpu_variable *x = &v->variable[variable];
    const struct mgpu_holder *h = &v->weights->weight[x->weight].holder[x->holder];
    const struct mgpu_array *a = &v->model->initializer[h->initializer].array;
    x->role = MGPU_VAR_OTHER;
    x->leaf = "";
    x->rank = a->rank;
    memcpy(x->dims, a->dims, sizeof x->dims);
    x->layout = mgpu_weight_layout_same(a->rank, a->dims);
    v->layer[x->layer].class_name = "";
}

/* x @ w + b in Python adds with "add"; Keras's Dense does not. */
static void find_own(struct mgpu_variables *v)
{
    for (int i = 0; i + 1 < v->count; i++) {
        const struct mgpu_variable *kernel = &v->variable[i], *bias = &v->variable[i + 1];
        bool both = kernel->layer == bias->layer && kernel->role == MGPU_VAR_KERNEL &&
                    bias->role == MGPU_VAR_BIAS && !kernel->joined && *op_of(v, i);
        if (!both || strcmp(v->layer[kernel->layer].class_name, "dense") ||
            strcmp(op_of(v, i + 1), "add"))
            continue;
        take_name(v, i);
        take_name(v, i + 1);
    }
}

/* An embedding with a kernel: that is its table, turned, or, in Keras, a second one. */
static void name_reversible(struct mgpu_variables *v)
{
    for (int i = 0; i + 1 < v->count; i++) {
        struct mgpu_variable *kernel = &v->variable[i], *table = &v->variable[i + 1];
        if (kernel->layer != table->layer || kernel->role != MGPU_VAR_KERNEL ||
            table->role != MGPU_VAR_EMBEDDINGS)
            continue;
        v->layer[kernel->layer].class_name = "reversible_embedding";
        if (kernel->weight == table->weight)
            continue;
        struct mgpu_variable second = *kernel;
        second.leaf = "reverse_embeddings";
        *kernel = *table;
        *table = second;
    }
}

void mgpu_variables_name_kinds(struct mgpu_variables *v)
{
    join_separable(v);
    name_attention(v);
    name_reversible(v);
    if (v->model->producer == MGPU_PRODUCER_TENSORFLOW)
        find_own(v);
}
