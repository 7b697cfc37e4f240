/* Files around other files: .keras archives (a zip of config.json and a Keras 3 store), npz
 * archives and sharded stores. Nothing is unpacked to the disk. */
#include "exporter/architecture.h"
#include "exporter/checkpoint_h5.h"
#include "runtime/base/status.h"
#include "runtime/data/dataset.h"
#include "runtime/data/zip.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

/* JSON is small; more is no file of Keras. */
enum { JSON_MOST = 16 << 20 };

/* What small members may unpack to whatever their size, and all others at most, times their size:
 * Keras stores them as they are, and floats never shrink so far. */
enum { UNPACKED_FREELY = 16 << 20, UNPACKED_MOST = 100 };

/* ---- npz ------------------------------------------------------------------------------------- */

static int load_npz(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                    struct mgpu_array *to)
{
    struct mgpu_dataset *d;
    int64_t row = 0;
    MGPU_TRY(mgpu_dataset_open_named(&d, c->path, t->place));
    int rc = mgpu_dataset_read(d, MGPU_WHOLE, &row, 1, to->data, to->type);
    mgpu_dataset_close(d);
    return rc;
}

/* "arr_0" of np.savez(file, *arrays), or "0": no name. */
static bool is_number(const char *name)
{
    name += strncmp(name, "arr_", 4) ? 0 : 4;
    return *name && name[strspn(name, "0123456789")] == 0;
}

static int add_npz(struct mgpu_checkpoint *c, const char *name)
{
    struct mgpu_dataset *d;
    MGPU_TRY(mgpu_dataset_open_named(&d, c->path, name));
    struct mgpu_checkpoint_tensor *t = mgpu_checkpoint_add(c, name);
    t->place = t->name;
    t->type = d->type;
    t->rank = d->rank;
    memcpy(t->dims, d->dims, sizeof t->dims);
    if (!is_number(name))
        mgpu_checkpoint_name(c, t, name);
    mgpu_dataset_close(d);
    return 0;
}

static int read_npz(struct mgpu_checkpoint *c)
{
    struct mgpu_name_list names;
    c->kind = MGPU_CHECKPOINT_NPZ;
    c->load = load_npz;
    MGPU_TRY(mgpu_dataset_list(&names, c->path));
    int rc = 0;
    for (int i = 0; i < names.count && rc == 0; i++)
        rc = add_npz(c, names.items[i]);
    mgpu_name_list_free(&names);
    return rc < 0 ? rc : mgpu_prefix(mgpu_checkpoint_check_names(c), "%s", c->path);
}

/* ---- .keras ---------------------------------------------------------------------------------- */

static const struct mgpu_zip_member *find(const struct mgpu_zip_member *members, int count,
                                          const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(members[i].name, name))
            return &members[i];
    return NULL;
}

static bool any_ends_with(const struct mgpu_zip_member *members, int count, const char *end)
{
    size_t m = strlen(end);
    for (int i = 0; i < count; i++) {
        size_t n = strlen(members[i].name);
        if (n >= m && !strcmp(members[i].name + n - m, end))
            return true;
    }
    return false;
}

/* Nothing is written where a name says; who sends such names means no good. */
static int check_member(const struct mgpu_zip_member *m)
{
    if (*m->name == '/' || strchr(m->name, '\\') || strstr(m->name, "../"))
        return mgpu_fail(MGPU_EINVALID, "a member called '%s' would leave the archive", m->name);
    if (m->size > UNPACKED_FREELY && m->size / UNPACKED_MOST > m->packed)
        return mgpu_fail(MGPU_EINVALID, "'%s' unpacks to more than %d times its size", m->name,
                         UNPACKED_MOST);
    return 0;
}

static int read_config(struct mgpu_checkpoint *c, const struct mgpu_mapped *file,
                       const struct mgpu_zip_member *m)
{
    const uint8_t *content;
    void *owned;
    if (!m || m->size > JSON_MOST)
        return m ? mgpu_fail(MGPU_EINVALID, "config.json is too large") : 0;
    MGPU_TRY(mgpu_prefix(mgpu_zip_read(&content, &owned, file, m), "%s", m->name));
    c->config = mgpu_arena_format(c->arena, "%.*s", (int)m->size, (const char *)content);
    mgpu_free(owned);
    return 0;
}

