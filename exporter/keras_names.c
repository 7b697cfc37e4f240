#include "exporter/keras_names.h"

#include "runtime/base/status.h"

#include <stdlib.h>
#include <string.h>

/* A path that HDF5 takes literally: no part of it is empty, "." or "..", which become "_", "_" and
 * "__". */
static const char *safe_path(struct mgpu_arena *arena, const char *name)
{
    char *out = mgpu_arena_alloc(arena, 2 * strlen(name) + 2), *to = out;
    for (const char *part = name;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || (n <= 2 && strspn(part, ".") == n)) {
            memset(to, '_', n ? n : 1);
            to += n ? n : 1;
        } else {
            memcpy(to, part, n);
            to += n;
        }
        part += n;
        if (!*part)
            return out;
        *to++ = '/';
    }
}

static const char *layer_of(struct mgpu_arena *arena, const char *path)
{
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] != '.' && path[n - 1] != '/')
        n--;
    while (n > 0 && (path[n - 1] == '.' || path[n - 1] == '/'))
        n--;
    if (n == 0)
        return path;
    char *out = mgpu_arena_copy(arena, path, n + 1);
    out[n] = 0;
    return out;
}

static void place(struct mgpu_keras_place *p, struct mgpu_arena *arena, const char *weight)
{
    p->weight = weight;
    p->path = mgpu_arena_format(arena, "%s/%s", p->layer, weight);
}

static int compare_names(const void *a, const void *b)
{
    const struct mgpu_named_array *const *p = a, *const *q = b;
    const char *s = (*p)->layer, *t = (*q)->layer;
    int order = strcmp((*p)->name, (*q)->name);
    return order ? order : strcmp(s ? s : "", t ? t : "");
}

/* Of two layers weights may be called the same: of a model inside that stands at two places. */
static int check_names(const struct mgpu_named_array *arrays, int count)
{
    const struct mgpu_named_array **all = mgpu_xcalloc((size_t)count, sizeof *all);
    int rc = 0;
    for (int i = 0; i < count; i++) {
        all[i] = &arrays[i];
        if (!*arrays[i].name)
            rc = mgpu_fail(MGPU_EINVALID, "an array without a name");
    }
    qsort(all, (size_t)count, sizeof *all, compare_names);
    for (int i = 1; rc == 0 && i < count; i++)
        if (compare_names(&all[i - 1], &all[i]) == 0)
            rc = mgpu_fail(MGPU_EINVALID, "two arrays are called '%s'", all[i]->name);
    free(all);
    return rc;
}

/* Paths in order, with '/' before all else: what lies below a path comes right after it. */
static int compare_paths(const void *a, const void *b)
{
    const struct mgpu_keras_place *const *p = a, *const *q = b;
    const char *s = (*p)->path, *t = (*q)->path;
    while (*s && *s == *t) {
        s++;
        t++;
    }
    int x = *s == '/' ? 1 : *s ? (unsigned char)*s + 1 : 0;
    int y = *t == '/' ? 1 : *t ? (unsigned char)*t + 1 : 0;
    return x - y;
}

/* Whether a data set at `p` would stand where `q` is or needs a group. */
static bool in_the_way(const char *p, const char *q)
{
    size_t n = strlen(p);
    return strncmp(p, q, n) == 0 && (q[n] == 0 || q[n] == '/');
}

/* Renames what is in the way by its number, until nothing is. */
static void separate(struct mgpu_keras_place *places, struct mgpu_arena *arena, int count)
{
    struct mgpu_keras_place **order = mgpu_xcalloc((size_t)count, sizeof *order);
    for (int i = 0; i < count; i++)
        order[i] = &places[i];
    for (bool again = true; again;) {
        again = false;
        qsort(order, (size_t)count, sizeof *order, compare_paths);
        for (int i = 1; i < count; i++)
            if (in_the_way(order[i - 1]->path, order[i]->path)) {
                struct mgpu_keras_place *p = order[i - 1];
                place(p, arena, mgpu_arena_format(arena, "%s#%d", p->weight, (int)(p - places)));
                again = true;
            }
    }
    free(order);
}

int mgpu_keras_places(struct mgpu_keras_place **out, struct mgpu_arena *arena,
                      const struct mgpu_named_array *arrays, int count)
{
    MGPU_TRY(check_names(arrays, count));
    struct mgpu_keras_place *places = MGPU_NEW_ARRAY(arena, struct mgpu_keras_place, count);
    for (int i = 0; i < count; i++) {
        const char *weight = safe_path(arena, arrays[i].name);
        places[i].layer =
            arrays[i].layer ? safe_path(arena, arrays[i].layer) : layer_of(arena, weight);
        place(&places[i], arena, weight);
    }
    separate(places, arena, count);
    *out = places;
    return 0;
}
