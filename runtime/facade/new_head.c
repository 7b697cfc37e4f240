/* --classes: the last layer gets another number of classes, and starts afresh. */
#include "importer/onnx_head.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"

#include <math.h>
#include <string.h>

/* The output that the losses look at. */
static int find_output(struct mgpu_trainer *t, const char **output)
{
    MGPU_TRY(mgpu_parse_losses(t));
    if (!t->losses)
        return mgpu_fail(MGPU_EUSAGE, "--classes: without a --loss no head is trained");
    *output = t->loss[0].output;
    for (int i = 1; i < t->losses; i++)
        if (strcmp(t->loss[i].output, *output))
            return mgpu_fail(MGPU_EUSAGE,
                             "--classes: the losses look at '%s' and '%s': which of them gets the "
                             "classes cannot be told",
                             *output, t->loss[i].output);
    return 0;
}

/* As the frameworks start a layer: PyTorch weight and bias within 1 / sqrt(inputs), Keras the
 * weight after Glorot and a bias of zeros. */
static void fill(const struct mgpu_trainer *t, const struct mgpu_onnx_head *head, int64_t classes)
{
    double inputs = (double)head->inputs, area = 1;
    for (int i = 2; i < head->weight.rank; i++)
        area *= (double)head->weight.dims[i];
    bool torch = t->model->producer == MGPU_PRODUCER_PYTORCH;
    double bound = torch ? 1 / sqrt(inputs) : sqrt(6 / (inputs + area * (double)classes));
    mgpu_fill_uniform(t, head->weight_name, &head->weight, bound);
    if (head->bias_name && torch)
        mgpu_fill_uniform(t, head->bias_name, &head->bias, bound);
}

int mgpu_new_head(struct mgpu_trainer *t)
{
    struct mgpu_onnx_head head;
    int64_t classes = t->options.classes;
    const char *output = NULL;
    MGPU_TRY(find_output(t, &output));
    MGPU_TRY(mgpu_prefix(mgpu_onnx_new_head(t->file, output, classes, &head), "%s: --classes %lld",
                         t->path, (long long)classes));
    fill(t, &head, classes);
    mgpu_note("--classes %lld: layer '%s', which had %lld, starts from random numbers (--seed); a "
              "saved model holds the new one",
              (long long)classes, head.layer, (long long)head.before);
    t->fresh[0] = mgpu_arena_string(t->arena, head.weight_name);
    t->fresh[1] = head.bias_name ? mgpu_arena_string(t->arena, head.bias_name) : NULL;
    mgpu_onnx_model_free(t->model);
    t->model = NULL;
    return mgpu_onnx_model_new(&t->model, t->file);
}

int mgpu_check_classes(const struct mgpu_trainer *t)
{
    for (int i = 0; i < t->losses && t->options.classes; i++)
        if (t->loss[i].classes && t->loss[i].classes != t->options.classes)
            return mgpu_fail(MGPU_EUNSUPPORTED,
                             "%s: --classes %lld: output '%s' has %lld classes all the same: its "
                             "last layer does not make them",
                             t->path, (long long)t->options.classes, t->loss[i].output,
                             (long long)t->loss[i].classes);
    return 0;
}
