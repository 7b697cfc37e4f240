/* Keras's HDF5 files: the legacy layout (attributes layer_names and weight_names say what there is
 * and in which order) and the Keras 3 store (a group for each object, numbers for its variables).
 * Only hard links are followed and only what these layouts name is looked at. */
#include "exporter/checkpoint_h5.h"

#include "exporter/architecture.h"
#include "exporter/run_state.h"
#include "exporter/slots.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/data/h5_reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct h5_state {
    int files;
    struct mgpu_h5_reader **file;
    struct mgpu_record record; /* of a run's checkpoint */
};

struct h5_place {
    struct mgpu_h5_reader *file;
    const char *path;
};

/* ---- Contents -------------------------------------------------------------------------------- */

/* The count of updates is what the record says, or there is none to compare with. */
static int check_updates(struct mgpu_record *r, const struct mgpu_array *a)
{
    int64_t step, before;
    if (!mgpu_record_has(r, "step") || !mgpu_record_has(r, "updates_before"))
        return 0;
    MGPU_TRY(mgpu_record_int(r, "step", &step));
    MGPU_TRY(mgpu_record_int(r, "updates_before", &before));
    if (mgpu_array_count(a) == 1 &&
        mgpu_get_double(a->data, a->type, 0) == (double)step + (double)before)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "the contents are damaged: the run did not write this number");
}

static int load_h5(const struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t,
                   struct mgpu_array *to)
{
    const struct h5_place *place = t->place;
    struct h5_state *s = c->state;
    MGPU_TRY(mgpu_h5_reader_read(place->file, place->path, MGPU_WHOLE, 0, 0, to->data,
                                 (size_t)mgpu_array_count(to) * mgpu_dtype_size(to->type)));
    return !c->run                              ? 0
           : strcmp(t->name, MGPU_SLOT_UPDATES) ? mgpu_run_array_check(&s->record, t->name, to)
                                                : check_updates(&s->record, to);
}

static void close_h5(struct mgpu_checkpoint *c)
{
    struct h5_state *s = c->state;
    for (int i = 0; i < s->files; i++)
        mgpu_h5_reader_close(s->file[i]);
    mgpu_record_free(&s->record);
    free(s->file);
    free(s);
}

