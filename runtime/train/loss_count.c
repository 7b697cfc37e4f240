/* What a loss counts: the number that its sum is divided by. */
#include "runtime/base/status.h"
#include "runtime/train/loss_private.h"

static double weight_of(const double *sample_weights, int64_t sample)
{
    return sample_weights ? sample_weights[sample] : 1;
}

/* Elements of the label (or of the output) along axes [from, to). */
static int64_t elements(const struct mgpu_loss *loss, int from, int to)
{
    int64_t n = 1;
    for (int k = from; k < to; k++)
        n *= loss->label_dims[k].value;
    return n;
}

static int bad_label(const struct mgpu_loss *loss, int64_t sample, int64_t label)
{
    return mgpu_fail(MGPU_EINVALID,
                     "label '%s', sample %lld: %lld is not one of the classes 0 to "
                     "%lld",
                     loss->label, (long long)sample, (long long)label,
                     (long long)loss->classes - 1);
}

/* PyTorch's mean: labels by class weight, ignored ones not at all. */
static int count_numbers(double *count, const struct mgpu_loss *loss, int64_t samples,
                         const int64_t *labels, const double *sample_weights, const int64_t *rows)
{
    int batch = loss->label_batch_axis;
    int64_t inner = elements(loss, batch + 1, loss->label_rank), outer = elements(loss, 0, batch);
    for (int64_t i = 0; i < outer * samples * inner; i++) {
        int64_t sample = i / inner % samples, label = labels[i];
        if (loss->ignore && label == loss->ignore_index)
            continue;
        if (label < 0 || label >= loss->classes)
            return bad_label(loss, rows ? rows[sample] : sample, label);
        *count += weight_of(sample_weights, sample) *
                  (loss->class_weights ? loss->class_weights[label] : 1);
    }
    return 0;
}

/* Terms of the mean in one sample: elements, or positions where the classes are summed. */
static double per_sample(const struct mgpu_loss *loss)
{
    int batch = loss->label_batch_axis;
    if (loss->batch_mean || loss->kind == MGPU_LOSS_OUTPUT)
        return 1;
    int64_t all = elements(loss, 0, batch) * elements(loss, batch + 1, loss->label_rank);
    return (double)all / (double)(loss->classes ? loss->classes : 1);
}

int mgpu_loss_count(double *count, const struct mgpu_loss *loss, int64_t samples,
                    const void *labels, const double *sample_weights, const int64_t *rows)
{
    bool numbers = loss->kind != MGPU_LOSS_OUTPUT && loss->label_type == MGPU_INT64;
    *count = 0;
    if (numbers)
        MGPU_TRY(count_numbers(count, loss, samples, labels, sample_weights, rows));
    if (numbers && !loss->batch_mean)
        return 0;
    *count = 0;
    for (int64_t i = 0; i < samples; i++)
        *count += weight_of(sample_weights, i) * per_sample(loss);
    return 0;
}
