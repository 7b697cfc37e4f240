#include "runtime/base/names.h"

#include <string.h>

bool mgpu_ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

struct entry {
    const char *name;
    void *thing;
    uint64_t hash; /* looked at before the name, which lies elsewhere */
};

/* Open addressing; the capacity is a power of two and at most half is used. */
struct mgpu_names {
    struct mgpu_arena *arena;
    size_t count, capacity;
    struct entry *entry;
};

struct mgpu_names *mgpu_names_new(struct mgpu_arena *arena)
{
    struct mgpu_names *names = MGPU_NEW(arena, struct mgpu_names);
    names->arena = arena;
    return names;
}

/* FNV-1a: Fowler, Noll and Vo. */
static uint64_t hash(const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h ^ h >> 32;
}

static struct entry *place(const struct mgpu_names *names, const char *name, uint64_t h)
{
    size_t mask = names->capacity - 1, at = h & mask;
    for (;; at = (at + 1) & mask) {
        struct entry *e = &names->entry[at];
        if (!e->name || (e->hash == h && !strcmp(e->name, name)))
            return e;
    }
}

void *mgpu_names_get(const struct mgpu_names *names, const char *name)
{
    return names->capacity ? place(names, name, hash(name))->thing : NULL;
}

static void enlarge(struct mgpu_names *names)
{
    struct mgpu_names old = *names;
    names->capacity = old.capacity ? 2 * old.capacity : 16;
    names->entry = MGPU_NEW_ARRAY(names->arena, struct entry, names->capacity);
    for (size_t i = 0; i < old.capacity; i++)
        if (old.entry[i].name)
            *place(names, old.entry[i].name, old.entry[i].hash) = old.entry[i];
}

void mgpu_names_set(struct mgpu_names *names, const char *name, const void *thing)
{
    if (2 * (names->count + 1) > names->capacity)
        enlarge(names);
    uint64_t h = hash(name);
    struct entry *e = place(names, name, h);
    names->count += !e->name;
    *e = (struct entry){name, (void *)thing, h};
}
