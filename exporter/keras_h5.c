#include "exporter/keras_h5.h"

#include "exporter/h5_out.h"
#include "exporter/keras_names.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/h5.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What Keras 2 on TensorFlow writes: without these attributes Keras takes a file for Keras 1's and
 * rearranges its kernels. */
#define BACKEND "tensorflow"
#define VERSION "2.15.0"

/* Attributes may take room for a name twice, and HDF5's own headers some more. */
uint64_t mgpu_keras_h5_bytes(const struct mgpu_named_array *arrays, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes +=
            (uint64_t)mgpu_array_count(&arrays[i].array) * mgpu_dtype_size(arrays[i].array.type) +
            4 * strlen(arrays[i].name) + 1024;
    return bytes;
}

static int write_array(struct mgpu_h5_out *out, const struct mgpu_named_array *from,
                       const struct mgpu_keras_place *place)
{
    const char *true_name = strcmp(place->weight, from->name) ? from->name : NULL;
    return mgpu_prefix(mgpu_h5_out_array(out, place->path, &from->array, true_name), "'%s'",
                       from->name);
}

/* Layers in the order of their first weight. */
static int number_layers(const char **layers, int *layer_of, const struct mgpu_keras_place *places,
                         int count)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        int k = n - 1;
        while (k >= 0 && strcmp(layers[k], places[i].layer) != 0)
            k--;
        if (k < 0)
            layers[k = n++] = places[i].layer;
        layer_of[i] = k;
    }
    return n;
}

static int write_weight_names(struct mgpu_h5_out *out, const char *layer, const char **weights,
                              int count)
{
    hid_t group;
    MGPU_TRY(mgpu_h5_open_group(&group, out->id, layer));
    int rc = mgpu_h5_out_strings(group, "weight_names", weights, count);
    H5Gclose(group);
    return mgpu_prefix(rc, "layer '%s'", layer);
}

static int write_names(struct mgpu_h5_out *out, const struct mgpu_keras_place *places, int count)
{
    const char **layers = mgpu_xcalloc((size_t)count, sizeof *layers);
    const char **weights = mgpu_xcalloc((size_t)count, sizeof *weights);
    int *layer_of = mgpu_xcalloc((size_t)count, sizeof *layer_of);
    int layer_count = number_layers(layers, layer_of, places, count);
    int rc = mgpu_h5_out_strings(out->id, "layer_names", layers, layer_count);
    for (int k = 0; rc == 0 && k < layer_count; k++) {
        int n = 0;
        for (int i = 0; i < count; i++)
            if (layer_of[i] == k)
                weights[n++] = places[i].weight;
        rc = write_weight_names(out, layers[k], weights, n);
    }
    free(layer_of);
    free(weights);
    free(layers);
    return rc;
}

static int write_all(struct mgpu_h5_out *out, const struct mgpu_named_array *arrays, int count,
                     const struct mgpu_keras_place *places)
{
    for (int i = 0; i < count; i++)
        MGPU_TRY(write_array(out, &arrays[i], &places[i]));
    MGPU_TRY(write_names(out, places, count));
    MGPU_TRY(mgpu_h5_out_string(out->id, "backend", BACKEND));
    return mgpu_h5_out_string(out->id, "keras_version", VERSION);
}

int mgpu_keras_h5_put(struct mgpu_h5_out *out, const struct mgpu_named_array *arrays, int count)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_keras_place *places;
    int rc = mgpu_keras_places(&places, arena, arrays, count);
    if (rc == 0)
        rc = write_all(out, arrays, count, places);
    mgpu_arena_free(arena);
    return rc;
}

int mgpu_keras_h5_write(const char *path, const struct mgpu_named_array *arrays, int count)
{
    struct mgpu_h5_out out;
    mgpu_h5_lock();
    int rc = mgpu_h5_out_open(&out, path, mgpu_keras_h5_bytes(arrays, count));
    if (rc == 0) {
        rc = mgpu_prefix(mgpu_keras_h5_put(&out, arrays, count), "%s", path);
        rc = mgpu_h5_out_close(&out, rc);
    }
    mgpu_h5_unlock();
    return rc;
}

static void free_strings(char **strings, int count)
{
    for (int i = 0; i < count; i++)
        free(strings[i]);
    free(strings);
}