static int read_keras(struct mgpu_checkpoint *c, const struct mgpu_mapped *file,
                      const struct mgpu_zip_member *members, int count)
{
    const struct mgpu_zip_member *store = find(members, count, "model.weights.h5");
    const uint8_t *content;
    void *owned;
    if (!store)
        return mgpu_fail(MGPU_EINVALID, "no model.weights.h5 is in the archive");
    MGPU_TRY(read_config(c, file, find(members, count, "config.json")));
    int rc = mgpu_zip_read(&content, &owned, file, store);
    if (rc == 0)
        rc = mgpu_checkpoint_h5_memory(c, content, store->size);
    mgpu_free(owned);
    c->kind = MGPU_CHECKPOINT_KERAS_ARCHIVE;
    MGPU_TRY(mgpu_prefix(rc, "%s", store->name));
    return mgpu_architecture_name(c);
}

static int read_members(struct mgpu_checkpoint *c, const struct mgpu_mapped *file,
                        const struct mgpu_zip_member *members, int count)
{
    for (int i = 0; i < count; i++)
        MGPU_TRY(mgpu_prefix(check_member(&members[i]), "%s", c->path));
    if (any_ends_with(members, count, "data.pkl"))
        return mgpu_checkpoint_read_pickle(c);
    return mgpu_prefix(read_keras(c, file, members, count), "%s", c->path);
}

int mgpu_checkpoint_read_archive(struct mgpu_checkpoint *c)
{
    struct mgpu_mapped file;
    struct mgpu_zip_member *members;
    int count;
    MGPU_TRY(mgpu_mapped_open(&file, c->path));
    int rc = mgpu_prefix(mgpu_zip_list(&members, &count, &file), "%s", c->path);
    if (rc == 0) {
        bool npz = any_ends_with(members, count, ".npy");
        rc = !count ? mgpu_fail(MGPU_EINVALID, "%s: an npz without arrays", c->path)
             : npz  ? read_npz(c)
                    : read_members(c, &file, members, count);
        mgpu_zip_free(members, count);
    }
    mgpu_mapped_close(&file);
    return rc;
}

/* ---- Shards ---------------------------------------------------------------------------------- */

/* A file beside the list of shards: a bare name. */
static int read_shard(struct mgpu_checkpoint *c, const char *name)
{
    const char *slash = strrchr(c->path, '/');
    int folder = slash ? (int)(slash - c->path) + 1 : 0;
    if (!*name || *name == '.' || strchr(name, '/'))
        return mgpu_fail(MGPU_EINVALID, "%s: the shard '%s' is not a file beside it", c->path,
                         name);
    return mgpu_checkpoint_read_shard(c,
                                      mgpu_arena_format(c->arena, "%.*s%s", folder, c->path, name));
}

static int read_once(struct mgpu_checkpoint *c, struct json_object *seen, const char *name)
{
    if (json_object_object_get_ex(seen, name, NULL))
        return 0;
    json_object_object_add(seen, name, NULL);
    return read_shard(c, name);
}

/* {"/layers/dense/vars": "X_00000.weights.h5" or a list of such}, of safetensors {"fc.weight": ...}
 */
static int read_map(struct mgpu_checkpoint *c, struct json_object *map, struct json_object *seen)
{
    json_object_object_foreach(map, key, value)
    {
        (void)key;
        bool list = json_object_is_type(value, json_type_array);
        int n = list ? (int)json_object_array_length(value) : 1;
        for (int i = 0; i < n; i++) {
            struct json_object *name = list ? json_object_array_get_idx(value, (size_t)i) : value;
            if (!json_object_is_type(name, json_type_string))
                return mgpu_fail(MGPU_EINVALID, "%s: weight_map names no file", c->path);
            MGPU_TRY(read_once(c, seen, json_object_get_string(name)));
        }
    }
    return 0;
}

static struct json_object *parse_file(const struct mgpu_mapped *f)
{
    struct json_tokener *tokener = json_tokener_new_ex(8);
    struct json_object *out = json_tokener_parse_ex(tokener, (const char *)f->data, (int)f->size);
    json_tokener_free(tokener);
    return out;
}

int mgpu_checkpoint_read_shards(struct mgpu_checkpoint *c)
{
    struct mgpu_mapped f;
    struct json_object *map = NULL;
    MGPU_TRY(mgpu_mapped_open(&f, c->path));
    struct json_object *file = f.size <= JSON_MOST ? parse_file(&f) : NULL;
    mgpu_mapped_close(&f);
    struct json_object *seen = json_object_new_object();
    int rc = 0;
    if (!json_object_is_type(file, json_type_object) ||
        !json_object_object_get_ex(file, "weight_map", &map) ||
        !json_object_is_type(map, json_type_object))
        rc = mgpu_fail(MGPU_EINVALID, "%s: JSON, but no list of shards (weight_map)", c->path);
    if (rc == 0)
        rc = read_map(c, map, seen);
    json_object_put(seen);
    json_object_put(file);
    return rc < 0 ? rc : mgpu_prefix(mgpu_architecture_name(c), "%s", c->path);
}
