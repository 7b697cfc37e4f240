/* Keras's HDF5 files: the legacy layout (attributes layer_names and weight_names say what there is
 * and in which order) and the Keras 3 store (a group for each object, numbers for its variables).
 * Only hard links are followed and only what these layouts name is looked at. */
#include "exporter/checkpoint_h5.h"

#include "exporter/architecture.h"
#include "runtime/base/status.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct h5_state {
    int files;
    hid_t *file;
};

struct h5_place {
    hid_t file;
    const char *path;
};

/* ---- Contents -------------------------------------------------------------------------------- */

static int load_set(hid_t set, struct mgpu_array *to)
{
    struct mgpu_h5_info info;
    int rc = mgpu_h5_describe(&info, set);
    if (rc == 0)
        rc = mgpu_h5_read_all(set, &info, to->data);
    if (info.memory >= 0)
        H5Tclose(info.memory);
    return rc;
}

static int load_h5(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                   struct mgpu_array *to)
{
    const struct h5_place *place = t->place;
    hid_t set;
    (void)c;
    mgpu_h5_lock();
    int rc = mgpu_h5_open_dataset(&set, place->file, place->path);
    if (rc == 0) {
        rc = load_set(set, to);
        H5Dclose(set);
    }
    mgpu_h5_unlock();
    return rc;
}

static void close_h5(struct mgpu_checkpoint *c)
{
    struct h5_state *s = c->state;
    mgpu_h5_lock();
    for (int i = 0; i < s->files; i++)
        H5Fclose(s->file[i]);
    mgpu_h5_unlock();
    free(s->file);
    free(s);
}

static void keep_file(struct mgpu_checkpoint *c, hid_t file)
{
    if (!c->state) {
        c->state = mgpu_xcalloc(1, sizeof(struct h5_state));
        c->load = load_h5;
        c->close = close_h5;
    }
    struct h5_state *s = c->state;
    s->file = mgpu_grow(s->file, (size_t)s->files, sizeof *s->file);
    s->file[s->files++] = file;
}

