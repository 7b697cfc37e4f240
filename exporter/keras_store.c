#include "exporter/keras_store.h"

#include "exporter/h5_out.h"
#include "runtime/base/memory.h"
#include "runtime/base/status.h"

#include <stdio.h>
#include <string.h>

static uint64_t bytes_needed(const struct mgpu_named_array *arrays, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes +=
            (uint64_t)mgpu_array_count(&arrays[i].array) * mgpu_dtype_size(arrays[i].array.type) +
            4 * strlen(arrays[i].name) + 4096;
    return bytes;
}

/* ---- Names of layers ------------------------------------------------------------------------- */

/* Parts of a store's path that are no objects with a name of their own. */
static bool is_inner(const char *part)
{
    static const char *const inner[] = {"layers", "cell", "layer", "vars"};
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
        if (!strcmp(part, inner[i]))
            return true;
    return false;
}

static int name_object(struct mgpu_h5_out *out, const char *object, const char *name)
{
    char path[4096];
    hid_t group, link = H5Pcreate(H5P_LINK_CREATE);
    if (snprintf(path, sizeof path, "%s/vars", object) >= (int)sizeof path)
        return mgpu_fail(MGPU_EUNSUPPORTED, "'%s': a path too long", object);
    H5Pset_create_intermediate_group(link, 1);
    group = H5Lexists(out->id, object, H5P_DEFAULT) > 0 && H5Lexists(out->id, path, H5P_DEFAULT) > 0
                ? H5Gopen2(out->id, path, H5P_DEFAULT)
                : H5Gcreate2(out->id, path, link, H5P_DEFAULT, H5P_DEFAULT);
    H5Pclose(link);
    if (group < 0)
        return mgpu_h5_fail(MGPU_EIO, "'%s' cannot be written", path);
    int rc = H5Aexists(group, "name") > 0 ? 0 : mgpu_h5_out_string(group, "name", name);
    H5Gclose(group);
    return rc;
}

static int count_parts(const char *path, bool objects)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    char *rest = mgpu_arena_string(arena, path), *part;
    int n = 0;
    while ((part = strtok_r(rest, "/", &rest)))
        n += !objects || !is_inner(part);
    mgpu_arena_free(arena);
    return objects ? n - 1 : n; /* without the variable's number */
}

/* Each object on the way has its part of the layer's path as its name; a name that has a '/' of its
 * own goes to the last one whole. */
static int name_layer(struct mgpu_h5_out *out, const struct mgpu_named_array *a)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    bool each = count_parts(a->name, true) == count_parts(a->layer, false);
    char *path = mgpu_arena_string(arena, a->name), *names = mgpu_arena_string(arena, a->layer);
    const char *last = NULL;
    int rc = 0;
    for (char *end = path; rc == 0 && (end = strchr(end, '/')); *end++ = '/') {
        *end = 0;
        const char *part = strrchr(path, '/');
        if (is_inner(part ? part + 1 : path))
            continue;
        last = mgpu_arena_string(arena, path);
        if (each)
            rc = name_object(out, last, strtok_r(names, "/", &names));
    }
    if (rc == 0 && !each && last)
        rc = name_object(out, last, a->layer);
    mgpu_arena_free(arena);
    return rc;
}

static int write_array(struct mgpu_h5_out *out, const struct mgpu_named_array *a)
{
    MGPU_TRY(mgpu_h5_out_array(out, a->name, &a->array, NULL));
    return a->layer ? name_layer(out, a) : 0;
}

/* Keras looks for the model's own variables. */
static int write_root(struct mgpu_h5_out *out)
{
    hid_t vars = H5Gcreate2(out->id, "vars", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (vars < 0)
        return mgpu_h5_fail(MGPU_EIO, "cannot write");
    H5Gclose(vars);
    return 0;
}

int mgpu_keras_store_write(const char *path, const struct mgpu_named_array *arrays, int count)
{
    struct mgpu_h5_out out;
    mgpu_h5_lock();
    int rc = mgpu_h5_out_open(&out, path, bytes_needed(arrays, count));
    if (rc == 0) {
        for (int i = 0; i < count && rc == 0; i++)
            rc = mgpu_prefix(write_array(&out, &arrays[i]), "%s", path);
        if (rc == 0 && !(count && !strncmp(arrays[0].name, "vars/", 5)))
            rc = mgpu_prefix(write_root(&out), "%s", path);
        rc = mgpu_h5_out_close(&out, rc);
    }
    mgpu_h5_unlock();
    return rc;
}
