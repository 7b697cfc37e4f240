#include "exporter/keras_h5.h"

#include "exporter/h5_out.h"
#include "exporter/keras_names.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

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
