#include "exporter/checkpoint.h"

#include "exporter/checkpoint_h5.h"
#include "exporter/keras_layers.h"
#include "exporter/slots.h"
#include "exporter/wrappers.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/data/mapped.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *mgpu_checkpoint_kind_name(enum mgpu_checkpoint_kind kind)
{
    static const char *const names[] = {
        [MGPU_CHECKPOINT_KERAS_WEIGHTS] = "Keras weights (legacy HDF5)",
        [MGPU_CHECKPOINT_KERAS_MODEL] = "Keras model (legacy HDF5)",
        [MGPU_CHECKPOINT_KERAS_STORE] = "Keras 3 weights (HDF5)",
        [MGPU_CHECKPOINT_KERAS_ARCHIVE] = "Keras 3 archive (zip)",
        [MGPU_CHECKPOINT_SAFETENSORS] = "safetensors",
        [MGPU_CHECKPOINT_NPZ] = "npz",
        [MGPU_CHECKPOINT_ONNX] = "ONNX model",
    };
    return names[kind];
}

/* ---- What a file is -------------------------------------------------------------------------- */

static bool begins(const struct mgpu_mapped *f, uint64_t at, const void *bytes, size_t size)
{
    return f->size >= at + size && memcmp(f->data + at, bytes, size) == 0;
}

/* The signature of HDF5 stands at 0, 512, 1024, 2048, ... */
static bool is_h5(const struct mgpu_mapped *f)
{
    bool found = begins(f, 0, "\x89HDF\r\n\x1a\n", 8);
    for (uint64_t at = 512; !found && at < f->size; at *= 2)
        found = begins(f, at, "\x89HDF\r\n\x1a\n", 8);
    return found;
}

/* A length of eight bytes, then JSON. */
static bool is_safetensors(const struct mgpu_mapped *f)
{
    return f->size > 8 && f->data[8] == '{' && f->data[6] == 0 && f->data[7] == 0;
}

static bool is_json(const struct mgpu_mapped *f)
{
    uint64_t at = 0;
    while (at < f->size && isspace(f->data[at]))
        at++;
    return begins(f, at, "{", 1);
}

int mgpu_checkpoint_read_pickle(struct mgpu_checkpoint *c)
{
    return mgpu_fail(MGPU_EUNSUPPORTED,
                     "%s: holds pickled Python objects, which are never loaded (they can run "
                     "code); in Python: safetensors.torch.save_file(torch.load(FILE, "
                     "weights_only=True), 'weights.safetensors')",
                     c->path);
}

typedef int mgpu_checkpoint_reader(struct mgpu_checkpoint *c);

static int find_reader(mgpu_checkpoint_reader **out, const struct mgpu_mapped *f)
{
    *out = is_h5(f)                    ? mgpu_checkpoint_read_h5
           : begins(f, 0, "PK\3\4", 4) ? mgpu_checkpoint_read_archive
           : begins(f, 0, "PK\5\6", 4) ? mgpu_checkpoint_read_archive /* of no members */
           : is_safetensors(f)         ? mgpu_checkpoint_read_safetensors
           : is_json(f)                ? mgpu_checkpoint_read_shards
           : begins(f, 0, "\x80", 1)   ? mgpu_checkpoint_read_pickle
           : begins(f, 0, "\x08", 1)   ? mgpu_checkpoint_read_onnx
                                       : NULL;
    if (*out)
        return 0;
    return mgpu_fail(MGPU_EINVALID, "%s (known: ONNX, HDF5 of Keras, .keras, safetensors, npz)",
                     f->size ? "not a kind of weights file that is known" : "an empty file");
}

