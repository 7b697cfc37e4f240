/* Tensors that a file holds twice: a state_dict lists a module that is registered twice under each
 * name, Keras's legacy layout a model inside that is used twice. What has the bits of a tensor that
 * has its place goes there, too. */
#include "exporter/match_parts.h"

#include <string.h>

struct copies {
    struct mgpu_match *m;
    const char **path;         /* by tensor: "/blocks/0/linear/weight" */
    struct mgpu_names *tensor; /* by path, to number + 1 */
    uint64_t *sum;             /* of its bits; 0: not known yet */
};

enum { ALIKE = 1 }; /* the sum of what is one number again and again, or cannot be read */

static const char *path_of(const struct mgpu_match *m, int tensor)
{
    const struct mgpu_checkpoint_tensor *t = &m->file->tensor[tensor];
    return !*t->layer ? mgpu_arena_format(m->arena, "/%s", t->name)
           : *t->leaf ? mgpu_arena_format(m->arena, "/%s/%s", t->layer, t->leaf)
                      : mgpu_arena_format(m->arena, "/%s/%d", t->layer, t->index);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static size_t bytes_of(const struct mgpu_array *a)
{
    return (size_t)mgpu_array_count(a) * mgpu_dtype_size(a->type);
}

static uint64_t sum_of(const struct mgpu_array *a)
{
    const unsigned char *data = a->data;
    size_t n = bytes_of(a), size = mgpu_dtype_size(a->type);
    uint64_t sum = 0xcbf29ce484222325u;
    if (n <= size || !memcmp(data, data + size, n - size))
        return ALIKE;
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ data[i]) * 0x100000001b3u;
    return sum > ALIKE ? sum : ALIKE + 1;
}

static uint64_t sum_for(struct copies *c, int tensor)
{
    struct mgpu_array a;
    if (c->sum[tensor])
        return c->sum[tensor];
    c->sum[tensor] = ALIKE;
    if (mgpu_checkpoint_load(c->m->file, tensor, &a) == 0) {
        c->sum[tensor] = sum_of(&a);
        mgpu_array_free(&a);
    }
    return c->sum[tensor];
}

static bool same_form(const struct copies *c, int a, int b)
{
    const struct mgpu_checkpoint_tensor *x = &c->m->file->tensor[a], *y = &c->m->file->tensor[b];
    return x->type == y->type && x->rank == y->rank &&
           !memcmp(x->dims, y->dims, (size_t)x->rank * sizeof *x->dims);
}

static bool same_bits(struct copies *c, int a, int b)
{
    struct mgpu_array x, y;
    if (!same_form(c, a, b) || sum_for(c, a) != sum_for(c, b) ||
        mgpu_checkpoint_load(c->m->file, a, &x) < 0)
        return false;
    bool same = mgpu_checkpoint_load(c->m->file, b, &y) == 0;
    if (same) {
        same = !memcmp(x.data, y.data, bytes_of(&x));
        mgpu_array_free(&y);
    }
    mgpu_array_free(&x);
    return same;
}

/* ---- Modules --------------------------------------------------------------------------------- */

static bool is_inside(const char *path, const char *module, size_t n)
{
    return !strncmp(path, module, n) && (!path[n] || path[n] == '/');
}

/* What is called in module `b` as `tensor` is in a module of n letters; -1: there is none. */
static int partner(const struct copies *c, int tensor, size_t n, const char *b, size_t k)
{
    const char *path = mgpu_arena_format(c->m->arena, "%.*s%s", (int)k, b, c->path[tensor] + n);
    return (int)(intptr_t)mgpu_names_get(c->tensor, path) - 1;
}

static bool is_pair(struct copies *c, int a, int b)
{
    return b >= 0 && a != b && (c->m->variable[a] >= 0 || c->m->variable[b] >= 0) &&
           same_bits(c, a, b);
}

static void place(struct mgpu_match *m, int tensor, int as)
{
    if (m->variable[tensor] >= 0)
        return;
    const char *a = m->file->tensor[tensor].name, *b = m->file->tensor[as].name;
    m->variable[tensor] = m->variable[as];
    if (!m->copies++)
        m->copied = strcmp(a, b) ? mgpu_arena_format(m->arena, "'%s' of '%s'", a, b)
                                 : mgpu_arena_format(m->arena, "'%s' stands there twice", a);
}

/* Whether all that is in the one module is in the other, of which one has its place. */
static bool copy_module(struct copies *c, const char *a, size_t n, const char *b, size_t k)
{
    const struct mgpu_checkpoint *file = c->m->file;
    for (int i = 0; i < file->count; i++)
        if (file->tensor[i].weight && is_inside(c->path[i], a, n) &&
            !is_pair(c, i, partner(c, i, n, b, k)))
            return false;
    for (int i = 0; i < file->count; i++)
        if (file->tensor[i].weight && is_inside(c->path[i], a, n)) {
            int other = partner(c, i, n, b, k);
            place(c->m, i, other);
            place(c->m, other, i);
        }
    return true;
}

/* The largest modules around both that are the same. */
static void copy_around(struct copies *c, int tensor, int as)
{
    const char *a = c->path[tensor], *b = c->path[as];
    size_t n = strlen(a), k = strlen(b), rest = 0;
    while (rest < n && rest < k && a[n - rest - 1] == b[k - rest - 1])
        rest++;
    while (rest > 0 && (a[n - rest] != '/' || !copy_module(c, a, n - rest, b, k - rest)))
        rest--;
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* Fresh biases and scales are alike everywhere: only a module around tells that they are copies. */
static void find_copy(struct copies *c, int tensor, bool alone)
{
    const struct mgpu_match *m = c->m;
    for (int i = 0; i < m->file->count && m->variable[tensor] == -1; i++) {
        bool original = m->variable[i] >= 0 && m->tensor[m->variable[i]] == i;
        if (!original || !same_form(c, tensor, i) || sum_for(c, tensor) == ALIKE ||
            !same_bits(c, tensor, i))
            continue;
        if (alone)
            place(c->m, tensor, i);
        else
            copy_around(c, tensor, i);
    }
}

void mgpu_match_copies(struct mgpu_match *m)
{
    int n = m->file->count;
    struct copies c = {.m = m,
                       .path = MGPU_NEW_ARRAY(m->arena, const char *, n + 1),
                       .tensor = mgpu_names_new(m->arena),
                       .sum = MGPU_NEW_ARRAY(m->arena, uint64_t, n + 1)};
    for (int i = 0; i < n; i++) {
        c.path[i] = path_of(m, i);
        if (m->file->tensor[i].weight)
            mgpu_names_set(c.tensor, c.path[i], (void *)(intptr_t)(i + 1));
    }
    for (int alone = 0; alone < 2; alone++)
        for (int i = 0; i < n; i++)
            if (m->file->tensor[i].weight && m->variable[i] == -1)
                find_copy(&c, i, alone);
}