/* Appends the data set at `path` of the file; `name` is what it is called in messages. */
static int add_set(struct mgpu_checkpoint_tensor **out, struct mgpu_checkpoint *c, hid_t file,
                   const char *path, const char *name)
{
    struct mgpu_h5_info info = {.memory = -1};
    hid_t set;
    MGPU_TRY(mgpu_h5_open_dataset(&set, file, path));
    int rc = mgpu_prefix(mgpu_h5_describe(&info, set), "'%s'", path);
    if (info.memory >= 0)
        H5Tclose(info.memory);
    char **own = NULL;
    int count = 0;
    if (rc == 0 && H5Aexists(set, "name") > 0)
        rc = mgpu_h5_read_strings(&own, &count, set, "name");
    H5Dclose(set);
    if (rc < 0)
        return rc;
    struct mgpu_checkpoint_tensor *t = *out = mgpu_checkpoint_add(c, count ? own[0] : name);
    struct h5_place *place = MGPU_NEW(c->arena, struct h5_place);
    *place = (struct h5_place){file, mgpu_arena_string(c->arena, path)};
    t->place = place;
    t->type = info.type;
    t->rank = info.rank;
    memcpy(t->dims, info.dims, sizeof t->dims);
    for (int i = 0; i < count; i++)
        free(own[i]);
    free(own);
    return 0;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

struct strings {
    char **item;
    int count;
};

static void free_strings(struct strings *s)
{
    for (int i = 0; i < s->count; i++)
        free(s->item[i]);
    free(s->item);
}

/* The attribute `name`, else name0, name1, ... up to the first gap. *found: whether there is one.
 */
static int read_list(struct strings *out, bool *found, hid_t object, const char *name)
{
    char numbered[64];
    *out = (struct strings){0};
    *found = H5Aexists(object, name) > 0;
    if (*found)
        return mgpu_h5_read_strings(&out->item, &out->count, object, name);
    for (int k = 0;; k++) {
        struct strings piece;
        snprintf(numbered, sizeof numbered, "%s%d", name, k);
        if (H5Aexists(object, numbered) <= 0)
            return 0;
        *found = true;
        MGPU_TRY(mgpu_h5_read_strings(&piece.item, &piece.count, object, numbered));
        out->item =
            mgpu_xrealloc(out->item, (size_t)(out->count + piece.count) + 1, sizeof *out->item);
        if (piece.count)
            memcpy(out->item + out->count, piece.item, (size_t)piece.count * sizeof *piece.item);
        out->count += piece.count;
        free(piece.item);
    }
}

/* One string, or NULL where there is no such attribute. */
static int read_text(const char **out, struct mgpu_checkpoint *c, hid_t object, const char *name)
{
    struct strings s;
    *out = NULL;
    if (H5Aexists(object, name) <= 0)
        return 0;
    MGPU_TRY(mgpu_h5_read_strings(&s.item, &s.count, object, name));
    *out = s.count ? mgpu_arena_string(c->arena, s.item[0]) : NULL;
    free_strings(&s);
    return 0;
}

static bool has_link(hid_t base, const char *name)
{
    return H5Lexists(base, name, H5P_DEFAULT) > 0;
}

/* ---- Legacy layout --------------------------------------------------------------------------- */

/* HDF5 knows no "..", and a path from the root would leave the group. */
static int check_inside(const char *name)
{
    bool fine = *name && *name != '/';
    for (const char *part = name; fine && part; part = strchr(part, '/')) {
        part += *part == '/';
        fine = strncmp(part, "../", 3) != 0 && strcmp(part, "..") != 0;
    }
    return fine ? 0 : mgpu_fail(MGPU_EINVALID, "the name '%s' is not inside its group", name);
}

/* "conv1/kernel" in the group "conv1" is conv1's; in "model_1" it is model_1/conv1's. PyTorch's
 * "conv1.weight" is whole. */
static const char *full_path(struct mgpu_checkpoint *c, const char *group, const char *weight)
{
    size_t n = strlen(group);
    if (!strncmp(group, weight, n) && (weight[n] == '/' || weight[n] == '.'))
        return weight;
    return mgpu_arena_format(c->arena, "%s/%s", group, weight);
}

static int read_weight(struct mgpu_checkpoint *c, hid_t file, const char *root, const char *layer,
                       const char *weight, int index)
{
    struct mgpu_checkpoint_tensor *t;
    MGPU_TRY(check_inside(weight));
    const char *path = mgpu_arena_format(c->arena, "%s/%s/%s", root, layer, weight);
    MGPU_TRY(add_set(&t, c, file, path, weight));
    t->group = mgpu_arena_string(c->arena, layer);
    t->index = index;
    mgpu_checkpoint_name(c, t, strcmp(t->name, weight) ? t->name : full_path(c, layer, weight));
    return 0;
}

static int read_layer(struct mgpu_checkpoint *c, hid_t file, const char *root, const char *layer)
{
    struct strings weights;
    bool found;
    hid_t group;
    MGPU_TRY(check_inside(layer));
    MGPU_TRY(mgpu_h5_open_group(&group, file, mgpu_arena_format(c->arena, "%s/%s", root, layer)));
    int rc = read_list(&weights, &found, group, "weight_names");
    H5Gclose(group);
    for (int i = 0; rc == 0 && i < weights.count; i++)
        rc = read_weight(c, file, root, layer, weights.item[i], i);
    free_strings(&weights);
    return mgpu_prefix(rc, "layer '%s'", layer);
}

static int check_backend(struct mgpu_checkpoint *c, hid_t root)
{
    const char *backend;
    MGPU_TRY(read_text(&backend, c, root, "backend"));
    if (!backend || strcmp(backend, "theano"))
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED, "written with Theano, whose convolution kernels are the "
                                        "other way round: load and save it in Keras on TensorFlow");
}

