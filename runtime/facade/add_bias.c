/* --add-bias: layers that lost their bias in the export get one again. */
#include "importer/onnx_bias.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <fnmatch.h>
#include <string.h>

/* Output channels of a layer. */
static int64_t bias_size(const struct mgpu_onnx_model *m, const struct mgpu_onnx_node *node)
{
    const struct mgpu_array *w =
        &m->initializer[mgpu_onnx_find_initializer(m, node->input[1])].array;
    if (!strcmp(node->type, "Conv"))
        return w->dims[0];
    if (!strcmp(node->type, "ConvTranspose"))
        return w->dims[1] * mgpu_onnx_int(node, "group", 1);
    return w->dims[strcmp(node->type, "Gemm") || !mgpu_onnx_int(node, "transB", 0)];
}

static bool matches(const char *pattern, const char *name)
{
    return !strcmp(pattern, name) || !fnmatch(pattern, name, 0);
}

/* Whether the layer is meant: by its name, its output or its weight; without a pattern, where an
 * exporter may have removed its bias. */
static bool is_meant(const struct mgpu_trainer *t, const struct mgpu_weights *weights, int bare)
{
    const char *pattern = t->options.add_bias;
    const struct mgpu_onnx_node *node = t->model->all[weights->bare[bare]];
    if (!*pattern)
        return weights->lost[bare];
    return matches(pattern, mgpu_onnx_layer_name(node)) || matches(pattern, node->output[0]) ||
           matches(pattern, node->input[1]);
}

/* "fc.bias" for "fc.weight", else the layer's name and ".bias". */
static char *new_name(struct mgpu_trainer *t, const struct mgpu_onnx_node *node)
{
    const char *weight = node->input[1], *end = strrchr(weight, '.');
    bool plain = end && !strcmp(end, ".weight");
    char *base = plain ? mgpu_arena_format(t->arena, "%.*s.bias", (int)(end - weight), weight)
                       : mgpu_arena_format(t->arena, "%s.bias", mgpu_onnx_layer_name(node));
    char *name = base;
    for (int k = 2; mgpu_onnx_has_name(t->file, name); k++)
        name = mgpu_arena_format(t->arena, "%s%d", base, k);
    return name;
}

struct made { /* a bias, by the initializer of the layer's weight */
    char *name;
    int64_t size;
};

/* Layers of one stored weight get one stored bias, which is split where they are different layers,
 * as the weight is. */
static int add_bias(struct mgpu_trainer *t, const struct mgpu_onnx_node *node, struct made *all)
{
    struct made *made = &all[mgpu_onnx_find_initializer(t->model, node->input[1])];
    int64_t size = bias_size(t->model, node);
    if (!made->name || made->size != size)
        *made = (struct made){new_name(t, node), size};
    return mgpu_prefix(mgpu_onnx_add_bias(t->file, node->proto, made->name, size),
                       "--add-bias: layer '%s'", mgpu_onnx_layer_name(node));
}

/* Every layer that is meant, or that is not. */
static const char *list_layers(struct mgpu_trainer *t, const struct mgpu_weights *weights,
                               bool meant)
{
    enum { LISTED = 12 };
    const char *text = "";
    int count = 0;
    for (int i = 0; i < weights->bares; i++) {
        const struct mgpu_onnx_node *node = t->model->all[weights->bare[i]];
        if (is_meant(t, weights, i) == meant && count++ < LISTED)
            text = mgpu_arena_format(t->arena, "%s%s'%s' (%s)", text, *text ? ", " : "",
                                     mgpu_onnx_layer_name(node), node->input[1]);
    }
    return count > LISTED ? mgpu_arena_format(t->arena, "%s and %d more", text, count - LISTED)
                          : text;
}

static int refuse(struct mgpu_trainer *t, const struct mgpu_weights *weights)
{
    const char *pattern = t->options.add_bias;
    if (!weights->bares)
        return mgpu_fail(MGPU_EUSAGE, "--add-bias: no layer without a bias is there");
    if (!*pattern)
        return mgpu_fail(MGPU_EUSAGE,
                         "--add-bias: no layer is there that may have lost its bias in the "
                         "export; without one are, and get one by name: %s",
                         list_layers(t, weights, false));
    return mgpu_fail(MGPU_EUSAGE, "--add-bias: no layer without a bias is called %s; there are: %s",
                     pattern, list_layers(t, weights, false));
}

static int add_all(struct mgpu_trainer *t, const struct mgpu_weights *weights)
{
    struct made *made = MGPU_NEW_ARRAY(t->arena, struct made, t->model->initializers);
    const char *list = list_layers(t, weights, true);
    int added = 0;
    for (int i = 0; i < weights->bares; i++)
        if (is_meant(t, weights, i)) {
            MGPU_TRY(add_bias(t, t->model->all[weights->bare[i]], made));
            added++;
        }
    if (!added)
        return refuse(t, weights);
    mgpu_note("--add-bias: %d layers have a bias of zeros now, which a saved model holds: %s",
              added, list);
    return 0;
}

int mgpu_add_biases(struct mgpu_trainer *t)
{
    struct mgpu_weights *weights;
    struct mgpu_weights_options none = {0};
    MGPU_TRY(mgpu_prefix(mgpu_weights_identify(&weights, t->model, &none), "%s", t->path));
    int rc = add_all(t, weights);
    mgpu_weights_free(weights);
    MGPU_TRY(rc);
    mgpu_onnx_model_free(t->model);
    t->model = NULL;
    return mgpu_prefix(mgpu_onnx_model_new(&t->model, t->file), "%s", t->path);
}
