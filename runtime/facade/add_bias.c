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

static int add_bias(struct mgpu_trainer *t, const struct mgpu_onnx_node *node, int *added)
{
    const char *pattern = *t->options.add_bias ? t->options.add_bias : "*";
    const char *layer = mgpu_onnx_layer_name(node);
    char *name = mgpu_arena_format(t->arena, "%s.bias", layer);
    if (fnmatch(pattern, layer, 0) && strcmp(pattern, layer))
        return 0;
    for (int k = 2; mgpu_onnx_has_name(t->file, name); k++)
        name = mgpu_arena_format(t->arena, "%s.bias%d", layer, k);
    ++*added;
    return mgpu_prefix(mgpu_onnx_add_bias(t->file, node->proto, name, bias_size(t->model, node)),
                       "--add-bias: layer '%s'", layer);
}

int mgpu_add_biases(struct mgpu_trainer *t)
{
    struct mgpu_weights *weights;
    struct mgpu_weights_options none = {0};
    int added = 0, rc = 0;
    MGPU_TRY(mgpu_prefix(mgpu_weights_identify(&weights, t->model, &none), "%s", t->path));
    for (int i = 0; i < weights->bares && rc == 0; i++)
        rc = add_bias(t, t->model->all[weights->bare[i]], &added);
    mgpu_weights_free(weights);
    MGPU_TRY(rc);
    if (!added)
        return mgpu_fail(MGPU_EUSAGE, "--add-bias: no layer without a bias %s%s",
                         *t->options.add_bias ? "is called " : "is there", t->options.add_bias);
    mgpu_note("--add-bias: %d biases of zeros were added; a saved model holds them", added);
    mgpu_onnx_model_free(t->model);
    t->model = NULL;
    return mgpu_prefix(mgpu_onnx_model_new(&t->model, t->file), "%s", t->path);
}