static void keep_file(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
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

/* One string, or NULL where there is no such attribute. */
static int read_text(const char **out, struct mgpu_checkpoint *c, struct mgpu_h5_reader *file,
                     const char *object, const char *name)
{
    struct mgpu_name_list list = {0};
    int rc = mgpu_h5_reader_strings(&list, file, object, name);
    *out = rc > 0 && list.count ? mgpu_arena_string(c->arena, list.items[0]) : NULL;
    mgpu_name_list_free(&list);
    return rc < 0 ? rc : 0;
}

/* Appends the data set at `path` of the file; `name` is what it is called in messages. */
static int add_set(struct mgpu_checkpoint_tensor **out, struct mgpu_checkpoint *c,
                   struct mgpu_h5_reader *file, const char *path, const char *name)
{
    struct mgpu_h5_shape shape;
    const char *own;
    MGPU_TRY(mgpu_prefix(mgpu_h5_reader_describe(&shape, file, path), "'%s'", path));
    MGPU_TRY(read_text(&own, c, file, path, "name"));
    struct mgpu_checkpoint_tensor *t = *out = mgpu_checkpoint_add(c, own ? own : name);
    struct h5_place *place = MGPU_NEW(c->arena, struct h5_place);
    *place = (struct h5_place){file, mgpu_arena_string(c->arena, path)};
    t->place = place;
    t->type = shape.type;
    t->rank = shape.rank;
    memcpy(t->dims, shape.dims, sizeof t->dims);
    return 0;
}

/* The attribute `name`, else name0, name1, ... up to the first gap. */
static int read_list(struct mgpu_name_list *out, struct mgpu_h5_reader *file, const char *object,
                     const char *name)
{
    char numbered[64];
    int rc = mgpu_h5_reader_strings(out, file, object, name);
    bool whole = rc != 0;
    for (int k = 0; !whole; k++) {
        snprintf(numbered, sizeof numbered, "%s%d", name, k);
        rc = mgpu_h5_reader_strings(out, file, object, numbered);
        whole = rc <= 0;
    }
    return rc < 0 ? rc : 0;
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

/* "conv1/kernel" in the group "conv1" is conv1's, as is Keras 3's "outer/inner/conv1/kernel"; in
 * "model_1" it is model_1/conv1's. PyTorch's "conv1.weight" is whole. */
static const char *full_path(struct mgpu_checkpoint *c, const char *group, const char *weight)
{
    size_t n = strlen(group);
    if (!strncmp(group, weight, n) && (weight[n] == '/' || weight[n] == '.'))
        return weight;
    const char *scope = strstr(weight, mgpu_arena_format(c->arena, "/%s/", group));
    return scope ? scope + 1 : mgpu_arena_format(c->arena, "%s/%s", group, weight);
}

static int read_weight(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *root,
                       const char *layer, const char *weight, int index)
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

static int read_layer(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *root,
                      const char *layer)
{
    struct mgpu_name_list weights = {0};
    MGPU_TRY(check_inside(layer));
    const char *group = mgpu_arena_format(c->arena, "%s/%s", root, layer);
    int rc = read_list(&weights, file, group, "weight_names");
    for (int i = 0; rc == 0 && i < weights.count; i++)
        rc = read_weight(c, file, root, layer, weights.items[i], i);
    mgpu_name_list_free(&weights);
    return mgpu_prefix(rc, "layer '%s'", layer);
}

static int check_backend(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *root)
{
    const char *backend;
    MGPU_TRY(read_text(&backend, c, file, root, "backend"));
    if (!backend || strcmp(backend, "theano"))
        return 0;
    return mgpu_fail(MGPU_EUNSUPPORTED, "written with Theano, whose convolution kernels are the "
                                        "other way round: load and save it in Keras on TensorFlow");
}

static int read_layers(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *root,
                       const struct mgpu_name_list *layers)
{
    for (int i = 0; i < layers->count; i++) {
        c->lambdas += !strncmp(layers->items[i], "lambda", 6);
        MGPU_TRY(read_layer(c, file, root, layers->items[i]));
    }
    c->ordered = true;
    const char *top = *root ? "model_weights/top_level_model_weights" : "top_level_model_weights";
    int rc = mgpu_h5_reader_has(file, top);
    return rc > 0 ? read_layer(c, file, root, "top_level_model_weights") : rc;
}

static bool same_parent(const char *a, const char *b)
{
    const char *slash = strrchr(a, '/');
    size_t n = slash ? (size_t)(slash - a) + 1 : 0;
    return n && !strncmp(a, b, n) && !strchr(b + n, '/');
}

/* Of a bidirectional layer the recurrent one behind "forward_NAME" is the other, whatever it is
 * called. */
static void find_backward(struct mgpu_checkpoint *c, int first)
{
    for (int i = first + 1; i < c->count; i++) {
        struct mgpu_checkpoint_tensor *t = &c->tensor[i], *before = t - 1;
        bool same = !strcmp(t->layer, before->layer);
        bool recurrent = i + 1 < c->count && !strcmp(t[1].layer, t->layer) &&
                         !strcmp(t[1].leaf, "recurrent_kernel");
        if (t->direction != MGPU_WAY_ONE)
            continue;
        if (same ? before->direction == MGPU_WAY_BACKWARD
                 : before->direction == MGPU_WAY_FORWARD && recurrent &&
                       same_parent(before->layer, t->layer))
            t->direction = MGPU_WAY_BACKWARD;
    }
}

static int read_legacy(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *root)
{
    struct mgpu_name_list layers = {0};
    int first = c->count;
    MGPU_TRY(check_backend(c, file, root));
    int rc = read_list(&layers, file, root, "layer_names");
    if (rc == 0)
        rc = read_layers(c, file, root, &layers);
    mgpu_name_list_free(&layers);
    find_backward(c, first);
    return rc;
}

/* The optimizer's state in a checkpoint of a run (run_state.h). */
static int read_run(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
{
    for (int i = 0;; i++) {
        struct mgpu_checkpoint_tensor *t;
        const char *path = mgpu_arena_format(c->arena, MGPU_RUN_GROUP "/state/%d", i);
        int rc = mgpu_h5_reader_has(file, path);
        if (rc <= 0)
            return rc;
        MGPU_TRY(add_set(&t, c, file, path, path));
        t->weight = false;
    }
}

/* The first array of a kind that the run wrote and the file has no more; NULL: it has all. */
static int find_lost(const char **out, struct mgpu_checkpoint *c, const char *kind)
{
    struct h5_state *s = c->state;
    struct mgpu_names *names = mgpu_names_new(c->arena);
    for (int i = 0; i < c->count; i++)
        mgpu_names_set(names, c->tensor[i].name, c);
    *out = NULL;
    for (int i = 0; !*out; i++) {
        const char *field = mgpu_arena_format(c->arena, "%s.%d", kind, i), *name;
        if (!mgpu_record_has(&s->record, field))
            return 0;
        MGPU_TRY(mgpu_record_text(&s->record, field, &name));
        if (!mgpu_names_get(names, name))
            *out = name;
    }
    return 0;
}

static int check_lost(struct mgpu_checkpoint *c)
{
    const char *weight;
    MGPU_TRY(find_lost(&weight, c, "weight"));
    if (weight)
        return mgpu_fail(MGPU_EINVALID, "damaged: '%s', which the run wrote, is lost", weight);
    return find_lost(&c->lost, c, "state");
}

static int read_weights(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
{
    struct mgpu_checkpoint_tensor *t;
    c->kind = MGPU_CHECKPOINT_KERAS_WEIGHTS;
    MGPU_TRY(read_legacy(c, file, ""));
    int rc = mgpu_h5_reader_has(file, MGPU_RUN_GROUP);
    if (rc <= 0)
        return rc;
    c->run = true;
    struct h5_state *s = c->state;
    mgpu_record_init(&s->record, c->arena);
    MGPU_TRY(mgpu_run_record_read(&s->record, file));
    if (mgpu_record_has(&s->record, "lr-schedule")) {
        const char *schedule;
        MGPU_TRY(mgpu_record_text(&s->record, "lr-schedule", &schedule));
        c->scheduled = *schedule;
    }
    if (mgpu_record_has(&s->record, "optimizer")) {
        MGPU_TRY(mgpu_record_text(&s->record, "optimizer", &c->training));
        MGPU_TRY(mgpu_record_real(&s->record, "optimizer.lr_scale", &c->rate_scale));
    }
    MGPU_TRY(read_run(c, file));
    MGPU_TRY(check_lost(c));
    return add_set(&t, c, file, MGPU_RUN_GROUP "/updates", MGPU_SLOT_UPDATES);
}

static int read_slot(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *name,
                     int index)
{
    struct mgpu_checkpoint_tensor *t;
    const char *path = mgpu_arena_format(c->arena, "optimizer_weights/%s", name);
    MGPU_TRY(check_inside(name));
    MGPU_TRY(add_set(&t, c, file, path, path));
    t->weight = false;
    t->index = index;
    return 0;
}

/* The optimizer's arrays, listed but no weights. */
static int read_optimizer(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
{
    struct mgpu_name_list names = {0};
    int rc = mgpu_h5_reader_has(file, "optimizer_weights");
    if (rc <= 0)
        return rc;
    rc = read_list(&names, file, "optimizer_weights", "weight_names");
    for (int i = 0; rc == 0 && i < names.count; i++)
        rc = read_slot(c, file, names.items[i], i);
    mgpu_name_list_free(&names);
    return mgpu_prefix(rc, "optimizer_weights");
}

static int read_model(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
{
    c->kind = MGPU_CHECKPOINT_KERAS_MODEL;
    MGPU_TRY(read_text(&c->config, c, file, "", "model_config"));
    MGPU_TRY(read_text(&c->training, c, file, "", "training_config"));
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

static int read_variable(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, const char *path)
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

/* Attribute `name` of the variables of every object on the way to them gives the layers' own names.
 */
static int object_name(const char **out, struct mgpu_checkpoint *c, struct mgpu_h5_reader *file,
                       const char *object)
{
    const char *vars = mgpu_arena_format(c->arena, "%s%svars", object, *object ? "/" : "");
    int rc = *object ? mgpu_h5_reader_has(file, object) : 1;
    *out = NULL;
    if (rc > 0)
        rc = mgpu_h5_reader_has(file, vars);
    return rc > 0 ? read_text(out, c, file, vars, "name") : rc;
}

static int names_on_the_way(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file,
                            struct mgpu_checkpoint_tensor *t)
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

static int name_objects(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file, int first)
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

static int read_store(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
{
    struct mgpu_name_list paths = {0};
    int first = c->count;
    c->kind = MGPU_CHECKPOINT_KERAS_STORE;
    int rc = mgpu_h5_reader_list(&paths, file);
    for (int i = 0; rc == 0 && i < paths.count; i++)
        rc = read_variable(c, file, paths.items[i]);
    mgpu_name_list_free(&paths);
    return rc < 0 ? rc : name_objects(c, file, first);
}

/* ---- Which ----------------------------------------------------------------------------------- */

static int has_attribute(struct mgpu_h5_reader *file, const char *name)
{
    struct mgpu_name_list list = {0};
    int rc = mgpu_h5_reader_strings(&list, file, "", name);
    mgpu_name_list_free(&list);
    return rc;
}

static int read_root(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file)
{
    static const struct {
        int (*has)(struct mgpu_h5_reader *file, const char *name);
        const char *name;
        int (*read)(struct mgpu_checkpoint *c, struct mgpu_h5_reader *file);
    } kinds[] = {
        {has_attribute, "layer_names", read_weights},
        {has_attribute, "layer_names0", read_weights},
        {mgpu_h5_reader_has, "model_weights", read_model},
        {mgpu_h5_reader_has, "layers", read_store},
        {mgpu_h5_reader_has, "_layer_checkpoint_dependencies", read_store},
        {mgpu_h5_reader_has, "vars", read_store},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int rc = kinds[i].has(file, kinds[i].name);
        if (rc)
            return rc < 0 ? rc : kinds[i].read(c, file);
    }
    return mgpu_fail(MGPU_EINVALID, "HDF5, but no file of Keras: neither layer_names nor "
                                    "model_weights nor layers is in it");
}

int mgpu_checkpoint_h5_file(struct mgpu_checkpoint *c, const char *path)
{
    struct mgpu_h5_reader *file;
    MGPU_TRY(mgpu_h5_reader_open(&file, path));
    keep_file(c, file);
    return mgpu_prefix(read_root(c, file), "%s", path);
}

int mgpu_checkpoint_h5_memory(struct mgpu_checkpoint *c, const void *bytes, size_t size)
{
    struct mgpu_h5_reader *file;
    MGPU_TRY(mgpu_h5_reader_open_memory(&file, bytes, size));
    keep_file(c, file);
    return read_root(c, file);
}

int mgpu_checkpoint_read_h5(struct mgpu_checkpoint *c)
{
    MGPU_TRY(mgpu_checkpoint_h5_file(c, c->path));
    return mgpu_prefix(mgpu_architecture_name(c), "%s", c->path);
}
