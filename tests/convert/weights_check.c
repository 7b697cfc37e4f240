#include "tests/convert/weights_check.h"

#include "exporter/checkpoint.h"
#include "exporter/h5_out.h"
#include "runtime/base/status.h"
#include "tests/support/tiny.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int weights_convert(char line[256], const char *in, const char *out,
                    const struct mgpu_convert_options *options)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    int rc = mgpu_weights_convert(in, out, options, false, to);
    fclose(to);
    snprintf(line, 256, "%s", text);
    free(text);
    return rc;
}

static bool same(const struct mgpu_array *a, const struct mgpu_array *b, double limit)
{
    int64_t n = mgpu_array_count(a);
    double most = 1;
    if (a->rank != b->rank || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims))
        return false;
    if (limit == 0)
        return !memcmp(a->data, b->data, (size_t)n * mgpu_dtype_size(a->type));
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(mgpu_get_double(b->data, b->type, i)));
    for (int64_t i = 0; i < n; i++)
        if (fabs(mgpu_get_double(a->data, a->type, i) - mgpu_get_double(b->data, b->type, i)) >
            limit * most)
            return false;
    return true;
}

/* A tensor of `want` among those of `got`, compared. */
static bool differs(struct mgpu_checkpoint *got, struct mgpu_checkpoint *want, int tensor,
                    double limit)
{
    struct mgpu_array a, b;
    for (int i = 0; i < got->count; i++) {
        if (strcmp(got->tensor[i].name, want->tensor[tensor].name))
            continue;
        if (mgpu_checkpoint_load(got, i, &a) < 0 || mgpu_checkpoint_load(want, tensor, &b) < 0)
            return true;
        bool out = !same(&a, &b, limit);
        mgpu_array_free(&a);
        mgpu_array_free(&b);
        return out;
    }
    return true;
}

int weights_differ(const char *got, const char *want, double limit)
{
    struct mgpu_checkpoint *a, *b;
    int n = 0;
    if (mgpu_checkpoint_open(&a, got, false) < 0)
        return -1;
    if (mgpu_checkpoint_open(&b, want, false) < 0)
        return -1;
    for (int i = 0; i < b->count; i++)
        if (b->tensor[i].type == MGPU_FLOAT)
            n += differs(a, b, i, limit);
    mgpu_checkpoint_close(a);
    mgpu_checkpoint_close(b);
    return n;
}

bool weights_hold(const char *path, const char *name, const char *shape, const double *want)
{
    struct mgpu_checkpoint *c;
    bool good = false;
    if (mgpu_checkpoint_open(&c, path, false) < 0)
        return false;
    for (int t = 0; t < c->count; t++) {
        char text[MGPU_SHAPE_TEXT];
        struct mgpu_array a;
        if (strcmp(c->tensor[t].name, name) || mgpu_checkpoint_load(c, t, &a) < 0)
            continue;
        good = !strcmp(mgpu_shape_text(text, a.rank, a.dims), shape);
        for (int64_t i = 0; i < mgpu_array_count(&a) && good; i++)
            good = mgpu_get_double(a.data, a.type, i) == want[i];
        mgpu_array_free(&a);
    }
    mgpu_checkpoint_close(c);
    return good;
}

int weights_start(const char *model, const struct mgpu_options *options, const char *const *names,
                  double *first)
{
    struct mgpu_trainer *t;
    struct mgpu_options o = *options;
    double w[4];
    o.data = tiny_list(tiny_noise("x", 1, 2, (int64_t[]){6, 2}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 2}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.batch = 3;
    MGPU_TRY(mgpu_trainer_new(&t, model, &o));
    int rc = 0;
    for (int i = 0; names[i] && rc == 0; i++) {
        rc = mgpu_weight_read(t, names[i], w, 4);
        first[i] = w[0];
    }
    mgpu_trainer_free(t);
    return rc;
}

bool weights_exist(const char *path)
{
    return access(path, F_OK) == 0;
}

/* ---- Keras's legacy layout, with layers that have no weights --------------------------------- */

static void put_array(struct mgpu_h5_out *out, const struct weights_entry *e)
{
    struct mgpu_array a;
    char path[1024];
    if (mgpu_array_init(&a, MGPU_FLOAT, e->rank, e->dims, e->name) < 0)
        abort();
    for (int64_t i = 0; i < mgpu_array_count(&a); i++)
        mgpu_set_double(a.data, MGPU_FLOAT, i, e->first + (double)i);
    snprintf(path, sizeof path, "%s/%s", e->layer, e->name);
    if (mgpu_h5_out_array(out, path, &a, NULL) < 0)
        abort();
    mgpu_array_free(&a);
}

static void put_layer(struct mgpu_h5_out *out, const char *layer, const struct weights_entry *entry,
                      int count)
{
    const char *names[64];
    int n = 0;
    for (int i = 0; i < count; i++)
        if (!strcmp(entry[i].layer, layer)) {
            put_array(out, &entry[i]);
            names[n++] = entry[i].name;
        }
    hid_t group = n ? H5Gopen2(out->id, layer, H5P_DEFAULT)
                    : H5Gcreate2(out->id, layer, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (n && mgpu_h5_out_strings(group, "weight_names", names, n) < 0)
        abort();
    H5Gclose(group);
}

void weights_legacy(const char *path, const char *const *layers, const struct weights_entry *entry,
                    int count)
{
    struct mgpu_h5_out out;
    int n = 0;
    while (layers[n])
        n++;
    mgpu_h5_lock();
    if (mgpu_h5_out_open(&out, path, 1 << 16) < 0)
        abort();
    for (int i = 0; i < n; i++)
        put_layer(&out, layers[i], entry, count);
    if (mgpu_h5_out_strings(out.id, "layer_names", layers, n) < 0 || mgpu_h5_out_close(&out, 0) < 0)
        abort();
    mgpu_h5_unlock();
}
