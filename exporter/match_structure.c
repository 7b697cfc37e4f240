/* Layers without names, by what they are. */
#include "exporter/keras_layers.h"
#include "exporter/match_parts.h"

#include <stdlib.h>
#include <string.h>

struct search {
    struct mgpu_match *m;
    struct mgpu_layers *file;
    bool *taken;      /* layers of the model */
    const char **why; /* in plain order, by layer of the model: what else could stand there; NULL:
                       * nothing */
};

/* Names go before structure: where both sides have them, they had to match. */
static bool may_be(const struct search *s, const struct mgpu_file_layer *l, int layer)
{
    const struct mgpu_variable_layer *of = &s->m->model->layer[layer];
    bool nameless = !*l->path || !*of->path || of->guessed || l->by_attribute;
    return l->of < 0 && !s->taken[layer] && nameless && mgpu_match_looks_like(s->m, l, layer);
}

static int candidates(int *out, const struct search *s, const struct mgpu_file_layer *l)
{
    int n = 0;
    for (int k = 0; k < s->m->model->layers; k++)
        if (may_be(s, l, k))
            out[n++] = k;
    return n;
}

/* Whether the file says that `a` comes before `b` among the model's layers. In a store numbers
 * count the layers of one class, so two classes cannot be compared. */
static bool comes_before(const struct search *s, const struct mgpu_file_layer *a,
                         const struct mgpu_file_layer *b)
{
    if (s->m->file->ordered)
        return a->tensor[0] < b->tensor[0];
    const char *p = a->group, *q = b->group;
    while (*p && *q) {
        int i, k;
        char *x = mgpu_arena_format(s->m->arena, "%.*s", (int)strcspn(p, "/"), p);
        char *y = mgpu_arena_format(s->m->arena, "%.*s", (int)strcspn(q, "/"), q);
        if (strcmp(x, y)) {
            size_t n = mgpu_keras_numbered(x, &i), m = mgpu_keras_numbered(y, &k);
            return n == m && !strncmp(x, y, n) && i < k;
        }
        p += strlen(x) + (p[strlen(x)] == '/');
        q += strlen(y) + (q[strlen(y)] == '/');
    }
    return false;
}

static void take(struct search *s, struct mgpu_file_layer *l, int layer)
{
    s->taken[layer] = true;
    mgpu_match_layer(s->m, l, layer);
}

/* Sorted by what comes before what; false where that is not known of two neighbours. */
static bool sort_file(struct search *s, struct mgpu_file_layer **same, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && comes_before(s, same[k], same[k - 1]); k--) {
            struct mgpu_file_layer *l = same[k];
            same[k] = same[k - 1];
            same[k - 1] = l;
        }
    for (int i = 1; i < count; i++)
        if (!comes_before(s, same[i - 1], same[i]))
            return false;
    return true;
}

/* Several layers that look alike are told apart where they stand in one line on both sides. */
static bool match_line(struct search *s, const int *found, int count)
{
    struct mgpu_file_layer **same = mgpu_xcalloc((size_t)s->file->count, sizeof *same);
    int n = 0;
    for (int i = 0; i < s->file->count; i++)
        if (may_be(s, &s->file->layer[i], found[0]))
            same[n++] = &s->file->layer[i];
    bool line = n == count && sort_file(s, same, n);
    for (int i = 1; i < count && line; i++)
        line = mgpu_variable_layer_before(s->m->model, found[i - 1], found[i]);
    for (int i = 0; i < count && line; i++)
        take(s, same[i], found[i]);
    free(same);
    return line;
}

static int rivals(const struct search *s, int layer)
{
    int n = 0;
    for (int i = 0; i < s->file->count; i++)
        n += may_be(s, &s->file->layer[i], layer);
    return n;
}

static const char *could_be(const struct search *s, const int *found, int count)
{
    enum { SHOWN = 4 };
    const char *text = "could be";
    for (int i = 0; i < count && i <= SHOWN; i++) {
        const struct mgpu_variable_layer *layer = &s->m->model->layer[found[i]];
        text = mgpu_arena_format(s->m->arena, "%s%s %s", text, i ? "," : "",
                                 i == SHOWN     ? "..."
                                 : *layer->path ? layer->path
                                                : s->m->model->model->all[layer->node]->output[0]);
    }
    return text;
}

static void say_why(struct search *s, const struct mgpu_file_layer *l, const char *why)
{
    for (int i = 0; i < l->tensors; i++)
        s->m->why[l->tensor[i]] = why;
}

void mgpu_match_structure(struct mgpu_match *m, struct mgpu_layers *file)
{
    struct search s = {m, file, mgpu_xcalloc((size_t)m->model->layers + 1, sizeof *s.taken), NULL};
    int *found = mgpu_xcalloc((size_t)m->model->layers + 1, sizeof *found);
    for (int i = 0; i < file->count; i++)
        if (file->layer[i].of >= 0)
            s.taken[file->layer[i].of] = true;
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < file->count; i++) {
            struct mgpu_file_layer *l = &file->layer[i];
            int n = l->of < 0 ? candidates(found, &s, l) : 0;
            if (n == 1 && rivals(&s, found[0]) == 1) {
                take(&s, l, found[0]);
                again = true;
            } else if (n > 1 && match_line(&s, found, n))
                again = true;
            else if (n > 1)
                say_why(&s, l, could_be(&s, found, n));
        }
    }
    free(found);
    free(s.taken);
}