int mgpu_checkpoint_read_shard(struct mgpu_checkpoint *c, const char *path)
{
    struct mgpu_mapped file;
    MGPU_TRY(mgpu_mapped_open(&file, path));
    bool h5 = is_h5(&file), fine = h5 || is_safetensors(&file);
    mgpu_mapped_close(&file);
    if (!fine)
        return mgpu_fail(MGPU_EINVALID, "%s: a shard is HDF5 or safetensors", path);
    if (c->state && h5 == (c->kind == MGPU_CHECKPOINT_SAFETENSORS))
        return mgpu_fail(MGPU_EINVALID, "%s: a shard of another kind than the first", path);
    return h5 ? mgpu_checkpoint_h5_file(c, path) : mgpu_checkpoint_safetensors_file(c, path);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static int read_file(struct mgpu_checkpoint *c)
{
    struct mgpu_mapped file;
    mgpu_checkpoint_reader *reader;
    MGPU_TRY(mgpu_mapped_open(&file, c->path));
    int rc = mgpu_prefix(find_reader(&reader, &file), "%s", c->path);
    mgpu_mapped_close(&file);
    return rc < 0 ? rc : reader(c);
}

static int check_counts(struct mgpu_checkpoint *c)
{
    for (int i = 0; i < c->count; i++)
        c->weights += c->tensor[i].weight;
    return c->weights ? 0 : mgpu_fail(MGPU_EINVALID, "%s: holds no weights", c->path);
}

int mgpu_checkpoint_open(struct mgpu_checkpoint **out, const char *path, bool unwrap)
{
    struct mgpu_checkpoint *c = mgpu_xcalloc(1, sizeof *c);
    c->arena = mgpu_arena_new();
    c->path = mgpu_arena_string(c->arena, path);
    int rc = read_file(c);
    if (rc == 0) {
        mgpu_checkpoint_slots(c);
        rc = check_counts(c);
    }
    if (rc == 0 && unwrap)
        mgpu_unwrap(c);
    if (rc < 0) {
        mgpu_checkpoint_close(c);
        c = NULL;
    }
    *out = c;
    return rc;
}

void mgpu_checkpoint_close(struct mgpu_checkpoint *c)
{
    if (!c)
        return;
    if (c->close)
        c->close(c);
    free(c->tensor);
    mgpu_arena_free(c->arena);
    free(c);
}

int mgpu_checkpoint_load(const struct mgpu_checkpoint *c, int tensor, struct mgpu_array *out)
{
    const struct mgpu_checkpoint_tensor *t = &c->tensor[tensor];
    memset(out, 0, sizeof *out);
    int rc = mgpu_array_init(out, t->type, t->rank, t->dims, t->name);
    if (rc == 0)
        rc = mgpu_prefix(c->load(c, t, out), "'%s'", t->name);
    if (rc < 0)
        mgpu_array_free(out);
    return mgpu_prefix(rc, "%s", c->path);
}

/* ---- Names ----------------------------------------------------------------------------------- */

const char *mgpu_checkpoint_legacy_name(struct mgpu_arena *arena,
                                        const struct mgpu_checkpoint_tensor *t)
{
    const char *layer = *t->layer ? t->layer : t->group;
    return *t->leaf ? mgpu_arena_format(arena, "%s/%s:0", layer, t->leaf)
                    : mgpu_arena_format(arena, "%s/%d:0", layer, t->index);
}

struct mgpu_checkpoint_tensor *mgpu_checkpoint_add(struct mgpu_checkpoint *c, const char *name)
{
    c->tensor = mgpu_grow(c->tensor, (size_t)c->count, sizeof *c->tensor);
    struct mgpu_checkpoint_tensor *t = &c->tensor[c->count++];
    *t = (struct mgpu_checkpoint_tensor){.name = mgpu_arena_string(c->arena, name),
                                         .layer = "",
                                         .leaf = "",
                                         .group = "",
                                         .top = "",
                                         .class_name = "",
                                         .weight = true};
    return t;
}

int mgpu_checkpoint_check_names(const struct mgpu_checkpoint *c)
{
    struct mgpu_names *names = mgpu_names_new(c->arena);
    for (int i = 0; i < c->count; i++) {
        if (mgpu_names_get(names, c->tensor[i].name))
            return mgpu_fail(MGPU_EINVALID, "two tensors are called '%s'", c->tensor[i].name);
        mgpu_names_set(names, c->tensor[i].name, c);
    }
    return 0;
}

bool mgpu_checkpoint_is_store(const struct mgpu_checkpoint *c)
{
    return c->kind == MGPU_CHECKPOINT_KERAS_STORE || c->kind == MGPU_CHECKPOINT_KERAS_ARCHIVE;
}

bool mgpu_checkpoint_is_counter(const struct mgpu_checkpoint_tensor *t)
{
    bool one = t->rank == 0 || (t->rank == 1 && t->dims[0] == 1);
    return !strcmp(t->leaf, "num_batches_tracked") || !strcmp(t->leaf, "vector_u") ||
           (one && !mgpu_is_float(t->type) && *t->leaf && !*t->layer);
}

/* "kernel:0", and "kernel:0_1" of a saver that made names differ, without what follows ':'. */
static size_t without_number(const char *path)
{
    const char *colon = strrchr(path, ':');
    if (!colon || !isdigit((unsigned char)colon[1]) ||
        colon[1 + strspn(colon + 1, "0123456789_")] != 0)
        return strlen(path);
    return (size_t)(colon - path);
}

static enum mgpu_direction direction_of(const char *layer)
{
    const char *slash = strrchr(layer, '/'), *last = slash ? slash + 1 : layer;
    return !strncmp(last, "forward_", 8)    ? MGPU_WAY_FORWARD
           : !strncmp(last, "backward_", 9) ? MGPU_WAY_BACKWARD
                                            : MGPU_WAY_ONE;
}

/* "rnn/lstm_cell": Keras's own recurrent layers have the cell's name in front of the cell. */
static bool is_in_rnn(char *layer, char *cell)
{
    int number;
    *cell = 0;
    const char *slash = strrchr(layer, '/'), *last = slash ? slash + 1 : layer;
    bool is = mgpu_keras_numbered(last, &number) == 3 && !strncmp(last, "rnn", 3);
    *cell = '/';
    return is;
}

void mgpu_checkpoint_name(struct mgpu_checkpoint *c, struct mgpu_checkpoint_tensor *t,
                          const char *path)
{
    char *layer = mgpu_arena_format(c->arena, "%.*s", (int)without_number(path), path);
    bool keras = strchr(layer, '/');
    for (char *dot = layer; !keras && (dot = strchr(dot, '.'));)
        *dot = '/';
    char *slash = strrchr(layer, '/');
    t->leaf = slash ? slash + 1 : layer;
    t->layer = slash ? layer : "";
    if (slash)
        *slash = 0;
    slash = keras ? strrchr(t->layer, '/') : NULL;
    if (slash && mgpu_keras_is_cell(slash + 1) && !mgpu_keras_take_stack(layer, slash) &&
        !is_in_rnn(layer, slash))
        *slash = 0;
    t->direction = direction_of(t->layer);
}