static int read_legacy(struct mgpu_checkpoint *c, hid_t file, const char *root)
{
    struct strings layers;
    bool found;
    hid_t group;
    MGPU_TRY(mgpu_h5_open_group(&group, file, *root ? root : "/"));
    int rc = check_backend(c, group);
    if (rc == 0)
        rc = read_list(&layers, &found, group, "layer_names");
    H5Gclose(group);
    if (rc < 0)
        return rc;
    for (int i = 0; rc == 0 && i < layers.count; i++) {
        c->lambdas += !strncmp(layers.item[i], "lambda", 6);
        rc = read_layer(c, file, root, layers.item[i]);
    }
    free_strings(&layers);
    c->ordered = true;
    if (rc == 0 &&
        has_link(file, *root ? "model_weights/top_level_model_weights" : "top_level_model_weights"))
        rc = read_layer(c, file, root, "top_level_model_weights");
    return rc;
}

/* The optimizer's arrays, listed but no weights. */
static int read_optimizer(struct mgpu_checkpoint *c, hid_t file)
{
    struct strings names;
    bool found;
    hid_t group;
    if (!has_link(file, "optimizer_weights"))
        return 0;
    MGPU_TRY(mgpu_h5_open_group(&group, file, "optimizer_weights"));
    int rc = read_list(&names, &found, group, "weight_names");
    H5Gclose(group);
    for (int i = 0; rc == 0 && i < names.count; i++) {
        struct mgpu_checkpoint_tensor *t;
        rc = check_inside(names.item[i]);
        const char *path = mgpu_arena_format(c->arena, "optimizer_weights/%s", names.item[i]);
        if (rc == 0)
            rc = add_set(&t, c, file, path, path);
        if (rc == 0) {
            t->weight = false;
            t->index = i;
        }
    }
    free_strings(&names);
    return mgpu_prefix(rc, "optimizer_weights");
}

static int read_model(struct mgpu_checkpoint *c, hid_t file)
{
    c->kind = MGPU_CHECKPOINT_KERAS_MODEL;
    MGPU_TRY(read_text(&c->config, c, file, "model_config"));
    MGPU_TRY(read_text(&c->training, c, file, "training_config"));
    MGPU_TRY(read_legacy(c, file, "model_weights"));
    return read_optimizer(c, file);
}

/* ---- Keras 3 store --------------------------------------------------------------------------- */

/* "vars/12" of the object: a number of at most six digits; else -1. */
static int number_of(const char *name)
{
    size_t n = strspn(name, "0123456789");
    return n && n < 7 && !name[n] ? atoi(name) : -1;
}

static bool is_state(const char *object)
{
    return !strncmp(object, "optimizer", 9) || !strncmp(object, "metrics", 7) ||
           strstr(object, "seed_generator");
}

static enum mgpu_direction direction_of(const char *object)
{
    return strstr(object, "/forward_layer")    ? MGPU_WAY_FORWARD
           : strstr(object, "/backward_layer") ? MGPU_WAY_BACKWARD
                                               : MGPU_WAY_ONE;
}

struct store {
    struct mgpu_checkpoint *c;
    hid_t file;
    int rc;
};

static int read_variable(struct mgpu_checkpoint *c, hid_t file, const char *path)
{
    char *object = mgpu_arena_string(c->arena, path), *slash = strrchr(object, '/');
    int index = slash ? number_of(slash + 1) : -1;
    if (slash)
        *slash = 0;
    size_t n = strlen(object);
    if (index < 0 || n < 4 || strcmp(object + n - 4, "vars") || (n > 4 && object[n - 5] != '/'))
        return mgpu_fail(MGPU_EINVALID, "'%s' has no place in a Keras 3 store", path);
    object[n > 4 ? n - 5 : 0] = 0;
    struct mgpu_checkpoint_tensor *t;
    MGPU_TRY(add_set(&t, c, file, path, mgpu_arena_format(c->arena, "/%s", path)));
    t->group = object;
    t->index = index;
    t->weight = !is_state(object);
    t->direction = direction_of(object);
    return 0;
}

static int visit_variable(void *context, const char *path)
{
    struct store *s = context;
    return read_variable(s->c, s->file, path);
}