/* Tensors of which it is not even known what belongs together. */
static bool is_heap(const struct mgpu_match *m, const struct mgpu_file_layer *l)
{
    return !*l->path && !*l->group && !*m->file->tensor[l->tensor[0]].leaf;
}

/* What could stand at several places stands at none. */
static void take_next(struct search *s, struct mgpu_file_layer *l, int layer)
{
    if (!s->why[layer]) {
        take(s, l, layer);
        return;
    }
    say_why(s, l, s->why[layer]);
    s->taken[layer] = true;
    l->of = layer;
}

static void order_variables(struct search *s, const struct mgpu_file_layer *l)
{
    struct mgpu_match *m = s->m;
    int variable = 0;
    for (int k = 0; k < l->tensors; k++) {
        while (variable < m->model->count && m->tensor[variable] >= 0)
            variable++;
        if (variable == m->model->count || m->variable[l->tensor[k]] >= 0)
            continue;
        const char *why = s->why[m->model->variable[variable].layer];
        if (why)
            m->why[l->tensor[k]] = why;
        else
            mgpu_match_pair(m, l->tensor[k], variable);
        variable++;
    }
}

static int next_variable(const struct mgpu_variables *v, int layer, int from)
{
    while (from < v->count && v->variable[from].layer != layer)
        from++;
    return from;
}

/* Class, direction and all shapes. */
static bool are_alike(const struct mgpu_variables *v, int a, int b)
{
    int i = next_variable(v, a, 0), k = next_variable(v, b, 0);
    bool alike = v->layer[a].direction == v->layer[b].direction &&
                 !strcmp(v->layer[a].class_name, v->layer[b].class_name);
    for (; alike && i < v->count && k < v->count;
         i = next_variable(v, a, i + 1), k = next_variable(v, b, k + 1))
        alike = mgpu_variable_fits(v, i, v->variable[k].rank, v->variable[k].dims);
    return alike && i == v->count && k == v->count;
}

/* The layers of a model of Keras that are left and look as this one does, if they do not stand in
 * one line: then theirs may be any order. Gives how many there are; 0: they stand in line. */
static int unordered(int *found, const struct search *s, int layer)
{
    const struct mgpu_variables *v = s->m->model;
    bool line = true;
    int n = 0;
    for (int i = 0; i < v->layers && v->family == MGPU_FAMILY_KERAS; i++)
        if (!s->taken[i] && are_alike(v, layer, i)) {
            line = line && (!n || mgpu_variable_layer_before(v, found[n - 1], i));
            found[n++] = i;
        }
    return line ? 0 : n;
}

/* A store's numbers count the layers of one class: the first that is left of this layer's class and
 * direction. */
static struct mgpu_file_layer *first_of_class(const struct search *s, int layer)
{
    const struct mgpu_variable_layer *l = &s->m->model->layer[layer];
    struct mgpu_file_layer *first = NULL;
    for (int i = 0; i < s->file->count; i++) {
        struct mgpu_file_layer *f = &s->file->layer[i];
        bool same = f->of < 0 && f->direction == l->direction && *f->class_name &&
                    !strcmp(f->class_name, l->class_name);
        if (same && (!first || comes_before(s, f, first)))
            first = f;
    }
    return first;
}

static void order_store(struct search *s)
{
    for (int layer = 0; layer < s->m->model->layers; layer++) {
        struct mgpu_file_layer *l = s->taken[layer] ? NULL : first_of_class(s, layer);
        if (l)
            take_next(s, l, layer);
    }
}

static void order_layers(struct search *s)
{
    int layer = 0;
    for (int i = 0; i < s->file->count; i++) {
        struct mgpu_file_layer *l = &s->file->layer[i];
        if (l->of >= 0 || mgpu_match_is_beside(s->m, l))
            continue;
        if (is_heap(s->m, l)) {
            order_variables(s, l);
            continue;
        }
        while (layer < s->m->model->layers && s->taken[layer])
            layer++;
        if (layer < s->m->model->layers)
            take_next(s, l, layer);
    }
}

static void find_unordered(struct search *s)
{
    int *found = mgpu_xcalloc((size_t)s->m->model->layers + 1, sizeof *found);
    for (int i = 0; i < s->m->model->layers; i++) {
        int n = s->taken[i] ? 0 : unordered(found, s, i);
        s->why[i] = n ? could_be(s, found, n) : NULL;
    }
    free(found);
}

/* Only when asked for: what is left, one after the other. */
void mgpu_match_order(struct mgpu_match *m, struct mgpu_layers *file)
{
    struct search s = {m, file, mgpu_xcalloc((size_t)m->model->layers + 1, sizeof *s.taken),
                       MGPU_NEW_ARRAY(m->arena, const char *, m->model->layers + 1)};
    for (int i = 0; i < file->count; i++)
        if (file->layer[i].of >= 0)
            s.taken[file->layer[i].of] = true;
    find_unordered(&s);
    if (m->file->kind == MGPU_CHECKPOINT_KERAS_STORE && !m->file->ordered)
        order_store(&s);
    else
        order_layers(&s);
    free(s.taken);
}
