#include "exporter/wrappers.h"

#include "exporter/architecture.h"
#include "exporter/keras_layers.h"
#include "runtime/base/names.h"

#include <string.h>

static void say(struct mgpu_checkpoint *c, const char *what)
{
    c->unwrapped = c->unwrapped ? mgpu_arena_format(c->arena, "%s, %s", c->unwrapped, what) : what;
}

/* ---- Modules around modules ------------------------------------------------------------------ */

/* What only torch.compile, FSDP and activation checkpoints call a module, wherever it is. */
static const char *const parts[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                    "_checkpoint_wrapped_module.", NULL};

static const char *without_part(struct mgpu_arena *arena, const char *name, const char *part)
{
    size_t n = strlen(part);
    char *out = mgpu_arena_string(arena, name);
    for (char *at = out; (at = strstr(at, part));)
        if (at == out || at[-1] == '.')
            memmove(at, at + n, strlen(at + n) + 1);
        else
            at++;
    return out;
}

const char *mgpu_without_wrappers(struct mgpu_arena *arena, const char *name)
{
    for (int i = 0; parts[i]; i++)
        if (strstr(name, parts[i]))
            name = without_part(arena, name, parts[i]);
    return name;
}

/* Takes the part out of all names; false, and nothing is done, where that makes two names one or
 * one empty. */
static bool take_out(struct mgpu_checkpoint *c, const char *part)
{
    struct mgpu_names *seen = mgpu_names_new(c->arena);
    const char **name = MGPU_NEW_ARRAY(c->arena, const char *, c->count);
    bool any = false;
    for (int i = 0; i < c->count; i++) {
        if (!c->tensor[i].weight)
            continue;
        name[i] = without_part(c->arena, c->tensor[i].name, part);
        any |= strcmp(name[i], c->tensor[i].name) != 0;
        if (!*name[i] || mgpu_names_get(seen, name[i]))
            return false;
        mgpu_names_set(seen, name[i], c);
    }
    for (int i = 0; i < c->count && any; i++) {
        if (!c->tensor[i].weight)
            continue;
        c->tensor[i].name = name[i];
        mgpu_checkpoint_name(c, &c->tensor[i], name[i]);
    }
    return any;
}

static bool all_begin_with(const struct mgpu_checkpoint *c, const char *prefix)
{
    size_t n = strlen(prefix);
    for (int i = 0; i < c->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        bool has = !strncmp(t->name, prefix, n) && t->name[n];
        if (t->weight && !has && !mgpu_checkpoint_is_counter(t)) /* AveragedModel's n_averaged */
            return false;
    }
    return true;
}

static void strip_prefix(struct mgpu_checkpoint *c, const char *prefix)
{
    for (int i = 0; i < c->count; i++) {
        struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        if (!t->weight || strncmp(t->name, prefix, strlen(prefix)))
            continue;
        t->name += strlen(prefix);
        mgpu_checkpoint_name(c, t, t->name);
    }
}

static void strip_modules(struct mgpu_checkpoint *c)
{
    /* What a module of one's own may be called, too: in front of all names or not at all. */
    static const char *const prefixes[] = {"module.", "state_dict.", NULL};
    for (int i = 0; parts[i]; i++)
        if (take_out(c, parts[i]))
            say(c, mgpu_arena_format(c->arena, "prefix %s removed", parts[i]));
    for (int i = 0; prefixes[i]; i++)
        if (all_begin_with(c, prefixes[i])) {
            strip_prefix(c, prefixes[i]);
            say(c, mgpu_arena_format(c->arena, "prefix %s removed", prefixes[i]));
            i = -1; /* they may be nested in any order */
        }
}

/* ---- multi_gpu_model ------------------------------------------------------------------------- */

