#include "exporter/predictions.h"

#include "exporter/predictions_private.h"
#include "runtime/base/file_name.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct mgpu_predictions_kind *kind_of(const char *path)
{
    static const struct mgpu_predictions_kind *const kinds[] = {
        &mgpu_predictions_npz, &mgpu_predictions_h5, &mgpu_predictions_hdf5};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (mgpu_has_extension(path, kinds[i]->extension))
            return kinds[i];
    return NULL;
}

static int check_outputs(const struct mgpu_prediction_output *outputs, int count)
{
    int64_t elements;
    for (int i = 0; i < count; i++) {
        const struct mgpu_prediction_output *o = &outputs[i];
        if (o->type == MGPU_BFLOAT16)
            return mgpu_fail(MGPU_EUNSUPPORTED, "'%s': bfloat16 cannot be written", o->name);
        if (o->axis < 0 || (o->axis >= o->rank && o->rank))
            return mgpu_fail(MGPU_EUNSUPPORTED, "'%s' has no axis of samples", o->name);
        MGPU_TRY(mgpu_count(&elements, o->type, o->rank, o->dims));
    }
    return 0;
}

static void release(struct mgpu_predictions *p)
{
    free(p->path);
    free(p->outputs);
    free(p->written);
    free(p);
}

static int open_kind(struct mgpu_predictions **out, const struct mgpu_predictions_kind *kind,
                     const char *path, const struct mgpu_prediction_output *outputs, int count)
{
    *out = NULL;
    MGPU_TRY(mgpu_prefix(check_outputs(outputs, count), "%s", path));
    struct mgpu_predictions *p = mgpu_xcalloc(1, sizeof *p);
    p->kind = kind;
    p->path = mgpu_xstrdup(path);
    p->count = count;
    p->outputs = mgpu_xcalloc((size_t)count, sizeof *p->outputs);
    memcpy(p->outputs, outputs, (size_t)count * sizeof *outputs);
    p->written = mgpu_xcalloc((size_t)count, sizeof *p->written);
    int rc = kind->open(p);
    if (rc < 0)
        release(p);
    else
        *out = p;
    return rc;
}

int mgpu_predictions_open(struct mgpu_predictions **out, const char *path,
                          const struct mgpu_prediction_output *outputs, int count)
{
    const struct mgpu_predictions_kind *kind = kind_of(path);
    *out = NULL;
    if (!kind)
        return mgpu_fail(MGPU_EUSAGE, "%s: predictions go to a file ending in .npz or .h5", path);
    return open_kind(out, kind, path, outputs, count);
}

int mgpu_predictions_open_npz(struct mgpu_predictions **out, const char *path,
                              const struct mgpu_prediction_output *outputs, int count)
{
    return open_kind(out, &mgpu_predictions_npz, path, outputs, count);
}

int mgpu_predictions_write(struct mgpu_predictions *p, int output, int64_t first, int64_t count,
                           const void *data)
{
    const struct mgpu_prediction_output *o = &p->outputs[output];
    if (first < 0 || count < 0 || first > o->dims[o->axis] - count)
        return mgpu_fail(MGPU_EINTERNAL,
                         "'%s': samples %" PRId64 " to %" PRId64 " of %" PRId64 " are written",
                         o->name, first, first + count, o->dims[o->axis]);
    MGPU_TRY(p->kind->write(p, output, first, count, data));
    p->written[output] += count;
    return 0;
}

static int check_complete(const struct mgpu_predictions *p)
{
    for (int i = 0; i < p->count; i++) {
        const struct mgpu_prediction_output *o = &p->outputs[i];
        if (p->written[i] != o->dims[o->axis])
            return mgpu_fail(MGPU_EINTERNAL, "%s: '%s' has %" PRId64 " of %" PRId64 " samples",
                             p->path, o->name, p->written[i], o->dims[o->axis]);
    }
    return 0;
}

int mgpu_predictions_close(struct mgpu_predictions *p, int rc)
{
    if (!p)
        return rc;
    rc = p->kind->close(p, rc < 0 ? rc : check_complete(p));
    release(p);
    return rc;
}
