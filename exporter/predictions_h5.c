/* Predictions as HDF5 data sets. */
#include "exporter/h5_out.h"
#include "exporter/predictions_private.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

struct h5_state {
    struct mgpu_h5_out out;
    hid_t *sets, *types; /* by output */
};

static int create_sets(struct mgpu_predictions *p, struct h5_state *s)
{
    for (int i = 0; i < p->count; i++) {
        const struct mgpu_prediction_output *o = &p->outputs[i];
        s->types[i] = mgpu_h5_type(o->type);
        MGPU_TRY(mgpu_h5_out_create(&s->sets[i], &s->out, o->name, o->type, o->rank, o->dims));
    }
    return 0;
}

/* Handles first, then the file, then the state. */
static int finish(struct mgpu_predictions *p, int rc)
{
    struct h5_state *s = p->state;
    for (int i = 0; i < p->count; i++) {
        if (s->sets[i] > 0)
            H5Dclose(s->sets[i]);
        if (s->types[i] > 0)
            H5Tclose(s->types[i]);
    }
    rc = mgpu_h5_out_close(&s->out, rc);
    free(s->sets);
    free(s->types);
    free(s);
    return rc;
}

static uint64_t bytes_needed(const struct mgpu_predictions *p)
{
    uint64_t bytes = 0;
    for (int i = 0; i < p->count; i++) {
        int64_t n = 0;
        if (mgpu_count(&n, p->outputs[i].type, p->outputs[i].rank, p->outputs[i].dims) == 0)
            bytes += (uint64_t)n * mgpu_dtype_size(p->outputs[i].type);
    }
    return bytes;
}

static int open_h5(struct mgpu_predictions *p)
{
    struct h5_state *s = p->state = mgpu_xcalloc(1, sizeof *s);
    s->sets = mgpu_xcalloc((size_t)p->count, sizeof *s->sets);
    s->types = mgpu_xcalloc((size_t)p->count, sizeof *s->types);
    mgpu_h5_lock();
    int rc = mgpu_h5_out_open(&s->out, p->path, bytes_needed(p));
    if (rc < 0) {
        free(s->sets);
        free(s->types);
        free(s);
    } else {
        rc = create_sets(p, s);
        rc = rc < 0 ? finish(p, rc) : 0;
    }
    mgpu_h5_unlock();
    return rc;
}

static int write_locked(struct mgpu_predictions *p, int output, int64_t first, int64_t count,
                        const void *data)
{
    const struct mgpu_prediction_output *o = &p->outputs[output];
    struct h5_state *s = p->state;
    hsize_t start[MGPU_MAX_RANK] = {0}, size[MGPU_MAX_RANK];
    for (int i = 0; i < o->rank; i++)
        size[i] = (hsize_t)o->dims[i];
    start[o->axis] = (hsize_t)first;
    size[o->axis] = (hsize_t)count;
    hid_t file = H5Dget_space(s->sets[output]), memory = H5Screate_simple(o->rank, size, NULL);
    herr_t rc = H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, size, NULL);
    if (rc >= 0)
        rc = H5Dwrite(s->sets[output], s->types[output], memory, file, H5P_DEFAULT, data);
    H5Sclose(memory);
    H5Sclose(file);
    return rc < 0 ? mgpu_h5_fail(MGPU_EIO, "%s: '%s' cannot be written", p->path, o->name) : 0;
}

static int write_h5(struct mgpu_predictions *p, int output, int64_t first, int64_t count,
                    const void *data)
{
    mgpu_h5_lock();
    int rc = count ? write_locked(p, output, first, count, data) : 0;
    mgpu_h5_unlock();
    return rc;
}

static int close_h5(struct mgpu_predictions *p, int rc)
{
    mgpu_h5_lock();
    rc = finish(p, rc);
    mgpu_h5_unlock();
    return rc;
}

const struct mgpu_predictions_kind mgpu_predictions_h5 = {".h5", open_h5, write_h5, close_h5};
const struct mgpu_predictions_kind mgpu_predictions_hdf5 = {".hdf5", open_h5, write_h5, close_h5};