/* The one group that has all weights, of variables of other layers; NULL: there is none such. */
static const char *only_group(const struct mgpu_checkpoint *c)
{
    const char *group = NULL;
    for (int i = 0; i < c->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        if (!t->weight)
            continue;
        if (group && strcmp(group, t->group))
            return NULL;
        group = t->group;
        size_t n = strlen(group);
        if (strncmp(t->layer, group, n) || t->layer[n] != '/')
            return NULL;
    }
    return group;
}

static const char *parallel_wrapper(const struct mgpu_checkpoint *c)
{
    const char *group = only_group(c);
    if (!group)
        return NULL;
    if (!c->config)
        return c->lambdas >= 2 ? group : NULL;
    const char *inner = mgpu_architecture_wrapped(c);
    return inner && !strcmp(inner, group) ? group : NULL;
}

/* "conv2d_1_1/kernel" of a model that was copied to the CPU first (cpu_relocation) is conv2d_1's:
 * the architecture tells, where the file has one. */
static const char *true_layer(struct mgpu_checkpoint *c, const char *wrapper, const char *layer)
{
    size_t n = strcspn(layer, "/");
    int number;
    const char *first = mgpu_arena_format(c->arena, "%.*s", (int)n, layer);
    if (!c->config || mgpu_architecture_has_layer(c, wrapper, first))
        return layer;
    size_t base = mgpu_keras_numbered(first, &number);
    const char *without = mgpu_arena_format(c->arena, "%.*s", (int)base, first);
    return mgpu_architecture_has_layer(c, wrapper, without)
               ? mgpu_arena_format(c->arena, "%s%s", without, layer + n)
               : layer;
}

static void strip_wrapper(struct mgpu_checkpoint *c, const char *wrapper)
{
    const char *name = mgpu_arena_string(c->arena, wrapper);
    size_t n = strlen(name) + 1;
    for (int i = 0; i < c->count; i++) {
        struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        if (!t->weight)
            continue;
        t->layer = true_layer(c, name, t->layer + n);
        t->group = mgpu_arena_format(c->arena, "%.*s", (int)strcspn(t->layer, "/"), t->layer);
    }
    c->renumbered = !c->config;
    say(c, mgpu_arena_format(c->arena, "wrapper %s removed", name));
}

/* ---- MirroredStrategy ------------------------------------------------------------------------ */

/* "dense/kernel/replica_1" without its last part; NULL: it is no replica. */
static const char *replica_of(struct mgpu_checkpoint *c, const struct mgpu_checkpoint_tensor *t)
{
    int number;
    size_t n = mgpu_keras_numbered(t->leaf, &number);
    return n == strlen("replica") && !strncmp(t->leaf, "replica", n) && number > 0
               ? mgpu_arena_string(c->arena, t->layer)
               : NULL;
}

static void drop_replicas(struct mgpu_checkpoint *c)
{
    struct mgpu_names *names = mgpu_names_new(c->arena);
    int dropped = 0;
    for (int i = 0; i < c->count; i++)
        mgpu_names_set(
            names, mgpu_arena_format(c->arena, "%s/%s", c->tensor[i].layer, c->tensor[i].leaf), c);
    for (int i = 0; i < c->count; i++) {
        const char *original = replica_of(c, &c->tensor[i]);
        if (!original || !mgpu_names_get(names, original))
            continue;
        c->tensor[i].weight = false;
        c->weights--;
        dropped++;
    }
    if (dropped)
        say(c, mgpu_arena_format(c->arena, "%d replicas removed", dropped));
}

void mgpu_unwrap(struct mgpu_checkpoint *c)
{
    if (c->kind == MGPU_CHECKPOINT_KERAS_WEIGHTS || c->kind == MGPU_CHECKPOINT_KERAS_MODEL) {
        const char *wrapper = parallel_wrapper(c);
        if (wrapper)
            strip_wrapper(c, wrapper);
    } else if (c->kind != MGPU_CHECKPOINT_KERAS_STORE && c->kind != MGPU_CHECKPOINT_KERAS_ARCHIVE)
        strip_modules(c);
    drop_replicas(c);
}