/* Attribute `name` of the variables of every object on the way to them gives the layers' own names.
 */
static int object_name(const char **out, struct mgpu_checkpoint *c, hid_t file, const char *object)
{
    const char *vars = mgpu_arena_format(c->arena, "%s%svars", object, *object ? "/" : "");
    hid_t group;
    *out = NULL;
    if (!has_link(file, object) || !has_link(file, vars))
        return 0;
    MGPU_TRY(mgpu_h5_open_group(&group, file, vars));
    int rc = read_text(out, c, group, "name");
    H5Gclose(group);
    return rc;
}

static int names_on_the_way(struct mgpu_checkpoint *c, hid_t file, struct mgpu_checkpoint_tensor *t)
{
    const char *layer = "";
    char *object = mgpu_arena_string(c->arena, t->group);
    bool named = false;
    for (char *end = object; *end;) {
        const char *part = end, *name;
        end += strcspn(end, "/");
        char next = *end;
        *end = 0;
        MGPU_TRY(object_name(&name, c, file, object));
        bool inner = !strcmp(part, "layer") || !strcmp(part, "cell"); /* of a wrapping layer */
        if (name && !inner) {
            layer = *layer ? mgpu_arena_format(c->arena, "%s/%s", layer, name) : name;
            named = true;
        }
        *end = next;
        end += next == '/';
    }
    t->layer = named ? layer : "";
    return 0;
}

static int name_objects(struct mgpu_checkpoint *c, hid_t file, int first)
{
    for (int i = first; i < c->count; i++) {
        struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        bool same = i > first && !strcmp(t->group, t[-1].group);
        if (same)
            t->layer = t[-1].layer;
        else
            MGPU_TRY(names_on_the_way(c, file, t));
    }
    return 0;
}

static int read_store(struct mgpu_checkpoint *c, hid_t file)
{
    struct store s = {.c = c, .file = file};
    int first = c->count;
    c->kind = MGPU_CHECKPOINT_KERAS_STORE;
    MGPU_TRY(mgpu_h5_walk(file, visit_variable, &s));
    return name_objects(c, file, first);
}

/* ---- Which ----------------------------------------------------------------------------------- */

static int read_root(struct mgpu_checkpoint *c, hid_t file)
{
    if (H5Aexists(file, "layer_names") > 0 || H5Aexists(file, "layer_names0") > 0) {
        c->kind = MGPU_CHECKPOINT_KERAS_WEIGHTS;
        return read_legacy(c, file, "");
    }
    if (has_link(file, "model_weights"))
        return read_model(c, file);
    if (has_link(file, "layers") || has_link(file, "_layer_checkpoint_dependencies") ||
        has_link(file, "vars"))
        return read_store(c, file);
    return mgpu_fail(MGPU_EINVALID, "HDF5, but no file of Keras: neither layer_names nor "
                                    "model_weights nor layers is in it");
}

static int read_opened(struct mgpu_checkpoint *c, hid_t file)
{
    keep_file(c, file);
    return read_root(c, file);
}

int mgpu_checkpoint_h5_file(struct mgpu_checkpoint *c, const char *path)
{
    hid_t file;
    mgpu_h5_lock();
    int rc = mgpu_h5_open_file(&file, path);
    if (rc == 0)
        rc = mgpu_prefix(read_opened(c, file), "%s", path);
    mgpu_h5_unlock();
    return rc;
}

int mgpu_checkpoint_h5_memory(struct mgpu_checkpoint *c, const void *bytes, size_t size)
{
    hid_t file;
    mgpu_h5_lock();
    int rc = mgpu_h5_open_memory(&file, bytes, size);
    if (rc == 0)
        rc = read_opened(c, file);
    mgpu_h5_unlock();
    return rc;
}

int mgpu_checkpoint_read_h5(struct mgpu_checkpoint *c)
{
    MGPU_TRY(mgpu_checkpoint_h5_file(c, c->path));
    return mgpu_prefix(mgpu_architecture_name(c), "%s", c->path);
}
