/* The initializers of an ONNX model as a file of weights: of its graph, inner graphs, functions. */
#include "exporter/checkpoint.h"
#include "importer/onnx_repeat.h"
#include "importer/weights.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

struct onnx {
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
};

static int load_initializer(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                            struct mgpu_array *to)
{
    const struct mgpu_array *from = t->place;
    (void)c;
    memcpy(to->data, from->data, (size_t)mgpu_array_count(from) * mgpu_dtype_size(from->type));
    return 0;
}

static void close_model(struct mgpu_checkpoint *c)
{
    struct onnx *o = c->state;
    mgpu_onnx_model_free(o->model);
    mgpu_onnx_free(o->file);
    free(o);
}

static int read_all(struct mgpu_checkpoint *c)
{
    struct onnx *o = c->state;
    struct mgpu_weights *weights;
    MGPU_TRY(mgpu_onnx_read(&o->file, c->path));
    MGPU_TRY(mgpu_onnx_unrepeat(o->file, false));
    MGPU_TRY(mgpu_onnx_model_new(&o->model, o->file));
    MGPU_TRY(
        mgpu_prefix(mgpu_weights_identify(&weights, o->model, &(struct mgpu_weights_options){0}),
                    "%s", c->path));
    bool *held = mgpu_xcalloc((size_t)o->model->initializers + 1, sizeof *held);
    for (int i = 0; i < weights->count; i++)
        for (int h = 0; h < weights->weight[i].holders; h++)
            held[weights->weight[i].holder[h].initializer] = true;
    for (int i = 0; i < o->model->initializers; i++) {
        const struct mgpu_onnx_initializer *init = &o->model->initializer[i];
        if (init->array.type == MGPU_UNDEFINED)
            continue;
        struct mgpu_checkpoint_tensor *t = mgpu_checkpoint_add(c, init->name);
        t->type = init->array.type;
        t->rank = init->array.rank;
        memcpy(t->dims, init->array.dims, sizeof t->dims);
        t->place = &init->array;
        t->weight = held[i];
        mgpu_checkpoint_name(c, t, t->name);
    }
    free(held);
    mgpu_weights_free(weights);
    return 0;
}

int mgpu_checkpoint_read_onnx(struct mgpu_checkpoint *c)
{
    c->state = mgpu_xcalloc(1, sizeof(struct onnx));
    c->kind = MGPU_CHECKPOINT_ONNX;
    c->load = load_initializer;
    c->close = close_model;
    return read_all(c);
}
