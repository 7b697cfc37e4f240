#include "exporter/model_write.h"

#include "exporter/framework_names.h"
#include "exporter/keras_h5.h"
#include "exporter/keras_store.h"
#include "exporter/layouts.h"
#include "exporter/predictions.h"
#include "exporter/safetensors.h"
#include "runtime/base/file_name.h"
#include "runtime/base/notes.h"
#include "runtime/base/option_text.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- Which kind ------------------------------------------------------------------------------ */

static const struct {
    const char *end, *name;
    enum mgpu_target target;
} kinds[] = {
    {".onnx", "onnx", MGPU_TARGET_ONNX},
    {".weights.h5", "keras3", MGPU_TARGET_KERAS_STORE}, /* before .h5 */
    {".h5", "keras-h5", MGPU_TARGET_KERAS_H5},
    {".hdf5", "keras-h5", MGPU_TARGET_KERAS_H5},
    {".safetensors", "safetensors", MGPU_TARGET_SAFETENSORS},
    {".npz", "npz", MGPU_TARGET_NPZ},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int mgpu_target_of(enum mgpu_target *out, const char *path, const char *to)
{
    static const char *const names[] = {"onnx", "keras3", "keras-h5", "safetensors", "npz"};
    for (int i = 0; i < KINDS; i++)
        if (to ? !strcmp(to, kinds[i].name) : mgpu_has_extension(path, kinds[i].end)) {
            *out = kinds[i].target;
            return 0;
        }
    if (to)
        return mgpu_unknown_word("kind", to, names, 5);
    return mgpu_fail(MGPU_EUSAGE,
                     "%s: the name must end in .onnx, .h5, .weights.h5, .safetensors or .npz",
                     path);
}

/* ---- ONNX ------------------------------------------------------------------------------------ */

struct outgoing {
    const struct mgpu_model_source *from;
    int patches, additions, rewires, arrays;
    struct mgpu_onnx_patch *patch;
    struct mgpu_onnx_addition *addition;
    struct mgpu_onnx_rewire *rewire;
    struct mgpu_array *array;
};

static int count_holders(const struct mgpu_weights *w, int *uses)
{
    int n = 0;
    *uses = 0;
    for (int i = 0; i < w->count; i++)
        for (int h = 0; h < w->weight[i].holders; h++, n++)
            *uses += w->weight[i].holder[h].uses;
    return n;
}

static int add_holder(struct outgoing *out, int weight, int holder)
{
    const struct mgpu_onnx_model *model = out->from->model;
    const struct mgpu_weight *w = &out->from->weights->weight[weight];
    const struct mgpu_holder *h = &w->holder[holder];
    const struct mgpu_onnx_initializer *init = &model->initializer[h->initializer];
    struct mgpu_array *array = &out->array[out->arrays++];
    MGPU_TRY(out->from->contents(out->from->context, weight, holder, array));
    const char *key = init->proto ? mgpu_onnx_key(model->file, init->proto) : init->name;
    if (!h->added) {
        out->patch[out->patches++] = (struct mgpu_onnx_patch){.tensor = key, .array = array};
        return 0;
    }
    out->addition[out->additions++] =
        (struct mgpu_onnx_addition){.name = w->name, .like = key, .array = array};
    for (int u = 0; u < h->uses; u++) {
        const struct mgpu_onnx_node *node = model->all[h->use[u].node];
        out->rewire[out->rewires++] =
            (struct mgpu_onnx_rewire){.node = mgpu_onnx_key(model->file, node->proto),
                                      .input = h->use[u].input,
                                      .name = w->name};
    }
    return 0;
}

static int collect(struct outgoing *out)
{
    const struct mgpu_weights *weights = out->from->weights;
    for (int i = 0; i < weights->count; i++) {
        const struct mgpu_weight *w = &weights->weight[i];
        for (int h = 0; h < w->holders; h++)
            if (out->from->changed(out->from->context, i) || w->holder[h].added)
                MGPU_TRY(add_holder(out, i, h));
    }
    return 0;
}

static int write_onnx(const struct mgpu_model_source *from, const char *path, bool as_exported)
{
    int uses, n = count_holders(from->weights, &uses);
    struct outgoing out = {.from = from,
                           .patch = mgpu_xcalloc((size_t)n + 1, sizeof *out.patch),
                           .addition = mgpu_xcalloc((size_t)n + 1, sizeof *out.addition),
                           .rewire = mgpu_xcalloc((size_t)uses + 1, sizeof *out.rewire),
                           .array = mgpu_xcalloc((size_t)n + 1, sizeof *out.array)};
    int rc = collect(&out);
    struct mgpu_onnx_write_options o = {.as_exported = as_exported,
                                        .additions = out.addition,
                                        .addition_count = out.additions,
                                        .rewires = out.rewire,
                                        .rewire_count = out.rewires};
    if (rc == 0)
        rc = mgpu_onnx_write(from->model->file, path, out.patch, out.patches, &o);
    for (int i = 0; i < out.arrays; i++)
        mgpu_array_free(&out.array[i]);
    free(out.patch);
    free(out.addition);
    free(out.rewire);
    free(out.array);
    return rc;
}

/* ---- Weights alone --------------------------------------------------------------------------- */

static int write_npz(const char *path, const struct mgpu_named_array *arrays, int count)
{
    struct mgpu_prediction_output *outputs = mgpu_xcalloc((size_t)count + 1, sizeof *outputs);
    struct mgpu_predictions *p;
    for (int i = 0; i < count; i++) {
        const struct mgpu_array *a = &arrays[i].array;
        outputs[i] = (struct mgpu_prediction_output){arrays[i].name, a->type, a->rank, {0}, 0};
        memcpy(outputs[i].dims, a->dims, sizeof outputs[i].dims);
        if (a->rank == 0)
            outputs[i].dims[0] = 1;
    }
    int rc = mgpu_predictions_open_npz(&p, path, outputs, count);
    if (rc == 0) {
        for (int i = 0; i < count && rc == 0; i++)
            rc = mgpu_predictions_write(p, i, 0, outputs[i].dims[0], arrays[i].array.data);
        rc = mgpu_predictions_close(p, rc);
    }
    free(outputs);
    return rc;
}

int mgpu_target_check(enum mgpu_target target, const struct mgpu_named_array *a)
{
    if (target == MGPU_TARGET_NPZ && a->array.type == MGPU_BFLOAT16)
        return mgpu_fail(MGPU_EUNSUPPORTED, "'%s' is bfloat16, which npz does not hold", a->name);
    return 0;
}

int mgpu_arrays_write(const char *path, enum mgpu_target target,
                      const struct mgpu_named_array *arrays, int count)
{
    for (int i = 0; i < count; i++)
        MGPU_TRY(mgpu_prefix(mgpu_target_check(target, &arrays[i]), "%s", path));
    return target == MGPU_TARGET_KERAS_H5      ? mgpu_keras_h5_write(path, arrays, count)
           : target == MGPU_TARGET_KERAS_STORE ? mgpu_keras_store_write(path, arrays, count)
           : target == MGPU_TARGET_SAFETENSORS ? mgpu_safetensors_write(path, arrays, count)
                                               : write_npz(path, arrays, count);
}

static int name_arrays(struct mgpu_framework_arrays **out, const struct mgpu_model_source *from,
                       enum mgpu_target target, const struct mgpu_model_write_options *options)
{
    if (options->told)
        mgpu_drop_notes(true);
    int rc = mgpu_framework_arrays_new(out, from, target, options);
    if (options->told)
        mgpu_drop_notes(false);
    return rc;
}

int mgpu_model_write(const struct mgpu_model_source *from, const char *path,
                     enum mgpu_target target, const struct mgpu_model_write_options *options,
                     int *count)
{
    struct mgpu_framework_arrays *named;
    if (target == MGPU_TARGET_ONNX) {
        *count = from->weights->count;
        return write_onnx(from, path, options->as_exported);
    }
    MGPU_TRY(mgpu_prefix(name_arrays(&named, from, target, options), "%s", path));
    *count = named->count;
    int rc = mgpu_framework_arrays_fill(named, from);
    if (rc == 0 && from->state)
        rc = mgpu_framework_state(named, from, target);
    rc = mgpu_prefix(rc, "%s", path);
    if (rc == 0)
        rc = mgpu_arrays_write(path, target, named->array, named->count);
    mgpu_framework_arrays_free(named);
    return rc;
}

int mgpu_model_write_check(const struct mgpu_model_source *from, const char *path,
                           enum mgpu_target target, const struct mgpu_model_write_options *options)
{
    struct mgpu_framework_arrays *named;
    if (target == MGPU_TARGET_ONNX)
        return 0;
    MGPU_TRY(mgpu_prefix(name_arrays(&named, from, target, options), "%s", path));
    int rc = mgpu_prefix(mgpu_framework_arrays_check(named, from, target), "%s", path);
    mgpu_framework_arrays_free(named);
    return rc;
}

/* ---- A model's own weights ------------------------------------------------------------------- */

bool mgpu_model_own_changed(void *context, int weight)
{
    const struct mgpu_model_source *s = context;
    return mgpu_weights_given(s->weights, weight);
}

int mgpu_model_own_contents(void *context, int weight, int holder, struct mgpu_array *out)
{
    const struct mgpu_model_source *s = context;
    const struct mgpu_weight *w = &s->weights->weight[weight];
    const struct mgpu_holder *h = &w->holder[holder];
    const struct mgpu_array *a = mgpu_weight_contents(s->weights, s->model, weight);
    const struct mgpu_array *own = &s->model->initializer[h->initializer].array;
    bool given = mgpu_model_own_changed(context, weight);
    bool turned = given && h->copy == MGPU_COPY_TRANSPOSED;
    MGPU_TRY(mgpu_array_init(out, own->type, own->rank, own->dims, w->name));
    if (turned)
        mgpu_weight_transpose(out->data, a->data, a->type, a->dims[0], a->dims[1]);
    else
        memcpy(out->data, given ? a->data : own->data,
               (size_t)mgpu_array_count(own) * mgpu_dtype_size(own->type));
    return 0;
}
