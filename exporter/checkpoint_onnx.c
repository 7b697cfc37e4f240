/* The initializers of an ONNX model as a file of weights: of its graph, inner graphs, functions. */
#include "exporter/variables.h"
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

static bool is_weight(enum mgpu_weight_role role)
{
    return role == MGPU_ROLE_TRAINED || role == MGPU_ROLE_FROZEN || role == MGPU_ROLE_STATISTIC;
}

static int read_all(struct mgpu_checkpoint *c)
{
    struct onnx *o = c->state;
    struct mgpu_weights *weights;
    MGPU_TRY(mgpu_onnx_read(&o->file, c->path));
    MGPU_TRY(mgpu_onnx_model_new(&o->model, o->file));
    MGPU_TRY(mgpu_prefix(mgpu_variables_identify(&weights, o->model), "%s", c->path));
    for (int i = 0; i < o->model->initializers; i++) {
        const struct mgpu_onnx_initializer *init = &o->model->initializer[i];
        if (init->array.type == MGPU_UNDEFINED)
            continue;
        struct mgpu_checkpoint_tensor *t = mgpu_checkpoint_add(c, init->name);
        t->type = init->array.type;
        t->rank = init->array.rank;
        memcpy(t->dims, init->array.dims, sizeof t->dims);
        t->place = &init->array;
        t->weight = is_weight(weights->role[i]);
        mgpu_checkpoint_name(c, t, t->name);
    }
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