/* The attribute `name`, else name0, name1, ... up to the first gap. */
static int read_name_list(char ***out, int *count, hid_t object, const char *name)
{
    char numbered[64];
    *out = NULL;
    *count = 0;
    if (H5Aexists(object, name) > 0)
        return mgpu_h5_read_strings(out, count, object, name);
    for (int k = 0;; k++) {
        char **piece;
        int n;
        snprintf(numbered, sizeof numbered, "%s%d", name, k);
        if (H5Aexists(object, numbered) <= 0)
            break;
        int rc = mgpu_h5_read_strings(&piece, &n, object, numbered);
        if (rc < 0) {
            free_strings(*out, *count);
            return rc;
        }
        *out = mgpu_xrealloc(*out, (size_t)(*count + n), sizeof **out);
        if (n)
            memcpy(*out + *count, piece, (size_t)n * sizeof *piece);
        *count += n;
        free(piece);
    }
    return *out ? 0 : mgpu_fail(MGPU_EINVALID, "no attribute %s: not Keras's legacy layout", name);
}

struct reader {
    struct mgpu_named_array *arrays;
    int count;
};

static int read_values(struct mgpu_array *out, hid_t set)
{
    struct mgpu_h5_info info;
    int rc = mgpu_h5_describe(&info, set);
    if (rc == 0)
        rc = mgpu_array_init(out, info.type, info.rank, info.dims, "weights");
    if (rc == 0)
        rc = mgpu_h5_read_all(set, &info, out->data);
    if (info.memory >= 0)
        H5Tclose(info.memory);
    return rc;
}

static int true_name(char **out, hid_t set, const char *stored)
{
    char **strings;
    int count;
    if (H5Aexists(set, "name") <= 0) {
        *out = mgpu_xstrdup(stored);
        return 0;
    }
    MGPU_TRY(mgpu_h5_read_strings(&strings, &count, set, "name"));
    *out = mgpu_xstrdup(count ? strings[0] : stored);
    free_strings(strings, count);
    return 0;
}

/* A name from the file must not lead out of the group it is looked up in. */
static int check_inside(const char *name)
{
    if (*name && *name != '/')
        return 0;
    return mgpu_fail(MGPU_EINVALID, "the name '%s' is not inside its group", name);
}

static int read_weight(struct reader *r, hid_t group, const char *name)
{
    hid_t set;
    MGPU_TRY(check_inside(name));
    MGPU_TRY(mgpu_h5_open_dataset(&set, group, name));
    r->arrays = mgpu_grow(r->arrays, (size_t)r->count, sizeof *r->arrays);
    struct mgpu_named_array *a = &r->arrays[r->count++];
    memset(a, 0, sizeof *a);
    int rc = true_name(&a->name, set, name);
    if (rc == 0)
        rc = mgpu_prefix(read_values(&a->array, set), "'%s'", name);
    H5Dclose(set);
    return rc;
}

static int read_layer(struct reader *r, hid_t file, const char *layer)
{
    char **weights;
    int count;
    hid_t group;
    MGPU_TRY(check_inside(layer));
    MGPU_TRY(mgpu_h5_open_group(&group, file, layer));
    int rc = read_name_list(&weights, &count, group, "weight_names");
    if (rc == 0) {
        for (int i = 0; rc == 0 && i < count; i++)
            rc = read_weight(r, group, weights[i]);
        free_strings(weights, count);
    }
    H5Gclose(group);
    return mgpu_prefix(rc, "layer '%s'", layer);
}

static int read_file(struct reader *r, hid_t file)
{
    char **layers;
    int count;
    MGPU_TRY(read_name_list(&layers, &count, file, "layer_names"));
    int rc = 0;
    for (int i = 0; rc == 0 && i < count; i++)
        rc = read_layer(r, file, layers[i]);
    free_strings(layers, count);
    return rc;
}

int mgpu_keras_h5_read(struct mgpu_named_array **out, int *count, const char *path)
{
    struct reader r = {0};
    hid_t file;
    mgpu_h5_lock();
    int rc = mgpu_h5_open_file(&file, path);
    if (rc == 0) {
        rc = mgpu_prefix(read_file(&r, file), "%s", path);
        H5Fclose(file);
    }
    mgpu_h5_unlock();
    if (rc < 0) {
        mgpu_keras_h5_free(r.arrays, r.count);
        r = (struct reader){0};
    }
    *out = r.arrays;
    *count = r.count;
    return rc;
}

void mgpu_keras_h5_free(struct mgpu_named_array *arrays, int count)
{
    for (int i = 0; i < count; i++) {
        free(arrays[i].name);
        mgpu_array_free(&arrays[i].array);
    }
    free(arrays);
}
